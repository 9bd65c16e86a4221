// SPDX-License-Identifier: Apache-2.0
//! Benchmark: simulated reads per second of each loading policy on one core.
//!
//! `cargo run --release -p foresee-sim --example loading_rate [samples [ranks [epochs [policy [readers]]]]]`.
//! Defaults: one million samples, four ranks, five epochs, every policy, and fixed shares of the origin. Caches
//! hold about half of a rank's reads.

#![expect(clippy::print_stdout, reason = "a command that prints its result")]

use std::num::NonZeroU32;
use std::time::Instant;

use foresee_model::{OriginCurve, ThreadCurve};
use foresee_sim::loading::{
    Bucket, Cluster, DataSet, Options, OriginReaders, Policy, Progress, Run, Scenario, Tier, Training,
};
use foresee_units::{Bytes, BytesPerSecond, Nanos};

const MEGA: u64 = 1_000_000;

fn main() {
    let argument =
        |at: usize, default| std::env::args().nth(at).map_or(default, |text| text.parse().expect("a number"));
    let (samples, ranks, epochs) = (argument(1, 1_000_000), argument(2, 4), argument(3, 5));
    let mut scenario = scenario(samples, ranks, u32::try_from(epochs).expect("few epochs"));
    let only: Option<Policy> = std::env::args().nth(4).map(|name| name.parse().expect("a policy"));
    if let Some(name) = std::env::args().nth(5) {
        scenario.options.readers = OriginReaders::from_name(&name).expect("readers of the origin");
    }
    println!(
        "{samples} samples, {ranks} ranks, {epochs} epochs, {} readers",
        scenario.options.readers.name()
    );
    println!(
        "{:>18} {:>10} {:>10} {:>12} {:>14} {:>8}",
        "policy", "prepare s", "train s", "reads/s", "total s", "origin"
    );
    for policy in Policy::ALL {
        if only.is_none_or(|only| only == policy) {
            run(&scenario, policy, samples * epochs);
        }
    }
}

fn run(scenario: &Scenario, policy: Policy, reads: u64) {
    let start = Instant::now();
    let mut run = match Run::new(scenario, policy) {
        Ok(run) => run,
        Err(error) => return println!("{policy:>18} {error}"),
    };
    while let Progress::Preparing { .. } = run.advance(1) {}
    let prepared = start.elapsed().as_secs_f64();
    while run.advance(u64::MAX) != Progress::Finished {}
    let trained = start.elapsed().as_secs_f64() - prepared;
    let report = run.report();
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let (rate, origin) = (reads as f64 / (trained + prepared), report.origin_requests as f64 / reads as f64);
    println!(
        "{:>18} {prepared:>10.2} {trained:>10.2} {:>10.2} M {:>14.1} {:>7.1}%",
        policy.name(),
        rate / 1e6,
        report.total,
        100.0 * origin
    );
}

/// The cluster of the published scenarios. Memory and disk each hold a quarter of a rank's share of the data.
fn scenario(samples: u64, ranks: u64, epochs: u32) -> Scenario {
    let rate = |mega: u64| BytesPerSecond::new(mega * MEGA);
    let tier = |capacity: u64, threads: u32, mega: u64| Tier {
        capacity: Bytes::new(capacity),
        threads: NonZeroU32::new(threads).expect("a thread"),
        read: ThreadCurve::new([(threads, rate(mega))]).expect("a rate"),
        write: None,
    };
    let share = samples * 133_700 / ranks;
    let origin = [(1, 330), (2, 730), (4, 1_540), (8, 2_870)].map(|(readers, mega)| (readers, rate(mega)));
    Scenario {
        cluster: Cluster {
            ranks: u32::try_from(ranks).expect("few ranks"),
            staging: tier(5_000 * MEGA, 8, 111_000),
            tiers: vec![tier(share / 4, 4, 85_000), tier(share / 4, 2, 4_000)],
            origin: OriginCurve::new(origin).expect("rates"),
            origin_link: None,
            origin_latency: Nanos::ZERO,
            origin_requests: None,
            peer_link: Some(rate(24_000)),
        },
        data: DataSet::Normal { count: samples, mean: 107_700.0, deviation: 100_000.0, seed: 42 },
        training: Training {
            batch: 32,
            epochs,
            drop_last: false,
            compute: rate(64),
            preprocess: Some(rate(200)),
        },
        options: Options::default(),
        bucket: Some(Bucket {
            miss: Nanos::from_millis(20),
            download: Nanos::from_millis(20),
            link: Nanos::ZERO,
            listing: Nanos::from_millis(50),
            hit: Nanos::from_millis(1),
            parallel: NonZeroU32::new(16).expect("a slot"),
            cache: Some(samples / ranks / 2),
            fetch: Some(1024),
            threshold: None,
            strict: false,
        }),
    }
}
