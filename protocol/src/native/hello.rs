//! Hello: the first request of a connection. It negotiates versions and names the host's cores.
//!
//! Version 1. The host answers with the highest protocol version that both sides speak, or with an error reply
//! (`UnsupportedVersion`). A feature bit counts only if both sides set it; none exist yet. A client that wants to reach a
//! partition's owner core without a hop connects to `core_ports[core]` of the same address.

use super::NativeError;
use super::fields::{access, bounded, encode, text};
use crate::ids::{ClusterId, HostId};
use crate::limits::CLIENT_ID_BYTES_MAX;

/// Who connects, and what it speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloRequest {
    /// Chosen by the application; quotas and logs name it.
    pub client_id: String,
    /// Name and version of the client library.
    pub client_software: String,
    /// First protocol version that the client speaks.
    pub version_min: u16,
    /// Last protocol version that the client speaks.
    pub version_max: u16,
    /// Feature bits that the client knows.
    pub features: u64,
}

/// Who answers, and what is spoken from here on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloReply {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The host.
    pub host_id: HostId,
    /// The host's name, as it advertises itself.
    pub host_name: String,
    /// The protocol version that is spoken from here on.
    pub version: u16,
    /// Feature bits that the host knows.
    pub features: u64,
    /// For each kind, the versions of its body that the host speaks.
    pub kinds: Vec<KindVersions>,
    /// The native port of each core, by core id.
    pub core_ports: Vec<u16>,
    /// Largest frame that the host takes, in bytes.
    pub frame_bytes_max: u32,
}

/// The versions of one kind's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindVersions {
    /// The kind's number; one that this side doesn't know is to be passed over.
    pub kind_number: u16,
    /// First version.
    pub version_min: u16,
    /// Last version.
    pub version_max: u16,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct HelloRequestV1 {
    client_id: Vec<u8>,
    client_software: Vec<u8>,
    version_min: u16,
    version_max: u16,
    features: u64,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct HelloReplyV1 {
    cluster_id: [u8; 16],
    host_id: u32,
    host_name: Vec<u8>,
    version: u16,
    features: u64,
    kinds: Vec<KindVersionsV1>,
    core_ports: Vec<u16>,
    frame_bytes_max: u32,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct KindVersionsV1 {
    kind: u16,
    version_min: u16,
    version_max: u16,
}

impl HelloRequest {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        encode(&HelloRequestV1 {
            client_id: self.client_id.as_bytes().to_vec(),
            client_software: self.client_software.as_bytes().to_vec(),
            version_min: self.version_min,
            version_max: self.version_max,
            features: self.features,
        })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so, or a field can't be.
    pub fn decode_body(body: &[u8]) -> Result<HelloRequest, NativeError> {
        let archived = access::<ArchivedHelloRequestV1>(body, "a hello request")?;
        bounded(archived.client_id.len(), CLIENT_ID_BYTES_MAX, "client_id")?;
        bounded(archived.client_software.len(), CLIENT_ID_BYTES_MAX, "client_software")?;
        Ok(HelloRequest {
            client_id: text(archived.client_id.as_slice(), "client_id")?,
            client_software: text(archived.client_software.as_slice(), "client_software")?,
            version_min: archived.version_min.to_native(),
            version_max: archived.version_max.to_native(),
            features: archived.features.to_native(),
        })
    }
}

impl HelloReply {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        let kinds = self.kinds.iter().map(|kind| KindVersionsV1 {
            kind: kind.kind_number,
            version_min: kind.version_min,
            version_max: kind.version_max,
        });
        encode(&HelloReplyV1 {
            cluster_id: self.cluster_id.0.to_be_bytes(),
            host_id: self.host_id.0,
            host_name: self.host_name.as_bytes().to_vec(),
            version: self.version,
            features: self.features,
            kinds: kinds.collect(),
            core_ports: self.core_ports.clone(),
            frame_bytes_max: self.frame_bytes_max,
        })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so, or a field can't be.
    pub fn decode_body(body: &[u8]) -> Result<HelloReply, NativeError> {
        let archived = access::<ArchivedHelloReplyV1>(body, "a hello reply")?;
        let kinds = archived.kinds.iter().map(|kind| KindVersions {
            kind_number: kind.kind.to_native(),
            version_min: kind.version_min.to_native(),
            version_max: kind.version_max.to_native(),
        });
        Ok(HelloReply {
            cluster_id: ClusterId(u128::from_be_bytes(archived.cluster_id)),
            host_id: HostId(archived.host_id.to_native()),
            host_name: text(archived.host_name.as_slice(), "host_name")?,
            version: archived.version.to_native(),
            features: archived.features.to_native(),
            kinds: kinds.collect(),
            core_ports: archived.core_ports.iter().map(|port| port.to_native()).collect(),
            frame_bytes_max: archived.frame_bytes_max.to_native(),
        })
    }
}
