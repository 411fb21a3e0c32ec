//! A server for tests: greets, describes the topics it was given, and leaves the rest to a script.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use protocol::batch::BatchView;
use protocol::error::ErrorCode;
use protocol::frame::{self, FrameHeader, HEADER_BYTES};
use protocol::ids::{
    ClusterId, CoreId, HostId, LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId, Sequence, Timestamp, TopicId,
};
use protocol::native::{
    ErrorReply, FetchPartitionReply, FetchReply, FetchRequest, HelloReply, InitProducerReply, Kind, ListOffsetsPartitionReply,
    ListOffsetsReply, ListOffsetsRequest, MetadataPartition, MetadataReply, MetadataRequest, MetadataTopic, OffsetSpec,
    ProduceReply, ProduceRequest, ProduceResult,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// What the script answers to a produce or fetch.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Does what a server does: appends, or reads from what was appended.
    Serve,
    /// Refuses each batch or partition with a code.
    Refuse(ErrorCode),
    /// Refuses the request as a whole.
    RefuseWhole(ErrorCode),
    /// Sends these bytes instead of a frame.
    Raw(Vec<u8>),
    /// Never answers.
    Silence,
    /// Appends, and closes the connection without an answer.
    AppendAndClose,
    /// Closes the connection.
    Close,
}

#[derive(Default)]
pub struct Log {
    pub batches: Vec<Vec<u8>>,
    /// Producer, epoch and sequence of those that have them, their records and offsets.
    known: Vec<((ProducerId, ProducerEpoch, Sequence), u32, i64)>,
    pub end: i64,
    pub start: i64,
}

#[derive(Default)]
pub struct World {
    pub topic_id: u128,
    pub logs: Vec<Log>,
    /// Next answers to produce requests; `Serve` when empty.
    pub produce: VecDeque<Answer>,
    pub fetch: VecDeque<Answer>,
    /// Requests seen, by kind.
    pub seen: Vec<Kind>,
    pub connections: usize,
    pub produce_held: bool,
    /// Producer ids given.
    pub producer_ids: i64,
    pub refuse_producers: Option<ErrorCode>,
}

/// A running fake.
#[derive(Clone)]
pub struct FakeServer {
    pub address: String,
    pub world: Arc<Mutex<World>>,
    changed: Arc<Notify>,
}

pub const TOPIC: &str = "readings";

