// SPDX-License-Identifier: Apache-2.0
//! The time in which the nodes of a job have no plan yet: at its start, and after the ranks have continued elsewhere.
//!
//! What is read then is read from the origin, also if another node has it. So nothing is read ahead. If this node has samples
//! from before, others probably have some too, and reads that no consumer waits for are held until there is a plan. Some seconds
//! are the limit of both: nodes may never meet.

use std::collections::BTreeMap;

use foresee_data_plan::EntryId;
use foresee_units::Nanos;

use super::{HostDriver, PlannedRead};
use crate::node::places::SlabRange;

/// The limit of a meeting.
const MEETING_MAX: Nanos = Nanos::from_secs(2);

/// See the module.
#[derive(Debug)]
pub(super) struct Meeting {
    /// Whether nodes will probably meet.
    is_expected: bool,
    /// When it is over at the latest.
    until: Nanos,
    /// Whether this node has samples from before.
    is_warm: bool,
    /// Reads that no consumer waits for, with their memory.
    held: BTreeMap<EntryId, (PlannedRead, SlabRange)>,
}

impl Meeting {
    /// `is_expected`: nodes will probably meet when a data set is open.
    pub(super) const fn new(is_expected: bool) -> Self {
        Self { is_expected, until: Nanos::ZERO, is_warm: false, held: BTreeMap::new() }
    }

    /// A data set is open, of which this node has samples from before, or not.
    pub(super) fn note_data_set(&mut self, has_samples: bool, now: Nanos) {
        if self.is_expected {
            self.until = now.saturating_add(MEETING_MAX);
            self.is_warm |= has_samples;
        }
    }

    /// The nodes have no plan any more.
    pub(super) fn begin_again(&mut self, now: Nanos) {
        self.until = now.saturating_add(MEETING_MAX);
        self.is_warm = true;
    }

    /// There is a plan now. Returns the reads that were held.
    pub(super) fn end(&mut self) -> impl Iterator<Item = (PlannedRead, SlabRange)> + use<> {
        self.until = Nanos::ZERO;
        self.is_warm = false;
        std::mem::take(&mut self.held).into_values()
    }

    /// Whether one is going on.
    pub(super) fn is_going_on(&self, now: Nanos) -> bool {
        now < self.until
    }

    /// When reads have been held for long enough.
    pub(super) fn poll_timeout(&self) -> Option<Nanos> {
        (!self.held.is_empty()).then_some(self.until)
    }
}

impl HostDriver {
    /// Hold a read until the nodes have a plan; returns its memory if it is not held.
    pub(super) fn hold_read(&mut self, read: PlannedRead, range: SlabRange, now: Nanos) -> Option<SlabRange> {
        let meeting = &mut self.meeting;
        if self.exchange.is_some() || !meeting.is_warm || !meeting.is_going_on(now) || read.deadline <= now {
            return Some(range);
        }
        // The plan may have another source for each sample of a group.
        meeting.held.insert(read.entry, (PlannedRead { group: None, ..read }, range));
        None
    }

    /// A read is needed at another time; returns whether it is held, or was until now.
    pub(super) fn prioritize_held(&mut self, entry: EntryId, deadline: Nanos, now: Nanos) -> bool {
        let Some((read, _)) = self.meeting.held.get_mut(&entry) else { return false };
        read.deadline = deadline;
        if deadline <= now
            && let Some((read, range)) = self.meeting.held.remove(&entry)
        {
            self.read_origin(read, range, now);
        }
        true
    }

    /// Read what was held for long enough.
    pub(super) fn read_held(&mut self, now: Nanos) {
        if !self.meeting.held.is_empty() && !self.meeting.is_going_on(now) {
            self.end_meeting(now);
        }
    }

    /// Read what was held: nobody is waited for any more.
    pub(super) fn end_meeting(&mut self, now: Nanos) {
        for (read, range) in self.meeting.end() {
            self.read_origin(read, range, now);
        }
    }
}
