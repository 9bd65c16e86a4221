// SPDX-License-Identifier: Apache-2.0
//! Properties of every scheduler: against a naive one, over a virtual link, and in single cases.

mod cases;
mod flows;
mod link;
mod naive;
mod order;
mod window;

use std::num::NonZeroU32;

use foresee_units::Nanos;

use super::{Class, Connection, Flow, Grant, Offer, PacketStream, Rules, Schedule, Ticket, Window};
use crate::name::Round;

const START: Nanos = Nanos::ZERO;

/// No window: the order alone determines the result.
const OPEN: Rules = Rules { window: Window::None, ..Rules::new() };

fn schedule(rules: Rules, packet: u32, connections: u32) -> Schedule {
    let mut schedule = Schedule::new(rules, NonZeroU32::new(packet).unwrap());
    for connection in 0..connections {
        schedule.handle_open(Connection::new(connection)).unwrap();
    }
    schedule
}

fn stream(connection: u32, packets: u32, packet_bytes: u32) -> PacketStream {
    PacketStream::new(Connection::new(connection), packets, packet_bytes, packet_bytes)
}

fn offer(ticket: u64, flow: u32, class: u8, streams: &[PacketStream]) -> Offer<'_> {
    of_round(0, ticket, flow, class, streams)
}

fn of_round(round: u64, ticket: u64, flow: u32, class: u8, streams: &[PacketStream]) -> Offer<'_> {
    let (ticket, flow, class) = (Ticket::new(ticket), Flow::new(flow), Class::new(class));
    Offer { ticket, flow, round: Round(round), class, streams }
}

fn all(schedule: &mut Schedule) -> Vec<Grant> {
    std::iter::from_fn(|| schedule.poll_send(START)).collect()
}

/// (ticket, connection, packet) of all packets that can be granted.
fn rows(schedule: &mut Schedule) -> Vec<(u64, u32, u32)> {
    let row = |grant: Grant| (grant.ticket.get(), grant.connection.get(), grant.packet);
    all(schedule).into_iter().map(row).collect()
}
