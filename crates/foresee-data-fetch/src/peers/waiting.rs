// SPDX-License-Identifier: Apache-2.0
//! Reads that wait for the plan of their access, or for an offer of another node.

use std::collections::{BTreeMap, BTreeSet};

use foresee_units::{Nanos, SampleId};

use super::action::SampleRead;

/// Waiting reads, one per sample.
#[derive(Debug, Default)]
pub(super) struct WaitingReads {
    /// With the time until which they wait.
    reads: BTreeMap<SampleId, (Nanos, SampleRead)>,
    ends: BTreeSet<(Nanos, SampleId)>,
}

impl WaitingReads {
    /// Add a read that waits until `end`; [`Nanos::MAX`] for no limit.
    pub(super) fn add(&mut self, read: SampleRead, end: Nanos) {
        self.remove(read.sample);
        self.reads.insert(read.sample, (end, read));
        self.ends.insert((end, read.sample));
    }

    /// Remove the read of a sample, and return it.
    pub(super) fn remove(&mut self, sample: SampleId) -> Option<SampleRead> {
        let (end, read) = self.reads.remove(&sample)?;
        self.ends.remove(&(end, sample));
        Some(read)
    }

    /// The first read that has waited until its end.
    pub(super) fn late(&self, now: Nanos) -> Option<SampleId> {
        self.ends.first().filter(|&&(end, _)| end <= now).map(|&(_, sample)| sample)
    }

    /// When the first one has.
    pub(super) fn timeout(&self) -> Option<Nanos> {
        self.ends.first().map(|&(end, _)| end).filter(|&end| end < Nanos::MAX)
    }
}
