//! Load with a record of what was acknowledged, and when that was known.
//!
//! Every record has an id that only grows; its value repeats a marker of 16 bytes with that id, so that the value is
//! found in raw disk blocks too. Batches go out pipelined over one connection, round robin over partitions.
//! A send that has no answer is unknown: it may be there or not. Nothing is ever sent twice.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use protocol::batch::{BatchBuilder, RecordFields};
use protocol::compression::Codec;
use protocol::ids::{PartitionIndex, Timestamp, TopicId};
use protocol::native::{Kind, ProduceBatch, ProduceReply, ProduceRequest};
use serde::{Deserialize, Serialize};

use super::wire::Wire;
use super::{monotonic_ns, pause};
use crate::random::Stream;

/// Bytes of a marker.
pub const MARKER_BYTES: usize = 16;
/// How every marker begins.
pub const MARKER_MAGIC: [u8; 8] = *b"\xc0re.mark";

/// The marker of a record.
#[must_use]
pub fn marker(id: u64) -> [u8; MARKER_BYTES] {
    let mut bytes = [0; MARKER_BYTES];
    bytes[..8].copy_from_slice(&MARKER_MAGIC);
    bytes[8..].copy_from_slice(&id.to_le_bytes());
    bytes
}

/// The id of a value, if it is one of ours and whole.
#[must_use]
pub fn id_of(value: &[u8]) -> Option<u64> {
    let id = u64::from_le_bytes(value.get(8..MARKER_BYTES)?.try_into().ok()?);
    let expected = marker(id);
    (value.len().is_multiple_of(MARKER_BYTES) && value.chunks(MARKER_BYTES).all(|chunk| chunk == expected)).then_some(id)
}

/// One acknowledged batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// Index into the topics under load.
    pub topic: usize,
    /// Partition.
    pub partition: u32,
    /// Offset of the first record.
    pub base_offset: i64,
    /// Id of the first record; the others follow.
    pub first_id: u64,
    /// Records.
    pub records: u32,
    /// Length of each value, in bytes.
    pub value_bytes: usize,
    /// When the request was about to be sent, in monotonic nanoseconds.
    pub sent_at: u64,
    /// When the acknowledgement had been received, in monotonic nanoseconds; 0 if there was none.
    pub at: u64,
}

/// How large batches are: bounds, both included.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Records of a batch.
    pub records: (u64, u64),
    /// Markers of a value.
    pub markers: (u64, u64),
}

/// What to load a host with.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Topics and their partitions.
    pub topics: Vec<(TopicId, u32)>,
    /// Requests without an answer at any time.
    pub in_flight: usize,
    /// How long.
    pub duration: Duration,
    /// A pause behind each batch.
    pub pace: Duration,
    /// Ends it earlier: so many bytes of values.
    pub bytes: u64,
    /// Sizes.
    pub shape: Shape,
    /// Seeds sizes.
    pub seed: u64,
}

