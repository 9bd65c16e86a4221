// SPDX-License-Identifier: Apache-2.0
//! Round progress of all ranks, as one server sees it: which have ended a round, and which have all its results.
//!
//! ```text
//! rank -> server   ROUND_END(r, tensors not pushed)   once the rank has received all of r - 1
//! server -> ranks  USED(r, tensors)                   once every live rank has ended r
//! rank -> server   GOT(r)                             once the rank has received all of r
//! server -> ranks  ROUND_DONE(r)                      once every live rank has got r
//! ```
//!
//! On one connection a rank's messages alternate: end 0, got 0, end 1, got 1. Therefore at most two rounds are
//! open, r and r + 1. A rank that ends r + 1 before it got r, or before USED(r) was sent, violates the first rule
//! of [`SlotPair`](crate::SlotPair).
//!
//! The slots are separate: they know packets, but not the end of a round. Nothing here times out; a query names
//! the missing ranks.

use std::collections::VecDeque;

use foresee_units::Rank;

use crate::members::RankSet;
use crate::{Members, QueueError, Round, Sender, TensorSet};

/// How far a rank can be ahead of the oldest round that a server knows to be open. The rules allow two rounds.
/// One more may pass while messages to the server are lost in a connection that is about to fail, and one is for
/// a round that has not begun. A message further ahead belongs to another run.
pub(crate) const AHEAD_MAX: u64 = 4;

/// A message that a server sends to every live rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoundAction {
    /// Every rank has ended the round; at least one rank pushed each of these tensors.
    Used(Round, TensorSet),
    /// Every rank has all results of the round: gradients retained for it may be dropped.
    Done(Round),
}

/// How a message was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// It was counted.
    Counted,
    /// It was a repetition.
    Repeated,
    /// It was sent under an earlier membership; senders repeat it where it still matters.
    OldGeneration,
    /// It was sent under a membership that is unknown here: retain it, and handle it after the change.
    NewGeneration,
}

/// The open rounds of one job.
#[derive(Clone, Debug)]
pub struct Rounds {
    members: Members,
    tensors: u32,
    oldest: Round,
    /// The rounds `oldest` and `oldest + 1`.
    open: [Open; 2],
    actions: VecDeque<RoundAction>,
}

#[derive(Clone, Debug)]
struct Open {
    ended: RankSet,
    got: RankSet,
    /// Tensors that any rank which ended the round has pushed.
    pushed: TensorSet,
    /// The content of USED, once known.
    used: Option<TensorSet>,
}

impl Open {
    fn new(members: &Members, tensors: u32) -> Self {
        let none = RankSet::with_capacity(members.world());
        Self { ended: none.clone(), got: none, pushed: TensorSet::none(tensors), used: None }
    }
}

impl Rounds {
    /// A job of `tensors` tensors whose rounds before `oldest` are done. `oldest` is 0 for a new job; for a
    /// replacement server it is the latest round that any rank names as the oldest with retained gradients.
    pub fn new(members: Members, tensors: u32, oldest: Round) -> Self {
        let open = [Open::new(&members, tensors), Open::new(&members, tensors)];
        Self { members, tensors, oldest, open, actions: VecDeque::new() }
    }

    /// Handle a rank's end of a round, with the tensors that it did not push. The slots must handle those first.
    ///
    /// # Errors
    /// [`QueueError::EndedEarly`] if the rank broke the first rule, [`QueueError::NotAMember`],
    /// [`QueueError::TensorSet`] if the set is of another plan.
    pub fn handle_end(&mut self, sender: Sender, skipped: &TensorSet) -> Result<Receipt, QueueError> {
        let Sender { rank, round, .. } = sender;
        let at = match self.place(sender)? {
            Ok(at) => at,
            Err(receipt) => return Ok(receipt),
        };
        skipped.check(self.tensors)?;
        let [first, second] = &mut self.open;
        let open = match at {
            0 => first,
            1 if first.used.is_some() && first.got.contains(rank) => second,
            _ => return Err(QueueError::EndedEarly { rank, round, before: self.oldest }),
        };
        if !open.ended.insert(rank) {
            return Ok(Receipt::Repeated);
        }
        open.pushed.add(&skipped.complement());
        self.advance();
        Ok(Receipt::Counted)
    }

