//! The image: what all records of the metadata log up to some point add up to.
//!
//! Lives with whoever applies the log (the controller of each host); cores and handlers read it. Iteration goes by name or by
//! id, the same on every host. [`Image::apply`] either takes a record whole or refuses it and changes nothing; a log whose
//! records were accepted by a controller applies without an error.

use std::collections::BTreeMap;

use protocol::error::{ErrorCode, WireError};
use protocol::ids::{BrokerEpoch, CoreId, DirectoryId, HostId, LeaderEpoch, PartitionIndex, ProducerId, TopicId, TopicPartition};
use protocol::limits::{PARTITIONS_PER_TOPIC_MAX, TOPICS_MAX};
use protocol::topic_name::{self, TopicNameError};

use super::config::{ConfigError, TopicConfig};
use super::record::{CONFIGS_MAX, MetadataRecord, TEXT_BYTES_MAX};

#[cfg(test)]
mod tests;

/// Where a partition lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The host that leads it.
    pub host: HostId,
    /// The core there that owns it.
    pub core: CoreId,
    /// The data directory there.
    pub directory: DirectoryId,
}

/// A partition of the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionImage {
    /// Number of its leadership; rises at each start of its leader and each move.
    pub leader_epoch: LeaderEpoch,
    /// Where it lives; `None` from its topic's creation to its first placement.
    pub placement: Option<Placement>,
}

/// A topic of the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicImage {
    /// Its identity.
    pub id: TopicId,
    /// Its name.
    pub name: String,
    /// Its settings as given, by name.
    pub configs: BTreeMap<String, String>,
    /// What the settings amount to.
    pub config: TopicConfig,
    /// Its partitions, by index.
    pub partitions: Vec<PartitionImage>,
}

/// What a cluster knows, at one point of the metadata log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    hosts: BTreeMap<HostId, BrokerEpoch>,
    topics: BTreeMap<TopicId, TopicImage>,
    /// By folded name.
    names: BTreeMap<String, TopicId>,
    /// The first producer id that no host has taken.
    producer_ids_next: ProducerId,
}

/// Why a record can't be applied, or may not be proposed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The host has started with this broker epoch or a higher one before.
    #[error("host {host} starts with broker epoch {given}, it had {known} already")]
    StaleBrokerEpoch {
        /// The host.
        host: HostId,
        /// The record's epoch.
        given: BrokerEpoch,
        /// The image's.
        known: BrokerEpoch,
    },
    /// No start of the host could follow.
    #[error("host {host} starts with broker epoch {given}, and none can follow")]
    LastBrokerEpoch {
        /// The host.
        host: HostId,
        /// The record's epoch.
        given: BrokerEpoch,
    },
    /// A topic of that name exists.
    #[error("topic {name} exists already")]
    TopicExists {
        /// The name.
        name: String,
    },
    /// A topic with that identity exists.
    #[error("topic id {id} is taken")]
    TopicIdTaken {
        /// The identity.
        id: TopicId,
    },
    /// A topic exists whose name is the same but for '.' and '_'.
    #[error("topic {name} has the name of topic {other} but for '.' and '_', and metrics can't tell those apart")]
    NameCollides {
        /// The name.
        name: String,
        /// The topic that is there.
        other: String,
    },
    /// No topic has that identity.
    #[error("no topic has id {id}")]
    UnknownTopic {
        /// The identity.
        id: TopicId,
    },
    /// The topic has no such partition.
    #[error("topic {topic} has {count} partitions, partition {index} is none of them")]
    UnknownPartition {
        /// The topic.
        topic: TopicId,
        /// The partition.
        index: PartitionIndex,
        /// How many it has.
        count: usize,
    },
    /// The host has never started.
    #[error("host {host} is unknown")]
    UnknownHost {
        /// The host.
        host: HostId,
    },
    /// The name isn't allowed.
    #[error(transparent)]
    Name(#[from] TopicNameError),
    /// The number of partitions isn't allowed.
    #[error("{given} partitions: must be from 1 to {PARTITIONS_PER_TOPIC_MAX}")]
    Partitions {
        /// What was given.
        given: u32,
    },
    /// There are as many topics as there may be.
    #[error("there are {TOPICS_MAX} topics, no more are allowed")]
    TooManyTopics,
    /// More settings, or a longer text, than a record may hold.
    #[error("a topic has at most {CONFIGS_MAX} settings of at most {TEXT_BYTES_MAX} bytes")]
    TooManyConfigs,
    /// A setting isn't allowed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Producer ids that were taken before, or none at all.
    #[error("producer ids are taken up to {given}, which were taken up to {known} already")]
    ProducerIdsTaken {
        /// The record's end.
        given: ProducerId,
        /// The image's.
        known: ProducerId,
    },
    /// A leader epoch would pass 2^31 - 1.
    #[error("the leader epoch of {partition} is at its end")]
    EpochExhausted {
        /// The partition.
        partition: TopicPartition,
    },
}

