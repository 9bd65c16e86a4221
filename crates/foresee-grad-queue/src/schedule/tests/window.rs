// SPDX-License-Identifier: Apache-2.0
//! Windows and credit: the bound on bytes in flight, and how a window follows the link.

use std::num::{NonZeroU32, NonZeroU64};

use foresee_units::{Bytes, BytesPerSecond, Nanos};

use super::super::{Connection, Rules, ScheduleError, Window};
use super::{OPEN, START, all, offer, rows, schedule, stream};

#[test]
fn the_window_on_the_sum_counts_grants_since_the_last_report() {
    let mut schedule = schedule(Rules::new(), 100, 2);
    schedule.handle_offer(&offer(1, 0, 0, &[stream(0, 9, 100), stream(1, 9, 100)]), START).unwrap();
    assert_eq!((schedule.window(), schedule.in_flight()), (Bytes::new(400), Bytes::ZERO));
    // 0 to 400 are within the window of four packets, 500 is not.
    assert_eq!(rows(&mut schedule), [(1, 0, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1), (1, 0, 2)]);
    assert_eq!(schedule.drain_time(), None); // the rate is unknown
    schedule.handle_link(BytesPerSecond::new(4_000_000), Nanos::ZERO); // 800 bytes in 0.2 ms
    assert_eq!(schedule.window(), Bytes::new(800));
    assert_eq!(rows(&mut schedule), [(1, 1, 2), (1, 0, 3), (1, 1, 3), (1, 0, 4)]);
    assert_eq!(schedule.drain_time(), Some(Nanos::new(25_000)));
    schedule.handle_in_flight(Connection::new(1), Bytes::ZERO).unwrap();
    assert_eq!(schedule.in_flight_of(Connection::new(0)), Bytes::new(500));
    assert_eq!(schedule.drain_time(), None);
    assert_eq!(rows(&mut schedule), [(1, 1, 4), (1, 1, 5), (1, 1, 6), (1, 1, 7)]);
    // Bytes in flight on a closed connection no longer count.
    let unsent = schedule.handle_closed(Connection::new(0)).unwrap();
    assert_eq!((unsent.len(), unsent[0].stream.first, unsent[0].stream.packets), (1, 5, 4));
    assert_eq!(schedule.in_flight(), Bytes::new(400));
    assert_eq!(rows(&mut schedule), [(1, 1, 8)]);
}

#[test]
fn streams_that_share_a_window_advance_together_for_any_order_of_acknowledgments() {
    let mut schedule = schedule(Rules { window_bytes: Some(Bytes::new(500)), ..Rules::new() }, 100, 3);
    // Twice as many packets for connection 1.
    schedule
        .handle_offer(&offer(1, 0, 0, &[stream(0, 4, 100), stream(1, 8, 100), stream(2, 4, 100)]), START)
        .unwrap();
    let mut sent = rows(&mut schedule);
    let mut late: u32 = 0;
    while !schedule.is_idle() {
        // Each time another connection has the most in flight.
        late = (late + 1) % 3;
        for connection in 0..3 {
            let bytes = Bytes::new(if connection == late { 200 } else { 0 });
            schedule.handle_in_flight(Connection::new(connection), bytes).unwrap();
        }
        sent.extend(rows(&mut schedule));
    }
    for (at, _) in sent.iter().enumerate() {
        let count = |wanted| sent[..at].iter().filter(|(_, connection, _)| *connection == wanted).count();
        assert!(count(0).abs_diff(count(2)) <= 2 && count(1).abs_diff(count(0) + count(2)) <= 3, "{sent:?}");
    }
}

#[test]
fn a_connection_with_a_slow_far_end_does_not_fill_the_window() {
    let mut schedule = schedule(Rules { window_bytes: Some(Bytes::new(400)), ..Rules::new() }, 100, 2);
    schedule.handle_offer(&offer(1, 0, 0, &[stream(0, 99, 100), stream(1, 99, 100)]), START).unwrap();
    assert_eq!(rows(&mut schedule).len(), 5);
    for _ in 0..20 {
        // Connection 0 delivers nothing: beyond its share of the window everything goes over connection 1.
        schedule.handle_in_flight(Connection::new(1), Bytes::ZERO).unwrap();
        assert!(rows(&mut schedule).iter().all(|(_, connection, _)| *connection == 1));
    }
    assert_eq!(schedule.in_flight_of(Connection::new(0)), Bytes::new(300));
    // If each connection has a window of its own, or none, they take turns as before.
    let mut open = super::schedule(OPEN, 100, 2);
    open.handle_offer(&offer(1, 0, 0, &[stream(0, 2, 100), stream(1, 2, 100)]), START).unwrap();
    open.handle_in_flight(Connection::new(0), Bytes::new(5_000)).unwrap();
    assert_eq!(rows(&mut open), [(1, 0, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1)]);
}

#[test]
fn a_window_that_follows_the_link_is_multiplied_by_the_factor_of_the_rules() {
    let rules = Rules { window_factor: NonZeroU32::new(4).unwrap(), ..Rules::new() };
    let mut schedule = schedule(rules, 100, 1);
    schedule.handle_link(BytesPerSecond::new(4_000_000), Nanos::ZERO);
    assert_eq!(schedule.window(), Bytes::new(3_200));
    schedule.handle_packet(NonZeroU32::new(300).unwrap());
    assert_eq!(schedule.window(), Bytes::new(4_800)); // four times four packets
    schedule.handle_link(BytesPerSecond::new(u64::MAX), Nanos::MAX);
    assert_eq!(schedule.window(), Bytes::MAX);
}

