//! The checkpoints of a data directory that several cores use: read together when it is opened, shared out, each written by its core.
//!
//! The core that opens the directory knows what all checkpoints say, of those too that only an earlier start had. It gives each other core
//! the entries of that core's logs and keeps a copy: so nothing is lost if the process ends before the other has written its first checkpoint.
//! Nor may that first checkpoint be the end of what only its predecessor said of logs that are another core's now. Once the opener has
//! written a checkpoint, everything stands in it; until then whoever attaches goes on with what its own last one says.
//!
//! So a log may have entries in several checkpoints; [`absorb`] says which one counts. They are forgotten by [`Directory::retain_entries`].

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use protocol::ids::{BrokerEpoch, CoreId, TopicPartition};
use protocol::limits::CORES_PER_HOST_MAX;
use runtime::{Disk, Env};

use super::open::OpenError;
use super::{Directory, State};
use crate::checkpoint::{CHECKPOINT_BYTES_MAX, Checkpoint, CheckpointEntry, Entries, absorb};
use crate::config::StorageConfig;
use crate::superblock::Superblock;

/// The files of a core, in turn.
const LETTERS: [char; 2] = ['a', 'b'];
/// All files of all cores are at most this large together, in bytes: what they say is held in memory.
const ALL_CHECKPOINTS_BYTES_MAX: u64 = 8 * CHECKPOINT_BYTES_MAX as u64;

/// An open directory on its way to another core, with what checkpoints say of that core's logs.
#[derive(Clone, Debug)]
pub struct SharedDirectory {
    pub(super) path: PathBuf,
    pub(super) superblock: Superblock,
    pub(super) storage: StorageConfig,
    pub(super) clean_stop: Option<BrokerEpoch>,
    pub(super) opener: CoreId,
    /// The opener's own checkpoint has all that others had said.
    pub(super) are_kept: bool,
    pub(super) entries: Vec<CheckpointEntry>,
}

/// What the checkpoints of a directory say.
pub(super) struct Found {
    pub(super) entries: Entries,
    /// Of the newest of the core that asks.
    pub(super) sequence: u64,
    /// Some entries come from other cores.
    pub(super) of_others: bool,
}

impl<E: Env> Directory<E> {
    /// The directory for another core, with what is known of the wanted logs; the entries stay here too. Only for the core that has opened it;
    /// settings that change later aren't passed on.
    pub fn share(&self, wanted: impl Fn(TopicPartition) -> bool) -> SharedDirectory {
        let state = &*self.0;
        assert!(state.is_opener, "who has opened {} knows its checkpoints", state.path.display());
        state.is_shared.set(true);
        SharedDirectory {
            path: state.path.clone(),
            superblock: state.superblock,
            storage: state.storage.get(),
            clean_stop: state.clean_stop,
            opener: state.core,
            are_kept: state.keeps_all.get(),
            entries: state.entries.borrow().values().filter(|entry| wanted(entry.log)).cloned().collect(),
        }
    }

    /// What is known of a log that moves to another core. It stays here too, so that it stands in a checkpoint all the time.
    #[must_use]
    pub fn take_entry(&self, log: TopicPartition) -> Option<CheckpointEntry> {
        self.checkpoint_entry(log)
    }

    /// Takes what another core knows of a log that comes from there.
    pub fn give_entry(&self, entry: CheckpointEntry) {
        absorb(&mut self.0.entries.borrow_mut(), entry);
    }

    /// Forgets what is known of all other logs: to be called with those that are gone from the directory, whichever core had them, so that entries
    /// don't pile up over starts and topics. They are gone from the checkpoint with the next one.
    pub fn retain_entries(&self, keep: impl Fn(TopicPartition) -> bool) {
        self.0.entries.borrow_mut().retain(|log, _| keep(*log));
    }

    /// Takes over what the checkpoints of other cores say into this one's, durably, and then removes those of cores numbered `cores` and above,
    /// which don't exist any more. Only for the core that has opened the directory, before others attach.
    ///
    /// # Errors
    /// What the disk says. Nothing is lost then, and the next start tries again.
    pub async fn remove_checkpoints_above(&self, cores: usize, broker_epoch: BrokerEpoch) -> io::Result<()> {
        let state = &*self.0;
        assert!(state.is_opener, "who has opened {} knows its checkpoints", state.path.display());
        assert!(usize::from(state.core.0) < cores, "core {} is one of {cores}", state.core);
        if !state.keeps_all.get() {
            self.write_checkpoint(broker_epoch, Vec::new()).await?;
        }
        let removed = self.remove_checkpoints(cores).await;
        self.check_flush("removing checkpoints", removed)
    }

