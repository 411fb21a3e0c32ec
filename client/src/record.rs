//! Records as applications give and get them.

use std::sync::Arc;

use bytes::Bytes;
use protocol::ids::{LeaderEpoch, Offset, PartitionIndex, Timestamp};

/// A named value beside a record's key and value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The name; names may repeat.
    pub key: String,
    /// The value, if any.
    pub value: Option<Bytes>,
}

/// A record to be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Decides the partition, and which record a newer one replaces on a compacted topic.
    pub key: Option<Bytes>,
    /// The content; none is a tombstone.
    pub value: Option<Bytes>,
    /// Headers, in order.
    pub headers: Vec<Header>,
    /// Milliseconds since the Unix epoch; the time of [`Producer::send`](crate::Producer::send) if none.
    pub timestamp: Option<Timestamp>,
    /// The partition; chosen by the key, or in turn, if none.
    pub partition: Option<PartitionIndex>,
}

impl Record {
    /// A record with a value and nothing else.
    ///
    /// ```
    /// use corelane_client::Record;
    ///
    /// let record = Record::value("21.5").with_key("sensor-7").with_header("unit", "celsius");
    /// assert_eq!(record.key.as_deref(), Some(&b"sensor-7"[..]));
    /// ```
    #[must_use]
    pub fn value(value: impl Into<Bytes>) -> Record {
        Record { value: Some(value.into()), ..Record::default() }
    }

    /// A tombstone: on a compacted topic it removes the key.
    #[must_use]
    pub fn tombstone(key: impl Into<Bytes>) -> Record {
        Record { key: Some(key.into()), ..Record::default() }
    }

    /// The same with a key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Bytes>) -> Record {
        self.key = Some(key.into());
        self
    }

    /// The same with one more header.
    #[must_use]
    pub fn with_header(mut self, key: impl Into<String>, value: impl Into<Bytes>) -> Record {
        self.headers.push(Header { key: key.into(), value: Some(value.into()) });
        self
    }

    /// The same with a timestamp of its own.
    #[must_use]
    pub fn with_timestamp(mut self, timestamp: Timestamp) -> Record {
        self.timestamp = Some(timestamp);
        self
    }

    /// The same, bound to a partition.
    #[must_use]
    pub fn with_partition(mut self, partition: PartitionIndex) -> Record {
        self.partition = Some(partition);
        self
    }

    /// Bytes of key, value and headers.
    #[must_use]
    pub fn content_bytes(&self) -> usize {
        let headers = self.headers.iter().map(|header| header.key.len() + length(&header.value)).sum::<usize>();
        length(&self.key) + length(&self.value) + headers
    }
}

fn length(bytes: &Option<Bytes>) -> usize {
    bytes.as_ref().map_or(0, Bytes::len)
}

/// A record as it lies in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumedRecord {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: PartitionIndex,
    /// Its position in the partition's log.
    pub offset: Offset,
    /// The producer's time, or the append time on topics that say so.
    pub timestamp: Timestamp,
    /// The leadership under which it was appended.
    pub leader_epoch: LeaderEpoch,
    /// The key, if any.
    pub key: Option<Bytes>,
    /// The value; none is a tombstone.
    pub value: Option<Bytes>,
    /// Headers, in order.
    pub headers: Vec<Header>,
}
