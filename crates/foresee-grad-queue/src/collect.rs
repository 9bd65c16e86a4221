// SPDX-License-Identifier: Apache-2.0
//! Round state of one rank: which tensors it pushed, which sums it received, and what it may do next.
//!
//! This is the counterpart of [`Rounds`](crate::Rounds): it sends a rank's round ends and reports when a round is
//! complete. For each round and tensor it counts packets down and holds one bit per packet, so that it drops sums
//! that a server sends twice after a broken connection. A rank keeps the two rules of
//! [`SlotPair`](crate::SlotPair) with two queries: [`Collect::is_settled`] before it uses a tensor, and
//! [`Collect::may_end`] before it ends a round.
//! ```text
//! push -> (sum, sum, ...) -> landed      skip -> USED: unused, or (sum, sum, ...) -> landed
//! ```
//!
//! It knows which gradients must be retained in case a server is lost, but holds no gradient bytes. It rejects
//! sums that the plan does not allow, because their sender has another plan.

mod claim;
mod round;

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_units::Rank;

pub use claim::{Arrival, Claim, Landed, SumHeader, Unwanted};
use round::OpenRound;

use crate::{Plan, QueueError, Round, ServerId, TensorId, TensorSet};

/// A message that a rank sends to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectAction {
    /// All pushes of the round were made; [`Collect::skipped`] has the other tensors.
    End(ServerId, Round),
    /// All sums of the round were received.
    Got(ServerId, Round),
}

/// The open rounds of one rank.
#[derive(Clone, Debug)]
pub struct Collect {
    plan: Arc<Plan>,
    rank: Rank,
    generation: u32,
    /// Open rounds without a gap. The last one is the current round.
    open: VecDeque<OpenRound>,
    /// The first open round.
    first: Round,
    /// Rounds before this one are done.
    done: Round,
    servers: Vec<Talk>,
}

/// Progress of the message exchange with one server. Each round is the first one for which the statement does
/// not hold.
#[derive(Clone, Debug)]
struct Talk {
    server: ServerId,
    /// The end of the round was sent.
    ended: Round,
    /// The confirmation of receipt was sent.
    got: Round,
    /// The set of used tensors was received.
    used: Round,
    /// Sums from this server that are being read.
    claims: u32,
}

impl Collect {
    /// Create the state of a rank that starts at round `first`: 0 for a new job.
    pub fn new(plan: Arc<Plan>, rank: Rank, generation: u32, first: Round) -> Self {
        let talks =
            (0_u16..).map(ServerId).zip(plan.config().pattern.shares()).filter(|(_, share)| **share > 0);
        let servers = talks
            .map(|(server, _)| Talk { server, ended: first, got: first, used: first, claims: 0 })
            .collect();
        let open = VecDeque::from([OpenRound::new(&plan)]);
        Self { plan, rank, generation, open, first, done: first, servers }
    }

    /// Note that the rank pushes a tensor in the current round.
    ///
    /// # Panics
    /// If the plan has no such tensor, if it was pushed before, or if [`may_push`](Self::may_push) is false: the
    /// caller has to check this before it hands over a gradient.
    pub fn handle_push(&mut self, tensor: TensorId) {
        assert!(self.may_push(tensor), "tensor {} was handed over before its last update landed", tensor.0);
        let current = self.current_round();
        assert!(!current.has_pushed(tensor), "tensor {} was handed over twice in a round", tensor.0);
        current.push(tensor);
    }

    /// End the current round and skip all tensors that were not pushed. The next round becomes current.
    ///
    /// # Panics
    /// If [`may_end`](Self::may_end) is false: the caller has to check this.
    pub fn handle_end(&mut self) {
        assert!(self.may_end(), "a round was ended before everything of the last one landed");
        self.current_round().end();
        self.open.push_back(OpenRound::new(&self.plan));
    }

    /// Handle a server's report of the tensors that a round used.
    ///
    /// # Errors
    /// [`QueueError::UsedDiffers`] if another server reported a different set, or if the set lacks this rank's
    /// own pushes; [`QueueError::ServerAhead`] if the rank has not ended the round; [`QueueError::TensorSet`].
    pub fn handle_used(
        &mut self,
        server: ServerId,
        round: Round,
        used: &TensorSet,
    ) -> Result<(), QueueError> {
        if used.tensors() != self.plan.tensors() {
            let (bytes, tensors) = (used.tensors().div_ceil(8) as usize, self.plan.tensors());
            return Err(QueueError::TensorSet { bytes, tensors });
        }
        let (rank, current) = (self.rank, self.current());
        if round >= current {
            return Err(QueueError::ServerAhead { server, round, rank, current });
        }
        if let Some(at) = self.place(round) {
            let differs = QueueError::UsedDiffers { server, round };
            self.open[at].hear_used(used).ok_or(differs)?;
        }
        if let Some(talk) = self.talk(server) {
            talk.used = talk.used.max(round.next());
        }
        self.forget_done();
        Ok(())
    }

