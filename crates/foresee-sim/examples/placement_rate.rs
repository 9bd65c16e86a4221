// SPDX-License-Identifier: Apache-2.0
//! Benchmark: how long the placement of a large job takes on one core, before its first step and in each epoch. Prints the
//! hash of each plan.
//!
//! `cargo run --release -p foresee-sim --example placement_rate [samples] [ranks] [nodes]`; the default is ImageNet-1k on
//! 1,024 ranks of 128 nodes.

#![expect(clippy::print_stdout, reason = "a command that prints its result")]
#![expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]

use std::sync::Arc;
use std::time::Instant;

use foresee_data_order::Order;
use foresee_data_plan::{PlacementConfig, PlacementPlanner, SampleSizes, TierCapacity};
use foresee_sim::SizeTable;
use foresee_units::{Bytes, Epoch, NodeIndex, SampleId};

/// Epochs that are known beyond the current one.
const HORIZON: usize = 8;
/// Epochs that are planned.
const PLANNED: usize = 3;
const SIZE: u64 = 100_000;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse().expect("a number"));
    let mut number = |default: u64| arguments.next().unwrap_or(default);
    let (samples, ranks, nodes) = (number(1_281_167), number(1_024), number(128));
    println!("{samples} samples, {ranks} ranks on {nodes} nodes, {HORIZON} epochs ahead");
    println!(
        "{:>9} {:>10} {:>11} {:>10} {:>12} {:>7}  hash",
        "capacity", "orders, s", "announce, s", "epoch, s", "accesses/s", "B/smp"
    );
    let start = Instant::now();
    let epochs: Vec<Vec<SampleId>> =
        (0..PLANNED + HORIZON).map(|epoch| order(samples, epoch as u64)).collect();
    let orders = start.elapsed().as_secs_f64() * (1 + HORIZON) as f64 / epochs.len() as f64;
    for percent in [200, 105, 50] {
        let limits = TierCapacity {
            capacity: Bytes::new(samples * SIZE / 100 * percent / nodes),
            align: 1,
            overhead: Bytes::ZERO,
        };
        let capacities = vec![limits; usize::try_from(nodes).expect("few nodes")];
        let sizes: Arc<dyn SampleSizes> =
            Arc::new(SizeTable::Uniform { count: samples, size: Bytes::new(SIZE) });
        let config = PlacementConfig { capacities, horizon: HORIZON };
        let mut planner = PlacementPlanner::new(config, sizes).expect("a small job");
        let accesses = |list: &[SampleId]| -> Vec<(NodeIndex, SampleId)> {
            let node = |place: u64| u16::try_from(place % ranks * nodes / ranks).expect("few nodes");
            (0..).zip(list).map(|(place, &sample)| (NodeIndex(node(place)), sample)).collect()
        };
        let start = Instant::now();
        for list in &epochs[1..=HORIZON] {
            planner.handle_epoch(&mut accesses(list).into_iter());
        }
        let announced = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for epoch in 0..PLANNED {
            if epoch > 0 {
                planner.handle_next_epoch();
                planner.handle_epoch(&mut accesses(&epochs[epoch + HORIZON]).into_iter());
            }
            for (node, sample) in accesses(&epochs[epoch]) {
                planner.handle_access(node, sample);
            }
        }
        let planned = start.elapsed().as_secs_f64() / PLANNED as f64;
        println!(
            "{percent:>8}% {orders:>10.2} {announced:>11.2} {planned:>10.2} {:>10.2} M {:>7}  {:016x}",
            samples as f64 / planned / 1e6,
            planner.table_bytes().get() / samples,
            planner.plan_hash()
        );
    }
}

/// The order of torch's `DistributedSampler`.
fn order(samples: u64, epoch: u64) -> Vec<SampleId> {
    let order = Order::Distributed { n: samples, seed: 0, shuffle: true, drop_last: false };
    let order = order.epoch(Epoch(epoch)).expect("it fits into memory");
    (0..samples).map(|place| order.id(place)).collect()
}
