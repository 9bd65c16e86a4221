// SPDX-License-Identifier: Apache-2.0
//! What a rank has pushed, what has landed with it, and what it may therefore do next.
//!
//! The other half of [`Rounds`](crate::Rounds): it sends a rank's round ends and says when everything of a round
//! is there. Per round and tensor it counts packets down, with a bit for each, so that what servers send twice
//! after a broken connection is known and dropped. A rank keeps the two rules of
//! [`SlotPair`](crate::SlotPair) by asking: [`Collect::is_settled`] before it uses a tensor,
//! [`Collect::may_end`] before it ends a round.
//!
//! ```text
//! push -> (sum, sum, ...) -> landed      skip -> USED: unused, or (sum, sum, ...) -> landed
//! ```
//!
//! Apart from the memory of gradients: it knows which have to be kept for a server that may be lost, and never
//! sees a byte of them. Refuses sums that cannot be, since whoever sends them has another plan.

mod claim;
mod round;

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_units::Rank;

pub use claim::{Arrival, Claim, Landed, SumHeader, Unwanted};
use round::OpenRound;

use crate::{Plan, QueueError, Round, ServerId, TensorId, TensorSet};

/// What a rank is to tell a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectAction {
    /// Everything of a round was pushed; the tensors that were not are [`Collect::skipped`].
    End(ServerId, Round),
    /// Everything of a round has landed.
    Got(ServerId, Round),
}

/// A rank's rounds that are not done.
#[derive(Clone, Debug)]
pub struct Collect {
    plan: Arc<Plan>,
    rank: Rank,
    generation: u32,
    /// Rounds that still matter, without a gap. The last is the one that the rank pushes.
    open: VecDeque<OpenRound>,
    /// The first of them.
    first: Round,
    /// Rounds before this one are done.
    done: Round,
    servers: Vec<Talk>,
}

/// How far the talk with a server is. All are rounds before which something holds.
#[derive(Clone, Debug)]
struct Talk {
    server: ServerId,
    /// Its end was sent.
    ended: Round,
    /// That it has landed was sent.
    got: Round,
    /// What it used was heard.
    used: Round,
    /// Sums of it that are being read.
    claims: u32,
}

impl Collect {
    /// A rank that starts with round `first`, 0 in a new job.
    pub fn new(plan: Arc<Plan>, rank: Rank, generation: u32, first: Round) -> Self {
        let talks =
            (0_u16..).map(ServerId).zip(plan.config().pattern.shares()).filter(|(_, share)| **share > 0);
        let servers = talks
            .map(|(server, _)| Talk { server, ended: first, got: first, used: first, claims: 0 })
            .collect();
        let open = VecDeque::from([OpenRound::new(&plan)]);
        Self { plan, rank, generation, open, first, done: first, servers }
    }

    /// The rank pushes a tensor in the current round.
    ///
    /// # Panics
    /// If the plan has no such tensor, or it was pushed before, or [`may_push`](Self::may_push) says no: defects of
    /// the caller, which asks before it hands a gradient over.
    pub fn handle_push(&mut self, tensor: TensorId) {
        assert!(self.may_push(tensor), "tensor {} was handed over before its last update landed", tensor.0);
        let current = self.current_round();
        assert!(!current.has_pushed(tensor), "tensor {} was handed over twice in a round", tensor.0);
        current.push(tensor);
    }

    /// The rank ends the current round: it skips whatever it has not pushed. The next round is current then.
    ///
    /// # Panics
    /// If [`may_end`](Self::may_end) says no: a defect of the caller.
    pub fn handle_end(&mut self) {
        assert!(self.may_end(), "a round was ended before everything of the last one landed");
        self.current_round().end();
        self.open.push_back(OpenRound::new(&self.plan));
    }

    /// A server says which tensors a round used.
    ///
    /// # Errors
    /// [`QueueError::UsedDiffers`] if another server said otherwise, or if this rank's own pushes are missing;
    /// [`QueueError::ServerAhead`] if the rank has not ended the round; [`QueueError::TensorSet`].
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

    /// A server says that every rank holds everything of a round: its gradients need not be kept.
    ///
    /// # Errors
    /// [`QueueError::ServerAhead`] if something of it has not landed with this one.
    pub fn handle_done(&mut self, server: ServerId, round: Round) -> Result<(), QueueError> {
        let (rank, current) = (self.rank, self.current());
        let landed = |round: Round| self.place(round).is_none_or(|at| self.open[at].has_landed());
        if round >= current || !(self.done.0..=round.0).map(Round).all(landed) {
            return Err(QueueError::ServerAhead { server, round, rank, current });
        }
        self.done = self.done.max(round.next());
        if let Some(talk) = self.talk(server) {
            // Whoever is done with a round knows what it used.
            talk.used = talk.used.max(round.next());
        }
        for at in (self.first.0..=round.0).map_while(|round| self.place(Round(round))).collect::<Vec<_>>() {
            self.open[at].stop_asking(server);
        }
        self.forget_done();
        Ok(())
    }

    /// A connection to a server broke and was made again: what the rank told it may be lost, and is told again.
    /// The rank names [`oldest_kept`](Self::oldest_kept) and sends what it pushed again, as far as
    /// [`has_landed`](Self::has_landed) denies it.
    pub fn handle_reconnect(&mut self, server: ServerId) {
        let first = self.first;
        if let Some(talk) = self.talk(server) {
            (talk.ended, talk.got) = (first, first);
        }
    }

