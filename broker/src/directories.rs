//! The data directories of a host at its start: looked at, opened, and refused where they can't be all of one host's.
//!
//! Runs on core 0, before the metadata log is opened. Order of events: all are looked at -> those that are formatted are opened -> the
//! metadata log is looked for in them -> only then are the others formatted. So a start that is refused has formatted nothing.
//!
//! Each directory is marked as used before its host serves ([`Directories::mark_used`]). So where a mark or a log is, a metadata
//! log has been, and without it the directories aren't all that the host has. Without any mark nothing can be known: that is a
//! new host, or a first start that was cut short, and it is said aloud.

use std::io;
use std::path::PathBuf;

use protocol::ids::{BrokerEpoch, ClusterId, CoreId, DirectoryId, HostId, METADATA_TOPIC};
use runtime::{Disk, Env};
use storage::{ChunkCache, Directory, OpenError, OpenRequest, Seen, StorageConfig, Superblock};
use thiserror::Error;

use crate::controller::METADATA_PARTITION;
use crate::node::NodeConfig;

/// The part of a drive that is kept in reserve, if nobody says how much.
const RESERVE_DIVISOR: u64 = 32;
/// And how much of it at most, in bytes.
const RESERVE_BYTES_DEFAULT_MAX: u64 = 256 << 20;

/// Why the data directories can't be used.
#[derive(Debug, Error)]
pub enum DirectoriesError {
    /// One of them can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A disk failed.
    #[error("{path}: {cause}")]
    Io {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// One of them is new, and none may be.
    #[error(
        "{path} holds nothing of a host (it has no superblock), and data_must_exist allows no new data directory: mount its drive, or \
         start once without data_must_exist if a new one is to be made there"
    )]
    New {
        /// The directory.
        path: PathBuf,
    },
    /// The host has run before, and its metadata log isn't here.
    #[error(
        "none of the data directories holds the metadata log (topics/{METADATA_TOPIC}), which says what lies in them, although host {host} \
         of cluster {cluster} has run on {} before{}: mount the drive, or add the --data directory, that holds it, and start again; \
         nothing was formatted",
        listed(used),
        empty(new)
    )]
    WithoutMetadataLog {
        /// The host.
        host: HostId,
        /// Its cluster.
        cluster: ClusterId,
        /// Its directories that are here.
        used: Vec<PathBuf>,
        /// Directories without a superblock.
        new: Vec<PathBuf>,
    },
    /// Two of them have one identity.
    #[error(
        "{first} and {second} are both directory {id} of host {host}: one is a copy of the other. Give one of them; `corelane log verify` \
         shows how far the logs of each go"
    )]
    Copies {
        /// A directory.
        first: PathBuf,
        /// Another.
        second: PathBuf,
        /// Their identity.
        id: DirectoryId,
        /// The host.
        host: HostId,
    },
    /// There are two metadata logs.
    #[error("both {first} and {second} hold a metadata log: they belong to different hosts")]
    TwoMetadataLogs {
        /// A directory.
        first: PathBuf,
        /// Another.
        second: PathBuf,
    },
}

fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn empty(paths: &[PathBuf]) -> String {
    if paths.is_empty() { String::new() } else { format!(" (with nothing of a host in it: {})", listed(paths)) }
}

/// The data directories of a host, open.
pub struct Directories<E: Env> {
    all: Vec<Directory<E>>,
    with_metadata_log: Option<Directory<E>>,
    /// Those that have no mark yet.
    unmarked: Vec<Directory<E>>,
}

impl<E: Env> Directories<E> {
    /// All of them, those that were formatted before first.
    #[must_use]
    pub fn all(&self) -> &[Directory<E>] {
        &self.all
    }

    /// The one with the metadata log; `None` for a new host.
    #[must_use]
    pub fn with_metadata_log(&self) -> Option<&Directory<E>> {
        self.with_metadata_log.as_ref()
    }

    /// Marks those that are new as used, with a checkpoint. To be called once the start is recorded, before anything is served.
    ///
    /// # Errors
    /// What a disk says.
    pub async fn mark_used(&self, broker_epoch: BrokerEpoch) -> Result<(), DirectoriesError> {
        for directory in &self.unmarked {
            directory.write_checkpoint(broker_epoch, Vec::new()).await.map_err(failed(directory))?;
        }
        Ok(())
    }
}

