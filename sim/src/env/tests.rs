use std::path::Path;

use runtime::{Disk, Durability, File};

use super::*;

const BLOCK: usize = 4096;

async fn write(env: &SimEnv, file: &impl File, block: u64, value: u8, durability: Durability) -> io::Result<()> {
    let mut chunk = env.region().take(BLOCK).unwrap();
    chunk.append(&[value; BLOCK]);
    file.write(chunk.freeze(), block * 4096, durability).await
}

async fn read(env: &SimEnv, file: &impl File, block: u64) -> Vec<u8> {
    let (count, chunk) = file.read(env.region().take(BLOCK).unwrap(), block * 4096, BLOCK).await;
    count.unwrap();
    chunk.as_bytes().to_vec()
}

async fn new_file(env: &SimEnv) -> impl File + use<> {
    env.disk().create_directory(Path::new("/data")).await.unwrap();
    let file = env.disk().file("/data/log".into(), true);
    file.allocate(0, 1 << 20).await.unwrap();
    file.flush().await.unwrap();
    env.disk().sync_directory(Path::new("/data")).await.unwrap();
    file
}

#[test]
fn a_device_write_survives_and_an_unflushed_one_may_be_lost() {
    let mut lost = 0;
    for seed in 0..60 {
        let kept = run(seed, |env| async move {
            let file = new_file(&env).await;
            write(&env, &file, 0, 1, Durability::Device).await.unwrap();
            write(&env, &file, 1, 2, Durability::Written).await.unwrap();
            write(&env, &file, 2, 3, Durability::Written).await.unwrap();
            file.flush().await.unwrap();
            write(&env, &file, 3, 4, Durability::Written).await.unwrap();
            env.crash(Crash::PowerCut);
            let env = env.restart();
            let file = env.disk().file("/data/log".into(), false);
            for block in 0..3_u8 {
                assert_eq!(read(&env, &file, u64::from(block)).await, [block + 1; BLOCK]);
            }
            read(&env, &file, 3).await == [4; BLOCK]
        });
        lost += u32::from(!kept);
    }
    assert!(lost > 10 && lost < 55, "{lost} of 60 lost");
}

#[test]
fn a_kill_keeps_completed_writes_and_a_later_power_cut_may_lose_them() {
    let mut lost = 0;
    for seed in 0..40 {
        let kept = run(seed, |env| async move {
            let file = new_file(&env).await;
            write(&env, &file, 0, 1, Durability::Written).await.unwrap();
            env.crash(Crash::Kill);
            let env = env.restart();
            let file = env.disk().file("/data/log".into(), false);
            assert_eq!(read(&env, &file, 0).await, [1; BLOCK]);
            env.crash(Crash::PowerCut);
            let env = env.restart();
            let file = env.disk().file("/data/log".into(), false);
            read(&env, &file, 0).await == [1; BLOCK]
        });
        lost += u32::from(!kept);
    }
    assert!(lost > 5 && lost < 38, "{lost} of 40 lost");
}

#[test]
fn a_flush_covers_only_what_completed_before_it_was_issued() {
    let mut lost = 0;
    for seed in 0..80 {
        let kept = run(seed, |env| async move {
            let file = new_file(&env).await;
            let (writer, clone) = (env.clone(), file.clone());
            env.spawn(async move { write(&writer, &clone, 0, 1, Durability::Written).await.unwrap() });
            file.flush().await.unwrap();
            env.sleep(Duration::from_secs(1)).await;
            env.crash(Crash::PowerCut);
            let env = env.restart();
            let file = env.disk().file("/data/log".into(), false);
            read(&env, &file, 0).await == [1; BLOCK]
        });
        lost += u32::from(!kept);
    }
    assert!(lost > 10, "{lost} of 80 lost");
}

#[test]
fn torn_sectors_are_whole_at_512_bytes() {
    let mut torn = 0;
    for seed in 0..200 {
        let block = run(seed, |env| async move {
            let file = new_file(&env).await;
            write(&env, &file, 0, 1, Durability::Device).await.unwrap();
            write(&env, &file, 0, 2, Durability::Written).await.unwrap();
            env.crash(Crash::PowerCut);
            let env = env.restart();
            read(&env, &env.disk().file("/data/log".into(), false), 0).await
        });
        assert!(block.chunks(512).all(|sector| sector == [1; 512] || sector == [2; 512]));
        torn += u32::from(block.contains(&1) && block.contains(&2));
    }
    assert!(torn > 10, "{torn} of 200 torn");
}

