//! Records of the metadata log and their byte form.
//!
//! A record is the value of one record of a batch in the metadata partition; the batch's CRC covers it. Layout, little endian:
//!
//! ```text
//! format u8 (1) | type u8 | type version u8 | fields of the type
//! text: length u16, UTF-8 bytes      id: u128      list: count u32, items
//! ```
//!
//! Decoding takes bytes from a disk: every length is checked against what is there, nothing is allocated on its word, and bytes left
//! over are an error.

use protocol::ids::{BrokerEpoch, CoreId, DirectoryId, HostId, PartitionIndex, ProducerId, TopicId, TopicPartition};

#[cfg(test)]
mod tests;

const FORMAT: u8 = 1;
const TYPE_VERSION: u8 = 1;

const HOST_STARTED: u8 = 1;
const TOPIC_CREATED: u8 = 2;
const PARTITION_PLACED: u8 = 3;
const TOPIC_DELETED: u8 = 4;
const TOPIC_CONFIG_CHANGED: u8 = 5;
const PRODUCER_IDS_TAKEN: u8 = 6;

/// Longest text of a record, in bytes.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Settings of one topic in a record, at most.
pub const CONFIGS_MAX: usize = 256;

/// A change of the cluster's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataRecord {
    /// A host's process has started. Raises the leader epoch of every partition that it leads.
    HostStarted {
        /// The host.
        host: HostId,
        /// Higher than that of any earlier start of the host.
        broker_epoch: BrokerEpoch,
    },
    /// A topic exists from here on. Its partitions are placed by records of their own.
    TopicCreated {
        /// Its identity, never used before.
        id: TopicId,
        /// Its name, unused at the moment.
        name: String,
        /// How many partitions it has.
        partitions: u32,
        /// Its settings, by name, as given.
        configs: Vec<(String, String)>,
    },
    /// A partition lives here from now on. Raises its leader epoch, if it was elsewhere before.
    PartitionPlaced {
        /// The partition.
        partition: TopicPartition,
        /// The host that leads it.
        host: HostId,
        /// The core there.
        core: CoreId,
        /// The data directory there.
        directory: DirectoryId,
    },
    /// A topic and all its partitions are gone.
    TopicDeleted {
        /// The topic.
        id: TopicId,
    },
    /// One setting of a topic has changed.
    TopicConfigChanged {
        /// The topic.
        id: TopicId,
        /// The setting's name.
        name: String,
        /// Its value; `None`: back to the default.
        value: Option<String>,
    },
    /// A host gives producer ids away, up to here.
    ProducerIdsTaken {
        /// The host.
        host: HostId,
        /// The first id that is free from now on.
        next: ProducerId,
    },
}

/// Why bytes aren't a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A field needs more bytes than there are.
    #[error("{field} needs {needed} bytes, {left} are left")]
    Short {
        /// The field.
        field: &'static str,
        /// Bytes that it needs.
        needed: usize,
        /// Bytes left.
        left: usize,
    },
    /// A format, type or type version that this version doesn't know.
    #[error("record format {format}, type {kind}, version {version} is not known to this version")]
    Unsupported {
        /// The format's number.
        format: u8,
        /// The type's.
        kind: u8,
        /// The type version's.
        version: u8,
    },
    /// A length or count above its limit.
    #[error("{field} is {value}, {limit} is the limit")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// Its value.
        value: usize,
        /// The largest allowed.
        limit: usize,
    },
    /// A text isn't UTF-8.
    #[error("{field} is not UTF-8")]
    NotText {
        /// The field.
        field: &'static str,
    },
    /// A flag that is neither 0 nor 1.
    #[error("{field} is {value}, only 0 and 1 are allowed")]
    BadFlag {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u8,
    },
    /// Bytes behind the last field.
    #[error("{count} bytes behind the last field")]
    Trailing {
        /// How many.
        count: usize,
    },
}

