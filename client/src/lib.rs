//! The Rust client of Corelane, over its native protocol.
//!
//! - [`Client`]: connects, makes, removes and describes topics, finds offsets.
//! - [`Producer`]: sends records in compressed batches, pipelined; one result per record.
//! - [`Consumer`]: reads partitions from an offset, a time, the start or the end on.
//!
//! It runs on any tokio runtime. A client connects to the core that owns a partition, so that no request takes a hop inside
//! the host.
//!
//! ```no_run
//! use corelane_client::{Client, ClientConfig, Consumer, ConsumerConfig, Position, Producer, ProducerConfig, Record};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("127.0.0.1:9090", ClientConfig::default()).await?;
//! client.create_topic("readings", 1, &[]).await?;
//!
//! let producer = Producer::new(&client, ProducerConfig::default())?;
//! let deliveries = vec![
//!     producer.send("readings", Record::value("21.5")).await?,
//!     producer.send("readings", Record::value("21.7")).await?,
//! ];
//! producer.flush().await;
//! for delivery in deliveries {
//!     println!("at offset {:?}", delivery.await?.offset);
//! }
//!
//! let mut consumer = Consumer::new(&client, ConsumerConfig::default())?;
//! consumer.assign_topic("readings", Position::Start).await?;
//! println!("{:?}", consumer.next().await?.value);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod client;
mod config;
mod connection;
mod consumer;
mod delivery;
mod error;
#[cfg(test)]
mod fake;
mod partitioning;
mod producer;
mod record;

pub use client::{Client, HostDescription, ListedOffset, PartitionDescription, Position, TopicDescription};
pub use config::{Acks, ClientConfig, ConsumerConfig, NullKeyPartitioner, OutOfRange, ProducerConfig, Retry};
pub use consumer::Consumer;
pub use delivery::{Delivered, Delivery};
pub use error::{ConnectError, ConsumeError, DeliveryError, RequestError, SendError};
pub use producer::Producer;
pub use protocol::compression::Codec;
pub use protocol::error::ErrorCode;
pub use protocol::ids::{ClusterId, CoreId, HostId, LeaderEpoch, Offset, PartitionIndex, Timestamp, TopicId};
pub use record::{ConsumedRecord, Header, Record};
