//! Logs that end in every way, and are opened again.
#![allow(clippy::unwrap_used, reason = "a test fails where it must")]

mod support;

use std::path::PathBuf;

use protocol::ids::{BrokerEpoch, LeaderEpoch, Offset};
use runtime::{Disk, Durability, Env, File};
use sim::{Crash, SimEnv};
use storage::{Cut, Directory, Fault, HeaderFault, Log, LogConfig, OpenError, Recovered, RecoveryError};
use support::*;

async fn recover_with(env: &SimEnv, config: LogConfig) -> (Directory<SimEnv>, Recovered<SimEnv>) {
    let directory = open(env).await;
    let recovered = directory.recover_log(LOG, config, &mut (), |_| {}).await.unwrap();
    (directory, recovered)
}

async fn recover(env: &SimEnv) -> (Directory<SimEnv>, Recovered<SimEnv>) {
    recover_with(env, LogConfig::default()).await
}

fn segment(base: u64, extension: &str) -> PathBuf {
    root().join("topics").join(LOG.topic.to_string()).join(format!("0/{base:020}.{extension}"))
}

/// Writes block-aligned bytes into a file beside the log's back.
async fn scribble(env: &SimEnv, base: u64, position: u64, bytes: &[u8]) {
    assert!(position.is_multiple_of(4096) && bytes.len().is_multiple_of(4096));
    let file = env.disk().file(segment(base, "log"), false);
    let mut chunk = env.region().take(bytes.len()).unwrap();
    chunk.append(bytes);
    file.write(chunk.freeze(), position, Durability::Device).await.unwrap();
}

async fn raw(env: &SimEnv, base: u64, position: u64, length: usize) -> Vec<u8> {
    let file = env.disk().file(segment(base, "log"), false);
    let (result, chunk) = file.read(env.region().take(length).unwrap(), position, length).await;
    result.unwrap();
    chunk.as_bytes().to_vec()
}

/// A batch made by [`numbered`], as it lies in the log, exactly `blocks` blocks long.
fn block_sized(number: u64, blocks: usize) -> Vec<u8> {
    let overhead = numbered(number, 3000).len() - 3000;
    let batch = numbered(number, blocks * 4096 - overhead);
    let excess = batch.len() - blocks * 4096;
    let batch = numbered(number, blocks * 4096 - overhead - excess);
    assert_eq!(batch.len(), blocks * 4096);
    batch
}

#[test]
fn a_log_comes_back_after_a_power_cut_with_everything_flushed() {
    sim::run(1, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, small_segments()).await.unwrap();
        for number in 0..300 {
            append(&env, &mut log, 1, &numbered(number, 12_000)).await;
        }
        settle(&env, &mut log).await.unwrap();
        append(&env, &mut log, 1, &numbered(300, 12_000)).await;
        drop((log, directory));
        env.crash(Crash::PowerCut);
        let env = env.restart();
        let (_, mut recovered) = recover_with(&env, small_segments()).await;
        assert!(recovered.log.log_end() == Offset(300), "{}", recovered.log.log_end());
        assert_eq!(numbers(&mut recovered.log, Offset(0)).await, (0..300).collect::<Vec<_>>());
        for number in 300..420 {
            append(&env, &mut recovered.log, 2, &numbered(number, 12_000)).await;
        }
        settle(&env, &mut recovered.log).await.unwrap();
        recovered.log.drop_cached();
        assert_eq!(numbers(&mut recovered.log, Offset(0)).await, (0..420).collect::<Vec<_>>());
        assert_eq!(env.disk_counters().crossing_writes, 0);
    });
}

#[test]
fn t88_what_lies_behind_a_cut_never_comes_back() {
    sim::run(1, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
        for number in 0..3 {
            append(&env, &mut log, 1, &block_sized(number, 2)).await;
        }
        settle(&env, &mut log).await.unwrap();
        drop((log, directory));
        // B is torn, C behind it is whole.
        let mut torn = raw(&env, 0, 2 * 4096, 4096).await;
        torn[3000] ^= 0xff;
        scribble(&env, 0, 2 * 4096, &torn).await;
        env.crash(Crash::Kill);
        let env = env.restart();
        let (directory, recovered) = recover(&env).await;
        assert!(matches!(recovered.cut, Some(Cut { position: 8192, fault: Fault::Crc { .. }, .. })), "{:?}", recovered.cut);
        let mut log = recovered.log;
        assert_eq!(log.log_end(), Offset(1));
        // A new B of the same size.
        append(&env, &mut log, 2, &block_sized(7, 2)).await;
        write(&env, &mut log).await.unwrap();
        drop((log, directory));
        env.crash(Crash::PowerCut);
        let env = env.restart();
        let (_, mut recovered) = recover(&env).await;
        assert_eq!(numbers(&mut recovered.log, Offset(0)).await, [0, 7]);
    });
}

