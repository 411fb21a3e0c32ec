//! Durable acknowledgements of single records, and the same records at a tail reader, under a Poisson load on a schedule.
//!
//! One thread on the generator's processor sends each record at its intended time, or as soon after it as it can, and takes replies and fetched
//! records as they come. It looks for a reply as long as one is out, and sleeps else until something is due. Every latency counts from the *intended* time, so a stall of the broker is
//! seen by all records that were due meanwhile. The intended time travels in the record (nanoseconds of CLOCK_MONOTONIC).

use std::collections::VecDeque;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use protocol::batch::{BatchBuilder, BatchView, RecordFields};
use protocol::compression::Codec;
use protocol::frame::FrameHeader;
use protocol::ids::{Offset, Timestamp, TopicId};
use protocol::native::{FetchReply, Kind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::IoSlice;
use std::time::Duration;

use crate::awake::{self, Awake};
use crate::limits::commit::CommitRing;
use crate::limits::fio::FioResult;
use crate::limits::{echo, fio};
use crate::load::ReplyReader;
use crate::machine::{self, Random};
use crate::node::Run;
use crate::report::{self, BEYOND_MACHINE_MAX, Bars, Figure, Latencies, MachineLimit};
use crate::server::Server;
use crate::wire::{RECORD_BYTES, Wire, fetch_body, produce_body, produced, request_frame, write_all_vectored};

const RATE_PER_SECOND: f64 = 3000.0;
const SEED: u64 = 42;
/// Limits and loads take turns so often: a drive's speed drifts within minutes, and both must see the same of it.
const ROUNDS: u32 = 3;
/// How often replies are looked for once all is sent.
const DRAIN_LOOK_NANOS: u64 = 1_000_000;
/// Before a record is due, the generator looks for bytes without sleeping.
const SPIN_NANOS: u64 = 60_000;
/// After the last record, for the replies that are still out.
const DRAIN_SECONDS: f64 = 30.0;

pub fn measure(run: &mut Run) -> Result<()> {
    let awake = Awake::start(run.args.broker_cpu);
    let scratch = run.scratch("latency")?;
    let server = run.start(&scratch)?;
    let mut limits = Limits::default();
    let mut alone = Measured::default();
    let mut with_tail = Measured::default();
    for round in 0..ROUNDS {
        limits.measure(run)?;
        machine::settle(&run.args.dir)?;
        alone.load(run, &server, &format!("ack-{round}"), None)?;
        with_tail.load(run, &server, &format!("tail-{round}"), Some(server.connect()?))?;
    }
    limits.measure(run)?;
    awake.stop()?;
    server.stop()?;
    drop(scratch);
    let disk = FioResult::mean(&limits.disk);

    let echo = Latencies::of("echo, 1 KiB, closed loop", &limits.echo);
    let acks = Latencies::of("durable ack", &alone.acks);
    let tail_acks = Latencies::of("durable ack beside a tail reader", &with_tail.acks);
    let end_to_end = Latencies::of("end to end at the tail reader", &with_tail.end_to_end);
    let note =
        format!("echo {:.1} + fio {:.1} us at p50, {:.1} + {:.1} at p99", echo.p50_us, disk.p50_us, echo.p99_us, disk.p99_us);
    let what = "durable ack, 1 KiB, linger 0, one connection, Poisson 3,000/s";
    let bare = Latencies::of("bare ring: receives, writes, answers; same load", &limits.bare.acks);
    let allowed = |value: f64| MachineLimit { what: "a bare ring under the same load", value, factor: BEYOND_MACHINE_MAX };
    let p50 = Figure::against("ack_p50", what, acks.p50_us, echo.p50_us + disk.p50_us, "us", Bars::at_most(2.0, 1.4)).note(note);
    run.report.add(p50.allowed_by(allowed(bare.p50_us)));
    let p99 = Figure::against("ack_p99", what, acks.p99_us, echo.p99_us + disk.p99_us, "us", Bars::at_most(4.0, 2.5));
    let p99 = p99.note(format!("each round's p99: {}; the bare ring's: {} us", alone.p99s(), limits.bare.p99s()));
    // One stall of the drive in one of its rounds would else allow anything.
    run.report.add(p99.allowed_by(allowed(limits.bare.confirmed_p99_us())));
    let beyond = end_to_end.p50_us - tail_acks.p50_us;
    run.report.add(
        Figure::against(
            "tail_p50",
            "end to end p50 less ack p50 of the same records, in echo p50s",
            beyond,
            echo.p50_us,
            "us",
            Bars::at_most(1.5, 1.0),
        )
        .note(format!("end to end {:.1}, ack {:.1} us", end_to_end.p50_us, tail_acks.p50_us)),
    );
    for latencies in [echo, bare, acks, tail_acks, end_to_end] {
        run.report.add_latencies(latencies);
    }
    Ok(())
}

/// What the machine does by itself.
struct Limits {
    echo: Histogram<u64>,
    disk: Vec<FioResult>,
    bare: Measured,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { echo: report::histogram(), disk: Vec::new(), bare: Measured::default() }
    }
}

