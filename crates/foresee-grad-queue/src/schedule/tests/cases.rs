// SPDX-License-Identifier: Apache-2.0
//! One behaviour, one case.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU32, NonZeroU64};

use foresee_testkit::property;
use foresee_units::{Bytes, BytesPerSecond, Nanos};
use proptest::prelude::*;

use super::super::{
    Class, Connection, Flow, Grant, Lane, Order, Rules, Schedule, ScheduleError, Scope, Ticket, Window,
    effort,
};
use super::{START, lane, of_round, offer, schedule};

/// No window: the order alone decides.
const OPEN: Rules = Rules { window: Window::None, ..Rules::new() };

fn all(schedule: &mut Schedule) -> Vec<Grant> {
    std::iter::from_fn(|| schedule.poll_send(START)).collect()
}

/// (ticket, connection, packet) of everything that can be granted.
fn rows(schedule: &mut Schedule) -> Vec<(u64, u32, u32)> {
    let row = |grant: Grant| (grant.ticket.get(), grant.connection.get(), grant.packet);
    all(schedule).into_iter().map(row).collect()
}

#[test]
fn lanes_of_an_offer_take_turns_and_the_older_offer_goes_first() {
    let mut schedule = schedule(OPEN, 10, 3);
    schedule.handle_offer(&offer(1, 0, 5, &[lane(0, 2, 10), lane(1, 1, 10), lane(2, 3, 10)]), START).unwrap();
    schedule.handle_offer(&offer(2, 0, 5, &[lane(0, 1, 10), lane(1, 1, 10)]), START).unwrap();
    let expected = [(1, 0, 0), (1, 1, 0), (1, 2, 0), (1, 0, 1), (1, 2, 1), (1, 2, 2), (2, 1, 0), (2, 0, 0)];
    assert_eq!(rows(&mut schedule), expected);
    assert!(schedule.is_idle());
}

#[test]
fn a_more_urgent_class_overtakes_between_packets_and_the_rest_goes_on_where_it_stopped() {
    let mut schedule = schedule(OPEN, 10, 1);
    schedule.handle_offer(&offer(1, 0, 200, &[lane(0, 3, 10)]), START).unwrap();
    assert_eq!(schedule.poll_send(START).unwrap().packet, 0);
    schedule.handle_offer(&offer(2, 0, 3, &[Lane::new(Connection::new(0), 2, 10, 4)]), START).unwrap();
    let grants = all(&mut schedule);
    let row = |grant: &Grant| (grant.ticket.get(), grant.packet, grant.bytes, grant.last);
    let expected = [(2, 0, 10, false), (2, 1, 4, true), (1, 1, 10, false), (1, 2, 10, true)];
    assert_eq!(grants.iter().map(row).collect::<Vec<_>>(), expected);
}

#[test]
fn an_earlier_round_goes_before_more_urgent_classes_whenever_it_is_offered() {
    let mut schedule = schedule(OPEN, 10, 2);
    schedule.handle_offer(&of_round(7, 3, 0, 0, &[lane(0, 1, 10), lane(1, 1, 10)]), START).unwrap();
    schedule.handle_offer(&of_round(6, 1, 0, 200, &[lane(0, 1, 10), lane(1, 1, 10)]), START).unwrap();
    schedule.handle_offer(&of_round(6, 2, 0, 100, &[lane(1, 1, 10)]), START).unwrap();
    schedule.handle_offer(&of_round(5, 4, 0, 255, &[lane(0, 1, 10)]), START).unwrap();
    assert_eq!(rows(&mut schedule), [(4, 0, 0), (2, 1, 0), (1, 0, 0), (1, 1, 0), (3, 0, 0), (3, 1, 0)]);
}

#[test]
fn rounds_of_one_flow_do_not_order_another_flow() {
    let mut schedule = schedule(OPEN, 10, 1);
    schedule.handle_offer(&of_round(9, 1, 0, 3, &[lane(0, 2, 10)]), START).unwrap();
    schedule.handle_offer(&of_round(2, 2, 1, 3, &[lane(0, 2, 10)]), START).unwrap();
    let tickets: Vec<u64> = rows(&mut schedule).iter().map(|(ticket, ..)| *ticket).collect();
    assert_eq!(tickets, [1, 2, 1, 2], "they take turns");
}

