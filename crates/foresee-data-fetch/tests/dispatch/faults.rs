// SPDX-License-Identifier: Apache-2.0
//! Throttling, stalls, slow tails and outages: their cost, and the recovery.

use foresee_data_fetch::{Class, DispatchConfig};
use foresee_units::{Nanos, ReadOutcome};

use crate::bench::{Answer, Bench, Capped, Source};

fn bucket() -> Capped {
    Capped::new(Nanos::from_millis(20), 1000, 20_000_000)
}

fn soon(now: Nanos, outcome: ReadOutcome) -> Answer {
    Answer { at: now + Nanos::from_millis(20), outcome }
}

#[test]
fn after_heavy_throttling_the_source_is_fully_used_again_and_no_request_is_lost() {
    let mut line = bucket();
    let (storm, calm) = (Nanos::from_secs(5), Nanos::from_secs(35));
    let mut refusals = 0u64;
    let source = move |number: u64, len: u64, now: Nanos| {
        if now >= storm && now < calm {
            refusals += 1;
            assert!(refusals < 200, "a source that rejects everything is not overloaded");
            return soon(now, ReadOutcome::Throttled { retry_after: None });
        }
        line.begin(number, len, now)
    };
    let mut bench = Bench::new(DispatchConfig::adaptive(), source);
    bench.stream(30_000, 4000, |_| 1000);
    assert!(bench.log.failed.is_empty());
    assert!(bench.log.limits.iter().any(|(at, limit)| *at < calm && *limit == 1));
    let again = calm + Nanos::from_secs(10);
    let rate = bench.rate(again, again + Nanos::from_secs(5));
    assert!(rate >= 950.0, "{rate:.0} per second ten seconds after the storm");
}

#[test]
fn a_source_that_throttles_above_its_rate_is_still_used_well() {
    let (mut second, mut served) = (0, 0);
    let source = move |_: u64, _: u64, now: Nanos| {
        let this = now.get() / 100_000_000;
        if this != second {
            (second, served) = (this, 0);
        }
        served += 1;
        let fits = served <= 100;
        soon(now, if fits { ReadOutcome::Ok } else { ReadOutcome::Throttled { retry_after: None } })
    };
    let mut bench = Bench::new(DispatchConfig::adaptive(), source);
    bench.stream(30_000, 4000, |_| 1000);
    assert!(bench.log.failed.is_empty());
    let rate = bench.rate(Nanos::from_secs(5), bench.now - Nanos::from_secs(2));
    let throttled = bench.dispatch.stats().throttles;
    assert!(rate >= 800.0, "{rate:.0} of 1000 per second");
    assert!(throttled <= 1000, "{throttled} refusals for 30,000 answers");
}

#[test]
fn retry_after_is_honoured_by_the_whole_source() {
    let pause = Nanos::from_secs(3);
    let source = move |number: u64, _: u64, now: Nanos| {
        let quiet = Nanos::from_millis(20)..Nanos::from_millis(20) + pause;
        assert!(!quiet.contains(&now), "requested again at {now}");
        let throttled = ReadOutcome::Throttled { retry_after: Some(pause) };
        soon(now, if number == 0 { throttled } else { ReadOutcome::Ok })
    };
    let mut bench = Bench::new(DispatchConfig::adaptive(), source);
    bench.stream(16, 16, |_| 1000);
    assert!(bench.log.failed.is_empty());
    assert!(bench.now >= Nanos::from_millis(40) + pause);
}

/// Every hundredth attempt after the first thousand stalls until its tier times out after half a minute.
fn stalling(number: u64, len: u64, now: Nanos, line: &mut Capped) -> Answer {
    let mut answer = line.begin(number, len, now);
    if number > 1000 && number.is_multiple_of(100) {
        answer = Answer { at: now + Nanos::from_secs(30), outcome: ReadOutcome::Retryable };
    }
    answer
}

#[test]
fn stalled_attempts_are_hedged_and_cancelled_within_5_percent_of_the_bytes() {
    let mut line = bucket();
    let source = move |number: u64, len: u64, now: Nanos| stalling(number, len, now, &mut line);
    let mut bench = Bench::new(DispatchConfig::adaptive(), source);
    bench.stream(10_000, 2000, |_| 1000);
    assert_eq!(bench.log.won.len(), 10_000);
    let stats = bench.dispatch.stats();
    assert!((80..300).contains(&stats.hedges), "{} second attempts", stats.hedges);
    assert!(stats.hedge_wins > 0);
    assert!(stats.hedged_bytes.get() * 20 <= stats.moved.get());
}

