// SPDX-License-Identifier: Apache-2.0
//! The cache in the process that has it: its plan, the bytes, and the requests that wait for reads.

mod pause;
mod peers;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use foresee_data_node::{NodeError, SampleCacheCounts};
use foresee_data_plan::{ConsumerId, ReaderId, SampleCacheConfig, SampleCachePlanner, SampleLookup};
use foresee_units::{Bytes, Nanos, SampleId};
use rustc_hash::{FxHashMap, FxHashSet};

use self::pause::ReadPause;
use self::peers::Peers;
pub(super) use self::peers::{FIRST_PEER, PeerAnswer};
use super::grouping::SampleGrouping;
use super::store::{SampleStore, footprint};

/// Time after which the announced samples of a consumer that does nothing may leave. A pause for a validation or a
/// checkpoint is mostly shorter; a longer one costs reads, no error.
const STALL_GRACE: Nanos = Nanos::from_secs(60);
/// The readers of this process are threads, which are not lost one by one. Connections of worker processes follow.
const READER: ReaderId = ReaderId(0);
/// Samples that leave at most so that one finds a contiguous place.
const PLACE_TRIES: usize = 64;

/// A cache of encoded samples, shared by threads, and by worker processes while it has a
/// [host](super::SampleCacheHost).
///
/// A forked child must not use it, and must not drop it.
#[derive(Debug)]
pub struct SampleCache {
    state: Mutex<CacheState>,
    /// A read may have become possible, or the cache is closed.
    fetchable: Condvar,
    /// A read has ended.
    ended: Condvar,
    /// Counts of accesses that were handed out, of which the planner has yet to know. They have a lock of their own:
    /// one that is contended by reads would delay the training loop at each index.
    handed_out: Mutex<FxHashMap<ConsumerId, u64>>,
    capacity: Bytes,
    grouping: SampleGrouping,
    start: Instant,
}

#[derive(Debug)]
struct CacheState {
    planner: SampleCachePlanner,
    store: SampleStore,
    /// Reads in flight that requests of this process have joined.
    joined: FxHashMap<SampleId, Arc<SharedRead>>,
    peers: Peers,
    counts: SampleCacheCounts,
    pause: ReadPause,
    is_closed: bool,
}

/// A read that several requests wait for: the bytes of the sample, or `None` if it has failed, once it has ended.
#[derive(Debug, Default)]
pub struct SharedRead(OnceLock<Option<Arc<[u8]>>>);

/// State of a shared read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedOutcome {
    /// The sample is being read.
    InFlight,
    /// The bytes of the sample.
    Read(Arc<[u8]>),
    /// The read has failed: [`request`](SampleCache::request) the sample again.
    Failed,
}

/// Answer to a request.
#[derive(Debug)]
pub enum SampleAnswer {
    /// The bytes of the sample.
    Bytes(Arc<[u8]>),
    /// Another thread reads the sample: [`wait`](SampleCache::wait) for it.
    Join(Arc<SharedRead>),
    /// The caller reads the sample, then calls [`insert`](SampleCache::insert) or [`fail`](SampleCache::fail).
    Read,
}

impl SampleCache {
    /// Create an empty cache of `capacity` bytes. Nothing is allocated before samples enter. A sample takes its bytes and
    /// at most 71 more.
    pub fn new(capacity: Bytes) -> Self {
        Self::with_grouping(capacity, SampleGrouping::Single)
    }

    /// Create an empty cache as [`new`](Self::new) does, whose samples are read together as `grouping` says.
    pub fn with_grouping(capacity: Bytes, grouping: SampleGrouping) -> Self {
        let planner = SampleCachePlanner::new(SampleCacheConfig { capacity, stall_grace: STALL_GRACE });
        let state = CacheState {
            planner,
            store: SampleStore::Private(FxHashMap::default()),
            joined: FxHashMap::default(),
            peers: Peers::default(),
            counts: SampleCacheCounts::default(),
            pause: ReadPause::default(),
            is_closed: false,
        };
        Self {
            state: Mutex::new(state),
            fetchable: Condvar::new(),
            ended: Condvar::new(),
            handed_out: Mutex::default(),
            capacity,
            grouping,
            start: Instant::now(),
        }
    }

