// SPDX-License-Identifier: Apache-2.0
//! Ranks of one job at one source: each has a queue and searches its own concurrency, and all take their steps
//! together.
//!
//! Bounds are in virtual time, relative to the time of the source and the steps alone.

use std::cell::RefCell;
use std::rc::Rc;

use foresee_data_fetch::{Class, ConsumerRate, DispatchConfig, LimitConfig, Request};
use foresee_units::{Nanos, SplitMix64};

use crate::bench::{Answer, Bench, Capped, Source};

/// The reads and compute of the ranks, and the behaviour of the source.
#[derive(Clone, Debug)]
struct Job {
    ranks: usize,
    /// Batches of each rank, samples of each, and batches that may be staged.
    batches: u64,
    batch: u64,
    window: u64,
    step: Nanos,
    /// Bytes of a sample, minimum and maximum.
    sizes: (u64, u64),
    /// Initial concurrency.
    start: u32,
    /// Mean delay of an answer beyond the source's own time.
    noise: Nanos,
    /// Time for which the source stops after two seconds.
    stop: Nanos,
}

/// Two ranks that need 96 MB/s during compute, in epochs of 30 batches.
const AT_A_MOUNT: Job = Job {
    ranks: 2,
    batches: 90,
    batch: 10,
    window: 30,
    step: Nanos::new(31_250_000),
    sizes: (100_000, 200_000),
    start: 16,
    noise: Nanos::ZERO,
    stop: Nanos::ZERO,
};

/// Ranks that together need 40 MB/s, and stage at most 1.6 s of batches ahead.
const AT_A_BUCKET: Job = Job {
    ranks: 4,
    batches: 60,
    batch: 8,
    window: 20,
    step: Nanos::from_millis(80),
    sizes: (80_000, 120_000),
    start: 32,
    noise: Nanos::ZERO,
    stop: Nanos::from_secs(1),
};

fn bucket(latency_ms: u64) -> Capped {
    Capped::new(Nanos::from_millis(latency_ms), 1_000_000, 60_000_000)
}

/// Return a random duration with an exponential distribution.
fn exponential(draw: &mut SplitMix64, mean: Nanos) -> Nanos {
    let above = (small(draw.below(1 << 20)) + 1.0) / small(1 << 20);
    std::time::Duration::from_secs_f64(-above.ln() * mean.as_secs_f64()).into()
}

fn small(number: u64) -> f64 {
    f64::from(u32::try_from(number).expect("it is small"))
}

fn place(number: u64) -> usize {
    usize::try_from(number).expect("it is small")
}

/// One rank's share of a common source.
#[derive(Clone, Debug)]
struct Shared {
    line: Rc<RefCell<Capped>>,
    draw: SplitMix64,
    noise: Nanos,
}

impl Source for Shared {
    fn begin(&mut self, number: u64, len: u64, now: Nanos) -> Answer {
        let mut answer = self.line.borrow_mut().begin(number, len, now);
        answer.at += exponential(&mut self.draw, self.noise);
        answer
    }
}

#[derive(Debug)]
struct Rank {
    bench: Bench<Shared>,
    lens: Vec<u64>,
    requested: u64,
    taken: u64,
    /// When the current step ends; `None` while it waits for its batch or for the others.
    computes_until: Option<Nanos>,
    stepped: bool,
}

impl Rank {
    /// The missing samples of the next batch.
    fn missing(&self, job: &Job) -> Vec<u64> {
        let batch = self.taken * job.batch..(self.taken + 1) * job.batch;
        batch.filter(|ticket| !self.bench.log.won.contains_key(ticket)).collect()
    }

    fn request(&mut self, job: &Job) {
        let end = job.batches.min(self.taken + job.window);
        for turn in self.requested..end {
            for ticket in turn * job.batch..(turn + 1) * job.batch {
                let len = self.lens[place(ticket)];
                let request = Request {
                    ticket,
                    object: ticket,
                    start: 0,
                    len,
                    class: Class::Staging,
                    turn,
                    deadline: Nanos::MAX,
                    group: None,
                };
                self.bench.dispatch.handle_request(request, self.bench.now);
            }
        }
        self.requested = self.requested.max(end);
    }

    /// Take the batch if it is complete, or report the wait for it.
    fn take(&mut self, job: &Job, draw: &mut SplitMix64) {
        if self.stepped || self.computes_until.is_some() || self.taken == job.batches {
            return;
        }
        let missing = self.missing(job);
        if missing.is_empty() {
            self.taken += 1;
            self.computes_until = Some(self.bench.now + job.step + Nanos::new(draw.below(500_000)));
        }
        for ticket in missing {
            self.bench.dispatch.handle_urgent(ticket, self.bench.now);
        }
    }
}

