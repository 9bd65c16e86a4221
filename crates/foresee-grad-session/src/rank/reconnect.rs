// SPDX-License-Identifier: Apache-2.0
//! Broken connections: detect them, dial again until the timeout, report this rank's state.
//!
//! ```text
//! lost ──> dial, until the timeout ──> RESUME ──> same server: RESUMED at once ──> push and end again what has not arrived
//!                                         └─────> replacement: RESUMED once every rank has reported ──> push and end all again
//! ```
//!
//! All ranks do this independently, and meet at a replacement. No server replaces one that is co-located with a rank. A
//! server that says goodbye or reports a fault is not dialled again. A connection that repeatedly breaks before a sum
//! arrives is given up by the rank, because the server knows less about what has arrived.

use foresee_grad_queue::ServerId;
use foresee_units::Nanos;

use super::connection::{ConnectionState, Dial, ServerConnection, Suspicion};
use super::{DialFault, RankAction, RankFailure, RankSession, RankSettings};
use crate::{Closed, RankMessage, RefusalCode, Resume};

/// Pause between two attempts to connect.
const RETRY: Nanos = Nanos::from_millis(100);

/// Within this time the reader of an interrupted control connection reports its end.
const INTERRUPT: Nanos = Nanos::from_secs(2);

impl RankSession {
    /// Handle a broken data connection. `is_silence`: nothing was acknowledged. The control connection of the same server
    /// usually knows the reason better, and has the time of a heartbeat to report it.
    pub fn handle_data_closed(
        &mut self,
        server: ServerId,
        pair: u32,
        why: &str,
        is_silence: bool,
        now: Nanos,
    ) {
        if !self.is_current(server, pair) {
            return;
        }
        let until = now.saturating_add(self.settings.heartbeat);
        let Some(connection) = self.connection_mut(server) else { return };
        if connection.state != ConnectionState::Lost {
            connection.suspicion.get_or_insert_with(|| Suspicion { until, why: why.to_owned(), is_silence });
        }
    }

    /// Interrupt control connections that did not report in time why the data connection broke.
    pub(super) fn expire_suspicions(&mut self, now: Nanos) {
        for (server, connection) in self.ids().zip(&mut self.servers) {
            if let Some(suspicion) = connection.suspicion.as_mut().filter(|suspicion| suspicion.until <= now)
            {
                // The reader then reports the end of the connection.
                suspicion.until = now.saturating_add(INTERRUPT);
                self.actions.push_back(RankAction::Interrupt(server));
            }
        }
    }

    /// Handle the end of the control connection to a server.
    pub fn handle_closed(&mut self, server: ServerId, pair: u32, closed: Closed, now: Nanos) {
        if !self.is_current(server, pair) {
            return;
        }
        let silent_server = self.silent_server();
        let (missing, lost_servers) = (self.missing(), self.lost_servers());
        let is_replaceable = self.settings.is_replaceable(server);
        let (rank, timeout, recovers) = (self.settings.rank, self.settings.timeout, self.settings.recovers);
        let Some(connection) = self.connection_mut(server) else { return };
        let suspicion = connection.suspicion.take();
        if matches!(closed, Closed::Broken(_) | Closed::Unacknowledged(_) | Closed::Silent(_)) {
            connection.breaks.add(suspicion.as_ref().is_some_and(|suspicion| suspicion.is_silence), now);
        }
        let breaks = connection.breaks;
        let lost = |why| RankFailure::ServerLost { server, why, missing: missing.clone() };
        let suspected = |why: String| suspicion.map_or(why, |suspicion| suspicion.why);
        let (mut failure, mut reconnects) = match closed {
            Closed::Goodbye(reason) => (lost(format!("it left: {reason}")), false),
            Closed::Broken(why) => (lost(suspected(why)), recovers && breaks.may_retry_silence()),
            Closed::Unacknowledged(why) => (lost(suspected(why)), is_replaceable),
            Closed::Silent(why) => (lost(why), is_replaceable),
            Closed::Refused(refusal) => match (refusal.code, refusal.rank) {
                (RefusalCode::Lost, Some(lost_rank)) => {
                    let why = format!("{}{lost_servers}", refusal.text);
                    let lost = RankFailure::RankLost { rank: lost_rank, why, missing: missing.clone() };
                    // Others only saw this rank's connection end; this rank knows why it ended it.
                    let own = silent_server.filter(|_| lost_rank == rank);
                    (own.unwrap_or(lost), false)
                }
                (RefusalCode::Plan, _) => (RankFailure::Disagree(refusal.text), false),
                (code, _) => {
                    let refused = RankFailure::Refused { server, why: refusal.text };
                    (refused, code == RefusalCode::Closing && is_replaceable)
                }
            },
        };
        if let (RankFailure::ServerLost { why, .. }, Some(time)) =
            (&mut failure, breaks.exhausted(timeout, now).filter(|_| reconnects))
        {
            *why = format!(
                "{why}; connections to it broke {} times within {time} before a sum arrived; check the network path for a \
                 device that ends connections once they carry data",
                breaks.count
            );
            reconnects = false;
        }
        if !reconnects || self.membership.is_changing() {
            self.fail(failure);
        } else if !self.is_over {
            let (RankFailure::ServerLost { why, .. } | RankFailure::Refused { why, .. }) = failure else {
                return;
            };
            self.begin_reconnect(server, &why, now);
        }
    }

    /// The failure of a server that acknowledges nothing over its data connection, and is about to be given up.
    fn silent_server(&self) -> Option<RankFailure> {
        self.connections().find_map(|(server, connection)| {
            let suspicion = connection.suspicion.as_ref().filter(|suspicion| suspicion.is_silence)?;
            Some(RankFailure::ServerLost { server, why: suspicion.why.clone(), missing: self.missing() })
        })
    }

