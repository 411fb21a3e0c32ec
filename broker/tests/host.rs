//! The real process through its command line: topics, records, restarts, kills, and starts that must not be.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests run a process in real time")]

mod support;

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use cluster::metadata::MetadataRecord;
use protocol::batch::{BatchBuilder, RecordFields, stamp};
use protocol::compression::Codec;
use protocol::ids::{BrokerEpoch, HostId, LeaderEpoch, Offset, Timestamp};
use support::{Host, Scratch, corelane, start_fails};

fn lines(range: std::ops::Range<u32>) -> String {
    range.map(|n| format!("line {n}\n")).collect()
}

#[test]
fn a_topic_from_its_creation_to_its_end() {
    let scratch = Scratch::new();
    let host = Host::start(&scratch.join("data"));
    assert_eq!(host.text(&["topic", "list"]), "no topics\n");
    let said = host.text(&["topic", "create", "events", "--partitions", "3", "--config", "durability=written"]);
    assert_eq!(said, "created topic events with 3 partitions\n");

    let (code, said) = host.fails(&["topic", "create", "events"]);
    assert_eq!((code, said.as_str()), (1, "error: topic events exists already: TOPIC_ALREADY_EXISTS (36)\n"));
    let (_, said) = host.fails(&["topic", "create", "no spaces"]);
    assert!(said.contains("topic name has ' ' at byte 2"), "{said}");
    let (_, said) = host.fails(&["topic", "create", "x", "--config", "segment.byte=1"]);
    assert!(said.contains("segment.byte is not a setting of a topic (did you mean segment.bytes?)"), "{said}");
    let (_, said) = host.fails(&["topic", "create", "x", "--partitions", "0"]);
    assert!(said.contains("0 partitions"), "{said}");
    let (_, said) = host.fails(&["topic", "create", "x", "--partitions", "5000"]);
    assert!(said.contains("5003") && said.contains("4000") && said.contains("partitions_max"), "{said}");
    let (_, said) = host.fails(&["topic", "create", "x", "--config", "min.insync.replicas=2"]);
    assert!(said.contains("min.insync.replicas=2 can't be met"), "{said}");

    let described = host.json(&["topic", "describe", "events"]);
    assert_eq!(described["configs"]["durability"], "written");
    assert_eq!(described["partitions"].as_array().unwrap().len(), 3);
    let first_id = described["topic_id"].clone();
    assert_eq!(host.json(&["topic", "list"])["topics"][0]["name"], "events");
    host.text_with_input(&["produce", "events"], b"old\n");

    assert_eq!(host.text(&["topic", "delete", "events"]), "deleted topic events\n");
    let (code, said) = host.fails(&["topic", "delete", "events"]);
    assert_eq!((code, said.as_str()), (1, "error: there is no topic \"events\": UNKNOWN_TOPIC_OR_PARTITION (3)\n"));
    for arguments in [["topic", "describe", "events"].as_slice(), &["produce", "events"], &["consume", "events"]] {
        let (code, said) = host.fails(arguments);
        assert_eq!((code, said.as_str()), (1, "error: there is no topic events\n"));
    }

    // T17: the same name again is another topic.
    host.text(&["topic", "create", "events"]);
    assert_ne!(host.json(&["topic", "describe", "events"])["topic_id"], first_id);
    assert_eq!(host.text(&["consume", "events"]), "");
}

/// The first offset and the bytes of a topic's only partition.
fn start_and_size(host: &Host, topic: &str) -> (u64, u64) {
    let partition = &host.json(&["topic", "describe", topic])["partitions"][0];
    (partition["log_start"].as_u64().unwrap(), partition["size_bytes"].as_u64().unwrap())
}