#[test]
fn a_cut_that_begins_with_a_lost_sector_is_said() {
    // What is left of the second batch: all but its first sector, or one block of what followed, in the same MiB or far behind.
    for left_at in [4096, 9 * 4096, 3 << 20] {
        sim::run(1, move |env| async move {
            let directory = open(&env).await;
            let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
            for number in 0..2 {
                append(&env, &mut log, 1, &block_sized(number, 1)).await;
            }
            settle(&env, &mut log).await.unwrap();
            drop((log, directory));
            let mut left = raw(&env, 0, 4096, 4096).await;
            left[..512].fill(0);
            env.disk().file(segment(0, "log"), false).allocate(0, left_at + 4096).await.unwrap();
            scribble(&env, 0, 4096, &[0; 4096]).await;
            scribble(&env, 0, left_at, &left).await;
            env.crash(Crash::Kill);
            let env = env.restart();
            let (directory, recovered) = recover(&env).await;
            let fault = Fault::Header(HeaderFault::Zeros);
            assert_eq!(recovered.cut, Some(Cut { segment: Offset(0), position: 4096, fault, segments_removed: 0 }));
            assert_eq!(recovered.log.log_end(), Offset(1));
            assert!(raw(&env, 0, left_at, 4096).await.iter().all(|byte| *byte == 0), "it is gone from the disk");
            drop((recovered, directory));
            env.crash(Crash::Kill);
            let (_, recovered) = recover(&env.restart()).await;
            assert_eq!(recovered.cut, None, "space that nothing was written into is no cut");
        });
    }
}

#[test]
fn t88_a_batch_of_a_lower_epoch_is_not_accepted() {
    sim::run(1, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
        append(&env, &mut log, 5, &block_sized(0, 1)).await;
        append(&env, &mut log, 5, &block_sized(1, 1)).await;
        settle(&env, &mut log).await.unwrap();
        drop((log, directory));
        let mut ghost = raw(&env, 0, 4096, 4096).await;
        ghost[12..16].copy_from_slice(&4_i32.to_be_bytes());
        scribble(&env, 0, 4096, &ghost).await;
        env.crash(Crash::Kill);
        let env = env.restart();
        let (_, recovered) = recover(&env).await;
        let fault = Fault::Epoch { last: LeaderEpoch(5), found: LeaderEpoch(4) };
        assert_eq!(recovered.cut.unwrap().fault, fault);
        assert_eq!(recovered.log.log_end(), Offset(1));
        assert!(raw(&env, 0, 4096, 4096).await.iter().all(|byte| *byte == 0), "the ghost is gone from the disk");
    });
}

/// A log with several persisted index entries, a checkpoint and more behind it.
async fn checkpointed(env: &SimEnv) {
    let directory = open(env).await;
    let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
    for number in 0..120 {
        append(env, &mut log, 1, &numbered(number, 3000)).await;
    }
    settle(env, &mut log).await.unwrap();
    env.sleep(std::time::Duration::from_secs(60)).await;
    settle(env, &mut log).await.unwrap();
    directory.write_checkpoint(BrokerEpoch(1), vec![log.checkpoint_entry()]).await.unwrap();
    for number in 120..140 {
        append(env, &mut log, 1, &numbered(number, 3000)).await;
    }
    settle(env, &mut log).await.unwrap();
}

#[test]
fn recovery_scans_only_what_lies_behind_the_checkpoint() {
    sim::run(1, |env| async move {
        checkpointed(&env).await;
        env.crash(Crash::PowerCut);
        let env = env.restart();
        let (_, mut recovered) = recover(&env).await;
        assert!(recovered.scanned < 30 * 3200, "{}", recovered.scanned);
        assert_eq!(numbers(&mut recovered.log, Offset(0)).await, (0..140).collect::<Vec<_>>());
    });
}

