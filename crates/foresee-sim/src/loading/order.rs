// SPDX-License-Identifier: Apache-2.0
//! Which rank reads which sample at which step, epoch by epoch.
//!
//! Each epoch is one list of ids in distributed form: step after step, and inside a step rank after rank, so a
//! rank's batch is a slice of it for any order. Epochs are not cached; a caller that needs one twice creates it
//! twice.

use std::ops::Range;

use foresee_data_order::Order;
use foresee_units::{Epoch, SplitMix64};

use super::draw::shuffle;

/// The order of reads, and their distribution to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessOrder {
    /// A new shuffle per epoch, cut into global batches, and those into one piece per rank. One generator serves
    /// all epochs: the order of published scenarios and of shared vectors.
    Shuffled {
        /// Seed of the generator.
        seed: u64,
    },
    /// By id, cut in the same way; equal in every epoch.
    Sequential,
    /// The order of `torch.utils.data.DistributedSampler`, as in a run: distributed one by one, and padded to
    /// equal shares.
    Distributed {
        /// Seed of the sampler.
        seed: u64,
    },
}

/// Memory for streams that is negligible for any data set; it saves passes over the epochs.
const STREAM_BYTES_FREE: usize = 64 << 20;

/// The shape of all epochs, and their generation.
#[derive(Clone, Debug)]
pub(super) struct Epochs {
    order: AccessOrder,
    samples: u32,
    pub(super) ranks: usize,
    /// Number of epochs.
    pub(super) count: u32,
    batch: usize,
    /// Steps per epoch.
    pub(super) steps: usize,
    /// Reads of an epoch, over all ranks.
    pub(super) places: usize,
}

impl Epochs {
    /// All counts must be at least 1.
    pub(super) fn new(
        order: AccessOrder,
        samples: u32,
        (ranks, batch): (usize, usize),
        epochs: u32,
        drop_last: bool,
    ) -> Self {
        let count = samples as usize;
        let (steps, places) = match order {
            AccessOrder::Shuffled { .. } | AccessOrder::Sequential => {
                let global = ranks.saturating_mul(batch);
                if drop_last {
                    (count / global, count / global * global)
                } else {
                    (count.div_ceil(global), count)
                }
            }
            AccessOrder::Distributed { .. } => {
                let each = count.div_ceil(ranks);
                let steps = if drop_last { each / batch } else { each.div_ceil(batch) };
                (steps, ranks * each.min(steps.saturating_mul(batch)))
            }
        };
        Self { order, samples, ranks, count: epochs, batch, steps, places }
    }

    /// The position of the batch of `rank` at `step` in the list.
    pub(super) fn batch(&self, step: usize, rank: usize) -> Range<usize> {
        let before = step * self.ranks * self.batch;
        let rest = self.places - before;
        let (start, end) = match self.order {
            _ if rest >= self.ranks * self.batch => (rank * self.batch, (rank + 1) * self.batch),
            // A short global batch is cut like a full one, so the last ranks get fewer samples or none.
            AccessOrder::Shuffled { .. } | AccessOrder::Sequential => {
                (rest.min(rank * self.batch), rest.min((rank + 1) * self.batch))
            }
            AccessOrder::Distributed { .. } => (rank * (rest / self.ranks), (rank + 1) * (rest / self.ranks)),
        };
        before + start..before + end
    }

    /// The position of the whole step in the list.
    pub(super) fn step(&self, step: usize) -> Range<usize> {
        let whole = self.ranks * self.batch;
        step * whole..self.places.min((step + 1) * whole)
    }

    /// The position of the batch of `rank` within its step.
    pub(super) fn batch_in_step(&self, step: usize, rank: usize) -> Range<usize> {
        let (first, batch) = (self.step(step).start, self.batch(step, rank));
        batch.start - first..batch.end - first
    }

    /// Reads of `rank` in an epoch.
    pub(super) fn reads(&self, rank: usize) -> usize {
        let last = self.steps.saturating_sub(1);
        last * self.batch + if self.steps == 0 { 0 } else { self.batch(last, rank).len() }
    }

    /// Generate the list of an epoch.
    pub(super) fn fill(&self, epoch: u32, list: &mut Vec<u32>) {
        list.clear();
        match self.order {
            AccessOrder::Sequential => list.extend(0..self.samples),
            AccessOrder::Shuffled { seed } => {
                list.extend(0..self.samples);
                let drawn = u64::from(epoch).wrapping_mul(u64::from(self.samples) - 1);
                shuffle(list, &mut SplitMix64::new(seed).skip(drawn));
            }
            AccessOrder::Distributed { seed } => self.fill_distributed(seed, epoch, list),
        }
        list.truncate(self.places);
    }

    fn fill_distributed(&self, seed: u64, epoch: u32, list: &mut Vec<u32>) {
        let n = u64::from(self.samples);
        let order = Order::Distributed { n, seed, shuffle: true, drop_last: false };
        let order =
            order.epoch(Epoch(u64::from(epoch))).expect("the epoch's list of as many ids fits into memory");
        let whole = self.ranks * self.batch;
        for before in (0..self.places).step_by(whole) {
            let batch = (self.places - before).min(whole) / self.ranks;
            for rank in 0..self.ranks {
                for nth in 0..batch {
                    let place = (before + nth * self.ranks + rank) as u64;
                    list.push(u32::try_from(order.id(place % n).0).expect("ids were counted in 32 bits"));
                }
            }
        }
    }