fn await_size(host: &Host, topic: &str, bytes_max: u64) -> (u64, u64) {
    let began = Instant::now();
    loop {
        let (start, bytes) = start_and_size(host, topic);
        if bytes <= bytes_max {
            return (start, bytes);
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{topic} has {bytes} bytes from {start} on");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn bytes_below(path: &Path) -> u64 {
    let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
    let bytes = entries.map(|entry| match entry.metadata().unwrap() {
        metadata if metadata.is_dir() => bytes_below(&entry.path()),
        metadata => metadata.len(),
    });
    bytes.sum()
}

#[test]
fn a_topic_keeps_what_its_retention_says() {
    let scratch = Scratch::new();
    let data = scratch.join("data");
    let host = Host::start(&data);
    let (code, said) = host.fails(&["topic", "create", "x", "--config", "retention.ms=-2"]);
    assert!(code == 1 && said.contains("retention.ms=-2: must be from -1 to "), "{said}");
    let by_size = ["topic", "create", "by-size", "--config", "segment.bytes=1048576", "--config", "retention.bytes=2097152"];
    host.text(&by_size);
    let input = lines(0..600_000);
    host.text_with_input(&["produce", "by-size", "--compression", "none"], input.as_bytes());
    let (start, bytes) = await_size(&host, "by-size", 3 << 20);
    assert!(start > 100_000 && bytes >= 2 << 20, "{start} {bytes}");
    let kept = host.text(&["consume", "by-size"]);
    assert!(input.ends_with(&kept) && kept.lines().count() == 600_000 - usize::try_from(start).unwrap());

    host.text(&["topic", "create", "by-age", "--config", "retention.ms=1000"]);
    host.text_with_input(&["produce", "by-age"], lines(0..1000).as_bytes());
    assert_eq!(await_size(&host, "by-age", 0), (1000, 0));
    assert_eq!(host.text(&["consume", "by-age"]), "");

    host.kill();
    let host = Host::start(&data);
    assert_eq!(start_and_size(&host, "by-size"), (start, bytes));
    assert_eq!(host.text(&["consume", "by-size"]), kept);
    assert_eq!(start_and_size(&host, "by-age"), (1000, 0));
    host.text_with_input(&["produce", "by-age"], b"after\n");
    assert_eq!(host.text(&["consume", "by-age"]), "after\n");
    let began = Instant::now();
    while bytes_below(&data.join("topics")) > 8 << 20 {
        assert!(began.elapsed() < Duration::from_secs(20), "{} bytes are left", bytes_below(&data.join("topics")));
    }
}

#[test]
fn changed_settings_act_at_once_and_stay() {
    let scratch = Scratch::new();
    let data = scratch.join("data");
    let host = Host::start(&data);
    host.text(&["topic", "create", "t", "--config", "segment.bytes=1048576", "--config", "max.message.bytes=2000000"]);
    host.text_with_input(&["produce", "t", "--compression", "none"], lines(0..300_000).as_bytes());
    let configs = |host: &Host| host.json(&["topic", "describe", "t"])["configs"].clone();
    let before = configs(&host);
    let (code, said) = host.fails(&["topic", "alter", "t"]);
    assert!(code == 2 && said.contains("--reset"), "{code} {said}");
    let (_, said) = host.fails(&["topic", "alter", "u", "--reset", "retention.ms"]);
    assert_eq!(said, "error: there is no topic \"u\": UNKNOWN_TOPIC_OR_PARTITION (3)\n");
    for (arguments, expected) in [
        (["--config", "retention.bytes=1", "--config", "retention.mss=1"], "did you mean retention.ms?"),
        (["--config", "retention.bytes=1", "--config", "min.insync.replicas=2"], "can't be met"),
        (["--config", "retention.bytes=1", "--config", "retention.bytes=2"], "retention.bytes is given twice"),
        (["--config", "retention.bytes=1", "--reset", "segment.byte"], "did you mean segment.bytes?"),
    ] {
        let (code, said) = host.fails(&[&["topic", "alter", "t"][..], &arguments].concat());
        assert!(code == 1 && said.contains(expected), "{said}");
        assert_eq!(configs(&host), before, "all or none");
    }
    let alter = ["topic", "alter", "t", "--config", "retention.bytes=1048576", "--reset", "max.message.bytes"];
    assert_eq!(host.text(&alter), "altered topic t\n");
    let changed = serde_json::json!({ "retention.bytes": "1048576", "segment.bytes": "1048576" });
    assert_eq!(configs(&host), changed);
    let (start, bytes) = await_size(&host, "t", 2 << 20);
    assert!(start > 0 && bytes >= 1 << 20, "{start} {bytes}");
    host.kill();
    let host = Host::start(&data);
    assert_eq!(configs(&host), changed);
    host.text(&["topic", "alter", "t", "--config", "retention.ms=0"]);
    assert_eq!(await_size(&host, "t", 0), (300_000, 0));
}

#[test]
fn records_come_back_as_they_were_sent() {
    let scratch = Scratch::new();
    let host = Host::start(&scratch.join("data"));
    for (codec, acks) in [("none", "all"), ("gzip", "1"), ("snappy", "all"), ("lz4", "all"), ("zstd", "all"), ("lz4", "0")] {
        let topic = format!("{codec}-{acks}");
        host.text(&["topic", "create", &topic]);
        let input = lines(0..5000);
        let said = host.text_with_input(&["produce", &topic, "--compression", codec, "--acks", acks, "--json"], input.as_bytes());
        let summary: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&summary["sent"], &summary["delivered"]), (&5000.into(), &5000.into()), "{said}");
        if acks == "0" {
            let began = Instant::now();
            while host.json(&["topic", "describe", &topic])["records"] != 5000 && began.elapsed() < Duration::from_secs(10) {}
        } else {
            assert_eq!(summary["partitions"][0]["last_offset"], 4999);
        }
        assert_eq!(host.text(&["consume", &topic]), input, "{topic}");
    }
    let topic = "zstd-all";
    assert_eq!(host.text(&["consume", topic, "--from", "4998"]), "line 4998\nline 4999\n");
    assert_eq!(host.text(&["consume", topic, "--from", "17", "--count", "1"]), "line 17\n");
    assert_eq!(host.text(&["consume", topic, "--from", "end"]), "");
    assert_eq!(host.text(&["consume", topic, "--from", "1h", "--count", "1"]), "line 0\n");
    assert_eq!(host.text(&["consume", topic, "--from", "2100-01-01T00:00:00Z"]), "");
    let (code, said) = host.fails(&["consume", topic, "--partition", "1"]);
    assert!(code == 1 && said.contains("has no partition 1"), "{said}");
    let (code, said) = host.fails(&["consume", topic, "--from", "-1"]);
    assert!(code == 2 && said.contains("below zero"), "{said}");
    let (code, said) = host.fails(&["produce", topic, "--linger", "soon"]);
    assert!(code == 2 && said.contains("is not a duration"), "{said}");
}

