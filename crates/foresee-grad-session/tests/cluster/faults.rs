// SPDX-License-Identifier: Apache-2.0
//! Faults of a run: when they happen, and which parties errors may name for them.

use std::collections::BTreeSet;

use foresee_grad_session::{Closed, RankHello, Role};
use foresee_units::{Bytes, Nanos, Rank};

use crate::network::Notice;
use crate::rank::Phase;
use crate::server::ServerNode;
use crate::setup::{HEARTBEAT, RECONNECT, server_id};
use crate::world::World;

/// A fault that happens once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A pair of connections breaks, or the data connection of it alone.
    Break,
    /// A link carries nothing for less than the grace period. Its connections break or remain.
    ShortCut,
    /// A link carries nothing for longer than the grace period. Its connections break, or both ends notice the silence.
    LongCut,
    /// A rank computes for a long time.
    Pause,
    /// A server is killed and replaced.
    Replace,
    /// A rank is killed; another process of it may connect.
    Kill,
    /// A rank closes before it has taken all steps.
    Leave,
    /// The byzantine peer sends a well-formed message that is wrong or out of order.
    WrongMessage,
}

impl Fault {
    pub(crate) fn may_lose_a_rank(self) -> bool {
        matches!(self, Self::LongCut | Self::Kill | Self::Leave | Self::WrongMessage)
    }
}

/// Ranks and servers with faults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Culprits {
    pub(crate) ranks: BTreeSet<usize>,
    pub(crate) servers: BTreeSet<usize>,
}

/// Silence after which one end of a connection gives up the other.
const SILENCE: Nanos = RECONNECT;

impl World {
    /// Inject faults of the setup, sometimes several at once.
    pub(crate) fn inject(&mut self) {
        if self.faults.is_empty() || !self.dice.one_in(45) {
            return;
        }
        loop {
            let Some(fault) = self.faults.pop() else { return };
            self.note(|| format!("fault {fault:?}"));
            self.happen(fault);
            if !self.dice.one_in(3) {
                return;
            }
        }
    }

    fn happen(&mut self, fault: Fault) {
        let (rank, server) = self.draw_pair();
        if matches!(fault, Fault::Break | Fault::ShortCut) {
            self.suspect(rank, server);
        }
        match fault {
            Fault::Break if self.dice.one_in(3) => self.break_data(rank, server),
            Fault::Break => {
                self.deliver_some(rank, server);
                self.break_pair(rank, server);
            }
            Fault::ShortCut if !self.is_connected(rank, server) || self.is_cut(rank, server) => {}
            Fault::ShortCut => {
                // Attempts to connect may fail too; each costs a tenth of a second.
                let time = self.millis(100, 2_000);
                self.cut(rank, server, time);
                if self.dice.one_in(2) {
                    self.break_pair(rank, server);
                }
            }
            Fault::LongCut => {
                let time = RECONNECT.saturating_add(self.millis(500, 60_000));
                self.cut(rank, server, time);
                self.culprits.ranks.insert(rank);
                self.culprits.servers.insert(server);
                if self.dice.one_in(2) {
                    self.break_pair(rank, server);
                } else {
                    self.silence(rank, server);
                }
            }
            Fault::Pause => {
                let until = self.now.saturating_add(self.millis(1, 150_000));
                let node = &mut self.ranks[rank];
                node.paused_until = node.paused_until.max(until);
            }
            Fault::Replace => {
                self.replace_server(server);
                if self.dice.one_in(3) {
                    let other = self.dice.below(self.servers.len());
                    self.replace_server(other);
                }
            }
            Fault::Kill => self.kill_rank(rank),
            Fault::Leave => {
                // One rank must remain.
                let is_left = |(at, node): (usize, &crate::rank::RankNode)| {
                    at != rank && node.is_running() && !node.is_leaving
                };
                let have_plans = self.ranks.iter().all(|rank| rank.session.plan().is_some());
                if self.ranks.iter().enumerate().any(is_left) && have_plans {
                    self.culprits.ranks.insert(rank);
                    self.ranks[rank].is_leaving = true;
                    self.ranks[rank].is_impatient = self.dice.one_in(2);
                }
            }
            Fault::WrongMessage => self.send_wrong_message(),
        }
    }

    /// Connections between them break. During a membership change no rank is waited for.
    fn suspect(&mut self, rank: usize, server: usize) {
        if !self.setup.recovers || self.setup.continues_after_loss && self.may_lose {
            self.culprits.ranks.insert(rank);
            self.culprits.servers.insert(server);
        }
    }

