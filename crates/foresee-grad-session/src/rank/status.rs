// SPDX-License-Identifier: Apache-2.0
//! Status of a rank for its driver: plan, connections, counters, and missing results.

use std::sync::Arc;

use foresee_grad_queue::{Collector, Plan, Round, ServerId, TensorId, TensorSet};
use foresee_units::Rank;

use super::connection::{ConnectionState, ServerConnection};
use super::{RankPlan, RankSession};

impl RankSession {
    /// The state of the plan's rounds.
    pub fn collector(&self) -> Option<&Collector> {
        self.plan.as_ref().map(|plan| &plan.collector)
    }

    /// The plan.
    pub fn plan(&self) -> Option<&Arc<Plan>> {
        self.plan.as_ref().map(|plan| &plan.plan)
    }

    /// Whether a server is connected and knows the job.
    pub fn is_open(&self, server: ServerId) -> bool {
        self.connection(server).is_some_and(ServerConnection::is_open)
    }

    /// The number of the current pair of connections to a server.
    pub fn pair(&self, server: ServerId) -> u32 {
        self.connection(server).map_or(0, |connection| connection.pair)
    }

    /// Whether gradients are retained until every rank has all results of their round.
    pub fn retains(&self) -> bool {
        self.settings.retains()
    }

    /// Whether the connections to a server broke and were not re-established.
    pub fn is_lost(&self, server: ServerId) -> bool {
        self.connection(server).is_some_and(|connection| connection.state == ConnectionState::Lost)
    }

    /// Number of servers that replaced lost ones.
    pub fn replacements(&self) -> u64 {
        self.replacements
    }

    /// Number of connections that broke and were re-established to the same server.
    pub fn reconnects(&self) -> u64 {
        self.reconnects
    }

    /// Number of lost ranks after which the others continued.
    pub fn lost_ranks(&self) -> u64 {
        self.membership.lost
    }

    /// The first remaining rank.
    pub fn first_member(&self) -> Rank {
        crate::members::from_bits(&self.membership.live).next().unwrap_or_default()
    }

    /// Return the log lines since the last call.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// The last round that this rank has ended.
    pub fn last_round(&self) -> Option<Round> {
        self.plan.as_ref()?.last_round()
    }

    /// Whether any rank pushed `tensor` in the last ended round; `None` while this is unknown.
    pub fn is_used(&self, tensor: TensorId) -> Option<bool> {
        let plan = self.plan.as_ref()?;
        let last = plan.last_round()?;
        let reported = self.used(last).map(|set| set.contains(tensor));
        reported.or_else(|| plan.collector.is_used(last, tensor))
    }

    /// The tensors that a round used, as servers reported it.
    pub fn used(&self, round: Round) -> Option<&TensorSet> {
        self.plan.as_ref()?.used.iter().find(|(of, _)| *of == round).map(|(_, set)| set)
    }

    /// Whether nothing of the ended rounds is in flight, to or from any server, and no membership change is in progress.
    /// Only then may another plan, whose rounds have the same numbers, replace this one.
    pub fn is_quiet(&self) -> bool {
        self.plan.as_ref().is_none_or(RankPlan::is_quiet) && !self.membership.is_changing()
    }

    /// Whether another rank may depend on this one for the ended rounds: on gradients that it may have to push again, or
    /// on the end of the last round.
    pub fn is_needed(&self) -> bool {
        let Some(plan) = self.plan.as_ref().filter(|_| !self.is_over) else { return false };
        let has_others = self.settings.world > self.settings.node_ranks;
        if plan.is_waiting() {
            // The result proves that this rank's contribution has arrived.
            return has_others;
        }
        let last = plan.last_round();
        let is_done = self.deferred_done.iter().any(|(_, round)| Some(*round) >= last);
        let may_replay = has_others && self.settings.retains();
        let has_sent_end = last.is_none_or(|last| plan.collector.has_sent_end(last));
        !has_sent_end || may_replay && !plan.is_quiet() && !is_done
    }

    /// Whether this rank lacks results of the last ended round.
    pub fn is_waiting(&self) -> bool {
        self.plan.as_ref().is_some_and(RankPlan::is_waiting)
    }

    /// Whether every server is connected and knows the job.
    pub fn is_connected(&self) -> bool {
        self.servers.iter().all(ServerConnection::is_open)
    }

    /// The missing results, as text.
    pub fn missing(&self) -> String {
        let missing = self.plan.as_ref().map_or_else(|| "no plan was agreed on".into(), RankPlan::missing);
        self.waits().into_iter().fold(missing, |text, waits| format!("{text}; {waits}"))
    }

    /// The servers that this rank has lost, and why; empty if none. They may be the cause for which another rank ended:
    /// a server declares a rank lost that does not reconnect.
    pub(super) fn lost_servers(&self) -> String {
        let lost = self.connections().filter(|(_, own)| own.state == ConnectionState::Lost);
        let texts = lost.filter_map(|(server, own)| {
            let (_, why) = own.lost.as_ref()?;
            Some(format!("; this rank has lost server {server}, too: {why}"))
        });
        texts.collect()
    }

    /// The ranks that servers wait for, one text per server that has reported any.
    pub fn waits(&self) -> Vec<String> {
        let waits = self.connections().filter_map(|(server, own)| Some((server, own.waiting.as_ref()?)));
        waits.map(|(server, ranks)| format!("server {server} waits for {ranks}")).collect()
    }
}

impl RankPlan {
    /// Whether some round up to `last` may not be done everywhere.
    pub(super) fn is_open(&self, last: Option<Round>) -> bool {
        last.is_some_and(|last| self.collector.oldest_retained() <= last)
    }

    fn last_round(&self) -> Option<Round> {
        self.collector.current().0.checked_sub(1).map(Round)
    }

    fn is_quiet(&self) -> bool {
        // The collector drops a round once all ranks have it and every server knows that this rank has.
        self.last_round().is_none_or(|last| self.collector.skipped(last).is_none())
    }

    /// Whether this rank lacks packets of the last round.
    fn is_waiting(&self) -> bool {
        self.last_round().is_some_and(|last| self.collector.waiting(last).next().is_some())
    }

    fn missing(&self) -> String {
        let Some(last) = self.last_round() else { return "no round has ended yet".into() };
        let waiting: Vec<_> = self.collector.waiting(last).collect();
        let packets: u64 = waiting.iter().map(|(_, missing)| u64::from(*missing)).sum();
        match waiting.first() {
            None => format!("nothing of round {last} was missing"),
            Some((tensor, missing)) => format!(
                "{packets} packets of {} tensors of round {last} were missing, {missing} of them of '{}'",
                waiting.len(),
                self.plan.name(*tensor),
            ),
        }
    }
}
