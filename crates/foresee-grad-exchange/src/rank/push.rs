// SPDX-License-Identifier: Apache-2.0
//! A gradient in flight: the owner of its memory, and the bytes of each packet.
//!
//! Nothing is copied, except gradients that travel in fewer bits and those of several ranks of one node: they are
//! rounded, and averaged, packet by packet, when each is about to be written.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use foresee_grad_queue::{
    Class, Connection, Dtype, PacketId, PacketStream, Plan, Round, ServerId, TensorId, sum,
};
use foresee_wire::{Header, Kind};

use crate::interface::PacketSource;
use crate::timeline::{EventKind, Timeline};

/// Memory of a gradient, which the exchange owns until it was sent.
///
/// `owner` keeps the memory alive and unchanged; any thread may drop it.
pub struct Gradient {
    /// The gradients of one rank, or of several whose sum is sent, in that order.
    addends: Box<[*const u8]>,
    len: usize,
    /// Divisor of the sum.
    divisor: u32,
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the memory is only read, and stays unchanged as long as `owner` lives (the promise of `new`).
unsafe impl Send for Gradient {}
// SAFETY: as above.
unsafe impl Sync for Gradient {}

impl Gradient {
    /// `len` bytes from `pointer` on.
    ///
    /// # Safety
    /// The bytes are initialized, and neither freed nor written to while `owner` lives.
    pub unsafe fn new(pointer: *const u8, len: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self { addends: [pointer].into(), len, divisor: 1, _owner: owner }
    }

    /// The sum of several gradients, in their order, divided by `divisor`; each has `len` bytes.
    ///
    /// # Safety
    /// As [`new`](Self::new), for each.
    ///
    /// # Panics
    /// If there are none, or the divisor is 0.
    #[cfg(target_os = "linux")]
    pub(crate) unsafe fn mean_of(
        addends: Box<[*const u8]>,
        len: usize,
        divisor: u32,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        assert!(!addends.is_empty() && divisor > 0, "a mean has one addend or more");
        Self { addends, len, divisor, _owner: owner }
    }

    /// A gradient that owns its bytes.
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes: Arc<[u8]> = bytes.into();
        // SAFETY: the owner is the bytes, which are immutable.
        unsafe { Self::new(bytes.as_ptr(), bytes.len(), Box::new(bytes)) }
    }

    /// Bytes of the gradient.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copy the gradient of one rank.
    ///
    /// # Safety
    /// `target` has space for its bytes, and no other thread reads or writes there meanwhile.
    ///
    /// # Panics
    /// If it is a mean of several.
    #[cfg(target_os = "linux")]
    pub(crate) unsafe fn copy_to(&self, target: *mut u8) {
        assert!(self.addends.len() == 1 && self.divisor == 1, "a rank pushes its own gradient");
        let bytes = self.addend(0, 0..self.len);
        // SAFETY: the promises of the caller and of `new`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }

    fn addend(&self, at: usize, range: Range<usize>) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the promise of `new`.
        let whole = unsafe { std::slice::from_raw_parts(self.addends[at], self.len) };
        &whole[range]
    }

    /// The bytes of `range` on the wire, which counts bytes of the dtype `wire`.
    fn payload<'a>(
        &'a self,
        dtype: Dtype,
        wire: Dtype,
        range: &Range<usize>,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        let wide = dtype.bytes() / wire.bytes();
        let range = range.start * wide..range.end * wide;
        if self.addends.len() > 1 || self.divisor > 1 {
            return self.mean(dtype, wire, &range, scratch);
        }
        if dtype == wire {
            return self.addend(0, range);
        }
        scratch.resize(range.len() / wide, 0);
        sum::narrow(wire, scratch, self.addend(0, range));
        scratch
    }

    /// Sum, divide and round as a server does.
    fn mean<'a>(
        &self,
        dtype: Dtype,
        wire: Dtype,
        range: &Range<usize>,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        let wide = sum::accumulator_len(dtype, range.len());
        scratch.resize(wide + range.len(), 0);
        let (acc, narrow) = scratch.split_at_mut(wide);
        sum::start(dtype, acc, self.addend(0, range.clone()));
        let last = self.addends.len() - 1;
        (1..last).for_each(|at| sum::add(dtype, acc, self.addend(at, range.clone())));
        let len = if last == 0 {
            sum::finish(dtype, acc, 1, self.divisor)
        } else {
            sum::add_last(dtype, acc, self.addend(last, range.clone()), self.divisor)
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
            .field("addends", &self.addends.len())
            .finish_non_exhaustive()
    }
}

/// A gradient of one round.
#[derive(Debug)]
pub(super) struct Push {
    pub(super) plan: Arc<Plan>,
    pub(super) tensor: TensorId,
    pub(super) round: Round,
    pub(super) gradient: Gradient,
    pub(super) timeline: Timeline,
}

/// The packets of a push that leave through one interface.
#[derive(Debug)]
pub(super) struct RoutedPush {
    pub(super) push: Arc<Push>,
    /// The server of each of the interface's connections.
    pub(super) servers: Arc<[(Connection, ServerId)]>,
    /// The membership under which it is sent.
    pub(super) generation: u32,
}

impl Push {
    pub(super) fn class(&self) -> Class {
        Class::new(self.plan.tensor(self.tensor).map_or(u8::MAX, |spec| spec.class))
    }
}

impl RoutedPush {
    /// The packets of each connection; none for a tensor without elements.
    pub(super) fn streams(&self) -> Vec<PacketStream> {
        let Push { plan, tensor, .. } = &*self.push;
        let packets = plan.packets(*tensor).unwrap_or(0);
        let whole = plan.config().packet_bytes;
        let stream = |&(connection, server): &(Connection, ServerId)| {
            let count = plan.packets_at(*tensor, server).filter(|count| *count > 0)?;
            let end = plan.nth_packet_at(*tensor, server, count - 1)?;
            let (_, last) = if end.packet + 1 == packets { plan.range(end)? } else { (0, whole) };
            Some(PacketStream::new(connection, count, whole, last))
        };
        self.servers.iter().filter_map(stream).collect()
    }

    /// The `nth` packet that goes over `connection`, and its server.
    fn packet(&self, connection: Connection, nth: u32) -> (ServerId, PacketId) {
        let known = self.servers.iter().find(|(open, _)| *open == connection);
        let (_, server) = known.expect("streams are those of the servers");
        let packet = self.push.plan.nth_packet_at(self.push.tensor, *server, nth);
        (*server, packet.expect("streams are those of the plan"))
    }
}

impl PacketSource for RoutedPush {
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

    fn payload<'a>(&'a self, connection: Connection, packet: u32, scratch: &'a mut Vec<u8>) -> &'a [u8] {
        let Push { plan, tensor, gradient, .. } = &*self.push;
        let (_, packet) = self.packet(connection, packet);
        let (offset, length) = plan.range(packet).expect("the plan has its packets");
        let spec = plan.tensor(*tensor).expect("the plan has its tensors");
        let dtype = plan.wire_dtype(*tensor).expect("the plan has its tensors");
        let (offset, length) = (usize::try_from(offset).expect("it is in memory"), length as usize);
        gradient.payload(spec.dtype, dtype, &(offset..offset + length), scratch)
    }

    fn on_send(&self, connection: Connection, packet: u32) {
        let (server, packet) = self.packet(connection, packet);
        self.push.timeline.packet(EventKind::Sent, self.push.round, packet, Some(server.0.into()));
    }
}
