//! The generators of throughput: a flood of prebuilt batches, and readers that follow a log.
//!
//! Both are cheap on purpose, so that the generator's processor isn't the limit: frames and batches are made once, one system
//! call carries many, and what is read is checked by batch headers (base offset, counts) alone. Readers check CRCs only if
//! told to. All run on threads that the caller has bound to the generator's processor.

use std::io::{IoSlice, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use anyhow::{Context, Result, bail, ensure};
use protocol::batch::BatchView;
use protocol::frame::{FrameHeader, HEADER_BYTES};
use protocol::ids::{Offset, TopicId};
use protocol::limits;
use protocol::native::{FetchReply, Kind};

use crate::machine;
use crate::wire::{Wire, fetch_body, produce_body, produced, refuse_error, request_frame, write_all_vectored};

/// Frames that one write may carry.
const GATHERED_FRAMES_MAX: usize = 16;
/// Bytes of replies that one read may bring.
const REPLY_BUFFER_BYTES: usize = 64 << 10;

/// What a flood sends.
#[derive(Clone)]
pub struct FloodConfig {
    /// The topic.
    pub topic: TopicId,
    /// The batch that is sent again and again.
    pub batch: Arc<Vec<u8>>,
    /// Its records.
    pub records: u32,
    /// Batches to send.
    pub batches: u64,
    /// Batches without a reply at most.
    pub window: usize,
}

/// What a flood did.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    /// Bytes of acknowledged batches.
    pub bytes: u64,
    /// From the first byte sent to the last reply, in seconds.
    pub seconds: f64,
}

/// Progress shared between a flood and its readers, in records.
#[derive(Clone)]
pub struct Followers {
    /// The next offset of each reader.
    pub positions: Arc<Vec<AtomicI64>>,
    /// The flood waits while a reader is this far behind.
    pub lag_records_max: i64,
    /// Readers end at the log's end once this is set.
    pub ended: Arc<AtomicBool>,
}

impl Followers {
    /// For `count` readers.
    pub fn new(count: usize, lag_records_max: i64) -> Followers {
        Followers {
            positions: Arc::new((0..count).map(|_| AtomicI64::new(0)).collect()),
            lag_records_max,
            ended: Arc::new(AtomicBool::new(false)),
        }
    }

    fn slowest(&self) -> i64 {
        self.positions.iter().map(|position| position.load(Ordering::Relaxed)).min().unwrap_or(i64::MAX)
    }
}

/// Sends batches with a full window until all are acknowledged; checks that offsets rise without a gap.
pub fn flood(wire: &mut Wire, config: &FloodConfig, followers: Option<&Followers>) -> Result<Flood> {
    ensure!(config.window > 0 && config.window <= limits::REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX, "window");
    let body = produce_body(config.topic, config.batch.len())?;
    // A correlation id is used again only after its reply, so each slot of the window has its frame for good.
    let heads = (0..config.window)
        .map(|slot| request_frame(Kind::Produce, slot as u64, &body, config.batch.len()))
        .collect::<Result<Vec<_>>>()?;
    let mut replies = ReplyReader::new(REPLY_BUFFER_BYTES);
    let (mut sent, mut acknowledged) = (0u64, 0u64);
    let mut offset_next: Option<i64> = None;
    let window = config.window as u64;
    let start_nanos = machine::now_nanos();
    while acknowledged < config.batches {
        let room = (window - (sent - acknowledged)).min(config.batches - sent).min(GATHERED_FRAMES_MAX as u64);
        let held = followers.is_some_and(|followers| offset_next.unwrap_or(0) - followers.slowest() > followers.lag_records_max);
        if room > 0 && !(held && sent > acknowledged) {
            if held {
                std::thread::yield_now();
                continue;
            }
            let mut slices = Vec::with_capacity(2 * GATHERED_FRAMES_MAX);
            for number in sent..sent + room {
                let slot = usize::try_from(number % window)?;
                slices.push(IoSlice::new(&heads[slot]));
                slices.push(IoSlice::new(&config.batch));
            }
            write_all_vectored(&mut wire.stream, &mut slices)?;
            sent += room;
            if sent - acknowledged < window && sent < config.batches {
                continue;
            }
        }
        replies.fill(wire)?;
        while let Some((header, body)) = replies.next()? {
            ensure!(header.correlation == acknowledged % window, "replies out of order");
            let base = produced(body)?.0;
            ensure!(offset_next.is_none_or(|next| next == base), "a gap: offset {base}, expected {offset_next:?}");
            offset_next = Some(base + i64::from(config.records));
            acknowledged += 1;
        }
    }
    let seconds = machine::seconds_since(start_nanos);
    Ok(Flood { bytes: acknowledged * config.batch.len() as u64, seconds })
}

