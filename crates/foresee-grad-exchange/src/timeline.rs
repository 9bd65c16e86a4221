// SPDX-License-Identifier: Apache-2.0
//! Timeline of one process: packets and waits, for pictures and measurements.
//!
//! It is off by default, and bounded: entries beyond the bound are counted and dropped. Times are of the system's
//! monotonic clock, so that several processes of a node share one axis.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foresee_grad_queue::{PacketId, Round, TensorId};
use foresee_units::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    /// A rank handed a tensor over.
    Pushed = 0,
    /// A packet of a rank leaves: it is given to the system.
    Sent = 1,
    /// A server has read a rank's packet.
    Arrived = 2,
    /// A server has the sum of a packet.
    Summed = 3,
    /// A packet of an average is where it belongs.
    Landed = 4,
    /// A rank began to wait for a tensor that had not landed.
    Waiting = 5,
    /// It went on, perhaps only to look around.
    Resumed = 6,
}

impl EventKind {
    /// Every kind, by its number.
    pub const ALL: [Self; 7] =
        [Self::Pushed, Self::Sent, Self::Arrived, Self::Summed, Self::Landed, Self::Waiting, Self::Resumed];

    /// What pictures call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pushed => "pushed",
            Self::Sent => "sent",
            Self::Arrived => "arrived",
            Self::Summed => "summed",
            Self::Landed => "landed",
            Self::Waiting => "waiting",
            Self::Resumed => "resumed",
        }
    }
}

/// One thing that happened. Tensors have their numbers in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time of the system's monotonic clock.
    pub at: Nanos,
    /// What happened.
    pub kind: EventKind,
    /// In which round.
    pub round: Round,
    /// Of which tensor.
    pub tensor: TensorId,
    /// Of which packet; `None`: of the whole tensor.
    pub packet: Option<u32>,
    /// At a rank the server, at a server the rank that it came from or went to; `None`: neither.
    pub peer: Option<u32>,
}

/// A handle; clones are the same timeline.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline(Option<Arc<Mutex<Kept>>>);

/// What was noted since it was last taken.
#[derive(Debug, Default)]
struct Kept {
    events: Vec<Event>,
    room: usize,
    left_out: u64,
}

impl Timeline {
    /// Keeps up to `room` events between two calls of [`take`](Self::take); none for 0.
    pub(crate) fn new(room: usize) -> Self {
        Self((room > 0).then(|| Arc::new(Mutex::new(Kept { room, ..Kept::default() }))))
    }

    /// Something happened to a packet, now.
    pub(crate) fn packet(&self, kind: EventKind, round: Round, packet: PacketId, peer: Option<u32>) {
        self.note(kind, round, packet.tensor, Some(packet.packet), peer);
    }

    /// Something happened to a tensor, now.
    pub(crate) fn tensor(&self, kind: EventKind, round: Round, tensor: TensorId) {
        self.note(kind, round, tensor, None, None);
    }

    fn note(&self, kind: EventKind, round: Round, tensor: TensorId, packet: Option<u32>, peer: Option<u32>) {
        let Some(kept) = &self.0 else { return };
        let at = now();
        let mut kept = lock(kept);
        if kept.events.len() < kept.room {
            kept.events.push(Event { at, kind, round, tensor, packet, peer });
        } else {
            kept.left_out += 1;
        }
    }

    /// What was noted since the last call, and how much more there was no room for.
    pub(crate) fn take(&self) -> (Vec<Event>, u64) {
        let Some(kept) = &self.0 else { return (Vec::new(), 0) };
        let mut kept = lock(kept);
        (std::mem::take(&mut kept.events), std::mem::take(&mut kept.left_out))
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn it_keeps_what_it_has_room_for_and_counts_the_rest() {
        let timeline = Timeline::new(2);
        for packet in 0..5 {
            let packet = PacketId { tensor: TensorId(1), packet };
            timeline.clone().packet(EventKind::Sent, Round(3), packet, Some(7));
        }
        let (events, left_out) = timeline.take();
        assert_eq!((events.len(), left_out), (2, 3));
        assert!(events[0].at <= events[1].at);
        assert_eq!((events[1].packet, events[1].peer, events[1].round), (Some(1), Some(7), Round(3)));
        timeline.tensor(EventKind::Pushed, Round(4), TensorId(0));
        let (events, left_out) = timeline.take();
        assert_eq!((events.len(), events[0].packet, left_out), (1, None, 0));
        assert_eq!(Timeline::new(0).take(), (Vec::new(), 0));
    }

    #[test]
    fn kinds_have_their_numbers() {
        assert!(EventKind::ALL.into_iter().zip(0_u8..).all(|(kind, number)| kind as u8 == number));
    }
}