    /// A server was lost and another one, which knows nothing, has taken its place; rounds before `oldest` are done,
    /// being the latest that any rank named as [`oldest_kept`](Self::oldest_kept).
    ///
    /// From when it named its own until this call the rank holds back [`handle_done`](Self::handle_done): the server counts
    /// on it for what was not done then. Of several such servers it waits for all, and begins with the oldest round.
    ///
    /// The rank sends the server's packets of every gradient that it keeps again, whether or not their sums have
    /// landed here, since they may not have landed elsewhere; a tensor's next round only when
    /// [`may_push_to`](Self::may_push_to) allows. The sums have the same bits.
    ///
    /// # Errors
    /// [`QueueError::ServerAhead`] if something of the rounds before `oldest` has not landed here.
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
        // What was complete may have to be confirmed anew, to the new server.
        self.forget_done();
        Ok(())
    }

    /// A new membership, after a loss: the rank says again what it pushed and has no sum of. Its first word to every
    /// server is [`oldest_kept`](Self::oldest_kept), since it may have forgotten what is done elsewhere.
    pub fn handle_generation(&mut self, generation: u32) {
        self.generation = generation;
        for talk in &mut self.servers {
            (talk.ended, talk.got) = (self.first, self.first);
        }
    }

    /// What to tell a server next; each exactly once, in an order that every server can follow.
    pub fn poll_action(&mut self) -> Option<CollectAction> {
        let (first, done, open) = (self.first, self.done, &self.open);
        let at = |round: Round| open.get(usize::try_from(round.0.checked_sub(first.0)?).ok()?);
        for talk in &mut self.servers {
            if talk.got < talk.ended {
                // What every rank holds need not come once more from a new server.
                if talk.got < done || at(talk.got).is_some_and(OpenRound::is_confirmed) {
                    let action = CollectAction::Got(talk.server, talk.got);
                    talk.got = talk.got.next();
                    self.forget_done();
                    return Some(action);
                }
            } else if talk.used >= talk.ended && at(talk.ended).is_some_and(OpenRound::has_ended) {
                // What a new server still sums of the last round, it has to finish or to hear that it is done.
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

    /// The round that the rank pushes now.
    pub fn current(&self) -> Round {
        Round(self.first.0 + self.open.len() as u64 - 1)
    }

    /// The generation that sums have to have.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether a tensor has no update outstanding from rounds before `round`: each is there, or was used by nobody.
    /// The second rule: a rank asks this before it uses the tensor, also where it skipped it.
    pub fn is_settled(&self, tensor: TensorId, before: Round) -> bool {
        (self.first.0..before.0)
            .map_while(|round| self.place(Round(round)))
            .all(|at| self.open[at].is_known(tensor))
    }

    /// Whether a tensor may be pushed in the current round.
    pub fn may_push(&self, tensor: TensorId) -> bool {
        self.is_settled(tensor, self.current())
    }

    /// Whether the packets that a server sums of a kept gradient of `round` may be sent to it: everything of the
    /// tensor's earlier rounds is there, also what a new server has to sum once more, unless that server is done.
    pub fn may_push_to(&self, server: ServerId, tensor: TensorId, round: Round) -> bool {
        let mut earlier = (self.first.0..round.0).map_while(|round| self.place(Round(round)));
        earlier.all(|at| self.open[at].is_known(tensor) && !self.open[at].is_asked_again(tensor, server))
    }

    /// Whether the current round may be ended: the first rule, and every server has heard the end of the last one.
    pub fn may_end(&self) -> bool {
        let Some(last) = self.open.len().checked_sub(2) else { return true };
        let heard = Round(self.first.0 + last as u64);
        self.open.range(..=last).all(OpenRound::has_landed) && self.has_told_end(heard)
    }

    /// Whether every server was told that this rank has ended a round.
    pub fn has_told_end(&self, round: Round) -> bool {
        self.servers.iter().all(|talk| talk.ended > round)
    }

    /// Whether everything of a round has landed, or was used by nobody.
    pub fn is_round_settled(&self, round: Round) -> bool {
        round < self.first || self.place(round).is_some_and(|at| self.open[at].has_landed())
    }

    /// Whether any rank pushed a tensor in an ended round; `None` while that is not known.
    pub fn is_used(&self, round: Round, tensor: TensorId) -> Option<bool> {
        self.open[self.place(round)?].is_used(tensor)
    }

    /// What a round used, once known: ranks gather it before members are lost, for
    /// [`Rounds::handle_members`](crate::Rounds::handle_members).
    pub fn used(&self, round: Round) -> Option<&TensorSet> {
        self.open[self.place(round)?].used()
    }

    /// The tensors that a round, once ended, did not push: what travels with its end.
    pub fn skipped(&self, round: Round) -> Option<TensorSet> {
        let open = &self.open[self.place(round)?];
        open.has_ended().then(|| open.pushed().complement())
    }

    /// The oldest round whose gradients are kept, because some rank may not hold its results.
    pub fn oldest_kept(&self) -> Round {
        self.done
    }

    /// The tensors whose gradients of a round are kept, in case a server is lost; `None` for rounds that are done.
    pub fn kept(&self, round: Round) -> Option<&TensorSet> {
        if round < self.done {
            return None;
        }
        Some(self.open[self.place(round)?].pushed())
    }

    /// How many packets a tensor still waits for in a round: for the one line that says who waits for what.
    pub fn missing(&self, round: Round, tensor: TensorId) -> u32 {
        self.place(round).map_or(0, |at| self.open[at].missing(tensor))
    }

    /// Tensors of a round that wait for packets, with how many.
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

    /// Drops rounds that are done, once every server has heard so from this rank and none is asked to repeat them.
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
