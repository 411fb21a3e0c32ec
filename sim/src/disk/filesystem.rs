//! The state of a simulated disk: per file what is durable and what is not yet, the same for names, and what a crash makes of it.
//!
//! Rules: a write is volatile until a flush *issued after* it completed, or until it completes itself with `Durability::Device`.
//! Changes of a file's allocation and length are kept in order (a journal); a `Device` write commits those before it, and with
//! them the data written before them. A name is durable after a sync of its directory.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::disk::content::Content;
use crate::disk::names::{self, Inode, NameChange, Names};
use crate::random::Stream;

pub(crate) const EIO: i32 = 5;
pub(crate) const ENOSPC: i32 = 28;

/// What a write survives as, when it is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sectors {
    /// Blocks of 4 KiB are written whole or not at all.
    Atomic4K,
    /// Sectors of 512 bytes are written whole or not at all.
    Atomic512,
    /// A sector may be cut inside, with garbage at the cut. Nothing is promised on such a drive: only reported.
    Shearing,
}

#[derive(Clone)]
pub(crate) enum ChangeKind {
    Write { position: u64, bytes: Rc<[u8]> },
    Allocate { position: u64, length: u64 },
    ZeroRange { position: u64, length: u64 },
    SetLength { length: u64 },
}

#[derive(Clone)]
struct FileChange {
    number: u64,
    kind: ChangeKind,
}

#[derive(Default)]
pub(crate) struct FileState {
    pub current: Content,
    durable: Content,
    pending: Vec<FileChange>,
}

/// All files of one host.
#[derive(Default)]
pub(crate) struct FileSystem {
    pub current: Names,
    durable: Names,
    pending: Vec<NameChange>,
    pub files: BTreeMap<Inode, FileState>,
    pub locks: BTreeMap<PathBuf, String>,
    inodes: Inode,
}

impl ChangeKind {
    fn apply(&self, content: &mut Content) {
        match self {
            ChangeKind::Write { position, bytes } => content.write(*position, bytes),
            ChangeKind::Allocate { position, length } => content.allocate(*position, *length),
            ChangeKind::ZeroRange { position, length } => content.zero_range(*position, *length),
            ChangeKind::SetLength { length } => content.set_length(*length),
        }
    }

    fn is_write(&self) -> bool {
        matches!(self, ChangeKind::Write { .. })
    }
}

impl FileState {
    /// A change that a later flush makes durable.
    pub fn change(&mut self, number: u64, kind: ChangeKind) {
        kind.apply(&mut self.current);
        self.pending.push(FileChange { number, kind });
    }

    /// A write that is durable as it completes.
    pub fn write_durably(&mut self, position: u64, bytes: &Rc<[u8]>) {
        if let Some(last) = self.pending.iter().rposition(|change| !change.kind.is_write()) {
            for change in self.pending.drain(..=last) {
                change.kind.apply(&mut self.durable);
            }
        }
        self.forget(position, position + bytes.len() as u64);
        self.current.write(position, bytes);
        self.durable.write(position, bytes);
    }

    /// Makes durable what completed before `number`.
    pub fn flush(&mut self, number: u64) {
        let covered = self.pending.partition_point(|change| change.number < number);
        for change in self.pending.drain(..covered) {
            change.kind.apply(&mut self.durable);
        }
    }

    /// A flush that failed: some of what it should have covered is on the disk, the rest never will be.
    pub fn fail_flush(&mut self, number: u64, stream: &Stream) {
        let covered = self.pending.partition_point(|change| change.number < number);
        for change in self.pending.drain(..covered) {
            if !change.kind.is_write() || stream.chance(1, 2) {
                change.kind.apply(&mut self.durable);
            }
        }
    }

    /// The pending writes lose what a newer durable write has replaced.
    fn forget(&mut self, start: u64, end: u64) {
        let pending = std::mem::take(&mut self.pending);
        for change in pending {
            let ChangeKind::Write { position, bytes } = &change.kind else {
                self.pending.push(change);
                continue;
            };
            let (from, to) = (*position, *position + bytes.len() as u64);
            if from < start.min(to) {
                let kept: Rc<[u8]> = bytes[..usize_of(start.min(to) - from)].into();
                self.pending.push(FileChange { number: change.number, kind: ChangeKind::Write { position: from, bytes: kept } });
            }
            if to > end.max(from) {
                let kept: Rc<[u8]> = bytes[usize_of(end.max(from) - from)..].into();
                let position = end.max(from);
                self.pending.push(FileChange { number: change.number, kind: ChangeKind::Write { position, bytes: kept } });
            }
        }
    }

