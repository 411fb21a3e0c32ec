//! A fetch over the partitions of one core, or of several.
//!
//! Of one core, it is that core's whole fetch, wait included. Of several: all are read at once, each with its share of the limit; if that isn't enough
//! for an answer, each is asked to wait until what is missing has come there, and when one says so, or the time is over, all are read
//! again. What comes in small parts on several cores is so answered at the end of the wait, not before.

use std::time::Duration;

use futures_lite::future;
use futures_util::future::{join_all, select_all};
use protocol::error::ErrorCode;
use protocol::ids::CoreId;
use protocol::native::FetchPartitionReply;
use runtime::{Env, Monotonic, SendPart};
use smallvec::SmallVec;

use super::{Slices, failed, on_this_core};
use crate::crossing::{CoreReply, CoreRequest};
use crate::dispatch::Dispatch;

/// What was read: of each partition, and the bytes of all in their order.
pub(super) type Gathered = (Vec<FetchPartitionReply>, Vec<SendPart>);

/// The partitions of one core, and where they stand in the request.
struct Group {
    /// `None`: this one.
    core: Option<CoreId>,
    indices: SmallVec<[usize; 4]>,
    request: shard::FetchRequest,
}

/// Reads, wherever the partitions are.
pub(super) async fn fetch<E: Env>(dispatch: &Dispatch<E>, asked: shard::FetchRequest) -> Gathered {
    let count = asked.partitions.len();
    let groups = split(dispatch, &asked);
    match &groups[..] {
        [] => ask(dispatch, None, asked).await,
        [only] => ask(dispatch, only.core, asked).await,
        groups => fetch_several(dispatch, asked, groups, count).await,
    }
}

fn split<E: Env>(dispatch: &Dispatch<E>, asked: &shard::FetchRequest) -> SmallVec<[Group; 1]> {
    let mut groups: SmallVec<[Group; 1]> = SmallVec::new();
    if dispatch.mesh().cores() == 1 {
        return groups;
    }
    for (index, wanted) in asked.partitions.iter().enumerate() {
        let core = dispatch.other_owner(wanted.partition);
        let group = match groups.iter().position(|group| group.core == core) {
            Some(group) => group,
            None => {
                let request = shard::FetchRequest { partitions: SmallVec::new(), ..asked.clone() };
                groups.push(Group { core, indices: SmallVec::new(), request });
                groups.len() - 1
            }
        };
        groups[group].indices.push(index);
        groups[group].request.partitions.push(*wanted);
    }
    groups
}

async fn fetch_several<E: Env>(dispatch: &Dispatch<E>, asked: shard::FetchRequest, groups: &[Group], count: usize) -> Gathered {
    let deadline = dispatch.env().now() + asked.max_wait;
    let share = (asked.max_bytes / groups.len()).max(1);
    let found = read_all(dispatch, groups, share).await;
    let there: SmallVec<[usize; 4]> = found.iter().map(|(_, payload)| bytes_of(payload)).collect();
    let bytes: usize = there.iter().sum();
    let has_error = found.iter().any(|(partitions, _)| partitions.iter().any(|partition| !partition.error.is_none()));
    if has_error || bytes >= asked.min_bytes || dispatch.env().now() >= deadline {
        return join(groups, found, count);
    }
    // Memory isn't held while waiting. What is read afterwards is the answer, whatever it is: a core whose share is full has no more to wait for.
    drop(found);
    wait_for_any(dispatch, groups, &there, asked.min_bytes - bytes, deadline).await;
    join(groups, read_all(dispatch, groups, share).await, count)
}

/// One look at each core, all at once.
async fn read_all<E: Env>(dispatch: &Dispatch<E>, groups: &[Group], share: usize) -> Vec<Gathered> {
    let asking = groups.iter().map(|group| {
        let request = shard::FetchRequest { max_wait: Duration::ZERO, max_bytes: share, ..group.request.clone() };
        ask(dispatch, group.core, request)
    });
    join_all(asking).await
}

/// Ends when one core has as much more as is missing, or the time is over. What it gives then is read again with the others.
async fn wait_for_any<E: Env>(dispatch: &Dispatch<E>, groups: &[Group], there: &[usize], missing: usize, deadline: Monotonic) {
    let left = deadline.since(dispatch.env().now());
    let waiting = groups.iter().zip(there).map(|(group, there)| {
        let request = shard::FetchRequest { max_wait: left, min_bytes: there + missing, ..group.request.clone() };
        Box::pin(ask(dispatch, group.core, request))
    });
    let any = async {
        select_all(waiting).await;
    };
    future::or(any, dispatch.env().sleep(left)).await;
}

/// Asks one core.
async fn ask<E: Env>(dispatch: &Dispatch<E>, core: Option<CoreId>, mut request: shard::FetchRequest) -> Gathered {
    let Some(core) = core else {
        let (partitions, slices): (_, Vec<Slices>) = on_this_core(dispatch, request).await;
        return (partitions, slices.into_iter().flatten().map(SendPart::Chunk).collect());
    };
    let (mesh, count) = (dispatch.mesh(), request.partitions.len());
    if mesh.under_way(core) > mesh.credits() / 2 {
        // Waits may not take all that other requests need.
        request.max_wait = Duration::ZERO;
    }
    dispatch.shard().count_crossing();
    match mesh.call(core, CoreRequest::Fetch(request)).await {
        Some(CoreReply::Fetched(partitions, loans)) if partitions.len() == count => {
            (partitions, loans.into_iter().map(SendPart::Lent).collect())
        }
        Some(_) | None => (vec![failed(ErrorCode::NotLeaderOrFollower); count], Vec::new()),
    }
}

/// Puts what the cores have answered into the order of the request.
fn join(groups: &[Group], found: Vec<Gathered>, count: usize) -> Gathered {
    let mut partitions = vec![failed(ErrorCode::UnknownServerError); count];
    let mut parts: Vec<Vec<SendPart>> = (0..count).map(|_| Vec::new()).collect();
    for (group, (answered, payload)) in groups.iter().zip(found) {
        let mut payload = payload.into_iter();
        for (index, partition) in group.indices.iter().zip(answered) {
            let mut left = usize::try_from(partition.bytes).unwrap_or(usize::MAX);
            // The slices of a partition end where its bytes do.
            while left > 0 {
                let Some(part) = payload.next() else { break };
                left = left.saturating_sub(part.as_bytes().len());
                parts[*index].push(part);
            }
            partitions[*index] = partition;
        }
    }
    (partitions, parts.into_iter().flatten().collect())
}

fn bytes_of(payload: &[SendPart]) -> usize {
    payload.iter().map(|part| part.as_bytes().len()).sum()
}
