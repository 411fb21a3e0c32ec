//! The kernel played by the test: completions that a loopback or a healthy disk never shows, in every order.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use proptest::prelude::*;

use super::super::descriptors::Pin;
use super::super::memory::{CHUNK_BYTES_MAX, Chunk, ChunkSlice, Region};
use super::super::operation::{AcceptQueue, Memory, Read, Send, Socket, Write};
use super::*;
use crate::mesh::bell::Bell;
use crate::transport::{SendPart, SendParts};

const BLOCK: usize = 4096;
const KIB: usize = 1024;

/// Operations, and the test in the kernel's place.
struct Kernel {
    operations: Operations,
    region: Region,
    wakes: Arc<Wakes>,
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Wakes>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn null() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

fn rules() -> ZeroCopyRules {
    ZeroCopyRules { enabled: true, bytes_min: 16 * KIB, bytes_per_connection_max: 128 * KIB, region_divisor: 2 }
}

impl Kernel {
    fn new() -> Kernel {
        Kernel { operations: Operations::new(rules()), region: Region::map(CHUNK_BYTES_MAX).unwrap(), wakes: Arc::default() }
    }

    fn chunk(&self, bytes: usize, seed: usize) -> Chunk {
        let mut chunk = self.region.take(bytes).unwrap();
        for (n, byte) in chunk.writable()[..bytes].iter_mut().enumerate() {
            *byte = u8::try_from((n + n / 251 + seed) % 256).unwrap();
        }
        chunk.publish(bytes);
        chunk
    }

    fn socket() -> Rc<Socket> {
        Rc::new(Socket::new(null(), None))
    }

    fn write(&mut self, data: ChunkSlice) -> OperationId {
        self.operations.start(Operation::Write(Write { pin: Pin::alone(null()), data, position: 8192, durable: true, done: 0 }))
    }

    fn send(&mut self, socket: &Rc<Socket>, parts: impl IntoIterator<Item = SendPart>) -> OperationId {
        let parts: SendParts = parts.into_iter().collect();
        self.operations.start(Operation::Send(Send::new(socket.clone(), parts)))
    }

    fn receive(&mut self, socket: &Rc<Socket>) -> OperationId {
        let chunk = self.region.take(BLOCK).unwrap();
        self.operations.start(Operation::Receive { socket: socket.clone(), bytes_max: chunk.remaining(), chunk })
    }

    fn next(&mut self) -> (u64, Submission) {
        self.operations.next().expect("something is submitted")
    }

    fn complete(&mut self, user_data: u64, result: i32, flags: u32) {
        self.operations.complete(Completion { user_data, result, flags });
        self.clean();
    }

    /// What the ring does when it holds no borrow.
    fn clean(&mut self) {
        for waker in std::mem::take(&mut self.operations.wakers) {
            waker.wake();
        }
        self.operations.finished.clear();
    }

    fn poll(&mut self, id: OperationId) -> Poll<Outcome> {
        let outcome = self.operations.poll(id, &Waker::from(self.wakes.clone()));
        self.clean();
        outcome
    }

    fn result(&mut self, id: OperationId) -> io::Result<usize> {
        match self.poll(id) {
            Poll::Ready(outcome) => outcome.result,
            Poll::Pending => panic!("{id:?} hasn't ended"),
        }
    }

    fn abandon(&mut self, id: OperationId) {
        self.operations.abandon(id);
        self.clean();
    }

