//! Several cores on threads: requests between them, memory lent across, sleeping and waking, ends.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{any, config, filled, until};
use protocol::ids::CoreId;
use runtime::uring::{CoreConfig, CoreError, RingEnv, Spin, run_cores};
use runtime::{Connection, Env, Listener, Loan, Mesh, Seat, SendPart, SendParts, Sharing, Transport, seats};

/// One seat for each core, taken by its number.
struct Seats<Q, R>(Mutex<Vec<Option<Seat<Q, R>>>>);

impl<Q: Send + 'static, R: Send + 'static> Seats<Q, R> {
    fn new(cores: usize) -> Arc<Seats<Q, R>> {
        Arc::new(Seats(Mutex::new(seats(cores).into_iter().map(Some).collect())))
    }

    fn join(&self, env: &RingEnv, core: usize) -> Mesh<Q, R> {
        let seat = self.0.lock().unwrap()[core].take().unwrap();
        env.join(seat)
    }
}

fn configs(cores: usize) -> Vec<CoreConfig> {
    (0..cores).map(|core| CoreConfig { name: format!("core-{core}"), ..config() }).collect()
}

fn core_id(core: usize) -> CoreId {
    CoreId(u16::try_from(core).unwrap())
}

/// Answers every request with itself.
fn serve(env: &RingEnv, mesh: &Mesh<usize, usize>) {
    let mesh = mesh.clone();
    env.spawn(async move {
        loop {
            let asked = mesh.next().await;
            asked.answer.send(asked.request);
        }
    });
}

