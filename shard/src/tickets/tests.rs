use futures_lite::future::{block_on, poll_once};
use proptest::prelude::*;

use super::*;

fn queue() -> Rc<RefCell<TicketQueue>> {
    Rc::default()
}

fn ticket(queue: &Rc<RefCell<TicketQueue>>, acks: Acks, base: i64, end: i64, deadline: u64) -> Ticket {
    let produced = Produced { base_offset: Offset(base), append_time: Timestamp::NONE, log_start: Offset(0) };
    let deadline = Deadline { at: Monotonic(deadline), timeout: Duration::from_nanos(deadline) };
    Ticket::appended(queue, acks, Appended::Now, Offset(end), produced, deadline)
}

fn settle(queue: &Rc<RefCell<TicketQueue>>, acks: Acks, acknowledged: i64) -> usize {
    let mut woken = Woken::new();
    queue.borrow_mut().settle(acks, Offset(acknowledged), &mut woken);
    woken.len()
}

fn poll(ticket: &mut Ticket) -> Option<Result<Produced, ProduceError>> {
    block_on(poll_once(ticket))
}

#[test]
fn each_level_has_its_own_condition() {
    let queue = queue();
    let mut none = ticket(&queue, Acks::None, 0, 5, 100);
    let mut leader = ticket(&queue, Acks::Leader, 5, 10, 100);
    let mut all = ticket(&queue, Acks::All, 10, 15, 100);
    assert_eq!(poll(&mut none).unwrap().unwrap().base_offset, Offset(0));
    assert!(poll(&mut leader).is_none() && poll(&mut all).is_none());
    assert_eq!(settle(&queue, Acks::Leader, 15), 1);
    assert_eq!(poll(&mut leader).unwrap().unwrap().base_offset, Offset(5));
    assert!(poll(&mut all).is_none());
    assert_eq!(settle(&queue, Acks::All, 14), 0);
    assert!(poll(&mut all).is_none());
    assert_eq!(settle(&queue, Acks::All, 15), 1);
    let produced = poll(&mut all).unwrap().unwrap();
    assert_eq!(produced.base_offset, Offset(10));
    drop((none, leader, all));
    assert_eq!(queue.borrow().len(), 0);
}

#[test]
fn a_ticket_gives_up_at_its_deadline_and_not_before() {
    let queue = queue();
    let mut early = ticket(&queue, Acks::All, 0, 1, 50);
    let mut late = ticket(&queue, Acks::All, 1, 2, 80);
    assert!(poll(&mut early).is_none() && poll(&mut late).is_none());
    let mut woken = Woken::new();
    assert_eq!(queue.borrow_mut().expire(Monotonic(49), &mut woken), Some(Monotonic(50)));
    assert!(woken.is_empty());
    assert_eq!(queue.borrow_mut().expire(Monotonic(50), &mut woken), Some(Monotonic(80)));
    assert_eq!(woken.len(), 1);
    assert!(matches!(poll(&mut early), Some(Err(ProduceError::TimedOut { .. }))));
    assert!(poll(&mut late).is_none());
    drop(early);
    assert_eq!(queue.borrow().len(), 1);
    assert_eq!(settle(&queue, Acks::All, 2), 1);
    assert!(matches!(poll(&mut late), Some(Ok(_))));
}

#[test]
fn an_acknowledgement_that_came_before_the_poll_wins_over_the_deadline() {
    let queue = queue();
    let mut ticket = ticket(&queue, Acks::All, 0, 1, 50);
    assert_eq!(queue.borrow_mut().expire(Monotonic(50), &mut Woken::new()), None);
    settle(&queue, Acks::All, 1);
    assert!(matches!(poll(&mut ticket), Some(Ok(_))));
}

#[test]
fn t83_a_dropped_ticket_leaves_nothing() {
    let queue = queue();
    let tickets: Vec<Ticket> = (0..100).map(|base| ticket(&queue, Acks::All, base, base + 1, 50)).collect();
    assert_eq!(queue.borrow().len(), 100);
    drop(tickets);
    assert_eq!(queue.borrow().len(), 0);
    // One that is still waited for keeps its place in the order, and only that.
    let mut kept = ticket(&queue, Acks::All, 200, 201, 50);
    drop(ticket(&queue, Acks::All, 201, 202, 50));
    assert_eq!(queue.borrow().len(), 2);
    settle(&queue, Acks::All, 201);
    assert!(matches!(poll(&mut kept), Some(Ok(_))));
    drop(kept);
    assert_eq!(queue.borrow().len(), 0);
}

#[test]
fn a_closed_queue_answers_all_that_is_not_acknowledged() {
    let queue = queue();
    let mut acknowledged = ticket(&queue, Acks::All, 0, 1, 50);
    let mut waiting = ticket(&queue, Acks::All, 1, 2, 50);
    assert!(poll(&mut waiting).is_none());
    settle(&queue, Acks::All, 1);
    let mut woken = Woken::new();
    queue.borrow_mut().close(ProduceError::Stopping, &mut woken);
    assert_eq!(woken.len(), 1);
    assert!(matches!(poll(&mut acknowledged), Some(Ok(_))));
    assert!(matches!(poll(&mut waiting), Some(Err(ProduceError::Stopping))));
    assert_eq!(queue.borrow().len(), 0);
    drop(waiting);
}

proptest! {
    /// Whatever is appended, acknowledged and dropped: a ticket is settled exactly if all below its end is acknowledged, so tickets end in
    /// the order of appends; entries are no more than what isn't acknowledged; nothing is left.
    #[test]
    fn acknowledgements_come_in_the_order_of_appends(
        steps in prop::collection::vec((0_u8..4, any::<prop::sample::Index>()), 1..100)
    ) {
        let queue = queue();
        let mut end = 0;
        let mut acknowledged = 0;
        let mut open: Vec<(i64, Ticket)> = Vec::new();
        for (step, pick) in steps {
            match step {
                0 | 1 => {
                    open.push((end + 1, ticket(&queue, Acks::All, end, end + 1, 50)));
                    end += 1;
                }
                2 => {
                    acknowledged += i64::try_from(pick.index(usize::try_from(end - acknowledged + 1).unwrap())).unwrap();
                    settle(&queue, Acks::All, acknowledged);
                }
                _ if !open.is_empty() => drop(open.remove(pick.index(open.len()))),
                _ => {}
            }
            for (end, ticket) in &open {
                prop_assert_eq!(ticket.is_settled(), *end <= acknowledged);
            }
            let unsettled = usize::try_from(end - acknowledged).unwrap();
            prop_assert!(queue.borrow().len() <= unsettled);
        }
        open.clear();
        prop_assert_eq!(queue.borrow().len(), 0);
    }
}