    fn lent(&self) -> usize {
        self.region.bytes() - self.region.free_bytes()
    }
}

fn owned(bytes: &[u8]) -> SendPart {
    SendPart::Owned(bytes.into())
}

fn length(bytes: usize) -> i32 {
    i32::try_from(bytes).unwrap()
}

fn message_of(submission: Submission) -> Vec<Vec<u8>> {
    match submission {
        // SAFETY: the operation that the message belongs to has not been completed.
        Submission::SendMessage { message, .. } => Message::bytes(unsafe { &*message }),
        other => panic!("{other:?} is no message"),
    }
}

fn is_zero_copy(submission: Submission) -> bool {
    matches!(submission, Submission::SendZeroCopy { .. })
}

#[test]
fn t96_short_write_goes_on_where_it_stopped() {
    let mut kernel = Kernel::new();
    let data = kernel.chunk(4 * BLOCK, 1).freeze();
    let id = kernel.write(data.clone());
    let (user_data, first) = kernel.next();
    let start = data.as_ptr().cast_mut();
    let memory =
        |done: usize| Memory { address: start.wrapping_add(done), length: u32::try_from(4 * BLOCK - done).unwrap(), entry: 0 };
    assert!(matches!(first, Submission::Write { memory: all, position: 8192, durable: true, .. } if all == memory(0)));
    kernel.complete(user_data, length(BLOCK), 0);
    assert!(kernel.poll(id).is_pending());
    let (user_data, second) = kernel.next();
    assert!(matches!(second, Submission::Write { memory: rest, position: 12288, durable: true, .. } if rest == memory(BLOCK)));
    // Stopped inside a block: that block is written again, whole.
    kernel.complete(user_data, length(BLOCK + 512), 0);
    let (user_data, third) = kernel.next();
    assert!(matches!(third, Submission::Write { memory: rest, position: 16384, .. } if rest == memory(2 * BLOCK)));
    kernel.complete(user_data, length(2 * BLOCK), 0);
    assert_eq!(kernel.result(id).unwrap(), 4 * BLOCK);
    assert_eq!(kernel.operations.counts().short_transfers, 2);
}

#[test]
fn t96_write_without_progress_is_an_error() {
    for taken in [0, 512] {
        let mut kernel = Kernel::new();
        let data = kernel.chunk(BLOCK, 1).freeze();
        let id = kernel.write(data);
        let (user_data, _) = kernel.next();
        kernel.complete(user_data, taken, 0);
        assert_eq!(kernel.result(id).unwrap_err().kind(), io::ErrorKind::WriteZero);
        assert!(!kernel.operations.has_queued());
    }
}

#[test]
fn t96_interrupted_operations_are_submitted_again() {
    let mut kernel = Kernel::new();
    let socket = Kernel::socket();
    let data = kernel.chunk(BLOCK, 1).freeze();
    let write = kernel.write(data.clone());
    let send = kernel.send(&socket, [SendPart::Chunk(data)]);
    let receive = kernel.receive(&socket);
    let flush = kernel.operations.start(Operation::Flush { pin: Pin::alone(null()) });
    for error in [libc::EINTR, libc::EAGAIN, libc::EINTR] {
        let submitted: Vec<(u64, Submission)> = std::iter::from_fn(|| kernel.operations.next()).collect();
        assert_eq!(submitted.len(), 4, "all go again, in order");
        for (user_data, _) in submitted {
            kernel.complete(user_data, -error, 0);
        }
    }
    let submitted: Vec<(u64, Submission)> = std::iter::from_fn(|| kernel.operations.next()).collect();
    for (user_data, submission) in submitted {
        kernel.complete(user_data, if matches!(submission, Submission::Flush { .. }) { 0 } else { length(BLOCK) }, 0);
    }
    for id in [write, send, receive, flush] {
        kernel.result(id).unwrap();
    }
    assert_eq!(kernel.operations.counts().resubmissions, 12);
    assert_eq!(kernel.operations.in_use(), 0);
}

#[test]
fn t22_write_error_and_failed_flush_are_final() {
    for error in [libc::EIO, libc::ENOSPC, libc::EROFS, libc::ECANCELED] {
        let mut kernel = Kernel::new();
        let data = kernel.chunk(BLOCK, 1).freeze();
        let ids = [kernel.write(data), kernel.operations.start(Operation::Flush { pin: Pin::alone(null()) })];
        for id in ids {
            let (user_data, _) = kernel.next();
            kernel.complete(user_data, -error, 0);
            assert_eq!(kernel.result(id).unwrap_err().raw_os_error(), Some(error));
        }
        assert!(!kernel.operations.has_queued(), "nothing is tried again");
    }
}

#[test]
fn t96_read_ends_at_the_end_of_the_file_only() {
    let mut kernel = Kernel::new();
    let chunk = kernel.region.take(4 * BLOCK).unwrap();
    let read = Read { pin: Pin::alone(null()), chunk, position: 0, length: 4 * BLOCK, done: 0 };
    let id = kernel.operations.start(Operation::Read(read));
    let (user_data, _) = kernel.next();
    kernel.complete(user_data, length(BLOCK), 0);
    let (user_data, second) = kernel.next();
    assert!(matches!(second, Submission::Read { position: 4096, memory, .. } if memory.length == 12288));
    kernel.complete(user_data, 100, 0);
    let Poll::Ready(Outcome { result: Ok(4196), operation: Some(Operation::Read(read)) }) = kernel.poll(id) else {
        panic!("the read ends with what there is");
    };
    assert_eq!(read.chunk.filled(), 4196);
}

#[test]
fn t96_short_send_goes_on_inside_its_part() {
    let mut kernel = Kernel::new();
    let socket = Kernel::socket();
    let chunk = kernel.chunk(1000, 3).freeze();
    let id = kernel.send(&socket, [owned(b"header"), owned(b""), SendPart::Chunk(chunk.slice(0..500)), owned(b"tail")]);
    let (user_data, first) = kernel.next();
    assert_eq!(message_of(first), [&b"header"[..], b"", &chunk[0..500], b"tail"]);
    kernel.complete(user_data, 4, 0);
    let (user_data, second) = kernel.next();
    assert_eq!(message_of(second), [&b"er"[..], b"", &chunk[0..500], b"tail"]);
    kernel.complete(user_data, 2 + 100, 0);
    let (user_data, third) = kernel.next();
    assert_eq!(message_of(third), [&chunk[100..500], b"tail"]);
    kernel.complete(user_data, 404, 0);
    kernel.result(id).unwrap();
    assert_eq!(kernel.region.held_bytes(), 0);
}

#[test]
fn a_send_of_many_parts_goes_in_several_messages() {
    let mut kernel = Kernel::new();
    let socket = Kernel::socket();
    let id = kernel.send(&socket, (0..150).map(|_| owned(b"x")));
    for (parts, more) in [(64, true), (64, true), (22, false)] {
        let (user_data, submission) = kernel.next();
        assert!(matches!(submission, Submission::SendMessage { more: said, .. } if said == more));
        assert_eq!(message_of(submission).len(), parts);
        kernel.complete(user_data, length(parts), 0);
    }
    kernel.result(id).unwrap();
}

#[test]
fn t90_memory_of_a_send_is_held_until_the_notification() {
    let mut kernel = Kernel::new();
    let socket = Kernel::socket();
    let chunk = kernel.chunk(64 * KIB, 5).freeze();
    let id = kernel.send(&socket, [SendPart::Chunk(chunk)]);
    let (user_data, submission) = kernel.next();
    assert!(is_zero_copy(submission));
    kernel.complete(user_data, length(64 * KIB), FLAG_MORE);
    kernel.result(id).unwrap();
    assert_eq!((kernel.lent(), kernel.region.held_bytes()), (64 * KIB, 64 * KIB), "the kernel still reads it");
    assert_eq!(socket.zero_copy_bytes.get(), 64 * KIB);
    kernel.complete(user_data, 0, FLAG_NOTIFICATION);
    assert_eq!((kernel.lent(), kernel.region.held_bytes(), socket.zero_copy_bytes.get()), (0, 0, 0));
    assert_eq!(kernel.operations.in_use(), 0);
    assert!(!socket.plain_only.get());
}

#[test]
fn t90_bytes_of_a_send_are_counted_once_however_often_it_is_tried() {
    let mut kernel = Kernel::new();
    let socket = Kernel::socket();
    let chunk = kernel.chunk(64 * KIB, 5).freeze();
    let id = kernel.send(&socket, [SendPart::Chunk(chunk)]);
    for (result, flags) in [(-libc::EINTR, 0), (length(16 * KIB), FLAG_MORE), (length(48 * KIB), FLAG_MORE)] {
        let (user_data, submission) = kernel.next();
        assert!(is_zero_copy(submission));
        assert_eq!(socket.zero_copy_bytes.get(), 64 * KIB);
        kernel.complete(user_data, result, flags);
    }
    kernel.result(id).unwrap();
    kernel.complete(id.user_data(), 0, FLAG_NOTIFICATION);
    assert_eq!(socket.zero_copy_bytes.get(), 64 * KIB, "one of two notifications");
    kernel.complete(id.user_data(), 0, FLAG_NOTIFICATION);
    assert_eq!((socket.zero_copy_bytes.get(), kernel.lent()), (0, 0));
}

#[test]
fn t90_notification_before_the_completion() {
    let mut kernel = Kernel::new();
    let socket = Kernel::socket();
    let chunk = kernel.chunk(64 * KIB, 5).freeze();
    let id = kernel.send(&socket, [SendPart::Chunk(chunk)]);
    let (user_data, _) = kernel.next();
    kernel.complete(user_data, 0, FLAG_NOTIFICATION);
    assert!(kernel.poll(id).is_pending());
    assert_eq!(kernel.lent(), 64 * KIB, "the send isn't over");
    kernel.complete(user_data, length(64 * KIB), FLAG_MORE);
    kernel.result(id).unwrap();
    assert_eq!((kernel.lent(), kernel.operations.in_use()), (0, 0));
}

#[test]
fn what_another_core_lent_is_sent_as_a_copy_and_held_until_the_completion() {
    let mut kernel = Kernel::new();
    let home = Region::map(CHUNK_BYTES_MAX).unwrap();
    let mut chunk = home.take(64 * KIB).unwrap();
    chunk.append(&vec![7; 64 * KIB]);
    let loan = chunk.freeze().lend().unwrap();
    let id = kernel.send(&Kernel::socket(), [SendPart::Lent(loan)]);
    let (user_data, submission) = kernel.next();
    assert!(matches!(submission, Submission::SendMessage { .. }), "its memory is not registered with this ring");
    assert_eq!((home.free_bytes(), home.loans()), (CHUNK_BYTES_MAX - 64 * KIB, 1));
    kernel.complete(user_data, length(64 * KIB), 0);
    kernel.result(id).unwrap();
    assert_eq!((home.free_bytes(), home.loans()), (CHUNK_BYTES_MAX, 0));
}

#[test]
fn a_knock_that_fails_is_followed_by_the_alarm_and_one_that_comes_says_nothing() {
    let mut kernel = Kernel::new();
    let alarm = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap());
    let bell = Arc::new(Bell::new(null(), alarm.clone()));
    let heard = || rustix::io::read(&*alarm, &mut [0; 8]).is_ok();
    for (result, alarms) in [(0, false), (-libc::EOVERFLOW, true), (-libc::EBADFD, true)] {
        let id = kernel.operations.start(Operation::Knock { bell: bell.clone() });
        kernel.operations.detach(id);
        let (user_data, submission) = kernel.next();
        assert_eq!(submission, Submission::Knock { ring: bell.ring_number() });
        kernel.complete(user_data, result, 0);
        assert_eq!((heard(), kernel.operations.in_use()), (alarms, 0));
    }
    kernel.complete(KNOCK, 0, 0);
}

