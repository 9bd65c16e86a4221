// SPDX-License-Identifier: Apache-2.0
//! Resumption after a server was reconnected: its answer, and what this rank repeats.
//!
//! After this rank reports its state, no round becomes done until it applies the answer: the server relies on the
//! gradients of every round that was open then, and other servers' reports are deferred. For the same reason the
//! answers of several servers are applied together, oldest rounds first: one server may report a round as done that
//! another still sums.

use foresee_grad_queue::{Round, ServerId};
use foresee_units::Nanos;

use super::connection::{Answer, ConnectionState, ServerConnection};
use super::{RankAction, RankFailure, RankSession};
use crate::Resumed;

impl RankSession {
    /// Handle a server's report of the state from which it resumes.
    pub(super) fn receive_resumed(
        &mut self,
        server: ServerId,
        resumed: Resumed,
        now: Nanos,
    ) -> Result<(), RankFailure> {
        let own = self.plan.as_ref().map(|plan| plan.collector.generation());
        let connection = self.connection_mut(server);
        let is_waiting = |state| state == ConnectionState::Resuming(None);
        match connection.filter(|connection| is_waiting(connection.state) && own == Some(resumed.generation))
        {
            Some(connection) => {
                let answer = Answer { oldest: resumed.oldest, has_sums: resumed.has_sums };
                connection.state = ConnectionState::Resuming(Some(answer));
                self.apply_answers(now)
            }
            None => Err(RankFailure::Disagree(format!(
                "server {server} resumes a plan that this rank does not have"
            ))),
        }
    }

    /// Handle a plan from a replacement server: it had no state to resume, or has resumed before.
    pub(super) fn receive_fresh_plan(&mut self, server: ServerId, now: Nanos) -> Result<(), RankFailure> {
        if self.resuming.contains(&server) {
            self.resuming.retain(|other| *other != server);
            self.reopen(server, now);
        }
        self.apply_answers(now)
    }

    /// Resume once every server that was sent this rank's state has answered.
    pub(super) fn apply_answers(&mut self, now: Nanos) -> Result<(), RankFailure> {
        let answer = |server: &ServerId| match self.connection(*server)?.state {
            ConnectionState::Resuming(answer) => Some((answer?, *server)),
            ConnectionState::Open | ConnectionState::Lost => None,
        };
        let answers = self.resuming.iter().map(answer).collect::<Option<Vec<_>>>();
        let Some(mut answers) = answers else { return Ok(()) };
        self.resuming.clear();
        answers.sort_unstable();
        for (Answer { oldest, has_sums }, server) in answers {
            // A server that knows the job may still be another process than the one that sent sums.
            let is_same = self.connection(server).is_some_and(ServerConnection::is_same_process);
            let collector = &mut self.plan_mut()?.collector;
            if has_sums && is_same {
                if let Some(last) = oldest.0.checked_sub(1) {
                    collector.handle_done(server, Round(last))?;
                }
                collector.handle_reconnect(server);
            } else {
                collector.handle_replaced(server, oldest)?;
                self.check_replacement(server)?;
            }
            self.reopen(server, now);
            self.offer_missing(server);
        }
        for (server, round) in std::mem::take(&mut self.deferred_done) {
            self.plan_mut()?.collector.handle_done(server, round)?;
        }
        self.advance();
        Ok(())
    }

    /// Note that a replacement server repeats sums that the lost one may have sent to some ranks.
    ///
    /// # Errors
    /// A rank was lost in the same rounds: those sums may include it, and the repeated ones do not.
    fn check_replacement(&mut self, server: ServerId) -> Result<(), RankFailure> {
        let plan = self.plan_mut()?;
        plan.replaced_round = Some(plan.collector.current());
        if !plan.is_open(plan.changed_round) {
            return Ok(());
        }
        let lost = self.connection(server).map_or("", ServerConnection::loss_reason);
        let why = format!(
            "{lost}; a rank was lost in the same round, so the sums that the server sent cannot be repeated exactly"
        );
        Err(RankFailure::ServerLost { server, why, missing: self.missing() })
    }

    /// Use the connections to a server again.
    pub(super) fn reopen(&mut self, server: ServerId, now: Nanos) {
        let Some(connection) = self.servers.get_mut(usize::from(server.0)) else { return };
        connection.state = ConnectionState::Open;
        connection.dial = None;
        let is_same = connection.is_same_process();
        connection.process = connection.current_process;
        *(if is_same { &mut self.reconnects } else { &mut self.replacements }) += 1;
        if let Some((at, why)) = &connection.lost {
            let (address, time) = (&self.settings.servers[usize::from(server.0)], now.saturating_sub(*at));
            self.notices.push(if is_same {
                format!("the connection to server {server} at {address} broke ({why}) and was re-established after {time}")
            } else {
                format!("server {server} at {address} was lost ({why}) and was replaced after {time}")
            });
        }
        self.actions.push_back(RankAction::Route);
        self.restart_agreement(now);
    }
}
