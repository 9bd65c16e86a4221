// SPDX-License-Identifier: Apache-2.0
//! One accumulator: the contributions to one packet in one round, added in rank order.
//!
//! [`SlotPair`](crate::SlotPair) checks round and generation before it calls a slot, which only decides on the
//! turn of a rank. `next` is the live rank whose contribution is missing; the first two may come in either order,
//! because x + y == y + x.
//!
//! If elements are summed in their own width, the first contribution is not copied: slot and reader swap memory.
//! Of four ranks' packets three are added and none is written twice.
//!
//! A rank without a contribution is skipped and not added as 0.0, which would turn -0.0 into 0.0.

use std::sync::Arc;

use foresee_units::Rank;

use crate::buffer::Buffer;
use crate::early_buffer::Reservation;
use crate::members::RankSet;
use crate::{Dtype, Members, Round, sum};

/// A result, in the dtype of the wire; all its writers share the memory.
#[derive(Debug)]
pub struct Sum {
    buffer: Buffer,
    len: usize,
    contributors: u16,
}

impl Sum {
    /// The result's bytes on the wire; they begin on a cache line.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer.bytes()[..self.len]
    }

    /// The number of ranks that contributed: 1 to 65535. It is 0 only for zeros that replace a lost rank's
    /// packet, see [`SlotPair::skip`](crate::SlotPair::skip).
    pub fn contributors(&self) -> u16 {
        self.contributors
    }
}

/// How the elements of a packet are summed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arithmetic {
    pub(crate) dtype: Dtype,
    /// The divisor of the sum.
    pub(crate) divisor: u32,
    /// Bytes of the packet on the wire.
    pub(crate) bytes: usize,
}

/// The slot of the even or of the odd rounds.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) round: Round,
    pub(crate) state: State,
    /// The accumulator, then the result; reused in later rounds. It is not shared while it is being filled.
    memory: Option<Arc<Sum>>,
}

#[derive(Debug, Default)]
pub(crate) enum State {
    /// The round is unknown.
    #[default]
    Empty,
    /// A rank has contributed or skipped.
    Filling(Filling),
    /// The result is complete, and available for retransmission until the round after the next takes the slot.
    Ready,
    /// Every live rank has skipped.
    Unused,
}

/// State of an unfinished round.
#[derive(Debug)]
pub(crate) struct Filling {
    /// The first live rank, in rank order, that is neither in the sum nor skipped; `None` past the last.
    next: Option<Rank>,
    counted: RankSet,
    skipped: RankSet,
    /// Contributions before their turn, by rank, ascending; they are not in the sum.
    early: Vec<EarlyPayload>,
    contributors: u32,
    /// Bytes of the result, if the last contribution was added and divided in one pass.
    finished: Option<usize>,
    /// Whether a reader holds a payload since `next` last moved.
    pub(crate) has_held_reader: bool,
}

#[derive(Debug)]
struct EarlyPayload {
    rank: Rank,
    payload: Buffer,
    /// Its reservation, released when the payload is dropped.
    _reservation: Reservation,
}

impl Filling {
    fn new(members: &Members) -> Self {
        Self {
            next: members.first(),
            counted: RankSet::with_capacity(members.world()),
            skipped: RankSet::with_capacity(members.world()),
            early: Vec::new(),
            contributors: 0,
            finished: None,
            has_held_reader: false,
        }
    }

    /// Whether any rank has contributed.
    pub(crate) fn has_begun(&self) -> bool {
        self.contributors > 0 || !self.early.is_empty()
    }

    /// Whether the rank's contribution is in the sum, or buffered.
    pub(crate) fn has(&self, rank: Rank) -> bool {
        self.counted.contains(rank) || self.early.iter().any(|early| early.rank == rank)
    }

    pub(crate) fn is_skipped(&self, rank: Rank) -> bool {
        self.skipped.contains(rank)
    }

    /// Whether the rank's contribution can be added now. It stays true until the contribution is counted, because
    /// other ranks only bring its turn nearer. Therefore a payload may be read outside of any lock.
    pub(crate) fn is_turn_of(&self, rank: Rank, members: &Members) -> bool {
        let Some(next) = self.next else { return false };
        rank == next || self.contributors == 0 && self.second(next, members) == Some(rank)
    }

    /// The next rank after `next` that does not skip.
    fn second(&self, next: Rank, members: &Members) -> Option<Rank> {
        let mut second = members.after(next);
        while second.is_some_and(|rank| self.skipped.contains(rank)) {
            second = second.and_then(|rank| members.after(rank));
        }
        second
    }

    /// Whether no contribution follows that of `rank`, which is `next`.
    fn ends_with(&self, rank: Rank, members: &Members) -> bool {
        let is_decided = |rank: &Rank| self.counted.contains(*rank) || self.skipped.contains(*rank);
        let mut after = members.after(rank);
        while let Some(other) = after.filter(is_decided) {
            after = members.after(other);
        }
        after.is_none()
    }

    /// Buffer the payload until its turn, in no more memory than its reservation.
    pub(crate) fn buffer_early(&mut self, rank: Rank, payload: &mut Buffer, reservation: Reservation) {
        let at = self.early.partition_point(|early| early.rank < rank);
        self.early
            .insert(at, EarlyPayload { rank, payload: payload.take_exact(), _reservation: reservation });
    }

    /// Live ranks that have neither contributed nor skipped.
    pub(crate) fn missing<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = Rank> + 'a {
        members.iter().filter(|rank| !self.has(*rank) && !self.skipped.contains(*rank))
    }
}

