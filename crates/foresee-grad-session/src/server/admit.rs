// SPDX-License-Identifier: Apache-2.0
//! Admission of connections to a job.

use foresee_units::{Nanos, Rank};

use super::ServerJob;
use super::action::{Peer, Role};
use super::connection::{Process, RankConnection};
use crate::{Refusal, RefusalCode};

/// The reason for a connection that comes while its job ends.
const ENDING: &str = "the job is just ending here; come again";

/// The first message of a connection.
#[derive(Clone, Copy, Debug)]
pub struct RankHello {
    /// The rank.
    pub rank: Rank,
    /// Ranks of the job.
    pub world: u32,
    /// Ranks of its node that exchange as one.
    pub local: u32,
    /// The server's place in the rank's list.
    pub target: u32,
    /// Whether the rank goes on without ranks that are lost.
    pub survives: bool,
    /// The process of the rank.
    pub process: u64,
    /// Whether that process reconnects when a connection breaks.
    pub reconnects: bool,
    /// Which of its two connections.
    pub role: Role,
}

impl RankHello {
    pub(super) fn process(&self) -> Process {
        Process { id: self.process, reconnects: self.reconnects }
    }
}

impl ServerJob {
    /// Gives a connection its place in a pair, or refuses it. The driver then reports
    /// [`handle_connected`](Self::handle_connected) or [`handle_not_connected`](Self::handle_not_connected).
    ///
    /// # Errors
    /// The rank differs from the others in a setting, its place is taken, or the job ends. Before a plan is agreed on, a
    /// setting that differs ends the job: the ranks that are connected would wait for this one.
    pub fn admit(&mut self, hello: &RankHello, now: Nanos) -> Result<Peer, Refusal> {
        let admitted = self.check_settings(hello).and_then(|()| self.place(hello, now));
        if let Err(refusal) = &admitted
            && refusal.code == RefusalCode::Plan
        {
            self.end_without_plan(refusal);
        }
        admitted
    }

    fn check_settings(&self, hello: &RankHello) -> Result<(), Refusal> {
        let (rank, name, own) = (hello.rank, &self.settings.name, &self.settings);
        let differs = |text: String| Err(Refusal::new(RefusalCode::Plan, text));
        if hello.world != own.world {
            return differs(format!(
                "rank {rank} of job '{name}' says that the job has {} ranks, and others say {}; start all ranks with one world size",
                hello.world, own.world
            ));
        }
        if hello.local != own.local {
            return differs(format!(
                "rank {rank} of job '{name}' exchanges for {} ranks of its machine, and others for {}; start equally many ranks \
                 on every machine, in the order of the machines, or pass hierarchical=False on all",
                hello.local, own.local
            ));
        }
        if hello.survives != own.survives {
            return differs(format!(
                "rank {rank} of job '{name}' {} when a rank is lost, and others do otherwise; pass the same on_rank_loss on all",
                if hello.survives { "goes on" } else { "ends" }
            ));
        }
        if hello.target != u32::from(own.server.0) {
            // Each order would be a job of its own here, whose ranks wait for the others forever.
            return differs(format!(
                "rank {rank} of job '{name}' has this server as number {} of its list, and others as number {}; pass the same \
                 servers in the same order on all, each once",
                hello.target, own.server
            ));
        }
        if !hello.rank.0.is_multiple_of(own.local) || hello.rank.0 >= own.world {
            // It would count as one of those that exchange, and the plan would hold without one of them.
            let text = format!(
                "rank {rank} of job '{name}' does not exchange with servers: the first of every {} ranks does",
                own.local
            );
            return Err(Refusal::new(RefusalCode::Protocol, text));
        }
        Ok(())
    }

    fn place(&mut self, hello: &RankHello, now: Nanos) -> Result<Peer, Refusal> {
        let rank = hello.rank;
        if self.is_over {
            return Err(Refusal::new(RefusalCode::Busy, ENDING));
        }
        let is_known = self.ranks.contains_key(&rank);
        let was_lost = self.members.as_ref().is_some_and(|members| !members.contains(rank))
            || self.settings.survives && self.plan.is_some() && !is_known;
        if was_lost {
            return Err(self.refuse_lost(rank));
        }
        if self.plan.is_none() {
            // Nothing was agreed on, so no rank counts on what a process sent that is gone.
            self.forget_other_process(rank, hello.process);
        }
        if self.begin_reconnect(hello, now) {
            return Ok(self.ranks[&rank].peer(rank));
        }
        let pairs = &mut self.pairs;
        let connection = self.ranks.entry(rank).or_insert_with(|| {
            *pairs += 1;
            RankConnection::new(hello, *pairs)
        });
        let is_taken = match hello.role {
            Role::Control => connection.has_control,
            Role::Data => connection.has_data,
        };
        let is_other = connection.process.id != hello.process;
        if is_other && connection.absence.is_some() {
            // The process that is absent is gone, and this one takes its place once the job has ended.
            self.lose(rank, "its connections broke, and another process of it has come");
            return Err(Refusal::new(RefusalCode::Busy, ENDING));
        }
        if connection.absence.is_some() && !connection.has_control {
            // The control connection of its pair broke just now, and the rank dials both again.
            let text = format!("rank {rank} of job '{}' connects for control first", self.settings.name);
            return Err(Refusal::new(RefusalCode::Busy, text));
        }
        if is_taken || is_other {
            let text = format!(
                "rank {rank} of job '{}' is here already, in another process; give each job a name of its own, and each \
                 rank its number",
                self.settings.name
            );
            return Err(Refusal::new(RefusalCode::Busy, text));
        }
        self.has_started = true;
        Ok(connection.peer(rank))
    }

    /// A connection that was admitted is there. The driver hands over what arrives over it from now on.
    ///
    /// # Errors
    /// The reason why it is of no more use.
    pub fn handle_connected(&mut self, peer: Peer, role: Role) -> Result<(), Refusal> {
        let connection = self.ranks.get_mut(&peer.rank).filter(|connection| connection.pair == peer.pair);
        let Some(connection) = connection else { return Err(Refusal::new(RefusalCode::Closing, ENDING)) };
        match role {
            Role::Control => connection.has_control = true,
            Role::Data => connection.has_data = true,
        }
        // What the rank sent over the other connection may have waited for this one.
        let settled = self.rejoin(peer.rank).and_then(|()| self.restore()).and_then(|()| self.agree());
        if let Err(refusal) = settled {
            self.end(&refusal);
        }
        Ok(())
    }

    /// A connection that was admitted did not come. A rank that is connected has not left by that.
    pub fn handle_not_connected(&mut self, peer: Peer) {
        let never_came =
            |connection: &RankConnection| !connection.has_control && connection.absence.is_none();
        if self.is_current(peer) && self.ranks.get(&peer.rank).is_some_and(never_came) {
            self.forget(peer.rank);
        }
    }

    /// A rank is as if it had not begun to connect.
    pub(super) fn forget(&mut self, rank: Rank) {
        if let Some(connection) = self.ranks.remove(&rank) {
            self.close(rank, &connection, None);
        }
    }
}
