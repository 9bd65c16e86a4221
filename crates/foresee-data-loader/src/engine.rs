// SPDX-License-Identifier: Apache-2.0
//! The public loader: made, started, asked for batches, closed.
//!
//! It owns the threads. Nothing starts before the first request, every wait ends by a batch, an error or `close`, and a
//! forked child touches nothing. `start` has what a start opens, and how memory is divided.

mod start;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use foresee_data_index::Index;
use foresee_data_order::OrderError;
use foresee_data_tier::{DiskTier, OriginError, Tier, Uri, read_whole};
use foresee_ledger::{Cause, Totals};
use foresee_units::{Bytes, Epoch, Nanos, SampleId};

use crate::batch::Batch;
use crate::batch_queue::{BatchQueue, QueueEntry};
use crate::buffer::BufferPool;
use crate::cache::{Cache, Member};
use crate::config::{LoaderConfig, LoaderOptions};
use crate::data_set::DataSet;
use crate::driver::{Command, DriverFacts, Inbox, Shared};
use crate::errors::LoaderError;
use crate::metrics::{ConsumerWait, Metrics};
use crate::orders::{EpochSamples, RankEpoch};
use crate::waker::Waker;

/// How long `close` lets a tier finish what is under way.
const GRACE: Nanos = Nanos::from_secs(2);
/// A century: a deadline behind it lies outside of what some clocks can name, and nobody sees it.
const LONGEST_TICK: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What `next_batch` found within its tick.
#[derive(Debug)]
pub enum Next {
    /// The batch.
    Batch(Box<Batch>),
    /// The epoch has no more; the next call is about the next epoch.
    EpochEnd,
    /// Nothing yet: look for signals and ask again. `what` says what is being waited for, if known.
    Waiting {
        /// Since the wait began.
        waited: Nanos,
        /// Sample, source and URI.
        what: Option<String>,
    },
}

/// Counters of a loader.
#[derive(Clone, Debug)]
pub struct LoaderStats {
    /// Sums over all entries.
    pub totals: Totals,
    /// The driver's own metrics.
    pub driver: DriverFacts,
    /// Batches ready and not taken.
    pub ready: usize,
    /// Bytes of batch memory lent out, to the loader itself or to the consumer.
    pub lent: Bytes,
    /// Since the loader was made.
    pub elapsed: Nanos,
    /// Why the ledger was given up, if it was.
    pub ledger_lost: Option<String>,
}

/// The engine of one rank.
#[derive(Debug)]
pub struct Loader {
    config: LoaderConfig,
    cache: Arc<Cache>,
    data: Arc<DataSet>,
    shared: Arc<Shared>,
    running: Mutex<Option<Running>>,
    /// When the present wait of the consumer began.
    waiting_since: Mutex<Option<Instant>>,
    /// The process that made it.
    process: u32,
}

#[derive(Debug)]
struct Running {
    driver: JoinHandle<()>,
    origin: Arc<dyn Tier>,
    disk: Option<Arc<DiskTier>>,
    member: Arc<Member>,
}

impl Loader {
    /// Checks and keeps the configuration. No thread, file or connection yet.
    pub fn new(index: Index, cache: Arc<Cache>, options: LoaderOptions) -> Result<Self, LoaderError> {
        let rank = options.world.rank();
        let config = LoaderConfig::check(options, &index, cache.ram())?;
        let waker = Arc::new(Waker::default());
        let shared = Shared {
            inbox: Inbox::default(),
            batches: BatchQueue::new(Arc::clone(&waker)),
            metrics: Metrics::new(rank),
            buffers: Arc::new(BufferPool::new(config.staging, Arc::clone(&waker))),
            facts: Mutex::default(),
            waker,
        };
        Ok(Self {
            data: Arc::new(DataSet::new(index, &config.uri)),
            config,
            cache,
            shared: Arc::new(shared),
            running: Mutex::default(),
            waiting_since: Mutex::default(),
            process: std::process::id(),
        })
    }

    /// Opens tiers and threads, and begins to stage. Idempotent; the first `next_batch` does it too.
    pub fn start(&self) -> Result<(), LoaderError> {
        self.open().map(drop)
    }

    /// As `start`; whether it was this call that opened them.
    fn open(&self) -> Result<bool, LoaderError> {
        self.same_process()?;
        let mut running = self.lock_running();
        if self.shared.batches.is_closed() {
            return Err(LoaderError::Closed);
        }
        let opens = running.is_none();
        if opens {
            *running = Some(self.spawn()?);
        }
        Ok(opens)
    }

    /// Continues at global `position` of `epoch`.
    ///
    /// A run with an order draws the epoch itself: `order` is `None`, and the call does nothing if the next batch is
    /// that one anyway. An epoch behind the run's last one is drawn, and the run ends after it. Any other run gets the
    /// samples of one epoch as `order`; nothing that an earlier call staged is handed out after it.
    ///
    /// # Errors
    /// Neither changes anything. [`LoaderError::Order`] where the run has an order and its epochs are shorter than
    /// `position`. [`LoaderError::Config`] where `order` is given to a run that has one, or is missing; where it has an
    /// id outside the data set, or its lengths are more than its ids.
    pub fn begin_epoch(
        &self,
        epoch: Epoch,
        position: u64,
        order: Option<EpochSamples<'_>>,
    ) -> Result<(), LoaderError> {
        self.same_process()?;
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
                Some(RankEpoch::given(self.data.index(), epoch, order, self.config.cut))
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
        let anew = order.is_some() || last.is_some_and(|epochs| epoch.0 >= epochs);
        if let Some(generation) = self.shared.batches.seek(epoch, position, anew) {
            *lock(&self.waiting_since) = None;
            self.send(Command::BeginEpoch { generation, epoch, position, order });
        }
        Ok(())
    }

