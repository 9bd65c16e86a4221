// SPDX-License-Identifier: Apache-2.0
//! What is handed to the scheduler, what it hands out, and what it hands back.
//!
//! Refuses payloads and addresses: whoever offers knows what packet 17 of a ticket is.

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
    /// A connection of the interface, by a number of the caller's that no other open connection has.
    Connection(u32), "connection"
}
number! {
    /// An offer, by a number of the caller's. It is taken from the offer until its last packet was granted,
    /// withdrawn or returned, and free again after that.
    Ticket(u64), "ticket"
}
number! {
    /// A job whose offers share the interface with those of others, evenly by bytes.
    Flow(u32), "flow"
}
number! {
    /// How urgent an offer is inside a round of its flow: 0 goes first, 255 last.
    Class(u8), "class"
}

/// What of an offer goes over one connection: packets of one size, of which the last may be shorter.
///
/// A description of 20 bytes whatever the number of packets: none of them is ever listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Where it goes.
    pub connection: Connection,
    /// Number of the first packet; 0 unless the lane continues one that came back ([`Unsent`]).
    pub first: u32,
    /// How many packets, 1 or more; the last number, `first + packets - 1`, fits 32 bits.
    pub packets: u32,
    /// Bytes of every packet but the last, 1 or more.
    pub packet_bytes: u32,
    /// Bytes of the last packet, 1 to `packet_bytes`.
    pub last_bytes: u32,
}

impl Lane {
    /// A whole lane: its packets are numbered from 0.
    pub const fn new(connection: Connection, packets: u32, packet_bytes: u32, last_bytes: u32) -> Self {
        Self { connection, first: 0, packets, packet_bytes, last_bytes }
    }

    /// All its bytes; 0 for a lane without packets.
    pub const fn bytes(&self) -> u64 {
        match self.packets {
            0 => 0,
            // (2^32 - 2) (2^32 - 1) + (2^32 - 1) < 2^64.
            packets => (packets as u64 - 1) * self.packet_bytes as u64 + self.last_bytes as u64,
        }
    }

    /// Bytes of the packet that goes next.
    pub(super) const fn next_bytes(&self) -> u32 {
        if self.packets == 1 { self.last_bytes } else { self.packet_bytes }
    }

    /// Takes the next packet off: its number and bytes. The lane has one, and may be empty afterwards.
    pub(super) const fn take(&mut self) -> (u32, u32) {
        let next = (self.first, self.next_bytes());
        self.first = self.first.wrapping_add(1);
        self.packets -= 1;
        next
    }

    /// The middle of the next packet, as a part of all there ever were, of 2^30: lanes of one offer that follow it have
    /// the same order of packets wherever they are sent. The lane has a packet.
    pub(super) fn progress(&self) -> u32 {
        let (done, all) = (u64::from(self.first), u64::from(self.first) + u64::from(self.packets));
        // (2 x 2^32) x 2^29 < 2^64, and the middle lies before the end.
        u32::try_from(((2 * done + 1) << 29) / all).expect("less than 2^30")
    }

    pub(super) fn check(&self, ticket: Ticket) -> Result<(), ScheduleError> {
        let &Self { connection, first, packets, packet_bytes, last_bytes } = self;
        if packets == 0 {
            return Err(ScheduleError::EmptyLane { ticket, connection });
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

/// Something to send, over one connection or spread over several.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// The caller's number for it.
    pub ticket: Ticket,
    /// Whose it is.
    pub flow: Flow,
    /// Of which round: of a flow, earlier rounds go first.
    pub round: Round,
    /// How urgent it is inside its round.
    pub class: Class,
    /// Its parts, 1 or more, each over another connection. Copied; no order among them is promised.
    pub lanes: &'a [Lane],
}

/// A packet to be written now, completely, before anything else goes over its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Of which offer.
    pub ticket: Ticket,
    /// Over which connection.
    pub connection: Connection,
    /// Its number in its lane, counted from the lane's `first`.
    pub packet: u32,
    /// Its bytes.
    pub bytes: u32,
    /// As offered.
    pub class: Class,
    /// As offered.
    pub flow: Flow,
    /// How long ago its offer was made.
    pub waited: Nanos,
    /// Whether nothing of its offer is left here: the ticket is free again.
    pub last: bool,
}

/// What of an offer was not granted when its connection closed. It is the caller's again: the lane may be
/// offered anew as it stands, over another connection or the same one once that is open again, and goes on
/// with the packet at which it stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsent {
    /// Of which offer.
    pub ticket: Ticket,
    /// As offered.
    pub flow: Flow,
    /// As offered.
    pub class: Class,
    /// The packets that were never granted.
    pub lane: Lane,
    /// Whether nothing of its offer is left here: the ticket is free again.
    pub last: bool,
}
