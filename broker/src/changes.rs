//! Changes of the metadata, from any core: made by the controller on core 0, asked of it by the others.

use protocol::ids::{CoreId, ProducerId, TopicId};
use runtime::Env;

use crate::controller::{ChangeError, Controller};
use crate::crossing::{Change, Changed, CoreMesh, CoreReply, CoreRequest};

/// Where the controller is.
pub const CONTROLLER_CORE: CoreId = CoreId(0);

/// Makes changes, or has them made. A handle.
pub enum Changes<E: Env> {
    /// On core 0.
    Here(Controller<E>),
    /// On the others.
    There(CoreMesh),
}

impl<E: Env> Clone for Changes<E> {
    fn clone(&self) -> Self {
        match self {
            Changes::Here(controller) => Changes::Here(controller.clone()),
            Changes::There(mesh) => Changes::There(mesh.clone()),
        }
    }
}

impl<E: Env> Changes<E> {
    /// Makes a topic and its partitions. The work goes on if the future is dropped, once it has begun.
    pub async fn create_topic(
        self,
        name: String,
        partitions: u32,
        configs: Vec<(String, String)>,
    ) -> Result<TopicId, ChangeError> {
        topic_of(self.make(Change::CreateTopic { name, partitions, configs }).await)
    }

    /// Removes a topic. The work goes on if the future is dropped, once it has begun.
    pub async fn delete_topic(self, name: String) -> Result<TopicId, ChangeError> {
        topic_of(self.make(Change::DeleteTopic(name)).await)
    }

    /// Changes settings of a topic. The work goes on if the future is dropped, once it has begun.
    pub async fn alter_topic(self, name: String, configs: Vec<(String, Option<String>)>) -> Result<TopicId, ChangeError> {
        topic_of(self.make(Change::AlterTopic { name, configs }).await)
    }

    /// A producer id that nobody has had.
    pub async fn producer_id(self) -> Result<ProducerId, ChangeError> {
        match self.make(Change::ProducerId).await? {
            Changed::Producer(id) => Ok(id),
            Changed::Topic(_) => Err(ChangeError::Stopping),
        }
    }

    /// Makes a change; on core 0 it has taken its place in the line when this returns.
    pub fn make(&self, change: Change) -> impl Future<Output = Result<Changed, ChangeError>> + use<E> {
        let making = match self {
            Changes::Here(controller) => Ok(controller.make(change)),
            Changes::There(mesh) => Err((mesh.clone(), change)),
        };
        async move {
            match making {
                Ok(made) => made.await,
                Err((mesh, change)) => match mesh.call(CONTROLLER_CORE, CoreRequest::Change(change)).await {
                    Some(CoreReply::Changed(changed)) => changed,
                    Some(_) | None => Err(ChangeError::Stopping),
                },
            }
        }
    }
}

fn topic_of(changed: Result<Changed, ChangeError>) -> Result<TopicId, ChangeError> {
    match changed? {
        Changed::Topic(id) => Ok(id),
        Changed::Producer(_) => Err(ChangeError::Stopping),
    }
}
