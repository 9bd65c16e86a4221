// SPDX-License-Identifier: Apache-2.0
//! Receipt of one sum by a rank.
//!
//! A reader takes a packet in two steps, header and payload, and holds no lock between them. A packet that is
//! being read is marked, so no two readers write the same bytes.

use crate::{Collect, PacketId, QueueError, Round, ServerId, TensorId};

use super::round::Want;

/// The header of a sum, and the server whose connection it came on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumHeader {
    /// The server that the connection is bound to.
    pub server: ServerId,
    /// The generation in the frame.
    pub generation: u32,
    /// The round in the frame.
    pub round: Round,
    /// The packet.
    pub packet: PacketId,
    /// Bytes of the payload.
    pub bytes: u64,
}

/// What a reader does with a payload that is still in its connection.
#[derive(Debug)]
#[must_use]
pub enum Arrival {
    /// Read it to the offset in the claim, then pass the claim to [`Collect::land`] or [`Collect::abandon`].
    Read(Claim),
    /// Read and discard it.
    Discard(Unwanted),
    /// Leave it in the connection until this rank knows the new generation.
    Hold,
}

/// Why a sum is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwanted {
    /// It was sent under an earlier membership; results are sent again under the new one.
    OldGeneration,
    /// It was received before, or another reader has it.
    Repeated,
    /// Every rank has all sums of the round.
    Done,
}

/// A packet that is being read. A claim must be landed or abandoned; otherwise the packet stays missing forever.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Claim {
    header: SumHeader,
    offset: u64,
    nth: u32,
    want: Want,
}

impl Claim {
    /// Byte offset of the payload in the tensor's wire form; `None` if the bytes are present already and only the
    /// receipt counts.
    pub fn offset(&self) -> Option<u64> {
        (self.want == Want::Bytes).then_some(self.offset)
    }

    /// The packet.
    pub fn packet(&self) -> PacketId {
        self.header.packet
    }

    /// The round.
    pub fn round(&self) -> Round {
        self.header.round
    }
}

/// What the receipt of a packet completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landed {
    /// The tensor's update is complete and wanted: wake its waiters.
    pub tensor: bool,
    /// The round is complete.
    pub round: bool,
}

impl Collect {
    /// Decide what to do with a sum from its header.
    ///
    /// # Errors
    /// A header that the plan does not allow, [`QueueError::WrongServer`], or a sum that cannot be complete
    /// without this rank: [`QueueError::ServerAhead`], [`QueueError::UnexpectedSum`]. The connection has to be
    /// closed.
    pub fn arrive(&mut self, header: SumHeader) -> Result<Arrival, QueueError> {
        let SumHeader { server, generation, round, packet, bytes } = header;
        let (rank, current) = (self.rank, self.current());
        if generation != self.generation {
            let old = generation < self.generation;
            return Ok(if old { Arrival::Discard(Unwanted::OldGeneration) } else { Arrival::Hold });
        }
        self.plan.check(rank, packet, bytes)?;
        let name = || self.plan.name(packet.tensor);
        let (Some((expected, nth)), Some((offset, _))) = (self.plan.server(packet), self.plan.range(packet))
        else {
            return Ok(Arrival::Discard(Unwanted::Done));
        };
        if expected != server {
            return Err(QueueError::WrongServer {
                rank,
                tensor: name(),
                packet: packet.packet,
                server,
                expected,
            });
        }
        if round > current {
            return Err(QueueError::ServerAhead { server, round, rank, current });
        }
        let Some(at) = self.place(round).filter(|_| round >= self.done) else {
            return Ok(Arrival::Discard(Unwanted::Done));
        };
        if !self.open[at].has_ended() && !self.open[at].has_pushed(packet.tensor) {
            return Err(QueueError::UnexpectedSum { server, tensor: name(), round, rank });
        }
        let packets = self.plan.packets(packet.tensor).unwrap_or(0);
        let want = self.open[at].claim(packet, packets, server, nth);
        if want == Want::Nothing {
            return Ok(Arrival::Discard(Unwanted::Repeated));
        }
        if let Some(talk) = self.talk(server) {
            talk.claims += 1;
        }
        Ok(Arrival::Read(Claim { header, offset, nth, want }))
    }

    /// Count the claim's payload as received.
    #[expect(clippy::needless_pass_by_value, reason = "a claim is used up")]
    pub fn land(&mut self, claim: Claim) -> Landed {
        let Claim { header: SumHeader { server, round, packet, .. }, nth, want, .. } = claim;
        self.release(server);
        let Some(at) = self.place(round) else { return Landed { tensor: false, round: false } };
        let open = &mut self.open[at];
        open.land(packet, want, server, nth);
        let fresh = want == Want::Bytes;
        Landed { tensor: fresh && open.is_known(packet.tensor), round: fresh && open.has_landed() }
    }

    /// Release the claim: the connection ended before the payload was complete.
    #[expect(clippy::needless_pass_by_value, reason = "a claim is used up")]
    pub fn abandon(&mut self, claim: Claim) {
        let Claim { header: SumHeader { server, round, packet, .. }, nth, want, .. } = claim;
        self.release(server);
        if let Some(at) = self.place(round) {
            self.open[at].abandon(packet, want, server, nth);
        }
    }

    /// Whether a packet's sum need not be requested again: it was received, is being read, or its round is done.
    pub fn has_landed(&self, round: Round, packet: PacketId) -> bool {
        let known = self.plan.range(packet).is_some();
        round < self.first || known && self.place(round).is_some_and(|at| self.open[at].has(packet))
    }

    /// Whether a replacement server has yet to repeat a tensor of `round`.
    pub fn is_asked_again(&self, server: ServerId, tensor: TensorId, round: Round) -> bool {
        let known = tensor.0 < self.plan.tensors();
        known && self.place(round).is_some_and(|at| self.open[at].is_asked_again(tensor, server))
    }

    fn release(&mut self, server: ServerId) {
        if let Some(talk) = self.talk(server) {
            talk.claims -= 1;
        }
    }
}
