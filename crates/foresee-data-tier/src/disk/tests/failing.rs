// SPDX-License-Identifier: Apache-2.0
//! A disk that is full, or fails to write or to read: the tier gets smaller and the run continues.

use super::failing_disk::FailingDisk;
use super::*;

#[test]
fn a_full_disk_makes_the_tier_smaller_and_the_run_continues() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::over(&config(dir.path(), 16 << 20), Box::new(FailingDisk::after(2, u64::MAX, u64::MAX)));
    let kept =
        (0..100).take_while(|id| rig.write(key(*id), &content(*id, 100_000)) == ReadOutcome::Ok).count();
    assert!((10..50).contains(&kept), "{kept}");
    assert!(rig.tier.facts().capacity < Bytes::new(6 << 20), "{:?}", rig.tier.facts());
    assert_eq!(rig.drop_sample(key(0)), ReadOutcome::Ok);
    assert_eq!(rig.write(key(500), &content(500, 100_000)), ReadOutcome::Ok, "freed space is reused");
    assert_eq!(rig.read(key(1), 100_000).unwrap(), content(1, 100_000));
    assert_eq!(files(dir.path(), "seg").len(), 2, "the file that did not fit is removed");
}

#[test]
fn samples_can_use_the_whole_reported_capacity_even_on_a_full_disk() {
    for segments in [1, u64::MAX] {
        let dir = TempDir::new().unwrap();
        let disk = FailingDisk::after(segments, u64::MAX, u64::MAX);
        let rig = Rig::over(&config(dir.path(), 2 << 20), Box::new(disk));
        // Entries of one granule leave no gap; 2 MiB would hold 32,768 of them.
        let kept = (0..40_000).take_while(|id| rig.write(key(*id), b"") == ReadOutcome::Ok).count() as u64;
        let facts = rig.tier.facts();
        assert_eq!((facts.used, facts.capacity), (facts.capacity, rig.tier.usable_capacity()));
        assert_eq!(facts.used.get(), kept * disk_footprint(Bytes::ZERO).get());
        assert_eq!(Bytes::new(rig.tier.shared.state().allocated), facts.capacity);
    }
}

#[test]
fn a_failed_write_only_loses_its_samples_and_their_positions() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::over(&config(dir.path(), 16 << 20), Box::new(FailingDisk::after(u64::MAX, 3, u64::MAX)));
    let before = rig.tier.facts().capacity;
    (0..3).for_each(|id| assert_eq!(rig.write(key(id), &content(id, 100_000)), ReadOutcome::Ok));
    assert_eq!(rig.write(key(3), &content(3, 100_000)), ReadOutcome::Full);
    assert!(rig.tier.facts().capacity < before);
    assert_eq!(rig.read(key(3), 100_000), Err(ReadOutcome::Absent));
    (0..3).for_each(|id| assert_eq!(rig.read(key(id), 100_000).unwrap(), content(id, 100_000)));
    // A small one is taken before its chunk is written; when that fails, it was never there.
    assert_eq!(rig.write(key(4), b"small"), ReadOutcome::Ok);
    rig.tier.close(GRACE);
    assert!(rig.tier.faults() >= 2);
    drop(rig);
    assert_eq!(Rig::open(&config(dir.path(), 16 << 20)).ids(), [0, 1, 2]);
}

#[test]
fn an_unreadable_position_is_not_reused() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::over(&config(dir.path(), 16 << 20), Box::new(FailingDisk::after(u64::MAX, u64::MAX, 1)));
    (0..2).for_each(|id| assert_eq!(rig.write(key(id), &content(id, 100_000)), ReadOutcome::Ok));
    let before = rig.tier.facts();
    assert_eq!(rig.read(key(0), 100_000).unwrap(), content(0, 100_000));
    assert_eq!(rig.read(key(1), 100_000), Err(ReadOutcome::Corrupt));
    assert_eq!(rig.read(key(1), 100_000), Err(ReadOutcome::Absent));
    assert!(rig.tier.facts().capacity < before.capacity);
}

#[test]
fn a_thousand_small_samples_cost_a_few_calls() {
    let dir = TempDir::new().unwrap();
    let storage = FailingDisk::after(u64::MAX, u64::MAX, 0);
    let writes = Arc::clone(&storage.writes);
    let rig = Rig::over(&config(dir.path(), 64 << 20), Box::new(storage));
    for id in 0..5000 {
        assert_eq!(rig.write(key(id), &content(id, 1000)), ReadOutcome::Ok);
        assert_eq!(rig.read(key(id), 1000).unwrap(), content(id, 1000), "served from memory");
    }
    rig.tier.close(GRACE);
    assert!(writes.load(Ordering::Relaxed) <= 8, "{writes:?} calls for 5000 samples");
    drop(rig);
    let rig = Rig::open(&config(dir.path(), 64 << 20));
    assert_eq!(rig.cached.len(), 5000);
    assert_eq!(rig.read(key(4321), 1000).unwrap(), content(4321, 1000));
}
