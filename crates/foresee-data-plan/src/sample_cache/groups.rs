// SPDX-License-Identifier: Apache-2.0
//! Samples that are read together: announced ones in their order, for a dataset that reads batches, or neighbours in an
//! object, for data whose ranges are known.

use std::collections::BTreeSet;
use std::fmt;

use foresee_units::{Bytes, Nanos, SampleId};

use super::{CacheConsumer, ReaderId, SampleCachePlanner, number};
use crate::read_group::{ObjectRange, neighbours};

/// Maximum number of samples in a group of neighbours. It bounds messages that name them.
const NEIGHBOURS_MAX: usize = 1 << 12;
/// Samples of a group in order. A request of any of them may wait for all, so a group has no more samples than the
/// consumer has to request before it, but at least the first number: batches have about as many, and are read at once too.
const IN_ORDER_MIN: u64 = 8;
const IN_ORDER_MAX: u64 = 64;
/// Bytes of a group in order, by the mean size: its samples are in memory before they enter the cache.
const IN_ORDER_BYTES_MAX: Bytes = Bytes::new(64 << 20);
/// Fraction of the capacity that a group in order may have: one part in eight.
const IN_ORDER_SHARE: u64 = 8;
/// Data that costs about as much as a request.
const REQUEST_COST: Bytes = Bytes::new(32 << 10);
/// Fraction of the capacity that neighbours may have if the cache cannot hold all samples: one half, so that the other is for
/// samples that are used sooner.
const NEIGHBOUR_SHARE: u64 = 2;

/// Which samples are read together.
#[derive(Clone, Copy, Debug)]
pub enum FetchGrouping<'a> {
    /// Each is read alone.
    Single,
    /// Announced samples in their order: the dataset reads batches.
    InOrder,
    /// Neighbours in an object.
    Neighbours(NeighbourGroups<'a>),
}

/// Samples with known ranges in objects.
#[derive(Clone, Copy)]
pub struct NeighbourGroups<'a> {
    /// The range of a sample; `None` if it is read alone.
    pub range_of: &'a dyn Fn(SampleId) -> Option<ObjectRange>,
    /// Whether the cache can hold all samples: those without an announced use may then be read with others.
    pub holds_all: bool,
    /// Whether other processes read other samples, for example ranks: samples without a known use are then left to them.
    pub has_peers: bool,
}

impl SampleCachePlanner {
    /// The next samples to read together, for `reader`, the first of them as by [`poll_fetch`](Self::poll_fetch); none
    /// where that returns `None`.
    pub fn poll_fetch_group(
        &mut self,
        reader: ReaderId,
        grouping: FetchGrouping<'_>,
        now: Nanos,
    ) -> Vec<SampleId> {
        let Some((distance, first)) = self.start_next(reader, now) else { return Vec::new() };
        let mut group = vec![first];
        match grouping {
            FetchGrouping::Single => {}
            FetchGrouping::InOrder => {
                let most = self.in_order_max(distance);
                while group.len() < most
                    && let Some((_, next)) = self.start_next(reader, now)
                {
                    group.push(next);
                }
            }
            FetchGrouping::Neighbours(groups) => {
                let members = self.neighbours_of(first, groups);
                self.start_neighbours(&mut group, members, groups, reader);
            }
        }
        group.into_iter().map(|index| SampleId(index.into())).collect()
    }

