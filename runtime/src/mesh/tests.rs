use futures_lite::future::{block_on, poll_once};

use super::*;

/// Carries at once.
struct Direct {
    arrivals: Vec<Notify>,
}

impl Carrier for Direct {
    fn sent(&self, to: CoreId) {
        self.arrivals[usize::from(to.0)].notify();
    }

    fn has_arrived(&self, _from: CoreId) -> bool {
        true
    }

    fn ended(&self) {
        self.arrivals.iter().for_each(Notify::notify);
    }
}

struct Side {
    mesh: Mesh<usize, usize>,
    pump: RefCell<Pin<Box<dyn Future<Output = ()>>>>,
}

fn sides(cores: usize) -> Vec<Side> {
    let arrivals: Vec<Notify> = (0..cores).map(|_| Notify::new()).collect();
    let side = |seat: Seat<usize, usize>| {
        let own = arrivals[usize::from(seat.core().0)].clone();
        let (mesh, pump) = seat.take(Direct { arrivals: arrivals.clone() }, own);
        Side { mesh, pump: RefCell::new(Box::pin(pump)) }
    };
    seats(cores).into_iter().map(side).collect()
}

fn two() -> (Side, Side) {
    let mut sides = sides(2).into_iter();
    (sides.next().unwrap(), sides.next().unwrap())
}

const A: CoreId = CoreId(0);
const B: CoreId = CoreId(1);

impl Side {
    /// One turn of the pump.
    fn turn(&self) {
        assert!(now(&mut *self.pump.borrow_mut()).is_none());
    }

    /// All that has arrived is taken.
    fn turns(&self) {
        for _ in 0..1 + PARCELS_PER_CREDIT * self.mesh.credits() / PARCELS_PER_TURN {
            self.turn();
        }
    }

    fn next(&self) -> Option<Asked<usize, usize>> {
        block_on(poll_once(self.mesh.next()))
    }

    fn call(&self, to: CoreId, request: usize) -> Reply<usize> {
        self.mesh.try_call(to, request).expect("there is a credit")
    }

    fn fill(&self, to: CoreId) -> Vec<Reply<usize>> {
        let replies: Vec<_> = (0..self.mesh.credits()).map(|request| self.call(to, request)).collect();
        assert_eq!(self.mesh.try_call(to, 77).err(), Some(77), "no credit is left");
        replies
    }
}

fn now<T>(future: impl Future<Output = T> + Unpin) -> Option<T> {
    block_on(poll_once(future))
}

#[test]
fn requests_of_a_core_come_in_order_and_no_core_waits_behind_another_ones() {
    let sides = sides(3);
    let replies: Vec<_> = (0..9).map(|n| sides[1].call(A, 100 + n)).chain((0..3).map(|n| sides[2].call(A, 200 + n))).collect();
    sides[0].turn();
    let order: Vec<usize> = std::iter::from_fn(|| sides[0].next())
        .map(|asked| {
            let request = asked.request;
            asked.answer.send(request + 1);
            request
        })
        .collect();
    assert_eq!(order, [100, 200, 101, 201, 102, 202, 103, 104, 105, 106, 107, 108]);
    sides[1].turn();
    sides[2].turn();
    let replies: Vec<usize> = replies.into_iter().map(|reply| now(reply).flatten().unwrap()).collect();
    assert_eq!(replies, [101, 102, 103, 104, 105, 106, 107, 108, 109, 201, 202, 203]);
}

#[test]
fn t89_two_cores_without_credits_go_on() {
    let (a, b) = two();
    let (asked_of_b, asked_of_a) = (a.fill(B), b.fill(A));
    let mut waits = Box::pin(a.mesh.call(B, 9_999));
    assert!(now(&mut waits).is_none(), "it waits for a credit");
    a.turns();
    b.turns();
    // Both lie full of requests that nobody has taken; a reply passes all the same, and its credit goes to who waits.
    let first = b.next().unwrap();
    first.answer.send(first.request);
    a.turns();
    assert!(now(&mut waits).is_none(), "it is under way");
    assert_eq!(a.mesh.under_way(B), a.mesh.credits());
    for (side, other) in [(&a, &b), (&b, &a)] {
        other.turns();
        while let Some(asked) = other.next() {
            asked.answer.send(asked.request);
            side.turn();
        }
    }
    for (n, reply) in asked_of_b.into_iter().enumerate() {
        assert_eq!(now(reply), Some(Some(n)));
    }
    assert_eq!(asked_of_a.into_iter().filter_map(now).flatten().count(), b.mesh.credits());
    assert_eq!(now(waits), Some(Some(9_999)));
    assert_eq!((a.mesh.under_way(B), b.mesh.under_way(A)), (0, 0));
}

