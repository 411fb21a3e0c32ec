//! A blocking client of the native protocol, made of crate `protocol` alone: one socket, requests out, replies in.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use protocol::frame::{FrameFields, FrameHeader, HEADER_BYTES, encode_frame};
use protocol::ids::TopicId;
use protocol::native::{
    CreateTopicReply, CreateTopicRequest, ErrorReply, HelloReply, HelloRequest, Kind, MetadataReply, MetadataRequest,
    MetadataTopic, PROTOCOL_VERSION,
};

/// A reply's header, body and payload.
pub struct Reply {
    /// Its header.
    pub header: FrameHeader,
    /// Control fields.
    pub body: Vec<u8>,
    /// Raw batches.
    pub payload: Vec<u8>,
}

/// One connection.
pub struct Wire {
    stream: TcpStream,
    correlation: u64,
}

impl Wire {
    /// Connects and says hello.
    ///
    /// # Errors
    /// Refused, or the answer isn't this protocol.
    pub fn connect(address: SocketAddr) -> Result<Wire> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).with_context(|| address.to_string())?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut wire = Wire { stream, correlation: 0 };
        let hello = HelloRequest {
            client_id: "fault-harness".into(),
            client_software: "corelane-sim".into(),
            version_min: PROTOCOL_VERSION,
            version_max: PROTOCOL_VERSION,
            features: 0,
        };
        let reply = wire.call(Kind::Hello, &hello.encode_body(), &[])?;
        HelloReply::decode_body(&reply.body)?;
        Ok(wire)
    }

    /// A second handle on the same socket, to receive on another thread.
    ///
    /// # Errors
    /// No descriptor left.
    pub fn receiver(&self) -> Result<Wire> {
        Ok(Wire { stream: self.stream.try_clone()?, correlation: 0 })
    }

    /// Sends a request; its correlation id is given back.
    ///
    /// # Errors
    /// The socket's.
    pub fn send(&mut self, kind: Kind, body: &[u8], payload: &[u8]) -> Result<u64> {
        self.correlation += 1;
        let fields = FrameFields::request(kind, kind.versions().1, self.correlation).with_payload(payload.len());
        let mut bytes = encode_frame(&fields, body)?.into_vec();
        bytes.extend_from_slice(payload);
        self.stream.write_all(&bytes)?;
        Ok(self.correlation)
    }

    /// Receives one reply.
    ///
    /// # Errors
    /// The socket's, a malformed frame, or an error reply.
    pub fn receive(&mut self) -> Result<Reply> {
        let mut head = [0; HEADER_BYTES];
        self.stream.read_exact(&mut head)?;
        let header = FrameHeader::parse(&head)?;
        let mut body = vec![0; header.body_bytes()];
        self.stream.read_exact(&mut body)?;
        header.verify(&body)?;
        let mut payload = vec![0; header.payload_bytes()];
        self.stream.read_exact(&mut payload)?;
        if header.is_error() {
            let error = ErrorReply::decode_body(&body)?;
            bail!("refused: {:?}: {}", error.code, error.message);
        }
        Ok(Reply { header, body, payload })
    }

    /// Sends a request and receives its reply.
    ///
    /// # Errors
    /// See [`Wire::receive`].
    pub fn call(&mut self, kind: Kind, body: &[u8], payload: &[u8]) -> Result<Reply> {
        let correlation = self.send(kind, body, payload)?;
        let reply = self.receive()?;
        ensure!(reply.header.correlation == correlation, "reply {} to request {correlation}", reply.header.correlation);
        Ok(reply)
    }

    /// Creates a topic.
    ///
    /// # Errors
    /// Refused, or the connection failed.
    pub fn create_topic(&mut self, name: &str, partitions: u32, configs: &[(&str, &str)]) -> Result<TopicId> {
        let configs = configs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let request = CreateTopicRequest { name: name.into(), partitions, configs, timeout_ms: 10_000 };
        let reply = self.call(Kind::CreateTopic, &request.encode_body(), &[])?;
        Ok(CreateTopicReply::decode_body(&reply.body)?.topic_id)
    }

    /// Describes one topic; `None` if there is none of that name.
    ///
    /// # Errors
    /// The connection failed.
    pub fn describe(&mut self, name: &str) -> Result<Option<MetadataTopic>> {
        let request = MetadataRequest { names: Some(vec![name.to_owned()]) };
        let reply = self.call(Kind::Metadata, &request.encode_body(), &[])?;
        let topics = MetadataReply::decode_body(&reply.body)?.topics;
        Ok(topics.into_iter().find(|topic| topic.name == name && topic.error.is_none()))
    }

    /// Ends the connection in both directions, so that a receiver on another thread ends too.
    pub fn shut_down(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}
