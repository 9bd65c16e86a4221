// SPDX-License-Identifier: Apache-2.0
//! One rank's path from a source into the staging buffer: its threads, its buffer, and the load of its sources.
//!
//! It is separate from the policies, which only choose the source of a sample. All fetches of a rank pass through
//! here in order of their start, so shared resources are served first come, first served.

use std::collections::VecDeque;

use super::rates::{LoadRates, ORIGIN, Rates, SourceCode};

/// Times closer than this are equal.
pub(super) const TIE: f64 = 1e-9;

/// Samples below this fraction of the staging buffer leave it in groups, together with the last of each group. A
/// buffer of tens of thousands of samples then is a list of thousands, on each of a thousand ranks.
const PART: f64 = 1.0 / 4096.0;

#[derive(Debug)]
pub(super) struct FetchPipeline {
    /// When each staging thread becomes idle.
    threads: Vec<f64>,
    /// Groups of the staging buffer in order: when the last sample of each begins to be consumed, and its bytes.
    staged: VecDeque<(f64, f64)>,
    used: f64,
    capacity: f64,
    /// Until when each source is busy with this rank.
    clocks: Vec<f64>,
    /// When the origin has accepted the last request.
    accepted_until: f64,
    /// Whether the origin was read since the last query.
    read_origin: bool,
}

/// A staging thread that may fetch a sample.
#[derive(Clone, Copy)]
pub(super) struct FetchSlot {
    thread: usize,
    pub(super) at: f64,
}

impl FetchPipeline {
    pub(super) fn new(rates: &Rates) -> Self {
        Self {
            threads: vec![0.0; rates.staging_threads],
            staged: VecDeque::new(),
            used: 0.0,
            capacity: rates.capacity,
            clocks: vec![0.0; rates.clocks()],
            accepted_until: 0.0,
            read_origin: false,
        }
    }

    /// The start of the next fetch: when a thread is idle and the buffer has space. A sample occupies space from
    /// then until it is consumed. One that is larger than the buffer waits until that is empty.
    pub(super) fn admit(&mut self, size: f64) -> FetchSlot {
        let (mut thread, mut at) = (0, f64::INFINITY);
        for (number, &free) in self.threads.iter().enumerate() {
            if free < at {
                (thread, at) = (number, free);
            }
        }
        while let Some(&(consumed, bytes)) = self.staged.front() {
            let full = self.used + size > self.capacity;
            if consumed > at + TIE && !full {
                break;
            }
            at = at.max(consumed);
            self.used -= bytes;
            self.staged.pop_front();
        }
        self.used += size;
        FetchSlot { thread, at }
    }

    /// Fetch a sample; return when its bytes have arrived.
    pub(super) fn fetch(&mut self, start: FetchSlot, size: f64, source: SourceCode, rates: &Rates) -> f64 {
        let mut begins = start.at;
        if source == ORIGIN {
            self.read_origin = true;
            begins = self.request(begins, rates.request) + rates.latency;
        }
        self.take_from(source, begins, size, rates)
    }

    /// Transfer a sample from a source to a thread, from `begins` on; return when its bytes have arrived.
    pub(super) fn take_from(&mut self, source: SourceCode, begins: f64, size: f64, rates: &Rates) -> f64 {
        let seconds = rates.sources[usize::from(source)];
        self.occupy(begins, size, seconds.clock, (seconds.thread, seconds.all))
    }

    /// When the rank's link to the origin has transferred a sample that was requested at `start`.
    pub(super) fn over_link(&mut self, start: f64, size: f64, rates: &Rates) -> f64 {
        self.occupy(start, size, usize::from(ORIGIN), (rates.link, rates.link))
    }

    /// Preprocess a fetched sample and write it into the staging buffer; return when it is there.
    pub(super) fn stage(&mut self, start: FetchSlot, size: f64, fetched: f64, rates: &Rates) -> f64 {
        let available = fetched + size * rates.write;
        self.threads[start.thread] = available;
        available
    }

    /// The last admitted sample begins to be consumed at `consumed`.
    pub(super) fn hold(&mut self, size: f64, consumed: f64) {
        let part = self.capacity * PART;
        match self.staged.back_mut() {
            Some((until, bytes)) if *bytes + size <= part => {
                *until = consumed;
                *bytes += size;
            }
            _ => self.staged.push_back((consumed, size)),
        }
    }

    /// Load a sample from the origin into a tier; return when it is held.
    pub(super) fn load(&mut self, start: f64, size: f64, rates: &LoadRates) -> f64 {
        self.read_origin = true;
        let begins = self.request(start, rates.request) + rates.latency;
        self.occupy(begins, size, usize::from(ORIGIN), (rates.fetch, rates.all)) + size * rates.write
    }

    /// When the origin has accepted a request that is made at `at` and takes `seconds`.
    fn request(&mut self, at: f64, seconds: f64) -> f64 {
        if seconds == 0.0 {
            return at;
        }
        self.accepted_until = self.accepted_until.max(at) + seconds;
        self.accepted_until
    }

    /// Whether this rank has read the origin since the last query.
    pub(super) fn take_read_origin(&mut self) -> bool {
        std::mem::take(&mut self.read_origin)
    }

    /// Occupy a thread and the source from `start` on: the thread needs its own time, and all threads together
    /// share the source's.
    fn occupy(&mut self, start: f64, size: f64, clock: usize, (thread, all): (f64, f64)) -> f64 {
        let clock = &mut self.clocks[clock];
        *clock = clock.max(start) + size * all;
        (start + size * thread).max(*clock)
    }
}
