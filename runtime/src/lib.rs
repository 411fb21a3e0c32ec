//! What a core stands on: the environment's traits, buffer handles, and the ring that implements them.
//!
//! Everything above this crate is generic over one type, [`Env`]. Two types implement it: the ring
//! ([`uring`], one io_uring inside a glommio executor) and the simulator's. Chunks of registered memory are
//! one concrete type for both ([`Region`], [`Chunk`], [`ChunkSlice`]), so that the simulator exercises the
//! very code that decides when memory is free again; and so are the queues between cores ([`Mesh`]) and what is lent over them ([`Loan`]).
#![deny(missing_docs)]

pub mod clock;
pub mod disk;
pub mod env;
pub mod local;
pub mod mesh;
pub mod transport;
pub mod uring;
pub mod woken;

pub use clock::Monotonic;
pub use disk::{DirectoryEntry, Disk, Durability, File, Space};
pub use env::{Canary, Env};
pub use mesh::{Answer, Asked, Mesh, Reply, Seat, seats};
pub use transport::{Connection, Listener, SendPart, SendParts, Sharing, Transport};
pub use uring::lending::Loan;
pub use uring::memory::{Chunk, ChunkSlice, Region};