impl Limits {
    /// Measures once more.
    fn measure(&mut self, run: &Run) -> Result<()> {
        let (broker_cpu, generator_cpu) = (run.args.broker_cpu, run.args.generator_cpu);
        machine::settle(&run.args.dir)?;
        self.echo.add(&echo::run(broker_cpu, generator_cpu, run.sizes.echo_round_trips)?)?;
        let ring = CommitRing::start(&run.args.dir, broker_cpu)?;
        machine::settle(&run.args.dir)?;
        let generator = Generator::new(ring.connection()?, TopicId::default(), None)?;
        self.bare.run(run, generator, run.sizes.latency_seconds / f64::from(ROUNDS + 1))?;
        ring.stop()?;
        self.disk.push(fio::run(&run.args.dir, run.args.broker_cpu, fio::OVERWRITE_BLOCK, run.sizes.fio_block)?);
        Ok(())
    }
}

struct Measured {
    acks: Histogram<u64>,
    end_to_end: Histogram<u64>,
    /// Of the acknowledgements of each round.
    p99s_us: Vec<f64>,
}

impl Default for Measured {
    fn default() -> Measured {
        Measured { acks: report::histogram(), end_to_end: report::histogram(), p99s_us: Vec::new() }
    }
}

impl Measured {
    /// Runs the load once more, on a new topic.
    fn load(&mut self, run: &Run, server: &Server, topic: &str, tail: Option<Wire>) -> Result<()> {
        let topic = server.connect()?.create_topic(topic, &[("durability", "device")])?;
        let generator = Generator::new(server.connect()?, topic, tail)?;
        self.run(run, generator, run.sizes.latency_seconds / f64::from(ROUNDS))
    }

    fn run(&mut self, run: &Run, mut generator: Generator, seconds: f64) -> Result<()> {
        let warm_up = run.sizes.latency_warm_up_seconds;
        let thread = machine::spawn_pinned(run.args.generator_cpu, move || {
            // Sleeps end when they are due, not 50 us later.
            rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)).context("timer slack")?;
            // It looks away its last microseconds before each record; the kernel's workers that finish durable writes on this
            // processor go first.
            awake::take_lowest_class()?;
            generator.run(warm_up, seconds)?;
            Ok((generator.acks, generator.end_to_end))
        });
        let (acks, end_to_end) = machine::joined(thread)?;
        self.p99s_us.push(Latencies::of("a round", &acks).p99_us);
        self.acks.add(&acks)?;
        self.end_to_end.add(&end_to_end)?;
        Ok(())
    }

    /// The highest p99 that two rounds reached.
    fn confirmed_p99_us(&self) -> f64 {
        let mut p99s = self.p99s_us.clone();
        p99s.sort_by(f64::total_cmp);
        p99s[p99s.len().saturating_sub(2)]
    }

    /// The p99 of each round, in words.
    fn p99s(&self) -> String {
        let each: Vec<_> = self.p99s_us.iter().map(|p99| format!("{p99:.0}")).collect();
        each.join(", ")
    }
}

