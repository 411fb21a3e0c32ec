//! A real host of several cores: any core serves any partition, and starts with other numbers of cores lose nothing.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests run a process in real time")]

mod support;

use std::collections::BTreeMap;

use protocol::batch::{BatchBuilder, BatchView, RecordFields};
use protocol::compression::Codec;
use protocol::error::ErrorCode;
use protocol::ids::{LeaderEpoch, Offset, PartitionIndex, Timestamp, TopicId};
use protocol::native::{
    DeleteBefore, DeleteRecordsPartition, DeleteRecordsReply, DeleteRecordsRequest, FetchPartition, FetchReply, FetchRequest,
    IsolationLevel, Kind, ListOffsetsPartition, ListOffsetsReply, ListOffsetsRequest, OffsetSpec, ProduceBatch, ProduceReply,
    ProduceRequest,
};
use support::{Host, Raw, Scratch, start_fails};

const PARTITIONS: u32 = 6;

fn start(scratch: &Scratch, cores: &str) -> Host {
    Host::start_with(&scratch.join("data"), &["--cores", cores, "--core-port", "0", "--memory", "320MiB"])
}

fn topic(host: &Host) -> TopicId {
    host.json(&["topic", "describe", "t"])["topic_id"].as_str().unwrap().parse().unwrap()
}

/// Partitions of each core.
fn spread(host: &Host) -> BTreeMap<u64, usize> {
    let mut spread = BTreeMap::new();
    for partition in host.json(&["topic", "describe", "t"])["partitions"].as_array().unwrap() {
        *spread.entry(partition["core"].as_u64().unwrap()).or_insert(0) += 1;
    }
    spread
}

fn batch(value: &str) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None);
    builder.push(&RecordFields { timestamp: Timestamp(5), key: None, value: Some(value.as_bytes()), headers: &[] }).unwrap();
    builder.finish().unwrap()
}

/// Sends one record to each of these partitions, in one request.
fn send(raw: &mut Raw, topic_id: TopicId, acks: i8, partitions: &[u32], value: &str) {
    let batch = batch(value);
    let bytes = u32::try_from(batch.len()).unwrap();
    let batches = partitions.iter().map(|index| ProduceBatch { topic_id, partition: PartitionIndex(*index), bytes }).collect();
    let request = ProduceRequest { acks, timeout_ms: 10_000, batches };
    raw.send(Kind::Produce, 1, &request.encode_body(), &batch.repeat(partitions.len()));
}

fn produce(raw: &mut Raw, topic_id: TopicId, value: &str) {
    send(raw, topic_id, -1, &Vec::from_iter(0..PARTITIONS), value);
    let (header, body, _) = raw.reply().unwrap();
    assert!(!header.is_error());
    let results = ProduceReply::decode_body(&body).unwrap().results;
    assert!(results.iter().all(|result| result.error == ErrorCode::None), "{results:?}");
}

/// All values of each partition, fetched in requests of all partitions.
fn all_values(raw: &mut Raw, topic_id: TopicId) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new(); 6];
    loop {
        let offsets: Vec<i64> = all.iter().map(|values| i64::try_from(values.len()).unwrap()).collect();
        let more = values(raw, topic_id, 0, &offsets);
        if more.iter().all(Vec::is_empty) {
            return all;
        }
        for (values, more) in all.iter_mut().zip(more) {
            values.extend(more);
        }
    }
}