#[test]
fn t28_a_missing_or_empty_index_of_the_active_segment_is_made_anew() {
    for variant in 0..3 {
        sim::run(1, move |env| async move {
            checkpointed(&env).await;
            env.crash(Crash::Kill);
            let env = env.restart();
            match variant {
                0 => env.disk().remove_file(&segment(0, "index")).await.unwrap(),
                1 => env.disk().file(segment(0, "index"), false).set_length(0).await.unwrap(),
                _ => env.disk().replace_file(&segment(0, "timeindex"), vec![0xff; 4096]).await.unwrap(),
            }
            let (_, mut recovered) = recover(&env).await;
            assert_eq!(recovered.cut, None);
            assert!(recovered.scanned > 140 * 3000, "{}", recovered.scanned);
            for offset in [0, 50, 119, 139] {
                assert_eq!(numbers(&mut recovered.log, Offset(offset)).await.len(), usize::try_from(140 - offset).unwrap());
            }
        });
    }
}

#[test]
fn damage_below_the_checkpoint_is_an_error_not_a_cut() {
    sim::run(1, |env| async move {
        checkpointed(&env).await;
        env.crash(Crash::Kill);
        let env = env.restart();
        let directory = open(&env).await;
        let mut log = directory.recover_log(LOG, LogConfig::default(), &mut (), |_| {}).await.unwrap().log;
        settle(&env, &mut log).await.unwrap();
        env.sleep(std::time::Duration::from_secs(60)).await;
        settle(&env, &mut log).await.unwrap();
        directory.write_checkpoint(BrokerEpoch(2), vec![log.checkpoint_entry()]).await.unwrap();
        let position = log.size_bytes() / 4096 * 4096 - 8192;
        drop((log, directory));
        scribble(&env, 0, position, &[0x55; 8192]).await;
        env.crash(Crash::Kill);
        let env = env.restart();
        let result = open(&env).await.recover_log(LOG, LogConfig::default(), &mut (), |_| {}).await;
        assert!(matches!(result.err(), Some(RecoveryError::Damaged { .. })));
    });
}

#[test]
fn t24_a_crash_while_logs_are_loaded_is_not_a_clean_stop() {
    sim::run(1, |env| async move {
        let directory = open(&env).await;
        assert_eq!(directory.clean_stop(), None);
        directory.stop_cleanly(BrokerEpoch(7)).await.unwrap();
        env.crash(Crash::PowerCut);
        let env = env.restart();
        let directory = open(&env).await;
        assert_eq!(directory.clean_stop(), Some(BrokerEpoch(7)));
        // Loading has begun; then the power goes.
        env.crash(Crash::PowerCut);
        let env = env.restart();
        assert_eq!(open(&env).await.clean_stop(), None);
    });
}

#[test]
fn t35_damage_behind_the_last_index_entry_is_no_torn_tail_after_a_checkpoint() {
    sim::run(1, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
        // Too little for an index entry: a checkpoint of it names no batch, only how far all is flushed.
        for number in 0..5 {
            append(&env, &mut log, 1, &numbered(number, 100)).await;
        }
        settle(&env, &mut log).await.unwrap();
        let position = usize::try_from(log.size_bytes()).unwrap() / 5 * 2 + 80;
        directory.write_checkpoint(BrokerEpoch(1), vec![log.checkpoint_entry()]).await.unwrap();
        drop((log, directory));
        env.crash(Crash::Kill);
        let mut env = env.restart();
        let mut before = raw(&env, 0, 0, 4096).await;
        before[position] ^= 1;
        scribble(&env, 0, 0, &before).await;
        for _ in 0..2 {
            let result = open(&env).await.recover_log(LOG, LogConfig::default(), &mut (), |_| {}).await;
            assert!(matches!(result.err(), Some(RecoveryError::Damaged { .. })));
            env.crash(Crash::Kill);
            env = env.restart();
        }
        assert_eq!(raw(&env, 0, 0, 4096).await, before, "nothing is cut");
    });
}

#[test]
fn t23_small_files_survive_a_power_cut_whole() {
    for seed in 0..60 {
        sim::run(seed, |env| async move {
            let directory = open(&env).await;
            let identity = directory.superblock();
            let (log, others) = checkpointed_among_many(&env, &directory).await;
            // The power goes while the next checkpoint is under way.
            let (next, entries) = (directory.clone(), entries_of(&log, &others));
            env.spawn(async move {
                let _ = next.write_checkpoint(BrokerEpoch(1), entries).await;
            });
            env.sleep(std::time::Duration::from_nanos(env.workload().below(300_000))).await;
            drop((log, others, directory));
            env.crash(Crash::PowerCut);
            let env = env.restart();
            let (directory, mut recovered) = recover(&env).await;
            assert_eq!(directory.superblock(), identity);
            assert_eq!(numbers(&mut recovered.log, Offset(0)).await.len(), 60);
            assert!(recovered.scanned < 8 * 9200, "no checkpoint counted: {} bytes were scanned", recovered.scanned);
        });
    }
}

