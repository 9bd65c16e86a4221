// SPDX-License-Identifier: Apache-2.0
//! A second, naive scheduler follows every call, and checks that each grant was due.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};

use foresee_testkit::property;
use foresee_units::{Bytes, BytesPerSecond, Nanos};
use proptest::prelude::*;

use super::super::{
    Class, Connection, Flow, Grant, Offer, Order, PacketStream, Rules, Schedule, ScheduleError, Scope,
    Ticket, Window, congestion_bytes,
};
use crate::name::Round;
use crate::sizing::window_bytes;

const PACKET: u32 = 100;

#[derive(Clone, Debug)]
enum Operation {
    Offer { ticket: u64, flow: u32, round: u64, class: u8, streams: Vec<(u32, u32, u32, u32)> },
    Open(u32),
    Close(u32),
    Block(u32),
    Write(u32),
    InFlight(u32, u64),
    Ack(u32, u64),
    Link(u64),
    Poll(usize),
}

#[derive(Clone, Debug, Default)]
struct NaiveSocket {
    blocked: bool,
    in_flight: u64,
    unacked: u64,
}

#[derive(Clone, Debug)]
struct NaiveOffer {
    ticket: u64,
    flow: u32,
    round: u64,
    class: u8,
    streams: Vec<PacketStream>,
}

/// Lists, searched linearly.
#[derive(Debug)]
struct NaiveSchedule {
    rules: Rules,
    window: u64,
    /// The window that the link alone requires.
    usual: u64,
    sockets: BTreeMap<u32, NaiveSocket>,
    /// In order of arrival.
    offers: Vec<NaiveOffer>,
}

/// A position in the order of a flow: round, class, arrival.
type Place = (u64, u8, usize);
/// A packet that could be granted: flow, position, connection, stream.
type Candidate = (u32, Place, u32, PacketStream);

impl NaiveSchedule {
    /// Update the window, if it follows the link, for the number of connections.
    fn update_window(&mut self) {
        let factor = u64::from(self.rules.window_factor.get());
        let beyond = self.sockets.len().saturating_sub(1) as u64;
        let more = u64::from(self.rules.window_factor_more) * beyond;
        let factor = factor + if self.rules.window == Window::Interface { more } else { 0 };
        self.window = self.rules.window_bytes.map_or(factor * self.usual, Bytes::get);
    }

    fn may_send(&self, connection: u32) -> bool {
        self.sockets.get(&connection).is_some_and(|socket| {
            let open = self.rules.window != Window::Connection || socket.in_flight <= self.window;
            open && !socket.blocked
        })
    }

    fn candidates(&self) -> Vec<Candidate> {
        let mut all = Vec::new();
        for (arrival, offer) in self.offers.iter().enumerate() {
            for &stream in &offer.streams {
                if self.may_send(stream.connection.get()) {
                    all.push((offer.flow, self.place(arrival, offer), stream.connection.get(), stream));
                }
            }
        }
        all
    }

    fn sum(&self, figure: impl Fn(&NaiveSocket) -> u64) -> u64 {
        self.sockets.values().map(figure).sum()
    }

    fn has_credit(&self, bytes: u32) -> bool {
        let unacked = self.sum(|socket| socket.unacked);
        self.rules.credit.is_none_or(|credit| unacked == 0 || unacked + u64::from(bytes) <= credit.get())
    }

    fn offered(&mut self, offer: &Offer<'_>) -> bool {
        let streams = offer.streams;
        let fine = |stream: &PacketStream| {
            let sizes =
                stream.packets > 0 && stream.last_bytes > 0 && stream.last_bytes <= stream.packet_bytes;
            let twice = streams.iter().filter(|other| other.connection == stream.connection).count() > 1;
            sizes && !twice && self.sockets.contains_key(&stream.connection.get())
        };
        let known = self.offers.iter().any(|other| other.ticket == offer.ticket.get());
        let taken = !known && !streams.is_empty() && streams.iter().all(fine);
        if taken {
            let (ticket, flow, class) = (offer.ticket.get(), offer.flow.get(), offer.class.get());
            let (round, streams) = (offer.round.0, streams.to_vec());
            self.offers.push(NaiveOffer { ticket, flow, round, class, streams });
        }
        taken
    }

