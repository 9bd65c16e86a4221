// SPDX-License-Identifier: Apache-2.0
//! Next uses and counts of samples, for planners.
//!
//! Two implementations give the same result. [`next_use`] computes it for single samples from the inverse of the
//! order, in constant time for the keyed order. [`Window`] is a table of the accesses of all ranks in a range of
//! the run, for drawn orders and for queries about most samples.

use std::ops::Range;

use foresee_units::{Epoch, Rank, SampleId};

use crate::ids::room;
use crate::{Deal, Ids, Order, OrderError};

/// The number of occurrences of each of `n` samples in `ids`: the accesses of a rank in an epoch, a window or a
/// whole run.
///
/// # Errors
/// [`OrderError::NoMemory`] (4 bytes per sample); [`OrderError::NoSuchSample`] for an id that is not below n.
pub fn access_counts(n: u64, ids: impl IntoIterator<Item = SampleId>) -> Result<Vec<u32>, OrderError> {
    let mut counts = room(n)?;
    counts.extend((0..n).map(|_| 0_u32));
    for sample in ids {
        let count = usize::try_from(sample.0)
            .ok()
            .and_then(|place| counts.get_mut(place))
            .ok_or(OrderError::NoSuchSample { sample, n })?;
        *count = count.saturating_add(1);
    }
    Ok(counts)
}

/// The next use of `id` by `rank` (by any rank, if `None`) after position `after` of the current epoch, or in one
/// of the `epochs` epochs after it: the epoch and the position.
///
/// For a computed order each epoch costs one inverse. Therefore a query for any rank is nearly always answered by
/// the first two epochs, and one for a rank after as many as there are ranks, on average. A drawn order is drawn
/// and searched epoch by epoch: build a [`Window`] instead.
///
/// # Errors
/// As [`Order::epoch`] and [`EpochOrder::deal`](crate::EpochOrder::deal).
pub fn next_use(
    order: &Order,
    current: &Deal,
    id: SampleId,
    after: Option<u64>,
    rank: Option<Rank>,
    epochs: u64,
) -> Result<Option<(Epoch, u64)>, OrderError> {
    let now = current.order().epoch().0;
    if let Some(position) = current.next_use(id, after, rank) {
        return Ok(Some((Epoch(now), position)));
    }
    for epoch in (now..now.saturating_add(epochs)).map(|epoch| Epoch(epoch + 1)) {
        let deal = order.epoch(epoch)?.deal(current.size(), 0)?;
        if let Some(position) = deal.next_use(id, None, rank) {
            return Ok(Some((epoch, position)));
        }
    }
    Ok(None)
}

/// All accesses of all ranks in a range of the run, indexed by sample.
///
/// A *time* counts them from the window's start, in global order. Memory: 8 bytes per access (12 from 2^32
/// samples on), and the lists of the epochs in the window.
#[derive(Clone, Debug)]
pub struct Window {
    parts: Vec<Part>,
    /// The samples, sorted by sample, then by time; the times are parallel to them.
    ids: Ids,
    times: Vec<u32>,
}

/// The part of one epoch in a window.
#[derive(Clone, Debug)]
struct Part {
    times: Range<u64>,
    deal: Deal,
}

impl Window {
    /// The next `accesses` accesses from the start of `current`, epoch after epoch; fewer if epochs are empty.
    ///
    /// # Errors
    /// [`OrderError::NoMemory`]; otherwise as [`Order::epoch`] and [`EpochOrder::deal`](crate::EpochOrder::deal).
    pub fn new(order: &Order, current: &Deal, accesses: u32) -> Result<Self, OrderError> {
        let limit = u64::from(accesses);
        let mut parts = Vec::new();
        let mut pairs: Vec<(u64, u32)> = room(limit)?;
        let mut deal = current.clone();
        loop {
            let begin = pairs.len() as u64;
            let count = (deal.end() - deal.start()).min(limit - begin);
            let positions = deal.start()..deal.start() + count;
            pairs.extend(positions.map(|position| deal.id(position).0).zip(time(begin)..));
            // The current epoch may be over; one that is empty from its start stays so.
            let empty = count == 0 && deal.start() == 0;
            let (size, next) = (deal.size(), deal.order().epoch().0.checked_add(1));
            parts.push(Part { times: begin..begin + count, deal });
            match next {
                Some(next) if (pairs.len() as u64) < limit && !empty => {
                    deal = order.epoch(Epoch(next))?.deal(size, 0)?;
                }
                _ => break,
            }
        }
        pairs.sort_unstable();
        let mut ids = Ids::with_room(order.n(), pairs.len() as u64)?;
        for &(id, _) in &pairs {
            ids.push(SampleId(id));
        }
        Ok(Self { parts, ids, times: pairs.into_iter().map(|(_, time)| time).collect() })
    }

    /// The number of accesses.
    pub fn len(&self) -> u64 {
        self.ids.len()
    }

    /// Whether the window is empty.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The epoch, position and rank of the access at `time`.
    ///
    /// # Panics
    /// If `time` is not below [`len`](Self::len).
    pub fn at(&self, time: u32) -> (Epoch, u64, Rank) {
        let part = self.part(time);
        let position = part.deal.start() + (u64::from(time) - part.times.start);
        (part.deal.order().epoch(), position, part.deal.rank_of(position))
    }

    /// The sample at `time`.
    ///
    /// # Panics
    /// If `time` is not below [`len`](Self::len).
    pub fn id(&self, time: u32) -> SampleId {
        let part = self.part(time);
        part.deal.id(part.deal.start() + (u64::from(time) - part.times.start))
    }

