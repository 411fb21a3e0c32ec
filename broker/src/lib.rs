//! The process: configuration, start, request handlers, controller, command line.
#![forbid(unsafe_code)]

pub mod api;
pub mod changes;
pub mod cli;
pub mod config;
pub mod controller;
pub mod core;
pub mod crossing;
pub mod directories;
pub mod dispatch;
pub mod doctor;
pub mod likely;
pub mod member;
pub mod metadata_log;
pub mod node;
pub mod partitions;
pub mod progress;
