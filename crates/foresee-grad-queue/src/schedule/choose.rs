// SPDX-License-Identifier: Apache-2.0
//! The choice of the next packet.

use foresee_units::Nanos;

use super::pending::Priority;
use super::rules::{Scope, Window};
use super::tournament::Key;
use super::{Grant, Schedule};

/// What may join the packet that was granted last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    flow: u32,
    place: u32,
    priority: Priority,
    free: u32,
}

impl Schedule {
    /// Return the next packet to write; call until it returns `None`. `None` means that nothing waits, or that
    /// nothing may be sent before a connection becomes writable, the window opens, or credit returns.
    pub fn poll_send(&mut self, now: Nanos) -> Option<Grant> {
        self.batch = None;
        if self.rules.window == Window::Interface && self.in_flight > self.window.get() {
            return None;
        }
        let flow = self.rotation.front()?;
        let place = self.flows[flow].tree.best()?;
        let (priority, stream) = self.flows[flow].queue(place).head()?;
        let bytes = self.streams[stream].stream.next_bytes();
        if !self.has_credit(bytes) {
            return None;
        }
        let grant = self.grant(stream, now);
        let free = self.packet.get().saturating_sub(bytes);
        self.batch = (free > 0).then_some(Batch { flow, place, priority, free });
        Some(grant)
    }

    /// Return a further packet to write together with the one that [`Schedule::poll_send`] granted last. It has
    /// the same flow, class and connection, is next in order there, and keeps the total size within that of an
    /// ordinary packet. The window counts all of them as one packet, so its bound is unchanged.
    ///
    /// Call until it returns `None`, directly after the grant: any other call, such as a new offer, ends the
    /// batch. Packets of the same class for other connections are delayed by one packet time at most.
    pub fn poll_more(&mut self, now: Nanos) -> Option<Grant> {
        let Batch { flow, place, priority, free } = self.batch.take()?;
        let stream = self.flows[flow].queue(place).head_of(priority)?;
        let bytes = self.streams[stream].stream.next_bytes();
        if bytes > free || !self.has_credit(bytes) {
            return None;
        }
        let grant = self.grant(stream, now);
        self.batch = Some(Batch { flow, place, priority, free: free - bytes });
        Some(grant)
    }

    /// Whether a connection accepts a packet, apart from the shared window.
    pub(super) fn may_send(&self, place: u32) -> bool {
        let socket = &self.sockets[place];
        let open = self.rules.window != Window::Connection || socket.in_flight <= self.window.get();
        open && !socket.blocked
    }

    /// The key of the connection at `place` among connections, from the next packet of `flow` there.
    pub(super) fn key(&mut self, flow: u32, place: u32) -> Option<Key> {
        let queue = self.flows[flow].queue(place);
        let (priority, stream) = queue.head()?;
        let turn = queue.turn;
        if self.rules.scope == Scope::Connection {
            return Some(Key {
                priority: Priority::ONLY,
                arrival: 0,
                congestion: 0,
                progress: 0,
                ahead: 0,
                turn,
            });
        }
        let state = &self.streams[stream];
        let arrival = self.offers[state.offer].arrival;
        if self.rules.window != Window::Interface {
            return Some(Key { priority, arrival, congestion: 0, progress: 0, ahead: 0, turn });
        }
        // All connections share one window: one with a slow far end would fill it, and the link would run idle.
        let ahead = self.sockets[place].in_flight;
        let (congestion, progress) = (ahead.saturating_sub(1) / self.congestion, state.stream.progress());
        Some(Key { priority, arrival, congestion, progress, ahead, turn })
    }

    fn has_credit(&self, bytes: u32) -> bool {
        let Some(credit) = self.rules.credit else { return true };
        self.unacked == 0 || self.unacked.saturating_add(u64::from(bytes)) <= credit.get()
    }

    /// Grant the next packet of a stream.
    fn grant(&mut self, node: u32, now: Nanos) -> Grant {
        let state = &mut self.streams[node];
        let (offer, place) = (state.offer, state.place);
        let (packet, bytes) = state.stream.take();
        let ended = state.stream.packets == 0;
        let entry = &self.offers[offer];
        let (flow, class, ticket, since) = (entry.flow, entry.class, entry.ticket, entry.since);

        let socket = &mut self.sockets[place];
        let connection = socket.id;
        socket.in_flight += u64::from(bytes);
        socket.unacked += u64::from(bytes);
        self.in_flight += u64::from(bytes);
        self.unacked += u64::from(bytes);
        self.shrink_backlog(place, u64::from(bytes));
        self.rotation.charge(flow, bytes);
        self.turns += 1;
        self.flows[flow].queue(place).turn = self.turns;

        let last = if ended {
            self.remove_stream(node).last
        } else {
            self.refresh(flow, place);
            false
        };
        self.refresh_windowed(place);
        let flow = self.flows[flow].id;
        Grant { ticket, connection, packet, bytes, class, flow, waited: now.saturating_sub(since), last }
    }
}
