// SPDX-License-Identifier: Apache-2.0
//! Reconnection of a rank within a grace period: it is sent again what it may have missed.
//!
//! ```text
//! broken ──> absent ──> same process connects ──> RESUME ──> RESUMED, and the used tensors of open rounds
//!               └─────> nothing within three heartbeats ──> lost
//! ```
//!
//! A process that dies also breaks its connections, so the membership stays unchanged meanwhile. Sums for the rank stay
//! in their slots, and are sent again for each tensor that it pushes or ends again. During a membership change no rank
//! is waited for, because the change is settled without it.

use foresee_grad_queue::Round;
use foresee_units::{Nanos, Rank};

use super::action::{JobAction, Peer, Role};
use super::admit::RankHello;
use super::connection::{Absence, Suspicion};
use super::{RankConnection, ServerJob, violation};
use crate::{Closed, Refusal, RefusalCode, Resume, Resumed, ServerMessage, Used};

impl ServerJob {
    /// Begin a new pair if a connection is the first one of a connected rank's new pair: its process has given up the
    /// old pair, which this end may not have detected.
    pub(super) fn begin_reconnect(&mut self, hello: &RankHello, now: Nanos) -> bool {
        let Some(connection) = self.ranks.get_mut(&hello.rank) else { return false };
        let is_same = connection.process.reconnects && connection.process.id == hello.process;
        let was_connected = connection.has_control || connection.absence.is_some();
        if !is_same || !was_connected || hello.role != Role::Control {
            return false;
        }
        let until = now.saturating_add(self.settings.grace_period);
        let absence = Absence { until, why: "it has dialled again".into() };
        self.actions.extend(connection.begin_absence(hello.rank, absence));
        self.pairs += 1;
        connection.pair = self.pairs;
        // The rank proposes again. Counted twice, its proposal would ask for a plan after its own answer.
        self.proposals.remove(&hello.rank);
        true
    }

    /// Handle a broken data connection. `is_silence`: nothing was acknowledged. The control connection of the same pair
    /// usually knows the reason better, and has the time of a heartbeat to report it.
    pub fn handle_data_closed(&mut self, peer: Peer, why: &str, is_silence: bool, now: Nanos) {
        let until = Some(now.saturating_add(self.settings.heartbeat));
        let Some(connection) = self.current_mut(peer) else { return };
        connection.silences += u32::from(is_silence);
        let suspicion = connection.suspicion.get_or_insert(Suspicion { until: None, why: why.to_owned() });
        suspicion.until = suspicion.until.or(until);
    }

    /// Handle the end of a control connection.
    pub fn handle_closed(&mut self, peer: Peer, closed: Closed, now: Nanos) {
        if !self.is_current(peer) {
            return;
        }
        match closed {
            Closed::Goodbye(reason) => self.handle_goodbye(peer.rank, reason),
            // The rank ends because of another rank or server, which is the reason for the others as well.
            Closed::Refused(refusal)
                if !self.settings.continues_after_loss
                    && matches!(refusal.code, RefusalCode::Lost | RefusalCode::Plan) =>
            {
                self.end(&refusal);
            }
            Closed::Refused(refusal) => self.declare_lost(peer.rank, &refusal.text),
            Closed::Broken(why) => self.begin_absence(peer.rank, why, now),
            Closed::Unacknowledged(why) | Closed::Silent(why) => self.declare_lost(peer.rank, &why),
        }
    }

    /// Whether absent ranks are waited for.
    fn may_wait(&self) -> bool {
        !self.is_changing() && !self.is_over
    }

    /// Wait for a rank whose connections broke if it reconnects, else declare it lost.
    fn begin_absence(&mut self, rank: Rank, why: String, now: Nanos) {
        let may_wait = self.may_wait();
        let until = now.saturating_add(self.settings.grace_period);
        let Some(connection) = self.ranks.get_mut(&rank) else { return };
        let why = connection.suspicion.take().map_or(why, |suspicion| suspicion.why);
        if may_wait && connection.may_reconnect() {
            self.actions.extend(connection.begin_absence(rank, Absence { until, why }));
        } else {
            self.declare_lost(rank, &why);
        }
    }

    /// Interrupt the control connections that did not report in time why the data connection broke, if the rank may
    /// reconnect; else declare it lost.
    pub(super) fn expire_suspicions(&mut self, now: Nanos) {
        let may_wait = self.may_wait();
        let mut lost = Vec::new();
        for (rank, connection) in &mut self.ranks {
            let (peer, may_reconnect) = (connection.peer(*rank), connection.may_reconnect());
            let Some(suspicion) = &mut connection.suspicion else { continue };
            if suspicion.until.is_none_or(|until| until > now) {
                continue;
            }
            suspicion.until = None;
            if may_wait && may_reconnect {
                // The reader then reports the end of the connection.
                self.actions.push_back(JobAction::Interrupt(peer));
            } else {
                // The control connection may still work, and is the only way to send the rank the reason.
                lost.push((*rank, suspicion.why.clone()));
            }
        }
        for (rank, why) in lost {
            self.declare_lost(rank, &why);
        }
    }