#[test]
fn hedges_shorten_a_slow_tail() {
    let slowest = |hedge_share: f64| {
        let source = |number: u64, _: u64, now: Nanos| {
            let took = if number % 200 == 199 { 2000 } else { 20 };
            Answer { at: now + Nanos::from_millis(took), outcome: ReadOutcome::Ok }
        };
        let mut bench = Bench::new(DispatchConfig { hedge_share, ..DispatchConfig::adaptive() }, source);
        let mut waits = Vec::new();
        for ticket in 0..4000 {
            let start = bench.now;
            bench.request(ticket, 1000, Class::Staging, start + Nanos::from_millis(30));
            while !bench.log.won.contains_key(&ticket) {
                assert!(bench.step());
            }
            waits.push(bench.now - start);
        }
        waits.sort_unstable();
        waits[waits.len() - 5]
    };
    assert_eq!(slowest(0.0), Nanos::from_secs(2));
    assert!(slowest(0.05) < Nanos::from_millis(100));
}

#[test]
fn requests_with_slack_are_not_hedged() {
    let mut line = bucket();
    let source = move |number: u64, len: u64, now: Nanos| {
        let mut answer = line.begin(number, len, now);
        if number.is_multiple_of(50) {
            answer.at += Nanos::from_secs(1);
        }
        answer
    };
    let mut bench = Bench::new(DispatchConfig::adaptive(), source);
    for ticket in 0..3000 {
        bench.request(ticket, 1000, Class::Staging, Nanos::from_secs(3600));
    }
    while bench.step() {}
    assert_eq!(bench.log.won.len(), 3000);
    assert_eq!(bench.dispatch.stats().hedges, 0);
}

#[test]
fn a_connection_reset_costs_time_but_no_request() {
    let mut line = bucket();
    let source = move |number: u64, len: u64, now: Nanos| {
        if number % 7 == 3 { soon(now, ReadOutcome::Retryable) } else { line.begin(number, len, now) }
    };
    let mut bench = Bench::new(DispatchConfig::adaptive(), source);
    bench.stream(5000, 2000, |_| 1000);
    assert!(bench.log.failed.is_empty());
    assert_eq!(bench.dispatch.stats().retries, bench.log.attempts - 5000);
}

#[test]
fn an_outage_of_half_a_minute_fails_nothing() {
    let mut line = bucket();
    let source = move |number: u64, len: u64, now: Nanos| {
        if now >= Nanos::from_secs(2) && now < Nanos::from_secs(32) {
            soon(now, ReadOutcome::Retryable)
        } else {
            line.begin(number, len, now)
        }
    };
    let mut bench = Bench::new(DispatchConfig::adaptive(), source);
    bench.stream(5000, 2000, |_| 1000);
    assert!(bench.log.failed.is_empty(), "{:?}", bench.log.failed);
}

#[test]
fn a_persistent_fault_fails_after_ten_tries_with_its_outcome() {
    let source = |_: u64, _: u64, now: Nanos| soon(now, ReadOutcome::Retryable);
    let mut bench = Bench::new(DispatchConfig::adaptive(), source);
    bench.stream(3, 3, |_| 1000);
    for (fault, tries) in bench.log.failed.values() {
        assert_eq!((*fault, *tries), (ReadOutcome::Retryable, 10));
    }
    assert_eq!(bench.log.failed.len(), 3);
}

#[test]
fn persistent_throttling_fails_after_the_patience() {
    let source = |_: u64, _: u64, now: Nanos| soon(now, ReadOutcome::Throttled { retry_after: None });
    let mut bench = Bench::new(DispatchConfig::adaptive(), source);
    bench.stream(2, 2, |_| 1000);
    assert_eq!(bench.log.failed.len(), 2);
    assert!(bench.now <= Nanos::from_secs(190), "{}", bench.now);
}

#[test]
fn a_missing_object_is_not_requested_again() {
    let source = |_: u64, _: u64, now: Nanos| soon(now, ReadOutcome::Absent);
    let mut bench = Bench::new(DispatchConfig::adaptive(), source);
    bench.stream(40, 40, |_| 1000);
    assert_eq!(bench.log.attempts, 40);
    assert!(bench.log.failed.values().all(|failed| *failed == (ReadOutcome::Absent, 1)));
}

#[test]
fn a_hanging_first_read_does_not_delay_others_for_long() {
    let mut line = bucket();
    let source = move |number: u64, len: u64, now: Nanos| {
        let mut answer = line.begin(number, len, now);
        if number < 2 {
            answer.at = Nanos::MAX;
        }
        answer
    };
    let mut bench = Bench::new(DispatchConfig { shared: true, ..DispatchConfig::adaptive() }, source);
    for ticket in 0..20 {
        bench.request(ticket, 1000, Class::Staging, Nanos::MAX);
    }
    while bench.log.won.len() < 18 {
        assert!(bench.step());
    }
    assert!(bench.now < Nanos::from_secs(1), "{}", bench.now);
}
