//! Any records come back; any bytes are refused or read, without a panic; no changed batch passes its CRC.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..200)
}

prop_compose! {
    fn any_record()(
        timestamp in prop_oneof![Just(-1_i64), 0..2_000_000_000_000_i64, Just(i64::MAX)],
        key in option::of(any_bytes()),
        value in option::of(any_bytes()),
        headers in vec((vec(any::<u8>(), 0..20), option::of(any_bytes())), 0..4),
    ) -> Owned {
        (timestamp, key, value, headers)
    }
}

/// Records whose timestamps all have a distance from the first one's.
fn any_records() -> impl Strategy<Value = Vec<Owned>> {
    vec(any_record(), 1..20).prop_map(|mut records| {
        let base = records[0].0;
        for record in &mut records {
            if record.0.checked_sub(base).is_none() {
                record.0 = base;
            }
        }
        records
    })
}

fn any_codec() -> impl Strategy<Value = Codec> {
    (0_u8..5).prop_map(|number| Codec::from_number(number).unwrap())
}

/// Everything that reads a batch. Nothing here may panic, whatever the bytes.
fn read_all(bytes: &[u8]) {
    let Ok((batch, rest)) = BatchView::split(bytes) else { return };
    assert_eq!(batch.size() + rest.len(), bytes.len());
    let _ = (batch.verify_crc(), batch.last_offset(), batch.next_offset(), format!("{batch:?}"));
    let _ = batch.validate_produced(&ProduceRules { transactional: true, ..ProduceRules::default() });
    let _ = batch.find_timestamp(Timestamp(0), Offset(0), 1 << 16);
    if let Ok(records) = batch.records() {
        let mut seen = 0;
        for record in records.flatten() {
            assert!(record.headers().count() <= crate::limits::RECORD_HEADERS_MAX);
            seen += 1;
        }
        // A record takes at least seven bytes: the count can't make more of them than there is.
        assert!(seen * 7 <= bytes.len());
    }
    if let Ok(uncompressed) = batch.decompress(1 << 16) {
        assert!(uncompressed.len() <= 1 << 16);
        if let Ok(records) = batch.records_in(&uncompressed) {
            assert!(records.flatten().count() * 7 <= uncompressed.len());
        }
    }
}

proptest! {
    #![proptest_config(crate::testing::at_least(500))]

    #[test]
    fn any_records_come_back(records in any_records(), codec in any_codec(), offset in 0..i64::MAX / 2, epoch in any::<i32>()) {
        let mut bytes = build(codec, ProducerFields::NONE, &records);
        BatchView::whole(&bytes).unwrap().validate_produced(&ProduceRules::default()).unwrap();
        stamp(&mut bytes, Offset(offset), LeaderEpoch(epoch));
        let batch = BatchView::whole(&bytes).unwrap();
        batch.verify_crc().unwrap();
        prop_assert_eq!(read(&batch), records.clone());
        prop_assert_eq!(batch.last_offset_delta(), i32::try_from(records.len()).unwrap() - 1);
        prop_assert_eq!(batch.max_timestamp().0, records.iter().map(|record| record.0).max().unwrap());
    }

    #[test]
    fn builders_know_their_size(records in any_records()) {
        let mut builder = BatchBuilder::new(Codec::None);
        for (timestamp, key, value, _) in &records {
            let (key, value) = (key.as_deref(), value.as_deref());
            builder.push(&RecordFields { timestamp: Timestamp(*timestamp), key, value, headers: &[] }).unwrap();
        }
        let size = builder.size_bytes();
        prop_assert_eq!(builder.finish().unwrap().len(), size);
    }

    #[test]
    fn t35_no_changed_batch_passes_its_crc(
        records in any_records(),
        codec in any_codec(),
        changes in vec((any::<prop::sample::Index>(), 1_u8..), 1..5),
    ) {
        let good = build(codec, ProducerFields::NONE, &records);
        let mut bad = good.clone();
        for (at, flipped) in changes {
            // From the magic on: all that lies before it is stamped by brokers, or moves the batch's end.
            let at = 16 + at.index(good.len() - 16);
            bad[at] ^= flipped;
        }
        if bad != good {
            prop_assert!(BatchView::whole(&bad).and_then(|batch| batch.verify_crc()).is_err());
        }
    }

    #[test]
    fn t79_any_bytes_are_refused_or_read(bytes in vec(any::<u8>(), 0..300)) {
        read_all(&bytes);
    }

    #[test]
    fn t79_any_bytes_behind_a_sound_start_are_refused_or_read(
        bytes in vec(any::<u8>(), 61..300),
        codec in 0_u8..8,
        count in -1_i32..20,
    ) {
        let mut bytes = bytes;
        let length = i32::try_from(bytes.len() - 12).unwrap();
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        bytes[16] = 2;
        bytes[21..23].copy_from_slice(&[0, codec]);
        bytes[57..61].copy_from_slice(&count.to_be_bytes());
        stamp_crc(&mut bytes);
        read_all(&bytes);
    }

    #[test]
    fn t79_changed_batches_with_a_right_crc_are_refused_or_read(
        records in any_records(),
        codec in any_codec(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let mut bytes = build(codec, ProducerFields::NONE, &records);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        read_all(&bytes);
        stamp_crc(&mut bytes);
        read_all(&bytes);
    }

    #[test]
    fn varints_come_back(value in prop_oneof![any::<i64>(), -200_i64..200, Just(i64::MIN), Just(i64::MAX)]) {
        let mut bytes = vec![];
        varint::write(value, &mut bytes);
        prop_assert_eq!(bytes.len(), varint::size(value));
        let mut left = &bytes[..];
        prop_assert_eq!(varint::read_i64(&mut left), Some(value));
        prop_assert!(left.is_empty());
        prop_assert_eq!(varint::read_i32(&mut &bytes[..]), i32::try_from(value).ok());
        for cut in 0..bytes.len() {
            prop_assert_eq!(varint::read_i64(&mut &bytes[..cut]), None);
        }
    }
}

#[test]
fn t79_varints_that_take_more_than_their_bits_are_refused() {
    let nines = |last: u8| [[0xff; 9].as_slice(), &[last]].concat();
    assert_eq!(varint::read_i64(&mut &nines(1)[..]), Some(i64::MIN));
    assert_eq!(varint::read_i64(&mut &nines(2)[..]), None);
    assert_eq!(varint::read_i64(&mut &nines(0x81)[..]), None);
    assert_eq!(varint::read_i32(&mut &[0xff, 0xff, 0xff, 0xff, 0x0f][..]), Some(i32::MIN));
    assert_eq!(varint::read_i32(&mut &[0xff, 0xff, 0xff, 0xff, 0x10][..]), None);
    // Longer than it must be, but within bounds: as Kafka reads it.
    assert_eq!(varint::read_i32(&mut &[0x82, 0x80, 0x00][..]), Some(1));
}
