//! One core of a host, as it serves: its partitions, its copy of the metadata, its listeners, its place at the mesh.
//!
//! Core 0 makes its own in [`crate::node`]; the others are made when core 0 tells them to begin ([`crate::member`]).

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use cluster::metadata::{Image, MetadataRecord};
use futures_util::future::join_all;
use net::{ConnectionLimits, Native, Server};
use protocol::ids::{CoreId, DirectoryId, PartitionIndex, TopicPartition};
use runtime::{Env, Sharing, Transport};
use shard::Shard;
use storage::Directory;

use crate::crossing::{CoreMesh, CoreRequest};
use crate::dispatch::Dispatch;
use crate::partitions::Partitions;

/// Replies that are owed when a host stops have this long to leave.
const STOP_PATIENCE: Duration = Duration::from_millis(300);

/// The metadata as of the last change that has reached a core. A handle, of that core.
pub type SharedImage = Rc<RefCell<Image>>;

/// A core that serves. A handle.
pub struct Core<E: Env>(Rc<State<E>>);

struct State<E: Env> {
    parts: CoreParts<E>,
    servers: RefCell<Vec<Server<E, Native, Dispatch<E>>>>,
}

/// What a core is made of.
pub struct CoreParts<E: Env> {
    /// Its environment.
    pub env: E,
    /// Its place among the others.
    pub mesh: CoreMesh,
    /// Its partitions.
    pub shard: Shard<E>,
    /// The data directories, as it uses them.
    pub directories: Vec<Directory<E>>,
    /// What opens and removes its partitions.
    pub partitions: Partitions<E>,
    /// Its handlers.
    pub dispatch: Dispatch<E>,
    /// Its copy of the metadata.
    pub image: SharedImage,
    /// Limits of its listeners.
    pub connections: ConnectionLimits,
}

impl<E: Env> Clone for Core<E> {
    fn clone(&self) -> Self {
        Core(self.0.clone())
    }
}

impl<E: Env> Core<E> {
    /// A core of these parts. Tells the others from now on when a failed flush stops the logs of a directory.
    #[must_use]
    pub fn new(parts: CoreParts<E>) -> Core<E> {
        let core = Core(Rc::new(State { parts, servers: RefCell::default() }));
        for directory in &core.0.parts.directories {
            core.env().spawn(core.clone().tell_failure(directory.clone()));
        }
        core
    }

    pub(crate) fn env(&self) -> &E {
        &self.0.parts.env
    }

    pub(crate) fn mesh(&self) -> &CoreMesh {
        &self.0.parts.mesh
    }

    pub(crate) fn shard(&self) -> &Shard<E> {
        &self.0.parts.shard
    }

    pub(crate) fn directories(&self) -> &[Directory<E>] {
        &self.0.parts.directories
    }

    pub(crate) fn partitions(&self) -> &Partitions<E> {
        &self.0.parts.partitions
    }

    pub(crate) fn dispatch(&self) -> &Dispatch<E> {
        &self.0.parts.dispatch
    }

    /// Takes records that the metadata log has.
    pub(crate) fn apply(&self, records: &[MetadataRecord]) {
        let mut image = self.0.parts.image.borrow_mut();
        for record in records {
            image.apply(record).expect("what core 0 has applied fits the same image here");
        }
        reconfigure(self.shard(), &image, records);
    }

    /// Stops the logs of a directory, since a flush of another core has failed there.
    pub(crate) fn fail_directory(&self, id: DirectoryId, words: &str) {
        if let Some(directory) = self.directories().iter().find(|directory| directory.id() == id) {
            directory.fail(words);
        }
    }

    /// Tells every other core, once a failed flush has stopped the logs of a directory here.
    async fn tell_failure(self, directory: Directory<E>) {
        let words = directory.failed().await;
        let told = others(self.mesh()).map(|to| {
            let request = CoreRequest::DirectoryFailed { directory: directory.id(), words: words.clone() };
            self.mesh().call(to, request)
        });
        join_all(told).await;
    }

    /// Listens alone, as the first of several at `shared` if they are; the address as it is bound.
    pub(crate) async fn listen(&self, address: SocketAddr, sharing: Sharing) -> io::Result<SocketAddr> {
        let parts = &self.0.parts;
        let listener = parts.env.transport().listen(address, sharing).await?;
        let server = Server::new(parts.env.clone(), listener, "native", parts.dispatch.clone(), parts.connections);
        let bound = server.local_address();
        self.0.servers.borrow_mut().push(server);
        Ok(bound)
    }

    /// Listens at the host's address with the other cores, and at this core's own; its own port.
    ///
    /// # Errors
    /// Which address can't be listened on, and why.
    pub(crate) async fn listen_with_others(&self, shared: SocketAddr, own: SocketAddr) -> Result<u16, (SocketAddr, io::Error)> {
        self.listen(shared, Sharing::Joined).await.map_err(|error| (shared, error))?;
        let bound = self.listen(own, Sharing::Alone).await.map_err(|error| (own, error))?;
        Ok(bound.port())
    }

    /// Accepts connections from now on; clients are told these ports of the cores.
    pub(crate) fn start_serving(&self, ports: Vec<u16>) {
        self.dispatch().set_core_ports(ports);
        for server in &*self.0.servers.borrow() {
            self.env().spawn(server.clone().run());
        }
    }

    /// Accepts and reads no more; ends when what is owed was answered, or its time is over.
    pub(crate) async fn close(&self) {
        let servers = self.0.servers.borrow().clone();
        join_all(servers.iter().map(|server| server.stop(STOP_PATIENCE))).await;
    }
}

/// Has the partitions of this core take the settings that these records have changed.
pub(crate) fn reconfigure<E: Env>(shard: &Shard<E>, image: &Image, records: &[MetadataRecord]) {
    for record in records {
        let MetadataRecord::TopicConfigChanged { id, .. } = record else { continue };
        let Some(topic) = image.topic(*id) else { continue };
        for (index, _) in (0..).zip(&topic.partitions) {
            shard.reconfigure(TopicPartition { topic: *id, partition: PartitionIndex(index) }, topic.config);
        }
    }
}

/// The other cores.
pub(crate) fn others(mesh: &CoreMesh) -> impl Iterator<Item = CoreId> + use<> {
    let here = mesh.core();
    (0..u16::try_from(mesh.cores()).unwrap_or(u16::MAX)).map(CoreId).filter(move |core| *core != here)
}