/// What two names may not share: they would be one in metrics, where '.' becomes '_'.
fn folded(name: &str) -> String {
    name.replace('.', "_")
}

impl WireError for ApplyError {
    fn code(&self) -> ErrorCode {
        match self {
            ApplyError::StaleBrokerEpoch { .. }
            | ApplyError::LastBrokerEpoch { .. }
            | ApplyError::UnknownHost { .. }
            | ApplyError::TopicIdTaken { .. }
            | ApplyError::ProducerIdsTaken { .. } => ErrorCode::InvalidRequest,
            ApplyError::TopicExists { .. } => ErrorCode::TopicAlreadyExists,
            ApplyError::NameCollides { .. } => ErrorCode::InvalidTopicException,
            ApplyError::UnknownTopic { .. } => ErrorCode::UnknownTopicId,
            ApplyError::UnknownPartition { .. } => ErrorCode::UnknownTopicOrPartition,
            ApplyError::Name(error) => error.code(),
            ApplyError::Partitions { .. } => ErrorCode::InvalidPartitions,
            ApplyError::TooManyTopics | ApplyError::EpochExhausted { .. } => ErrorCode::UnknownServerError,
            ApplyError::TooManyConfigs => ErrorCode::InvalidConfig,
            ApplyError::Config(error) => error.code(),
        }
    }
}

impl Image {
    /// Of an empty log.
    #[must_use]
    pub fn new() -> Image {
        Image::default()
    }

    /// The topic with this identity.
    #[must_use]
    pub fn topic(&self, id: TopicId) -> Option<&TopicImage> {
        self.topics.get(&id)
    }

    /// The topic with this name.
    #[must_use]
    pub fn topic_named(&self, name: &str) -> Option<&TopicImage> {
        let topic = self.names.get(&folded(name)).and_then(|id| self.topics.get(id));
        topic.filter(|topic| topic.name == name)
    }

    /// The topics, by name.
    pub fn topics(&self) -> impl Iterator<Item = &TopicImage> {
        self.names.values().filter_map(|id| self.topics.get(id))
    }

    /// How many topics there are.
    #[must_use]
    pub fn topic_count(&self) -> usize {
        self.topics.len()
    }

    /// The partition.
    #[must_use]
    pub fn partition(&self, partition: TopicPartition) -> Option<PartitionImage> {
        let index = usize::try_from(partition.partition.0).ok()?;
        self.topic(partition.topic)?.partitions.get(index).copied()
    }

