// SPDX-License-Identifier: Apache-2.0
//! What is exchanged in every round: the tensors, their packets, and the server of each packet.
//!
//! All ranks and servers agree on the plan before the first packet, because it gives the numbers in frames their
//! meaning. A plan is built from a model or from a peer's bytes ([`Plan::decode`]), and both are validated alike.
//! Offsets have 64 bits; nothing is stored per packet. Tensors with holes or overlaps, sizes that overflow, and
//! repeated names are errors.

mod class;
mod codec;
mod difference;
mod shard;

use std::fmt;

use foresee_units::{Bytes, Rank};

pub use class::classes;
pub use difference::{Difference, Field};
pub use shard::Shard;

use crate::{Dtype, Op, PacketId, Pattern, QueueError, ServerId, TensorId, sum};

/// The most tensors of a plan.
pub(crate) const TENSORS_MAX: usize = 1 << 20;
/// The longest name, in bytes.
pub(crate) const NAME_MAX: usize = 4096;
/// The most dimensions, as many as `PyTorch` has.
pub(crate) const DIMENSIONS_MAX: usize = 64;
/// The largest packet, 1 GiB: a whole tensor at once, for comparison. Sizes from 1408 to 261,888 bytes perform
/// better.
pub(crate) const PACKET_BYTES_LIMIT: u32 = 1 << 30;
/// Packets start at multiples of this, so that no element is split and every start is on a cache line.
const PACKET_ALIGN: u32 = 64;
/// Upper bound of the total size, so that no sum of sizes or offsets can overflow.
const TOTAL_MAX: u64 = 1 << 56;

/// A tensor as its rank describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    /// The name by which ranks match tensors: 1 to 4096 bytes, unique in a plan.
    pub name: String,
    /// The type of its elements in the model.
    pub dtype: Dtype,
    /// Elements along each dimension, at most 64 dimensions; empty for a scalar, with a 0 for a tensor without
    /// elements.
    pub shape: Vec<u64>,
    /// Elements from one index to the next along each dimension; dense in some order of dimensions.
    pub strides: Vec<i64>,
    /// Priority, 0 first.
    pub class: u8,
    /// The operation of the servers.
    pub op: Op,
}

/// The dtype in which the elements of a mean travel. An [`Op::Sum`] always travels unchanged, because it may be a
/// copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wire {
    /// Unchanged.
    Own = 0,
    /// f32 as bf16, others unchanged: half the volume, eight bits of precision.
    Bf16 = 1,
    /// f32 as f16, others unchanged: half the volume, eleven bits of precision, a range up to 65504.
    F16 = 2,
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        })
    }
}

impl Wire {
    /// The dtype of a tensor's elements on the wire.
    pub const fn dtype_of(self, tensor: &TensorSpec) -> Dtype {
        match (self, tensor.op, tensor.dtype) {
            (Self::Bf16, Op::Mean, Dtype::F32) => Dtype::Bf16,
            (Self::F16, Op::Mean, Dtype::F32) => Dtype::F16,
            (_, _, own) => own,
        }
    }

    const fn code(self) -> u8 {
        self as u8
    }

    const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Own),
            1 => Some(Self::Bf16),
            2 => Some(Self::F16),
            _ => None,
        }
    }
}

/// Settings of all tensors of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanConfig {
    /// P, the bytes of a packet on the wire: a multiple of 64, from 64 to 2^30.
    pub packet_bytes: u32,
    /// The dtype on the wire.
    pub wire: Wire,
    /// Which server sums which packet.
    pub pattern: Pattern,
}

/// The plan that all ranks and servers of a generation share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    config: PlanConfig,
    tensors: Vec<Entry>,
    /// Indices of the tensors, sorted by name.
    by_name: Vec<u32>,
}

/// A tensor with values derived from its specification.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    spec: TensorSpec,
    elements: u64,
    /// Bytes on the wire.
    bytes: u64,
    packets: u32,
    /// The place of packet 0 in the pattern.
    start: u32,
}

