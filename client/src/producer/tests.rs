use std::time::Duration;

use super::*;
use crate::config::{Acks, ClientConfig, Retry};
use crate::error::DeliveryError;
use crate::fake::{Answer, FakeServer, TOPIC};
use protocol::compression::Codec;
use protocol::error::ErrorCode;
use protocol::ids::Offset;
use protocol::native::Kind;

async fn producer(server: &FakeServer, config: ProducerConfig) -> Producer {
    let client_config = ClientConfig { request_timeout: Duration::from_millis(300), ..ClientConfig::default() };
    let client = Client::connect(&server.address, client_config).await.unwrap();
    Producer::new(&client, config).unwrap()
}

fn quick() -> ProducerConfig {
    ProducerConfig {
        linger: Duration::ZERO,
        retry_backoff: Duration::from_millis(5),
        ack_timeout: Duration::from_millis(200),
        // What it adds has tests of its own.
        idempotent: false,
        ..ProducerConfig::default()
    }
}

/// One batch per record.
fn single() -> ProducerConfig {
    ProducerConfig { batch_bytes: 1, ..quick() }
}

#[tokio::test]
async fn every_codec_delivers_in_order_with_offsets() {
    for codec in Codec::ALL {
        let server = FakeServer::start(1).await;
        let producer = producer(&server, ProducerConfig { codec, ..quick() }).await;
        let mut deliveries = Vec::new();
        for number in 0..200 {
            deliveries.push(producer.send(TOPIC, Record::value(format!("value {number}"))).await.unwrap());
        }
        producer.flush().await;
        for (number, delivery) in deliveries.into_iter().enumerate() {
            let delivered = delivery.try_result().expect("settled by the flush").unwrap();
            assert_eq!(delivered.offset, Some(Offset(i64::try_from(number).unwrap())));
        }
        let expected: Vec<String> = (0..200).map(|number| format!("value {number}")).collect();
        assert_eq!(server.values(0), expected);
        assert_eq!(producer.memory_used_bytes(), 0);
    }
}

#[tokio::test]
async fn linger_gathers_records_into_one_batch() {
    let server = FakeServer::start(1).await;
    let producer = producer(&server, ProducerConfig { linger: Duration::from_millis(30), ..quick() }).await;
    let mut last = None;
    for number in 0..50 {
        last = Some(producer.send(TOPIC, Record::value(number.to_string())).await.unwrap());
    }
    last.unwrap().await.unwrap();
    assert_eq!(server.world.lock().unwrap().logs[0].batches.len(), 1);
}

#[tokio::test]
async fn a_full_batch_does_not_wait_for_its_linger() {
    let server = FakeServer::start(1).await;
    let config = ProducerConfig { linger: Duration::from_secs(3600), batch_bytes: 1000, ..quick() };
    let producer = producer(&server, config).await;
    let first = producer.send(TOPIC, Record::value(vec![b'x'; 600])).await.unwrap();
    let second = producer.send(TOPIC, Record::value(vec![b'y'; 600])).await.unwrap();
    assert_eq!(first.await.unwrap().offset, Some(Offset(0)));
    assert!(second.try_result().is_none());
    producer.flush().await;
    assert_eq!(second.await.unwrap().offset, Some(Offset(1)));
}

#[tokio::test]
async fn keys_go_to_the_java_clients_partitions() {
    let server = FakeServer::start(5).await;
    let producer = producer(&server, quick()).await;
    for number in 0..20 {
        let key = format!("key {number}");
        let expected = protocol::partitioner::partition_of(key.as_bytes(), 5);
        let delivery = producer.send(TOPIC, Record::value("v").with_key(key)).await.unwrap();
        assert_eq!(delivery.partition(), expected);
        assert_eq!(delivery.await.unwrap().partition, expected);
    }
}

