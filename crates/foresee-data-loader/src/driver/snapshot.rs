// SPDX-License-Identifier: Apache-2.0
//! Snapshots of the driver: the metrics behind `stats`, and the reason why the consumer waits.

use foresee_data_fetch::DispatchStats;
use foresee_data_plan::TierIndex;
use foresee_data_tier::{Tier, TierFacts};
use foresee_ledger::Cause;
use foresee_units::Bytes;

use super::Driver;
use crate::batch_queue::WaitReport;
use crate::node::NodeStats;
use crate::reads::ReadSource;

/// The driver's metrics.
#[derive(Clone, Debug, Default)]
pub struct DriverStats {
    /// The fetch queue of the origin.
    pub origin: DispatchStats,
    /// The state of each cache tier, and its bytes that the plan uses.
    pub tiers: Vec<(TierFacts, Bytes)>,
    /// Reads in flight from disk and origin.
    pub reads: usize,
    /// Staged batches and their bytes.
    pub staged: (usize, Bytes),
    /// Tables of the planner.
    pub tables: Bytes,
    /// Hash of every decision so far.
    pub plan_hash: u64,
    /// The cache of the node; `None` for a loader with caches of its own.
    pub node: Option<NodeStats>,
}

impl Driver {
    pub(super) fn publish_stats(&self) {
        let ram = self.tiers.ram.as_ref().map(|ram| ram.facts());
        let disk = self.tiers.disk.as_ref().map(|disk| disk.facts());
        let tiers = ram.into_iter().chain(disk).zip(0_u8..);
        let stats = DriverStats {
            origin: self.fetches.origin_reads.queue().stats(),
            tiers: tiers.map(|(facts, index)| (facts, self.planner.used(TierIndex(index)))).collect(),
            reads: self.fetches.reads.len(),
            staged: self.delivery.staging.depth(),
            tables: self.planner.table_bytes(),
            plan_hash: self.planner.plan_hash(),
            node: self.copies.as_ref().map(|copies| copies.stats(self.node.is_some())),
        };
        *self.shared.stats.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = stats;
    }

    /// Report the cause of the consumer's wait: the first missing sample of its batch.
    pub(super) fn report_wait(&mut self) {
        let now = self.now();
        let Some((slot, stage)) = self.delivery.staging.head() else {
            let text = if self.schedule.has_order() {
                "the order of the next epoch"
            } else {
                "the next epoch to begin"
            };
            let report = WaitReport { cause: Cause::Plan, read: None, text: text.to_owned() };
            return self.shared.batches.report_wait(report, now);
        };
        let (has_pending, is_planned) = (stage.pending > 0, stage.is_planned());
        let missing = self.fetches.reads.first_missing(slot).filter(|_| has_pending);
        let Some((number, read)) = missing else {
            let (cause, text) = match (is_planned, &self.node) {
                (true, Some(_)) if has_pending => {
                    (Cause::Node, "samples requested from the host of this node's cache")
                }
                (true, _) => (Cause::Copy, "copies within memory"),
                (false, _) => (Cause::Copy, "the plan of the batch"),
            };
            let report = WaitReport { cause, read: None, text: text.to_owned() };
            return self.shared.batches.report_wait(report, now);
        };
        let status = self.fetches.origin_reads.status(number).unwrap_or_default();
        let (cause, state) = match (read.source, status.is_in_flight, status.has_failed) {
            (ReadSource::Disk, ..) => (Cause::Disk, "being read from the disk cache"),
            (ReadSource::Origin, true, false) => (Cause::OriginRead, "being read at the origin"),
            (ReadSource::Origin, true, true) => (Cause::OriginRetry, "being read at the origin once more"),
            (ReadSource::Origin, false, true) => (Cause::OriginRetry, "between two attempts at the origin"),
            (ReadSource::Origin, false, false) if self.fetches.origin_reads.queue().is_paused(now) => {
                (Cause::OriginRetry, "in the queue for the origin, which refuses requests")
            }
            (ReadSource::Origin, false, false) => (Cause::OriginQueue, "in the queue for the origin"),
        };
        let sample = read.target.sample;
        let (uri, rank) = (self.data.uri(sample), self.shared.recorder.rank());
        let detail = status.message.map(|message| format!(", last fault: {message}"));
        let text = format!("sample {sample} ({uri}) on rank {rank}, {state}{}", detail.unwrap_or_default());
        self.shared.batches.report_wait(WaitReport { cause, read: Some(number), text }, now);
    }
}
