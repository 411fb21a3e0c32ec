use super::*;
use crate::limits::BATCH_DECOMPRESSED_BYTES_MAX;

fn sample(codec: Codec) -> Vec<u8> {
    let mut builder = BatchBuilder::new(codec);
    let headers = [Header { key: b"trace", value: Some(b"a1") }, Header { key: b"empty", value: None }];
    let key_and_headers =
        RecordFields { timestamp: Timestamp(1_700_000_000_000), key: Some(b"key-1"), value: Some(b"value-1"), headers: &headers };
    builder.push(&key_and_headers).unwrap();
    builder.push(&RecordFields { timestamp: Timestamp(1_699_999_999_000), value: Some(b""), ..RecordFields::default() }).unwrap();
    builder.push(&RecordFields { timestamp: Timestamp(1_700_000_000_500), key: Some(b"k"), ..RecordFields::default() }).unwrap();
    builder.finish().unwrap()
}

#[test]
fn a_built_batch_reads_back_under_every_codec() {
    for codec in Codec::ALL {
        let mut bytes = sample(codec);
        BatchView::whole(&bytes).unwrap().validate_produced(&ProduceRules::default()).unwrap();
        stamp(&mut bytes, Offset(100), LeaderEpoch(7));
        let batch = BatchView::whole(&bytes).unwrap();
        batch.verify_crc().unwrap();
        assert_eq!((batch.base_offset(), batch.last_offset(), batch.leader_epoch()), (Offset(100), Offset(102), LeaderEpoch(7)));
        assert_eq!(batch.max_timestamp(), Timestamp(1_700_000_000_500));
        let uncompressed = batch.decompress(BATCH_DECOMPRESSED_BYTES_MAX).unwrap();
        let records: Vec<_> = batch.records_in(&uncompressed).unwrap().map(Result::unwrap).collect();
        assert_eq!(records.len(), 3);
        assert_eq!(records[0].headers().count(), 2);
        assert_eq!((records[1].offset, records[1].key, records[1].value), (Offset(101), None, Some(&b""[..])));
        assert_eq!((records[2].timestamp, records[2].value), (Timestamp(1_700_000_000_500), None));
    }
}
