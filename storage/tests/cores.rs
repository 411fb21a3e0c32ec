//! One data directory of several cores: their checkpoints, what they share, what they tell each other. A core is a handle of its own
//! on the same simulated disk.
#![allow(clippy::unwrap_used, reason = "a test fails where it must")]

mod support;

use std::path::PathBuf;
use std::time::Duration;

use futures_lite::future::{or, poll_once, zip};
use protocol::ids::{BrokerEpoch, CoreId, Offset, PartitionIndex, TopicId, TopicPartition};
use runtime::{Disk, Env, File};
use sim::{Crash, DiskFaults, SimEnv};
use storage::{
    CheckpointEntry, ChunkCache, Directory, FlushPolicy, Log, LogConfig, OpenError, Seen, SharedDirectory, StorageConfig, look,
};
use support::*;

const ALWAYS: u64 = 1_000_000;
const EPOCH: BrokerEpoch = BrokerEpoch(1);

fn log_of(partition: u32) -> TopicPartition {
    TopicPartition { partition: PartitionIndex(partition), ..LOG }
}

/// The directory for another core, which gets what is known of these partitions.
async fn attach(env: &SimEnv, opened: &Directory<SimEnv>, core: u16, partitions: &[u32]) -> Directory<SimEnv> {
    let shared = opened.share(|log| partitions.contains(&log.partition.0));
    Directory::attach(env, shared, CoreId(core), ChunkCache::new(env.region().clone())).await.unwrap()
}

async fn recover(directory: &Directory<SimEnv>, partition: u32) -> (Log<SimEnv>, u64) {
    let recovered = directory.recover_log(log_of(partition), LogConfig::default(), &mut (), |_| {}).await.unwrap();
    (recovered.log, recovered.scanned)
}

/// Appends 40 batches from `first` on, with their indexes on the disk, and leaves a checkpoint that vouches for them.
async fn fill(env: &SimEnv, directory: &Directory<SimEnv>, log: &mut Log<SimEnv>, first: u64) -> CheckpointEntry {
    for number in first..first + 40 {
        append(env, log, 1, &numbered(number, 9000)).await;
    }
    settle(env, log).await.unwrap();
    env.sleep(Duration::from_secs(60)).await;
    settle(env, log).await.unwrap();
    let entry = log.checkpoint_entry();
    directory.write_checkpoint(EPOCH, vec![entry.clone()]).await.unwrap();
    entry
}

/// A new log with 40 batches, and what a checkpoint of its core says of it.
async fn filled(env: &SimEnv, directory: &Directory<SimEnv>, partition: u32) -> CheckpointEntry {
    let mut log = directory.create_log(log_of(partition), LogConfig::default()).await.unwrap();
    fill(env, directory, &mut log, 0).await
}

/// The names of the checkpoints, and their bytes together.
async fn checkpoints(env: &SimEnv) -> (Vec<String>, u64) {
    let entries = env.disk().list(&root()).await.unwrap();
    let files: Vec<_> = entries.into_iter().filter(|entry| entry.name.starts_with("checkpoint-")).collect();
    let bytes = files.iter().map(|file| file.length).sum();
    (files.into_iter().map(|file| file.name).collect(), bytes)
}

fn after(env: &SimEnv, how: Crash) -> SimEnv {
    env.crash(how);
    env.restart()
}

#[test]
fn what_crosses_threads_can() {
    fn is_send<T: Send + 'static>() {}
    is_send::<SharedDirectory>();
    is_send::<CheckpointEntry>();
}

#[test]
fn a_start_with_fewer_cores_knows_what_the_checkpoints_of_all_said() {
    sim::run(1, |env| async move {
        let opened = open(&env).await;
        let others = [attach(&env, &opened, 1, &[]).await, attach(&env, &opened, 2, &[]).await];
        let said = [filled(&env, &opened, 0).await, filled(&env, &others[0], 1).await, filled(&env, &others[1], 2).await];
        drop((opened, others));
        let env = after(&env, Crash::PowerCut);
        let opened = open(&env).await;
        for (partition, said) in (0..).zip(&said) {
            assert_eq!(opened.take_entry(log_of(partition)).as_ref(), Some(said));
        }
        opened.remove_checkpoints_above(2, EPOCH).await.unwrap();
        assert!(checkpoints(&env).await.0.iter().all(|name| !name.starts_with("checkpoint-2.")));
        opened.remove_checkpoints_above(1, EPOCH).await.unwrap();
        assert!(checkpoints(&env).await.0.iter().all(|name| name.starts_with("checkpoint-0.")));
        drop(opened);
        let env = after(&env, Crash::PowerCut);
        let opened = open(&env).await;
        for partition in 0..3 {
            let (mut log, scanned) = recover(&opened, partition).await;
            assert!(scanned < 8 * 9200, "{scanned} bytes were scanned");
            assert_eq!(numbers(&mut log, Offset(0)).await, (0..40).collect::<Vec<_>>());
        }
    });
}

