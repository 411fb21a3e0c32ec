//! The offline reader, on files exported from the simulator's disk.
#![allow(clippy::unwrap_used, reason = "a test fails where it must")]

mod support;

use std::path::{Path, PathBuf};

use protocol::ids::Offset;
use runtime::{Disk, Env};
use sim::SimEnv;
use storage::Fault;
use storage::inspect::{Item, Summary, holder, inspect, logs_below};
use support::*;

/// A directory that is removed at the end.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

async fn export(env: &SimEnv, from: PathBuf, to: PathBuf) {
    std::fs::create_dir_all(&to).unwrap();
    for entry in env.disk().list(&from).await.unwrap() {
        let (from, to) = (from.join(&entry.name), to.join(&entry.name));
        if entry.is_directory {
            Box::pin(export(env, from, to)).await;
        } else {
            std::fs::write(to, env.disk().read_file(&from, 1 << 30).await.unwrap()).unwrap();
        }
    }
}

/// A log of 150 batches in several segments, outside the simulator.
fn exported(name: &str) -> Temporary {
    let to = Temporary(std::env::temp_dir().join(format!("corelane-inspect-{name}-{}", std::process::id())));
    let copy = to.0.clone();
    sim::run(1, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, small_segments()).await.unwrap();
        for number in 0..150 {
            append(&env, &mut log, 1, &numbered(number, 15_000)).await;
        }
        settle(&env, &mut log).await.unwrap();
        export(&env, root(), copy).await;
    });
    to
}

fn verify(log: &Path) -> (Summary, Vec<Item>) {
    let mut found = Vec::new();
    let summary = inspect(log, |item| {
        if matches!(item, Item::Problem(_) | Item::Tail(_)) {
            found.push(item.clone());
        }
    });
    (summary.unwrap(), found)
}

fn only_log(root: &Temporary) -> PathBuf {
    let logs = logs_below(&root.0).unwrap();
    assert_eq!(logs.len(), 1);
    logs[0].clone()
}

fn flip(path: PathBuf, at: usize) {
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_sound_log_is_read_whole() {
    let root = exported("sound");
    let log = only_log(&root);
    assert_eq!(holder(&log).unwrap(), None);
    let (summary, found) = verify(&log);
    assert_eq!((summary.batches, summary.records, summary.problems, summary.torn_tails), (150, 150, 0, 0), "{found:?}");
    assert_eq!((summary.first_offset, summary.end_offset), (Some(Offset(0)), Some(Offset(150))));
    assert!(summary.segments > 2);
    assert!(matches!(found[..], [Item::Tail(tail)] if tail.last_written.is_none() && tail.bytes > 0));
}

#[test]
fn damage_is_named_with_its_byte() {
    let root = exported("damaged");
    let log = only_log(&root);
    let size = numbered(0, 15_000).len();
    flip(log.join("00000000000000000000.log"), 3 * size + 5000);
    flip(log.join("00000000000000000000.index"), 9);
    let (summary, found) = verify(&log);
    assert_eq!(summary.batches, 149);
    let problems = problems(&found);
    assert!(problems.iter().any(|problem| problem.contains(&format!("0.log at byte {}: CRC", 3 * size))), "{problems:?}");
    assert!(problems.iter().any(|problem| problem.contains("0.index at byte 8: entry 1")), "{problems:?}");
}

#[test]
fn a_torn_tail_is_no_problem_of_the_log() {
    let root = exported("torn");
    let log = only_log(&root);
    let last = std::fs::read_dir(&log)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "log"));
    let last = last.max().unwrap();
    let size = numbered(0, 15_000).len();
    flip(last, size + 700);
    let (summary, found) = verify(&log);
    assert_eq!((summary.problems, summary.torn_tails), (0, 1));
    let Item::Tail(tail) = found[0] else { panic!("{found:?}") };
    assert_eq!(tail.position, u64::try_from(size).unwrap());
    assert!(matches!(tail.torn, Some(Fault::Crc { .. })));
}

fn problems(found: &[Item]) -> Vec<String> {
    let problems = found.iter().filter_map(|item| if let Item::Problem(problem) = item { Some(problem) } else { None });
    problems.map(ToString::to_string).collect()
}

#[test]
fn numbers_that_cannot_be_are_problems_of_their_file() {
    let root = exported("crafted");
    let log = only_log(&root);
    let manifest = log.join(format!("{:020}.manifest", 0));
    let sound = std::fs::read(&manifest).unwrap();
    for at in MANIFEST_NUMBERS_AT {
        for number in NUMBERS_THAT_CANNOT_BE {
            std::fs::write(&manifest, crafted(&sound, at, number)).unwrap();
            let (_, found) = verify(&log);
            // The last two say where the largest timestamp is and when the first batch came: nothing in the log contradicts them.
            assert_eq!(problems(&found).is_empty(), at >= 64, "{number:#x} at byte {at}: {found:?}");
        }
    }
    std::fs::write(&manifest, sound).unwrap();

    // A base offset that nothing can follow.
    for extension in ["log", "index", "timeindex", "manifest"] {
        let name = |base: i64| log.join(format!("{base:020}.{extension}"));
        std::fs::rename(name(0), name(i64::MAX)).unwrap();
    }
    let (_, found) = verify(&log);
    for file in ["index", "timeindex"] {
        let said = format!("{}.{file} at byte ", i64::MAX);
        let of_file = problems(&found).into_iter().filter(|problem| problem.contains(&said) && problem.contains("no offset is"));
        assert!(of_file.count() > 1, "{found:?}");
    }
}

#[test]
fn a_batch_that_reaches_further_than_an_index_counts_is_a_problem() {
    let root = Temporary(std::env::temp_dir().join(format!("corelane-inspect-far-{}", std::process::id())));
    std::fs::create_dir_all(&root.0).unwrap();
    std::fs::write(root.0.join(format!("{:020}.log", 0)), far_reaching(3)).unwrap();
    let (summary, found) = verify(&root.0);
    assert_eq!((summary.batches, summary.problems), (3, 2), "{found:?}");
    assert!(
        problems(&found)[0].contains("the last offset of a batch, from its segment's base offset, is 4294967295"),
        "{found:?}"
    );
}
