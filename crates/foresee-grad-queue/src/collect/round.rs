// SPDX-License-Identifier: Apache-2.0
//! One round of a rank: the number of missing packets per tensor.
//!
//! A tensor's bits are allocated with its first packet and dropped with its last one. Tensor ids must be within
//! the plan; they are checked when a frame arrives.

use crate::{PacketId, Plan, ServerId, TensorId, TensorSet};

/// A round that is not done.
#[derive(Clone, Debug)]
pub(super) struct OpenRound {
    pushed: TensorSet,
    ended: bool,
    used: Option<TensorSet>,
    tensors: Vec<Landing>,
    /// Tensors that are neither complete nor known to be unused.
    unknown: u32,
    /// Tensors that a replacement server has to sum again.
    again: u32,
}

/// The packets of one tensor.
#[derive(Clone, Debug)]
struct Landing {
    /// Packets that were not received.
    left: u32,
    /// Packets that were received or are being read; `None` before the first and after the last one.
    bits: Option<Box<[u64]>>,
    /// Sums that replacement servers have to repeat, each with bits for the server's own packets.
    again: Vec<Again>,
}

/// The sums that one replacement server repeats.
#[derive(Clone, Debug)]
struct Again {
    server: ServerId,
    left: u32,
    bits: Box<[u64]>,
}

/// How an arriving packet counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// First receipt: its bytes count.
    Bytes,
    /// Repeated receipt: only the arrival counts.
    Word,
    /// It does not count.
    Nothing,
}

impl OpenRound {
    pub(super) fn new(plan: &Plan) -> Self {
        let packets = (0..plan.tensors()).map(|tensor| plan.packets(TensorId(tensor)).unwrap_or(0));
        let tensors = packets.map(|left| Landing { left, bits: None, again: Vec::new() }).collect();
        let (pushed, unknown) = (TensorSet::none(plan.tensors()), plan.tensors());
        Self { pushed, ended: false, used: None, tensors, unknown, again: 0 }
    }

