// SPDX-License-Identifier: Apache-2.0
//! Plan of a cache whose samples have no known size before they are read, such as those of a dataset written by the user:
//! facts go in through `handle_*`, fetches and evictions come out through `poll_*`.
//!
//! | file | content |
//! |---|---|
//! | `announced` | the announced and expected accesses of one consumer |
//! | `residents` | samples in the cache, and the order of their eviction |
//! | `flights` | reads in flight, and the bytes that they will need |
//! | `groups` | samples that are read together |

mod announced;
mod flights;
mod groups;
mod residents;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use foresee_units::{Bytes, Nanos, SampleId};

use self::announced::Announced;
use self::flights::Flights;
pub use self::flights::ReaderId;
pub use self::groups::{FetchGrouping, NeighbourGroups};
use self::residents::{NextAccess, Residents};
use crate::next_use::narrow;
use crate::node::ConsumerId;

/// Settings of an [`SampleCachePlanner`].
#[derive(Clone, Copy, Debug)]
pub struct SampleCacheConfig {
    /// Bytes of all cached samples together.
    pub capacity: Bytes,
    /// Time without a request, announcement or hand-out after which a consumer stands still: its announced samples may
    /// then be evicted.
    pub stall_grace: Nanos,
}

/// Where the bytes of a requested sample come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleLookup {
    /// The cache has the sample.
    Hit,
    /// The sample is being read: wait for the end of that read.
    Join,
    /// Read the sample now, and report [`handle_read`](SampleCachePlanner::handle_read) or
    /// [`handle_failed`](SampleCachePlanner::handle_failed).
    Read,
}

/// Plans a cache of samples whose sizes become known when they are read.
///
/// A consumer announces the samples that it will request, in order. These are fetched ahead, as far as the capacity
/// allows, and stay until they are requested. It may also say which accesses it expects after them: these are not
/// fetched, but determine the eviction, by next use. Samples without a known next use leave before all others, the most
/// recently requested first: in an epoch of a permutation this one is expected to be used latest.
///
/// A sample enters the cache if it fits beside all samples that are used sooner. The used bytes never exceed the
/// capacity. Equal inputs give equal plans.
///
/// Ids of samples are below 2^32 - 1, and the tables are as long as the largest one: 16 bytes per id and consumer, 24 per
/// access.
///
/// The caller's obligations: it reports the end of every read once, and executes the evictions of
/// [`poll_eviction`](Self::poll_eviction) after each fact. `now` is monotonic.
#[derive(Debug)]
pub struct SampleCachePlanner {
    residents: Residents,
    consumers: BTreeMap<u32, CacheConsumer>,
    flights: Flights,
    evictions: VecDeque<SampleId>,
    stall_grace: Nanos,
    now: Nanos,
    /// Accesses of all consumers so far: the time scale of next uses.
    accesses: u64,
}

#[derive(Debug)]
struct CacheConsumer {
    announced: Announced,
    /// Whether it has requested an announced sample from this cache.
    is_reading: bool,
    active_at: Nanos,
}

impl SampleCachePlanner {
    /// Create the planner of an empty cache.
    pub fn new(config: SampleCacheConfig) -> Self {
        Self {
            residents: Residents::new(config.capacity),
            consumers: BTreeMap::new(),
            flights: Flights::default(),
            evictions: VecDeque::new(),
            stall_grace: config.stall_grace,
            now: Nanos::ZERO,
            accesses: 0,
        }
    }

    /// Attach a consumer without accesses. `is_reading`: whether it is known to request its samples from this cache.
    /// Otherwise nothing is fetched for it before its first request: it may read elsewhere, such as in other processes.
    pub fn handle_attach(&mut self, consumer: ConsumerId, is_reading: bool, now: Nanos) {
        self.handle_detach(consumer, now);
        let new = CacheConsumer { announced: Announced::default(), is_reading, active_at: self.now };
        self.consumers.insert(consumer.0, new);
    }

    /// End a consumer: its announced and expected accesses are dropped. Reads in flight go on.
    pub fn handle_detach(&mut self, consumer: ConsumerId, now: Nanos) {
        self.advance_to(now);
        if let Some(gone) = self.consumers.remove(&consumer.0) {
            self.rank_again(gone.announced.announced_samples());
        }
    }

    /// Announce the next accesses of an attached consumer. Where they differ from the expected ones, those are dropped.
    pub fn handle_announce(
        &mut self,
        consumer: ConsumerId,
        samples: &mut dyn Iterator<Item = SampleId>,
        now: Nanos,
    ) {
        self.advance_to(now);
        let Some(one) = self.consumers.get_mut(&consumer.0) else { return };
        one.active_at = self.now;
        let mut changed = Vec::new();
        for sample in samples.map(number) {
            changed.extend(one.announced.announce(sample));
            changed.push(sample);
        }
        self.rank_again(changed);
    }

