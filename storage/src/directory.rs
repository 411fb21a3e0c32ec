//! One data directory, as one core uses it: whose it is, its clean-stop marker, its checkpoint, the logs in it.
//!
//! Layout: `superblock`, `lock`, `clean-stop`, `checkpoint-<core>.a` and `.b` for each core, `topics/<topic-id>/<partition>/<segments>`.
//! Several cores of a process use one directory, each with a handle of its own that shares no memory with the others': the first opens it
//! (`open`), the others attach; each keeps a checkpoint of its logs (`checkpoints`). A log is one core's at a time; the partitions of a
//! topic may be several cores', who then create and remove the topic's directory beside each other.

mod checkpoints;
mod open;

use std::cell::{Cell, RefCell};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use protocol::ids::{BrokerEpoch, CoreId, DirectoryId, LeaderEpoch, Offset, PartitionIndex, TopicPartition};
use runtime::disk::{is_flush_error, reworded};
use runtime::local::Notify;
use runtime::{Disk, Env};

use crate::cache::ChunkCache;
use crate::checkpoint::{CheckpointEntry, Entries};
use crate::config::{LogConfig, StorageConfig};
use crate::error::RecoveryError;
use crate::failure::DirectoryFailure;
use crate::log::Log;
use crate::maintenance::prepare;
use crate::segment::segment_path;
use crate::space::{Allowance, Wanted, name_drive};
use crate::superblock::{Superblock, encode_marker};

pub use checkpoints::SharedDirectory;
pub use open::{OpenError, OpenRequest};

/// Space allocated for the first segment of a new log, in bytes.
const FIRST_SEGMENT_BYTES: u64 = 256 << 10;

/// A data directory. A handle: clones are the same directory.
pub struct Directory<E: Env>(Rc<State<E>>);

pub(crate) struct State<E: Env> {
    pub(crate) env: E,
    path: PathBuf,
    superblock: Superblock,
    core: CoreId,
    /// This core has opened the directory, and knows what all checkpoints said.
    is_opener: bool,
    /// Other cores use it too.
    is_shared: Cell<bool>,
    pub(crate) storage: Cell<StorageConfig>,
    pub(crate) cache: ChunkCache,
    clean_stop: Option<BrokerEpoch>,
    checkpoint_sequence: Cell<u64>,
    checkpoint_running: Cell<bool>,
    checkpoint_ended: Notify,
    /// The opener's own checkpoint has all that those of others said when it was opened.
    keeps_all: Cell<bool>,
    /// What the last checkpoint says, of logs that aren't open too.
    entries: RefCell<Entries>,
    /// What has stopped its logs.
    failure: DirectoryFailure,
}

impl<E: Env> Clone for Directory<E> {
    fn clone(&self) -> Self {
        Directory(self.0.clone())
    }
}

impl<E: Env> Directory<E> {
    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Its identity.
    #[must_use]
    pub fn id(&self) -> DirectoryId {
        self.0.superblock.directory
    }

    /// The superblock.
    #[must_use]
    pub fn superblock(&self) -> Superblock {
        self.0.superblock
    }

    /// The broker epoch of the start that ended with a clean stop, if the last one did.
    #[must_use]
    pub fn clean_stop(&self) -> Option<BrokerEpoch> {
        self.0.clean_stop
    }

    /// The settings of its logs.
    #[must_use]
    pub fn storage(&self) -> StorageConfig {
        self.0.storage.get()
    }

    /// Changes the settings for logs that are created or recovered from now on.
    pub fn set_storage(&self, storage: StorageConfig) {
        self.0.storage.set(storage);
    }

