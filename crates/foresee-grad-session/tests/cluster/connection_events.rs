// SPDX-License-Identifier: Apache-2.0
//! Events of connections: they are established, break, and are closed.

use foresee_grad_session::{Closed, DialFault, Peer, RankHello, Refusal, RefusalCode, Role, ServerJob};
use foresee_units::Rank;

use crate::network::{Notice, Pair};
use crate::setup::{job_settings, server_id};
use crate::world::World;

impl World {
    pub(crate) fn draw_pair(&mut self) -> (usize, usize) {
        (self.dice.below(self.ranks.len()), self.dice.below(self.servers.len()))
    }

    pub(crate) fn hello(&self, rank: usize, server: usize, role: Role) -> RankHello {
        RankHello {
            rank: Rank(u32::try_from(rank).expect("there are few")),
            world: self.setup.ranks,
            node_ranks: 1,
            server: u32::try_from(server).expect("there are few"),
            continues_after_loss: self.setup.continues_after_loss,
            process: 1_000 + rank as u64,
            reconnects: self.setup.recovers,
            role,
        }
    }

    /// Connect a rank's pair of this number, or report the reason.
    pub(crate) fn connect(&mut self, rank: usize, server: usize, number: u32) -> Result<(), Refusal> {
        let control = self.hello(rank, server, Role::Control);
        let data = self.hello(rank, server, Role::Data);
        let settings = job_settings(&self.setup, server);
        let now = self.now;
        self.servers[server].job.get_or_insert_with(|| ServerJob::new(settings, now));
        let refused = || Refusal::new(RefusalCode::Busy, "the job is over");
        let peer = self.report(server, |job, now| job.admit(&control, now)).ok_or_else(refused)??;
        self.drop_pair(rank, server, false, false);
        self.pairs[rank][server] = Some(Pair::new(number, peer));
        self.report(server, |job, _| job.handle_connected(peer, Role::Control)).ok_or_else(refused)??;
        let second = self.report(server, |job, now| job.admit(&data, now)).ok_or_else(refused)??;
        assert_eq!(second, peer, "both connections are of one pair");
        self.report(server, |job, _| job.handle_connected(peer, Role::Data)).ok_or_else(refused)?
    }

    pub(crate) fn dial(&mut self, rank: usize, server: usize) {
        let id = server_id(server);
        if !self.ranks[rank].has_started() {
            return;
        }
        let failed = self.failed_dials[rank][server];
        if self.is_cut(rank, server) || failed < 3 && self.dice.one_in(4) {
            self.failed_dials[rank][server] += 1;
            let session = &mut self.ranks[rank].session;
            session.handle_not_connected(id, DialFault::Temporary, "the network is down", self.now);
            return self.settle_rank(rank);
        }
        self.failed_dials[rank][server] = 0;
        let number = self.ranks[rank].session.pair(id) + 1;
        match self.connect(rank, server, number) {
            Ok(()) => {
                let process = self.servers[server].process;
                let session = &mut self.ranks[rank].session;
                assert_eq!(session.begin_pair(id), Some(number), "it reconnects");
                session.handle_connected(id, process, self.now);
                self.break_again(rank, server);
            }
            Err(refusal) => {
                self.drop_pair(rank, server, false, true);
                let is_passing = matches!(refusal.code, RefusalCode::Busy | RefusalCode::Closing);
                let fault = if is_passing { DialFault::Temporary } else { DialFault::Permanent };
                let session = &mut self.ranks[rank].session;
                session.handle_not_connected(id, fault, &refusal.text, self.now);
            }
        }
        self.settle_rank(rank);
    }