    /// Waits for the next batch, at most `tick`; more than a century, `Duration::MAX` too, is no limit.
    ///
    /// The wait is not recorded: only the caller knows what it does with the batch before its step begins, and reports it
    /// by [`Loader::record_wait`].
    pub fn next_batch(&self, tick: Duration) -> Result<Next, LoaderError> {
        let asked = self.now();
        if self.open()? {
            self.shared.batches.note_opened(asked);
        }
        let began = Instant::now();
        let since = *lock(&self.waiting_since).get_or_insert(began);
        let taken = self.shared.batches.take(tick.min(LONGEST_TICK), asked)?;
        let Some(handed) = taken else {
            let what = self.shared.batches.waited_for();
            return Ok(Next::Waiting { waited: since.elapsed().into(), what });
        };
        *lock(&self.waiting_since) = None;
        match handed {
            QueueEntry::Batch(batch) => Ok(Next::Batch(Box::new(batch))),
            QueueEntry::End(_) => Ok(Next::EpochEnd),
        }
    }

    /// The loader's clock: since it was made. Entries of the ledger are on it.
    pub fn now(&self) -> Nanos {
        self.shared.metrics.now()
    }

    /// Why the wait that is under way in [`Loader::next_batch`], or ended there without a batch, lasts: each cause so
    /// far, and since when.
    pub fn turns(&self) -> Vec<(Cause, Nanos)> {
        if self.same_process().is_err() {
            return Vec::new();
        }
        self.shared.batches.turns()
    }

    /// One sample from the origin, past plan and caches, on the caller's thread; of a table its objects one after another.
    pub fn read(&self, sample: SampleId) -> Result<Vec<u8>, LoaderError> {
        self.same_process()?;
        let index = self.data.index();
        if sample.0 >= index.samples() {
            let fault = format!("sample {sample} is outside the data set of {} samples", index.samples());
            return Err(LoaderError::Config { faults: vec![fault] });
        }
        let uri = Uri::parse(&self.config.uri).map_err(OriginError::from)?;
        let options = self.origin_options();
        let mut whole = Vec::new();
        for item in (0..index.parts()).map(|part| index.entry_of(sample, part)) {
            let range = index.range(item);
            // Of a whole object everything is read, so that one that has grown is noticed.
            let part = (range.len != index.object_size(item).get())
                .then(|| range.start..range.start.saturating_add(range.len));
            let bytes = read_whole(&uri, &options, index.key(item), part)?;
            if bytes.len() as u64 != range.len {
                return Err(LoaderError::Changed {
                    sample,
                    uri: self.data.uri(item),
                    found: Bytes::new(bytes.len() as u64),
                    indexed: Bytes::new(range.len),
                });
            }
            whole = if whole.is_empty() { bytes } else { [whole, bytes].concat() };
        }
        Ok(whole)
    }

    /// Steps this rank has in an epoch that begins at global `position`; `None` for a run without an order.
    pub fn steps(&self, position: u64) -> Result<Option<u64>, LoaderError> {
        let Some(run) = &self.config.run else { return Ok(None) };
        Ok(Some(run.steps(position)?))
    }

    /// Counters since the loader was made.
    pub fn stats(&self) -> LoaderStats {
        let (totals, ledger_lost) = self.shared.metrics.sums();
        LoaderStats {
            totals,
            driver: lock(&self.shared.facts).clone(),
            ready: self.shared.batches.ready(),
            lent: self.shared.buffers.lent(),
            elapsed: self.shared.metrics.now(),
            ledger_lost,
        }
    }

    /// Stops everything within a bound. Idempotent, from any thread.
    pub fn close(&self) {
        if self.process != std::process::id() {
            // A forked child: the threads are not here, and their locks may be held for ever.
            return;
        }
        self.shared.batches.close();
        let Some(running) = self.lock_running().take() else { return };
        self.send(Command::Close);
        // A driver that panicked has said so already.
        let _ = running.driver.join();
        // Nobody waits for a read any more.
        running.origin.close(Nanos::ZERO);
        if let Some(disk) = running.disk {
            disk.close(GRACE);
        }
        self.cache.leave(running.member);
        self.shared.metrics.close();
    }

    /// Adds a wait of the consumer to the metrics. A forked child adds nothing: a lock may be held forever there.
    pub fn record_wait(&self, wait: &ConsumerWait) {
        if self.same_process().is_ok() {
            self.shared.metrics.add_wait(wait);
        }
    }

    fn send(&self, command: Command) {
        self.shared.inbox.put(command);
        self.shared.waker.wake();
    }

    fn same_process(&self) -> Result<(), LoaderError> {
        if self.process == std::process::id() { Ok(()) } else { Err(LoaderError::Forked) }
    }

    fn lock_running(&self) -> MutexGuard<'_, Option<Running>> {
        lock(&self.running)
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
