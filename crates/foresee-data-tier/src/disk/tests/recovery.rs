// SPDX-License-Identifier: Apache-2.0
//! The content of a cache in the next run: after a clean end, a crash, and with other budgets.

use std::collections::BTreeSet;

use super::*;

#[test]
fn the_next_run_finds_the_samples_of_a_clean_end() {
    let dir = TempDir::new().unwrap();
    let config = config(dir.path(), 8 << 20);
    let lens = [0, 1, 100, 65_535, 65_536, 1_000_000];
    for round in 0..3 {
        let rig = Rig::open(&config);
        let expected: &[u64] = if round == 0 { &[] } else { &[0, 1, 2, 3, 4, 5] };
        assert_eq!(rig.ids(), expected);
        for (id, len) in (0..).zip(lens) {
            assert_eq!(rig.write(key(id), &content(id, len)), ReadOutcome::Ok);
            assert_eq!(rig.read(key(id), len).unwrap(), content(id, len));
        }
        let expected_writes = if round == 0 { 1_000_000 } else { 0 };
        rig.tier.close(GRACE);
        assert!(rig.tier.bytes_written().get() >= expected_writes, "what is there is not written again");
        assert!(round == 0 || rig.tier.bytes_written().is_zero());
        assert_eq!(files(dir.path(), "manifest").len(), 1);
    }
}

#[test]
fn after_a_crash_every_entry_on_the_disk_is_found_by_its_header() {
    let dir = TempDir::new().unwrap();
    let (live, dead) = (dir.path().join("live"), dir.path().join("dead"));
    let rig = Rig::open(&config(&live, 16 << 20));
    // Enough small samples to fill chunks, large ones between them, and some dropped and overwritten.
    let len = |id: u64| if id % 50 == 7 { 100_000 } else { 3000 };
    (0..2000).for_each(|id| assert_eq!(rig.write(key(id), &content(id, len(id))), ReadOutcome::Ok));
    (0..400).for_each(|id| assert_eq!(rig.drop_sample(key(id)), ReadOutcome::Ok));
    (2000..2300).for_each(|id| assert_eq!(rig.write(key(id), &content(id, len(id))), ReadOutcome::Ok));
    // A large sample is on the disk when its write ends, and with it the chunk sealed before.
    crash_copy(&live, &dead);
    let again = Rig::open(&config(&dead, 16 << 20));
    let cached: BTreeSet<u64> = again.ids().into_iter().collect();
    let kept = (400..2300).filter(|id| cached.contains(id)).count();
    assert!(kept > 1000, "only buffered samples are lost: {kept} of 1900");
    let mut bad = 0;
    for id in cached {
        match again.read(key(id), len(id)) {
            Ok(bytes) => assert_eq!(bytes, content(id, len(id))),
            Err(outcome) => {
                assert_eq!(outcome, ReadOutcome::Corrupt, "torn, and it shows");
                bad += 1;
            }
        }
    }
    assert!(bad < 400, "{bad} torn entries");
    assert_eq!(again.write(key(9000), &content(9000, 70_000)), ReadOutcome::Ok);
}

#[test]
fn two_runs_in_one_directory_have_a_partition_each_and_a_smaller_run_takes_over_both() {
    let dir = TempDir::new().unwrap();
    let of_two =
        DiskConfig { ranks: 2, directory_capacity: Bytes::new(8 << 20), ..config(dir.path(), 4 << 20) };
    let (first, second) = (Rig::open(&of_two), Rig::open(&of_two));
    assert_eq!(first.write(key(1), &content(1, 70_000)), ReadOutcome::Ok);
    assert_eq!(second.write(key(2), &content(2, 3_000)), ReadOutcome::Ok);
    assert_eq!(first.read(key(2), 3_000), Err(ReadOutcome::Absent));
    drop((first, second));

    let again = [Rig::open(&of_two), Rig::open(&of_two)];
    let ids: BTreeSet<Vec<u64>> = again.iter().map(Rig::ids).collect();
    assert_eq!(ids, BTreeSet::from([vec![1], vec![2]]), "filled partitions are claimed first");
    drop(again);

    let alone = Rig::open(&config(dir.path(), 8 << 20));
    assert_eq!(alone.ids(), [1, 2]);
    assert_eq!(alone.read(key(1), 70_000).unwrap(), content(1, 70_000));
    assert_eq!(alone.read(key(2), 3_000).unwrap(), content(2, 3_000));
    drop(alone);
    let once_more = Rig::open(&config(dir.path(), 8 << 20));
    assert_eq!(once_more.ids(), [1, 2], "the list names them under their new numbers");
}

#[test]
fn a_smaller_capacity_cuts_the_partition_and_the_rest_is_intact() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::open(&config(dir.path(), 16 << 20));
    (0..120).for_each(|id| assert_eq!(rig.write(key(id), &content(id, 100_000)), ReadOutcome::Ok));
    drop(rig);
    let rig = Rig::open(&config(dir.path(), 6 << 20));
    assert!(blocks(dir.path()) <= 6 << 20);
    assert!(!rig.cached.is_empty() && rig.cached.len() <= 60);
    rig.cached.iter().for_each(|cached| {
        assert_eq!(rig.read(key(cached.id.0), 100_000).unwrap(), content(cached.id.0, 100_000));
    });
}