    /// Capacity in bytes.
    pub const fn capacity(&self) -> Bytes {
        self.capacity
    }

    /// Attach a consumer; see [`SampleCachePlanner::handle_attach`].
    pub fn attach(&self, consumer: ConsumerId, is_reading: bool) {
        self.lock_for_accesses().planner.handle_attach(consumer, is_reading, self.now());
    }

    /// End a consumer; its announcements end with it.
    pub fn detach(&self, consumer: ConsumerId) {
        let mut state = self.lock_for_accesses();
        state.planner.handle_detach(consumer, self.now());
        state.pause.forget(consumer);
        self.wake_readers(&state);
    }

    /// Announce the next accesses of a consumer.
    pub fn announce(&self, consumer: ConsumerId, samples: &mut dyn Iterator<Item = SampleId>) {
        let (mut state, now) = (self.lock_for_accesses(), self.now());
        let could_fetch = state.planner.can_fetch();
        if let Some((progress, left)) = state.planner.progress(consumer) {
            state.pause.note_announcement(consumer, progress, left, now);
        }
        state.planner.handle_announce(consumer, samples, now);
        self.wake_after(&mut state, could_fetch);
    }

    /// Further accesses that the consumer is expected to make.
    pub fn expect(&self, consumer: ConsumerId, samples: &mut dyn Iterator<Item = SampleId>) {
        self.lock().planner.handle_expect(consumer, samples);
    }

    /// The consumer's first `count` announced accesses of all so far were handed out.
    pub fn hand_out(&self, consumer: ConsumerId, count: u64) {
        self.handed_out.lock().unwrap_or_else(PoisonError::into_inner).insert(consumer, count);
    }

    /// Request a sample, or with `is_retry` request it again after the read that it joined has failed.
    pub fn request(&self, sample: SampleId, is_retry: bool) -> SampleAnswer {
        let mut state = self.lock_for_accesses();
        let could_fetch = state.planner.can_fetch();
        let answer = match self.look_up(&mut state, sample, READER, is_retry) {
            SampleLookup::Hit => SampleAnswer::Bytes(state.cached(sample)),
            SampleLookup::Join => SampleAnswer::Join(Arc::clone(state.joined.entry(sample).or_default())),
            SampleLookup::Read => SampleAnswer::Read,
        };
        // The sample may leave now, and its consumer is known to read here.
        self.wake_after(&mut state, could_fetch);
        answer
    }

    /// Wait up to `timeout` for a shared read.
    pub fn wait(&self, read: &SharedRead, timeout: Duration) -> SharedOutcome {
        let state = self.lock();
        let in_flight = |_: &mut CacheState| read.get() == SharedOutcome::InFlight;
        drop(
            self.ended.wait_timeout_while(state, timeout, in_flight).unwrap_or_else(PoisonError::into_inner),
        );
        read.get()
    }

    /// Request those of several samples that are cached; `None` for each other one, which does not count as a request.
    pub fn request_cached(&self, samples: &[SampleId]) -> Vec<Option<Arc<[u8]>>> {
        let mut state = self.lock_for_accesses();
        let could_fetch = state.planner.can_fetch();
        let request = |&sample: &SampleId| {
            let bytes = state.store.get(sample)?;
            let lookup = self.look_up(&mut state, sample, READER, false);
            debug_assert_eq!(lookup, SampleLookup::Hit, "the plan and the memory have the same samples");
            Some(bytes)
        };
        let found = samples.iter().map(request).collect();
        self.wake_after(&mut state, could_fetch);
        found
    }

    /// Request several samples at once. Those returned are neither cached nor in flight: the caller reads them, then calls
    /// [`insert_all`](Self::insert_all), or [`fail`](Self::fail) for each. Neighbours that are read with them are among them.
    /// Only those returned count as requests: the caller requests all others after these reads.
    pub fn claim(&self, samples: &[SampleId]) -> Vec<SampleId> {
        let mut state = self.lock_for_accesses();
        let claimed = self.claim_for(&mut state, samples, READER);
        self.wake_readers(&state);
        claimed
    }

