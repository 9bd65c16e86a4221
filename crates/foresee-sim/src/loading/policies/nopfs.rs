// SPDX-License-Identifier: Apache-2.0
//! Clairvoyant prefetching as published: each rank caches the samples that it will read most often. It decides
//! alone and once, and fills its tiers in the order of first reads during training. Dryden et al., SC 2021.
//!
//! It is hard to beat if everything fits. Otherwise it caches a fixed set for the whole run, which a plan by next
//! use beats. A rank waits for a sample that a tier's thread is loading, as in the authors' runtime; only their
//! published simulator reads it a second time.
//!
//! Memory: some bits per read of the run, 4 bytes per copy, and 4 more per sample and tier.

use foresee_data_plan::hint;

use super::by_read::ByRead;
use super::peers_can_be_read;
use super::visible::Visible;
use crate::loading::pipeline::TIE;
use crate::loading::prefetch::{Access, Caching, FetchContext, Supply};
use crate::loading::rates::{ORIGIN, Rates};
use crate::loading::report::Metrics;
use crate::loading::run::Setup;

/// How tiers are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// Threads of each tier load samples, unless a staging thread loads them first.
    Threads,
    /// The rank's own first read stores the sample.
    OnAccess,
    /// All samples are stored before training, at no cost.
    Before,
}

pub(super) struct Nopfs {
    fill: Fill,
    tiers: usize,
    /// By read of the run: twice the reader's own tier of the sample, counted from 1, plus one at its first read.
    own: ByRead,
    ranks: Vec<Caches>,
    /// By sample and tier: when a rank's copy becomes visible to others.
    visible: Visible,
    /// Ranks whose samples are placed.
    placed: usize,
    scratch: Scratch,
}

/// Bytes per sample for the streams of ranks that are placed together: not more memory than training takes later.
const STREAM_BYTES: usize = 12;

/// Read, but not cached.
const NOT_CACHED: u8 = 0;

/// A rank's tiers.
#[derive(Debug, Default)]
struct Caches {
    tiers: Vec<CacheTier>,
    /// Before this time no thread of any tier has work.
    idle_until: f64,
}

/// One tier of one rank while it is being filled.
#[derive(Debug)]
struct CacheTier {
    /// The samples to store, in the order of their first reads.
    samples: Vec<u32>,
    /// Number of samples whose load has begun, or that staging has loaded.
    begun: usize,
    /// Number of samples that the rank has read.
    first_reads: usize,
    /// By thread: when it becomes idle, and which sample it loads until then.
    threads: Vec<(f64, usize)>,
}

/// Scratch memory of the placement, reused for each rank.
#[derive(Default)]
struct Scratch {
    streams: Vec<Vec<u32>>,
    /// By sample: the number of the rank's reads, then its tier.
    marks: Vec<u16>,
    candidates: Vec<u32>,
    sorted: Vec<u32>,
}

impl Nopfs {
    pub(super) fn new(fill: Fill, setup: &Setup) -> Result<Self, String> {
        peers_can_be_read(setup)?;
        let tiers = setup.scenario.cluster.tiers.len();
        Ok(Self {
            fill,
            tiers,
            own: ByRead::new(setup, 2 * (1 + tiers))?,
            ranks: Vec::new(),
            visible: Visible::new(tiers, setup.paper),
            placed: 0,
            scratch: Scratch::default(),
        })
    }

    fn slot(&self, id: u32, tier: usize) -> usize {
        id as usize * self.tiers + tier
    }

    /// The reader's own tier of the sample, and whether it is the first read.
    fn own_copy(&self, access: Access) -> (Option<usize>, bool) {
        let own = self.own.get(access.place);
        (usize::from(own >> 1).checked_sub(1), own & 1 == 1)
    }

