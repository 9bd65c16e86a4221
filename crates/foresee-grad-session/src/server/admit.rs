// SPDX-License-Identifier: Apache-2.0
//! Admission of connections to a job.

use foresee_units::{Nanos, Rank};

use super::ServerJob;
use super::action::{Peer, Role};
use super::connection::RankConnection;
use crate::{Refusal, RefusalCode};

/// The reason for a connection that arrives while its job ends.
const ENDING: &str = "the job is ending on this server; connect again";

/// The first message of a connection.
#[derive(Clone, Copy, Debug)]
pub struct RankHello {
    /// The rank.
    pub rank: Rank,
    /// Ranks of the job.
    pub world: u32,
    /// Ranks of its node that exchange as one.
    pub node_ranks: u32,
    /// The server's index in the rank's list.
    pub server: u32,
    /// Whether the rank continues without lost ranks.
    pub continues_after_loss: bool,
    /// The process of the rank.
    pub process: u64,
    /// Whether that process reconnects when a connection breaks.
    pub reconnects: bool,
    /// The role of the connection.
    pub role: Role,
}

impl ServerJob {
    /// Assign a connection to a pair, or refuse it. The driver then reports [`handle_connected`](Self::handle_connected)
    /// or [`handle_not_connected`](Self::handle_not_connected).
    ///
    /// # Errors
    /// The rank differs from the others in a setting, it is connected already, or the job ends. Before a plan is agreed
    /// on, a different setting ends the job, because the connected ranks would wait for this one.
    pub fn admit(&mut self, hello: &RankHello, now: Nanos) -> Result<Peer, Refusal> {
        let admitted = self.check_settings(hello).and_then(|()| self.assign_pair(hello, now));
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
                "rank {rank} of job '{name}' has a world of {} ranks, and others one of {}; start all ranks with one world size",
                hello.world, own.world
            ));
        }
        if hello.node_ranks != own.node_ranks {
            return differs(format!(
                "rank {rank} of job '{name}' exchanges for {} ranks of its node, and others for {}; start equally many ranks \
                 on every node, in the order of the nodes, or pass hierarchical=False on all",
                hello.node_ranks, own.node_ranks
            ));
        }
        if hello.continues_after_loss != own.continues_after_loss {
            return differs(format!(
                "rank {rank} of job '{name}' {} when a rank is lost, unlike others; pass the same on_rank_loss on all ranks",
                if hello.continues_after_loss { "continues" } else { "ends" }
            ));
        }
        if hello.server != u32::from(own.server.0) {
            // Ranks with another order would form a job of their own on this server, and wait for the others forever.
            return differs(format!(
                "rank {rank} of job '{name}' has this server as number {} of its list, and others as number {}; pass the same \
                 servers in the same order on all, each once",
                hello.server, own.server
            ));
        }
        if !hello.rank.0.is_multiple_of(own.node_ranks) || hello.rank.0 >= own.world {
            // It would count as one of the ranks that exchange, and the plan would start without one of them.
            let text = format!(
                "rank {rank} of job '{name}' does not exchange with servers: the first of every {} ranks does",
                own.node_ranks
            );
            return Err(Refusal::new(RefusalCode::Protocol, text));
        }
        Ok(())
    }

    fn assign_pair(&mut self, hello: &RankHello, now: Nanos) -> Result<Peer, Refusal> {
        let rank = hello.rank;
        let busy = |text: &str| Err(Refusal::new(RefusalCode::Busy, text));
        if self.is_over {
            return busy(ENDING);
        }
        let is_known = self.ranks.contains_key(&rank);
        let was_lost = self.members.as_ref().is_some_and(|members| !members.contains(rank))
            || self.settings.continues_after_loss && self.plan.is_some() && !is_known;
        if was_lost {
            return Err(self.lost_refusal(rank));
        }
        if self.plan.is_none() {
            // Nothing was agreed on, so no rank relies on messages of the old process.
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
            // The absent process has ended. The new one may connect once the job has ended.
            self.declare_lost(rank, "its connections broke, and another process of it connected");
            return busy(ENDING);
        }
        let name = &self.settings.name;
        if connection.absence.is_some() && !connection.has_control {
            // The control connection of its pair broke just now, and the rank dials both again.
            return busy(&format!("rank {rank} of job '{name}' must dial its control connection first"));
        }
        if is_taken || is_other {
            return busy(&format!(
                "rank {rank} of job '{name}' is already connected from another process; give each job its own name, and each \
                 rank its own number"
            ));
        }
        self.has_started = true;
        Ok(connection.peer(rank))
    }

    /// Handle an admitted connection that is established. The driver reports what arrives over it from now on.
    ///
    /// # Errors
    /// The job has ended, or the pair was replaced.
    pub fn handle_connected(&mut self, peer: Peer, role: Role) -> Result<(), Refusal> {
        let Some(connection) = self.current_mut(peer) else {
            return Err(Refusal::new(RefusalCode::Closing, ENDING));
        };
        match role {
            Role::Control => connection.has_control = true,
            Role::Data => connection.has_data = true,
        }
        // Messages that arrived over the other connection may have waited for this one.
        let settled = self.rejoin(peer.rank).and_then(|()| self.resume_plan()).and_then(|()| self.agree());
        if let Err(refusal) = settled {
            self.end(&refusal);
        }
        Ok(())
    }

    /// Handle an admitted connection that was not established. A connected rank stays connected.
    pub fn handle_not_connected(&mut self, peer: Peer) {
        let never_connected =
            |connection: &mut RankConnection| !connection.has_control && connection.absence.is_none();
        if self.current_mut(peer).is_some_and(never_connected) {
            self.forget(peer.rank);
        }
    }

    /// Drop a rank as if it had never connected.
    pub(super) fn forget(&mut self, rank: Rank) {
        if let Some(connection) = self.ranks.remove(&rank) {
            self.close(rank, &connection, None);
        }
    }
}
