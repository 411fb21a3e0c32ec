use std::cell::Cell;
use std::rc::Rc;
use std::task::Waker;

use futures_lite::future::{block_on, poll_fn};
use runtime::Region;
use runtime::local::{OnceReceiver, once};

use super::*;

struct Later(OnceReceiver<Response>);

impl Future for Later {
    type Output = Response;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response> {
        Pin::new(&mut self.0).poll(context).map(Option::unwrap)
    }
}

fn response(text: &str) -> Response {
    Response::from(SendParts::from_iter([SendPart::Owned(text.as_bytes().into())]))
}

fn bytes_of(parts: &SendParts) -> Vec<u8> {
    parts.iter().flat_map(|part| part.as_bytes().to_vec()).collect()
}

fn drive(queue: &mut ReplyQueue<impl Future<Output = Response> + Unpin>) {
    block_on(poll_fn(|context| {
        queue.drive(context);
        Poll::Ready(())
    }));
}

#[test]
fn t76_replies_leave_in_the_order_of_the_requests() {
    let mut queue = ReplyQueue::default();
    let (first, first_reply) = once();
    let (third, third_reply) = once();
    queue.push_later(Later(first_reply), 100);
    queue.push_ready(response("second "));
    queue.push_later(Later(third_reply), 100);
    third.send(response("third"));
    drive(&mut queue);
    assert!(queue.gather().is_empty(), "the first isn't there yet");
    first.send(response("first "));
    drive(&mut queue);
    let parts = queue.gather();
    assert_eq!(bytes_of(&parts), b"first second third");
    assert_eq!(parts.len(), 3);
    assert_eq!((queue.len(), queue.bytes()), (0, 0));
}

#[test]
fn a_reply_is_polled_when_it_is_new_and_when_one_was_woken() {
    struct Counted(OnceReceiver<Response>, Rc<Cell<u32>>);
    impl Future for Counted {
        type Output = Response;
        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response> {
            self.1.set(self.1.get() + 1);
            Pin::new(&mut self.0).poll(context).map(Option::unwrap)
        }
    }
    let polls = [Rc::new(Cell::new(0)), Rc::new(Cell::new(0))];
    let counts = || (polls[0].get(), polls[1].get());
    let mut context = Context::from_waker(Waker::noop());
    let mut queue = ReplyQueue::default();
    let (first, first_reply) = once();
    let (second, second_reply) = once();
    queue.push_later(Counted(first_reply, polls[0].clone()), 100);
    queue.drive(&mut context);
    queue.push_later(Counted(second_reply, polls[1].clone()), 100);
    queue.drive(&mut context);
    queue.drive(&mut context);
    assert_eq!(counts(), (1, 1));
    first.send(response("first"));
    queue.drive(&mut context);
    assert_eq!(bytes_of(&queue.gather()), b"first");
    assert_eq!(counts(), (2, 2));
    // What has left at the front doesn't hide the next one that is new.
    let (third, third_reply) = once();
    queue.push_later(Counted(third_reply, polls[0].clone()), 100);
    queue.drive(&mut context);
    assert_eq!(counts(), (3, 2));
    second.send(response("second"));
    third.send(response(" third"));
    queue.drive(&mut context);
    assert_eq!(bytes_of(&queue.gather()), b"second third");
    // Another task asks: all are polled with its waker.
    let (fourth, fourth_reply) = once();
    queue.push_later(Counted(fourth_reply, polls[0].clone()), 100);
    drive(&mut queue);
    drive(&mut queue);
    fourth.send(response("fourth"));
    drive(&mut queue);
    assert_eq!(bytes_of(&queue.gather()), b"fourth");
}

#[test]
fn a_large_reply_is_cut_into_bounded_sends() {
    let region = Region::map(32 << 20).unwrap();
    let mut chunk = region.take(8 << 20).unwrap();
    let total = 3 * SEND_BYTES_MAX + 77;
    chunk.append(&vec![1; total]);
    let mut queue = ReplyQueue::<Later>::default();
    queue.push_ready(Response::from(SendParts::from_iter([SendPart::Owned(Box::new([0; 32])), SendPart::Chunk(chunk.freeze())])));
    queue.push_ready(response("end"));
    let mut all = Vec::new();
    let mut sends = 0;
    while !queue.is_empty() {
        let bytes = bytes_of(&queue.gather());
        assert!(bytes.len() <= SEND_BYTES_MAX);
        all.extend(bytes);
        sends += 1;
    }
    assert_eq!(sends, 4);
    assert_eq!(all.len(), 32 + total + 3);
    assert!(all.ends_with(b"\x01end"));
    assert_eq!(queue.bytes(), 0);
}

#[test]
fn t83_a_dropped_queue_drops_what_waits() {
    struct Guard(Rc<Cell<bool>>);
    impl Future for Guard {
        type Output = Response;
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Response> {
            Poll::Pending
        }
    }
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    let dropped = Rc::new(Cell::new(false));
    let mut queue = ReplyQueue::default();
    queue.push_later(Guard(dropped.clone()), 10);
    drop(queue);
    assert!(dropped.get());
}