    async fn remove_checkpoints(&self, cores: usize) -> io::Result<()> {
        let (disk, path) = (self.0.env.disk(), self.path());
        let mut removed = 0;
        for entry in disk.list(path).await? {
            if parse_checkpoint_name(&entry.name).is_some_and(|core| usize::from(core.0) >= cores) {
                disk.remove_file(&path.join(&entry.name)).await?;
                removed += 1;
            }
        }
        if removed > 0 {
            disk.sync_directory(path).await?;
        }
        Ok(())
    }

    /// Writes this core's checkpoint, with these entries of open logs; what it knows of others stays in it. One after the other.
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
        let path = state.path.join(checkpoint_name(state.core, LETTERS[usize::from(!sequence.is_multiple_of(2))]));
        let entries = state.entries.borrow().values().cloned().collect();
        let bytes = Checkpoint { sequence, broker_epoch, entries }.encode();
        if bytes.len() > CHECKPOINT_BYTES_MAX {
            return Err(too_large(bytes.len() as u64, CHECKPOINT_BYTES_MAX as u64));
        }
        let result = state.env.disk().overwrite_file(&path, bytes).await;
        if result.is_ok() {
            // After a failure the next one takes the same file: the other holds the last that counts.
            state.checkpoint_sequence.set(sequence);
            state.keeps_all.set(state.is_opener);
        }
        drop(turn);
        self.check_flush("writing a checkpoint", result)
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

fn checkpoint_name(core: CoreId, letter: char) -> String {
    format!("checkpoint-{core}.{letter}")
}

/// The core whose checkpoint has this name.
fn parse_checkpoint_name(name: &str) -> Option<CoreId> {
    let (core, _) = name.strip_prefix("checkpoint-")?.split_once('.')?;
    let core = CoreId(core.parse().ok()?);
    let is_ours = LETTERS.iter().any(|letter| checkpoint_name(core, *letter) == name);
    (is_ours && usize::from(core.0) < CORES_PER_HOST_MAX).then_some(core)
}

fn too_large(found: u64, allowed: u64) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("{found} bytes of checkpoints, where {allowed} are allowed"))
}

/// The newer one of a core's checkpoints; an empty one if there is none.
pub(super) async fn read_checkpoint<E: Env>(env: &E, path: &Path, core: CoreId) -> Result<Checkpoint, OpenError> {
    let mut files = [None, None];
    for (slot, letter) in files.iter_mut().zip(LETTERS) {
        let file = path.join(checkpoint_name(core, letter));
        match env.disk().read_file(&file, CHECKPOINT_BYTES_MAX).await {
            Ok(bytes) => *slot = Some(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(OpenError::Io { path: file, cause }),
        }
    }
    Ok(Checkpoint::newest(files))
}

/// What the checkpoints of all cores say, as core `own` reads them.
pub(super) async fn read_all<E: Env>(env: &E, path: &Path, own: CoreId) -> Result<Found, OpenError> {
    let failed = |cause| OpenError::Io { path: path.to_path_buf(), cause };
    let mut cores = BTreeSet::new();
    let mut bytes = 0_u64;
    for entry in env.disk().list(path).await.map_err(failed)? {
        if let Some(core) = parse_checkpoint_name(&entry.name) {
            cores.insert(core);
            bytes = bytes.saturating_add(entry.length);
        }
    }
    if bytes > ALL_CHECKPOINTS_BYTES_MAX {
        return Err(failed(too_large(bytes, ALL_CHECKPOINTS_BYTES_MAX)));
    }
    let mut found = Found { entries: Entries::new(), sequence: 0, of_others: false };
    for core in cores {
        let checkpoint = read_checkpoint(env, path, core).await?;
        if core == own {
            found.sequence = checkpoint.sequence;
        } else {
            found.of_others |= !checkpoint.entries.is_empty();
        }
        checkpoint.entries.into_iter().for_each(|entry| absorb(&mut found.entries, entry));
    }
    Ok(found)
}
