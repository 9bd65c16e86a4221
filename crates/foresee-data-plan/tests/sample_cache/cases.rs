// SPDX-License-Identifier: Apache-2.0
//! Properties of every run, with any faults, and the reads of runs without faults.

use std::collections::BTreeSet;

use foresee_testkit::Dice;

use crate::setup::CacheSetup;
use crate::world::CacheWorld;

/// Announced samples of [`CacheSetup::alone`] with the one that is read, which take the place of others.
const ANNOUNCED: u64 = 3;

/// Run a case with all its seeds. Every run checks its invariants, and that every request ends.
fn every_seed<S: Fn(&mut Dice) -> CacheSetup>(setup: S, check: impl Fn(&CacheWorld)) {
    foresee_testkit::every_seed::<S, _>(
        "-p foresee-data-plan --test sample_cache",
        &[],
        |seed| CacheWorld::new(Dice::new(seed), &setup),
        |world| {
            world.run();
            check(world);
        },
    );
}

/// The samples that any consumer requests.
fn requested(world: &CacheWorld) -> BTreeSet<u32> {
    world.setup.consumers.iter().flat_map(|one| one.epochs.iter().flatten().copied()).collect()
}

#[test]
fn without_faults_every_consumer_reaches_its_end() {
    every_seed(CacheSetup::draw, |world| {
        let accesses: usize = world.setup.consumers.iter().flat_map(|one| &one.epochs).map(Vec::len).sum();
        let requests: u64 = world.consumers.iter().map(|one| one.requests).sum();
        assert_eq!(requests, accesses as u64);
        let is_alone = world.consumers.len() == 1 && world.setup.consumers[0].reorder == 0;
        assert!(!is_alone || world.skipped(0) == 0, "requested accesses were passed over");
    });
}

#[test]
fn failed_reads_and_lost_readers_hold_no_request_up() {
    let setup = |dice: &mut Dice| {
        let setup = CacheSetup::draw(dice);
        let (failures, lost_readers) = (dice.pick(&[2, 5, 20]), dice.pick(&[0, 3, 10]));
        CacheSetup { failures, lost_readers, ..setup }
    };
    every_seed(setup, |_| {});
}

#[test]
fn accesses_that_are_never_requested_and_pauses_hold_no_consumer_up() {
    let setup = |dice: &mut Dice| {
        let mut setup = CacheSetup::draw(dice);
        for one in &mut setup.consumers {
            one.left_out = dice.pick(&[0, 2, 5]);
            one.pause = dice.pick(&[0, 0, 5_000]);
        }
        setup
    };
    every_seed(setup, |_| {});
}

#[test]
fn a_cache_for_all_samples_reads_each_of_them_once() {
    let setup = |dice: &mut Dice| {
        let setup = CacheSetup::draw(dice);
        CacheSetup { capacity: setup.sizes.iter().sum(), ..setup }
    };
    every_seed(setup, |world| assert_eq!(world.reads, requested(world).len() as u64));
}

#[test]
fn groups_hold_no_consumer_up() {
    let setup = |dice: &mut Dice| {
        let setup = CacheSetup::grouped(dice);
        let (failures, lost_readers) = (dice.pick(&[0, 5, 20]), dice.pick(&[0, 0, 10]));
        CacheSetup { failures, lost_readers, ..setup }
    };
    every_seed(setup, |_| {});
}

#[test]
fn a_cache_for_all_samples_reads_each_of_them_once_in_groups_too() {
    let setup = |dice: &mut Dice| {
        let setup = CacheSetup::grouped(dice);
        CacheSetup { capacity: setup.sizes.iter().sum(), ..setup }
    };
    every_seed(setup, |world| {
        let (least, most) = (requested(world).len(), world.setup.sizes.len());
        assert!((least as u64..=most as u64).contains(&world.reads), "{} reads", world.reads);
    });
}

#[test]
fn with_an_expected_order_and_equal_sizes_reads_are_the_fewest_possible() {
    let setup = |dice: &mut Dice| {
        let mut setup = CacheSetup::alone(dice);
        setup.consumers[0].expects = Some(true);
        setup
    };
    every_seed(setup, |world| {
        let order: Vec<u32> = world.setup.consumers[0].epochs.concat();
        let capacity = world.setup.capacity;
        let (least, most) =
            (fewest_reads(&order, capacity), fewest_reads(&order, capacity.saturating_sub(ANNOUNCED)));
        // Before the first size is known, a read may be in vain.
        assert!((least..=most + 1).contains(&world.reads), "{} reads, not {least} to {most}", world.reads);
    });
}

#[test]
fn without_an_expected_order_a_permutation_hits_the_whole_cache_in_each_later_epoch() {
    let setup = |dice: &mut Dice| {
        let mut setup = CacheSetup::alone(dice);
        let order: Vec<u32> = (0..u32::try_from(setup.sizes.len()).expect("it is small")).collect();
        let one = &mut setup.consumers[0];
        (one.epochs, one.expects) = (vec![order; 3], None);
        setup
    };
    every_seed(setup, |world| {
        let count = world.setup.sizes.len() as u64;
        let reads = |capacity: u64| 3 * count - 2 * capacity.min(count);
        let capacity = world.setup.capacity;
        let (least, most) = (reads(capacity), reads(capacity.saturating_sub(ANNOUNCED)));
        // Before the first size is known, a read may be in vain.
        assert!((least..=most + 1).contains(&world.reads), "{} reads, not {least} to {most}", world.reads);
    });
}

#[test]
fn one_seed_gives_one_trace() {
    let trace = |seed| {
        let mut world = CacheWorld::new(Dice::new(seed), CacheSetup::draw);
        world.trace = Some(Vec::new());
        world.run();
        world.trace
    };
    for seed in 0..16 {
        assert_eq!(trace(seed), trace(seed), "seed {seed}");
    }
}

/// Reads of the best policy for equal sizes: the sample used latest leaves, which may be the new one.
fn fewest_reads(order: &[u32], capacity: u64) -> u64 {
    let mut cached = BTreeSet::new();
    let mut reads = 0;
    for (at, &sample) in order.iter().enumerate() {
        if cached.contains(&sample) {
            continue;
        }
        reads += 1;
        cached.insert(sample);
        if cached.len() as u64 > capacity {
            let next =
                |one: &u32| order[at + 1..].iter().position(|other| other == one).unwrap_or(usize::MAX);
            let latest = *cached.iter().max_by_key(|one| next(one)).expect("it is not empty");
            cached.remove(&latest);
        }
    }
    reads
}