    /// Handle a server's report that every rank has all sums of a round: its gradients need no longer be
    /// retained.
    ///
    /// # Errors
    /// [`QueueError::ServerAhead`] if this rank lacks a sum of the round.
    pub fn handle_done(&mut self, server: ServerId, round: Round) -> Result<(), QueueError> {
        let (rank, current) = (self.rank, self.current());
        let landed = |round: Round| self.place(round).is_none_or(|at| self.open[at].has_landed());
        if round >= current || !(self.done.0..=round.0).map(Round).all(landed) {
            return Err(QueueError::ServerAhead { server, round, rank, current });
        }
        self.done = self.done.max(round.next());
        if let Some(talk) = self.talk(server) {
            // A server that reports a round as done also knows which tensors it used.
            talk.used = talk.used.max(round.next());
        }
        for at in (self.first.0..=round.0).map_while(|round| self.place(Round(round))).collect::<Vec<_>>() {
            self.open[at].stop_asking(server);
        }
        self.forget_done();
        Ok(())
    }

    /// A connection to a server was re-established: messages may be lost, so the rank repeats them. The rank
    /// names [`oldest_kept`](Self::oldest_kept) and retransmits its pushes, except those for which
    /// [`has_landed`](Self::has_landed) is true.
    pub fn handle_reconnect(&mut self, server: ServerId) {
        let first = self.first;
        if let Some(talk) = self.talk(server) {
            (talk.ended, talk.got) = (first, first);
        }
    }

    /// A server was lost and a replacement without state took its place. Rounds before `oldest` are done: it is
    /// the latest round that any rank named as [`oldest_kept`](Self::oldest_kept).
    ///
    /// After a rank has named its own oldest round, it defers [`handle_done`](Self::handle_done) until this call,
    /// because the replacement relies on the gradients of rounds that were not done at that time. With several
    /// replacements the rank waits for all, and begins with the oldest round.
    ///
    /// The rank sends the server's packets of every retained gradient again, including those whose sums it has
    /// received, because other ranks may lack them. A tensor's next round follows only when
    /// [`may_push_to`](Self::may_push_to) is true. The repeated sums have the same bits.
    ///
    /// # Errors
    /// [`QueueError::ServerAhead`] if a sum of the rounds before `oldest` is missing on this rank.
    ///
    /// # Panics
    /// If a payload of the lost server is still being read: a defect of the caller.
    pub fn handle_replaced(&mut self, server: ServerId, oldest: Round) -> Result<(), QueueError> {
        if let Some(last) = oldest.0.checked_sub(1) {
            self.handle_done(server, Round(last))?;
        }
        let first = self.first;
        let Some(talk) = self.talk(server) else { return Ok(()) };
        assert_eq!(talk.claims, 0, "a lost server's readers end before it is replaced");
        let from = oldest.max(first);
        (talk.ended, talk.got, talk.used) = (from, from, from);
        for (round, open) in (self.first.0..).map(Round).zip(&mut self.open) {
            if round >= self.done {
                open.ask_again(&self.plan, server);
            }
        }
        // Complete rounds may need a second confirmation, to the replacement.
        self.forget_done();
        Ok(())
    }

    /// Start a new membership after a loss: the rank repeats its pushes that have no sum yet. Its first message
    /// to each server is [`oldest_kept`](Self::oldest_kept), because it may have dropped rounds that other ranks
    /// do not know to be done.
    pub fn handle_generation(&mut self, generation: u32) {
        self.generation = generation;
        for talk in &mut self.servers {
            (talk.ended, talk.got) = (self.first, self.first);
        }
    }

    /// Return the next message to a server. Each is returned exactly once, in an order that every server accepts.
    pub fn poll_action(&mut self) -> Option<CollectAction> {
        let (first, done, open) = (self.first, self.done, &self.open);
        let at = |round: Round| open.get(usize::try_from(round.0.checked_sub(first.0)?).ok()?);
        for talk in &mut self.servers {
            if talk.got < talk.ended {
                // A replacement need not send the sums that every rank has.
                if talk.got < done || at(talk.got).is_some_and(OpenRound::is_confirmed) {
                    let action = CollectAction::Got(talk.server, talk.got);
                    talk.got = talk.got.next();
                    self.forget_done();
                    return Some(action);
                }
            } else if talk.used >= talk.ended && at(talk.ended).is_some_and(OpenRound::has_ended) {
                // A replacement that still sums the last round has to finish it, or be informed that it is done.
                let last = talk.ended.0.checked_sub(1).and_then(|last| at(Round(last)));
                if last.is_some_and(|last| last.asks_server_again(talk.server)) {
                    continue;
                }
                let action = CollectAction::End(talk.server, talk.ended);
                talk.ended = talk.ended.next();
                return Some(action);
            }
        }
        None
    }