#[test]
fn of_a_log_that_moved_between_cores_the_furthest_entry_counts() {
    sim::run(1, |env| async move {
        let opened = open(&env).await;
        let attached = attach(&env, &opened, 1, &[]).await;
        filled(&env, &opened, 0).await;
        // To the other core and back; each goes on with what the one before knew, and the one before writes on without it.
        let directories = [&attached, &opened, &attached];
        for (turn, (directory, before)) in (1..).zip(directories.into_iter().zip([&opened, &attached, &opened])) {
            directory.give_entry(before.take_entry(log_of(0)).unwrap());
            let (mut log, scanned) = recover(directory, 0).await;
            assert!(scanned < 8 * 9200, "{scanned} bytes were scanned");
            let said = fill(&env, directory, &mut log, turn * 40).await;
            for _ in 0..4 {
                before.write_checkpoint(EPOCH, Vec::new()).await.unwrap();
            }
            let seen = copied(&env, format!("/copy-{turn}").into()).await;
            assert_eq!(seen.take_entry(log_of(0)), Some(said.clone()), "turn {turn}");
            // What comes back from the other core is older.
            seen.give_entry(before.take_entry(log_of(0)).unwrap());
            assert_eq!(seen.take_entry(log_of(0)), Some(said));
        }
    });
}

/// A directory with the superblock and the checkpoints of this one, as the next start would see it.
async fn copied(env: &SimEnv, to: PathBuf) -> Directory<SimEnv> {
    let disk = env.disk();
    disk.create_directory(&to).await.unwrap();
    for name in checkpoints(env).await.0.iter().map(String::as_str).chain(["superblock"]) {
        let bytes = disk.read_file(&root().join(name), 1 << 20).await.unwrap();
        disk.replace_file(&to.join(name), bytes).await.unwrap();
    }
    Directory::open(env, to, request(env)).await.unwrap()
}

#[test]
fn a_power_cut_before_the_other_cores_checkpoint_loses_no_entry() {
    for seed in 0..40 {
        sim::run(seed, move |env| async move {
            let takes_over = seed % 2 == 0;
            let opened = open(&env).await;
            let attached = attach(&env, &opened, 1, &[]).await;
            let said = [filled(&env, &attached, 0).await, filled(&env, &attached, 1).await];
            drop((opened, attached));
            let env = after(&env, Crash::Kill);
            let opened = open(&env).await;
            if takes_over {
                opened.remove_checkpoints_above(3, EPOCH).await.unwrap();
            }
            // The first log is another core's now. The core that had it overwrites what it said; the new one hasn't written yet.
            let before = attach(&env, &opened, 1, &[1]).await;
            let now = attach(&env, &opened, 2, &[0]).await;
            assert_eq!(now.take_entry(log_of(0)).as_ref(), Some(&said[0]));
            assert_eq!(before.take_entry(log_of(0)).is_some(), !takes_over, "what the opener keeps isn't kept twice");
            for _ in 0..1 + seed % 3 {
                before.write_checkpoint(EPOCH, Vec::new()).await.unwrap();
            }
            drop((opened, before, now));
            let env = after(&env, Crash::PowerCut);
            let opened = open(&env).await;
            assert_eq!([0, 1].map(|partition| opened.take_entry(log_of(partition)).unwrap()), said);
        });
    }
}

#[test]
fn removing_the_checkpoints_of_cores_that_are_gone_may_be_cut_short() {
    let mut cut_short = 0;
    for seed in 0..60 {
        cut_short += sim::run(seed, |env| async move {
            let opened = open(&env).await;
            let mut said = Vec::new();
            for core in 1..5 {
                let attached = attach(&env, &opened, core, &[]).await;
                said.push(filled(&env, &attached, u32::from(core)).await);
                attached.write_checkpoint(EPOCH, Vec::new()).await.unwrap();
            }
            drop(opened);
            let env = after(&env, Crash::Kill);
            let opened = open(&env).await;
            let microseconds = env.workload().below(2_000);
            let cut = async {
                env.sleep(Duration::from_micros(microseconds)).await;
                1
            };
            let removed = async {
                opened.remove_checkpoints_above(2, EPOCH).await.unwrap();
                0
            };
            let was_cut_short = or(cut, removed).await;
            drop(opened);
            let env = after(&env, Crash::PowerCut);
            let opened = open(&env).await;
            for (partition, said) in (1..).zip(&said) {
                assert_eq!(opened.take_entry(log_of(partition)).as_ref(), Some(said));
            }
            was_cut_short
        });
    }
    assert!((10..50).contains(&cut_short), "{cut_short} of 60 were cut short");
}