/// Tells all others that this core has done its part, and waits until they have.
async fn meet(env: &RingEnv, done: &AtomicUsize, cores: usize) {
    done.fetch_add(1, Ordering::SeqCst);
    let start = env.now();
    while done.load(Ordering::SeqCst) < cores {
        assert!(env.now() < start + Duration::from_secs(30), "another core hasn't come to its end");
        env.sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn cores_that_sleep_are_woken_by_requests_and_replies() {
    let (seats, done) = (Seats::new(2), Arc::new(AtomicUsize::new(0)));
    let sleeps = run_cores(configs(2), move |env, core| {
        let (seats, done) = (seats.clone(), done.clone());
        async move {
            let mesh = seats.join(&env, core);
            serve(&env, &mesh);
            if core == 0 {
                for n in 0..2_000 {
                    assert_eq!(mesh.call(CoreId(1), n).await, Some(n));
                    if n % 2 == 0 {
                        // How soon the other sleeps depends on the machine.
                        env.sleep(Duration::from_micros(200)).await;
                    }
                }
            }
            meet(&env, &done, 2).await;
            env.metrics().sleeps
        }
    })
    .unwrap();
    assert!(sleeps.iter().all(|&sleeps| sleeps > 500), "both slept in between: {sleeps:?}");
}

/// No timer helps here: a wake-up that is lost hangs the test. Bursts and pauses of every length meet the moment of falling asleep.
async fn rally(env: RingEnv, mesh: Mesh<usize, usize>, rounds: usize) {
    let (cores, own) = (mesh.cores(), usize::from(mesh.core().0));
    serve(&env, &mesh);
    for round in 0..rounds {
        let burst = usize::try_from(env.random() % 5).unwrap();
        let others = (0..cores).filter(|&core| core != own);
        let replies: Vec<_> = others
            .flat_map(|core| (0..=burst).map(move |n| (core, n)))
            .map(|(core, n)| (n, mesh.try_call(core_id(core), n).unwrap()))
            .collect();
        for (n, reply) in replies {
            assert_eq!(reply.await, Some(n), "round {round}");
        }
        for _ in 0..env.random() % 2_000 {
            std::hint::spin_loop();
        }
    }
}

#[test]
fn no_wake_up_is_lost_between_cores_that_fall_asleep_at_any_moment() {
    for spin in [Spin::Off, Spin::For(Duration::from_micros(5))] {
        let cores = 4;
        let (seats, done) = (Seats::new(cores), Arc::new(AtomicUsize::new(0)));
        let configs = configs(cores).into_iter().map(|config| CoreConfig { spin, ..config }).collect();
        run_cores(configs, move |env, core| {
            let (seats, done) = (seats.clone(), done.clone());
            async move {
                let mesh = seats.join(&env, core);
                rally(env.clone(), mesh, 3_000).await;
                meet(&env, &done, cores).await;
            }
        })
        .unwrap();
    }
}

#[test]
fn t89_cores_that_flood_each_other_go_on() {
    let (seats, done) = (Seats::new(3), Arc::new(AtomicUsize::new(0)));
    run_cores(configs(3), move |env, core| {
        let (seats, done) = (seats.clone(), done.clone());
        async move {
            let mesh: Mesh<usize, usize> = seats.join(&env, core);
            serve(&env, &mesh);
            let floods: Vec<_> = (0..3).filter(|&other| other != core).map(core_id).collect();
            let (count, ended) = (mesh.credits() * 4, std::rc::Rc::new(std::cell::Cell::new(0)));
            for to in &floods {
                for n in 0..count {
                    let (mesh, to, ended) = (mesh.clone(), *to, ended.clone());
                    env.spawn(async move {
                        assert_eq!(mesh.call(to, n).await, Some(n));
                        ended.set(ended.get() + 1);
                    });
                }
            }
            until(&env, "the end of all calls", || ended.get() == count * floods.len()).await;
            meet(&env, &done, 3).await;
        }
    })
    .unwrap();
}

#[test]
fn what_is_lent_is_sent_from_where_it_lies_and_comes_home() {
    const BYTES: usize = 300_000;
    let (seats, done) = (Seats::<(), Loan>::new(2), Arc::new(AtomicUsize::new(0)));
    run_cores(configs(2), move |env, core| {
        let (seats, done) = (seats.clone(), done.clone());
        async move {
            let mesh = seats.join(&env, core);
            if core == 1 {
                let all = env.region().free_bytes();
                let asked = mesh.next().await;
                let loan = filled(&env, BYTES, 3).freeze().slice(100..BYTES).lend().unwrap();
                assert!(env.region().free_bytes() < all);
                asked.answer.send(loan);
                // No turn is needed but the sleep's: what comes back wakes who waits for memory.
                while env.region().free_bytes() < all {
                    let freed = env.region().freed();
                    freed.changed(freed.count()).await;
                }
                assert_eq!(env.region().loans(), 0);
            } else {
                let expected = filled(&env, BYTES, 3).as_bytes()[100..].to_vec();
                let loan = mesh.call(CoreId(1), ()).await.unwrap();
                let listener = env.transport().listen(any(), Sharing::Alone).await.unwrap();
                let address = listener.local_address();
                let client = env.offload(move || std::net::TcpStream::connect(address).unwrap()).await;
                let (connection, _) = listener.accept().await.unwrap();
                let parts = SendParts::from_iter([SendPart::Owned(b"head"[..].into()), SendPart::Lent(loan)]);
                let reader = env.offload(move || {
                    let mut bytes = vec![0; 4 + BYTES - 100];
                    std::io::Read::read_exact(&mut { client }, &mut bytes).unwrap();
                    bytes
                });
                let (sent, received) = futures_lite::future::zip(connection.send(parts), reader).await;
                sent.unwrap();
                assert_eq!((&received[..4], &received[4..]), (&b"head"[..], &expected[..]));
                let metrics = env.metrics();
                assert_eq!(metrics.zero_copy_sends, 0, "it isn't registered here");
            }
            meet(&env, &done, 2).await;
        }
    })
    .unwrap();
}

#[test]
fn calls_to_a_core_that_ends_or_panics_end_with_nothing() {
    for panics in [false, true] {
        let seats = Seats::<usize, usize>::new(2);
        let result = std::panic::catch_unwind(|| {
            run_cores(configs(2), move |env, core| {
                let seats = seats.clone();
                async move {
                    let mesh = seats.join(&env, core);
                    if core == 1 {
                        // A task that sleeps for ever holds the mesh and the core. The executor never drops it if this thread panics.
                        let held = (mesh.clone(), env.clone());
                        env.spawn(async move {
                            let _held = held;
                            std::future::pending::<()>().await;
                        });
                        let _asked = mesh.next().await;
                        assert!(!panics, "this core panics");
                        return;
                    }
                    assert_eq!(mesh.call(CoreId(1), 1).await, None);
                    assert_eq!(mesh.call(CoreId(1), 2).await, None);
                }
            })
            .unwrap();
        });
        assert_eq!(result.is_err(), panics);
    }
}

#[test]
fn no_core_runs_if_one_cannot_be_made() {
    for bad in 0..3 {
        let ran = Arc::new(AtomicUsize::new(0));
        let count = ran.clone();
        let mut configs = configs(3);
        configs[bad].cpu = Some(4095);
        let error = run_cores(configs, move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
            async {}
        })
        .unwrap_err();
        assert!(matches!(error, CoreError::Processor { cpu: 4095, .. }), "{error}");
        assert_eq!(ran.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn values_come_in_the_order_of_the_cores_and_several_share_a_processor() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let processor = (0..1024).find(|&cpu| allowed.is_set(cpu));
    let configs = configs(3).into_iter().map(|config| CoreConfig { cpu: processor, ..config }).collect();
    let names = run_cores(configs, |env, core| async move {
        env.sleep(Duration::from_millis(5 * (3 - u64::try_from(core).unwrap()))).await;
        (core, std::thread::current().name().map(str::to_owned))
    })
    .unwrap();
    assert_eq!(names[1..], [(1, Some("core-1".to_owned())), (2, Some("core-2".to_owned()))]);
    assert_eq!(rustix::thread::sched_getaffinity(None).unwrap().count(), allowed.count(), "the calling thread gets them back");
}

#[test]
fn an_address_is_shared_by_cores_and_not_with_who_has_it_alone() {
    let done = Arc::new(AtomicUsize::new(0));
    let address = Arc::new(Mutex::new(None));
    let accepted = run_cores(configs(2), move |env, core| {
        let (done, address) = (done.clone(), address.clone());
        async move {
            let transport = env.transport();
            let listener = if core == 0 {
                let listener = transport.listen(any(), Sharing::First).await.unwrap();
                *address.lock().unwrap() = Some(listener.local_address());
                listener
            } else {
                until(&env, "the first listener", || address.lock().unwrap().is_some()).await;
                let shared = address.lock().unwrap().unwrap();
                for sharing in [Sharing::Alone, Sharing::First] {
                    assert_eq!(transport.listen(shared, sharing).await.err().unwrap().kind(), std::io::ErrorKind::AddrInUse);
                }
                transport.listen(shared, Sharing::Joined).await.unwrap()
            };
            let alone = transport.listen(any(), Sharing::Alone).await.unwrap();
            for sharing in [Sharing::Alone, Sharing::First, Sharing::Joined] {
                assert!(transport.listen(alone.local_address(), sharing).await.is_err());
            }
            let (address, count) = (listener.local_address(), std::rc::Rc::new(std::cell::Cell::new(0)));
            let taken = count.clone();
            env.spawn(async move {
                while listener.accept().await.is_ok() {
                    taken.set(taken.get() + 1);
                }
            });
            meet(&env, &done, 2).await;
            if core == 1 {
                for _ in 0..100 {
                    env.offload(move || std::net::TcpStream::connect(address).unwrap()).await;
                }
            }
            env.sleep(Duration::from_millis(10)).await;
            meet(&env, &done, 4).await;
            env.sleep(Duration::from_millis(10)).await;
            count.get()
        }
    })
    .unwrap();
    assert_eq!(accepted.iter().sum::<usize>(), 100);
    assert!(accepted.iter().all(|&count| count > 10), "the kernel spreads them: {accepted:?}");
}