    /// The connections to a replacement server break soon, perhaps before it has answered.
    pub(crate) fn break_again(&mut self, rank: usize, server: usize) {
        let is_new = self.servers[server].process >= u64::from(self.setup.servers);
        if is_new && self.dice.one_in(4) {
            self.suspect(rank, server);
            self.notices.push((self.now, Notice::Break { rank, server }));
        }
    }

    pub(crate) fn millis(&mut self, from: usize, to: usize) -> Nanos {
        Nanos::from_millis((from + self.dice.below(to - from)) as u64)
    }

    fn cut(&mut self, rank: usize, server: usize, time: Nanos) {
        let until = self.now.saturating_add(time);
        let link = &mut self.cut_until[rank][server];
        *link = (*link).max(until);
    }

    pub(crate) fn is_cut(&self, rank: usize, server: usize) -> bool {
        self.now < self.cut_until[rank][server]
    }

    /// Both ends of a pair detect the silence, one after the other.
    fn silence(&mut self, rank: usize, server: usize) {
        let Some(pair) = &self.pairs[rank][server] else { return };
        let (number, peer, process) = (pair.number, pair.peer, self.servers[server].process);
        let closed = Closed::Silent("it was silent".into());
        let (first, second) = (self.millis(0, 900), self.millis(0, 900));
        let at = self.now.saturating_add(SILENCE);
        let notice = Notice::RankClosed { rank, server, number, closed: closed.clone() };
        self.notices.push((at.saturating_add(first), notice));
        let notice = Notice::ServerClosed { server, process, peer, closed };
        self.notices.push((at.saturating_add(second), notice));
    }

    fn replace_server(&mut self, server: usize) {
        self.culprits.servers.insert(server);
        for rank in 0..self.ranks.len() {
            self.deliver_some(rank, server);
            self.drop_pair(rank, server, false, true);
        }
        self.processes += 1;
        let early_bytes = Bytes::new(self.setup.early_bytes);
        self.servers[server] = ServerNode::new(server_id(server), self.processes, early_bytes);
    }

    /// A rank is killed once all have plans, unless it is the last one.
    fn kill_rank(&mut self, rank: usize) {
        let have_plans = self.ranks.iter().all(|rank| rank.session.plan().is_some());
        let left = self.ranks.iter().filter(|rank| rank.is_running()).count();
        if left < 2 || !have_plans || !self.ranks[rank].is_running() {
            return;
        }
        self.ranks[rank].is_alive = false;
        self.culprits.ranks.insert(rank);
        // Its host may have lost power, which closes no connection.
        let is_silent = self.dice.one_in(3);
        let at = if is_silent { self.now.saturating_add(SILENCE) } else { self.now };
        for server in 0..self.servers.len() {
            // Earlier messages may still arrive.
            let Some(pair) = &self.pairs[rank][server] else { continue };
            let (process, peer) = (self.servers[server].process, pair.peer);
            let closed = if is_silent {
                Closed::Silent("it was silent".into())
            } else {
                Closed::Broken("reset".into())
            };
            self.notices.push((at, Notice::ServerClosed { server, process, peer, closed }));
        }
        if self.dice.one_in(3) {
            let server = self.dice.below(self.servers.len());
            let at = self.now.saturating_add(self.millis(0, 6_000));
            self.notices.push((at, Notice::Stranger { rank, server }));
        }
    }

    /// Another process of a killed rank connects while the job continues, and is refused.
    pub(crate) fn admit_stranger(&mut self, rank: usize, server: usize) {
        if self.servers[server].slots.is_none() {
            return;
        }
        let own = self.hello(rank, server, Role::Control);
        let hello = RankHello { process: own.process + 1_000, ..own };
        let admitted = self.report(server, |job, now| job.admit(&hello, now));
        assert!(admitted.is_none_or(|admitted| admitted.is_err()), "a job with a plan has no place for it");
    }

    pub(crate) fn is_connected(&self, rank: usize, server: usize) -> bool {
        let process = self.servers[server].job.as_ref();
        let pair = self.pairs[rank][server].as_ref();
        let is_current = |peer| process.is_some_and(|job| job.is_current(peer));
        pair.is_some_and(|pair| is_current(pair.peer) && !pair.is_without_data)
    }

    /// Whether others may have to wait for a rank.
    pub(crate) fn is_slow(&self, rank: usize) -> bool {
        let node = &self.ranks[rank];
        let is_disconnected = |server| !self.is_connected(rank, server) || self.is_cut(rank, server);
        !node.is_running()
            || node.phase == Phase::Start
            || self.now <= node.paused_until
            || self.setup.slow == Some(rank)
            || self.is_byzantine(Rank(u32::try_from(rank).expect("there are few")))
            || (0..self.servers.len()).any(is_disconnected)
    }
}

/// Time within which a broken connection is re-established.
const _: () = assert!(RECONNECT.get() == 3 * HEARTBEAT.get());
