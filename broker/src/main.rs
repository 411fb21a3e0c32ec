//! The `corelane` binary: the library's command line, and `start` on the ring.
#![forbid(unsafe_code)]

mod start;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    broker::cli::main(start::run)
}
