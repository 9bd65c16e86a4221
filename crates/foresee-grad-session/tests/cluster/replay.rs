// SPDX-License-Identifier: Apache-2.0
//! Runs of a case: one for each seed, which determines it.

use foresee_testkit::{Dice, SimulatedRun};

use crate::blame::Failures;
use crate::setup::Setup;
use crate::world::World;

/// Seeds that have found a defect, by case. They become other runs when the simulator draws differently.
const EXAMPLES: [(&str, u64); 8] = [
    ("a_byzantine_peer_is_named", 7_199_476_557_752_507_175),
    ("a_byzantine_peer_is_named", 8_971_775_624_894_241_172),
    ("a_byzantine_peer_is_named", 2_421_516_165_584_815_862),
    ("a_byzantine_peer_is_named", 270_569_998_972_202_663),
    ("a_byzantine_peer_is_named", 962_398_430_671_448_088),
    ("an_outage_longer_than_the_grace_period_loses_the_ranks_behind_it", 6_468_102_825_015_029_537),
    ("with_simultaneous_faults_every_rank_ends_with_a_result_or_a_reason", 8_633_812_741_021_239_263),
    ("with_simultaneous_faults_every_rank_ends_with_a_result_or_a_reason", 4_281_945_548_084_817_899),
];

/// Run a case with all its seeds: `setup` draws the settings of a run, `check` checks its end.
pub(crate) fn every_seed<S>(setup: S, check: impl Fn(&World, &Failures))
where
    S: Fn(&mut Dice) -> Setup,
{
    foresee_testkit::every_seed::<S, _>(
        "-p foresee-grad-session --test cluster",
        &EXAMPLES,
        |seed| world(&setup, seed),
        |world| {
            let failures = world.run();
            check(world, &failures);
        },
    );
}

/// The trace of a run.
pub(crate) fn trace(setup: impl Fn(&mut Dice) -> Setup, seed: u64) -> Vec<String> {
    let mut world = world(&setup, seed);
    world.start_trace();
    world.run();
    world.trace.unwrap_or_default()
}

impl SimulatedRun for World {
    fn start_trace(&mut self) {
        self.trace = Some(Vec::new());
    }

    fn report(&self) -> String {
        format!("{:#?}\n{}", self.setup, self.trace.as_deref().unwrap_or_default().join("\n"))
    }
}

fn world(setup: &impl Fn(&mut Dice) -> Setup, seed: u64) -> World {
    let mut dice = Dice::new(seed);
    let setup = setup(&mut dice);
    World::new(dice, setup)
}
