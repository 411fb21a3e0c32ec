//! Logs read offline: every segment and batch named, and what is wrong at which byte.
//!
//! Plain synchronous reading of files, behind `corelane log dump|verify`; no core, no ring, nothing is changed. The directory should be in
//! use by nobody ([`holder`] says). Zeros behind the last batch of an unsealed segment are space that was allocated ahead, no fault;
//! anything else there is a torn tail, which the next start cuts.

mod check;
mod window;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use protocol::batch::Attributes;
use protocol::compression::Codec;
use protocol::ids::Offset;

use crate::blocks::in_file;
use crate::error::Fault;
use crate::header::{BATCH_HEADER_BYTES, BatchHeader, CRC_START};
use crate::manifest::Manifest;
use crate::segment::parse_segment_name;
use check::SegmentCheck;
use window::Window;

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its log file.
    pub path: PathBuf,
    /// Its base offset.
    pub base: Offset,
    /// Size of the log file, in bytes.
    pub bytes: u64,
    /// Whether it has a manifest: it is complete then, to the byte.
    pub sealed: bool,
}

/// One batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchInfo {
    /// Its first byte in the log file.
    pub position: u64,
    /// The fields of its header.
    pub header: BatchHeader,
    /// CRC-32C of its bytes; [`BatchHeader::crc`] says what it should be.
    pub computed_crc: u32,
}

impl BatchInfo {
    /// Whether the CRC is right.
    #[must_use]
    pub fn is_crc_good(&self) -> bool {
        self.computed_crc == self.header.crc
    }

    /// The codec, if the number is one.
    #[must_use]
    pub fn codec(&self) -> Option<Codec> {
        Attributes(self.header.attributes).codec().ok()
    }
}

/// The end of an unsealed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The byte behind the last good batch.
    pub position: u64,
    /// Bytes from there to the end of the file.
    pub bytes: u64,
    /// What is wrong at `position`, if it isn't unwritten space.
    pub torn: Option<Fault>,
    /// The last byte that isn't zero, if there is one.
    pub last_written: Option<u64>,
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path} at byte {position}: {what}")]
pub struct Problem {
    /// The file.
    pub path: PathBuf,
    /// The byte.
    pub position: u64,
    /// What is wrong there.
    pub what: String,
}

/// What an inspection comes across, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A segment begins.
    Segment(SegmentInfo),
    /// A batch of it.
    Batch(BatchInfo),
    /// An unsealed segment ends.
    Tail(Tail),
    /// Something is wrong.
    Problem(Problem),
}

/// Counts of an inspection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Segments.
    pub segments: u64,
    /// Batches that are whole and whose CRC is right.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The first offset.
    pub first_offset: Option<Offset>,
    /// The offset behind the last.
    pub end_offset: Option<Offset>,
    /// Torn tails: the next start cuts them.
    pub torn_tails: u64,
    /// Problems.
    pub problems: u64,
}

/// Who uses the data directory that `path` lies in, or is; `None` if nobody does, or no lock is found on the way up.
///
/// # Errors
/// What the system says.
pub fn holder(path: &Path) -> io::Result<Option<String>> {
    let path = std::path::absolute(path)?;
    let Some(root) = path.ancestors().find(|ancestor| ancestor.join("superblock").is_file()) else { return Ok(None) };
    let mut file = match File::open(root.join("lock")) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match file.try_lock() {
        Ok(()) => Ok(None),
        Err(std::fs::TryLockError::WouldBlock) => {
            let mut text = String::new();
            file.by_ref().take(4096).read_to_string(&mut text)?;
            Ok(Some(text.trim().to_string()))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

/// The directories of logs at or below `path`: a data directory, a topic's, or a log's own.
///
/// # Errors
/// What the system says; `NotFound` if there is no log.
pub fn logs_below(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut logs = Vec::new();
    let mut pending = vec![(path.to_path_buf(), 0)];
    while let Some((directory, depth)) = pending.pop() {
        let mut is_log = false;
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            is_log |= name.to_str().and_then(parse_segment_name).is_some_and(|(_, extension)| extension == "log");
            // `topics/<topic>/<partition>` is the deepest.
            if depth < 3 && entry.file_type()?.is_dir() {
                pending.push((entry.path(), depth + 1));
            }
        }
        if is_log {
            logs.push(directory);
        }
    }
    if logs.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no log at or below {}", path.display())));
    }
    logs.sort();
    Ok(logs)
}

/// Reads the whole log in `directory`; `visit` sees each item in order.
///
/// # Errors
/// What the system says, other than what is a problem of the log.
pub fn inspect(directory: &Path, mut visit: impl FnMut(&Item)) -> io::Result<Summary> {
    let mut bases = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        if let Some((base, "log")) = name.to_str().and_then(parse_segment_name) {
            bases.push(base);
        }
    }
    bases.sort_unstable();
    let mut inspection =
        Inspection { directory, visit: &mut visit, summary: Summary::default(), expected: None, last_epoch: None };
    for base in bases {
        inspection.segment(base)?;
    }
    Ok(inspection.summary)
}

