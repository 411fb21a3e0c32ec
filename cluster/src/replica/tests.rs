use proptest::prelude::*;

use super::*;

const HOST: HostId = HostId(1);
const OTHER: HostId = HostId(2);

fn settings(class: DurabilityClass) -> ReplicaSettings {
    ReplicaSettings { host: HOST, class, min_in_sync_replicas: 1, leader_epoch: LeaderEpoch(5) }
}

fn replica(class: DurabilityClass) -> Replica {
    Replica::new(settings(class), ReplicaOffsets::recovered(Offset(0), Offset(0)))
}

/// A leader with a second in-sync replica, which followers will give it later.
fn with_other(class: DurabilityClass) -> Replica {
    let mut replica = replica(class);
    replica.in_sync.push(InSyncReplica { host: OTHER, written: Offset(0), flushed: Offset(0) });
    replica
}

#[test]
fn device_acknowledges_what_is_flushed_and_written_what_is_written() {
    let mut device = replica(DurabilityClass::Device);
    device.appended(Offset(10));
    assert!(device.local_progress(Offset(10), Offset(0)).is_empty());
    assert_eq!(device.acknowledged(Acks::All), Offset(0));
    assert_eq!(device.acknowledged(Acks::Leader), Offset(0));
    assert_eq!(device.acknowledged(Acks::None), Offset(10));
    let effects = device.local_progress(Offset(10), Offset(10));
    assert_eq!(effects.as_slice(), [Effect::HighWatermark(Offset(10)), Effect::LocalProgress(Offset(10))]);

    let mut written = replica(DurabilityClass::Written);
    written.appended(Offset(10));
    let effects = written.local_progress(Offset(10), Offset(0));
    assert_eq!(effects.as_slice(), [Effect::HighWatermark(Offset(10)), Effect::LocalProgress(Offset(10))]);
    assert!(written.local_progress(Offset(10), Offset(10)).is_empty());
}

#[test]
fn consumers_read_to_the_high_watermark_and_followers_to_the_log_end() {
    let mut replica = replica(DurabilityClass::Device);
    replica.appended(Offset(4));
    let _ = replica.local_progress(Offset(4), Offset(4));
    replica.appended(Offset(9));
    assert_eq!(replica.read_bound(Reader::Consumer), Offset(4));
    assert_eq!(replica.read_bound(Reader::CommittedConsumer), Offset(4));
    assert_eq!(replica.read_bound(Reader::Follower), Offset(9));
}

#[test]
fn the_high_watermark_is_the_lowest_of_the_in_sync_replicas() {
    let mut replica = with_other(DurabilityClass::Device);
    replica.appended(Offset(10));
    let effects = replica.local_progress(Offset(10), Offset(10));
    assert_eq!(effects.as_slice(), [Effect::LocalProgress(Offset(10))]);
    assert_eq!(replica.acknowledged(Acks::All), Offset(0));
    replica.in_sync[1].flushed = Offset(6);
    replica.in_sync[1].written = Offset(8);
    assert_eq!(replica.settle_high_watermark().as_slice(), [Effect::HighWatermark(Offset(6))]);
}

#[test]
fn t08_the_high_watermark_stands_still_below_the_min_in_sync_replicas() {
    let two = ReplicaSettings { min_in_sync_replicas: 2, ..settings(DurabilityClass::Device) };
    let mut replica = Replica::new(two, ReplicaOffsets::recovered(Offset(0), Offset(3)));
    assert_eq!(replica.read_bound(Reader::Consumer), Offset(0));
    assert_eq!(
        replica.begin_append_allowed(Acks::All, NO_EPOCH),
        Err(AppendRefused::NotEnoughReplicas { in_sync: 1, needed: 2 })
    );
    assert_eq!(AppendRefused::NotEnoughReplicas { in_sync: 1, needed: 2 }.code(), ErrorCode::NotEnoughReplicas);
    assert!(replica.begin_append_allowed(Acks::Leader, NO_EPOCH).is_ok());
    replica.appended(Offset(4));
    assert_eq!(replica.local_progress(Offset(4), Offset(4)).as_slice(), [Effect::LocalProgress(Offset(4))]);
    assert_eq!(replica.latest_offset(Reader::Consumer), None);
    // The operator lowers it: what waited becomes visible.
    assert_eq!(replica.reconfigure(DurabilityClass::Device, 1).as_slice(), [Effect::HighWatermark(Offset(4))]);
    assert_eq!(replica.latest_offset(Reader::Consumer), Some(Offset(4)));
}

#[test]
fn t03_requests_of_another_leader_epoch_are_turned_away() {
    let replica = replica(DurabilityClass::Device);
    assert!(replica.check_epoch(NO_EPOCH).is_ok());
    assert!(replica.check_epoch(LeaderEpoch(5)).is_ok());
    let fenced = replica.check_epoch(LeaderEpoch(4)).unwrap_err();
    assert_eq!(fenced, EpochError::Fenced { asked: LeaderEpoch(4), current: LeaderEpoch(5) });
    assert_eq!(fenced.code(), ErrorCode::FencedLeaderEpoch);
    let unknown = replica.check_epoch(LeaderEpoch(6)).unwrap_err();
    assert_eq!(unknown.code(), ErrorCode::UnknownLeaderEpoch);
    let refused = replica.begin_append_allowed(Acks::Leader, LeaderEpoch(4)).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::FencedLeaderEpoch);
}

