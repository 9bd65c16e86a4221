// SPDX-License-Identifier: Apache-2.0
//! A rank whose connection broke: its place is kept for a grace period, and it is sent again what it may have missed.
//!
//! ```text
//! broken ──> absent ──> the same process connects ──> RESUME ──> RESUMED, and what rounds used ──> it goes on
//!               └─────> nothing within three heartbeats ──> lost
//! ```
//!
//! A process that dies breaks its connections, too, so the membership stays as it is meanwhile. The sums of the rank wait
//! in their slots, and are sent again for whatever it pushes or ends again. While another rank is just being lost no rank
//! is waited for: what each of them was told is settled without it.

use foresee_grad_queue::Round;
use foresee_units::{Nanos, Rank};

use super::action::{JobAction, Peer, Role};
use super::admit::RankHello;
use super::connection::{Absence, Suspicion};
use super::{ServerJob, violation};
use crate::{Closed, Refusal, Resume, Resumed, ServerMessage, Used};

impl ServerJob {
    /// Whether a connection is the first of a new pair of a rank that was connected: its process has given the other pair
    /// up, which this end may not have noticed.
    pub(super) fn begin_reconnect(&mut self, hello: &RankHello, now: Nanos) -> bool {
        let Some(connection) = self.ranks.get_mut(&hello.rank) else { return false };
        let is_same = connection.process.reconnects && connection.process.id == hello.process;
        let was_connected = connection.has_control || connection.absence.is_some();
        if !is_same || !was_connected || hello.role != Role::Control {
            return false;
        }
        let until = now.saturating_add(self.settings.reconnect);
        let absence = Absence { until, why: "it has dialled again".into() };
        self.actions.extend(connection.begin_absence(hello.rank, absence));
        self.pairs += 1;
        connection.pair = self.pairs;
        // It proposes again: counted twice, its proposal would be one for a plan behind its own answer.
        self.proposals.remove(&hello.rank);
        true
    }

    /// A data connection broke; `is_silence`: because nothing was acknowledged. The control connection of the same pair
    /// mostly knows better why, and is given the time of a heartbeat to report it.
    pub fn handle_data_closed(&mut self, peer: Peer, why: &str, is_silence: bool, now: Nanos) {
        let until = Some(now.saturating_add(self.settings.heartbeat));
        let connection = self.ranks.get_mut(&peer.rank).filter(|connection| connection.pair == peer.pair);
        let Some(connection) = connection else { return };
        connection.silences += u32::from(is_silence);
        let suspicion = connection.suspicion.get_or_insert(Suspicion { until: None, why: why.to_owned() });
        suspicion.until = suspicion.until.or(until);
    }

    /// A control connection ended.
    pub fn handle_closed(&mut self, peer: Peer, closed: Closed, now: Nanos) {
        if !self.is_current(peer) {
            return;
        }
        match closed {
            Closed::Goodbye(reason) => self.leave(peer.rank, reason),
            Closed::Refused(refusal) if self.settings.survives => self.lose(peer.rank, &refusal.text),
            // It ends because another rank or server is lost: that is what the others are told.
            Closed::Refused(refusal) if refusal.is_about_others() => self.end(&refusal),
            Closed::Refused(refusal) => self.lose(peer.rank, &refusal.text),
            Closed::Broken(why) => self.begin_absence(peer.rank, why, now),
            Closed::Unacknowledged(why) | Closed::Silent(why) => self.lose(peer.rank, &why),
        }
    }

    /// Whether any rank is waited for: not while another one is just being lost.
    fn may_wait(&self) -> bool {
        !self.is_changing() && !self.is_over
    }

    /// The connections of a rank broke: it is waited for if it reconnects, else it is lost.
    fn begin_absence(&mut self, rank: Rank, why: String, now: Nanos) {
        let may_wait = self.may_wait();
        let until = now.saturating_add(self.settings.reconnect);
        let Some(connection) = self.ranks.get_mut(&rank) else { return };
        let why = connection.suspicion.take().map_or(why, |suspicion| suspicion.why);
        if may_wait && connection.may_reconnect() {
            self.actions.extend(connection.begin_absence(rank, Absence { until, why }));
        } else {
            self.lose(rank, &why);
        }
    }

