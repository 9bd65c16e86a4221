// SPDX-License-Identifier: Apache-2.0
//! State of the connections to one server.
//!
//! They are *open*, *lost*, or *resuming*: made again, to a server that has not reported yet what it goes on with.

use std::collections::VecDeque;

use foresee_grad_queue::{Round, TensorId};
use foresee_units::Nanos;

/// A data connection over which nothing is acknowledged is made again once: the next one would end alike.
const SILENCES_MAX: u32 = 2;

/// Connections are made again so often while nothing comes over them, if all that took at least the timeout: whatever
/// ends each of them once data flow will end the next one. A network that comes and goes gets something through.
const BREAKS_MAX: u32 = 64;

#[derive(Debug)]
pub(super) struct ServerConnection {
    /// The number of the present pair of connections.
    pub(super) pair: u32,
    /// The process of the server to which the last pair led that was open.
    pub(super) process: u64,
    /// The process to which the present pair leads.
    pub(super) present: u64,
    pub(super) state: ConnectionState,
    pub(super) suspicion: Option<Suspicion>,
    /// What broke since a sum last came.
    pub(super) breaks: Breaks,
    /// Whom the server last reported to wait for, until it sends anything else.
    pub(super) waiting: Option<String>,
    /// When it was last lost while open, and why.
    pub(super) lost: Option<(Nanos, String)>,
    pub(super) dial: Option<Dial>,
    /// Gradients that may not be sent yet, older rounds first.
    pub(super) held: VecDeque<(Round, TensorId)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    Open,
    /// The server was sent this rank's state, and has answered or not.
    Resuming(Option<Answer>),
    Lost,
}

/// What a server goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Answer {
    /// Rounds before this one are done.
    pub(super) oldest: Round,
    /// Whether the server still has its sums.
    pub(super) knows: bool,
}

/// An attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dial {
    /// When it begins; `None`: it has begun.
    pub(super) at: Option<Nanos>,
    /// How long it may take.
    pub(super) within: Nanos,
}

/// A data connection broke, and the control connection has not reported why.
#[derive(Debug)]
pub(super) struct Suspicion {
    /// When the control connection is ended.
    pub(super) until: Nanos,
    pub(super) why: String,
    /// Whether nothing was acknowledged.
    pub(super) is_silence: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Breaks {
    pub(super) times: u32,
    /// How often because nothing was acknowledged over the data connection.
    silences: u32,
    first: Option<Nanos>,
}

impl Breaks {
    pub(super) fn count(&mut self, is_silence: bool, now: Nanos) {
        self.times = self.times.saturating_add(1);
        self.silences = self.silences.saturating_add(u32::from(is_silence));
        self.first.get_or_insert(now);
    }

    /// Whether another attempt after a silence may end better.
    pub(super) fn may_be_silent(&self) -> bool {
        self.silences < SILENCES_MAX
    }

    /// For how long connections have been made again to no purpose, where that was often enough not to go on with it.
    pub(super) fn endless(&self, timeout: Nanos, now: Nanos) -> Option<Nanos> {
        let time = now.saturating_sub(self.first?);
        (self.times >= BREAKS_MAX && time >= timeout).then_some(time)
    }
}

impl ServerConnection {
    pub(super) fn new(process: u64) -> Self {
        Self {
            pair: 0,
            process,
            present: process,
            state: ConnectionState::Open,
            suspicion: None,
            breaks: Breaks::default(),
            waiting: None,
            lost: None,
            dial: None,
            held: VecDeque::new(),
        }
    }

    /// Whether the present pair leads to the process that sums came from.
    pub(super) fn is_same(&self) -> bool {
        self.present == self.process
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == ConnectionState::Open
    }

    pub(super) fn suspicion_timeout(&self) -> Option<Nanos> {
        self.suspicion.as_ref().map(|suspicion| suspicion.until)
    }

    /// Its connections are of no more use.
    pub(super) fn lose(&mut self, why: &str, now: Nanos) {
        if self.is_open() {
            self.lost = Some((now, why.to_owned()));
        }
        self.state = ConnectionState::Lost;
        (self.suspicion, self.waiting) = (None, None);
        // All of it is retained, and offered again when a server is back.
        self.held.clear();
    }
}
