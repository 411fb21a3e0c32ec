//! Group commit: what is appended and not yet written becomes one write, at most two of which are out.
//!
//! A plan is one contiguous run of blocks of one segment. It never goes from written into unwritten blocks: a run that
//! would is cut at the frontier, and the rest is the next plan. Published bytes are written from the chunk that they were
//! appended into; a last, partial block (or a whole small commit) is written from a private copy, because appends go on
//! behind it. The second plan starts on a block that the first doesn't touch. Offsets move with the contiguous prefix.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;

use protocol::ids::{DurabilityClass, Offset};
use protocol::limits::{GROUP_COMMIT_BYTES_MAX, WRITES_IN_FLIGHT_PER_PARTITION_MAX};
use runtime::disk::is_flush_error;
use runtime::{Canary, ChunkSlice, Disk, Durability, Env, File};

use crate::blocks::{BLOCK, block_ceiling, block_floor, in_file, in_memory};
use crate::config::FlushPolicy;
use crate::error::LogFailure;
use crate::file::SegmentFile;
use crate::log::{Log, Progress};
use crate::piece::Piece;
use crate::segment::{Name, OpenSegment};

/// Commits up to this size are copied whole into one private chunk, so that they are one write, in bytes.
const COPY_WHOLE_BYTES_MAX: u64 = 128 << 10;
/// A log that streams waits for this much while another write of it is out, in bytes.
const STREAMING_COMMIT_BYTES_MIN: u64 = 64 << 10;

/// What is appended and not yet written, and what is out.
#[derive(Default)]
pub(crate) struct Writer {
    pub(crate) unwritten_bytes: usize,
    ends: VecDeque<BatchEnd>,
    in_flight: VecDeque<InFlight>,
    next_id: u64,
}

struct BatchEnd {
    segment: Offset,
    end: u64,
    next_offset: Offset,
    size: usize,
}

struct InFlight {
    id: u64,
    segment: Offset,
    end: u64,
    done: Option<Done>,
}

#[derive(Clone, Copy)]
struct Done {
    flushed: bool,
}

impl Writer {
    pub(crate) fn appended(&mut self, segment: Offset, end: u64, next_offset: Offset, size: usize) {
        self.ends.push_back(BatchEnd { segment, end, next_offset, size });
        self.unwritten_bytes += size;
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Whether a write to `segment` is out.
    pub(crate) fn is_writing(&self, segment: Offset) -> bool {
        self.in_flight.iter().any(|write| write.segment == segment)
    }

    /// Settles all batches that end at or before `end` of `segment`; the offset behind the last of them.
    fn settle(&mut self, segment: Offset, end: u64) -> Option<Offset> {
        let mut settled = None;
        while let Some(first) = self.ends.front().filter(|first| (first.segment, first.end) <= (segment, end)) {
            settled = Some(first.next_offset);
            self.unwritten_bytes -= first.size;
            self.ends.pop_front();
        }
        settled
    }
}

/// How the bytes of a plan become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Plain,
    Durable,
    ThenFlush,
}

/// One write, with everything that it needs.
pub struct WritePlan<E: Env> {
    env: E,
    id: u64,
    file: SegmentFile<E>,
    rename: Option<Rename>,
    data: ChunkSlice,
    position: u64,
    mode: Mode,
    acknowledge_before_flush: bool,
}

/// A prepared file that gets its segment's name.
pub(crate) struct Rename {
    pub(crate) from: PathBuf,
    pub(crate) to: PathBuf,
    pub(crate) directory: PathBuf,
}

impl Rename {
    pub(crate) async fn execute<E: Env>(self, env: &E) -> io::Result<()> {
        env.disk().rename(&self.from, &self.to).await?;
        env.disk().sync_directory(&self.directory).await
    }
}

/// What became of a write.
#[derive(Debug)]
pub struct WriteOutcome {
    id: u64,
    renamed: bool,
    flushed: bool,
    result: io::Result<()>,
}

impl<E: Env> WritePlan<E> {
    /// Bytes of the write.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Writes. Touches no state of the log.
    pub async fn execute(self) -> WriteOutcome {
        let id = self.id;
        let renamed = self.rename.is_some();
        let flushed = self.mode != Mode::Plain;
        let result = self.run().await;
        WriteOutcome { id, renamed: renamed && result.is_ok(), flushed, result }
    }

