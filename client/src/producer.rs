//! The producer: records in, one result per record out.
//!
//! Its handles (any task) put records into open batches under one lock, held for an append only. Its sender task
//! ([`sender`]) finishes batches, sends them to the owner cores and settles them; the order rule is [`queue`]'s.
//!
//! Invariants: the memory of records without a result never exceeds `memory_bytes`: [`Producer::send`] waits for room
//! before it takes the lock. Every record that was taken gets a result, also when the producer is dropped.

mod open_batch;
mod queue;
mod sender;
mod sequences;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use hashbrown::HashMap;
use protocol::batch::BuildError;
use protocol::ids::{PartitionIndex, Timestamp};
use protocol::limits;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::{Client, TopicRoute};
use crate::config::ProducerConfig;
use crate::delivery::{BatchOutcome, Delivery};
use crate::error::{RequestError, SendError};
use crate::partitioning::Partitioner;
use crate::record::Record;
use open_batch::OpenBatch;
use queue::{Policy, Queue};

/// What a record takes beside its content, in bytes: lengths, its share of the batch, its header names.
const RECORD_OVERHEAD_BYTES: usize = 64;

/// Sends records. Clones are the same producer; it ends when the last one is dropped.
///
/// Batches are made per partition: one leaves when it is full, when its linger has passed, or on [`Producer::flush`].
/// Several batches of a partition are under way at once, and records stay in the order of `send`; see
/// [`DeliveryError::Overtaken`](crate::DeliveryError::Overtaken) for what that means after a refusal.
///
/// It is idempotent unless [`ProducerConfig::idempotent`] says otherwise: batches have sequences, by which the server knows one again that is
/// sent twice (KIP-98). When a connection breaks with batches under way, they are sent again until `delivery_timeout`, and are in the log once.
/// Otherwise their records end as [`DeliveryError::Unknown`](crate::DeliveryError::Unknown): they may be in the log or not.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use corelane_client::{Client, ClientConfig, Producer, ProducerConfig, Record};
///
/// let client = Client::connect("127.0.0.1:9090", ClientConfig::default()).await?;
/// let producer = Producer::new(&client, ProducerConfig::default())?;
///
/// // `send` takes the record; the delivery is its result.
/// let delivery = producer.send("readings", Record::value("21.5").with_key("sensor-7")).await?;
/// producer.flush().await;
/// let delivered = delivery.await?;
/// println!("{}/{} at {:?}", delivered.topic, delivered.partition, delivered.offset);
/// producer.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Producer {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
    sender: Mutex<Option<JoinHandle<()>>>,
}

/// What handles and the sender task share.
struct Shared {
    client: Client,
    config: ProducerConfig,
    memory: Semaphore,
    state: Mutex<State>,
    /// There may be something to send.
    wake: Notify,
}

#[derive(Default)]
struct State {
    closed: bool,
    topics: HashMap<String, Topic>,
    queues: Vec<Queue>,
    /// Indexes of queues that hold batches.
    active: Vec<usize>,
}

struct Topic {
    route: Arc<TopicRoute>,
    partitioner: Partitioner,
    /// Index into `State::queues`, by partition.
    queues: Vec<Option<usize>>,
}

impl Producer {
    /// Starts a producer; must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If a setting is out of its bounds.
    pub fn new(client: &Client, config: ProducerConfig) -> Result<Producer, RequestError> {
        if let Some(reason) = config.problem() {
            return Err(RequestError::Invalid { reason });
        }
        let shared = Arc::new(Shared {
            client: client.clone(),
            memory: Semaphore::new(config.memory_bytes),
            config,
            state: Mutex::default(),
            wake: Notify::new(),
        });
        let sender = tokio::spawn(sender::run(shared.clone()));
        Ok(Producer { handle: Arc::new(Handle { shared, sender: Mutex::new(Some(sender)) }) })
    }

    /// Takes a record; waits while the producer's memory is used up. Records of one task are sent in the order of its calls.
    ///
    /// The future may be dropped before it ends: then the record isn't taken.
    ///
    /// # Errors
    /// If the record is refused; it is not on its way then.
    pub async fn send(&self, topic: &str, record: Record) -> Result<Delivery, SendError> {
        let shared = &self.handle.shared;
        let memory_bytes = shared.check(&record)?;
        let permits = u32::try_from(memory_bytes).expect("bounded by memory_bytes, which is below 2^31");
        let room = match shared.memory.try_acquire_many(permits) {
            Ok(room) => room,
            Err(_) => {
                // Waiting for linger makes no sense while somebody waits for memory.
                shared.close_open_batches();
                shared.memory.acquire_many(permits).await.map_err(|_| SendError::Closed)?
            }
        };
        let route = shared.client.route(topic).await?;
        if let Some(partition) = record.partition {
            route.check(partition)?;
        }
        let delivery = shared.append(&route, &record, memory_bytes)?;
        // The batch gives it back when it is settled.
        room.forget();
        Ok(delivery)
    }

    /// Sends what is open now, and ends when every record taken before has its result.
    pub async fn flush(&self) {
        let outcomes = self.handle.shared.close_open_batches();
        for outcome in outcomes {
            outcome.settled().await;
        }
    }

