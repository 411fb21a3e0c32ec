use std::cell::Cell;
use std::time::Duration;

use protocol::ids::CoreId;
use runtime::{Env, Loan, Mesh, seats};

use super::*;
use crate::env::{Options, SimEnv, run, run_with};
use crate::{Crash, Finished};

const A: CoreId = CoreId(0);
const B: CoreId = CoreId(1);

type Numbers = Mesh<u64, u64>;

fn join(cores: &[SimEnv]) -> Vec<Numbers> {
    cores.iter().zip(seats(cores.len())).map(|(core, seat)| core.join(seat)).collect()
}

fn serve(core: &SimEnv, mesh: &Numbers) {
    let (env, mesh) = (core.clone(), mesh.clone());
    core.spawn(async move {
        loop {
            let asked = mesh.next().await;
            env.sleep(Duration::from_nanos(env.random() % 3_000)).await;
            asked.answer.send(asked.request + 1);
        }
    });
}

/// Three cores ask each other; what each was asked, in order.
async fn talk(env: SimEnv) -> Vec<(CoreId, CoreId, u64)> {
    let cores = env.with_cores(3);
    let meshes = join(&cores);
    let heard: Rc<RefCell<Vec<(CoreId, CoreId, u64)>>> = Rc::default();
    let ended = Rc::new(Cell::new(0));
    for (core, mesh) in cores.iter().zip(&meshes) {
        let (listening, heard) = (mesh.clone(), heard.clone());
        core.spawn(async move {
            loop {
                let asked = listening.next().await;
                heard.borrow_mut().push((listening.core(), asked.from, asked.request));
                asked.answer.send(asked.request + 1);
            }
        });
        for to in [A, B, CoreId(2)].into_iter().filter(|&to| to != mesh.core()) {
            let (env, mesh, ended) = (core.clone(), mesh.clone(), ended.clone());
            core.spawn(async move {
                let mut replies = Vec::new();
                for n in 0..50 {
                    env.sleep(Duration::from_nanos(env.random() % 2_000)).await;
                    replies.push(mesh.try_call(to, n).unwrap());
                }
                for (n, reply) in replies.into_iter().enumerate() {
                    assert_eq!(reply.await, Some(n as u64 + 1));
                }
                ended.set(ended.get() + 1);
            });
        }
    }
    while ended.get() < 6 {
        env.sleep(Duration::from_micros(50)).await;
    }
    heard.take()
}

#[test]
fn requests_of_one_core_to_another_come_in_order_and_one_seed_gives_one_run() {
    let go = |seed| -> Finished<Vec<(CoreId, CoreId, u64)>> { run_with(Options::new(seed), talk) };
    let first = go(1);
    for (at, from) in [(A, B), (A, CoreId(2)), (B, A), (CoreId(2), A)] {
        let order: Vec<u64> = first.value.iter().filter(|heard| (heard.0, heard.1) == (at, from)).map(|heard| heard.2).collect();
        assert_eq!(order, (0..50).collect::<Vec<u64>>());
    }
    let again = go(1);
    assert_eq!((first.value, first.trace_hash), (again.value, again.trace_hash));
    assert_ne!(first.trace_hash, go(2).trace_hash);
}

#[test]
fn a_process_of_one_core_runs_as_if_there_was_no_mesh() {
    let work = |env: SimEnv| async move {
        for _ in 0..20 {
            env.offload(|| ()).await;
            env.sleep(Duration::from_nanos(env.random() % 1_000)).await;
        }
    };
    let without = run_with(Options::new(5), work);
    let with = run_with(Options::new(5), |env| async move {
        let cores = env.with_cores(1);
        work(cores[0].clone()).await;
    });
    assert_eq!(without.trace_hash, with.trace_hash);
}

#[test]
fn t89_cores_without_credits_go_on_in_every_order() {
    for seed in 0..5 {
        run(seed, |env| async move {
            let cores = env.with_cores(2);
            let meshes = join(&cores);
            let ended = Rc::new(Cell::new(0));
            let count = meshes[0].credits() + 100;
            for (core, mesh) in cores.iter().zip(&meshes) {
                let to = if mesh.core() == A { B } else { A };
                for n in 0..count {
                    let (mesh, ended) = (mesh.clone(), ended.clone());
                    core.spawn(async move {
                        assert_eq!(mesh.call(to, n as u64).await, Some(n as u64 + 1));
                        ended.set(ended.get() + 1);
                    });
                }
            }
            while meshes[0].under_way(B) < meshes[0].credits() || meshes[1].under_way(A) < meshes[1].credits() {
                env.sleep(Duration::from_micros(10)).await;
            }
            for (core, mesh) in cores.iter().zip(&meshes) {
                for _ in 0..100 {
                    serve(core, mesh);
                }
            }
            while ended.get() < 2 * count {
                env.sleep(Duration::from_micros(50)).await;
            }
        });
    }
}

