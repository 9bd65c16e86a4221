// SPDX-License-Identifier: Apache-2.0
//! Runs of a case: one for each seed, which determines it.

use foresee_testkit::{Dice, SimulatedRun};

use crate::setup::Setup;
use crate::world::World;

/// Run a case with all its seeds: `setup` draws the settings of a run, `check` checks its end.
pub(crate) fn every_seed<S>(setup: S, check: impl Fn(&World))
where
    S: Fn(&mut Dice) -> Setup,
{
    foresee_testkit::every_seed::<S, _>(
        "-p foresee-data-plan --test node",
        &[],
        |seed| world(&setup, seed),
        |world| {
            world.run();
            check(world);
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

/// The world of a seed, before its run.
pub(crate) fn world(setup: &impl Fn(&mut Dice) -> Setup, seed: u64) -> World {
    let mut dice = Dice::new(seed);
    let setup = setup(&mut dice);
    World::new(dice, setup)
}
