//! One data directory, as one core uses it: whose it is, its lock, its clean-stop marker, its checkpoint, the logs in it.
//!
//! Layout: `superblock`, `lock`, `clean-stop`, `checkpoint-<core>.a` and `.b`, `topics/<topic-id>/<partition>/<segments>`.
//! Order at start: look, lock, superblock, remove the marker durably, only then touch anything; so a crash while logs are being loaded
//! leaves no marker, and the next start doesn't take this one for clean.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use protocol::ids::{BrokerEpoch, ClusterId, CoreId, DirectoryId, HostId, LeaderEpoch, Offset, PartitionIndex, TopicPartition};
use runtime::disk::{is_flush_error, reworded};
use runtime::local::Notify;
use runtime::{Disk, Env};

use crate::cache::ChunkCache;
use crate::checkpoint::{CHECKPOINT_BYTES_MAX, Checkpoint, CheckpointEntry};
use crate::config::{LogConfig, StorageConfig};
use crate::error::RecoveryError;
use crate::log::{DirectoryFailure, Log};
use crate::maintenance::prepare;
use crate::segment::segment_path;
use crate::superblock::{FORMAT_VERSION, SMALL_FILE_BYTES_MAX, Superblock, SuperblockError, decode_marker, encode_marker};

/// Space allocated for the first segment of a new log, in bytes.
const FIRST_SEGMENT_BYTES: u64 = 256 << 10;

/// How a data directory is opened.
#[derive(Clone)]
pub struct OpenRequest {
    /// The cluster that it must belong to; `None` takes the one that is found, or makes one up for a new directory.
    pub cluster: Option<ClusterId>,
    /// The host that it must belong to.
    pub host: HostId,
    /// The core that uses it.
    pub core: CoreId,
    /// Text for whoever finds the directory locked.
    pub holder: String,
    /// Settings of its logs.
    pub storage: StorageConfig,
    /// The core's page cache.
    pub cache: ChunkCache,
}

/// Why a data directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is another's, or newer, or damaged.
    #[error("{path}: {cause}")]
    Superblock {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        cause: SuperblockError,
    },
    /// It belongs to another cluster.
    #[error("{path} belongs to cluster {found}, this host is in {allowed}")]
    ForeignCluster {
        /// The directory.
        path: PathBuf,
        /// Its cluster.
        found: ClusterId,
        /// The cluster that is allowed.
        allowed: ClusterId,
    },
    /// It belongs to another host.
    #[error("{path} belongs to host {found}, this is host {allowed}")]
    ForeignHost {
        /// The directory.
        path: PathBuf,
        /// Its host.
        found: HostId,
        /// The host that is allowed.
        allowed: HostId,
    },
    /// It has files, and no superblock.
    #[error("{path} is not a Corelane data directory: it has no superblock but holds {found:?}; an empty directory is needed")]
    NotOurs {
        /// The directory.
        path: PathBuf,
        /// A file in it.
        found: String,
    },
    /// Another process uses it.
    #[error("{path} is in use: {holder}")]
    Locked {
        /// The directory.
        path: PathBuf,
        /// What the holder wrote.
        holder: String,
    },
    /// The disk failed.
    #[error("{path}: {cause}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}

/// A data directory. A handle: clones are the same directory.
pub struct Directory<E: Env>(Rc<State<E>>);

pub(crate) struct State<E: Env> {
    pub(crate) env: E,
    path: PathBuf,
    superblock: Superblock,
    core: CoreId,
    pub(crate) storage: Cell<StorageConfig>,
    pub(crate) cache: ChunkCache,
    clean_stop: Option<BrokerEpoch>,
    checkpoint_sequence: Cell<u64>,
    checkpoint_running: Cell<bool>,
    checkpoint_ended: Notify,
    /// What the last checkpoint says, of logs that aren't open too.
    entries: RefCell<BTreeMap<TopicPartition, CheckpointEntry>>,
    /// What has stopped its logs.
    failure: DirectoryFailure,
}

impl<E: Env> Clone for Directory<E> {
    fn clone(&self) -> Self {
        Directory(self.0.clone())
    }
}

