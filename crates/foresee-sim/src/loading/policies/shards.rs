// SPDX-License-Identifier: Apache-2.0
//! Policies with a fixed shard per rank before training: `DeepIO`, data sharding, LBANN's preloading and
//! locality-aware loading. Rank i's shard is every N-th sample from i on, in order of ids, as many as fit.
//!
//! - [`Reading::AsOrdered`]: the order stays; samples that this rank or a peer holds are read there, the others from
//!   the origin. Zhu et al., "Entropy-aware I/O pipelining for large-scale deep learning on HPC systems", MASCOTS
//!   2018 (ordered mode); Jacobs et al., CLUSTER 2019 (preloading).
//! - [`Reading::Own`]: each rank reads only its own shard, repeatedly. Zhu et al. (optimistic mode); Kurth et al.,
//!   "Exascale deep learning for climate analytics", SC 2018 (sharding). Not for training that has to see all data.
//! - [`Reading::WhereHeld`]: within a global batch, samples go to the ranks that hold them, up to their share of it.
//!   Yang and Cong, "Accelerating data loading in deep neural network training", `HiPC` 2019. It changes which rank
//!   reads a sample, and not the step.

use super::peers_can_be_read;
use crate::loading::pipeline::FetchPipeline;
use crate::loading::prefetch::{Access, Caching, Supply};
use crate::loading::rates::{ORIGIN, Rates};
use crate::loading::report::Metrics;
use crate::loading::run::Setup;

/// The samples that ranks read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Those of the order.
    AsOrdered,
    /// Their shard.
    Own,
    /// Of each global batch, the samples that they hold first.
    WhereHeld,
}

pub(super) struct Shards {
    reading: Reading,
    /// Number of tiers with a shard.
    tiers: usize,
    /// By rank and tier: samples of the shard in this tier or a faster one.
    held: Vec<u32>,
    /// Ranks whose shards are loaded.
    loaded: usize,
    init: f64,
    /// For `WhereHeld`: by rank, the free places of its batch and its position, and the distributed step.
    left: Vec<usize>,
    next: Vec<usize>,
    distributed: Vec<u32>,
}

impl Shards {
    /// Create shards in the `tiers` fastest tiers.
    pub(super) fn new(reading: Reading, tiers: usize, setup: &Setup) -> Result<Self, String> {
        let tiers = tiers.min(setup.scenario.cluster.tiers.len());
        if tiers == 0 {
            return Err("it stores shards in tiers, and cluster.tiers is empty".to_owned());
        }
        if reading != Reading::Own {
            peers_can_be_read(setup)?;
        }
        let mut shards = Self {
            reading,
            tiers,
            held: Vec::with_capacity(setup.epochs.ranks * tiers),
            loaded: 0,
            init: 0.0,
            left: Vec::new(),
            next: Vec::new(),
            distributed: Vec::new(),
        };
        for rank in 0..setup.epochs.ranks {
            let held = shards.place(rank, setup);
            if reading == Reading::Own && held == 0 {
                return Err(format!("rank {rank} has no tier that holds a single sample of its shard"));
            }
        }
        Ok(shards)
    }

