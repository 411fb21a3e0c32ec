//! The process: configuration, start, request handlers, controller, command line.
#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
pub mod doctor;
pub mod likely;