#[test]
fn t90_slow_reader_is_sent_copies_beyond_its_cap() {
    let mut kernel = Kernel::new();
    let (slow, other) = (Kernel::socket(), Kernel::socket());
    let chunk = kernel.chunk(64 * KIB, 5).freeze();
    let mut unfinished = Vec::new();
    for _ in 0..2 {
        let id = kernel.send(&slow, [SendPart::Chunk(chunk.clone())]);
        let (user_data, submission) = kernel.next();
        assert!(is_zero_copy(submission));
        kernel.complete(user_data, length(64 * KIB), FLAG_MORE);
        kernel.result(id).unwrap();
        unfinished.push(user_data);
    }
    assert_eq!(slow.zero_copy_bytes.get(), rules().bytes_per_connection_max);
    kernel.send(&slow, [SendPart::Chunk(chunk.clone())]);
    assert!(!is_zero_copy(kernel.next().1), "the cap is reached");
    kernel.send(&other, [SendPart::Chunk(chunk.clone())]);
    assert!(is_zero_copy(kernel.next().1), "another connection has its own cap");
    kernel.complete(unfinished[0], 0, FLAG_NOTIFICATION);
    kernel.send(&slow, [SendPart::Chunk(chunk)]);
    assert!(is_zero_copy(kernel.next().1), "what was acknowledged counts no more");
}

