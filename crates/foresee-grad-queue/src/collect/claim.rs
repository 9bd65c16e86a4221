// SPDX-License-Identifier: Apache-2.0
//! A sum on its way into a rank's memory.
//!
//! Apart from the counting: readers take a packet in two steps, header and payload, without a lock between
//! them. A packet that is being read is marked, so no two readers write the same bytes.

use crate::{Collect, PacketId, QueueError, Round, ServerId, TensorId};

use super::round::Want;

/// What the header of a sum says, and which server's connection it came on.
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

/// What to do with a sum's payload that is still in its connection.
#[derive(Debug)]
#[must_use]
pub enum Arrival {
    /// Read it to where the claim says, then bring the claim to [`Collect::land`] or [`Collect::abandon`].
    Read(Claim),
    /// Read it and forget it.
    Discard(Unwanted),
    /// Leave it until this rank has heard of the new generation.
    Hold,
}

/// Why a sum is not wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwanted {
    /// It was sent under an earlier membership; results are offered again under the new one.
    OldGeneration,
    /// It has landed before, or another reader is at it.
    Repeated,
    /// Nobody needs anything of the round any more.
    Done,
}

/// A packet that is being read. Neither landed nor abandoned, it would be missing for ever.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Claim {
    header: SumHeader,
    offset: u64,
    nth: u32,
    want: Want,
}

impl Claim {
    /// Where the payload belongs in its tensor, in bytes on the wire; `None` if the bytes are there already and only
    /// their coming counts.
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

/// What a packet completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landed {
    /// The tensor's update is there, and wanted: wake whoever waits for it.
    pub tensor: bool,
    /// Everything of the round is.
    pub round: bool,
}

impl Collect {
    /// Judges a sum by its header.
    ///
    /// # Errors
    /// What the plan does not allow, [`QueueError::WrongServer`], or a sum that cannot be complete without this rank:
    /// [`QueueError::ServerAhead`], [`QueueError::UnexpectedSum`]. The connection's end.
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

    /// The claim's payload is where it belongs.
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

    /// The claim's payload did not come: the connection ended.
    #[expect(clippy::needless_pass_by_value, reason = "a claim is used up")]
    pub fn abandon(&mut self, claim: Claim) {
        let Claim { header: SumHeader { server, round, packet, .. }, nth, want, .. } = claim;
        self.release(server);
        if let Some(at) = self.place(round) {
            self.open[at].abandon(packet, want, server, nth);
        }
    }

    /// Whether a packet's sum need not be asked for again: it is there or being read, or nobody needs it.
    pub fn has_landed(&self, round: Round, packet: PacketId) -> bool {
        let known = self.plan.range(packet).is_some();
        round < self.first || known && self.place(round).is_some_and(|at| self.open[at].has(packet))
    }

    /// Whether a server that took the place of a lost one has yet to send a tensor of `round` once more.
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