/// The values of each partition from its offset on, fetched in one request.
fn values(raw: &mut Raw, topic_id: TopicId, min_bytes: u32, offsets: &[i64]) -> Vec<Vec<String>> {
    let partition = |index: u32| FetchPartition {
        topic_id,
        partition: PartitionIndex(index),
        offset: Offset(offsets[usize::try_from(index).unwrap()]),
        max_bytes: 1 << 20,
        current_leader_epoch: LeaderEpoch(-1),
    };
    let request = FetchRequest {
        max_wait_ms: 20_000,
        min_bytes,
        max_bytes: 1 << 20,
        isolation: IsolationLevel::ReadUncommitted,
        partitions: (0..PARTITIONS).map(partition).collect(),
    };
    raw.send(Kind::Fetch, 2, &request.encode_body(), b"");
    let (header, body, payload) = raw.reply().unwrap();
    assert!(!header.is_error());
    let reply = FetchReply::decode_body(&body).unwrap();
    let mut rest = payload.as_slice();
    let mut all = Vec::new();
    for partition in &reply.partitions {
        assert_eq!(partition.error, ErrorCode::None);
        let (mut mine, others) = rest.split_at(usize::try_from(partition.bytes).unwrap());
        rest = others;
        let mut values = Vec::new();
        while !mine.is_empty() {
            let (batch, behind) = BatchView::split(mine).unwrap();
            let texts =
                batch.records().unwrap().map(|record| String::from_utf8(record.unwrap().value.unwrap().to_vec()).unwrap());
            values.extend(texts);
            mine = behind;
        }
        all.push(values);
    }
    assert!(rest.is_empty());
    all
}

fn latest(raw: &mut Raw, topic_id: TopicId) -> Vec<i64> {
    let ask = |index| ListOffsetsPartition { topic_id, partition: PartitionIndex(index), at: OffsetSpec::Latest };
    let request = ListOffsetsRequest { partitions: (0..PARTITIONS).map(ask).collect() };
    raw.send(Kind::ListOffsets, 3, &request.encode_body(), b"");
    let (_, body, _) = raw.reply().unwrap();
    ListOffsetsReply::decode_body(&body).unwrap().partitions.iter().map(|partition| partition.offset.0).collect()
}

#[test]
fn any_core_serves_any_partition() {
    let scratch = Scratch::new();
    let host = start(&scratch, "3");
    host.text(&["topic", "create", "t", "--partitions", "6"]);
    assert_eq!(spread(&host), BTreeMap::from([(0, 2), (1, 2), (2, 2)]));
    let id = topic(&host);
    let mut expected = Vec::new();
    for (core, address) in host.core_addresses().iter().enumerate() {
        let mut raw = Raw::greeted_at(address);
        for turn in 0..20 {
            expected.push(format!("core {core}, turn {turn}"));
            produce(&mut raw, id, expected.last().unwrap());
        }
        assert_eq!(all_values(&mut raw, id), vec![expected.clone(); 6]);
        assert_eq!(latest(&mut raw, id), [i64::try_from(expected.len()).unwrap(); 6]);
        // Topics made through one core are there through all.
        let made = format!("made-through-{core}");
        host.run(&["topic", "create", &made]);
    }
    for address in host.core_addresses() {
        let output = support::corelane().args(["topic", "list", "--json", "--server", &address]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.matches("made-through-").count(), 3, "{text}");
    }
    // Through the command line, whose client goes to the owners.
    let lines: String = (0..2000).map(|n| format!("line {n}\n")).collect();
    host.text(&["topic", "create", "lines", "--partitions", "5"]);
    host.text_with_input(&["produce", "lines"], lines.as_bytes());
    let mut read: Vec<String> = host.text(&["consume", "lines"]).lines().map(str::to_owned).collect();
    read.sort_by_key(|line| line[5..].parse::<u32>().unwrap());
    assert_eq!(read.join("\n") + "\n", lines);
    host.text(&["topic", "delete", "t"]);
    let (took, code, log) = host.stop();
    assert!(code == 0 && took.as_secs() < 10, "{code} {took:?} {log}");
}

