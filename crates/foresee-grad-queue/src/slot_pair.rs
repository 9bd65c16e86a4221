// SPDX-License-Identifier: Apache-2.0
//! A packet's two slots, one for even rounds and one for odd ones: what may be summed, and what becomes of it.
//!
//! A rank pushes a tensor only after the tensor's last average has landed with it, so when a packet of round
//! r + 2 arrives every rank has contributed to r + 1, and therefore holds r: two slots are enough. For tensors
//! that are skipped in some rounds this needs two rules, which ranks keep and this machine checks:
//!
//! 1. before a rank ends round r, everything of round r - 1 has landed with it;
//! 2. a rank that skipped a tensor waits until it knows whether others used it, and then for its average,
//!    before it uses the tensor again.
//!
//! ```text
//! Empty -> Filling(next, parked) -> Ready, until round r + 2 takes the slot
//! ```
//!
//! A message is judged twice, both times under the packet's lock: by its header ([`SlotPair::verdict`]), and when
//! the payload is there ([`SlotPair::take`]). In between the lock is free and other ranks go on; a verdict stays
//! valid, because the turn of a rank, once come, does not go away, and room for waiting is reserved with it.
//! A reader that dies in between drops its ticket, and nothing has happened.
//!
//! Refuses to block: who has to wait is told so, and is told when to ask again.

use std::sync::Arc;

use crate::buffer::Buffer;
use crate::park::ParkRoom;
use crate::rounds::AHEAD_MAX;
use crate::slot::{Arithmetic, Filling, Slot, State, Sum};
use crate::{Members, PacketId, ParkBudget, Plan, QueueError, Round, Sender};
use foresee_units::Rank;

/// What a server knows beside the slots; borrowed for one call.
///
/// Take the members after the packet's lock: a lock that was taken later must not see older members.
#[derive(Clone, Copy, Debug)]
pub struct JobView<'a> {
    /// What is exchanged.
    pub plan: &'a Plan,
    /// Who is alive.
    pub members: &'a Members,
    /// Where to wait.
    pub park: &'a Arc<ParkBudget>,
    /// Rounds before this one are done: every rank holds everything of them.
    pub oldest: Round,
}

/// The two slots of one packet. The default is empty; memory comes with the first contribution, as wide as its sum,
/// and stays.
#[derive(Debug, Default)]
pub struct SlotPair {
    slots: [Slot; 2],
    generation: u32,
}

/// What to do with a payload that is still in its connection.
#[derive(Debug)]
#[must_use]
pub enum Verdict {
    /// Read it, outside of the lock, and bring it to [`SlotPair::take`] with this.
    Read(Admission),
    /// Read it and forget it.
    Discard(Discarded),
    /// Leave it, read no more from this connection, and ask again when a [`Progress`] of this packet says so, when
    /// the generation changes, or when a round is done.
    Hold,
}

/// Why a payload does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discarded {
    /// It was sent under an earlier membership, and is sent again if it is needed.
    OldGeneration,
    /// The rank's contribution is there already.
    Counted,
    /// The result is there already; the rank seems not to have it, so offer it once more.
    Answered,
    /// Every rank holds the round's result.
    Done,
}

/// A promise to take a payload. Dropping it breaks the promise without harm.
#[derive(Debug)]
#[must_use]
pub struct Admission {
    packet: PacketId,
    sender: Sender,
    bytes: usize,
    room: Option<ParkRoom>,
}

impl Admission {
    /// Bytes to read.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// What a message led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Progress {
    /// What became of it.
    pub outcome: Outcome,
    /// Readers that hold a payload of this packet may ask again.
    pub wake: bool,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the sum, or steps out of its way; others are missing.
    Counted,
    /// It waits for its turn.
    Parked,
    /// The sum is complete: offer it to every live rank.
    Ready,
    /// Nobody contributes: there is no result.
    Unused,
    /// It does not count.
    Ignored(Discarded),
}

