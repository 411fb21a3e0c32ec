//! One operation of the kernel, as a state machine over completions: what it owns, what it asks for next, when it ends.
//!
//! Lives on one core, in a slot of [`super::operations::Operations`], which is its only caller. Pure: no system call is made here,
//! so tests give completions as values.
//!
//! Invariants:
//! - An operation owns its memory (chunk, slices, parts, path) and its descriptor until the kernel is done with them.
//! - EINTR and EAGAIN are submitted again; short reads, writes and sends are continued; every other error is final.
//! - A send without a copy that the kernel refuses (no memory for the notification, not supported) is sent again as a copy.

mod send;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use protocol::limits::{ACCEPTED_CONNECTIONS_WAITING_MAX, BLOCK_BYTES};

use super::descriptors::Pin;
use super::memory::{Chunk, ChunkSlice};
use super::ring::RegisteredFile;
use crate::mesh::bell::Bell;

pub(super) use send::Send;

/// IORING_CQE_F_MORE: this operation posts more completions.
pub(super) const FLAG_MORE: u32 = 1 << 1;
/// IORING_CQE_F_SOCK_NONEMPTY: the socket holds more bytes.
pub(super) const FLAG_SOCKET_NONEMPTY: u32 = 1 << 2;
/// IORING_CQE_F_NOTIF: the kernel no longer reads the buffer of a send without a copy.
pub(super) const FLAG_NOTIFICATION: u32 = 1 << 3;
/// IORING_NOTIF_USAGE_ZC_COPIED in a notification's result: the kernel copied after all.
pub(super) const REPORT_COPIED: i32 = i32::MIN;

/// Parts gathered in one message, at most.
pub(super) const MESSAGE_PARTS_MAX: usize = 64;

/// A completion as the kernel posts it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    pub(super) user_data: u64,
    pub(super) result: i32,
    pub(super) flags: u32,
}

/// What to submit for an operation now; the ring translates it into an entry. Addresses stay valid until the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submission {
    Open { path: *const libc::c_char, flags: i32 },
    Read { target: Target, memory: Memory, position: u64 },
    Write { target: Target, memory: Memory, position: u64, durable: bool },
    Flush { target: Target },
    Allocate { target: Target, mode: i32, position: u64, length: u64 },
    Readable { target: Target },
    Receive { target: Target, memory: Memory, poll_first: bool },
    SendMessage { target: Target, message: *const libc::msghdr, more: bool },
    SendZeroCopy { target: Target, memory: Memory, more: bool },
    Accept { target: Target },
    Knock { ring: i32 },
    Cancel { user_data: u64 },
}

/// What an operation works on: a descriptor's number, or its index among the ring's registered files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) number: i32,
    pub(super) registered: bool,
}

/// A range of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) address: *mut u8,
    pub(super) length: u32,
    pub(super) entry: u16,
}

/// What a completion means for its operation.
#[derive(Debug)]
pub(super) enum Step {
    /// Submit again: a short transfer is continued, or the kernel asked for it.
    Again,
    /// The operation goes on by itself (multishot).
    Wait,
    /// No further completion but notifications.
    Finished(io::Result<usize>),
}

/// Storage that one message of a gathered send needs while it is submitted.
pub(super) struct Message {
    parts: [libc::iovec; MESSAGE_PARTS_MAX],
    header: libc::msghdr,
}

/// A connected or listening socket, shared by its handle and its operations.
pub(super) struct Socket {
    /// Goes before the descriptor: the ring's table must not keep a closed socket open.
    registered: Option<RegisteredFile>,
    pub(super) descriptor: OwnedFd,
    /// `close` was called: what is under way ends with an error.
    pub(super) closed: Cell<bool>,
    /// The kernel copied a send that should not have been: this connection sends copies from now on.
    pub(super) plain_only: Cell<bool>,
    /// Bytes that unfinished sends without a copy hold.
    pub(super) zero_copy_bytes: Cell<usize>,
    /// The last receive emptied the socket: wait for bytes before trying.
    pub(super) drained: Cell<bool>,
    /// A receive was dropped after the kernel had given it bytes.
    pub(super) bytes_lost: Cell<bool>,
    /// Sends of which the kernel hasn't taken all bytes.
    pub(super) sends: Cell<u32>,
}