    /// Further accesses that the consumer is expected to make, after its announced and expected ones. They only guide the
    /// eviction, so they may be wrong.
    pub fn handle_expect(&mut self, consumer: ConsumerId, samples: &mut dyn Iterator<Item = SampleId>) {
        if let Some(one) = self.consumers.get_mut(&consumer.0) {
            // Cached samples are ranked by these uses when they could leave, since there may be a million of them.
            samples.map(number).for_each(|sample| one.announced.expect(sample));
        }
    }

    /// The consumer's first `count` announced accesses, of all so far, were handed out and are about to be requested.
    /// Only requests of these count as accesses of the consumer.
    pub fn handle_handed_out(&mut self, consumer: ConsumerId, count: u64, now: Nanos) {
        self.advance_to(now);
        if let Some(one) = self.consumers.get_mut(&consumer.0) {
            one.active_at = self.now;
            one.announced.hand_out(count);
        }
    }

    /// A sample is requested. It counts as the next access of one consumer to which it was handed out, if there is one.
    /// For [`SampleLookup::Read`], `reader` reads the sample.
    pub fn handle_request(&mut self, sample: SampleId, reader: ReaderId, now: Nanos) -> SampleLookup {
        let index = number(sample);
        self.count_access(index, now);
        self.look_up(index, reader)
    }

    /// A sample was copied from the cache without a request. It counts as an access like a request, and may have left since.
    pub fn handle_hit(&mut self, sample: SampleId, now: Nanos) {
        let index = number(sample);
        self.count_access(index, now);
        if self.residents.contains(index) {
            self.residents.touch(index, self.next_access(index));
        }
    }

    /// A request is made again after the read that it joined has failed. It counts as no further access.
    pub fn handle_retry(&mut self, sample: SampleId, reader: ReaderId, now: Nanos) -> SampleLookup {
        self.advance_to(now);
        self.look_up(number(sample), reader)
    }

    /// A sample was read and has `size` bytes. Returns whether it enters the cache; evictions for it are then due at once.
    /// Without a read in flight, nothing enters.
    pub fn handle_read(&mut self, sample: SampleId, size: Bytes) -> bool {
        let index = number(sample);
        if !self.flights.end(index, Some(size)) {
            return false;
        }
        let next = self.next_access(index);
        if self.residents.used() + size > self.residents.capacity() {
            self.release_stalled();
            self.release_outdated();
        }
        loop {
            match self.residents.victims_for(size, next) {
                None => return false,
                // A stored rank may be older than the last accesses.
                Some(victims) if victims.iter().any(|&victim| self.is_outdated(victim)) => {
                    self.rank_again(victims);
                }
                Some(victims) => {
                    for victim in victims {
                        self.evict(victim);
                    }
                    self.residents.insert(index, size, next);
                    return true;
                }
            }
        }
    }

    /// A sample that [entered](Self::handle_read) finds no contiguous place: another one that is used later leaves, and
    /// [`poll_eviction`](Self::poll_eviction) returns it. Without one the sample itself leaves, and `false` is returned.
    pub fn handle_no_place(&mut self, sample: SampleId) -> bool {
        let index = number(sample);
        while let Some(victim) = self.residents.used_after(index) {
            // A stored rank may be older than the last accesses.
            if self.is_outdated(victim) {
                self.rank_again(vec![victim]);
            } else {
                self.evict(victim);
                return true;
            }
        }
        self.residents.remove(index);
        false
    }

    /// A sample that [entered](Self::handle_read) is not kept.
    pub fn handle_dropped(&mut self, sample: SampleId) {
        self.residents.remove(number(sample));
    }

    /// The read of a sample has failed. Requests that joined it [are made again](Self::handle_retry): the first of them
    /// reads.
    pub fn handle_failed(&mut self, sample: SampleId) {
        self.flights.end(number(sample), None);
    }

    /// A reader is gone. Returns the samples whose reads have ended with it, as by [`handle_failed`](Self::handle_failed).
    pub fn handle_reader_lost(&mut self, reader: ReaderId) -> Vec<SampleId> {
        self.flights.end_all(reader).into_iter().map(|sample| SampleId(sample.into())).collect()
    }

    /// Remove a sample from the cache, if it is there, without an eviction: its bytes are lost or outdated.
    pub fn handle_lost(&mut self, sample: SampleId) {
        self.residents.remove(number(sample));
    }

    /// The next announced sample to read, for `reader`; `None` while all are cached or in flight, or while the samples
    /// announced before them fill the capacity. [`poll_fetch_group`](Self::poll_fetch_group) returns several.
    pub fn poll_fetch(&mut self, reader: ReaderId, now: Nanos) -> Option<SampleId> {
        self.start_next(reader, now).map(|(_, index)| SampleId(index.into()))
    }

