// SPDX-License-Identifier: Apache-2.0
//! Settings of property tests, and the only waits of tests that read a clock.
//!
//! A test never compares elapsed time with an upper bound: a loaded machine breaks it. It waits here until
//! something has happened, and fails only when the watchdog bound has passed. A house test keeps `sleep` and clocks
//! out of all other test files. This crate is a dev-dependency only.

use std::thread;
use std::time::{Duration, Instant};

use proptest::test_runner::{Config, RngSeed};

/// Bound of every wait. It only turns a hang into a failure with a name, so it is far above any expected delay.
pub const WATCHDOG: Duration = Duration::from_secs(60);

/// Cases of a property in an ordinary test run.
const CASES: u32 = 256;
/// Seed of an ordinary test run: a change is judged by its own faults, not by new random inputs.
const SEED: u64 = 0x464f_5245_5345_4531;
/// Interval between two looks at a condition.
const TICK: Duration = Duration::from_millis(1);

/// Return the settings of a property test.
///
/// An ordinary run tries `min(256, soak)` cases from a fixed seed. With `FORESEE_SOAK` in the environment, it tries
/// `soak` cases from a fresh seed; a failure prints its smallest input, which then becomes an example test.
pub fn property(soak: u32) -> Config {
    let fresh = std::env::var_os("FORESEE_SOAK").is_some();
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

/// Sleep for `duration`, in place of the work or of the silence of another party.
pub fn pause(duration: Duration) {
    thread::sleep(duration);
}

/// Run `action` and assert that it took at least `least`. A lower bound holds on a loaded machine too.
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
