//! A blocking connection of the native protocol, for generators that must cost little: no runtime, frames made once and reused.

use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, bail, ensure};
use protocol::batch::{BatchBuilder, RecordFields};
use protocol::compression::Codec;
use protocol::frame::{FrameFields, FrameHeader, HEADER_BYTES, encode_frame};
use protocol::ids::{Offset, PartitionIndex, Timestamp, TopicId};
use protocol::native::{
    CreateTopicReply, CreateTopicRequest, ErrorReply, FetchPartition, FetchRequest, HelloReply, HelloRequest, IsolationLevel,
    Kind, MetadataReply, MetadataRequest, ProduceBatch, ProduceReply, ProduceRequest,
};

use crate::machine;

/// The partition that benchmarks use.
pub const PARTITION: PartitionIndex = PartitionIndex(0);

/// A greeted connection.
pub struct Wire {
    /// The socket.
    pub stream: TcpStream,
    correlation_next: u64,
}

impl Wire {
    /// Connects and greets.
    pub fn connect(address: SocketAddr) -> Result<Wire> {
        let stream = TcpStream::connect(address).with_context(|| format!("{address} can't be reached"))?;
        let mut wire = Wire::ungreeted(stream)?;
        let hello = HelloRequest {
            client_id: "bench".to_owned(),
            client_software: concat!("bench/", env!("CARGO_PKG_VERSION")).to_owned(),
            version_min: 1,
            version_max: 1,
            features: 0,
        };
        let reply = wire.call(Kind::Hello, &hello.encode_body(), &[])?;
        HelloReply::decode_body(&reply)?;
        Ok(wire)
    }

    /// A connection to something that expects no greeting.
    pub fn ungreeted(stream: TcpStream) -> Result<Wire> {
        stream.set_nodelay(true)?;
        Ok(Wire { stream, correlation_next: 0 })
    }

    /// Sends a request and waits for its reply's body. For requests whose replies have no payload.
    pub fn call(&mut self, kind: Kind, body: &[u8], payload: &[u8]) -> Result<Vec<u8>> {
        let correlation = self.correlation_next;
        self.correlation_next += 1;
        let frame = request_frame(kind, correlation, body, payload.len())?;
        write_all_vectored(&mut self.stream, &mut [IoSlice::new(&frame), IoSlice::new(payload)])?;
        let mut head = [0; HEADER_BYTES];
        self.stream.read_exact(&mut head).context("the host closed the connection")?;
        let header = FrameHeader::parse(&head)?;
        let mut body = vec![0; header.body_bytes()];
        self.stream.read_exact(&mut body)?;
        header.verify(&body)?;
        ensure!(header.correlation == correlation, "reply {} to request {correlation}", header.correlation);
        ensure!(header.payload_bytes() == 0, "{} unexpected bytes of payload", header.payload_bytes());
        refuse_error(&header, &body)?;
        Ok(body)
    }

    /// Makes a topic of one partition.
    pub fn create_topic(&mut self, name: &str, configs: &[(&str, &str)]) -> Result<TopicId> {
        let request = CreateTopicRequest {
            name: name.to_owned(),
            partitions: 1,
            configs: configs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            timeout_ms: 30_000,
        };
        let reply = self.call(Kind::CreateTopic, &request.encode_body(), &[]).context("a topic can't be made")?;
        Ok(CreateTopicReply::decode_body(&reply)?.topic_id)
    }

    /// Identity and high watermark of a topic of one partition.
    pub fn describe(&mut self, name: &str) -> Result<(TopicId, Offset)> {
        let topics = self.topics()?;
        let topic = topics.into_iter().find(|(found, _, _)| found == name);
        topic.map(|(_, topic, end)| (topic, end)).with_context(|| format!("there is no topic {name}"))
    }

    /// Name, identity and high watermark of the first partition of all topics.
    pub fn topics(&mut self) -> Result<Vec<(String, TopicId, Offset)>> {
        let request = MetadataRequest { names: None };
        let reply = MetadataReply::decode_body(&self.call(Kind::Metadata, &request.encode_body(), &[])?)?;
        let mut topics = Vec::new();
        for topic in reply.topics {
            ensure!(topic.error.is_none(), "topic {}: {}", topic.name, topic.error);
            if let Some(partition) = topic.partitions.first() {
                topics.push((topic.name, topic.topic_id, partition.high_watermark));
            }
        }
        Ok(topics)
    }

