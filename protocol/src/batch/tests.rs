//! Golden batches, ours and another implementation's; the rules for produced batches (T36); hostile bytes.

mod produced;
mod properties;

use super::*;
use crate::limits::BATCH_DECOMPRESSED_BYTES_MAX;

/// A record with its headers, owned.
type Owned = (i64, Option<Vec<u8>>, Option<Vec<u8>>, Vec<(Vec<u8>, Option<Vec<u8>>)>);

fn record(timestamp: i64, key: Option<&[u8]>, value: Option<&[u8]>) -> Owned {
    (timestamp, key.map(<[u8]>::to_vec), value.map(<[u8]>::to_vec), vec![])
}

fn build(codec: Codec, producer: ProducerFields, records: &[Owned]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(codec).producer(producer);
    for (timestamp, key, value, headers) in records {
        let headers: Vec<_> = headers.iter().map(|(key, value)| Header { key, value: value.as_deref() }).collect();
        let (key, value) = (key.as_deref(), value.as_deref());
        builder.push(&RecordFields { timestamp: Timestamp(*timestamp), key, value, headers: &headers }).unwrap();
    }
    builder.finish().unwrap()
}

fn read(batch: &BatchView<'_>) -> Vec<Owned> {
    let uncompressed = batch.decompress(BATCH_DECOMPRESSED_BYTES_MAX).unwrap();
    let owned = |bytes: &[u8]| bytes.to_vec();
    let records = batch.records_in(&uncompressed).unwrap().map(Result::unwrap);
    records
        .map(|record| {
            let headers = record.headers().map(|header| (header.key.to_vec(), header.value.map(owned)));
            (record.timestamp.0, record.key.map(owned), record.value.map(owned), headers.collect())
        })
        .collect()
}

fn example() -> Vec<Owned> {
    let mut first = record(1_700_000_000_000, Some(b"k1"), Some(b"hello"));
    first.3.push((b"h".to_vec(), Some(b"v".to_vec())));
    vec![first, record(1_700_000_000_005, None, Some(b"world"))]
}

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect()
}