#[test]
fn an_attached_core_creates_and_recovers_logs_and_its_checkpoint_goes_on() {
    sim::run(1, |env| async move {
        let opened = open(&env).await;
        let attached = attach(&env, &opened, 1, &[]).await;
        assert_eq!((attached.id(), attached.clean_stop()), (opened.id(), None));
        let mut log = attached.create_log(log_of(1), LogConfig::default()).await.unwrap();
        fill(&env, &attached, &mut log, 0).await;
        for _ in 0..5 {
            attached.write_checkpoint(EPOCH, Vec::new()).await.unwrap();
        }
        drop((log, attached, opened));
        let env = after(&env, Crash::PowerCut);
        let opened = open(&env).await;
        let attached = attach(&env, &opened, 1, &[1]).await;
        let (mut log, scanned) = recover(&attached, 1).await;
        assert!(scanned < 8 * 9200, "{scanned} bytes were scanned");
        let said = fill(&env, &attached, &mut log, 40).await;
        drop((log, attached, opened));
        let env = after(&env, Crash::PowerCut);
        // The newest of the other core's checkpoints is the one that this start wrote.
        let opened = open(&env).await;
        assert_eq!(opened.take_entry(log_of(1)), Some(said));
        let attached = attach(&env, &opened, 1, &[1]).await;
        let (mut log, _) = recover(&attached, 1).await;
        assert_eq!(numbers(&mut log, Offset(0)).await, (0..80).collect::<Vec<_>>());
        drop(log);
        attached.delete_log(log_of(1)).await.unwrap();
        assert!(!opened.has_log(log_of(1)).await.unwrap() && attached.take_entry(log_of(1)).is_none());
    });
}

#[test]
fn t22_a_failed_flush_stops_the_logs_of_every_core_that_is_told() {
    for seed in 0..20 {
        sim::run(seed, |env| async move {
            let opened = open(&env).await;
            opened.set_storage(StorageConfig { flush_policy: FlushPolicy::Grouped, ..StorageConfig::default() });
            let attached = attach(&env, &opened, 1, &[]).await;
            let mut log = opened.create_log(log_of(0), LogConfig::default()).await.unwrap();
            let mut failing = attached.create_log(log_of(1), LogConfig::default()).await.unwrap();
            append(&env, &mut log, 1, &numbered(0, 5000)).await;
            append(&env, &mut failing, 1, &numbered(0, 5000)).await;
            assert!(poll_once(attached.failed()).await.is_none());
            env.set_disk_faults(DiskFaults { flush_errors_ppm: ALWAYS, ..DiskFaults::default() });
            let fails = async {
                write(&env, &mut failing).await.unwrap_err();
            };
            let (words, ()) = zip(attached.failed(), fails).await;
            env.set_disk_faults(DiskFaults::default());
            assert!(words.contains(&log_of(1).to_string()), "{words}");
            opened.fail(&words);
            opened.fail("said twice");
            let failure = write(&env, &mut log).await.err().or_else(|| log.check_running().err()).unwrap();
            assert!(failure.to_string().contains(&words), "{failure}");
            assert_eq!(log.flushed(), Offset(0));
            let error = opened.write_checkpoint(EPOCH, vec![log.checkpoint_entry()]).await.unwrap_err();
            assert_eq!(error.to_string(), words);
            opened.stop_cleanly(EPOCH).await.unwrap_err();
            // Each core tells what arose there, and no more.
            attached.fail("an echo");
            assert_eq!(attached.failed().await, words);
            assert!(poll_once(opened.failed()).await.is_none());
        });
    }
}

#[test]
fn t22_a_failed_flush_of_a_recovery_is_told_too() {
    sim::run(1, |env| async move {
        let opened = open(&env).await;
        filled(&env, &opened, 0).await;
        env.set_disk_faults(DiskFaults { flush_errors_ppm: ALWAYS, ..DiskFaults::default() });
        let recovered = opened.recover_log(log_of(0), LogConfig::default(), &mut (), |_| {}).await;
        assert!(recovered.is_err());
        assert!(opened.failed().await.contains("recovering a log"));
    });
}

