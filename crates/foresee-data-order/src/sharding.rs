// SPDX-License-Identifier: Apache-2.0
//! Distribution of the rest of an epoch to the ranks, at any world size and from any position.
//!
//! ```text
//! positions  start ............... len | len ......... end
//! samples    L[start] ... L[len - 1]   | L[0], L[1], ...      padding, repeated as often as needed
//! ranks      0 1 .. N-1 0 1 .. N-1 ...                        in groups: 1 sample, or a batch
//! ```
//!
//! Positions count the samples of all ranks, so they mean the same at every world size. After s steps of batch B,
//! N ranks have handed out exactly the positions below s B N, and N' ranks continue from there. It is separate
//! from the list: there is one list per epoch, but every resume distributes again.

use std::ops::Range;

use foresee_units::{Rank, SampleId};

use crate::{EpochOrder, OrderError, Tail};

/// An epoch from a position on, distributed to a number of ranks. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ShardedEpoch {
    order: EpochOrder,
    size: u32,
    start: u64,
    end: u64,
}

impl ShardedEpoch {
    pub(crate) fn new(order: EpochOrder, size: u32, start: u64) -> Result<Self, OrderError> {
        if size == 0 {
            return Err(OrderError::NoRanks);
        }
        let n = order.len();
        let rest = n.checked_sub(start).ok_or(OrderError::PositionPastEnd { position: start, n })?;
        let group = order.group().get();
        let too_many = OrderError::TooManyPositions { n, size, group };
        let round = group.checked_mul(u64::from(size)).ok_or(too_many.clone())?;
        let count = match order.tail() {
            Tail::Pad => rest.div_ceil(round).checked_mul(round).ok_or(too_many.clone())?,
            Tail::Cut => rest / round * round,
            Tail::Uneven => rest,
        };
        let end = start.checked_add(count).ok_or(too_many)?;
        Ok(Self { order, size, start, end })
    }

    /// The epoch's list.
    pub const fn order(&self) -> &EpochOrder {
        &self.order
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
        let range = self.start..self.end;
        assert!(range.contains(&position), "position {position} of {range:?}");
        self.id_unchecked(position)
    }

    /// The same, for a position that is known to be within the range.
    fn id_unchecked(&self, position: u64) -> SampleId {
        let n = self.order.len();
        self.order.id(if position < n { position } else { (position - n) % n })
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
        let count = self.end - self.start;
        let short = (count % round).saturating_sub(u64::from(rank.0) * group).min(group);
        Ok(RankStream { epoch: self.clone(), rank, len: count / round * group + short })
    }

    /// Positions from one group of a rank to its next.
    fn round(&self) -> u64 {
        self.order.group().get() * u64::from(self.size)
    }
}

/// The samples of one rank in the rest of one epoch. Cheap to clone; random access in constant time.
#[derive(Clone, Debug)]
pub struct RankStream {
    epoch: ShardedEpoch,
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

    /// The `index`-th sample of this rank.
    ///
    /// # Panics
    /// If `index` is not below [`len`](Self::len).
    pub fn get(&self, index: u64) -> SampleId {
        self.epoch.id_unchecked(self.position(index))
    }

    /// The global position of this rank's `index`-th sample, as used by states, plans and audits.
    ///
    /// # Panics
    /// If `index` is not below [`len`](Self::len).
    pub fn position(&self, index: u64) -> u64 {
        assert!(index < self.len, "sample {index} of {} of rank {}", self.len, self.rank);
        let group = self.epoch.order.group().get();
        let rank = u64::from(self.rank.0);
        // Groups of one are the common case, and a division per sample would be its largest cost.
        let offset = if group == 1 {
            index * u64::from(self.epoch.size) + rank
        } else {
            index / group * self.epoch.round() + rank * group + index % group
        };
        self.epoch.start + offset
    }

    /// The samples at `range` of this rank's order, as in `out.extend(stream.ids(0..64))`.
    ///
    /// # Panics
    /// If the range exceeds [`len`](Self::len).
    pub fn ids(&self, range: Range<u64>) -> impl Iterator<Item = SampleId> + '_ {
        assert!(range.end <= self.len, "samples {range:?} of {} of rank {}", self.len, self.rank);
        range.map(|index| self.get(index))
    }

    /// All samples of this rank.
    pub fn iter(&self) -> impl Iterator<Item = SampleId> + '_ {
        self.ids(0..self.len)
    }
}
