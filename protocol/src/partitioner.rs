//! Which partition a keyed record goes to: murmur2 over the key, as Kafka's Java client computes it, so that all clients
//! that use it put a key into the same partition.
//!
//! Pure; called by clients. librdkafka must be set to it (`partitioner=murmur2_random`), as must sarama.

use crate::ids::PartitionIndex;

const SEED: u32 = 0x9747_b28c;
const MIX: u32 = 0x5bd1_e995;

/// The partition of a key, in a topic of `partitions` partitions.
///
/// # Panics
/// If `partitions` is 0.
#[must_use]
pub fn partition_of(key: &[u8], partitions: u32) -> PartitionIndex {
    assert!(partitions > 0, "a topic has at least one partition");
    PartitionIndex((murmur2(key) & 0x7fff_ffff) % partitions)
}

/// The 32 bits of murmur2 under the Java client's seed. (Java reads them as a signed number.)
#[must_use]
pub fn murmur2(bytes: &[u8]) -> u32 {
    // Java's lengths are 32 bits; longer keys don't fit a batch.
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut hash = SEED ^ length;
    let (words, tail) = bytes.as_chunks::<4>();
    for word in words {
        let mut mixed = u32::from_le_bytes(*word).wrapping_mul(MIX);
        mixed ^= mixed >> 24;
        hash = hash.wrapping_mul(MIX) ^ mixed.wrapping_mul(MIX);
    }
    if !tail.is_empty() {
        let mut last = [0; 4];
        last[..tail.len()].copy_from_slice(tail);
        hash = (hash ^ u32::from_le_bytes(last)).wrapping_mul(MIX);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MIX);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_the_java_clients() {
        let vectors: [(&[u8], i32); 12] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
            (b"", 275_646_681),
            (b"1", -1_993_445_489),
            (b"12", 126_087_238),
            (b"123", -267_702_483),
            (b"1234", -1_614_185_708),
            (b"12345", -1_188_365_604),
        ];
        for (key, hash) in vectors {
            assert_eq!(murmur2(key).cast_signed(), hash, "{key:?}");
        }
    }

    #[test]
    fn partitions_are_the_java_clients() {
        // A negative hash loses its sign bit; it isn't negated.
        assert_eq!(partition_of(b"foobar", 50), PartitionIndex(16));
        assert_eq!(partition_of(b"21", 1), PartitionIndex(0));
        for partitions in [1, 2, 3, 7, 12, 200, 400] {
            for key in 0..1000_u32 {
                assert!(partition_of(&key.to_be_bytes(), partitions).0 < partitions);
            }
        }
    }

    #[test]
    #[should_panic(expected = "at least one partition")]
    fn a_topic_without_partitions_is_a_fault_of_the_caller() {
        let _ = partition_of(b"key", 0);
    }
}
