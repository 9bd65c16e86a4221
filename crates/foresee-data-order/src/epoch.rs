// SPDX-License-Identifier: Apache-2.0
//! One epoch's list of samples, drawn or computed: the same for every world size and every position of a resume.

use std::num::NonZeroU64;
use std::sync::Arc;

use foresee_units::{Epoch, SampleId, World};

use crate::{Avoid, Ids, Keyed, OrderError, RankStream, ShardedEpoch};

/// The treatment of an epoch that does not divide evenly among the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tail {
    /// The list is repeated from its head as often as needed: ranks have equally many samples, and some occur
    /// twice.
    Pad,
    /// The list is cut: ranks have equally many samples, and some do not occur.
    Cut,
    /// Every sample occurs once; some ranks have fewer.
    Uneven,
}

/// The list `L` of one epoch. Cheap to clone: clones share the list.
#[derive(Clone, Debug)]
pub struct EpochOrder {
    epoch: Epoch,
    seed: u64,
    list: List,
    group: NonZeroU64,
    tail: Tail,
    avoid: Option<Avoid>,
}

#[derive(Clone, Debug)]
pub(crate) enum List {
    Sequential(u64),
    Keyed(Keyed),
    Stored(Arc<Ids>),
}

impl List {
    pub(crate) fn stored(ids: Ids) -> Self {
        Self::Stored(Arc::new(ids))
    }
}

impl EpochOrder {
    pub(crate) const fn new(epoch: Epoch, seed: u64, list: List, group: NonZeroU64, tail: Tail) -> Self {
        Self { epoch, seed, list, group, tail, avoid: None }
    }

    /// The same epoch with a substitute at each place of an avoided sample; lengths and positions stay.
    #[must_use]
    pub fn avoiding(mut self, avoid: &Avoid) -> Self {
        self.avoid = Some(avoid.clone()).filter(|avoid| !avoid.is_empty());
        self
    }

    /// The order of a list from another sampler: `RandomSampler` on a generator, or any finite sampler.
    ///
    /// `seed` only identifies the list in the audit. Samples may occur repeatedly or not at all.
    pub fn from_list(epoch: Epoch, seed: u64, ids: Ids, tail: Tail) -> Self {
        Self::new(epoch, seed, List::stored(ids), NonZeroU64::MIN, tail)
    }

    /// The number of the epoch.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The seed of its order.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// The number of places in the list.
    pub fn len(&self) -> u64 {
        match &self.list {
            List::Sequential(n) => *n,
            List::Keyed(keyed) => keyed.n(),
            List::Stored(ids) => ids.len(),
        }
    }

    /// Whether the epoch has no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The treatment of its end.
    pub const fn tail(&self) -> Tail {
        self.tail
    }

    /// The number of consecutive places of one rank.
    pub const fn group(&self) -> NonZeroU64 {
        self.group
    }

    /// The sample at `place` of the list.
    ///
    /// # Panics
    /// If `place` is not below [`len`](Self::len).
    pub fn id(&self, place: u64) -> SampleId {
        let id = match &self.list {
            List::Sequential(n) => {
                assert!(place < *n, "place {place} of {n}");
                SampleId(place)
            }
            List::Keyed(keyed) => keyed.id(place),
            List::Stored(ids) => ids.get(place),
        };
        self.avoid.as_ref().map_or(id, |avoid| avoid.substitute(self.seed, self.epoch, id))
    }

    /// Distribute the epoch from global position `start` on to `size` ranks: see [`ShardedEpoch`].
    ///
    /// # Errors
    /// [`OrderError::NoRanks`], [`OrderError::PositionPastEnd`], [`OrderError::TooManyPositions`].
    pub fn shard(&self, size: u32, start: u64) -> Result<ShardedEpoch, OrderError> {
        ShardedEpoch::new(self.clone(), size, start)
    }

    /// This rank's samples of the epoch from global position `start` on: [`shard`](Self::shard), then its rank.
    ///
    /// # Errors
    /// As [`shard`](Self::shard).
    pub fn rank(&self, world: World, start: u64) -> Result<RankStream, OrderError> {
        self.shard(world.size(), start)?.rank(world.rank())
    }
}
