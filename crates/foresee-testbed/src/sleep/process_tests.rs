// SPDX-License-Identifier: Apache-2.0
//! Sleeps on the real clock.

use foresee_testkit::takes_at_least;

use super::*;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn no_sleep_ends_early() {
    let runtime = runtime();
    for micros in [0, 1, 300, 2_500] {
        let time = Duration::from_micros(micros);
        takes_at_least(time, || runtime.block_on(sleep(time)));
    }
}

#[test]
fn a_sleep_beyond_the_range_of_the_clock_can_be_cancelled() {
    let endless = async { tokio::time::timeout(Duration::from_millis(5), sleep(Duration::MAX)).await };
    assert!(runtime().block_on(endless).is_err());
}