#[test]
fn t90_sends_of_all_connections_leave_a_reserve() {
    let mut kernel = Kernel::new();
    kernel.operations = Operations::new(ZeroCopyRules { bytes_per_connection_max: usize::MAX, ..rules() });
    let half = kernel.region.bytes() / 2;
    let mut held = 0;
    let mut last = Vec::new();
    loop {
        let socket = Kernel::socket();
        let Some(chunk) = kernel.region.take(1 << 20) else { break };
        let mut chunk = chunk;
        chunk.publish(1 << 20);
        kernel.send(&socket, [SendPart::Chunk(chunk.freeze())]);
        let (user_data, submission) = kernel.next();
        if is_zero_copy(submission) {
            held += 1 << 20;
            last.push(user_data);
        }
    }
    assert!(held == half, "{held} bytes without a copy of {half} allowed");
    // What is copied goes back as soon as the kernel has taken it; what isn't, waits for the peer.
    assert_eq!(kernel.region.held_bytes(), kernel.region.bytes());
}

#[test]
fn a_connection_is_sent_copies_once_the_kernel_says_that_it_copies() {
    let mut kernel = Kernel::new();
    let socket = Kernel::socket();
    let chunk = kernel.chunk(64 * KIB, 5).freeze();
    let id = kernel.send(&socket, [SendPart::Chunk(chunk.clone())]);
    let (user_data, _) = kernel.next();
    kernel.complete(user_data, length(64 * KIB), FLAG_MORE);
    kernel.complete(user_data, REPORT_COPIED, FLAG_NOTIFICATION);
    kernel.result(id).unwrap();
    assert!(socket.plain_only.get());
    kernel.send(&socket, [SendPart::Chunk(chunk)]);
    assert!(!is_zero_copy(kernel.next().1));
    assert_eq!(kernel.operations.counts().zero_copy_copied, 1);
}

