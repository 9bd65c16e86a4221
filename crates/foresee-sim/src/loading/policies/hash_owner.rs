// SPDX-License-Identifier: Apache-2.0
//! A fixed owner for each sample, as distributed caches have: sample `k` belongs to rank `k mod N`. Its first reader reads it
//! from the origin and sends it to its owner, which keeps it for the whole run in its fastest tier with space, first come.
//! Later reads of all other ranks go to the owner, and to the origin if that had no space.
//!
//! The origin is read once if everything fits, and (N - 1) / N of all bytes cross the network in every epoch.
//!
//! Memory: 5 bytes per sample.

use super::peers_can_be_read;
use super::visible::Visible;
use crate::loading::prefetch::{Access, Caching, Supply};
use crate::loading::rates::{ORIGIN, Rates};
use crate::loading::report::Pushes;
use crate::loading::run::Setup;

pub(super) struct HashOwner {
    ranks: usize,
    /// By sample: the tier of its owner that keeps it, with [`READ_BY_OWNER`] if that read it first; or one of the two constants
    /// below.
    tiers: Vec<u8>,
    visible: Visible,
    space: FreeSpace,
    pushes: Pushes,
}

/// Not read yet.
const UNREAD: u8 = u8::MAX;
/// Its owner had no space left.
const NOT_CACHED: u8 = u8::MAX - 1;
/// The owner has it as soon as it has read it, and not when others see it.
const READ_BY_OWNER: u8 = 1 << 6;

impl HashOwner {
    pub(super) fn new(setup: &Setup) -> Result<Self, String> {
        peers_can_be_read(setup)?;
        let mut visible = Visible::new(1, setup.paper);
        visible.open(setup.sizes.len());
        Ok(Self {
            ranks: setup.epochs.ranks,
            tiers: vec![UNREAD; setup.sizes.len() as usize],
            visible,
            space: FreeSpace::new(setup),
            pushes: Pushes::default(),
        })
    }

    fn owner(&self, id: u32) -> usize {
        id as usize % self.ranks
    }
}

impl Caching for HashOwner {
    fn expect(&self, ids: &[u32]) {
        self.visible.expect(ids);
    }

    fn look_up(&mut self, ids: &[u32]) {
        self.visible.look_up(ids);
    }

    fn supply(&mut self, access: Access, at: f64, rates: &Rates) -> Supply {
        let kept = self.tiers[access.id as usize];
        let tier = usize::from(kept & !READ_BY_OWNER);
        let is_own = self.owner(access.id) == access.rank;
        let code = if kept >= NOT_CACHED {
            ORIGIN
        } else if is_own && kept & READ_BY_OWNER != 0 {
            Rates::local(tier)
        } else if !self.visible.at(access.nth, 0, at) {
            ORIGIN
        } else if is_own {
            Rates::local(tier)
        } else {
            rates.peer(tier)
        };
        Supply::From(rates.faster(code))
    }

    fn fetched(&mut self, access: Access, size: f64, at: f64) {
        if self.tiers[access.id as usize] != UNREAD {
            return;
        }
        let owner = self.owner(access.id);
        self.tiers[access.id as usize] = match self.space.take(owner, size) {
            Some(tier) => {
                self.visible.hold(access.id as usize, at);
                if owner == access.rank {
                    tier | READ_BY_OWNER
                } else {
                    self.pushes.add(size);
                    tier
                }
            }
            None => NOT_CACHED,
        };
    }

    fn end_step(&mut self, ends: &[f64]) {
        self.visible.end_step(ends);
    }

    fn pushes(&self) -> Pushes {
        self.pushes
    }
}

/// Free bytes of all tiers, for policies that fill them first come.
pub(super) struct FreeSpace {
    tiers: usize,
    /// By rank and tier.
    bytes: Vec<f64>,
}

impl FreeSpace {
    #[expect(clippy::cast_precision_loss, reason = "capacities, far below 2^53")]
    pub(super) fn new(setup: &Setup) -> Self {
        let tiers = &setup.scenario.cluster.tiers;
        let of_rank: Vec<f64> = tiers.iter().map(|tier| tier.capacity.get() as f64).collect();
        Self { tiers: tiers.len(), bytes: of_rank.repeat(setup.epochs.ranks) }
    }

    /// Take space for a sample in the fastest tier of a rank that has it.
    pub(super) fn take(&mut self, rank: usize, size: f64) -> Option<u8> {
        let free = &mut self.bytes[rank * self.tiers..][..self.tiers];
        let tier = free.iter().position(|&free| size <= free)?;
        free[tier] -= size;
        Some(u8::try_from(tier).expect("few tiers"))
    }
}