struct Generator {
    wire: Wire,
    replies: ReplyReader,
    tail: Option<Tail>,
    topic: TopicId,
    /// Intended times of what has no reply.
    in_flight: VecDeque<u64>,
    sent: u64,
    value: Vec<u8>,
    wall_millis: i64,
    measure_from_nanos: u64,
    acks: Histogram<u64>,
    end_to_end: Histogram<u64>,
}

struct Tail {
    wire: Wire,
    replies: ReplyReader,
    correlation: u64,
    next: i64,
}

impl Generator {
    fn new(wire: Wire, topic: TopicId, tail: Option<Wire>) -> Result<Generator> {
        wire.stream.set_nonblocking(true)?;
        let tail = tail.map(|wire| -> Result<Tail> {
            wire.stream.set_nonblocking(true)?;
            Ok(Tail { wire, replies: ReplyReader::new(2 << 20), correlation: 0, next: 0 })
        });
        Ok(Generator {
            wire,
            replies: ReplyReader::new(64 << 10),
            tail: tail.transpose()?,
            topic,
            in_flight: VecDeque::new(),
            sent: 0,
            value: vec![0x5a; RECORD_BYTES],
            wall_millis: machine::wall_millis(),
            measure_from_nanos: 0,
            acks: report::histogram(),
            end_to_end: report::histogram(),
        })
    }

    fn run(&mut self, warm_up_seconds: f64, seconds: f64) -> Result<()> {
        let mut random = Random(SEED);
        let start_nanos = machine::now_nanos();
        let nanos = |seconds: f64| Duration::from_secs_f64(seconds).as_nanos();
        self.measure_from_nanos = start_nanos + u64::try_from(nanos(warm_up_seconds))?;
        let end_nanos = self.measure_from_nanos + u64::try_from(nanos(seconds))?;
        let drain_nanos = end_nanos + u64::try_from(nanos(DRAIN_SECONDS))?;
        if let Some(tail) = &mut self.tail {
            tail.ask(self.topic)?;
        }
        let mut next_nanos = start_nanos;
        loop {
            let now_nanos = machine::now_nanos();
            while next_nanos <= now_nanos && next_nanos < end_nanos {
                self.send(next_nanos)?;
                next_nanos += u64::try_from(random.exponential(RATE_PER_SECOND).as_nanos())?.max(1);
            }
            self.take_replies()?;
            self.take_records()?;
            let read_all = self.tail.as_ref().is_none_or(|tail| i128::from(tail.next) >= i128::from(self.sent));
            if next_nanos >= end_nanos && self.in_flight.is_empty() && read_all {
                return Ok(());
            }
            ensure!(now_nanos < drain_nanos, "{} records without a reply after {DRAIN_SECONDS} s", self.in_flight.len());
            let due_nanos = if next_nanos < end_nanos { next_nanos } else { machine::now_nanos() + DRAIN_LOOK_NANOS };
            self.wait_until(due_nanos)?;
        }
    }

    /// Sleeps until the time has nearly come; the last of it is looked away, or each record would be late by a wake-up. So is the time of a
    /// reply: a processor that halted meanwhile would add its own wake-up to the broker's latency. It must sleep between, though: with both
    /// processors never halting, a host's quota runs out and everything stands still to the end of its period.
    fn wait_until(&self, due_nanos: u64) -> Result<()> {
        let left_nanos = due_nanos.saturating_sub(machine::now_nanos());
        if left_nanos == 0 {
            return Ok(());
        }
        let sleep_nanos = if self.in_flight.is_empty() { left_nanos.saturating_sub(SPIN_NANOS) } else { 0 };
        if sleep_nanos == 0 {
            std::thread::yield_now();
        }
        let limit = Timespec::try_from(Duration::from_nanos(sleep_nanos))?;
        let mut sockets = Vec::with_capacity(2);
        sockets.push(PollFd::new(&self.wire.stream, PollFlags::IN));
        if let Some(tail) = &self.tail {
            sockets.push(PollFd::new(&tail.wire.stream, PollFlags::IN));
        }
        match poll(&mut sockets, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("poll"),
        }
    }

