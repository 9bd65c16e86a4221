// SPDX-License-Identifier: Apache-2.0
//! Sources that refuse requests above a rate, which changes twice: the share that is used, and the refusals.

use std::cell::RefCell;
use std::rc::Rc;

use foresee_data_fetch::{Class, DispatchConfig, LimitConfig};
use foresee_units::{Nanos, ReadOutcome, SplitMix64};

use crate::bench::{Answer, Bench, Capped, Source};

/// Requests that are refused.
#[derive(Clone, Copy, Debug)]
enum Rule {
    /// Unused requests may follow later, those of this time at most (GCRA, ITU-T I.371).
    Bucket { burst: Nanos },
    /// Each interval of this length has its own requests.
    Window { length: Nanos },
}

/// Requests per second at first, after [`RAISED_AT`], and after [`LOWERED_AT`].
const CAPS: [u64; 3] = [200, 400, 200];
const RAISED_AT: Nanos = Nanos::from_secs(25);
const LOWERED_AT: Nanos = Nanos::from_secs(70);
const END: Nanos = Nanos::from_secs(100);

/// A source that refuses above a rate, and the arrival and admission of its requests.
#[derive(Debug)]
struct Refusing {
    rule: Rule,
    latency: Nanos,
    /// Maximum further time until a request arrives.
    jitter: u64,
    draw: SplitMix64,
    cap: u64,
    reserved_until: Nanos,
    window: u64,
    admitted: u64,
    log: Vec<(Nanos, bool)>,
}

impl Refusing {
    fn new(rule: Rule, latency: Nanos, jitter: Nanos) -> Self {
        Self {
            rule,
            latency,
            jitter: jitter.get() + 1,
            draw: SplitMix64::new(7),
            cap: 0,
            reserved_until: Nanos::ZERO,
            window: u64::MAX,
            admitted: 0,
            log: Vec::new(),
        }
    }

    fn admits(&mut self, at: Nanos) -> bool {
        let nth = usize::from(at >= RAISED_AT) + usize::from(at >= LOWERED_AT);
        let cap = CAPS[nth];
        if self.cap != cap {
            (self.cap, self.reserved_until) = (cap, at);
        }
        match self.rule {
            Rule::Bucket { burst } => {
                let from = self.reserved_until.max(at.saturating_sub(burst));
                if from <= at {
                    self.reserved_until = from + Nanos::new(1_000_000_000 / cap);
                }
                from <= at
            }
            Rule::Window { length } => {
                let window = at.get() / length.get();
                if self.window != window {
                    (self.window, self.admitted) = (window, 0);
                }
                self.admitted += 1;
                self.admitted * 1_000_000_000 <= cap * length.get()
            }
        }
    }

    /// Admitted and refused requests from `from` to `to`, in seconds: the share of `cap` that is used, and the share of
    /// the requests that is refused.
    fn shares(&self, from: u64, to: u64, cap: u64) -> (f64, f64) {
        let (mut admitted, mut all) = (0_u32, 0_u32);
        for (at, is_admitted) in &self.log {
            if *at >= Nanos::from_secs(from) && *at < Nanos::from_secs(to) {
                (admitted, all) = (admitted + u32::from(*is_admitted), all + 1);
            }
        }
        let most = u32::try_from((to - from) * cap).expect("a few seconds");
        (f64::from(admitted) / f64::from(most), f64::from(all - admitted) / f64::from(all.max(1)))
    }
}

impl Source for Rc<RefCell<Refusing>> {
    fn begin(&mut self, _: u64, _: u64, now: Nanos) -> Answer {
        let mut source = self.borrow_mut();
        let half = Nanos::new(source.latency.get() / 2);
        let jitter = source.jitter;
        let arrival = now + half + Nanos::new(source.draw.below(jitter));
        let is_admitted = source.admits(arrival);
        source.log.push((arrival, is_admitted));
        let refused = ReadOutcome::Throttled { retry_after: None };
        Answer { at: arrival + half, outcome: if is_admitted { ReadOutcome::Ok } else { refused } }
    }
}