impl FakeServer {
    pub async fn start(partitions: usize) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let world = World { topic_id: 7, logs: (0..partitions).map(|_| Log::default()).collect(), ..World::default() };
        let server = FakeServer {
            address: listener.local_addr().unwrap().to_string(),
            world: Arc::new(Mutex::new(world)),
            changed: Arc::new(Notify::new()),
        };
        let accepting = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                accepting.world.lock().unwrap().connections += 1;
                let serving = accepting.clone();
                tokio::spawn(async move {
                    // A client that goes away ends the task.
                    let _ = serving.serve(stream).await;
                });
            }
        });
        server
    }

    pub fn script_produce(&self, answers: impl IntoIterator<Item = Answer>) {
        self.world.lock().unwrap().produce.extend(answers);
    }

    pub fn script_fetch(&self, answers: impl IntoIterator<Item = Answer>) {
        self.world.lock().unwrap().fetch.extend(answers);
    }

    /// While held, produce requests are read but not answered.
    pub fn hold_produce(&self, held: bool) {
        self.world.lock().unwrap().produce_held = held;
        self.changed.notify_waiters();
    }

    pub fn count(&self, kind: Kind) -> usize {
        self.world.lock().unwrap().seen.iter().filter(|seen| **seen == kind).count()
    }

    /// All values of a partition, in log order.
    pub fn values(&self, partition: usize) -> Vec<String> {
        let world = self.world.lock().unwrap();
        let mut values = Vec::new();
        for batch in &world.logs[partition].batches {
            let view = BatchView::whole(batch).unwrap();
            view.verify_crc().unwrap();
            let bytes = view.decompress(64 << 20).unwrap();
            for record in view.records_in(&bytes).unwrap() {
                values.push(String::from_utf8(record.unwrap().value.unwrap().to_vec()).unwrap());
            }
        }
        values
    }

    pub fn append(&self, partition: usize, batch: &[u8]) {
        self.world.lock().unwrap().logs[partition].append(batch);
        self.changed.notify_waiters();
    }

    async fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let (replies, mut to_write) = tokio::sync::mpsc::unbounded_channel::<Vec<u8>>();
        let (mut reader, mut writer) = {
            stream.set_nodelay(true)?;
            stream.into_split()
        };
        let writing = tokio::spawn(async move {
            while let Some(bytes) = to_write.recv().await {
                if bytes.is_empty() || writer.write_all(&bytes).await.is_err() {
                    break;
                }
            }
            let _ = writer.shutdown().await;
        });
        loop {
            let mut head = [0; HEADER_BYTES];
            reader.read_exact(&mut head).await?;
            let header = FrameHeader::parse(&head).unwrap();
            let mut body = vec![0; header.body_bytes()];
            reader.read_exact(&mut body).await?;
            header.verify(&body).unwrap();
            let mut payload = vec![0; header.payload_bytes()];
            reader.read_exact(&mut payload).await?;
            self.world.lock().unwrap().seen.push(header.kind().unwrap());
            match self.answer(&header, &body, &payload).await {
                Some(bytes) if bytes.is_empty() => {
                    let _ = replies.send(bytes);
                    drop(writing.await);
                    return Ok(());
                }
                Some(bytes) => drop(replies.send(bytes)),
                None => {}
            }
        }
    }

    /// The bytes of the answer: none for silence, empty to close.
    async fn answer(&self, header: &FrameHeader, body: &[u8], payload: &[u8]) -> Option<Vec<u8>> {
        match header.kind().unwrap() {
            Kind::Hello => Some(reply(header, &hello().encode_body(), &[])),
            Kind::Metadata => Some(self.metadata(header, body)),
            Kind::ListOffsets => Some(self.list_offsets(header, body)),
            Kind::Produce => self.produce(header, body, payload).await,
            Kind::Fetch => self.fetch(header, body).await,
            Kind::CreateTopic | Kind::DeleteTopic | Kind::AlterTopic | Kind::DeleteRecords => {
                Some(refuse(header, ErrorCode::TopicAlreadyExists))
            }
            Kind::InitProducer => Some(self.init_producer(header)),
        }
    }

    fn init_producer(&self, header: &FrameHeader) -> Vec<u8> {
        let mut world = self.world.lock().unwrap();
        if let Some(code) = world.refuse_producers {
            return refuse(header, code);
        }
        world.producer_ids += 1;
        let reply_body = InitProducerReply { producer_id: ProducerId(world.producer_ids), producer_epoch: ProducerEpoch(0) };
        reply(header, &reply_body.encode_body(), &[])
    }

    async fn produce(&self, header: &FrameHeader, body: &[u8], payload: &[u8]) -> Option<Vec<u8>> {
        let answer = self.world.lock().unwrap().produce.pop_front().unwrap_or(Answer::Serve);
        let request = ProduceRequest::decode_body(body).unwrap();
        let mut results = Vec::new();
        let mut rest = payload;
        for asked in &request.batches {
            let (batch, behind) = rest.split_at(asked.bytes as usize);
            rest = behind;
            let mut result = ProduceResult {
                error: ErrorCode::None,
                message: String::new(),
                base_offset: Offset(-1),
                log_append_time: Timestamp::NONE,
                log_start: Offset(0),
            };
            match &answer {
                Answer::Refuse(code) => (result.error, result.message) = (*code, "as scripted".to_owned()),
                Answer::Serve | Answer::AppendAndClose => {
                    let mut world = self.world.lock().unwrap();
                    let known = asked.topic_id == TopicId(world.topic_id);
                    match known.then(|| world.logs[asked.partition.0 as usize].produce(batch)) {
                        Some(Ok(base)) => result.base_offset = Offset(base),
                        Some(Err(code)) => result.error = code,
                        None => result.error = ErrorCode::UnknownTopicId,
                    }
                }
                _ => {}
            }
            results.push(result);
        }
        self.changed.notify_waiters();
        loop {
            let changed = self.changed.notified();
            if !self.world.lock().unwrap().produce_held {
                break;
            }
            changed.await;
        }
        match answer {
            Answer::Silence => None,
            Answer::Close | Answer::AppendAndClose => Some(Vec::new()),
            Answer::RefuseWhole(code) => Some(refuse(header, code)),
            Answer::Raw(bytes) => Some(bytes),
            _ if request.acks == 0 => None,
            _ => Some(reply(header, &ProduceReply { results }.encode_body(), &[])),
        }
    }

    async fn fetch(&self, header: &FrameHeader, body: &[u8]) -> Option<Vec<u8>> {
        let answer = self.world.lock().unwrap().fetch.pop_front().unwrap_or(Answer::Serve);
        let request = FetchRequest::decode_body(body).unwrap();
        match answer {
            Answer::Silence => return None,
            Answer::Close | Answer::AppendAndClose => return Some(Vec::new()),
            Answer::RefuseWhole(code) => return Some(refuse(header, code)),
            Answer::Raw(bytes) => return Some(bytes),
            _ => {}
        }
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_millis(request.max_wait_ms.into());
        loop {
            let changed = self.changed.notified();
            let (partitions, payload) = self.read(&request, &answer);
            let urgent = partitions.iter().any(|partition| partition.error != ErrorCode::None);
            if urgent || !payload.is_empty() || tokio::time::timeout_at(deadline, changed).await.is_err() {
                return Some(reply(header, &FetchReply { partitions }.encode_body(), &payload));
            }
        }
    }

    fn read(&self, request: &FetchRequest, answer: &Answer) -> (Vec<FetchPartitionReply>, Vec<u8>) {
        let world = self.world.lock().unwrap();
        let mut payload = Vec::new();
        let mut partitions = Vec::new();
        for asked in &request.partitions {
            let log = &world.logs[asked.partition.0 as usize];
            let mut partition = FetchPartitionReply {
                error: ErrorCode::None,
                high_watermark: Offset(log.end),
                last_stable: Offset(log.end),
                log_start: Offset(log.start),
                bytes: 0,
            };
            if let Answer::Refuse(code) = answer {
                partition.error = *code;
            } else if asked.topic_id != TopicId(world.topic_id) {
                partition.error = ErrorCode::UnknownTopicId;
            } else if asked.offset.0 > log.end || asked.offset.0 < log.start {
                partition.error = ErrorCode::OffsetOutOfRange;
            } else {
                for batch in &log.batches {
                    let behind = BatchView::whole(batch).unwrap().next_offset() <= asked.offset;
                    let full = partition.bytes > 0 && partition.bytes as usize + batch.len() > asked.max_bytes as usize;
                    if !behind && !full && payload.len() < request.max_bytes as usize {
                        payload.extend_from_slice(batch);
                        partition.bytes += u32::try_from(batch.len()).unwrap();
                    } else if !behind {
                        break;
                    }
                }
            }
            partitions.push(partition);
        }
        (partitions, payload)
    }

    fn metadata(&self, header: &FrameHeader, body: &[u8]) -> Vec<u8> {
        let request = MetadataRequest::decode_body(body).unwrap();
        let world = self.world.lock().unwrap();
        let partition = |(log, index)| {
            let log: &Log = log;
            MetadataPartition {
                index: PartitionIndex(index),
                leader_epoch: LeaderEpoch(1),
                core: CoreId(0),
                log_start: Offset(log.start),
                high_watermark: Offset(log.end),
                log_end: Offset(log.end),
                size_bytes: 0,
            }
        };
        let name = request.names.map_or(TOPIC.to_owned(), |names| names[0].clone());
        let known = name == TOPIC && world.topic_id != 0;
        let topic = MetadataTopic {
            error: if known { ErrorCode::None } else { ErrorCode::UnknownTopicOrPartition },
            name,
            topic_id: TopicId(world.topic_id),
            configs: Vec::new(),
            partitions: if known { world.logs.iter().zip(0..).map(partition).collect() } else { Vec::new() },
        };
        reply(header, &MetadataReply { topics: vec![topic] }.encode_body(), &[])
    }

    fn list_offsets(&self, header: &FrameHeader, body: &[u8]) -> Vec<u8> {
        let request = ListOffsetsRequest::decode_body(body).unwrap();
        let world = self.world.lock().unwrap();
        let partitions = request.partitions.iter().map(|asked| {
            let log = &world.logs[asked.partition.0 as usize];
            let none = ListOffsetsPartitionReply { error: ErrorCode::None, offset: Offset(-1), timestamp: Timestamp::NONE };
            match asked.at {
                OffsetSpec::Earliest => ListOffsetsPartitionReply { offset: Offset(log.start), ..none },
                OffsetSpec::Latest => ListOffsetsPartitionReply { offset: Offset(log.end), ..none },
                OffsetSpec::AtOrAfter(at) => {
                    let views = log.batches.iter().map(|batch| BatchView::whole(batch).unwrap());
                    let found = views.into_iter().find(|view| view.max_timestamp() >= at);
                    found.map_or(none, |view| ListOffsetsPartitionReply {
                        offset: view.base_offset(),
                        timestamp: view.max_timestamp(),
                        ..none
                    })
                }
            }
        });
        reply(header, &ListOffsetsReply { partitions: partitions.collect() }.encode_body(), &[])
    }
}