/// When a part is sent without a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct ZeroCopyRules {
    pub(super) enabled: bool,
    pub(super) bytes_min: usize,
    pub(super) bytes_per_connection_max: usize,
    pub(super) region_divisor: usize,
}

pub(super) struct Read {
    pub(super) pin: Pin,
    pub(super) chunk: Chunk,
    pub(super) position: u64,
    pub(super) length: usize,
    pub(super) done: usize,
}

pub(super) struct Write {
    pub(super) pin: Pin,
    pub(super) data: ChunkSlice,
    pub(super) position: u64,
    pub(super) durable: bool,
    pub(super) done: usize,
}

/// Connections that a listening socket has accepted and nobody has taken yet.
pub(super) struct AcceptQueue {
    pub(super) socket: Rc<Socket>,
    pub(super) waiting: RefCell<VecDeque<io::Result<OwnedFd>>>,
    pub(super) waiter: RefCell<Option<Waker>>,
    /// Whether the multishot operation is under way.
    pub(super) armed: Cell<bool>,
}

/// An operation and all that it owns.
pub(super) enum Operation {
    Open {
        path: CString,
        flags: i32,
        opened: Option<OwnedFd>,
    },
    Read(Read),
    Write(Write),
    Flush {
        pin: Pin,
    },
    Allocate {
        pin: Pin,
        mode: i32,
        position: u64,
        length: u64,
    },
    Readable {
        socket: Rc<Socket>,
    },
    /// Waits until an eventfd was written.
    Bell {
        bell: Arc<OwnedFd>,
    },
    Receive {
        socket: Rc<Socket>,
        chunk: Chunk,
        bytes_max: usize,
    },
    Send(Send),
    Accept {
        queue: Rc<AcceptQueue>,
    },
    /// Wakes another core that sleeps in its ring.
    Knock {
        bell: Arc<Bell>,
    },
}

impl Submission {
    /// What it works on, but for names, other rings and cancellations.
    pub(super) fn target(&self) -> Option<Target> {
        match *self {
            Submission::Open { .. } | Submission::Knock { .. } | Submission::Cancel { .. } => None,
            Submission::Read { target, .. }
            | Submission::Write { target, .. }
            | Submission::Flush { target }
            | Submission::Allocate { target, .. }
            | Submission::Readable { target }
            | Submission::Receive { target, .. }
            | Submission::SendMessage { target, .. }
            | Submission::SendZeroCopy { target, .. }
            | Submission::Accept { target } => Some(target),
        }
    }
}

impl Socket {
    pub(super) fn new(descriptor: OwnedFd, registered: Option<RegisteredFile>) -> Socket {
        Socket {
            registered,
            descriptor,
            closed: Cell::new(false),
            plain_only: Cell::new(false),
            zero_copy_bytes: Cell::new(0),
            drained: Cell::new(true),
            bytes_lost: Cell::new(false),
            sends: Cell::new(0),
        }
    }

    /// Ends the stream. In order, if all that was sent is with the kernel: the peer gets it, then the end. But a send that is cut
    /// short breaks the stream anyhow, and its peer reads too slowly: then all is thrown away, memory comes back at once, and the
    /// peer gets a reset.
    pub(super) fn close(&self) {
        if self.closed.replace(true) {
            return;
        }
        if self.sends.get() > 0 {
            self.abort();
        } else {
            // An error means that the peer has gone already.
            let _ = rustix::net::shutdown(&self.descriptor, rustix::net::Shutdown::Both);
        }
    }

    /// Throws away what the peer hasn't acknowledged, and resets the connection.
    pub(super) fn abort(&self) {
        self.closed.set(true);
        // An error means that there is no connection any more.
        let _ = rustix::net::connect_unspec(&self.descriptor);
    }

    fn target(&self) -> Target {
        RegisteredFile::target(self.registered.as_ref(), &self.descriptor)
    }
}

