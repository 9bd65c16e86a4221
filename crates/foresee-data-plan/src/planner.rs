// SPDX-License-Identifier: Apache-2.0
//! Public interface of the planner: reports go in through `handle_*`, planned accesses come out of `poll_access`.
//!
//! One planner plans the tiers of one rank.

use std::fmt;
use std::sync::Arc;

use foresee_units::{Bytes, SampleId};

use crate::access_planner::{AccessPlanner, StorageBelow};
use crate::capacity::{SampleSizes, TierCapacity, TierIndex, TierUsage, cost_of_all};
use crate::error::PlanError;
use crate::hierarchy::TierSet;
use crate::hint;
use crate::next_use::{BYTES_PER_ACCESS, NONE, NextUse, WINDOW_MAX, narrow};
use crate::plan_hash::PlanHash;
use crate::policy::{Policy, PolicyChoice};
use crate::victims::NO_TIER;

/// A window can hold an epoch of a single rank; the tables then take 17 GB.
const SAMPLES_MAX: u64 = WINDOW_MAX;
/// Of a tier byte, 255 means "no tier"; 254 marks an eviction in the hash, and 253 a read ahead.
const TIERS_MAX: usize = 253;
/// Look-ahead for next uses, in accesses per sample of the data set. A rank of N reads each sample once in N
/// epochs on average: once per as many accesses as there are samples, for any N. After four times as many, e^-4 =
/// 2 % of the samples have not occurred, and those sort last in any case.
const HORIZON_ACCESSES_PER_SAMPLE: u64 = 4;

/// Configuration of a planner.
#[derive(Clone, Debug)]
pub struct PlannerConfig {
    /// The local tiers, fastest first; without any, every access reads the origin.
    pub tiers: Vec<TierCapacity>,
    /// The rule of eviction.
    pub policy: PolicyChoice,
    /// Bound of the look-ahead: 8 bytes per announced access. One epoch is always accepted, for any budget. The
    /// tables by sample (5 bytes each) are additional, see [`Planner::table_bytes`].
    pub table_budget: Bytes,
}

/// The source of an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlannedSource {
    /// A local tier that holds the sample.
    Tier(TierIndex),
    /// The origin.
    #[default]
    Origin,
}

/// One planned access. In the order read, evict, fill, no tier ever exceeds its capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Number of the access, from 0, over the lifetime of the planner.
    pub seq: u64,
    /// The sample to read.
    pub sample: SampleId,
    /// Its source.
    pub source: PlannedSource,
    /// The tier that caches the bytes read from the origin; `None` for a hit, and for a bypass.
    pub fill: Option<TierIndex>,
    /// The next use of this sample.
    pub next_use: NextUse,
    /// Copies to evict before `fill` is written; never the sample itself.
    pub evict: Vec<(SampleId, TierIndex)>,
}

impl Default for Access {
    /// An empty access for [`Planner::poll_access`].
    fn default() -> Self {
        Self {
            seq: 0,
            sample: SampleId(0),
            source: PlannedSource::Origin,
            fill: None,
            next_use: NextUse::Unknown,
            evict: Vec::new(),
        }
    }
}

/// Plans this rank's accesses, one after the other, from the announced order.
///
/// The plan depends on the announcements at the time of a poll. So announce first: while
/// [`wants_epoch`](Self::wants_epoch) is true and the order has one, announce the next epoch; then poll.
///
/// The engine has two obligations. It polls ahead of consumption, and may execute an access late, early or never:
/// it reports parts of the plan that failed with [`handle_lost`](Self::handle_lost). And a copy leaves a tier at
/// its position in the plan: a read of it for an earlier access has to come first.
///
/// A copy is never moved between its tiers. A move reads one tier and writes another to save, at best, one read
/// of the slower one; a new copy, whose bytes are in memory anyway, takes the space instead. If a tier holds
/// everything, faster tiers cache on top of it: see [`HierarchyPlanner`](crate::HierarchyPlanner).
pub struct Planner {
    accesses: AccessPlanner,
    choice: PolicyChoice,
    policy: Option<Policy>,
    /// Maximum number of announced accesses within the table budget.
    affordable: u64,
    /// Bytes that the whole data set takes, in the tier where it takes most.
    data_cost: Bytes,
    samples: usize,
    /// Accesses of the latest epoch, which is the estimate for the next.
    epoch_len: u64,
    /// Whether initial copies are sorted; initial reports are accepted until then.
    has_begun: bool,
    hash: PlanHash,
}

