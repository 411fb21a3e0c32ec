//! The consumer: reads partitions from a position on, in order.
//!
//! Owned by one task; it has no task of its own. Fetches are in flight while the application works: one per owner core is
//! out, and what it brings is kept, up to a bound, until [`Consumer::next`] gets to it.
//!
//! Order of events for a partition: a position is resolved to an offset; fetches go out from the *fetch position*, which
//! moves with each batch that arrives; batches are checked (CRC, offsets) on arrival and decoded when their turn comes; the
//! *position* moves with each record given out. A seek raises the partition's generation: whatever belongs to an older one
//! is dropped.
//!
//! Invariants: positions never move back but by a seek; every future here may be dropped at any await without losing a
//! record; memory is bounded by `prefetch_bytes_max`, one reply per core, and one decoded batch.

mod assigned;
mod decode;
mod fetching;

use std::collections::VecDeque;

use hashbrown::HashMap;
use protocol::ids::{CoreId, Offset, PartitionIndex};
use tokio::sync::mpsc;

use crate::client::{Client, Position};
use crate::config::{ConsumerConfig, OutOfRange};
use crate::connection::Outcome;
use crate::error::{ConsumeError, RequestError};
use crate::record::ConsumedRecord;
use assigned::Assigned;
use decode::FetchedBatch;
use fetching::Link;

/// Reads records from assigned partitions.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use corelane_client::{Client, ClientConfig, Consumer, ConsumerConfig, Position};
///
/// let client = Client::connect("127.0.0.1:9090", ClientConfig::default()).await?;
/// let mut consumer = Consumer::new(&client, ConsumerConfig::default())?;
/// consumer.assign_topic("readings", Position::Start).await?;
/// loop {
///     let record = consumer.next().await?;
///     println!("{}/{} {}: {:?}", record.topic, record.partition, record.offset, record.value);
/// }
/// # }
/// ```
pub struct Consumer {
    client: Client,
    config: ConsumerConfig,
    assigned: Vec<Assigned>,
    links: HashMap<CoreId, Link>,
    /// Fetched and not yet decoded, in the order of arrival.
    fetched: VecDeque<Fetched>,
    fetched_bytes: usize,
    current: Option<Current>,
    records: VecDeque<ConsumedRecord>,
    token_next: u64,
    turn: usize,
    sender: mpsc::UnboundedSender<(u64, Outcome)>,
    replies: mpsc::UnboundedReceiver<(u64, Outcome)>,
}

/// What waits to be given out.
enum Fetched {
    Batch { slot: usize, generation: u64, batch: FetchedBatch },
    Error { slot: usize, generation: u64, error: ConsumeError },
}

/// The batch whose records are given out.
#[derive(Clone, Copy)]
struct Current {
    slot: usize,
    /// Behind the batch's last record.
    next_offset: Offset,
}

impl Consumer {
    /// A consumer without partitions.
    ///
    /// # Errors
    /// If a setting is out of its bounds.
    pub fn new(client: &Client, config: ConsumerConfig) -> Result<Consumer, RequestError> {
        if let Some(reason) = config.problem() {
            return Err(RequestError::Invalid { reason });
        }
        let (sender, replies) = mpsc::unbounded_channel();
        Ok(Consumer {
            client: client.clone(),
            config,
            assigned: Vec::new(),
            links: HashMap::new(),
            fetched: VecDeque::new(),
            fetched_bytes: 0,
            current: None,
            records: VecDeque::new(),
            token_next: 0,
            turn: 0,
            sender,
            replies,
        })
    }

    /// Adds partitions of a topic, each read from a position on. One that is assigned already seeks there.
    ///
    /// # Errors
    /// If the topic or a partition doesn't exist; then nothing is added.
    pub async fn assign(&mut self, topic: &str, places: &[(PartitionIndex, Position)]) -> Result<(), RequestError> {
        let route = self.client.route(topic).await?;
        for (partition, _) in places {
            route.check(*partition)?;
        }
        for (partition, position) in places {
            match self.slot(topic, *partition) {
                Some(slot) => self.seek_slot(slot, *position),
                None => self.assigned.push(Assigned::new(&route, *partition, *position)),
            }
        }
        Ok(())
    }

    /// Adds all partitions of a topic.
    ///
    /// # Errors
    /// If the topic doesn't exist.
    pub async fn assign_topic(&mut self, topic: &str, position: Position) -> Result<(), RequestError> {
        let count = self.client.route(topic).await?.partition_count();
        let places: Vec<_> = (0..count).map(|partition| (PartitionIndex(partition), position)).collect();
        self.assign(topic, &places).await
    }

    /// Goes on reading a partition elsewhere. Records fetched from the old place aren't given out.
    ///
    /// # Errors
    /// If the partition isn't assigned.
    pub fn seek(&mut self, topic: &str, partition: PartitionIndex, position: Position) -> Result<(), ConsumeError> {
        let slot = self.slot(topic, partition);
        let slot = slot.ok_or_else(|| ConsumeError::NotAssigned { topic: topic.to_owned(), partition })?;
        self.seek_slot(slot, position);
        Ok(())
    }

    /// The offset of the next record that [`Consumer::next`] will give of this partition, or none if it isn't assigned or
    /// its position isn't resolved yet.
    #[must_use]
    pub fn position(&self, topic: &str, partition: PartitionIndex) -> Option<Offset> {
        self.slot(topic, partition).and_then(|slot| self.assigned[slot].position())
    }