    /// Check that `grant` is the next packet of an offer, and count it.
    fn granted(&mut self, grant: &Grant) {
        let at = self.offers.iter().position(|offer| offer.ticket == grant.ticket.get()).expect("offered");
        let offer = &mut self.offers[at];
        assert_eq!((offer.flow, offer.class), (grant.flow.get(), grant.class.get()));
        let stream = offer
            .streams
            .iter()
            .position(|stream| stream.connection == grant.connection)
            .expect("its stream");
        assert_eq!(
            (offer.streams[stream].first, offer.streams[stream].next_bytes()),
            (grant.packet, grant.bytes)
        );
        offer.streams[stream].take();
        if offer.streams[stream].packets == 0 {
            offer.streams.remove(stream);
        }
        let ended = offer.streams.is_empty();
        assert_eq!(ended, grant.last);
        if ended {
            self.offers.remove(at);
        }
        let socket = self.sockets.get_mut(&grant.connection.get()).expect("open");
        socket.in_flight += u64::from(grant.bytes);
        socket.unacked += u64::from(grant.bytes);
    }

    /// Check the result of a poll.
    fn polled(&mut self, grant: Option<&Grant>) {
        let candidates = self.candidates();
        let shut =
            self.rules.window == Window::Interface && self.sum(|socket| socket.in_flight) > self.window;
        let Some(grant) = grant else {
            let poor = candidates.iter().any(|(.., stream)| !self.has_credit(stream.next_bytes()));
            assert!(shut || candidates.is_empty() || poor, "held back without a reason: {candidates:?}");
            return;
        };
        assert!(!shut, "beyond the window");
        assert!(self.has_credit(grant.bytes), "beyond the credit");
        let (flow, connection) = (grant.flow.get(), grant.connection.get());
        let rivals = candidates.iter().filter(|rival| rival.0 == flow);
        let first = match self.rules.scope {
            Scope::Interface => rivals.map(|rival| rival.1).min(),
            Scope::Connection => rivals.filter(|rival| rival.2 == connection).map(|rival| rival.1).min(),
        };
        assert_eq!(self.place_of(grant), first, "overtaken, or over a connection that may not send");
        if (self.rules.scope, self.rules.window) == (Scope::Interface, Window::Interface) {
            let congestion = congestion_bytes(Bytes::new(self.window), Bytes::new(u64::from(PACKET)));
            let order = |&(_, _, connection, stream): &Candidate| {
                let in_flight = self.sockets[&connection].in_flight;
                (in_flight.saturating_sub(1) / congestion, stream.progress(), in_flight)
            };
            let streams = candidates.iter().filter(|rival| rival.0 == flow && Some(rival.1) == first);
            let granted = candidates
                .iter()
                .find(|rival| (rival.0, Some(rival.1), rival.2) == (flow, first, connection));
            assert_eq!(streams.map(order).min(), granted.map(order));
        }
        self.granted(grant);
    }

    /// Check the packets that joined `batch`.
    fn joined(&mut self, grant: &Grant, batch: &[Grant]) {
        let same = |other: &Grant| (other.flow, other.connection) == (grant.flow, grant.connection);
        assert!(batch.iter().all(same));
        assert!(self.rules.order == Order::Readiness || batch.iter().all(|other| other.class == grant.class));
        assert!(batch.iter().chain([grant]).map(|packet| packet.bytes).sum::<u32>() <= PACKET);
        assert!(self.has_credit(grant.bytes), "beyond the credit");
        let queued = self.offers.iter().enumerate().filter(|(_, offer)| {
            let there = offer.streams.iter().any(|stream| stream.connection == grant.connection);
            offer.flow == grant.flow.get() && there
        });
        let first = queued.map(|(arrival, offer)| self.place(arrival, offer)).min();
        assert_eq!(self.place_of(grant), first, "overtaken on its connection");
        self.granted(grant);
    }

    fn place_of(&self, grant: &Grant) -> Option<Place> {
        let arrival = self.offers.iter().position(|offer| offer.ticket == grant.ticket.get())?;
        Some(self.place(arrival, &self.offers[arrival]))
    }

    fn place(&self, arrival: usize, offer: &NaiveOffer) -> Place {
        match self.rules.order {
            Order::Class => (offer.round, offer.class, arrival),
            Order::Readiness => (0, 0, arrival),
        }
    }