#[test]
fn records_are_deleted_through_any_core_and_stay_so() {
    let scratch = Scratch::new();
    let host = start(&scratch, "3");
    host.text(&["topic", "create", "t", "--partitions", "6"]);
    let id = topic(&host);
    let mut raw = Raw::greeted_at(&host.core_addresses()[1]);
    for turn in 0..10 {
        produce(&mut raw, id, &format!("turn {turn}"));
    }
    let starts = |raw: &mut Raw, before: [i64; 6]| {
        let ask = |(index, before)| DeleteRecordsPartition {
            topic_id: id,
            partition: PartitionIndex(index),
            before: if before < 0 { DeleteBefore::HighWatermark } else { DeleteBefore::Offset(Offset(before)) },
        };
        let request = DeleteRecordsRequest { partitions: (0..).zip(before).map(ask).collect(), timeout_ms: 20_000 };
        raw.send(Kind::DeleteRecords, 4, &request.encode_body(), b"");
        let (header, body, _) = raw.reply().unwrap();
        assert!(!header.is_error());
        let reply = DeleteRecordsReply::decode_body(&body).unwrap();
        reply.partitions.iter().map(|partition| (partition.error, partition.log_start.0)).collect::<Vec<_>>()
    };
    let refused = (ErrorCode::OffsetOutOfRange, -1);
    let expected = [(ErrorCode::None, 0), (ErrorCode::None, 5), (ErrorCode::None, 10), refused, (ErrorCode::None, 10), refused];
    for address in host.core_addresses() {
        assert_eq!(starts(&mut Raw::greeted_at(&address), [0, 5, 10, 11, -1, i64::MAX]), expected);
    }
    let of_all = host.json(&["topic", "delete-records", "t", "--before", "7", "--partition", "0", "--partition", "4"]);
    assert_eq!(of_all["partitions"][0]["log_start"], 7);
    assert_eq!(of_all["partitions"][1]["log_start"], 10, "nothing comes back");
    let (code, said) = host.fails(&["topic", "delete-records", "t", "--before", "11"]);
    assert!(code == 1 && said.contains("t/0 before offset 11") && said.contains("OFFSET_OUT_OF_RANGE"), "{code} {said}");
    let (code, said) = host.fails(&["topic", "delete-records", "t", "--before", "-3"]);
    assert!(code == 2 && said.contains("-3"), "{code} {said}");
    let (code, said) = host.fails(&["topic", "delete-records", "t", "--before", "1", "--partition", "6"]);
    assert!(code == 1 && said.contains("6 isn't one of them"), "{code} {said}");
    host.kill();
    let host = start(&scratch, "2");
    let begins = host.json(&["topic", "describe", "t"]);
    let begins = begins["partitions"].as_array().unwrap().iter().map(|partition| partition["log_start"].as_i64().unwrap());
    assert_eq!(begins.collect::<Vec<_>>(), [7, 5, 10, 0, 10, 0]);
    assert!(host.text(&["topic", "delete-records", "t", "--before", "end"]).contains("10"));
    assert_eq!(host.text(&["consume", "t"]), "");
}

#[test]
fn a_fetch_waits_on_several_cores() {
    let scratch = Scratch::new();
    let host = start(&scratch, "2");
    host.text(&["topic", "create", "t", "--partitions", "6"]);
    let id = topic(&host);
    for address in host.core_addresses() {
        for partition in 0..PARTITIONS {
            let mut raw = Raw::greeted_at(&address);
            let ends = latest(&mut raw, id);
            let waiting = std::thread::spawn(move || values(&mut raw, id, 1, &ends));
            std::thread::sleep(std::time::Duration::from_millis(50));
            let mut other = Raw::greeted_at(&host.core_addresses()[0]);
            send(&mut other, id, -1, &[partition], "at last");
            other.reply().unwrap();
            let found = waiting.join().unwrap();
            assert_eq!(found[usize::try_from(partition).unwrap()], ["at last"]);
        }
    }
}

#[test]
fn t76_a_batch_without_acks_that_another_core_refuses_closes_the_connection() {
    let scratch = Scratch::new();
    let host = start(&scratch, "2");
    host.text(&["topic", "create", "t", "--partitions", "6", "--config", "max.message.bytes=1000"]);
    let id = topic(&host);
    let mut expected = 0;
    for address in host.core_addresses() {
        let mut raw = Raw::greeted_at(&address);
        for _ in 0..10 {
            send(&mut raw, id, 0, &Vec::from_iter(0..PARTITIONS), "kept");
        }
        // Nothing was refused: the connection goes on.
        let before = await_latest(&mut raw, id, &mut expected);
        for partition in 0..PARTITIONS {
            let mut raw = Raw::greeted_at(&address);
            send(&mut raw, id, 0, &[partition], &"x".repeat(2000));
            assert!(raw.is_closed(), "partition {partition}");
        }
        assert_eq!(latest(&mut raw, id), before);
    }
}

