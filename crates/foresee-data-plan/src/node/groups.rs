// SPDX-License-Identifier: Apache-2.0
//! Groups of entries that one read of the origin includes: small neighbours that are missing too, will be used, and have
//! space.

use std::sync::Arc;

use foresee_units::{Nanos, SampleId, Source};

use super::NodePlanner;
use super::action::EntryId;
use super::residents::flag;
use super::space::{FreeSpace, SpaceFor};
use crate::capacity::SampleSizes;
use crate::next_use::narrow;
use crate::read_group::{GroupStart, neighbours};

/// Entries being read or waited for from which on nothing is read only because of its group: the tables of the reads take
/// some hundred bytes each.
const ACTIVE_MAX: usize = 1 << 18;

/// The data sets whose entries are read in groups, and the consumers that have yet to announce which of them they use.
#[derive(Default)]
pub(super) struct Groups {
    /// In order of their entries.
    data_sets: Vec<GroupedEntries>,
    expected: u32,
}

/// The entries of one data set.
struct GroupedEntries {
    /// The entry of sample 0.
    first: u32,
    samples: Arc<dyn SampleSizes>,
    start: GroupStart,
}

impl Groups {
    /// The data set of an entry.
    fn of(&mut self, entry: u32) -> Option<&mut GroupedEntries> {
        let after = self.data_sets.partition_point(|one| one.first <= entry);
        self.data_sets[..after].last_mut().filter(|one| u64::from(entry - one.first) < one.samples.count())
    }

    /// A consumer has announced its first epoch.
    pub(super) const fn note_announced(&mut self) {
        self.expected = self.expected.saturating_sub(1);
    }
}

impl NodePlanner {
    /// `consumers` will attach and announce accesses, and together use every entry. Until each has announced an epoch, all
    /// entries count as used if the tiers can hold them all.
    pub fn handle_expected(&mut self, consumers: u32) {
        self.groups.expected = consumers;
    }

    /// The entries from `first` on, which were added last, are the samples of a data set: some are read in groups, by
    /// [`SampleSizes::grouped_range`].
    pub fn handle_data_set(&mut self, EntryId(first): EntryId, samples: Arc<dyn SampleSizes>) {
        let start = GroupStart::new(samples.count());
        self.groups.data_sets.push(GroupedEntries { first, samples, start });
    }

    /// The entries from `first` on, which were added as a data set, are read alone from now on.
    pub fn handle_ungrouped(&mut self, EntryId(first): EntryId) {
        self.groups.data_sets.retain(|one| one.first != first);
    }

    /// Begin to read the other entries of the group of an entry that is read from the origin. Returns them with the earliest
    /// deadlines of their requests.
    pub(super) fn begin_group(&mut self, entry: u32) -> Vec<(u32, Nanos)> {
        let mut others = Vec::new();
        let Some(GroupedEntries { first, samples, start }) = self.groups.of(entry) else { return others };
        let (first, samples) = (*first, Arc::clone(samples));
        if !start.is_grouped() || !self.may_have_space(entry) {
            return others;
        }
        let range_of = |sample: u64| samples.grouped_range(SampleId(sample));
        let entry_of = |sample: u64| first + narrow(usize::try_from(sample).expect("an entry of the node"));
        let is_wanted = |sample: u64| self.is_wanted_in_group(entry_of(sample));
        for (sample, _) in neighbours(u64::from(entry - first), range_of, is_wanted) {
            let other = entry_of(sample);
            if !self.has_space_in_group(other) {
                break;
            }
            let deadline = self.start_waiting(other);
            self.note_read(other, Source::Origin, deadline);
            others.push((other, deadline));
        }
        if let Some(one) = self.groups.of(entry).filter(|_| !others.is_empty()) {
            one.start.handle_group();
        }
        others
    }

    /// Whether an entry is missing and will be used.
    fn is_wanted_in_group(&self, entry: u32) -> bool {
        let present = [flag::IN_MEMORY, flag::READING, flag::ON_DISK, flag::STORING];
        let is_present = present.into_iter().any(|flag| self.residents.is(entry, flag));
        let is_used = || {
            self.groups.expected > 0 && self.fits_all()
                || self.active.contains_key(&entry)
                || self.residents.next_use(entry, &self.consumers).is_some()
        };
        !is_present && is_used()
    }

    /// Whether there may be memory for entries like this one.
    fn may_have_space(&self, entry: u32) -> bool {
        let cost = self.residents.memory.limits.cost(self.residents.size(entry));
        let has_memory = cost <= self.residents.memory.free() || self.disk_can_hold_all();
        has_memory && self.active.len() < ACTIVE_MAX
    }

    fn disk_can_hold_all(&self) -> bool {
        self.data_cost.disk <= self.residents.disk.limits.capacity
    }

    /// Whether there is memory for an entry of a group. If the disk can hold all entries, those that are used later make
    /// space.
    fn has_space_in_group(&mut self, entry: u32) -> bool {
        let cost = self.residents.memory.limits.cost(self.residents.size(entry));
        let next = self.residents.next_use(entry, &self.consumers).map(|(time, _)| time);
        match next {
            Some(time) if self.disk_can_hold_all() => {
                self.make_space(cost, SpaceFor::ReadAhead(time)) == FreeSpace::Ready
            }
            _ => cost <= self.residents.memory.free(),
        }
    }
}
