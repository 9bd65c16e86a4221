// SPDX-License-Identifier: Apache-2.0
//! Rounds of the plan: what this rank pushes and ends, sums that arrive, and what servers report of rounds.

use foresee_grad_queue::{
    Arrival, Claim, CollectorAction, Completion, PacketId, QueueError, Round, ServerId, SumHeader, TensorId,
    TensorSet,
};

use super::connection::{Breaks, ConnectionState};
use super::used::summing;
use super::{RankAction, RankFailure, RankSession, SumAdmission, accuse};
use crate::RankMessage;

impl RankSession {
    /// This rank hands a tensor of its current round over. Returns the servers to which it may not be sent yet: it is
    /// offered to them by actions.
    ///
    /// # Errors
    /// It was pushed in this round, or its last average has not arrived.
    pub fn handle_push(&mut self, tensor: TensorId) -> Result<(Round, Vec<ServerId>), RankFailure> {
        let retains = self.settings.retains();
        let plan = self.plan_mut()?;
        let round = plan.collect.current();
        let is_pushed = plan.collect.retained(round).is_some_and(|pushed| pushed.contains(tensor));
        if !plan.collect.may_push(tensor) || is_pushed {
            let name = plan.plan.name(tensor);
            return Err(RankFailure::Push { name, round });
        }
        plan.collect.handle_push(tensor);
        if retains {
            plan.replay.retain(round, tensor);
        }
        Ok((round, self.hold(round, tensor)))
    }

    /// This rank ends its current round. Returns it; `None` while the last one has not arrived, or servers do not know of
    /// its end.
    ///
    /// # Errors
    /// There is no plan.
    pub fn handle_end(&mut self) -> Result<Option<Round>, RankFailure> {
        let plan = self.plan_mut()?;
        if !plan.collect.may_end() {
            return Ok(None);
        }
        let round = plan.collect.current();
        plan.collect.handle_end();
        self.go_on();
        Ok(Some(round))
    }

    /// A server is about to send a sum: whether it is wanted.
    ///
    /// # Errors
    /// What the plan does not allow.
    pub fn handle_sum(
        &mut self,
        server: ServerId,
        generation: u32,
        round: u32,
        packet: PacketId,
        bytes: u64,
    ) -> Result<SumAdmission, RankFailure> {
        let is_over = self.is_over;
        let is_coming = self.membership.is_coming(generation);
        match self.servers.get(usize::from(server.0)).map(|connection| connection.state) {
            Some(ConnectionState::Lost) => return Ok(SumAdmission::Discard),
            // What it goes on with comes over the other connection.
            Some(ConnectionState::Resuming(_)) if !is_over => return Ok(SumAdmission::Later),
            _ => {}
        }
        let Some(plan) = &mut self.plan else {
            return Err(RankFailure::strange(server, "sends sums before a plan"));
        };
        let round = Round::near(round, plan.collect.current());
        let arrival = plan.collect.admit(SumHeader { server, generation, round, packet, bytes });
        let claim = match arrival.map_err(|why| accuse(server, why.into()))? {
            Arrival::Read(claim) => claim,
            Arrival::Discard(_) => return Ok(SumAdmission::Discard),
            Arrival::Hold if is_over => return Ok(SumAdmission::Discard),
            Arrival::Hold if is_coming => return Ok(SumAdmission::Later),
            // A newer plan is reported before its first sum is sent.
            Arrival::Hold => {
                let what = "sends sums of a membership that it has not told of";
                return Err(RankFailure::strange(server, what));
            }
        };
        if claim.offset().is_none() {
            // It was there already, and counts once more.
            plan.collect.receive(claim);
            self.go_on();
            return Ok(SumAdmission::Confirmed);
        }
        Ok(SumAdmission::Read(claim, round))
    }

    /// A sum has arrived; `None` without a plan.
    pub fn handle_arrived(&mut self, server: ServerId, claim: Claim) -> Option<Completion> {
        let landed = self.plan.as_mut()?.collect.receive(claim);
        if let Some(connection) = self.servers.get_mut(usize::from(server.0)) {
            connection.breaks = Breaks::default();
        }
        self.go_on();
        Some(landed)
    }

    /// A sum broke off. It may come again, over another connection.
    pub fn handle_cut(&mut self, claim: Claim) {
        if let Some(plan) = &mut self.plan {
            plan.collect.abandon(claim);
        }
    }

    /// A server reports what a round used. It counts once all servers have reported the same.
    pub(super) fn receive_used(
        &mut self,
        server: ServerId,
        round: Round,
        set: &[u8],
    ) -> Result<(), RankFailure> {
        let rank = self.settings.rank;
        let plan = self.plan_mut()?;
        let used = TensorSet::from_bytes(set, plan.plan.tensors())?;
        let current = plan.collect.current();
        if round >= current {
            return Err(QueueError::ServerAhead { server, round, rank, current }.into());
        }
        if round < plan.collect.oldest_retained() || plan.collect.used(round).is_some() {
            plan.collect.handle_used(server, round, &used)?;
        } else if plan.reports.add(&plan.plan, server, round, &used)? {
            for server in summing(&plan.plan) {
                plan.collect.handle_used(server, round, &used)?;
            }
            plan.used.push_back((round, used));
            if plan.used.len() > 2 {
                plan.used.pop_front();
            }
        }
        self.go_on();
        Ok(())
    }

    /// A server reports that a round is done.
    pub(super) fn receive_done(&mut self, server: ServerId, round: Round) -> Result<(), RankFailure> {
        let is_resuming = !self.resuming.is_empty();
        let plan = self.plan_mut()?;
        if is_resuming {
            self.done_later.push((server, round));
        } else {
            plan.collect.handle_done(server, round)?;
            self.go_on();
        }
        Ok(())
    }

    /// Does what has become possible: reports ends of rounds, offers what was held, forgets what need not be retained.
    pub(super) fn go_on(&mut self) {
        let Some(plan) = &mut self.plan else { return };
        let mut messages = Vec::new();
        while let Some(action) = plan.collect.poll_action() {
            messages.push(match action {
                CollectorAction::End(server, round) => {
                    let skipped =
                        plan.collect.skipped(round).expect("a round that ended has skipped something or not");
                    (server, RankMessage::RoundEnd { round, absent: skipped.to_bytes() })
                }
                CollectorAction::Got(server, round) => (server, RankMessage::Got(round)),
            });
        }
        for (server, message) in messages {
            self.send(server, message);
        }
        if let Some(plan) = &mut self.plan
            && let Some(oldest) = plan.replay.forget_before(plan.collect.oldest_retained())
        {
            for connection in &mut self.servers {
                connection.held.retain(|(round, _)| *round >= oldest);
            }
            self.actions.push_back(RankAction::Forget(oldest));
        }
        self.release();
    }
}
