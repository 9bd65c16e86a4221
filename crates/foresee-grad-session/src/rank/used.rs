// SPDX-License-Identifier: Apache-2.0
//! Reports of the tensors that a round used, until all servers have reported the same.
//!
//! A rank pushes a tensor at once if no rank used it in the last round. A server that still sums that round would treat
//! the push as a violation. Therefore the report of a single server does not count.

use std::collections::{BTreeMap, BTreeSet};

use foresee_grad_queue::{Plan, QueueError, Round, ServerId, TensorSet};

/// Reports that do not count yet, by round.
#[derive(Debug, Default)]
pub(super) struct UsedReports(BTreeMap<Round, UsedReport>);

#[derive(Debug)]
struct UsedReport {
    used: TensorSet,
    servers: BTreeSet<ServerId>,
}

impl UsedReports {
    /// Add the report of a server. Returns whether every server that sums packets has reported the round; the round is
    /// then dropped here.
    ///
    /// # Errors
    /// [`QueueError::UsedDiffers`] if another server has reported a different set.
    pub(super) fn add(
        &mut self,
        plan: &Plan,
        server: ServerId,
        round: Round,
        used: &TensorSet,
    ) -> Result<bool, QueueError> {
        let new = || UsedReport { used: used.clone(), servers: BTreeSet::new() };
        let report = self.0.entry(round).or_insert_with(new);
        if report.used != *used {
            return Err(QueueError::UsedDiffers { server, round });
        }
        report.servers.insert(server);
        let is_complete = plan.config().pattern.active().all(|server| report.servers.contains(&server));
        if is_complete {
            self.0.remove(&round);
        }
        Ok(is_complete)
    }

    /// Drop the reports of a lost server: it, or its replacement, reports again.
    pub(super) fn forget(&mut self, server: ServerId) {
        for report in self.0.values_mut() {
            report.servers.remove(&server);
        }
        self.0.retain(|_, report| !report.servers.is_empty());
    }

    /// Drop all reports: servers recompute them under a new membership.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
