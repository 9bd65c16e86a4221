// SPDX-License-Identifier: Apache-2.0
//! Rounds of the plan: what this rank pushes and ends, sums that arrive, and reports of servers.

use foresee_grad_queue::{
    Arrival, Claim, CollectorAction, Completion, PacketId, QueueError, Round, ServerId, SumHeader, TensorId,
    TensorSet,
};

use super::connection::{Breaks, ConnectionState};
use super::{RankAction, RankFailure, RankSession, SumAdmission, blame};
use crate::RankMessage;

impl RankSession {
    /// Push a tensor in the current round. Returns the servers that may not receive it yet: actions offer it to them
    /// later.
    ///
    /// # Errors
    /// The tensor was pushed in this round, or its last average has not arrived.
    pub fn handle_push(&mut self, tensor: TensorId) -> Result<(Round, Vec<ServerId>), RankFailure> {
        let retains = self.settings.retains();
        let plan = self.plan_mut()?;
        let round = plan.collector.current();
        let is_pushed = plan.collector.retained(round).is_some_and(|pushed| pushed.contains(tensor));
        if !plan.collector.may_push(tensor) || is_pushed {
            let name = plan.plan.name(tensor);
            return Err(RankFailure::Push { name, round });
        }
        plan.collector.handle_push(tensor);
        if retains {
            plan.replay.retain(round, tensor);
        }
        Ok((round, self.defer(round, tensor)))
    }

    /// End the current round and return it; `None` while results of the last round are missing, or a server was not sent
    /// its end.
    ///
    /// # Errors
    /// There is no plan.
    pub fn handle_end(&mut self) -> Result<Option<Round>, RankFailure> {
        let plan = self.plan_mut()?;
        if !plan.collector.may_end() {
            return Ok(None);
        }
        let round = plan.collector.current();
        plan.collector.handle_end();
        self.advance();
        Ok(Some(round))
    }

    /// Decide what to do with a sum that a server is about to send.
    ///
    /// # Errors
    /// A sum that the plan does not allow.
    pub fn handle_sum(
        &mut self,
        server: ServerId,
        generation: u32,
        round: u32,
        packet: PacketId,
        bytes: u64,
    ) -> Result<SumAdmission, RankFailure> {
        let is_over = self.is_over;
        let is_proposed = self.membership.is_proposed(generation);
        match self.connection(server).map(|connection| connection.state) {
            Some(ConnectionState::Lost) => return Ok(SumAdmission::Discard),
            // The control connection is about to report the state from which the server resumes.
            Some(ConnectionState::Resuming(_)) if !is_over => return Ok(SumAdmission::Retry),
            _ => {}
        }
        let Some(plan) = &mut self.plan else {
            return Err(RankFailure::unexpected(server, "sends sums before a plan"));
        };
        let round = Round::near(round, plan.collector.current());
        let arrival = plan.collector.admit(SumHeader { server, generation, round, packet, bytes });
        let claim = match arrival.map_err(|why| blame(server, why.into()))? {
            Arrival::Read(claim) => claim,
            Arrival::Discard(_) => return Ok(SumAdmission::Discard),
            Arrival::Hold if is_over => return Ok(SumAdmission::Discard),
            Arrival::Hold if is_proposed => return Ok(SumAdmission::Retry),
            // A server reports a newer plan before it sends that plan's first sum.
            Arrival::Hold => {
                return Err(RankFailure::unexpected(server, "sends sums of an unannounced membership"));
            }
        };
        if claim.offset().is_none() {
            plan.collector.receive(claim);
            self.advance();
            return Ok(SumAdmission::Confirmed);
        }
        Ok(SumAdmission::Read(claim, round))
    }

    /// Handle a sum that was read; `None` without a plan.
    pub fn handle_received(&mut self, server: ServerId, claim: Claim) -> Option<Completion> {
        let completion = self.plan.as_mut()?.collector.receive(claim);
        if let Some(connection) = self.connection_mut(server) {
            connection.breaks = Breaks::default();
        }
        self.advance();
        Some(completion)
    }

    /// Handle a sum that was read only in part. It may be sent again over another connection.
    pub fn handle_interrupted(&mut self, claim: Claim) {
        if let Some(plan) = &mut self.plan {
            plan.collector.abandon(claim);
        }
    }

    /// Handle a server's report of the tensors that a round used. It counts once all servers have reported the same.
    pub(super) fn receive_used(
        &mut self,
        server: ServerId,
        round: Round,
        set: &[u8],
    ) -> Result<(), RankFailure> {
        let rank = self.settings.rank;
        let plan = self.plan_mut()?;
        let used = TensorSet::from_bytes(set, plan.plan.tensors())?;
        let current = plan.collector.current();
        if round >= current {
            return Err(QueueError::ServerAhead { server, round, rank, current }.into());
        }
        if round < plan.collector.oldest_retained() || plan.collector.used(round).is_some() {
            plan.collector.handle_used(server, round, &used)?;
        } else if plan.reports.add(&plan.plan, server, round, &used)? {
            for server in plan.plan.config().pattern.active() {
                plan.collector.handle_used(server, round, &used)?;
            }
            plan.used.push_back((round, used));
            if plan.used.len() > 2 {
                plan.used.pop_front();
            }
        }
        self.advance();
        Ok(())
    }

    /// Handle a server's report that a round is done.
    pub(super) fn receive_done(&mut self, server: ServerId, round: Round) -> Result<(), RankFailure> {
        let is_resuming = !self.resuming.is_empty();
        let plan = self.plan_mut()?;
        if is_resuming {
            self.deferred_done.push((server, round));
        } else {
            plan.collector.handle_done(server, round)?;
            self.advance();
        }
        Ok(())
    }

    /// Send round ends and confirmations that are due, offer deferred gradients, and drop those that need not be retained.
    pub(super) fn advance(&mut self) {
        let Some(plan) = &mut self.plan else { return };
        let mut messages = Vec::new();
        while let Some(action) = plan.collector.poll_action() {
            messages.push(match action {
                CollectorAction::End(server, round) => {
                    let skipped = plan.collector.skipped(round).expect("the round has ended");
                    (server, RankMessage::RoundEnd { round, absent: skipped.to_bytes() })
                }
                CollectorAction::Got(server, round) => (server, RankMessage::Got(round)),
            });
        }
        let oldest = plan.collector.oldest_retained();
        let has_dropped = plan.replay.drop_before(oldest);
        for (server, message) in messages {
            self.send(server, message);
        }
        if has_dropped {
            for connection in &mut self.servers {
                connection.deferred.retain(|(round, _)| *round >= oldest);
            }
            self.actions.push_back(RankAction::Forget(oldest));
        }
        self.offer_deferred();
    }
}