#[tokio::test]
async fn memory_is_bounded_and_send_waits_for_it() {
    let server = FakeServer::start(1).await;
    server.hold_produce(true);
    let config = ProducerConfig { memory_bytes: 4000, record_bytes_max: 1000, batch_bytes: 1000, ..quick() };
    let producer = producer(&server, config).await;
    let mut taken = 0;
    loop {
        let sending = producer.send(TOPIC, Record::value(vec![b'x'; 900]));
        match tokio::time::timeout(Duration::from_millis(50), sending).await {
            Ok(delivery) => drop(delivery.unwrap()),
            Err(_) => break,
        }
        taken += 1;
        assert!(taken <= 4, "more than memory_bytes were taken");
        assert!(producer.memory_used_bytes() <= 4000);
    }
    assert_eq!(taken, 4);
    server.hold_produce(false);
    producer.send(TOPIC, Record::value("fits now")).await.unwrap().await.unwrap();
    assert_eq!(server.values(0).len(), 5);
}

#[tokio::test]
async fn a_refusal_that_will_not_pass_is_reported_with_its_code() {
    let server = FakeServer::start(1).await;
    server.script_produce([Answer::Refuse(ErrorCode::InvalidRecord), Answer::RefuseWhole(ErrorCode::InvalidRequest)]);
    let producer = producer(&server, single()).await;
    let first = producer.send(TOPIC, Record::value("a")).await.unwrap().await;
    assert!(matches!(first, Err(DeliveryError::Refused { code: ErrorCode::InvalidRecord, .. })), "{first:?}");
    let second = producer.send(TOPIC, Record::value("b")).await.unwrap().await;
    assert!(matches!(second, Err(DeliveryError::Refused { code: ErrorCode::InvalidRequest, .. })), "{second:?}");
    producer.send(TOPIC, Record::value("c")).await.unwrap().await.unwrap();
    assert_eq!(server.values(0), ["c"]);
}

#[tokio::test]
async fn batches_that_are_all_refused_for_the_moment_go_again_in_order() {
    let server = FakeServer::start(1).await;
    server.hold_produce(true);
    server.script_produce(vec![Answer::Refuse(ErrorCode::NotEnoughReplicas); 5]);
    let producer = producer(&server, single()).await;
    let mut deliveries = Vec::new();
    for number in 0..8 {
        deliveries.push(producer.send(TOPIC, Record::value(number.to_string())).await.unwrap());
    }
    server.hold_produce(false);
    for delivery in deliveries {
        delivery.await.unwrap();
    }
    assert_eq!(server.values(0), ["0", "1", "2", "3", "4", "5", "6", "7"]);
}

#[tokio::test]
async fn a_refused_batch_never_overtakes_an_accepted_one() {
    let server = FakeServer::start(1).await;
    server.script_produce([Answer::Refuse(ErrorCode::NotEnoughReplicas), Answer::Serve]);
    let producer = producer(&server, single()).await;
    let first = producer.send(TOPIC, Record::value("first")).await.unwrap();
    let second = producer.send(TOPIC, Record::value("second")).await.unwrap();
    let (first, second) = (first.await, second.await);
    // Whether the second left before the first's refusal came is up to the schedule; both outcomes keep the order.
    match first {
        Ok(_) => assert_eq!(server.values(0), ["first", "second"]),
        Err(DeliveryError::Overtaken { .. }) => assert_eq!(server.values(0), ["second"]),
        other => panic!("{other:?}"),
    }
    second.unwrap();
}

#[tokio::test]
async fn a_lost_reply_is_unknown_and_not_sent_again_unless_asked() {
    let server = FakeServer::start(1).await;
    server.script_produce([Answer::AppendAndClose]);
    let producer = producer(&server, single()).await;
    let result = producer.send(TOPIC, Record::value("a")).await.unwrap().await;
    assert!(matches!(&result, Err(error) if error.is_unknown()), "{result:?}");
    assert_eq!(server.values(0), ["a"]);
    producer.send(TOPIC, Record::value("b")).await.unwrap().await.unwrap();
    assert_eq!(server.values(0), ["a", "b"]);
}

