// SPDX-License-Identifier: Apache-2.0
//! Properties of every run, with any faults, and the reads of the origin without faults.

use std::sync::Arc;

use foresee_data_plan::{
    Access, PlannedSource, Planner, PlannerConfig, Policy, PolicyChoice, SampleSizes, TierCapacity,
};
use foresee_testkit::Dice;
use foresee_units::{Bytes, Nanos, SampleId};

use crate::replay::{every_seed, trace};
use crate::setup::{ConsumerSetup, Fault, Setup};
use crate::world::World;

/// Every run checks its invariants, and that every consumer reaches its end.
fn any_end(_: &World) {}

#[test]
fn without_faults_every_consumer_reaches_its_end() {
    every_seed(
        |dice: &mut Dice| Setup::draw(dice),
        |world| {
            let too_large = world
                .setup
                .sizes
                .iter()
                .any(|size| size.next_multiple_of(world.setup.align) > world.setup.memory);
            assert!(world.setup.failures > 0 || too_large || world.contents.failures == 0);
        },
    );
}

#[test]
fn consumers_that_stop_or_vanish_hold_nobody_up() {
    let setup = |dice: &mut Dice| {
        let setup = Setup::draw(dice).with(dice, Fault::Stop { forever: true }, 2);
        let setup = setup.with(dice, Fault::Stop { forever: false }, 3).with(dice, Fault::Vanish, 2);
        setup.with(dice, Fault::ChangeRate, 2)
    };
    every_seed(setup, any_end);
}

#[test]
fn a_stopped_consumer_keeps_at_most_its_share_of_a_memory_that_another_needs() {
    let setup = |dice: &mut Dice| {
        let half = u32::try_from(8 + dice.below(20)).unwrap();
        let setup = Setup::one_job(dice, 2 * half, 1);
        let job = |first| ConsumerSetup {
            first,
            count: half,
            epochs: 6,
            interval: Nanos::from_millis(100),
            ..setup.consumers[0].clone()
        };
        let consumers = vec![job(0), job(half)];
        let stalled_bytes_max = dice.pick(&[0, u64::from(half) / 4]);
        let memory = u64::from(half) + dice.below(half as usize) as u64;
        let faults = vec![Fault::Stop { forever: true }];
        Setup { consumers, stalled_bytes_max, memory, disk: 0, faults, ..setup }
    };
    every_seed(setup, any_end);
}

#[test]
fn lost_copies_and_other_capacities_cost_time_but_no_answer() {
    let setup = |dice: &mut Dice| {
        let setup = Setup::draw(dice).with(dice, Fault::Lose, 8).with(dice, Fault::Resize, 4);
        setup.with(dice, Fault::ChangeRate, 2)
    };
    every_seed(setup, any_end);
}

#[test]
fn with_simultaneous_faults_every_request_ends() {
    let setup = |dice: &mut Dice| {
        let setup = Setup::draw(dice).with(dice, Fault::Lose, 4).with(dice, Fault::Resize, 2);
        let setup = setup.with(dice, Fault::Stop { forever: true }, 1).with(dice, Fault::Vanish, 1);
        let setup = setup.with(dice, Fault::Stop { forever: false }, 3).with(dice, Fault::Replace, 3);
        setup.with(dice, Fault::Restart, 3).with(dice, Fault::ChangeRate, 2)
    };
    every_seed(setup, any_end);
}

#[test]
fn ranks_that_share_the_data_read_each_entry_once_if_memory_holds_all() {
    let setup = |dice: &mut Dice| {
        let (entries, world) = (1 + dice.below(60), 1 + dice.below(4));
        let setup = Setup::one_job(dice, u32::try_from(entries).unwrap(), u32::try_from(world).unwrap());
        Setup { memory: setup.data().get(), ..setup }
    };
    every_seed(setup, |world| assert_eq!(world.contents.origin_reads, world.setup.sizes.len() as u64));
}

#[test]
fn ranks_that_share_the_data_read_each_entry_once_if_the_disk_holds_all() {
    let setup = |dice: &mut Dice| {
        let (entries, world) = (1 + dice.below(60), 1 + dice.below(4));
        let setup = Setup::one_job(dice, u32::try_from(entries).unwrap(), u32::try_from(world).unwrap());
        let memory = dice.pick(&[1, 3, setup.data().get().div_ceil(2)]);
        Setup { memory, disk: setup.data().get(), ..setup }
    };
    every_seed(setup, |world| assert_eq!(world.contents.origin_reads, world.setup.sizes.len() as u64));
}

#[test]
fn one_consumer_alone_reads_as_much_as_the_planner_of_a_rank() {
    let setup = |dice: &mut Dice| {
        let entries = 1 + dice.below(60);
        let setup = Setup::one_job(dice, u32::try_from(entries).unwrap(), 1);
        let memory = 1 + dice.below(2 * entries) as u64;
        let read_ahead = dice.pick(&[0, 0, 1, memory / 4, memory]);
        Setup { memory, disk: 0, table_budget: 1 << 20, read_ahead, ..setup }
    };
    every_seed(setup, |world| {
        let reads = usize::try_from(world.contents.origin_reads).unwrap();
        // Accesses requested together share a read, and their bytes are in the consumer's memory from then on.
        let consumer = &world.setup.consumers[0];
        let least = rank_reads(world, world.setup.memory + consumer.batch * consumer.depth);
        // Pinned entries, those in flight and those read ahead take space that a rank's planner does not plan.
        let other = world.contents.transit_max.get() + world.setup.read_ahead;
        let most = rank_reads(world, world.setup.memory.saturating_sub(other));
        assert!((least..=most).contains(&reads), "{reads} reads, not {least} to {most}");
    });
}

#[test]
fn one_seed_gives_one_trace() {
    let setup = |dice: &mut Dice| {
        let setup = Setup::draw(dice).with(dice, Fault::Lose, 4).with(dice, Fault::Resize, 2);
        setup.with(dice, Fault::Stop { forever: false }, 3).with(dice, Fault::Restart, 3)
    };
    for seed in 0..16 {
        let first = trace(setup, seed);
        assert!(!first.is_empty());
        assert_eq!(first, trace(setup, seed), "seed {seed}");
    }
}

/// Samples of one byte each.
struct OneByte(u64);

impl SampleSizes for OneByte {
    fn count(&self) -> u64 {
        self.0
    }
    fn size(&self, _: SampleId) -> Bytes {
        Bytes::new(1)
    }
    fn uniform(&self) -> Option<Bytes> {
        Some(Bytes::new(1))
    }
}

/// Reads of the origin that the planner of a rank with this capacity plans for the first consumer.
fn rank_reads(world: &World, capacity: u64) -> usize {
    let tiers = vec![TierCapacity { capacity: Bytes::new(capacity), align: 1, overhead: Bytes::ZERO }];
    let config = PlannerConfig { tiers, policy: PolicyChoice::NextUse, table_budget: Bytes::new(1 << 20) };
    let mut planner = Planner::new(config, Arc::new(OneByte(world.setup.sizes.len() as u64)))
        .expect("the settings are valid");
    let mut order = world.consumers[0].log.iter().map(|&entry| SampleId(entry.into()));
    planner.handle_epoch(&mut order);
    planner.handle_end();
    let mut access = Access::default();
    let sources = std::iter::from_fn(|| planner.poll_access(&mut access).then_some(access.source));
    let reads = sources.filter(|source| *source == PlannedSource::Origin).count();
    assert_eq!(planner.policy(), Some(Policy::NextUse));
    reads
}
