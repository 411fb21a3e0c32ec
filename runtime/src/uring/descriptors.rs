//! The descriptors of a core's files: opened when an operation first needs one, at most so many at a time (second chance).
//!
//! Called by [`super::file`] only. Invariants: a descriptor with an operation in flight is never closed (each operation holds a
//! [`Pin`]); when every descriptor is pinned, who needs another waits; `open` counts what is open or being opened.

use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::{Rc, Weak};

use super::operation::{Operation, Target};
use super::ring::{RegisteredFile, Ring};
use crate::local::Notify;

/// The bounded set of open descriptors of one core.
#[derive(Clone)]
pub(super) struct Descriptors(Rc<Table>);

struct Table {
    capacity: usize,
    open: Cell<usize>,
    /// Files that may be open; looked at in a circle from `hand`.
    files: RefCell<Vec<Weak<FileState>>>,
    hand: Cell<usize>,
    waiting: Cell<usize>,
    released: Notify,
    opens: Cell<u64>,
    evictions: Cell<u64>,
}

/// A logical file: a path, and its descriptor while it has one.
pub(super) struct FileState {
    pub(super) path: PathBuf,
    create: Cell<bool>,
    descriptor: RefCell<Option<Rc<Opened>>>,
    used: Cell<bool>,
    opening: Cell<bool>,
    opened: Notify,
}

struct Opened {
    /// Goes before the descriptor: the ring's table must not keep a closed file open.
    registered: Option<RegisteredFile>,
    descriptor: OwnedFd,
    table: Rc<Table>,
}

/// A descriptor that stays open while this lives.
#[derive(Clone)]
pub(super) struct Pin(Rc<Opened>);

/// Counts of descriptor use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DescriptorCounts {
    pub(super) open: usize,
    pub(super) opens: u64,
    pub(super) evictions: u64,
}

impl FileState {
    pub(super) fn new(path: PathBuf, create: bool) -> FileState {
        FileState {
            path,
            create: Cell::new(create),
            descriptor: RefCell::new(None),
            used: Cell::new(false),
            opening: Cell::new(false),
            opened: Notify::new(),
        }
    }

    /// Gives the descriptor up; it is closed when no operation needs it any more.
    pub(super) fn close(&self) {
        let descriptor = self.descriptor.borrow_mut().take();
        drop(descriptor);
    }
}

impl Descriptors {
    pub(super) fn new(capacity: usize) -> Descriptors {
        assert!(capacity > 0, "a core needs a descriptor");
        Descriptors(Rc::new(Table {
            capacity,
            open: Cell::new(0),
            files: RefCell::default(),
            hand: Cell::new(0),
            waiting: Cell::new(0),
            released: Notify::new(),
            opens: Cell::new(0),
            evictions: Cell::new(0),
        }))
    }

    /// The file's descriptor, opened if need be.
    pub(super) async fn pin(&self, file: &Rc<FileState>, ring: &Ring) -> io::Result<Pin> {
        loop {
            if let Some(opened) = &*file.descriptor.borrow() {
                file.used.set(true);
                return Ok(Pin(opened.clone()));
            }
            if file.opening.get() {
                file.opened.changed(file.opened.count()).await;
            } else if self.0.open.get() < self.0.capacity || self.0.evict() {
                return self.open(file, ring).await;
            } else {
                let _waiting = Waiting::new(&self.0);
                self.0.released.changed(self.0.released.count()).await;
            }
        }
    }

    async fn open(&self, file: &Rc<FileState>, ring: &Ring) -> io::Result<Pin> {
        let path = CString::new(file.path.as_os_str().as_bytes())?;
        let create = if file.create.get() { libc::O_CREAT } else { 0 };
        let flags = libc::O_RDWR | libc::O_DIRECT | libc::O_CLOEXEC | create;
        let opening = Opening::new(&self.0, file);
        let outcome = ring.start(Operation::Open { path, flags, opened: None }).await;
        outcome.result.map_err(|error| explain(&file.path, &error))?;
        let Some(Operation::Open { opened: Some(descriptor), .. }) = outcome.operation else {
            return Err(io::Error::other("an open ended without a descriptor"));
        };
        let registered = ring.register_file(&descriptor);
        let opened = Rc::new(Opened { registered, descriptor, table: self.0.clone() });
        opening.succeeded();
        file.create.set(false);
        file.used.set(true);
        *file.descriptor.borrow_mut() = Some(opened.clone());
        self.0.remember(file);
        Ok(Pin(opened))
    }