#[test]
fn readiness_ignores_classes() {
    let mut schedule = schedule(Rules { order: Order::Readiness, ..OPEN }, 10, 1);
    schedule.handle_offer(&offer(1, 0, 200, &[lane(0, 2, 10)]), START).unwrap();
    schedule.handle_offer(&offer(2, 0, 0, &[lane(0, 1, 10)]), START).unwrap();
    assert_eq!(schedule.backlog_of_class(Class::new(200)), Bytes::new(20));
    assert_eq!(rows(&mut schedule), [(1, 0, 0), (1, 0, 1), (2, 0, 0)]);
}

#[test]
fn schedulers_per_connection_serve_connections_in_turn_whatever_waits_there() {
    let (bulk, urgent) = ([lane(0, 2, 10)], [lane(1, 2, 10)]);
    let offers = [offer(1, 0, 9, &bulk), offer(2, 0, 1, &urgent)];
    for (scope, expected) in [
        (Scope::Connection, [(1, 0, 0), (2, 1, 0), (1, 0, 1), (2, 1, 1)]),
        (Scope::Interface, [(2, 1, 0), (2, 1, 1), (1, 0, 0), (1, 0, 1)]),
    ] {
        let mut schedule = schedule(Rules { scope, ..OPEN }, 10, 2);
        for offer in &offers {
            schedule.handle_offer(offer, START).unwrap();
        }
        assert_eq!(rows(&mut schedule), expected);
    }
}

#[test]
fn a_blocked_connection_holds_only_what_is_its_own() {
    let mut schedule = schedule(OPEN, 10, 2);
    schedule.handle_offer(&offer(1, 0, 0, &[lane(0, 2, 10), lane(1, 2, 10)]), START).unwrap();
    schedule.handle_offer(&offer(2, 0, 7, &[lane(1, 1, 10)]), START).unwrap();
    schedule.handle_blocked(Connection::new(0)).unwrap();
    assert_eq!(rows(&mut schedule), [(1, 1, 0), (1, 1, 1), (2, 1, 0)]);
    assert_eq!(
        schedule.connections().collect::<Vec<_>>(),
        [(Connection::new(0), true), (Connection::new(1), false)]
    );
    schedule.handle_writable(Connection::new(0)).unwrap();
    assert_eq!(rows(&mut schedule), [(1, 0, 0), (1, 0, 1)]);
}

#[test]
fn the_window_on_the_sum_counts_what_was_granted_since_the_last_report() {
    let mut schedule = schedule(Rules::new(), 100, 2);
    schedule.handle_offer(&offer(1, 0, 0, &[lane(0, 9, 100), lane(1, 9, 100)]), START).unwrap();
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
    // What was in flight on a connection that is gone keeps nobody waiting.
    let unsent = schedule.handle_closed(Connection::new(0)).unwrap();
    assert_eq!((unsent.len(), unsent[0].lane.first, unsent[0].lane.packets), (1, 5, 4));
    assert_eq!(schedule.in_flight(), Bytes::new(400));
    assert_eq!(rows(&mut schedule), [(1, 1, 8)]);
}