    /// Declare ranks lost that did not reconnect in time.
    pub(super) fn expire_absences(&mut self, now: Nanos) {
        let grace_period = self.settings.grace_period;
        let expired = |(rank, connection): (&Rank, &RankConnection)| {
            let absence = connection.absence.as_ref().filter(|absence| absence.until <= now)?;
            Some((*rank, format!("{}; it did not reconnect within {grace_period}", absence.why)))
        };
        let lost: Vec<(Rank, String)> = self.ranks.iter().filter_map(expired).collect();
        for (rank, why) in lost {
            self.declare_lost(rank, &why);
        }
    }

    /// Handle the state of a rank that was absent, or whose server was lost.
    pub(super) fn receive_resume(&mut self, rank: Rank, state: Resume) -> Result<(), Refusal> {
        let Some(connection) = self.ranks.get_mut(&rank) else { return Ok(()) };
        if connection.absence.is_some() {
            connection.resume = Some(state);
            return self.rejoin(rank);
        }
        if self.plan.is_some() {
            let text = format!("rank {rank} resumes from a lost server at one that runs its job");
            return Err(Refusal::protocol(rank, text));
        }
        self.store_resume(rank, state)?;
        self.resume_plan()
    }

    /// Readmit an absent rank once both its connections are established and it has reported its state.
    pub(super) fn rejoin(&mut self, rank: Rank) -> Result<(), Refusal> {
        let Some(connection) = self.ranks.get_mut(&rank) else { return Ok(()) };
        let is_back = connection.absence.is_some() && connection.has_control && connection.has_data;
        let Some(state) = connection.resume.take_if(|_| is_back) else { return Ok(()) };
        let proposed = connection.proposed.take();
        let is_readmitted = if self.plan.is_some() {
            self.readmit(rank, &state)?
        } else {
            // The plan to resume follows from the state of all ranks.
            connection.absence = None;
            self.store_resume(rank, state)?;
            true
        };
        self.resume_plan()?;
        if !is_readmitted {
            self.declare_lost(rank, "its connection broke while another rank was lost");
        } else if let Some(body) = proposed {
            self.receive_plan(rank, body)?;
        }
        Ok(())
    }

    /// Send a rank what it may have missed; return false if it and this server know different memberships.
    fn readmit(&mut self, rank: Rank, state: &Resume) -> Result<bool, Refusal> {
        if self.is_changing() {
            return Ok(false);
        }
        let Some(plan) = &mut self.plan else { return Ok(false) };
        let Some(connection) = self.ranks.get_mut(&rank) else { return Ok(false) };
        let (peer, generation) = (connection.peer(rank), plan.rounds.members().generation());
        if state.generation == generation {
            plan.rounds.handle_oldest(rank, state.oldest).map_err(violation(rank))?;
            let oldest = plan.rounds.oldest();
            let used = |round: Round| {
                let used = plan.rounds.used(round)?.to_bytes();
                Some(ServerMessage::Used(Used { round, used }))
            };
            let used: Vec<ServerMessage> = [oldest, oldest.next()].into_iter().filter_map(used).collect();
            connection.generation = generation;
            // The rank does not repeat the end of a round that is done.
            connection.next = connection.next.max(oldest);
            connection.absence = None;
            self.actions.push_back(JobAction::Route(peer));
            self.send(peer, ServerMessage::Resumed(Resumed { generation, oldest, has_sums: true }));
            for message in used {
                self.send(peer, message);
            }
            self.announce();
        } else if state.generation < generation && generation == plan.first_generation {
            // It proposed the current plan and missed the answer; it may be proposing it again.
            connection.absence = None;
            connection.is_answered = true;
            let body = plan.plan.encode();
            self.actions.push_back(JobAction::Route(peer));
            self.send(peer, ServerMessage::Plan { generation, body });
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Drop an absent rank if this is another process of it.
    pub(super) fn forget_other_process(&mut self, rank: Rank, process: u64) {
        let is_other = |own: &RankConnection| own.process.id != process && own.absence.is_some();
        if self.ranks.get(&rank).is_some_and(is_other) {
            self.forget(rank);
            self.proposals.remove(&rank);
            self.resumes.remove(&rank);
        }
    }
}