/// Opens the data directories, those that are formatted before new ones: a new drive joins the host that is there.
///
/// # Errors
/// See [`DirectoriesError`]. Nothing was formatted then, unless a disk has failed.
pub async fn open<E: Env>(env: &E, config: &NodeConfig, cache: &ChunkCache) -> Result<Directories<E>, DirectoriesError> {
    let (mut formatted, mut new) = (Vec::new(), Vec::new());
    for path in &config.data {
        let seen = storage::look(env, path).await.map_err(|cause| DirectoriesError::Io { path: path.clone(), cause })?;
        match seen {
            Seen::Unformatted if config.data_must_exist => return Err(DirectoriesError::New { path: path.clone() }),
            Seen::Unformatted => new.push(path.clone()),
            Seen::Formatted | Seen::Used => formatted.push((path.clone(), seen == Seen::Used)),
        }
    }
    let mut directories = Directories { all: Vec::new(), with_metadata_log: None, unmarked: Vec::new() };
    let mut used = Vec::new();
    for (path, is_used) in formatted {
        let directory = directories.open(env, config, cache, path.clone()).await?;
        if !is_used {
            directories.unmarked.push(directory.clone());
        }
        if is_used || has_other_logs(&directory).await? {
            used.push(path);
        }
    }
    directories.with_metadata_log = find_metadata_log(&directories.all).await?;
    if let (None, Some(first)) = (&directories.with_metadata_log, directories.all.first())
        && !used.is_empty()
    {
        let cluster = first.superblock().cluster;
        return Err(DirectoriesError::WithoutMetadataLog { host: config.host, cluster, used, new });
    }
    let joining = directories.all.len();
    for path in new {
        let directory = directories.open(env, config, cache, path).await?;
        directories.unmarked.push(directory);
    }
    directories.announce(joining);
    Ok(directories)
}

impl<E: Env> Directories<E> {
    async fn open(
        &mut self,
        env: &E,
        config: &NodeConfig,
        cache: &ChunkCache,
        path: PathBuf,
    ) -> Result<Directory<E>, DirectoriesError> {
        let request = OpenRequest {
            cluster: self.all.first().map(|first| first.superblock().cluster),
            host: config.host,
            core: CoreId(0),
            holder: config.holder.clone(),
            storage: StorageConfig::default(),
            cache: cache.clone(),
        };
        let directory = Directory::open(env, path, request).await?;
        if let Some(other) = self.all.iter().find(|other| other.id() == directory.id()) {
            let (first, second) = (other.path().to_path_buf(), directory.path().to_path_buf());
            return Err(DirectoriesError::Copies { first, second, id: directory.id(), host: config.host });
        }
        let reserve_bytes = match config.reserve_bytes {
            Some(bytes) => bytes,
            None => env.disk().space(directory.path()).await.map_or(0, |space| reserve_of(space.total)),
        };
        directory.set_storage(StorageConfig { reserve_bytes, ..directory.storage() });
        self.all.push(directory.clone());
        Ok(directory)
    }

    /// Says which directories are new: an operator whose drive isn't mounted must see it.
    fn announce(&self, joining: usize) {
        let (directories, what) = match self.with_metadata_log {
            None => (&self.all[..], "a new host is made in this directory, which held none"),
            Some(_) => (&self.all[joining..], "a new directory joins this host; it held nothing"),
        };
        for directory in directories {
            let Superblock { cluster, host, directory: id, .. } = directory.superblock();
            let directory = directory.path().display();
            tracing::warn!(
                %directory, %id, %host, %cluster,
                "{what}. If there was something, stop this host and mount the drive; data_must_exist refuses such a start"
            );
        }
    }
}

/// What is kept in reserve on a drive of so many bytes, if nobody says how much.
fn reserve_of(total_bytes: u64) -> u64 {
    (total_bytes / RESERVE_DIVISOR).min(RESERVE_BYTES_DEFAULT_MAX)
}

/// Whether logs of topics lie there.
async fn has_other_logs<E: Env>(directory: &Directory<E>) -> Result<bool, DirectoriesError> {
    // A first start that is cut short leaves the metadata log's directory without a segment: that is nobody's log.
    let logs = directory.list_logs().await.map_err(failed(directory))?;
    Ok(logs.iter().any(|log| *log != METADATA_PARTITION))
}

async fn find_metadata_log<E: Env>(directories: &[Directory<E>]) -> Result<Option<Directory<E>>, DirectoriesError> {
    let mut found: Option<Directory<E>> = None;
    for directory in directories {
        if !directory.has_log(METADATA_PARTITION).await.map_err(failed(directory))? {
            continue;
        }
        if let Some(first) = found {
            let (first, second) = (first.path().to_path_buf(), directory.path().to_path_buf());
            return Err(DirectoriesError::TwoMetadataLogs { first, second });
        }
        found = Some(directory.clone());
    }
    Ok(found)
}

fn failed<E: Env>(directory: &Directory<E>) -> impl FnOnce(io::Error) -> DirectoriesError + use<E> {
    let path = directory.path().to_path_buf();
    move |cause| DirectoriesError::Io { path, cause }
}
