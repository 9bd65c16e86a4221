// SPDX-License-Identifier: Apache-2.0
//! One node: the planner of its cache, its exchange, and its ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foresee_data_fetch::peers::{
    LocalSamples, PeerExchange, PeerExchangeConfig, PeerReadsConfig, PeerSendsConfig, Presence,
};
use foresee_data_plan::{
    ConsumerId, EntryId, JobPlan, JobPlanConfig, NodePlanner, NodePlannerConfig, NodeTier, PlacementConfig,
    SampleSizes, TierCapacity, WantedEpoch,
};
use foresee_units::{Bytes, BytesPerSecond, Nanos, SampleId};

use crate::setup::{Fault, Setup, node_index};

/// Time without a message after which a node counts as silent.
pub(crate) const PATIENCE: Nanos = Nanos::from_millis(1000);
/// Requests of one node that are not answered, at most.
pub(crate) const REQUESTS_MAX: usize = 64;

/// Sizes of samples, in a table.
struct Table(Vec<u64>);

impl SampleSizes for Table {
    fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn size(&self, id: SampleId) -> Bytes {
        Bytes::new(self.0[usize::try_from(id.0).unwrap()])
    }

    fn uniform(&self) -> Option<Bytes> {
        None
    }
}

pub(crate) fn table(setup: &Setup) -> Arc<dyn SampleSizes> {
    Arc::new(Table(setup.sizes.clone()))
}

/// What a node has, for its exchange.
pub(crate) struct Local<'a> {
    planner: &'a NodePlanner,
    reading: &'a BTreeSet<u32>,
    sizes: &'a [u64],
}

impl LocalSamples for Local<'_> {
    fn count(&self) -> u64 {
        self.sizes.len() as u64
    }

    fn size(&self, sample: SampleId) -> Bytes {
        Bytes::new(self.sizes[usize::try_from(sample.0).unwrap()])
    }

    fn presence(&self, sample: SampleId) -> Presence {
        let entry = u32::try_from(sample.0).unwrap();
        if [NodeTier::Memory, NodeTier::Disk].iter().any(|&tier| self.planner.holds(EntryId(entry), tier)) {
            Presence::Here(self.size(sample))
        } else if self.reading.contains(&entry) {
            Presence::Soon
        } else {
            Presence::Missing
        }
    }
}

/// A rank. It requests batches ahead, and copies a sample when it is answered.
#[derive(Debug)]
pub(crate) struct SimRank {
    /// All accesses announced so far.
    pub(crate) log: Vec<u32>,
    epochs: u64,
    /// The next access to request.
    next: u64,
    /// Accesses of completed steps.
    pub(crate) consumed: u64,
    /// Requested accesses that are not answered.
    pub(crate) waiting: BTreeSet<u64>,
}

/// A node of a job.
pub(crate) struct SimNode {
    pub(crate) planner: NodePlanner,
    pub(crate) exchange: PeerExchange,
    pub(crate) ranks: Vec<SimRank>,
    /// Entries that are being read or received.
    pub(crate) reading: BTreeSet<u32>,
    /// Reads of the origin in flight, by entry: how often each was read.
    pub(crate) origin_reads: BTreeMap<u32, u64>,
    /// Samples in memory that are on their way, by number: to which node, and which.
    pub(crate) sending: BTreeMap<u64, (usize, u32)>,
    pub(crate) is_gone: bool,
    pub(crate) frozen_until: Nanos,
    pub(crate) disk_time: Nanos,
    /// How it treats the others: the latest of [`Fault::Deny`], [`Fault::Withhold`] and [`Fault::Invent`].
    pub(crate) misbehaves: Option<Fault>,
}

impl SimNode {
    pub(crate) fn new(setup: &Setup, own: usize) -> Self {
        let tier =
            |capacity| TierCapacity { capacity: Bytes::new(capacity), align: 1, overhead: Bytes::ZERO };
        let mut planner = NodePlanner::new(&NodePlannerConfig {
            memory: tier(setup.memory),
            disk: tier(setup.disk),
            table_budget: Bytes::new(1 << 20),
            read_ahead: Bytes::new(setup.read_ahead),
            initial_interval: Nanos::from_millis(5),
            stall_grace: Nanos::from_secs(30),
            stalled_bytes_max: Bytes::new(setup.memory / 8),
            pin_timeout: Nanos::from_secs(2),
        });
        for &size in &setup.sizes {
            planner.handle_entry(Bytes::new(size)).unwrap();
        }
        for rank in 0..setup.ranks_per_node {
            planner.handle_attach(consumer(rank), Nanos::ZERO);
        }
        let placement =
            PlacementConfig { capacities: vec![setup.reserved(); setup.nodes], horizon: setup.horizon };
        let ahead = 20 * (setup.ranks() * setup.batch) as u64;
        let config = JobPlanConfig { own: node_index(own), shape: setup.shape(), placement, ahead };
        let plan = JobPlan::new(config, table(setup)).unwrap();
        let config = PeerExchangeConfig {
            reads: PeerReadsConfig {
                requested_max: Bytes::new(20_000),
                requests_max: REQUESTS_MAX,
                initial_rate: BytesPerSecond::new(1_000_000),
                patience: PATIENCE,
            },
            sends: PeerSendsConfig { in_flight_max: Bytes::new(6_000), requests_max: REQUESTS_MAX },
            interval: Nanos::from_millis(100),
            offered_max: Bytes::new(2 * setup.largest()),
            origin_time: setup.origin,
        };
        let rank = || SimRank { log: Vec::new(), epochs: 0, next: 0, consumed: 0, waiting: BTreeSet::new() };
        Self {
            planner,
            exchange: PeerExchange::new(config, plan, Nanos::ZERO),
            ranks: (0..setup.ranks_per_node).map(|_| rank()).collect(),
            reading: BTreeSet::new(),
            origin_reads: BTreeMap::new(),
            sending: BTreeMap::new(),
            is_gone: false,
            frozen_until: Nanos::ZERO,
            disk_time: Nanos::from_millis(3),
            misbehaves: None,
        }
    }