    /// The reads of `ranks` in all epochs, epoch after epoch, generated in one pass over the epochs.
    pub(super) fn gather(&self, ranks: Range<usize>, streams: &mut Vec<Vec<u32>>) {
        self.begin_gather(ranks.clone(), self.count, streams);
        let mut list = Vec::new();
        for epoch in 0..self.count {
            self.gather_epoch(epoch, ranks.clone(), &mut list, streams);
        }
    }

    /// The start of [`gather`](Self::gather) for callers that add one epoch at a time: empty streams with the
    /// required capacity.
    pub(super) fn begin_gather(&self, ranks: Range<usize>, epochs: u32, streams: &mut Vec<Vec<u32>>) {
        streams.resize_with(ranks.len(), Vec::new);
        for (stream, rank) in streams.iter_mut().zip(ranks) {
            stream.clear();
            stream.reserve_exact(self.reads(rank) * epochs as usize);
        }
    }

    /// Append the next epoch to the streams of `ranks`; `list` is reused memory.
    pub(super) fn gather_epoch(
        &self,
        epoch: u32,
        ranks: Range<usize>,
        list: &mut Vec<u32>,
        streams: &mut [Vec<u32>],
    ) {
        self.fill(epoch, list);
        for step in 0..self.steps {
            for (stream, rank) in streams.iter_mut().zip(ranks.clone()) {
                stream.extend_from_slice(&list[self.batch(step, rank)]);
            }
        }
    }

    /// Upper bound of the memory of streams that are gathered together: `bytes` per sample, or a small constant
    /// if that is more.
    pub(super) fn stream_budget(&self, bytes: usize) -> usize {
        bytes.max(STREAM_BYTES_FREE / self.samples as usize)
    }

    /// Bytes per sample that one rank's stream of all epochs takes, rounded up.
    pub(super) fn stream_bytes(&self) -> usize {
        (4 * self.count as usize).div_ceil(self.ranks)
    }

    /// Number of ranks whose streams are gathered together, at least one, so that a pass over the epochs serves
    /// several ranks within `bytes` per sample.
    pub(super) fn group(&self, bytes: usize) -> usize {
        let of_one = 4 * self.count as usize;
        (bytes * self.ranks / of_one).clamp(1, self.ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epochs(order: AccessOrder, samples: u32, shape: (usize, usize), drop_last: bool) -> Epochs {
        Epochs::new(order, samples, shape, 3, drop_last)
    }

    const ORDERS: [AccessOrder; 3] =
        [AccessOrder::Shuffled { seed: 1 }, AccessOrder::Sequential, AccessOrder::Distributed { seed: 1 }];

    #[test]
    fn batches_tile_every_epoch_and_samples_come_once() {
        for order in ORDERS {
            for drop_last in [false, true] {
                let epochs = epochs(order, 23, (3, 4), drop_last);
                let mut place = 0;
                for step in 0..epochs.steps {
                    assert_eq!(epochs.step(step).start, place);
                    for rank in 0..3 {
                        let batch = epochs.batch(step, rank);
                        assert_eq!(batch.start, place);
                        place = batch.end;
                    }
                    assert_eq!(epochs.step(step).end, place);
                }
                assert_eq!(place, epochs.places);
                let mut list = Vec::new();
                for epoch in 0..3 {
                    epochs.fill(epoch, &mut list);
                    assert_eq!(list.len(), place);
                    // 23 samples among 3 ranks are padded to 24, which are two full batches each.
                    let padded = matches!(order, AccessOrder::Distributed { .. });
                    list.sort_unstable();
                    list.dedup();
                    assert_eq!(list.len(), place - usize::from(padded), "{order:?} {drop_last}");
                }
            }
        }
    }

    #[test]
    fn a_short_batch_leaves_the_last_ranks_with_fewer() {
        let epochs = epochs(AccessOrder::Sequential, 17, (3, 4), false);
        assert_eq!([0, 1, 2].map(|rank| epochs.batch(1, rank)), [12..16, 16..17, 17..17]);
        assert_eq!([0, 1, 2].map(|rank| epochs.reads(rank)), [8, 5, 4]);
    }

    #[test]
    fn streams_match_the_lists() {
        for order in ORDERS {
            let epochs = epochs(order, 50, (4, 3), false);
            let (mut streams, mut list) = (Vec::new(), Vec::new());
            epochs.gather(1..3, &mut streams);
            let mut expected = vec![Vec::new(); 2];
            for epoch in 0..3 {
                epochs.fill(epoch, &mut list);
                for step in 0..epochs.steps {
                    for rank in 1..3 {
                        expected[rank - 1].extend_from_slice(&list[epochs.batch(step, rank)]);
                    }
                }
            }
            assert_eq!(streams, expected);
            assert_eq!(streams[0].len(), 3 * epochs.reads(1));
        }
    }

    #[test]
    fn a_distributed_order_is_that_of_the_sampler() {
        // torch 2: list(DistributedSampler(range(10), num_replicas=2, rank=r, seed=0)), one batch of 5.
        let order = epochs(AccessOrder::Distributed { seed: 0 }, 10, (2, 5), false);
        let mut list = Vec::new();
        order.fill(0, &mut list);
        assert_eq!(list, [4, 7, 3, 0, 6, 1, 5, 9, 8, 2]);
    }
}