#[test]
fn a_batchs_bytes_are_golden() {
    let golden = hex("0000000000000000 0000004f ffffffff 02 4bf42f08 0000 00000001 0000018bcfe56800 0000018bcfe56805
         ffffffffffffffff ffff ffffffff 00000002
         22 00 00 00 04 6b31 0a 68656c6c6f 02 02 68 02 76
         16 00 0a 02 01 0a 776f726c64 00");
    assert_eq!(build(Codec::None, ProducerFields::NONE, &example()), golden);
    let batch = BatchView::whole(&golden).unwrap();
    batch.validate_produced(&ProduceRules::default()).unwrap();
    assert_eq!(read(&batch), example());
}

#[test]
fn the_pages_batch_is_the_golden_one() {
    let page = include_str!("../../../docs/PROTOCOL.md");
    let shown = page.split("```batch example\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(hex(shown), build(Codec::None, ProducerFields::NONE, &example()));
}

#[test]
fn another_implementations_batches_read_under_every_codec() {
    let mut expected = example();
    expected[0].2 = Some(b"hello".repeat(24));
    expected[1].2 = Some(b"world".repeat(24));
    let mut codecs = 0;
    for line in include_str!("tests/foreign.txt").lines() {
        let (codec, bytes) = line.split_once(' ').unwrap();
        let bytes = hex(bytes);
        let batch = BatchView::whole(&bytes).unwrap();
        assert_eq!(batch.attributes().codec().unwrap().name(), codec);
        batch.validate_produced(&ProduceRules::default()).unwrap();
        assert_eq!(read(&batch), expected, "{codec}");
        let producer = (batch.producer_id(), batch.producer_epoch(), batch.base_sequence());
        assert_eq!(producer, (ProducerId(4711), ProducerEpoch(3), Sequence(99)));
        codecs += 1;
    }
    assert_eq!(codecs, 4);
}

#[test]
fn batches_are_cut_one_by_one() {
    let one = build(Codec::None, ProducerFields::NONE, &example());
    let two = build(Codec::Lz4, ProducerFields::NONE, &example());
    let both = [one.clone(), two.clone()].concat();
    let (first, rest) = BatchView::split(&both).unwrap();
    let (second, rest) = BatchView::split(rest).unwrap();
    assert_eq!((first.bytes(), second.bytes(), rest), (&one[..], &two[..], &b""[..]));
    assert_eq!(BatchView::whole(&both).unwrap_err(), BatchError::TrailingBytes { bytes: two.len() });
    assert_eq!(
        BatchView::split(&one[..one.len() - 1]).unwrap_err(),
        BatchError::Truncated { needed: one.len(), found: one.len() - 1 }
    );
    assert_eq!(BatchView::split(&[]).unwrap_err(), BatchError::Truncated { needed: 61, found: 0 });
}

#[test]
fn t35_the_crc_leaves_out_what_brokers_stamp_and_nothing_else() {
    let good = build(Codec::None, ProducerFields::NONE, &example());
    let mut stamped = good.clone();
    stamp(&mut stamped, Offset(0x0123_4567_89ab_cdef), LeaderEpoch(0x7654_3210));
    let batch = BatchView::whole(&stamped).unwrap();
    batch.verify_crc().unwrap();
    assert_eq!((batch.base_offset(), batch.leader_epoch()), (Offset(0x0123_4567_89ab_cdef), LeaderEpoch(0x7654_3210)));
    assert_eq!(batch.crc(), BatchView::whole(&good).unwrap().crc());
    for at in 17..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let error = BatchView::whole(&bad).unwrap().verify_crc().unwrap_err();
        assert!(matches!(error, BatchError::Crc { .. }), "byte {at}");
    }
}

#[test]
fn t35_the_crc_is_crc32c_of_attributes_to_the_end() {
    for codec in Codec::ALL {
        for length in [1, 63, 64, 1000, 100_000] {
            let value = vec![7; length];
            let bytes = build(codec, ProducerFields::NONE, &[record(5, None, Some(&value))]);
            let batch = BatchView::whole(&bytes).unwrap();
            assert_eq!(batch.crc(), crc32c::crc32c(&bytes[21..]), "{codec}, {length} bytes");
        }
    }
}

#[test]
fn append_time_is_every_records_and_the_crc_is_made_anew() {
    for codec in Codec::ALL {
        let mut bytes = build(codec, ProducerFields::NONE, &example());
        stamp(&mut bytes, Offset(10), LeaderEpoch(2));
        stamp_append_time(&mut bytes, Timestamp(1_800_000_000_000));
        let batch = BatchView::whole(&bytes).unwrap();
        batch.verify_crc().unwrap();
        assert_eq!(batch.attributes().timestamp_type(), TimestampType::LogAppendTime);
        assert_eq!(batch.attributes().codec().unwrap(), codec);
        assert_eq!(batch.base_timestamp(), Timestamp(1_700_000_000_000));
        assert!(read(&batch).iter().all(|record| record.0 == 1_800_000_000_000));
        assert_eq!(read(&batch).len(), 2);
    }
}

#[test]
fn t34_max_timestamp_is_the_youngest_records_wherever_it_stands() {
    let records = [record(500, None, None), record(900, None, None), record(100, None, None), record(700, None, None)];
    for codec in Codec::ALL {
        let mut bytes = build(codec, ProducerFields::NONE, &records);
        stamp(&mut bytes, Offset(40), LeaderEpoch(0));
        let batch = BatchView::whole(&bytes).unwrap();
        assert_eq!((batch.base_timestamp(), batch.max_timestamp()), (Timestamp(500), Timestamp(900)));
        let find = |at| batch.find_timestamp(Timestamp(at), Offset(0), 1 << 20).unwrap().map(|(offset, time)| (offset.0, time.0));
        assert_eq!(find(0), Some((40, 500)));
        assert_eq!(find(500), Some((40, 500)));
        assert_eq!(find(501), Some((41, 900)));
        assert_eq!(find(900), Some((41, 900)));
        assert_eq!(find(901), None);
    }
}

#[test]
fn t34_a_batch_without_timestamps_is_found_by_none() {
    let bytes = build(Codec::None, ProducerFields::NONE, &[record(-1, None, Some(b"x")), record(-1, None, Some(b"y"))]);
    let batch = BatchView::whole(&bytes).unwrap();
    batch.validate_produced(&ProduceRules::default()).unwrap();
    assert_eq!(batch.max_timestamp(), Timestamp::NONE);
    assert_eq!(batch.find_timestamp(Timestamp(0), Offset(0), 1 << 20), Ok(None));
}

#[test]
fn t34_append_time_is_found_at_the_batchs_first_record() {
    let mut bytes = build(Codec::None, ProducerFields::NONE, &example());
    stamp(&mut bytes, Offset(7), LeaderEpoch(0));
    stamp_append_time(&mut bytes, Timestamp(1000));
    let batch = BatchView::whole(&bytes).unwrap();
    assert_eq!(batch.find_timestamp(Timestamp(1000), Offset(0), 1 << 20), Ok(Some((Offset(7), Timestamp(1000)))));
    assert_eq!(batch.find_timestamp(Timestamp(1001), Offset(0), 1 << 20), Ok(None));
    let last = batch.last_offset();
    assert_eq!(batch.find_timestamp(Timestamp(1000), last, 1 << 20), Ok(Some((last, Timestamp(1000)))), "all have the time");
    assert_eq!(batch.find_timestamp(Timestamp(1000), last.plus(1), 1 << 20), Ok(None));
}

#[test]
fn offsets_at_the_end_of_their_range_saturate() {
    let mut bytes = build(Codec::None, ProducerFields::NONE, &example());
    stamp(&mut bytes, Offset(i64::MAX), LeaderEpoch(0));
    let batch = BatchView::whole(&bytes).unwrap();
    assert_eq!((batch.last_offset(), batch.next_offset()), (Offset(i64::MAX), Offset(i64::MAX)));
    assert!(batch.records().unwrap().all(|record| record.unwrap().offset == Offset(i64::MAX)));
}

#[test]
fn a_compressed_batch_is_not_read_as_if_it_were_plain() {
    let bytes = build(Codec::Zstd, ProducerFields::NONE, &example());
    let error = BatchView::whole(&bytes).unwrap().records().err();
    assert_eq!(error, Some(BatchError::CodecNotAllowed { found: Codec::Zstd, allowed: Codec::None }));
}

#[test]
fn a_builder_refuses_what_no_broker_takes_and_stays_as_it_was() {
    assert!(matches!(BatchBuilder::new(Codec::None).finish(), Err(BuildError::Empty)));
    let mut builder = BatchBuilder::new(Codec::None);
    builder.push(&RecordFields { timestamp: Timestamp(5), ..RecordFields::default() }).unwrap();
    let before = builder.clone();
    let refused = builder.push(&RecordFields { timestamp: Timestamp(-2), ..RecordFields::default() });
    assert!(matches!(refused, Err(BuildError::Timestamp { timestamp: -2, base: 5 })));
    let headers = vec![Header { key: b"h", value: None }; 1025];
    let refused = builder.push(&RecordFields { headers: &headers, ..RecordFields::default() });
    assert!(matches!(refused, Err(BuildError::Headers { found: 1025 })));
    let value = vec![0; BATCH_BYTES_CEILING];
    let refused = builder.push(&RecordFields { value: Some(&value), ..RecordFields::default() });
    assert!(matches!(refused, Err(BuildError::TooLarge { .. })));
    assert_eq!((builder.record_count(), builder.size_bytes()), (1, before.size_bytes()));
    assert_eq!(builder.finish().unwrap(), before.finish().unwrap());
}
