// SPDX-License-Identifier: Apache-2.0
//! Registry of offers, packet streams, connections and flows, with all totals.
//!
//! It is separate from the choice, which changes one stream at a time and looks nothing up by number.

use foresee_units::Nanos;

use super::pending::{PendingQueue, Priority};
use super::rules::{Order, Window};
use super::tournament::Tournament;
use super::{Class, Connection, Flow, Offer, PacketStream, Schedule, ScheduleError, Ticket, Unsent};

#[derive(Clone, Debug)]
pub(super) struct Socket {
    pub id: Connection,
    /// A half-written packet occupies it.
    pub blocked: bool,
    pub in_flight: u64,
    pub unacked: u64,
    pub backlog: u64,
    /// The flows with a queue for this connection.
    flows: Vec<u32>,
}

impl Socket {
    pub(super) const fn new(id: Connection) -> Self {
        Self { id, blocked: false, in_flight: 0, unacked: 0, backlog: 0, flows: Vec::new() }
    }
}

#[derive(Clone, Debug)]
pub(super) struct FlowState {
    pub id: Flow,
    pub tree: Tournament,
    /// Indexed by connection.
    queues: Vec<Option<PendingQueue>>,
}

impl FlowState {
    /// The queue for the connection at `place`, which must exist.
    pub(super) fn queue(&mut self, place: u32) -> &mut PendingQueue {
        self.queues[place as usize].as_mut().expect("a queue where a stream is")
    }
}

#[derive(Clone, Debug)]
pub(super) struct OfferState {
    pub ticket: Ticket,
    pub flow: u32,
    pub class: Class,
    pub priority: Priority,
    pub arrival: u64,
    pub since: Nanos,
    /// Streams that have packets left.
    pub streams: usize,
}

#[derive(Clone, Debug)]
pub(super) struct StreamState {
    pub offer: u32,
    pub place: u32,
    pub stream: PacketStream,
}

impl Schedule {
    pub(super) fn check_offer(&self, offer: &Offer<'_>) -> Result<(), ScheduleError> {
        let ticket = offer.ticket;
        if self.tickets.contains(&ticket) {
            return Err(ScheduleError::TicketInUse { ticket });
        }
        if offer.streams.is_empty() {
            return Err(ScheduleError::NoStreams { ticket });
        }
        let mut bytes = 0_u128;
        for stream in offer.streams {
            stream.check(ticket)?;
            self.place(stream.connection)?;
            bytes += u128::from(stream.bytes());
        }
        if let Some(connection) = repeated(offer.streams) {
            return Err(ScheduleError::RepeatedStream { ticket, connection });
        }
        if bytes + u128::from(self.backlog) > u128::from(u64::MAX) {
            return Err(ScheduleError::TooManyBytes { ticket, bytes, backlog: self.backlog });
        }
        Ok(())
    }

    /// Add a validated offer.
    pub(super) fn insert_offer(&mut self, offer: &Offer<'_>, now: Nanos) {
        let flow = self.flow_place(offer.flow);
        let priority = match self.rules.order {
            Order::Readiness => Priority::ONLY,
            Order::Class => Priority::new(offer.round, offer.class.get()),
        };
        self.arrivals += 1;
        let entry = self.offers.insert(OfferState {
            ticket: offer.ticket,
            flow,
            class: offer.class,
            priority,
            arrival: self.arrivals,
            since: now,
            streams: offer.streams.len(),
        });
        self.tickets.insert(offer.ticket);
        for &stream in offer.streams {
            let place = self.places[&stream.connection];
            self.rotation.admit(stream.next_bytes());
            self.add_queue(flow, place);
            let node = self.streams.insert(StreamState { offer: entry, place, stream });
            let queue = self.flows[flow].queue(place);
            self.links.push_back(queue.ring(priority), node);
            self.backlog += stream.bytes();
            self.sockets[place].backlog += stream.bytes();
            self.refresh(flow, place);
        }
    }

