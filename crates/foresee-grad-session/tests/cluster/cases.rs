// SPDX-License-Identifier: Apache-2.0
//! Properties of every run, with any faults.

use foresee_testkit::Dice;

use crate::blame::Failures;
use crate::faults::Fault;
use crate::replay::{every_seed, trace};
use crate::setup::Setup;
use crate::world::World;

fn no_rank_fails(world: &World, failures: &Failures) {
    assert!(!world.is_stuck, "ranks wait forever");
    assert!(failures.is_empty(), "nothing was lost permanently: {failures:?}");
}

/// Only ranks with faults may fail.
fn the_others_continue(world: &World, failures: &Failures) {
    assert!(!world.is_stuck, "ranks wait forever");
    let others: Vec<_> = failures.iter().filter(|(rank, _)| !world.culprits.ranks.contains(rank)).collect();
    assert!(others.is_empty(), "the others continue: {others:?}");
}

/// Any end: every run checks that errors name the lost party.
fn any_end(_: &World, _: &Failures) {}

#[test]
fn broken_connections_change_no_bit_and_end_no_job() {
    let setup = |dice: &mut Dice| {
        let setup = Setup { colocated: dice.one_in(4), ..Setup::draw(dice) };
        let setup = Setup { continues_after_loss: setup.continues_after_loss && !setup.colocated, ..setup };
        setup.with(dice, Fault::Break, 5).with(dice, Fault::ShortCut, 3).with(dice, Fault::Pause, 2)
    };
    every_seed(setup, no_rank_fails);
}

#[test]
fn replaced_servers_change_no_bit_and_end_no_job() {
    let setup = |dice: &mut Dice| {
        let setup = Setup { continues_after_loss: false, ..Setup::draw(dice) };
        // Ranks are sometimes two rounds ahead of the state of servers.
        let setup = if dice.one_in(3) {
            setup
        } else {
            let ranks = setup.ranks.max(2);
            let slow = Some(dice.below(ranks as usize));
            Setup { ranks, slow, early_bytes: dice.pick(&[0, 63]), is_dense: true, rounds: 5, ..setup }
        };
        let setup = setup.with(dice, Fault::Replace, 4).with(dice, Fault::Break, 2);
        setup.with(dice, Fault::ShortCut, 1).with(dice, Fault::Pause, 1)
    };
    every_seed(setup, no_rank_fails);
}

#[test]
fn remaining_ranks_continue_with_equal_bits() {
    let setup = |dice: &mut Dice| {
        // Without a grace period, a loss coincides with reports about the same round.
        let setup =
            Setup { continues_after_loss: true, plans: 1, recovers: dice.one_in(2), ..Setup::draw(dice) };
        setup.with(dice, Fault::Kill, 2).with(dice, Fault::Pause, 2)
    };
    every_seed(setup, the_others_continue);
}

#[test]
fn ranks_that_close_early_are_dropped_or_named() {
    let setup = |dice: &mut Dice| {
        let setup = Setup { plans: 1, ..Setup::draw(dice) };
        setup.with(dice, Fault::Leave, 2).with(dice, Fault::Pause, 2)
    };
    every_seed(setup, |world, failures| {
        if world.setup.continues_after_loss {
            the_others_continue(world, failures);
        }
    });
}

#[test]
fn a_rank_that_closes_without_its_last_results_does_not_lose_its_contribution() {
    let setup = |dice: &mut Dice| {
        let setup = Setup { recovers: !dice.one_in(3), ..Setup::draw(dice) };
        let setup = Setup { hasty: Some(dice.below(setup.ranks as usize)), ..setup };
        setup.with(dice, Fault::Pause, 2)
    };
    every_seed(setup, no_rank_fails);
}

#[test]
fn an_outage_longer_than_the_grace_period_loses_the_ranks_behind_it() {
    let setup = |dice: &mut Dice| {
        let setup = Setup { colocated: dice.one_in(4), ..Setup::draw(dice) };
        let setup = Setup { continues_after_loss: setup.continues_after_loss && !setup.colocated, ..setup };
        setup.with(dice, Fault::LongCut, 1).with(dice, Fault::ShortCut, 1).with(dice, Fault::Pause, 1)
    };
    every_seed(setup, any_end);
}

#[test]
fn with_simultaneous_faults_every_rank_ends_with_a_result_or_a_reason() {
    let setup = |dice: &mut Dice| {
        let setup = Setup { recovers: !dice.one_in(8), ..Setup::draw(dice) };
        let setup = setup.with(dice, Fault::Break, 3).with(dice, Fault::ShortCut, 2);
        let setup = setup.with(dice, Fault::LongCut, 2).with(dice, Fault::Pause, 2);
        setup.with(dice, Fault::Replace, 2).with(dice, Fault::Kill, 2).with(dice, Fault::Leave, 1)
    };
    every_seed(setup, any_end);
}

#[test]
fn a_byzantine_peer_is_named() {
    let setup = |dice: &mut Dice| {
        let setup = Setup::draw(dice).with(dice, Fault::WrongMessage, 6);
        setup.with(dice, Fault::Pause, 1)
    };
    every_seed(setup, any_end);
}

#[test]
fn one_seed_gives_one_trace() {
    let setup = |dice: &mut Dice| {
        let setup = Setup::draw(dice).with(dice, Fault::Break, 3).with(dice, Fault::LongCut, 1);
        setup.with(dice, Fault::Replace, 2).with(dice, Fault::Kill, 1)
    };
    for seed in 0..16 {
        let first = trace(setup, seed);
        assert!(!first.is_empty());
        assert_eq!(first, trace(setup, seed), "seed {seed}");
    }
}
