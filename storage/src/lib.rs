//! See docs/rfcs/0001-contracts.md.
#![forbid(unsafe_code)]