    /// Sends a record that was due at `intended_nanos`.
    fn send(&mut self, intended_nanos: u64) -> Result<()> {
        self.value[..8].copy_from_slice(&intended_nanos.to_le_bytes());
        let mut builder = BatchBuilder::with_capacity(Codec::None, RECORD_BYTES + 64);
        builder.push(&RecordFields {
            timestamp: Timestamp(self.wall_millis),
            key: None,
            value: Some(&self.value),
            headers: &[],
        })?;
        let batch = builder.finish()?;
        let body = produce_body(self.topic, batch.len())?;
        let head = request_frame(Kind::Produce, self.sent, &body, batch.len())?;
        // 3 MiB/s fit the socket's buffer; if they ever don't, the run is void and says so.
        write_all_vectored(&mut self.wire.stream, &mut [IoSlice::new(&head), IoSlice::new(&batch)])
            .context("the socket takes no more: the host is far behind the load")?;
        self.in_flight.push_back(intended_nanos);
        self.sent += 1;
        Ok(())
    }

    fn take_replies(&mut self) -> Result<()> {
        if !self.replies.try_fill(&mut self.wire)? {
            return Ok(());
        }
        let now_nanos = machine::now_nanos();
        while let Some((_, body)) = self.replies.next()? {
            let base = produced(body)?.0;
            let intended_nanos = self.in_flight.pop_front().context("a reply without a request")?;
            let expected = i64::try_from(self.sent)? - i64::try_from(self.in_flight.len())? - 1;
            ensure!(base == expected, "offset {base}, expected {expected}");
            if intended_nanos >= self.measure_from_nanos {
                self.acks.saturating_record(now_nanos - intended_nanos);
            }
        }
        Ok(())
    }

    fn take_records(&mut self) -> Result<()> {
        let Some(tail) = &mut self.tail else { return Ok(()) };
        if !tail.replies.try_fill(&mut tail.wire)? {
            return Ok(());
        }
        let now_nanos = machine::now_nanos();
        let mut answered = false;
        while let Some((header, content)) = tail.replies.next()? {
            answered = true;
            for intended_nanos in stamps(&header, content, &mut tail.next)? {
                if intended_nanos >= self.measure_from_nanos {
                    self.end_to_end.saturating_record(now_nanos.saturating_sub(intended_nanos));
                }
            }
        }
        if answered { tail.ask(self.topic) } else { Ok(()) }
    }
}

impl Tail {
    fn ask(&mut self, topic: TopicId) -> Result<()> {
        self.correlation += 1;
        let body = fetch_body(topic, Offset(self.next), 1 << 20, 500);
        let frame = request_frame(Kind::Fetch, self.correlation, &body, 0)?;
        write_all_vectored(&mut self.wire.stream, &mut [IoSlice::new(&frame)])
    }
}

/// The intended times in a reply to a fetch; every record must be the next one.
fn stamps(header: &FrameHeader, content: &[u8], next: &mut i64) -> Result<Vec<u64>> {
    let (body, mut payload) = content.split_at(header.body_bytes());
    for partition in &FetchReply::decode_body(body)?.partitions {
        ensure!(partition.error.is_none(), "a fetch was refused: {}", partition.error);
    }
    let mut stamps = Vec::new();
    while !payload.is_empty() {
        let (batch, rest) = BatchView::split(payload)?;
        for record in batch.records()? {
            let record = record?;
            ensure!(record.offset.0 == *next, "record {}, expected {next}", record.offset);
            *next += 1;
            let stamp = record.value.and_then(|value| value.first_chunk::<8>()).context("a record without a stamp")?;
            stamps.push(u64::from_le_bytes(*stamp));
        }
        payload = rest;
    }
    Ok(stamps)
}
