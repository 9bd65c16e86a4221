// SPDX-License-Identifier: Apache-2.0
//! A bucket that is read sample by sample, with a FIFO cache and downloads announced a window ahead. Krichevsky
//! et al., "Quantifying and improving performance of distributed deep learning with cloud storage", IC2E 2021
//! (DELI; cake-lab/DELI).
//!
//! One process per node loads a batch, one sample after the other, and then computes; only downloads overlap.
//! Costs are times per sample of any size, so both readings of the model agree. A miss is a single download,
//! which is faster than one of the many of a prefetch request. If the link's rate is known, all downloads share
//! it: a miss has an equal share with the downloads of a request, and a later request waits for the bytes of the
//! earlier ones. Current loaders work differently; this shows the value of a window without a planner.

use std::collections::VecDeque;

use crate::loading::log::ReadTimes;
use crate::loading::pipeline::TIE;
use crate::loading::rates::{ORIGIN, Rates};
use crate::loading::run::{Driver, Setup, StepNow};
use crate::loading::scenario::Bucket;

/// The cache between a node and its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// None.
    Direct,
    /// A disk with the whole data set.
    Disk,
    /// A cache of missed samples.
    Cache,
    /// A cache that is filled as a whole once its window is consumed.
    FullFetch,
    /// A cache of which one half is filled while the other is consumed.
    FiftyFifty,
}

pub(super) struct WindowDriver {
    window: Window,
    bucket: Seconds,
    /// Samples per request, and the maximum of announced samples left when it is posted.
    fetch: usize,
    threshold: Option<usize>,
    nodes: Vec<Node>,
    /// Seconds per byte of compute.
    compute: f64,
}

struct Seconds {
    miss: f64,
    download: f64,
    link: f64,
    listing: f64,
    hit: f64,
    parallel: usize,
}

struct Node {
    cache: Fifo,
    /// Reads of the epoch, for the policies that announce them.
    partition: Vec<u32>,
    /// Number of reads announced, and number handed out.
    announced: usize,
    handed_out: usize,
    /// Requests in flight, in order of posting, and sample lists to reuse.
    requests: Vec<Request>,
    spare: Vec<Vec<u32>>,
}

struct Request {
    due: f64,
    samples: Vec<u32>,
}

/// First in, first out; counts samples and not bytes.
struct Fifo {
    /// `None`: samples are never evicted.
    capacity: Option<usize>,
    queue: VecDeque<u32>,
    /// One bit per sample.
    held: Vec<u64>,
}

impl WindowDriver {
    pub(super) fn new(window: Window, setup: &Setup, rates: &Rates) -> Result<Self, String> {
        let bucket = setup.scenario.bucket.as_ref().ok_or("it reads a bucket, and none was given")?;
        let (fetch, threshold) = match window {
            Window::Direct | Window::Disk | Window::Cache => (0, None),
            Window::FullFetch | Window::FiftyFifty => windows(window, bucket)?,
        };
        let cached = matches!(window, Window::Cache | Window::FullFetch | Window::FiftyFifty);
        let nodes = (0..setup.epochs.ranks).map(|_| Node::new(bucket, cached, setup.sizes.len())).collect();
        Ok(Self {
            window,
            bucket: Seconds {
                miss: bucket.miss.as_secs_f64(),
                download: bucket.download.as_secs_f64(),
                link: bucket.link.as_secs_f64(),
                listing: bucket.listing.as_secs_f64(),
                hit: bucket.hit.as_secs_f64(),
                parallel: bucket.parallel.get() as usize,
            },
            fetch,
            threshold,
            nodes,
            compute: rates.compute,
        })
    }
}

/// Samples per request, and the maximum of announced samples left when it is posted.
fn windows(window: Window, bucket: &Bucket) -> Result<(usize, Option<usize>), String> {
    let half = |cap: u64| (cap / 2).max(1);
    let whole = window == Window::FullFetch;
    let fetch = bucket.fetch.or(bucket.cache.map(|cap| if whole { cap } else { half(cap) }));
    let fetch = fetch
        .ok_or("neither bucket.fetch nor bucket.cache is given; one of them is the size of a request")?;
    let threshold = bucket.threshold.unwrap_or(if whole { 0 } else { fetch });
    let most_left = if bucket.strict { threshold.checked_sub(1) } else { Some(threshold) };
    let most_left = most_left.ok_or("bucket.strict waits for fewer samples than its threshold of 0")?;
    Ok((samples(fetch), Some(samples(most_left))))
}