#[test]
fn a_window_on_the_sum_grows_with_the_number_of_connections() {
    let grows = |window| Rules {
        window,
        window_factor: NonZeroU32::new(3).unwrap(),
        window_factor_more: 2,
        ..Rules::new()
    };
    let mut sum = schedule(grows(Window::Interface), 100, 1);
    assert_eq!(sum.window(), Bytes::new(1_200));
    for (connection, factor) in [(1, 5), (2, 7), (3, 9)] {
        sum.handle_open(Connection::new(connection)).unwrap();
        assert_eq!(sum.window(), Bytes::new(400 * factor));
    }
    sum.handle_closed(Connection::new(0)).unwrap();
    assert_eq!(sum.window(), Bytes::new(2_800));
    // A window on each connection does not depend on their number.
    assert_eq!(schedule(grows(Window::Connection), 100, 4).window(), Bytes::new(1_200));
}

#[test]
fn lateness_extends_a_window_unless_it_is_larger_already_or_fixed() {
    let thrice = Rules { window_factor: NonZeroU32::new(3).unwrap(), ..Rules::new() };
    let fixed = Rules { window_bytes: Some(Bytes::new(900)), ..Rules::new() };
    for (rules, usual, late, later) in
        [(Rules::new(), 800, 1_200, 2_800), (thrice, 2_400, 2_400, 2_800), (fixed, 900, 900, 900)]
    {
        let mut schedule = schedule(rules, 100, 1);
        schedule.handle_link(BytesPerSecond::new(4_000_000), Nanos::ZERO); // 800 bytes in 0.2 ms
        assert_eq!(schedule.window(), Bytes::new(usual));
        schedule.handle_late(Nanos::new(100_000));
        assert_eq!(schedule.window(), Bytes::new(late));
        schedule.handle_late(Nanos::new(500_000));
        assert_eq!(schedule.window(), Bytes::new(later));
        schedule.handle_late(Nanos::ZERO);
        assert_eq!(schedule.window(), Bytes::new(usual));
    }
}

#[test]
fn a_window_on_each_connection_lets_each_fill_its_own() {
    let rules = Rules { window: Window::Connection, ..Rules::new() };
    let mut schedule = schedule(rules, 100, 3);
    let streams = [stream(0, 19, 100), stream(1, 19, 100), stream(2, 19, 100)];
    schedule.handle_offer(&offer(1, 0, 0, &streams), START).unwrap();
    assert_eq!(rows(&mut schedule).len(), 15);
    schedule.handle_link(BytesPerSecond::new(4_000_000), Nanos::ZERO); // a window of 800 bytes
    assert_eq!(rows(&mut schedule).len(), 12);
    assert_eq!(schedule.drain_time(), Some(Nanos::new(25_000)));
    schedule.handle_in_flight(Connection::new(1), Bytes::new(800)).unwrap();
    assert_eq!(rows(&mut schedule), [(1, 1, 9)]);
}

#[test]
fn a_fixed_window_stays_as_it_is() {
    let rules = Rules { window_bytes: Some(Bytes::ZERO), ..Rules::new() };
    let mut schedule = schedule(rules, 100, 1);
    schedule.handle_link(BytesPerSecond::new(u64::MAX), Nanos::from_secs(1));
    schedule.handle_packet(NonZeroU32::new(200).unwrap());
    assert_eq!(schedule.window(), Bytes::ZERO);
    schedule.handle_offer(&offer(1, 0, 0, &[stream(0, 3, 100)]), START).unwrap();
    assert_eq!(rows(&mut schedule), [(1, 0, 0)]); // one at a time
    schedule.handle_in_flight(Connection::new(0), Bytes::ZERO).unwrap();
    assert_eq!(rows(&mut schedule), [(1, 0, 1)]);
}

#[test]
fn credit_always_admits_one_packet_and_others_as_it_returns() {
    let credit = NonZeroU64::new(250);
    let mut schedule = schedule(Rules { credit, ..OPEN }, 100, 1);
    schedule.handle_offer(&offer(1, 0, 0, &[stream(0, 4, 100)]), START).unwrap();
    schedule.handle_offer(&offer(2, 0, 1, &[stream(0, 1, 900)]), START).unwrap();
    assert_eq!(rows(&mut schedule), [(1, 0, 0), (1, 0, 1)]);
    assert_eq!(schedule.unacked, 200);
    let link = Connection::new(0);
    schedule.handle_acked(link, Bytes::new(100)).unwrap();
    assert_eq!(rows(&mut schedule), [(1, 0, 2)]);
    let refused = schedule.handle_acked(link, Bytes::new(201)).unwrap_err();
    assert_eq!(refused, ScheduleError::AckedTooMuch { connection: link, bytes: 201, unacked: 200 });
    schedule.handle_acked(link, Bytes::new(200)).unwrap();
    assert_eq!(rows(&mut schedule), [(1, 0, 3)]);
    assert!(all(&mut schedule).is_empty()); // 900 bytes are beyond the credit while anything is in flight
    schedule.handle_acked(link, Bytes::new(100)).unwrap();
    assert_eq!(rows(&mut schedule), [(2, 0, 0)]);
}
