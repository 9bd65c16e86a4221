// SPDX-License-Identifier: Apache-2.0
//! A gradient in flight: the owner of its memory, and the bytes of each packet.
//!
//! Nothing is copied, except gradients that travel in fewer bits and those of several ranks of one node: they are
//! rounded, and averaged, packet by packet, when each is about to be written.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use foresee_grad_queue::{Class, Connection, Dtype, Lane, PacketId, Plan, Round, ServerId, TensorId, sum};
use foresee_wire::{Header, Kind};

use crate::interface::Parcel;
use crate::timeline::{EventKind, Timeline};

/// Memory of a gradient, handed over until the exchange lets go of it.
///
/// `owner` keeps the memory alive and unchanged; it is dropped by any thread.
pub struct Gradient {
    /// One, or one of each rank whose gradients are summed on the way, in that order.
    parts: Box<[*const u8]>,
    len: usize,
    /// By what their sum is divided.
    divisor: u32,
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
        Self { parts: [pointer].into(), len, divisor: 1, _owner: owner }
    }

    /// The sum of several, in their order, divided by `divisor`; each has `len` bytes.
    ///
    /// # Safety
    /// As [`new`](Self::new), of each.
    ///
    /// # Panics
    /// If there are none, or the divisor is 0.
    #[cfg(target_os = "linux")]
    pub(crate) unsafe fn of_several(
        parts: Box<[*const u8]>,
        len: usize,
        divisor: u32,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        assert!(!parts.is_empty() && divisor > 0, "a mean is of something");
        Self { parts, len, divisor, _owner: owner }
    }

    /// Of bytes that it owns.
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes: Arc<[u8]> = bytes.into();
        // SAFETY: the owner is the bytes, and nobody can write to them.
        unsafe { Self::new(bytes.as_ptr(), bytes.len(), Box::new(bytes)) }
    }

    /// Bytes of the gradient.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies it.
    ///
    /// # Safety
    /// Its bytes fit behind `target`, where nobody else reads or writes meanwhile.
    ///
    /// # Panics
    /// If it is of several.
    #[cfg(target_os = "linux")]
    pub(crate) unsafe fn copy_to(&self, target: *mut u8) {
        assert!(self.parts.len() == 1 && self.divisor == 1, "a rank pushes what it has");
        let bytes = self.part(0, 0..self.len);
        // SAFETY: the caller's promise, and that of `new`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }

    /// The bytes of one of them.
    fn part(&self, part: usize, range: Range<usize>) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the promise of `new`.
        let whole = unsafe { std::slice::from_raw_parts(self.parts[part], self.len) };
        &whole[range]
    }

    /// What travels of it: the bytes of `range`, counted in those of `wire`.
    fn payload<'a>(
        &'a self,
        dtype: Dtype,
        wire: Dtype,
        range: &Range<usize>,
        room: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        let wide = dtype.bytes() / wire.bytes();
        let range = range.start * wide..range.end * wide;
        if self.parts.len() > 1 || self.divisor > 1 {
            return self.mean(dtype, wire, &range, room);
        }
        if dtype == wire {
            return self.part(0, range);
        }
        room.resize(range.len() / wide, 0);
        sum::narrow(wire, room, self.part(0, range));
        room
    }

    /// As a server sums, and divides, and rounds.
    fn mean<'a>(&self, dtype: Dtype, wire: Dtype, range: &Range<usize>, room: &'a mut Vec<u8>) -> &'a [u8] {
        let wide = sum::accumulator_len(dtype, range.len());
        room.resize(wide + range.len(), 0);
        let (acc, narrow) = room.split_at_mut(wide);
        sum::start(dtype, acc, self.part(0, range.clone()));
        let last = self.parts.len() - 1;
        (1..last).for_each(|part| sum::add(dtype, acc, self.part(part, range.clone())));
        let len = if last == 0 {
            sum::finish(dtype, acc, 1, self.divisor)
        } else {
            sum::add_last(dtype, acc, self.part(last, range.clone()), self.divisor)
        };
        if dtype == wire {
            return &acc[..len];
        }
        let narrow = &mut narrow[..len / (dtype.bytes() / wire.bytes())];
        sum::narrow(wire, narrow, &acc[..len]);
        narrow
    }
}

impl std::fmt::Debug for Gradient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gradient")
            .field("bytes", &self.len)
            .field("parts", &self.parts.len())
            .finish_non_exhaustive()
    }
}

/// A gradient of one round, offered to an interface.
#[derive(Debug)]
pub(super) struct Push {
    pub(super) plan: Arc<Plan>,
    pub(super) tensor: TensorId,
    pub(super) round: Round,
    pub(super) gradient: Gradient,
    pub(super) timeline: Timeline,
}

/// What of it goes through one interface.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) push: Arc<Push>,
    /// Which server each of the interface's connections leads to.
    pub(super) servers: Arc<[(Connection, ServerId)]>,
    /// The membership under which it is sent.
    pub(super) generation: u32,
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
    fn header(&self, connection: Connection, packet: u32) -> Header {
        let Push { plan, tensor, round, .. } = &*self.push;
        let (_, packet) = self.packet(connection, packet);
        let (_, length) = plan.range(packet).expect("the plan has its packets");
        Header {
            kind: Kind::Push,
            dtype: plan.wire_dtype(*tensor),
            generation: self.generation,
            round: round.low(),
            tensor: tensor.0,
            packet: packet.packet,
            length,
            class: self.push.class().get().into(),
            contributors: 0,
            checksum: None,
        }
    }

    fn payload<'a>(&'a self, connection: Connection, packet: u32, room: &'a mut Vec<u8>) -> &'a [u8] {
        let Push { plan, tensor, gradient, .. } = &*self.push;
        let (_, packet) = self.packet(connection, packet);
        let (offset, length) = plan.range(packet).expect("the plan has its packets");
        let spec = plan.tensor(*tensor).expect("the plan has its tensors");
        let dtype = plan.wire_dtype(*tensor).expect("the plan has its tensors");
        let (offset, length) = (usize::try_from(offset).expect("it lies in memory"), length as usize);
        gradient.payload(spec.dtype, dtype, &(offset..offset + length), room)
    }

    fn leaves(&self, connection: Connection, packet: u32) {
        let (server, packet) = self.packet(connection, packet);
        self.push.timeline.packet(EventKind::Sent, self.push.round, packet, Some(server.0.into()));
    }
}