    fn compare(&self, schedule: &Schedule) {
        let backlog = |there: &dyn Fn(&PacketStream) -> bool| -> u64 {
            let streams = self.offers.iter().flat_map(|offer| &offer.streams);
            streams.filter(|stream| there(stream)).map(PacketStream::bytes).sum()
        };
        assert_eq!(schedule.backlog, backlog(&|_| true));
        assert_eq!(schedule.is_idle(), self.offers.is_empty());
        for number in 0..5 {
            let connection = Connection::new(number);
            let own = schedule.places.get(&connection).map_or(0, |place| schedule.sockets[*place].backlog);
            assert_eq!(own, backlog(&|stream| stream.connection == connection));
            let in_flight = self.sockets.get(&number).map_or(0, |socket| socket.in_flight);
            assert_eq!(schedule.in_flight_of(connection).get(), in_flight);
        }
        assert_eq!(schedule.in_flight().get(), self.sum(|socket| socket.in_flight));
        assert_eq!(schedule.unacked, self.sum(|socket| socket.unacked));
        assert_eq!(schedule.window().get(), self.window);
    }
}

/// Apply the operations to a scheduler and to the naive one.
fn run(rules: Rules, operations: &[Operation]) {
    let mut schedule = Schedule::new(rules, NonZeroU32::new(PACKET).unwrap());
    let usual = crate::WINDOW_PACKETS * u64::from(PACKET);
    let mut naive = NaiveSchedule { rules, window: 0, usual, sockets: BTreeMap::new(), offers: Vec::new() };
    let now = Nanos::ZERO;
    for connection in 0..3 {
        schedule.handle_open(Connection::new(connection)).unwrap();
        naive.sockets.insert(connection, NaiveSocket::default());
    }
    naive.update_window();
    for operation in operations {
        match operation {
            Operation::Poll(count) => poll(&mut schedule, &mut naive, *count),
            Operation::Offer { ticket, flow, round, class, streams } => {
                let stream = |&(connection, packets, packet_bytes, last_bytes): &(u32, u32, u32, u32)| {
                    PacketStream::new(Connection::new(connection), packets, packet_bytes, last_bytes)
                };
                let streams: Vec<PacketStream> = streams.iter().map(stream).collect();
                let (ticket, flow, class) = (Ticket::new(*ticket), Flow::new(*flow), Class::new(*class));
                let offer = Offer { ticket, flow, round: Round(*round), class, streams: &streams };
                assert_eq!(schedule.handle_offer(&offer, now).is_ok(), naive.offered(&offer));
            }
            Operation::Open(connection) => {
                let opened = schedule.handle_open(Connection::new(*connection)).is_ok();
                assert_eq!(opened, !naive.sockets.contains_key(connection));
                naive.sockets.entry(*connection).or_default();
            }
            Operation::Close(connection) => close(&mut schedule, &mut naive, *connection),
            Operation::Block(connection) => {
                let done = schedule.handle_blocked(Connection::new(*connection));
                apply(&mut naive, *connection, &done, |socket| socket.blocked = true);
            }
            Operation::Write(connection) => {
                let done = schedule.handle_writable(Connection::new(*connection));
                apply(&mut naive, *connection, &done, |socket| socket.blocked = false);
            }
            Operation::InFlight(connection, bytes) => {
                let done = schedule.handle_in_flight(Connection::new(*connection), Bytes::new(*bytes));
                apply(&mut naive, *connection, &done, |socket| socket.in_flight = *bytes);
            }
            Operation::Ack(connection, bytes) => {
                let unacked = naive.sockets.get(connection).map(|socket| socket.unacked);
                let done = schedule.handle_acked(Connection::new(*connection), Bytes::new(*bytes));
                assert_eq!(done.is_ok(), unacked.is_some_and(|unacked| *bytes <= unacked));
                if done.is_ok() {
                    apply(&mut naive, *connection, &done, |socket| socket.unacked -= bytes);
                }
            }
            Operation::Link(rate) => {
                let (rate, rtt) = (BytesPerSecond::new(*rate), Nanos::from_millis(1));
                schedule.handle_link(rate, rtt);
                let packet = Bytes::new(u64::from(PACKET));
                naive.usual = window_bytes(packet, rate, rtt, Nanos::ZERO).get();
            }
        }
        naive.update_window();
        naive.compare(&schedule);
    }
    drain(schedule, naive);
}

fn apply(
    naive: &mut NaiveSchedule,
    connection: u32,
    done: &Result<(), ScheduleError>,
    change: impl FnOnce(&mut NaiveSocket),
) {
    assert_eq!(done.is_ok(), naive.sockets.contains_key(&connection));
    naive.sockets.get_mut(&connection).map(change);
}