impl Default for LoadOptions {
    /// Small batches of small records to no topic, for an hour.
    fn default() -> LoadOptions {
        LoadOptions {
            topics: Vec::new(),
            in_flight: 16,
            duration: Duration::from_secs(3600),
            pace: Duration::ZERO,
            bytes: u64::MAX,
            shape: Shape { records: (1, 8), markers: (4, 127) },
            seed: 1,
        }
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Acknowledged batches, in order of their answers.
    pub acks: Vec<Ack>,
    /// Batches that have no answer: they may be there or not.
    pub unknown: Vec<Ack>,
    /// The next id that no record has.
    pub next_id: u64,
    /// Whether the connection broke on the way (it was killed).
    pub broken: bool,
}

/// Produces to a host from `first_id` on, until the time is over or the connection breaks.
///
/// # Errors
/// It can't be reached, or answers an error: a broken connection is none.
pub fn run(address: SocketAddr, options: &LoadOptions, first_id: u64) -> Result<Loaded> {
    let mut wire = Wire::connect(address)?;
    let receiver = wire.receiver()?;
    let (pending, expected) = mpsc::sync_channel::<(u64, Ack)>(options.in_flight.max(1));
    let receiving = std::thread::Builder::new().name("acks".into()).spawn(move || receive(receiver, &expected))?;
    let sent = send(&mut wire, options, first_id, &pending);
    drop(pending);
    let (acks, mut unknown, outcome) = receiving.join().map_err(|_| anyhow!("the receiving thread panicked"))?;
    let (next_id, last) = sent?;
    let send_broke = last.is_some();
    unknown.extend(last);
    let receive_broke = match outcome {
        Ok(()) => false,
        Err(error) if error.downcast_ref::<std::io::Error>().is_some() => true,
        Err(error) => return Err(error.context("produce")),
    };
    Ok(Loaded { acks, unknown, next_id, broken: send_broke || receive_broke })
}

/// Sends until the time is over; gives back the next id, and what was being sent when the connection broke.
fn send(
    wire: &mut Wire,
    options: &LoadOptions,
    first_id: u64,
    pending: &mpsc::SyncSender<(u64, Ack)>,
) -> Result<(u64, Option<Ack>)> {
    let places: Vec<(usize, u32)> = options
        .topics
        .iter()
        .enumerate()
        .flat_map(|(topic, (_, partitions))| (0..*partitions).map(move |partition| (topic, partition)))
        .collect();
    ensure!(!places.is_empty(), "no partition to load");
    let random = Stream::new(options.seed ^ first_id, "load");
    let end = monotonic_ns() + u64::try_from(options.duration.as_nanos())?;
    let (mut next_id, mut bytes) = (first_id, 0);
    for (topic, partition) in places.iter().cycle().copied() {
        if monotonic_ns() >= end || bytes >= options.bytes {
            return Ok((next_id, None));
        }
        let Shape { records, markers } = options.shape;
        let records = u32::try_from(random.between(records.0, records.1))?;
        let value_bytes = MARKER_BYTES * usize::try_from(random.between(markers.0, markers.1))?;
        bytes += u64::from(records) * u64::try_from(value_bytes)?;
        let batch = batch(next_id, records, value_bytes)?;
        let place = ProduceBatch {
            topic_id: options.topics[topic].0,
            partition: PartitionIndex(partition),
            bytes: u32::try_from(batch.len())?,
        };
        let request = ProduceRequest { acks: -1, timeout_ms: 30_000, batches: vec![place] };
        let ack =
            Ack { topic, partition, base_offset: -1, first_id: next_id, records, value_bytes, sent_at: monotonic_ns(), at: 0 };
        next_id += u64::from(records);
        let Ok(correlation) = wire.send(Kind::Produce, &request.encode_body(), &batch) else {
            return Ok((next_id, Some(ack)));
        };
        // Blocks when enough is in flight; fails when the receiver has ended.
        if pending.send((correlation, ack)).is_err() {
            return Ok((next_id, Some(ack)));
        }
        if !options.pace.is_zero() {
            pause(options.pace);
        }
    }
    bail!("no partition to load")
}

/// A batch of records with ids from `first_id` on.
fn batch(first_id: u64, records: u32, value_bytes: usize) -> Result<Vec<u8>> {
    let mut builder = BatchBuilder::new(Codec::None);
    for index in 0..u64::from(records) {
        let value = marker(first_id + index).repeat(value_bytes / MARKER_BYTES);
        let millis = i64::try_from(monotonic_ns() / 1_000_000)?;
        builder.push(&RecordFields { timestamp: Timestamp(millis), key: None, value: Some(&value), headers: &[] })?;
    }
    Ok(builder.finish()?)
}

/// Takes the answers in order; gives back what was acknowledged, what has no answer, and why it ended.
fn receive(mut wire: Wire, expected: &mpsc::Receiver<(u64, Ack)>) -> (Vec<Ack>, Vec<Ack>, Result<()>) {
    let mut acks = Vec::new();
    let mut unknown = Vec::new();
    let mut outcome = Ok(());
    for (correlation, ack) in expected {
        if outcome.is_err() {
            unknown.push(ack);
            continue;
        }
        match receive_one(&mut wire, correlation, ack) {
            Ok(ack) => acks.push(ack),
            Err(error) => {
                // The sender ends too; what it had sent by then is unknown.
                wire.shut_down();
                unknown.push(ack);
                outcome = Err(error);
            }
        }
    }
    (acks, unknown, outcome)
}

fn receive_one(wire: &mut Wire, correlation: u64, ack: Ack) -> Result<Ack> {
    let reply = wire.receive()?;
    let at = monotonic_ns();
    ensure!(reply.header.correlation == correlation, "reply {} where {correlation} was due", reply.header.correlation);
    let results = ProduceReply::decode_body(&reply.body)?.results;
    let result = results.first().context("a produce reply without a result")?;
    ensure!(result.error.is_none(), "partition {}: {:?}: {}", ack.partition, result.error, result.message);
    Ok(Ack { base_offset: result.base_offset.0, at, ..ack })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_id_and_a_damaged_one_doesn_t() {
        let mut value = marker(77).repeat(5);
        assert_eq!(id_of(&value), Some(77));
        value[35] ^= 1;
        assert_eq!(id_of(&value), None);
        assert_eq!(id_of(&marker(77)[..15]), None);
        assert_eq!(id_of(b""), None);
    }
}
