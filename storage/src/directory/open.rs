//! How a data directory is opened: by one core for the whole process, and then attached to by the others.
//!
//! Order at start: look, lock, superblock, remove the marker durably, only then touch anything; so a crash while logs are being loaded
//! leaves no marker, and the next start doesn't take this one for clean. Others attach to what [`Directory::share`] gave: they neither lock
//! nor look for the marker, and the superblock is handed over.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use protocol::ids::{ClusterId, CoreId, DirectoryId, HostId};
use protocol::limits::CORES_PER_HOST_MAX;
use runtime::local::Notify;
use runtime::{Disk, Env};

use super::checkpoints::{SharedDirectory, read_all, read_checkpoint};
use super::{Directory, State};
use crate::cache::ChunkCache;
use crate::checkpoint::absorb;
use crate::config::StorageConfig;
use crate::failure::DirectoryFailure;
use crate::superblock::{FORMAT_VERSION, SMALL_FILE_BYTES_MAX, Superblock, SuperblockError, decode_marker};

/// How a data directory is opened.
#[derive(Clone)]
pub struct OpenRequest {
    /// The cluster that it must belong to; `None` takes the one that is found, or makes one up for a new directory.
    pub cluster: Option<ClusterId>,
    /// The host that it must belong to.
    pub host: HostId,
    /// The core that opens it; others attach.
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

impl<E: Env> Directory<E> {
    /// Opens a data directory, or makes one of an empty or missing directory. Locks it until the process ends. Knows what the checkpoints of
    /// all cores say, of those of earlier starts too.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(env: &E, path: PathBuf, request: OpenRequest) -> Result<Directory<E>, OpenError> {
        assert!(usize::from(request.core.0) < CORES_PER_HOST_MAX, "core {} is one of a host", request.core);
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
        let found = read_all(env, &path, request.core).await?;
        Ok(Directory(Rc::new(State {
            env: env.clone(),
            path,
            superblock,
            core: request.core,
            is_opener: true,
            is_shared: Cell::new(false),
            storage: Cell::new(request.storage),
            cache: request.cache,
            clean_stop,
            checkpoint_sequence: Cell::new(found.sequence),
            checkpoint_running: Cell::new(false),
            checkpoint_ended: Notify::new(),
            keeps_all: Cell::new(!found.of_others),
            entries: RefCell::new(found.entries),
            failure: DirectoryFailure::default(),
        })))
    }

    /// The same directory for another core of the process, with the logs that `shared` names; each core attaches once.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn attach(env: &E, shared: SharedDirectory, core: CoreId, cache: ChunkCache) -> Result<Directory<E>, OpenError> {
        let SharedDirectory { path, superblock, storage, clean_stop, opener, are_kept, entries } = shared;
        assert!(core != opener, "core {core} has opened {}, it needn't attach", path.display());
        assert!(usize::from(core.0) < CORES_PER_HOST_MAX, "core {core} is one of a host");
        let own = read_checkpoint(env, &path, core).await?;
        let mut entries = entries.into_iter().map(|entry| (entry.log, entry)).collect();
        if !are_kept {
            // The next checkpoint of this core must not be the end of what only its last one says.
            own.entries.into_iter().for_each(|entry| absorb(&mut entries, entry));
        }
        Ok(Directory(Rc::new(State {
            env: env.clone(),
            path,
            superblock,
            core,
            is_opener: false,
            is_shared: Cell::new(true),
            storage: Cell::new(storage),
            cache,
            clean_stop,
            checkpoint_sequence: Cell::new(own.sequence),
            checkpoint_running: Cell::new(false),
            checkpoint_ended: Notify::new(),
            keeps_all: Cell::new(false),
            entries: RefCell::new(entries),
            failure: DirectoryFailure::default(),
        })))
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
