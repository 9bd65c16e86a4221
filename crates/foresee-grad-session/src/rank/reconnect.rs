// SPDX-License-Identifier: Apache-2.0
//! Connections that break: notice, dial again for up to the timeout, report this rank's state.
//!
//! ```text
//! lost ──> dial, for up to the timeout ──> RESUME ──> the same server: RESUMED at once ──> push and end again what has not arrived
//!                                             └─────> another: RESUMED once every rank has reported ──> push and end all again
//! ```
//!
//! All ranks do this on their own, and meet at a new server. No server takes the place of one beside a rank, which dies with
//! it, and one that leaves or reports a fault has a reason that stays. Nor is a connection made again forever that breaks
//! before anything has come over it: this rank counts, since its server knows less of what has arrived.

use foresee_grad_queue::ServerId;
use foresee_units::Nanos;

use super::connection::{Breaks, ConnectionState, Dial, Suspicion};
use super::{DialFault, RankAction, RankFailure, RankSession, RankSettings};
use crate::{Closed, RankMessage, RefusalCode, Resume};

/// Pause between two attempts at a server.
const RETRY: Nanos = Nanos::from_millis(100);

/// The reader of a control connection that was ended reports it within this time.
const INTERRUPT: Nanos = Nanos::from_secs(2);

impl RankSession {
    /// A data connection broke; `is_silence`: because nothing was acknowledged. The control connection of the same server
    /// mostly knows better why, and is given the time of a heartbeat to report it.
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
        let Some(connection) = self.servers.get_mut(usize::from(server.0)) else { return };
        if connection.state != ConnectionState::Lost {
            connection.suspicion.get_or_insert_with(|| Suspicion { until, why: why.to_owned(), is_silence });
        }
    }

    /// Ends control connections that had time to report why the data connection beside them broke.
    pub(super) fn act_on_suspicions(&mut self, now: Nanos) {
        for (server, connection) in self.ids().zip(&mut self.servers) {
            if let Some(suspicion) = connection.suspicion.as_mut().filter(|suspicion| suspicion.until <= now)
            {
                // Its reader reports the end, as any other.
                suspicion.until = now.saturating_add(INTERRUPT);
                self.actions.push_back(RankAction::Interrupt(server));
            }
        }
    }

    /// The control connection to a server ended.
    pub fn handle_closed(&mut self, server: ServerId, pair: u32, closed: Closed, now: Nanos) {
        if !self.is_current(server, pair) {
            return;
        }
        let noticed = self.noticed();
        let (missing, lost_servers) = (self.missing(), self.lost_servers());
        let is_replaced = self.settings.may_be_replaced(server);
        let (timeout, recover) = (self.settings.timeout, self.settings.recover);
        let Some(connection) = self.servers.get_mut(usize::from(server.0)) else { return };
        let suspicion = connection.suspicion.take();
        if matches!(closed, Closed::Broken(_) | Closed::Unacknowledged(_) | Closed::Silent(_)) {
            connection.breaks.count(suspicion.as_ref().is_some_and(|suspicion| suspicion.is_silence), now);
        }
        let Breaks { times, .. } = connection.breaks;
        let may_be_silent = connection.breaks.may_be_silent();
        let endless = connection.breaks.endless(timeout, now);
        let lost = |why| RankFailure::ServerLost { server, why, missing: missing.clone() };
        let suspected = |why: String| suspicion.map_or(why, |suspicion| suspicion.why);
        let (mut failure, mut reconnects) = match closed {
            Closed::Goodbye(reason) => (lost(format!("it left: {reason}")), false),
            Closed::Broken(why) => (lost(suspected(why)), recover && may_be_silent),
            Closed::Unacknowledged(why) => (lost(suspected(why)), is_replaced),
            Closed::Silent(why) => (lost(why), is_replaced),
            Closed::Refused(refusal) => match (refusal.code, refusal.rank) {
                (RefusalCode::Lost, Some(rank)) => {
                    let why = format!("{}{lost_servers}", refusal.text);
                    let lost = RankFailure::RankLost { rank, why, missing: missing.clone() };
                    // Others saw the end of a connection; where this rank ended it, it knows why.
                    let own = noticed.filter(|_| rank == self.settings.rank);
                    (own.unwrap_or(lost), false)
                }
                (RefusalCode::Plan, _) => (RankFailure::Disagree(refusal.text), false),
                (code, _) => {
                    let refused = RankFailure::Refused { server, why: refusal.text };
                    (refused, code == RefusalCode::Closing && is_replaced)
                }
            },
        };
        if let (RankFailure::ServerLost { why, .. }, Some(time)) =
            (&mut failure, endless.filter(|_| reconnects))
        {
            *why = format!(
                "{why}; connections to it broke {times} times within {time}, and nothing came over any of them: look for \
                 something on the way that ends connections once they carry data"
            );
            reconnects = false;
        }
        if !reconnects || self.membership.is_changing() {
            self.fail(failure);
        } else if !self.is_over {
            let (RankFailure::ServerLost { why, .. } | RankFailure::Refused { why, .. }) = failure else {
                return;
            };
            self.lose(server, &why, now);
        }
    }

    /// The server whose silence over its data connection this rank has noticed, and is about to give up.
    fn noticed(&self) -> Option<RankFailure> {
        self.ids().zip(&self.servers).find_map(|(server, connection)| {
            let suspicion = connection.suspicion.as_ref().filter(|suspicion| suspicion.is_silence)?;
            Some(RankFailure::ServerLost { server, why: suspicion.why.clone(), missing: self.missing() })
        })
    }

    /// A server is not there any more: it is dialled.
    fn lose(&mut self, server: ServerId, why: &str, now: Nanos) {
        // The first attempts are short: what was sent while the way was broken is sent again too late.
        let dial = self.next_dial(self.settings.heartbeat, now);
        if let Some(connection) = self.servers.get_mut(usize::from(server.0)) {
            connection.lose(why, now);
            connection.dial = Some(dial);
        }
        self.actions.extend([RankAction::Close(server), RankAction::Route]);
        self.resuming.retain(|other| *other != server);
        // A round that it reported as done may be one that the next server sums once more.
        self.done_later.retain(|(other, _)| *other != server);
        if let Some(plan) = &mut self.plan {
            plan.reports.forget(server);
        }
        self.agreement.forget(server);
        if let Err(failure) = self.act_on_answers(now) {
            self.fail(failure);
        }
        self.act_on_reconnects(now);
    }

    fn next_dial(&self, within: Nanos, at: Nanos) -> Dial {
        Dial { at: Some(at), within: within.saturating_add(within).min(self.settings.handshake) }
    }

    /// For how long a server is looked for: where none takes its place, no longer than it keeps this rank's own.
    fn patience(&self, server: ServerId) -> Nanos {
        let RankSettings { timeout, reconnect, heartbeat, .. } = self.settings;
        if self.settings.may_be_replaced(server) {
            timeout
        } else {
            timeout.min(reconnect.saturating_add(heartbeat))
        }
    }

    /// When a server is given up.
    fn last_time(&self, server: ServerId) -> Nanos {
        let lost = self.servers.get(usize::from(server.0)).and_then(|connection| connection.lost.as_ref());
        lost.map_or(Nanos::ZERO, |(at, _)| at.saturating_add(self.patience(server)))
    }

    /// When something is to be done about a server.
    pub(super) fn server_timeout(&self, server: ServerId) -> Option<Nanos> {
        let connection = self.servers.get(usize::from(server.0))?;
        let dial = connection.dial.and_then(|dial| dial.at);
        let is_resuming = matches!(connection.state, ConnectionState::Resuming(_));
        let given_up = is_resuming.then(|| self.last_time(server));
        connection.suspicion_timeout().into_iter().chain(dial).chain(given_up).min()
    }

    /// Dials servers whose time has come, and gives up those that go on with nothing.
    pub(super) fn act_on_reconnects(&mut self, now: Nanos) {
        for server in self.ids() {
            let until = self.last_time(server);
            let time = self.patience(server);
            let Some(connection) = self.servers.get_mut(usize::from(server.0)) else { continue };
            if matches!(connection.state, ConnectionState::Resuming(_)) && until <= now {
                let why = format!("somebody came in its place, and not every rank to it within {time}");
                self.give_up(server, &why);
                return;
            }
            if let Some(dial) = connection.dial.as_mut().filter(|dial| dial.at.is_some_and(|at| at <= now)) {
                dial.at = None;
                self.actions.push_back(RankAction::Dial { server, within: dial.within, until });
            }
        }
    }

    /// A lost server for good.
    fn give_up(&mut self, server: ServerId, why: &str) {
        let lost = self.servers.get(usize::from(server.0)).and_then(|connection| connection.lost.as_ref());
        let first = lost.map_or("", |(_, why)| why.as_str());
        let why = format!("{first}; {why}");
        self.fail(RankFailure::ServerLost { server, why, missing: self.missing() });
    }

    /// An attempt to connect has failed.
    pub fn handle_not_connected(&mut self, server: ServerId, fault: DialFault, why: &str, now: Nanos) {
        let Some(dial) = self.servers.get(usize::from(server.0)).and_then(|connection| connection.dial)
        else {
            return;
        };
        if self.is_over {
            return;
        }
        let is_gone = fault == DialFault::NobodyThere && !self.settings.may_be_replaced(server);
        if fault == DialFault::Permanent || is_gone {
            return self.give_up(server, why);
        }
        let again = now.saturating_add(RETRY);
        if again >= self.last_time(server) {
            let time = self.patience(server);
            return self.give_up(server, &format!("nobody came in its place within {time}: {why}"));
        }
        let next = self.next_dial(dial.within, again);
        self.servers[usize::from(server.0)].dial = Some(next);
    }

    /// An attempt to connect has succeeded. Returns the number of the new pair; `None` if it is of no more use.
    pub fn begin_pair(&mut self, server: ServerId) -> Option<u32> {
        if self.is_over {
            return None;
        }
        let connection = self.servers.get_mut(usize::from(server.0))?;
        connection.pair += 1;
        Some(connection.pair)
    }

    /// A new pair of connections to a server is there, to this process of it: it is sent this rank's state.
    pub fn handle_connected(&mut self, server: ServerId, process: u64, now: Nanos) {
        let known = match &self.plan {
            Some(plan) => Resume {
                generation: plan.collect.generation(),
                oldest: plan.collect.oldest_retained(),
                live: self.membership.live.clone(),
                body: plan.plan.encode(),
            },
            None => Resume::default(),
        };
        let proposed = self.agreement.proposed.get(usize::from(server.0)).cloned().flatten();
        let Some(connection) = self.servers.get_mut(usize::from(server.0)) else { return };
        connection.present = process;
        connection.dial = None;
        let pair = connection.pair;
        let messages = [RankMessage::Resume(known)].into_iter();
        let messages = messages.chain(proposed.map(|body| RankMessage::Plan(body.to_vec())));
        self.actions.extend(messages.map(|message| RankAction::Send { server, pair, message }));
        if self.plan.is_some() {
            connection.state = ConnectionState::Resuming(None);
            self.resuming.push(server);
            self.actions.push_back(RankAction::Route);
        } else {
            // Whatever plan comes is answered to the proposal that was just repeated.
            self.reopen(server, now);
        }
    }
}
