// SPDX-License-Identifier: Apache-2.0
//! Settings of property tests, and the only waits of tests that read a clock.
//!
//! A test never compares elapsed time with an upper bound: a loaded host breaks it. It waits here until
//! something has happened, and fails only when the watchdog bound has passed. A house test keeps `sleep` and clocks
//! out of all other test files. This crate is a dev-dependency only.

mod dice;
mod simulation;

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

pub use dice::Dice;
use proptest::test_runner::{Config, RngSeed};
pub use simulation::{SimulatedRun, every_seed};

/// Bound of every wait. It only turns a hang into a failure with a name, so it is far above any expected delay.
pub const WATCHDOG: Duration = Duration::from_secs(60);

/// Cases of a property in an ordinary test run.
const CASES: u32 = 256;
/// Seed of an ordinary test run: a change is judged by its own faults, not by new random inputs.
const SEED: u64 = 0x464f_5245_5345_4531;
/// Interval between two checks of a condition.
const TICK: Duration = Duration::from_millis(1);

/// Return the settings of a property test.
///
/// An ordinary run tries `min(256, soak)` cases from a fixed seed. With `FORESEE_SOAK` in the environment, it tries
/// `soak` cases from a fresh seed; a failure prints its smallest input, which then becomes an example test.
pub fn property(soak: u32) -> Config {
    settings(soak, is_soak())
}

/// Return the seeds of a test that draws its own inputs: `min(256, soak)` of them in an ordinary run, `soak` with
/// `FORESEE_SOAK` in the environment. They are the same in every run.
pub fn seeds(soak: u64) -> Range<u64> {
    0..if is_soak() { soak } else { soak.min(CASES.into()) }
}

fn is_soak() -> bool {
    std::env::var_os("FORESEE_SOAK").is_some()
}

fn settings(soak: u32, fresh: bool) -> Config {
    Config {
        cases: if fresh { soak } else { soak.min(CASES) },
        rng_seed: if fresh { RngSeed::Random } else { RngSeed::Fixed(SEED) },
        failure_persistence: None,
        ..Config::default()
    }
}

/// Wait until `condition` holds. Use it for state that sends no notification.
///
/// # Panics
/// The condition did not hold within [`WATCHDOG`]; the message names `what`.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + WATCHDOG;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen within {WATCHDOG:?}");
        thread::sleep(TICK);
    }
}

/// Sleep for `duration`, to simulate work or silence of another party.
pub fn pause(duration: Duration) {
    thread::sleep(duration);
}

/// Run `action` and assert that it took at least `least`. A lower bound holds on a loaded host too.
///
/// # Panics
/// It ended sooner.
pub fn takes_at_least<T>(least: Duration, action: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let value = action();
    let took = began.elapsed();
    assert!(took >= least, "ended after {took:?}, before {least:?}");
    value
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use super::*;

    fn draw(fresh: bool) -> Vec<u64> {
        let mut runner = TestRunner::new(settings(10, fresh));
        (0..10).map(|_| any::<u64>().new_tree(&mut runner).unwrap().current()).collect()
    }

    #[test]
    fn an_ordinary_run_draws_the_same_inputs_each_time_and_a_soak_run_others() {
        assert_eq!(draw(false), draw(false));
        assert_ne!(draw(true), draw(true));
    }

    #[test]
    fn an_ordinary_run_tries_at_most_256_cases_and_a_soak_run_all() {
        assert_eq!([40, 256, 10_000].map(|soak| settings(soak, false).cases), [40, 256, 256]);
        assert_eq!(settings(10_000, true).cases, 10_000);
    }
}
