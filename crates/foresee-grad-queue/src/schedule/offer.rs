// SPDX-License-Identifier: Apache-2.0
//! Inputs and outputs of the scheduler.
//!
//! They contain neither payloads nor addresses: the caller maps packet numbers of a ticket to its data.

use std::fmt;

use foresee_units::Nanos;

use super::ScheduleError;
use crate::name::Round;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($plain:ty), $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($plain);

        impl $name {
            /// From a plain number.
            pub const fn new(value: $plain) -> Self {
                Self(value)
            }

            /// The plain number.
            pub const fn get(self) -> $plain {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
    };
}

number! {
    /// A connection of the interface, by a number of the caller that no other open connection has.
    Connection(u32), "connection"
}
number! {
    /// An offer, by a number of the caller. The number is in use from the offer until its last packet was
    /// granted or returned.
    Ticket(u64), "ticket"
}
number! {
    /// A job whose offers share the interface with those of other jobs, evenly by bytes.
    Flow(u32), "flow"
}
number! {
    /// Urgency of an offer inside a round of its flow: 0 goes first, 255 last.
    Class(u8), "class"
}

/// The packets of an offer that go over one connection. All have one size, except that the last may be shorter.
///
/// It takes 20 bytes for any number of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketStream {
    /// The connection.
    pub connection: Connection,
    /// Number of the first packet; 0 unless the stream continues a returned one ([`Unsent`]).
    pub first: u32,
    /// Number of packets, 1 or more; the last number, `first + packets - 1`, fits 32 bits.
    pub packets: u32,
    /// Bytes of every packet but the last, 1 or more.
    pub packet_bytes: u32,
    /// Bytes of the last packet, 1 to `packet_bytes`.
    pub last_bytes: u32,
}

impl PacketStream {
    /// A complete stream, whose packets are numbered from 0.
    pub const fn new(connection: Connection, packets: u32, packet_bytes: u32, last_bytes: u32) -> Self {
        Self { connection, first: 0, packets, packet_bytes, last_bytes }
    }

    /// The sum of all packets' bytes; 0 for a stream without packets.
    pub const fn bytes(&self) -> u64 {
        match self.packets {
            0 => 0,
            // (2^32 - 2) (2^32 - 1) + (2^32 - 1) < 2^64.
            packets => (packets as u64 - 1) * self.packet_bytes as u64 + self.last_bytes as u64,
        }
    }

    /// Bytes of the next packet.
    pub(super) const fn next_bytes(&self) -> u32 {
        if self.packets == 1 { self.last_bytes } else { self.packet_bytes }
    }

    /// Remove the next packet and return its number and bytes. The stream must have one, and may be empty
    /// afterwards.
    pub(super) const fn take(&mut self) -> (u32, u32) {
        let next = (self.first, self.next_bytes());
        self.first = self.first.wrapping_add(1);
        self.packets -= 1;
        next
    }

    /// The middle of the next packet as a fraction of all packets of the stream, in units of 2^-30. Streams of one
    /// offer that follow it advance in the same packet order everywhere. The stream must have a packet.
    pub(super) fn progress(&self) -> u32 {
        let (done, all) = (u64::from(self.first), u64::from(self.first) + u64::from(self.packets));
        // (2 x 2^32) x 2^29 < 2^64, and the middle lies before the end.
        u32::try_from(((2 * done + 1) << 29) / all).expect("less than 2^30")
    }

    pub(super) fn check(&self, ticket: Ticket) -> Result<(), ScheduleError> {
        let &Self { connection, first, packets, packet_bytes, last_bytes } = self;
        if packets == 0 {
            return Err(ScheduleError::EmptyStream { ticket, connection });
        }
        if last_bytes == 0 || last_bytes > packet_bytes {
            return Err(ScheduleError::PacketBytes { ticket, connection, packet_bytes, last_bytes });
        }
        if first.checked_add(packets - 1).is_none() {
            return Err(ScheduleError::PacketNumber { ticket, connection, first, packets });
        }
        Ok(())
    }
}

/// Data to send, over one or several connections.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// The caller's number.
    pub ticket: Ticket,
    /// The job that it belongs to.
    pub flow: Flow,
    /// The round; earlier rounds of a flow go first.
    pub round: Round,
    /// The priority inside its round.
    pub class: Class,
    /// One or more streams, each over another connection. They are copied, and their order has no meaning.
    pub streams: &'a [PacketStream],
}

/// A packet to write now, completely, before anything else goes over its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The offer.
    pub ticket: Ticket,
    /// The connection.
    pub connection: Connection,
    /// Its number in its stream, counted from the stream's `first`.
    pub packet: u32,
    /// Its bytes.
    pub bytes: u32,
    /// As offered.
    pub class: Class,
    /// As offered.
    pub flow: Flow,
    /// Time since the offer was made.
    pub waited: Nanos,
    /// Whether the offer has no more packets here: the ticket is free again.
    pub last: bool,
}

/// The packets of an offer that were not granted when its connection closed. The caller may offer the stream again
/// as it is, over another connection or over the same one once it is open again. It continues at the packet where
/// it stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsent {
    /// The offer.
    pub ticket: Ticket,
    /// The packets that were never granted.
    pub stream: PacketStream,
    /// Whether the offer has no more packets here: the ticket is free again.
    pub last: bool,
}
