// SPDX-License-Identifier: Apache-2.0
//! Registry of offers, lanes, connections and flows, with all totals.
//!
//! It is separate from the choice, which changes one lane at a time and looks nothing up by number.

use foresee_units::Nanos;

use super::line::{Line, Rank};
use super::ring::Ring;
use super::rules::{Order, Window};
use super::tournament::Tournament;
use super::{Class, Connection, Flow, Lane, Offer, Schedule, ScheduleError, Ticket, Unsent};

#[derive(Clone, Debug)]
pub(super) struct Socket {
    pub id: Connection,
    /// A half-written packet occupies it.
    pub blocked: bool,
    pub in_flight: u64,
    pub unacked: u64,
    pub backlog: u64,
    /// The flows with a line over this connection.
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
    pub backlog: u64,
    pub tree: Tournament,
    /// Indexed by connection.
    lines: Vec<Option<Line>>,
}

impl FlowState {
    /// The line of the flow over the connection at `place`, which must exist.
    pub(super) fn line(&mut self, place: u32) -> &mut Line {
        self.lines[place as usize].as_mut().expect("a line where a lane is")
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().flatten()
    }
}

#[derive(Clone, Debug)]
pub(super) struct OfferState {
    pub ticket: Ticket,
    pub flow: u32,
    pub class: Class,
    /// The position of the ring in which the lane waits.
    pub rank: Rank,
    pub arrival: u64,
    pub since: Nanos,
    pub lanes: Ring,
}

#[derive(Clone, Debug)]
pub(super) struct LaneState {
    pub offer: u32,
    pub place: u32,
    pub lane: Lane,
}

impl Schedule {
    pub(super) fn check_offer(&self, offer: &Offer<'_>) -> Result<(), ScheduleError> {
        let ticket = offer.ticket;
        if self.tickets.contains_key(&ticket) {
            return Err(ScheduleError::TicketInUse { ticket });
        }
        if offer.lanes.is_empty() {
            return Err(ScheduleError::NoLanes { ticket });
        }
        let mut bytes = 0_u128;
        for lane in offer.lanes {
            lane.check(ticket)?;
            self.place(lane.connection)?;
            bytes += u128::from(lane.bytes());
        }
        if let Some(connection) = repeated(offer.lanes) {
            return Err(ScheduleError::LaneTwice { ticket, connection });
        }
        if bytes + u128::from(self.backlog) > u128::from(u64::MAX) {
            return Err(ScheduleError::TooManyBytes { ticket, bytes, backlog: self.backlog });
        }
        Ok(())
    }

    /// Add a validated offer.
    pub(super) fn enter_offer(&mut self, offer: &Offer<'_>, now: Nanos) {
        let flow = self.flow_place(offer.flow);
        let rank = match self.rules.order {
            Order::Readiness => Rank::ONLY,
            Order::Class => Rank::new(offer.round, offer.class.get()),
        };
        self.arrivals += 1;
        let entry = self.offers.insert(OfferState {
            ticket: offer.ticket,
            flow,
            class: offer.class,
            rank,
            arrival: self.arrivals,
            since: now,
            lanes: Ring::default(),
        });
        self.tickets.insert(offer.ticket, entry);
        for &lane in offer.lanes {
            let place = self.places[&lane.connection];
            self.rotation.admit(lane.next_bytes());
            self.add_line(flow, place);
            let node = self.lanes.insert(LaneState { offer: entry, place, lane });
            let line = self.flows[flow].line(place);
            self.in_line.push_back(line.ring(rank), node);
            self.in_offer.push_back(&mut self.offers[entry].lanes, node);
            self.grow_backlog(flow, place, offer.class, lane.bytes());
            self.refresh(flow, place);
        }
    }

    /// Remove a lane with its remaining packets, and its offer if this was the last lane.
    pub(super) fn leave(&mut self, node: u32) -> Unsent {
        let LaneState { offer, place, lane } = self.lanes.remove(node);
        let entry = &mut self.offers[offer];
        let (ticket, flow, class, rank) = (entry.ticket, entry.flow, entry.class, entry.rank);
        self.in_offer.remove(&mut entry.lanes, node);
        let last = entry.lanes.head().is_none();
        if last {
            self.offers.remove(offer);
            self.tickets.remove(&ticket);
        }
        let line = self.flows[flow].line(place);
        self.in_line.remove(line.ring(rank), node);
        line.drop_if_empty(rank);
        self.shrink_backlog(flow, place, class, lane.bytes());
        self.refresh(flow, place);
        Unsent { ticket, flow: self.flows[flow].id, class, lane, last }
    }

    /// Remove a connection, and the flows that use no other; return the packets that waited for it.
    pub(super) fn close(&mut self, place: u32) -> Vec<Unsent> {
        let mut unsent = Vec::new();
        for flow in std::mem::take(&mut self.sockets[place].flows) {
            while let Some((_, node)) = self.flows[flow].line(place).head() {
                unsent.push(self.leave(node));
            }
            self.flows[flow].lines[place as usize] = None;
            if self.flows[flow].lines().next().is_none() {
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

    pub(super) fn grow_backlog(&mut self, flow: u32, place: u32, class: Class, bytes: u64) {
        self.backlog += bytes;
        self.class_backlog[usize::from(class.get())] += bytes;
        self.flows[flow].backlog += bytes;
        self.sockets[place].backlog += bytes;
    }

    pub(super) fn shrink_backlog(&mut self, flow: u32, place: u32, class: Class, bytes: u64) {
        self.backlog -= bytes;
        self.class_backlog[usize::from(class.get())] -= bytes;
        self.flows[flow].backlog -= bytes;
        self.sockets[place].backlog -= bytes;
    }

    fn flow_place(&mut self, id: Flow) -> u32 {
        *self.flow_places.entry(id).or_insert_with(|| {
            self.flows.insert(FlowState { id, backlog: 0, tree: Tournament::default(), lines: Vec::new() })
        })
    }

    fn add_line(&mut self, flow: u32, place: u32) {
        let lines = &mut self.flows[flow].lines;
        if lines.len() <= place as usize {
            lines.resize(place as usize + 1, None);
        }
        if lines[place as usize].is_none() {
            lines[place as usize] = Some(Line::default());
            self.sockets[place].flows.push(flow);
        }
    }
}

/// The first connection that two of the lanes share. Lanes are few, and mostly sorted by connection.
fn repeated(lanes: &[Lane]) -> Option<Connection> {
    if lanes.is_sorted_by(|one, other| one.connection < other.connection) {
        return None;
    }
    let mut all: Vec<Connection> = lanes.iter().map(|lane| lane.connection).collect();
    all.sort_unstable();
    all.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}
