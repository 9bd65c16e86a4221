// SPDX-License-Identifier: Apache-2.0
//! Distribution of the rest of an epoch to the ranks, at any world size and from any position.
//!
//! ```text
//! positions  start ............... len | len ......... end
//! samples    L[start] ... L[len - 1]   | L[0], L[1], ...      padding, round and round
//! ranks      0 1 .. N-1 0 1 .. N-1 ...                        in groups: 1 sample, or a batch
//! ```
//!
//! Positions count the samples of all ranks, so they mean the same at every world size. After s steps of batch B,
//! N ranks have handed out exactly the positions below s B N, and N' ranks continue from there. It is separate
//! from the list: there is one list per epoch, but every resume distributes again.

use std::iter::FusedIterator;
use std::ops::Range;

use foresee_units::{Rank, SampleId};

use crate::{EpochOrder, OrderError, Tail};

/// An epoch from a position on, distributed to a number of ranks. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Deal {
    order: EpochOrder,
    size: u32,
    start: u64,
    end: u64,
}

impl Deal {
    pub(crate) fn new(order: EpochOrder, size: u32, start: u64) -> Result<Self, OrderError> {
        if size == 0 {
            return Err(OrderError::NoRanks);
        }
        let n = order.len();
        let rest = n.checked_sub(start).ok_or(OrderError::PositionBehindEnd { position: start, n })?;
        let group = order.group().get();
        let too_many = OrderError::TooManyPositions { n, size, group };
        let round = group.checked_mul(u64::from(size)).ok_or(too_many.clone())?;
        let dealt = match order.tail() {
            Tail::Pad => rest.div_ceil(round).checked_mul(round).ok_or(too_many.clone())?,
            Tail::Cut => rest / round * round,
            Tail::Uneven => rest,
        };
        let end = start.checked_add(dealt).ok_or(too_many)?;
        Ok(Self { order, size, start, end })
    }

    /// The epoch's list.
    pub const fn order(&self) -> &EpochOrder {
        &self.order
    }

    /// The number of ranks.
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// The first position.
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// One past the last position; at least the list's length if it was padded.
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// The sample at a position.
    ///
    /// # Panics
    /// If the position is not within `start..end`.
    pub fn id(&self, position: u64) -> SampleId {
        assert!(
            (self.start..self.end).contains(&position),
            "position {position} of {}..{}",
            self.start,
            self.end
        );
        self.id_unchecked(position)
    }

    /// The same, for a position that is known to be within the range.
    fn id_unchecked(&self, position: u64) -> SampleId {
        let n = self.order.len();
        self.order.id(if position < n { position } else { (position - n) % n })
    }

    /// The rank of a position.
    ///
    /// # Panics
    /// If the position is not within `start..end`.
    pub fn rank_of(&self, position: u64) -> Rank {
        assert!(
            (self.start..self.end).contains(&position),
            "position {position} of {}..{}",
            self.start,
            self.end
        );
        let turn = (position - self.start) / self.order.group() % u64::from(self.size);
        Rank(u32::try_from(turn).expect("a remainder of a u32"))
    }

    /// The samples of one rank.
    ///
    /// # Errors
    /// [`OrderError::NoSuchRank`].
    pub fn rank(&self, rank: Rank) -> Result<RankStream, OrderError> {
        if rank.0 >= self.size {
            return Err(OrderError::NoSuchRank { rank, size: self.size });
        }
        let (group, round) = (self.order.group().get(), self.round());
        let dealt = self.end - self.start;
        let short = (dealt % round).saturating_sub(u64::from(rank.0) * group).min(group);
        Ok(RankStream { deal: self.clone(), rank, len: dealt / round * group + short })
    }

    /// The first position after `after` (from the start on, if `None`) at which `id` is used: by `rank`, or by
    /// any rank.
    ///
    /// Constant time for a computed order ([`Order::Keyed`](crate::Order::Keyed), sequential); a drawn list is
    /// searched linearly.
    pub fn next_use(&self, id: SampleId, after: Option<u64>, rank: Option<Rank>) -> Option<u64> {
        let n = self.order.len();
        let from = after.map_or(self.start, |after| after.saturating_add(1).max(self.start));
        let places = self.order.places(id);
        // A place occurs at its own position, then once per repetition of the padding.
        let turns = (0..)
            .map(|turn| n.checked_mul(turn))
            .take_while(|first| first.is_some_and(|first| first < self.end));
        turns
            .flatten()
            .flat_map(|first| places.iter().map_while(move |place| first.checked_add(*place)))
            .filter(|&position| position >= from && position < self.end)
            .find(|&position| rank.is_none_or(|rank| self.rank_of(position) == rank))
    }

    /// Positions until the same rank has its next turn.
    fn round(&self) -> u64 {
        self.order.group().get() * u64::from(self.size)
    }
}

/// The samples of one rank in the rest of one epoch. Cheap to clone; random access in constant time.
#[derive(Clone, Debug)]
pub struct RankStream {
    deal: Deal,
    rank: Rank,
    len: u64,
}

impl RankStream {
    /// The number of samples of this rank.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether this rank has no samples.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The rank.
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// The samples of all ranks.
    pub const fn deal(&self) -> &Deal {
        &self.deal
    }

    /// The `index`-th sample of this rank.
    ///
    /// # Panics
    /// If `index` is not below [`len`](Self::len).
    pub fn get(&self, index: u64) -> SampleId {
        self.deal.id_unchecked(self.position(index))
    }

    /// The global position of this rank's `index`-th sample, as used by states, plans and audits.
    ///
    /// # Panics
    /// If `index` is not below [`len`](Self::len).
    pub fn position(&self, index: u64) -> u64 {
        assert!(index < self.len, "sample {index} of {} of rank {}", self.len, self.rank);
        let group = self.deal.order.group().get();
        let rank = u64::from(self.rank.0);
        // Groups of one are the common case, and a division per sample would be its largest cost.
        let dealt = if group == 1 {
            index * u64::from(self.deal.size) + rank
        } else {
            index / group * self.deal.round() + rank * group + index % group
        };
        self.deal.start + dealt
    }

    /// The samples at `range` of this rank's order, as in `out.extend(stream.ids(0..64))`.
    ///
    /// # Panics
    /// If the range exceeds [`len`](Self::len).
    pub fn ids(&self, range: Range<u64>) -> RankIds<'_> {
        assert!(range.end <= self.len, "samples {range:?} of {} of rank {}", self.len, self.rank);
        RankIds { stream: self, range }
    }

    /// All samples of this rank.
    pub fn iter(&self) -> RankIds<'_> {
        self.ids(0..self.len)
    }
}

impl<'a> IntoIterator for &'a RankStream {
    type Item = SampleId;
    type IntoIter = RankIds<'a>;

    fn into_iter(self) -> RankIds<'a> {
        self.iter()
    }
}

/// Samples of one rank, one after the other.
#[derive(Clone, Debug)]
pub struct RankIds<'a> {
    stream: &'a RankStream,
    range: Range<u64>,
}

impl Iterator for RankIds<'_> {
    type Item = SampleId;

    fn next(&mut self) -> Option<SampleId> {
        self.range.next().map(|index| self.stream.get(index))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.range.size_hint()
    }
}

impl FusedIterator for RankIds<'_> {}