#[test]
fn keys_choose_partitions_and_come_back() {
    let scratch = Scratch::new();
    let host = Host::start(&scratch.join("data"));
    host.text(&["topic", "create", "keyed", "--partitions", "8"]);
    let input: String = (0..400).map(|n| format!("key{}:value {n}\n", n % 40)).collect();
    host.text_with_input(&["produce", "keyed", "--key-separator", ":"], input.as_bytes());
    let mut partition_of = std::collections::BTreeMap::new();
    let mut last = std::collections::BTreeMap::new();
    for line in host.text(&["consume", "keyed", "--format", "json"]).lines() {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        let key = record["key"].as_str().unwrap().to_owned();
        let partition = record["partition"].as_u64().unwrap();
        assert_eq!(*partition_of.entry(key.clone()).or_insert(partition), partition);
        let number: i64 = record["value"].as_str().unwrap().strip_prefix("value ").unwrap().parse().unwrap();
        assert!(last.insert(key, number).is_none_or(|before| before < number), "order per key");
    }
    assert_eq!(partition_of.len(), 40);
    let (code, said) = host.fails(&["produce", "keyed", "--key-separator", ":", "--file", "/nonexistent"]);
    assert!(code == 1 && said.contains("/nonexistent"), "{said}");
    let output = host.run_with_input(&["produce", "keyed", "--key-separator", "|"], b"a|b\nno separator\n");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("line 2"), "{output:?}");
}

