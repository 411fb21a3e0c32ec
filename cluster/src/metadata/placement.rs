//! Which core of a host gets a partition: the one with the fewest, so far.
//!
//! The controller asks it when a topic is made, and at each start of its host: a host may have been given other cores.

use protocol::ids::{CoreId, HostId, TopicPartition};

use super::image::{Image, Placement};
use super::record::MetadataRecord;

/// Partitions of each core of a host.
#[must_use]
pub fn loads(image: &Image, host: HostId, cores: usize) -> Vec<usize> {
    let mut loads = vec![0; cores];
    for (_, partition) in image.partitions_of(host) {
        if let Some(load) = partition.placement.and_then(|placement| loads.get_mut(usize::from(placement.core.0))) {
            *load += 1;
        }
    }
    loads
}

/// Takes the core with the fewest partitions, the first of several, and counts one more there.
///
/// # Panics
/// If there is no core.
pub fn least_loaded(loads: &mut [usize]) -> CoreId {
    let (core, load) = loads.iter_mut().enumerate().min_by_key(|(_, load)| **load).expect("a host has a core");
    *load += 1;
    CoreId(u16::try_from(core).expect("cores are few"))
}

/// What a host has to move at its start: partitions of cores that it has no longer, and the share of cores that have none at all. Where every
/// core has some, all stay as they are.
#[must_use]
pub fn moves_at_start(image: &Image, host: HostId, cores: usize) -> Vec<MetadataRecord> {
    let mut loads = loads(image, host, cores);
    let (strays, placed): (Vec<_>, Vec<_>) =
        placements(image, host).into_iter().partition(|(_, placement)| usize::from(placement.core.0) >= cores);
    let mut moves: Vec<_> = strays.into_iter().map(|stray| moved(stray, least_loaded(&mut loads))).collect();
    if loads.contains(&0) {
        let share = loads.iter().sum::<usize>() / cores;
        for stay in placed {
            let from = usize::from(stay.1.core.0);
            let least = loads.iter().copied().min().unwrap_or(0);
            if loads[from] > share.max(1) && least < share.max(1) {
                loads[from] -= 1;
                moves.push(moved(stay, least_loaded(&mut loads)));
            }
        }
    }
    moves
}

fn placements(image: &Image, host: HostId) -> Vec<(TopicPartition, Placement)> {
    image.partitions_of(host).filter_map(|(name, partition)| Some((name, partition.placement?))).collect()
}

fn moved((partition, placement): (TopicPartition, Placement), core: CoreId) -> MetadataRecord {
    MetadataRecord::PartitionPlaced { partition, host: placement.host, core, directory: placement.directory }
}

#[cfg(test)]
mod tests {
    use protocol::ids::{BrokerEpoch, DirectoryId, PartitionIndex, TopicId};

    use super::*;

    const HOST: HostId = HostId(7);

    /// A topic whose partitions are on these cores.
    fn image(cores: &[u16]) -> Image {
        let id = TopicId(5);
        let partitions = u32::try_from(cores.len()).unwrap();
        let mut image = Image::new();
        image.apply(&MetadataRecord::HostStarted { host: HOST, broker_epoch: BrokerEpoch(1) }).unwrap();
        image.apply(&MetadataRecord::TopicCreated { id, name: "t".into(), partitions, configs: Vec::new() }).unwrap();
        for (index, core) in (0..).zip(cores) {
            let partition = TopicPartition { topic: id, partition: PartitionIndex(index) };
            let placed =
                MetadataRecord::PartitionPlaced { partition, host: HOST, core: CoreId(*core), directory: DirectoryId(1) };
            image.apply(&placed).unwrap();
        }
        image
    }

    fn after(cores: &[u16], count: usize) -> (usize, Vec<usize>) {
        let mut image = image(cores);
        let moves = moves_at_start(&image, HOST, count);
        for record in &moves {
            image.apply(record).unwrap();
        }
        (moves.len(), loads(&image, HOST, count))
    }

    #[test]
    fn the_core_with_the_fewest_gets_the_next() {
        let mut loads = loads(&image(&[0, 0, 1, 9]), HOST, 3);
        assert_eq!(loads, [2, 1, 0], "a core that isn't there has none");
        let given: Vec<_> = (0..4).map(|_| least_loaded(&mut loads).0).collect();
        assert_eq!(given, [2, 1, 2, 0]);
    }

    #[test]
    fn partitions_of_cores_that_are_gone_go_to_those_that_are_left() {
        assert_eq!(after(&[0, 1, 2, 3], 2), (2, vec![2, 2]));
        assert_eq!(after(&[3, 3, 3], 1), (3, vec![3]));
    }

    #[test]
    fn new_cores_get_their_share_and_what_is_spread_stays() {
        assert_eq!(after(&[0; 8], 4), (6, vec![2; 4]));
        assert_eq!(after(&[0; 3], 4), (2, vec![1, 1, 1, 0]));
        assert_eq!(after(&[0, 0, 0, 1], 2), (0, vec![3, 1]), "every core has some");
        assert_eq!(after(&[0], 2), (0, vec![1, 0]));
    }
}