    /// Handle a rank's report that it has all results of a round.
    ///
    /// # Errors
    /// [`QueueError::GotEarly`] if it has not ended the round, [`QueueError::NotAMember`].
    pub fn handle_got(&mut self, sender: Sender) -> Result<Receipt, QueueError> {
        let Sender { rank, round, .. } = sender;
        let at = match self.place(sender)? {
            Ok(at) => at,
            Err(receipt) => return Ok(receipt),
        };
        let open = self.open.get_mut(at).filter(|open| open.ended.contains(rank));
        let Some(open) = open else { return Err(QueueError::GotEarly { rank, round }) };
        if !open.got.insert(rank) {
            return Ok(Receipt::Repeated);
        }
        self.advance();
        Ok(Receipt::Counted)
    }

    /// Another server reported that every round before `oldest` is done. Ranks name `oldest` at each connect,
    /// because a server may have missed messages on a connection that broke.
    ///
    /// # Errors
    /// [`QueueError::RoundAhead`] if the ranks cannot have come so far without this server.
    pub fn handle_oldest(&mut self, rank: Rank, oldest: Round) -> Result<(), QueueError> {
        if oldest.0.saturating_sub(self.oldest.0) > AHEAD_MAX {
            return Err(QueueError::RoundAhead { rank, round: oldest, oldest: self.oldest });
        }
        while self.oldest < oldest {
            self.finish_oldest();
        }
        self.advance();
        Ok(())
    }

    /// Start a new membership after a loss. Rounds before `oldest` are done. The open ones used what `promised`
    /// contains: the USED sets that any remaining rank has received, which then hold for all. Any other USED set
    /// of this server is dropped, because other servers may compute a different one; ranks ignore this server
    /// between their report and its change.
    ///
    /// Ranks repeat their pushes; results that they have remain valid.
    ///
    /// # Errors
    /// [`QueueError::TensorSet`] if a set is of another plan; [`QueueError::RoundAhead`] as
    /// [`handle_oldest`](Self::handle_oldest).
    pub fn handle_members(
        &mut self,
        members: Members,
        oldest: Round,
        promised: &[(Round, TensorSet)],
    ) -> Result<(), QueueError> {
        promised.iter().try_for_each(|(_, set)| set.check(self.tensors))?;
        self.handle_oldest(members.first().unwrap_or_default(), oldest)?;
        self.members = members;
        self.actions.clear();
        for (round, open) in [self.oldest, self.oldest.next()].into_iter().zip(&mut self.open) {
            // A rank that has all results need not end the round again, and may have dropped its state.
            open.ended.clone_from(&open.got);
            open.used = promised.iter().find(|(of, _)| *of == round).map(|(_, used)| used.clone());
            match &open.used {
                Some(used) => self.actions.push_back(RoundAction::Used(round, used.clone())),
                None => open.pushed = TensorSet::none(self.tensors),
            }
        }
        self.advance();
        Ok(())
    }

    /// The next message to the ranks, in order.
    pub fn poll_action(&mut self) -> Option<RoundAction> {
        self.actions.pop_front()
    }

    /// Rounds before this one are done; it and the next one are open.
    pub fn oldest(&self) -> Round {
        self.oldest
    }

    /// The current membership.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// The tensors that an open round used, once known, for a rank that reconnects.
    pub fn used(&self, round: Round) -> Option<&TensorSet> {
        let at = round.0.checked_sub(self.oldest.0)?;
        self.open.get(usize::try_from(at).ok()?)?.used.as_ref()
    }

    /// The oldest round whose end any rank waits for, and the live ranks that have not ended it.
    pub fn waiting_for_end(&self) -> (Round, impl Iterator<Item = Rank> + '_) {
        let [first, second] = &self.open;
        let (round, open) =
            if first.used.is_none() { (self.oldest, first) } else { (self.oldest.next(), second) };
        let ended = &open.ended;
        (round, self.members.iter().filter(|rank| !ended.contains(*rank)))
    }