#[test]
fn t96_send_without_buffers_is_sent_as_a_copy() {
    for (error, for_good) in [(libc::ENOBUFS, false), (libc::ENOMEM, true), (libc::EOPNOTSUPP, true)] {
        let mut kernel = Kernel::new();
        let socket = Kernel::socket();
        let chunk = kernel.chunk(64 * KIB, 5).freeze();
        let id = kernel.send(&socket, [SendPart::Chunk(chunk.clone()), SendPart::Chunk(chunk.clone())]);
        let (user_data, submission) = kernel.next();
        assert!(is_zero_copy(submission));
        // The kernel may promise a notification even for an error.
        kernel.complete(user_data, -error, FLAG_MORE);
        let (user_data, copy) = kernel.next();
        assert_eq!(message_of(copy)[0], &chunk[..], "the same bytes, all of them");
        kernel.complete(user_data, length(64 * KIB), 0);
        let (user_data, second) = kernel.next();
        assert_eq!(is_zero_copy(second), !for_good, "the next part is tried again after {error}");
        let more = if for_good { 0 } else { FLAG_MORE };
        kernel.complete(user_data, length(64 * KIB), more);
        kernel.result(id).unwrap();
        assert!(kernel.operations.in_use() > 0, "notifications are due");
        kernel.complete(user_data, 0, FLAG_NOTIFICATION);
        if !for_good {
            kernel.complete(user_data, 0, FLAG_NOTIFICATION);
        }
        assert_eq!((kernel.operations.in_use(), socket.zero_copy_bytes.get(), kernel.region.held_bytes()), (0, 0, 0));
    }
}

#[test]
fn t96_full_submission_queue_loses_nothing() {
    let mut kernel = Kernel::new();
    let data = kernel.chunk(BLOCK, 1).freeze();
    let ids: Vec<OperationId> = (0..1000).map(|_| kernel.write(data.clone())).collect();
    let mut order = Vec::new();
    while kernel.operations.has_queued() {
        // A queue of four entries, and each goes through EAGAIN first.
        let batch: Vec<u64> = std::iter::from_fn(|| kernel.operations.next()).take(4).map(|(user_data, _)| user_data).collect();
        for user_data in batch {
            let first = !order.contains(&user_data);
            order.push(user_data);
            kernel.complete(user_data, if first { -libc::EAGAIN } else { length(BLOCK) }, 0);
        }
    }
    let firsts: Vec<u64> = ids.iter().map(|id| id.user_data()).collect();
    assert_eq!(order[..1000], firsts, "in the order of the calls");
    for id in ids {
        kernel.result(id).unwrap();
    }
}

