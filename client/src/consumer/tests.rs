use std::time::Duration;

use super::*;
use crate::config::ClientConfig;
use crate::fake::{Answer, FakeServer, TOPIC};
use protocol::batch::{BatchBuilder, RecordFields};
use protocol::compression::Codec;
use protocol::error::ErrorCode;
use protocol::ids::Timestamp;
use protocol::native::Kind;

fn batch(codec: Codec, values: &[&str], timestamp: i64) -> Vec<u8> {
    let mut builder = BatchBuilder::new(codec);
    for value in values {
        let fields = RecordFields { timestamp: Timestamp(timestamp), key: None, value: Some(value.as_bytes()), headers: &[] };
        builder.push(&fields).unwrap();
    }
    builder.finish().unwrap()
}

async fn consumer(server: &FakeServer, config: ConsumerConfig) -> Consumer {
    let client_config = ClientConfig { request_timeout: Duration::from_millis(300), ..ClientConfig::default() };
    let client = Client::connect(&server.address, client_config).await.unwrap();
    Consumer::new(&client, config).unwrap()
}

fn quick() -> ConsumerConfig {
    ConsumerConfig { wait_max: Duration::from_millis(100), retry_backoff: Duration::from_millis(5), ..ConsumerConfig::default() }
}

async fn values(consumer: &mut Consumer, count: usize) -> Vec<String> {
    let mut values = Vec::new();
    for _ in 0..count {
        let record = consumer.next().await.unwrap();
        values.push(String::from_utf8(record.value.unwrap().to_vec()).unwrap());
    }
    values
}

const P0: PartitionIndex = PartitionIndex(0);

#[tokio::test]
async fn reads_every_codec_from_the_start() {
    let server = FakeServer::start(1).await;
    for codec in Codec::ALL {
        server.append(0, &batch(codec, &["a", "b"], 10));
    }
    let mut consumer = consumer(&server, quick()).await;
    consumer.assign_topic(TOPIC, Position::Start).await.unwrap();
    for offset in 0..10 {
        let record = consumer.next().await.unwrap();
        assert_eq!((record.offset, record.timestamp), (Offset(offset), Timestamp(10)));
        assert_eq!(consumer.position(TOPIC, P0), Some(Offset(offset + 1)));
    }
    assert_eq!(consumer.high_watermark(TOPIC, P0), Some(Offset(10)));
}

#[tokio::test]
async fn t30_an_offset_inside_a_batch_starts_at_that_record() {
    let server = FakeServer::start(1).await;
    server.append(0, &batch(Codec::Lz4, &["a", "b", "c", "d"], 10));
    let mut consumer = consumer(&server, quick()).await;
    consumer.assign(TOPIC, &[(P0, Position::Offset(Offset(2)))]).await.unwrap();
    assert_eq!(values(&mut consumer, 2).await, ["c", "d"]);
}

#[tokio::test]
async fn seeks_by_time_and_end() {
    let server = FakeServer::start(1).await;
    server.append(0, &batch(Codec::None, &["old"], 10));
    server.append(0, &batch(Codec::None, &["young"], 20));
    let mut consumer = consumer(&server, quick()).await;
    consumer.assign(TOPIC, &[(P0, Position::Time(Timestamp(15)))]).await.unwrap();
    assert_eq!(values(&mut consumer, 1).await, ["young"]);
    consumer.seek(TOPIC, P0, Position::Time(Timestamp(25))).unwrap();
    let waiting = tokio::time::timeout(Duration::from_millis(50), consumer.next()).await;
    assert!(waiting.is_err(), "no record is that young");
    server.append(0, &batch(Codec::None, &["new"], 30));
    assert_eq!(values(&mut consumer, 1).await, ["new"]);
    consumer.seek(TOPIC, P0, Position::Start).unwrap();
    assert_eq!(values(&mut consumer, 3).await, ["old", "young", "new"]);
}

