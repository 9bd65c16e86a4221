// SPDX-License-Identifier: Apache-2.0
//! Agreement on a plan, as a rank sees it.
//!
//! The first server compares what ranks propose; the others are told what came of it, and confirm it once every rank has
//! told them so.

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_grad_queue::{Collector, Plan, Round, ServerId};
use foresee_units::Nanos;

use super::connection::ConnectionState;
use super::replay::Replay;
use super::used::UsedReports;
use super::{RankAction, RankFailure, RankPlan, RankSession};
use crate::{RankMessage, proposals};

/// A plan that servers agree on: its membership, and its bytes.
type Agreed = (u32, Arc<[u8]>);

#[derive(Debug)]
pub(super) struct Agreement {
    /// What was proposed to each server, until the plan holds.
    pub(super) proposed: Vec<Option<Arc<[u8]>>>,
    /// What each server, over its present connections, answered.
    answers: Vec<Option<Agreed>>,
    /// When the other servers should have answered.
    until: Option<Nanos>,
    /// The server that has not answered in time.
    late: Option<ServerId>,
}

impl Agreement {
    pub(super) fn new(servers: usize) -> Self {
        Self { proposed: vec![None; servers], answers: vec![None; servers], until: None, late: None }
    }

    pub(super) fn timeout(&self) -> Option<Nanos> {
        self.until
    }

    /// What a server answered that is lost, the next one answers again.
    pub(super) fn forget(&mut self, server: ServerId) {
        if let Some(answer) = self.answers.get_mut(usize::from(server.0)) {
            *answer = None;
        }
    }

    /// Whether the other servers were told the first one's answer.
    fn is_passed_on(&self) -> bool {
        self.proposed.iter().skip(1).any(Option::is_some)
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.proposed.iter().any(Option::is_some)
    }

    /// The first server compares all proposals, so its answer agrees with each of them. The other servers only compare
    /// what ranks pass on: they would name two ranks for an answer that differs between ranks.
    fn check_answer(&self, body: &[u8]) -> Result<(), String> {
        let plan = Plan::decode(body).map_err(|why| format!("sends a plan that cannot be read ({why})"))?;
        let Some(Some(proposal)) = self.proposed.first() else { return Ok(()) };
        let own = Plan::decode(proposal).expect("this rank has encoded it");
        let difference = proposals::difference(&own, &plan);
        difference.map_or(Ok(()), |difference| {
            let text = difference.between("in this rank's proposal", "in the answer");
            Err(format!("answers with a plan that this rank has not proposed: {text}"))
        })
    }
}

impl RankSession {
    /// This rank proposes a plan, encoded, in place of the present one, which [is quiet](Self::is_quiet).
    pub fn handle_proposal(&mut self, body: &[u8]) {
        self.agreement = Agreement::new(self.servers.len());
        self.propose(ServerId(0), body.into());
    }

    /// To a server that is lost it is proposed when one is back.
    fn propose(&mut self, server: ServerId, body: Arc<[u8]>) {
        let at = usize::from(server.0);
        if let Some(connection) = self.servers.get(at).filter(|own| own.state != ConnectionState::Lost) {
            let message = RankMessage::Plan(body.to_vec());
            self.actions.push_back(RankAction::Send { server, pair: connection.pair, message });
        }
        self.agreement.proposed[at] = Some(body);
    }

    /// A server reports a plan.
    pub(super) fn receive_plan(
        &mut self,
        server: ServerId,
        generation: u32,
        body: Vec<u8>,
        now: Nanos,
    ) -> Result<(), RankFailure> {
        // A server in the place of a lost one may report once more what holds already.
        let is_new = self.plan.as_ref().is_none_or(|plan| plan.collect.generation() < generation);
        if !is_new {
            return Ok(());
        }
        if server == ServerId(0) {
            self.agreement.check_answer(&body).map_err(|what| RankFailure::strange(server, &what))?;
        }
        let Some(answer) = self.agreement.answers.get_mut(usize::from(server.0)) else { return Ok(()) };
        let body: Arc<[u8]> = body.into();
        *answer = Some((generation, Arc::clone(&body)));
        // The first server's answer may come twice: from it, and from one in its place.
        if server == ServerId(0) && self.agreement.is_under_way() && !self.agreement.is_passed_on() {
            for other in self.ids().skip(1) {
                self.propose(other, Arc::clone(&body));
            }
            self.agreement.until = Some(self.agreement_timeout(now));
        }
        self.receive_anew(server, now)
    }

    /// All ranks have the first server's answer at once, and propose it to the others.
    fn agreement_timeout(&self, now: Nanos) -> Nanos {
        now.saturating_add(self.settings.timeout).saturating_add(self.settings.timeout)
    }

    /// A lost server has a time of its own to be replaced.
    pub(super) fn extend_agreement(&mut self, now: Nanos) {
        let Some(until) = self.agreement.until else { return };
        if !self.are_open() {
            self.agreement.until = Some(self.agreement_timeout(now));
        } else if until <= now {
            let late = self.agreement.answers.iter().position(Option::is_none);
            self.agreement.late = late.and_then(|at| self.ids().nth(at));
            self.agreement.until = None;
        }
    }

    /// A server that is back has the whole time to answer.
    pub(super) fn restart_agreement(&mut self, now: Nanos) {
        if self.agreement.until.is_some() {
            self.agreement.until = Some(self.agreement_timeout(now));
        }
    }

    /// What the first server answered to the proposal.
    pub fn first_answer(&self) -> Option<Agreed> {
        self.agreement.answers.first()?.clone()
    }

    /// Whether every server agrees on this plan; `None` while answers are missing.
    pub fn poll_agreement(&self, known: &Agreed) -> Option<Result<(), RankFailure>> {
        if let Some(server) = self.agreement.late {
            let text = format!(
                "server {server} at {} has not heard from every rank; pass the same servers in the same order on all",
                self.settings.servers[usize::from(server.0)]
            );
            return Some(Err(RankFailure::Disagree(text)));
        }
        let answers: Option<Vec<&Agreed>> = self.agreement.answers.iter().map(Option::as_ref).collect();
        let differs = answers?.into_iter().position(|answer| answer != known);
        Some(differs.map_or(Ok(()), |server| {
            let text = format!(
                "server {server} agrees on another plan than server 0; start all servers of a job anew"
            );
            Err(RankFailure::Disagree(text))
        }))
    }

    /// The plan that every server agrees on holds from now on.
    pub fn install(&mut self, plan: Arc<Plan>, generation: u32) {
        self.agreement = Agreement::new(self.servers.len());
        self.done_later.clear();
        self.membership.forget();
        let collect = Collector::new(Arc::clone(&plan), self.settings.rank, generation, Round(0));
        self.plan = Some(RankPlan {
            plan,
            collect,
            used: VecDeque::new(),
            reports: UsedReports::default(),
            replay: Replay::default(),
            changed_in: None,
            replaced_in: None,
        });
    }
}
