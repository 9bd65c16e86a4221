// SPDX-License-Identifier: Apache-2.0
//! Resumption after a server was connected again: its answer, and what this rank repeats.
//!
//! From when this rank reports its state until it acts on the answer, no round becomes done for it: the server counts on it
//! for every round that was open then, and what other servers report of their rounds waits. For the same reason answers of
//! several servers are acted on together, oldest rounds first: one may report a round as done which another one still
//! sums.

use foresee_grad_queue::{Round, ServerId};
use foresee_units::Nanos;

use super::connection::{Answer, ConnectionState, ServerConnection};
use super::{RankAction, RankFailure, RankSession};
use crate::Resumed;

impl RankSession {
    /// A server reports what it goes on with.
    pub(super) fn receive_resumed(
        &mut self,
        server: ServerId,
        resumed: Resumed,
        now: Nanos,
    ) -> Result<(), RankFailure> {
        let own = self.plan.as_ref().map(|plan| plan.collect.generation());
        let connection = self.servers.get_mut(usize::from(server.0));
        let waits = |state| state == ConnectionState::Resuming(None);
        let Some(connection) = connection.filter(|connection| waits(connection.state)) else {
            return Err(other_plan(server));
        };
        if own != Some(resumed.generation) {
            return Err(other_plan(server));
        }
        let answer = Answer { oldest: resumed.oldest, knows: resumed.knows };
        connection.state = ConnectionState::Resuming(Some(answer));
        self.act_on_answers(now)
    }

    /// A server in the place of a lost one reports a plan: it had nothing to go on with, or has done so before.
    pub(super) fn receive_anew(&mut self, server: ServerId, now: Nanos) -> Result<(), RankFailure> {
        if self.resuming.contains(&server) {
            self.resuming.retain(|other| *other != server);
            self.reopen(server, now);
        }
        self.act_on_answers(now)
    }

    /// Goes on once every server has answered that was sent this rank's state.
    pub(super) fn act_on_answers(&mut self, now: Nanos) -> Result<(), RankFailure> {
        let answer = |server: &ServerId| match self.servers.get(usize::from(server.0))?.state {
            ConnectionState::Resuming(answer) => Some((answer?, *server)),
            ConnectionState::Open | ConnectionState::Lost => None,
        };
        let answers = self.resuming.iter().map(answer).collect::<Option<Vec<_>>>();
        let Some(mut answers) = answers else { return Ok(()) };
        self.resuming.clear();
        answers.sort_unstable();
        for (Answer { oldest, knows }, server) in answers {
            // A server that knows the job may be another one than the one that sums came from.
            let is_same = self.servers.get(usize::from(server.0)).is_some_and(ServerConnection::is_same);
            let collect = &mut self.plan_mut()?.collect;
            if knows && is_same {
                if let Some(last) = oldest.0.checked_sub(1) {
                    collect.handle_done(server, Round(last))?;
                }
                collect.handle_reconnect(server);
            } else {
                collect.handle_replaced(server, oldest)?;
                self.note_replaced(server)?;
            }
            self.reopen(server, now);
            self.offer_missing(server);
        }
        for (server, round) in std::mem::take(&mut self.done_later) {
            self.plan_mut()?.collect.handle_done(server, round)?;
        }
        self.go_on();
        Ok(())
    }

    /// A server has taken the place of a lost one, and sums again what that may have sent to some ranks.
    ///
    /// # Errors
    /// A rank was lost in the same rounds: those sums may have it in them, and the new ones have not.
    fn note_replaced(&mut self, server: ServerId) -> Result<(), RankFailure> {
        let plan = self.plan_mut()?;
        plan.replaced_in = Some(plan.collect.current());
        if !plan.is_open(plan.changed_in) {
            return Ok(());
        }
        let lost = self.servers[usize::from(server.0)].lost.as_ref().map_or("", |(_, why)| why.as_str());
        let why = format!(
            "{lost}; a rank was lost in the same round, and what the server had sent of it cannot be had again"
        );
        Err(RankFailure::ServerLost { server, why, missing: self.missing() })
    }

    /// The connections to a server can be used again.
    pub(super) fn reopen(&mut self, server: ServerId, now: Nanos) {
        let Some(connection) = self.servers.get_mut(usize::from(server.0)) else { return };
        connection.state = ConnectionState::Open;
        connection.dial = None;
        let is_same = connection.is_same();
        connection.process = connection.present;
        *(if is_same { &mut self.reconnected } else { &mut self.replaced }) += 1;
        if let Some((at, why)) = &connection.lost {
            let (address, time) = (&self.settings.servers[usize::from(server.0)], now.saturating_sub(*at));
            self.notices.push(if is_same {
                format!("the connection to server {server} at {address} broke ({why}), and was made again after {time}")
            } else {
                format!("server {server} at {address} was lost ({why}), and one is back in its place after {time}")
            });
        }
        self.actions.push_back(RankAction::Route);
        self.restart_agreement(now);
    }
}

fn other_plan(server: ServerId) -> RankFailure {
    RankFailure::Disagree(format!("server {server} goes on with a plan that this rank is not under"))
}