#[test]
fn a_log_that_a_checkpoint_knows_and_that_is_gone_is_not_made_anew() {
    sim::run(1, |env| async move {
        checkpointed(&env).await;
        let path = log_path();
        for entry in env.disk().list(&path).await.unwrap() {
            env.disk().remove_file(&path.join(entry.name)).await.unwrap();
        }
        env.crash(Crash::Kill);
        let directory = open(&env.restart()).await;
        let error = directory.create_log(LOG, LogConfig::default()).await.err().unwrap();
        assert!(error.kind() == std::io::ErrorKind::InvalidData && error.to_string().contains("a checkpoint knows"), "{error}");
    });
}

#[test]
fn a_log_whose_first_segment_is_gone_is_refused() {
    sim::run(1, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, small_segments()).await.unwrap();
        for number in 0..300 {
            append(&env, &mut log, 1, &numbered(number, 9000)).await;
        }
        settle(&env, &mut log).await.unwrap();
        directory.write_checkpoint(BrokerEpoch(1), vec![log.checkpoint_entry()]).await.unwrap();
        drop((log, directory));
        env.crash(Crash::Kill);
        let env = env.restart();
        let path = log_path();
        let mut names: Vec<_> = env.disk().list(&path).await.unwrap().into_iter().map(|entry| entry.name).collect();
        names.sort();
        for name in names.iter().filter(|name| name.starts_with(&names[0][..20])) {
            env.disk().remove_file(&path.join(name)).await.unwrap();
        }
        let result = open(&env).await.recover_log(LOG, small_segments(), &mut (), |_| {}).await;
        let error = result.err().unwrap();
        assert!(matches!(error, RecoveryError::Gap { expected: Offset(0), .. }), "{error}");
    });
}

#[test]
fn a_foreign_directory_is_refused_by_name() {
    sim::run(1, |env| async move {
        env.disk().create_directory(&root()).await.unwrap();
        env.disk().replace_file(&root().join("photos"), vec![1]).await.unwrap();
        assert!(matches!(try_open(&env).await.err(), Some(OpenError::NotOurs { found, .. }) if found == "photos"));
        env.disk().remove_file(&root().join("photos")).await.unwrap();
        let superblock = open(&env).await.superblock();
        env.crash(Crash::Kill);
        let env = env.restart();
        let mut request = request(&env);
        request.host = protocol::ids::HostId(2);
        let error = Directory::open(&env, root(), request.clone()).await.err().unwrap();
        assert_eq!(error.to_string(), "/data belongs to host 1, this is host 2");
        env.crash(Crash::Kill);
        let env = env.restart();
        request.host = protocol::ids::HostId(1);
        request.cluster = Some(protocol::ids::ClusterId(5));
        let error = Directory::open(&env, root(), request).await.err().unwrap();
        assert!(matches!(error, OpenError::ForeignCluster { found, .. } if found == superblock.cluster));
    });
}

#[test]
fn a_deleted_log_stays_deleted() {
    sim::run(1, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, small_segments()).await.unwrap();
        for number in 0..150 {
            append(&env, &mut log, 1, &numbered(number, 9000)).await;
        }
        settle(&env, &mut log).await.unwrap();
        assert_eq!(directory.list_logs().await.unwrap(), [LOG]);
        drop(log);
        directory.delete_log(LOG).await.unwrap();
        env.crash(Crash::PowerCut);
        let env = env.restart();
        let directory = open(&env).await;
        assert_eq!(directory.list_logs().await.unwrap(), []);
        assert!(!directory.has_log(LOG).await.unwrap());
        let result = directory.recover_log(LOG, small_segments(), &mut (), |_| {}).await;
        assert!(matches!(result.err(), Some(RecoveryError::Missing { .. })));
    });
}

/// What a random history knows.
struct Known {
    /// Numbers by offset, as appended in the current start.
    appended: Vec<u64>,
    /// Offsets below this are flushed.
    flushed: usize,
    written: usize,
}