impl Log {
    /// Appends what is new of an idempotent producer, and knows again what it has sent before.
    fn produce(&mut self, batch: &[u8]) -> Result<i64, ErrorCode> {
        let view = BatchView::whole(batch).unwrap();
        let from = (view.producer_id(), view.producer_epoch(), view.base_sequence());
        if from.0 == ProducerId::NONE {
            return Ok(self.append(batch));
        }
        if let Some((_, _, base)) = self.known.iter().find(|(known, _, _)| *known == from) {
            return Ok(*base);
        }
        let last = self.known.iter().rev().find(|(known, _, _)| (known.0, known.1) == (from.0, from.1));
        if last.is_some_and(|((_, _, first), records, _)| first.plus(*records) != from.2) {
            return Err(ErrorCode::OutOfOrderSequenceNumber);
        }
        let records = u32::try_from(view.record_count()).unwrap();
        let base = self.append(batch);
        self.known.push((from, records, base));
        Ok(base)
    }

    fn append(&mut self, batch: &[u8]) -> i64 {
        let base = self.end;
        let mut batch = batch.to_vec();
        let count = BatchView::whole(&batch).unwrap().record_count();
        protocol::batch::stamp(&mut batch, Offset(base), LeaderEpoch(1));
        self.batches.push(batch);
        self.end += i64::from(count);
        base
    }
}

pub fn reply(header: &FrameHeader, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let fields = header.reply_fields(header.kind().unwrap(), false).with_payload(payload.len());
    let mut bytes = frame::encode_frame(&fields, body).unwrap().into_vec();
    bytes.extend_from_slice(payload);
    bytes
}

fn refuse(header: &FrameHeader, code: ErrorCode) -> Vec<u8> {
    let body = ErrorReply { code, message: "as scripted".to_owned() }.encode_body();
    frame::encode_error_frame(header, &body).unwrap().into_vec()
}

fn hello() -> HelloReply {
    HelloReply {
        cluster_id: ClusterId(1),
        host_id: HostId(1),
        host_name: "fake".to_owned(),
        version: 1,
        features: 0,
        kinds: Vec::new(),
        core_ports: vec![0],
        frame_bytes_max: 1 << 20,
    }
}
