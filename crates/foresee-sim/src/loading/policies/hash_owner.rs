// SPDX-License-Identifier: Apache-2.0
//! A fixed owner for each sample, as distributed caches have: sample `k` belongs to rank `k mod N`. Its first reader reads it
//! from the origin and sends it to its owner, which keeps it for the whole run in its fastest tier with space, first come.
//! Later reads of all other ranks go to the owner, and to the origin if that had no space.
//!
//! The origin is read once if everything fits, and (N - 1) / N of all bytes cross the network in every epoch.
//!
//! Memory: 6 bytes per sample.

use super::first_come::FirstCome;
use super::peers_can_be_read;
use super::visible::Visible;
use crate::loading::prefetch::{Access, Caching, Supply};
use crate::loading::rates::{ORIGIN, Rates};
use crate::loading::report::Pushes;
use crate::loading::run::Setup;

pub(super) struct HashOwner {
    ranks: usize,
    /// Tiers of the owners.
    cached: FirstCome,
    /// By sample: whether its owner read it first, and so has it before the others see it.
    read_by_owner: Vec<bool>,
    visible: Visible,
    pushes: Pushes,
}

impl HashOwner {
    pub(super) fn new(setup: &Setup) -> Result<Self, String> {
        peers_can_be_read(setup)?;
        let mut visible = Visible::new(1, setup.paper);
        visible.open(setup.sizes.len());
        Ok(Self {
            ranks: setup.epochs.ranks,
            cached: FirstCome::new(setup),
            read_by_owner: vec![false; setup.sizes.len() as usize],
            visible,
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
        let is_own = self.owner(access.id) == access.rank;
        let is_there =
            || is_own && self.read_by_owner[access.id as usize] || self.visible.at(access.nth, 0, at);
        let code = match self.cached.tier(access.id).filter(|_| is_there()) {
            None => ORIGIN,
            Some(tier) if is_own => Rates::local(tier),
            Some(tier) => rates.peer(tier),
        };
        Supply::From(rates.faster(code))
    }

    fn fetched(&mut self, access: Access, size: f64, at: f64) {
        let owner = self.owner(access.id);
        if !self.cached.cache(access.id, owner, size) {
            return;
        }
        self.visible.hold(access.id as usize, at);
        self.read_by_owner[access.id as usize] = owner == access.rank;
        if owner != access.rank {
            self.pushes.add(size);
        }
    }

    fn end_step(&mut self, ends: &[f64]) {
        self.visible.end_step(ends);
    }

    fn pushes(&self) -> Pushes {
        self.pushes
    }
}