/// Cuts replies without payload out of what a socket brings.
pub struct ReplyReader {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReplyReader {
    /// With a buffer of so many bytes; a single reply must fit it.
    pub fn new(bytes: usize) -> ReplyReader {
        ReplyReader { buffer: vec![0; bytes], start: 0, end: 0 }
    }

    /// Reads once.
    pub fn fill(&mut self, wire: &mut Wire) -> Result<()> {
        self.make_room();
        let count = wire.stream.read(&mut self.buffer[self.end..]).context("the connection broke")?;
        ensure!(count > 0, "the host closed the connection");
        self.end += count;
        Ok(())
    }

    /// Reads once from a socket that doesn't block. Whether anything came.
    pub fn try_fill(&mut self, wire: &mut Wire) -> Result<bool> {
        self.make_room();
        match wire.stream.read(&mut self.buffer[self.end..]) {
            Ok(0) => bail!("the host closed the connection"),
            Ok(count) => {
                self.end += count;
                Ok(true)
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error).context("the connection broke"),
        }
    }

    fn make_room(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// The next whole reply: header and body. The payload, if any, must be whole too and follows the body.
    pub fn next(&mut self) -> Result<Option<(FrameHeader, &[u8])>> {
        let filled = &self.buffer[self.start..self.end];
        let Some(head) = filled.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = FrameHeader::parse(head)?;
        let frame_bytes = header.frame_bytes();
        ensure!(frame_bytes <= self.buffer.len(), "a reply of {frame_bytes} bytes, {} expected", self.buffer.len());
        if filled.len() < frame_bytes {
            return Ok(None);
        }
        let start = self.start;
        self.start += frame_bytes;
        let content = &self.buffer[start + HEADER_BYTES..start + frame_bytes];
        let body = &content[..header.body_bytes()];
        header.verify(body)?;
        refuse_error(&header, body)?;
        Ok(Some((header, content)))
    }
}

/// What a reader asks for.
#[derive(Clone, Copy, Debug)]
pub struct ReadConfig {
    /// The topic.
    pub topic: TopicId,
    /// The first offset.
    pub from: Offset,
    /// Bytes of one reply.
    pub fetch_bytes: u32,
    /// Whether CRCs are checked.
    pub verify: bool,
}

/// What a reader found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// Bytes of batches.
    pub bytes: u64,
    /// Records, by the batches' headers.
    pub records: u64,
    /// The next offset.
    pub next: i64,
}

/// A reader of one partition. One fetch is out at a time; the next goes out as soon as the header of the reply's last batch has
/// arrived, before its bytes have.
pub struct LogReader<'a> {
    wire: &'a mut Wire,
    config: ReadConfig,
    buffer: Vec<u8>,
    filled: usize,
    correlation: u64,
    reading: Reading,
}

