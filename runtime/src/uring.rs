//! One io_uring per core inside a glommio executor. The only place of the workspace with `unsafe`, `glommio` and `io-uring`.

pub mod memory;
