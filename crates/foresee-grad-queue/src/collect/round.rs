// SPDX-License-Identifier: Apache-2.0
//! One round of a rank: the number of missing packets per tensor.
//!
//! A tensor's bits are allocated with its first packet and dropped with its last one. Tensor ids must be within
//! the plan; they are checked when a frame arrives.

use crate::{PacketId, Plan, ServerId, TensorId, TensorSet, bits};

/// A round that is not done.
#[derive(Clone, Debug)]
pub(super) struct OpenRound {
    pub(super) pushed: TensorSet,
    pub(super) has_ended: bool,
    /// The tensors that any rank pushed, once known.
    pub(super) used: Option<TensorSet>,
    tensors: Vec<TensorReceipt>,
    /// Tensors that are neither complete nor known to be unused.
    unknown: u32,
    /// Tensors that a replacement server has to sum again.
    repeats: u32,
}

/// The packets of one tensor.
#[derive(Clone, Debug)]
struct TensorReceipt {
    /// Packets that were not received.
    left: u32,
    /// Packets that were received or are being read; `None` before the first and after the last one.
    bits: Option<Box<[u64]>>,
    /// Sums that replacement servers have to repeat, each with bits for the server's own packets.
    repeats: Vec<Repeats>,
}

/// The sums that one replacement server repeats.
#[derive(Clone, Debug)]
struct Repeats {
    server: ServerId,
    left: u32,
    bits: Box<[u64]>,
}

/// How an arriving packet counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// First receipt: its bytes count.
    Bytes,
    /// Repeated receipt: only the arrival counts.
    Confirmation,
    /// It does not count.
    Nothing,
}

impl OpenRound {
    pub(super) fn new(plan: &Plan) -> Self {
        let packets = (0..plan.tensors()).map(|tensor| plan.packets(TensorId(tensor)).unwrap_or(0));
        let tensors = packets.map(|left| TensorReceipt { left, bits: None, repeats: Vec::new() }).collect();
        let (pushed, unknown) = (TensorSet::none(plan.tensors()), plan.tensors());
        Self { pushed, has_ended: false, used: None, tensors, unknown, repeats: 0 }
    }

    pub(super) fn push(&mut self, tensor: TensorId) {
        self.pushed.insert(tensor);
        self.unknown -= u32::from(self.receipt(tensor).left == 0);
    }

    /// Store the tensors that a round used; `None` if they contradict an earlier report.
    pub(super) fn set_used(&mut self, used: &TensorSet) -> Option<()> {
        if let Some(known) = &self.used {
            return (known == used).then_some(());
        }
        if self.pushed.iter().any(|tensor| !used.contains(tensor)) {
            return None;
        }
        for tensor in self.pushed.complement().iter() {
            self.unknown -= u32::from(!used.contains(tensor) || self.receipt(tensor).left == 0);
        }
        self.used = Some(used.clone());
        Some(())
    }

    /// Whether every tensor is complete or known to be unused.
    pub(super) fn is_received(&self) -> bool {
        self.unknown == 0 && self.used.is_some()
    }

    /// Whether [`is_received`](Self::is_received) is true and no sum has to be repeated.
    pub(super) fn is_confirmed(&self) -> bool {
        self.is_received() && !self.has_repeats()
    }

    /// Whether any sum has to be repeated.
    pub(super) fn has_repeats(&self) -> bool {
        self.repeats > 0
    }

    pub(super) fn is_used(&self, tensor: TensorId) -> Option<bool> {
        if self.pushed.contains(tensor) {
            Some(true)
        } else {
            self.used.as_ref().map(|used| used.contains(tensor))
        }
    }

    /// Whether a tensor's update is complete or does not exist.
    pub(super) fn is_known(&self, tensor: TensorId) -> bool {
        self.is_used(tensor).is_some_and(|used| !used || self.receipt(tensor).left == 0)
    }

    pub(super) fn has_repeats_of(&self, server: ServerId) -> bool {
        self.has_repeats()
            && self.tensors.iter().any(|tensor| tensor.repeats.iter().any(|repeats| repeats.server == server))
    }

    pub(super) fn has_repeat(&self, tensor: TensorId, server: ServerId) -> bool {
        self.receipt(tensor).repeats.iter().any(|repeats| repeats.server == server)
    }

