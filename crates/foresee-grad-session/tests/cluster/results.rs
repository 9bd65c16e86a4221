// SPDX-License-Identifier: Apache-2.0
//! The expected results: the sum over ranks in order, and one division.

use foresee_grad_queue::{PacketId, TensorId};
use foresee_units::Rank;

use crate::rank::PlanRound;
use crate::world::World;

impl World {
    /// Compare received rounds with the expected results, and with those of other ranks.
    pub(crate) fn compare(&mut self, at: usize) {
        loop {
            let node = &self.ranks[at];
            let Some(collect) = node.session.collector() else { return };
            let round = node.compared;
            if round >= collect.current() || !collect.is_round_settled(round) {
                return;
            }
            let at_plan = node.plan;
            for tensor in (0..self.plans[at_plan].tensors()).map(TensorId) {
                let node = &self.ranks[at];
                let Some(collect) = node.session.collector() else { return };
                // A done round is dropped, with its used tensors.
                let received = node.received.get(&((at_plan, round), tensor));
                if let Some(got) = received.filter(|_| collect.is_used(round, tensor) != Some(false)) {
                    self.check_result((at_plan, round), tensor, got);
                    let first = self.results.entry(((at_plan, round), tensor)).or_insert_with(|| got.clone());
                    assert_eq!(first, got, "every rank gets the same bits");
                }
            }
            self.ranks[at].compared = round.next();
        }
    }

    /// Each packet is the mean of the pushing members of some membership, in rank order.
    fn check_result(&self, round: PlanRound, tensor: TensorId, got: &[u8]) {
        let mean_of = |members: &Vec<Rank>, without: Option<Rank>| {
            let pushed = members.iter().filter(|rank| Some(**rank) != without);
            let pushed =
                pushed.filter_map(|rank| self.ranks[rank.0 as usize].gradients.get(&(round, tensor)));
            mean(&pushed.collect::<Vec<_>>(), members.len(), got.len())
        };
        // A byzantine rank may skip a tensor and push it later.
        let byzantine = (0..self.setup.ranks).map(Rank).find(|rank| self.is_byzantine(*rank));
        let means = self.memberships.iter().flat_map(|members| {
            [None, byzantine].into_iter().map(|without| mean_of(members, without)).collect::<Vec<_>>()
        });
        let means: Vec<Vec<u8>> = means.collect();
        let plan = &self.plans[round.0];
        for packet in 0..plan.packets(tensor).expect("it is the plan's") {
            let (offset, bytes) = plan.range(PacketId { tensor, packet }).expect("it is the plan's");
            let offset = usize::try_from(offset).expect("it is small");
            let range = offset..offset + bytes as usize;
            assert!(
                means.iter().any(|mean| mean[range.clone()] == got[range.clone()]),
                "packet {packet} of tensor {} in round {} of plan {} is not a mean in rank order",
                tensor.0,
                round.1,
                round.0
            );
        }
    }
}

fn mean(gradients: &[&Vec<u8>], members: usize, len: usize) -> Vec<u8> {
    let Some((first, rest)) = gradients.split_first() else { return vec![0; len] };
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks::<4>().0.iter().map(|e| f32::from_le_bytes(*e)).collect()
    };
    let mut sum = floats(first);
    for gradient in rest {
        sum.iter_mut().zip(floats(gradient)).for_each(|(sum, value)| *sum += value);
    }
    let count = f32::from(u16::try_from(members).expect("there are few"));
    sum.into_iter().flat_map(|sum| (sum / count).to_le_bytes()).collect()
}