    /// The partitions that live on a host, by topic id and index.
    pub fn partitions_of(&self, host: HostId) -> impl Iterator<Item = (TopicPartition, PartitionImage)> + '_ {
        let all = self.topics.values().flat_map(|topic| {
            (0..)
                .zip(&topic.partitions)
                .map(|(index, partition)| (TopicPartition { topic: topic.id, partition: PartitionIndex(index) }, *partition))
        });
        all.filter(move |(_, partition)| partition.placement.is_some_and(|placement| placement.host == host))
    }

    /// The broker epoch of a host's latest start; below 2^63 - 1.
    #[must_use]
    pub fn broker_epoch(&self, host: HostId) -> Option<BrokerEpoch> {
        self.hosts.get(&host).copied()
    }

    /// The first producer id that no host has taken.
    #[must_use]
    pub fn producer_ids_next(&self) -> ProducerId {
        self.producer_ids_next
    }

    /// Whether [`Image::apply`] would take the record: to be asked before it is appended to the metadata log.
    ///
    /// # Errors
    /// Why it would not.
    pub fn check(&self, record: &MetadataRecord) -> Result<(), ApplyError> {
        match record {
            MetadataRecord::HostStarted { host, broker_epoch } => self.check_host_started(*host, *broker_epoch),
            MetadataRecord::TopicCreated { id, name, partitions, configs } => {
                self.check_topic_created(*id, name, *partitions)?;
                check_config_sizes(configs)?;
                TopicConfig::parse(pairs(configs))?;
                Ok(())
            }
            MetadataRecord::PartitionPlaced { partition, host, .. } => self.check_placed(*partition, *host),
            MetadataRecord::TopicDeleted { id } => self.known(*id).map(|_| ()),
            MetadataRecord::TopicConfigChanged { id, name, value } => {
                changed_configs(self.known(*id)?, name, value.as_deref()).map(|_| ())
            }
            MetadataRecord::ProducerIdsTaken { host, next } => self.check_producer_ids(*host, *next),
        }
    }

    /// The settings of a topic after these changes, made one after the other.
    ///
    /// # Errors
    /// Why one of them can't be made.
    pub fn check_configs(&self, id: TopicId, changes: &[(String, Option<String>)]) -> Result<TopicConfig, ApplyError> {
        let mut topic = self.known(id)?.clone();
        for (name, value) in changes {
            (topic.configs, topic.config) = changed_configs(&topic, name, value.as_deref())?;
        }
        Ok(topic.config)
    }

    /// Takes one record.
    ///
    /// # Errors
    /// It doesn't fit what came before; the image is unchanged.
    pub fn apply(&mut self, record: &MetadataRecord) -> Result<(), ApplyError> {
        self.check(record)?;
        match record {
            MetadataRecord::HostStarted { host, broker_epoch } => {
                self.hosts.insert(*host, *broker_epoch);
                for partition in self.topics.values_mut().flat_map(|topic| &mut topic.partitions) {
                    if partition.placement.is_some_and(|placement| placement.host == *host) {
                        partition.leader_epoch = LeaderEpoch(partition.leader_epoch.0 + 1);
                    }
                }
            }
            MetadataRecord::TopicCreated { id, name, partitions, configs } => {
                let count = usize::try_from(*partitions).expect("checked against the limit");
                let topic = TopicImage {
                    id: *id,
                    name: name.clone(),
                    configs: configs.iter().cloned().collect(),
                    config: TopicConfig::parse(pairs(configs))?,
                    partitions: vec![PartitionImage::default(); count],
                };
                self.names.insert(folded(name), *id);
                self.topics.insert(*id, topic);
            }
            MetadataRecord::PartitionPlaced { partition, host, core, directory } => {
                let topic = self.topics.get_mut(&partition.topic).expect("checked above");
                let index = usize::try_from(partition.partition.0).expect("checked above");
                let placed = &mut topic.partitions[index];
                if placed.placement.is_some() {
                    placed.leader_epoch = LeaderEpoch(placed.leader_epoch.0 + 1);
                }
                placed.placement = Some(Placement { host: *host, core: *core, directory: *directory });
            }
            MetadataRecord::TopicDeleted { id } => {
                let topic = self.topics.remove(id).expect("checked above");
                self.names.remove(&folded(&topic.name));
            }
            MetadataRecord::TopicConfigChanged { id, name, value } => {
                let topic = self.topics.get_mut(id).expect("checked above");
                (topic.configs, topic.config) = changed_configs(topic, name, value.as_deref())?;
            }
            MetadataRecord::ProducerIdsTaken { next, .. } => self.producer_ids_next = *next,
        }
        Ok(())
    }

    fn check_host_started(&self, host: HostId, given: BrokerEpoch) -> Result<(), ApplyError> {
        if let Some(&known) = self.hosts.get(&host)
            && known >= given
        {
            return Err(ApplyError::StaleBrokerEpoch { host, given, known });
        }
        if given.0 == i64::MAX {
            return Err(ApplyError::LastBrokerEpoch { host, given });
        }
        match self.partitions_of(host).find(|(_, image)| image.leader_epoch.0 == i32::MAX) {
            Some((partition, _)) => Err(ApplyError::EpochExhausted { partition }),
            None => Ok(()),
        }
    }

    fn check_producer_ids(&self, host: HostId, given: ProducerId) -> Result<(), ApplyError> {
        if !self.hosts.contains_key(&host) {
            return Err(ApplyError::UnknownHost { host });
        }
        let known = self.producer_ids_next;
        if given > known { Ok(()) } else { Err(ApplyError::ProducerIdsTaken { given, known }) }
    }

    fn check_topic_created(&self, id: TopicId, name: &str, partitions: u32) -> Result<(), ApplyError> {
        topic_name::check(name)?;
        if let Some(topic) = self.names.get(&folded(name)).and_then(|id| self.topics.get(id)) {
            let name = name.to_owned();
            return Err(if topic.name == name {
                ApplyError::TopicExists { name }
            } else {
                ApplyError::NameCollides { name, other: topic.name.clone() }
            });
        }
        if self.topics.contains_key(&id) {
            return Err(ApplyError::TopicIdTaken { id });
        }
        if !(1..=PARTITIONS_PER_TOPIC_MAX).contains(&partitions) {
            return Err(ApplyError::Partitions { given: partitions });
        }
        if self.topics.len() >= TOPICS_MAX {
            return Err(ApplyError::TooManyTopics);
        }
        Ok(())
    }

    fn check_placed(&self, partition: TopicPartition, host: HostId) -> Result<(), ApplyError> {
        let topic = self.known(partition.topic)?;
        let Some(image) = self.partition(partition) else {
            let count = topic.partitions.len();
            return Err(ApplyError::UnknownPartition { topic: topic.id, index: partition.partition, count });
        };
        if !self.hosts.contains_key(&host) {
            return Err(ApplyError::UnknownHost { host });
        }
        if image.leader_epoch.0 == i32::MAX {
            return Err(ApplyError::EpochExhausted { partition });
        }
        Ok(())
    }

    fn known(&self, id: TopicId) -> Result<&TopicImage, ApplyError> {
        self.topics.get(&id).ok_or(ApplyError::UnknownTopic { id })
    }
}

