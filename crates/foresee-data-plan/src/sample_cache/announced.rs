// SPDX-License-Identifier: Apache-2.0
//! The accesses of one consumer: announced ones, then expected ones, with links from each to the next of its sample.
//!
//! Positions count all accesses of the consumer. Requests may come in another order than announcements, because a loader
//! has several batches in flight.

use std::collections::VecDeque;

const NONE: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct AnnouncedAccess {
    sample: u32,
    is_requested: bool,
    /// Position of the next access of the sample.
    next: u64,
}

/// Announced and expected accesses.
#[derive(Debug, Default)]
pub(super) struct Announced {
    accesses: VecDeque<AnnouncedAccess>,
    /// Position of the front.
    first: u64,
    /// Accesses before this position are announced, the others expected.
    end: u64,
    /// Accesses before this position were handed out.
    handed_out: u64,
    /// Accesses before this position were fetched or need no fetch.
    fetched: u64,
    /// The most accesses handed out after one that is requested: the depth of the loader's queue.
    depth: u64,
    progress: u64,
    skipped: u64,
    /// Whether expected accesses were given and have come true so far.
    knows_order: bool,
    /// By sample: positions of its first access that was not requested, and of its last access.
    by_sample: Vec<Span>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    head: u64,
    tail: u64,
}

const EMPTY: Span = Span { head: NONE, tail: NONE };

impl Announced {
    /// Announce an access. If another one was expected, return the samples that were expected.
    pub(super) fn announce(&mut self, sample: u32) -> Vec<u32> {
        let mut dropped = Vec::new();
        match self.access(self.end) {
            Some(expected) if expected.sample == sample => {}
            Some(_) => {
                dropped = self.drop_expected();
                self.push(sample);
            }
            None => self.push(sample),
        }
        self.end += 1;
        dropped
    }

    /// Append an expected access.
    pub(super) fn expect(&mut self, sample: u32) {
        self.knows_order = true;
        self.push(sample);
    }

    /// Drop the expected accesses; return their samples.
    pub(super) fn drop_expected(&mut self) -> Vec<u32> {
        let announced = self.offset(self.end);
        if announced == self.accesses.len() {
            return Vec::new();
        }
        self.knows_order = false;
        let dropped: Vec<u32> = self.accesses.drain(announced..).map(|access| access.sample).collect();
        for &sample in &dropped {
            self.by_sample[sample as usize] = EMPTY;
        }
        // The links of the remaining accesses, which may lead to dropped ones.
        for at in 0..self.accesses.len() {
            self.accesses[at].next = NONE;
            self.by_sample[self.accesses[at].sample as usize] = EMPTY;
        }
        for at in 0..self.accesses.len() {
            self.link(at);
        }
        dropped
    }

    /// The first `count` accesses were handed out.
    pub(super) fn hand_out(&mut self, count: u64) {
        self.handed_out = self.handed_out.max(count.min(self.end));
    }

    /// Request a sample: its first access, if that was handed out. Samples of accesses that will no longer be requested go
    /// to `passed`.
    pub(super) fn request(&mut self, sample: u32, passed: &mut Vec<u32>) -> bool {
        let Some(span) = self.by_sample.get_mut(sample as usize) else { return false };
        let at = span.head;
        if at == NONE || at >= self.handed_out {
            return false;
        }
        let offset = usize::try_from(at - self.first).expect("it is in memory");
        self.accesses[offset].is_requested = true;
        span.head = self.accesses[offset].next;
        self.progress += 1;
        self.depth = self.depth.max(self.handed_out - at);
        // Batches are requested in order, up to those in flight: what is farther back was left out.
        while let Some(&front) = self.accesses.front()
            && self.first < self.handed_out
            && (front.is_requested || self.first + self.depth < at)
        {
            if !front.is_requested {
                self.by_sample[front.sample as usize].head = front.next;
                passed.push(front.sample);
                self.skipped += 1;
                self.progress += 1;
            }
            self.accesses.pop_front();
            self.first += 1;
        }
        true
    }

    /// Position of the sample's next use, and whether it is announced.
    pub(super) fn next_use(&self, sample: u32) -> Option<(u64, bool)> {
        let at = self.by_sample.get(sample as usize)?.head;
        (at != NONE).then_some((at, at < self.end))
    }

    /// Accesses requested or passed over so far.
    pub(super) const fn progress(&self) -> u64 {
        self.progress
    }

    /// Announced accesses that were neither requested nor passed over.
    pub(super) const fn left(&self) -> u64 {
        self.end - self.progress
    }

    /// The first announced access whose sample is neither requested nor `is_here`: its distance and sample.
    pub(super) fn next_fetch(&mut self, is_here: impl Fn(u32) -> bool) -> Option<(u64, u32)> {
        self.fetched = self.fetched.max(self.first);
        while self.fetched < self.end {
            let access = self.access(self.fetched)?;
            if !access.is_requested && !is_here(access.sample) {
                return Some((self.fetched - self.first, access.sample));
            }
            self.fetched += 1;
        }
        None
    }

    /// Whether announced accesses may have to be fetched.
    pub(super) fn has_unfetched(&self) -> bool {
        self.fetched.max(self.first) < self.end
    }

    /// Whether the accesses after the announced ones were expected: those that are not known then are far away.
    pub(super) const fn knows_order(&self) -> bool {
        self.knows_order
    }

    /// Accesses handed out, and neither requested nor passed over.
    pub(super) const fn outstanding(&self) -> u64 {
        self.handed_out - self.progress
    }

    /// Accesses handed out that were passed over.
    pub(super) const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The samples of the announced accesses.
    pub(super) fn announced_samples(&self) -> Vec<u32> {
        self.accesses.iter().take(self.offset(self.end)).map(|access| access.sample).collect()
    }

    fn access(&self, at: u64) -> Option<AnnouncedAccess> {
        self.accesses.get(self.offset(at)).copied()
    }

    fn offset(&self, at: u64) -> usize {
        usize::try_from(at.saturating_sub(self.first)).unwrap_or(usize::MAX)
    }

    fn push(&mut self, sample: u32) {
        self.accesses.push_back(AnnouncedAccess { sample, is_requested: false, next: NONE });
        if self.by_sample.len() <= sample as usize {
            self.by_sample.resize(sample as usize + 1, EMPTY);
        }
        self.link(self.accesses.len() - 1);
    }

    /// Link the access at an offset to the earlier one of its sample.
    fn link(&mut self, offset: usize) {
        let at = self.first + offset as u64;
        let AnnouncedAccess { sample, is_requested, .. } = self.accesses[offset];
        let span = &mut self.by_sample[sample as usize];
        if span.tail != NONE && span.tail >= self.first {
            self.accesses[usize::try_from(span.tail - self.first).expect("it is in memory")].next = at;
        }
        span.tail = at;
        if span.head == NONE && !is_requested {
            span.head = at;
        }
    }
}
