// SPDX-License-Identifier: Apache-2.0
//! Seeds of simulated runs: a fixed share in an ordinary run, many fresh ones with `FORESEE_SOAK`, one with
//! `FORESEE_SEED`.
//!
//! A failing run prints the command that replays it alone, with a trace.

use std::any::type_name;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::is_soak;

/// Seeds of a case in an ordinary run, and with `FORESEE_SOAK`.
const ORDINARY: u64 = 512;
const SOAK: u64 = 10_000;

/// A run that its seed determines.
pub trait SimulatedRun {
    /// Trace the run that follows.
    fn start_trace(&mut self);

    /// Return the settings of the run, and its trace so far.
    fn report(&self) -> String;
}

/// Run a case with all its seeds: `make` makes the run of a seed, `check` executes it and checks it.
///
/// The function that defines `S` is the test, by whose name a run is replayed. `target`: its package and test target, as
/// arguments of cargo. `examples`: names of tests, each with a seed that has found a defect there and is tried first.
///
/// # Panics
/// A run has panicked, or `FORESEE_SEED` is no number.
#[expect(clippy::print_stderr, reason = "a trace, and the command that replays a run, are for people")]
pub fn every_seed<S, R: SimulatedRun>(
    target: &str,
    examples: &[(&str, u64)],
    make: impl Fn(u64) -> R,
    check: impl Fn(&mut R),
) {
    if let Ok(text) = std::env::var("FORESEE_SEED") {
        let mut run = make(text.parse().expect("FORESEE_SEED is a number"));
        run.start_trace();
        let outcome = catch_unwind(AssertUnwindSafe(|| check(&mut run)));
        eprintln!("{}", run.report());
        return outcome.unwrap_or_else(|panic| resume_unwind(panic));
    }
    // A soak run starts at a random seed.
    let first = if is_soak() { RandomState::new().build_hasher().finish() >> 1 } else { 0 };
    let case = type_name::<S>().split("::").skip(1).take(2).collect::<Vec<_>>().join("::");
    let examples = examples.iter().filter(|(name, _)| case.ends_with(name)).map(|(_, seed)| *seed);
    for seed in examples.chain(first..first + if is_soak() { SOAK } else { ORDINARY }) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&mut make(seed)))) {
            eprintln!("replay: FORESEE_SEED={seed} cargo test {target} -- --exact --nocapture {case}");
            resume_unwind(panic);
        }
    }
}