    async fn run(self) -> io::Result<()> {
        if let Some(rename) = self.rename {
            rename.execute(&self.env).await?;
        }
        let durability = match self.mode {
            Mode::Durable if !self.acknowledge_before_flush => Durability::Device,
            _ => Durability::Written,
        };
        self.file.file.write(self.data, self.position, durability).await?;
        if self.mode == Mode::ThenFlush && !self.acknowledge_before_flush {
            self.file.flush().await?;
        }
        Ok(())
    }
}

/// A run of bytes to write: `[from, end)`, where `from` is a block boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    from: u64,
    end: u64,
}

impl<E: Env> Log<E> {
    /// The next write, if there is something to write and it may go out now. Ask again until it says no, and again after each
    /// [`Log::finish_write`].
    pub fn begin_write(&mut self, now: runtime::Monotonic) -> Option<WritePlan<E>> {
        if self.check_running().is_err() || self.writer.in_flight.len() >= WRITES_IN_FLIGHT_PER_PARTITION_MAX {
            return None;
        }
        self.rate.advance(now, &self.storage);
        let index = self.open.iter().position(|segment| segment.submitted < segment.appended)?;
        let segment = &self.open[index];
        if segment.name == Name::Renaming {
            return None;
        }
        let source = source_piece(&self.tail.pieces, segment);
        let run = self.next_run(segment, source, index + 1 == self.open.len())?;
        let (data, run) = self.data_of(&self.tail.pieces[source], run)?;
        let id = self.writer.next_id;
        self.writer.next_id += 1;
        let mode = match (self.class(), self.storage.flush_policy) {
            (DurabilityClass::Written, _) => Mode::Plain,
            (DurabilityClass::Device, FlushPolicy::EachWrite) => Mode::Durable,
            (DurabilityClass::Device, FlushPolicy::Grouped) => Mode::ThenFlush,
        };
        self.metrics.writes(1);
        self.metrics.written_bytes(in_file(data.len()));
        let rename = self.submit(index, run);
        self.writer.in_flight.push_back(InFlight { id, segment: self.open[index].base, end: run.end, done: None });
        let acknowledge_before_flush = self.env.canary(Canary::AckBeforeFlush);
        let file = self.open[index].file.clone();
        Some(WritePlan { env: self.env.clone(), id, file, rename, data, position: run.from, mode, acknowledge_before_flush })
    }

    /// Settles a write.
    ///
    /// # Errors
    /// If it failed, now or before: the log has stopped, and nothing more of it may be acknowledged.
    pub fn finish_write(&mut self, outcome: WriteOutcome) -> Result<Progress, LogFailure> {
        let index = self.writer.in_flight.iter().position(|write| write.id == outcome.id).expect("a write is settled once");
        let (base, end) = (self.writer.in_flight[index].segment, self.writer.in_flight[index].end);
        if let Err(cause) = outcome.result {
            self.writer.in_flight.remove(index);
            return Err(match is_flush_error(&cause) {
                true => self.fail("write", (base, end), cause),
                false => self.fail_alone("write", (base, end), cause),
            });
        }
        self.writer.in_flight[index].done = Some(Done { flushed: outcome.flushed });
        if outcome.renamed {
            let segment = self.open_segment(base).expect("a segment with writes out is open");
            segment.name = Name::Own;
            segment.prepared_path = None;
        }
        self.check_running()?;
        while let Some((write, done)) = self.writer.in_flight.front().and_then(|write| Some((write, write.done?))) {
            let (base, end) = (write.segment, write.end);
            self.writer.in_flight.pop_front();
            self.settle_write(base, end, done.flushed);
        }
        self.settle_tail();
        Ok(self.progress())
    }