impl Plan {
    /// A plan of tensors in the order of first use by a forward pass; at most 2^20.
    pub fn new(config: PlanConfig, tensors: Vec<TensorSpec>) -> Result<Self, QueueError> {
        let packet_bytes = config.packet_bytes;
        if packet_bytes == 0
            || !packet_bytes.is_multiple_of(PACKET_ALIGN)
            || packet_bytes > PACKET_BYTES_LIMIT
        {
            return Err(QueueError::PacketBytes { bytes: packet_bytes });
        }
        if tensors.len() > TENSORS_MAX {
            return Err(QueueError::TooManyTensors { count: tensors.len() });
        }
        let mut total = 0_u64;
        let mut entries = Vec::with_capacity(tensors.len());
        for (index, spec) in (0_u32..).zip(tensors) {
            let entry = Entry::new(&config, index, spec)?;
            total += entry.bytes;
            if total > TOTAL_MAX {
                return Err(too_large(entry.spec, packet_bytes));
            }
            entries.push(entry);
        }
        let name = |index: &u32| entries[*index as usize].spec.name.as_str();
        let mut by_name: Vec<u32> = (0_u32..).take(entries.len()).collect();
        by_name.sort_unstable_by_key(|index| name(index));
        if let Some((twice, _)) = by_name.iter().zip(by_name.iter().skip(1)).find(|(a, b)| name(a) == name(b))
        {
            return Err(QueueError::NameTwice { tensor: name(twice).to_owned() });
        }
        Ok(Self { config, tensors: entries, by_name })
    }

    /// The settings of all tensors.
    pub fn config(&self) -> &PlanConfig {
        &self.config
    }

    /// The number of tensors; their ids are `0..tensors`.
    pub fn tensors(&self) -> u32 {
        to_u32(self.tensors.len() as u64)
    }

    /// A tensor's specification; `None` if the plan has no such tensor.
    pub fn tensor(&self, tensor: TensorId) -> Option<&TensorSpec> {
        Some(&self.entry(tensor)?.spec)
    }

    /// The tensor of this name.
    pub fn find(&self, name: &str) -> Option<TensorId> {
        let place = self
            .by_name
            .binary_search_by_key(&name, |index| self.tensors[*index as usize].spec.name.as_str());
        Some(TensorId(self.by_name[place.ok()?]))
    }

    /// A tensor's name for a message; its number if it is not in the plan.
    pub fn name(&self, tensor: TensorId) -> String {
        self.tensor(tensor).map_or_else(|| format!("#{}", tensor.0), |spec| spec.name.clone())
    }

    /// The dtype in which a tensor travels and is summed; `None` if the plan has no such tensor, as below.
    pub fn wire_dtype(&self, tensor: TensorId) -> Option<Dtype> {
        Some(self.config.wire.dtype_of(&self.entry(tensor)?.spec))
    }

    /// Elements of a tensor.
    pub fn elements(&self, tensor: TensorId) -> Option<u64> {
        Some(self.entry(tensor)?.elements)
    }

    /// Bytes of a tensor on the wire.
    pub fn bytes(&self, tensor: TensorId) -> Option<Bytes> {
        Some(Bytes::new(self.entry(tensor)?.bytes))
    }

    /// Packets of a tensor; 0 if it has no elements.
    pub fn packets(&self, tensor: TensorId) -> Option<u32> {
        Some(self.entry(tensor)?.packets)
    }

    /// Offset and length of a packet in its tensor, in bytes on the wire.
    pub fn range(&self, packet: PacketId) -> Option<(u64, u32)> {
        let entry = self.entry(packet.tensor)?;
        if packet.packet >= entry.packets {
            return None;
        }
        let offset = u64::from(packet.packet) * u64::from(self.config.packet_bytes);
        let bytes = (entry.bytes - offset).min(u64::from(self.config.packet_bytes));
        Some((offset, to_u32(bytes)))
    }

    /// The server of a packet, and the number of the tensor's earlier packets on that server.
    pub fn server(&self, packet: PacketId) -> Option<(ServerId, u32)> {
        let entry = self.entry(packet.tensor).filter(|entry| packet.packet < entry.packets)?;
        Some(self.locate(entry, packet.packet))
    }

    /// The number of a tensor's packets on a server.
    pub fn packets_at(&self, tensor: TensorId, server: ServerId) -> Option<u32> {
        let entry = self.entry(tensor)?;
        let count = self.config.pattern.count(entry.start, u64::from(entry.packets), server);
        Some(to_u32(count))
    }

    /// The `nth` packet, from 0, of a tensor on a server.
    pub fn nth_packet_at(&self, tensor: TensorId, server: ServerId, nth: u32) -> Option<PacketId> {
        let entry = self.entry(tensor)?;
        let packet = self.config.pattern.nth_packet(entry.start, server, u64::from(nth))?;
        let packet = u32::try_from(packet).ok().filter(|packet| *packet < entry.packets)?;
        Some(PacketId { tensor, packet })
    }