    /// The current round: the one that the rank pushes.
    pub fn current(&self) -> Round {
        Round(self.first.0 + self.open.len() as u64 - 1)
    }

    /// The generation that sums must have.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether all updates of a tensor from rounds before `round` were received or are known not to exist. This
    /// is the second rule: a rank checks it before it uses the tensor, also for a tensor that it skipped.
    pub fn is_settled(&self, tensor: TensorId, before: Round) -> bool {
        (self.first.0..before.0)
            .map_while(|round| self.place(Round(round)))
            .all(|at| self.open[at].is_known(tensor))
    }

    /// Whether a tensor may be pushed in the current round.
    pub fn may_push(&self, tensor: TensorId) -> bool {
        self.is_settled(tensor, self.current())
    }

    /// Whether the packets of a retained gradient of `round` may be sent to a server. All sums of the tensor's
    /// earlier rounds must be present, including those that a replacement repeats, unless that server is done.
    pub fn may_push_to(&self, server: ServerId, tensor: TensorId, round: Round) -> bool {
        let mut earlier = (self.first.0..round.0).map_while(|round| self.place(Round(round)));
        earlier.all(|at| self.open[at].is_known(tensor) && !self.open[at].is_asked_again(tensor, server))
    }

    /// Whether the current round may be ended: the first rule holds, and every server has received the end of the
    /// last round.
    pub fn may_end(&self) -> bool {
        let Some(last) = self.open.len().checked_sub(2) else { return true };
        let heard = Round(self.first.0 + last as u64);
        self.open.range(..=last).all(OpenRound::has_landed) && self.has_told_end(heard)
    }

    /// Whether this rank's end of a round was sent to every server.
    pub fn has_told_end(&self, round: Round) -> bool {
        self.servers.iter().all(|talk| talk.ended > round)
    }

    /// Whether all sums of a round were received, or are known not to exist.
    pub fn is_round_settled(&self, round: Round) -> bool {
        round < self.first || self.place(round).is_some_and(|at| self.open[at].has_landed())
    }

    /// Whether any rank pushed a tensor in an ended round; `None` while this is unknown.
    pub fn is_used(&self, round: Round, tensor: TensorId) -> Option<bool> {
        self.open[self.place(round)?].is_used(tensor)
    }

    /// The tensors that a round used, once known. Ranks collect them after a loss of members, for
    /// [`Rounds::handle_members`](crate::Rounds::handle_members).
    pub fn used(&self, round: Round) -> Option<&TensorSet> {
        self.open[self.place(round)?].used()
    }

    /// The tensors that an ended round did not push, which its end message carries.
    pub fn skipped(&self, round: Round) -> Option<TensorSet> {
        let open = &self.open[self.place(round)?];
        open.has_ended().then(|| open.pushed().complement())
    }

    /// The oldest round whose gradients are retained because some rank may lack its results.
    pub fn oldest_kept(&self) -> Round {
        self.done
    }

    /// The tensors whose gradients of a round are retained in case a server is lost; `None` for rounds that are
    /// done.
    pub fn kept(&self, round: Round) -> Option<&TensorSet> {
        if round < self.done {
            return None;
        }
        Some(self.open[self.place(round)?].pushed())
    }

    /// The number of packets of a tensor that are missing in a round, for diagnostics of a long wait.
    pub fn missing(&self, round: Round, tensor: TensorId) -> u32 {
        self.place(round).map_or(0, |at| self.open[at].missing(tensor))
    }

    /// Tensors of a round with missing packets, with their number.
    pub fn waiting(&self, round: Round) -> impl Iterator<Item = (TensorId, u32)> + '_ {
        let tensors = (0..self.plan.tensors()).map(TensorId);
        tensors.map(move |tensor| (tensor, self.missing(round, tensor))).filter(|(_, missing)| *missing > 0)
    }

    fn current_round(&mut self) -> &mut OpenRound {
        self.open.back_mut().expect("the current round is always open")
    }

    fn place(&self, round: Round) -> Option<usize> {
        let at = usize::try_from(round.0.checked_sub(self.first.0)?).ok()?;
        (at < self.open.len()).then_some(at)
    }

    fn talk(&mut self, server: ServerId) -> Option<&mut Talk> {
        let at = self.servers.binary_search_by_key(&server, |talk| talk.server).ok()?;
        Some(&mut self.servers[at])
    }

    /// Drop rounds that are done, once this rank has reported so to every server and none has to repeat them.
    fn forget_done(&mut self) {
        let told = self.servers.iter().map(|talk| talk.got).min().unwrap_or(self.done);
        while self.first < self.done.min(told) && !self.open[0].asks_again() {
            self.open.pop_front();
            self.first = self.first.next();
        }
    }
}

#[cfg(test)]
mod tests;