    /// Drop the contents of a pair's connections, and notify the given ends.
    pub(crate) fn drop_pair(&mut self, rank: usize, server: usize, notify_server: bool, notify_rank: bool) {
        let Some(pair) = self.pairs[rank][server].take() else { return };
        if let Some((claim, _)) = pair.receiving {
            self.ranks[rank].session.handle_interrupted(claim);
        }
        let closed = || Closed::Broken("reset".into());
        if notify_server {
            let process = self.servers[server].process;
            let closed = closed();
            self.notices.push((self.now, Notice::ServerClosed { server, process, peer: pair.peer, closed }));
        }
        if notify_rank {
            self.notices
                .push((self.now, Notice::RankClosed { rank, server, number: pair.number, closed: closed() }));
        }
    }

    pub(crate) fn break_pair(&mut self, rank: usize, server: usize) {
        self.drop_pair(rank, server, true, true);
    }

    /// Some messages sent before a break still arrive.
    pub(crate) fn deliver_some(&mut self, rank: usize, server: usize) {
        let Some(pair) = &self.pairs[rank][server] else { return };
        let (up, down) = (self.dice.below(pair.up.len() + 1), self.dice.below(pair.down.len() + 1));
        for _ in 0..up {
            self.up(rank, server);
        }
        for _ in 0..down {
            self.down(rank, server);
        }
    }

    /// The data connection breaks; the end that detects it first closes the other connection.
    pub(crate) fn break_data(&mut self, rank: usize, server: usize) {
        let Some(pair) = &mut self.pairs[rank][server] else { return };
        pair.is_without_data = true;
        pair.pushes.clear();
        pair.pulls.clear();
        pair.taking = None;
        if let Some((claim, _)) = pair.receiving.take() {
            self.ranks[rank].session.handle_interrupted(claim);
        }
        let (number, peer, process) = (pair.number, pair.peer, self.servers[server].process);
        let (at_rank, at_server) = self.dice.pick(&[(true, true), (true, false), (false, true)]);
        self.notices.extend(at_rank.then_some((self.now, Notice::RankDataClosed { rank, server, number })));
        self.notices
            .extend(at_server.then_some((self.now, Notice::ServerDataClosed { server, process, peer })));
    }

    /// A server closes a pair, perhaps with a reason that follows all messages.
    pub(crate) fn close_pair(&mut self, server: usize, peer: Peer, reason: Option<Refusal>) {
        let rank = peer.rank.0 as usize;
        let Some(pair) = self.pair_of(server, peer) else { return };
        let number = pair.number;
        let messages = std::mem::take(&mut pair.down);
        self.drop_pair(rank, server, false, false);
        if self.ranks[rank].has_started() {
            // Earlier messages still arrive.
            for message in messages {
                let received =
                    self.ranks[rank].session.handle_message(server_id(server), number, message, self.now);
                if !matches!(received, Ok(None)) {
                    break;
                }
            }
            self.settle_rank(rank);
        }
        let closed = reason.map_or(Closed::Broken("it ended".into()), Closed::Refused);
        self.notices.push((self.now, Notice::RankClosed { rank, server, number, closed }));
    }

    pub(crate) fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::RankClosed { rank, server, number, closed } => {
                if self.ranks[rank].has_started() {
                    let session = &mut self.ranks[rank].session;
                    session.handle_closed(server_id(server), number, closed, self.now);
                    self.settle_rank(rank);
                }
            }
            Notice::RankDataClosed { rank, server, number } => {
                if self.ranks[rank].has_started() {
                    let session = &mut self.ranks[rank].session;
                    session.handle_data_closed(server_id(server), number, "it ended", false, self.now);
                    self.settle_rank(rank);
                }
            }
            Notice::ServerClosed { server, process, peer, closed } => {
                if self.servers[server].process == process {
                    self.report(server, |job, now| job.handle_closed(peer, closed, now));
                }
            }
            Notice::ServerDataClosed { server, process, peer } => {
                if self.servers[server].process == process {
                    self.report(server, |job, now| job.handle_data_closed(peer, "it ended", false, now));
                }
            }
            Notice::Dial { rank, server } => self.dial(rank, server),
            Notice::Break { rank, server } => self.break_pair(rank, server),
            Notice::Stranger { rank, server } => self.admit_stranger(rank, server),
        }
    }
}
