// SPDX-License-Identifier: Apache-2.0
//! What the driver and its callers may ask: the plan, connections, counts, and what is still wanted.

use std::sync::Arc;

use foresee_grad_queue::{Collector, Plan, Round, ServerId, TensorId, TensorSet};
use foresee_units::Rank;

use super::connection::{ConnectionState, ServerConnection};
use super::{RankPlan, RankSession};

impl RankSession {
    /// What `Collector` knows of the plan's rounds.
    pub fn collect(&self) -> Option<&Collector> {
        self.plan.as_ref().map(|plan| &plan.collect)
    }

    /// The plan.
    pub fn plan(&self) -> Option<&Arc<Plan>> {
        self.plan.as_ref().map(|plan| &plan.plan)
    }

    /// Whether a server is connected and knows the job.
    pub fn is_open(&self, server: ServerId) -> bool {
        self.servers.get(usize::from(server.0)).is_some_and(ServerConnection::is_open)
    }

    /// The number of the present pair of connections to a server.
    pub fn pair(&self, server: ServerId) -> u32 {
        self.servers.get(usize::from(server.0)).map_or(0, |connection| connection.pair)
    }

    /// Whether gradients are retained until every rank has everything of their round.
    pub fn retains(&self) -> bool {
        self.settings.retains()
    }

    /// Whether the connections to a server broke, and none was made again.
    pub fn is_lost(&self, server: ServerId) -> bool {
        self.servers.get(usize::from(server.0)).is_some_and(|own| own.state == ConnectionState::Lost)
    }

    /// Servers that took the place of lost ones.
    pub fn replaced(&self) -> u64 {
        self.replaced
    }

    /// Connections that broke and were made again to the same server.
    pub fn reconnected(&self) -> u64 {
        self.reconnected
    }

    /// Losses of ranks after which the others went on.
    pub fn ranks_lost(&self) -> u64 {
        self.membership.lost
    }

    /// The first rank that is left.
    pub fn first(&self) -> Rank {
        crate::members::from_bits(&self.membership.live).next().unwrap_or_default()
    }

    /// Lines for a log that were not taken before.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// The last round that ended: its averages are waited for.
    pub fn last_round(&self) -> Option<Round> {
        self.plan.as_ref()?.last_round()
    }

    /// Whether any rank pushed `tensor` in the last round that ended; `None` while that is not known.
    pub fn was_used(&self, tensor: TensorId) -> Option<bool> {
        let plan = self.plan.as_ref()?;
        let last = plan.last_round()?;
        let told = plan.used.iter().find(|(round, _)| *round == last).map(|(_, set)| set.contains(tensor));
        told.or_else(|| plan.collect.is_used(last, tensor))
    }

    /// What a round used, as servers reported it.
    pub fn used(&self, round: Round) -> Option<&TensorSet> {
        self.plan.as_ref()?.used.iter().find(|(of, _)| *of == round).map(|(_, set)| set)
    }

    /// Whether nothing of the rounds that ended is in flight, to or from any server: only such a plan may give way to
    /// another, whose rounds have the same numbers. Nor while members change: servers count proposals of those before.
    pub fn is_quiet(&self) -> bool {
        self.plan.as_ref().is_none_or(RankPlan::is_quiet) && !self.membership.is_changing()
    }

    /// Whether another rank may lack something of the rounds that this one has ended: what it has pushed and may have to
    /// push again, or the end of the last round.
    pub fn is_needed(&self) -> bool {
        let Some(plan) = self.plan.as_ref().filter(|_| !self.is_over) else { return false };
        let has_others = self.settings.world > self.settings.local;
        if plan.is_waiting() {
            // Its own part is known to have arrived once the result is here.
            return has_others;
        }
        let last = plan.last_round();
        let is_done = self.done_later.iter().any(|(_, round)| Some(*round) >= last);
        let may_replay = has_others && self.settings.retains();
        !plan.has_reported() || may_replay && !plan.is_quiet() && !is_done
    }

    /// Whether results of the last round that ended are missing here.
    pub fn is_waiting(&self) -> bool {
        self.plan.as_ref().is_some_and(RankPlan::is_waiting)
    }

    /// Whether every server is connected and knows the job.
    pub fn is_connected(&self) -> bool {
        self.are_open()
    }

    /// What is still wanted, in words.
    pub fn missing(&self) -> String {
        let missing = self.plan.as_ref().map_or_else(|| "no plan was agreed on".into(), RankPlan::missing);
        self.waits().into_iter().fold(missing, |text, waits| format!("{text}; {waits}"))
    }

    /// The servers to which this rank has no connection, and why; empty if there are none. Where another rank ends, this
    /// may be the cause of it: a server takes a rank for lost that does not reconnect, and the other ranks end.
    pub(super) fn lost_servers(&self) -> String {
        let lost = self.ids().zip(&self.servers).filter(|(_, own)| own.state == ConnectionState::Lost);
        let texts = lost.filter_map(|(server, own)| {
            let (_, why) = own.lost.as_ref()?;
            Some(format!("; this rank has lost server {server}, too: {why}"))
        });
        texts.collect()
    }

    /// Whom servers wait for, each in words, as far as they have reported it.
    pub fn waits(&self) -> Vec<String> {
        let waits =
            self.ids().zip(&self.servers).filter_map(|(server, own)| Some((server, own.waiting.as_ref()?)));
        waits.map(|(server, whom)| format!("server {server} waits for {whom}")).collect()
    }
}

impl RankPlan {
    /// Whether a round up to this one may not be done everywhere.
    pub(super) fn is_open(&self, last: Option<Round>) -> bool {
        last.is_some_and(|last| self.collect.oldest_retained() <= last)
    }

    fn last_round(&self) -> Option<Round> {
        self.collect.current().0.checked_sub(1).map(Round)
    }

    fn is_quiet(&self) -> bool {
        // A round is forgotten when all ranks have all of it, and every server knows that this one has.
        self.last_round().is_none_or(|last| self.collect.skipped(last).is_none())
    }

    /// Whether packets of the last round are missing here.
    fn is_waiting(&self) -> bool {
        self.last_round().is_some_and(|last| self.collect.waiting(last).next().is_some())
    }

    /// Whether every server was sent the end of the last round.
    fn has_reported(&self) -> bool {
        self.last_round().is_none_or(|last| self.collect.has_sent_end(last))
    }

    fn missing(&self) -> String {
        let Some(last) = self.last_round() else { return "no round has ended yet".into() };
        let waiting: Vec<_> = self.collect.waiting(last).collect();
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