impl SlotPair {
    /// Judges a contribution of `bytes` payload bytes by its header.
    ///
    /// # Errors
    /// What the plan or the two rules do not allow, naming rank, tensor and round; the connection's end.
    ///
    /// # Panics
    /// If `job` has older members than an earlier call: a defect of the caller.
    pub fn verdict(
        &mut self,
        job: &JobView<'_>,
        packet: PacketId,
        sender: Sender,
        bytes: u64,
    ) -> Result<Verdict, QueueError> {
        let generation = job.members.generation();
        if sender.generation != generation {
            let old = sender.generation < generation;
            // The other way round the news has not reached this server: it will.
            return Ok(if old { Verdict::Discard(Discarded::OldGeneration) } else { Verdict::Hold });
        }
        job.plan.check(sender.rank, packet, bytes)?;
        let Some(slot) = self.open(job, packet, sender)? else {
            return Ok(Verdict::Discard(Discarded::Done));
        };
        if let Some(why) = refusal(slot, job, packet, sender)? {
            return Ok(Verdict::Discard(why));
        }
        let Some(filling) = slot.filling_mut() else { return Ok(Verdict::Discard(Discarded::Done)) };
        let bytes = usize::try_from(bytes).expect("a packet's size is 32 bits");
        let ticket = |room| Verdict::Read(Admission { packet, sender, bytes, room });
        if filling.is_turn_of(sender.rank, job.members) {
            return Ok(ticket(None));
        }
        if let Some(room) = job.park.reserve(bytes as u64) {
            return Ok(ticket(Some(room)));
        }
        filling.held = true;
        Ok(Verdict::Hold)
    }

    /// Adds a payload, or parks it. The buffer stays the caller's, but what it holds afterwards means nothing, and it may be
    /// empty: its memory may have become the sum's, or wait in the slot.
    ///
    /// # Errors
    /// As [`verdict`](Self::verdict), if the rank has contradicted itself in the meantime.
    ///
    /// # Panics
    /// If the payload has not [`Admission::bytes`], or as [`verdict`](Self::verdict).
    pub fn take(
        &mut self,
        job: &JobView<'_>,
        ticket: Admission,
        payload: &mut Buffer,
    ) -> Result<Progress, QueueError> {
        let Admission { packet, sender, bytes, room } = ticket;
        assert_eq!(payload.bytes().len(), bytes, "a payload is read to its end");
        let ignored = |why| Ok(Progress { outcome: Outcome::Ignored(why), wake: false });
        if sender.generation != job.members.generation() {
            return ignored(Discarded::OldGeneration);
        }
        let how = arithmetic(job, packet);
        let Some(slot) = self.open(job, packet, sender)? else { return ignored(Discarded::Done) };
        if let Some(why) = refusal(slot, job, packet, sender)? {
            return ignored(why);
        }
        let Some(filling) = slot.filling_mut() else { return ignored(Discarded::Done) };
        if !filling.is_turn_of(sender.rank, job.members) {
            filling.park(sender.rank, payload, room.expect("a turn, once come, does not go away"));
            return Ok(Progress { outcome: Outcome::Parked, wake: false });
        }
        // Its room is free again before the parked ones are drained.
        drop(room);
        let moved = slot.count(how, job.members, sender.rank, payload);
        Ok(after(slot, how, moved, false))
    }

