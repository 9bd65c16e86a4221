// SPDX-License-Identifier: Apache-2.0
//! State of one rank's connections.
//!
//! A rank is *complete* with both connections. It is *absent* after one of them breaks, until the same process has
//! reconnected with a new pair.

use foresee_grad_queue::Round;
use foresee_units::{Nanos, Rank};

use super::action::{JobAction, Peer};
use super::admit::RankHello;
use crate::Resume;

/// Data connections without acknowledgments before the rank is lost: one more attempt would fail as well.
const SILENCES_MAX: u32 = 2;

#[derive(Debug)]
pub(super) struct RankConnection {
    pub(super) process: Process,
    /// The number of its current pair of connections.
    pub(super) pair: u32,
    pub(super) has_control: bool,
    pub(super) has_data: bool,
    pub(super) suspicion: Option<Suspicion>,
    /// Data connections without acknowledgments since the rank last confirmed a round.
    pub(super) silences: u32,
    pub(super) absence: Option<Absence>,
    /// The rank's state after reconnecting, until both connections are established.
    pub(super) resume: Option<Resume>,
    /// The plan that the rank proposed after that state.
    pub(super) proposed: Option<Vec<u8>>,
    /// The rank's next proposal was answered before it reconnected.
    pub(super) is_answered: bool,
    /// The first round of the plan that the rank has not ended.
    pub(super) next: Round,
    /// The membership of the rank's messages.
    pub(super) generation: u32,
}

/// A process of a rank.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) id: u64,
    /// Whether it reconnects when a connection breaks.
    pub(super) reconnects: bool,
}

/// A data connection broke, and the control connection has not reported the reason.
#[derive(Debug)]
pub(super) struct Suspicion {
    /// When the control connection is interrupted; `None` once it was.
    pub(super) until: Option<Nanos>,
    pub(super) why: String,
}

/// The connections broke.
#[derive(Debug)]
pub(super) struct Absence {
    /// When the rank is declared lost.
    pub(super) until: Nanos,
    pub(super) why: String,
}

impl RankConnection {
    pub(super) fn new(hello: &RankHello, pair: u32) -> Self {
        Self {
            process: Process { id: hello.process, reconnects: hello.reconnects },
            pair,
            has_control: false,
            has_data: false,
            suspicion: None,
            silences: 0,
            absence: None,
            resume: None,
            proposed: None,
            is_answered: false,
            next: Round(0),
            generation: 0,
        }
    }

    pub(super) fn peer(&self, rank: Rank) -> Peer {
        Peer { rank, pair: self.pair }
    }

    /// Whether both connections are established.
    pub(super) fn is_complete(&self) -> bool {
        self.has_control && self.has_data && self.absence.is_none()
    }

    /// Whether both connections were established once: others wait for such a rank, or it is lost.
    pub(super) fn has_been_complete(&self) -> bool {
        self.has_control && self.has_data || self.absence.is_some()
    }

    /// Whether the rank may reconnect when its connections break.
    pub(super) fn may_reconnect(&self) -> bool {
        self.process.reconnects && self.has_been_complete() && self.silences < SILENCES_MAX
    }

    /// Drop the connections and keep the rank. Returns the action that closes them.
    pub(super) fn begin_absence(&mut self, rank: Rank, absence: Absence) -> Option<JobAction> {
        let is_open = self.has_control || self.has_data;
        let closes = is_open.then(|| JobAction::Close { peer: self.peer(rank), reason: None });
        (self.has_control, self.has_data, self.absence) = (false, false, Some(absence));
        (self.suspicion, self.resume, self.proposed, self.is_answered) = (None, None, None, false);
        closes
    }

    /// The next timeout of this rank.
    pub(super) fn timeout(&self) -> Option<Nanos> {
        let suspicion = self.suspicion.as_ref().and_then(|suspicion| suspicion.until);
        let absence = self.absence.as_ref().map(|absence| absence.until);
        suspicion.into_iter().chain(absence).min()
    }
}