    fn cut_power(&mut self, mode: CutMode, sectors: Sectors, stream: &Stream) {
        let metadata = self.pending.iter().filter(|change| !change.kind.is_write()).count() as u64;
        let mut metadata_kept = match mode {
            CutMode::LoseAll => 0,
            CutMode::KeepAll => metadata,
            CutMode::Each { .. } => stream.below(metadata + 1),
        };
        for change in std::mem::take(&mut self.pending) {
            match &change.kind {
                ChangeKind::Write { position, bytes } => {
                    let fate = mode.draw(stream);
                    for (start, piece) in survive(bytes, fate, sectors, stream) {
                        self.durable.overlay(position + start, &piece);
                    }
                }
                metadata if metadata_kept > 0 => {
                    metadata_kept -= 1;
                    metadata.apply(&mut self.durable);
                }
                _ => {}
            }
        }
        self.current = self.durable.clone();
    }
}

fn usize_of(value: u64) -> usize {
    usize::try_from(value).expect("a 64-bit machine")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Whole,
    Torn,
    Lost,
}

/// How a power cut treats what isn't durable, drawn once per cut.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CutMode {
    LoseAll,
    KeepAll,
    Each { whole: u64, torn: u64 },
}

impl CutMode {
    pub fn choose(stream: &Stream) -> CutMode {
        match stream.below(8) {
            0 => CutMode::LoseAll,
            1 => CutMode::KeepAll,
            _ => CutMode::Each { whole: stream.below(80), torn: stream.below(60) },
        }
    }

    fn draw(self, stream: &Stream) -> Fate {
        match self {
            CutMode::LoseAll => Fate::Lost,
            CutMode::KeepAll => Fate::Whole,
            CutMode::Each { whole, torn } => {
                let drawn = stream.below(100);
                if drawn < whole {
                    Fate::Whole
                } else if drawn < whole + torn {
                    Fate::Torn
                } else {
                    Fate::Lost
                }
            }
        }
    }

    fn names(self) -> Option<u64> {
        match self {
            CutMode::LoseAll => Some(0),
            CutMode::KeepAll => Some(100),
            CutMode::Each { .. } => None,
        }
    }
}

/// The pieces of a write that reach the medium: (position in the write, bytes).
fn survive(bytes: &[u8], fate: Fate, sectors: Sectors, stream: &Stream) -> Vec<(u64, Vec<u8>)> {
    match fate {
        Fate::Lost => Vec::new(),
        Fate::Whole => vec![(0, bytes.to_vec())],
        Fate::Torn => tear(bytes, sectors, stream),
    }
}

/// A random part of a write: a prefix, a suffix or any sectors.
pub(crate) fn tear(bytes: &[u8], sectors: Sectors, stream: &Stream) -> Vec<(u64, Vec<u8>)> {
    let unit = match sectors {
        Sectors::Atomic4K => 4096,
        Sectors::Atomic512 | Sectors::Shearing => 512,
    };
    let count = bytes.len().div_ceil(unit);
    let at = stream.index(count + 1);
    let shape = stream.below(4);
    let mut pieces = Vec::new();
    for sector in 0..count {
        let kept = match shape {
            0 => sector < at,
            1 => sector >= at,
            _ => stream.chance(1, 2),
        };
        let range = sector * unit..bytes.len().min((sector + 1) * unit);
        if kept {
            pieces.push(((sector * unit) as u64, bytes[range].to_vec()));
        } else if sectors == Sectors::Shearing && stream.chance(1, 8) {
            let cut = stream.index(range.len());
            let mut piece = bytes[range.start..range.start + cut].to_vec();
            piece.extend((0..stream.below(16)).map(|_| stream.next().to_le_bytes()[0]));
            piece.truncate(range.len());
            pieces.push(((sector * unit) as u64, piece));
        }
    }
    pieces
}

impl FileSystem {
    /// A flush that failed: the drive's cache is one for all files, and so is what it has lost. Flushes that follow don't tell.
    pub fn fail_flush(&mut self, number: u64, stream: &Stream) {
        for file in self.files.values_mut() {
            file.fail_flush(number, stream);
        }
    }

    pub fn file(&mut self, inode: Inode) -> &mut FileState {
        self.files.get_mut(&inode).expect("an open file has its state")
    }