struct Inspection<'a> {
    directory: &'a Path,
    visit: &'a mut dyn FnMut(&Item),
    summary: Summary,
    expected: Option<Offset>,
    last_epoch: Option<protocol::ids::LeaderEpoch>,
}

impl Inspection<'_> {
    fn item(&mut self, item: Item) {
        match &item {
            Item::Segment(_) => self.summary.segments += 1,
            Item::Batch(batch) if batch.is_crc_good() => {
                self.summary.batches += 1;
                self.summary.records += u64::from(batch.header.record_count);
                self.summary.bytes += in_file(batch.header.size);
                self.summary.first_offset.get_or_insert(batch.header.base_offset);
                self.summary.end_offset = Some(batch.header.next_offset());
            }
            Item::Batch(_) => {}
            Item::Tail(tail) => self.summary.torn_tails += u64::from(tail.torn.is_some()),
            Item::Problem(_) => self.summary.problems += 1,
        }
        (self.visit)(&item);
    }

    fn problem(&mut self, path: &Path, position: u64, what: impl std::fmt::Display) {
        self.item(Item::Problem(Problem { path: path.to_path_buf(), position, what: what.to_string() }));
    }

    fn segment(&mut self, base: Offset) -> io::Result<()> {
        let path = crate::segment::segment_path(self.directory, base, "log");
        let mut window = Window::open(&path)?;
        let bytes = window.length();
        let manifest = self.manifest(base)?;
        let info = SegmentInfo { path: path.clone(), base, bytes, sealed: manifest.is_some() };
        self.item(Item::Segment(info));
        if let Some(expected) = self.expected.filter(|expected| *expected != base) {
            self.problem(&path, 0, format_args!("the segment starts at offset {base} where {expected} must follow"));
        }
        self.expected = Some(base);
        let mut check = SegmentCheck::new(base);
        let (position, fault) = self.batches(&path, &mut window, manifest.is_some(), &mut check)?;
        match (&manifest, fault) {
            (Some(_), Some(fault)) => self.problem(&path, position, fault),
            (Some(manifest), None) => {
                let whole = check.against(manifest, position, self.expected);
                for what in whole {
                    self.problem(&crate::segment::segment_path(self.directory, base, "manifest"), 0, what);
                }
            }
            (None, fault) => {
                let last_written = window.last_nonzero(position)?;
                let torn = fault.filter(|_| last_written.is_some());
                self.item(Item::Tail(Tail { position, bytes: bytes - position, torn, last_written }));
            }
        }
        for problem in check.indexes(self.directory, manifest.as_ref())? {
            self.item(Item::Problem(problem));
        }
        Ok(())
    }

    fn manifest(&mut self, base: Offset) -> io::Result<Option<Manifest>> {
        let path = crate::segment::segment_path(self.directory, base, "manifest");
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match Manifest::decode(&bytes) {
            Ok(manifest) => Ok(Some(manifest)),
            Err(error) => {
                self.problem(&path, 0, error);
                Ok(None)
            }
        }
    }

    /// Walks the batches; where they end, and what is wrong there, if the file goes on.
    fn batches(
        &mut self,
        path: &Path,
        window: &mut Window,
        sealed: bool,
        check: &mut SegmentCheck,
    ) -> io::Result<(u64, Option<Fault>)> {
        let mut position = 0;
        while position < window.length() {
            let available = window.length() - position;
            let Some(bytes) = window.bytes(position, BATCH_HEADER_BYTES)?.first_chunk::<BATCH_HEADER_BYTES>() else {
                return Ok((position, Some(Fault::Truncated { size: BATCH_HEADER_BYTES, available })));
            };
            let header = match BatchHeader::parse(bytes) {
                Ok(header) => header,
                Err(fault) => return Ok((position, Some(Fault::Header(fault)))),
            };
            let size = header.size;
            let bytes = window.bytes(position, size)?;
            if bytes.len() < size {
                return Ok((position, Some(Fault::Truncated { size, available })));
            }
            let computed_crc = crc32c::crc32c(&bytes[CRC_START..]);
            let batch = BatchInfo { position, header, computed_crc };
            let fault = self.fault_of(&batch);
            if let Some(fault) = fault {
                if !sealed {
                    return Ok((position, Some(fault)));
                }
                self.problem(path, position, fault);
            }
            if let Some(number) = check.impossible(&batch) {
                self.problem(path, position, number);
            }
            self.item(Item::Batch(batch));
            check.note(&batch);
            self.expected = Some(header.next_offset());
            self.last_epoch = self.last_epoch.max(Some(header.leader_epoch));
            position += in_file(size);
        }
        Ok((position, None))
    }

    fn fault_of(&self, batch: &BatchInfo) -> Option<Fault> {
        let header = &batch.header;
        if !batch.is_crc_good() {
            return Some(Fault::Crc { stored: header.crc, computed: batch.computed_crc });
        }
        if let Some(expected) = self.expected.filter(|expected| *expected != header.base_offset) {
            return Some(Fault::Offset { expected, found: header.base_offset });
        }
        let last = self.last_epoch.filter(|last| *last > header.leader_epoch)?;
        Some(Fault::Epoch { last, found: header.leader_epoch })
    }
}