impl AcceptQueue {
    pub(super) fn new(socket: Rc<Socket>) -> AcceptQueue {
        AcceptQueue { socket, waiting: RefCell::default(), waiter: RefCell::default(), armed: Cell::new(false) }
    }
}

impl Message {
    /// The bytes that a message of the slot names, as the kernel would read them.
    #[cfg(test)]
    pub(super) fn bytes(message: &libc::msghdr) -> Vec<Vec<u8>> {
        (0..message.msg_iovlen)
            .map(|index| {
                // SAFETY: the slot's message names live memory of the operation until its completion; the test has not completed it.
                unsafe {
                    let part = *message.msg_iov.add(index);
                    std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len).to_vec()
                }
            })
            .collect()
    }

    fn new() -> Box<Message> {
        // SAFETY: all zeros is a valid iovec and a valid msghdr (null pointers, zero lengths).
        unsafe { Box::new(std::mem::zeroed()) }
    }
}

impl Operation {
    /// What to submit now. Called again after [`Step::Again`].
    pub(super) fn submission(&mut self, message: &mut Option<Box<Message>>, rules: &ZeroCopyRules) -> Submission {
        match self {
            Operation::Open { path, flags, .. } => Submission::Open { path: path.as_ptr(), flags: *flags },
            Operation::Read(read) => read.submission(),
            Operation::Write(write) => write.submission(),
            Operation::Flush { pin } => Submission::Flush { target: pin.target() },
            Operation::Allocate { pin, mode, position, length } => {
                Submission::Allocate { target: pin.target(), mode: *mode, position: *position, length: *length }
            }
            Operation::Readable { socket } => Submission::Readable { target: socket.target() },
            Operation::Bell { bell } => Submission::Readable { target: Target { number: bell.as_raw_fd(), registered: false } },
            Operation::Receive { socket, chunk, bytes_max } => Submission::Receive {
                target: socket.target(),
                memory: behind(chunk, *bytes_max),
                poll_first: socket.drained.get(),
            },
            Operation::Send(send) => send.submission(message.get_or_insert_with(Message::new), rules),
            Operation::Accept { queue } => Submission::Accept { target: queue.socket.target() },
            Operation::Knock { bell } => Submission::Knock { ring: bell.ring_number() },
        }
    }

    /// What `completion` (no notification) means. Wakers to call are put into `wakers`.
    pub(super) fn advance(&mut self, completion: Completion, wakers: &mut Vec<Waker>) -> Step {
        let result = completion.result;
        if let Operation::Accept { queue } = self {
            return queue.advance(completion, wakers);
        }
        if let Operation::Send(send) = self {
            return send.advance(result);
        }
        if result == -libc::EINTR || result == -libc::EAGAIN {
            return Step::Again;
        }
        let Ok(count) = usize::try_from(result) else {
            return Step::Finished(Err(self.error(result)));
        };
        match self {
            Operation::Open { opened, .. } => {
                // SAFETY: the kernel has just made this descriptor for this operation; nobody else knows its number.
                *opened = Some(unsafe { OwnedFd::from_raw_fd(result) });
                Step::Finished(Ok(0))
            }
            Operation::Read(read) => read.advance(count),
            Operation::Write(write) => write.advance(count),
            Operation::Receive { socket, chunk, .. } => {
                chunk.publish(count);
                socket.drained.set(completion.flags & FLAG_SOCKET_NONEMPTY == 0);
                Step::Finished(Ok(count))
            }
            Operation::Readable { socket } => {
                socket.drained.set(false);
                Step::Finished(Ok(count))
            }
            _ => Step::Finished(Ok(count)),
        }
    }

    fn error(&self, result: i32) -> io::Error {
        match self {
            Operation::Readable { socket } | Operation::Receive { socket, .. } if socket.closed.get() => closed(),
            _ => io::Error::from_raw_os_error(-result),
        }
    }

    /// Whether the operation must be canceled when nobody waits for it any more: it might never end by itself.
    pub(super) fn is_endless(&self) -> bool {
        matches!(self, Operation::Readable { .. } | Operation::Bell { .. } | Operation::Receive { .. } | Operation::Accept { .. })
    }