impl Slot {
    /// Begin a round, and reuse the slot's memory.
    pub(crate) fn begin(&mut self, round: Round, members: &Members) {
        self.round = round;
        self.state = State::Filling(Filling::new(members));
    }

    /// Drop the contributions of an unfinished sum; return whether there were any.
    pub(crate) fn reset(&mut self) -> bool {
        let State::Filling(filling) = &self.state else { return false };
        let had = filling.has_begun();
        self.state = State::Empty;
        had
    }

    pub(crate) fn filling(&self) -> Option<&Filling> {
        if let State::Filling(filling) = &self.state { Some(filling) } else { None }
    }

    pub(crate) fn filling_mut(&mut self) -> Option<&mut Filling> {
        if let State::Filling(filling) = &mut self.state { Some(filling) } else { None }
    }

    pub(crate) fn result(&self) -> Option<&Arc<Sum>> {
        self.memory.as_ref().filter(|_| matches!(self.state, State::Ready))
    }

    /// Add a contribution whose turn it is, then the buffered ones that follow. Returns whether `next` moved. The
    /// content of the payload's buffer is unspecified afterwards.
    pub(crate) fn count(
        &mut self,
        arithmetic: Arithmetic,
        members: &Members,
        rank: Rank,
        payload: &mut Buffer,
    ) -> bool {
        let State::Filling(filling) = &mut self.state else { return false };
        let before = filling.next;
        accumulate(&mut self.memory, arithmetic, members, filling, rank, payload);
        Self::advance(&mut self.memory, arithmetic, members, filling);
        before != filling.next
    }

    /// Skip a rank that contributes nothing, then add the buffered contributions that follow.
    pub(crate) fn skip(&mut self, arithmetic: Arithmetic, members: &Members, rank: Rank) {
        let State::Filling(filling) = &mut self.state else { return };
        filling.skipped.insert(rank);
        Self::advance(&mut self.memory, arithmetic, members, filling);
    }

    /// End the round if every live rank has contributed or skipped; `promised` ends it with zeros if none has
    /// contributed.
    pub(crate) fn settle(&mut self, arithmetic: Arithmetic, promised: bool) {
        let State::Filling(filling) = &self.state else { return };
        if filling.next.is_some() {
            return;
        }
        let (contributors, finished) = (filling.contributors, filling.finished);
        debug_assert!(filling.early.is_empty(), "every early contribution had its turn");
        self.state = if contributors > 0 || promised { State::Ready } else { State::Unused };
        if let State::Ready = self.state {
            let memory = exclusive(&mut self.memory, arithmetic);
            if let Some(len) = finished {
                memory.len = len;
            } else if contributors > 0 {
                memory.len = sum::finish(
                    arithmetic.dtype,
                    memory.buffer.bytes_mut(),
                    contributors,
                    arithmetic.divisor,
                );
            } else {
                memory.len = arithmetic.bytes;
                memory.buffer.bytes_mut().fill(0);
            }
            memory.contributors = u16::try_from(contributors).expect("a world has at most 65535 ranks");
        }
    }

    fn advance(
        memory: &mut Option<Arc<Sum>>,
        arithmetic: Arithmetic,
        members: &Members,
        filling: &mut Filling,
    ) {
        loop {
            while let Some(next) = filling.next
                && (filling.counted.contains(next) || filling.skipped.contains(next))
            {
                filling.next = members.after(next);
            }
            let Some(at) = filling.early.iter().position(|early| filling.is_turn_of(early.rank, members))
            else {
                return;
            };
            let mut early = filling.early.remove(at);
            accumulate(memory, arithmetic, members, filling, early.rank, &mut early.payload);
        }
    }
}

/// The slot's memory, unshared. If a writer still holds the result of two rounds ago, new memory is allocated.
fn exclusive(memory: &mut Option<Arc<Sum>>, arithmetic: Arithmetic) -> &mut Sum {
    let shared = memory.as_mut().is_none_or(|memory| Arc::get_mut(memory).is_none());
    if shared {
        *memory = None;
    }
    let fresh = || {
        let buffer = Buffer::zeroed(sum::accumulator_len(arithmetic.dtype, arithmetic.bytes));
        Arc::new(Sum { buffer, len: 0, contributors: 0 })
    };
    Arc::get_mut(memory.get_or_insert_with(fresh)).expect("it has no second owner")
}

fn accumulate(
    memory: &mut Option<Arc<Sum>>,
    arithmetic: Arithmetic,
    members: &Members,
    filling: &mut Filling,
    rank: Rank,
    payload: &mut Buffer,
) {
    debug_assert!(!filling.counted.contains(rank), "each rank is counted once");
    let acc = &mut exclusive(memory, arithmetic).buffer;
    if filling.contributors == 0 {
        // If elements are summed in their own width, the first contribution becomes the accumulator in place.
        let as_wide = sum::accumulator_bytes(arithmetic.dtype) == arithmetic.dtype.bytes();
        if !as_wide || !acc.swap_memory(payload) {
            sum::start(arithmetic.dtype, acc.bytes_mut(), payload.bytes());
        }
    } else if filling.ends_with(rank, members) {
        filling.finished =
            Some(sum::add_last(arithmetic.dtype, acc.bytes_mut(), payload.bytes(), arithmetic.divisor));
    } else {
        sum::add(arithmetic.dtype, acc.bytes_mut(), payload.bytes());
    }
    filling.counted.insert(rank);
    filling.contributors += 1;
}
