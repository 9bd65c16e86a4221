// SPDX-License-Identifier: Apache-2.0
//! What servers report that a round used, until all servers have reported the same.
//!
//! A rank acts on it: it pushes a tensor that no rank used in the last round. A server that still sums that round would
//! take this for a violation, so the report of one server does not count alone.

use std::collections::{BTreeMap, BTreeSet};

use foresee_grad_queue::{Plan, QueueError, Round, ServerId, TensorSet};

/// Reports that do not count yet, by round.
#[derive(Debug, Default)]
pub(super) struct UsedReports(BTreeMap<Round, Report>);

#[derive(Debug)]
struct Report {
    used: TensorSet,
    servers: BTreeSet<ServerId>,
}

impl UsedReports {
    /// Adds the report of a server. Returns whether every server that sums packets has reported the round; then it is
    /// forgotten here.
    ///
    /// # Errors
    /// [`QueueError::UsedDiffers`]: another server has reported otherwise.
    pub(super) fn add(
        &mut self,
        plan: &Plan,
        server: ServerId,
        round: Round,
        used: &TensorSet,
    ) -> Result<bool, QueueError> {
        let new = || Report { used: used.clone(), servers: BTreeSet::new() };
        let report = self.0.entry(round).or_insert_with(new);
        if report.used != *used {
            return Err(QueueError::UsedDiffers { server, round });
        }
        report.servers.insert(server);
        let is_whole = summing(plan).all(|server| report.servers.contains(&server));
        if is_whole {
            self.0.remove(&round);
        }
        Ok(is_whole)
    }

    /// A server is lost: it, or the one in its place, reports again.
    pub(super) fn forget(&mut self, server: ServerId) {
        for report in self.0.values_mut() {
            report.servers.remove(&server);
        }
        self.0.retain(|_, report| !report.servers.is_empty());
    }

    /// Members have changed: servers find anew what no rank has acted on.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The servers that sum packets of a plan.
pub(super) fn summing(plan: &Plan) -> impl Iterator<Item = ServerId> + '_ {
    let shares = (0..).map(ServerId).zip(plan.config().pattern.shares());
    shares.filter(|(_, share)| **share > 0).map(|(server, _)| server)
}
