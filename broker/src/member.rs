//! A core other than core 0: from its start to its end.
//!
//! It knows nothing until core 0 tells it to begin: then it takes the data directories as core 0 has opened them, serves what core 0
//! has it open, and ends when it is told to stop. It ends too if the host doesn't come to that.

use std::cell::RefCell;
use std::rc::Rc;

use protocol::ids::CoreId;
use runtime::Env;
use runtime::mesh::Asked;
use shard::{Shard, StopReport};
use storage::{ChunkCache, Directory};

use crate::changes::Changes;
use crate::core::{Core, CoreParts};
use crate::crossing::{self, Beginning, CoreMesh, CoreReply, CoreRequest};
use crate::dispatch::{Dispatch, HostIdentity};
use crate::partitions::Partitions;
use crate::progress::Progress;

/// Runs a core until core 0 tells it to stop.
pub async fn run<E: Env>(env: E, mesh: CoreMesh) {
    loop {
        let Asked { request, answer, .. } = mesh.next().await;
        match request {
            CoreRequest::Begin(beginning) => match begin(env.clone(), mesh.clone(), *beginning).await {
                Ok(core) => {
                    answer.send(CoreReply::Begun(Ok(())));
                    return crossing::serve(core).await;
                }
                Err(reason) => answer.send(CoreReply::Begun(Err(reason))),
            },
            CoreRequest::Stop => {
                answer.send(CoreReply::Stopped(StopReport::default()));
                return;
            }
            // It has nothing yet that this could be about.
            _ => answer.send(CoreReply::Done),
        }
    }
}

async fn begin<E: Env>(env: E, mesh: CoreMesh, beginning: Beginning) -> Result<Core<E>, String> {
    let Beginning { cluster, host, host_name, broker_epoch, image, directories: shared, connections } = beginning;
    let core: CoreId = mesh.core();
    let cache = ChunkCache::new(env.region().clone());
    let mut directories = Vec::new();
    for directory in shared {
        let attached = Directory::attach(&env, directory, core, cache.clone()).await;
        directories.push(attached.map_err(|error| error.to_string())?);
    }
    let shard = Shard::start(env.clone(), host, directories.clone());
    shard.set_broker_epoch(broker_epoch);
    let image = Rc::new(RefCell::new(image));
    let partitions = Partitions::new(shard.clone(), directories.clone(), Progress::default());
    let who = HostIdentity { cluster, host, host_name };
    let changes = Changes::There(mesh.clone());
    let dispatch = Dispatch::new(env.clone(), who, shard.clone(), changes, image.clone(), mesh.clone(), cache);
    Ok(Core::new(CoreParts { env, mesh, shard, directories, partitions, dispatch, image, connections }))
}
