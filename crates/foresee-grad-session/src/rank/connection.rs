// SPDX-License-Identifier: Apache-2.0
//! State of the connections to one server.
//!
//! They are *open*, *lost*, or *resuming*: re-established, to a server that has not reported its state yet.

use std::collections::VecDeque;

use foresee_grad_queue::{Round, TensorId};
use foresee_units::Nanos;

/// Data connections without acknowledgments before the server is given up: one more attempt would fail as well.
const SILENCES_MAX: u32 = 2;

/// Breaks without a received sum before the server is given up, if they took at least the timeout. The cause then ends
/// every connection that carries data. An unstable network lets some data through.
const BREAKS_MAX: u32 = 64;

#[derive(Debug)]
pub(super) struct ServerConnection {
    /// The number of the current pair of connections.
    pub(super) pair: u32,
    /// The process of the server behind the last open pair.
    pub(super) process: u64,
    /// The process behind the current pair.
    pub(super) current_process: u64,
    pub(super) state: ConnectionState,
    pub(super) suspicion: Option<Suspicion>,
    /// Breaks since the last received sum.
    pub(super) breaks: Breaks,
    /// The ranks that the server waits for, as its last message reported.
    pub(super) waiting: Option<String>,
    /// When it was last lost while open, and why.
    pub(super) lost: Option<(Nanos, String)>,
    pub(super) dial: Option<Dial>,
    /// Gradients that may not be sent yet, older rounds first.
    pub(super) deferred: VecDeque<(Round, TensorId)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    Open,
    /// The server was sent this rank's state; its answer, once received.
    Resuming(Option<Answer>),
    Lost,
}

/// The state of a server that resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Answer {
    /// Rounds before this one are done.
    pub(super) oldest: Round,
    /// Whether the server still has its sums.
    pub(super) has_sums: bool,
}

/// An attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dial {
    /// When it begins; `None` if it has begun.
    pub(super) at: Option<Nanos>,
    /// The longest duration.
    pub(super) within: Nanos,
}

/// A data connection broke, and the control connection has not reported the reason.
#[derive(Debug)]
pub(super) struct Suspicion {
    /// When the control connection is interrupted.
    pub(super) until: Nanos,
    pub(super) why: String,
    /// Whether nothing was acknowledged.
    pub(super) is_silence: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Breaks {
    pub(super) count: u32,
    /// How many of them because nothing was acknowledged over the data connection.
    silences: u32,
    first: Option<Nanos>,
}

impl Breaks {
    pub(super) fn add(&mut self, is_silence: bool, now: Nanos) {
        self.count = self.count.saturating_add(1);
        self.silences = self.silences.saturating_add(u32::from(is_silence));
        self.first.get_or_insert(now);
    }

    /// Whether another attempt after a silence may succeed.
    pub(super) fn may_retry_silence(&self) -> bool {
        self.silences < SILENCES_MAX
    }

    /// The time since the first break, if the breaks are too many and too long to continue.
    pub(super) fn exhausted(&self, timeout: Nanos, now: Nanos) -> Option<Nanos> {
        let time = now.saturating_sub(self.first?);
        (self.count >= BREAKS_MAX && time >= timeout).then_some(time)
    }
}

impl ServerConnection {
    pub(super) fn new(process: u64) -> Self {
        Self {
            pair: 0,
            process,
            current_process: process,
            state: ConnectionState::Open,
            suspicion: None,
            breaks: Breaks::default(),
            waiting: None,
            lost: None,
            dial: None,
            deferred: VecDeque::new(),
        }
    }

    /// Whether the current pair leads to the process that sent the sums so far.
    pub(super) fn is_same_process(&self) -> bool {
        self.current_process == self.process
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == ConnectionState::Open
    }

    pub(super) fn suspicion_timeout(&self) -> Option<Nanos> {
        self.suspicion.as_ref().map(|suspicion| suspicion.until)
    }

    /// Why it was last lost; empty if it never was.
    pub(super) fn loss_reason(&self) -> &str {
        self.lost.as_ref().map_or("", |(_, why)| why.as_str())
    }

    pub(super) fn lose(&mut self, why: &str, now: Nanos) {
        if self.is_open() {
            self.lost = Some((now, why.to_owned()));
        }
        self.state = ConnectionState::Lost;
        (self.suspicion, self.waiting) = (None, None);
        // Deferred gradients are retained, and offered again after reconnection.
        self.deferred.clear();
    }
}
