// SPDX-License-Identifier: Apache-2.0
//! Sleeps on the real clock.

use foresee_testkit::takes_at_least;

use super::*;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn none_ends_early() {
    let runtime = runtime();
    for micros in [0, 1, 300, 2_500] {
        let time = Duration::from_micros(micros);
        takes_at_least(time, || runtime.block_on(sleep(time)));
    }
}

#[test]
fn a_time_beyond_the_clock_is_slept_and_can_be_given_up() {
    let endless = async { tokio::time::timeout(Duration::from_millis(5), sleep(Duration::MAX)).await };
    assert!(runtime().block_on(endless).is_err());
}