impl Planner {
    /// Create a planner without copies and order. Queries every size once unless they are uniform.
    pub fn new(config: PlannerConfig, sizes: Arc<dyn SampleSizes>) -> Result<Self, PlanError> {
        let count = sizes.count();
        if count > SAMPLES_MAX {
            return Err(PlanError::TooManySamples { count, most: SAMPLES_MAX });
        }
        if config.tiers.len() > TIERS_MAX {
            return Err(PlanError::TooManyTiers { count: config.tiers.len(), most: TIERS_MAX });
        }
        let samples = usize::try_from(count)
            .map_err(|_| PlanError::TooManySamples { count, most: usize::MAX as u64 })?;
        let dearest =
            |size: Bytes| config.tiers.iter().map(|tier| tier.cost(size)).max().unwrap_or(Bytes::ZERO);
        let data_cost = cost_of_all(&*sizes, dearest);
        let usage = config.tiers.into_iter().map(TierUsage::new).collect();
        Ok(Self {
            accesses: AccessPlanner::new(sizes, samples, usage),
            choice: config.policy,
            policy: config.policy.fixed(),
            affordable: (config.table_budget.get() / BYTES_PER_ACCESS).min(WINDOW_MAX),
            data_cost,
            samples,
            epoch_len: 0,
            has_begun: false,
            hash: PlanHash::new(),
        })
    }

    /// Report that a tier holds this sample from an earlier run. Only before the first poll.
    ///
    /// Returns whether the planner accepts the copy. It is `false` if the copy does not fit, is held already, is
    /// not a sample or tier of this plan, or planning has begun: then delete the copy.
    pub fn handle_held(&mut self, id: SampleId, tier: TierIndex) -> bool {
        let (Some(sample), Some(usage)) = (self.sample(id), self.accesses.usage().get(usize::from(tier.0)))
        else {
            return false;
        };
        let fits = usage.limits.cost(self.accesses.size(sample)) <= usage.free();
        if self.has_begun || !fits || self.holds(id).is_some() {
            return false;
        }
        self.accesses.insert_found(sample, tier.0);
        true
    }

    /// Whether the next epoch should be announced before the next poll: the look-ahead is shorter than useful,
    /// and the table budget allows as many accesses as the latest epoch had.
    ///
    /// An empty epoch changes nothing, so a caller that announces epochs without end has to stop at one.
    pub fn wants_epoch(&self) -> bool {
        let ahead = self.accesses.window.len() as u64;
        if self.accesses.window.has_ended() {
            return false;
        }
        // If everything fits, nothing is ever evicted, and one pass ahead shows which samples are used again.
        let per_sample = if self.fits_data_set() { 1 } else { HORIZON_ACCESSES_PER_SAMPLE };
        let horizon = self.samples as u64 * per_sample;
        ahead == 0 || (ahead < horizon && ahead + self.epoch_len <= self.affordable)
    }

    /// Announce this rank's accesses of the next epoch, in order.
    ///
    /// # Panics
    /// If an id is not in the data set, more than 2^30 accesses are announced and not planned, or the run's end
    /// was announced before.
    pub fn handle_epoch(&mut self, ids: &mut dyn Iterator<Item = SampleId>) {
        assert!(!self.accesses.window.has_ended(), "an epoch was announced after the run's end");
        self.epoch_len = self.accesses.announce(ids) as u64;
    }

    /// The run ends after the announced epochs: a sample without an announced use is never used again.
    pub fn handle_end(&mut self) {
        self.accesses.window.end();
    }

    /// Plan the next access into `out`, reusing its list; `false`, with `out` unchanged, if none is announced.
    pub fn poll_access(&mut self, out: &mut Access) -> bool {
        if self.accesses.window.len() == 0 {
            return false;
        }
        self.sort_initial();
        if self.policy.is_none() && self.accesses.has_no_space_for(0) {
            self.policy = Some(self.accesses.choose_policy());
        }
        let seq = self.accesses.window.first();
        self.accesses.prefetch(hint::AHEAD);
        // Until space first runs out, both policies behave alike.
        let policy = self.policy.unwrap_or(Policy::NextUse);
        let (id, next) = self.accesses.window.access(0);
        out.evict.clear();
        let decision = self.accesses.step(0, policy, &mut out.evict);
        out.seq = seq;
        out.sample = SampleId(u64::from(id));
        out.source = tier(decision.source).map_or(PlannedSource::Origin, PlannedSource::Tier);
        out.fill = tier(decision.fill);
        out.next_use = match next {
            NONE if self.accesses.window.has_ended() => NextUse::Never,
            NONE => NextUse::Unknown,
            next => NextUse::At(seq + self.accesses.window.offset(next) as u64),
        };
        self.accesses.window.advance();
        self.hash.add(u64::from(id) << 16 | u64::from(decision.source) << 8 | u64::from(decision.fill));
        for &(SampleId(id), TierIndex(tier)) in &out.evict {
            self.hash.add(id << 16 | u64::from(tier) << 8 | EVICTED);
        }
        true
    }