    /// The offset of a packet in its tensor, after a check of a frame of `bytes` bytes that `rank` sends or receives.
    pub(crate) fn check(&self, rank: Rank, packet: PacketId, bytes: u64) -> Result<u64, QueueError> {
        let entry = self.entry_of(rank, packet)?;
        let (offset, expected) = self.range(packet).unwrap_or_default();
        let expected = u64::from(expected);
        if bytes != expected {
            let (tensor, packet) = (entry.spec.name.clone(), packet.packet);
            return Err(QueueError::PacketLength { rank, tensor, packet, bytes, expected });
        }
        Ok(offset)
    }

    /// The number of the tensor's earlier packets on `server`, after a check that this server sums the packet.
    pub(crate) fn nth_at(&self, rank: Rank, packet: PacketId, server: ServerId) -> Result<u32, QueueError> {
        let entry = self.entry_of(rank, packet)?;
        let (expected, nth) = self.locate(entry, packet.packet);
        if expected != server {
            let (tensor, packet) = (entry.spec.name.clone(), packet.packet);
            return Err(QueueError::WrongServer { rank, tensor, packet, server, expected });
        }
        Ok(nth)
    }

    fn locate(&self, entry: &Entry, packet: u32) -> (ServerId, u32) {
        let (server, nth) = self.config.pattern.locate(entry.start, u64::from(packet));
        (server, to_u32(nth))
    }

    /// The tensor of a packet that `rank` names, after a check that both exist.
    fn entry_of(&self, rank: Rank, packet: PacketId) -> Result<&Entry, QueueError> {
        let PacketId { tensor, packet } = packet;
        let Some(entry) = self.entry(tensor) else {
            return Err(QueueError::NoSuchTensor { rank, tensor: tensor.0, tensors: self.tensors() });
        };
        if packet >= entry.packets {
            let (tensor, packets) = (entry.spec.name.clone(), entry.packets);
            return Err(QueueError::NoSuchPacket { rank, tensor, packet, packets });
        }
        Ok(entry)
    }

    fn entry(&self, tensor: TensorId) -> Option<&Entry> {
        self.tensors.get(tensor.0 as usize)
    }
}

impl Entry {
    fn new(config: &PlanConfig, index: u32, spec: TensorSpec) -> Result<Self, QueueError> {
        if spec.name.is_empty() || spec.name.len() > NAME_MAX {
            return Err(QueueError::NameLength { index, bytes: spec.name.len() });
        }
        let (dimensions, strides) = (spec.shape.len(), spec.strides.len());
        if dimensions > DIMENSIONS_MAX || dimensions != strides {
            return Err(QueueError::Dimensions { tensor: spec.name, dimensions, strides });
        }
        let width = config.wire.dtype_of(&spec).bytes() as u64;
        // The model's element size counts too, because ranks hold buffers of it.
        let widest = spec.dtype.bytes().max(sum::accumulator_bytes(spec.dtype)) as u64;
        let sizes = || {
            let elements = elements(&spec.shape)?;
            elements.checked_mul(widest).filter(|bytes| *bytes <= TOTAL_MAX)?;
            let bytes = elements * width;
            let packets = u32::try_from(bytes.div_ceil(u64::from(config.packet_bytes))).ok()?;
            Some((elements, bytes, packets))
        };
        let Some((elements, bytes, packets)) = sizes() else {
            return Err(too_large(spec, config.packet_bytes));
        };
        if elements > 0 && !is_dense(&spec.shape, &spec.strides) {
            let TensorSpec { name: tensor, shape, strides, .. } = spec;
            return Err(QueueError::NotDense { tensor, shape, strides });
        }
        Ok(Self { spec, elements, bytes, packets, start: config.pattern.start_of(index) })
    }
}

fn too_large(spec: TensorSpec, packet_bytes: u32) -> QueueError {
    QueueError::TooLarge { tensor: spec.name, shape: spec.shape, packet_bytes }
}

/// Convert a count that the validation of a plan bounds to 32 bits.
fn to_u32(count: u64) -> u32 {
    u32::try_from(count).expect("checked when the plan was made")
}

/// The product of a shape; 0 if any dimension is 0, even if the others overflow.
fn elements(shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1_u64, |product, size| product.checked_mul(*size))
}

/// Whether the elements fill their memory exactly once in some order of dimensions, as `channels_last` does.
fn is_dense(shape: &[u64], strides: &[i64]) -> bool {
    let mut dimensions: Vec<(i64, u64)> =
        strides.iter().copied().zip(shape.iter().copied()).filter(|(_, size)| *size != 1).collect();
    dimensions.sort_unstable();
    let mut expected = 1_u64;
    dimensions.into_iter().all(|(stride, size)| {
        let fits = u64::try_from(stride) == Ok(expected);
        expected = expected.saturating_mul(size);
        fits
    })
}

#[cfg(test)]
mod tests;
