//! Names of files and directories: what a running system sees, what a power cut would leave, and the changes between the two.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::random::Stream;

/// Identity of a file, whatever its name.
pub(crate) type Inode = u64;

/// One state of all names.
#[derive(Clone, Default)]
pub(crate) struct Names {
    pub directories: BTreeSet<PathBuf>,
    pub files: BTreeMap<PathBuf, Inode>,
}

/// A change of names that no directory sync covers yet.
#[derive(Clone, Debug)]
pub(crate) enum NameChange {
    Create { path: PathBuf, inode: Inode },
    MakeDirectory { path: PathBuf },
    Remove { path: PathBuf },
    RemoveDirectory { path: PathBuf },
    Rename { from: PathBuf, to: PathBuf },
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

impl NameChange {
    /// The directories that it changes.
    fn directories(&self) -> (&Path, &Path) {
        match self {
            NameChange::Create { path, .. }
            | NameChange::MakeDirectory { path }
            | NameChange::Remove { path }
            | NameChange::RemoveDirectory { path } => (parent(path), parent(path)),
            NameChange::Rename { from, to } => (parent(from), parent(to)),
        }
    }
}

impl Names {
    pub fn is_directory(&self, path: &Path) -> bool {
        path == Path::new("/") || self.directories.contains(path)
    }

    pub fn is_empty_directory(&self, path: &Path) -> bool {
        let inside = |other: &PathBuf| other.parent() == Some(path);
        !self.files.keys().any(inside) && !self.directories.iter().any(inside)
    }

    pub fn apply(&mut self, change: &NameChange) {
        match change {
            NameChange::Create { path, inode } => {
                self.files.insert(path.clone(), *inode);
            }
            NameChange::MakeDirectory { path } => {
                self.directories.insert(path.clone());
            }
            NameChange::Remove { path } => {
                self.files.remove(path);
            }
            NameChange::RemoveDirectory { path } => {
                self.directories.remove(path);
            }
            NameChange::Rename { from, to } => self.rename(from, to),
        }
    }

    fn rename(&mut self, from: &Path, to: &Path) {
        if let Some(inode) = self.files.remove(from) {
            self.files.insert(to.to_path_buf(), inode);
        }
        if !self.directories.remove(from) {
            return;
        }
        self.directories.insert(to.to_path_buf());
        let moved = |path: &PathBuf| path.strip_prefix(from).ok().map(|rest| (path.clone(), to.join(rest)));
        let directories: Vec<_> = self.directories.iter().filter_map(moved).collect();
        for (old, new) in directories {
            self.directories.remove(&old);
            self.directories.insert(new);
        }
        let files: Vec<_> = self.files.keys().filter_map(moved).collect();
        for (old, new) in files {
            if let Some(inode) = self.files.remove(&old) {
                self.files.insert(new, inode);
            }
        }
    }

    /// Drops what lies below a directory that doesn't exist.
    fn drop_unreachable(&mut self) {
        loop {
            let known = self.directories.clone();
            let exists = |path: &PathBuf| parent(path) == Path::new("/") || known.contains(parent(path));
            self.directories.retain(exists);
            self.files.retain(|path, _| exists(path));
            if self.directories.len() == known.len() {
                return;
            }
        }
    }
}

/// Makes durable what changed in `directory`, and what those changes stand on.
pub(crate) fn sync(durable: &mut Names, pending: &mut Vec<NameChange>, directory: &Path) {
    let mut wanted: BTreeSet<PathBuf> = BTreeSet::from([directory.to_path_buf()]);
    // A rename between two directories ties their earlier changes together: walk back from the newest.
    let mut kept = Vec::new();
    let mut taken = Vec::new();
    for change in pending.drain(..).rev() {
        let (from, to) = change.directories();
        if wanted.contains(from) || wanted.contains(to) {
            wanted.extend([from.to_path_buf(), to.to_path_buf()]);
            taken.push(change);
        } else {
            kept.push(change);
        }
    }
    kept.reverse();
    *pending = kept;
    for change in taken.iter().rev() {
        durable.apply(change);
    }
}

/// What a power cut leaves: of each directory's changes a prefix, the rest lost. `keep` is out of 100, or drawn per change.
pub(crate) fn cut(durable: &mut Names, pending: &mut Vec<NameChange>, keep: Option<u64>, stream: &Stream) {
    let mut stopped: BTreeSet<PathBuf> = BTreeSet::new();
    for change in pending.drain(..) {
        let (from, to) = change.directories();
        let lost = stopped.contains(from) || stopped.contains(to) || !stream.chance(keep.unwrap_or(70), 100);
        if lost {
            stopped.extend([from.to_path_buf(), to.to_path_buf()]);
        } else {
            durable.apply(&change);
        }
    }
    durable.drop_unreachable();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(path: &str, inode: Inode) -> NameChange {
        NameChange::Create { path: path.into(), inode }
    }

    #[test]
    fn a_sync_covers_its_directory_only() {
        let mut durable = Names { directories: ["/a".into(), "/b".into()].into(), files: BTreeMap::new() };
        let mut pending = vec![create("/a/x", 1), create("/b/y", 2)];
        sync(&mut durable, &mut pending, Path::new("/a"));
        assert_eq!(durable.files.keys().collect::<Vec<_>>(), [Path::new("/a/x")]);
        assert_eq!(pending.len(), 1);
    }

    #[test]
    fn a_cut_keeps_a_prefix_of_each_directory() {
        for seed in 0..200 {
            let mut durable = Names { directories: ["/a".into()].into(), files: BTreeMap::new() };
            let mut pending =
                vec![create("/a/1", 1), create("/a/2", 2), NameChange::Rename { from: "/a/2".into(), to: "/a/3".into() }];
            cut(&mut durable, &mut pending, None, &Stream::new(seed, "test"));
            let names: Vec<&str> = durable.files.keys().filter_map(|path| path.to_str()).collect();
            let allowed: [&[&str]; 4] = [&[], &["/a/1"], &["/a/1", "/a/2"], &["/a/1", "/a/3"]];
            assert!(allowed.contains(&names.as_slice()), "{names:?}");
        }
    }
}