impl<E: Env> Directory<E> {
    /// Opens a data directory, or makes one of an empty or missing directory. Locks it until the process ends.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(env: &E, path: PathBuf, request: OpenRequest) -> Result<Directory<E>, OpenError> {
        let disk = env.disk();
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |cause| OpenError::Io { path, cause }
        };
        disk.create_directory(&path).await.map_err(failed(&path))?;
        let names = disk.list(&path).await.map_err(failed(&path))?;
        let has_superblock = names.iter().any(|entry| entry.name == "superblock");
        if let Some(other) = names.iter().find(|entry| !has_superblock && !is_ours_or_empty(&entry.name)) {
            return Err(OpenError::NotOurs { path, found: other.name.clone() });
        }
        disk.lock(&path.join("lock"), request.holder.clone()).await.map_err(|cause| match cause.kind() {
            io::ErrorKind::WouldBlock => OpenError::Locked { path: path.clone(), holder: cause.to_string() },
            _ => OpenError::Io { path: path.join("lock"), cause },
        })?;
        let superblock = if has_superblock {
            read_superblock(env, &path, &request).await?
        } else {
            write_superblock(env, &path, &request).await?
        };
        let marker = path.join("clean-stop");
        let clean_stop = match disk.read_file(&marker, SMALL_FILE_BYTES_MAX).await {
            Ok(bytes) => {
                disk.remove_file(&marker).await.map_err(failed(&marker))?;
                disk.sync_directory(&path).await.map_err(failed(&path))?;
                decode_marker(&bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(cause) => return Err(OpenError::Io { path: marker, cause }),
        };
        disk.create_directory(&path.join("topics")).await.map_err(failed(&path))?;
        let mut files = [None, None];
        for (slot, letter) in files.iter_mut().zip(['a', 'b']) {
            let file = path.join(format!("checkpoint-{}.{letter}", request.core));
            match disk.read_file(&file, CHECKPOINT_BYTES_MAX).await {
                Ok(bytes) => *slot = Some(bytes),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => return Err(OpenError::Io { path: file, cause }),
            }
        }
        let checkpoint = Checkpoint::newest(files);
        let entries = checkpoint.entries.into_iter().map(|entry| (entry.log, entry)).collect();
        Ok(Directory(Rc::new(State {
            env: env.clone(),
            path,
            superblock,
            core: request.core,
            storage: Cell::new(request.storage),
            cache: request.cache,
            clean_stop,
            checkpoint_sequence: Cell::new(checkpoint.sequence),
            checkpoint_running: Cell::new(false),
            checkpoint_ended: Notify::new(),
            entries: RefCell::new(entries),
            failure: DirectoryFailure::default(),
        })))
    }

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
            for partition in disk.list(&topics.join(&topic.name)).await? {
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
        prepare(&state.env, &path, &directory, allocated, &state.cache.metrics()).await?;
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
        let entries = match disk.list(&directory).await {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        // The oldest segment last: a deletion that is cut short leaves a log that is shorter at its end, not one with a gap.
        for entry in entries.iter().rev() {
            disk.remove_file(&directory.join(&entry.name)).await?;
        }
        disk.sync_directory(&directory).await?;
        let topic = directory.parent().expect("a log lies in its topic's directory").to_path_buf();
        disk.remove_directory(&directory).await?;
        disk.sync_directory(&topic).await?;
        self.0.entries.borrow_mut().remove(&log);
        if disk.list(&topic).await?.is_empty() {
            disk.remove_directory(&topic).await?;
            disk.sync_directory(&self.0.path.join("topics")).await?;
        }
        Ok(())
    }

    /// Writes this core's checkpoint, with these entries of open logs; what it said of others stays. One after the other.
    ///
    /// # Errors
    /// What the disk says, or that a log here has failed, since what others take for flushed may be lost; the checkpoint before it counts then.
    pub async fn write_checkpoint(&self, broker_epoch: BrokerEpoch, entries: Vec<CheckpointEntry>) -> io::Result<()> {
        let state = &*self.0;
        self.check_running()?;
        state.entries.borrow_mut().extend(entries.into_iter().map(|entry| (entry.log, entry)));
        // Two at once would overwrite both files, and a power cut could tear both.
        while state.checkpoint_running.get() {
            let seen = state.checkpoint_ended.count();
            state.checkpoint_ended.changed(seen).await;
        }
        self.check_running()?;
        state.checkpoint_running.set(true);
        let turn = CheckpointTurn(state);
        let sequence = state.checkpoint_sequence.get() + 1;
        let letter = if sequence.is_multiple_of(2) { 'a' } else { 'b' };
        let path = state.path.join(format!("checkpoint-{}.{letter}", state.core));
        let entries = state.entries.borrow().values().cloned().collect();
        let bytes = Checkpoint { sequence, broker_epoch, entries }.encode();
        let result = state.env.disk().overwrite_file(&path, bytes).await;
        if result.is_ok() {
            // After a failure the next one takes the same file: the other holds the last that counts.
            state.checkpoint_sequence.set(sequence);
        }
        drop(turn);
        self.check_flush("writing a checkpoint", result)
    }

    /// Leaves the marker of a clean stop. Everything of every core must be flushed, and the checkpoints written.
    ///
    /// # Errors
    /// What the disk says, or that something here has failed; the stop isn't clean then.
    pub async fn stop_cleanly(&self, broker_epoch: BrokerEpoch) -> io::Result<()> {
        self.check_running()?;
        self.0.env.disk().replace_file(&self.0.path.join("clean-stop"), encode_marker(broker_epoch)).await
    }

    /// Notes why a log couldn't be recovered: if a flush has failed, every log here stops.
    pub fn note_failed_recovery(&self, error: &RecoveryError) {
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
        self.0.failure.borrow_mut().get_or_insert_with(|| Rc::new(reworded(cause, words)));
    }

    /// Ends with what has stopped the logs here, if anything did.
    fn check_running(&self) -> io::Result<()> {
        let failure = self.0.failure.borrow();
        failure.as_ref().map_or(Ok(()), |failure| Err(reworded(failure, failure.to_string())))
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

/// Ends a checkpoint's turn, however it ends.
struct CheckpointTurn<'a, E: Env>(&'a State<E>);

impl<E: Env> Drop for CheckpointTurn<'_, E> {
    fn drop(&mut self) {
        self.0.checkpoint_running.set(false);
        self.0.checkpoint_ended.notify();
    }
}

/// Names that may lie in a directory that isn't one of ours yet.
fn is_ours_or_empty(name: &str) -> bool {
    // A start that was cut short before the superblock leaves the lock and perhaps a temporary file.
    name == "lost+found" || name == "lock" || name.starts_with("superblock")
}

async fn read_superblock<E: Env>(env: &E, path: &Path, request: &OpenRequest) -> Result<Superblock, OpenError> {
    let file = path.join("superblock");
    let bytes = env.disk().read_file(&file, SMALL_FILE_BYTES_MAX).await.map_err(|cause| OpenError::Io { path: file, cause })?;
    let found = Superblock::decode(&bytes).map_err(|cause| OpenError::Superblock { path: path.to_path_buf(), cause })?;
    if let Some(allowed) = request.cluster.filter(|allowed| *allowed != found.cluster) {
        return Err(OpenError::ForeignCluster { path: path.to_path_buf(), found: found.cluster, allowed });
    }
    if found.host != request.host {
        return Err(OpenError::ForeignHost { path: path.to_path_buf(), found: found.host, allowed: request.host });
    }
    Ok(found)
}

async fn write_superblock<E: Env>(env: &E, path: &Path, request: &OpenRequest) -> Result<Superblock, OpenError> {
    let random = || u128::from(env.random()) << 64 | u128::from(env.random());
    let superblock = Superblock {
        cluster: request.cluster.unwrap_or_else(|| ClusterId(random())),
        host: request.host,
        directory: DirectoryId(random()),
        format: FORMAT_VERSION,
        features: 0,
    };
    let file = path.join("superblock");
    env.disk().replace_file(&file, superblock.encode()).await.map_err(|cause| OpenError::Io { path: file, cause })?;
    Ok(superblock)
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
            log_start: self.offsets.log_start,
            flushed: self.offsets.flushed,
            producers: self.producers.on_disk,
            segments,
        }
    }
}
