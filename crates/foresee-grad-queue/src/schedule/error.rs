// SPDX-License-Identifier: Apache-2.0
//! What a scheduler refuses. After an error it is as it was before the call.

use super::{Connection, Ticket};

/// A fact or an offer that cannot be true. Each is a fault of the caller or, for acknowledgements, of the
/// other end of the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// Two offers under one number could not be told apart.
    #[error("{ticket} is offered while it is still being sent; withdraw it first, or take another number")]
    TicketInUse {
        /// The number.
        ticket: Ticket,
    },
    /// Nothing of it is here: never offered, or all of it granted, withdrawn or returned.
    #[error("{ticket} has nothing left to withdraw; it was never offered or has ended")]
    UnknownTicket {
        /// The number.
        ticket: Ticket,
    },
    /// An offer that would never end.
    #[error("{ticket} has no lanes; offer only what has bytes to send")]
    NoLanes {
        /// The offer.
        ticket: Ticket,
    },
    /// A lane that would never end.
    #[error("the lane of {ticket} over {connection} has no packets; leave it out")]
    EmptyLane {
        /// The offer.
        ticket: Ticket,
        /// The lane.
        connection: Connection,
    },
    /// Sizes that do not fit each other.
    #[error(
        "the lane of {ticket} over {connection} ends with a packet of {last_bytes} bytes after packets of \
         {packet_bytes}; the last one must have 1 to {packet_bytes} bytes"
    )]
    PacketBytes {
        /// The offer.
        ticket: Ticket,
        /// The lane.
        connection: Connection,
        /// Bytes of a packet, as offered.
        packet_bytes: u32,
        /// Bytes of the last packet, as offered.
        last_bytes: u32,
    },
    /// Packets are numbered in 32 bits.
    #[error(
        "the lane of {ticket} over {connection} has {packets} packets from number {first} on, beyond \
         number 4294967295; use larger packets"
    )]
    PacketNumber {
        /// The offer.
        ticket: Ticket,
        /// The lane.
        connection: Connection,
        /// Number of the first packet, as offered.
        first: u32,
        /// How many, as offered.
        packets: u32,
    },
    /// Packets of two lanes could not be told apart.
    #[error("{ticket} has two lanes over {connection}; join them, or offer one under another number")]
    LaneTwice {
        /// The offer.
        ticket: Ticket,
        /// The connection.
        connection: Connection,
    },
    /// Backlogs are counted in 64 bits.
    #[error(
        "{ticket} brings {bytes} bytes to a backlog of {backlog}; together they exceed \
         18446744073709551615"
    )]
    TooManyBytes {
        /// The offer.
        ticket: Ticket,
        /// Its bytes.
        bytes: u128,
        /// What waits already.
        backlog: u64,
    },
    /// Nothing is known of a connection before it opens, nor after it closed.
    #[error("{connection} is not open; report its opening first, and nothing after its end")]
    NotOpen {
        /// The connection.
        connection: Connection,
    },
    /// Two connections under one number could not be told apart.
    #[error("{connection} is open already; report its end first, or take another number")]
    AlreadyOpen {
        /// The connection.
        connection: Connection,
    },
    /// The other end acknowledges what was never sent.
    #[error(
        "{connection} acknowledges {bytes} bytes where {unacked} are waited for; close it, its other end \
         does not follow the protocol"
    )]
    AckedTooMuch {
        /// The connection.
        connection: Connection,
        /// Bytes, as acknowledged.
        bytes: u64,
        /// Bytes that were granted and not acknowledged.
        unacked: u64,
    },
}