#[test]
fn a_recovered_log_is_readable_at_once() {
    let replica = Replica::new(settings(DurabilityClass::Device), ReplicaOffsets::recovered(Offset(3), Offset(8)));
    assert_eq!(replica.read_bound(Reader::Consumer), Offset(8));
    assert_eq!(replica.latest_offset(Reader::Consumer), Some(Offset(8)));
    assert_eq!(replica.positions().log_start, Offset(3));
}

#[test]
fn a_stronger_class_holds_the_high_watermark_where_it_is() {
    let mut replica = replica(DurabilityClass::Written);
    replica.appended(Offset(10));
    let _ = replica.local_progress(Offset(10), Offset(2));
    assert!(replica.reconfigure(DurabilityClass::Device, 1).is_empty());
    assert_eq!(replica.read_bound(Reader::Consumer), Offset(10));
    replica.appended(Offset(12));
    assert!(replica.local_progress(Offset(12), Offset(5)).iter().all(|effect| !matches!(effect, Effect::HighWatermark(_))));
    let effects = replica.local_progress(Offset(12), Offset(12));
    assert_eq!(effects.as_slice(), [Effect::HighWatermark(Offset(12)), Effect::LocalProgress(Offset(12))]);
}

#[test]
#[should_panic(expected = "an offset went back")]
fn no_offset_goes_back() {
    let mut replica = replica(DurabilityClass::Device);
    replica.appended(Offset(5));
    replica.appended(Offset(4));
}

#[test]
#[should_panic(expected = "written before it was appended")]
fn nothing_is_written_before_it_is_appended() {
    let _ = replica(DurabilityClass::Device).local_progress(Offset(1), Offset(0));
}

#[test]
#[should_panic(expected = "flushed before it was written")]
fn nothing_is_flushed_before_it_is_written() {
    let mut replica = replica(DurabilityClass::Device);
    replica.appended(Offset(5));
    let _ = replica.local_progress(Offset(1), Offset(2));
}

#[test]
#[should_panic(expected = "log start above the last stable offset")]
fn t31_the_log_start_stays_below_the_high_watermark() {
    let mut offsets = ReplicaOffsets::recovered(Offset(0), Offset(10));
    offsets.set(Positions { log_start: Offset(1), ..offsets.positions() });
}

#[test]
fn acks_of_the_wire() {
    assert_eq!(Acks::from_wire(-1), Some(Acks::All));
    assert_eq!(Acks::from_wire(0), Some(Acks::None));
    assert_eq!(Acks::from_wire(1), Some(Acks::Leader));
    assert_eq!(Acks::from_wire(2), None);
    assert_eq!(Acks::from_wire(-2), None);
}

#[derive(Clone, Debug)]
enum Step {
    Append(u8),
    Write(u8),
    Flush(u8),
    OtherAcknowledges(u8, u8),
    MoveLogStart(u8),
    Reconfigure(bool, u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        any::<u8>().prop_map(Step::Append),
        any::<u8>().prop_map(Step::Write),
        any::<u8>().prop_map(Step::Flush),
        (any::<u8>(), any::<u8>()).prop_map(|(written, flushed)| Step::OtherAcknowledges(written, flushed)),
        any::<u8>().prop_map(Step::MoveLogStart),
        (any::<bool>(), 1_u8..4).prop_map(|(device, needed)| Step::Reconfigure(device, needed)),
    ]
}

/// `from` moved on by a part of the way to `to`.
fn part(from: Offset, to: Offset, share: u8) -> Offset {
    Offset(from.0 + (to.0 - from.0) * i64::from(share) / 255)
}

proptest! {
    /// Whatever happens in whatever order: the assertions of the setter hold, the high watermark never passes the progress
    /// of an in-sync replica, and each of its moves is told once.
    #[test]
    fn the_high_watermark_is_never_ahead_of_an_in_sync_replica(steps in prop::collection::vec(step(), 1..80)) {
        let mut replica = with_other(DurabilityClass::Device);
        let mut told = Offset(0);
        for step in steps {
            let at = replica.positions();
            let other = replica.in_sync[1];
            let effects = match step {
                Step::Append(records) => {
                    replica.appended(at.log_end.plus(u32::from(records)));
                    Effects::new()
                }
                Step::Write(share) => replica.local_progress(part(at.written, at.log_end, share), at.flushed),
                Step::Flush(share) => replica.local_progress(at.written, part(at.flushed, at.written, share)),
                Step::OtherAcknowledges(written, flushed) => {
                    let written = part(other.written, at.log_end, written);
                    replica.in_sync[1] = InSyncReplica { host: OTHER, written, flushed: part(other.flushed, written, flushed) };
                    replica.settle_high_watermark()
                }
                Step::MoveLogStart(share) => {
                    replica.log_start_moved(part(at.log_start, at.high_watermark, share));
                    Effects::new()
                }
                Step::Reconfigure(device, needed) => {
                    let class = if device { DurabilityClass::Device } else { DurabilityClass::Written };
                    replica.reconfigure(class, u32::from(needed))
                }
            };
            let now = replica.positions();
            for effect in effects {
                if let Effect::HighWatermark(offset) = effect {
                    prop_assert!(offset > told);
                    prop_assert!(replica.has_min_in_sync_replicas());
                    for follower in &replica.in_sync {
                        prop_assert!(offset <= follower.written);
                        prop_assert!(replica.class() == DurabilityClass::Written || offset <= follower.flushed);
                    }
                    told = offset;
                }
            }
            prop_assert_eq!(told, now.high_watermark);
            prop_assert!(replica.acknowledged(Acks::All) <= replica.acknowledged(Acks::None));
        }
    }
}
