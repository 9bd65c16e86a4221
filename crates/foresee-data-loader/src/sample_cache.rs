// SPDX-License-Identifier: Apache-2.0
//! Memory for the samples of a dataset that the user wrote.
//!
//! The dataset is code of the user, so the caller's threads read it: this module only says which sample is next, keeps
//! its bytes, and lets requests of one sample share a read. `foresee-data-plan` decides what is read and what leaves.
//!
//! | file | content |
//! |---|---|
//! | `core` | the state: plan, bytes, requests that wait |
//! | `store` | the bytes, in private memory or in a slab |
//! | `host` | the thread that answers worker processes |
//! | `client` | the cache as a worker process sees it |

mod client;
mod core;
mod host;
#[cfg(test)]
mod process_tests;
mod store;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foresee_data_node::{NodeError, SampleCacheCounts};
use foresee_data_plan::ConsumerId;
use foresee_units::{Bytes, SampleId};

pub use self::client::{PendingRequest, RemoteAnswer, SampleCacheClient};
use self::core::CacheCore;
pub use self::core::{SampleAnswer, SharedOutcome, SharedRead};
use self::host::SampleCacheHost;

/// A cache of encoded samples, shared by threads, and by worker processes after [`share`](Self::share).
///
/// A forked child must not use it, and must not drop it.
#[derive(Debug)]
pub struct SampleCache {
    core: Arc<CacheCore>,
    /// Dropped before its core: its thread ends.
    host: Mutex<Option<SampleCacheHost>>,
}

impl SampleCache {
    /// Create an empty cache of `capacity` bytes. Nothing is allocated before samples enter. A sample takes its bytes and
    /// at most 71 more.
    pub fn new(capacity: Bytes) -> Self {
        Self { core: Arc::new(CacheCore::new(capacity)), host: Mutex::new(None) }
    }

    /// Let worker processes use the cache, for a dataset of `samples` samples, and return the path of its socket. From now
    /// on its memory is shared. A further call returns the same path.
    ///
    /// While worker processes are connected, they read ahead, and this process does not.
    ///
    /// # Errors
    /// The system refuses memory, a socket, its directory or a thread: the cache stays that of this process.
    pub fn share(&self, samples: u64) -> Result<PathBuf, NodeError> {
        let mut host = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = &*host {
            return Ok(host.path().to_owned());
        }
        self.core.share(samples)?;
        let started = host.insert(SampleCacheHost::start(Arc::clone(&self.core), samples)?);
        Ok(started.path().to_owned())
    }

    /// Capacity in bytes.
    pub fn capacity(&self) -> Bytes {
        self.core.capacity()
    }

    /// Attach a consumer; see [`SampleCachePlanner::handle_attach`](foresee_data_plan::SampleCachePlanner::handle_attach).
    pub fn attach(&self, consumer: ConsumerId, is_reading: bool) {
        self.core.attach(consumer, is_reading);
    }

    /// End a consumer; its announcements end with it.
    pub fn detach(&self, consumer: ConsumerId) {
        self.core.detach(consumer);
    }

    /// Announce the next accesses of a consumer.
    pub fn announce(&self, consumer: ConsumerId, samples: &mut dyn Iterator<Item = SampleId>) {
        self.core.announce(consumer, samples);
    }

    /// Further accesses that the consumer is expected to make.
    pub fn expect(&self, consumer: ConsumerId, samples: &mut dyn Iterator<Item = SampleId>) {
        self.core.expect(consumer, samples);
    }

    /// The consumer's first `count` announced accesses of all so far were handed out.
    pub fn hand_out(&self, consumer: ConsumerId, count: u64) {
        self.core.hand_out(consumer, count);
    }

    /// Request a sample, or with `is_retry` request it again after the read that it joined has failed.
    pub fn request(&self, sample: SampleId, is_retry: bool) -> SampleAnswer {
        self.core.request(sample, is_retry)
    }

    /// Wait up to `timeout` for a shared read.
    pub fn wait(&self, read: &SharedRead, timeout: Duration) -> SharedOutcome {
        self.core.wait(read, timeout)
    }

    /// A sample was read. It enters the cache if the planner says so; requests that joined get it in any case.
    pub fn insert(&self, sample: SampleId, bytes: &[u8]) {
        self.core.insert(sample, bytes);
    }

    /// The read of a sample has failed.
    pub fn fail(&self, sample: SampleId) {
        self.core.fail(sample);
    }

    /// Wait for the next sample to read ahead; `None` after [`close`](Self::close).
    pub fn next_fetch(&self) -> Option<SampleId> {
        self.core.next_fetch()
    }

    /// End the waits of [`next_fetch`](Self::next_fetch), and the connections of worker processes. Requests of this
    /// process are still answered.
    pub fn close(&self) {
        self.core.close();
        drop(self.host.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Accesses of a consumer that were handed out and not requested, and those passed over for good.
    pub fn outstanding(&self, consumer: ConsumerId) -> Option<(u64, u64)> {
        self.core.outstanding(consumer)
    }

    /// Mean size of the samples read so far, as they are cached; `None` before the first.
    pub fn mean_size(&self) -> Option<Bytes> {
        self.core.mean_size()
    }

    /// Counts since the start, over all processes.
    pub fn counts(&self) -> SampleCacheCounts {
        self.core.counts()
    }
}
