//! Files with right checksums and numbers that can't be: an error that names them, or a longer scan, and never a panic.
#![allow(clippy::unwrap_used, reason = "a test fails where it must")]

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use protocol::ids::{BrokerEpoch, Offset};
use protocol::limits::{LOG_END_OFFSET_MAX, SEGMENT_REACH_MAX};
use runtime::{Disk, Env};
use sim::{Crash, SimEnv};
use storage::{LogConfig, RecoveryError};
use support::*;

/// The checkpoint that [`history`] leaves.
const CHECKPOINT: &str = "checkpoint-0.b";
/// Where a checkpoint's first entry starts, and in it that of its first segment.
const ENTRY_AT: usize = 32;
const SEGMENT_AT: usize = ENTRY_AT + 46;

/// A log of a sealed and an active segment, and a checkpoint with index entries of the latter.
async fn history(env: &SimEnv) {
    let directory = open(env).await;
    let mut log = directory.create_log(LOG, small_segments()).await.unwrap();
    for number in 0..100 {
        append(env, &mut log, 1, &numbered(number, 15_000)).await;
    }
    settle(env, &mut log).await.unwrap();
    env.sleep(Duration::from_secs(60)).await;
    settle(env, &mut log).await.unwrap();
    directory.write_checkpoint(BrokerEpoch(1), vec![log.checkpoint_entry()]).await.unwrap();
    assert_eq!(log.segment_count(), 2);
}

/// Opens the log as a host does, and works on it if it can be opened; how much was scanned.
async fn work_on(env: &SimEnv) -> Result<u64, RecoveryError> {
    let directory = open(env).await;
    let recovered = directory.recover_log(LOG, small_segments(), &mut (), |_| {}).await?;
    let (mut log, scanned) = (recovered.log, recovered.scanned);
    // What is missing in between is found when it is read.
    let start = log.log_start();
    let _ = read_all(&mut log, start, 1 << 20).await;
    for number in 0..80 {
        append(env, &mut log, 2, &numbered(number, 15_000)).await;
    }
    settle(env, &mut log).await.unwrap();
    env.sleep(Duration::from_secs(60)).await;
    settle(env, &mut log).await.unwrap();
    directory.write_checkpoint(BrokerEpoch(2), vec![log.checkpoint_entry()]).await.unwrap();
    Ok(scanned)
}

async fn file(env: &SimEnv, path: &Path) -> Vec<u8> {
    env.disk().read_file(path, 1 << 30).await.unwrap()
}

/// Puts a number into a file after [`history`], and works on the log.
fn with_number(path: PathBuf, at: usize, number: u64) -> Result<u64, RecoveryError> {
    sim::run(1, move |env| async move {
        history(&env).await;
        env.crash(Crash::Kill);
        let env = env.restart();
        let bytes = crafted(&file(&env, &path).await, at, number);
        env.disk().replace_file(&path, bytes).await.unwrap();
        work_on(&env).await
    })
}

#[test]
fn no_number_of_a_manifest_makes_a_start_panic() {
    for at in MANIFEST_NUMBERS_AT {
        for number in NUMBERS_THAT_CANNOT_BE {
            // A manifest that can't be its segment's makes it an unsealed one, which is scanned; some numbers aren't looked at.
            if let Err(error) = with_number(log_path().join(format!("{:020}.manifest", 0)), at, number) {
                panic!("{number:#x} at byte {at}: {error}");
            }
        }
    }
}

#[test]
fn no_number_of_a_checkpoint_makes_a_start_panic() {
    let bytes = sim::run(1, |env| async move {
        history(&env).await;
        file(&env, &root().join(CHECKPOINT)).await.len()
    });
    assert_eq!(bytes, SEGMENT_AT + 40 + 4 + 12 + 4, "the log is in it, with one segment and one leader epoch");
    for at in (8..bytes - 12).step_by(2) {
        for number in NUMBERS_THAT_CANNOT_BE {
            // Refused with the numbers, or taken and worked on; the test is that it comes back.
            let _ = with_number(root().join(CHECKPOINT), at, number);
        }
    }
}