    /// Takes no more records, flushes, and ends the producer. Clones of it take no more records either.
    pub async fn close(&self) {
        self.handle.shared.lock().closed = true;
        self.flush().await;
        self.handle.shared.memory.close();
        self.handle.shared.wake.notify_one();
        let sender = self.handle.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            // A sender task that panicked has been reported by the runtime.
            drop(sender.await);
        }
    }

    /// Bytes of records that have no result yet.
    #[must_use]
    pub fn memory_used_bytes(&self) -> usize {
        let shared = &self.handle.shared;
        shared.config.memory_bytes.saturating_sub(shared.memory.available_permits())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            sender.abort();
        }
        self.shared.end();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory that a record takes.
    fn check(&self, record: &Record) -> Result<usize, SendError> {
        let bytes = record.content_bytes() + RECORD_OVERHEAD_BYTES;
        if record.content_bytes() > self.config.record_bytes_max {
            let allowed = self.config.record_bytes_max;
            return Err(SendError::RecordTooLarge { bytes: record.content_bytes(), allowed });
        }
        if record.headers.len() > limits::RECORD_HEADERS_MAX {
            let allowed = limits::RECORD_HEADERS_MAX;
            return Err(SendError::TooManyHeaders { headers: record.headers.len(), allowed });
        }
        if let Some(timestamp) = record.timestamp.filter(|timestamp| timestamp.0 < 0) {
            return Err(SendError::InvalidTimestamp { timestamp_ms: timestamp.0 });
        }
        Ok(bytes.min(self.config.memory_bytes))
    }

    fn append(&self, route: &Arc<TopicRoute>, record: &Record, memory_bytes: usize) -> Result<Delivery, SendError> {
        let now = Instant::now();
        let timestamp = record.timestamp.unwrap_or_else(wall_clock);
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.closed {
            return Err(SendError::Closed);
        }
        let topic = state.topic(route, &self.config);
        let partition = match record.partition {
            Some(partition) => partition,
            None => topic.partitioner.partition(record.key.as_deref(), route.partition_count()),
        };
        let index = state.queue(route, partition, &self.config);
        let queue = &mut state.queues[index];
        let was_empty = queue.is_empty();
        let mut wake = self.config.linger.is_zero();
        // A record that doesn't fit the open batch, by size or by its distance in time, opens the next one.
        if queue.open_mut().as_ref().is_some_and(|open| !open.has_room_for(record, self.config.batch_bytes)) {
            queue.close_open();
            wake = true;
        }
        let pushed = match queue.open_mut() {
            Some(open) => open.push(record, timestamp, memory_bytes).map(|place| (open.outcome.clone(), place)).ok(),
            None => None,
        };
        let (outcome, place) = match pushed {
            Some(pushed) => pushed,
            None => {
                let outcome = BatchOutcome::new(queue.topic.clone(), partition);
                let mut open = OpenBatch::new(&self.config, outcome.clone(), now);
                let refused = |error: BuildError| SendError::Refused { reason: error.to_string() };
                let place = open.push(record, timestamp, memory_bytes).map_err(refused)?;
                queue.close_open();
                *queue.open_mut() = Some(open);
                wake = true;
                (outcome, place)
            }
        };
        let delivery = Delivery::new(outcome, place);
        if queue.open_mut().as_ref().is_some_and(|open| open.is_full(self.config.batch_bytes)) {
            queue.close_open();
            wake = true;
            if record.key.is_none() && record.partition.is_none() {
                state.topic(route, &self.config).partitioner.batch_left();
            }
        }
        if was_empty {
            state.active.push(index);
        }
        drop(guard);
        if wake {
            self.wake.notify_one();
        }
        Ok(delivery)
    }

    /// All open batches are due now; gives the outcomes of everything without a result.
    fn close_open_batches(&self) -> Vec<Arc<BatchOutcome>> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let mut outcomes = Vec::new();
        for index in &state.active {
            let queue = &mut state.queues[*index];
            queue.close_open();
            outcomes.extend(queue.outcomes());
        }
        drop(guard);
        self.wake.notify_one();
        outcomes
    }

    /// Everything gets a result; nothing more is taken.
    fn end(&self) {
        let mut state = self.lock();
        state.closed = true;
        for queue in &mut state.queues {
            queue.end();
        }
        state.active.clear();
        drop(state);
        self.memory.close();
    }
}

impl State {
    fn topic(&mut self, route: &Arc<TopicRoute>, config: &ProducerConfig) -> &mut Topic {
        let topic = self.topics.entry_ref(&*route.name).or_insert_with(|| Topic {
            route: route.clone(),
            partitioner: Partitioner::new(config.null_key_partitioner, turn_seed()),
            queues: Vec::new(),
        });
        if topic.queues.len() < route.partitions.len() {
            topic.queues.resize(route.partitions.len(), None);
            topic.route = route.clone();
        }
        topic
    }

    fn queue(&mut self, route: &Arc<TopicRoute>, partition: PartitionIndex, config: &ProducerConfig) -> usize {
        let index_next = self.queues.len();
        let topic = self.topic(route, config);
        let slot = &mut topic.queues[usize::try_from(partition.0).expect("a partition of this topic")];
        if let Some(index) = slot {
            return *index;
        }
        *slot = Some(index_next);
        let policy = Policy {
            idempotent: config.is_idempotent(),
            window: config.batches_in_flight_max,
            retry: config.retry,
            backoff: config.retry_backoff,
            delivery_timeout: config.delivery_timeout,
        };
        self.queues.push(Queue::new(route.name.clone(), partition, policy));
        index_next
    }
}

/// Milliseconds since the Unix epoch.
#[allow(clippy::disallowed_methods, reason = "a client stamps its records with the wall clock")]
fn wall_clock() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Where a producer's turns begin, so that many producers don't begin at one partition.
#[allow(clippy::disallowed_methods, reason = "any number will do; it decides only where the turns begin")]
fn turn_seed() -> u32 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_micros()
}

#[cfg(test)]
mod tests;
