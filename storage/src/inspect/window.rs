//! A file read front to back through one buffer.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::blocks::{in_file, in_memory};

/// Bytes read at once, unless a batch has more.
const WINDOW_BYTES: usize = 1 << 20;

pub(super) struct Window {
    file: File,
    length: u64,
    start: u64,
    buffer: Vec<u8>,
}

impl Window {
    pub(super) fn open(path: &Path) -> io::Result<Window> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok(Window { file, length, start: 0, buffer: Vec::new() })
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// The `count` bytes at `position`, fewer at the end of the file.
    pub(super) fn bytes(&mut self, position: u64, count: usize) -> io::Result<&[u8]> {
        let count = count.min(in_memory((self.length - position.min(self.length)).min(in_file(count))));
        let held = position >= self.start && position + in_file(count) <= self.start + in_file(self.buffer.len());
        if !held {
            let wanted = count.max(WINDOW_BYTES);
            self.buffer.resize(in_memory(in_file(wanted).min(self.length - position.min(self.length))), 0);
            self.file.read_exact_at(&mut self.buffer, position)?;
            self.start = position;
        }
        let from = in_memory(position - self.start);
        Ok(&self.buffer[from..from + count])
    }

    /// The last byte at or after `position` that isn't zero.
    pub(super) fn last_nonzero(&mut self, position: u64) -> io::Result<Option<u64>> {
        let mut end = self.length;
        while end > position {
            let start = end.saturating_sub(in_file(WINDOW_BYTES)).max(position);
            let bytes = self.bytes(start, in_memory(end - start))?;
            if let Some(found) = bytes.iter().rposition(|byte| *byte != 0) {
                return Ok(Some(start + in_file(found)));
            }
            end = start;
        }
        Ok(None)
    }
}
