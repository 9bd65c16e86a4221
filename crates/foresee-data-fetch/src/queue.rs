// SPDX-License-Identifier: Apache-2.0
//! Waiting requests, indexed in every order in which they are searched.
//!
//! Each order is an index over the same tickets: by turn and deadline inside a class, by position inside an
//! object, and by the end of a pause. The queue stores keys and not the requests: a caller that changes a request
//! removes it first and inserts it afterwards.

use std::collections::BTreeSet;

use foresee_units::{Extent, Nanos};

use crate::coalesce;
use crate::config::CoalesceConfig;
use crate::request::{Class, Request};

/// Position of a ticket inside its class: turn, deadline, ticket.
type ClassKey = (u64, Nanos, u64);
/// Position of a ticket inside its object: object, first byte, ticket.
type RangeKey = (u64, u64, u64);

/// Ready and paused tickets of one source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    ready: [BTreeSet<ClassKey>; Class::ALL.len()],
    /// Only maintained if ranges are joined.
    ranges: Option<BTreeSet<RangeKey>>,
    pausing: BTreeSet<(Nanos, u64)>,
}

impl Queue {
    pub(crate) fn new(coalescing: bool) -> Self {
        Self { ranges: coalescing.then(BTreeSet::new), ..Self::default() }
    }

    /// Number of waiting tickets, including paused ones.
    pub(crate) fn len(&self) -> usize {
        self.ready.iter().map(BTreeSet::len).sum::<usize>() + self.pausing.len()
    }

    /// Number of tickets of `class` that could be started now.
    pub(crate) fn ready(&self, class: Class) -> u64 {
        self.ready[class as usize].len() as u64
    }

    /// Number of tickets of `class` that could be started now, of turns up to `turn` if there is one; at most `most`.
    pub(crate) fn count_until(&self, class: Class, turn: Option<u64>, most: usize) -> usize {
        let in_turn = |&&(own, ..): &&ClassKey| turn.is_none_or(|turn| own <= turn);
        self.ready[class as usize].iter().take_while(in_turn).take(most).count()
    }

    /// Add `request`; `is_single` prevents that it is joined with others.
    pub(crate) fn insert(&mut self, request: &Request, is_single: bool) {
        self.ready[request.class as usize].insert(class_key(request));
        if let (Some(ranges), false) = (&mut self.ranges, is_single) {
            ranges.insert((request.object, request.start, request.ticket));
        }
    }

    /// Remove `request`.
    pub(crate) fn remove(&mut self, request: &Request) {
        self.ready[request.class as usize].remove(&class_key(request));
        if let Some(ranges) = &mut self.ranges {
            ranges.remove(&(request.object, request.start, request.ticket));
        }
    }

    /// Pause `ticket` until `until`.
    pub(crate) fn pause(&mut self, ticket: u64, until: Nanos) {
        self.pausing.insert((until, ticket));
    }

    /// End a pause early.
    pub(crate) fn resume(&mut self, ticket: u64, until: Nanos) {
        self.pausing.remove(&(until, ticket));
    }

    /// Remove and return a ticket whose pause is over.
    pub(crate) fn pop_resumable(&mut self, now: Nanos) -> Option<u64> {
        let (until, _) = *self.pausing.first()?;
        if until > now {
            return None;
        }
        self.pausing.pop_first().map(|(_, ticket)| ticket)
    }

    /// When the next pause is over.
    pub(crate) fn next_resume(&self) -> Option<Nanos> {
        self.pausing.first().map(|(until, _)| *until)
    }

    /// The first ticket of each class.
    pub(crate) fn heads(&self) -> impl Iterator<Item = (Class, u64)> {
        Class::ALL.into_iter().zip(&self.ready).filter_map(|(class, ready)| {
            let (.., ticket) = *ready.first()?;
            Some((class, ticket))
        })
    }

    /// Grow a span around `seed` over ready neighbours of its object; `lookup` returns a ticket's request.
    ///
    /// A group is joined as a whole. Outside of groups, a read that a consumer waits for is not extended: a stalling seed is
    /// joined only with stalling neighbours.
    /// The seed's own ticket comes first, the others in the order in which they were joined.
    pub(crate) fn grow<'a>(
        &self,
        seed: &Request,
        config: &CoalesceConfig,
        lookup: impl Fn(u64) -> &'a Request,
    ) -> (Extent, Vec<u64>) {
        let mut extent = Extent::new(seed.start, seed.end());
        let mut tickets = vec![seed.ticket];
        let Some(ranges) = &self.ranges else {
            return (extent, tickets);
        };
        let own = (seed.object, seed.start, seed.ticket);
        if !ranges.contains(&own) {
            return (extent, tickets);
        }
        let mut join = |range: &RangeKey| {
            let request = lookup(range.2);
            if seed.group.is_some() {
                if request.group == seed.group {
                    extent = extent.with(request.start, request.end());
                    tickets.push(request.ticket);
                }
                // Members of a group may be behind others.
                return request.start <= extent.end.saturating_add(config.gap.get());
            }
            if tickets.len() >= config.max_parts
                || request.group.is_some()
                || (seed.class == Class::Stalling && request.class != Class::Stalling)
            {
                return false;
            }
            let Some(grown) = coalesce::join(extent, request.start, request.end(), config) else {
                return false;
            };
            extent = grown;
            tickets.push(request.ticket);
            true
        };
        let last = (seed.object, u64::MAX, u64::MAX);
        let mut after = ranges.range((std::ops::Bound::Excluded(own), std::ops::Bound::Included(last)));
        while after.next().is_some_and(&mut join) {}
        let mut before = ranges.range((seed.object, 0, 0)..own);
        while before.next_back().is_some_and(&mut join) {}
        (extent, tickets)
    }
}

const fn class_key(request: &Request) -> ClassKey {
    (request.turn, request.deadline, request.ticket)
}