#[test]
fn entries_do_not_pile_up_over_starts_and_topics() {
    sim::run(1, |env| async move {
        let mut env = env;
        let mut sizes = Vec::new();
        for start in 0..6_u32 {
            let opened = open(&env).await;
            // One log lives, and changes its core with each start; in each start another comes and goes on every core.
            opened.retain_entries(|log| log.topic == LOG.topic);
            opened.remove_checkpoints_above(3, EPOCH).await.unwrap();
            let attached = [attach(&env, &opened, 1, &[0]).await, attach(&env, &opened, 2, &[0]).await];
            let owner = &attached[usize::from(start % 2 == 0)];
            if start == 0 {
                filled(&env, owner, 0).await;
            } else {
                let (mut log, _) = recover(owner, 0).await;
                fill(&env, owner, &mut log, u64::from(start) * 40).await;
            }
            for (core, directory) in (0_u32..).zip([&opened, &attached[0], &attached[1]]) {
                let log = TopicPartition { topic: TopicId(1000 + u128::from(start)), partition: PartitionIndex(core) };
                let gone = directory.create_log(log, LogConfig::default()).await.unwrap();
                directory.write_checkpoint(EPOCH, vec![gone.checkpoint_entry()]).await.unwrap();
                drop(gone);
                // The process may end before the checkpoint is written that doesn't name it any more.
                directory.delete_log(log).await.unwrap();
            }
            sizes.push(checkpoints(&env).await.1);
            drop((opened, attached));
            env = after(&env, Crash::Kill);
        }
        assert!(sizes[2..].iter().all(|bytes| *bytes <= sizes[1] + 500), "{sizes:?}");
        let opened = open(&env).await;
        assert!(opened.take_entry(log_of(0)).is_some());
    });
}

#[test]
fn names_that_no_core_writes_are_no_checkpoints() {
    sim::run(1, |env| async move {
        let opened = open(&env).await;
        filled(&env, &opened, 0).await;
        let (names, _) = checkpoints(&env).await;
        let bytes = env.disk().read_file(&root().join(&names[0]), 1 << 20).await.unwrap();
        for name in &names {
            env.disk().remove_file(&root().join(name)).await.unwrap();
        }
        let others =
            ["1024.a", "65535.b", "65536.a", "99999999999999999999.a", "007.a", "+7.a", "-1.a", "7.c", "7.a.b", "7", "x.a", ".a"];
        for name in others {
            env.disk().replace_file(&root().join(format!("checkpoint-{name}")), bytes.clone()).await.unwrap();
        }
        drop(opened);
        let env = after(&env, Crash::PowerCut);
        let opened = open(&env).await;
        assert_eq!(opened.take_entry(log_of(0)), None);
        opened.remove_checkpoints_above(1, EPOCH).await.unwrap();
        assert_eq!(checkpoints(&env).await.0.len(), others.len(), "they are somebody else's");
        env.disk().replace_file(&root().join("checkpoint-1023.a"), bytes).await.unwrap();
        drop(opened);
        let env = after(&env, Crash::PowerCut);
        assert!(open(&env).await.take_entry(log_of(0)).is_some());
    });
}

#[test]
fn more_checkpoints_than_can_be_are_refused_before_they_are_read() {
    sim::run(1, |env| async move {
        drop(open(&env).await);
        for core in 1..9 {
            let path = root().join(format!("checkpoint-{core}.a"));
            env.disk().overwrite_file(&path, vec![0; 4096]).await.unwrap();
            env.disk().file(path, false).set_length((64 << 20) + 1).await.unwrap();
        }
        let env = after(&env, Crash::Kill);
        let error = try_open(&env).await.err().unwrap();
        let said = error.to_string();
        assert!(matches!(error, OpenError::Io { .. }) && said.contains("536870920 bytes of checkpoints"), "{said}");
    });
}

#[test]
fn a_directory_with_any_cores_checkpoint_is_used() {
    sim::run(1, |env| async move {
        let opened = open(&env).await;
        assert_eq!(look(&env, &root()).await.unwrap(), Seen::Formatted);
        attach(&env, &opened, 3, &[]).await.write_checkpoint(EPOCH, Vec::new()).await.unwrap();
        assert_eq!(look(&env, &root()).await.unwrap(), Seen::Used);
    });
}

#[test]
fn two_cores_delete_the_partitions_of_a_topic_beside_each_other() {
    for seed in 0..200 {
        sim::run(seed, |env| async move {
            let opened = open(&env).await;
            let attached = attach(&env, &opened, 1, &[]).await;
            let create = |directory: &Directory<SimEnv>, partition| {
                let directory = directory.clone();
                async move { drop(directory.create_log(log_of(partition), LogConfig::default()).await.unwrap()) }
            };
            zip(create(&opened, 0), create(&attached, 1)).await;
            let (one, other) = zip(opened.delete_log(log_of(0)), attached.delete_log(log_of(1))).await;
            one.unwrap();
            other.unwrap();
            drop((opened, attached));
            let env = after(&env, Crash::PowerCut);
            let opened = open(&env).await;
            assert_eq!(env.disk().list(&root().join("topics")).await.unwrap(), []);
            drop(opened);
        });
    }
}