    /// Start the read of the next announced sample; return its distance and number.
    fn start_next(&mut self, reader: ReaderId, now: Nanos) -> Option<(u64, u32)> {
        self.advance_to(now);
        let expected = self.flights.expected_bytes();
        if self.residents.announced_bytes() + expected > self.residents.capacity() {
            self.release_stalled();
            if self.residents.announced_bytes() + expected > self.residents.capacity() {
                return None;
            }
        }
        let (residents, flights) = (&self.residents, &self.flights);
        let next = |one: &mut CacheConsumer| {
            one.announced.next_fetch(|sample| residents.contains(sample) || flights.contains(sample))
        };
        let running = self.consumers.values_mut().filter(|one| one.is_reading);
        let (distance, index) = running.filter_map(next).min()?;
        self.flights.start(index, reader);
        Some((distance, index))
    }

    /// Whether [`poll_fetch`](Self::poll_fetch) may return a sample now. It is cheap: callers wake readers by it.
    pub fn can_fetch(&self) -> bool {
        let is_behind = |one: &CacheConsumer| one.is_reading && one.announced.has_unfetched();
        let needed = self.residents.announced_bytes() + self.flights.expected_bytes();
        needed <= self.residents.capacity() && self.consumers.values().any(is_behind)
    }

    /// The next sample to remove from the cache.
    pub fn poll_eviction(&mut self) -> Option<SampleId> {
        self.evictions.pop_front()
    }

    /// Bytes of the cached samples.
    pub fn used(&self) -> Bytes {
        self.residents.used()
    }

    /// Number of cached samples.
    pub fn len(&self) -> usize {
        self.residents.len()
    }

    /// Whether no sample is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Mean size of the samples read so far; `None` before the first.
    pub fn mean_size(&self) -> Option<Bytes> {
        self.flights.mean_size()
    }

    /// Accesses of a consumer that were handed out and not requested so far, and those that were passed over for good.
    /// `None` if it is not attached.
    pub fn outstanding(&self, consumer: ConsumerId) -> Option<(u64, u64)> {
        let announced = &self.consumers.get(&consumer.0)?.announced;
        Some((announced.outstanding(), announced.skipped()))
    }

    /// Accesses of a consumer that were requested or passed over so far, and announced ones that are left. `None` if it is
    /// not attached.
    pub fn progress(&self, consumer: ConsumerId) -> Option<(u64, u64)> {
        let announced = &self.consumers.get(&consumer.0)?.announced;
        Some((announced.progress(), announced.left()))
    }

    /// Count an access of the consumer to which the sample was handed out.
    fn count_access(&mut self, index: u32, now: Nanos) {
        self.advance_to(now);
        let mut passed = Vec::new();
        for one in self.consumers.values_mut() {
            let before = one.announced.progress();
            if one.announced.request(index, &mut passed) {
                one.is_reading = true;
                one.active_at = self.now;
                self.accesses += one.announced.progress() - before;
                break;
            }
        }
        self.rank_again(passed);
    }

    fn look_up(&mut self, index: u32, reader: ReaderId) -> SampleLookup {
        if self.residents.contains(index) {
            self.residents.touch(index, self.next_access(index));
            SampleLookup::Hit
        } else if self.flights.contains(index) {
            SampleLookup::Join
        } else {
            self.flights.start(index, reader);
            SampleLookup::Read
        }
    }

    fn advance_to(&mut self, now: Nanos) {
        self.now = self.now.max(now);
    }

    fn evict(&mut self, index: u32) {
        self.residents.remove(index);
        self.evictions.push_back(SampleId(index.into()));
    }

    /// The nearest use of a sample by any consumer.
    fn next_access(&self, index: u32) -> NextAccess {
        let of_consumer = |one: &CacheConsumer| {
            let (position, is_announced) = one.announced.next_use(index)?;
            // Constant while only this consumer moves.
            let at = self.accesses - one.announced.progress() + position;
            Some(if is_announced && !self.stands_still(one) {
                NextAccess::Announced { at }
            } else {
                NextAccess::Expected { at }
            })
        };
        self.consumers.values().filter_map(of_consumer).min().unwrap_or(NextAccess::Unknown)
    }

    /// Whether the rank of a cached sample is not that of its next access.
    fn is_outdated(&self, index: u32) -> bool {
        self.residents.next(index) != Some(self.next_access(index))
    }

    fn rank_again(&mut self, samples: Vec<u32>) {
        for index in samples {
            if self.residents.contains(index) {
                self.residents.rank(index, self.next_access(index));
            }
        }
    }

    /// Rank samples again whose expected use is in the past: their consumer has ended or left them out.
    fn release_outdated(&mut self) {
        while let Some(index) = self.residents.expected_before(self.accesses)
            && self.is_outdated(index)
        {
            self.rank_again(vec![index]);
        }
    }

    fn stands_still(&self, consumer: &CacheConsumer) -> bool {
        self.now.saturating_sub(consumer.active_at) > self.stall_grace
    }

    /// Rank the announced samples again if a consumer stands still: its samples are then no longer announced.
    fn release_stalled(&mut self) {
        if self.consumers.values().any(|one| self.stands_still(one)) {
            self.rank_again(self.residents.announced());
        }
    }
}

/// The number of a sample in the tables.
fn number(sample: SampleId) -> u32 {
    narrow(usize::try_from(sample.0).unwrap_or(usize::MAX))
}
