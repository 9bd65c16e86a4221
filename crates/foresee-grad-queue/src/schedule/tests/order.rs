// SPDX-License-Identifier: Apache-2.0
//! The order of packets by offer, class, round and connection, and the packets that join one write.

use foresee_units::Bytes;

use super::super::{Connection, Grant, Order, PacketStream, Rules, Scope, Ticket};
use super::{OPEN, START, all, of_round, offer, rows, schedule, stream};

#[test]
fn streams_of_an_offer_take_turns_and_the_older_offer_goes_first() {
    let mut schedule = schedule(OPEN, 10, 3);
    schedule
        .handle_offer(&offer(1, 0, 5, &[stream(0, 2, 10), stream(1, 1, 10), stream(2, 3, 10)]), START)
        .unwrap();
    schedule.handle_offer(&offer(2, 0, 5, &[stream(0, 1, 10), stream(1, 1, 10)]), START).unwrap();
    let expected = [(1, 0, 0), (1, 1, 0), (1, 2, 0), (1, 0, 1), (1, 2, 1), (1, 2, 2), (2, 1, 0), (2, 0, 0)];
    assert_eq!(rows(&mut schedule), expected);
    assert!(schedule.is_idle());
}

#[test]
fn a_more_urgent_class_overtakes_between_packets_and_the_rest_continues() {
    let mut schedule = schedule(OPEN, 10, 1);
    schedule.handle_offer(&offer(1, 0, 200, &[stream(0, 3, 10)]), START).unwrap();
    assert_eq!(schedule.poll_send(START).unwrap().packet, 0);
    schedule
        .handle_offer(&offer(2, 0, 3, &[PacketStream::new(Connection::new(0), 2, 10, 4)]), START)
        .unwrap();
    let grants = all(&mut schedule);
    let row = |grant: &Grant| (grant.ticket.get(), grant.packet, grant.bytes, grant.last);
    let expected = [(2, 0, 10, false), (2, 1, 4, true), (1, 1, 10, false), (1, 2, 10, true)];
    assert_eq!(grants.iter().map(row).collect::<Vec<_>>(), expected);
}

#[test]
fn an_earlier_round_goes_before_more_urgent_classes_whenever_it_is_offered() {
    let mut schedule = schedule(OPEN, 10, 2);
    schedule.handle_offer(&of_round(7, 3, 0, 0, &[stream(0, 1, 10), stream(1, 1, 10)]), START).unwrap();
    schedule.handle_offer(&of_round(6, 1, 0, 200, &[stream(0, 1, 10), stream(1, 1, 10)]), START).unwrap();
    schedule.handle_offer(&of_round(6, 2, 0, 100, &[stream(1, 1, 10)]), START).unwrap();
    schedule.handle_offer(&of_round(5, 4, 0, 255, &[stream(0, 1, 10)]), START).unwrap();
    assert_eq!(rows(&mut schedule), [(4, 0, 0), (2, 1, 0), (1, 0, 0), (1, 1, 0), (3, 0, 0), (3, 1, 0)]);
}

#[test]
fn rounds_of_one_flow_do_not_order_another_flow() {
    let mut schedule = schedule(OPEN, 10, 1);
    schedule.handle_offer(&of_round(9, 1, 0, 3, &[stream(0, 2, 10)]), START).unwrap();
    schedule.handle_offer(&of_round(2, 2, 1, 3, &[stream(0, 2, 10)]), START).unwrap();
    let tickets: Vec<u64> = rows(&mut schedule).iter().map(|(ticket, ..)| *ticket).collect();
    assert_eq!(tickets, [1, 2, 1, 2], "they take turns");
}

#[test]
fn readiness_ignores_classes() {
    let mut schedule = schedule(Rules { order: Order::Readiness, ..OPEN }, 10, 1);
    schedule.handle_offer(&offer(1, 0, 200, &[stream(0, 2, 10)]), START).unwrap();
    schedule.handle_offer(&offer(2, 0, 0, &[stream(0, 1, 10)]), START).unwrap();
    assert_eq!(rows(&mut schedule), [(1, 0, 0), (1, 0, 1), (2, 0, 0)]);
}

#[test]
fn connections_take_turns_if_each_is_scheduled_separately() {
    let (bulk, urgent) = ([stream(0, 2, 10)], [stream(1, 2, 10)]);
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
fn a_blocked_connection_delays_only_its_own_packets() {
    let mut schedule = schedule(OPEN, 10, 2);
    schedule.handle_offer(&offer(1, 0, 0, &[stream(0, 2, 10), stream(1, 2, 10)]), START).unwrap();
    schedule.handle_offer(&offer(2, 0, 7, &[stream(1, 1, 10)]), START).unwrap();
    schedule.handle_blocked(Connection::new(0)).unwrap();
    assert_eq!(rows(&mut schedule), [(1, 1, 0), (1, 1, 1), (2, 1, 0)]);
    schedule.handle_writable(Connection::new(0)).unwrap();
    assert_eq!(rows(&mut schedule), [(1, 0, 0), (1, 0, 1)]);
}

#[test]
fn small_packets_of_a_class_and_connection_join_one_write_up_to_a_packet() {
    let rules = Rules { window_bytes: Some(Bytes::new(100)), ..Rules::new() };
    let mut schedule = schedule(rules, 100, 2);
    for (ticket, class, connection, bytes) in
        [(1, 0, 0, 40), (2, 0, 1, 40), (3, 0, 0, 50), (4, 0, 0, 20), (5, 0, 0, 5), (6, 1, 0, 1)]
    {
        schedule.handle_offer(&offer(ticket, 0, class, &[stream(connection, 1, bytes)]), START).unwrap();
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
    schedule.handle_offer(&offer(1, 0, 5, &[stream(0, 2, 10)]), START).unwrap();
    assert_eq!(schedule.poll_send(START).unwrap().packet, 0);
    schedule.handle_offer(&offer(2, 0, 0, &[stream(0, 1, 10)]), START).unwrap();
    assert!(schedule.poll_more(START).is_none());
    assert_eq!(rows(&mut schedule), [(2, 0, 0), (1, 0, 1)]);
}