    /// The end of what consumers see of this partition, as last heard.
    #[must_use]
    pub fn high_watermark(&self, topic: &str, partition: PartitionIndex) -> Option<Offset> {
        self.slot(topic, partition).and_then(|slot| self.assigned[slot].high_watermark)
    }

    /// The next record; waits until there is one. The future may be dropped at any time without losing a record.
    ///
    /// # Errors
    /// What the application must know of. Passing failures are retried inside. After an error of one partition the others
    /// go on, and that one rests until a seek.
    pub async fn next(&mut self) -> Result<ConsumedRecord, ConsumeError> {
        loop {
            if let Some(record) = self.records.pop_front() {
                self.gave_out(record.offset);
                return Ok(record);
            }
            self.fill().await?;
        }
    }

    /// The next records, all that are decoded, at least one; waits until there is one. For loops that handle many at once.
    ///
    /// # Errors
    /// As [`Consumer::next`].
    pub async fn next_records(&mut self) -> Result<Vec<ConsumedRecord>, ConsumeError> {
        while self.records.is_empty() {
            self.fill().await?;
        }
        let records: Vec<ConsumedRecord> = std::mem::take(&mut self.records).into();
        if let Some(last) = records.last() {
            self.gave_out(last.offset);
        }
        Ok(records)
    }

    /// Moves the position of the current batch's partition behind a record; behind the batch if it was the last.
    fn gave_out(&mut self, offset: Offset) {
        let current = self.current.expect("records come from the current batch");
        let next = if self.records.is_empty() { current.next_offset } else { offset.plus(1) };
        self.assigned[current.slot].passed(next);
    }

    /// Ends with decoded records, or after one step towards them.
    async fn fill(&mut self) -> Result<(), ConsumeError> {
        if self.fetched.is_empty() && self.assigned.iter().all(Assigned::is_resting) {
            return Err(ConsumeError::NothingAssigned);
        }
        self.take_replies();
        // A fetch goes out before what is there is decoded, so that the next reply comes meanwhile.
        self.send_fetches();
        if self.decode_next()? {
            return Ok(());
        }
        self.refresh_routes().await;
        self.resolve_positions().await?;
        self.connect_links().await;
        self.send_fetches();
        self.wait().await;
        Ok(())
    }

    /// Decodes the oldest batch that has records to give. Whether there are any.
    fn decode_next(&mut self) -> Result<bool, ConsumeError> {
        while self.records.is_empty() {
            match self.fetched.pop_front() {
                None => return Ok(false),
                Some(Fetched::Error { slot, generation, error }) => {
                    if self.assigned[slot].generation == generation {
                        self.give_error(slot, error)?;
                    }
                }
                Some(Fetched::Batch { slot, generation, batch }) => self.decode(slot, generation, batch)?,
            }
        }
        Ok(true)
    }

    /// The turn of an error has come.
    fn give_error(&mut self, slot: usize, error: ConsumeError) -> Result<(), ConsumeError> {
        let out_of_range = matches!(error, ConsumeError::OffsetOutOfRange { .. });
        match self.config.out_of_range {
            OutOfRange::Start if out_of_range => self.assigned[slot].seek(Position::Start),
            OutOfRange::End if out_of_range => self.assigned[slot].seek(Position::End),
            _ => {
                self.assigned[slot].rest();
                return Err(error);
            }
        }
        tracing::warn!(%error, "goes on at the {:?} of the log", self.config.out_of_range);
        Ok(())
    }

    /// Puts an error behind what was fetched of a partition.
    fn queue_error(&mut self, slot: usize, error: ConsumeError) {
        let assigned = &mut self.assigned[slot];
        assigned.hold();
        self.fetched.push_back(Fetched::Error { slot, generation: assigned.generation, error });
    }

    fn decode(&mut self, slot: usize, generation: u64, batch: FetchedBatch) -> Result<(), ConsumeError> {
        let assigned = &mut self.assigned[slot];
        self.fetched_bytes -= batch.size();
        assigned.fetched_bytes -= batch.size();
        let Some(position) = assigned.position().filter(|_| assigned.generation == generation) else {
            return Ok(());
        };
        let next_offset = batch.next_offset();
        let limit = self.config.decompressed_bytes_max;
        if let Err(reason) = batch.decode(&assigned.topic, assigned.partition, position, limit, &mut self.records) {
            self.records.clear();
            assigned.rest();
            return Err(assigned.corrupt(batch.base_offset(), reason));
        }
        self.current = Some(Current { slot, next_offset });
        if self.records.is_empty() {
            // Markers only, or records below the position only.
            assigned.passed(next_offset);
        }
        Ok(())
    }

    fn seek_slot(&mut self, slot: usize, position: Position) {
        if self.current.is_some_and(|current| current.slot == slot) {
            self.records.clear();
            self.current = None;
        }
        self.assigned[slot].seek(position);
        self.abandon_fetch_of(slot);
    }

    fn slot(&self, topic: &str, partition: PartitionIndex) -> Option<usize> {
        self.assigned.iter().position(|assigned| assigned.partition == partition && *assigned.topic == *topic)
    }
}

#[cfg(test)]
mod tests;
