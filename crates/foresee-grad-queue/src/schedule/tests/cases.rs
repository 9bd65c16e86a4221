// SPDX-License-Identifier: Apache-2.0
//! Returned packets, maximum sizes, misuse, and the cost of a choice.

use foresee_units::Bytes;

use super::super::{Connection, PacketStream, Schedule, ScheduleError, Ticket, effort};
use super::{OPEN, START, all, offer, rows, schedule, stream};

#[test]
fn streams_of_a_closed_connection_are_returned_and_can_be_offered_again() {
    let mut schedule = schedule(OPEN, 10, 2);
    schedule.handle_offer(&offer(1, 0, 0, &[stream(0, 3, 10), stream(1, 3, 10)]), START).unwrap();
    schedule
        .handle_offer(&offer(2, 0, 4, &[PacketStream::new(Connection::new(0), 2, 10, 7)]), START)
        .unwrap();
    for _ in 0..3 {
        schedule.poll_send(START).unwrap(); // packets 0 and 1 over connection 0, packet 0 over connection 1
    }
    let unsent = schedule.handle_closed(Connection::new(0)).unwrap();
    let row = |index: usize| (unsent[index].ticket.get(), unsent[index].stream.first, unsent[index].last);
    assert_eq!([row(0), row(1)], [(1, 2, false), (2, 0, true)]);
    assert_eq!(schedule.backlog, 20);

    let moved = PacketStream { connection: Connection::new(1), ..unsent[0].stream };
    schedule.handle_offer(&offer(3, 0, 0, &[moved]), START).unwrap();
    assert_eq!(rows(&mut schedule), [(1, 1, 1), (1, 1, 2), (3, 1, 2)]);

    schedule.handle_open(Connection::new(0)).unwrap();
    schedule.handle_offer(&offer(2, 0, 4, &[unsent[1].stream]), START).unwrap();
    let last = all(&mut schedule).pop().unwrap();
    assert_eq!((last.packet, last.bytes, last.last), (1, 7, true));
}

#[test]
fn four_billion_packets_are_one_entry() {
    let mut schedule = schedule(OPEN, 1 << 16, 2);
    let whole = PacketStream::new(Connection::new(0), u32::MAX, u32::MAX, 1);
    schedule.handle_offer(&offer(1, 0, 0, &[whole]), START).unwrap();
    assert_eq!(schedule.backlog, (u64::from(u32::MAX) - 1) * u64::from(u32::MAX) + 1);
    let beyond = schedule.handle_offer(&offer(2, 0, 0, &[stream(1, u32::MAX, u32::MAX)]), START).unwrap_err();
    assert!(matches!(beyond, ScheduleError::TooManyBytes { .. }));
    for packet in 0..1_000 {
        assert_eq!(schedule.poll_send(START).unwrap().packet, packet);
    }
    let last = PacketStream { first: u32::MAX, ..stream(1, 1, 8) };
    schedule.handle_offer(&offer(3, 1, 0, &[last]), START).unwrap();
    schedule.handle_blocked(Connection::new(0)).unwrap();
    assert_eq!(schedule.poll_send(START).unwrap().packet, u32::MAX);
    assert_eq!(schedule.handle_closed(Connection::new(0)).unwrap()[0].stream.packets, u32::MAX - 1_000);
    assert!(schedule.is_idle());
}

#[test]
fn misuse_is_an_error_and_changes_nothing() {
    let mut schedule = schedule(OPEN, 10, 2);
    schedule.handle_offer(&offer(1, 0, 0, &[stream(0, 1, 10)]), START).unwrap();
    let (here, away) = (Connection::new(1), Connection::new(9));
    let numbered = |first, packets| PacketStream { first, ..stream(1, packets, 10) };
    for (refused, message) in [
        (vec![], "ticket 2 has no streams; offer only what has bytes to send"),
        (vec![stream(1, 0, 10)], "the stream of ticket 2 over connection 1 has no packets; leave it out"),
        (
            vec![stream(1, 4, 0)],
            "the stream of ticket 2 over connection 1 ends with a packet of 0 bytes after packets of 0; the \
             last one must have 1 to 0 bytes",
        ),
        (
            vec![PacketStream::new(here, 4, 10, 11)],
            "the stream of ticket 2 over connection 1 ends with a packet of 11 bytes after packets of 10; the \
             last one must have 1 to 10 bytes",
        ),
        (
            vec![numbered(2, u32::MAX)],
            "the stream of ticket 2 over connection 1 has 4294967295 packets from number 2 on, beyond number \
             4294967295; use larger packets",
        ),
        (
            vec![stream(1, 1, 10), stream(0, 1, 10), stream(1, 2, 10)],
            "ticket 2 has two streams over connection 1; join them, or offer one under another number",
        ),
        (
            vec![stream(1, 1, 10), stream(9, 1, 10)],
            "connection 9 is not open; report its opening first, and nothing after its end",
        ),
    ] {
        let error = schedule.handle_offer(&offer(2, 0, 0, &refused), START).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    let error = schedule.handle_offer(&offer(1, 0, 0, &[stream(1, 1, 10)]), START).unwrap_err();
    assert_eq!(error, ScheduleError::TicketInUse { ticket: Ticket::new(1) });
    assert_eq!(schedule.handle_open(here).unwrap_err(), ScheduleError::AlreadyOpen { connection: here });
    let closed = ScheduleError::NotOpen { connection: away };
    assert_eq!(schedule.handle_closed(away).unwrap_err(), closed);
    assert_eq!(schedule.handle_blocked(away).unwrap_err(), closed);
    assert_eq!(schedule.handle_writable(away).unwrap_err(), closed);
    assert_eq!(schedule.handle_in_flight(away, Bytes::ZERO).unwrap_err(), closed);
    assert_eq!(schedule.handle_acked(away, Bytes::ZERO).unwrap_err(), closed);
    assert_eq!(schedule.backlog, 10);
    assert_eq!(rows(&mut schedule), [(1, 0, 0)]);
}

/// The maximum of places that one of `polls` choices visits.
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
fn the_cost_of_a_choice_does_not_depend_on_the_number_of_offers() {
    // 16 connections: a path of 4 nodes, replayed twice when a packet ends its stream; 2 flows.
    const PLACES: u64 = 12;
    for offers in [1, 100, 20_000] {
        let mut schedule = schedule(OPEN, 10, 16);
        for ticket in 0..offers {
            let (flow, class) = (u32::try_from(ticket % 2).unwrap(), u8::try_from(ticket % 256).unwrap());
            // Most streams lead to blocked connections.
            let streams = [stream(0, 5, 10), stream(1, 5, 10), stream(2 + u32::from(class % 14), 1, 10)];
            schedule.handle_offer(&offer(ticket, flow, class, &streams), START).unwrap();
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
