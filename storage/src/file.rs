//! A log file and the flush that its writers share.
//!
//! A flush covers what completed before it was issued. Whoever asks while one is under way waits for the next one; all
//! who wait share it.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use runtime::disk::reworded;
use runtime::local::Notify;
use runtime::{Disk, Env, File};

use crate::metrics::Metrics;

pub(crate) type DiskFile<E> = <<E as Env>::Disk as Disk>::File;

/// One file of a log.
pub(crate) struct SegmentFile<E: Env> {
    pub(crate) file: DiskFile<E>,
    flushes: Rc<Flushes>,
    metrics: Metrics,
}

#[derive(Default)]
struct Flushes {
    /// Flushes issued.
    issued: Cell<u64>,
    /// The last flush that ended.
    ended: Cell<u64>,
    running: Cell<bool>,
    /// An error of a flush is final.
    failure: RefCell<Option<io::Error>>,
    changed: Notify,
}

impl<E: Env> Clone for SegmentFile<E> {
    fn clone(&self) -> Self {
        SegmentFile { file: self.file.clone(), flushes: self.flushes.clone(), metrics: self.metrics.clone() }
    }
}

impl<E: Env> SegmentFile<E> {
    pub(crate) fn new(file: DiskFile<E>, metrics: Metrics) -> SegmentFile<E> {
        SegmentFile { file, flushes: Rc::default(), metrics }
    }

    /// Ends once a flush that was issued after this call has succeeded.
    pub(crate) async fn flush(&self) -> io::Result<()> {
        let needed = self.flushes.issued.get() + 1;
        loop {
            if let Some(error) = &*self.flushes.failure.borrow() {
                return Err(reworded(error, error.to_string()));
            }
            if self.flushes.ended.get() >= needed {
                return Ok(());
            }
            if self.flushes.running.get() {
                let seen = self.flushes.changed.count();
                self.flushes.changed.changed(seen).await;
                continue;
            }
            self.flushes.running.set(true);
            let this = self.flushes.issued.get() + 1;
            self.flushes.issued.set(this);
            // Dropped in the middle, the flush counts as neither ended nor running.
            let turn = Turn(&self.flushes);
            let result = self.file.flush().await;
            self.metrics.flushes(1);
            match &result {
                Ok(()) => self.flushes.ended.set(this),
                Err(error) => *self.flushes.failure.borrow_mut() = Some(reworded(error, error.to_string())),
            }
            drop(turn);
        }
    }
}

struct Turn<'a>(&'a Flushes);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.running.set(false);
        self.0.changed.notify();
    }
}
