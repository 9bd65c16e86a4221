// SPDX-License-Identifier: Apache-2.0
//! Clairvoyant prefetching as published: each rank caches what it will read most often, decides so alone and once,
//! and fills its tiers in the order of first reads while training goes on. Dryden et al., SC 2021.
//!
//! Where everything fits it is hard to beat; where it does not, a fixed set is cached for the whole run, which a plan
//! by next use beats. What a thread of a tier is bringing is waited for, as the authors' runtime does; only their
//! published simulator reads it a second time.
//!
//! Takes some bits per read of the run, and per copy 4 bytes; per sample and tier 4 more.

use foresee_data_plan::hint;

use super::by_read::ByRead;
use super::peers_can_be_read;
use super::visible::Visible;
use crate::loading::lane::TIE;
use crate::loading::prefetch::{Access, Around, Caching, Supply};
use crate::loading::rates::{ORIGIN, Rates};
use crate::loading::report::Book;
use crate::loading::run::Setup;

/// How tiers come to hold what they are to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// Threads of each tier load it, unless a staging thread brings it first.
    Threads,
    /// With the rank's own first read.
    OnAccess,
    /// It is there before training, for free.
    Before,
}

pub(super) struct Nopfs {
    fill: Fill,
    tiers: usize,
    /// By read of the run: twice the reader's own tier for that sample, counted from 1, and one more at its first read.
    own: ByRead,
    ranks: Vec<Caches>,
    /// By sample and tier: since when a rank's copy can be read by others.
    visible: Visible,
    /// Ranks whose samples are placed.
    placed: usize,
    scratch: Scratch,
}

/// Bytes per sample for the streams of ranks that are placed together: no more memory than training takes later.
const STREAM_BYTES: usize = 12;

/// Read, but cached nowhere.
const NOWHERE: u8 = 0;

/// A rank's tiers.
#[derive(Debug, Default)]
struct Caches {
    tiers: Vec<CacheTier>,
    /// Before then no thread of any of them has anything to do.
    idle_until: f64,
}

/// One tier of one rank while it is filled.
#[derive(Debug)]
struct CacheTier {
    /// What it is to hold, in the order of its first reads.
    samples: Vec<u32>,
    /// How many of them some thread has begun with, or staging has brought.
    begun: usize,
    /// How many of them the rank has read.
    first_reads: usize,
    /// By thread: when it is free, and what it loads until then.
    threads: Vec<(f64, usize)>,
}

/// Memory of placing one rank after the other.
#[derive(Default)]
struct Scratch {
    streams: Vec<Vec<u32>>,
    /// By sample: how often the rank reads it, then where it is placed.
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

    /// The reader's own tier for that sample, and whether it is its first read.
    fn own_copy(&self, access: Access) -> (Option<usize>, bool) {
        let own = self.own.get(access.place);
        (usize::from(own >> 1).checked_sub(1), own & 1 == 1)
    }

    /// Chooses what a rank caches: by frequency, ties by the earlier first read; tiers are filled fastest first, each
    /// closed by the first sample that does not fit.
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
        let mut rooms = rates.loads.iter().map(|load| load.room).zip(1_u16..);
        let mut open = rooms.next();
        for (nth, &id) in sorted.iter().enumerate() {
            expect_later(marks, sorted, nth);
            if let Some(later) = hint::later(sorted, nth) {
                setup.sizes.expect(&[later]);
            }
            let size = setup.sizes.get(id);
            while let Some((room, _)) = open
                && size > room
            {
                open = rooms.next();
            }
            marks[id as usize] = open.map_or(u16::from(NOWHERE), |(_, tier)| tier);
            open = open.map(|(room, tier)| (room - size, tier));
        }
        let mut tiers: Vec<CacheTier> = rates.loads.iter().map(|load| CacheTier::new(load.threads)).collect();
        let epochs = &setup.epochs;
        let mut reads = stream.iter().enumerate();
        for epoch in 0..epochs.count as usize {
            for step in 0..epochs.steps {
                let batch = epochs.batch(step, rank);
                let before = epoch * epochs.places;
                // Places first: the other way round a read would be lost with every batch.
                for (place, (nth, &id)) in (before + batch.start..before + batch.end).zip(reads.by_ref()) {
                    expect_later(marks, stream, nth);
                    let mark = &mut marks[id as usize];
                    let [_, tier] = mark.to_be_bytes();
                    let seen = *mark > u16::from(u8::MAX);
                    self.own.set(place, tier << 1 | u8::from(!seen));
                    if !seen && tier != NOWHERE {
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

    /// The thread that is free first, while something is left to load.
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

    /// Since when what is read first next is held, or until when a thread is loading it; `None`: nobody has begun.
    fn holds_next(&self) -> Option<f64> {
        let nth = self.first_reads;
        let loading = self.threads.iter().find(|&&(_, loading)| loading == nth).map(|&(end, _)| end);
        (nth < self.begun).then(|| loading.unwrap_or(0.0))
    }
}

impl Caching for Nopfs {
    fn prepare(&mut self, setup: &Setup, rates: &Rates, _: &mut Book) -> (u64, u64) {
        let ranks = setup.epochs.ranks;
        if self.fill == Fill::Before && self.placed == 0 {
            self.visible.open(setup.sizes.len());
        }
        let group =
            self.placed..ranks.min(self.placed + setup.epochs.group(setup.epochs.stream_room(STREAM_BYTES)));
        // What placing takes is not needed while orders are drawn, and the other way round.
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

    fn advance(&mut self, rank: usize, until: f64, around: &mut Around<'_>) {
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
                around.setup.sizes.expect(&[later]);
            }
            let size = around.setup.sizes.get(id);
            let held = around.load(rank, start, size, tier);
            around.book.load(rank, tier, id, size, (start, held));
            cache.threads[thread] = (held, cache.begun);
            cache.begun += 1;
            let slot = self.slot(id, tier);
            self.visible.hold(slot, held);
        }
    }

    fn supply(&mut self, access: Access, at: f64, rates: &Rates) -> Supply {
        let (tier, is_first) = self.own_copy(access);
        // Since when the rank's own copy is held, or will be.
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
                    // No thread of the tier had come so far: staging has brought it.
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

/// The marks of a later sample of `ids` than the `nth` will be looked up soon.
fn expect_later(marks: &[u16], ids: &[u32], nth: usize) {
    if let Some(later) = hint::later(ids, nth) {
        hint::expect(marks, later as usize);
    }
}

/// Candidates by number of reads, most first, and among equals as they come.
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
