//! The core itself: start, limits, tasks, work off the core, stop.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::cell::Cell;
use std::net::TcpStream;
use std::rc::Rc;
use std::time::Duration;

use common::{any, config, core, spawn_echo};
use runtime::local::Notify;
use runtime::uring::{CoreConfig, CoreError, Registration, RingConnection, RingEnv, run_core};
use runtime::{Connection, Env, Listener, SendPart, SendParts, Sharing, Transport};

struct Dropped(Rc<Cell<u32>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn a_core_that_stops_drops_every_task_and_ends_every_operation() {
    let dropped = Rc::new(Cell::new(0));
    let count = dropped.clone();
    core(|env| async move {
        let listener = env.transport().listen(any(), Sharing::Alone).await.unwrap();
        let address = listener.local_address();
        let client = env.offload(move || TcpStream::connect(address).unwrap()).await;
        let (connection, _) = listener.accept().await.unwrap();
        let guard = Dropped(count.clone());
        let task_env = env.clone();
        env.spawn(async move {
            let _guards = (guard, client);
            let _ = connection.receive(task_env.region().take(4096).unwrap(), usize::MAX).await;
        });
        let guard = Dropped(count.clone());
        env.spawn(async move {
            let _guard = guard;
            let _ = listener.accept().await;
        });
        let (guard, task_env) = (Dropped(count), env.clone());
        env.spawn(async move {
            let _guard = guard;
            task_env.sleep(Duration::from_secs(3600)).await;
        });
        env.sleep(Duration::from_millis(5)).await;
    });
    assert_eq!(dropped.get(), 3);
}

#[test]
fn a_task_first_runs_after_the_call_that_starts_it() {
    core(|env| async move {
        let ran = Rc::new(Cell::new(false));
        let inner = ran.clone();
        env.spawn(async move { inner.set(true) });
        assert!(!ran.get(), "who starts a task may hold a borrow");
        env.yield_now().await;
        assert!(ran.get());
    });
}

#[test]
fn work_off_the_core_is_not_confined_to_its_processor() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let processor = (0..1024).find(|&cpu| allowed.is_set(cpu)).unwrap();
    let config = CoreConfig { cpu: Some(processor), ..config() };
    let (core_set, pool_set) = run_core(config, |env| async move {
        let affinity = || rustix::thread::sched_getaffinity(None).unwrap();
        (affinity(), env.offload(affinity).await)
    })
    .unwrap();
    assert_eq!((core_set.count(), core_set.is_set(processor)), (1, true));
    assert_eq!(pool_set.count(), allowed.count());
    assert_eq!(rustix::thread::sched_getaffinity(None).unwrap().count(), allowed.count(), "the thread gets them back");
}

#[test]
fn work_off_the_core_ends_even_if_nobody_waits() {
    let (sender, receiver) = std::sync::mpsc::channel();
    core(|env| async move {
        drop(env.offload(move || sender.send(7).unwrap()));
        env.sleep(Duration::from_millis(20)).await;
    });
    assert!(receiver.recv_timeout(Duration::from_secs(1)).is_err(), "an offload that is never polled doesn't begin");
}

#[test]
fn a_missing_processor_is_named() {
    let config = CoreConfig { cpu: Some(4095), ..config() };
    let error = run_core(config, |_| async {}).unwrap_err();
    assert!(matches!(error, CoreError::Processor { cpu: 4095, .. }), "{error}");
}