    /// Appends one batch, acknowledged; its base offset.
    pub fn produce(&mut self, topic: TopicId, batch: &[u8]) -> Result<Offset> {
        let body = produce_body(topic, batch.len())?;
        let reply = self.call(Kind::Produce, &body, batch)?;
        produced(&reply)
    }
}

/// Header and body of a request.
pub fn request_frame(kind: Kind, correlation: u64, body: &[u8], payload_bytes: usize) -> Result<Box<[u8]>> {
    let (_, version) = kind.versions();
    let fields = FrameFields::request(kind, version, correlation).with_payload(payload_bytes);
    Ok(encode_frame(&fields, body)?)
}

/// Body of a produce request with one batch, acks all.
pub fn produce_body(topic: TopicId, batch_bytes: usize) -> Result<Vec<u8>> {
    let batch = ProduceBatch { topic_id: topic, partition: PARTITION, bytes: u32::try_from(batch_bytes)? };
    Ok(ProduceRequest { acks: -1, timeout_ms: 30_000, batches: vec![batch] }.encode_body())
}

/// The base offset in a reply to one batch.
pub fn produced(body: &[u8]) -> Result<Offset> {
    let reply = ProduceReply::decode_body(body)?;
    let [result] = &reply.results[..] else { bail!("{} results for one batch", reply.results.len()) };
    ensure!(result.error.is_none(), "a batch was refused: {} {}", result.error, result.message);
    Ok(result.base_offset)
}

/// Body of a fetch request for one partition.
pub fn fetch_body(topic: TopicId, offset: Offset, bytes_max: u32, wait_ms: u32) -> Vec<u8> {
    let partition = FetchPartition {
        topic_id: topic,
        partition: PARTITION,
        offset,
        max_bytes: bytes_max,
        current_leader_epoch: protocol::ids::LeaderEpoch(-1),
    };
    FetchRequest {
        max_wait_ms: wait_ms,
        min_bytes: 1,
        max_bytes: bytes_max,
        isolation: IsolationLevel::ReadUncommitted,
        partitions: vec![partition],
    }
    .encode_body()
}

/// Fails if the reply says that the request was refused as a whole.
pub fn refuse_error(header: &FrameHeader, body: &[u8]) -> Result<()> {
    if header.is_error() {
        let refusal = ErrorReply::decode_body(body)?;
        bail!("refused: {} {}", refusal.code, refusal.message);
    }
    Ok(())
}

/// Writes all of several slices.
pub fn write_all_vectored(stream: &mut TcpStream, slices: &mut [IoSlice<'_>]) -> Result<()> {
    let mut rest = slices;
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let written = stream.write_vectored(rest).context("the host closed the connection")?;
        ensure!(written > 0, "the host takes no more bytes");
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}

/// Bytes of a record's value in the figures.
pub const RECORD_BYTES: usize = 1024;
/// Size of a batch in the throughput figures, in bytes, at most.
pub const BATCH_BYTES: usize = 64 << 10;

/// A batch of as many 1 KiB records as fit 64 KiB, and their number. The same bytes may be sent again and again: what the
/// host stamps isn't covered by the CRC.
pub fn full_batch() -> Result<(Vec<u8>, u32)> {
    let mut builder = BatchBuilder::with_capacity(Codec::None, BATCH_BYTES);
    let mut random = machine::Random(1);
    let timestamp = Timestamp(machine::wall_millis());
    while builder.size_bytes() + RECORD_BYTES + 32 <= BATCH_BYTES {
        let value: Vec<u8> = (0..RECORD_BYTES / 8).flat_map(|_| random.bits().to_le_bytes()).collect();
        builder.push(&RecordFields { timestamp, key: None, value: Some(&value), headers: &[] })?;
    }
    let count = builder.record_count();
    Ok((builder.finish()?, count))
}