#[test]
fn a_consumer_follows_what_is_produced() {
    let scratch = Scratch::new();
    let host = Host::start(&scratch.join("data"));
    host.text(&["topic", "create", "tail"]);
    let follower = corelane()
        .args(["consume", "tail", "--follow", "--count", "3", "--server", &host.address()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    for line in ["one\n", "two\n", "three\n"] {
        host.text_with_input(&["produce", "tail", "--linger", "0s"], line.as_bytes());
    }
    let output = follower.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"one\ntwo\nthree\n");
}

#[test]
fn a_stop_is_quick_and_clean_and_a_restart_has_everything() {
    let scratch = Scratch::new();
    let data = scratch.join("data");
    let host = Host::start(&data);
    host.text(&["topic", "create", "kept", "--partitions", "2"]);
    host.text(&["topic", "create", "unflushed", "--config", "durability=written"]);
    host.text_with_input(&["produce", "kept", "--partition", "1"], lines(0..1000).as_bytes());
    host.text_with_input(&["produce", "unflushed"], lines(0..1000).as_bytes());
    // A consumer that waits must not hold the stop.
    let mut follower =
        corelane().args(["consume", "kept", "--follow", "--server", &host.address()]).stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let (took, code, log) = host.stop();
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(code, 0);
    assert!(log.contains("everything is on stable storage"), "{log}");
    let _ = follower.kill();
    let _ = follower.wait();
    assert!(data.join("clean-stop").exists());

    let host = Host::start(&data);
    assert!(!data.join("clean-stop").exists());
    assert_eq!(host.ready["broker_epoch"], 2);
    assert_eq!(host.ready["partitions"], 3);
    assert_eq!(host.text(&["consume", "kept"]), lines(0..1000));
    assert_eq!(host.text(&["consume", "unflushed"]), lines(0..1000));
    host.text_with_input(&["produce", "kept", "--partition", "1"], lines(1000..1100).as_bytes());
    assert_eq!(host.text(&["consume", "kept"]), lines(0..1100));
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    let scratch = Scratch::new();
    let data = scratch.join("data");
    let mut host = Host::start(&data);
    host.text(&["topic", "create", "survivors"]);
    let mut sent = 0;
    for round in 0..4 {
        let mut producer = corelane()
            .args(["produce", "survivors", "--linger", "0s", "--compression", "none", "--json", "--server", &host.address()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = producer.stdin.take().unwrap();
        let first = sent;
        let writer = std::thread::spawn(move || {
            let mut next = first;
            while input.write_all(format!("line {next}\n").as_bytes()).is_ok() && next < first + 200_000 {
                next += 1;
            }
        });
        std::thread::sleep(Duration::from_millis(150 + 100 * round));
        host.kill();
        // The producer gives up or is stopped; what it says was delivered must be there.
        std::thread::sleep(Duration::from_millis(100));
        let _ = producer.kill();
        let _ = producer.wait();
        writer.join().unwrap();
        host = Host::start(&data);
        let there = host.text(&["consume", "survivors"]);
        let count = u32::try_from(there.lines().count()).unwrap();
        assert_eq!(there, lines(0..count), "round {round}");
        assert!(count >= sent, "round {round}: {count} of {sent} that were there before");
        sent = count;
        let said = host.text_with_input(&["produce", "survivors", "--json"], lines(sent..sent + 50).as_bytes());
        assert!(said.contains("\"delivered\":50"), "{said}");
        sent += 50;
        host.kill();
        host = Host::start(&data);
        assert_eq!(host.text(&["consume", "survivors"]), lines(0..sent), "round {round}");
    }
    assert_eq!(host.ready["broker_epoch"], 9);
}

#[test]
fn a_directory_in_use_names_its_holder() {
    let scratch = Scratch::new();
    let data = scratch.join("data");
    let host = Host::start(&data);
    let (code, said) = start_fails(&["--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0", "--memory", "64MiB"]);
    assert_eq!(code, 5);
    assert!(said.contains("is in use") && said.contains(&format!("process {}", host.ready["pid"])), "{said}");
    let listen = host.address();
    let other = scratch.join("other");
    let (code, said) = start_fails(&["--data", other.to_str().unwrap(), "--listen", &listen, "--memory", "64MiB"]);
    assert_eq!(code, 1);
    assert!(said.contains(&listen) && said.contains("in use"), "{said}");
}

#[test]
fn a_foreign_or_newer_directory_is_refused_by_name() {
    let scratch = Scratch::new();
    let foreign = scratch.join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("holiday.jpg"), b"beach").unwrap();
    let start = |data: &Path, more: &[&str]| {
        let data = data.to_str().unwrap();
        start_fails(&[&["--data", data, "--listen", "127.0.0.1:0", "--memory", "64MiB"], more].concat())
    };
    let (code, said) = start(&foreign, &[]);
    assert_eq!(code, 5);
    assert!(said.contains("is not a Corelane data directory") && said.contains("holiday.jpg"), "{said}");
    assert_eq!(std::fs::read(foreign.join("holiday.jpg")).unwrap(), b"beach");

    let data = scratch.join("data");
    Host::start(&data).stop();
    let (code, said) = start(&data, &["--host-id", "7"]);
    assert_eq!(code, 5);
    assert!(said.contains("belongs to host 1, this is host 7"), "{said}");

    let superblock = std::fs::read(data.join("superblock")).unwrap();
    let mut newer = superblock.clone();
    newer[4..6].copy_from_slice(&2_u16.to_le_bytes());
    std::fs::write(data.join("superblock"), newer).unwrap();
    let (code, said) = start(&data, &[]);
    assert_eq!(code, 5);
    assert!(said.contains("format 2 was written by a newer Corelane"), "{said}");

    let mut damaged = superblock;
    damaged[20] ^= 1;
    std::fs::write(data.join("superblock"), damaged).unwrap();
    let (code, said) = start(&data, &[]);
    assert_eq!(code, 5);
    assert!(said.contains("damaged"), "{said}");

    // Logs without the metadata log that says what they are.
    let second = scratch.join("second");
    let host = Host::start(&second);
    host.text(&["topic", "create", "t"]);
    host.stop();
    std::fs::remove_dir_all(second.join("topics/00000000000000000000000000000001")).unwrap();
    let (code, said) = start(&second, &[]);
    assert_eq!(code, 5);
    assert!(said.contains("none of the data directories holds the metadata log"), "{said}");
}

/// A start on these directories that must fail; gives exit code and standard error.
fn start_on_fails(directories: &[&Path], more: &[&str]) -> (i32, String) {
    let mut arguments = vec!["--listen", "127.0.0.1:0", "--memory", "64MiB"];
    for directory in directories {
        arguments.extend(["--data", directory.to_str().unwrap()]);
    }
    start_fails(&[&arguments, more].concat())
}

#[test]
fn a_host_without_its_metadata_log_is_not_begun_anew() {
    let scratch = Scratch::new();
    let (one, two, three) = (scratch.join("one"), scratch.join("two"), scratch.join("three"));
    let host = Host::start_with(&one, &["--data", two.to_str().unwrap()]);
    let cluster = host.ready["cluster_id"].clone();
    let log = host.kill();
    assert_eq!(log.matches("a new host is made in this directory").count(), 2, "{log}");
    assert!(log.contains("data_must_exist refuses such a start"), "{log}");

    // `one` isn't mounted, and nothing but the start has marked `two`: it has no log, and the host was killed.
    assert_eq!(std::fs::read_dir(two.join("topics")).unwrap().count(), 0);
    std::fs::rename(&one, scratch.join("elsewhere")).unwrap();
    let (code, said) = start_on_fails(&[&two], &[]);
    assert!(
        code == 5
            && said.contains(&format!("host 1 of cluster {} has run on {} before:", cluster.as_str().unwrap(), two.display()))
    );
    std::fs::create_dir(&one).unwrap();
    for _ in 0..2 {
        let (code, said) = start_on_fails(&[&one, &two, &three], &[]);
        assert_eq!(code, 5);
        assert!(
            said.contains("none of the data directories holds the metadata log (topics/00000000000000000000000000000001)"),
            "{said}"
        );
        let new = format!("(with nothing of a host in it: {}, {})", one.display(), three.display());
        assert!(said.contains(&new) && said.contains("mount the drive, or add the --data directory"), "{said}");
    }
    assert!(std::fs::read_dir(&one).unwrap().next().is_none() && !three.exists(), "a start that is refused makes nothing");

    std::fs::remove_dir(&one).unwrap();
    std::fs::rename(scratch.join("elsewhere"), &one).unwrap();
    let host = Host::start_with(&three, &["--data", two.to_str().unwrap(), "--data", one.to_str().unwrap()]);
    assert_eq!((&host.ready["cluster_id"], &host.ready["broker_epoch"]), (&cluster, &2.into()));
    let log = host.kill();
    assert_eq!(log.matches("a new directory joins this host").count(), 1, "{log}");
    let (code, said) = start_on_fails(&[&three], &[]);
    assert!(code == 5 && said.contains("holds the metadata log"), "a directory that has joined is marked too: {said}");
}

#[test]
fn a_directory_and_its_copy_are_not_taken_together() {
    let scratch = Scratch::new();
    let (one, two, copy) = (scratch.join("one"), scratch.join("two"), scratch.join("copy"));
    let host = Host::start_with(&one, &["--data", two.to_str().unwrap()]);
    host.text(&["topic", "create", "kept", "--partitions", "2"]);
    host.stop();
    // With the metadata log, and without.
    for original in [&one, &two] {
        copy_directory(original, &copy);
        let (code, said) = start_on_fails(&[&one, &two, &copy], &[]);
        assert_eq!(code, 5);
        let both = format!("{} and {} are both directory ", original.display(), copy.display());
        assert!(said.contains(&both) && said.contains("one is a copy of the other"), "{said}");
        std::fs::remove_dir_all(&copy).unwrap();
    }
    copy_directory(&two, &copy);
    let host = Host::start_with(&one, &["--data", copy.to_str().unwrap()]);
    assert_eq!(host.ready["partitions_out_of_service"], 0, "either of the two can be given");
}

fn copy_directory(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_directory(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn a_first_start_that_was_cut_short_can_be_made_again() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.join("one"), scratch.join("two"));
    Host::start_with(&one, &["--data", two.to_str().unwrap()]).kill();
    // As a crash leaves them before the metadata log has a segment.
    for data in [&one, &two] {
        for entry in std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap()) {
            if entry.file_name().to_str().unwrap().starts_with("checkpoint-") {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
    }
    for entry in std::fs::read_dir(one.join("topics/00000000000000000000000000000001/0")).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let host = Host::start_with(&one, &["--data", two.to_str().unwrap()]);
    assert_eq!(host.ready["broker_epoch"], 1);
}

#[test]
fn no_host_is_made_where_the_data_must_exist() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.join("one"), scratch.join("two"));
    std::fs::create_dir(&one).unwrap();
    let (code, said) = start_on_fails(&[&one], &["--data-must-exist"]);
    assert!(
        code == 5 && said.contains(&format!("{} holds nothing of a host", one.display())) && said.contains("mount its drive"),
        "{said}"
    );
    assert!(std::fs::read_dir(&one).unwrap().next().is_none());
    Host::start(&one).stop();
    Host::start_with(&one, &["--data-must-exist"]).stop();
    // A drive that joins may not be new either: the one that is not mounted looks the same.
    let (code, said) = start_on_fails(&[&one, &two], &["--data-must-exist"]);
    assert!(code == 5 && said.contains(&format!("{} holds nothing of a host", two.display())) && !two.exists(), "{said}");
}

#[test]
fn settings_come_from_flags_environment_and_file() {
    let scratch = Scratch::new();
    let file = scratch.join("corelane.toml");
    let data = scratch.join("data");
    std::fs::write(&file, format!("data = [{data:?}]\nlisten = \"127.0.0.1:0\"\nmemroy = \"64MiB\"\n")).unwrap();
    let (code, said) = start_fails(&["--config", file.to_str().unwrap()]);
    assert_eq!(code, 2);
    assert!(said.contains("corelane.toml:3:1: unknown key \"memroy\"; did you mean \"memory\"?"), "{said}");
    let (code, said) = start_fails(&["--listen", "127.0.0.1:0"]);
    assert!(code == 2 && said.contains("no data directory"), "{said}");
    let (code, said) = start_fails(&["--data", data.to_str().unwrap(), "--listen", "0.0.0.0:0"]);
    assert!(code == 2 && said.contains("--insecure"), "{said}");
    let (code, said) = start_fails(&["--data", data.to_str().unwrap(), "--memory", "1MiB"]);
    assert!(code == 2 && said.contains("memory is 1048576, allowed are 67108864"), "{said}");
    assert!(!data.exists(), "a start that is refused makes nothing");

    std::fs::write(&file, format!("data = [{data:?}]\nlisten = \"127.0.0.1:1\"\nmemory = \"64MiB\"\n")).unwrap();
    let mut child = corelane()
        .args(["start", "--json", "--config", file.to_str().unwrap()])
        .env("CORELANE_LISTEN", "127.0.0.1:0")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_ne!(ready["native_port"], 1, "the environment wins over the file");
}

#[test]
fn a_server_that_is_not_there_is_exit_code_3() {
    let output = corelane().args(["topic", "list", "--server", "127.0.0.1:1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("127.0.0.1:1 can't be reached"), "{output:?}");
    let output = corelane().args(["topic", "list", "--server", "nonsense"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn several_data_directories_share_the_partitions() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.join("one"), scratch.join("two"));
    let host = Host::start_with(&one, &["--data", two.to_str().unwrap()]);
    host.text(&["topic", "create", "spread", "--partitions", "6"]);
    host.text_with_input(&["produce", "spread"], lines(0..600).as_bytes());
    let id = host.json(&["topic", "describe", "spread"])["topic_id"].as_str().unwrap().to_owned();
    for data in [&one, &two] {
        assert_eq!(std::fs::read_dir(data.join("topics").join(&id)).unwrap().count(), 3);
    }
    host.stop();
    // A new drive, named first, joins; one that is missing is said.
    let three = scratch.join("three");
    let host = Host::start_with(&three, &["--data", one.to_str().unwrap(), "--data", two.to_str().unwrap()]);
    assert_eq!(host.text(&["consume", "spread"]).lines().count(), 600);
    host.stop();
    let host = Host::start(&one);
    assert_eq!(host.ready["partitions_out_of_service"], 3);
    let log = host.kill();
    assert!(log.contains("is a --data missing?"), "{log}");
}

#[test]
fn logs_are_read_offline_and_damage_is_named_by_its_byte() {
    let scratch = Scratch::new();
    let data = scratch.join("data");
    let host = Host::start(&data);
    host.text(&["topic", "create", "t"]);
    for n in 0..5 {
        host.text_with_input(&["produce", "t", "--compression", "none"], lines(n * 10..n * 10 + 10).as_bytes());
    }
    let id = host.json(&["topic", "describe", "t"])["topic_id"].as_str().unwrap().to_owned();
    host.stop();
    let log = data.join("topics").join(id).join("0");
    let run = |word: &str, json: &[&str]| {
        let output = corelane().args(["log", word]).arg(&log).args(json).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, said) = run("verify", &[]);
    assert!(code == 0 && said.contains("5 batches, 50 records (offsets 0 to 50, exclusive)"), "{said}");
    let (_, said) = run("dump", &["--json"]);
    let batches: Vec<serde_json::Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|item: &serde_json::Value| item["item"] == "batch")
        .collect();
    assert_eq!(batches.len(), 5);
    let third = &batches[2];
    assert_eq!((&third["base_offset"], &third["crc_is_good"]), (&20.into(), &true.into()));

    // One bit of the third batch, which a clean stop vouches for: said with its byte, offline and by the next start, which doesn't
    // cut acknowledged records but takes the partition out of service.
    let position = third["position"].as_u64().unwrap();
    let file = log.join("00000000000000000000.log");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[usize::try_from(position).unwrap() + 70] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let (_, said) = run("verify", &[]);
    assert!(said.contains(&format!("byte {position}")), "{said}");
    let host = Host::start(&data);
    assert_eq!(host.ready["partitions_out_of_service"], 1);
    let (code, said) = host.fails(&["consume", "t"]);
    assert!(code == 1 && said.contains("KAFKA_STORAGE_ERROR"), "{code} {said}");
    let log = host.kill();
    assert!(log.contains("is damaged at byte") && log.contains("out of service"), "{log}");
    let output = corelane().args(["log", "verify", "/nonexistent"]).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
}

#[test]
fn a_start_that_could_have_no_successor_is_refused_with_its_number() {
    let scratch = Scratch::new();
    let data = scratch.join("data");
    Host::start(&data).stop();
    let log = data.join("topics/00000000000000000000000000000001/0");
    let output = corelane().args(["log", "dump", "--json"]).arg(&log).output().unwrap();
    let items = String::from_utf8(output.stdout).unwrap();
    let mut items = items.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let last = items.rfind(|item| item["item"] == "batch").unwrap();
    let number = |name: &str| last[name].as_i64().unwrap();
    // A record of the metadata log as no host writes it, where the log goes on.
    let value = MetadataRecord::HostStarted { host: HostId(1), broker_epoch: BrokerEpoch(i64::MAX) }.encode();
    let mut builder = BatchBuilder::new(Codec::None);
    let record = RecordFields { timestamp: Timestamp(1), key: None, value: Some(&value), headers: &[] };
    builder.push(&record).unwrap();
    let mut batch = builder.finish().unwrap();
    let offset = Offset(number("last_offset") + 1);
    stamp(&mut batch, offset, LeaderEpoch(i32::try_from(number("leader_epoch")).unwrap()));
    let file = std::fs::File::options().write(true).open(log.join("00000000000000000000.log")).unwrap();
    let position = u64::try_from(number("position") + number("bytes")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &batch, position).unwrap();
    let (code, said) = start_on_fails(&[&data], &[]);
    assert_eq!(code, 1);
    let expected =
        format!("the metadata log, offset {offset}: host 1 starts with broker epoch {}, and none can follow", i64::MAX);
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn doctor_speaks_to_people_and_programs() {
    let scratch = Scratch::new();
    let data = scratch.join("data");
    let output =
        corelane().args(["doctor", "--json", "--no-measure", "--memory", "64MiB", "--data"]).arg(&data).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.success(), report["worst"] != "failure", "{report}");
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().all(|finding| finding["level"] == "good" || finding["remedy"].is_string()), "{report}");
    assert!(!data.exists(), "looking makes nothing");
    let output = corelane().args(["doctor", "--no-measure"]).output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("warnings"));
}
