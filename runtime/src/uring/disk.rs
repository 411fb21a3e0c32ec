//! The disks of a host as one core reaches them: files through the ring, names and small files on the pool off the core.
//!
//! Called through the trait [`Disk`] by storage. Invariants: no system call that may wait for a disk runs on the core; a large file
//! is freed in steps, after its name is gone, so that no crash leaves half of a file under its name.

use std::cell::RefCell;
use std::fs::{self, File as StdFile, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use protocol::limits::FREE_STEP_BYTES_MAX;
use rustix::fs::FlockOperation;

use super::descriptors::{DescriptorCounts, Descriptors, FileState};
use super::file::RingFile;
use super::pool::Pool;
use super::ring::Ring;
use super::tasks::Tasks;
use crate::disk::{DirectoryEntry, Disk, Space, flush_error, reworded};
use crate::local::once;

/// The disks as one core reaches them.
#[derive(Clone)]
pub struct RingDisk {
    ring: Ring,
    tasks: Tasks,
    pool: Pool,
    descriptors: Descriptors,
    /// Locked files, open until the core ends.
    locks: Rc<RefCell<Vec<StdFile>>>,
}

impl RingDisk {
    pub(super) fn new(ring: &Ring, tasks: &Tasks, pool: &Pool, descriptors_max: usize) -> RingDisk {
        let descriptors = Descriptors::new(descriptors_max);
        let (ring, tasks, pool) = (ring.clone(), tasks.clone(), pool.clone());
        RingDisk { ring, tasks, pool, descriptors, locks: Rc::default() }
    }

    pub(super) fn counts(&self) -> DescriptorCounts {
        self.descriptors.counts()
    }

    async fn on_path<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let path = path.to_path_buf();
        let named = move || work(&path).map_err(|error| named(&path, &error));
        self.pool.run(named).await
    }
}

impl Disk for RingDisk {
    type File = RingFile;

    fn file(&self, path: PathBuf, create: bool) -> RingFile {
        RingFile::new(FileState::new(path, create), &self.ring, &self.descriptors, &self.pool)
    }

    async fn read_file(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
        self.on_path(path, move |path| read_at_most(path, limit)).await
    }

    async fn replace_file(&self, path: &Path, bytes: Vec<u8>) -> io::Result<()> {
        self.on_path(path, move |path| replace(path, &bytes)).await
    }

    async fn overwrite_file(&self, path: &Path, bytes: Vec<u8>) -> io::Result<()> {
        self.on_path(path, move |path| overwrite(path, &bytes)).await
    }

    async fn remove_file(&self, path: &Path) -> io::Result<()> {
        // In a task of its own, so that the space is freed in steps even if nobody waits.
        let (sender, receiver) = once();
        let (disk, path) = (self.clone(), path.to_path_buf());
        self.tasks.spawn(async move { sender.send(disk.unlink_and_free(&path).await) });
        receiver.await.unwrap_or_else(|| Err(io::Error::other("the core stopped")))
    }

    async fn remove_directory(&self, path: &Path) -> io::Result<()> {
        self.on_path(path, |path| fs::remove_dir(path)).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let to = to.to_path_buf();
        self.on_path(from, move |from| fs::rename(from, &to)).await
    }

    async fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.on_path(path, create_durably).await
    }

    async fn list(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        self.on_path(path, entries).await
    }

    async fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.on_path(path, sync_directory).await
    }

    async fn lock(&self, path: &Path, holder: String) -> io::Result<()> {
        let file = self.on_path(path, move |path| lock(path, &holder)).await?;
        self.locks.borrow_mut().push(file);
        Ok(())
    }

    async fn space(&self, path: &Path) -> io::Result<Space> {
        self.on_path(path, |path| {
            let status = rustix::fs::statvfs(path)?;
            let unit = status.f_frsize;
            Ok(Space { total: status.f_blocks.saturating_mul(unit), available: status.f_bavail.saturating_mul(unit) })
        })
        .await
    }
}

impl RingDisk {
    /// The name goes first, while the file is open; then its blocks, a step at a time, each a job of its own, so that other work
    /// gets its turn and no step stalls the file system's journal for long.
    async fn unlink_and_free(&self, path: &Path) -> io::Result<()> {
        let (file, mut length) = self
            .on_path(path, |path| {
                let file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
                let length = file.metadata()?.len();
                fs::remove_file(path)?;
                Ok((file, length))
            })
            .await?;
        let mut file = Some(file);
        while let Some(open) = file.take() {
            let last = length <= FREE_STEP_BYTES_MAX;
            length = length.saturating_sub(FREE_STEP_BYTES_MAX);
            let freed = self.pool.run(move || open.set_len(length).map(|()| open)).await?;
            file = (!last).then_some(freed);
        }
        Ok(())
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    reworded(error, format!("{}: {error}", path.display()))
}

fn read_at_most(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let bound = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    StdFile::open(path)?.take(bound).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than the {limit} bytes allowed")));
    }
    Ok(bytes)
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let mut file = StdFile::create(&temporary)?;
    file.write_all(bytes)?;
    synced(&file)?;
    fs::rename(&temporary, path)?;
    sync_directory(parent(path)?)
}

fn overwrite(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (mut file, created) = match OpenOptions::new().write(true).open(path) {
        Ok(file) => (file, false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            (OpenOptions::new().write(true).create_new(true).open(path)?, true)
        }
        Err(error) => return Err(error),
    };
    file.write_all(bytes)?;
    file.set_len(u64::try_from(bytes.len()).map_err(io::Error::other)?)?;
    synced(&file)?;
    if created { sync_directory(parent(path)?) } else { Ok(()) }
}

fn create_durably(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let above = parent(path)?;
    create_durably(above)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        result => result?,
    }
    sync_directory(above)
}

fn entries(path: &Path) -> io::Result<Vec<DirectoryEntry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let metadata = match entry.metadata() {
            // Removed since the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            metadata => metadata?,
        };
        let name = entry
            .file_name()
            .into_string()
            .map_err(|name| io::Error::new(io::ErrorKind::InvalidData, format!("the name {name:?} is not UTF-8")))?;
        let is_directory = metadata.is_dir();
        entries.push(DirectoryEntry { name, is_directory, length: if is_directory { 0 } else { metadata.len() } });
    }
    entries.sort();
    Ok(entries)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    synced(&StdFile::open(path)?)
}

fn synced(file: &StdFile) -> io::Result<()> {
    file.sync_all().map_err(|error| flush_error(&error))
}

fn lock(path: &Path, holder: &str) -> io::Result<StdFile> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut bytes = Vec::new();
            // The holder's text says who; that the lock is held is true without it.
            let _ = file.take(4096).read_to_end(&mut bytes);
            let text = format!("locked by {}", String::from_utf8_lossy(&bytes).trim());
            return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
        }
        result => result?,
    }
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(holder.as_bytes())?;
    Ok(file)
}

fn parent(path: &Path) -> io::Result<&Path> {
    match path.parent() {
        Some(above) if above.as_os_str().is_empty() => Ok(Path::new(".")),
        Some(above) => Ok(above),
        None => Err(io::Error::new(io::ErrorKind::InvalidInput, "the path has no directory above it")),
    }
}
