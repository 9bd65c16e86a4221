// SPDX-License-Identifier: Apache-2.0
//! Requests that wait for a start, in every order in which they are looked for.
//!
//! Apart from the dispatch, because each order is an index over the same tickets: by turn and deadline inside a
//! class, by place inside an object, by the moment at which a pause is over. Refuses to own the requests:
//! it keeps keys, and whoever changes a request takes it out first and puts it back after.

use std::collections::BTreeSet;

use foresee_units::Nanos;

use crate::coalesce::Extent;
use crate::config::CoalesceConfig;
use crate::request::{Class, Request};

/// When a ticket comes inside its class: turn, deadline, ticket.
type Moment = (u64, Nanos, u64);
/// Where a ticket lies inside its object: object, first byte, ticket.
type Place = (u64, u64, u64);

/// Ready and pausing tickets of one source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    ready: [BTreeSet<Moment>; Class::ALL.len()],
    /// Only kept where ranges are joined.
    places: Option<BTreeSet<Place>>,
    pausing: BTreeSet<(Nanos, u64)>,
}

impl Queue {
    pub(crate) fn new(coalescing: bool) -> Self {
        Self { places: coalescing.then(BTreeSet::new), ..Self::default() }
    }

    /// Waiting tickets, pausing ones included.
    pub(crate) fn len(&self) -> usize {
        self.ready.iter().map(BTreeSet::len).sum::<usize>() + self.pausing.len()
    }

    /// Tickets of `class` that could be started now.
    pub(crate) fn ready(&self, class: Class) -> u64 {
        self.ready[class as usize].len() as u64
    }

    /// Lets `request` wait for a start; `alone` keeps it from being joined with others.
    pub(crate) fn insert(&mut self, request: &Request, alone: bool) {
        self.ready[request.class as usize].insert(moment(request));
        if let (Some(places), false) = (&mut self.places, alone) {
            places.insert((request.object, request.start, request.ticket));
        }
    }

    /// Takes `request` out.
    pub(crate) fn remove(&mut self, request: &Request) {
        self.ready[request.class as usize].remove(&moment(request));
        if let Some(places) = &mut self.places {
            places.remove(&(request.object, request.start, request.ticket));
        }
    }

    /// Lets `ticket` pause until `until`.
    pub(crate) fn pause(&mut self, ticket: u64, until: Nanos) {
        self.pausing.insert((until, ticket));
    }

    /// Ends a pause early.
    pub(crate) fn resume(&mut self, ticket: u64, until: Nanos) {
        self.pausing.remove(&(until, ticket));
    }

    /// A ticket whose pause is over.
    pub(crate) fn pop_rested(&mut self, now: Nanos) -> Option<u64> {
        let (until, _) = *self.pausing.first()?;
        if until > now {
            return None;
        }
        self.pausing.pop_first().map(|(_, ticket)| ticket)
    }

    /// When the next pause is over.
    pub(crate) fn next_rested(&self) -> Option<Nanos> {
        self.pausing.first().map(|(until, _)| *until)
    }

    /// The ticket that comes first in each class.
    pub(crate) fn heads(&self) -> impl Iterator<Item = (Class, u64)> {
        Class::ALL.into_iter().zip(&self.ready).filter_map(|(class, ready)| {
            let (.., ticket) = *ready.first()?;
            Some((class, ticket))
        })
    }

    /// Grows a span around `seed` over ready neighbours of its object; `lookup` names a ticket's request.
    ///
    /// Nobody lengthens the read that a consumer stands and waits for: a stalling seed takes along stalling
    /// neighbours only. The seed's own ticket comes first, the others in the order of their joining.
    pub(crate) fn grow<'a>(
        &self,
        seed: &Request,
        config: &CoalesceConfig,
        lookup: impl Fn(u64) -> &'a Request,
    ) -> (Extent, Vec<u64>) {
        let mut extent = Extent::new(seed.start, seed.end());
        let mut tickets = vec![seed.ticket];
        let Some(places) = &self.places else {
            return (extent, tickets);
        };
        let here = (seed.object, seed.start, seed.ticket);
        if !places.contains(&here) {
            return (extent, tickets);
        }
        let mut join = |place: &Place| {
            let request = lookup(place.2);
            if tickets.len() >= config.max_parts
                || (seed.class == Class::Stalling && request.class != Class::Stalling)
            {
                return false;
            }
            let Some(grown) = extent.with(request.start, request.end(), config) else {
                return false;
            };
            extent = grown;
            tickets.push(request.ticket);
            true
        };
        let last = (seed.object, u64::MAX, u64::MAX);
        let mut after = places.range((std::ops::Bound::Excluded(here), std::ops::Bound::Included(last)));
        while after.next().is_some_and(&mut join) {}
        let mut before = places.range((seed.object, 0, 0)..here);
        while before.next_back().is_some_and(&mut join) {}
        (extent, tickets)
    }
}

const fn moment(request: &Request) -> Moment {
    (request.turn, request.deadline, request.ticket)
}
