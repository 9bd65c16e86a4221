// SPDX-License-Identifier: Apache-2.0
//! How far the ranks of a job are, as one server sees it: who has ended a round, and who holds its results.
//!
//! ```text
//! rank -> server   ROUND_END(r, tensors not pushed)   once all of r - 1 has landed with the rank
//! server -> ranks  USED(r, tensors)                   once every live rank has ended r
//! rank -> server   GOT(r)                             once all of r has landed with the rank
//! server -> ranks  ROUND_DONE(r)                      once every live rank has got r
//! ```
//!
//! On one connection a rank's messages alternate: end 0, got 0, end 1, got 1. So at most two rounds are open, r
//! and r + 1, and a rank that ends r + 1 before it got r, or before USED(r) left, broke the first rule of
//! [`SlotPair`](crate::SlotPair).
//!
//! Apart from the slots, which know packets and no end. Refuses to time out: it says who is missing.

use std::collections::VecDeque;

use foresee_units::Rank;

use crate::members::RankSet;
use crate::{Members, QueueError, Round, Sender, TensorSet};

/// How far a rank can be ahead of the oldest round that a server knows to be open. By the rules it is two rounds; one
/// more may go by while what the server is told is lost in a connection that is about to be found broken, and one is
/// for the round that is named as not begun. Whoever claims more belongs to another run.
pub(crate) const AHEAD_MAX: u64 = 4;

/// What a server is to tell every live rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoundAction {
    /// Every rank has ended the round; these tensors were pushed by at least one.
    Used(Round, TensorSet),
    /// Every rank holds everything of the round: gradients that are kept for it may go.
    Done(Round),
}

/// Whether a message counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It did.
    Counted,
    /// It was known.
    Repeated,
    /// It was sent under an earlier membership; what still matters is sent again.
    OldGeneration,
    /// It was sent under a membership that is not known here yet: keep it, and repeat it then.
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
    /// Tensors that some of those that ended have pushed.
    pushed: TensorSet,
    /// What USED says, from when it is known.
    used: Option<TensorSet>,
}

impl Open {
    fn new(members: &Members, tensors: u32) -> Self {
        let nobody = RankSet::with_room_for(members.world());
        Self { ended: nobody.clone(), got: nobody, pushed: TensorSet::none(tensors), used: None }
    }
}

impl Rounds {
    /// A job of `tensors` tensors whose rounds before `oldest` are done: 0 for a new one, for one that goes on with a
    /// new server the latest that any of its ranks names as the oldest it keeps gradients of.
    pub fn new(members: Members, tensors: u32, oldest: Round) -> Self {
        let open = [Open::new(&members, tensors), Open::new(&members, tensors)];
        Self { members, tensors, oldest, open, actions: VecDeque::new() }
    }

    /// A rank has pushed all that it will push in a round, and not these tensors. The slots hear of those first.
    ///
    /// # Errors
    /// [`QueueError::EndedEarly`] if the rank broke the first rule, [`QueueError::NotAMember`],
    /// [`QueueError::TensorSet`] if the set is of another plan.
    pub fn handle_end(&mut self, sender: Sender, skipped: &TensorSet) -> Result<Heard, QueueError> {
        let Sender { rank, round, .. } = sender;
        let at = match self.place(sender)? {
            Ok(at) => at,
            Err(heard) => return Ok(heard),
        };
        if skipped.tensors() != self.tensors {
            let bytes = skipped.tensors().div_ceil(8) as usize;
            return Err(QueueError::TensorSet { bytes, tensors: self.tensors });
        }
        let [first, second] = &mut self.open;
        let open = match at {
            0 => first,
            1 if first.used.is_some() && first.got.contains(rank) => second,
            _ => return Err(QueueError::EndedEarly { rank, round, before: self.oldest }),
        };
        if !open.ended.insert(rank) {
            return Ok(Heard::Repeated);
        }
        open.pushed.add(&skipped.complement());
        self.go_on();
        Ok(Heard::Counted)
    }

    /// Everything of a round has landed with a rank.
    ///
    /// # Errors
    /// [`QueueError::GotEarly`] if it has not ended the round, [`QueueError::NotAMember`].
    pub fn handle_got(&mut self, sender: Sender) -> Result<Heard, QueueError> {
        let Sender { rank, round, .. } = sender;
        let at = match self.place(sender)? {
            Ok(at) => at,
            Err(heard) => return Ok(heard),
        };
        let open = self.open.get_mut(at).filter(|open| open.ended.contains(rank));
        let Some(open) = open else { return Err(QueueError::GotEarly { rank, round }) };
        if !open.got.insert(rank) {
            return Ok(Heard::Repeated);
        }
        self.go_on();
        Ok(Heard::Counted)
    }

