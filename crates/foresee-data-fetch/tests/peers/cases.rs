// SPDX-License-Identifier: Apache-2.0
//! Properties of every job: all ranks get all batches, with any faults; and what is read where, without faults.

use foresee_data_fetch::peers::PeerFault;
use foresee_data_plan::{PlacedSource, PlacementConfig, PlacementPlanner};
use foresee_testkit::Dice;
use foresee_units::{BytesPerSecond, Nanos, SampleId};

use crate::node::table;
use crate::setup::{Fault, Setup};
use crate::world::World;

/// Capacities of all nodes together, in data sets.
const ANY: &[f64] = &[0.0, 0.3, 0.7, 1.1, 1.6, 4.0];
const ENOUGH: &[f64] = &[1.3, 1.6, 4.0];

/// Run a case with all its seeds: `setup` draws the settings of a job, `check` checks its end.
fn every_seed<S>(setup: S, check: impl Fn(&World))
where
    S: Fn(&mut Dice) -> Setup,
{
    foresee_testkit::every_seed::<S, _>(
        "-p foresee-data-fetch --test peers",
        &[
            ("with_too_little_space_the_origin_is_read_as_planned", 931_325_278_502_576_993),
            ("with_too_little_space_the_origin_is_read_as_planned", 692_012_848_374_496_472),
            ("without_faults_each_sample_is_read_from_the_origin_once", 3_878_886_373_428_050_731),
        ],
        |seed| {
            let mut dice = Dice::new(seed);
            let setup = setup(&mut dice);
            World::new(dice, setup)
        },
        |world| {
            world.run();
            check(world);
        },
    );
}

/// Every run checks its invariants, and that all ranks reach their end.
fn any_end(world: &World) {
    assert_eq!(world.faults, [], "nodes with one plan do not refuse each other");
}

/// A job whose network is much faster than its origin. Otherwise the origin is read where the network is slower.
fn fast_network(dice: &mut Dice, capacities: &[f64]) -> Setup {
    let link_rate = BytesPerSecond::new(50_000_000);
    Setup { origin: Nanos::from_millis(60), link_rate, ..Setup::draw(dice, capacities) }
}

/// Accesses that the placement of a job reads from the origin.
fn planned_origin_reads(setup: &Setup) -> u64 {
    let config = PlacementConfig { capacities: vec![setup.reserved(); setup.nodes], horizon: setup.horizon };
    let mut planner = PlacementPlanner::new(config, table(setup)).unwrap();
    let shape = setup.shape();
    let accesses = |epoch| {
        let samples = setup.in_order(epoch);
        let ranks = setup.ranks_in_order();
        samples.into_iter().zip(ranks).map(|(sample, rank)| (shape.nodes[rank], sample)).collect::<Vec<_>>()
    };
    let (mut known, mut reads) = (1, 0);
    for epoch in 0..setup.epochs {
        if epoch > 0 {
            planner.handle_next_epoch();
            known = known.max(epoch + 1);
        }
        while known < setup.epochs && planner.wants_epoch() {
            planner.handle_epoch(&mut accesses(known).into_iter());
            known += 1;
        }
        if known == setup.epochs {
            planner.handle_end();
        }
        for (node, sample) in accesses(epoch) {
            reads += u64::from(planner.handle_access(node, sample).source == PlacedSource::Origin);
        }
    }
    reads
}

#[test]
fn without_faults_each_sample_is_read_from_the_origin_once() {
    every_seed(
        |dice| fast_network(dice, ENOUGH),
        |world| {
            any_end(world);
            // Samples that fill up the last epoch are read in it twice, and no longer held after the first time.
            let samples = world.setup.sizes.len();
            let filling = world.setup.per_rank() * world.setup.ranks() - samples;
            let most = (samples + filling) as u64;
            assert!((samples as u64..=most).contains(&world.origin_reads()), "{}", world.origin_reads());
            for node in &world.nodes {
                let counts = node.exchange.counts();
                assert_eq!((counts.missing, counts.late, counts.silent), (0, 0, 0));
            }
        },
    );
}

#[test]
fn with_too_little_space_the_origin_is_read_as_planned() {
    every_seed(
        |dice| fast_network(dice, ANY),
        |world| {
            any_end(world);
            let planned = planned_origin_reads(&world.setup);
            // Copies beyond the plan save some.
            assert!(world.origin_reads() <= planned, "{} of {planned}", world.origin_reads());
        },
    );
}

#[test]
fn without_faults_all_nodes_do_all_steps_with_any_rates() {
    every_seed(|dice| Setup::draw(dice, ANY), any_end);
}

#[test]
fn connections_that_end_cost_reads() {
    let setup = |dice: &mut Dice| {
        let setup = Setup::draw(dice, ANY).with(dice, Fault::Cut(Nanos::ZERO), 5);
        setup.with(dice, Fault::Cut(Nanos::from_secs(3)), 2).with(dice, Fault::Cut(Nanos::from_secs(3600)), 1)
    };
    every_seed(setup, any_end);
}

#[test]
fn nodes_that_stand_still_or_vanish_hold_nobody_up_for_ever() {
    let setup = |dice: &mut Dice| {
        let setup = Setup::draw(dice, ANY).with(dice, Fault::Freeze(Nanos::from_millis(300)), 2);
        setup.with(dice, Fault::Freeze(Nanos::from_secs(10)), 1).with(dice, Fault::Crash, 2)
    };
    every_seed(setup, any_end);
}

#[test]
fn slow_links_and_disks_and_lost_copies_cost_time() {
    let setup = |dice: &mut Dice| {
        let setup = Setup::draw(dice, ANY).with(dice, Fault::SlowLink(4), 2);
        let setup = setup.with(dice, Fault::SlowLink(1000), 1);
        setup.with(dice, Fault::SlowDisk(Nanos::from_secs(1)), 1).with(dice, Fault::Lose, 4)
    };
    every_seed(setup, any_end);
}

#[test]
fn nodes_that_deny_or_withhold_samples_are_passed_over() {
    let setup =
        |dice: &mut Dice| Setup::draw(dice, ANY).with(dice, Fault::Deny, 2).with(dice, Fault::Withhold, 2);
    every_seed(setup, any_end);
}

#[test]
fn a_node_that_names_no_sample_is_refused() {
    let setup = |dice: &mut Dice| Setup::draw(dice, ANY).with(dice, Fault::Invent, 1);
    every_seed(setup, |world| {
        for (_, fault) in &world.faults {
            let count = world.setup.sizes.len() as u64;
            assert_eq!(*fault, PeerFault::NoSuchSample { sample: SampleId(u64::MAX), count });
        }
    });
}

#[test]
fn with_simultaneous_faults_all_ranks_that_are_left_get_all_batches() {
    let setup = |dice: &mut Dice| {
        let setup = Setup::draw(dice, ANY).with(dice, Fault::Cut(Nanos::from_millis(500)), 3);
        let setup = setup.with(dice, Fault::Freeze(Nanos::from_secs(2)), 1).with(dice, Fault::Crash, 1);
        let setup = setup.with(dice, Fault::SlowLink(20), 1).with(dice, Fault::Lose, 2);
        setup.with(dice, Fault::Withhold, 1).with(dice, Fault::Deny, 1)
    };
    every_seed(setup, any_end);
}