    /// Remove a stream with its remaining packets, and its offer if this was the last stream.
    pub(super) fn remove_stream(&mut self, node: u32) -> Unsent {
        let StreamState { offer, place, stream } = self.streams.remove(node);
        let entry = &mut self.offers[offer];
        let (ticket, flow, priority) = (entry.ticket, entry.flow, entry.priority);
        entry.streams -= 1;
        let last = entry.streams == 0;
        if last {
            self.offers.remove(offer);
            self.tickets.remove(&ticket);
        }
        let queue = self.flows[flow].queue(place);
        self.links.remove(queue.ring(priority), node);
        queue.drop_if_empty(priority);
        self.shrink_backlog(place, stream.bytes());
        self.refresh(flow, place);
        Unsent { ticket, stream, last }
    }

    /// Remove a connection, and the flows that use no other; return the packets that waited for it.
    pub(super) fn close(&mut self, place: u32) -> Vec<Unsent> {
        let mut unsent = Vec::new();
        for flow in std::mem::take(&mut self.sockets[place].flows) {
            while let Some((_, node)) = self.flows[flow].queue(place).head() {
                unsent.push(self.remove_stream(node));
            }
            self.flows[flow].queues[place as usize] = None;
            if self.flows[flow].queues.iter().all(Option::is_none) {
                let gone = self.flows.remove(flow);
                self.flow_places.remove(&gone.id);
                self.rotation.forget(flow);
            }
        }
        let socket = self.sockets.remove(place);
        self.in_flight -= socket.in_flight;
        self.unacked -= socket.unacked;
        unsent
    }

    /// Update the key of the connection at `place` for `flow`; call when either changed.
    pub(super) fn refresh(&mut self, flow: u32, place: u32) {
        let key = if self.may_send(place) { self.key(flow, place) } else { None };
        let state = &mut self.flows[flow];
        state.tree.set(place, key);
        self.rotation.set(flow, state.tree.best().is_some());
    }

    /// Update the keys of all flows of a connection.
    pub(super) fn refresh_socket(&mut self, place: u32) {
        for at in 0..self.sockets[place].flows.len() {
            self.refresh(self.sockets[place].flows[at], place);
        }
    }

    /// Update the keys of a connection whose bytes in flight determine whether it may send, or in which order.
    pub(super) fn refresh_windowed(&mut self, place: u32) {
        if self.rules.window != Window::None {
            self.refresh_socket(place);
        }
    }

    pub(super) fn refresh_all_windowed(&mut self) {
        if self.rules.window != Window::None {
            let places: Vec<u32> = self.places.values().copied().collect();
            for place in places {
                self.refresh_socket(place);
            }
        }
    }

    pub(super) fn shrink_backlog(&mut self, place: u32, bytes: u64) {
        self.backlog -= bytes;
        self.sockets[place].backlog -= bytes;
    }

    fn flow_place(&mut self, id: Flow) -> u32 {
        *self.flow_places.entry(id).or_insert_with(|| {
            self.flows.insert(FlowState { id, tree: Tournament::default(), queues: Vec::new() })
        })
    }

    fn add_queue(&mut self, flow: u32, place: u32) {
        let queues = &mut self.flows[flow].queues;
        if queues.len() <= place as usize {
            queues.resize(place as usize + 1, None);
        }
        if queues[place as usize].is_none() {
            queues[place as usize] = Some(PendingQueue::default());
            self.sockets[place].flows.push(flow);
        }
    }
}

/// The first connection that two of the streams share. Streams are few, and mostly sorted by connection.
fn repeated(streams: &[PacketStream]) -> Option<Connection> {
    if streams.is_sorted_by(|one, other| one.connection < other.connection) {
        return None;
    }
    let mut all: Vec<Connection> = streams.iter().map(|stream| stream.connection).collect();
    all.sort_unstable();
    all.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}
