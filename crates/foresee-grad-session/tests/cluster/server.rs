// SPDX-License-Identifier: Apache-2.0
//! A server: its state machine, its slots, and the results that it sends.

use std::collections::BTreeMap;
use std::sync::Arc;

use foresee_grad_queue::{
    DiscardReason, EarlyBudget, JobView, Members, MissingContributions, Outcome, PacketId, Plan, QueueError,
    Round, ServerId, Shard, SlotPair, Sum,
};
use foresee_grad_session::{EndTicket, Installation, MissingTicket, Peer, ServerJob};
use foresee_units::{Bytes, Nanos, Rank};

/// A result that waits to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) peer: Peer,
    pub(crate) generation: u32,
    pub(crate) round: Round,
    pub(crate) packet: PacketId,
    pub(crate) sum: Arc<Sum>,
}

pub(crate) struct ServerNode {
    pub(crate) id: ServerId,
    pub(crate) process: u64,
    pub(crate) job: Option<ServerJob>,
    pub(crate) slots: Option<Slots>,
    pub(crate) offers: Vec<Offer>,
    pub(crate) early_bytes: Bytes,
}

/// Rounds that may be done before a replacement server has summed them.
const CATCH_UP: u64 = 3;

pub(crate) struct Slots {
    pub(crate) plan: Arc<Plan>,
    pub(crate) members: Members,
    pub(crate) oldest: Round,
    /// The first round.
    begun: Round,
    pub(crate) early_budget: Arc<EarlyBudget>,
    shard: Shard,
    pairs: Vec<SlotPair>,
    /// Where each rank's results go.
    pub(crate) routes: BTreeMap<Rank, Peer>,
}

impl ServerNode {
    pub(crate) fn new(id: ServerId, process: u64, early_bytes: Bytes) -> Self {
        Self { id, process, job: None, slots: None, offers: Vec::new(), early_bytes }
    }

    pub(crate) fn timeout(&self) -> Option<Nanos> {
        self.job.as_ref()?.poll_timeout()
    }

    pub(crate) fn install(&mut self, installation: Installation, peers: impl Iterator<Item = Peer>) {
        let Installation { plan, members, oldest } = installation;
        let shard = Shard::new(&plan, self.id);
        let pairs = (0..shard.packets()).map(|_| SlotPair::default()).collect();
        let routes = peers.map(|peer| (peer.rank, peer)).collect();
        let early_budget = EarlyBudget::new(self.early_bytes);
        self.offers.clear();
        self.slots = Some(Slots { plan, members, oldest, begun: oldest, early_budget, shard, pairs, routes });
    }

    /// Let the slots handle the tensors that a rank skipped.
    ///
    /// # Errors
    /// The rank has contradicted itself.
    pub(crate) fn skip(&mut self, ticket: &EndTicket) -> Result<(), QueueError> {
        let Some(slots) = &mut self.slots else { return Ok(()) };
        let sender = ticket.sender;
        for tensor in ticket.skipped.iter() {
            for index in slots.shard.of_tensor(tensor) {
                let packet = slots.shard.packet(&slots.plan, index).expect("it is the shard's");
                let (pair, view) = slots.at(sender.rank, packet)?;
                let progress = pair.skip(&view, packet, sender, ticket.is_promised(tensor))?;
                self.offers.extend(slots.results(sender.rank, sender.round, packet, progress.outcome));
            }
        }
        Ok(())
    }
}

impl Slots {
    /// # Errors
    /// The packet does not belong to this server.
    pub(crate) fn at(
        &mut self,
        rank: Rank,
        packet: PacketId,
    ) -> Result<(&mut SlotPair, JobView<'_>), QueueError> {
        let index = self.shard.index(&self.plan, rank, packet)?;
        let view = JobView {
            plan: &self.plan,
            members: &self.members,
            early_budget: &self.early_budget,
            oldest: self.oldest,
        };
        Ok((&mut self.pairs[usize::try_from(index).expect("it is small")], view))
    }

    /// The results that leave after a contribution of `rank`.
    pub(crate) fn results(
        &mut self,
        rank: Rank,
        round: Round,
        packet: PacketId,
        outcome: Outcome,
    ) -> Vec<Offer> {
        let Ok((pair, _)) = self.at(rank, packet) else { return Vec::new() };
        let Some(sum) = pair.ready(round).cloned() else { return Vec::new() };
        let to: Vec<Peer> = match outcome {
            Outcome::Ready => self.routes.values().copied().collect(),
            Outcome::Ignored(DiscardReason::Answered) => {
                self.routes.get(&rank).copied().into_iter().collect()
            }
            _ => Vec::new(),
        };
        let generation = self.members.generation();
        to.into_iter().map(|peer| Offer { peer, generation, round, packet, sum: Arc::clone(&sum) }).collect()
    }

    /// The missing contributions of the awaited ranks to the unfinished sums of a round.
    pub(crate) fn owed(&self, ticket: &MissingTicket) -> Option<String> {
        let mut missing = MissingContributions::new(ticket.round);
        for (index, pair) in (0..).zip(&self.pairs) {
            let packet = self.shard.packet(&self.plan, index).expect("it is the shard's");
            missing.add(packet, pair, &ticket.awaited);
        }
        missing.describe(&self.plan)
    }

    pub(crate) fn adopt(&mut self, members: Members) {
        self.members = members;
        for pair in &mut self.pairs {
            pair.adopt(&self.members);
        }
    }

    pub(crate) fn advance(&mut self, oldest: Round, forget: bool) {
        self.oldest = oldest;
        if forget {
            self.pairs.iter_mut().for_each(|pair| pair.forget_done(oldest));
        }
        // Later ones contain at most skips of a tensor that no rank used.
        if let Some(last) = oldest.0.checked_sub(1).map(Round).filter(|last| last.0 < self.begun.0 + CATCH_UP)
        {
            let is_rest = |pair: &SlotPair| pair.missing(&self.members, last).next().is_some();
            assert!(!self.pairs.iter().any(is_rest), "a part of a round that is done stays in its slot");
        }
    }
}
