//! One request's partitions, asked of the cores that own them.

use futures_util::future::join_all;
use protocol::ids::{CoreId, TopicPartition};
use runtime::Env;

use crate::dispatch::Dispatch;

/// Has `ask` answer for the partitions of each owner, all owners at once; the answers in the order of `wanted`. The owner is `None` where this
/// core answers. Where an owner's answers are too few, `missing` stands.
pub async fn by_owner<E, T, R, F>(
    dispatch: &Dispatch<E>,
    wanted: &[(TopicPartition, T)],
    missing: R,
    ask: impl Fn(Option<CoreId>, Vec<(TopicPartition, T)>) -> F,
) -> Vec<R>
where
    E: Env,
    T: Copy,
    R: Clone,
    F: Future<Output = Vec<R>>,
{
    let each: Vec<Option<CoreId>> = wanted.iter().map(|(partition, _)| dispatch.other_owner(*partition)).collect();
    let mut owners = each.clone();
    owners.sort_unstable();
    owners.dedup();
    let asked = owners.into_iter().map(|owner| {
        let places: Vec<usize> = (0..wanted.len()).filter(|index| each[*index] == owner).collect();
        let answers = ask(owner, places.iter().map(|index| wanted[*index]).collect());
        async move { (places, answers.await) }
    });
    let mut all = vec![missing; wanted.len()];
    for (places, answers) in join_all(asked).await {
        for (index, answer) in places.into_iter().zip(answers) {
            all[index] = answer;
        }
    }
    all
}