/// Run `queues` that always have requests until [`END`]; return the answers of each.
fn run(source: &Rc<RefCell<Refusing>>, queues: usize) -> Vec<usize> {
    let limit = LimitConfig { start: 32, ..LimitConfig::default() };
    let config = DispatchConfig { limit, shared: queues > 1, ..DispatchConfig::adaptive() };
    let mut benches: Vec<_> = (0..queues).map(|_| Bench::new(config.clone(), Rc::clone(source))).collect();
    let mut requested = vec![0; queues];
    let mut now = Nanos::ZERO;
    while now < END {
        for (bench, requested) in benches.iter_mut().zip(&mut requested) {
            bench.now = now;
            while bench.end_one() {}
            while *requested - (bench.log.won.len() as u64) < 100 {
                bench.request(*requested, 1000, Class::Staging, now + Nanos::from_secs(10));
                *requested += 1;
            }
            bench.drain();
            assert!(bench.log.failed.is_empty());
        }
        now = benches.iter().filter_map(Bench::next).min().expect("there is always a request");
    }
    benches.iter().map(|bench| bench.log.won.len()).collect()
}

/// Check the settled shares at each of the caps, for one queue of each kind of source.
fn check(rule: Rule, refused_max: f64) {
    for (latency, jitter) in [(20, 0), (57, 3)] {
        let [latency, jitter] = [latency, jitter].map(Nanos::from_millis);
        let source = Rc::new(RefCell::new(Refusing::new(rule, latency, jitter)));
        run(&source, 1);
        let case = format!("{rule:?}, {latency} and up to {jitter}");
        for (from, to, cap) in [(10, 25, 200), (45, 70, 400), (80, 100, 200)] {
            let (used, refused) = source.borrow().shares(from, to, cap);
            assert!(used >= 0.95, "{case}: {used:.3} was used from {from} s on");
            assert!(refused <= refused_max, "{case}: {refused:.4} was refused from {from} s on");
        }
    }
}

#[test]
fn a_source_with_a_burst_of_a_second_is_used_with_few_refusals_also_when_its_rate_changes() {
    check(Rule::Bucket { burst: Nanos::from_secs(1) }, 0.01);
}

#[test]
fn a_source_with_a_short_burst_is_used_with_few_refusals_also_when_its_rate_changes() {
    check(Rule::Bucket { burst: Nanos::from_millis(20) }, 0.01);
}

#[test]
fn a_source_that_counts_by_the_second_is_used_with_few_refusals_also_when_its_rate_changes() {
    // It refuses all requests until the next second.
    check(Rule::Window { length: Nanos::from_secs(1) }, 0.02);
}

#[test]
fn a_source_that_counts_in_short_windows_is_used_with_few_refusals_also_when_its_rate_changes() {
    check(Rule::Window { length: Nanos::from_millis(100) }, 0.01);
}

#[test]
fn queues_that_share_a_rate_use_it_together_and_have_similar_shares() {
    let rule = Rule::Bucket { burst: Nanos::from_secs(1) };
    let source = Refusing::new(rule, Nanos::from_millis(20), Nanos::from_millis(5));
    let source = Rc::new(RefCell::new(source));
    let won = run(&source, 8);
    let (least, most) = (won.iter().min().unwrap(), won.iter().max().unwrap());
    assert!(most <= &(2 * least), "{won:?}");
    for (from, to, cap) in [(10, 25, 200), (45, 70, 400), (80, 100, 200)] {
        let (used, refused) = source.borrow().shares(from, to, cap);
        assert!(used >= 0.95, "{used:.3} was used from {from} s on");
        assert!(refused <= 0.1, "{refused:.4} was refused from {from} s on");
    }
}

#[test]
fn a_source_that_refuses_one_request_in_a_thousand_at_any_rate_is_used() {
    let mut draw = SplitMix64::new(3);
    let mut line = Capped::new(Nanos::from_millis(20), 1000, 1_000_000_000);
    let source = move |number: u64, len: u64, now: Nanos| {
        let mut answer = line.begin(number, len, now);
        if draw.below(1000) == 0 {
            answer.outcome = ReadOutcome::Throttled { retry_after: None };
        }
        answer
    };
    let mut bench = Bench::new(DispatchConfig::adaptive(), source);
    bench.stream(30_000, 1000, |_| 1000);
    let rate = bench.rate(Nanos::from_secs(2), bench.now - Nanos::from_secs(2));
    assert!(rate >= 950.0, "{rate:.0} of 1000 per second");
}
