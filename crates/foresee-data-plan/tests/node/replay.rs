// SPDX-License-Identifier: Apache-2.0
//! Seeds of a case: a fixed share in an ordinary run, many fresh ones with `FORESEE_SOAK`, one with `FORESEE_SEED`.
//!
//! A seed determines the run. A failing run prints the command that replays it alone, with a trace.

use std::any::type_name;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use foresee_testkit::Dice;

use crate::setup::Setup;
use crate::world::World;

/// Seeds of a case in an ordinary run, and with `FORESEE_SOAK`.
const ORDINARY: u64 = 512;
const SOAK: u64 = 10_000;

/// Run a case with all its seeds: `setup` draws the settings of a run, `check` checks its end.
#[expect(clippy::print_stderr, reason = "a trace, and the command that replays a run, are for people")]
pub(crate) fn every_seed<S>(setup: S, check: impl Fn(&World))
where
    S: Fn(&mut Dice) -> Setup,
{
    if let Ok(text) = std::env::var("FORESEE_SEED") {
        let seed = text.parse().expect("FORESEE_SEED is a number");
        let mut world = world(&setup, seed);
        world.trace = Some(Vec::new());
        let run = catch_unwind(AssertUnwindSafe(|| check_run(&mut world, &check)));
        eprintln!("{:#?}\n{}", world.setup, world.trace.unwrap_or_default().join("\n"));
        return run.unwrap_or_else(|panic| resume_unwind(panic));
    }
    let is_soak = std::env::var_os("FORESEE_SOAK").is_some();
    // A soak run starts at a random seed.
    let first = if is_soak { RandomState::new().build_hasher().finish() >> 1 } else { 0 };
    let case = type_name::<S>().split("::").skip(1).take(2).collect::<Vec<_>>().join("::");
    for seed in first..first + if is_soak { SOAK } else { ORDINARY } {
        let run = catch_unwind(AssertUnwindSafe(|| check_run(&mut world(&setup, seed), &check)));
        if let Err(panic) = run {
            eprintln!(
                "replay: FORESEE_SEED={seed} cargo test -p foresee-data-plan --test node -- --exact --nocapture {case}"
            );
            resume_unwind(panic);
        }
    }
}

/// The trace of a run.
pub(crate) fn trace(setup: impl Fn(&mut Dice) -> Setup, seed: u64) -> Vec<String> {
    let mut world = world(&setup, seed);
    world.trace = Some(Vec::new());
    world.run();
    world.trace.unwrap_or_default()
}

/// The world of a seed, before its run.
pub(crate) fn world(setup: &impl Fn(&mut Dice) -> Setup, seed: u64) -> World {
    let mut dice = Dice::new(seed);
    let setup = setup(&mut dice);
    World::new(dice, setup)
}

fn check_run(world: &mut World, check: &impl Fn(&World)) {
    world.run();
    check(world);
}
