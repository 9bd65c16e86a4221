// SPDX-License-Identifier: Apache-2.0
//! Replay of a trace by the planner of a node, without time: ranks request their batches in turns, and reads end at once.
//!
//! The example `node_hits` includes this file, to replay traces of other programs.

use std::collections::VecDeque;

use foresee_data_plan::{ConsumerId, EntryId, NodeAction, NodePlanner, NodePlannerConfig, TierCapacity};
use foresee_units::{Bytes, Nanos, ReadOutcome, Source};

/// Time per access on the planner's clock.
const INTERVAL: Nanos = Nanos::from_millis(1);
/// Longer than any run: no rank stands still, and no pin is taken back.
const NEVER: Nanos = Nanos::new(u64::MAX / 4);

/// The accesses of the ranks of a node, which have equally many of them.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    /// By entry: its bytes.
    pub(crate) sizes: Vec<u64>,
    /// Accesses of a rank in a step.
    pub(crate) batch: usize,
    /// By rank and epoch: the entries.
    pub(crate) ranks: Vec<Vec<Vec<u32>>>,
}

/// An access of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) entry: u32,
    /// Its number among those of its rank. The planner expects accesses of several ranks in order of this number, and those
    /// with one number in order of their entries.
    pub(crate) number: u64,
    pub(crate) is_hit: bool,
}

impl Trace {
    /// Replay the trace with a memory of `capacity` bytes and no disk; return the accesses in order.
    pub(crate) fn replay(&self, capacity: u64) -> Vec<Access> {
        let mut planner = self.planner(capacity);
        let mut ranks: Vec<_> = self.ranks.iter().zip(0..).map(Rank::new).collect();
        let (mut accesses, mut now) = (Vec::new(), Nanos::ZERO);
        for rank in &ranks {
            planner.handle_attach(rank.id, now);
        }
        loop {
            let before = accesses.len();
            for rank in &mut ranks {
                rank.announce(&mut planner, now);
            }
            for rank in &mut ranks {
                for entry in rank.next_batch(self.batch) {
                    let is_hit = rank.request(&mut planner, now);
                    accesses.push(Access { entry, number: rank.number, is_hit });
                    rank.number += 1;
                }
            }
            if accesses.len() == before {
                return accesses;
            }
            for rank in &ranks {
                planner.handle_progress(rank.id, rank.number, Some(INTERVAL), now);
            }
            now += Nanos::new(INTERVAL.get() * self.batch as u64);
        }
    }

    fn planner(&self, capacity: u64) -> NodePlanner {
        let tier =
            |capacity| TierCapacity { capacity: Bytes::new(capacity), align: 1, overhead: Bytes::ZERO };
        let mut planner = NodePlanner::new(&NodePlannerConfig {
            memory: tier(capacity),
            disk: tier(0),
            table_budget: Bytes::MAX,
            read_ahead: Bytes::ZERO,
            initial_interval: INTERVAL,
            stall_grace: NEVER,
            stalled_bytes_max: Bytes::ZERO,
            pin_timeout: NEVER,
        });
        for &size in &self.sizes {
            planner.handle_entry(Bytes::new(size)).expect("an entry is smaller than 4 GiB");
        }
        planner
    }
}

struct Rank {
    id: ConsumerId,
    /// Epochs that the planner has not received.
    epochs: VecDeque<Vec<u32>>,
    /// Entries that were announced and not requested.
    announced: VecDeque<u32>,
    /// Number of its next access.
    number: u64,
}

impl Rank {
    fn new((epochs, id): (&Vec<Vec<u32>>, u32)) -> Self {
        Self { id: ConsumerId(id), epochs: epochs.clone().into(), announced: VecDeque::new(), number: 0 }
    }

    /// Announce the epochs that the planner wants.
    fn announce(&mut self, planner: &mut NodePlanner, now: Nanos) {
        while planner.wants_epoch(self.id) {
            if let Some(epoch) = self.epochs.pop_front() {
                planner.handle_epoch(self.id, &mut epoch.iter().copied().map(EntryId), now);
                self.announced.extend(epoch);
            } else {
                planner.handle_end(self.id);
            }
        }
    }

    fn next_batch(&mut self, batch: usize) -> Vec<u32> {
        let len = batch.min(self.announced.len());
        self.announced.drain(..len).collect()
    }

    /// Request the next access; return whether it is a hit.
    fn request(&self, planner: &mut NodePlanner, now: Nanos) -> bool {
        planner.handle_request(self.id, self.number, now, now).expect("the access is announced");
        let mut is_hit = false;
        while let Some(action) = planner.poll_action(now) {
            match action {
                NodeAction::Read { entry, .. } => planner.handle_read(entry, ReadOutcome::Ok, now),
                NodeAction::Answer { consumer, access, source, .. } => {
                    is_hit = source == Source::Ram;
                    planner.handle_release(consumer, access);
                }
                _ => {}
            }
        }
        is_hit
    }
}