    pub(super) fn push(&mut self, tensor: TensorId) {
        self.pushed.insert(tensor);
        self.unknown -= u32::from(self.landing(tensor).left == 0);
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Store the tensors that a round used; `None` if they contradict an earlier report.
    pub(super) fn hear_used(&mut self, used: &TensorSet) -> Option<()> {
        if let Some(known) = &self.used {
            return (known == used).then_some(());
        }
        if self.pushed.iter().any(|tensor| !used.contains(tensor)) {
            return None;
        }
        for tensor in self.pushed.complement().iter() {
            self.unknown -= u32::from(!used.contains(tensor) || self.landing(tensor).left == 0);
        }
        self.used = Some(used.clone());
        Some(())
    }

    pub(super) fn pushed(&self) -> &TensorSet {
        &self.pushed
    }

    pub(super) fn used(&self) -> Option<&TensorSet> {
        self.used.as_ref()
    }

    pub(super) fn has_pushed(&self, tensor: TensorId) -> bool {
        self.pushed.contains(tensor)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether every tensor is complete or known to be unused.
    pub(super) fn has_landed(&self) -> bool {
        self.unknown == 0 && self.used.is_some()
    }

    /// Whether [`has_landed`](Self::has_landed) is true and no sum has to be repeated.
    pub(super) fn is_confirmed(&self) -> bool {
        self.has_landed() && !self.asks_again()
    }

    /// Whether any sum has to be repeated.
    pub(super) fn asks_again(&self) -> bool {
        self.again > 0
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
        self.is_used(tensor).is_some_and(|used| !used || self.landing(tensor).left == 0)
    }

    pub(super) fn asks_server_again(&self, server: ServerId) -> bool {
        self.asks_again()
            && self.tensors.iter().any(|tensor| tensor.again.iter().any(|again| again.server == server))
    }

    pub(super) fn is_asked_again(&self, tensor: TensorId, server: ServerId) -> bool {
        self.landing(tensor).again.iter().any(|again| again.server == server)
    }

    /// Missing packets of a tensor; 0 while it is not known to be used.
    pub(super) fn missing(&self, tensor: TensorId) -> u32 {
        let landing = self.tensors.get(tensor.0 as usize).filter(|_| self.is_used(tensor) == Some(true));
        landing.map_or(0, |landing| landing.left)
    }

    /// Marks a packet as being read.
    pub(super) fn claim(&mut self, packet: PacketId, packets: u32, server: ServerId, nth: u32) -> Want {
        let known_unused = self.is_used(packet.tensor) == Some(false);
        let landing = &mut self.tensors[packet.tensor.0 as usize];
        let again = landing.again.iter_mut().find(|again| again.server == server);
        if again.is_some_and(|again| set(&mut again.bits, nth)) {
            // A packet that was missing before the loss is also wanted for its bytes, which `left` counts.
            let wanted = !known_unused && landing.left > 0 && set(landing.bits_for(packets), packet.packet);
            return if wanted { Want::Bytes } else { Want::Word };
        }
        if known_unused || landing.left == 0 || !set(landing.bits_for(packets), packet.packet) {
            return Want::Nothing;
        }
        Want::Bytes
    }

    /// Clear the mark of a packet.
    pub(super) fn abandon(&mut self, packet: PacketId, want: Want, server: ServerId, nth: u32) {
        let landing = &mut self.tensors[packet.tensor.0 as usize];
        if let Some(bits) = landing.bits.as_mut().filter(|_| want == Want::Bytes) {
            unset(bits, packet.packet);
        }
        if let Some(again) = landing.again.iter_mut().find(|again| again.server == server) {
            unset(&mut again.bits, nth);
        }
    }

    /// Count a packet that was read.
    pub(super) fn land(&mut self, packet: PacketId, want: Want, server: ServerId, nth: u32) {
        let told = self.is_used(packet.tensor) == Some(true);
        let landing = &mut self.tensors[packet.tensor.0 as usize];
        if let Some(at) =
            landing.again.iter().position(|again| again.server == server && get(&again.bits, nth))
        {
            landing.again[at].left -= 1;
            if landing.again[at].left == 0 {
                landing.again.swap_remove(at);
                self.again -= u32::from(landing.again.is_empty());
            }
        }
        if want == Want::Bytes {
            landing.left -= 1;
            if landing.left == 0 {
                landing.bits = None;
                self.unknown -= u32::from(told);
            }
        }
    }

    /// Expect the packets of a replacement server again, for the tensors that any rank used.
    pub(super) fn ask_again(&mut self, plan: &Plan, server: ServerId) {
        for tensor in (0..plan.tensors()).map(TensorId) {
            let packets = plan.packets_at(tensor, server).unwrap_or(0);
            let used = self.is_used(tensor);
            let landing = &mut self.tensors[tensor.0 as usize];
            // While it is unknown whether a tensor was used, a received packet proves that it was.
            let used = used.unwrap_or(landing.bits.is_some() || landing.left == 0);
            if packets == 0 || !used {
                continue;
            }
            self.again += u32::from(landing.again.is_empty());
            landing.again.retain(|again| again.server != server);
            landing.again.push(Again { server, left: packets, bits: words(packets) });
        }
    }

    /// Expect no more repeats from a server that knows that the round is done.
    pub(super) fn stop_asking(&mut self, server: ServerId) {
        for landing in self.tensors.iter_mut().filter(|landing| !landing.again.is_empty()) {
            landing.again.retain(|again| again.server != server);
            self.again -= u32::from(landing.again.is_empty());
        }
    }

    /// Whether a packet's bytes are present.
    pub(super) fn has(&self, packet: PacketId) -> bool {
        let landing = self.landing(packet.tensor);
        landing.left == 0 || landing.bits.as_ref().is_some_and(|bits| get(bits, packet.packet))
    }

    fn landing(&self, tensor: TensorId) -> &Landing {
        &self.tensors[tensor.0 as usize]
    }
}

impl Landing {
    fn bits_for(&mut self, packets: u32) -> &mut [u64] {
        self.bits.get_or_insert_with(|| words(packets))
    }
}

fn words(bits: u32) -> Box<[u64]> {
    vec![0; bits.div_ceil(64) as usize].into()
}

fn set(bits: &mut [u64], at: u32) -> bool {
    let word = &mut bits[(at / 64) as usize];
    let before = *word;
    *word |= 1 << (at % 64);
    before != *word
}

fn unset(bits: &mut [u64], at: u32) {
    bits[(at / 64) as usize] &= !(1 << (at % 64));
}

fn get(bits: &[u64], at: u32) -> bool {
    bits[(at / 64) as usize] >> (at % 64) & 1 == 1
}
