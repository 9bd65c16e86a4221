// SPDX-License-Identifier: Apache-2.0
//! Agreement on a plan, as a rank sees it.
//!
//! The first server compares the proposals of all ranks. Ranks pass its answer on to the other servers, which confirm
//! it once every rank has done so.

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_grad_queue::{Collector, Plan, Round, ServerId};
use foresee_units::Nanos;

use super::connection::ConnectionState;
use super::membership::FIRST;
use super::replay::ReplayBuffer;
use super::used::UsedReports;
use super::{RankAction, RankFailure, RankPlan, RankSession};
use crate::RankMessage;

/// A plan that servers agree on: its membership, and its encoding.
type AgreedPlan = (u32, Arc<[u8]>);

#[derive(Debug)]
pub(super) struct Agreement {
    /// The proposal to each server, until the plan is installed.
    pub(super) proposed: Vec<Option<Arc<[u8]>>>,
    /// The answer of each server over its current connections.
    answers: Vec<Option<AgreedPlan>>,
    /// When the other servers must have answered.
    pub(super) until: Option<Nanos>,
    /// The server that has not answered in time.
    late: Option<ServerId>,
}

impl Agreement {
    pub(super) fn new(servers: usize) -> Self {
        Self { proposed: vec![None; servers], answers: vec![None; servers], until: None, late: None }
    }

    /// Drop the answer of a lost server; its replacement answers again.
    pub(super) fn forget(&mut self, server: ServerId) {
        if let Some(answer) = self.answers.get_mut(usize::from(server.0)) {
            *answer = None;
        }
    }

    /// Whether the first server's answer was passed on to the others.
    fn is_passed_on(&self) -> bool {
        self.proposed.iter().skip(1).any(Option::is_some)
    }

    pub(super) fn is_in_progress(&self) -> bool {
        self.proposed.iter().any(Option::is_some)
    }

    /// Check the first server's answer: it compares all proposals, so its answer agrees with each of them. The other
    /// servers only compare what ranks pass on, and would blame two ranks if the answers differed.
    fn check_answer(&self, body: &[u8]) -> Result<(), String> {
        let plan =
            Plan::decode(body).map_err(|why| format!("sends a plan that cannot be decoded ({why})"))?;
        let Some(Some(proposal)) = self.proposed.first() else { return Ok(()) };
        let own = Plan::decode(proposal).expect("this rank has encoded it");
        own.difference(&plan).map_or(Ok(()), |difference| {
            let text = difference.between("in this rank's proposal", "in the answer");
            Err(format!("answers with a plan that this rank has not proposed: {text}"))
        })
    }
}

impl RankSession {
    /// Propose an encoded plan in place of the current one, which must be [quiet](Self::is_quiet).
    pub fn handle_proposal(&mut self, body: &[u8]) {
        self.agreement = Agreement::new(self.servers.len());
        self.propose(FIRST, body.into());
    }

    /// Propose a plan to a server; a lost server receives it after reconnection.
    fn propose(&mut self, server: ServerId, body: Arc<[u8]>) {
        let connection = self.connection(server).filter(|own| own.state != ConnectionState::Lost);
        if let Some(pair) = connection.map(|connection| connection.pair) {
            let message = RankMessage::Plan(body.to_vec());
            self.actions.push_back(RankAction::Send { server, pair, message });
        }
        self.agreement.proposed[usize::from(server.0)] = Some(body);
    }

    /// Handle a server's report of a plan.
    pub(super) fn receive_plan(
        &mut self,
        server: ServerId,
        generation: u32,
        body: Vec<u8>,
        now: Nanos,
    ) -> Result<(), RankFailure> {
        // A replacement may report the current plan once more.
        let is_new = self.plan.as_ref().is_none_or(|plan| plan.collector.generation() < generation);
        if !is_new {
            return Ok(());
        }
        if server == FIRST {
            self.agreement.check_answer(&body).map_err(|what| RankFailure::unexpected(server, &what))?;
        }
        let Some(answer) = self.agreement.answers.get_mut(usize::from(server.0)) else { return Ok(()) };
        let body: Arc<[u8]> = body.into();
        *answer = Some((generation, Arc::clone(&body)));
        // The first server's answer may come twice: from it, and from its replacement.
        if server == FIRST && self.agreement.is_in_progress() && !self.agreement.is_passed_on() {
            for other in self.ids().skip(1) {
                self.propose(other, Arc::clone(&body));
            }
            self.agreement.until = Some(self.agreement_timeout(now));
        }
        self.receive_fresh_plan(server, now)
    }

    /// All ranks receive the first server's answer at the same time, and pass it on to the others.
    fn agreement_timeout(&self, now: Nanos) -> Nanos {
        now.saturating_add(self.settings.timeout).saturating_add(self.settings.timeout)
    }

    /// Restart the timeout while a server is lost; else note the server that is late.
    pub(super) fn extend_agreement(&mut self, now: Nanos) {
        let Some(until) = self.agreement.until else { return };
        if !self.is_connected() {
            self.agreement.until = Some(self.agreement_timeout(now));
        } else if until <= now {
            let late = self.agreement.answers.iter().position(Option::is_none);
            self.agreement.late = late.and_then(|at| self.ids().nth(at));
            self.agreement.until = None;
        }
    }

    /// Restart the timeout for a server that has reconnected.
    pub(super) fn restart_agreement(&mut self, now: Nanos) {
        if self.agreement.until.is_some() {
            self.agreement.until = Some(self.agreement_timeout(now));
        }
    }

    /// The first server's answer to the proposal.
    pub fn first_answer(&self) -> Option<AgreedPlan> {
        self.agreement.answers.first()?.clone()
    }

    /// Whether every server agrees on this plan; `None` while answers are missing.
    pub fn poll_agreement(&self, known: &AgreedPlan) -> Option<Result<(), RankFailure>> {
        if let Some(server) = self.agreement.late {
            let text = format!(
                "server {server} at {} did not receive the plan from every rank; pass the same servers in the same order on \
                 all ranks",
                self.settings.servers[usize::from(server.0)]
            );
            return Some(Err(RankFailure::Disagree(text)));
        }
        let answers: Option<Vec<&AgreedPlan>> = self.agreement.answers.iter().map(Option::as_ref).collect();
        let differs = answers?.into_iter().position(|answer| answer != known);
        Some(differs.map_or(Ok(()), |server| {
            let text = format!(
                "server {server} agrees on another plan than server 0; restart all servers of the job"
            );
            Err(RankFailure::Disagree(text))
        }))
    }

    /// Start the plan that every server agrees on.
    pub fn install(&mut self, plan: Arc<Plan>, generation: u32) {
        self.agreement = Agreement::new(self.servers.len());
        self.deferred_done.clear();
        self.membership.forget();
        let collector = Collector::new(Arc::clone(&plan), self.settings.rank, generation, Round(0));
        self.plan = Some(RankPlan {
            plan,
            collector,
            used: VecDeque::new(),
            reports: UsedReports::default(),
            replay: ReplayBuffer::default(),
            changed_round: None,
            replaced_round: None,
        });
    }
}