#[test]
fn a_segment_with_an_offset_that_no_log_reaches_is_refused_by_name() {
    sim::run(1, |env| async move {
        history(&env).await;
        let base = u64::try_from(LOG_END_OFFSET_MAX + 1).unwrap();
        let (from, to) = (log_path().join(format!("{:020}.log", 0)), log_path().join(format!("{base:020}.log")));
        env.disk().rename(&from, &to).await.unwrap();
        env.crash(Crash::Kill);
        let error = work_on(&env.restart()).await.unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "{} at byte 0: the base offset of a segment is {base}, and can be {LOG_END_OFFSET_MAX} at most",
                to.display()
            )
        );
    });
}

#[test]
fn a_batch_that_reaches_further_than_an_index_counts_is_refused_by_name() {
    sim::run(1, |env| async move {
        let directory = open(&env).await;
        drop(directory.create_log(LOG, LogConfig::default()).await.unwrap());
        drop(directory);
        // Each batch is as large as one can be; the third one's offsets need 33 bits.
        let path = log_path().join(format!("{:020}.log", 0));
        let bytes = far_reaching(3);
        env.disk().replace_file(&path, bytes.clone()).await.unwrap();
        env.crash(Crash::Kill);
        let env = env.restart();
        let error = work_on(&env).await.unwrap_err();
        let RecoveryError::Impossible { number, position, .. } = &error else { panic!("{error}") };
        assert_eq!((number.found, number.allowed), (2 * SEGMENT_REACH_MAX + 1, SEGMENT_REACH_MAX));
        assert_eq!(*position, u64::try_from(bytes.len() / 3).unwrap());
        assert!(
            error.to_string().starts_with(&format!("{} at byte {position}: the last offset of a batch", path.display())),
            "{error}"
        );
        assert_eq!(file(&env, &path).await, bytes, "nothing is cut");
    });
}

#[test]
fn index_entries_that_do_not_rise_are_made_anew() {
    // The last byte of the first entry's relative offset, in either index, and where the checkpoint has their CRC and count.
    for (extension, entry_bytes, relative_at, crc_at, count_at) in [("index", 8, 0, 24, 16), ("timeindex", 12, 8, 36, 28)] {
        let scanned = sim::run(1, move |env| async move {
            history(&env).await;
            let names = env.disk().list(&log_path()).await.unwrap();
            let name = names.into_iter().map(|entry| entry.name).rfind(|name| name.ends_with(&format!(".{extension}"))).unwrap();
            env.crash(Crash::Kill);
            let env = env.restart();
            let (checkpoint, index) = (root().join(CHECKPOINT), log_path().join(name));
            let mut bytes = file(&env, &index).await;
            bytes[relative_at..relative_at + 4].fill(0xff);
            let said = file(&env, &checkpoint).await;
            let count: [u8; 8] = said[SEGMENT_AT + count_at..][..8].try_into().unwrap();
            let count = usize::try_from(u64::from_le_bytes(count)).unwrap();
            assert!(count > 1);
            let crc = crc32c::crc32c(&bytes[..count * entry_bytes]).to_le_bytes();
            let mut number = said[SEGMENT_AT + crc_at..][..8].to_vec();
            number[..4].copy_from_slice(&crc);
            let number = u64::from_le_bytes(number.try_into().unwrap());
            env.disk().replace_file(&index, bytes).await.unwrap();
            env.disk().replace_file(&checkpoint, crafted(&said, SEGMENT_AT + crc_at, number)).await.unwrap();
            work_on(&env).await.unwrap()
        });
        assert!(scanned > 20 * 15_000, "{extension}: the segment is scanned from its start, not {scanned} bytes of it");
    }
}

#[test]
fn the_offsets_of_a_log_start_where_they_did() {
    let scanned = sim::run(1, |env| async move {
        history(&env).await;
        env.crash(Crash::Kill);
        let env = env.restart();
        let scanned = work_on(&env).await.unwrap();
        env.crash(Crash::Kill);
        let directory = open(&env.restart()).await;
        let recovered = directory.recover_log(LOG, small_segments(), &mut (), |_| {}).await.unwrap();
        assert_eq!((recovered.log.log_start(), recovered.log.log_end()), (Offset(0), Offset(180)));
        scanned
    });
    assert!(scanned < 3 * 15_100, "{scanned}: what the tests here break is whole before");
}