    /// Somebody knows that every round before `oldest` is done: another server said so. Ranks name it whenever they
    /// connect, since a server may have missed what was on its way in a connection that broke.
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
        self.go_on();
        Ok(())
    }

    /// A new membership, after a loss: rounds before `oldest` are done, and the open ones used what `promised` says, as
    /// far as any rank that is left has heard; what was told to one holds for all. What this server knows besides, and
    /// has told to nobody who is left, it forgets, for other servers may find otherwise: ranks do not listen to it from
    /// when they say what they know until it has changed.
    ///
    /// Ranks say again what they pushed; what they hold they hold.
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
        if let Some((_, set)) = promised.iter().find(|(_, set)| set.tensors() != self.tensors) {
            let bytes = set.tensors().div_ceil(8) as usize;
            return Err(QueueError::TensorSet { bytes, tensors: self.tensors });
        }
        self.handle_oldest(members.first().unwrap_or_default(), oldest)?;
        self.members = members;
        self.actions.clear();
        for (round, open) in [self.oldest, self.oldest.next()].into_iter().zip(&mut self.open) {
            // Who holds all of a round needs not end it again: it may have forgotten how.
            open.ended.clone_from(&open.got);
            open.used = promised.iter().find(|(of, _)| *of == round).map(|(_, used)| used.clone());
            match &open.used {
                Some(used) => self.actions.push_back(RoundAction::Used(round, used.clone())),
                None => open.pushed = TensorSet::none(self.tensors),
            }
        }
        self.go_on();
        Ok(())
    }

    /// What to tell the ranks next, in this order.
    pub fn poll_action(&mut self) -> Option<RoundAction> {
        self.actions.pop_front()
    }

    /// Rounds before this one are done; it and the next are open.
    pub fn oldest(&self) -> Round {
        self.oldest
    }

    /// The membership that counts.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// What a round used, while it is open and once it is known: for a rank whose connection broke.
    pub fn used(&self, round: Round) -> Option<&TensorSet> {
        let at = round.0.checked_sub(self.oldest.0)?;
        self.open.get(usize::try_from(at).ok()?)?.used.as_ref()
    }

    /// The live ranks that have not ended the oldest round that somebody waits to see ended, and that round.
    pub fn waiting_for_end(&self) -> (Round, impl Iterator<Item = Rank> + '_) {
        let [first, second] = &self.open;
        let (round, open) =
            if first.used.is_none() { (self.oldest, first) } else { (self.oldest.next(), second) };
        let ended = &open.ended;
        (round, self.members.iter().filter(|rank| !ended.contains(*rank)))
    }

    /// The live ranks that do not hold everything of the oldest round.
    pub fn waiting_for_got(&self) -> impl Iterator<Item = Rank> + '_ {
        self.members.iter().filter(|rank| !self.open[0].got.contains(*rank))
    }

    /// Whether a rank has reported that it holds everything of a round.
    pub fn has_got(&self, rank: Rank, round: Round) -> bool {
        let Some(at) = round.0.checked_sub(self.oldest.0) else { return true };
        let open = usize::try_from(at).ok().and_then(|at| self.open.get(at));
        open.is_some_and(|open| open.got.contains(rank))
    }

    /// Which of the open rounds a message is about: 0, 1, or 2 and more for none yet; or why it does not matter.
    fn place(&self, sender: Sender) -> Result<Result<usize, Heard>, QueueError> {
        let Sender { rank, generation, round } = sender;
        let current = self.members.generation();
        if generation != current {
            return Ok(Err(if generation < current { Heard::OldGeneration } else { Heard::NewGeneration }));
        }
        if !self.members.contains(rank) {
            return Err(QueueError::NotAMember { rank, generation });
        }
        let Some(at) = round.0.checked_sub(self.oldest.0) else { return Ok(Err(Heard::Repeated)) };
        Ok(Ok(usize::try_from(at).unwrap_or(usize::MAX)))
    }

    fn go_on(&mut self) {
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
        Rounds::new(Members::all(0, ranks).unwrap(), TENSORS, Round(0))
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
    fn a_round_is_used_by_what_any_rank_pushed_and_done_when_all_hold_it() {
        let mut rounds = rounds(2);
        assert_eq!(rounds.handle_end(from(0, 0), &set(&[0, 2])), Ok(Heard::Counted));
        assert_eq!(rounds.poll_action(), None);
        assert_eq!(rounds.waiting_for_end().1.collect::<Vec<_>>(), [Rank(1)]);
        assert_eq!(rounds.handle_end(from(1, 0), &set(&[0, 1])), Ok(Heard::Counted));
        assert_eq!(rounds.poll_action(), Some(RoundAction::Used(Round(0), set(&[1, 2]))));
        assert_eq!(rounds.used(Round(0)), Some(&set(&[1, 2])));
        assert_eq!(rounds.handle_got(from(1, 0)), Ok(Heard::Counted));
        assert_eq!(rounds.waiting_for_got().collect::<Vec<_>>(), [Rank(0)]);
        assert_eq!(rounds.handle_end(from(1, 1), &set(&[])), Ok(Heard::Counted));
        assert_eq!(rounds.handle_got(from(0, 0)), Ok(Heard::Counted));
        assert_eq!(rounds.poll_action(), Some(RoundAction::Done(Round(0))));
        assert_eq!((rounds.poll_action(), rounds.oldest()), (None, Round(1)));
        assert_eq!(rounds.handle_end(from(0, 0), &set(&[])), Ok(Heard::Repeated));
        assert_eq!(rounds.handle_got(from(0, 0)), Ok(Heard::Repeated));
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
        assert_eq!(rounds.handle_end(from(0, 1), &set(&[])), early(1, 0), "round 0 has not landed");
        assert_eq!(rounds.handle_end(from(0, u64::MAX), &set(&[])), early(u64::MAX, 0));
        assert!(rounds.handle_got(from(0, 2)).is_err());
        rounds.handle_got(from(0, 0)).unwrap();
        assert_eq!(rounds.handle_end(from(0, 1), &set(&[])), early(1, 0), "rank 1 has not even ended it");
        assert!(matches!(rounds.handle_end(from(2, 0), &set(&[])), Err(QueueError::NotAMember { .. })));
        let other_plan = rounds.handle_end(from(1, 0), &TensorSet::none(TENSORS + 1));
        assert!(matches!(other_plan, Err(QueueError::TensorSet { .. })));
    }

    #[test]
    fn after_a_loss_the_survivors_end_again_and_what_was_told_stays() {
        let mut rounds = rounds(3);
        for rank in 0..3 {
            rounds.handle_end(from(rank, 0), &set(&[rank, (rank + 1) % 3])).unwrap();
        }
        rounds.handle_got(from(0, 0)).unwrap();
        // Everybody who is left has heard it, or somebody has.
        let promised = [(Round(0), set(&[0, 1, 2]))];
        let left = rounds.members().without(&[Rank(2)]).unwrap();
        rounds.handle_members(left, Round(0), &promised).unwrap();
        let told = RoundAction::Used(Round(0), set(&[0, 1, 2]));
        assert_eq!(rounds.poll_action().as_ref(), Some(&told), "once more: a message may have been lost");
        assert_eq!(rounds.handle_end(from(1, 0), &set(&[])), Ok(Heard::OldGeneration));
        let now = |rank, round| Sender { generation: 1, ..from(rank, round) };
        assert_eq!(
            rounds.handle_end(Sender { generation: 2, ..from(1, 0) }, &set(&[])),
            Ok(Heard::NewGeneration)
        );
        assert_eq!(rounds.handle_end(now(0, 0), &set(&[0, 1])), Ok(Heard::Repeated));
        assert_eq!(rounds.handle_end(now(1, 0), &set(&[1, 2])), Ok(Heard::Counted));
        rounds.handle_got(now(1, 0)).unwrap();
        assert_eq!(rounds.poll_action(), Some(RoundAction::Done(Round(0))));
    }

    #[test]
    fn what_nobody_who_is_left_has_heard_is_found_anew_without_the_lost_one() {
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
            assert_eq!(rounds.handle_end(sender, &set(&[1, 2])), Ok(Heard::Counted));
        }
        assert_eq!(rounds.poll_action(), Some(RoundAction::Used(Round(0), set(&[0]))));
    }

    #[test]
    fn the_last_one_missing_may_be_the_one_that_is_lost() {
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
    fn a_server_that_missed_the_end_of_rounds_catches_up() {
        let mut rounds = rounds(2);
        rounds.handle_end(from(0, 0), &set(&[])).unwrap();
        rounds.handle_oldest(Rank(1), Round(1)).unwrap();
        assert_eq!(rounds.poll_action(), Some(RoundAction::Done(Round(0))));
        rounds.handle_oldest(Rank(1), Round(0)).unwrap();
        rounds.handle_oldest(Rank(1), Round(3)).unwrap();
        assert_eq!(rounds.oldest(), Round(3));
        assert_eq!(rounds.handle_end(from(1, 3), &set(&[])), Ok(Heard::Counted));
        let message = rounds.handle_oldest(Rank(1), Round(u64::MAX)).unwrap_err().to_string();
        assert!(
            message.starts_with("rank 1 speaks of round 18446744073709551615 while round 3 is open"),
            "{message}"
        );
    }
}