    /// The live ranks that lack results of the oldest round.
    pub fn waiting_for_got(&self) -> impl Iterator<Item = Rank> + '_ {
        self.members.iter().filter(|rank| !self.open[0].got.contains(*rank))
    }

    /// Whether a rank has reported that it has all results of a round.
    pub fn has_got(&self, rank: Rank, round: Round) -> bool {
        let Some(at) = round.0.checked_sub(self.oldest.0) else { return true };
        let open = usize::try_from(at).ok().and_then(|at| self.open.get(at));
        open.is_some_and(|open| open.got.contains(rank))
    }

    /// Index of the open round of a message: 0, 1, or 2 and more if it has not begun; or why the message does not
    /// matter.
    fn place(&self, sender: Sender) -> Result<Result<usize, Receipt>, QueueError> {
        let Sender { rank, generation, round } = sender;
        let current = self.members.generation();
        if generation != current {
            return Ok(Err(if generation < current {
                Receipt::OldGeneration
            } else {
                Receipt::NewGeneration
            }));
        }
        if !self.members.contains(rank) {
            return Err(QueueError::NotAMember { rank, generation });
        }
        let Some(at) = round.0.checked_sub(self.oldest.0) else { return Ok(Err(Receipt::Repeated)) };
        Ok(Ok(usize::try_from(at).unwrap_or(usize::MAX)))
    }

    fn advance(&mut self) {
        loop {
            for (round, open) in [self.oldest, self.oldest.next()].into_iter().zip(&mut self.open) {
                if open.used.is_none() && open.ended.covers(&self.members) {
                    open.used = Some(open.pushed.clone());
                    self.actions.push_back(RoundAction::Used(round, open.pushed.clone()));
                }
            }
            if !self.open[0].got.covers(&self.members) {
                return;
            }
            self.finish_oldest();
        }
    }

    fn finish_oldest(&mut self) {
        self.actions.push_back(RoundAction::Done(self.oldest));
        self.oldest = self.oldest.next();
        self.open.swap(0, 1);
        self.open[1] = Open::new(&self.members, self.tensors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TensorId;

    const TENSORS: u32 = 3;

    fn rounds(ranks: u32) -> Rounds {
        Rounds::new(Members::new(0, ranks, (0..ranks).map(Rank)).unwrap(), TENSORS, Round(0))
    }

    fn from(rank: u32, round: u64) -> Sender {
        Sender { rank: Rank(rank), generation: 0, round: Round(round) }
    }

    fn set(tensors: &[u32]) -> TensorSet {
        let mut set = TensorSet::none(TENSORS);
        for tensor in tensors {
            assert!(set.insert(TensorId(*tensor)));
        }
        set
    }

    #[test]
    fn a_round_uses_the_tensors_that_any_rank_pushed_and_is_done_when_all_ranks_have_it() {
        let mut rounds = rounds(2);
        assert_eq!(rounds.handle_end(from(0, 0), &set(&[0, 2])), Ok(Receipt::Counted));
        assert_eq!(rounds.poll_action(), None);
        assert_eq!(rounds.waiting_for_end().1.collect::<Vec<_>>(), [Rank(1)]);
        assert_eq!(rounds.handle_end(from(1, 0), &set(&[0, 1])), Ok(Receipt::Counted));
        assert_eq!(rounds.poll_action(), Some(RoundAction::Used(Round(0), set(&[1, 2]))));
        assert_eq!(rounds.used(Round(0)), Some(&set(&[1, 2])));
        assert_eq!(rounds.handle_got(from(1, 0)), Ok(Receipt::Counted));
        assert_eq!(rounds.waiting_for_got().collect::<Vec<_>>(), [Rank(0)]);
        assert_eq!(rounds.handle_end(from(1, 1), &set(&[])), Ok(Receipt::Counted));
        assert_eq!(rounds.handle_got(from(0, 0)), Ok(Receipt::Counted));
        assert_eq!(rounds.poll_action(), Some(RoundAction::Done(Round(0))));
        assert_eq!((rounds.poll_action(), rounds.oldest()), (None, Round(1)));
        assert_eq!(rounds.handle_end(from(0, 0), &set(&[])), Ok(Receipt::Repeated));
        assert_eq!(rounds.handle_got(from(0, 0)), Ok(Receipt::Repeated));
    }

    #[test]
    fn a_rank_ahead_of_the_others_is_refused_by_name() {
        let mut rounds = rounds(2);
        let early = |round, before| {
            Err(QueueError::EndedEarly { rank: Rank(0), round: Round(round), before: Round(before) })
        };
        assert_eq!(
            rounds.handle_got(from(0, 0)),
            Err(QueueError::GotEarly { rank: Rank(0), round: Round(0) })
        );
        rounds.handle_end(from(0, 0), &set(&[])).unwrap();
        assert_eq!(rounds.handle_end(from(0, 1), &set(&[])), early(1, 0), "round 0 was not received");
        assert_eq!(rounds.handle_end(from(0, u64::MAX), &set(&[])), early(u64::MAX, 0));
        assert!(rounds.handle_got(from(0, 2)).is_err());
        rounds.handle_got(from(0, 0)).unwrap();
        assert_eq!(rounds.handle_end(from(0, 1), &set(&[])), early(1, 0), "rank 1 has not even ended it");
        assert!(matches!(rounds.handle_end(from(2, 0), &set(&[])), Err(QueueError::NotAMember { .. })));
        let other_plan = rounds.handle_end(from(1, 0), &TensorSet::none(TENSORS + 1));
        assert!(matches!(other_plan, Err(QueueError::TensorSet { .. })));
    }

    #[test]
    fn after_a_loss_survivors_end_the_round_again_and_reported_sets_stay() {
        let mut rounds = rounds(3);
        for rank in 0..3 {
            rounds.handle_end(from(rank, 0), &set(&[rank, (rank + 1) % 3])).unwrap();
        }
        rounds.handle_got(from(0, 0)).unwrap();
        // Either every remaining rank has received it, or one has.
        let promised = [(Round(0), set(&[0, 1, 2]))];
        let left = rounds.members().without(&[Rank(2)]).unwrap();
        rounds.handle_members(left, Round(0), &promised).unwrap();
        let used = RoundAction::Used(Round(0), set(&[0, 1, 2]));
        assert_eq!(rounds.poll_action().as_ref(), Some(&used), "once more: a message may have been lost");
        assert_eq!(rounds.handle_end(from(1, 0), &set(&[])), Ok(Receipt::OldGeneration));
        let now = |rank, round| Sender { generation: 1, ..from(rank, round) };
        assert_eq!(
            rounds.handle_end(Sender { generation: 2, ..from(1, 0) }, &set(&[])),
            Ok(Receipt::NewGeneration)
        );
        assert_eq!(rounds.handle_end(now(0, 0), &set(&[0, 1])), Ok(Receipt::Repeated));
        assert_eq!(rounds.handle_end(now(1, 0), &set(&[1, 2])), Ok(Receipt::Counted));
        rounds.handle_got(now(1, 0)).unwrap();
        assert_eq!(rounds.poll_action(), Some(RoundAction::Done(Round(0))));
    }

    #[test]
    fn a_used_set_that_no_survivor_received_is_computed_again_without_the_lost_rank() {
        let mut rounds = rounds(3);
        for rank in 0..3 {
            rounds.handle_end(from(rank, 0), &set(if rank == 2 { &[] } else { &[1, 2] })).unwrap();
        }
        assert_eq!(rounds.used(Round(0)), Some(&set(&[0, 1, 2])));
        let left = rounds.members().without(&[Rank(2)]).unwrap();
        rounds.handle_members(left, Round(0), &[]).unwrap();
        assert_eq!(rounds.used(Round(0)), None);
        assert_eq!(rounds.poll_action(), None);
        for rank in 0..2 {
            let sender = Sender { generation: 1, ..from(rank, 0) };
            assert_eq!(rounds.handle_end(sender, &set(&[1, 2])), Ok(Receipt::Counted));
        }
        assert_eq!(rounds.poll_action(), Some(RoundAction::Used(Round(0), set(&[0]))));
    }

    #[test]
    fn a_round_completes_when_the_last_missing_rank_is_lost() {
        let mut rounds = rounds(2);
        rounds.handle_end(from(0, 0), &set(&[0])).unwrap();
        let left = rounds.members().without(&[Rank(1)]).unwrap();
        let of_another_plan = [(Round(0), TensorSet::none(9))];
        assert!(rounds.handle_members(left.clone(), Round(0), &of_another_plan).is_err());
        rounds.handle_members(left, Round(0), &[]).unwrap();
        assert_eq!(rounds.poll_action(), None, "the survivor pushes and ends again");
        rounds.handle_end(Sender { generation: 1, ..from(0, 0) }, &set(&[0])).unwrap();
        assert_eq!(rounds.used(Round(0)), Some(&set(&[1, 2])));
    }

    #[test]
    fn a_server_that_missed_round_ends_catches_up() {
        let mut rounds = rounds(2);
        rounds.handle_end(from(0, 0), &set(&[])).unwrap();
        rounds.handle_oldest(Rank(1), Round(1)).unwrap();
        assert_eq!(rounds.poll_action(), Some(RoundAction::Done(Round(0))));
        rounds.handle_oldest(Rank(1), Round(0)).unwrap();
        rounds.handle_oldest(Rank(1), Round(3)).unwrap();
        assert_eq!(rounds.oldest(), Round(3));
        assert_eq!(rounds.handle_end(from(1, 3), &set(&[])), Ok(Receipt::Counted));
        let message = rounds.handle_oldest(Rank(1), Round(u64::MAX)).unwrap_err().to_string();
        assert!(
            message.starts_with("rank 1 names round 18446744073709551615 while round 3 is open"),
            "{message}"
        );
    }
}