    /// Whether the operation goes on by itself and has given more than its owner takes: the rest is to stay in the kernel.
    pub(super) fn is_overfull(&self) -> bool {
        matches!(self, Operation::Accept { queue } if queue.waiting.borrow().len() >= ACCEPTED_CONNECTIONS_WAITING_MAX)
    }

    /// Nobody has taken the finished result.
    pub(super) fn forget(&mut self, result: &io::Result<usize>) {
        match (self, result) {
            (Operation::Receive { socket, .. }, Ok(1..)) => socket.bytes_lost.set(true),
            // The other ring takes no more completions now, or has ended: the core, if it is there, is woken in the slower way.
            (Operation::Knock { bell }, Err(_)) => bell.sound_alarm(),
            _ => {}
        }
    }
}

impl Read {
    fn submission(&self) -> Submission {
        let memory = behind(&self.chunk, self.length - self.done);
        Submission::Read { target: self.pin.target(), memory, position: self.position + wide(self.done) }
    }

    fn advance(&mut self, count: usize) -> Step {
        assert!(count <= self.length - self.done, "the kernel read {count} bytes where {} fit", self.length - self.done);
        self.chunk.publish(count);
        self.done += count;
        // A direct read ends inside a block only at the end of the file.
        if count == 0 || self.done == self.length || !count.is_multiple_of(BLOCK_BYTES) {
            return Step::Finished(Ok(self.done));
        }
        Step::Again
    }
}

impl Write {
    fn submission(&self) -> Submission {
        let rest = &self.data[self.done..];
        let memory = Memory { address: rest.as_ptr().cast_mut(), length: short(rest.len()), entry: self.data.entry() };
        let position = self.position + wide(self.done);
        Submission::Write { target: self.pin.target(), memory, position, durable: self.durable }
    }

    fn advance(&mut self, count: usize) -> Step {
        let end = self.done + count;
        assert!(end <= self.data.len(), "the kernel wrote {end} bytes of {}", self.data.len());
        if end == self.data.len() {
            return Step::Finished(Ok(end));
        }
        // A direct write can only go on at a block; the begun block is written once more with the same bytes.
        let done = end - end % BLOCK_BYTES;
        if done == self.done {
            let message = format!("a write of {} bytes stopped after {end}, inside a block", self.data.len());
            return Step::Finished(Err(io::Error::new(io::ErrorKind::WriteZero, message)));
        }
        self.done = done;
        Step::Again
    }
}

impl AcceptQueue {
    fn advance(&self, completion: Completion, wakers: &mut Vec<Waker>) -> Step {
        let more = completion.flags & FLAG_MORE != 0;
        let accepted = if completion.result >= 0 {
            // SAFETY: the kernel has just made this descriptor for this operation; nobody else knows its number.
            Some(Ok(unsafe { OwnedFd::from_raw_fd(completion.result) }))
        } else if self.socket.closed.get() {
            Some(Err(closed()))
        } else if [libc::EINTR, libc::EAGAIN, libc::ECANCELED].contains(&-completion.result) {
            // Ended by the kernel or by a full queue; the next `accept` starts it again.
            None
        } else {
            Some(Err(io::Error::from_raw_os_error(-completion.result)))
        };
        if let Some(accepted) = accepted {
            self.waiting.borrow_mut().push_back(accepted);
        }
        if !more {
            self.armed.set(false);
        }
        if let Some(waiter) = self.waiter.borrow_mut().take() {
            wakers.push(waiter);
        }
        if more { Step::Wait } else { Step::Finished(Ok(0)) }
    }
}

/// The error of an operation whose socket was closed here.
pub(super) fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the socket was closed")
}

fn behind(chunk: &Chunk, length: usize) -> Memory {
    Memory { address: chunk.pointer().wrapping_add(chunk.filled()), length: short(length), entry: chunk.entry() }
}

fn short(length: usize) -> u32 {
    u32::try_from(length).expect("a chunk is at most 16 MiB")
}

fn wide(length: usize) -> u64 {
    u64::try_from(length).expect("a usize fits 64 bits")
}
