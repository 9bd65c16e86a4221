// SPDX-License-Identifier: Apache-2.0
//! A simulated consumer: it announces, requests ahead, copies answers, and trains on one batch after the other.

use std::collections::{BTreeMap, VecDeque};

use foresee_units::Nanos;

use crate::setup::ConsumerSetup;

/// The state of an access that was requested and not consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessState {
    Requested,
    Answered {
        since: Nanos,
    },
    /// Its pin was taken back before it was copied.
    TakenBack,
    Copied,
    /// It was copied and released, or has failed.
    Done,
}

/// A consumer of the node.
#[derive(Debug)]
pub(crate) struct SimConsumer {
    pub(crate) setup: ConsumerSetup,
    /// By access number: the entry; as long as what was announced.
    pub(crate) log: Vec<u32>,
    /// The next accesses of the current epoch that are not announced, in windows.
    pending: VecDeque<u32>,
    pub(crate) epoch: u64,
    pub(crate) states: BTreeMap<u64, AccessState>,
    /// The first access of the first batch since the start or restart.
    pub(crate) base: u64,
    /// Accesses consumed.
    pub(crate) position: u64,
    /// The next access to request.
    pub(crate) next: u64,
    pub(crate) is_stepping: bool,
    pub(crate) is_attached: bool,
    pub(crate) has_ended: bool,
    pub(crate) stopped_until: Nanos,
    /// Time of the latest progress.
    pub(crate) progress_at: Nanos,
    /// Restarts and replacements so far: events from before are ignored.
    pub(crate) life: u32,
}

impl SimConsumer {
    pub(crate) fn new(setup: ConsumerSetup) -> Self {
        Self {
            setup,
            log: Vec::new(),
            pending: VecDeque::new(),
            epoch: 0,
            states: BTreeMap::new(),
            base: 0,
            position: 0,
            next: 0,
            is_stepping: false,
            is_attached: false,
            has_ended: false,
            stopped_until: Nanos::ZERO,
            progress_at: Nanos::ZERO,
            life: 0,
        }
    }

    /// The next accesses to announce; `None` after the last epoch.
    pub(crate) fn next_window(&mut self) -> Option<Vec<u32>> {
        while self.pending.is_empty() {
            if self.epoch == self.setup.epochs {
                return None;
            }
            self.pending = self.setup.epoch(self.epoch).into();
            self.epoch += 1;
        }
        let len = self.setup.window.unwrap_or(usize::MAX).min(self.pending.len());
        Some(self.pending.drain(..len).collect())
    }

    /// Continue at an epoch, after `first` access numbers.
    pub(crate) fn restart(&mut self, epoch: u64, first: u64) {
        self.pending.clear();
        self.epoch = epoch;
        self.has_ended = false;
        self.states.clear();
        (self.base, self.position, self.next) = (first, first, first);
        self.is_stepping = false;
        self.life += 1;
    }

    /// The accesses of the batch that contains `access`, as far as they are announced and not consumed.
    pub(crate) fn batch(&self, access: u64) -> std::ops::Range<u64> {
        let first = access - (access - self.base) % self.setup.batch;
        first.max(self.position)..(first + self.setup.batch).min(self.log.len() as u64)
    }

    /// Whether it has consumed all of its accesses.
    pub(crate) fn is_finished(&self) -> bool {
        let all = self.position == self.log.len() as u64 && self.pending.is_empty();
        self.is_attached && all && self.epoch == self.setup.epochs
    }

    /// Whether a use of the entry is announced and not requested.
    pub(crate) fn uses(&self, entry: u32) -> bool {
        self.announced().any(|one| one == entry)
    }

    /// The entries announced and not requested, in order.
    pub(crate) fn announced(&self) -> impl Iterator<Item = u32> {
        let next = usize::try_from(self.next).expect("it is small");
        self.log[next.min(self.log.len())..].iter().copied()
    }
}