    fn begin_reconnect(&mut self, server: ServerId, why: &str, now: Nanos) {
        // The first attempts are short: packets lost during the outage are retransmitted too late.
        let dial = self.next_dial(self.settings.heartbeat, now);
        if let Some(connection) = self.connection_mut(server) {
            connection.lose(why, now);
            connection.dial = Some(dial);
        }
        self.actions.extend([RankAction::Close(server), RankAction::Route]);
        self.resuming.retain(|other| *other != server);
        // A replacement may sum a round once more that the lost server reported as done.
        self.deferred_done.retain(|(other, _)| *other != server);
        if let Some(plan) = &mut self.plan {
            plan.reports.forget(server);
        }
        self.agreement.forget(server);
        if let Err(failure) = self.apply_answers(now) {
            self.fail(failure);
        }
        self.advance_reconnects(now);
    }

    fn next_dial(&self, within: Nanos, at: Nanos) -> Dial {
        Dial { at: Some(at), within: within.saturating_add(within).min(self.settings.handshake) }
    }

    /// How long a server is dialled; if it cannot be replaced, no longer than it waits for this rank.
    fn dial_time(&self, server: ServerId) -> Nanos {
        let RankSettings { timeout, grace_period, heartbeat, .. } = self.settings;
        if self.settings.is_replaceable(server) {
            timeout
        } else {
            timeout.min(grace_period.saturating_add(heartbeat))
        }
    }

    /// When a server is given up.
    fn dial_deadline(&self, server: ServerId) -> Nanos {
        let lost = self.connection(server).and_then(|connection| connection.lost.as_ref());
        lost.map_or(Nanos::ZERO, |(at, _)| at.saturating_add(self.dial_time(server)))
    }

    /// The next timeout of a server.
    pub(super) fn server_timeout(&self, server: ServerId) -> Option<Nanos> {
        let connection = self.connection(server)?;
        let dial = connection.dial.and_then(|dial| dial.at);
        let is_resuming = matches!(connection.state, ConnectionState::Resuming(_));
        let given_up = is_resuming.then(|| self.dial_deadline(server));
        connection.suspicion_timeout().into_iter().chain(dial).chain(given_up).min()
    }

    /// Dial the servers that are due, and give up a replacement that did not resume in time.
    pub(super) fn advance_reconnects(&mut self, now: Nanos) {
        for server in self.ids() {
            let until = self.dial_deadline(server);
            let time = self.dial_time(server);
            let Some(connection) = self.connection_mut(server) else { continue };
            if matches!(connection.state, ConnectionState::Resuming(_)) && until <= now {
                let why =
                    format!("a server replaced it, and not every rank connected to that one within {time}");
                self.give_up(server, &why);
                return;
            }
            if let Some(dial) = connection.dial.as_mut().filter(|dial| dial.at.is_some_and(|at| at <= now)) {
                dial.at = None;
                let within = dial.within;
                self.actions.push_back(RankAction::Dial { server, within, until });
            }
        }
    }

    fn give_up(&mut self, server: ServerId, why: &str) {
        let first = self.connection(server).map_or("", ServerConnection::loss_reason);
        let why = format!("{first}; {why}");
        self.fail(RankFailure::ServerLost { server, why, missing: self.missing() });
    }

    /// Handle a failed attempt to connect.
    pub fn handle_not_connected(&mut self, server: ServerId, fault: DialFault, why: &str, now: Nanos) {
        let dial = self.connection(server).and_then(|connection| connection.dial);
        let Some(dial) = dial.filter(|_| !self.is_over) else { return };
        let is_gone = fault == DialFault::NotListening && !self.settings.is_replaceable(server);
        if fault == DialFault::Permanent || is_gone {
            return self.give_up(server, why);
        }
        let retry = now.saturating_add(RETRY);
        if retry >= self.dial_deadline(server) {
            let time = self.dial_time(server);
            return self.give_up(server, &format!("no server replaced it within {time}: {why}"));
        }
        let next = self.next_dial(dial.within, retry);
        self.servers[usize::from(server.0)].dial = Some(next);
    }

    /// Begin a new pair of connections and return its number; `None` if the session has ended.
    pub fn begin_pair(&mut self, server: ServerId) -> Option<u32> {
        if self.is_over {
            return None;
        }
        let connection = self.connection_mut(server)?;
        connection.pair += 1;
        Some(connection.pair)
    }

    /// Handle a new pair of connections to this process of a server: send it this rank's state.
    pub fn handle_connected(&mut self, server: ServerId, process: u64, now: Nanos) {
        let state = self.plan.as_ref().map_or_else(Resume::default, |plan| Resume {
            generation: plan.collector.generation(),
            oldest: plan.collector.oldest_retained(),
            live: self.membership.live.clone(),
            body: plan.plan.encode(),
        });
        let proposed = self.agreement.proposed.get(usize::from(server.0)).cloned().flatten();
        let has_plan = self.plan.is_some();
        let Some(connection) = self.connection_mut(server) else { return };
        connection.current_process = process;
        connection.dial = None;
        if has_plan {
            connection.state = ConnectionState::Resuming(None);
        }
        let pair = connection.pair;
        let messages = [RankMessage::Resume(state)].into_iter();
        let messages = messages.chain(proposed.map(|body| RankMessage::Plan(body.to_vec())));
        self.actions.extend(messages.map(|message| RankAction::Send { server, pair, message }));
        if has_plan {
            self.resuming.push(server);
            self.actions.push_back(RankAction::Route);
        } else {
            // Any plan that arrives answers the repeated proposal.
            self.reopen(server, now);
        }
    }
}