    /// The first access of `id` after time `after` (from the start on, if `None`), by `rank` or by any rank.
    pub fn next_use(&self, id: SampleId, after: Option<u32>, rank: Option<Rank>) -> Option<u32> {
        let from = after.map_or(0, |after| u64::from(after) + 1);
        self.uses(id).find(|&time| u64::from(time) >= from && rank.is_none_or(|rank| self.at(time).2 == rank))
    }

    /// The times of `id`, ascending.
    pub fn uses(&self, id: SampleId) -> impl Iterator<Item = u32> + '_ {
        let first = self.ids.partition_point(|other| other < id);
        let behind = self.ids.partition_point(|other| other <= id);
        self.times[first..behind].iter().copied()
    }

    fn part(&self, time: u32) -> &Part {
        let time = u64::from(time);
        let place = self.parts.partition_point(|part| part.times.end <= time);
        self.parts.get(place).unwrap_or_else(|| panic!("time {time} of a window of {}", self.len()))
    }
}

/// A time in the width of the tables.
fn time(count: u64) -> u32 {
    u32::try_from(count).expect("a window holds fewer than 2^32 accesses")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDERS: [Order; 4] = [
        Order::Distributed { n: 23, seed: 5, shuffle: true, drop_last: false },
        Order::Distributed { n: 3, seed: 5, shuffle: true, drop_last: false },
        Order::Keyed { n: 1500, seed: 5, drop_last: true },
        Order::Sequential { n: 17, drop_last: false },
    ];

    /// Every access of `epochs` epochs from position `start` of epoch 1 on: epoch, position, rank, sample.
    fn replay(order: &Order, size: u32, start: u64, epochs: u64) -> Vec<(Epoch, u64, Rank, SampleId)> {
        let mut all = Vec::new();
        for epoch in 1..=epochs {
            let start = if epoch == 1 { start } else { 0 };
            let deal = order.epoch(Epoch(epoch)).unwrap().deal(size, start).unwrap();
            all.extend((start..deal.end()).map(|p| (Epoch(epoch), p, deal.rank_of(p), deal.id(p))));
        }
        all
    }

    #[test]
    fn table_and_inverse_give_the_next_use_of_a_replay() {
        for order in ORDERS {
            let (size, start) = (4, order.n() / 3);
            let all = replay(&order, size, start, 3);
            let current = order.epoch(Epoch(1)).unwrap().deal(size, start).unwrap();
            let window = Window::new(&order, &current, u32::try_from(all.len()).unwrap()).unwrap();
            assert_eq!(window.len(), all.len() as u64);
            for (now, &(epoch, position, rank, id)) in (0..).zip(&all) {
                assert_eq!((window.at(now), window.id(now)), ((epoch, position, rank), id));
                if order.n() > 100 && now % 37 > 0 {
                    continue;
                }
                for who in [None, Some(rank), Some(Rank(2))] {
                    let next = (now + 1..).zip(&all[now as usize + 1..]);
                    let expect = next.clone().find(|(_, a)| a.3 == id && who.is_none_or(|who| a.2 == who));
                    assert_eq!(window.next_use(id, Some(now), who), expect.map(|(time, _)| time));
                    let deal =
                        order.epoch(epoch).unwrap().deal(size, if epoch.0 == 1 { start } else { 0 }).unwrap();
                    let computed = next_use(&order, &deal, id, Some(position), who, 3 - epoch.0).unwrap();
                    assert_eq!(computed, expect.map(|(_, a)| (a.0, a.1)), "{order:?} {id} by {who:?}");
                }
            }
        }
    }

    #[test]
    fn a_keyed_order_of_10_to_the_12_samples_finds_the_next_use_at_once() {
        let order = Order::Keyed { n: 1_000_000_000_000, seed: 9, drop_last: false };
        let deal = order.epoch(Epoch(0)).unwrap().deal(64, 0).unwrap();
        let id = deal.id(123_456_789_012);
        assert_eq!(next_use(&order, &deal, id, None, None, 0).unwrap(), Some((Epoch(0), 123_456_789_012)));
        let (epoch, position) =
            next_use(&order, &deal, id, Some(123_456_789_012), Some(Rank(7)), 10_000).unwrap().unwrap();
        let later = order.epoch(epoch).unwrap().deal(64, 0).unwrap();
        assert_eq!((later.id(position), later.rank_of(position)), (id, Rank(7)));
    }

    #[test]
    fn counts_of_all_ranks_add_up_to_one_per_epoch_and_the_padding() {
        let order = ORDERS[0];
        let mut sums = [0; 23];
        for rank in 0..4 {
            let world = foresee_units::World::new(rank, 4).unwrap();
            let run = crate::RunStream::new(order, world, Epoch(0), 0, Some(5)).unwrap();
            let counts = access_counts(23, run.map(|access| access.unwrap().id)).unwrap();
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        assert!(sums.iter().all(|&sum| sum >= 5));
        assert_eq!(sums.iter().sum::<u32>(), 24 * 5);
        let error = access_counts(3, [SampleId(3)]).unwrap_err();
        assert_eq!(error, OrderError::NoSuchSample { sample: SampleId(3), n: 3 });
    }

    #[test]
    fn a_window_of_an_empty_order_is_empty() {
        let nothing = Order::Sequential { n: 2, drop_last: true };
        let deal = nothing.epoch(Epoch(0)).unwrap().deal(3, 0).unwrap();
        assert!(Window::new(&nothing, &deal, 100).unwrap().is_empty());
    }
}
