//! InitProducer.
//!
//! Version 1. Gives an identity to a producer that wants its retries known again (KIP-98). An identity is never given twice in a cluster.

use super::NativeError;
use super::fields::{access, encode};
use crate::ids::{ProducerEpoch, ProducerId};

/// Asks for a producer id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitProducerRequest {
    /// Longest wait for the answer, in milliseconds.
    pub timeout_ms: u32,
}

/// The identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitProducerReply {
    /// Nobody else's.
    pub producer_id: ProducerId,
    /// The epoch to begin with. A producer that can't go on with its sequences begins the next one, at sequence 0 (KIP-360).
    pub producer_epoch: ProducerEpoch,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct InitProducerRequestV1 {
    timeout_ms: u32,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct InitProducerReplyV1 {
    producer_id: i64,
    producer_epoch: i16,
}

impl InitProducerRequest {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        encode(&InitProducerRequestV1 { timeout_ms: self.timeout_ms })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so.
    pub fn decode_body(body: &[u8]) -> Result<InitProducerRequest, NativeError> {
        let archived = access::<ArchivedInitProducerRequestV1>(body, "an init producer request")?;
        Ok(InitProducerRequest { timeout_ms: archived.timeout_ms.to_native() })
    }
}

impl InitProducerReply {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        encode(&InitProducerReplyV1 { producer_id: self.producer_id.0, producer_epoch: self.producer_epoch.0 })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so.
    pub fn decode_body(body: &[u8]) -> Result<InitProducerReply, NativeError> {
        let archived = access::<ArchivedInitProducerReplyV1>(body, "an init producer reply")?;
        Ok(InitProducerReply {
            producer_id: ProducerId(archived.producer_id.to_native()),
            producer_epoch: ProducerEpoch(archived.producer_epoch.to_native()),
        })
    }
}