impl<'a> LogReader<'a> {
    /// A reader over a connection of its own.
    pub fn new(wire: &'a mut Wire, config: ReadConfig) -> LogReader<'a> {
        let buffer = vec![0; limits::FRAME_BYTES_MAX];
        LogReader { wire, config, buffer, filled: 0, correlation: 1 << 32, reading: Reading::default() }
    }

    /// Reads from the first offset until `is_done` says so, asked after each reply.
    pub fn run(&mut self, mut is_done: impl FnMut(&Reading) -> bool) -> Result<Reading> {
        self.reading = Reading { next: self.config.from.0, ..Reading::default() };
        self.ask()?;
        loop {
            if self.read_reply(&mut is_done)? {
                return Ok(self.reading);
            }
        }
    }

    fn ask(&mut self) -> Result<()> {
        self.correlation += 1;
        let body = fetch_body(self.config.topic, Offset(self.reading.next), self.config.fetch_bytes, 500);
        let frame = request_frame(Kind::Fetch, self.correlation, &body, 0)?;
        write_all_vectored(&mut self.wire.stream, &mut [IoSlice::new(&frame)])
    }

    /// Takes one reply in. Whether that was the last.
    fn read_reply(&mut self, is_done: &mut impl FnMut(&Reading) -> bool) -> Result<bool> {
        self.fill_to(HEADER_BYTES)?;
        let head = self.buffer.first_chunk::<HEADER_BYTES>().context("a buffer of a frame's size")?;
        let header = FrameHeader::parse(head)?;
        ensure!(header.correlation == self.correlation, "replies out of order");
        let payload_at = HEADER_BYTES + header.body_bytes();
        self.fill_to(payload_at)?;
        let body = &self.buffer[HEADER_BYTES..payload_at];
        header.verify(body)?;
        refuse_error(&header, body)?;
        let reply = FetchReply::decode_body(body)?;
        let [partition] = &reply.partitions[..] else { bail!("{} partitions for one", reply.partitions.len()) };
        ensure!(partition.error.is_none(), "a fetch was refused: {}", partition.error);
        let end = payload_at + header.payload_bytes();
        ensure!(end <= self.buffer.len(), "a reply of {end} bytes");
        let mut at = payload_at;
        while at < end {
            self.fill_to(at + limits::BATCH_HEADER_BYTES)?;
            at += self.check_header(at, end)?;
        }
        let done = is_done(&self.reading);
        if !done {
            self.ask()?;
        }
        self.fill_to(end)?;
        if self.config.verify {
            check_crcs(&self.buffer[payload_at..end])?;
        }
        self.buffer.copy_within(end..self.filled, 0);
        self.filled -= end;
        Ok(done)
    }

    /// Checks the batch header at `at`; the batch's size.
    fn check_header(&mut self, at: usize, end: usize) -> Result<usize> {
        // The view wants the whole batch, which may not be here yet: the header's fields are read in place.
        let header = &self.buffer[at..at + limits::BATCH_HEADER_BYTES];
        let base = i64::from_be_bytes(*header.first_chunk::<8>().context("a header")?);
        let field = |at: usize| header[at..].first_chunk::<4>().map(|bytes| i32::from_be_bytes(*bytes)).unwrap_or(-1);
        let size = usize::try_from(field(8)).context("a batch of a negative length")? + protocol::batch::LENGTH_BASE_BYTES;
        let last_delta = i64::from(field(23));
        ensure!(at + size <= end, "a batch of {size} bytes passes the reply's end");
        // The first batch may begin before the offset that was asked for.
        let first = self.reading.bytes == 0;
        ensure!(
            base == self.reading.next || (first && base < self.reading.next),
            "offset {base}, expected {}",
            self.reading.next
        );
        self.reading.next = base + last_delta + 1;
        self.reading.records += u64::try_from(last_delta + 1)?;
        self.reading.bytes += size as u64;
        Ok(size)
    }

    fn fill_to(&mut self, length: usize) -> Result<()> {
        while self.filled < length {
            let count = self.wire.stream.read(&mut self.buffer[self.filled..]).context("the connection broke")?;
            ensure!(count > 0, "the host closed the connection");
            self.filled += count;
        }
        Ok(())
    }
}

fn check_crcs(mut payload: &[u8]) -> Result<()> {
    while !payload.is_empty() {
        let (batch, rest) = BatchView::split(payload)?;
        batch.verify_crc()?;
        payload = rest;
    }
    Ok(())
}
