// SPDX-License-Identifier: Apache-2.0
//! A rank's place in a job: its process, its two connections, and how far it is.
//!
//! A seat is *taken* with a connection, *whole* with both, and *away* from when one of them breaks until the same process
//! has come again with two new ones. Refuses to decide how long it is kept: `away` does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use foresee_grad_queue::Round;
use foresee_units::Nanos;
use foresee_wire::{COMES_AGAIN, Fault, Hello, Link, Message, Resume};

use crate::control::Control;
use crate::options::SILENCES_MAX;
use crate::server::session::Way;

/// A rank's place.
#[derive(Debug)]
pub(super) struct Seat {
    /// Which process of the rank.
    pub(super) process: u64,
    /// Whether that dials again when a connection breaks.
    pub(super) comes_again: bool,
    /// Counts its pairs of connections: whoever belongs to an earlier one speaks of nothing that counts.
    pub(super) epoch: u32,
    pub(super) control: Option<Control>,
    pub(super) way: Option<Way>,
    pub(super) data: Option<Link>,
    /// Set when these connections are of no more use: whoever reads them and waits for room need not.
    pub(super) gone: Arc<AtomicBool>,
    /// Its data connection broke, and its control connection has not said why.
    pub(super) suspicion: Option<String>,
    /// How often nothing was acknowledged over its data connection, since it last got a round.
    pub(super) silences: u32,
    /// When its connections broke, until it has come again.
    pub(super) away: Option<Instant>,
    /// What it says it knows, having come again, until both connections are here.
    pub(super) known: Option<Resume>,
    /// What it proposes behind that.
    pub(super) proposed: Option<Vec<u8>>,
    /// Its next proposal is one that was answered before it came again.
    pub(super) answered: bool,
    /// The first round of the plan that it has not ended.
    pub(super) next: Round,
    /// The membership under which it speaks.
    pub(super) generation: u32,
}

impl Seat {
    pub(super) fn new(hello: &Hello) -> Self {
        Self {
            process: hello.session,
            comes_again: hello.capabilities & COMES_AGAIN > 0,
            epoch: 0,
            control: None,
            way: None,
            data: None,
            gone: Arc::default(),
            suspicion: None,
            silences: 0,
            away: None,
            known: None,
            proposed: None,
            answered: false,
            next: Round(0),
            generation: 0,
        }
    }

    /// Whether both connections were here once: whoever was is waited for, or lost.
    pub(super) fn was_whole(&self) -> bool {
        self.control.is_some() && self.way.is_some() || self.away.is_some()
    }

    /// Whether it is worth waiting for once its connections break.
    pub(super) fn may_come_again(&self) -> bool {
        self.comes_again && self.was_whole() && self.silences < SILENCES_MAX
    }

    /// Its connections are of no more use; the place is kept.
    pub(super) fn part(&mut self) {
        self.close();
        (self.control, self.way, self.data) = (None, None, None);
        self.away = Some(Instant::now());
        (self.suspicion, self.known, self.proposed, self.answered) = (None, None, None, false);
    }

    /// Makes room for two new connections of the same process.
    pub(super) fn expect_again(&mut self) {
        self.part();
        self.epoch += 1;
        self.gone = Arc::default();
    }

    /// Tells the rank why its place is gone, and nothing more. Never waits.
    pub(super) fn dismiss(&self, fault: Fault) {
        self.close_data();
        if let Some(control) = &self.control {
            control.close(Message::Error(fault));
        }
    }

    /// Closes it once the rank has been told all that it is told, or after `time`.
    pub(super) fn close_within(&self, time: Nanos) {
        if let Some(control) = &self.control {
            control.drain(time.into());
        }
        self.close();
    }

    pub(super) fn close(&self) {
        self.close_data();
        if let Some(control) = &self.control {
            control.link().shutdown();
        }
    }

    fn close_data(&self) {
        self.gone.store(true, Ordering::Relaxed);
        if let Some(way) = &self.way {
            way.interface.close(way.connection);
        }
        if let Some(link) = &self.data {
            link.shutdown();
        }
    }
}