#[test]
fn t96_canceled_multishot_accept_is_armed_again() {
    let mut kernel = Kernel::new();
    let queue = Rc::new(AcceptQueue::new(Kernel::socket()));
    for error in [libc::ECANCELED, libc::EINTR, libc::EAGAIN] {
        queue.armed.set(true);
        let id = kernel.operations.start(Operation::Accept { queue: queue.clone() });
        kernel.operations.detach(id);
        let (user_data, _) = kernel.next();
        kernel.complete(user_data, null_number(), FLAG_MORE);
        assert!(queue.armed.get());
        kernel.complete(user_data, -error, 0);
        assert!(!queue.armed.get(), "the next accept starts it again");
        assert_eq!(queue.waiting.borrow().len(), 1, "the caller doesn't see {error}");
        queue.waiting.borrow_mut().clear();
        assert_eq!(kernel.operations.in_use(), 0);
    }
}

#[test]
fn t96_accept_reports_a_missing_descriptor_and_wakes() {
    let mut kernel = Kernel::new();
    let queue = Rc::new(AcceptQueue::new(Kernel::socket()));
    queue.armed.set(true);
    *queue.waiter.borrow_mut() = Some(Waker::from(kernel.wakes.clone()));
    let id = kernel.operations.start(Operation::Accept { queue: queue.clone() });
    kernel.operations.detach(id);
    let (user_data, _) = kernel.next();
    kernel.complete(user_data, -libc::EMFILE, 0);
    assert_eq!(kernel.wakes.0.load(Ordering::Relaxed), 1);
    let error = queue.waiting.borrow_mut().pop_front().unwrap().unwrap_err();
    assert_eq!((error.raw_os_error(), queue.armed.get()), (Some(libc::EMFILE), false));
}

#[test]
fn accepting_stops_when_nobody_takes_the_connections() {
    let mut kernel = Kernel::new();
    let queue = Rc::new(AcceptQueue::new(Kernel::socket()));
    queue.armed.set(true);
    let id = kernel.operations.start(Operation::Accept { queue: queue.clone() });
    kernel.operations.detach(id);
    let (user_data, _) = kernel.next();
    for _ in 0..protocol::limits::ACCEPTED_CONNECTIONS_WAITING_MAX {
        assert!(!kernel.operations.has_queued());
        kernel.complete(user_data, null_number(), FLAG_MORE);
    }
    assert!(matches!(kernel.next().1, Submission::Cancel { user_data: canceled } if canceled == user_data));
}

#[test]
fn t91_dropped_future_frees_nothing_before_the_completion() {
    // Dropped before it is submitted, in the kernel, and between two parts of a short write.
    for dropped_at in 0..3 {
        let mut kernel = Kernel::new();
        let data = kernel.chunk(2 * BLOCK, 1).freeze();
        let id = kernel.write(data);
        if dropped_at == 0 {
            kernel.abandon(id);
        }
        let (user_data, _) = kernel.next();
        if dropped_at == 1 {
            kernel.abandon(id);
        }
        assert_eq!(kernel.lent(), 2 * BLOCK);
        kernel.complete(user_data, length(BLOCK), 0);
        if dropped_at == 2 {
            kernel.abandon(id);
        }
        assert_eq!(kernel.lent(), 2 * BLOCK, "the write goes on, with its memory");
        let (user_data, _) = kernel.next();
        kernel.complete(user_data, length(BLOCK), 0);
        assert_eq!((kernel.lent(), kernel.operations.in_use()), (0, 0));
    }
}

#[test]
fn t91_dropped_receive_is_canceled_and_keeps_its_chunk_until_then() {
    let mut kernel = Kernel::new();
    let socket = Kernel::socket();
    let id = kernel.receive(&socket);
    let (user_data, _) = kernel.next();
    kernel.abandon(id);
    assert_eq!(kernel.lent(), BLOCK);
    assert!(matches!(kernel.next().1, Submission::Cancel { user_data: canceled } if canceled == user_data));
    kernel.complete(CANCELLATION, 0, 0);
    assert_eq!(kernel.lent(), BLOCK, "only the receive's own completion ends it");
    kernel.complete(user_data, -libc::ECANCELED, 0);
    assert_eq!((kernel.lent(), kernel.operations.in_use(), socket.bytes_lost.get()), (0, 0, false));
}

