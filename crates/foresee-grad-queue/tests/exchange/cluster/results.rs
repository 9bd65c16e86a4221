// SPDX-License-Identifier: Apache-2.0
//! What every rank has to have received: the loop over ranks in order, and one division.

use foresee_grad_queue::{PacketId, Round, TensorId};

use super::Cluster;

impl Cluster {
    /// Compares rounds that have landed with what they have to be, and with what others got.
    pub(super) fn compare(&mut self, at: usize) {
        loop {
            let node = &self.ranks[at];
            let round = node.compared;
            if round >= node.collect.current() || !node.collect.is_round_settled(round) {
                return;
            }
            for tensor in (0..self.plan.tensors()).map(TensorId) {
                let used = node.collect.is_used(round, tensor).expect("it is still open");
                if used && self.plan.packets(tensor) != Some(0) {
                    let got = &node.received[&(round, tensor)];
                    self.check_result(round, tensor, got);
                    let first = self.results.entry((round, tensor)).or_insert_with(|| got.clone());
                    assert_eq!(first, got, "every rank gets the same bits");
                }
            }
            self.ranks[at].compared = round.next();
        }
    }

    /// The sum in rank order of those who pushed and were alive in some generation, over all who were; zeros if nobody
    /// was left.
    fn check_result(&self, round: Round, tensor: TensorId, got: &[u8]) {
        let means: Vec<Vec<u8>> = self
            .alive
            .iter()
            .map(|alive| {
                let pushed = self.ranks.iter().filter(|rank| alive.contains(&rank.rank));
                let pushed: Vec<&Vec<u8>> =
                    pushed.filter_map(|rank| rank.gradients.get(&(round, tensor))).collect();
                mean(&pushed, alive.len(), got.len())
            })
            .collect();
        for packet in 0..self.plan.packets(tensor).unwrap() {
            let (offset, bytes) = self.plan.range(PacketId { tensor, packet }).unwrap();
            let range = usize::try_from(offset).unwrap()..usize::try_from(offset + u64::from(bytes)).unwrap();
            let fits = means.iter().any(|mean| mean[range.clone()] == got[range.clone()]);
            assert!(
                fits,
                "packet {packet} of tensor {} in round {round} is not a mean in rank order",
                tensor.0
            );
        }
    }
}

fn mean(gradients: &[&Vec<u8>], alive: usize, len: usize) -> Vec<u8> {
    let Some((first, rest)) = gradients.split_first() else { return vec![0; len] };
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks::<4>().0.iter().map(|e| f32::from_le_bytes(*e)).collect()
    };
    let mut sum = floats(first);
    for gradient in rest {
        sum.iter_mut().zip(floats(gradient)).for_each(|(sum, value)| *sum += value);
    }
    let count = f32::from(u16::try_from(alive).unwrap());
    sum.into_iter().flat_map(|sum| (sum / count).to_le_bytes()).collect()
}