    /// The exchange, and what the node has.
    pub(crate) fn split<'a>(&'a mut self, setup: &'a Setup) -> (&'a mut PeerExchange, Local<'a>) {
        let Self { planner, exchange, reading, .. } = self;
        (exchange, Local { planner, reading, sizes: &setup.sizes })
    }

    /// Give the plans all epochs that they want.
    pub(crate) fn announce(&mut self, setup: &Setup, own: usize, now: Nanos) {
        while let Some(wanted) = self.exchange.plan().wanted_epoch() {
            let (WantedEpoch::Accesses(epoch) | WantedEpoch::Later(epoch)) = wanted;
            let plan = self.exchange.plan_mut();
            if epoch == setup.epochs {
                plan.handle_end();
                continue;
            }
            let mut samples = setup.in_order(epoch).into_iter();
            match wanted {
                WantedEpoch::Accesses(_) => plan.handle_epoch(&mut samples),
                WantedEpoch::Later(_) => plan.handle_later_epoch(&mut samples),
            }
        }
        for (local, rank) in self.ranks.iter_mut().enumerate() {
            while self.planner.wants_epoch(consumer(local)) {
                if rank.epochs == setup.epochs {
                    self.planner.handle_end(consumer(local));
                    continue;
                }
                let samples = setup.samples(rank.epochs, own * setup.ranks_per_node + local);
                rank.log.extend(&samples);
                rank.epochs += 1;
                self.planner.handle_epoch(consumer(local), &mut samples.into_iter().map(EntryId), now);
            }
        }
    }

    /// The ranks request batches ahead.
    pub(crate) fn request(&mut self, setup: &Setup, now: Nanos) {
        for (local, rank) in self.ranks.iter_mut().enumerate() {
            let ahead = rank.consumed + (setup.batch * setup.depth) as u64;
            while rank.next < ahead.min(rank.log.len() as u64) {
                let steps = (rank.next - rank.consumed) / setup.batch as u64;
                let deadline = now + Nanos::new(steps * setup.step.get());
                self.planner.handle_request(consumer(local), rank.next, deadline, now).unwrap();
                rank.waiting.insert(rank.next);
                rank.next += 1;
            }
        }
    }

    /// The ranks wait for the batch of the current step.
    pub(crate) fn demand(&mut self, setup: &Setup, now: Nanos) {
        for (local, rank) in self.ranks.iter().enumerate() {
            for &access in rank.waiting.range(..rank.consumed + setup.batch as u64) {
                self.planner.handle_deadline(consumer(local), access, now, now);
            }
        }
    }

    /// A sample has left the node's memory, or will not.
    pub(crate) fn end_sending(&mut self, number: u64) {
        if let Some((_, entry)) = self.sending.remove(&number) {
            self.planner.handle_sent(EntryId(entry));
        }
    }

    /// Whether all ranks have the batch of the current step, or have ended.
    pub(crate) fn is_ready(&self, setup: &Setup) -> bool {
        self.ranks.iter().all(|rank| {
            let end = rank.step_end(setup);
            rank.next >= end && rank.waiting.range(..end).next().is_none()
        })
    }
}

impl SimRank {
    /// Accesses before the end of the current step.
    pub(crate) fn step_end(&self, setup: &Setup) -> u64 {
        let per_rank = setup.per_rank() as u64;
        let left = per_rank - self.consumed % per_rank;
        let is_over = self.consumed == per_rank * setup.epochs;
        self.consumed + if is_over { 0 } else { left.min(setup.batch as u64) }
    }
}

pub(crate) fn consumer(local: usize) -> ConsumerId {
    ConsumerId(u32::try_from(local).unwrap())
}