#[tokio::test]
async fn a_lost_reply_is_sent_again_if_asked() {
    let server = FakeServer::start(1).await;
    server.script_produce([Answer::AppendAndClose]);
    let producer = producer(&server, ProducerConfig { retry: Retry::RefusedAndUnknown, ..single() }).await;
    let delivered = producer.send(TOPIC, Record::value("a")).await.unwrap().await.unwrap();
    assert_eq!(delivered.offset, Some(Offset(1)));
    assert_eq!(server.values(0), ["a", "a"]);
}

#[tokio::test]
async fn silence_ends_as_unknown() {
    let server = FakeServer::start(1).await;
    server.script_produce([Answer::Silence]);
    let producer = producer(&server, single()).await;
    let result = producer.send(TOPIC, Record::value("a")).await.unwrap().await;
    assert!(matches!(&result, Err(error) if error.is_unknown()), "{result:?}");
}

#[tokio::test]
async fn a_reply_that_is_no_frame_ends_the_connection_not_the_producer() {
    let server = FakeServer::start(1).await;
    server.script_produce([Answer::Raw(vec![0xff; 64])]);
    let producer = producer(&server, single()).await;
    let result = producer.send(TOPIC, Record::value("a")).await.unwrap().await;
    assert!(matches!(&result, Err(error) if error.is_unknown()), "{result:?}");
    producer.send(TOPIC, Record::value("b")).await.unwrap().await.unwrap();
}

#[tokio::test]
async fn without_acks_a_delivery_says_only_that_it_left() {
    let server = FakeServer::start(1).await;
    let producer = producer(&server, ProducerConfig { acks: Acks::None, ..quick() }).await;
    for number in 0..10 {
        let delivered = producer.send(TOPIC, Record::value(number.to_string())).await.unwrap().await.unwrap();
        assert_eq!(delivered.offset, None);
    }
    while server.values(0).len() < 10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn dropping_the_producer_settles_everything() {
    let server = FakeServer::start(1).await;
    server.hold_produce(true);
    let producer = producer(&server, ProducerConfig { batches_in_flight_max: 1, ..single() }).await;
    let first = producer.send(TOPIC, Record::value("a")).await.unwrap();
    while server.count(Kind::Produce) == 0 {
        tokio::task::yield_now().await;
    }
    let second = producer.send(TOPIC, Record::value("b")).await.unwrap();
    drop(producer);
    assert!(matches!(first.await, Err(DeliveryError::Unknown { .. })));
    assert!(matches!(second.await, Err(DeliveryError::ProducerEnded { .. })));
}

#[tokio::test]
async fn close_flushes_and_refuses_what_comes_later() {
    let server = FakeServer::start(1).await;
    let producer = producer(&server, ProducerConfig { linger: Duration::from_secs(3600), ..quick() }).await;
    let delivery = producer.send(TOPIC, Record::value("a")).await.unwrap();
    producer.close().await;
    delivery.await.unwrap();
    assert!(matches!(producer.send(TOPIC, Record::value("b")).await, Err(SendError::Closed)));
}

#[tokio::test]
async fn refusals_that_do_not_pass_end_with_the_delivery_timeout() {
    let server = FakeServer::start(1).await;
    let config = ProducerConfig { delivery_timeout: Duration::from_millis(200), ..single() };
    let producer = producer(&server, config).await;
    server.script_produce(vec![Answer::Refuse(ErrorCode::NotEnoughReplicas); 1000]);
    let result = producer.send(TOPIC, Record::value("a")).await.unwrap().await;
    assert!(matches!(result, Err(DeliveryError::TimedOut { .. })), "{result:?}");
}

#[tokio::test]
async fn a_topic_made_again_gets_what_the_old_one_refused() {
    let server = FakeServer::start(1).await;
    let producer = producer(&server, single()).await;
    producer.send(TOPIC, Record::value("a")).await.unwrap().await.unwrap();
    server.world.lock().unwrap().topic_id = 8;
    producer.send(TOPIC, Record::value("b")).await.unwrap().await.unwrap();
    assert_eq!(server.values(0), ["a", "b"]);
    server.world.lock().unwrap().topic_id = 0;
    let result = producer.send(TOPIC, Record::value("c")).await.unwrap().await;
    assert!(matches!(result, Err(DeliveryError::Refused { .. })), "{result:?}");
}

#[tokio::test]
async fn records_that_no_log_would_take_are_refused_at_once() {
    let server = FakeServer::start(1).await;
    let producer = producer(&server, quick()).await;
    let large = producer.send(TOPIC, Record::value(vec![0; (1 << 20) + 1])).await;
    assert!(matches!(large, Err(SendError::RecordTooLarge { allowed: 1_048_576, .. })));
    let old = producer.send(TOPIC, Record::value("v").with_timestamp(Timestamp(-5))).await;
    assert!(matches!(old, Err(SendError::InvalidTimestamp { timestamp_ms: -5 })));
    let elsewhere = producer.send(TOPIC, Record::value("v").with_partition(PartitionIndex(9))).await;
    assert!(matches!(elsewhere, Err(SendError::Metadata(RequestError::UnknownPartition { partitions: 1, .. }))));
    let nowhere = producer.send("other", Record::value("v")).await;
    assert!(matches!(nowhere, Err(SendError::Metadata(RequestError::UnknownTopic { .. }))));
    assert_eq!(producer.memory_used_bytes(), 0);
}

#[tokio::test]
async fn settings_out_of_bounds_are_named() {
    let server = FakeServer::start(1).await;
    let client = Client::connect(&server.address, ClientConfig::default()).await.unwrap();
    let error = Producer::new(&client, ProducerConfig { batch_bytes: 0, ..quick() }).err().unwrap();
    assert!(error.to_string().contains("batch_bytes is 0"), "{error}");
}

fn idempotent() -> ProducerConfig {
    ProducerConfig { idempotent: true, ..single() }
}

#[tokio::test]
async fn what_an_idempotent_producer_has_lost_sight_of_goes_again_and_lands_once() {
    let server = FakeServer::start(1).await;
    let producer = producer(&server, idempotent()).await;
    producer.send(TOPIC, Record::value("first")).await.unwrap().await.unwrap();
    server.script_produce([Answer::AppendAndClose, Answer::Close, Answer::Silence]);
    let mut deliveries = Vec::new();
    for number in 0..8 {
        deliveries.push(producer.send(TOPIC, Record::value(number.to_string())).await.unwrap());
    }
    for (number, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap().offset, Some(Offset(1 + i64::try_from(number).unwrap())));
    }
    assert_eq!(server.values(0), ["first", "0", "1", "2", "3", "4", "5", "6", "7"]);
    assert_eq!(server.count(Kind::InitProducer), 1);
}