    /// Place a rank's shard: tier after tier, each closed by the first sample that does not fit. Returns the
    /// number of samples held.
    fn place(&mut self, rank: usize, setup: &Setup) -> u32 {
        let start = self.held.len();
        let mut capacities =
            setup.scenario.cluster.tiers[..self.tiers].iter().map(|tier| capacity(tier.capacity.get()));
        let mut free_bytes = capacities.next().unwrap_or(0.0);
        let mut count = 0;
        'shard: for id in shard(rank, setup) {
            let size = setup.sizes.get(id);
            while size > free_bytes {
                self.held.push(count);
                match capacities.next() {
                    Some(next) => free_bytes = next,
                    None => break 'shard,
                }
            }
            free_bytes -= size;
            count += 1;
        }
        self.held.resize(start + self.tiers, count);
        count
    }

    fn held(&self, rank: usize) -> &[u32] {
        &self.held[rank * self.tiers..(rank + 1) * self.tiers]
    }

    /// The rank with `id` in its shard, and the tier that holds it.
    fn holder(&self, id: u32, ranks: usize) -> (usize, Option<usize>) {
        let (nth, rank) = (id as usize / ranks, id as usize % ranks);
        (rank, self.held(rank).iter().position(|&held| nth < held as usize))
    }

    /// Load a rank's shard: each tier by its own threads, all of them at once.
    fn load(&mut self, rank: usize, setup: &Setup, rates: &Rates, metrics: &mut Metrics) {
        let mut pipeline = FetchPipeline::new(rates);
        let ranks = setup.epochs.ranks;
        let mut threads: Vec<Vec<f64>> =
            rates.loads[..self.tiers].iter().map(|load| vec![0.0; load.threads]).collect();
        let mut next: Vec<usize> = (0..self.tiers)
            .map(|tier| if tier == 0 { 0 } else { self.held(rank)[tier - 1] as usize })
            .collect();
        loop {
            let mut first: Option<(f64, usize, usize)> = None;
            for (tier, frees) in threads.iter().enumerate() {
                if next[tier] >= self.held(rank)[tier] as usize {
                    continue;
                }
                for (thread, &free) in frees.iter().enumerate() {
                    if first.is_none_or(|(earliest, ..)| free < earliest) {
                        first = Some((free, tier, thread));
                    }
                }
            }
            let Some((start, tier, thread)) = first else { break };
            let id = u32::try_from(rank + next[tier] * ranks).expect("ids were counted in 32 bits");
            next[tier] += 1;
            let size = setup.sizes.get(id);
            let end = pipeline.load(start, size, &rates.loads[tier]);
            threads[tier][thread] = end;
            metrics.record_load(rank, tier, (id, size), (start, end));
            self.init = self.init.max(end);
        }
    }

    /// Assign samples of a global batch to the ranks that hold them.
    fn distribute_where_held(&mut self, setup: &Setup, step: usize, ids: &mut [u32]) {
        let epochs = &setup.epochs;
        let batches = || (0..epochs.ranks).map(|rank| epochs.batch_in_step(step, rank));
        self.left.clear();
        self.left.extend(batches().map(|batch| batch.len()));
        self.next.clear();
        self.next.extend(batches().map(|batch| batch.start));
        self.distributed.clear();
        self.distributed.resize(ids.len(), 0);
        let mut others = 0;
        for place in 0..ids.len() {
            let id = ids[place];
            let (rank, tier) = self.holder(id, epochs.ranks);
            if tier.is_some() && self.left[rank] > 0 {
                self.give(rank, id);
            } else {
                // Written only after the samples behind it were read: the remaining samples move to the head of
                // the list.
                ids[others] = id;
                others += 1;
            }
        }
        let mut rank = 0;
        for &id in &ids[..others] {
            while self.left[rank] == 0 {
                rank += 1;
            }
            self.give(rank, id);
        }
        ids.copy_from_slice(&self.distributed);
    }

    fn give(&mut self, rank: usize, id: u32) {
        self.distributed[self.next[rank]] = id;
        self.next[rank] += 1;
        self.left[rank] -= 1;
    }
}

impl Caching for Shards {
    fn prepare(&mut self, setup: &Setup, rates: &Rates, metrics: &mut Metrics) -> (u64, u64) {
        self.load(self.loaded, setup, rates, metrics);
        self.loaded += 1;
        (self.loaded as u64, setup.epochs.ranks as u64)
    }

    fn init(&self) -> f64 {
        self.init
    }

    fn needs_order(&self) -> bool {
        self.reading != Reading::Own
    }

    fn distribute(&mut self, setup: &Setup, step: usize, ids: &mut [u32]) {
        match self.reading {
            Reading::AsOrdered => {}
            Reading::WhereHeld => self.distribute_where_held(setup, step, ids),
            Reading::Own => {
                let epochs = &setup.epochs;
                let read = step * setup.scenario.training.batch as usize;
                for rank in 0..epochs.ranks {
                    let held = self.held(rank)[self.tiers - 1] as usize;
                    let mut nth = read % held;
                    for id in &mut ids[epochs.batch_in_step(step, rank)] {
                        *id = u32::try_from(rank + nth * epochs.ranks).expect("ids were counted in 32 bits");
                        nth = if nth + 1 == held { 0 } else { nth + 1 };
                    }
                }
            }
        }
    }

    fn supply(&mut self, access: Access, _: f64, rates: &Rates) -> Supply {
        let ranks = self.held.len() / self.tiers;
        let (holder, tier) = self.holder(access.id, ranks);
        Supply::From(match tier {
            None => ORIGIN,
            Some(tier) if holder != access.rank => rates.faster(rates.peer(tier)),
            Some(tier) if self.reading == Reading::Own => Rates::local(tier),
            Some(tier) => rates.faster(Rates::local(tier)),
        })
    }
}

/// Ids of a rank's shard, ascending.
fn shard(rank: usize, setup: &Setup) -> impl Iterator<Item = u32> {
    let first = u32::try_from(rank).expect("ranks were given in 32 bits");
    (first..setup.sizes.len()).step_by(setup.epochs.ranks)
}

#[expect(clippy::cast_precision_loss, reason = "a capacity, far below 2^53")]
const fn capacity(bytes: u64) -> f64 {
    bytes as f64
}
