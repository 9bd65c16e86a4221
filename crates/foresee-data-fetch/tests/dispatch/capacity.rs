// SPDX-License-Identifier: Apache-2.0
//! The fraction of a source's capacity that the queue finds, its speed, and the attempts in flight.

use foresee_data_fetch::{DispatchConfig, LimitConfig};
use foresee_units::{Bytes, GAMMA, Nanos};

use crate::bench::{Answer, Bench, Capped, Source};

fn bucket(latency_ms: u64) -> Capped {
    Capped::new(Nanos::from_millis(latency_ms), 1000, 20_000_000)
}

fn disk() -> Capped {
    Capped::new(Nanos::new(200_000), 1500, 60_000_000)
}

fn run(source: Capped, total: u64, len: u64) -> Bench<Capped> {
    let mut bench = Bench::new(DispatchConfig::adaptive(), source);
    bench.stream(total, 4000, |_| len);
    bench
}

/// At least 95 % of `cap` from the `settled`-th answer on, in every 1000 answers and over the whole run.
fn assert_reaches(bench: &Bench<impl Source>, settled: usize, cap: f64) {
    let total = bench.log.won.len();
    for first in (settled..total - 1000).step_by(1000) {
        let rate = bench.rate(bench.moment(first), bench.moment(first + 1000));
        assert!(rate >= 0.95 * cap, "{rate:.0} of {cap:.0} per second after {first} answers");
    }
    let rate = bench.rate(Nanos::ZERO, bench.now);
    assert!(rate >= 0.95 * cap, "{rate:.0} of {cap:.0} per second over all");
}

/// In the last half of the run: the spread of the limits, their maximum, and the changes per second.
fn limits_late(bench: &Bench<impl Source>) -> (u32, u32, f64) {
    let half = Nanos::new(bench.now.get() / 2);
    let before = bench.log.limits.iter().rfind(|(at, _)| *at <= half).expect("it began with one").1;
    let late: Vec<u32> =
        bench.log.limits.iter().filter(|(at, _)| *at > half).map(|(_, limit)| *limit).collect();
    let most = late.iter().copied().max().unwrap_or(before).max(before);
    let least = late.iter().copied().min().unwrap_or(before).min(before);
    (most - least, most, f64::from(u32::try_from(late.len()).unwrap_or(u32::MAX)) / half.as_secs_f64())
}

#[test]
fn a_bucket_limited_in_requests_is_used_to_95_percent_after_400_answers_at_minimal_concurrency() {
    let bench = run(bucket(20), 30_000, 1000);
    assert_reaches(&bench, 400, 1000.0);
    let (spread, most, changes) = limits_late(&bench);
    assert!(most <= 26, "20 would do, {most} were used");
    assert!(spread <= 6 && changes < 1.0, "limits {spread} apart, {changes:.2} changes per second");
}

#[test]
fn a_bucket_limited_in_bytes_is_used_to_95_percent_with_few_in_flight() {
    let bench = run(bucket(20), 10_000, 110_000);
    assert_reaches(&bench, 400, 20_000_000.0 / 110_000.0);
    assert!(limits_late(&bench).1 <= 8, "five would do");
}

#[test]
fn the_capacity_of_a_far_bucket_is_found_within_3000_answers() {
    let bench = run(bucket(100), 30_000, 1000);
    assert_reaches(&bench, 3000, 1000.0);
    assert!(limits_late(&bench).1 <= 130, "100 would do");
}

#[test]
fn a_disk_is_used_to_95_percent_at_files_of_any_size() {
    for (len, total) in [(1000u32, 20_000), (110_000, 20_000), (12 << 20, 2500)] {
        let bench = run(disk(), total, u64::from(len));
        let cap = (60_000_000.0 / f64::from(len)).min(1500.0);
        assert_reaches(&bench, 400, cap);
        let (_, most, _) = limits_late(&bench);
        assert!(most <= 4, "two would do, {most} were used at {len} bytes");
    }
}

#[test]
fn a_mix_of_sizes_does_not_look_like_a_change_of_speed() {
    let len = |ticket: u64| 100 + (ticket * 2_654_435_761 % 97) * 700;
    let mut bench = Bench::new(DispatchConfig::adaptive(), bucket(20));
    bench.stream(30_000, 4000, len);
    let spent: Nanos = (0..30_000).map(|ticket| Nanos::new(1_000_000.max(len(ticket) * 50))).sum();
    assert!(bench.now.as_secs_f64() <= spent.as_secs_f64() / 0.95, "{} for work of {spent}", bench.now);
    assert!(limits_late(&bench).0 <= 4);
}

#[test]
fn a_noisy_source_is_still_used_to_90_percent() {
    let mut line = bucket(20);
    let mut bench = Bench::new(DispatchConfig::adaptive(), move |number: u64, len: u64, now: Nanos| {
        let mut answer = line.begin(number, len, now);
        answer.at += Nanos::from_millis(number.wrapping_mul(GAMMA) >> 59); // 0 to 31 ms more
        answer
    });
    bench.stream(30_000, 4000, |_| 1000);
    assert!(bench.rate(bench.moment(3000), bench.now) >= 900.0);
}

#[test]
fn the_capacity_of_a_source_is_found_again_after_a_change() {
    let (mut slow, mut fast) = (bucket(20), Capped::new(Nanos::from_millis(20), 4000, 400_000_000));
    let change = Nanos::from_secs(10);
    let source = move |number: u64, len: u64, now: Nanos| -> Answer {
        if now < change { slow.begin(number, len, now) } else { fast.begin(number, len, now) }
    };
    let mut bench = Bench::new(DispatchConfig::adaptive(), source);
    bench.stream(80_000, 4000, |_| 1000);
    assert!(bench.rate(bench.now - Nanos::from_secs(5), bench.now) >= 3800.0);
}

#[test]
fn a_fixed_limit_is_never_changed() {
    let mut bench = Bench::new(DispatchConfig::fixed(3), disk());
    bench.stream(2000, 100, |_| 1000);
    assert_eq!(bench.log.limits, [(Nanos::ZERO, 3)]);
}

#[test]
fn a_limit_stays_inside_its_bounds() {
    let limit = LimitConfig { start: 6, min: 5, max: 9, request_cost: Bytes::new(1 << 15) };
    let mut bench = Bench::new(DispatchConfig { limit, ..DispatchConfig::adaptive() }, bucket(100));
    bench.stream(3000, 500, |_| 1000);
    assert!(bench.log.limits.iter().all(|(_, limit)| (5..=9).contains(limit)));
    assert_eq!(bench.dispatch.limit(), 9);
}