fn pairs(configs: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    configs.iter().map(|(name, value)| (name.as_str(), value.as_str()))
}

fn check_config_sizes(configs: &[(String, String)]) -> Result<(), ApplyError> {
    let fits = |(name, value): &(String, String)| name.len() <= TEXT_BYTES_MAX && value.len() <= TEXT_BYTES_MAX;
    if configs.len() <= CONFIGS_MAX && configs.iter().all(fits) { Ok(()) } else { Err(ApplyError::TooManyConfigs) }
}

/// The topic's settings after one has changed.
fn changed_configs(
    topic: &TopicImage,
    name: &str,
    value: Option<&str>,
) -> Result<(BTreeMap<String, String>, TopicConfig), ApplyError> {
    // An unknown name is refused also where the setting is only to be taken back.
    let (name, value) = match value {
        Some(value) if value.len() > TEXT_BYTES_MAX || name.len() > TEXT_BYTES_MAX => return Err(ApplyError::TooManyConfigs),
        Some(value) => (name, Some(value)),
        None => (super::config::find(name)?.name, None),
    };
    let mut configs = topic.configs.clone();
    match value {
        Some(value) => configs.insert(name.to_owned(), value.to_owned()),
        None => configs.remove(name),
    };
    let config = TopicConfig::parse(configs.iter().map(|(name, value)| (name.as_str(), value.as_str())))?;
    Ok((configs, config))
}
