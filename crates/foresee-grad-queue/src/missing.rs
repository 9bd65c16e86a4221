// SPDX-License-Identifier: Apache-2.0
//! Missing contributions of a round, for diagnostics of a long wait.
//!
//! It is separate from the slots, which are many and have a lock each. A driver visits them one after the other
//! when a wait is long, and never on the path of a packet. It does not decide whether a rank is lost.

use std::collections::BTreeMap;

use foresee_units::Rank;

use crate::{Members, PacketId, Plan, Round, SlotPair, TensorId};

/// The packets of a round's unfinished sums that live ranks have neither pushed nor skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingContributions {
    round: Round,
    /// Packets by rank and tensor, at least 1 each.
    packets: BTreeMap<(Rank, TensorId), u32>,
}

impl MissingContributions {
    /// An empty collection for a round.
    pub fn new(round: Round) -> Self {
        Self { round, packets: BTreeMap::new() }
    }

    /// Add the missing contributions of one packet's slots.
    pub fn add(&mut self, packet: PacketId, pair: &SlotPair, members: &Members) {
        for rank in pair.missing(members, self.round) {
            *self.packets.entry((rank, packet.tensor)).or_default() += 1;
        }
    }

    /// The first missing tensor in plan order, of the first rank that owes it, such as `14 packets of 'layer3.weight'
    /// and 3 other tensors of rank 2`; `None` if nothing is missing.
    pub fn describe(&self, plan: &Plan) -> Option<String> {
        let ((rank, tensor), packets) =
            self.packets.iter().min_by_key(|((rank, tensor), _)| (*tensor, *rank))?;
        let plural = if *packets == 1 { "" } else { "s" };
        let others = match self.packets.keys().filter(|(other, _)| other == rank).count() {
            0 | 1 => String::new(),
            2 => " and 1 other tensor".to_owned(),
            tensors => format!(" and {} other tensors", tensors - 1),
        };
        Some(format!("{packets} packet{plural} of '{}'{others} of rank {rank}", plan.name(*tensor)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Buffer, Dtype, EarlyBudget, JobView, Op, Pattern, PlanConfig, Sender, TensorSpec, Verdict, Wire,
    };
    use foresee_units::Bytes;

    #[test]
    fn the_description_names_rank_tensor_and_packets() {
        let spec = |name: &str| TensorSpec {
            name: name.to_owned(),
            dtype: Dtype::F32,
            shape: vec![32],
            strides: vec![1],
            class: 0,
            op: Op::Mean,
        };
        let pattern = Pattern::new(&[1]).unwrap();
        let config = PlanConfig { packet_bytes: 64, wire: Wire::Own, pattern };
        let plan = Plan::new(config, vec![spec("a"), spec("b")]).unwrap();
        let (members, budget) =
            (Members::new(0, 3, (0..3).map(Rank)).unwrap(), EarlyBudget::new(Bytes::ZERO));
        let job = JobView { plan: &plan, members: &members, early_budget: &budget, oldest: Round(0) };
        let mut missing = MissingContributions::new(Round(0));
        assert_eq!(missing.describe(&plan), None);
        let packets = [(0, 0), (0, 1), (1, 0)].map(|(t, packet)| PacketId { tensor: TensorId(t), packet });
        for packet in packets {
            let mut pair = SlotPair::default();
            let ranks = if packet.tensor == TensorId(0) { 0..1 } else { 0..2 };
            for rank in ranks.map(Rank) {
                let sender = Sender { rank, generation: 0, round: Round(0) };
                let Verdict::Read(admission) = pair.admit(&job, packet, sender, 64).unwrap() else {
                    panic!()
                };
                let _ = pair.accept(&job, admission, &mut Buffer::zeroed(64)).unwrap();
            }
            missing.add(packet, &pair, &members);
        }
        assert_eq!(missing.describe(&plan).unwrap(), "2 packets of 'a' of rank 1");
        missing.packets.retain(|(rank, _), _| *rank == Rank(2));
        assert!(missing.packets.values().eq(&[2, 1]));
        assert_eq!(missing.describe(&plan).unwrap(), "2 packets of 'a' and 1 other tensor of rank 2");
    }
}
