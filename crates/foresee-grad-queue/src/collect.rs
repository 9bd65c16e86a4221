// SPDX-License-Identifier: Apache-2.0
//! Round state of one rank: which tensors it pushed, which sums it received, and what it may do next.
//!
//! This is the counterpart of [`Rounds`](crate::Rounds). For each round and tensor it counts missing packets and
//! holds one bit per packet, so that it drops sums that a server sends twice. A rank follows the two rules of
//! [`SlotPair`](crate::SlotPair) with two queries: [`Collector::is_settled`] before it uses a tensor, and
//! [`Collector::may_end`] before it ends a round.
//! ```text
//! push -> (sum, sum, ...) -> received      skip -> USED: unused, or (sum, sum, ...) -> received
//! ```

mod claim;
mod round;

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_units::Rank;

pub use claim::{Arrival, Claim, Completion, SumHeader};
use round::OpenRound;

use crate::{Plan, QueueError, Round, ServerId, TensorId, TensorSet};

/// A message that a rank sends to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectorAction {
    /// All pushes of the round were made; [`Collector::skipped`] has the other tensors.
    End(ServerId, Round),
    /// All sums of the round were received.
    Got(ServerId, Round),
}

/// The open rounds of one rank.
#[derive(Clone, Debug)]
pub struct Collector {
    plan: Arc<Plan>,
    rank: Rank,
    generation: u32,
    /// Open rounds without a gap. The last one is the current round.
    open: VecDeque<OpenRound>,
    /// The first open round.
    first: Round,
    /// Rounds before this one are done.
    done: Round,
    servers: Vec<ServerProgress>,
}

/// Progress of the message exchange with one server. Each round is the first one for which the statement does
/// not hold.
#[derive(Clone, Debug)]
struct ServerProgress {
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

impl Collector {
    /// Create the state of a rank that starts at round `first`: 0 for a new job.
    pub fn new(plan: Arc<Plan>, rank: Rank, generation: u32, first: Round) -> Self {
        let progress = |server| ServerProgress { server, ended: first, got: first, used: first, claims: 0 };
        let servers = plan.config().pattern.active().map(progress).collect();
        let open = VecDeque::from([OpenRound::new(&plan)]);
        Self { plan, rank, generation, open, first, done: first, servers }
    }

    /// Note that the rank pushes a tensor in the current round.
    ///
    /// # Panics
    /// If the plan has no such tensor, if it was pushed before, or if [`may_push`](Self::may_push) is false: the
    /// caller has to check this before it hands over a gradient.
    pub fn handle_push(&mut self, tensor: TensorId) {
        assert!(self.may_push(tensor), "tensor {} was pushed before its last update arrived", tensor.0);
        let current = self.current_round();
        assert!(!current.pushed.contains(tensor), "tensor {} was pushed twice in a round", tensor.0);
        current.push(tensor);
    }

    /// End the current round and skip all tensors that were not pushed. The next round becomes current.
    ///
    /// # Panics
    /// If [`may_end`](Self::may_end) is false: the caller has to check this.
    pub fn handle_end(&mut self) {
        assert!(self.may_end(), "a round was ended before all sums of the last one arrived");
        self.current_round().has_ended = true;
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
        used.check(self.plan.tensors())?;
        let (rank, current) = (self.rank, self.current());
        if round >= current {
            return Err(QueueError::ServerAhead { server, round, rank, current });
        }
        if let Some(open) = self.open_mut(round) {
            open.set_used(used).ok_or(QueueError::UsedDiffers { server, round })?;
        }
        if let Some(progress) = self.progress(server) {
            progress.used = progress.used.max(round.next());
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
        if round >= current || !self.open_before(round.next()).all(OpenRound::is_received) {
            return Err(QueueError::ServerAhead { server, round, rank, current });
        }
        self.done = self.done.max(round.next());
        if let Some(progress) = self.progress(server) {
            // A server that reports a round as done also knows which tensors it used.
            progress.used = progress.used.max(round.next());
        }
        let count = self.distance(round.next());
        self.open.iter_mut().take(count).for_each(|open| open.cancel_repeats(server));
        self.forget_done();
        Ok(())
    }

    /// A connection to a server was re-established: messages may be lost, so the rank repeats them. The rank
    /// names [`oldest_retained`](Self::oldest_retained) and retransmits the pushes that lack a sum.
    pub fn handle_reconnect(&mut self, server: ServerId) {
        let first = self.first;
        if let Some(progress) = self.progress(server) {
            (progress.ended, progress.got) = (first, first);
        }
    }

    /// A server was lost and a replacement without state took its place. Rounds before `oldest` are done: it is
    /// the latest round that any rank named as [`oldest_retained`](Self::oldest_retained).
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
        let Some(progress) = self.progress(server) else { return Ok(()) };
        assert_eq!(progress.claims, 0, "a lost server's readers end before it is replaced");
        let from = oldest.max(first);
        (progress.ended, progress.got, progress.used) = (from, from, from);
        for (round, open) in (self.first.0..).map(Round).zip(&mut self.open) {
            if round >= self.done {
                open.expect_repeats(&self.plan, server);
            }
        }
        // Complete rounds may need a second confirmation, to the replacement.
        self.forget_done();
        Ok(())
    }

    /// Start a new membership after a loss: the rank repeats its pushes that have no sum yet. Its first message
    /// to each server is [`oldest_retained`](Self::oldest_retained), because it may have dropped rounds that other
    /// ranks do not know to be done.
    pub fn handle_generation(&mut self, generation: u32) {
        self.generation = generation;
        for progress in &mut self.servers {
            (progress.ended, progress.got) = (self.first, self.first);
        }
    }