    /// Finds or makes the file at `path`.
    pub fn open(&mut self, path: &Path, create: bool) -> io::Result<Inode> {
        if let Some(&inode) = self.current.files.get(path) {
            return Ok(inode);
        }
        let directory = path.parent().unwrap_or(Path::new("/"));
        if !create || !self.current.is_directory(directory) {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("{} doesn't exist", path.display())));
        }
        self.inodes += 1;
        let inode = self.inodes;
        self.files.insert(inode, FileState::default());
        self.change_names(NameChange::Create { path: path.to_path_buf(), inode });
        Ok(inode)
    }

    pub fn change_names(&mut self, change: NameChange) {
        if let NameChange::Rename { from, .. } = &change
            && self.current.directories.contains(from)
        {
            // What lies below a renamed directory keeps its pending changes under the old name: settle them first.
            let below: Vec<PathBuf> = self.current.directories.iter().filter(|path| path.starts_with(from)).cloned().collect();
            for directory in below {
                names::sync(&mut self.durable, &mut self.pending, &directory);
            }
        }
        self.current.apply(&change);
        self.pending.push(change);
    }

    pub fn sync_directory(&mut self, path: &Path) {
        names::sync(&mut self.durable, &mut self.pending, path);
    }

    /// Creates `path` and its missing parents, durably.
    pub fn create_directories(&mut self, path: &Path) {
        let missing: Vec<PathBuf> =
            path.ancestors().filter(|path| !self.current.is_directory(path)).map(Path::to_path_buf).collect();
        for directory in missing.into_iter().rev() {
            let parent = directory.parent().unwrap_or(Path::new("/")).to_path_buf();
            self.change_names(NameChange::MakeDirectory { path: directory });
            self.sync_directory(&parent);
        }
        let mut above = path;
        while let Some(parent) = above.parent() {
            self.sync_directory(parent);
            above = parent;
        }
    }

    /// Bytes taken by the files that have a name.
    pub fn used_bytes(&self) -> u64 {
        let inodes: BTreeSet<Inode> = self.current.files.values().copied().collect();
        inodes.iter().filter_map(|inode| self.files.get(inode)).map(|file| file.current.allocated_bytes()).sum()
    }

    /// Bytes of changes that no flush covers.
    pub fn unsynced_changes(&self) -> usize {
        self.files.values().map(|file| file.pending.len()).sum::<usize>() + self.pending.len()
    }

    /// Power goes: what isn't durable survives in part. Writes in flight must have been added as changes before.
    pub fn cut_power(&mut self, sectors: Sectors, stream: &Stream) {
        let mode = CutMode::choose(stream);
        names::cut(&mut self.durable, &mut self.pending, mode.names(), stream);
        self.current = self.durable.clone();
        for file in self.files.values_mut() {
            file.cut_power(mode, sectors, stream);
        }
        self.drop_unnamed();
    }

    /// Files without a name in either state are gone once no process holds them.
    pub fn drop_unnamed(&mut self) {
        let named: BTreeSet<Inode> = self.current.files.values().chain(self.durable.files.values()).copied().collect();
        self.files.retain(|inode, _| named.contains(inode));
        self.locks.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(position: u64, value: u8) -> ChangeKind {
        ChangeKind::Write { position, bytes: Rc::from([value; 4096]) }
    }

    fn allocated() -> FileState {
        let mut file = FileState::default();
        file.change(1, ChangeKind::Allocate { position: 0, length: 1 << 16 });
        file.flush(2);
        file
    }

    fn after_cut(mut file: FileState, position: u64) -> u8 {
        file.cut_power(CutMode::LoseAll, Sectors::Atomic512, &Stream::new(1, "test"));
        file.current.read(position, 1)[0]
    }

    #[test]
    fn a_flush_leaves_out_what_completed_after_it_was_issued() {
        let mut file = allocated();
        file.change(5, write(0, 1));
        file.change(7, write(4096, 2));
        file.flush(6);
        assert_eq!(file.current.read(4096, 1), [2]);
        assert_eq!(file.durable.read(0, 1), [1]);
        assert_eq!(after_cut(file, 4096), 0);
    }

    #[test]
    fn a_durable_write_is_not_undone_by_an_older_pending_one() {
        let mut file = allocated();
        file.change(5, write(0, 1));
        file.write_durably(0, &Rc::from([2; 4096]));
        file.flush(9);
        assert_eq!(after_cut(file, 0), 2);
    }

    #[test]
    fn a_durable_write_leaves_other_writes_volatile_unless_it_commits_metadata() {
        let mut file = allocated();
        file.change(5, write(4096, 1));
        file.write_durably(0, &Rc::from([2; 4096]));
        assert_eq!(file.durable.read(4096, 1), [0]);
        file.change(6, ChangeKind::ZeroRange { position: 1 << 15, length: 4096 });
        file.write_durably(0, &Rc::from([3; 4096]));
        assert_eq!(file.durable.read(4096, 1), [1]);
    }

    #[test]
    fn a_failed_flush_may_lose_for_good() {
        let lost = (0..50).filter(|&seed| {
            let mut file = allocated();
            file.change(5, write(0, 1));
            file.fail_flush(6, &Stream::new(seed, "test"));
            file.flush(7);
            after_cut(file, 0) == 0
        });
        assert!((5..45).contains(&lost.count()));
    }
}