    /// A sample was read. It enters the cache if the planner says so; requests that joined get it in any case.
    pub fn insert(&self, sample: SampleId, bytes: &[u8]) {
        self.insert_all(&[(sample, bytes)]);
    }

    /// Several samples were read; as [`insert`](Self::insert).
    pub fn insert_all(&self, reads: &[(SampleId, &[u8])]) {
        let mut state = self.lock();
        for &(sample, bytes) in reads {
            let has_entered = state.insert(sample, bytes);
            state.counts.bypasses += u64::from(!has_entered);
            state.end_read(sample, Some((bytes, has_entered)));
        }
        self.notify_ends(state);
    }

    /// A sample that is inserted was on the disk.
    pub fn note_disk_hit(&self) {
        self.lock().counts.disk_hits += 1;
    }

    /// The read of a sample has failed.
    pub fn fail(&self, sample: SampleId) {
        let mut state = self.lock();
        state.planner.handle_failed(sample);
        state.end_read(sample, None);
        self.notify_ends(state);
    }

    /// Wait for the next samples to read ahead together, while no worker process is connected; none after
    /// [`close`](Self::close).
    pub fn next_fetch(&self) -> Vec<SampleId> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return Vec::new();
            }
            // Worker processes read ahead: what a thread holds at a fork would stay held in the child.
            if state.peers.count == 0 {
                if let Some(left) = state.pause.left(self.now()) {
                    state.pause.is_awaited = true;
                    let waited = self.fetchable.wait_timeout(state, left.into());
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                    state.pause.is_awaited = false;
                    continue;
                }
                let group = self.fetch_for(&mut state, READER);
                if !group.is_empty() {
                    // One thread wakes the next: if all woke at once, the training loop would wait for a core.
                    self.wake_readers(&state);
                    return group;
                }
            }
            state = self.fetchable.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// End the waits of [`next_fetch`](Self::next_fetch). Requests are still answered.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.fetchable.notify_all();
    }

    /// Accesses of a consumer that were handed out and not requested, and those passed over for good.
    pub fn outstanding(&self, consumer: ConsumerId) -> Option<(u64, u64)> {
        self.lock_for_accesses().planner.outstanding(consumer)
    }

    /// Mean size of the samples read so far; `None` before the first.
    pub fn mean_size(&self) -> Option<Bytes> {
        self.lock().planner.mean_size()
    }

    /// Counts since the start.
    pub fn counts(&self) -> SampleCacheCounts {
        let state = self.lock();
        let (samples, bytes) = (state.planner.len() as u64, state.planner.used().get());
        SampleCacheCounts { samples, bytes, capacity: self.capacity.get(), ..state.counts }
    }

    /// Move the samples into memory that worker processes can map.
    pub(super) fn share(&self, samples: u64) -> Result<(), NodeError> {
        self.lock().store.share(samples, self.capacity)
    }

    /// Look a sample up for a request, and count that.
    fn look_up(
        &self,
        state: &mut CacheState,
        sample: SampleId,
        reader: ReaderId,
        is_retry: bool,
    ) -> SampleLookup {
        let now = self.now();
        let lookup = if is_retry {
            state.planner.handle_retry(sample, reader, now)
        } else {
            state.planner.handle_request(sample, reader, now)
        };
        match lookup {
            SampleLookup::Hit if is_retry => {}
            SampleLookup::Hit => state.counts.hits += 1,
            SampleLookup::Join => state.counts.joins += 1,
            SampleLookup::Read => state.counts.misses += 1,
        }
        if lookup != SampleLookup::Hit {
            state.pause.end();
        }
        lookup
    }

    /// The samples that a reader reads ahead together next; none if there are none now.
    fn fetch_for(&self, state: &mut CacheState, reader: ReaderId) -> Vec<SampleId> {
        let now = self.now();
        let group = self
            .grouping
            .with(self.capacity, |grouping| state.planner.poll_fetch_group(reader, grouping, now));
        state.counts.fetches += group.len() as u64;
        group
    }

    fn claim_for(&self, state: &mut CacheState, samples: &[SampleId], reader: ReaderId) -> Vec<SampleId> {
        let now = self.now();
        let claimed = self
            .grouping
            .with(self.capacity, |grouping| state.planner.handle_claim(samples, reader, grouping, now));
        if !claimed.is_empty() {
            state.pause.end();
        }
        let requested: FxHashSet<SampleId> = samples.iter().copied().collect();
        let misses = claimed.iter().filter(|sample| requested.contains(sample)).count();
        state.counts.misses += misses as u64;
        state.counts.fetches += (claimed.len() - misses) as u64;
        claimed
    }

    /// Reads have ended: wake those that wait for them, or for samples to read ahead.
    fn notify_ends(&self, state: MutexGuard<'_, CacheState>) {
        self.wake_readers(&state);
        drop(state);
        self.ended.notify_all();
    }

    /// An access of the training loop may have made reads possible. If none were before, they begin after a pause.
    fn wake_after(&self, state: &mut CacheState, could_fetch: bool) {
        if !could_fetch {
            state.pause.begin(self.now());
        }
        self.wake_readers(state);
    }

    /// Wake those that wait for a sample to read ahead, if there may be one: worker processes, or else a thread.
    fn wake_readers(&self, state: &CacheState) {
        if !state.planner.can_fetch() {
            return;
        }
        if state.peers.count == 0 {
            if !(state.pause.is_awaited && state.pause.left(self.now()).is_some()) {
                self.fetchable.notify_one();
            }
        } else if !state.peers.fetchers.is_empty() {
            state.peers.wake_host();
        }
    }

    /// Lock the state after the planner was told of what was handed out.
    fn lock_for_accesses(&self) -> MutexGuard<'_, CacheState> {
        let mut state = self.lock();
        let now = self.now();
        for (consumer, count) in self.handed_out.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            state.planner.handle_handed_out(consumer, count, now);
        }
        state
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Nanos {
        Nanos::new(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl CacheState {
    /// A copy of a sample that is cached.
    fn cached(&self, sample: SampleId) -> Arc<[u8]> {
        self.store.get(sample).expect("the plan and the memory have the same samples")
    }

    /// Insert a sample that was read; `false` if it does not enter.
    fn insert(&mut self, sample: SampleId, bytes: &[u8]) -> bool {
        if !self.planner.handle_read(sample, footprint(bytes.len())) {
            return false;
        }
        self.evict();
        for _ in 0..PLACE_TRIES {
            if self.store.insert(sample, bytes) {
                return true;
            }
            if !self.planner.handle_no_place(sample) {
                return false;
            }
            self.evict();
        }
        self.planner.handle_dropped(sample);
        false
    }

    /// A read has ended, with the bytes and whether they are cached, or without.
    fn end_read(&mut self, sample: SampleId, read: Option<(&[u8], bool)>) {
        if let Some(joined) = self.joined.remove(&sample) {
            joined.0.set(read.map(|(bytes, _)| bytes.into())).expect("a read ends once");
        }
        if let Some(waiting) = self.peers.joined.remove(&sample) {
            // A sample that did not enter would be read again for each of them.
            let bytes: Option<Arc<[u8]>> =
                read.filter(|(_, is_cached)| !is_cached).map(|(bytes, _)| bytes.into());
            let answer = || bytes.clone().map_or(PeerAnswer::Again, PeerAnswer::Bytes);
            self.peers.answers.extend(waiting.into_iter().map(|peer| (peer, answer())));
            self.peers.wake_host();
        }
    }

    fn evict(&mut self) {
        while let Some(victim) = self.planner.poll_eviction() {
            self.store.remove(victim);
            self.counts.evictions += 1;
        }
    }
}

impl SharedRead {
    fn get(&self) -> SharedOutcome {
        match self.0.get() {
            None => SharedOutcome::InFlight,
            Some(None) => SharedOutcome::Failed,
            Some(Some(bytes)) => SharedOutcome::Read(Arc::clone(bytes)),
        }
    }
}
