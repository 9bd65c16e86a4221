// SPDX-License-Identifier: Apache-2.0
//! The packets of one server, numbered from 0.
//!
//! The plan stores nothing per server, but a server looks up slots in an array. A shard stores one number per
//! tensor and none per packet.

use foresee_units::Rank;

use super::Plan;
use crate::{PacketId, QueueError, ServerId, TensorId};

/// Index of each of a server's packets in its array of slots.
#[derive(Clone, Debug)]
pub struct Shard {
    server: ServerId,
    /// For each tensor and past the last: the number of the server's packets of earlier tensors.
    base: Vec<u64>,
}

impl Shard {
    /// The packets of `plan` that `server` sums.
    pub fn new(plan: &Plan, server: ServerId) -> Self {
        let mut base = Vec::with_capacity(plan.tensors.len() + 1);
        let mut packets = 0;
        base.push(packets);
        for tensor in (0..plan.tensors()).map(TensorId) {
            packets += u64::from(plan.packets_at(tensor, server).unwrap_or(0));
            base.push(packets);
        }
        Self { server, base }
    }

    /// The number of packets that the server sums.
    pub fn packets(&self) -> u64 {
        self.base[self.base.len() - 1]
    }

    /// The index of a packet, below [`packets`](Self::packets), after a check that this server sums it.
    pub fn index(&self, plan: &Plan, rank: Rank, packet: PacketId) -> Result<u64, QueueError> {
        let nth = plan.nth_at(rank, packet, self.server)?;
        Ok(self.base[packet.tensor.0 as usize] + u64::from(nth))
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