#[tokio::test]
async fn without_an_identity_nothing_is_sent_and_the_records_say_why() {
    let server = FakeServer::start(1).await;
    server.world.lock().unwrap().refuse_producers = Some(ErrorCode::UnsupportedVersion);
    let producer = producer(&server, idempotent()).await;
    let error = producer.send(TOPIC, Record::value("v")).await.unwrap().await.unwrap_err();
    assert!(matches!(&error, DeliveryError::NotSent { reason, .. } if reason.contains("no producer id")), "{error}");
    // A passing refusal is asked again.
    server.world.lock().unwrap().refuse_producers = Some(ErrorCode::ThrottlingQuotaExceeded);
    let delivery = producer.send(TOPIC, Record::value("w")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert!(delivery.try_result().is_none());
    server.world.lock().unwrap().refuse_producers = None;
    delivery.await.unwrap();
    assert_eq!(server.values(0), ["w"]);
}

#[tokio::test]
async fn an_idempotent_producer_has_no_more_under_way_than_the_server_remembers() {
    let server = FakeServer::start(1).await;
    let client = Client::connect(&server.address, ClientConfig::default()).await.unwrap();
    let error = Producer::new(&client, ProducerConfig { batches_in_flight_max: 6, ..idempotent() }).err().unwrap();
    assert!(error.to_string().contains("allowed are 1 to 5 of an idempotent producer"), "{error}");
    let acks = Acks::Leader;
    assert!(Producer::new(&client, ProducerConfig { batches_in_flight_max: 6, acks, ..idempotent() }).is_ok());
}