#[test]
fn t89_a_queue_has_room_for_all_that_credits_allow() {
    let (a, b) = two();
    let credits = a.mesh.credits();
    let asked_of_a = b.fill(A);
    drop(a.fill(B));
    // The requests are taken, the cancellations behind them not yet.
    for _ in 0..credits / PARCELS_PER_TURN {
        b.turn();
    }
    while let Some(asked) = b.next() {
        assert!(!asked.answer.is_cancelled());
        asked.answer.send(0);
    }
    a.turns();
    drop(a.fill(B));
    while let Some(asked) = a.next() {
        asked.answer.send(1);
    }
    b.turns();
    assert!(asked_of_a.into_iter().all(|reply| now(reply) == Some(Some(1))));
    let second: Vec<_> = std::iter::from_fn(|| b.next()).collect();
    assert_eq!(second.len(), credits);
    assert!(second.iter().all(|asked| asked.answer.is_cancelled()), "each is told of its own cancellation");
    drop(second);
    a.turns();
    assert_eq!(a.mesh.under_way(B), 0);
}

#[test]
fn a_credit_comes_back_with_the_reply_though_nobody_waits_for_it() {
    let (a, b) = two();
    drop(a.fill(B));
    assert_eq!(a.mesh.under_way(B), a.mesh.credits(), "a dropped call holds its credit until the other core has answered");
    let mut ready = Box::pin(a.mesh.ready());
    assert!(now(&mut ready).is_none());
    b.turns();
    b.next().unwrap().answer.send(5);
    a.turn();
    assert!(now(ready).is_some());
    assert_eq!(a.mesh.under_way(B), a.mesh.credits() - 1);
}

#[test]
fn ready_is_one_credit_to_each_core() {
    let sides = sides(3);
    assert!(now(Box::pin(sides[0].mesh.ready())).is_some());
    let _to_b = sides[0].fill(B);
    let to_c = sides[0].fill(CoreId(2));
    assert!(now(Box::pin(sides[0].mesh.ready())).is_none());
    sides[1].turns();
    sides[1].next().unwrap().answer.send(1);
    sides[0].turn();
    assert!(now(Box::pin(sides[0].mesh.ready())).is_none(), "one core is still full");
    drop(to_c);
    sides[2].turns();
    drop(sides[2].next());
    sides[0].turn();
    assert!(now(Box::pin(sides[0].mesh.ready())).is_some());
}

#[test]
fn who_asks_is_told_that_nobody_waits_and_the_next_call_in_its_slot_is_not_meant() {
    let (a, b) = two();
    let reply = a.call(B, 1);
    b.turn();
    let asked = b.next().unwrap();
    let mut cancelled = Box::pin(asked.answer.cancelled());
    assert!(now(&mut cancelled).is_none() && !asked.answer.is_cancelled());
    drop(reply);
    b.turn();
    assert!(now(&mut cancelled).is_some() && asked.answer.is_cancelled());
    assert!(now(Box::pin(asked.answer.cancelled())).is_some(), "also who asks later");
    asked.answer.send(1);
    a.turn();
    // Its reply has come: dropping it says nothing to the call that has its slot now.
    let answered = a.call(B, 2);
    b.turn();
    b.next().unwrap().answer.send(2);
    a.turn();
    let second = a.call(B, 3);
    drop(answered);
    b.turn();
    let asked = b.next().unwrap();
    assert!(!asked.answer.is_cancelled());
    drop(asked);
    a.turn();
    assert_eq!(now(second), Some(None), "an answer dropped without a reply is no reply");
}

#[test]
fn what_a_core_that_ends_was_asked_ends_behind_what_it_sent() {
    let (a, b) = two();
    let mut replies = a.fill(B);
    let (mut waits, mut also) = (Box::pin(a.mesh.call(B, 9_999)), Box::pin(a.mesh.call(B, 9_998)));
    assert!(now(&mut waits).is_none() && now(&mut also).is_none());
    let of_b = b.call(A, 4);
    b.turns();
    let asked = b.next().unwrap();
    let second = b.next().unwrap();
    asked.answer.send(8);
    drop((of_b, second, b));
    a.turns();
    assert_eq!(now(replies.remove(0)), Some(Some(8)), "it was sent before the end");
    assert!(replies.into_iter().all(|reply| now(reply) == Some(None)));
    assert_eq!((now(waits), now(also)), (Some(None), Some(None)));
    let asked = a.next().unwrap();
    assert!(asked.answer.is_cancelled(), "nobody waits for it");
    asked.answer.send(1);
    assert!(now(Box::pin(a.mesh.ready())).is_some());
    assert_eq!(now(a.call(B, 5)), Some(None));
}

#[test]
fn a_seat_that_nobody_took_has_ended() {
    let mut seats = seats::<usize, usize>(2).into_iter();
    let (a, b) = (seats.next().unwrap(), seats.next().unwrap());
    let (mesh, pump) = a.take(Direct { arrivals: vec![Notify::new(); 2] }, Notify::new());
    let a = Side { mesh, pump: RefCell::new(Box::pin(pump)) };
    let reply = a.call(B, 1);
    drop(b);
    a.turn();
    assert_eq!(now(reply), Some(None));
}

#[test]
fn a_turn_of_the_pump_is_bounded() {
    let (a, b) = two();
    let _replies = a.fill(B);
    b.turn();
    let taken = std::iter::from_fn(|| b.next()).count();
    assert_eq!(taken, PARCELS_PER_TURN);
}
