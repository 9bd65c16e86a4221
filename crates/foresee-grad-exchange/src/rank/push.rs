// SPDX-License-Identifier: Apache-2.0
//! A gradient on its way: whose memory it is, and which bytes of it a packet has.
//!
//! Refuses to copy, but for gradients that travel in fewer bits than they have: those are rounded packet by packet,
//! when each is about to be written.

use std::any::Any;
use std::sync::Arc;

use foresee_grad_queue::{Class, Connection, Lane, PacketId, Plan, Round, ServerId, TensorId, sum};
use foresee_wire::{Header, Kind};

use crate::interface::Parcel;
use crate::timeline::{EventKind, Timeline};

/// Memory of a gradient, handed over until the exchange lets go of it.
///
/// `owner` keeps the memory alive and unchanged; it is dropped by any thread.
pub struct Gradient {
    pointer: *const u8,
    len: usize,
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the memory is only read, and stays as it is for as long as `owner` lives (the promise of `new`).
unsafe impl Send for Gradient {}
// SAFETY: as above.
unsafe impl Sync for Gradient {}

impl Gradient {
    /// `len` bytes from `pointer` on.
    ///
    /// # Safety
    /// They are initialized, and neither freed nor written to while `owner` lives.
    pub unsafe fn new(pointer: *const u8, len: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self { pointer, len, _owner: owner }
    }

    /// Of bytes that it owns.
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes: Arc<[u8]> = bytes.into();
        // SAFETY: the owner is the bytes, and nobody can write to them.
        unsafe { Self::new(bytes.as_ptr(), bytes.len(), Box::new(bytes)) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the promise of `new`.
        unsafe { std::slice::from_raw_parts(self.pointer, self.len) }
    }
}

impl std::fmt::Debug for Gradient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gradient").field("bytes", &self.len).finish_non_exhaustive()
    }
}

/// A gradient of one round, offered to an interface.
#[derive(Debug)]
pub(super) struct Push {
    pub(super) plan: Arc<Plan>,
    pub(super) tensor: TensorId,
    pub(super) round: Round,
    pub(super) generation: u32,
    pub(super) gradient: Gradient,
    pub(super) timeline: Timeline,
}

/// What of it goes through one interface.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) push: Arc<Push>,
    /// Which server each of the interface's connections leads to.
    pub(super) servers: Arc<[(Connection, ServerId)]>,
}

impl Push {
    pub(super) fn class(&self) -> Class {
        Class::new(self.plan.tensor(self.tensor).map_or(u8::MAX, |spec| spec.class))
    }
}

impl Part {
    /// What of it goes over each connection; none for a tensor without elements.
    pub(super) fn lanes(&self) -> Vec<Lane> {
        let Push { plan, tensor, .. } = &*self.push;
        let packets = plan.packets(*tensor).unwrap_or(0);
        let whole = plan.config().packet_bytes;
        let lane = |&(connection, server): &(Connection, ServerId)| {
            let count = plan.packets_at(*tensor, server).filter(|count| *count > 0)?;
            let end = plan.nth_packet_at(*tensor, server, count - 1)?;
            let (_, last) = if end.packet + 1 == packets { plan.range(end)? } else { (0, whole) };
            Some(Lane::new(connection, count, whole, last))
        };
        self.servers.iter().filter_map(lane).collect()
    }

    /// The `nth` packet that goes over `connection`, and where to.
    fn packet(&self, connection: Connection, nth: u32) -> (ServerId, PacketId) {
        let known = self.servers.iter().find(|(open, _)| *open == connection);
        let (_, server) = known.expect("lanes are those of the servers");
        let packet = self.push.plan.nth_packet_at(self.push.tensor, *server, nth);
        (*server, packet.expect("lanes are those of the plan"))
    }
}

impl Parcel for Part {
    fn frame<'a>(&'a self, connection: Connection, packet: u32, room: &'a mut Vec<u8>) -> (Header, &'a [u8]) {
        let Push { plan, tensor, round, generation, gradient, .. } = &*self.push;
        let (_, packet) = self.packet(connection, packet);
        let (offset, length) = plan.range(packet).expect("the plan has its packets");
        let spec = plan.tensor(*tensor).expect("the plan has its tensors");
        let dtype = plan.wire_dtype(*tensor).expect("the plan has its tensors");
        let header = Header {
            kind: Kind::Push,
            dtype: Some(dtype),
            generation: *generation,
            round: round.low(),
            tensor: tensor.0,
            packet: packet.packet,
            length,
            class: spec.class.into(),
            contributors: 0,
            checksum: None,
        };
        let (offset, length) = (usize::try_from(offset).expect("it lies in memory"), length as usize);
        if dtype == spec.dtype {
            return (header, &gradient.bytes()[offset..offset + length]);
        }
        let wide = spec.dtype.bytes() / dtype.bytes();
        room.resize(length, 0);
        sum::narrow(dtype, room, &gradient.bytes()[offset * wide..(offset + length) * wide]);
        (header, room)
    }

    fn leaves(&self, connection: Connection, packet: u32) {
        let (server, packet) = self.packet(connection, packet);
        self.push.timeline.packet(EventKind::Sent, self.push.round, packet, Some(server.0.into()));
    }
}
