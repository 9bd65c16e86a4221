// SPDX-License-Identifier: Apache-2.0
//! Tickets of operations: all tiers share one completion queue, and the top bits of a ticket have its kind.

use foresee_data_tier::Ticket;

/// The kind of operation of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketOwner {
    DiskRead,
    OriginRead,
    DiskWrite,
    /// Removal of a sample, whose end has no effect.
    Removal,
    /// Read of the disk for another node.
    PeerRead,
}

const OWNER_SHIFT: u32 = 61;
const NUMBER: u64 = (1 << OWNER_SHIFT) - 1;

impl TicketOwner {
    /// The ticket of operation `number`.
    pub(crate) const fn ticket(self, number: u64) -> Ticket {
        Ticket((self as u64) << OWNER_SHIFT | (number & NUMBER))
    }

    /// The owner of a ticket, and the number of its operation.
    pub(crate) const fn of(ticket: Ticket) -> (Self, u64) {
        let owner = match ticket.0 >> OWNER_SHIFT {
            0 => Self::DiskRead,
            1 => Self::OriginRead,
            2 => Self::DiskWrite,
            4 => Self::PeerRead,
            _ => Self::Removal,
        };
        (owner, ticket.0 & NUMBER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_names_its_owner() {
        use TicketOwner::{DiskRead, DiskWrite, OriginRead, PeerRead, Removal};
        for owner in [DiskRead, OriginRead, DiskWrite, Removal, PeerRead] {
            assert_eq!(TicketOwner::of(owner.ticket(77)), (owner, 77));
        }
    }
}
