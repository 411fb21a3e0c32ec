//! Reads every partition whole and compares it with what was acknowledged.
//!
//! Held: every acknowledged record is at its offset with its value; ids only rise with the offsets of a partition (so
//! nothing is there twice, and nothing out of order); offsets have no gap; every CRC holds; nothing is there that wasn't sent.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use protocol::batch::BatchView;
use protocol::ids::{LeaderEpoch, Offset, PartitionIndex, TopicId};
use protocol::native::{FetchPartition, FetchReply, FetchRequest, IsolationLevel, Kind};

use super::load::{Ack, id_of};
use super::wire::Wire;

/// A topic as the audit reads it.
#[derive(Clone, Debug)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// Its partitions.
    pub partitions: u32,
}

/// What the host must hold.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// The topics under load, by the acknowledgements' index.
    pub topics: &'a [Topic],
    /// What was acknowledged.
    pub acks: &'a [Ack],
    /// No record with an id from here on was ever sent.
    pub next_id: u64,
    /// A topic that doesn't exist (yet) is no fault if nothing in it was acknowledged.
    pub topics_may_lack: bool,
}

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audited {
    /// Records read.
    pub records: u64,
    /// Of them, acknowledged.
    pub acknowledged: u64,
}

/// Audits a running host.
///
/// # Errors
/// What is missing, doubled, changed or foreign, with partition and offset.
pub fn run(address: SocketAddr, expected: Expected<'_>) -> Result<Audited> {
    let mut wire = Wire::connect(address)?;
    let mut audited = Audited::default();
    for (index, topic) in expected.topics.iter().enumerate() {
        let acks: Vec<&Ack> = expected.acks.iter().filter(|ack| ack.topic == index).collect();
        let Some(found) = wire.describe(&topic.name)? else {
            ensure!(
                acks.is_empty() && expected.topics_may_lack,
                "topic {} is missing, with {} acknowledged batches",
                topic.name,
                acks.len()
            );
            continue;
        };
        ensure!(found.partitions.len() == usize::try_from(topic.partitions)?, "topic {} has lost partitions", topic.name);
        for partition in 0..topic.partitions {
            let place = format!("{}/{partition}", topic.name);
            let ids = read(&mut wire, found.topic_id, partition, expected.next_id).with_context(|| place.clone())?;
            audited.records += u64::try_from(ids.len())?;
            for ack in acks.iter().filter(|ack| ack.partition == partition) {
                audited.acknowledged += u64::from(ack.records);
                check(ack, &ids).with_context(|| place.clone())?;
            }
        }
    }
    Ok(audited)
}

/// The ids of a partition, by offset.
///
/// # Errors
/// A gap, a foreign or damaged value, ids that don't rise, or the connection's.
pub fn read(wire: &mut Wire, topic_id: TopicId, partition: u32, next_id: u64) -> Result<Vec<u64>> {
    let mut ids: Vec<u64> = Vec::new();
    loop {
        let offset = i64::try_from(ids.len())?;
        let place = FetchPartition {
            topic_id,
            partition: PartitionIndex(partition),
            offset: Offset(offset),
            max_bytes: 4 << 20,
            current_leader_epoch: LeaderEpoch(-1),
        };
        let isolation = IsolationLevel::ReadUncommitted;
        let request = FetchRequest { max_wait_ms: 0, min_bytes: 1, max_bytes: 4 << 20, isolation, partitions: vec![place] };
        let reply = wire.call(Kind::Fetch, &request.encode_body(), &[])?;
        let found = *FetchReply::decode_body(&reply.body)?.partitions.first().context("a fetch reply without a partition")?;
        ensure!(found.error.is_none(), "fetch at {offset}: {:?}", found.error);
        ensure!(found.log_start == Offset(0), "the log begins at {}", found.log_start);
        let mut bytes = reply.payload.as_slice();
        while !bytes.is_empty() {
            let (batch, rest) = BatchView::split(bytes)?;
            bytes = rest;
            take(&batch, &mut ids, next_id)?;
        }
        if i64::try_from(ids.len())? >= found.high_watermark.0 {
            return Ok(ids);
        }
        ensure!(
            i64::try_from(ids.len())? > offset,
            "nothing was read at {offset}, below the high watermark {}",
            found.high_watermark
        );
    }
}

fn take(batch: &BatchView<'_>, ids: &mut Vec<u64>, next_id: u64) -> Result<()> {
    batch.verify_crc()?;
    for record in batch.records()? {
        let record = record?;
        let due = Offset(i64::try_from(ids.len())?);
        if record.offset < due && batch.base_offset() < due {
            continue; // The batch was asked for by an offset inside it.
        }
        ensure!(record.offset == due, "offset {} where {due} was due", record.offset);
        let id = record.value.and_then(id_of).with_context(|| format!("the value at offset {due} is damaged or foreign"))?;
        ensure!(id < next_id, "the value at offset {due} was never sent: id {id}");
        let last = ids.last().copied();
        ensure!(last.is_none_or(|last| last < id), "id {id} at offset {due} behind id {last:?}: doubled or out of order");
        ids.push(id);
    }
    Ok(())
}

fn check(ack: &Ack, ids: &[u64]) -> Result<()> {
    for index in 0..u64::from(ack.records) {
        let (offset, id) = (u64::try_from(ack.base_offset)? + index, ack.first_id + index);
        let found = ids.get(usize::try_from(offset)?);
        ensure!(found.is_some(), "acknowledged record {id} at offset {offset} is lost: the log ends at {}", ids.len());
        ensure!(found == Some(&id), "acknowledged record {id} at offset {offset}: there is {found:?} instead");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(base_offset: i64, first_id: u64) -> Ack {
        Ack { topic: 0, partition: 0, base_offset, first_id, records: 2, value_bytes: 64, sent_at: 0, at: 0 }
    }

    #[test]
    fn a_lost_or_moved_record_is_found() {
        let ids = [10, 11, 15, 16];
        assert!(check(&ack(2, 15), &ids).is_ok());
        assert!(check(&ack(3, 16), &ids).unwrap_err().to_string().contains("is lost"));
        assert!(check(&ack(1, 15), &ids).unwrap_err().to_string().contains("instead"));
    }
}
