// SPDX-License-Identifier: Apache-2.0
//! A meter in virtual time, over a link that delivers 1,000 bytes per millisecond.

use super::*;

const MIN_RTT: Nanos = Nanos::from_millis(1);
const RATE: BytesPerSecond = BytesPerSecond::new(1_000_000);

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// One turn at `now`, in which the thread writes `given` bytes.
fn turn(meter: &mut LinkMeter, now: u64, in_flight: u64, given: u64, waits: bool) -> LinkProgress {
    let progress = meter.handle_progress(ms(now), Bytes::new(in_flight), true, MIN_RTT);
    meter.handle_granted(Bytes::new(given));
    meter.handle_sent(ms(now), waits);
    progress
}

/// A meter that has measured the link's capacity by 100 ms: 1,000 bytes are acknowledged and written each
/// millisecond.
fn measured() -> LinkMeter {
    let mut meter = LinkMeter::default();
    turn(&mut meter, 0, 0, 1_000, false);
    for now in 1..=100 {
        turn(&mut meter, now, 0, 1_000, false);
    }
    meter
}

#[test]
fn bytes_that_left_flight_were_delivered() {
    let mut meter = LinkMeter::default();
    turn(&mut meter, 0, 0, 9_000, false);
    let progress = turn(&mut meter, 5, 4_000, 0, false);
    assert_eq!(progress, LinkProgress { rate: Some(RATE), late: Nanos::ZERO });
}

#[test]
fn bytes_in_flight_on_a_lost_connection_were_not_delivered() {
    let mut meter = LinkMeter::default();
    turn(&mut meter, 0, 0, 9_000, false);
    meter.handle_closed(Bytes::new(3_000));
    assert_eq!(turn(&mut meter, 5, 1_000, 0, false).rate, Some(RATE));
}

#[test]
fn idle_time_is_not_measured() {
    let mut meter = LinkMeter::default();
    turn(&mut meter, 0, 0, 5_000, false);
    assert_eq!(turn(&mut meter, 5, 0, 0, false).rate, Some(RATE));
    for now in 6..60 {
        assert_eq!(meter.handle_progress(ms(now), Bytes::ZERO, false, MIN_RTT).rate, None);
    }
}

#[test]
fn a_link_that_ran_empty_while_packets_wait_is_late() {
    let mut meter = measured();
    // The link delivers 2,000 bytes until 102 ms, and the thread returns at 105 ms.
    turn(&mut meter, 100, 0, 1_000, true);
    let progress = turn(&mut meter, 105, 0, 1_000, true);
    assert_eq!(
        progress.late,
        Nanos::new(2_900_000),
        "3 ms, less a 50th of the 5 ms in which something waited"
    );
}

#[test]
fn a_link_with_bytes_in_flight_is_not_late() {
    let mut meter = measured();
    turn(&mut meter, 100, 0, 9_000, true);
    assert_eq!(turn(&mut meter, 105, 5_000, 1_000, true).late, Nanos::ZERO);
}

#[test]
fn an_idle_link_without_waiting_packets_is_not_late() {
    let mut meter = measured();
    turn(&mut meter, 100, 0, 1_000, false);
    assert_eq!(turn(&mut meter, 150, 0, 1_000, false).late, Nanos::ZERO);
}

#[test]
fn nothing_is_late_before_the_capacity_is_known() {
    let mut meter = LinkMeter::default();
    turn(&mut meter, 0, 0, 1_000, true);
    assert_eq!(turn(&mut meter, 40, 0, 1_000, true).late, Nanos::ZERO);
}

#[test]
fn a_wait_counts_once_for_any_number_of_wake_ups() {
    let (mut seldom, mut often) = (measured(), measured());
    turn(&mut seldom, 100, 0, 1_000, true);
    turn(&mut often, 100, 0, 1_000, true);
    for now in 101..105 {
        turn(&mut often, now, 0, 0, true);
    }
    assert_eq!(turn(&mut seldom, 105, 0, 0, true).late, turn(&mut often, 105, 0, 0, true).late);
}