    /// How far the log is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress { written: self.offsets.written, flushed: self.offsets.flushed }
    }

    fn settle_write(&mut self, base: Offset, end: u64, flushed: bool) {
        // A durable write says nothing about plain ones before it: those wait for a flush.
        let flushed = flushed && self.offsets.flushed == self.offsets.written && self.is_flushed_up_to(base);
        let segment = self.open_segment(base).expect("a segment with writes out is open");
        assert!(end >= segment.written, "writes settle in order");
        segment.written = end;
        if flushed {
            segment.flushed = end;
        }
        if let Some(next_offset) = self.writer.settle(base, end) {
            self.offsets.written = next_offset;
            if flushed {
                self.offsets.flushed = next_offset;
            }
        }
    }

    /// Whether all that was written up to the segment at `base`, and in it, is flushed.
    fn is_flushed_up_to(&self, base: Offset) -> bool {
        self.open.iter().take_while(|segment| segment.base <= base).all(|segment| segment.flushed == segment.written)
    }

    /// Moves pieces that are written and complete into the cache.
    pub(crate) fn settle_tail(&mut self) {
        let active = self.active().base;
        while let Some(first) = self.tail.pieces.front() {
            let complete = self.tail.pieces.len() > 1 || first.segment != active;
            let written =
                self.open.iter().find(|segment| segment.base == first.segment).map_or(u64::MAX, |segment| segment.written);
            if !complete || first.end_position() > written {
                return;
            }
            let piece = self.tail.pieces.pop_front().expect("it was just looked at");
            self.cache.insert(self.cache_key, piece);
        }
    }

    fn next_run(&self, segment: &OpenSegment<E>, source: usize, is_active: bool) -> Option<Run> {
        let from = block_floor(segment.submitted);
        let last_in_flight = self.writer.in_flight.iter().rev().find(|write| write.segment == segment.base);
        if last_in_flight.is_some_and(|write| block_ceiling(write.end) > from) {
            return None;
        }
        let next_piece = self.tail.pieces.get(source + 1).filter(|piece| piece.segment == segment.base);
        let limit = next_piece.map_or_else(|| self.tail.pieces[source].end_position(), |piece| piece.position);
        let mut end = limit.min(from + in_file(GROUP_COMMIT_BYTES_MAX));
        if from < segment.frontier {
            end = end.min(segment.frontier);
        } else if segment.zeroing_to.is_some() {
            return None;
        }
        if segment.zeroing_to.is_some() {
            end = end.min(segment.frontier);
        }
        let whole_blocks = block_floor(end);
        let streaming = self.rate.streaming() && from >= segment.frontier && is_active;
        if streaming {
            let idle = self.writer.in_flight.is_empty();
            if !idle && end - from < STREAMING_COMMIT_BYTES_MIN {
                return None;
            }
            // The rest of a block is carried into the next commit, unless nothing follows.
            if end > whole_blocks && whole_blocks > from {
                end = whole_blocks;
            }
        } else if end > whole_blocks && whole_blocks > from && end - from > COPY_WHOLE_BYTES_MAX {
            end = whole_blocks;
        }
        Some(Run { from, end })
    }

    /// The bytes of a run, as whole blocks, and the run that they cover.
    fn data_of(&self, piece: &Piece, run: Run) -> Option<(ChunkSlice, Run)> {
        let start = in_memory(run.from - piece.position);
        let slice_to = |end: u64| piece.slice(start, in_memory(end - piece.position));
        if run.end.is_multiple_of(BLOCK) {
            return Some((slice_to(run.end), run));
        }
        let padded = in_memory(block_ceiling(run.end) - run.from);
        if let Some(mut copy) = self.cache.take(padded) {
            copy.append(&piece.bytes()[start..in_memory(run.end - piece.position)]);
            let padding = padded - copy.filled();
            copy.writable()[..padding].fill(0);
            copy.publish(padding);
            return Some((copy.freeze(), run));
        }
        let whole_blocks = block_floor(run.end);
        (whole_blocks > run.from).then(|| (slice_to(whole_blocks), Run { end: whole_blocks, ..run }))
    }

    /// Notes that a run of the open segment `index` goes out.
    fn submit(&mut self, index: usize, run: Run) -> Option<Rename> {
        let segment = &mut self.open[index];
        let written_to = block_ceiling(run.end);
        if run.from < segment.frontier && written_to > segment.frontier {
            self.metrics.crossing_writes(1);
        }
        assert!(written_to <= segment.allocated.next_multiple_of(BLOCK), "nothing extends a file on the hot path");
        segment.frontier = segment.frontier.max(written_to);
        segment.submitted = run.end;
        (segment.name == Name::Prepared).then(|| {
            segment.name = Name::Renaming;
            let to = crate::segment::segment_path(&self.directory, segment.base, "log");
            let directory = self.directory.clone();
            Rename { from: segment.prepared_path.clone().expect("a prepared segment has a path"), to, directory }
        })
    }
}

/// The last piece of the segment that holds the block where the next write starts.
fn source_piece<E: Env>(pieces: &VecDeque<Piece>, segment: &OpenSegment<E>) -> usize {
    let from = block_floor(segment.submitted);
    let piece = pieces.iter().rposition(|piece| piece.segment == segment.base && piece.position <= from);
    piece.expect("unwritten bytes lie in the tail")
}