    /// Control connections had time to report why the data connections of their pairs broke: those that may be made again
    /// are ended, and the others are lost.
    pub(super) fn act_on_suspicions(&mut self, now: Nanos) {
        let may_wait = self.may_wait();
        let mut hopeless = Vec::new();
        for (rank, connection) in &mut self.ranks {
            let (peer, may_reconnect) = (connection.peer(*rank), connection.may_reconnect());
            let Some(suspicion) = &mut connection.suspicion else { continue };
            if suspicion.until.is_none_or(|until| until > now) {
                continue;
            }
            suspicion.until = None;
            if may_wait && may_reconnect {
                // Its reader reports the end, as any other.
                self.actions.push_back(JobAction::Interrupt(peer));
            } else {
                // The control connection may be well, and is the one way to tell the rank why.
                hopeless.push((*rank, suspicion.why.clone()));
            }
        }
        for (rank, why) in hopeless {
            self.lose(rank, &why);
        }
    }

    /// Ranks that did not reconnect in time are lost.
    pub(super) fn act_on_absences(&mut self, now: Nanos) {
        let reconnect = self.settings.reconnect;
        let late = |absence: &Absence| absence.until <= now;
        let lost: Vec<(Rank, String)> = self
            .ranks
            .iter()
            .filter_map(|(rank, connection)| {
                Some((rank, connection.absence.as_ref().filter(|own| late(own))?))
            })
            .map(|(rank, absence)| {
                (*rank, format!("{}; it did not come again within {reconnect}", absence.why))
            })
            .collect();
        for (rank, why) in lost {
            self.lose(rank, &why);
        }
    }

    /// A rank reports its state: it was absent, or comes from a lost server.
    pub(super) fn receive_resume(&mut self, rank: Rank, known: Resume) -> Result<(), Refusal> {
        let Some(connection) = self.ranks.get_mut(&rank) else { return Ok(()) };
        if connection.absence.is_none() {
            return self.resume(rank, known);
        }
        connection.known = Some(known);
        self.rejoin(rank)
    }

    /// Once both connections of a rank that was absent are there and it has reported its state, it goes on.
    pub(super) fn rejoin(&mut self, rank: Rank) -> Result<(), Refusal> {
        let Some(connection) = self.ranks.get_mut(&rank) else { return Ok(()) };
        let is_back = connection.absence.is_some() && connection.has_control && connection.has_data;
        let Some(known) = connection.known.take_if(|_| is_back) else { return Ok(()) };
        let proposed = connection.proposed.take();
        let is_taken_back = if self.plan.is_some() {
            self.take_back(rank, &known)?
        } else {
            // What holds is found with the others.
            connection.absence = None;
            self.note(rank, known)?;
            true
        };
        self.restore()?;
        if !is_taken_back {
            self.lose(rank, "its connection broke while another rank was lost");
        } else if let Some(body) = proposed {
            self.propose(rank, body)?;
        }
        Ok(())
    }

    /// Sends a rank what it may have missed; false if it does not know of a membership, or this server does not.
    fn take_back(&mut self, rank: Rank, known: &Resume) -> Result<bool, Refusal> {
        if self.is_changing() {
            return Ok(false);
        }
        let Some(plan) = &mut self.plan else { return Ok(false) };
        let Some(connection) = self.ranks.get_mut(&rank) else { return Ok(false) };
        let (peer, generation) = (connection.peer(rank), plan.rounds.members().generation());
        if known.generation == generation {
            plan.rounds.handle_oldest(rank, known.oldest).map_err(violation(rank))?;
            let oldest = plan.rounds.oldest();
            let used = |round: Round| {
                let used = plan.rounds.used(round)?.to_bytes();
                Some(ServerMessage::Used(Used { round, used }))
            };
            let used: Vec<ServerMessage> = [oldest, oldest.next()].into_iter().filter_map(used).collect();
            connection.generation = generation;
            // Of a round that is done everywhere the rank does not repeat that it has ended it.
            connection.next = connection.next.max(oldest);
            connection.absence = None;
            self.actions.push_back(JobAction::Route(peer));
            self.send(peer, ServerMessage::Resumed(Resumed { generation, oldest, knows: true }));
            for message in used {
                self.send(peer, message);
            }
            self.announce();
        } else if known.generation < generation && generation == plan.first_generation {
            // It proposed what the others are under, and missed the answer; it may just be proposing it again.
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

    /// Forgets a process of a rank that is absent, if it is another one than this.
    pub(super) fn forget_other_process(&mut self, rank: Rank, process: u64) {
        let is_other = |own: &super::RankConnection| own.process.id != process && own.absence.is_some();
        if self.ranks.get(&rank).is_some_and(is_other) {
            self.forget(rank);
            self.proposals.remove(&rank);
            self.resumes.remove(&rank);
        }
    }
}