    /// Several samples are requested at once. Those returned are neither cached nor in flight: `reader` reads them, as for
    /// [`SampleLookup::Read`](super::SampleLookup::Read). Neighbours that are worth it are among them. Samples with a read
    /// of their own that are about to be read ahead are not: as many of them are read at a time as there are readers. The
    /// caller [requests](Self::handle_request) all others after these reads; only those returned count as requests.
    pub fn handle_claim(
        &mut self,
        samples: &[SampleId],
        reader: ReaderId,
        grouping: FetchGrouping<'_>,
        now: Nanos,
    ) -> Vec<SampleId> {
        let requested: Vec<u32> = samples.iter().copied().map(number).collect();
        let missing: BTreeSet<u32> =
            requested.iter().copied().filter(|&index| !self.is_available(index)).collect();
        let mut group = Vec::new();
        for index in requested {
            if group.len() >= NEIGHBOURS_MAX {
                break;
            }
            if self.is_available(index) {
                continue;
            }
            let before = group.len();
            let members = match grouping {
                FetchGrouping::Neighbours(groups) => self.neighbours_of(index, groups),
                _ => Vec::new(),
            };
            let is_alone = matches!(grouping, FetchGrouping::Neighbours(_)) && members.is_empty();
            if is_alone && self.is_read_ahead(index) {
                continue;
            }
            self.flights.start(index, reader);
            group.push(index);
            if let FetchGrouping::Neighbours(groups) = grouping {
                let is_requested = |(other, _): &&(u32, u64)| missing.contains(other);
                let saved = REQUEST_COST.get() * members.iter().filter(is_requested).count() as u64;
                if members.iter().map(|&(_, len)| len).sum::<u64>() <= saved {
                    self.start_neighbours(&mut group, members, groups, reader);
                }
            }
            for &each in group[before..].iter().filter(|each| missing.contains(each)) {
                self.count_access(each, now);
            }
        }
        group.into_iter().map(|index| SampleId(index.into())).collect()
    }

    /// Whether a reader will read an announced sample soon.
    fn is_read_ahead(&self, index: u32) -> bool {
        let is_announced = |one: &CacheConsumer| {
            one.is_reading && one.announced.next_use(index).is_some_and(|(_, is_announced)| is_announced)
        };
        self.can_fetch() && self.consumers.values().any(is_announced)
    }

    /// Maximum number of samples in a group whose first one is `distance` accesses away.
    fn in_order_max(&self, distance: u64) -> usize {
        let Some(mean) = self.flights.mean_size() else { return 1 };
        let share = (self.residents.capacity().get() / IN_ORDER_SHARE).min(IN_ORDER_BYTES_MAX.get());
        let fit = share / mean.get().max(1);
        usize::try_from(distance.clamp(IN_ORDER_MIN, IN_ORDER_MAX).min(fit)).expect("it is small")
    }

    /// The neighbours to read with a sample, with their bytes.
    fn neighbours_of(&self, index: u32, groups: NeighbourGroups<'_>) -> Vec<(u32, u64)> {
        let knows_order = self.consumers.values().any(|one| one.announced.knows_order());
        let is_wanted = |id: u64| {
            let other = number(SampleId(id));
            let uses = self.consumers.values().filter_map(|one| one.announced.next_use(other));
            !self.is_available(other)
                && match uses.map(|(_, is_announced)| is_announced).max() {
                    Some(true) => true,
                    Some(false) => groups.holds_all,
                    None => groups.holds_all && !groups.has_peers && !knows_order,
                }
        };
        let members = neighbours(index.into(), |id| (groups.range_of)(SampleId(id)), is_wanted);
        members.into_iter().map(|(id, range)| (number(SampleId(id)), range.len)).collect()
    }

    /// Start the reads of neighbours, as far as they fit.
    fn start_neighbours(
        &mut self,
        group: &mut Vec<u32>,
        members: Vec<(u32, u64)>,
        groups: NeighbourGroups<'_>,
        reader: ReaderId,
    ) {
        let share = self.residents.capacity().get() / NEIGHBOUR_SHARE;
        for (member, _) in members {
            let used = self.residents.announced_bytes() + self.flights.expected_bytes();
            if group.len() >= NEIGHBOURS_MAX || !groups.holds_all && used.get() > share {
                return;
            }
            self.flights.start(member, reader);
            group.push(member);
        }
    }

    /// Whether a sample is cached or in flight.
    fn is_available(&self, index: u32) -> bool {
        self.residents.contains(index) || self.flights.contains(index)
    }
}

impl fmt::Debug for NeighbourGroups<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NeighbourGroups").field("holds_all", &self.holds_all).finish_non_exhaustive()
    }
}
