// SPDX-License-Identifier: Apache-2.0
//! Benchmark: accesses per second that the planner plans on one core. Prints the hash of each plan.
//!
//! `cargo run --release -p foresee-sim --example plan_rate [samples]`; the default is one million samples.

#![expect(clippy::print_stdout, reason = "a command that prints its result")]

use std::sync::Arc;
use std::time::Instant;

use foresee_data_plan::{Access, Planner, PlannerConfig, PolicyChoice, SampleSizes, TierCapacity};
use foresee_sim::SizeTable;
use foresee_units::{Bytes, SampleId, SplitMix64};

const EPOCHS: usize = 6;

fn main() {
    let samples: u64 = std::env::args().nth(1).map_or(1_000_000, |count| count.parse().expect("a number"));
    let equal: Arc<dyn SampleSizes> = Arc::new(SizeTable::Uniform { count: samples, size: Bytes::new(1000) });
    let each = (0..samples).map(|id| Bytes::new(500 + SplitMix64::new(id).next() % 1000)).collect();
    let unequal: Arc<dyn SampleSizes> = Arc::new(SizeTable::Each(each));
    println!("{samples} samples, {EPOCHS} epochs, cache in parts of the data set");
    println!(
        "{:>8} {:>6} {:>9} {:>14} {:>14} {:>7}  hash",
        "sizes", "cache", "policy", "announced/s", "planned/s", "B/smp"
    );
    for (name, sizes) in [("equal", &equal), ("unequal", &unequal)] {
        for percent in [150, 90, 50, 10] {
            for policy in [PolicyChoice::NextUse, PolicyChoice::Pin, PolicyChoice::Auto] {
                run(name, sizes, samples, percent, policy);
            }
        }
    }
}

fn run(name: &str, sizes: &Arc<dyn SampleSizes>, samples: u64, percent: u64, policy: PolicyChoice) {
    let tier_capacity =
        |share| TierCapacity { capacity: Bytes::new(samples * 10 * share), align: 1, overhead: Bytes::ZERO };
    let config = PlannerConfig {
        tiers: vec![tier_capacity(percent / 2), tier_capacity(percent - percent / 2)],
        policy,
        table_budget: Bytes::MAX,
    };
    let mut planner = Planner::new(config, Arc::clone(sizes)).expect("a small data set");
    let (mut announcing, mut planning, mut tables) = (0.0, 0.0, Bytes::ZERO);
    let mut left = EPOCHS;
    let mut access = Access::default();
    let mut accesses = 0.0;
    loop {
        while left > 0 && planner.wants_epoch() {
            let order = shuffled(samples, left as u64);
            let start = Instant::now();
            planner.handle_epoch(&mut order.into_iter());
            announcing += start.elapsed().as_secs_f64();
            left -= 1;
            if left == 0 {
                planner.handle_end();
            }
        }
        let start = Instant::now();
        let mut more = true;
        for _ in 0..1024 {
            more = planner.poll_access(&mut access);
            accesses += f64::from(u8::from(more));
        }
        planning += start.elapsed().as_secs_f64();
        tables = tables.max(planner.table_bytes());
        if !more {
            break;
        }
    }
    println!(
        "{name:>8} {percent:>5}% {:>9} {:>12.2} M {:>12.2} M {:>7}  {:016x}",
        format!("{policy:?}"),
        accesses / announcing / 1e6,
        accesses / planning / 1e6,
        tables.get() / samples,
        planner.plan_hash()
    );
}

fn shuffled(samples: u64, seed: u64) -> Vec<SampleId> {
    let mut order: Vec<SampleId> = (0..samples).map(SampleId).collect();
    for last in (1..order.len()).rev() {
        let draw = SplitMix64::new(seed << 40 | last as u64).next() % (last as u64 + 1);
        order.swap(last, usize::try_from(draw).expect("below a length"));
    }
    order
}