#[test]
fn an_unsynced_name_may_be_lost_and_a_replaced_file_is_old_or_new() {
    let mut lost = 0;
    for seed in 0..100 {
        let found = run(seed, |env| async move {
            let disk = env.disk().clone();
            disk.create_directory(Path::new("/data")).await.unwrap();
            disk.replace_file(Path::new("/data/state"), b"old".to_vec()).await.unwrap();
            let file = disk.file("/data/log".into(), true);
            file.allocate(0, 4096).await.unwrap();
            file.flush().await.unwrap();
            let replacing = disk.clone();
            env.spawn(async move { drop(replacing.replace_file(Path::new("/data/state"), b"newer".to_vec()).await) });
            env.sleep(Duration::from_micros(env.workload().below(300))).await;
            env.crash(Crash::PowerCut);
            let env = env.restart();
            let state = env.disk().read_file(Path::new("/data/state"), 100).await.unwrap();
            assert!(state == b"old" || state == b"newer", "{state:?}");
            let names = env.disk().list(Path::new("/data")).await.unwrap();
            names.iter().any(|entry| entry.name == "log")
        });
        lost += u32::from(!found);
    }
    assert!(lost > 5 && lost < 95, "{lost} of 100 lost");
}

#[test]
fn a_full_disk_refuses_and_resumes() {
    run(1, |env| async move {
        let file = new_file(&env).await;
        env.set_disk_faults(DiskFaults { bytes_taken: 1 << 30, ..DiskFaults::default() });
        assert_eq!(file.allocate(1 << 20, 1 << 20).await.unwrap_err().kind(), io::ErrorKind::StorageFull);
        env.set_disk_faults(DiskFaults::default());
        file.allocate(1 << 20, 1 << 20).await.unwrap();
        assert_eq!(env.disk().space(Path::new("/data")).await.unwrap().available, (1 << 30) - (2 << 20));
    });
}

#[test]
fn one_seed_is_one_run() {
    let work = |env: SimEnv| async move {
        let file = new_file(&env).await;
        for round in 0..20 {
            let (writer, clone) = (env.clone(), file.clone());
            env.spawn(async move { write(&writer, &clone, round % 7, 9, Durability::Written).await.unwrap() });
            env.sleep(Duration::from_micros(env.workload().below(100))).await;
        }
        env.crash(Crash::PowerCut);
    };
    let hash = |seed| run_with(Options::new(seed), work).trace_hash;
    assert_eq!(hash(5), hash(5));
    assert_ne!(hash(5), hash(6));
}

#[test]
fn the_canary_releases_a_buffer_in_flight() {
    let mut wrong = 0;
    for seed in 0..20 {
        let options = Options { canaries: vec![Canary::ReuseOfBufferInFlight], ..Options::new(seed) };
        let finished = run_with(options, |env| async move {
            let file = new_file(&env).await;
            for block in 0..4 {
                let (writer, clone) = (env.clone(), file.clone());
                env.spawn(async move {
                    write(&writer, &clone, block, 1 + u8::try_from(block).unwrap(), Durability::Device).await.unwrap()
                });
            }
            env.sleep(Duration::from_secs(1)).await;
            let mut good = true;
            for block in 0..4_u8 {
                good &= read(&env, &file, u64::from(block)).await == [block + 1; BLOCK];
            }
            good
        });
        wrong += u32::from(!finished.value);
    }
    assert!(wrong > 10, "{wrong} of 20");
}

#[test]
fn a_second_process_finds_the_lock_until_the_first_is_gone() {
    run(3, |env| async move {
        let lock = Path::new("/data/lock");
        env.disk().create_directory(Path::new("/data")).await.unwrap();
        env.disk().lock(lock, "one".into()).await.unwrap();
        let other = env.restart();
        let error = other.disk().lock(lock, "two".into()).await.unwrap_err();
        assert!(error.kind() == io::ErrorKind::WouldBlock && error.to_string() == "one");
        env.crash(Crash::Kill);
        env.restart().disk().lock(lock, "three".into()).await.unwrap();
    });
}

