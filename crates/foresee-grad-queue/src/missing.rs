// SPDX-License-Identifier: Apache-2.0
//! Missing contributions of a round, for diagnostics of a long wait.
//!
//! It is separate from the slots, which are many and have a lock each. A driver visits them one after the other
//! when a wait is long, and never on the path of a packet. It does not decide whether a rank is lost.

use std::collections::BTreeMap;
use std::fmt;

use foresee_units::Rank;

use crate::{Members, PacketId, Plan, Round, SlotPair, TensorId};

/// The packets that live ranks owe to a round's unfinished sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingContributions {
    round: Round,
    owed: BTreeMap<(Rank, TensorId), u32>,
}

/// The packets of one tensor that one rank owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingPackets {
    /// The rank that is waited for.
    pub rank: Rank,
    /// The tensor.
    pub tensor: TensorId,
    /// Packets of it that the rank has neither pushed nor skipped: at least 1.
    pub packets: u32,
}

impl MissingContributions {
    /// An empty collection for a round.
    pub fn new(round: Round) -> Self {
        Self { round, owed: BTreeMap::new() }
    }

    /// Add the missing contributions of one packet's slots.
    pub fn add(&mut self, packet: PacketId, pair: &SlotPair, members: &Members) {
        for rank in pair.missing(members, self.round) {
            *self.owed.entry((rank, packet.tensor)).or_default() += 1;
        }
    }

    /// All missing contributions, by rank, then by tensor.
    pub fn iter(&self) -> impl Iterator<Item = MissingPackets> + '_ {
        self.owed.iter().map(|((rank, tensor), packets)| MissingPackets {
            rank: *rank,
            tensor: *tensor,
            packets: *packets,
        })
    }

    /// The first such tensor in plan order, of the first rank with any.
    pub fn first(&self) -> Option<MissingPackets> {
        self.iter().min_by_key(|owed| (owed.tensor, owed.rank))
    }

    /// The missing packets of the first of those ranks as text: `14 packets of 'layer3.weight' and 3 other
    /// tensors of rank 2`.
    pub fn describe<'a>(&'a self, plan: &'a Plan) -> impl fmt::Display + 'a {
        Line { waits: self, plan }
    }
}

struct Line<'a> {
    waits: &'a MissingContributions,
    plan: &'a Plan,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(MissingPackets { rank, tensor, packets }) = self.waits.first() else {
            return f.write_str("nothing");
        };
        let tensor = self.plan.name(tensor);
        let plural = if packets == 1 { "" } else { "s" };
        write!(f, "{packets} packet{plural} of '{tensor}'")?;
        match self.waits.iter().filter(|owed| owed.rank == rank).count() {
            0 | 1 => Ok(()),
            2 => f.write_str(" and 1 other tensor"),
            tensors => write!(f, " and {} other tensors", tensors - 1),
        }?;
        write!(f, " of rank {rank}")
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
    fn the_line_names_rank_tensor_and_packets() {
        let spec = |name: &str| TensorSpec {
            name: name.to_owned(),
            dtype: Dtype::F32,
            shape: vec![32],
            strides: vec![1],
            class: 0,
            op: Op::Mean,
        };
        let pattern = Pattern::dedicated(1).unwrap();
        let config = PlanConfig { packet_bytes: 64, wire: Wire::Own, pattern };
        let plan = Plan::new(config, vec![spec("a"), spec("b")]).unwrap();
        let (members, budget) = (Members::all(0, 3).unwrap(), EarlyBudget::new(Bytes::ZERO));
        let job = JobView { plan: &plan, members: &members, early_budget: &budget, oldest: Round(0) };
        let mut waits = MissingContributions::new(Round(0));
        assert_eq!(waits.describe(&plan).to_string(), "nothing");
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
            waits.add(packet, &pair, &members);
        }
        assert_eq!(waits.first(), Some(MissingPackets { rank: Rank(1), tensor: TensorId(0), packets: 2 }));
        let line = "2 packets of 'a' of rank 1";
        assert_eq!(waits.describe(&plan).to_string(), line);
        let of_two: Vec<MissingPackets> = waits.iter().filter(|owed| owed.rank == Rank(2)).collect();
        assert_eq!(of_two.iter().map(|owed| owed.packets).collect::<Vec<_>>(), [2, 1]);
        waits.owed.retain(|(rank, _), _| *rank == Rank(2));
        let line = "2 packets of 'a' and 1 other tensor of rank 2";
        assert_eq!(waits.describe(&plan).to_string(), line);
    }
}
