// SPDX-License-Identifier: Apache-2.0
//! The packets of one server, numbered from 0.
//!
//! The plan stores nothing per server, but a server looks up slots in an array. A shard stores one number per
//! tensor and none per packet.

use foresee_units::{Bytes, Rank};

use super::Plan;
use crate::{PacketId, QueueError, ServerId, TensorId, sum};

/// Index of each of a server's packets in its array of slots.
#[derive(Clone, Debug)]
pub struct Shard {
    server: ServerId,
    /// For each tensor and past the last: the number of the server's packets of earlier tensors.
    base: Vec<u64>,
    accumulators: u64,
}

impl Shard {
    /// The packets of `plan` that `server` sums.
    pub fn new(plan: &Plan, server: ServerId) -> Self {
        let mut base = Vec::with_capacity(plan.tensors.len() + 1);
        let (mut packets, mut accumulators) = (0, 0);
        base.push(packets);
        for tensor in (0..plan.tensors()).map(TensorId) {
            let count = plan.packets_at(tensor, server).unwrap_or(0);
            packets += u64::from(count);
            base.push(packets);
            accumulators += accumulator_bytes(plan, tensor, server, count);
        }
        Self { server, base, accumulators }
    }

    /// The server.
    pub fn server(&self) -> ServerId {
        self.server
    }

    /// The number of packets that the server sums.
    pub fn packets(&self) -> u64 {
        self.base[self.base.len() - 1]
    }

    /// Upper bound of the memory of all accumulators: two per packet, each as wide as its sum (4 bytes per
    /// element for f32, bf16 and f16, 8 for f64 and i32, 16 for i64). They are allocated at first use and then
    /// reused. Results that a writer still holds when their slot starts again come on top, as do early
    /// contributions.
    pub fn accumulator_bytes_max(&self) -> Bytes {
        Bytes::new(self.accumulators.saturating_mul(2))
    }

    /// The index of a packet, below [`packets`](Self::packets), after a check that this server sums it.
    pub fn index(&self, plan: &Plan, rank: Rank, packet: PacketId) -> Result<u64, QueueError> {
        let PacketId { tensor, packet: number } = packet;
        let Some(packets) = plan.packets(tensor) else {
            return Err(QueueError::NoSuchTensor { rank, tensor: tensor.0, tensors: plan.tensors() });
        };
        let Some((expected, nth)) = plan.server(packet) else {
            return Err(QueueError::NoSuchPacket {
                rank,
                tensor: plan.name(tensor),
                packet: number,
                packets,
            });
        };
        if expected != self.server {
            let (tensor, server) = (plan.name(tensor), self.server);
            return Err(QueueError::WrongServer { rank, tensor, packet: number, server, expected });
        }
        Ok(self.base[tensor.0 as usize] + u64::from(nth))
    }

    /// The packet at an index.
    pub fn packet(&self, plan: &Plan, index: u64) -> Option<PacketId> {
        // The last tensor that begins at or before it: a tensor without packets here begins where the next one
        // does.
        let tensor = self.base.partition_point(|base| *base <= index).checked_sub(1)?;
        let nth = u32::try_from(index - self.base[tensor]).ok()?;
        plan.nth_packet_at(TensorId(u32::try_from(tensor).ok()?), self.server, nth)
    }

    /// The indices of a tensor's packets.
    pub fn of_tensor(&self, tensor: TensorId) -> std::ops::Range<u64> {
        let tensor = tensor.0 as usize;
        let end = self.packets();
        let at = |place: usize| self.base.get(place).copied().unwrap_or(end);
        at(tensor)..at(tensor.saturating_add(1))
    }
}

/// Bytes of one accumulator for each of the `count` packets of a tensor on a server.
fn accumulator_bytes(plan: &Plan, tensor: TensorId, server: ServerId, count: u32) -> u64 {
    let (Some(dtype), Some(last)) = (plan.wire_dtype(tensor), count.checked_sub(1)) else { return 0 };
    let wide = |bytes: u32| sum::accumulator_len(dtype, bytes as usize) as u64;
    // Only the tensor's last packet may be short.
    let last = plan.nth_packet_at(tensor, server, last).and_then(|packet| plan.range(packet));
    wide(plan.config().packet_bytes) * u64::from(count - 1) + wide(last.map_or(0, |(_, bytes)| bytes))
}
