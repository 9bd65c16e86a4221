// SPDX-License-Identifier: Apache-2.0
//! Seeds of a case: a fixed share in an ordinary run, many fresh ones with `FORESEE_SOAK`, one with `FORESEE_SEED`.
//!
//! A seed determines the run. A failing run prints the command that replays it alone, with a trace.

use std::any::type_name;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use foresee_testkit::Dice;

use crate::blame::Failures;
use crate::setup::Setup;
use crate::world::World;

/// Seeds of a case in an ordinary run, and with `FORESEE_SOAK`.
const ORDINARY: u64 = 512;
const SOAK: u64 = 10_000;

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
#[expect(clippy::print_stderr, reason = "a trace, and the command that replays a run, are for people")]
pub(crate) fn every_seed<S>(setup: S, check: impl Fn(&World, &Failures))
where
    S: Fn(&mut Dice) -> Setup,
{
    let replayed = std::env::var("FORESEE_SEED").ok();
    if let Some(text) = replayed {
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
    let examples = EXAMPLES.iter().filter(|(name, _)| case.ends_with(name)).map(|(_, seed)| *seed);
    for seed in examples.chain(first..first + if is_soak { SOAK } else { ORDINARY }) {
        let run = catch_unwind(AssertUnwindSafe(|| check_run(&mut world(&setup, seed), &check)));
        if let Err(panic) = run {
            eprintln!(
                "replay: FORESEE_SEED={seed} cargo test -p foresee-grad-session --test cluster -- --exact --nocapture {case}"
            );
            resume_unwind(panic);
        }
    }
}

/// The trace of a run.
pub(crate) fn trace(setup: impl Fn(&mut Dice) -> Setup, seed: u64) -> Vec<String> {
    let mut world = world(setup, seed);
    world.trace = Some(Vec::new());
    world.run();
    world.trace.unwrap_or_default()
}

fn world(setup: impl Fn(&mut Dice) -> Setup, seed: u64) -> World {
    let mut dice = Dice::new(seed);
    let setup = setup(&mut dice);
    World::new(dice, setup)
}

fn check_run(world: &mut World, check: &impl Fn(&World, &Failures)) {
    let failures = world.run();
    check(world, &failures);
}
