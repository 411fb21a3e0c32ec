//! Deterministic simulator, histories and the log checker. Only tests import it.
//!
//! [`run`] gives a future the simulated environment [`SimEnv`], which implements `runtime::Env`: one thread, virtual time, a disk that
//! knows what is synced, a network, crashes. One seed is one run, to the last step; a failure says its seed.
#![forbid(unsafe_code)]

pub mod checker;
mod cores;
pub mod disk;
pub mod env;
pub mod network;
pub mod powercut;
pub mod random;
pub mod real;
#[cfg(feature = "logs")]
pub mod recorder;
#[cfg(feature = "logs")]
pub mod runner;
#[cfg(feature = "logs")]
pub mod scenario;
pub mod world;

pub use disk::{Crash, DiskCounters, DiskFaults, Sectors};
pub use env::{Finished, Options, SimEnv, run, run_with, try_run};
pub use network::{NetworkFaults, SimConnection};
pub use world::{RunError, RunLimits};
