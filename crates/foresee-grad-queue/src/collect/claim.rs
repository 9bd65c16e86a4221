// SPDX-License-Identifier: Apache-2.0
//! Receipt of one sum by a rank.
//!
//! A reader takes a packet in two steps, header and payload, and holds no lock between them. A packet that is
//! being read is marked, so no two readers write the same bytes.

use crate::{Collector, DiscardReason, PacketId, QueueError, Round, ServerId, TensorId};

use super::round::{Need, OpenRound};

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
    /// Read it to the offset in the claim, then pass the claim to [`Collector::receive`] or [`Collector::abandon`].
    Read(Claim),
    /// Read and discard it.
    Discard(DiscardReason),
    /// Leave it in the connection until this rank knows the new generation.
    Hold,
}

/// A packet that is being read. It must be received or abandoned; otherwise the packet stays missing.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Claim {
    header: SumHeader,
    offset: u64,
    nth: u32,
    need: Need,
}

impl Claim {
    /// Byte offset of the payload in the tensor's wire form; `None` if the bytes are present already and only the
    /// receipt counts.
    pub fn offset(&self) -> Option<u64> {
        (self.need == Need::Bytes).then_some(self.offset)
    }
}

/// What the receipt of a packet completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The tensor's update is complete and wanted: wake its waiters.
    pub tensor: bool,
    /// The round is complete.
    pub round: bool,
}

impl Collector {
    /// Decide what to do with a sum from its header.
    ///
    /// # Errors
    /// A header that the plan does not allow, [`QueueError::WrongServer`], or a sum that cannot be complete
    /// without this rank: [`QueueError::ServerAhead`], [`QueueError::UnexpectedSum`]. The connection has to be
    /// closed.
    pub fn admit(&mut self, header: SumHeader) -> Result<Arrival, QueueError> {
        let SumHeader { server, generation, round, packet, bytes } = header;
        let (rank, current) = (self.rank, self.current());
        if generation != self.generation {
            let old = generation < self.generation;
            return Ok(if old { Arrival::Discard(DiscardReason::OldGeneration) } else { Arrival::Hold });
        }
        let offset = self.plan.check(rank, packet, bytes)?;
        let nth = self.plan.nth_at(rank, packet, server)?;
        if round > current {
            return Err(QueueError::ServerAhead { server, round, rank, current });
        }
        let Some(open) = self.open(round).filter(|_| round >= self.done) else {
            return Ok(Arrival::Discard(DiscardReason::Done));
        };
        if !open.has_ended && !open.pushed.contains(packet.tensor) {
            return Err(QueueError::UnexpectedSum {
                server,
                tensor: self.plan.name(packet.tensor),
                round,
                rank,
            });
        }
        let packets = self.plan.packets(packet.tensor).unwrap_or(0);
        let claim = |open: &mut OpenRound| open.claim(packet, packets, server, nth);
        let need = self.open_mut(round).map_or(Need::Nothing, claim);
        if need == Need::Nothing {
            return Ok(Arrival::Discard(DiscardReason::Repeated));
        }
        if let Some(progress) = self.progress(server) {
            progress.claims += 1;
        }
        Ok(Arrival::Read(Claim { header, offset, nth, need }))
    }

    /// Count the claim's payload as received.
    #[expect(clippy::needless_pass_by_value, reason = "a claim is used up")]
    pub fn receive(&mut self, claim: Claim) -> Completion {
        let Claim { header: SumHeader { server, round, packet, .. }, nth, need, .. } = claim;
        self.release(server);
        let Some(open) = self.open_mut(round) else { return Completion { tensor: false, round: false } };
        open.receive(packet, need, server, nth);
        let fresh = need == Need::Bytes;
        Completion { tensor: fresh && open.is_known(packet.tensor), round: fresh && open.is_received() }
    }

    /// Release the claim: the connection ended before the payload was complete.
    #[expect(clippy::needless_pass_by_value, reason = "a claim is used up")]
    pub fn abandon(&mut self, claim: Claim) {
        let Claim { header: SumHeader { server, round, packet, .. }, nth, need, .. } = claim;
        self.release(server);
        if let Some(open) = self.open_mut(round) {
            open.abandon(packet, need, server, nth);
        }
    }

    /// Whether a replacement server has yet to repeat a tensor of `round`.
    pub fn has_repeat(&self, server: ServerId, tensor: TensorId, round: Round) -> bool {
        let known = tensor.0 < self.plan.tensors();
        known && self.open(round).is_some_and(|open| open.has_repeat(tensor, server))
    }

    fn release(&mut self, server: ServerId) {
        if let Some(progress) = self.progress(server) {
            progress.claims -= 1;
        }
    }
}