    /// Notes that a rank does not push this packet's tensor in a round.
    ///
    /// To be called for every packet of every such tensor before the round's end is given to
    /// [`Rounds`](crate::Rounds). `promised`: that round's tensors are known already, and this one is among them;
    /// only a lost rank can have pushed it then, so its packet becomes zeros where its sum was not complete.
    ///
    /// # Errors
    /// As [`verdict`](Self::verdict).
    ///
    /// # Panics
    /// As [`verdict`](Self::verdict).
    pub fn skip(
        &mut self,
        job: &JobView<'_>,
        packet: PacketId,
        sender: Sender,
        promised: bool,
    ) -> Result<Progress, QueueError> {
        let ignored = |why| Ok(Progress { outcome: Outcome::Ignored(why), wake: false });
        if sender.generation != job.members.generation() {
            return ignored(Discarded::OldGeneration);
        }
        let Some((_, bytes)) = job.plan.range(packet) else {
            job.plan.check(sender.rank, packet, 0)?;
            return ignored(Discarded::Done);
        };
        job.plan.check(sender.rank, packet, u64::from(bytes))?;
        let how = arithmetic(job, packet);
        let Some(slot) = self.open(job, packet, sender)? else { return ignored(Discarded::Done) };
        let contradicts = match &slot.state {
            State::Empty | State::Ready | State::Unused => return ignored(Discarded::Answered),
            State::Filling(filling) if filling.is_skipped(sender.rank) => return ignored(Discarded::Counted),
            State::Filling(filling) => filling.has(sender.rank),
        };
        if contradicts {
            return Err(contradiction(job, packet, sender));
        }
        slot.skip(how, job.members, sender.rank);
        Ok(after(slot, how, true, promised))
    }

    /// Takes over a new membership: what was being summed is forgotten, since the ranks push it again; results stay.
    /// Returns how many unfinished sums were forgotten, 0 to 2.
    ///
    /// The other calls do this by themselves; a server calls it for every packet, to free memory and to count.
    ///
    /// # Panics
    /// As [`verdict`](Self::verdict).
    pub fn adopt(&mut self, members: &Members) -> u32 {
        let generation = members.generation();
        assert!(generation >= self.generation, "members are looked up under the packet's lock");
        if generation == self.generation {
            return 0;
        }
        self.generation = generation;
        self.slots.iter_mut().map(|slot| u32::from(slot.reset())).sum()
    }

    /// Forgets unfinished sums of rounds before `oldest`, which every rank holds, and what is parked for them. There
    /// can be any only after a server took the place of a lost one: it is sent what others have long got.
    pub fn forget_done(&mut self, oldest: Round) {
        for slot in self.slots.iter_mut().filter(|slot| slot.round < oldest) {
            slot.reset();
        }
    }

    /// The result of a round, from when it is ready until the round after the next begins.
    pub fn ready(&self, round: Round) -> Option<&Arc<Sum>> {
        let slot = &self.slots[parity(round)];
        slot.result().filter(|_| slot.round == round)
    }

    /// The live ranks whose part in a round under way is missing; nobody, if it has not begun or has ended.
    pub fn missing<'a>(&'a self, members: &'a Members, round: Round) -> impl Iterator<Item = Rank> + 'a {
        let slot = &self.slots[parity(round)];
        let filling =
            slot.filling().filter(|_| slot.round == round && self.generation == members.generation());
        filling.into_iter().flat_map(|filling| filling.missing(members))
    }

    /// The slot of the sender's round, which takes it if it is free; `None` if the round is over.
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
            // Both rules at once: nobody is in round r while a sum of r - 1 or r - 2 lacks anybody.
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

/// Why a contribution to an open slot is not wanted.
fn refusal(
    slot: &Slot,
    job: &JobView<'_>,
    packet: PacketId,
    sender: Sender,
) -> Result<Option<Discarded>, QueueError> {
    match &slot.state {
        State::Ready => Ok(Some(Discarded::Answered)),
        State::Filling(filling) if filling.has(sender.rank) => Ok(Some(Discarded::Counted)),
        State::Filling(filling) if !filling.is_skipped(sender.rank) => Ok(None),
        State::Empty => Ok(None),
        State::Filling(_) | State::Unused => Err(contradiction(job, packet, sender)),
    }
}

fn contradiction(job: &JobView<'_>, packet: PacketId, sender: Sender) -> QueueError {
    let tensor = job.plan.name(packet.tensor);
    QueueError::PushedAndSkipped { rank: sender.rank, tensor, round: sender.round }
}

/// What has become of a slot after a change.
fn after(slot: &mut Slot, how: Arithmetic, moved: bool, promised: bool) -> Progress {
    let wake = moved && slot.filling_mut().is_some_and(|filling| std::mem::take(&mut filling.held));
    slot.settle(how, promised);
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
