// SPDX-License-Identifier: Apache-2.0
//! A snapshot of the driver: the metrics behind `stats`, and the reason why the consumer waits.

use foresee_data_fetch::DispatchStats;
use foresee_data_plan::TierIndex;
use foresee_data_tier::{Tier, TierFacts};
use foresee_ledger::Cause;
use foresee_units::Bytes;

use super::Driver;
use crate::batch_queue::WaitNote;
use crate::reads::From;

/// The driver's metrics at one moment.
#[derive(Clone, Debug, Default)]
pub struct DriverFacts {
    /// The fetch queue of the origin.
    pub origin: DispatchStats,
    /// Each cache tier as it stands, and the bytes of it that the plan uses.
    pub tiers: Vec<(TierFacts, Bytes)>,
    /// Reads in flight from disk and origin.
    pub reads: usize,
    /// Batches and bytes on their way to the consumer.
    pub staged: (usize, Bytes),
    /// Tables of the planner.
    pub tables: Bytes,
    /// Fingerprint of every decision so far.
    pub plan_hash: u64,
}

impl Driver {
    pub(super) fn publish_facts(&self) {
        let ram = self.tiers.ram.as_ref().map(|ram| ram.facts());
        let disk = self.tiers.disk.as_ref().map(|disk| disk.facts());
        let tiers = ram.into_iter().chain(disk);
        let facts = DriverFacts {
            origin: self.fetches.dispatch.stats(),
            tiers: tiers
                .zip(0_u8..)
                .map(|(facts, index)| (facts, self.planner.used(TierIndex(index))))
                .collect(),
            reads: self.fetches.reads.len(),
            staged: self.delivery.staging.depth(),
            tables: self.planner.table_bytes(),
            plan_hash: self.planner.plan_hash(),
        };
        *self.shared.facts.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = facts;
    }

    /// Reports what the consumer is waiting for: the first sample that its batch lacks.
    pub(super) fn explain_wait(&mut self) {
        let Some((slot, stage)) = self.delivery.staging.head() else {
            let what = if self.schedule.has_order() {
                "the order of the next epoch"
            } else {
                "the next epoch to begin"
            };
            return self.explain(Cause::Plan, None, what.to_owned());
        };
        let (pending, planned) = (stage.pending, stage.planned == stage.ids.len());
        let held_back = self.fetches.dispatch.is_paused(self.now());
        if let Some((number, read)) = self.fetches.reads.first_missing(slot).filter(|_| pending > 0) {
            let (cause, state) = match (read.from, read.active > 0, read.failed > 0) {
                (From::Disk, ..) => (Cause::Disk, "being read from the disk cache"),
                (From::Origin, true, false) => (Cause::OriginRead, "being read at the origin"),
                (From::Origin, true, true) => (Cause::OriginRetry, "being read at the origin once more"),
                (From::Origin, false, true) => (Cause::OriginRetry, "between two attempts at the origin"),
                (From::Origin, false, false) if held_back => {
                    (Cause::OriginRetry, "in the queue for the origin, which refuses requests")
                }
                (From::Origin, false, false) => (Cause::OriginQueue, "in the queue for the origin"),
            };
            let said = read.message.as_deref().map(|said| format!(", last fault: {said}"));
            let what = format!(
                "sample {} ({}) on rank {}, {state}{}",
                read.sample,
                self.data.uri(read.sample),
                self.shared.metrics.rank(),
                said.unwrap_or_default()
            );
            self.explain(cause, Some(number), what);
        } else {
            let what = if planned { "copies within memory" } else { "the plan of the batch" };
            self.explain(Cause::Copy, None, what.to_owned());
        }
    }

    fn explain(&self, cause: Cause, read: Option<u64>, what: String) {
        self.shared.batches.explain(WaitNote { cause, read, what }, self.now());
    }
}