#[test]
fn a_call_that_is_dropped_is_cancelled_at_the_other_core() {
    for seed in 0..20 {
        run(seed, |env| async move {
            let cores = env.with_cores(2);
            let meshes = join(&cores);
            let reply = meshes[0].try_call(B, 7).unwrap();
            let asked = meshes[1].next().await;
            drop(reply);
            asked.answer.cancelled().await;
            assert!(asked.answer.is_cancelled());
            drop(asked);
            while meshes[0].under_way(B) > 0 {
                env.sleep(Duration::from_micros(1)).await;
            }
        });
    }
}

#[test]
fn what_crosses_takes_its_time() {
    run(6, |env| async move {
        let cores = Cores::new(env.world());
        let ((here, _), (there, arrivals)) = (cores.join(A), cores.join(B));
        for sent in 0..50 {
            here.sent(B);
            assert!(!there.has_arrived(A), "number {sent} is under way");
            arrivals.changed(sent).await;
            assert!(there.has_arrived(A) && !there.has_arrived(A), "it arrives once");
        }
    });
}

#[test]
fn a_core_that_leaves_the_mesh_ends_what_it_was_asked() {
    run(3, |env| async move {
        let shared = Cores::new(env.world());
        let mut seats = seats::<u64, u64>(2).into_iter();
        let mut side = |core| {
            let (carrier, arrivals) = shared.join(core);
            seats.next().unwrap().take(carrier, arrivals)
        };
        let ((mesh, pump), other) = (side(A), side(B));
        env.spawn(pump);
        let reply = mesh.try_call(B, 7).unwrap();
        env.sleep(Duration::from_micros(500)).await;
        drop(other);
        assert_eq!(reply.await, None);
    });
}

#[test]
fn a_crash_ends_all_cores_with_what_is_under_way_and_the_next_life_has_its_own_mesh() {
    for seed in 0..30 {
        run(seed, |env| async move {
            let cores = env.with_cores(2);
            let free = cores[1].region().free_bytes();
            let mut seats = seats::<u64, Loan>(2).into_iter();
            let (a, b) = (cores[0].join(seats.next().unwrap()), cores[1].join(seats.next().unwrap()));
            let lender = cores[1].clone();
            cores[1].spawn(async move {
                loop {
                    let asked = b.next().await;
                    let mut chunk = lender.region().take(4096).unwrap();
                    chunk.append(&asked.request.to_le_bytes());
                    asked.answer.send(chunk.freeze().lend().unwrap());
                }
            });
            let polled = Rc::new(Cell::new(0_u64));
            for n in 0..40 {
                let (a, polled) = (a.clone(), polled.clone());
                cores[0].spawn(async move {
                    assert_eq!(&*a.call(B, n).await.unwrap(), &n.to_le_bytes());
                    polled.set(polled.get() + 1);
                });
            }
            drop(a);
            env.sleep(Duration::from_nanos(env.workload().below(60_000))).await;
            env.crash(Crash::Kill);
            let seen = polled.get();
            let next = env.restart();
            let second = next.with_cores(2);
            let meshes = join(&second);
            serve(&second[1], &meshes[1]);
            assert_eq!(meshes[0].call(B, 4).await, Some(5));
            assert_eq!(polled.get(), seen, "no task of the dead process has run");
            assert_eq!(cores[1].region().free_bytes(), free, "what was under way came back");
        });
    }
}

#[test]
fn what_comes_back_wakes_who_waits_for_memory() {
    run(1, |env| async move {
        let cores = env.with_cores(2);
        let home = cores[1].clone();
        let mut chunk = home.region().take(4096).unwrap();
        chunk.append(b"lent");
        let loan = chunk.freeze().lend().unwrap();
        let borrower = cores[0].clone();
        cores[0].spawn(async move {
            borrower.sleep(Duration::from_millis(3)).await;
            assert_eq!(&loan[..], b"lent");
            drop(loan);
        });
        let freed = home.region().freed();
        freed.changed(freed.count()).await;
        assert_eq!(home.region().loans(), 0);
    });
}