fn samples(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

impl Node {
    fn new(bucket: &Bucket, cached: bool, samples: u32) -> Self {
        Self {
            cache: Fifo::new(bucket.cache, if cached { samples } else { 0 }),
            partition: Vec::new(),
            announced: 0,
            handed_out: 0,
            requests: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Announce the next reads and request those that are not cached; report each download with its time.
    fn post(&mut self, at: f64, fetch: usize, bucket: &Seconds, mut download: impl FnMut(u32, f64, f64)) {
        self.cache_arrived(at);
        let end = self.partition.len().min(self.announced.saturating_add(fetch));
        let mut samples = self.spare.pop().unwrap_or_default();
        samples.extend(self.partition[self.announced..end].iter().filter(|&&id| !self.cache.holds(id)));
        self.announced = end;
        let mut rounds = 0.0;
        for slots in samples.chunks(bucket.parallel) {
            let start = at + bucket.listing + rounds * bucket.download;
            for &id in slots {
                download(id, start, bucket.download);
            }
            rounds += 1.0;
        }
        let alone = at + bucket.listing + rounds * bucket.download;
        // The bytes of earlier requests come first.
        #[expect(clippy::cast_precision_loss, reason = "a count of samples")]
        let bytes = samples.len() as f64 * bucket.link;
        let due = self.requests.iter().fold(alone, |due, before| due.max(before.due + bytes));
        self.requests.push(Request { due, samples });
    }

    /// Seconds of a miss now. Its bytes and those of a request in flight share the link equally.
    fn miss(&mut self, bucket: &Seconds) -> f64 {
        let Some(first) = self.requests.first() else { return bucket.miss };
        #[expect(clippy::cast_precision_loss, reason = "a count of downloads")]
        let others = first.samples.len().min(bucket.parallel) as f64;
        for request in &mut self.requests {
            request.due += bucket.link;
        }
        bucket.miss + others * bucket.link
    }

    /// Cache the samples that have arrived by `now`, in order of arrival.
    fn cache_arrived(&mut self, now: f64) {
        loop {
            let mut first: Option<(usize, f64)> = None;
            for (place, request) in self.requests.iter().enumerate() {
                if request.due <= now + TIE && first.is_none_or(|(_, due)| request.due < due) {
                    first = Some((place, request.due));
                }
            }
            let Some((place, _)) = first else { return };
            let mut samples = self.requests.remove(place).samples;
            for &id in &samples {
                self.cache.insert(id);
            }
            samples.clear();
            self.spare.push(samples);
        }
    }
}

impl Fifo {
    fn new(capacity: Option<u64>, samples: u32) -> Self {
        let capacity = capacity.map(self::samples);
        Self { capacity, queue: VecDeque::new(), held: vec![0; (samples as usize).div_ceil(64)] }
    }

    fn holds(&self, id: u32) -> bool {
        self.held.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    /// Insert a sample, and evict the oldest if the cache is full. A sample that is held keeps its position.
    fn insert(&mut self, id: u32) {
        if self.holds(id) {
            return;
        }
        if let Some(capacity) = self.capacity {
            if self.queue.len() == capacity
                && let Some(first) = self.queue.pop_front()
            {
                self.held[first as usize / 64] &= !(1 << (first % 64));
            }
            self.queue.push_back(id);
        }
        self.held[id as usize / 64] |= 1 << (id % 64);
    }
}

impl Driver for WindowDriver {
    fn begin_epoch(&mut self, setup: &Setup, list: &[u32]) {
        if self.threshold.is_none() {
            return;
        }
        for (rank, node) in self.nodes.iter_mut().enumerate() {
            node.partition.clear();
            for step in 0..setup.epochs.steps {
                node.partition.extend_from_slice(&list[setup.epochs.batch(step, rank)]);
            }
            (node.announced, node.handed_out) = (0, 0);
        }
    }

    fn step(&mut self, now: &mut StepNow<'_>) {
        let StepNow { setup, step, ids, clock, metrics, .. } = now;
        let epochs = &setup.epochs;
        for rank in 0..epochs.ranks {
            let ids = &ids[epochs.batch_in_step(*step, rank)];
            let node = &mut self.nodes[rank];
            let begun = clock.free[rank];
            if let Some(threshold) = self.threshold {
                // The loader requests all positions of a batch before it loads any.
                for _ in ids {
                    if node.announced - node.handed_out <= threshold && node.announced < node.partition.len()
                    {
                        metrics.listings += 1;
                        metrics.log.list(rank, begun, self.bucket.listing);
                        node.post(begun, self.fetch, &self.bucket, |id, start, time| {
                            metrics.record_download(rank, (id, setup.sizes.get(id)), start, time);
                        });
                    }
                    node.handed_out += 1;
                }
            }
            metrics.log.begin_batch(rank, begun);
            let mut at = begun;
            let mut compute = 0.0;
            for &id in ids {
                node.cache_arrived(at);
                let size = setup.sizes.get(id);
                let hit = self.window == Window::Disk || node.cache.holds(id);
                let time = if hit { self.bucket.hit } else { node.miss(&self.bucket) };
                let start = at;
                at += time;
                if !hit && self.window == Window::Cache {
                    node.cache.insert(id);
                }
                let source = if hit { Rates::local(0) } else { ORIGIN };
                let times = ReadTimes { start, end: at, wanted: start, consumed: at };
                metrics.record_read((id, size), source, time, times, time);
                compute += size * self.compute;
            }
            metrics.end_batch(at - begun, compute);
            clock.free[rank] = at + compute;
        }
    }
}