impl MetadataRecord {
    /// The byte form.
    ///
    /// # Panics
    /// If a text is over [`TEXT_BYTES_MAX`] or there are over [`CONFIGS_MAX`] settings; whoever makes a record checks that first.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        match self {
            MetadataRecord::HostStarted { host, broker_epoch } => {
                head(&mut out, HOST_STARTED);
                out.extend(host.0.to_le_bytes());
                out.extend(broker_epoch.0.to_le_bytes());
            }
            MetadataRecord::TopicCreated { id, name, partitions, configs } => {
                head(&mut out, TOPIC_CREATED);
                out.extend(id.0.to_le_bytes());
                text(&mut out, name);
                out.extend(partitions.to_le_bytes());
                assert!(configs.len() <= CONFIGS_MAX, "{} settings in one record", configs.len());
                let count = u32::try_from(configs.len()).expect("checked above");
                out.extend(count.to_le_bytes());
                for (name, value) in configs {
                    text(&mut out, name);
                    text(&mut out, value);
                }
            }
            MetadataRecord::PartitionPlaced { partition, host, core, directory } => {
                head(&mut out, PARTITION_PLACED);
                out.extend(partition.topic.0.to_le_bytes());
                out.extend(partition.partition.0.to_le_bytes());
                out.extend(host.0.to_le_bytes());
                out.extend(core.0.to_le_bytes());
                out.extend(directory.0.to_le_bytes());
            }
            MetadataRecord::TopicDeleted { id } => {
                head(&mut out, TOPIC_DELETED);
                out.extend(id.0.to_le_bytes());
            }
            MetadataRecord::TopicConfigChanged { id, name, value } => {
                head(&mut out, TOPIC_CONFIG_CHANGED);
                out.extend(id.0.to_le_bytes());
                text(&mut out, name);
                out.push(u8::from(value.is_some()));
                if let Some(value) = value {
                    text(&mut out, value);
                }
            }
            MetadataRecord::ProducerIdsTaken { host, next } => {
                head(&mut out, PRODUCER_IDS_TAKEN);
                out.extend(host.0.to_le_bytes());
                out.extend(next.0.to_le_bytes());
            }
        }
        out
    }

    /// The record that these bytes are.
    ///
    /// # Errors
    /// They aren't one whole record of a known type.
    pub fn decode(bytes: &[u8]) -> Result<MetadataRecord, DecodeError> {
        let mut fields = Fields { left: bytes };
        let (format, kind, version) = (fields.u8("format")?, fields.u8("type")?, fields.u8("type version")?);
        if format != FORMAT || version != TYPE_VERSION {
            return Err(DecodeError::Unsupported { format, kind, version });
        }
        let record = match kind {
            HOST_STARTED => MetadataRecord::HostStarted {
                host: HostId(fields.u32("host")?),
                broker_epoch: BrokerEpoch(fields.i64("broker epoch")?),
            },
            TOPIC_CREATED => MetadataRecord::TopicCreated {
                id: TopicId(fields.u128("topic id")?),
                name: fields.text("topic name")?,
                partitions: fields.u32("partitions")?,
                configs: fields.configs()?,
            },
            PARTITION_PLACED => MetadataRecord::PartitionPlaced {
                partition: TopicPartition {
                    topic: TopicId(fields.u128("topic id")?),
                    partition: PartitionIndex(fields.u32("partition")?),
                },
                host: HostId(fields.u32("host")?),
                core: CoreId(fields.u16("core")?),
                directory: DirectoryId(fields.u128("directory id")?),
            },
            TOPIC_DELETED => MetadataRecord::TopicDeleted { id: TopicId(fields.u128("topic id")?) },
            TOPIC_CONFIG_CHANGED => MetadataRecord::TopicConfigChanged {
                id: TopicId(fields.u128("topic id")?),
                name: fields.text("setting name")?,
                value: if fields.flag("value present")? { Some(fields.text("setting value")?) } else { None },
            },
            PRODUCER_IDS_TAKEN => MetadataRecord::ProducerIdsTaken {
                host: HostId(fields.u32("host")?),
                next: ProducerId(fields.i64("next producer id")?),
            },
            _ => return Err(DecodeError::Unsupported { format, kind, version }),
        };
        match fields.left.len() {
            0 => Ok(record),
            count => Err(DecodeError::Trailing { count }),
        }
    }
}

fn head(out: &mut Vec<u8>, kind: u8) {
    out.extend([FORMAT, kind, TYPE_VERSION]);
}

fn text(out: &mut Vec<u8>, value: &str) {
    assert!(value.len() <= TEXT_BYTES_MAX, "a text of {} bytes in a metadata record", value.len());
    let length = u16::try_from(value.len()).expect("checked above");
    out.extend(length.to_le_bytes());
    out.extend(value.as_bytes());
}

/// What is left to decode.
struct Fields<'a> {
    left: &'a [u8],
}

impl<'a> Fields<'a> {
    fn bytes(&mut self, field: &'static str, needed: usize) -> Result<&'a [u8], DecodeError> {
        let Some((taken, left)) = self.left.split_at_checked(needed) else {
            return Err(DecodeError::Short { field, needed, left: self.left.len() });
        };
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(field, N)?);
        Ok(array)
    }

    fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array(field).map(u8::from_le_bytes)
    }

    fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.array(field).map(u16::from_le_bytes)
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_le_bytes)
    }

    fn i64(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        self.array(field).map(i64::from_le_bytes)
    }

    fn u128(&mut self, field: &'static str) -> Result<u128, DecodeError> {
        self.array(field).map(u128::from_le_bytes)
    }

    fn flag(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::BadFlag { field, value }),
        }
    }

    fn text(&mut self, field: &'static str) -> Result<String, DecodeError> {
        let length = usize::from(self.u16(field)?);
        if length > TEXT_BYTES_MAX {
            return Err(DecodeError::TooLarge { field, value: length, limit: TEXT_BYTES_MAX });
        }
        let bytes = self.bytes(field, length)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| DecodeError::NotText { field })
    }

    fn configs(&mut self) -> Result<Vec<(String, String)>, DecodeError> {
        let field = "settings";
        let count = usize::try_from(self.u32(field)?).unwrap_or(usize::MAX);
        if count > CONFIGS_MAX {
            return Err(DecodeError::TooLarge { field, value: count, limit: CONFIGS_MAX });
        }
        // The vector grows with what is decoded, not with what is promised.
        let mut configs = Vec::new();
        for _ in 0..count {
            configs.push((self.text("setting name")?, self.text("setting value")?));
        }
        Ok(configs)
    }
}
