// SPDX-License-Identifier: Apache-2.0
//! The public loader, which owns the threads.
//!
//! Nothing starts before the first request, every wait ends by a batch, an error or `close`, and a forked child
//! accesses no shared state.

mod exchange;
mod plain_reads;
mod start;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use foresee_data_index::Index;
use foresee_data_order::OrderError;
use foresee_data_tier::{DiskTier, ObjectReader, Tier};
use foresee_ledger::{Cause, Totals};
use foresee_units::{Bytes, Epoch, Nanos};

use crate::batch::Batch;
use crate::batch_queue::{BatchQueue, QueueEntry};
use crate::buffer::BufferPool;
use crate::cache::{Cache, CacheShare};
use crate::config::{LoaderConfig, LoaderOptions};
use crate::data_set::DataSet;
use crate::driver::{Command, CommandQueue, DriverStats, Shared};
use crate::errors::LoaderError;
use crate::node::{JoinProgress, NodeHost, leave};
use crate::notices::Notices;
use crate::orders::{EpochSamples, RankEpoch};
use crate::recorder::{ConsumerWait, Recorder};
use crate::waker::Waker;

pub(crate) use exchange::loader_identity;
pub use exchange::{ExchangeError, NextOffer, PeerPlace};
use exchange::{GenerationStart, Offered};

/// Time for a tier to finish operations in flight at `close`.
const GRACE: Nanos = Nanos::from_secs(2);
/// Maximum of a tick, a century: some clocks cannot represent later deadlines.
const TICK_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The result of `next_batch`.
#[derive(Debug)]
pub enum Next {
    /// The next batch.
    Batch(Box<Batch>),
    /// The epoch has no more batches; the next call continues with the next epoch.
    EpochEnd,
    /// The tick has passed: check for signals and call again.
    Waiting {
        /// Time since the wait began.
        waited: Nanos,
        /// The awaited sample, with source and URI, if known.
        what: Option<String>,
    },
}

/// Counters of a loader.
#[derive(Clone, Debug)]
pub struct LoaderStats {
    /// Sums over all entries.
    pub totals: Totals,
    /// Metrics of the driver.
    pub driver: DriverStats,
    /// Ready batches.
    pub ready: usize,
    /// Bytes of batch memory in use by the loader or by the consumer.
    pub lent: Bytes,
    /// Time since the loader was created.
    pub elapsed: Nanos,
    /// The reason, if the ledger was abandoned.
    pub ledger_failure: Option<String>,
}

/// The engine of one rank.
#[derive(Debug)]
pub struct Loader {
    config: LoaderConfig,
    cache: Arc<Cache>,
    data: Arc<DataSet>,
    shared: Arc<Shared>,
    running: Mutex<Option<Running>>,
    /// Of reads without plan and caches.
    reader: OnceLock<ObjectReader>,
    /// How far it is on the way to the host of its node's cache, before it runs.
    joining: Mutex<Option<JoinProgress>>,
    /// When the present wait of the consumer began.
    waiting_since: Mutex<Option<Instant>>,
    /// The process that created it.
    process: u32,
    /// Where the present generation began, and when it changes.
    start: Mutex<GenerationStart>,
    moved: Condvar,
    /// Whether the nodes of the job will not exchange samples, although the options say so.
    expects_no_peers: AtomicBool,
    /// What this node has offered to others.
    offered: Mutex<Option<Offered>>,
}

/// When tiers and threads were opened.
enum Opening {
    Before,
    Now,
    /// Not yet: the host of the node's cache is not there, or has not answered.
    Waiting,
}

#[derive(Debug)]
struct Running {
    driver: JoinHandle<()>,
    origin: Arc<dyn Tier>,
    disk: Option<Arc<DiskTier>>,
    share: Arc<CacheShare>,
    /// Whether it consumes from the cache of its node, or searches for its host.
    is_consumer: bool,
    /// The host of that cache, if it is in this process.
    host: Option<Arc<NodeHost>>,
}