    /// Return the next message to a server. Each is returned exactly once, in an order that every server accepts.
    pub fn poll_action(&mut self) -> Option<CollectorAction> {
        let (first, done, open) = (self.first, self.done, &self.open);
        let at = |round: Round| open.get(usize::try_from(round.0.checked_sub(first.0)?).ok()?);
        for progress in &mut self.servers {
            if progress.got < progress.ended {
                // A replacement need not send the sums that every rank has.
                if progress.got < done || at(progress.got).is_some_and(OpenRound::is_confirmed) {
                    let action = CollectorAction::Got(progress.server, progress.got);
                    progress.got = progress.got.next();
                    self.forget_done();
                    return Some(action);
                }
            } else if progress.used >= progress.ended && at(progress.ended).is_some_and(|open| open.has_ended)
            {
                // A replacement that still sums the last round has to finish it, or be informed that it is done.
                let last = progress.ended.0.checked_sub(1).and_then(|last| at(Round(last)));
                if last.is_some_and(|last| last.has_repeats_of(progress.server)) {
                    continue;
                }
                let action = CollectorAction::End(progress.server, progress.ended);
                progress.ended = progress.ended.next();
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
        self.open_before(before).all(|open| open.is_known(tensor))
    }

    /// Whether a tensor may be pushed in the current round.
    pub fn may_push(&self, tensor: TensorId) -> bool {
        self.is_settled(tensor, self.current())
    }

    /// Whether the packets of a retained gradient of `round` may be sent to a server. All sums of the tensor's
    /// earlier rounds must be present, including those that a replacement repeats, unless that server is done.
    pub fn may_push_to(&self, server: ServerId, tensor: TensorId, round: Round) -> bool {
        self.open_before(round).all(|open| open.is_known(tensor) && !open.has_repeat(tensor, server))
    }

    /// Whether the current round may be ended: the first rule holds, and every server has received the end of the
    /// last round.
    pub fn may_end(&self) -> bool {
        let Some(last) = self.open.len().checked_sub(2) else { return true };
        let last_round = Round(self.first.0 + last as u64);
        self.open.range(..=last).all(OpenRound::is_received) && self.has_sent_end(last_round)
    }

    /// Whether this rank's end of a round was sent to every server.
    pub fn has_sent_end(&self, round: Round) -> bool {
        self.servers.iter().all(|progress| progress.ended > round)
    }

    /// Whether all sums of a round were received, or are known not to exist.
    pub fn is_round_settled(&self, round: Round) -> bool {
        round < self.first || self.open(round).is_some_and(OpenRound::is_received)
    }

    /// Whether any rank pushed a tensor in an ended round; `None` while this is unknown.
    pub fn is_used(&self, round: Round, tensor: TensorId) -> Option<bool> {
        self.open(round)?.is_used(tensor)
    }

    /// The tensors that a round used, once known. Ranks collect them after a loss of members, for
    /// [`Rounds::handle_members`](crate::Rounds::handle_members).
    pub fn used(&self, round: Round) -> Option<&TensorSet> {
        self.open(round)?.used.as_ref()
    }

    /// The tensors that an ended round did not push, which its end message carries.
    pub fn skipped(&self, round: Round) -> Option<TensorSet> {
        let open = self.open(round)?;
        open.has_ended.then(|| open.pushed.complement())
    }

    /// The oldest round whose gradients are retained because some rank may lack its results.
    pub fn oldest_retained(&self) -> Round {
        self.done
    }

    /// The tensors whose gradients of a round are retained in case a server is lost; `None` for rounds that are
    /// done.
    pub fn retained(&self, round: Round) -> Option<&TensorSet> {
        Some(&self.open(round).filter(|_| round >= self.done)?.pushed)
    }

    /// Tensors of a round with missing packets, with their number.
    pub fn waiting(&self, round: Round) -> impl Iterator<Item = (TensorId, u32)> + '_ {
        let tensors = (0..self.plan.tensors()).map(TensorId);
        let open = self.open(round);
        let missing = move |tensor| open.map_or(0, |open| open.missing(tensor));
        tensors.map(move |tensor| (tensor, missing(tensor))).filter(|(_, missing)| *missing > 0)
    }

    fn current_round(&mut self) -> &mut OpenRound {
        self.open.back_mut().expect("the current round is always open")
    }

    /// Rounds from the first open one to `round`.
    fn distance(&self, round: Round) -> usize {
        usize::try_from(round.0.saturating_sub(self.first.0)).unwrap_or(usize::MAX)
    }

    fn open_before(&self, round: Round) -> impl Iterator<Item = &OpenRound> {
        self.open.iter().take(self.distance(round))
    }

    fn open(&self, round: Round) -> Option<&OpenRound> {
        self.open.get(self.distance(round)).filter(|_| round >= self.first)
    }

    fn open_mut(&mut self, round: Round) -> Option<&mut OpenRound> {
        let at = self.distance(round);
        self.open.get_mut(at).filter(|_| round >= self.first)
    }

    fn progress(&mut self, server: ServerId) -> Option<&mut ServerProgress> {
        let at = self.servers.binary_search_by_key(&server, |progress| progress.server).ok()?;
        Some(&mut self.servers[at])
    }

    /// Drop rounds that are done, once this rank has reported so to every server and none has to repeat them.
    fn forget_done(&mut self) {
        let confirmed = self.servers.iter().map(|progress| progress.got).min().unwrap_or(self.done);
        while self.first < self.done.min(confirmed) && !self.open[0].has_repeats() {
            self.open.pop_front();
            self.first = self.first.next();
        }
    }
}

#[cfg(test)]
mod tests;
