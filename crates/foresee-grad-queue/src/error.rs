// SPDX-License-Identifier: Apache-2.0
//! Errors of plans, memberships and messages.
//!
//! Configuration errors are found before the first round. Protocol errors come from the network: the peer is
//! faulty or has another version, and its connection ends with the message.

use foresee_units::Rank;

use crate::pattern::{LENGTH_MAX, SERVERS_MAX};
use crate::plan::{DIMENSIONS_MAX, NAME_MAX, PACKET_BYTES_LIMIT, TENSORS_MAX};
use crate::{Difference, Round, ServerId};

/// Why an input was rejected. Messages name the rank, the tensor and the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// Packets are cut at multiples of 64 bytes.
    #[error(
        "a packet of {bytes} bytes is not possible; take a multiple of 64, from 64 to {PACKET_BYTES_LIMIT}"
    )]
    PacketBytes {
        /// The size as given.
        bytes: u32,
    },
    /// Tensors are counted in 20 bits.
    #[error(
        "a plan of {count} tensors is too large (at most {TENSORS_MAX}); synchronize fewer tensors at once"
    )]
    TooManyTensors {
        /// Tensors as given.
        count: usize,
    },
    /// Ranks match tensors by name.
    #[error("the name of tensor {index} has {bytes} bytes; names have 1 to {NAME_MAX}")]
    NameLength {
        /// The tensor's index.
        index: u32,
        /// Bytes of the name.
        bytes: usize,
    },
    /// Two tensors cannot share a name.
    #[error("tensor '{tensor}' is in the plan twice; give each tensor a name of its own")]
    NameTwice {
        /// The name.
        tensor: String,
    },
    /// Shape and strides belong together.
    #[error(
        "tensor '{tensor}' has {dimensions} dimensions and {strides} strides; give as many strides as dimensions, at \
         most {DIMENSIONS_MAX}"
    )]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// Entries of its shape.
        dimensions: usize,
        /// Entries of its strides.
        strides: usize,
    },
    /// Gradients are exchanged in memory order; holes and overlaps are not supported.
    #[error(
        "tensor '{tensor}' of shape {shape:?} and strides {strides:?} is not dense; make it contiguous before it is \
         synchronized"
    )]
    NotDense {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
        /// Its strides, in elements.
        strides: Vec<i64>,
    },
    /// Sizes and offsets have 64 bits, packet numbers of a tensor 32.
    #[error(
        "tensor '{tensor}' of shape {shape:?} is too large for packets of {packet_bytes} bytes; take larger packets"
    )]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
        /// The packet size.
        packet_bytes: u32,
    },
    /// A tensor shares the class of a tensor that has no class of its own.
    #[error(
        "tensor {index} shares the class of tensor {with}, which is not an earlier one with a class of its own"
    )]
    ClassOfNone {
        /// The tensor's place.
        index: usize,
        /// The place of the other.
        with: usize,
    },
    /// The bytes do not encode a plan.
    #[error("byte {at} of a plan: {problem}; the peer may be of another version")]
    PlanBytes {
        /// Offset of the fault.
        at: usize,
        /// The fault.
        problem: &'static str,
    },
    /// Two ranks train different models, or use different settings.
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    PlansDiffer(Difference),
    /// A pattern needs at least one server with a share above 0.
    #[error(
        "{servers} servers with shares that add up to {total} make no pattern; at most {SERVERS_MAX} servers, 1 to \
         {LENGTH_MAX} in all"
    )]
    Pattern {
        /// Servers as given.
        servers: usize,
        /// Sum of their shares.
        total: u64,
    },
    /// Contributors are counted in 16 bits.
    #[error("a world of {world} ranks is not possible; 1 to 65535 are")]
    World {
        /// Ranks as given.
        world: u32,
    },
    /// A membership is empty, or names ranks outside the world.
    #[error(
        "generation {generation} cannot have {ranks} ranks of a world of {world}; name 1 to {world} different ones"
    )]
    Members {
        /// The generation.
        generation: u32,
        /// Ranks as given, without unknown and repeated ones.
        ranks: u32,
        /// The world.
        world: u32,
    },
    /// A set of tensors of another plan.
    #[error(
        "a set of tensors has {bytes} bytes or bits beyond the plan's {tensors} tensors; the peer has another plan"
    )]
    TensorSet {
        /// Bytes as received.
        bytes: usize,
        /// Tensors of the plan.
        tensors: u32,
    },
    /// A tensor that the plan does not have.
    #[error("rank {rank} names tensor {tensor}, but the plan has {tensors}; it has another plan")]
    NoSuchTensor {
        /// The rank.
        rank: Rank,
        /// The tensor's number.
        tensor: u32,
        /// Tensors of the plan.
        tensors: u32,
    },
    /// A packet number beyond the end of its tensor.
    #[error("rank {rank} names packet {packet} of '{tensor}', which has {packets}; it has another plan")]
    NoSuchPacket {
        /// The rank.
        rank: Rank,
        /// The tensor.
        tensor: String,
        /// The packet as named.
        packet: u32,
        /// Packets of the tensor.
        packets: u32,
    },
    /// A length that the plan does not allow.
    #[error("packet {packet} of '{tensor}' with rank {rank} has {bytes} bytes, but {expected} in the plan")]
    PacketLength {
        /// The rank at the other or at this end.
        rank: Rank,
        /// The tensor.
        tensor: String,
        /// The packet.
        packet: u32,
        /// Bytes in the frame.
        bytes: u64,
        /// Bytes by the plan.
        expected: u64,
    },
    /// A packet was sent to a server that does not sum it.
    #[error(
        "packet {packet} of '{tensor}' with rank {rank} belongs to server {expected}, not to server {server}"
    )]
    WrongServer {
        /// The rank at the other or at this end.
        rank: Rank,
        /// The tensor.
        tensor: String,
        /// The packet.
        packet: u32,
        /// The server that it is at.
        server: ServerId,
        /// The server of the plan.
        expected: ServerId,
    },
    /// A rank that left, or never was a member.
    #[error("rank {rank} is not a member of generation {generation}; it must join a later generation")]
    NotAMember {
        /// The rank.
        rank: Rank,
        /// The generation.
        generation: u32,
    },
    /// No slot is free for the round: the rank went on without the others.
    #[error(
        "rank {rank} sends '{tensor}' of round {round} while round {held} of it is still being summed; a rank waits for \
         each tensor's last update before it pushes the next"
    )]
    SlotTaken {
        /// The rank.
        rank: Rank,
        /// The tensor.
        tensor: String,
        /// The round that it sends.
        round: Round,
        /// The round in the slot, or in the other one.
        held: Round,
    },
    /// A round that no rank can have reached.
    #[error("rank {rank} names round {round} while round {oldest} is open; it belongs to another run")]
    RoundAhead {
        /// The rank.
        rank: Rank,
        /// The round in the message.
        round: Round,
        /// The oldest open round.
        oldest: Round,
    },
    /// A rank pushed and skipped the same tensor.
    #[error("rank {rank} both pushes and skips '{tensor}' in round {round}")]
    PushedAndSkipped {
        /// The rank.
        rank: Rank,
        /// The tensor.
        tensor: String,
        /// The round.
        round: Round,
    },
    /// A rank ended a round before every rank had received the previous one.
    #[error("rank {rank} ends round {round} before it has received round {before}, which is still open")]
    EndedEarly {
        /// The rank.
        rank: Rank,
        /// The round that it ends.
        round: Round,
        /// The oldest round that is open.
        before: Round,
    },
    /// A rank confirmed a round that it has not ended.
    #[error("rank {rank} confirms round {round}, which it has not ended")]
    GotEarly {
        /// The rank.
        rank: Rank,
        /// The round.
        round: Round,
    },
    /// A server's message about a round that this rank has not reached.
    #[error("server {server} names round {round}, but rank {rank} is in round {current}")]
    ServerAhead {
        /// The server.
        server: ServerId,
        /// Its round.
        round: Round,
        /// This rank.
        rank: Rank,
        /// This rank's round.
        current: Round,
    },
    /// A sum that cannot be complete: this rank has neither pushed nor skipped the tensor.
    #[error(
        "server {server} sends '{tensor}' of round {round}, which rank {rank} has neither pushed nor skipped"
    )]
    UnexpectedSum {
        /// The server.
        server: ServerId,
        /// The tensor.
        tensor: String,
        /// The round.
        round: Round,
        /// This rank.
        rank: Rank,
    },
    /// Servers disagree on the tensors that a round used.
    #[error(
        "server {server} reports other used tensors for round {round} than the other servers; the ranks' views of the \
         round differ"
    )]
    UsedDiffers {
        /// The server.
        server: ServerId,
        /// The round.
        round: Round,
    },
}