#[test]
fn a_core_on_a_crowded_machine_never_sleeps_on_its_tasks() {
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let crowd: Vec<_> = (0..4)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || while !stop.load(std::sync::atomic::Ordering::Relaxed) {})
        })
        .collect();
    for _ in 0..8 {
        core(|env| async move {
            for n in 0..3 {
                assert_eq!(env.offload(move || n).await, n);
            }
        });
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    crowd.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_core_with_nothing_to_do_sleeps_and_its_timers_wake_it() {
    core(|env| async move {
        let before = env.metrics();
        let start = env.now();
        for _ in 0..5 {
            env.sleep(Duration::from_millis(20)).await;
        }
        assert!(env.now().since(start) >= Duration::from_millis(100));
        let turns = env.metrics().turns - before.turns;
        let sleeps = env.metrics().sleeps - before.sleeps;
        assert!(sleeps >= 5 && turns < 100, "{sleeps} sleeps, {turns} turns");
    });
}

/// Each task starts the next one and sends: the sends go to the kernel together, though the driver came up in between.
#[test]
fn what_woken_tasks_start_goes_to_the_kernel_together() {
    const TASKS: usize = 6;
    fn chain(env: &RingEnv, mut left: Vec<RingConnection>, done: &Rc<Notify>) {
        let Some(connection) = left.pop() else { return };
        let (task_env, done) = (env.clone(), done.clone());
        env.spawn(async move {
            chain(&task_env, left, &done);
            let mut parts = SendParts::new();
            parts.push(SendPart::Owned(Box::new([7])));
            connection.send(parts).await.unwrap();
            done.notify();
        });
    }
    core(|env| async move {
        let listener = env.transport().listen(any(), Sharing::Alone).await.unwrap();
        let address = listener.local_address();
        let clients = env.offload(move || (0..TASKS).map(|_| TcpStream::connect(address).unwrap()).collect::<Vec<_>>()).await;
        let mut connections = Vec::new();
        for _ in 0..TASKS {
            connections.push(listener.accept().await.unwrap().0);
        }
        // A machine that takes the processor away parts them now and then.
        let mut fewest = u64::MAX;
        for _ in 0..50 {
            let done = Rc::new(Notify::new());
            let before = env.metrics().enters;
            chain(&env, connections.clone(), &done);
            while done.count() < TASKS as u64 {
                done.changed(done.count()).await;
            }
            fewest = fewest.min(env.metrics().enters - before);
        }
        drop(clients);
        assert!(fewest <= 2, "{fewest} entries for {TASKS} sends");
    });
}

#[test]
fn a_panic_off_the_core_is_its_callers() {
    core(|env| async move {
        let task_env = env.clone();
        let job = async move { task_env.offload(|| -> u8 { panic!("by design") }).await };
        let caught = std::panic::AssertUnwindSafe(job);
        assert!(futures_lite::FutureExt::catch_unwind(caught).await.is_err());
        assert_eq!(env.offload(|| 7).await, 7, "the pool goes on");
    });
}

#[test]
fn more_jobs_than_fit_wait_for_room() {
    core(|env| async move {
        let done = Rc::new(Cell::new(0));
        let jobs = protocol::limits::OFFLOADED_JOBS_MAX * 2;
        for _ in 0..jobs {
            let (done, task_env) = (done.clone(), env.clone());
            env.spawn(async move {
                task_env.offload(|| ()).await;
                done.set(done.get() + 1);
            });
        }
        while done.get() < jobs {
            env.sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn completions_come_while_a_task_keeps_the_core_busy() {
    core(|env| async move {
        let listener = env.transport().listen(any(), Sharing::Alone).await.unwrap();
        let address = listener.local_address();
        spawn_echo(&env, listener);
        let stop = Rc::new(Cell::new(false));
        let (busy, busy_env) = (stop.clone(), env.clone());
        env.spawn(async move {
            while !busy.get() {
                busy_env.yield_now().await;
            }
        });
        env.offload(move || {
            use std::io::{Read, Write};
            let mut stream = TcpStream::connect(address).unwrap();
            for _ in 0..100 {
                stream.write_all(b"hello").unwrap();
                stream.read_exact(&mut [0; 5]).unwrap();
            }
        })
        .await;
        stop.set(true);
    });
}

/// Runs `test` on a thread that may lock little memory.
fn without_locked_memory(test: impl FnOnce() + Send + 'static) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let limit = getrlimit(Resource::Memlock);
    if limit.current.is_none_or(|bytes| bytes > 8 << 20) {
        // Threads with the capability, the other tests', don't feel it.
        setrlimit(Resource::Memlock, Rlimit { current: Some(8 << 20), maximum: limit.maximum }).unwrap();
    }
    std::thread::spawn(move || {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, sets).unwrap();
        test();
    })
    .join()
    .unwrap();
}

#[test]
fn an_unregistered_region_is_a_mode_that_works_and_can_be_forbidden() {
    without_locked_memory(|| {
        let forbidden = CoreConfig { registration: Registration::Required, ..config() };
        let error = run_core(forbidden, |_| async {}).unwrap_err();
        assert!(matches!(error, CoreError::LockedMemory { needed_bytes: 16_777_216, .. }), "{error}");
        assert!(error.to_string().contains("LimitMEMLOCK"), "{error}");
        core(|env| async move {
            assert!(!env.is_registered());
            let listener = env.transport().listen(any(), Sharing::Alone).await.unwrap();
            let address = listener.local_address();
            spawn_echo(&env, listener);
            env.offload(move || {
                use std::io::{Read, Write};
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(b"hello").unwrap();
                stream.read_exact(&mut [0; 5]).unwrap();
            })
            .await;
        });
    });
}

#[test]
fn random_numbers_differ() {
    core(|env| async move {
        let numbers: std::collections::HashSet<u64> = (0..1000).map(|_| env.random()).collect();
        assert_eq!(numbers.len(), 1000);
        assert!(env.wall_clock().0 > 1_600_000_000_000);
    });
}
