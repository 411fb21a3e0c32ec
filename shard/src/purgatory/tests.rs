use super::*;

fn poll(purgatory: &mut Purgatory, key: WaiterKey) -> Poll<()> {
    purgatory.poll(key, &mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_waiter_is_woken_by_enough_bytes_and_no_fewer() {
    let mut purgatory = Purgatory::default();
    let key = purgatory.park(Monotonic(100), 50, 2).unwrap();
    assert!(poll(&mut purgatory, key).is_pending());
    let mut woken = Woken::new();
    purgatory.advance(key, 49, &mut woken);
    assert!(woken.is_empty() && poll(&mut purgatory, key).is_pending());
    purgatory.advance(key, 1, &mut woken);
    assert_eq!(woken.len(), 1);
    assert!(poll(&mut purgatory, key).is_ready());
    purgatory.leave(key);
    assert_eq!((purgatory.len(), purgatory.places(), purgatory.earliest_deadline()), (0, 0, None));
}

#[test]
fn deadlines_pass_in_their_order() {
    let mut purgatory = Purgatory::default();
    let late = purgatory.park(Monotonic(200), 1, 1).unwrap();
    let early = purgatory.park(Monotonic(100), 1, 1).unwrap();
    assert_eq!(purgatory.earliest_deadline(), Some(Monotonic(100)));
    let mut woken = Woken::new();
    assert_eq!(purgatory.expire(Monotonic(99), &mut woken), 0);
    assert_eq!(purgatory.expire(Monotonic(150), &mut woken), 1);
    assert!(poll(&mut purgatory, early).is_ready());
    assert!(poll(&mut purgatory, late).is_pending());
    purgatory.leave(early);
    purgatory.leave(late);
    assert_eq!(purgatory.earliest_deadline(), None);
}

#[test]
fn t82_waiters_and_their_places_are_bounded() {
    let mut purgatory = Purgatory::new(PurgatoryLimits { waiters_max: 3, places_max: 10 });
    let keys: Vec<_> = (0..3).map(|_| purgatory.park(Monotonic(1), 1, 1).unwrap()).collect();
    assert_eq!(purgatory.park(Monotonic(1), 1, 1), None);
    for key in keys {
        purgatory.leave(key);
    }
    let wide = purgatory.park(Monotonic(1), 1, 8).unwrap();
    assert_eq!(purgatory.park(Monotonic(1), 1, 3), None);
    assert!(purgatory.park(Monotonic(1), 1, 2).is_some());
    purgatory.leave(wide);
    assert_eq!(purgatory.places(), 2);
}

#[test]
fn a_key_is_used_again_only_after_its_waiter_has_left() {
    let mut purgatory = Purgatory::default();
    let first = purgatory.park(Monotonic(10), 1, 1).unwrap();
    purgatory.leave(first);
    let second = purgatory.park(Monotonic(20), 1, 1).unwrap();
    assert_eq!(first, second);
    assert_eq!(purgatory.expire(Monotonic(10), &mut Woken::new()), 0);
    assert!(poll(&mut purgatory, second).is_pending());
}