#[test]
fn t91_bytes_taken_by_a_dropped_receive_are_not_missed_silently() {
    for taken_before_drop in [false, true] {
        let mut kernel = Kernel::new();
        let socket = Kernel::socket();
        let id = kernel.receive(&socket);
        let (user_data, _) = kernel.next();
        if taken_before_drop {
            kernel.complete(user_data, 10, 0);
            kernel.abandon(id);
        } else {
            kernel.abandon(id);
            kernel.complete(user_data, 10, 0);
        }
        assert!(socket.bytes_lost.get());
        assert_eq!(kernel.lent(), 0);
    }
}

#[test]
fn t91_dropped_interrupted_receive_ends() {
    let mut kernel = Kernel::new();
    let socket = Kernel::socket();
    let id = kernel.receive(&socket);
    let (user_data, _) = kernel.next();
    kernel.complete(user_data, -libc::EINTR, 0);
    kernel.abandon(id);
    // The second try is in the outbox; the cancellation follows it.
    assert_eq!(kernel.next().0, user_data);
    assert!(matches!(kernel.next().1, Submission::Cancel { .. }));
    kernel.complete(user_data, -libc::EINTR, 0);
    assert_eq!((kernel.lent(), kernel.operations.in_use(), kernel.operations.has_queued()), (0, 0, false));
}

#[test]
fn t91_dropped_send_holds_its_parts_until_the_notification() {
    let mut kernel = Kernel::new();
    let socket = Kernel::socket();
    let chunk = kernel.chunk(64 * KIB, 5).freeze();
    let id = kernel.send(&socket, [SendPart::Chunk(chunk), owned(b"tail")]);
    let (user_data, _) = kernel.next();
    kernel.complete(user_data, length(64 * KIB), FLAG_MORE);
    kernel.abandon(id);
    let (user_data, tail) = kernel.next();
    assert_eq!(message_of(tail), [b"tail"], "a begun send is finished: half of it would break the stream");
    kernel.complete(user_data, 4, 0);
    assert_eq!(kernel.lent(), 64 * KIB);
    kernel.complete(user_data, 0, FLAG_NOTIFICATION);
    assert_eq!((kernel.lent(), kernel.operations.in_use()), (0, 0));
}

#[test]
fn t91_descriptor_of_a_dropped_open_is_closed() {
    let mut kernel = Kernel::new();
    for opened_first in [false, true] {
        let id = kernel.operations.start(Operation::Open { path: c"/dev/null".into(), flags: 0, opened: None });
        let (user_data, _) = kernel.next();
        let number = null_number();
        if opened_first {
            kernel.complete(user_data, number, 0);
            kernel.abandon(id);
        } else {
            kernel.abandon(id);
            kernel.complete(user_data, number, 0);
        }
        assert_eq!(kernel.operations.in_use(), 0, "the slot, and with it the descriptor, is gone");
    }
}

#[test]
fn a_freed_slot_gets_a_new_name() {
    let mut kernel = Kernel::new();
    let data = kernel.chunk(BLOCK, 1).freeze();
    let first = kernel.write(data.clone());
    let (user_data, _) = kernel.next();
    kernel.complete(user_data, length(BLOCK), 0);
    kernel.result(first).unwrap();
    let second = kernel.write(data);
    assert_eq!((first.index, first.generation + 1), (second.index, second.generation));
    let late = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| kernel.complete(user_data, 1, 0)));
    assert!(late.is_err(), "a completion for a freed slot is a fault, not a guess");
}

/// A descriptor number that the operation will own.
fn null_number() -> i32 {
    use std::os::fd::IntoRawFd;
    null().into_raw_fd()
}