fn poll(schedule: &mut Schedule, naive: &mut NaiveSchedule, count: usize) {
    for turn in 0..count {
        let grant = schedule.poll_send(Nanos::ZERO);
        naive.polled(grant.as_ref());
        let Some(grant) = grant else { return };
        let mut batch = vec![grant];
        if turn % 2 == 0 {
            while let Some(more) = schedule.poll_more(Nanos::ZERO) {
                naive.joined(&more, &batch);
                batch.push(more);
            }
        }
    }
}

fn close(schedule: &mut Schedule, naive: &mut NaiveSchedule, connection: u32) {
    let unsent = schedule.handle_closed(Connection::new(connection));
    assert_eq!(unsent.is_ok(), naive.sockets.remove(&connection).is_some());
    let mut back: Vec<_> = unsent
        .into_iter()
        .flatten()
        .map(|unsent| (unsent.ticket.get(), unsent.stream, unsent.last))
        .collect();
    let mut expected = Vec::new();
    for offer in &mut naive.offers {
        let gone = offer.streams.iter().position(|stream| stream.connection.get() == connection);
        if let Some(stream) = gone.map(|at| offer.streams.remove(at)) {
            expected.push((offer.ticket, stream, offer.streams.is_empty()));
        }
    }
    naive.offers.retain(|offer| !offer.streams.is_empty());
    back.sort_by_key(|(ticket, ..)| *ticket);
    expected.sort_by_key(|(ticket, ..)| *ticket);
    assert_eq!(back, expected);
}

/// Free every connection and grant all remaining packets.
fn drain(mut schedule: Schedule, mut naive: NaiveSchedule) {
    while !naive.offers.is_empty() {
        for (connection, socket) in &mut naive.sockets {
            let id = Connection::new(*connection);
            schedule.handle_writable(id).unwrap();
            schedule.handle_in_flight(id, Bytes::ZERO).unwrap();
            schedule.handle_acked(id, Bytes::new(socket.unacked)).unwrap();
            *socket = NaiveSocket::default();
        }
        let before = schedule.backlog;
        poll(&mut schedule, &mut naive, 1_000);
        assert!(schedule.backlog < before);
    }
    naive.compare(&schedule);
}

fn rules() -> impl Strategy<Value = Rules> {
    let window = prop_oneof![Just(Window::None), Just(Window::Connection), Just(Window::Interface)];
    let order = prop_oneof![1 => Just(Order::Readiness), 3 => Just(Order::Class)];
    let scope = prop_oneof![1 => Just(Scope::Connection), 3 => Just(Scope::Interface)];
    let credit = prop_oneof![3 => Just(None), 1 => (1_u64..400).prop_map(NonZeroU64::new)];
    let factor = (1_u32..5).prop_map(|factor| NonZeroU32::new(factor).expect("not 0"));
    (order, scope, window, prop::option::of(0_u64..400), factor, 0_u32..3, credit).prop_map(
        |(order, scope, window, bytes, window_factor, window_factor_more, credit)| Rules {
            order,
            scope,
            window,
            window_bytes: bytes.map(Bytes::new),
            window_factor,
            window_factor_more,
            credit,
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    let connection = || 0_u32..5;
    let sizes = prop_oneof![
        8 => (1_u32..150).prop_flat_map(|bytes| (Just(bytes), 1..=bytes)),
        1 => (0_u32..5, 0_u32..5),
    ];
    let stream =
        (connection(), 0_u32..6, sizes).prop_map(|(to, count, (size, last))| (to, count, size, last));
    let streams = prop::collection::vec(stream, 0..4);
    prop_oneof![
        8 => (0_u64..30, 0_u32..3, 0_u64..4, 0_u8..4, streams)
            .prop_map(|(ticket, flow, round, class, streams)| Operation::Offer { ticket, flow, round, class, streams }),
        6 => (1_usize..6).prop_map(Operation::Poll),
        2 => connection().prop_map(Operation::Open),
        1 => connection().prop_map(Operation::Close),
        2 => connection().prop_map(Operation::Block),
        3 => connection().prop_map(Operation::Write),
        3 => (connection(), 0_u64..400).prop_map(|(connection, bytes)| Operation::InFlight(connection, bytes)),
        2 => (connection(), 0_u64..200).prop_map(|(connection, bytes)| Operation::Ack(connection, bytes)),
        1 => (0_u64..1_000_000).prop_map(Operation::Link),
    ]
}

proptest! {
    #![proptest_config(property(1_000))]

    #[test]
    fn every_grant_is_due_and_none_is_withheld_in_any_sequence_of_calls(
        rules in rules(), operations in prop::collection::vec(operation(), 1..80),
    ) {
        run(rules, &operations);
    }
}