/// When each step of all ranks ended.
fn steps(job: &Job, source: Capped, seed: u64) -> Vec<Nanos> {
    let mut draw = SplitMix64::new(seed);
    let line = Rc::new(RefCell::new(source));
    let limit = LimitConfig { start: job.start, ..LimitConfig::default() };
    let config = DispatchConfig { limit, shared: true, ..DispatchConfig::adaptive() };
    let mut ranks: Vec<Rank> = (0..job.ranks)
        .map(|_| {
            let shared = Shared {
                line: Rc::clone(&line),
                draw: SplitMix64::new(draw.below(u64::MAX)),
                noise: job.noise,
            };
            let (from, to) = job.sizes;
            Rank {
                bench: Bench::new(config.clone(), shared),
                lens: (0..job.batches * job.batch).map(|_| from + draw.below(to - from + 1)).collect(),
                requested: 0,
                taken: 0,
                computes_until: None,
                stepped: false,
            }
        })
        .collect();
    let (mut ends, mut stop) = (Vec::new(), Some(job.stop));
    let mut now = Nanos::ZERO;
    while ends.len() < place(job.batches) {
        if now >= Nanos::from_secs(2)
            && let Some(stop) = stop.take()
        {
            line.borrow_mut().stand_still(stop, now);
        }
        for rank in &mut ranks {
            rank.bench.now = now;
            while rank.bench.end_one() {}
            if rank.computes_until.is_some_and(|end| end <= now) {
                (rank.computes_until, rank.stepped) = (None, true);
            }
        }
        if ranks.iter().all(|rank| rank.stepped) {
            ends.push(now);
            for rank in &mut ranks {
                rank.stepped = false;
                rank.bench.dispatch.handle_consumer_rate(Some(ConsumerRate {
                    next: rank.taken,
                    at: now,
                    step: job.step,
                }));
            }
        }
        let first = place(draw.below(job.ranks as u64));
        for nth in 0..job.ranks {
            let rank = &mut ranks[(first + nth) % job.ranks];
            rank.take(job, &mut draw);
            rank.request(job);
            rank.bench.drain();
        }
        let computed = ranks.iter().filter_map(|rank| rank.computes_until);
        let next = ranks.iter().filter_map(|rank| rank.bench.next()).chain(computed).min();
        now = next.unwrap_or(now);
    }
    ends
}

/// When the `count`-th step ended, for each of twenty seeds.
fn moments(job: &Job, source: &Capped, count: usize) -> impl Iterator<Item = f64> {
    (1..=20).map(move |seed| steps(job, source.clone(), seed)[count - 1].as_secs_f64())
}

#[test]
fn ranks_share_a_slow_mount_so_that_none_waits_for_another() {
    let mount = Capped::new(Nanos::ZERO, 1_000_000, 80_000_000);
    // 30 batches of two ranks, 90 MB, take the source 1.125 s.
    for took in moments(&AT_A_MOUNT, &mount, 30) {
        assert!(took <= 1.125 * 1.07, "{took:.3} s");
    }
}

#[test]
fn ranks_that_begin_at_a_near_bucket_have_similar_concurrency() {
    let job = Job {
        ranks: 3,
        batches: 60,
        batch: 6,
        window: 60,
        step: Nanos::new(25_400_000),
        sizes: (60_000, 140_000),
        start: 32,
        noise: Nanos::ZERO,
        stop: Nanos::ZERO,
    };
    let near = Capped::new(Nanos::from_millis(8), 1_000_000, 55_000_000);
    // 30 batches of three ranks, 54 MB, take the source 0.98 s; at the end 96 later reads are in flight.
    for took in moments(&job, &near, 30) {
        assert!(took <= 0.982 + 0.175, "{took:.3} s");
    }
}

#[test]
fn ranks_share_a_bucket_that_is_too_slow_for_them() {
    let short = Job { step: Nanos::from_millis(40), stop: Nanos::ZERO, ..AT_A_BUCKET };
    // 60 batches of four ranks, 192 MB, take the source 3.2 s; the rest is the search.
    for took in moments(&short, &bucket(5), 60) {
        assert!(took <= 3.2 * 1.07, "{took:.3} s");
    }
}

#[test]
fn a_source_with_enough_capacity_still_fills_buffers_ahead_of_a_stop() {
    let quiet = AT_A_BUCKET;
    let noisy = Job { noise: Nanos::from_millis(20), ..AT_A_BUCKET };
    // 4.8 s of steps, and 0.25 s until the search has found the bucket's capacity.
    for (job, latency_ms) in [(quiet, 50), (noisy, 10)] {
        for took in moments(&job, &bucket(latency_ms), 60) {
            assert!(took <= 5.25, "{took:.3} s: of a stop of 1 s more than a fifth was felt by {job:?}");
        }
    }
}
