//! CreateTopic, DeleteTopic and AlterTopic.
//!
//! Version 1 of all. The host checks name, partition count and configs; a refusal is an error reply. The answer comes
//! when the change is in the metadata log and the topic can be used (or is gone), or after `timeout_ms`.

use super::NativeError;
use super::fields::{access, bounded, encode, text};
use crate::ids::TopicId;
use crate::limits::{TOPIC_CONFIGS_MAX, TOPIC_NAME_BYTES_MAX};

/// Asks for a topic to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateTopicRequest {
    /// Its name.
    pub name: String,
    /// Its number of partitions.
    pub partitions: u32,
    /// Names and values of the configs that differ from the defaults.
    pub configs: Vec<(String, String)>,
    /// Longest wait for the answer, in milliseconds.
    pub timeout_ms: u32,
}

/// The topic exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateTopicReply {
    /// Its identity.
    pub topic_id: TopicId,
}

/// Asks for a topic and its data to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteTopicRequest {
    /// Its name.
    pub name: String,
}

/// The topic is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteTopicReply {
    /// Its identity.
    pub topic_id: TopicId,
}

/// Asks for settings of a topic to be changed, all of them or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlterTopicRequest {
    /// Its name.
    pub name: String,
    /// Names of the settings and their new values; `None`: back to the default.
    pub configs: Vec<(String, Option<String>)>,
    /// Longest wait for the answer, in milliseconds.
    pub timeout_ms: u32,
}

/// The settings are in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlterTopicReply {
    /// The topic's identity.
    pub topic_id: TopicId,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct AlterTopicRequestV1 {
    name: Vec<u8>,
    configs: Vec<AlterTopicConfigV1>,
    timeout_ms: u32,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct AlterTopicConfigV1 {
    name: Vec<u8>,
    to_default: u8,
    value: Vec<u8>,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct AlterTopicReplyV1 {
    topic_id: [u8; 16],
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct CreateTopicRequestV1 {
    name: Vec<u8>,
    partitions: u32,
    configs: Vec<CreateTopicConfigV1>,
    timeout_ms: u32,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct CreateTopicConfigV1 {
    name: Vec<u8>,
    value: Vec<u8>,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct CreateTopicReplyV1 {
    topic_id: [u8; 16],
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct DeleteTopicRequestV1 {
    name: Vec<u8>,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct DeleteTopicReplyV1 {
    topic_id: [u8; 16],
}

impl CreateTopicRequest {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        let configs = self
            .configs
            .iter()
            .map(|(name, value)| CreateTopicConfigV1 { name: name.as_bytes().to_vec(), value: value.as_bytes().to_vec() });
        encode(&CreateTopicRequestV1 {
            name: self.name.as_bytes().to_vec(),
            partitions: self.partitions,
            configs: configs.collect(),
            timeout_ms: self.timeout_ms,
        })
    }

    /// Reads a body. The name's length is checked, its letters aren't: see [`crate::topic_name`].
    ///
    /// # Errors
    /// If it isn't laid out so, or a field can't be.
    pub fn decode_body(body: &[u8]) -> Result<CreateTopicRequest, NativeError> {
        let archived = access::<ArchivedCreateTopicRequestV1>(body, "a create topic request")?;
        bounded(archived.name.len(), TOPIC_NAME_BYTES_MAX, "name")?;
        bounded(archived.configs.len(), TOPIC_CONFIGS_MAX, "configs")?;
        let mut configs = Vec::with_capacity(archived.configs.len());
        for config in archived.configs.iter() {
            configs.push((text(config.name.as_slice(), "config name")?, text(config.value.as_slice(), "config value")?));
        }
        Ok(CreateTopicRequest {
            name: text(archived.name.as_slice(), "name")?,
            partitions: archived.partitions.to_native(),
            configs,
            timeout_ms: archived.timeout_ms.to_native(),
        })
    }
}

impl CreateTopicReply {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        encode(&CreateTopicReplyV1 { topic_id: self.topic_id.0.to_be_bytes() })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so.
    pub fn decode_body(body: &[u8]) -> Result<CreateTopicReply, NativeError> {
        let archived = access::<ArchivedCreateTopicReplyV1>(body, "a create topic reply")?;
        Ok(CreateTopicReply { topic_id: TopicId(u128::from_be_bytes(archived.topic_id)) })
    }
}

impl DeleteTopicRequest {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        encode(&DeleteTopicRequestV1 { name: self.name.as_bytes().to_vec() })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so, or a field can't be.
    pub fn decode_body(body: &[u8]) -> Result<DeleteTopicRequest, NativeError> {
        let archived = access::<ArchivedDeleteTopicRequestV1>(body, "a delete topic request")?;
        bounded(archived.name.len(), TOPIC_NAME_BYTES_MAX, "name")?;
        Ok(DeleteTopicRequest { name: text(archived.name.as_slice(), "name")? })
    }
}

impl DeleteTopicReply {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        encode(&DeleteTopicReplyV1 { topic_id: self.topic_id.0.to_be_bytes() })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so.
    pub fn decode_body(body: &[u8]) -> Result<DeleteTopicReply, NativeError> {
        let archived = access::<ArchivedDeleteTopicReplyV1>(body, "a delete topic reply")?;
        Ok(DeleteTopicReply { topic_id: TopicId(u128::from_be_bytes(archived.topic_id)) })
    }
}

impl AlterTopicRequest {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        let configs = self.configs.iter().map(|(name, value)| AlterTopicConfigV1 {
            name: name.as_bytes().to_vec(),
            to_default: u8::from(value.is_none()),
            value: value.as_deref().unwrap_or_default().as_bytes().to_vec(),
        });
        encode(&AlterTopicRequestV1 {
            name: self.name.as_bytes().to_vec(),
            configs: configs.collect(),
            timeout_ms: self.timeout_ms,
        })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so, or a field can't be.
    pub fn decode_body(body: &[u8]) -> Result<AlterTopicRequest, NativeError> {
        let archived = access::<ArchivedAlterTopicRequestV1>(body, "an alter topic request")?;
        bounded(archived.name.len(), TOPIC_NAME_BYTES_MAX, "name")?;
        bounded(archived.configs.len(), TOPIC_CONFIGS_MAX, "configs")?;
        let mut configs = Vec::with_capacity(archived.configs.len());
        for config in archived.configs.iter() {
            let name = text(config.name.as_slice(), "config name")?;
            let value = text(config.value.as_slice(), "config value")?;
            let value = match config.to_default {
                0 => Some(value),
                1 if value.is_empty() => None,
                found => return Err(NativeError::Range { field: "to_default", found: found.into(), first: 0, last: 1 }),
            };
            configs.push((name, value));
        }
        let name = text(archived.name.as_slice(), "name")?;
        Ok(AlterTopicRequest { name, configs, timeout_ms: archived.timeout_ms.to_native() })
    }
}

impl AlterTopicReply {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        encode(&AlterTopicReplyV1 { topic_id: self.topic_id.0.to_be_bytes() })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so.
    pub fn decode_body(body: &[u8]) -> Result<AlterTopicReply, NativeError> {
        let archived = access::<ArchivedAlterTopicReplyV1>(body, "an alter topic reply")?;
        Ok(AlterTopicReply { topic_id: TopicId(u128::from_be_bytes(archived.topic_id)) })
    }
}