#[tokio::test]
async fn a_seek_does_not_wait_for_the_poll_that_is_out() {
    let server = FakeServer::start(1).await;
    server.append(0, &batch(Codec::None, &["a"], 10));
    let mut consumer = consumer(&server, ConsumerConfig { wait_max: Duration::from_secs(60), ..quick() }).await;
    consumer.assign_topic(TOPIC, Position::End).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(50), consumer.next()).await.is_err());
    consumer.seek(TOPIC, P0, Position::Start).unwrap();
    let record = tokio::time::timeout(Duration::from_secs(5), consumer.next()).await.expect("at once").unwrap();
    assert_eq!(record.offset, Offset(0));
}

#[tokio::test]
async fn dropped_polls_lose_nothing() {
    let server = FakeServer::start(3).await;
    let mut consumer = consumer(&server, quick()).await;
    consumer.assign_topic(TOPIC, Position::Start).await.unwrap();
    let appending = server.clone();
    let task = tokio::spawn(async move {
        for number in 0..60 {
            appending.append(number % 3, &batch(Codec::Zstd, &["x", "y"], 10));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let mut next = [0; 3];
    let mut count = 0;
    while count < 120 {
        let Ok(record) = tokio::time::timeout(Duration::from_micros(200), consumer.next()).await else { continue };
        let record = record.unwrap();
        let expected = &mut next[usize::try_from(record.partition.0).unwrap()];
        assert_eq!(record.offset, Offset(*expected));
        *expected += 1;
        count += 1;
    }
    task.await.unwrap();
}

#[tokio::test]
async fn t35_a_damaged_batch_is_reported_and_can_be_passed_over() {
    let server = FakeServer::start(1).await;
    server.append(0, &batch(Codec::None, &["good"], 10));
    server.append(0, &batch(Codec::None, &["damaged"], 10));
    server.append(0, &batch(Codec::None, &["good again"], 10));
    {
        let mut world = server.world.lock().unwrap();
        let bytes = &mut world.logs[0].batches[1];
        // A bit of the value: nothing but the CRC can tell.
        let in_value = bytes.len() - 3;
        bytes[in_value] ^= 0x40;
    }
    let mut consumer = consumer(&server, quick()).await;
    consumer.assign_topic(TOPIC, Position::Start).await.unwrap();
    assert_eq!(values(&mut consumer, 1).await, ["good"]);
    let error = consumer.next().await.unwrap_err();
    assert!(matches!(error, ConsumeError::Corrupt { offset: Offset(1), .. }), "{error:?}");
    assert!(matches!(consumer.next().await, Err(ConsumeError::NothingAssigned)), "it rests until a seek");
    consumer.seek(TOPIC, P0, Position::Offset(Offset(2))).unwrap();
    assert_eq!(values(&mut consumer, 1).await, ["good again"]);
}

#[tokio::test]
async fn t81_what_decompresses_to_too_much_is_refused() {
    let server = FakeServer::start(1).await;
    let large = "z".repeat(100_000);
    server.append(0, &batch(Codec::Zstd, &[&large], 10));
    let mut consumer = consumer(&server, ConsumerConfig { decompressed_bytes_max: 50_000, ..quick() }).await;
    consumer.assign_topic(TOPIC, Position::Start).await.unwrap();
    let error = consumer.next().await.unwrap_err();
    assert!(matches!(&error, ConsumeError::Corrupt { reason, .. } if reason.contains("50000")), "{error:?}");
}

#[tokio::test]
async fn a_position_outside_of_the_log_is_reported_or_mended() {
    let server = FakeServer::start(1).await;
    server.append(0, &batch(Codec::None, &["a", "b"], 10));
    let place = [(P0, Position::Offset(Offset(50)))];
    let mut reporting = consumer(&server, quick()).await;
    reporting.assign(TOPIC, &place).await.unwrap();
    let error = reporting.next().await.unwrap_err();
    let expected = (Offset(50), Offset(0), Offset(2));
    assert!(
        matches!(error, ConsumeError::OffsetOutOfRange { asked, log_start, high_watermark, .. }
            if (asked, log_start, high_watermark) == expected),
        "{error:?}"
    );
    let mut mending = consumer(&server, ConsumerConfig { out_of_range: OutOfRange::Start, ..quick() }).await;
    mending.assign(TOPIC, &place).await.unwrap();
    assert_eq!(values(&mut mending, 2).await, ["a", "b"]);
}

#[tokio::test]
async fn passing_failures_are_retried_inside() {
    let server = FakeServer::start(1).await;
    server.append(0, &batch(Codec::None, &["a"], 10));
    server.script_fetch([
        Answer::Close,
        Answer::Refuse(ErrorCode::NotLeaderOrFollower),
        Answer::RefuseWhole(ErrorCode::BrokerNotAvailable),
        Answer::Refuse(ErrorCode::KafkaStorageError),
    ]);
    let mut consumer = consumer(&server, quick()).await;
    consumer.assign_topic(TOPIC, Position::Start).await.unwrap();
    assert_eq!(values(&mut consumer, 1).await, ["a"]);
}

#[tokio::test]
async fn silence_is_given_up_and_asked_again() {
    let server = FakeServer::start(1).await;
    server.append(0, &batch(Codec::None, &["a"], 10));
    server.script_fetch([Answer::Silence]);
    let mut consumer = consumer(&server, quick()).await;
    consumer.assign_topic(TOPIC, Position::Start).await.unwrap();
    assert_eq!(values(&mut consumer, 1).await, ["a"]);
}

#[tokio::test]
async fn t17_a_topic_made_again_is_not_read_on_silently() {
    let server = FakeServer::start(1).await;
    server.append(0, &batch(Codec::None, &["a"], 10));
    let mut consumer = consumer(&server, quick()).await;
    consumer.assign_topic(TOPIC, Position::Start).await.unwrap();
    assert_eq!(values(&mut consumer, 1).await, ["a"]);
    server.world.lock().unwrap().topic_id = 8;
    let next = tokio::time::timeout(Duration::from_secs(5), consumer.next()).await;
    let error = next.expect("an error rather than silence").unwrap_err();
    assert!(matches!(error, ConsumeError::TopicReplaced { .. }), "{error:?}");
    consumer.seek(TOPIC, P0, Position::Start).unwrap();
    assert_eq!(values(&mut consumer, 1).await, ["a"]);
}

#[tokio::test]
async fn fetched_ahead_is_bounded() {
    let server = FakeServer::start(1).await;
    let large = "y".repeat(10_000);
    for _ in 0..100 {
        server.append(0, &batch(Codec::None, &[&large], 10));
    }
    let config = ConsumerConfig { fetch_bytes_max: 20_000, partition_bytes_max: 20_000, ..quick() };
    let mut consumer = consumer(&server, config).await;
    consumer.assign_topic(TOPIC, Position::Start).await.unwrap();
    for _ in 0..100 {
        consumer.next().await.unwrap();
        assert!(consumer.fetched_bytes <= 60_000, "{} bytes ahead", consumer.fetched_bytes);
    }
    assert!(server.count(Kind::Fetch) >= 50);
}

#[tokio::test]
async fn next_records_gives_whole_batches_and_moves_the_position() {
    let server = FakeServer::start(1).await;
    server.append(0, &batch(Codec::Snappy, &["a", "b", "c"], 10));
    let mut consumer = consumer(&server, quick()).await;
    assert!(matches!(consumer.next_records().await, Err(ConsumeError::NothingAssigned)));
    consumer.assign_topic(TOPIC, Position::Start).await.unwrap();
    assert_eq!(consumer.next_records().await.unwrap().len(), 3);
    assert_eq!(consumer.position(TOPIC, P0), Some(Offset(3)));
}
