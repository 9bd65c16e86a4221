// SPDX-License-Identifier: Apache-2.0
//! The two slots of a packet, for even and for odd rounds.
//!
//! A rank pushes a tensor only after it has received the tensor's last average. When a packet of round r + 2
//! arrives, every rank has contributed to r + 1 and therefore has the result of r, so two slots suffice. For
//! tensors that are skipped in some rounds this needs two rules, which ranks follow and this type checks:
//!
//! 1. before a rank ends round r, it has received all results of round r - 1;
//! 2. a rank that skipped a tensor waits until it knows whether others used it, and then for its average,
//!    before it uses the tensor again.
//!
//! ```text
//! Empty -> Filling(next, early) -> Ready, until round r + 2 takes the slot
//! ```
//!
//! A message is checked twice, both times under the packet's lock: by its header ([`SlotPair::admit`]), and
//! with its payload ([`SlotPair::accept`]). In between, the lock is free for other ranks. The decision stays valid,
//! because a rank does not lose its turn, and early payloads have a reservation. If a reader fails in between, it
//! drops its admission without an effect.
//!
//! No call blocks: a caller that has to wait gets [`Verdict::Hold`], and [`Progress`] reports when to ask again.

use std::sync::Arc;

use crate::buffer::Buffer;
use crate::early_buffer::Reservation;
use crate::rounds::AHEAD_MAX;
use crate::slot::{Arithmetic, Filling, Slot, State, Sum};
use crate::{EarlyBudget, Members, PacketId, Plan, QueueError, Round, Sender};
use foresee_units::Rank;

/// The server's state outside of the slots, borrowed for one call.
///
/// Read the members after the packet's lock was taken: a later holder of the lock must not see older members.
#[derive(Clone, Copy, Debug)]
pub struct JobView<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The live ranks.
    pub members: &'a Members,
    /// The budget of early contributions.
    pub early_budget: &'a Arc<EarlyBudget>,
    /// Rounds before this one are done: every rank has all their results.
    pub oldest: Round,
}

/// The two slots of one packet. The default is empty. Memory is allocated with the first contribution, as wide as
/// its sum, and is never freed.
#[derive(Debug, Default)]
pub struct SlotPair {
    slots: [Slot; 2],
    generation: u32,
}

/// What a reader does with a payload that is still in its connection.
#[derive(Debug)]
#[must_use]
pub enum Verdict {
    /// Read it outside of the lock, and pass it to [`SlotPair::accept`] with this admission.
    Read(Admission),
    /// Read and discard it.
    Discard(DiscardReason),
    /// Leave it and read no more from this connection. Ask again when a [`Progress`] of this packet reports it,
    /// when the generation changes, or when a round is done.
    Hold,
}

/// Why a contribution or a sum is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardReason {
    /// It was sent under an earlier membership; its sender repeats it if it is needed.
    OldGeneration,
    /// It was counted before, or another reader has it.
    Repeated,
    /// The result is complete; the rank seems to lack it, so send it again.
    Answered,
    /// Every rank has all results of the round.
    Done,
}

/// Permission to take a payload. It may be dropped without an effect.
#[derive(Debug)]
#[must_use]
pub struct Admission {
    packet: PacketId,
    sender: Sender,
    bytes: usize,
    reservation: Option<Reservation>,
}

impl Admission {
    /// Bytes to read.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The effect of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Progress {
    /// The outcome for its sender.
    pub outcome: Outcome,
    /// Whether readers that hold a payload of this packet may ask again.
    pub wake: bool,
}

/// The outcome of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the sum, or the rank is skipped; others are missing.
    Counted,
    /// It is buffered until its turn.
    Buffered,
    /// The sum is complete: send it to every live rank.
    Ready,
    /// All ranks skip: there is no result.
    Unused,
    /// It was discarded.
    Ignored(DiscardReason),
}

impl Progress {
    #[expect(clippy::unnecessary_wraps, reason = "every caller returns it")]
    fn ignored(reason: DiscardReason) -> Result<Self, QueueError> {
        Ok(Self { outcome: Outcome::Ignored(reason), wake: false })
    }
}