    /// Choose the samples that a rank caches: by frequency, ties by the earlier first read. Tiers are filled
    /// fastest first, and each is closed by the first sample that does not fit.
    fn place(&mut self, rank: usize, stream: &[u32], setup: &Setup, rates: &Rates) {
        let Scratch { marks, candidates, sorted, .. } = &mut self.scratch;
        marks.resize(setup.sizes.len() as usize, 0);
        candidates.clear();
        for (nth, &id) in stream.iter().enumerate() {
            expect_later(marks, stream, nth);
            let reads = &mut marks[id as usize];
            if *reads == 0 {
                candidates.push(id);
            }
            *reads = reads.saturating_add(1);
        }
        sort_by_reads(candidates, marks, sorted);
        let mut capacities = rates.loads.iter().map(|load| load.capacity).zip(1_u16..);
        let mut open = capacities.next();
        for (nth, &id) in sorted.iter().enumerate() {
            expect_later(marks, sorted, nth);
            if let Some(later) = hint::later(sorted, nth) {
                setup.sizes.expect(&[later]);
            }
            let size = setup.sizes.get(id);
            while let Some((capacity, _)) = open
                && size > capacity
            {
                open = capacities.next();
            }
            marks[id as usize] = open.map_or(u16::from(NOT_CACHED), |(_, tier)| tier);
            open = open.map(|(capacity, tier)| (capacity - size, tier));
        }
        let mut tiers: Vec<CacheTier> = rates.loads.iter().map(|load| CacheTier::new(load.threads)).collect();
        let epochs = &setup.epochs;
        let mut reads = stream.iter().enumerate();
        for epoch in 0..epochs.count as usize {
            for step in 0..epochs.steps {
                let batch = epochs.batch(step, rank);
                let before = epoch * epochs.places;
                // Places first: the reverse order of the iterators would lose a read with every batch.
                for (place, (nth, &id)) in (before + batch.start..before + batch.end).zip(reads.by_ref()) {
                    expect_later(marks, stream, nth);
                    let mark = &mut marks[id as usize];
                    let [_, tier] = mark.to_be_bytes();
                    let seen = *mark > u16::from(u8::MAX);
                    self.own.set(place, tier << 1 | u8::from(!seen));
                    if !seen && tier != NOT_CACHED {
                        let held = usize::from(tier) - 1;
                        match self.fill {
                            Fill::Threads => tiers[held].samples.push(id),
                            Fill::OnAccess => {}
                            Fill::Before => self.visible.show(id as usize * self.tiers + held, 0.0),
                        }
                    }
                    *mark |= 0x100;
                }
            }
        }
        for &id in stream {
            marks[id as usize] = 0;
        }
        self.ranks
            .push(Caches { tiers, idle_until: if self.fill == Fill::Threads { 0.0 } else { f64::INFINITY } });
    }
}

impl CacheTier {
    fn new(threads: usize) -> Self {
        Self { samples: Vec::new(), begun: 0, first_reads: 0, threads: vec![(0.0, usize::MAX); threads] }
    }

    /// The first thread to become idle, if anything is left to load.
    fn next(&self) -> Option<(f64, usize)> {
        if self.begun == self.samples.len() {
            return None;
        }
        let mut first = (f64::INFINITY, 0);
        for (thread, &(free, _)) in self.threads.iter().enumerate() {
            if free < first.0 {
                first = (free, thread);
            }
        }
        Some(first)
    }

    /// When the sample with the next first read is held, or will be; `None` if its load has not begun.
    fn holds_next(&self) -> Option<f64> {
        let nth = self.first_reads;
        let loading = self.threads.iter().find(|&&(_, loading)| loading == nth).map(|&(end, _)| end);
        (nth < self.begun).then(|| loading.unwrap_or(0.0))
    }
}

impl Caching for Nopfs {
    fn prepare(&mut self, setup: &Setup, rates: &Rates, _: &mut Metrics) -> (u64, u64) {
        let ranks = setup.epochs.ranks;
        if self.fill == Fill::Before && self.placed == 0 {
            self.visible.open(setup.sizes.len());
        }
        let group = self.placed
            ..ranks.min(self.placed + setup.epochs.group(setup.epochs.stream_budget(STREAM_BYTES)));
        // Placement and the generation of orders do not need their memory at the same time.
        (self.scratch.candidates, self.scratch.sorted) = (Vec::new(), Vec::new());
        let mut streams = std::mem::take(&mut self.scratch.streams);
        setup.epochs.gather(group.clone(), &mut streams);
        for (rank, stream) in group.clone().zip(&streams) {
            self.place(rank, stream, setup, rates);
        }
        self.scratch.streams = streams;
        self.placed = group.end;
        if self.placed == ranks {
            self.scratch = Scratch::default();
            self.visible.open(setup.sizes.len());
        }
        (self.placed as u64, ranks as u64)
    }

    fn expect(&self, ids: &[u32]) {
        self.visible.expect(ids);
    }

    fn look_up(&mut self, ids: &[u32]) {
        self.visible.look_up(ids);
    }

