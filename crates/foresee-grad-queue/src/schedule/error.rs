// SPDX-License-Identifier: Apache-2.0
//! Errors of a scheduler. A call that returns an error changes nothing.

use super::{Connection, Ticket};

/// An invalid report or offer. Each is a fault of the caller or, for acknowledgments, of the other end of the
/// connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// Two offers with the same number could not be told apart.
    #[error("{ticket} is offered while it is still being sent; take another number")]
    TicketInUse {
        /// The number.
        ticket: Ticket,
    },
    /// An offer without streams would never end.
    #[error("{ticket} has no streams; offer only what has bytes to send")]
    NoStreams {
        /// The offer.
        ticket: Ticket,
    },
    /// A stream without packets would never end.
    #[error("the stream of {ticket} over {connection} has no packets; leave it out")]
    EmptyStream {
        /// The offer.
        ticket: Ticket,
        /// The stream.
        connection: Connection,
    },
    /// Packet sizes are inconsistent.
    #[error(
        "the stream of {ticket} over {connection} ends with a packet of {last_bytes} bytes after packets of \
         {packet_bytes}; the last one must have 1 to {packet_bytes} bytes"
    )]
    PacketBytes {
        /// The offer.
        ticket: Ticket,
        /// The stream.
        connection: Connection,
        /// Bytes of a packet, as offered.
        packet_bytes: u32,
        /// Bytes of the last packet, as offered.
        last_bytes: u32,
    },
    /// Packet numbers have 32 bits.
    #[error(
        "the stream of {ticket} over {connection} has {packets} packets from number {first} on, beyond \
         number 4294967295; use larger packets"
    )]
    PacketNumber {
        /// The offer.
        ticket: Ticket,
        /// The stream.
        connection: Connection,
        /// Number of the first packet, as offered.
        first: u32,
        /// Number of packets, as offered.
        packets: u32,
    },
    /// Packets of two streams over one connection could not be told apart.
    #[error("{ticket} has two streams over {connection}; join them, or offer one under another number")]
    RepeatedStream {
        /// The offer.
        ticket: Ticket,
        /// The connection.
        connection: Connection,
    },
    /// Backlogs have 64 bits.
    #[error(
        "{ticket} brings {bytes} bytes to a backlog of {backlog}; together they exceed \
         18446744073709551615"
    )]
    TooManyBytes {
        /// The offer.
        ticket: Ticket,
        /// Its bytes.
        bytes: u128,
        /// Bytes that wait already.
        backlog: u64,
    },
    /// A connection is unknown before it opens and after it closes.
    #[error("{connection} is not open; report its opening first, and nothing after its end")]
    NotOpen {
        /// The connection.
        connection: Connection,
    },
    /// Two connections with the same number could not be told apart.
    #[error("{connection} is open already; report its end first, or take another number")]
    AlreadyOpen {
        /// The connection.
        connection: Connection,
    },
    /// The other end acknowledged more than was sent.
    #[error(
        "{connection} acknowledges {bytes} bytes where {unacked} are waited for; close it, its other end \
         does not update_window the protocol"
    )]
    AckedTooMuch {
        /// The connection.
        connection: Connection,
        /// Bytes acknowledged.
        bytes: u64,
        /// Bytes that were granted and not acknowledged.
        unacked: u64,
    },
}