/// Waits until each partition has ten records more.
fn await_latest(raw: &mut Raw, topic_id: TopicId, expected: &mut i64) -> Vec<i64> {
    *expected += 10;
    let began = std::time::Instant::now();
    loop {
        let ends = latest(raw, topic_id);
        if ends == [*expected; 6] {
            return ends;
        }
        assert!(began.elapsed().as_secs() < 10, "{ends:?}, expected {expected}");
    }
}

#[test]
fn every_core_takes_changed_settings() {
    let scratch = Scratch::new();
    let host = start(&scratch, "3");
    host.text(&["topic", "create", "t", "--partitions", "6"]);
    let id = topic(&host);
    for (core, address) in host.core_addresses().iter().enumerate() {
        let bytes = (core + 1) * 1000;
        let setting = format!("max.message.bytes={bytes}");
        let output =
            support::corelane().args(["topic", "alter", "t", "--config", &setting, "--server", address]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        for other in host.core_addresses() {
            let mut raw = Raw::greeted_at(&other);
            for (length, expected) in [(bytes - 200, ErrorCode::None), (bytes + 1, ErrorCode::MessageTooLarge)] {
                send(&mut raw, id, -1, &Vec::from_iter(0..PARTITIONS), &"x".repeat(length));
                let results = ProduceReply::decode_body(&raw.reply().unwrap().1).unwrap().results;
                assert!(
                    results.iter().all(|result| result.error == expected),
                    "{length} of {bytes} through {other}: {results:?}"
                );
            }
        }
    }
}

/// The cores that have a checkpoint in the data directory.
fn checkpoints(scratch: &Scratch) -> Vec<usize> {
    let names = std::fs::read_dir(scratch.join("data")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_prefix("checkpoint-")?.split('.').next()?.parse().ok()).collect()
}

#[test]
fn starts_with_more_and_fewer_cores_lose_nothing() {
    let scratch = Scratch::new();
    let mut expected = Vec::new();
    for (start_number, cores) in ["1", "4", "2", "3", "1"].into_iter().enumerate() {
        let host = start(&scratch, cores);
        if start_number == 0 {
            host.text(&["topic", "create", "t", "--partitions", "6"]);
        }
        let id = topic(&host);
        let spread = spread(&host);
        let cores: usize = cores.parse().unwrap();
        assert_eq!(spread.len(), cores, "{spread:?}");
        assert!(checkpoints(&scratch).iter().all(|core| *core < cores), "{:?} with {cores} cores", checkpoints(&scratch));
        for address in host.core_addresses() {
            let mut raw = Raw::greeted_at(&address);
            assert_eq!(all_values(&mut raw, id), vec![expected.clone(); 6]);
            expected.push(format!("start {start_number}, {address}"));
            produce(&mut raw, id, expected.last().unwrap());
        }
        if start_number % 2 == 0 {
            host.kill();
        } else {
            let (_, code, log) = host.stop();
            assert_eq!(code, 0, "{log}");
        }
    }
}

#[test]
fn an_address_that_is_taken_is_named_and_no_core_is_left() {
    let scratch = Scratch::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let data = scratch.join("data");
    let base = ["--data", data.to_str().unwrap(), "--cores", "2", "--memory", "128MiB"];
    let (code, said) = start_fails(&[&base[..], &["--listen", &address, "--core-port", "0"]].concat());
    assert!(code == 1 && said.contains(&format!("can't listen on {address}")), "{code} {said}");
    let port = taken.local_addr().unwrap().port();
    for core_port in [port, port - 1] {
        let core_port = core_port.to_string();
        let (code, said) = start_fails(&[&base[..], &["--listen", "127.0.0.1:0", "--core-port", &core_port]].concat());
        assert!(code == 1 && said.contains(&format!("can't listen on 127.0.0.1:{port}")), "{code} {said}");
    }
    let host = Host::start_with(&data, &["--cores", "2", "--core-port", "0", "--memory", "128MiB"]);
    for cores in ["1", "2"] {
        let other = scratch.join("other");
        let other = ["--data", other.to_str().unwrap(), "--listen", &host.address(), "--core-port", "0"];
        let (code, said) = start_fails(&[&other[..], &["--cores", cores, "--memory", "128MiB"]].concat());
        assert!(code == 1 && said.contains(&host.address()), "{code} {said}");
    }
}