#[test]
fn lanes_that_share_a_window_come_on_alike_whatever_is_acknowledged_first() {
    let mut schedule = schedule(Rules { window_bytes: Some(Bytes::new(500)), ..Rules::new() }, 100, 3);
    // Twice as much for connection 1.
    schedule
        .handle_offer(&offer(1, 0, 0, &[lane(0, 4, 100), lane(1, 8, 100), lane(2, 4, 100)]), START)
        .unwrap();
    let mut sent = rows(&mut schedule);
    let mut late: u32 = 0;
    while schedule.backlog() > Bytes::ZERO {
        // Another connection has the most in flight each time.
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
fn a_connection_whose_far_end_is_slow_does_not_take_up_the_window() {
    let mut schedule = schedule(Rules { window_bytes: Some(Bytes::new(400)), ..Rules::new() }, 100, 2);
    schedule.handle_offer(&offer(1, 0, 0, &[lane(0, 99, 100), lane(1, 99, 100)]), START).unwrap();
    assert_eq!(rows(&mut schedule).len(), 5);
    for _ in 0..20 {
        // Connection 0 moves nothing: after its share of the window everything goes over connection 1.
        schedule.handle_in_flight(Connection::new(1), Bytes::ZERO).unwrap();
        assert!(rows(&mut schedule).iter().all(|(_, connection, _)| *connection == 1));
    }
    assert_eq!(schedule.in_flight_of(Connection::new(0)), Bytes::new(300));
    // Where each connection has a window of its own, or none, they take turns as before.
    let mut open = super::schedule(OPEN, 100, 2);
    open.handle_offer(&offer(1, 0, 0, &[lane(0, 2, 100), lane(1, 2, 100)]), START).unwrap();
    open.handle_in_flight(Connection::new(0), Bytes::new(5_000)).unwrap();
    assert_eq!(rows(&mut open), [(1, 0, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1)]);
}

#[test]
fn a_window_that_follows_the_link_is_as_many_times_larger_as_the_rules_say() {
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
fn a_window_on_the_sum_grows_with_what_it_is_the_sum_of() {
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
    // A window on each connection is on one, however many there are.
    assert_eq!(schedule(grows(Window::Connection), 100, 4).window(), Bytes::new(1_200));
}

#[test]
fn a_window_lasts_longer_for_who_wakes_late_unless_it_is_larger_anyway_or_fixed() {
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
fn a_window_on_each_connection_lets_every_one_of_them_fill_its_own() {
    let rules = Rules { window: Window::Connection, ..Rules::new() };
    let mut schedule = schedule(rules, 100, 3);
    let lanes = [lane(0, 19, 100), lane(1, 19, 100), lane(2, 19, 100)];
    schedule.handle_offer(&offer(1, 0, 0, &lanes), START).unwrap();
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
    schedule.handle_offer(&offer(1, 0, 0, &[lane(0, 3, 100)]), START).unwrap();
    assert_eq!(rows(&mut schedule), [(1, 0, 0)]); // one at a time
    schedule.handle_in_flight(Connection::new(0), Bytes::ZERO).unwrap();
    assert_eq!(rows(&mut schedule), [(1, 0, 1)]);
}

#[test]
fn credit_admits_one_packet_always_and_others_as_it_comes_back() {
    let credit = NonZeroU64::new(250);
    let mut schedule = schedule(Rules { credit, ..OPEN }, 100, 1);
    schedule.handle_offer(&offer(1, 0, 0, &[lane(0, 4, 100)]), START).unwrap();
    schedule.handle_offer(&offer(2, 0, 1, &[lane(0, 1, 900)]), START).unwrap();
    assert_eq!(rows(&mut schedule), [(1, 0, 0), (1, 0, 1)]);
    assert_eq!(schedule.unacked(), Bytes::new(200));
    let link = Connection::new(0);
    schedule.handle_acked(link, Bytes::new(100)).unwrap();
    assert_eq!(rows(&mut schedule), [(1, 0, 2)]);
    let refused = schedule.handle_acked(link, Bytes::new(201)).unwrap_err();
    assert_eq!(refused, ScheduleError::AckedTooMuch { connection: link, bytes: 201, unacked: 200 });
    schedule.handle_acked(link, Bytes::new(200)).unwrap();
    assert_eq!(rows(&mut schedule), [(1, 0, 3)]);
    assert!(all(&mut schedule).is_empty()); // 900 bytes are beyond the credit while anything is under way
    schedule.handle_acked(link, Bytes::new(100)).unwrap();
    assert_eq!(rows(&mut schedule), [(2, 0, 0)]);
}

#[test]
fn flows_share_by_bytes_and_keep_their_own_order() {
    let mut schedule = schedule(OPEN, 100, 2);
    // Small and urgent packets of one job, large ones of another: neither gets more than its half.
    schedule.handle_offer(&offer(1, 7, 0, &[lane(0, 400, 10)]), START).unwrap();
    schedule.handle_offer(&offer(2, 8, 9, &[lane(1, 40, 100)]), START).unwrap();
    let mut sent = [0_i64; 2];
    for grant in all(&mut schedule) {
        sent[usize::from(grant.flow == Flow::new(8))] += i64::from(grant.bytes);
        assert!((sent[0] - sent[1]).abs() <= 200, "{sent:?}");
    }
    assert_eq!(sent, [4_000, 4_000]);
}

#[test]
fn a_flow_whose_connections_are_blocked_costs_the_others_no_turn() {
    let mut schedule = schedule(OPEN, 100, 2);
    schedule.handle_offer(&offer(1, 7, 0, &[lane(0, 3, 100)]), START).unwrap();
    schedule.handle_offer(&offer(2, 8, 0, &[lane(1, 3, 100)]), START).unwrap();
    schedule.handle_blocked(Connection::new(0)).unwrap();
    assert_eq!(rows(&mut schedule), [(2, 1, 0), (2, 1, 1), (2, 1, 2)]);
    assert_eq!(schedule.backlog_of_flow(Flow::new(7)), Bytes::new(300));
    assert_eq!(schedule.backlog_of_connection(Connection::new(0)), Bytes::new(300));
}

#[test]
fn a_new_flow_does_not_pay_what_one_that_is_gone_has_overdrawn() {
    let mut schedule = schedule(OPEN, 100, 2);
    schedule.handle_offer(&offer(1, 7, 0, &[lane(0, 2, 99)]), START).unwrap();
    assert_eq!(rows(&mut schedule).len(), 2); // 198 bytes of a quantum of 100
    schedule.handle_closed(Connection::new(0)).unwrap();
    schedule.handle_open(Connection::new(0)).unwrap();
    schedule.handle_offer(&offer(2, 9, 0, &[lane(0, 4, 50)]), START).unwrap();
    schedule.handle_offer(&offer(3, 8, 0, &[lane(1, 4, 50)]), START).unwrap();
    let turns: Vec<u64> = rows(&mut schedule).into_iter().map(|(ticket, ..)| ticket).collect();
    assert_eq!(turns, [2, 2, 3, 3, 2, 2, 3, 3]);
}

proptest! {
    #![proptest_config(property(256))]

    #[test]
    fn flows_that_always_have_something_stay_within_a_quantum_and_a_packet(
        packet in 1_u32..300,
        offers in prop::collection::vec((0_u32..3, 0_u8..4, 0_u32..4, 1_u32..6, 1_u32..300), 3..60),
    ) {
        let mut schedule = schedule(OPEN, packet, 4);
        let mut largest = packet;
        for (ticket, &(flow, class, connection, packets, bytes)) in (0..).zip(&offers) {
            let lanes = [lane(connection, packets, bytes)];
            schedule.handle_offer(&offer(ticket, flow, class, &lanes), START).unwrap();
            largest = largest.max(bytes);
        }
        let flows: BTreeSet<u32> = offers.iter().map(|(flow, ..)| *flow).collect();
        let mut sent: BTreeMap<u32, u64> = flows.iter().map(|&flow| (flow, 0)).collect();
        while flows.iter().all(|&flow| !schedule.backlog_of_flow(Flow::new(flow)).is_zero()) {
            let mut next = schedule.poll_send(START);
            while let Some(grant) = next {
                *sent.get_mut(&grant.flow.get()).unwrap() += u64::from(grant.bytes);
                next = schedule.poll_more(START);
            }
            let (least, most) = (sent.values().min().unwrap(), sent.values().max().unwrap());
            prop_assert!(most - least <= 2 * u64::from(largest), "{sent:?}, quantum {largest}");
        }
    }
}

#[test]
fn small_packets_of_a_class_and_connection_join_one_write_up_to_a_packet() {
    let rules = Rules { window_bytes: Some(Bytes::new(100)), ..Rules::new() };
    let mut schedule = schedule(rules, 100, 2);
    for (ticket, class, connection, bytes) in
        [(1, 0, 0, 40), (2, 0, 1, 40), (3, 0, 0, 50), (4, 0, 0, 20), (5, 0, 0, 5), (6, 1, 0, 1)]
    {
        schedule.handle_offer(&offer(ticket, 0, class, &[lane(connection, 1, bytes)]), START).unwrap();
    }
    assert_eq!(schedule.poll_send(START).unwrap().ticket, Ticket::new(1));
    assert_eq!(schedule.poll_more(START).unwrap().ticket, Ticket::new(3)); // 90 bytes
    assert!(schedule.poll_more(START).is_none()); // 20 more are too many, and nothing overtakes them
    assert!(schedule.poll_more(START).is_none());
    assert_eq!(schedule.poll_send(START).unwrap().ticket, Ticket::new(2)); // 90 bytes are within the window
    assert!(schedule.poll_send(START).is_none());
    schedule.handle_in_flight(Connection::new(0), Bytes::ZERO).unwrap();
    assert_eq!(schedule.poll_send(START).unwrap().ticket, Ticket::new(4));
    assert_eq!(schedule.poll_more(START).unwrap().ticket, Ticket::new(5));
    assert!(schedule.poll_more(START).is_none()); // the next is of another class
}

#[test]
fn a_new_offer_ends_a_batch() {
    let mut schedule = schedule(OPEN, 100, 1);
    schedule.handle_offer(&offer(1, 0, 5, &[lane(0, 2, 10)]), START).unwrap();
    assert_eq!(schedule.poll_send(START).unwrap().packet, 0);
    schedule.handle_offer(&offer(2, 0, 0, &[lane(0, 1, 10)]), START).unwrap();
    assert!(schedule.poll_more(START).is_none());
    assert_eq!(rows(&mut schedule), [(2, 0, 0), (1, 0, 1)]);
}

#[test]
fn what_is_withdrawn_or_closed_comes_back_and_can_be_offered_as_it_is() {
    let mut schedule = schedule(OPEN, 10, 2);
    schedule.handle_offer(&offer(1, 0, 0, &[lane(0, 3, 10), lane(1, 3, 10)]), START).unwrap();
    schedule.handle_offer(&offer(2, 0, 4, &[Lane::new(Connection::new(0), 2, 10, 7)]), START).unwrap();
    for _ in 0..3 {
        schedule.poll_send(START).unwrap(); // packets 0 and 1 over connection 0, packet 0 over connection 1
    }
    let unsent = schedule.handle_closed(Connection::new(0)).unwrap();
    let row = |index: usize| (unsent[index].ticket.get(), unsent[index].lane.first, unsent[index].last);
    assert_eq!([row(0), row(1)], [(1, 2, false), (2, 0, true)]);
    assert_eq!(schedule.backlog(), Bytes::new(20));

    let moved = Lane { connection: Connection::new(1), ..unsent[0].lane };
    schedule.handle_offer(&offer(3, 0, 0, &[moved]), START).unwrap();
    let rest = schedule.handle_withdraw(Ticket::new(1)).unwrap();
    assert_eq!(rest, [Lane { first: 1, ..lane(1, 2, 10) }]);
    assert_eq!(rows(&mut schedule), [(3, 1, 2)]);
    let ended = schedule.handle_withdraw(Ticket::new(3)).unwrap_err();
    assert_eq!(ended, ScheduleError::UnknownTicket { ticket: Ticket::new(3) });

    schedule.handle_open(Connection::new(0)).unwrap();
    schedule.handle_offer(&offer(2, 0, 4, &[unsent[1].lane]), START).unwrap();
    let last = all(&mut schedule).pop().unwrap();
    assert_eq!((last.packet, last.bytes, last.last), (1, 7, true));
}

#[test]
fn what_waits_longest_in_the_first_class_is_told() {
    let mut schedule = schedule(OPEN, 10, 2);
    assert_eq!(schedule.head_wait(START), None);
    schedule.handle_offer(&offer(1, 0, 9, &[lane(0, 1, 10)]), Nanos::new(5)).unwrap();
    schedule.handle_offer(&offer(2, 1, 3, &[lane(1, 1, 10)]), Nanos::new(20)).unwrap();
    schedule.handle_blocked(Connection::new(1)).unwrap();
    assert_eq!(schedule.head_wait(Nanos::new(50)), Some((Class::new(3), Nanos::new(30))));
    assert_eq!(schedule.poll_send(Nanos::new(50)).unwrap().waited, Nanos::new(45));
}

#[test]
fn four_billion_packets_are_one_entry() {
    let mut schedule = schedule(OPEN, 1 << 16, 2);
    let whole = Lane::new(Connection::new(0), u32::MAX, u32::MAX, 1);
    schedule.handle_offer(&offer(1, 0, 0, &[whole]), START).unwrap();
    assert_eq!(schedule.backlog().get(), (u64::from(u32::MAX) - 1) * u64::from(u32::MAX) + 1);
    let beyond = schedule.handle_offer(&offer(2, 0, 0, &[lane(1, u32::MAX, u32::MAX)]), START).unwrap_err();
    assert!(matches!(beyond, ScheduleError::TooManyBytes { .. }));
    for packet in 0..1_000 {
        assert_eq!(schedule.poll_send(START).unwrap().packet, packet);
    }
    let last = Lane { first: u32::MAX, ..lane(1, 1, 8) };
    schedule.handle_offer(&offer(3, 1, 0, &[last]), START).unwrap();
    schedule.handle_blocked(Connection::new(0)).unwrap();
    assert_eq!(schedule.poll_send(START).unwrap().packet, u32::MAX);
    assert_eq!(schedule.handle_withdraw(Ticket::new(1)).unwrap()[0].packets, u32::MAX - 1_000);
    assert!(schedule.is_idle());
}

#[test]
fn misuse_is_named_and_changes_nothing() {
    let mut schedule = schedule(OPEN, 10, 2);
    schedule.handle_offer(&offer(1, 0, 0, &[lane(0, 1, 10)]), START).unwrap();
    let (here, away) = (Connection::new(1), Connection::new(9));
    let numbered = |first, packets| Lane { first, ..lane(1, packets, 10) };
    for (refused, message) in [
        (vec![], "ticket 2 has no lanes; offer only what has bytes to send"),
        (vec![lane(1, 0, 10)], "the lane of ticket 2 over connection 1 has no packets; leave it out"),
        (
            vec![lane(1, 4, 0)],
            "the lane of ticket 2 over connection 1 ends with a packet of 0 bytes after packets of 0; the \
             last one must have 1 to 0 bytes",
        ),
        (
            vec![Lane::new(here, 4, 10, 11)],
            "the lane of ticket 2 over connection 1 ends with a packet of 11 bytes after packets of 10; the \
             last one must have 1 to 10 bytes",
        ),
        (
            vec![numbered(2, u32::MAX)],
            "the lane of ticket 2 over connection 1 has 4294967295 packets from number 2 on, beyond number \
             4294967295; use larger packets",
        ),
        (
            vec![lane(1, 1, 10), lane(0, 1, 10), lane(1, 2, 10)],
            "ticket 2 has two lanes over connection 1; join them, or offer one under another number",
        ),
        (
            vec![lane(1, 1, 10), lane(9, 1, 10)],
            "connection 9 is not open; report its opening first, and nothing after its end",
        ),
    ] {
        let error = schedule.handle_offer(&offer(2, 0, 0, &refused), START).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    let error = schedule.handle_offer(&offer(1, 0, 0, &[lane(1, 1, 10)]), START).unwrap_err();
    assert_eq!(error, ScheduleError::TicketInUse { ticket: Ticket::new(1) });
    assert_eq!(schedule.handle_open(here).unwrap_err(), ScheduleError::AlreadyOpen { connection: here });
    let closed = ScheduleError::NotOpen { connection: away };
    assert_eq!(schedule.handle_closed(away).unwrap_err(), closed);
    assert_eq!(schedule.handle_blocked(away).unwrap_err(), closed);
    assert_eq!(schedule.handle_writable(away).unwrap_err(), closed);
    assert_eq!(schedule.handle_in_flight(away, Bytes::ZERO).unwrap_err(), closed);
    assert_eq!(schedule.handle_acked(away, Bytes::ZERO).unwrap_err(), closed);
    assert_eq!((schedule.offers(), schedule.backlog()), (1, Bytes::new(10)));
    assert_eq!(rows(&mut schedule), [(1, 0, 0)]);
}

/// The most places that one of `polls` choices looks at.
fn dearest(schedule: &mut Schedule, polls: usize) -> u64 {
    let mut dearest = 0;
    for _ in 0..polls {
        effort::take();
        assert!(schedule.poll_send(START).is_some());
        dearest = dearest.max(effort::take());
    }
    dearest
}

#[test]
fn the_choice_looks_at_no_more_places_where_more_offers_wait() {
    // 16 connections: a path of 4 nodes, replayed twice where a packet ends its lane; 2 flows.
    const PLACES: u64 = 12;
    for offers in [1, 100, 20_000] {
        let mut schedule = schedule(OPEN, 10, 16);
        for ticket in 0..offers {
            let (flow, class) = (u32::try_from(ticket % 2).unwrap(), u8::try_from(ticket % 256).unwrap());
            // Most lanes lead where nothing may be sent.
            let lanes = [lane(0, 5, 10), lane(1, 5, 10), lane(2 + u32::from(class % 14), 1, 10)];
            schedule.handle_offer(&offer(ticket, flow, class, &lanes), START).unwrap();
        }
        schedule.handle_blocked(Connection::new(0)).unwrap();
        schedule.handle_blocked(Connection::new(1)).unwrap();
        let polls = usize::try_from(offers).unwrap();
        assert!(dearest(&mut schedule, polls) <= PLACES, "{offers} offers");
        effort::take();
        assert!(schedule.poll_send(START).is_none()); // the rest is behind blocked connections
        assert!(effort::take() <= PLACES);
    }
}