impl SlotPair {
    /// Decide what to do with a contribution of `bytes` payload bytes from its header.
    ///
    /// # Errors
    /// A violation of the plan or of the two rules, with rank, tensor and round. The connection has to be closed.
    ///
    /// # Panics
    /// If `job` has older members than an earlier call: a defect of the caller.
    pub fn admit(
        &mut self,
        job: &JobView<'_>,
        packet: PacketId,
        sender: Sender,
        bytes: u64,
    ) -> Result<Verdict, QueueError> {
        let generation = job.members.generation();
        if sender.generation != generation {
            let old = sender.generation < generation;
            // A newer generation is not known to this server yet: hold the payload until it is.
            return Ok(if old { Verdict::Discard(DiscardReason::OldGeneration) } else { Verdict::Hold });
        }
        job.plan.check(sender.rank, packet, bytes)?;
        let Some(slot) = self.open(job, packet, sender)? else {
            return Ok(Verdict::Discard(DiscardReason::Done));
        };
        if let Some(reason) = discard_reason(slot, job, packet, sender)? {
            return Ok(Verdict::Discard(reason));
        }
        let Some(filling) = slot.filling_mut() else { return Ok(Verdict::Discard(DiscardReason::Done)) };
        let bytes = usize::try_from(bytes).expect("a packet's size is 32 bits");
        let admission = |reservation| Verdict::Read(Admission { packet, sender, bytes, reservation });
        if filling.is_turn_of(sender.rank, job.members) {
            return Ok(admission(None));
        }
        if let Some(reservation) = job.early_budget.reserve(bytes as u64) {
            return Ok(admission(Some(reservation)));
        }
        filling.has_held_reader = true;
        Ok(Verdict::Hold)
    }

    /// Add or buffer a payload. The content of the caller's buffer is unspecified afterwards, and it may be
    /// empty, because the slot may have swapped or taken its memory.
    ///
    /// # Errors
    /// As [`admit`](Self::admit), if the rank has contradicted itself since then.
    ///
    /// # Panics
    /// If the payload has not [`Admission::bytes`], or as [`admit`](Self::admit).
    pub fn accept(
        &mut self,
        job: &JobView<'_>,
        admission: Admission,
        payload: &mut Buffer,
    ) -> Result<Progress, QueueError> {
        let Admission { packet, sender, bytes, reservation } = admission;
        assert_eq!(payload.bytes().len(), bytes, "a payload is read to its end");
        if sender.generation != job.members.generation() {
            return Progress::ignored(DiscardReason::OldGeneration);
        }
        let arithmetic = arithmetic(job, packet);
        let Some(slot) = self.open(job, packet, sender)? else {
            return Progress::ignored(DiscardReason::Done);
        };
        if let Some(reason) = discard_reason(slot, job, packet, sender)? {
            return Progress::ignored(reason);
        }
        let Some(filling) = slot.filling_mut() else { return Progress::ignored(DiscardReason::Done) };
        if !filling.is_turn_of(sender.rank, job.members) {
            filling.buffer_early(sender.rank, payload, reservation.expect("a rank does not lose its turn"));
            return Ok(Progress { outcome: Outcome::Buffered, wake: false });
        }
        // Release its reservation before the buffered contributions are added.
        drop(reservation);
        let moved = slot.count(arithmetic, job.members, sender.rank, payload);
        Ok(progress(slot, arithmetic, moved, false))
    }

    /// Note that a rank does not push this packet's tensor in a round.
    ///
    /// Call this for every packet of every such tensor before the round's end goes to [`Rounds`](crate::Rounds).
    /// `promised`: the round's set of used tensors is known already and contains this one. Then only a lost rank
    /// can have pushed it, so its packet becomes zeros if its sum was incomplete.
    ///
    /// # Errors
    /// As [`admit`](Self::admit).
    ///
    /// # Panics
    /// As [`admit`](Self::admit).
    pub fn skip(
        &mut self,
        job: &JobView<'_>,
        packet: PacketId,
        sender: Sender,
        promised: bool,
    ) -> Result<Progress, QueueError> {
        if sender.generation != job.members.generation() {
            return Progress::ignored(DiscardReason::OldGeneration);
        }
        let (_, bytes) = job.plan.range(packet).unwrap_or_default();
        job.plan.check(sender.rank, packet, bytes.into())?;
        let arithmetic = arithmetic(job, packet);
        let Some(slot) = self.open(job, packet, sender)? else {
            return Progress::ignored(DiscardReason::Done);
        };
        let contradicts = match &slot.state {
            State::Empty | State::Ready | State::Unused => return Progress::ignored(DiscardReason::Answered),
            State::Filling(filling) if filling.is_skipped(sender.rank) => {
                return Progress::ignored(DiscardReason::Repeated);
            }
            State::Filling(filling) => filling.has(sender.rank),
        };
        if contradicts {
            return Err(contradiction(job, packet, sender));
        }
        slot.skip(arithmetic, job.members, sender.rank);
        Ok(progress(slot, arithmetic, true, promised))
    }

    /// Apply a new membership: unfinished sums are dropped, because the ranks push them again; results stay.
    /// Returns the number of dropped sums, 0 to 2.
    ///
    /// The other calls do this implicitly; a server calls it for every packet to free memory and to count.
    ///
    /// # Panics
    /// As [`admit`](Self::admit).
    pub fn adopt(&mut self, members: &Members) -> u32 {
        let generation = members.generation();
        assert!(generation >= self.generation, "members are looked up under the packet's lock");
        if generation == self.generation {
            return 0;
        }
        self.generation = generation;
        self.slots.iter_mut().map(|slot| u32::from(slot.reset())).sum()
    }