impl Loader {
    /// Check the configuration. No thread, file or connection is opened.
    pub fn new(index: Index, cache: Arc<Cache>, options: LoaderOptions) -> Result<Self, LoaderError> {
        let rank = options.world.rank();
        let config = LoaderConfig::check(options, &index, cache.ram())?;
        let waker = Arc::new(Waker::default());
        let shared = Shared {
            commands: CommandQueue::default(),
            batches: BatchQueue::new(Arc::clone(&waker)),
            recorder: Recorder::new(rank),
            buffers: Arc::new(BufferPool::new(config.staging, Arc::clone(&waker))),
            stats: Mutex::default(),
            notices: Notices::default(),
            waker,
        };
        Ok(Self {
            data: Arc::new(DataSet::new(index, &config.options.uri)),
            config,
            cache,
            shared: Arc::new(shared),
            running: Mutex::default(),
            reader: OnceLock::new(),
            joining: Mutex::default(),
            waiting_since: Mutex::default(),
            process: std::process::id(),
            start: Mutex::new(GenerationStart::FIRST),
            moved: Condvar::new(),
            expects_no_peers: AtomicBool::new(false),
            offered: Mutex::default(),
        })
    }

    /// Open tiers and threads, and begin to stage. Idempotent; the first `next_batch` does it too.
    ///
    /// Returns `false` if the host of the node's cache did not come or answer within `tick`: check for signals and call again.
    pub fn start(&self, tick: Duration) -> Result<bool, LoaderError> {
        Ok(!matches!(self.open(tick)?, Opening::Waiting))
    }

    fn open(&self, tick: Duration) -> Result<Opening, LoaderError> {
        self.check_process()?;
        let mut running = lock(&self.running);
        if self.shared.batches.is_closed() {
            return Err(LoaderError::Closed);
        }
        if running.is_some() {
            return Ok(Opening::Before);
        }
        let mut joining = lock(&self.joining);
        *running = self.spawn(joining.get_or_insert_with(JoinProgress::begin), tick)?;
        if running.is_some() {
            *joining = None;
        }
        Ok(if running.is_some() { Opening::Now } else { Opening::Waiting })
    }

    /// Continue at global `position` of `epoch`.
    ///
    /// A run with an order draws the epoch itself: `order` is `None`, and the call has no effect if the next batch is
    /// there already. An epoch after the run's last one is drawn, and the run ends after it. Any other run gets the
    /// samples of one epoch as `order`, and batches that were staged before are discarded.
    ///
    /// # Errors
    /// No error changes anything. [`LoaderError::Order`] if `position` is past the end of an epoch of the run's order.
    /// [`LoaderError::Config`] if `order` is given to a run that has one, or is missing; if it has an id outside the
    /// data set, or its lengths exceed its ids.
    pub fn begin_epoch(
        &self,
        epoch: Epoch,
        position: u64,
        order: Option<EpochSamples<'_>>,
    ) -> Result<(), LoaderError> {
        self.check_process()?;
        let order = match (&self.config.run, order) {
            (Some(run), None) => {
                let n = run.order.n();
                if position > n {
                    return Err(OrderError::PositionPastEnd { position, n }.into());
                }
                None
            }
            (None, Some(order)) => {
                order.check(self.data.index())?;
                Some(RankEpoch::new(self.data.index(), epoch, order, self.config.batching)?)
            }
            (Some(_), Some(_)) => {
                return Err(fault(
                    "an epoch is given samples, but the run has an order; leave out one of the two",
                ));
            }
            (None, None) => {
                return Err(fault(
                    "an epoch begins without its samples, and the run has no order; give one of the two",
                ));
            }
        };
        let last = self.config.run.as_ref().and_then(|run| run.epochs);
        let is_forced = order.is_some() || last.is_some_and(|epochs| epoch.0 >= epochs);
        if let Some(generation) = self.shared.batches.seek(epoch, position, is_forced) {
            *lock(&self.waiting_since) = None;
            let number = u32::try_from(generation).unwrap_or(u32::MAX);
            *lock(&self.start) = GenerationStart { generation: number, epoch, position };
            self.moved.notify_all();
            self.send(Command::BeginEpoch { generation, epoch, position, order });
        }
        Ok(())
    }