async fn random_work(env: &SimEnv, log: &mut Log<SimEnv>, epoch: i32, known: &mut Known, next: &mut u64, steps: u64) {
    for _ in 0..steps {
        match env.workload().below(10) {
            0..5 => {
                let bytes = [100, 3000, 20_000, 150_000][env.workload().index(4)];
                append(env, log, epoch, &numbered(*next, bytes)).await;
                known.appended.push(*next);
                *next += 1;
            }
            5..8 => write(env, log).await.unwrap(),
            8 => maintain(env, log).await.unwrap(),
            _ => env.sleep(std::time::Duration::from_millis(env.workload().below(20_000))).await,
        }
        known.flushed = usize::try_from(log.flushed().0).unwrap();
        known.written = usize::try_from(log.written().0).unwrap();
    }
}

/// Random appends, writes, rolls, crashes in the middle of both, recovery: nothing flushed is missing, nothing else comes back, offsets follow.
fn random_history(seed: u64) {
    sim::run(seed, move |env| async move {
        let mut env = env;
        let mut known = Known { appended: Vec::new(), flushed: 0, written: 0 };
        let mut next = 0;
        for start in 1..6 {
            let directory = open(&env).await;
            let mut log = if start == 1 {
                directory.create_log(LOG, small_segments()).await.unwrap()
            } else {
                directory.recover_log(LOG, small_segments(), &mut (), |_| {}).await.unwrap().log
            };
            let found = numbers(&mut log, Offset(0)).await;
            assert!(found.len() >= known.flushed, "{} of {} flushed are there", found.len(), known.flushed);
            assert_eq!(found, known.appended[..found.len()], "what is there is what was appended, in order");
            known.appended.truncate(found.len());
            let steps = env.workload().below(60);
            random_work(&env, &mut log, start, &mut known, &mut next, steps).await;
            if env.workload().chance(1, 2) {
                directory.write_checkpoint(BrokerEpoch(1), vec![log.checkpoint_entry()]).await.unwrap();
            }
            // Some work is under way when it ends.
            let how = if env.workload().chance(1, 2) { Crash::PowerCut } else { Crash::Kill };
            let plans: Vec<_> = std::iter::from_fn(|| log.begin_write(env.now())).collect();
            let maintenance = log.begin_maintenance(env.now(), env.wall_clock());
            for plan in plans {
                env.spawn(async move { drop(plan.execute().await) });
            }
            if let Some(plan) = maintenance {
                env.spawn(async move { drop(plan.execute().await) });
            }
            env.sleep(std::time::Duration::from_nanos(env.workload().below(400_000))).await;
            drop(log);
            assert_eq!(env.disk_counters().crossing_writes, 0);
            env.crash(how);
            env = env.restart();
            if how == Crash::Kill {
                known.flushed = known.written;
            }
        }
    });
}

#[test]
fn t88_random_histories_lose_nothing_and_bring_nothing_back() {
    for seed in 0..150 {
        random_history(seed);
    }
}

#[test]
fn t95_sealed_segments_are_not_read_at_start() {
    sim::run(1, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, small_segments()).await.unwrap();
        for number in 0..400 {
            append(&env, &mut log, 1, &numbered(number, 12_000)).await;
        }
        settle(&env, &mut log).await.unwrap();
        let (segments, size) = (log.segment_count(), log.size_bytes());
        assert!(segments > 4);
        drop((log, directory));
        // Whoever looked into the first segment would stumble here.
        scribble(&env, 0, 0, &[0xaa; 8192]).await;
        env.crash(Crash::Kill);
        let env = env.restart();
        let (_, mut recovered) = recover_with(&env, small_segments()).await;
        assert!(recovered.scanned < 2 << 20, "{}", recovered.scanned);
        assert_eq!((recovered.log.segment_count(), recovered.log.size_bytes()), (segments, size));
        let result = read_all(&mut recovered.log, Offset(0), 1 << 20).await;
        assert!(matches!(result, Err(storage::ReadError::Corrupt { position: 0, .. })), "it is found when it is read");
    });
}

#[test]
fn a_checkpoint_keeps_what_it_said_of_logs_that_are_not_open() {
    sim::run(1, |env| async move {
        checkpointed(&env).await;
        env.crash(Crash::Kill);
        let env = env.restart();
        let directory = open(&env).await;
        // Another start is cut short while logs are loaded: its checkpoints know nothing of this one.
        directory.write_checkpoint(BrokerEpoch(2), Vec::new()).await.unwrap();
        directory.write_checkpoint(BrokerEpoch(2), Vec::new()).await.unwrap();
        env.crash(Crash::Kill);
        let env = env.restart();
        let (_, recovered) = recover(&env).await;
        assert!(recovered.scanned < 30 * 3200, "{}", recovered.scanned);
    });
}