#[test]
#[should_panic(expected = "seed 4: deadlock")]
fn a_future_that_never_ends_is_a_deadlock() {
    run(4, |_env| std::future::pending::<()>());
}

#[test]
fn streams_deliver_in_order_and_slow_readers_stop_senders() {
    use runtime::{Connection, Listener, Sharing, Transport};
    for seed in 0..20 {
        run(seed, |env| async move {
            let listener = env.transport().listen("10.0.0.1:0".parse().unwrap(), Sharing::Alone).await.unwrap();
            let address = listener.local_address();
            let client = env.clone();
            env.spawn_client(async move {
                let connection = client.connect(address).await.unwrap();
                let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
                connection.send_bytes(bytes).await.unwrap();
                connection.close();
            });
            let (server, _) = listener.accept().await.unwrap();
            env.sleep(Duration::from_secs(1)).await;
            let mut total = 0_u32;
            loop {
                server.readable().await.unwrap();
                let (count, chunk) = server.receive(env.region().take(8192).unwrap(), usize::MAX).await;
                if count.unwrap() == 0 {
                    break;
                }
                for &byte in chunk.as_bytes() {
                    assert_eq!(byte, total.to_le_bytes()[0] ^ total.to_le_bytes()[1]);
                    total += 1;
                }
            }
            assert_eq!(total, 1_000_000);
        });
    }
}

#[test]
fn a_crash_resets_streams() {
    use runtime::{Listener, Sharing, Transport};
    run(9, |env| async move {
        let listener = env.transport().listen("10.0.0.1:9090".parse().unwrap(), Sharing::Alone).await.unwrap();
        let serving = env.clone();
        env.spawn(async move {
            let (connection, _) = listener.accept().await.unwrap();
            serving.sleep(Duration::from_secs(10)).await;
            drop(connection);
        });
        let connection = env.connect("10.0.0.1:9090".parse().unwrap()).await.unwrap();
        env.sleep(Duration::from_secs(1)).await;
        env.crash(Crash::Kill);
        assert_eq!(connection.receive_some(10).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(env.connect("10.0.0.1:9090".parse().unwrap()).await.err().unwrap().kind(), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn connections_go_to_all_cores_that_share_an_address() {
    use runtime::{Listener, Sharing, Transport};
    let address: SocketAddr = "10.0.0.1:9090".parse().unwrap();
    run(4, move |env| async move {
        let cores = env.with_cores(2);
        let listen = async |core: &SimEnv, sharing| core.transport().listen(address, sharing).await;
        let kind = |result: io::Result<_>| result.err().map(|error: io::Error| error.kind());
        let counts: Vec<Rc<Cell<u32>>> = vec![Rc::default(), Rc::default()];
        for (core, sharing) in cores.iter().zip([Sharing::First, Sharing::Joined]) {
            let listener = listen(core, sharing).await.unwrap();
            let count = counts[usize::from(sharing == Sharing::Joined)].clone();
            core.spawn(async move {
                while listener.accept().await.is_ok() {
                    count.set(count.get() + 1);
                }
            });
        }
        assert_eq!(kind(listen(&cores[1], Sharing::First).await), Some(io::ErrorKind::AddrInUse));
        assert_eq!(kind(listen(&cores[1], Sharing::Alone).await), Some(io::ErrorKind::AddrInUse));
        assert_eq!(kind(listen(&env.other_host(), Sharing::Joined).await), Some(io::ErrorKind::AddrInUse));
        for _ in 0..100 {
            drop(env.connect(address).await.unwrap());
        }
        env.sleep(Duration::from_millis(1)).await;
        assert_eq!(counts[0].get() + counts[1].get(), 100);
        assert!(counts.iter().all(|count| count.get() > 20));
        let next = env;
        next.crash(Crash::Kill);
        assert_eq!(next.connect(address).await.err().unwrap().kind(), io::ErrorKind::ConnectionRefused);
        assert!(listen(&next.restart(), Sharing::Alone).await.is_ok());
    });
}