    /// Missing packets of a tensor; 0 while it is not known to be used.
    pub(super) fn missing(&self, tensor: TensorId) -> u32 {
        let receipt = self.tensors.get(tensor.0 as usize).filter(|_| self.is_used(tensor) == Some(true));
        receipt.map_or(0, |receipt| receipt.left)
    }

    /// Mark a packet as being read.
    pub(super) fn claim(&mut self, packet: PacketId, packets: u32, server: ServerId, nth: u32) -> Need {
        let known_unused = self.is_used(packet.tensor) == Some(false);
        let receipt = &mut self.tensors[packet.tensor.0 as usize];
        let repeats = receipt.repeats.iter_mut().find(|repeats| repeats.server == server);
        if repeats.is_some_and(|repeats| bits::insert(&mut repeats.bits, nth)) {
            // A packet that was missing before the loss is also wanted for its bytes, which `left` counts.
            let wanted =
                !known_unused && receipt.left > 0 && bits::insert(receipt.bits_for(packets), packet.packet);
            return if wanted { Need::Bytes } else { Need::Confirmation };
        }
        if known_unused || receipt.left == 0 || !bits::insert(receipt.bits_for(packets), packet.packet) {
            return Need::Nothing;
        }
        Need::Bytes
    }

    /// Clear the mark of a packet.
    pub(super) fn abandon(&mut self, packet: PacketId, need: Need, server: ServerId, nth: u32) {
        let receipt = &mut self.tensors[packet.tensor.0 as usize];
        if let Some(bits) = receipt.bits.as_mut().filter(|_| need == Need::Bytes) {
            bits::remove(bits, packet.packet);
        }
        if let Some(repeats) = receipt.repeats.iter_mut().find(|repeats| repeats.server == server) {
            bits::remove(&mut repeats.bits, nth);
        }
    }

    /// Count a packet that was read.
    pub(super) fn receive(&mut self, packet: PacketId, need: Need, server: ServerId, nth: u32) {
        let is_known_used = self.is_used(packet.tensor) == Some(true);
        let receipt = &mut self.tensors[packet.tensor.0 as usize];
        if let Some(at) = receipt
            .repeats
            .iter()
            .position(|repeats| repeats.server == server && bits::contains(&repeats.bits, nth))
        {
            receipt.repeats[at].left -= 1;
            if receipt.repeats[at].left == 0 {
                receipt.repeats.swap_remove(at);
                self.repeats -= u32::from(receipt.repeats.is_empty());
            }
        }
        if need == Need::Bytes {
            receipt.left -= 1;
            if receipt.left == 0 {
                receipt.bits = None;
                self.unknown -= u32::from(is_known_used);
            }
        }
    }

    /// Expect the packets of a replacement server again, for the tensors that any rank used.
    pub(super) fn expect_repeats(&mut self, plan: &Plan, server: ServerId) {
        for tensor in (0..plan.tensors()).map(TensorId) {
            let packets = plan.packets_at(tensor, server).unwrap_or(0);
            let used = self.is_used(tensor);
            let receipt = &mut self.tensors[tensor.0 as usize];
            // While it is unknown whether a tensor was used, a received packet proves that it was.
            let used = used.unwrap_or(receipt.bits.is_some() || receipt.left == 0);
            if packets == 0 || !used {
                continue;
            }
            self.repeats += u32::from(receipt.repeats.is_empty());
            receipt.repeats.retain(|repeats| repeats.server != server);
            receipt.repeats.push(Repeats { server, left: packets, bits: bits::empty(packets) });
        }
    }

    /// Expect no more repeats from a server that knows that the round is done.
    pub(super) fn cancel_repeats(&mut self, server: ServerId) {
        for receipt in self.tensors.iter_mut().filter(|receipt| !receipt.repeats.is_empty()) {
            receipt.repeats.retain(|repeats| repeats.server != server);
            self.repeats -= u32::from(receipt.repeats.is_empty());
        }
    }

    fn receipt(&self, tensor: TensorId) -> &TensorReceipt {
        &self.tensors[tensor.0 as usize]
    }
}

impl TensorReceipt {
    fn bits_for(&mut self, packets: u32) -> &mut [u64] {
        self.bits.get_or_insert_with(|| bits::empty(packets))
    }
}
