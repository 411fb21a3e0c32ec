//! A gathered send: which of its parts go without a copy, what is left after a short one, and what it holds until the kernel is done.
//!
//! A part of [`super::Operation`], which is its only caller, with [`super::super::operations`]. Pure, as that is.

use std::io;
use std::rc::Rc;

use smallvec::SmallVec;

use super::{MESSAGE_PARTS_MAX, Memory, Message, Socket, Step, Submission, ZeroCopyRules, closed, short};
use crate::transport::{SendPart, SendParts};
use crate::uring::memory::Hold;

/// A send of several parts, in order.
pub(in crate::uring) struct Send {
    pub(in crate::uring) socket: Rc<Socket>,
    parts: SendParts,
    holds: SmallVec<[Hold; 4]>,
    part: usize,
    offset: usize,
    zero_copy: bool,
    /// The step under way was refused without a copy and goes again as a copy.
    copy_this_step: bool,
    /// Bytes counted in `socket.zero_copy_bytes` for this send, and the parts that they are of.
    held: usize,
    counted_parts: usize,
    /// Counted in `socket.sends`.
    under_way: bool,
}

impl Send {
    pub(in crate::uring) fn new(socket: Rc<Socket>, parts: SendParts) -> Send {
        let holds = parts
            .iter()
            .filter_map(|part| match part {
                SendPart::Chunk(slice) => Some(Hold::new(slice.clone())),
                // Another core's memory: this core's region doesn't lack it.
                SendPart::Owned(_) | SendPart::Lent(_) => None,
            })
            .collect();
        socket.sends.set(socket.sends.get() + 1);
        let mut send = Send {
            socket,
            parts,
            holds,
            part: 0,
            offset: 0,
            zero_copy: false,
            copy_this_step: false,
            held: 0,
            counted_parts: 0,
            under_way: true,
        };
        send.skip(0);
        send
    }

    /// Whether nothing is left to send.
    pub(in crate::uring) fn is_done(&self) -> bool {
        self.part == self.parts.len()
    }

    pub(super) fn submission(&mut self, message: &mut Message, rules: &ZeroCopyRules) -> Submission {
        let target = self.socket.target();
        self.zero_copy = !self.copy_this_step && self.may_zero_copy(self.part, self.offset, rules);
        let more = self.part + 1 < self.parts.len();
        if self.zero_copy
            && let SendPart::Chunk(slice) = &self.parts[self.part]
        {
            let rest = &slice[self.offset..];
            let memory = Memory { address: rest.as_ptr().cast_mut(), length: short(rest.len()), entry: slice.entry() };
            if self.counted_parts <= self.part {
                self.counted_parts = self.part + 1;
                self.held += rest.len();
                self.socket.zero_copy_bytes.set(self.socket.zero_copy_bytes.get() + rest.len());
            }
            return Submission::SendZeroCopy { target, memory, more };
        }
        let mut count = 0;
        let mut offset = self.offset;
        for (index, part) in self.parts.iter().enumerate().skip(self.part).take(MESSAGE_PARTS_MAX) {
            if count > 0 && self.may_zero_copy(index, 0, rules) {
                break;
            }
            let bytes = &part.as_bytes()[offset..];
            message.parts[count] = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            count += 1;
            offset = 0;
        }
        message.header.msg_iov = message.parts.as_mut_ptr();
        message.header.msg_iovlen = count;
        Submission::SendMessage { target, message: &message.header, more: self.part + count < self.parts.len() }
    }

    fn may_zero_copy(&self, part: usize, offset: usize, rules: &ZeroCopyRules) -> bool {
        // What another core lent isn't registered with this ring.
        let SendPart::Chunk(slice) = &self.parts[part] else { return false };
        let length = slice.len() - offset;
        rules.enabled
            && length >= rules.bytes_min
            && !self.socket.plain_only.get()
            && self.socket.zero_copy_bytes.get() + length <= rules.bytes_per_connection_max
            && slice.region_held_bytes() <= slice.region_bytes() / rules.region_divisor
    }

    pub(super) fn advance(&mut self, result: i32) -> Step {
        let step = self.step(result);
        if matches!(step, Step::Finished(_)) {
            self.ended();
        }
        step
    }

    fn step(&mut self, result: i32) -> Step {
        if result == -libc::EINTR || result == -libc::EAGAIN {
            return Step::Again;
        }
        let refused = [libc::ENOBUFS, libc::ENOMEM, libc::EOPNOTSUPP, libc::EINVAL];
        if self.zero_copy && !self.socket.closed.get() && refused.contains(&-result) {
            self.copy_this_step = true;
            self.socket.plain_only.set(self.socket.plain_only.get() || result != -libc::ENOBUFS);
            return Step::Again;
        }
        let Ok(count) = usize::try_from(result) else {
            let error = if self.socket.closed.get() { closed() } else { io::Error::from_raw_os_error(-result) };
            return Step::Finished(Err(error));
        };
        if count == 0 {
            return Step::Finished(Err(io::ErrorKind::WriteZero.into()));
        }
        self.copy_this_step = false;
        self.skip(count);
        if self.is_done() { Step::Finished(Ok(0)) } else { Step::Again }
    }

    /// Moves the cursor over `count` sent bytes and over empty parts.
    fn skip(&mut self, mut count: usize) {
        while self.part < self.parts.len() {
            let left = self.parts[self.part].as_bytes().len() - self.offset;
            if count < left {
                self.offset += count;
                return;
            }
            count -= left;
            self.part += 1;
            self.offset = 0;
        }
        assert!(count == 0, "the kernel sent {count} bytes more than there were");
    }

    /// The kernel has taken all bytes, or won't.
    fn ended(&mut self) {
        if std::mem::take(&mut self.under_way) {
            self.socket.sends.set(self.socket.sends.get() - 1);
        }
    }

    /// The kernel reads nothing of this send any more.
    pub(in crate::uring) fn release(&mut self) {
        let bytes = &self.socket.zero_copy_bytes;
        bytes.set(bytes.get() - self.held);
        self.held = 0;
        self.holds.clear();
    }
}

impl Drop for Send {
    fn drop(&mut self) {
        self.ended();
    }
}