    /// Wait for the next batch, at most `tick`; a tick of more than a century is no limit.
    ///
    /// The wait is not recorded, because only the caller knows when its step begins: see [`Loader::record_wait`].
    pub fn next_batch(&self, tick: Duration) -> Result<Next, LoaderError> {
        let start = self.now();
        let tick = tick.min(TICK_MAX);
        let since = *lock(&self.waiting_since).get_or_insert_with(Instant::now);
        match self.open(tick).inspect_err(|_| *lock(&self.waiting_since) = None)? {
            Opening::Before => {}
            Opening::Now => {
                let waited = Nanos::from(since.elapsed());
                self.shared.batches.begin_opening(self.now().saturating_sub(waited));
            }
            Opening::Waiting => {
                let what = Some("the host of this node's cache".to_owned());
                return Ok(Next::Waiting { waited: since.elapsed().into(), what });
            }
        }
        let Some(entry) = self.shared.batches.take(tick, start)? else {
            let what = self.shared.batches.wait_text();
            return Ok(Next::Waiting { waited: since.elapsed().into(), what });
        };
        *lock(&self.waiting_since) = None;
        match entry {
            QueueEntry::Batch(batch) => Ok(Next::Batch(Box::new(batch))),
            QueueEntry::EpochEnd(_) => Ok(Next::EpochEnd),
        }
    }

    /// Time since the loader was created: the clock of its ledger.
    pub fn now(&self) -> Nanos {
        self.shared.recorder.now()
    }

    /// Causes so far, each with its start, of a wait in [`Loader::next_batch`] without a batch yet.
    pub fn wait_stages(&self) -> Vec<(Cause, Nanos)> {
        if self.check_process().is_err() {
            return Vec::new();
        }
        self.shared.batches.wait_stages()
    }

    /// Steps of this rank in an epoch that begins at global `position`; `None` for a run without an order.
    pub fn steps(&self, position: u64) -> Result<Option<u64>, LoaderError> {
        Ok(self.config.run.as_ref().map(|run| run.steps(position)).transpose()?)
    }

    /// Take what the user has to be told, each text once.
    pub fn take_notices(&self) -> Vec<String> {
        if self.check_process().is_err() {
            return Vec::new();
        }
        self.shared.notices.take()
    }

    /// Counters since the loader was created.
    pub fn stats(&self) -> LoaderStats {
        let (totals, ledger_failure) = self.shared.recorder.sums();
        LoaderStats {
            totals,
            driver: lock(&self.shared.stats).clone(),
            ready: self.shared.batches.len(),
            lent: self.shared.buffers.lent(),
            elapsed: self.now(),
            ledger_failure,
        }
    }

    /// Stop everything within a time limit. Idempotent, from any thread.
    pub fn close(&self) {
        if self.process != std::process::id() {
            // A forked child has no threads, and their locks may be held forever.
            return;
        }
        self.shared.batches.close();
        // Who is about to wait has the lock, and is notified; who takes it later sees that the loader is closed.
        drop(lock(&self.start));
        self.moved.notify_all();
        *lock(&self.offered) = None;
        *lock(&self.joining) = None;
        let Some(running) = lock(&self.running).take() else { return };
        self.send(Command::Close);
        // The panic of a driver was reported to the consumer already.
        let _ = running.driver.join();
        running.origin.close(Nanos::ZERO);
        if let Some(disk) = running.disk {
            disk.close(GRACE);
        }
        self.cache.leave(running.share);
        if running.is_consumer {
            leave();
        }
        self.shared.recorder.close();
    }

    /// Add a wait of the consumer to the ledger; see [`Recorder::record_wait`].
    pub fn record_wait(&self, wait: &ConsumerWait) {
        self.shared.recorder.record_wait(wait);
    }

    fn send(&self, command: Command) {
        self.shared.commands.push(command);
        self.shared.waker.wake();
    }

    fn check_process(&self) -> Result<(), LoaderError> {
        if self.process == std::process::id() { Ok(()) } else { Err(LoaderError::Forked) }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.close();
    }
}

fn fault(what: &str) -> LoaderError {
    LoaderError::Config { faults: vec![what.to_owned()] }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