    /// Append the samples to read from the origin with the sample of the last polled access, which is not held, and the
    /// tiers that cache them from now on.
    pub(crate) fn read_ahead(
        &mut self,
        id: SampleId,
        below: &mut dyn StorageBelow,
        out: &mut Vec<(SampleId, TierSet)>,
    ) {
        let first = out.len();
        self.accesses.read_ahead(id, below, out);
        for &(SampleId(id), fills) in &out[first..] {
            for TierIndex(tier) in fills.iter() {
                self.hash.add(id << 16 | u64::from(tier) << 8 | READ_AHEAD);
            }
        }
    }

    /// Report a lost copy: a write failed, a copy was corrupt, or was evicted under pressure. Without effect if
    /// the plan does not rely on that copy.
    pub fn handle_lost(&mut self, id: SampleId, tier: TierIndex) {
        if let Some(sample) = self.sample(id)
            && self.holds(id) == Some(tier)
        {
            self.accesses.handle_lost(sample, tier.0);
        }
    }

    /// Change a tier's capacity: the disk is full, the memory is needed by other loaders, or space is available again.
    /// Copies that no longer fit are appended to `evicted`, farthest next use first. An unknown tier is ignored.
    pub fn handle_capacity(
        &mut self,
        tier: TierIndex,
        capacity: Bytes,
        evicted: &mut Vec<(SampleId, TierIndex)>,
    ) {
        if usize::from(tier.0) >= self.accesses.usage().len() {
            return;
        }
        self.sort_initial();
        let first = evicted.len();
        self.accesses.resize(tier.0, capacity, evicted);
        for &(SampleId(id), TierIndex(tier)) in &evicted[first..] {
            self.hash.add(id << 16 | u64::from(tier) << 8 | EVICTED);
        }
    }

    /// Continue at another position of the order (after an early break or a resume): announced accesses are
    /// dropped, copies and the chosen policy stay, and numbers continue.
    pub fn handle_restart(&mut self) {
        self.accesses.restart();
        self.epoch_len = 0;
        self.has_begun = false;
    }

    /// The tier that holds the sample, as of the last polled access.
    pub fn holds(&self, id: SampleId) -> Option<TierIndex> {
        tier(self.accesses.tier_of(usize::try_from(id.0).unwrap_or(usize::MAX)))
    }

    /// Bytes taken in a tier, including overhead and alignment, as of the last polled access.
    pub fn used(&self, tier: TierIndex) -> Bytes {
        self.accesses.usage().get(usize::from(tier.0)).map_or(Bytes::ZERO, |usage| usage.used)
    }

    /// The current policy; `None` while [`PolicyChoice::Auto`] has not chosen, because everything fits so far.
    pub fn policy(&self) -> Option<Policy> {
        self.policy
    }

    /// Number of accesses announced and not yet planned.
    pub fn announced(&self) -> u64 {
        self.accesses.window.len() as u64
    }

    /// Bytes of all tables.
    pub fn table_bytes(&self) -> Bytes {
        Bytes::new(self.accesses.table_bytes())
    }

    /// A hash of every decision so far. Equal for equal inputs on every host and in every build; not resistant
    /// to forgery.
    pub fn plan_hash(&self) -> u64 {
        self.hash.value()
    }

    fn fits_data_set(&self) -> bool {
        self.accesses.usage().iter().map(|usage| usage.limits.capacity).sum::<Bytes>() >= self.data_cost
    }

    fn sample(&self, id: SampleId) -> Option<u32> {
        usize::try_from(id.0).ok().filter(|&sample| sample < self.samples).map(narrow)
    }

    fn sort_initial(&mut self) {
        if !self.has_begun {
            self.accesses.sort_initial();
            self.has_begun = true;
        }
    }
}

impl fmt::Debug for Planner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Planner")
            .field("samples", &self.samples)
            .field("usage", &self.accesses.usage())
            .field("choice", &self.choice)
            .field("policy", &self.policy)
            .field("planned", &self.accesses.window.first())
            .field("announced", &self.accesses.window.len())
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

/// Distinguishes an eviction from an access in the hash; no tier has this number.
const EVICTED: u64 = 0xfe;
/// Distinguishes a read ahead in the same way.
const READ_AHEAD: u64 = 0xfd;

fn tier(byte: u8) -> Option<TierIndex> {
    (byte != NO_TIER).then_some(TierIndex(byte))
}

#[cfg(test)]
mod tests;