    /// The logs that lie here, sorted.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn list_logs(&self) -> io::Result<Vec<TopicPartition>> {
        let disk = self.0.env.disk();
        let topics = self.0.path.join("topics");
        let mut logs = Vec::new();
        for topic in disk.list(&topics).await? {
            let Ok(id) = topic.name.parse() else { continue };
            let partitions = unless_gone(disk.list(&topics.join(&topic.name)).await)?;
            for partition in partitions.unwrap_or_default() {
                if let Ok(index) = partition.name.parse() {
                    logs.push(TopicPartition { topic: id, partition: PartitionIndex(index) });
                }
            }
        }
        logs.sort_unstable();
        Ok(logs)
    }

    /// Makes a new, empty log, durably.
    ///
    /// # Errors
    /// What the disk says; `AlreadyExists` if it is there; `InvalidData` if a checkpoint says that it was, and that records were in it.
    pub async fn create_log(&self, log: TopicPartition, config: LogConfig) -> io::Result<Log<E>> {
        let created = self.create(log, config).await;
        self.check_flush("creating a log", created)
    }

    async fn create(&self, log: TopicPartition, config: LogConfig) -> io::Result<Log<E>> {
        let state = &*self.0;
        let disk = state.env.disk();
        let directory = self.log_path(log);
        disk.create_directory(&directory).await?;
        if state.is_shared.get() {
            // Another core may have made the topic's directory, and not have synced its name yet.
            disk.sync_directory(&state.path.join("topics")).await?;
        }
        let base = Offset(0);
        if disk.list(&directory).await?.iter().any(|entry| entry.name.ends_with(".log")) {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("the log {log} exists in {}", state.path.display()),
            ));
        }
        if let Some(lost) = self.checkpoint_entry(log).filter(|entry| entry.flushed > base) {
            let (path, flushed) = (directory.display(), lost.flushed);
            let message = format!("{path}: no segment is left of the log {log}, which a checkpoint knows up to offset {flushed}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let path = segment_path(&directory, base, "log");
        let allocated = FIRST_SEGMENT_BYTES.min(config.segment_bytes.next_multiple_of(crate::blocks::BLOCK));
        let wanted = Wanted { from: 0, to: allocated, needed_to: allocated };
        Allowance::of(log, &state.storage.get()).end(&state.env, &directory, wanted).await?;
        let prepared = prepare(&state.env, &path, &directory, allocated, &state.cache.metrics()).await;
        prepared.map_err(|error| name_drive(error, &directory))?;
        let mut created = Log::assemble(state, log, directory, config, base);
        created.active_mut().allocated = allocated;
        Ok(created)
    }

    /// Whether the log lies here.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn has_log(&self, log: TopicPartition) -> io::Result<bool> {
        match self.0.env.disk().list(&self.log_path(log)).await {
            Ok(entries) => Ok(entries.iter().any(|entry| entry.name.ends_with(".log"))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes a log, durably. Its [`Log`] must be gone, with nothing of it under way.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn delete_log(&self, log: TopicPartition) -> io::Result<()> {
        let deleted = self.delete(log).await;
        self.check_flush("deleting a log", deleted)
    }

    async fn delete(&self, log: TopicPartition) -> io::Result<()> {
        let disk = self.0.env.disk();
        let directory = self.log_path(log);
        let Some(entries) = unless_gone(disk.list(&directory).await)? else { return Ok(()) };
        // The oldest segment last: a deletion that is cut short leaves a log that is shorter at its end, not one with a gap.
        for entry in entries.iter().rev() {
            disk.remove_file(&directory.join(&entry.name)).await?;
        }
        disk.sync_directory(&directory).await?;
        let topic = directory.parent().expect("a log lies in its topic's directory").to_path_buf();
        disk.remove_directory(&directory).await?;
        unless_gone(disk.sync_directory(&topic).await)?;
        self.0.entries.borrow_mut().remove(&log);
        // Another core that deletes a partition of the topic may be first to find nothing left.
        if unless_gone(disk.list(&topic).await)?.is_none_or(|left| left.is_empty()) {
            unless_gone(disk.remove_directory(&topic).await)?;
            disk.sync_directory(&self.0.path.join("topics")).await?;
        }
        Ok(())
    }

    /// Leaves the marker of a clean stop, on one core. Everything of every core must be flushed, the checkpoints written, and what has failed on any
    /// core told to this one.
    ///
    /// # Errors
    /// What the disk says, or that something here has failed; the stop isn't clean then.
    pub async fn stop_cleanly(&self, broker_epoch: BrokerEpoch) -> io::Result<()> {
        self.check_running()?;
        self.0.env.disk().replace_file(&self.0.path.join("clean-stop"), encode_marker(broker_epoch)).await
    }

    /// Ends when something on this core has stopped every log here, with the words for the other cores; at once if that was before. What
    /// [`Directory::fail`] was told first doesn't end it: the core where that arose tells everybody.
    pub async fn failed(&self) -> String {
        self.0.failure.arisen().await
    }

    /// Stops every log here because of what another core's [`Directory::failed`] says.
    pub fn fail(&self, words: &str) {
        if self.0.failure.tell(words) {
            let (directory, core) = (self.0.path.display(), self.0.core);
            tracing::warn!(%directory, %core, words, "every log of a directory has stopped on this core too");
        }
    }

    /// Notes why a log couldn't be recovered: if a flush has failed, every log here stops.
    pub(crate) fn note_failed_recovery(&self, error: &RecoveryError) {
        if let RecoveryError::Io { cause, .. } = error
            && is_flush_error(cause)
        {
            self.stop_logs("recovering a log", cause);
        }
    }

    /// Passes a result on. If it is a flush that has failed, every log here stops: it may have lost what they have written.
    fn check_flush<T>(&self, operation: &str, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && is_flush_error(error)
        {
            self.stop_logs(operation, error);
        }
        result
    }

    fn stop_logs(&self, operation: &str, cause: &io::Error) {
        let words = format!("{}: {operation}: {cause}", self.0.path.display());
        tracing::error!(%words, "every log of a directory has stopped");
        self.0.failure.arise(|| reworded(cause, words));
    }

    /// Ends with what has stopped the logs here, if anything did.
    fn check_running(&self) -> io::Result<()> {
        self.0.failure.check()
    }

    pub(crate) fn state(&self) -> &State<E> {
        &self.0
    }

    /// What the last checkpoint said of a log.
    pub(crate) fn checkpoint_entry(&self, log: TopicPartition) -> Option<CheckpointEntry> {
        self.0.entries.borrow().get(&log).cloned()
    }

    /// Where a log's files lie.
    pub(crate) fn log_path(&self, log: TopicPartition) -> PathBuf {
        self.0.path.join("topics").join(log.topic.to_string()).join(log.partition.to_string())
    }
}

/// What is there, if another core hasn't removed it meanwhile.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl<E: Env> Log<E> {
    /// An empty log whose active segment's file exists.
    pub(crate) fn assemble(
        state: &State<E>,
        name: TopicPartition,
        directory: PathBuf,
        config: LogConfig,
        base: Offset,
    ) -> Log<E> {
        let metrics = state.cache.metrics();
        let active = crate::segment::OpenSegment::new(&state.env, &directory, base, None, config.index_interval_bytes, &metrics);
        Log {
            env: state.env.clone(),
            name,
            directory,
            config,
            storage: state.storage.get(),
            cache: state.cache.clone(),
            cache_key: state.cache.register(),
            metrics,
            offsets: crate::log::Offsets { log_start: base, flushed: base, written: base, log_end: base },
            last_epoch: LeaderEpoch(-1),
            sealed: Default::default(),
            retired: Default::default(),
            open: [active].into(),
            prepared: None,
            tail: crate::log::Tail::default(),
            writer: Default::default(),
            rate: Default::default(),
            demand: Default::default(),
            maintenance: Default::default(),
            streams: Default::default(),
            producers: Default::default(),
            wants_checkpoint: Default::default(),
            failure: None,
            directory_failure: state.failure.clone(),
        }
    }

    /// What a checkpoint says of this log now.
    #[must_use]
    pub fn checkpoint_entry(&self) -> CheckpointEntry {
        self.wants_checkpoint.set(false);
        let segments = self.open.iter().map(|segment| segment.checkpoint()).collect();
        CheckpointEntry {
            log: self.name,
            log_start: self.planned_start(),
            flushed: self.offsets.flushed,
            producers: self.producers.on_disk,
            segments,
        }
    }
}
