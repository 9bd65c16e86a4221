// SPDX-License-Identifier: Apache-2.0
//! Timeline of one process: packets and waits, for pictures and measurements.
//!
//! It is off by default, and bounded: events beyond the bound are counted and dropped. Times are of the system's
//! monotonic clock, so that several processes of a node share one axis.

use std::sync::{Arc, Mutex};

use foresee_grad_queue::{PacketId, Round, TensorId};
use foresee_units::Nanos;
use rustix::time::{ClockId, clock_gettime};

use crate::sync::lock;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    /// A rank pushed a tensor.
    Pushed = 0,
    /// A rank's packet is about to be written.
    Sent = 1,
    /// A server has read a rank's packet.
    Arrived = 2,
    /// The sum of a packet is complete at a server.
    Summed = 3,
    /// A packet of an average is in its receive buffer.
    Received = 4,
    /// A rank began to wait for a tensor.
    Waiting = 5,
    /// The wait ended, with the tensor or with its time.
    Resumed = 6,
}

impl EventKind {
    /// The name of each kind in timelines, by its number.
    pub const NAMES: [&'static str; 7] =
        ["pushed", "sent", "arrived", "summed", "landed", "waiting", "resumed"];
}

/// An event of a packet or a tensor, which has its id in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time of the system's monotonic clock.
    pub at: Nanos,
    /// What happened.
    pub kind: EventKind,
    /// The round.
    pub round: Round,
    /// The tensor.
    pub tensor: TensorId,
    /// The packet; `None`: the whole tensor.
    pub packet: Option<u32>,
    /// At a rank the server, at a server the rank that the packet came from or went to; `None`: neither.
    pub peer: Option<u32>,
}

/// A handle; clones are the same timeline.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline(Option<Arc<Mutex<EventLog>>>);

#[derive(Debug, Default)]
struct EventLog {
    events: Vec<Event>,
    capacity: usize,
    dropped: u64,
}

impl Timeline {
    /// A timeline of up to `capacity` events between two calls of [`take`](Self::take); off for 0.
    pub(crate) fn new(capacity: usize) -> Self {
        Self((capacity > 0).then(|| Arc::new(Mutex::new(EventLog { capacity, ..EventLog::default() }))))
    }

    /// Add an event of a packet.
    pub(crate) fn packet(&self, kind: EventKind, round: Round, packet: PacketId, peer: Option<u32>) {
        self.add(kind, round, packet.tensor, Some(packet.packet), peer);
    }

    /// Add an event of a tensor.
    pub(crate) fn tensor(&self, kind: EventKind, round: Round, tensor: TensorId) {
        self.add(kind, round, tensor, None, None);
    }

    fn add(&self, kind: EventKind, round: Round, tensor: TensorId, packet: Option<u32>, peer: Option<u32>) {
        let Some(log) = &self.0 else { return };
        let at = now();
        let mut log = lock(log);
        if log.events.len() < log.capacity {
            log.events.push(Event { at, kind, round, tensor, packet, peer });
        } else {
            log.dropped += 1;
        }
    }

    /// The events since the last call, and how many more were dropped.
    pub(crate) fn take(&self) -> (Vec<Event>, u64) {
        let Some(log) = &self.0 else { return (Vec::new(), 0) };
        let mut log = lock(log);
        (std::mem::take(&mut log.events), std::mem::take(&mut log.dropped))
    }
}

fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, rest) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    Nanos::from_secs(seconds.unwrap_or(0)).saturating_add(Nanos::new(rest.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_beyond_the_capacity_are_counted_and_dropped() {
        let timeline = Timeline::new(2);
        for packet in 0..5 {
            let packet = PacketId { tensor: TensorId(1), packet };
            timeline.clone().packet(EventKind::Sent, Round(3), packet, Some(7));
        }
        let (events, dropped) = timeline.take();
        assert_eq!((events.len(), dropped), (2, 3));
        assert!(events[0].at <= events[1].at);
        assert_eq!((events[1].packet, events[1].peer, events[1].round), (Some(1), Some(7), Round(3)));
        timeline.tensor(EventKind::Pushed, Round(4), TensorId(0));
        let (events, dropped) = timeline.take();
        assert_eq!((events.len(), events[0].packet, dropped), (1, None, 0));
        assert_eq!(Timeline::new(0).take(), (Vec::new(), 0));
    }

    #[test]
    fn the_number_of_a_kind_is_the_place_of_its_name() {
        assert_eq!(EventKind::NAMES[EventKind::Received as usize], "landed");
        assert_eq!(EventKind::NAMES.len(), EventKind::Resumed as usize + 1);
    }
}
