//! What a broker refuses of a produced batch, rule by rule. Each broken batch has a right CRC, but for the one that tests it.

use super::*;
use crate::error::{ErrorCode, WireError};
use crate::limits::BATCH_RECORDS_MAX;

const IDEMPOTENT: ProducerFields = ProducerFields {
    producer_id: ProducerId(4711),
    producer_epoch: ProducerEpoch(3),
    base_sequence: Sequence(99),
    transactional: false,
};

/// The example with bytes changed at `at` and the CRC made anew.
fn changed(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut batch = build(Codec::None, ProducerFields::NONE, &example());
    batch[at..at + bytes.len()].copy_from_slice(bytes);
    stamp_crc(&mut batch);
    batch
}

/// A batch with these bytes for its records.
fn with_records(count: i32, records: &[u8]) -> Vec<u8> {
    let mut batch = build(Codec::None, ProducerFields::NONE, &[record(0, None, None)]);
    batch.truncate(BATCH_HEADER_BYTES);
    batch.extend_from_slice(records);
    let length = i32::try_from(batch.len() - LENGTH_BASE_BYTES).unwrap();
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    batch[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    batch[57..61].copy_from_slice(&count.to_be_bytes());
    stamp_crc(&mut batch);
    batch
}

fn refusal(batch: &[u8]) -> BatchError {
    refusal_under(batch, &ProduceRules::default())
}

fn refusal_under(batch: &[u8], rules: &ProduceRules) -> BatchError {
    BatchView::whole(batch).unwrap().validate_produced(rules).unwrap_err()
}

#[test]
fn a_sound_batch_is_taken_under_every_codec_and_producer() {
    for codec in Codec::ALL {
        for producer in [ProducerFields::NONE, IDEMPOTENT] {
            let batch = build(codec, producer, &example());
            BatchView::whole(&batch).unwrap().validate_produced(&ProduceRules::default()).unwrap();
        }
    }
}

#[test]
fn t36_a_wrong_crc_is_corrupt() {
    let mut batch = build(Codec::None, ProducerFields::NONE, &example());
    *batch.last_mut().unwrap() ^= 1;
    let error = refusal(&batch);
    assert!(matches!(error, BatchError::Crc { stored: 0x4bf4_2f08, .. }));
    assert_eq!(error.code(), ErrorCode::CorruptMessage);
}

#[test]
fn t36_another_magic_is_refused() {
    for magic in [0, 1, 3, 0xff] {
        let mut batch = build(Codec::None, ProducerFields::NONE, &example());
        batch[16] = magic;
        let error = BatchView::whole(&batch).unwrap_err();
        assert_eq!((&error, error.code()), (&BatchError::Magic { found: magic.cast_signed() }, ErrorCode::InvalidRecord));
    }
}

#[test]
fn t36_a_wrong_count_is_refused() {
    for count in [0, -1, i32::MIN, i32::MAX, i32::try_from(BATCH_RECORDS_MAX).unwrap() + 1] {
        assert_eq!(refusal(&changed(57, &count.to_be_bytes())), BatchError::RecordCount { found: count });
    }
    // Fewer or more than the records that are there, with the delta to match.
    assert_eq!(
        refusal(&with_records(1, &[12, 0, 0, 0, 1, 1, 0, 12, 0, 0, 2, 1, 1, 0])),
        BatchError::TrailingRecordBytes { bytes: 7 }
    );
    let error = refusal(&with_records(2, &[12, 0, 0, 0, 1, 1, 0]));
    assert_eq!(error, BatchError::Record { index: 1, at: 7, error: RecordError::Varint });
    assert_eq!(error.code(), ErrorCode::InvalidRecord);
}

#[test]
fn t36_a_wrong_last_offset_delta_is_refused() {
    for last_offset_delta in [0, 2, -1, i32::MAX, i32::MIN] {
        let error = refusal(&changed(23, &last_offset_delta.to_be_bytes()));
        assert_eq!(error, BatchError::LastOffsetDelta { count: 2, last_offset_delta });
    }
}

#[test]
fn t36_offset_deltas_that_do_not_rise_by_one_are_refused() {
    for (first, second, index, found) in [(0, 0, 1, 0), (0, 4, 1, 2), (2, 2, 0, 1), (0, 1, 1, -1)] {
        let error = refusal(&with_records(2, &[12, 0, 0, first, 1, 1, 0, 12, 0, 0, second, 1, 1, 0]));
        let expected = i32::try_from(index).unwrap();
        let error_in = RecordError::OffsetDelta { found, expected };
        assert_eq!(error, BatchError::Record { index, at: 7 * usize::try_from(index).unwrap(), error: error_in });
    }
}

#[test]
fn t36_trailing_bytes_are_refused() {
    let mut batch = build(Codec::None, ProducerFields::NONE, &example());
    batch.push(0);
    assert_eq!(BatchView::whole(&batch).unwrap_err(), BatchError::TrailingBytes { bytes: 1 });
    // Inside of the batch, and inside of a record.
    assert_eq!(refusal(&with_records(1, &[12, 0, 0, 0, 1, 1, 0, 9])), BatchError::TrailingRecordBytes { bytes: 1 });
    let error = refusal(&with_records(1, &[14, 0, 0, 0, 1, 1, 0, 9]));
    assert_eq!(error, BatchError::Record { index: 0, at: 0, error: RecordError::TrailingBytes { bytes: 1 } });
}

#[test]
fn t36_control_batch_from_client_is_refused() {
    assert_eq!(refusal(&changed(21, &0x20_i16.to_be_bytes())), BatchError::Control);
    assert_eq!(refusal(&changed(21, &0x30_i16.to_be_bytes())), BatchError::Control);
}

#[test]
fn t36_attributes_that_only_brokers_set_are_refused() {
    assert_eq!(refusal(&changed(21, &0x40_i16.to_be_bytes())), BatchError::Attributes { attributes: 0x40, refused: 0x40 });
    assert_eq!(refusal(&changed(21, &0x80_i16.to_be_bytes())), BatchError::Attributes { attributes: 0x80, refused: 0x80 });
    let error = refusal(&changed(21, &i16::MIN.to_be_bytes()));
    assert_eq!(error, BatchError::Attributes { attributes: i16::MIN, refused: i16::MIN });
    let error = refusal(&changed(21, &0x08_i16.to_be_bytes()));
    assert_eq!((&error, error.code()), (&BatchError::AppendTimeFromProducer, ErrorCode::InvalidTimestamp));
}

#[test]
fn t36_a_sequence_without_a_producer_id_is_refused() {
    for (producer_id, producer_epoch, base_sequence) in
        [(-1, -1, 0), (-1, 0, -1), (-1, 0, 0), (5, -1, 0), (5, 0, -1), (5, -1, -1), (-2, -1, -1), (-1, -1, -2), (i64::MIN, 0, 0)]
    {
        let mut batch = changed(43, &i64::to_be_bytes(producer_id));
        batch[51..53].copy_from_slice(&i16::to_be_bytes(producer_epoch));
        batch[53..57].copy_from_slice(&i32::to_be_bytes(base_sequence));
        stamp_crc(&mut batch);
        assert_eq!(refusal(&batch), BatchError::ProducerFields { producer_id, producer_epoch, base_sequence });
    }
}

#[test]
fn t36_a_transactional_batch_is_taken_only_where_the_request_is() {
    let batch = build(Codec::None, ProducerFields { transactional: true, ..IDEMPOTENT }, &example());
    assert_eq!(refusal(&batch), BatchError::Transactional { producer_id: 4711 });
    let rules = ProduceRules { transactional: true, ..ProduceRules::default() };
    BatchView::whole(&batch).unwrap().validate_produced(&rules).unwrap();
    let batch = build(Codec::None, ProducerFields { transactional: true, ..ProducerFields::NONE }, &example());
    assert!(matches!(refusal_under(&batch, &rules), BatchError::ProducerFields { producer_id: -1, .. }));
}

#[test]
fn t36_size_is_checked_as_it_came() {
    let batch = build(Codec::Zstd, ProducerFields::NONE, &[record(0, None, Some(&vec![0; 100_000]))]);
    let rules = ProduceRules { batch_bytes_max: batch.len() - 1, ..ProduceRules::default() };
    let error = refusal_under(&batch, &rules);
    assert_eq!(error, BatchError::TooLarge { bytes: batch.len(), allowed: batch.len() - 1 });
    assert_eq!(error.code(), ErrorCode::MessageTooLarge);
    let rules = ProduceRules { batch_bytes_max: batch.len(), ..ProduceRules::default() };
    BatchView::whole(&batch).unwrap().validate_produced(&rules).unwrap();
}

#[test]
fn another_codec_than_the_topics_is_refused() {
    let rules = ProduceRules { codec: Some(Codec::Zstd), ..ProduceRules::default() };
    let batch = build(Codec::Lz4, ProducerFields::NONE, &example());
    let error = refusal_under(&batch, &rules);
    assert_eq!(error, BatchError::CodecNotAllowed { found: Codec::Lz4, allowed: Codec::Zstd });
    assert_eq!(error.to_string(), "batch is compressed with lz4, the topic's compression.type takes zstd only");
    let batch = build(Codec::Zstd, ProducerFields::NONE, &example());
    BatchView::whole(&batch).unwrap().validate_produced(&rules).unwrap();
}

#[test]
fn t34_a_max_timestamp_that_is_not_the_records_is_refused() {
    for stated in [0, -1, 1_700_000_000_004, 1_700_000_000_006, i64::MAX] {
        let error = refusal(&changed(35, &i64::to_be_bytes(stated)));
        assert_eq!(error, BatchError::MaxTimestamp { stated, found: 1_700_000_000_005 });
    }
}

#[test]
fn t34_a_compressed_batch_cannot_be_younger_than_its_max_timestamp() {
    let mut batch = build(Codec::Lz4, ProducerFields::NONE, &example());
    for (stated, is_taken) in [(-1, false), (1_699_999_999_999, false), (1_700_000_000_000, true), (1_700_000_000_005, true)] {
        batch[35..43].copy_from_slice(&i64::to_be_bytes(stated));
        stamp_crc(&mut batch);
        let result = BatchView::whole(&batch).unwrap().validate_produced(&ProduceRules::default());
        let refused = Err(BatchError::MaxTimestamp { stated, found: 1_700_000_000_000 });
        assert_eq!(result, if is_taken { Ok(()) } else { refused });
    }
}

#[test]
fn t34_timestamps_below_zero_are_refused_but_for_none() {
    for timestamp in [-2, i64::MIN] {
        for at in [27, 35] {
            let error = refusal(&changed(at, &i64::to_be_bytes(timestamp)));
            assert_eq!((&error, error.code()), (&BatchError::Timestamp { timestamp }, ErrorCode::InvalidTimestamp));
        }
    }
    // A delta that leads below zero, and one that leads past the last number.
    let error = refusal(&with_records(1, &[12, 0, 3, 0, 1, 1, 0]));
    let below = RecordError::Timestamp { base: 0, delta: -2 };
    assert_eq!(error, BatchError::Record { index: 0, at: 0, error: below });
    let error = refusal(&changed(27, &i64::MAX.to_be_bytes()));
    assert!(matches!(error, BatchError::Record { index: 1, error: RecordError::Timestamp { delta: 5, .. }, .. }));
}

#[test]
fn t79_negative_and_huge_lengths_are_refused() {
    for length in [-1, i32::MIN, 0, 48] {
        let mut batch = build(Codec::None, ProducerFields::NONE, &example());
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        assert_eq!(BatchView::split(&batch).unwrap_err(), BatchError::Length { length });
    }
    for length in [i32::MAX, 1 << 30, i32::try_from(BATCH_BYTES_CEILING).unwrap() - 11] {
        let mut batch = build(Codec::None, ProducerFields::NONE, &example());
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        let bytes = usize::try_from(length).unwrap() + 12;
        assert_eq!(BatchView::split(&batch).unwrap_err(), BatchError::TooLarge { bytes, allowed: BATCH_BYTES_CEILING });
    }
}

#[test]
fn t79_hostile_records_are_refused() {
    let varint_of_11 = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    let cases: [(&str, Vec<u8>, RecordError); 12] = [
        ("no bytes", vec![], RecordError::Varint),
        ("record length of -1", vec![1, 0, 0, 0, 1, 1, 0], RecordError::Length { length: -1, left: 6 }),
        ("record length of 0", vec![0], RecordError::FieldLength { length: 1, left: 0 }),
        (
            "record length of 2 GiB",
            vec![0xfe, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 1, 1, 0],
            RecordError::Length { length: i32::MAX, left: 6 },
        ),
        ("length of 6 bytes", [&varint_of_11[..6], &[0; 6]].concat(), RecordError::Varint),
        ("length past 32 bits", vec![0xff, 0xff, 0xff, 0xff, 0x1f, 0], RecordError::Varint),
        ("timestamp delta of 11 bytes", [&[30, 0], &varint_of_11[..], &[0, 1, 1, 0]].concat(), RecordError::Varint),
        ("key length of -2", vec![12, 0, 0, 0, 3, 1, 0], RecordError::FieldLength { length: -2, left: 2 }),
        ("key past the record", vec![12, 0, 0, 0, 20, 1, 0], RecordError::FieldLength { length: 10, left: 2 }),
        ("value past the record", vec![12, 0, 0, 0, 1, 4, 0, 0], RecordError::FieldLength { length: 2, left: 1 }),
        ("header count of -1", vec![12, 0, 0, 0, 1, 1, 1], RecordError::HeaderCount { found: -1 }),
        ("header count past the record", vec![12, 0, 0, 0, 1, 1, 8], RecordError::Varint),
    ];
    for (what, records, expected) in cases {
        let batch = with_records(1, &records);
        assert_eq!(refusal(&batch), BatchError::Record { index: 0, at: 0, error: expected }, "{what}");
        // The iterator of readers refuses the same.
        let view = BatchView::whole(&batch).unwrap();
        assert!(view.records().unwrap().any(|record| record.is_err()), "{what}");
    }
    let headers_of_2_gib = [&[22, 0, 0, 0, 1, 1][..], &[0xfe, 0xff, 0xff, 0xff, 0x0f], &[0]].concat();
    let error = RecordError::HeaderCount { found: i32::MAX };
    assert_eq!(refusal(&with_records(1, &headers_of_2_gib)), BatchError::Record { index: 0, at: 0, error });
    // A header key can't be null; a header value can.
    let null_key = refusal(&with_records(1, &[16, 0, 0, 0, 1, 1, 2, 1, 1]));
    assert!(matches!(null_key, BatchError::Record { error: RecordError::FieldLength { length: -1, .. }, .. }));
    BatchView::whole(&with_records(1, &[16, 0, 0, 0, 1, 1, 2, 0, 1]))
        .unwrap()
        .validate_produced(&ProduceRules::default())
        .unwrap();
}

#[test]
fn t81_a_compressed_batch_without_records_is_refused() {
    let mut batch = with_records(1, &[]);
    batch[22] = 4;
    stamp_crc(&mut batch);
    assert_eq!(refusal(&batch), BatchError::NoRecordBytes { codec: Codec::Zstd, count: 1 });
    let mut batch = build(Codec::Zstd, ProducerFields::NONE, &example());
    batch[23..27].copy_from_slice(&(-1_i32).to_be_bytes());
    batch[57..61].copy_from_slice(&0_i32.to_be_bytes());
    stamp_crc(&mut batch);
    assert_eq!(refusal(&batch), BatchError::RecordCount { found: 0 });
}

#[test]
fn t81_codec_bits_that_no_codec_has_are_refused() {
    for number in 5..8 {
        let batch = changed(21, &[0, number]);
        let error = refusal(&batch);
        assert_eq!((&error, error.code()), (&BatchError::Codec { number }, ErrorCode::UnsupportedCompressionType));
        assert!(BatchView::whole(&batch).unwrap().decompress(1 << 20).is_err());
    }
}

#[test]
fn t81_a_batch_that_decompresses_to_too_much_is_refused_by_its_reader() {
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let batch = build(codec, ProducerFields::NONE, &[record(0, None, Some(&vec![0; 3 << 20]))]);
        let view = BatchView::whole(&batch).unwrap();
        let error = view.decompress(1 << 20).unwrap_err();
        assert!(matches!(&error, BatchError::Decompress { reason } if reason.contains("1048576")), "{error}");
        assert_eq!(view.decompress(4 << 20).unwrap().len() >> 20, 3);
    }
}

#[test]
fn t81_a_compressed_batch_inside_of_a_batch_is_not_unfolded() {
    let inner = build(Codec::Zstd, ProducerFields::NONE, &example());
    let outer = build(Codec::Gzip, ProducerFields::NONE, &[record(0, None, Some(&inner))]);
    assert_eq!(read(&BatchView::whole(&outer).unwrap())[0].2, Some(inner));
}
