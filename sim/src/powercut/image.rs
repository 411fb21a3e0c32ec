//! Disk images: sparse copies, comparison, and the image of one cut.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write as _};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::SeekFrom as Seeks;

use super::plan::Cut;
use super::recording::Recording;

/// Extents that hold data, as (from, to).
fn data_extents(file: &File) -> Result<Vec<(u64, u64)>> {
    let length = file.metadata()?.len();
    let mut extents = Vec::new();
    let mut at = 0;
    while at < length {
        let Ok(from) = rustix::fs::seek(file, Seeks::Data(at)) else { break };
        let to = rustix::fs::seek(file, Seeks::Hole(from))?;
        extents.push((from, to));
        at = to;
    }
    Ok(extents)
}

/// Copies a file and keeps its holes.
///
/// # Errors
/// Reading or writing fails.
pub fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    let source = File::open(from).with_context(|| from.display().to_string())?;
    let mut target = File::create(to).with_context(|| to.display().to_string())?;
    target.set_len(source.metadata()?.len())?;
    for (begin, end) in data_extents(&source)? {
        (&source).seek(SeekFrom::Start(begin))?;
        target.seek(SeekFrom::Start(begin))?;
        std::io::copy(&mut (&source).take(end - begin), &mut target)?;
    }
    target.flush()?;
    Ok(())
}

/// The first byte (rounded down to a piece) at which two files of one length differ.
///
/// # Errors
/// Reading fails.
pub fn first_difference(one: &Path, other: &Path) -> Result<Option<u64>> {
    const PIECE: u64 = 1 << 20;
    let (one, other) = (File::open(one)?, File::open(other)?);
    let mut pieces: Vec<u64> = Vec::new();
    for (from, to) in data_extents(&one)?.into_iter().chain(data_extents(&other)?) {
        pieces.extend((from / PIECE..to.div_ceil(PIECE)).map(|piece| piece * PIECE));
    }
    pieces.sort_unstable();
    pieces.dedup();
    let length = one.metadata()?.len();
    let mut buffers = (vec![0; usize::try_from(PIECE)?], vec![0; usize::try_from(PIECE)?]);
    for at in pieces {
        let count = usize::try_from(PIECE.min(length - at))?;
        one.read_exact_at(&mut buffers.0[..count], at)?;
        other.read_exact_at(&mut buffers.1[..count], at)?;
        if buffers.0[..count] != buffers.1[..count] {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// A running image: writes that every later cut holds too are applied once, in order. Ask for cuts in order of time.
pub struct Master<'a> {
    recording: &'a Recording,
    path: PathBuf,
    file: File,
    applied: usize,
}

impl<'a> Master<'a> {
    /// Begins with a copy of the base image at `path`.
    ///
    /// # Errors
    /// The copy fails.
    pub fn new(recording: &'a Recording, base: &Path, path: &Path) -> Result<Master<'a>> {
        copy_sparse(base, path)?;
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Master { recording, path: path.to_owned(), file, applied: 0 })
    }

    /// Writes the disk of one cut to `out`.
    ///
    /// # Errors
    /// Log or images fail.
    pub fn build(&mut self, cut: &Cut, out: &Path) -> Result<()> {
        for write in &self.recording.writes[self.applied..cut.common] {
            self.recording.apply(&self.file, write, 0, write.sectors)?;
        }
        self.applied = self.applied.max(cut.common);
        copy_sparse(&self.path, out)?;
        let image = File::options().write(true).open(out)?;
        for piece in &cut.late {
            self.recording.apply(&image, &self.recording.writes[piece.write], piece.from, piece.to)?;
        }
        Ok(())
    }
}

impl Drop for Master<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_copy_is_equal_and_a_changed_byte_is_found() {
        let folder = std::env::temp_dir().join(format!("corelane-image-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (one, two) = (folder.join("one"), folder.join("two"));
        let file = File::create(&one).unwrap();
        file.set_len(8 << 20).unwrap();
        file.write_all_at(b"here", 5 << 20).unwrap();
        copy_sparse(&one, &two).unwrap();
        assert_eq!(first_difference(&one, &two).unwrap(), None);
        File::options().write(true).open(&two).unwrap().write_all_at(b"x", (7 << 20) + 3).unwrap();
        assert_eq!(first_difference(&one, &two).unwrap(), Some(7 << 20));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
