// SPDX-License-Identifier: Apache-2.0
//! What holds of every scheduler: against naive books, over a virtual link, and case by case.

mod books;
mod cases;
mod link;

use std::num::NonZeroU32;

use foresee_units::Nanos;

use super::{Class, Connection, Flow, Lane, Offer, Rules, Schedule, Ticket};
use crate::name::Round;

const START: Nanos = Nanos::ZERO;

fn schedule(rules: Rules, packet: u32, connections: u32) -> Schedule {
    let mut schedule = Schedule::new(rules, NonZeroU32::new(packet).unwrap());
    for connection in 0..connections {
        schedule.handle_open(Connection::new(connection)).unwrap();
    }
    schedule
}

fn lane(connection: u32, packets: u32, packet_bytes: u32) -> Lane {
    Lane::new(Connection::new(connection), packets, packet_bytes, packet_bytes)
}

fn offer(ticket: u64, flow: u32, class: u8, lanes: &[Lane]) -> Offer<'_> {
    of_round(0, ticket, flow, class, lanes)
}

fn of_round(round: u64, ticket: u64, flow: u32, class: u8, lanes: &[Lane]) -> Offer<'_> {
    let (ticket, flow, class) = (Ticket::new(ticket), Flow::new(flow), Class::new(class));
    Offer { ticket, flow, round: Round(round), class, lanes }
}
