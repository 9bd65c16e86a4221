// SPDX-License-Identifier: Apache-2.0
//! Several consumers at one queue, as in the host of a node's cache: each waits for its next batch.

use foresee_data_fetch::{Class, DispatchConfig};
use foresee_units::Nanos;

use crate::bench::{Bench, Capped, Source};

const CONSUMERS: u64 = 8;
const BATCH: u64 = 16;
/// Batches that a consumer requests ahead.
const WINDOW: u64 = 4;
/// Batches of a consumer.
const BATCHES: u64 = 1 << 16;

/// Consumers without compute, of which each waits for its batches one after the other.
struct Node<S> {
    bench: Bench<S>,
    requested: [u64; 8],
    taken: [u64; 8],
    waits_for: [Option<u64>; 8],
}

impl<S: Source> Node<S> {
    fn tickets(consumer: usize, batch: u64) -> std::ops::Range<u64> {
        let first = (consumer as u64 * BATCHES + batch) * BATCH;
        first..first + BATCH
    }

    /// Request the batches of a consumer, which expects each at `deadline`.
    fn request(&mut self, consumer: usize, deadline: Nanos) {
        while self.requested[consumer] < self.taken[consumer] + WINDOW {
            for ticket in Self::tickets(consumer, self.requested[consumer]) {
                self.bench.request(ticket, 1000, Class::Staging, deadline);
            }
            self.requested[consumer] += 1;
        }
    }

    /// Take the complete batches of a consumer, and report that it waits for the next.
    fn take(&mut self, consumer: usize) {
        let won = &self.bench.log.won;
        while Self::tickets(consumer, self.taken[consumer]).all(|ticket| won.contains_key(&ticket)) {
            self.taken[consumer] += 1;
        }
        let next = self.taken[consumer];
        if self.requested[consumer] > next && self.waits_for[consumer].replace(next) != Some(next) {
            for ticket in Self::tickets(consumer, next) {
                self.bench.dispatch.handle_urgent(ticket, self.bench.now);
            }
        }
    }
}

#[test]
fn consumers_that_wait_for_a_scarce_source_read_alike_whatever_deadlines_they_expected() {
    let source = Capped::new(Nanos::from_millis(20), 200, 1_000_000_000);
    let mut node = Node {
        bench: Bench::new(DispatchConfig::adaptive(), source),
        requested: [0; 8],
        taken: [0; 8],
        waits_for: [None; 8],
    };
    let minute = Nanos::from_secs(60);
    while node.bench.now < minute {
        for consumer in 0..8 {
            // Only a consumer with a batch knows its rate, and then expects the others at once.
            let now = node.bench.now;
            let expected = if node.taken[consumer] == 0 { now + minute } else { now };
            node.request(consumer, expected);
            node.take(consumer);
        }
        assert!(node.bench.step());
    }
    let (least, most) = (node.taken.iter().min().unwrap(), node.taken.iter().max().unwrap());
    assert!(most - least <= 1, "{:?}", node.taken);
    assert!(*least >= 60 * 200 * 95 / 100 / CONSUMERS / BATCH, "{:?}", node.taken);
}