    pub(super) fn counts(&self) -> DescriptorCounts {
        DescriptorCounts { open: self.0.open.get(), opens: self.0.opens.get(), evictions: self.0.evictions.get() }
    }
}

impl Table {
    /// Closes one descriptor that nothing uses and that wasn't used since the hand last passed it.
    fn evict(&self) -> bool {
        let mut files = self.files.borrow_mut();
        let mut steps = 2 * files.len();
        while steps > 0 && !files.is_empty() {
            steps -= 1;
            let hand = self.hand.get() % files.len();
            let Some(file) = files[hand].upgrade() else {
                files.swap_remove(hand);
                continue;
            };
            let mut descriptor = file.descriptor.borrow_mut();
            match &*descriptor {
                None => drop(files.swap_remove(hand)),
                Some(opened) if Rc::strong_count(opened) == 1 && !file.used.get() => {
                    let closed = descriptor.take();
                    files.swap_remove(hand);
                    self.evictions.set(self.evictions.get() + 1);
                    drop(closed);
                    return true;
                }
                Some(_) => {
                    file.used.set(false);
                    self.hand.set(hand + 1);
                }
            }
        }
        false
    }

    fn remember(&self, file: &Rc<FileState>) {
        let mut files = self.files.borrow_mut();
        if files.len() >= 2 * self.capacity {
            files.retain(|file| file.upgrade().is_some_and(|file| file.descriptor.borrow().is_some()));
        }
        files.push(Rc::downgrade(file));
        self.opens.set(self.opens.get() + 1);
    }

    fn release(&self) {
        if self.waiting.get() > 0 {
            self.released.notify();
        }
    }
}

impl Pin {
    /// A descriptor outside of any set, for scripted completions.
    #[cfg(test)]
    pub(super) fn alone(descriptor: OwnedFd) -> Pin {
        let table = Descriptors::new(1).0;
        table.open.set(1);
        Pin(Rc::new(Opened { registered: None, descriptor, table }))
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.0.descriptor.as_raw_fd()
    }

    pub(super) fn target(&self) -> Target {
        RegisteredFile::target(self.0.registered.as_ref(), &self.0.descriptor)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // Woken tasks run later, when this pin is gone.
        self.0.table.release();
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.table.open.set(self.table.open.get() - 1);
        self.table.release();
    }
}

/// Someone waits for a descriptor to be unpinned.
struct Waiting<'table>(&'table Table);

impl<'table> Waiting<'table> {
    fn new(table: &'table Table) -> Waiting<'table> {
        table.waiting.set(table.waiting.get() + 1);
        Waiting(table)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

/// An open under way, counted as open; undone unless it succeeds.
struct Opening<'file> {
    table: &'file Table,
    file: &'file FileState,
    succeeded: bool,
}

impl<'file> Opening<'file> {
    fn new(table: &'file Table, file: &'file FileState) -> Opening<'file> {
        table.open.set(table.open.get() + 1);
        file.opening.set(true);
        Opening { table, file, succeeded: false }
    }

    fn succeeded(mut self) {
        self.succeeded = true;
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.file.opening.set(false);
        self.file.opened.notify();
        if !self.succeeded {
            self.table.open.set(self.table.open.get() - 1);
            self.table.release();
        }
    }
}

fn explain(path: &std::path::Path, error: &io::Error) -> io::Error {
    let path = path.display();
    match error.raw_os_error() {
        Some(libc::EINVAL) => io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{path}: the file system refuses direct I/O (O_DIRECT); use ext4 or XFS"),
        ),
        Some(libc::EMFILE) => io::Error::other(format!(
            "{path}: this process has no descriptor left; raise the limit of open files (ulimit -n, LimitNOFILE=)"
        )),
        _ => io::Error::new(error.kind(), format!("{path}: {error}")),
    }
}
