//! One io_uring per core inside a glommio executor. The only place of the workspace with `unsafe`, `glommio` and `io-uring`.

pub mod lending;
pub mod memory;

mod buddy;
mod cores;
mod descriptors;
mod disk;
mod environment;
mod file;
mod growth;
mod metrics;
mod operation;
mod operations;
mod pool;
mod probe;
mod ring;
mod socket;
mod tasks;
mod timers;
mod waking;

pub use cores::run_cores;
pub use disk::RingDisk;
pub use environment::{CoreConfig, CoreError, Registration, RingEnv, Spin, run_core};
pub use file::RingFile;
pub use metrics::Metrics;
pub use probe::{KERNEL_MIN, NoRing, Probe, RingProbe, probe};
pub use socket::{RingConnection, RingListener, RingTransport, SocketConfig};
