//! Every distributed decision, as plain synchronous code: facts in, state and effects out. No I/O, no clock, no randomness, no
//! task. Whoever owns the state (a core, the controller, the simulator) executes the effects and reports what came of them.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod metadata;
pub mod producer;
pub mod replica;