/// What the kernel does with the next send.
#[derive(Clone, Debug)]
enum Move {
    Take { share: u8, notify_first: bool },
    Interrupt,
    Refuse,
    Notify { copied: bool },
    Drop,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        6 => (any::<u8>(), any::<bool>()).prop_map(|(share, notify_first)| Move::Take { share, notify_first }),
        1 => Just(Move::Interrupt),
        1 => Just(Move::Refuse),
        2 => (0..20_u8).prop_map(|n| Move::Notify { copied: n == 0 }),
        1 => Just(Move::Drop),
    ];
    proptest::collection::vec(one, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the kernel does with a send, its bytes go out once, in order, from memory that is still the send's own.
    #[test]
    fn t96_a_send_survives_every_order_of_completions(
        sizes in proptest::collection::vec((any::<bool>(), 0..40_000_usize), 1..8),
        moves in moves(),
    ) {
        let mut kernel = Kernel::new();
        let socket = Kernel::socket();
        let mut expected = Vec::new();
        let mut parts = SendParts::new();
        for (n, (in_chunk, bytes)) in sizes.into_iter().enumerate() {
            let part = if in_chunk && bytes > 0 {
                SendPart::Chunk(kernel.chunk(bytes, n).freeze())
            } else {
                SendPart::Owned(vec![u8::try_from(n).unwrap(); bytes].into())
            };
            expected.extend_from_slice(part.as_bytes());
            parts.push(part);
        }
        prop_assume!(!expected.is_empty());
        let id = kernel.send(&socket, parts);
        let mut sent: Vec<u8> = Vec::new();
        let mut due = 0;
        let mut dropped = false;
        let mut user_data = 0;
        let finish = std::iter::repeat_n(Move::Take { share: 255, notify_first: false }, 200);
        for action in moves.into_iter().chain(finish) {
            match action {
                Move::Notify { copied } if due > 0 => {
                    due -= 1;
                    kernel.complete(user_data, if copied { REPORT_COPIED } else { 0 }, FLAG_NOTIFICATION);
                    continue;
                }
                Move::Notify { .. } => continue,
                Move::Drop => {
                    if !dropped && sent.len() < expected.len() {
                        kernel.abandon(id);
                        dropped = true;
                    }
                    continue;
                }
                _ => {}
            }
            let Some((submitted, submission)) = kernel.operations.next() else { break };
            user_data = submitted;
            let zero_copy = is_zero_copy(submission);
            let bytes = match submission {
                // SAFETY: the operation owns this memory until the completion below.
                Submission::SendZeroCopy { memory, .. } => unsafe {
                    std::slice::from_raw_parts(memory.address, memory.length.try_into().unwrap()).to_vec()
                },
                message => message_of(message).concat(),
            };
            match action {
                Move::Take { share, notify_first } => {
                    let count = (bytes.len() * usize::from(share) / 255).max(1);
                    sent.extend_from_slice(&bytes[..count]);
                    if zero_copy && notify_first {
                        kernel.complete(user_data, 0, FLAG_NOTIFICATION);
                    } else if zero_copy {
                        due += 1;
                    }
                    kernel.complete(user_data, length(count), if zero_copy { FLAG_MORE } else { 0 });
                }
                Move::Interrupt => kernel.complete(user_data, -libc::EINTR, 0),
                // A plain send that is refused fails; here only sends without a copy are.
                _ if zero_copy => kernel.complete(user_data, -libc::ENOBUFS, 0),
                _ => kernel.complete(user_data, -libc::EAGAIN, 0),
            }
        }
        prop_assert_eq!(&sent, &expected);
        if !dropped {
            kernel.result(id).unwrap();
        }
        for _ in 0..due {
            prop_assert!(kernel.operations.in_use() > 0);
            kernel.complete(user_data, 0, FLAG_NOTIFICATION);
        }
        prop_assert_eq!((kernel.operations.in_use(), kernel.lent(), socket.zero_copy_bytes.get()), (0, 0, 0));
    }
}

#[test]
fn the_socket_is_waited_for_first_once_it_is_empty() {
    let mut kernel = Kernel::new();
    let socket = Kernel::socket();
    for (flags, expected) in [(FLAG_SOCKET_NONEMPTY_TEST, false), (0, true)] {
        let id = kernel.receive(&socket);
        let (user_data, _) = kernel.next();
        kernel.complete(user_data, 10, flags);
        kernel.result(id).unwrap();
        let id = kernel.receive(&socket);
        let (user_data, submission) = kernel.next();
        assert!(matches!(submission, Submission::Receive { poll_first, target, .. }
            if poll_first == expected && target.number == socket.descriptor.as_raw_fd()));
        kernel.complete(user_data, 0, FLAG_SOCKET_NONEMPTY_TEST);
        kernel.result(id).unwrap();
    }
}

const FLAG_SOCKET_NONEMPTY_TEST: u32 = super::super::operation::FLAG_SOCKET_NONEMPTY;
