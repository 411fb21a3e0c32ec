//! The result of a record that is on its way: one shared outcome per batch, one handle per record.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use protocol::ids::{Offset, PartitionIndex, Timestamp};

use crate::error::DeliveryError;

/// Where a record went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: PartitionIndex,
    /// Its position in the partition's log; none with [`Acks::None`](crate::Acks::None), where the server says nothing.
    pub offset: Option<Offset>,
    /// When the server appended it, on topics stamped with the append time.
    pub append_time: Option<Timestamp>,
}

/// What a batch ended with.
#[derive(Clone, Debug)]
pub(crate) enum BatchResult {
    Appended { base_offset: Option<Offset>, append_time: Option<Timestamp> },
    Failed(DeliveryError),
}

#[derive(Debug, Default)]
struct OutcomeState {
    result: Option<BatchResult>,
    wakers: Vec<Waker>,
}

/// The outcome of one batch, shared by the handles of its records. Settled once.
#[derive(Debug)]
pub(crate) struct BatchOutcome {
    topic: Arc<str>,
    partition: PartitionIndex,
    state: Mutex<OutcomeState>,
}

impl BatchOutcome {
    pub fn new(topic: Arc<str>, partition: PartitionIndex) -> Arc<BatchOutcome> {
        Arc::new(BatchOutcome { topic, partition, state: Mutex::default() })
    }

    /// Gives the result to all who wait.
    ///
    /// # Panics
    /// If it was settled before.
    pub fn settle(&self, result: BatchResult) {
        let wakers = {
            let mut state = self.lock();
            assert!(state.result.is_none(), "a batch has one result");
            state.result = Some(result);
            std::mem::take(&mut state.wakers)
        };
        for waker in wakers {
            waker.wake();
        }
    }

    /// Ends once the batch is settled.
    pub async fn settled(&self) {
        std::future::poll_fn(|context| self.poll(context).map(drop)).await;
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<BatchResult> {
        let mut state = self.lock();
        if let Some(result) = &state.result {
            return Poll::Ready(result.clone());
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, OutcomeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A record on its way: a future of its result. Dropping it doesn't stop the record.
///
/// It stays valid after the producer is gone: whatever had no result then gets one that says so.
#[derive(Debug)]
#[must_use = "whether the record was delivered is known only to this handle"]
pub struct Delivery {
    outcome: Arc<BatchOutcome>,
    index: u32,
}

impl Delivery {
    pub(crate) fn new(outcome: Arc<BatchOutcome>, index: u32) -> Delivery {
        Delivery { outcome, index }
    }

    /// The partition that was chosen.
    #[must_use]
    pub fn partition(&self) -> PartitionIndex {
        self.outcome.partition
    }

    /// The result, if it is there already.
    #[must_use]
    pub fn try_result(&self) -> Option<Result<Delivered, DeliveryError>> {
        let result = self.outcome.lock().result.clone();
        result.map(|result| self.of_record(result))
    }

    fn of_record(&self, result: BatchResult) -> Result<Delivered, DeliveryError> {
        match result {
            BatchResult::Appended { base_offset, append_time } => Ok(Delivered {
                topic: self.outcome.topic.clone(),
                partition: self.outcome.partition,
                offset: base_offset.map(|base| base.plus(self.index)),
                append_time,
            }),
            BatchResult::Failed(error) => Err(error),
        }
    }
}

impl Future for Delivery {
    type Output = Result<Delivered, DeliveryError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.outcome.poll(context).map(|result| self.of_record(result))
    }
}