    /// Drop unfinished sums of rounds before `oldest`, with their early contributions. They exist only on a
    /// replacement server, which receives contributions to sums that every rank has.
    pub fn forget_done(&mut self, oldest: Round) {
        for slot in self.slots.iter_mut().filter(|slot| slot.round < oldest) {
            slot.reset();
        }
    }

    /// The result of a round, from its completion until the round after the next begins.
    pub fn ready(&self, round: Round) -> Option<&Arc<Sum>> {
        let slot = &self.slots[parity(round)];
        slot.result().filter(|_| slot.round == round)
    }

    /// The live ranks whose contribution to an unfinished round is missing; none if it has not begun or has
    /// ended.
    pub fn missing<'a>(&'a self, members: &'a Members, round: Round) -> impl Iterator<Item = Rank> + 'a {
        let slot = &self.slots[parity(round)];
        let filling =
            slot.filling().filter(|_| slot.round == round && self.generation == members.generation());
        filling.into_iter().flat_map(|filling| filling.missing(members))
    }

    /// The slot of the sender's round, which it takes if free; `None` if the round is over.
    fn open(
        &mut self,
        job: &JobView<'_>,
        packet: PacketId,
        sender: Sender,
    ) -> Result<Option<&mut Slot>, QueueError> {
        let Sender { rank, generation, round } = sender;
        if !job.members.contains(rank) {
            return Err(QueueError::NotAMember { rank, generation });
        }
        self.adopt(job.members);
        if round < job.oldest {
            return Ok(None);
        }
        if round.0 - job.oldest.0 > AHEAD_MAX {
            return Err(QueueError::RoundAhead { rank, round, oldest: job.oldest });
        }
        let [even, odd] = &mut self.slots;
        let (slot, other) = if parity(round) == 0 { (even, odd) } else { (odd, even) };
        if round < slot.round || round.next() < other.round {
            return Ok(None);
        }
        if round > slot.round || matches!(slot.state, State::Empty) {
            // Both rules at once: no rank can be in round r while a sum of r - 1 or r - 2 lacks a contribution.
            for older in [&*slot, &*other] {
                let unfinished = older.filling().is_some_and(Filling::has_begun);
                if unfinished && older.round < round && older.round >= job.oldest {
                    let tensor = job.plan.name(packet.tensor);
                    return Err(QueueError::SlotTaken { rank, tensor, round, held: older.round });
                }
            }
            slot.begin(round, job.members);
        }
        Ok(Some(slot))
    }
}

/// Why a contribution to an open slot is discarded.
fn discard_reason(
    slot: &Slot,
    job: &JobView<'_>,
    packet: PacketId,
    sender: Sender,
) -> Result<Option<DiscardReason>, QueueError> {
    match &slot.state {
        State::Ready => Ok(Some(DiscardReason::Answered)),
        State::Filling(filling) if filling.has(sender.rank) => Ok(Some(DiscardReason::Repeated)),
        State::Filling(filling) if !filling.is_skipped(sender.rank) => Ok(None),
        State::Empty => Ok(None),
        State::Filling(_) | State::Unused => Err(contradiction(job, packet, sender)),
    }
}

fn contradiction(job: &JobView<'_>, packet: PacketId, sender: Sender) -> QueueError {
    let tensor = job.plan.name(packet.tensor);
    QueueError::PushedAndSkipped { rank: sender.rank, tensor, round: sender.round }
}

/// The progress of a slot after a change.
fn progress(slot: &mut Slot, arithmetic: Arithmetic, moved: bool, promised: bool) -> Progress {
    let wake =
        moved && slot.filling_mut().is_some_and(|filling| std::mem::take(&mut filling.has_held_reader));
    slot.settle(arithmetic, promised);
    let outcome = match slot.state {
        State::Ready => Outcome::Ready,
        State::Unused => Outcome::Unused,
        State::Empty | State::Filling(_) => Outcome::Counted,
    };
    Progress { outcome, wake }
}

fn arithmetic(job: &JobView<'_>, packet: PacketId) -> Arithmetic {
    const CHECKED: &str = "the packet was checked against the plan";
    let dtype = job.plan.wire_dtype(packet.tensor).expect(CHECKED);
    let (_, bytes) = job.plan.range(packet).expect(CHECKED);
    let op = job.plan.tensor(packet.tensor).expect(CHECKED).op;
    Arithmetic { dtype, divisor: op.divisor(job.members.count()), bytes: bytes as usize }
}

const fn parity(round: Round) -> usize {
    if round.0.is_multiple_of(2) { 0 } else { 1 }
}

#[cfg(test)]
mod tests;