    fn advance(&mut self, rank: usize, until: f64, context: &mut FetchContext<'_>) {
        while self.ranks[rank].idle_until <= until {
            let caches = &mut self.ranks[rank];
            let mut first: Option<((f64, usize), usize)> = None;
            for (tier, cache) in caches.tiers.iter().enumerate() {
                if let Some(next) = cache.next()
                    && first.is_none_or(|((earliest, _), _)| next.0 < earliest)
                {
                    first = Some((next, tier));
                }
            }
            let Some(((start, thread), tier)) = first else {
                caches.idle_until = f64::INFINITY;
                return;
            };
            caches.idle_until = start;
            if start > until {
                return;
            }
            let cache = &mut caches.tiers[tier];
            let id = cache.samples[cache.begun];
            if let Some(later) = hint::later(&cache.samples, cache.begun) {
                context.setup.sizes.expect(&[later]);
            }
            let size = context.setup.sizes.get(id);
            let held = context.load(rank, start, size, tier);
            context.metrics.record_load(rank, tier, (id, size), (start, held));
            cache.threads[thread] = (held, cache.begun);
            cache.begun += 1;
            let slot = self.slot(id, tier);
            self.visible.hold(slot, held);
        }
    }

    fn supply(&mut self, access: Access, at: f64, rates: &Rates) -> Supply {
        let (tier, is_first) = self.own_copy(access);
        // When the rank's own copy is held, or will be.
        let held = tier.and_then(|tier| match self.fill {
            _ if !is_first => Some(at),
            Fill::Threads => self.ranks[access.rank].tiers[tier].holds_next(),
            Fill::OnAccess => None,
            Fill::Before => Some(at),
        });
        for &code in &rates.preference {
            let place = usize::from(code);
            if code == ORIGIN {
                break;
            }
            let available = if place <= self.tiers {
                tier == Some(place - 1) && held.is_some_and(|held| held <= at + TIE)
            } else {
                self.visible.at(access.nth, place - 1 - self.tiers, at)
            };
            if available {
                return Supply::From(code);
            }
        }
        match (tier, held) {
            (Some(tier), Some(ready)) if ready > at + TIE => Supply::With(Rates::local(tier), ready),
            _ => Supply::From(ORIGIN),
        }
    }

    fn fetched(&mut self, access: Access, _: f64, at: f64) {
        let (Some(tier), true) = self.own_copy(access) else { return };
        let slot = self.slot(access.id, tier);
        match self.fill {
            Fill::OnAccess => self.visible.hold(slot, at),
            Fill::Before => {}
            Fill::Threads => {
                let cache = &mut self.ranks[access.rank].tiers[tier];
                if cache.begun == cache.first_reads {
                    // No thread of the tier had begun with it: staging has loaded it.
                    cache.begun += 1;
                    self.visible.hold(slot, at);
                }
                cache.first_reads += 1;
            }
        }
    }

    fn end_step(&mut self, ends: &[f64]) {
        self.visible.end_step(ends);
    }
}

/// Prefetch the marks of the samples of `ids` some places after the `nth`.
fn expect_later(marks: &[u16], ids: &[u32], nth: usize) {
    if let Some(later) = hint::later(ids, nth) {
        hint::prefetch(marks, later as usize);
    }
}

/// Candidates by number of reads, most first; a stable order among equals.
fn sort_by_reads(candidates: &[u32], reads: &[u16], sorted: &mut Vec<u32>) {
    let most = candidates.iter().map(|&id| reads[id as usize]).max().unwrap_or(0);
    let mut starts = vec![0_usize; usize::from(most) + 2];
    for &id in candidates {
        starts[usize::from(most - reads[id as usize]) + 1] += 1;
    }
    for reads in 1..starts.len() {
        starts[reads] += starts[reads - 1];
    }
    sorted.clear();
    sorted.resize(candidates.len(), 0);
    for &id in candidates {
        let start = &mut starts[usize::from(most - reads[id as usize])];
        sorted[*start] = id;
        *start += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_sorted_by_reads_and_keep_their_order_among_equals() {
        let mut sorted = Vec::new();
        sort_by_reads(&[4, 0, 3, 1], &[1, 3, 0, 1, 3], &mut sorted);
        assert_eq!(sorted, [4, 1, 0, 3]);
        sort_by_reads(&[], &[], &mut sorted);
        assert!(sorted.is_empty());
    }
}
