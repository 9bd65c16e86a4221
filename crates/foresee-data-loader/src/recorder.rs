// SPDX-License-Identifier: Apache-2.0
//! The clock, the sums and the ledger file of one training loop.
//!
//! Every engine has one. A loader whose samples Python makes has no engine, but its waits are recorded all the same.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use foresee_ledger::{Cause, Entry, NodeCache, Op, Subject, Totals, divide_wait};
use foresee_ledger_file::{LedgerFile, LedgerFileError};
use foresee_units::{Bytes, Epoch, Nanos, Rank, ReadOutcome, Source, Step};

use crate::errors::LoaderError;

/// One complete wait of the consumer; times on the loader's clock.
#[derive(Clone, Debug)]
pub struct ConsumerWait {
    /// The epoch of the batch.
    pub epoch: Epoch,
    /// The step of the batch.
    pub step: Step,
    /// Samples of the batch; 0 if the wait ended without one.
    pub samples: u32,
    /// When the batch was requested.
    pub start: Nanos,
    /// When it was available.
    pub end: Nanos,
    /// The stages that it was in, each with its start; see [`divide_wait`].
    pub stages: Vec<(Cause, Nanos)>,
}

/// Clock, waits and ledger of one training loop.
#[derive(Debug)]
pub struct Recorder {
    began: Instant,
    rank: Rank,
    totals: Mutex<Totals>,
    file: OnceLock<LedgerFile>,
    /// The process that created it.
    process: u32,
}

impl Recorder {
    /// Create a recorder of `rank`, without a file.
    pub fn new(rank: Rank) -> Self {
        let process = std::process::id();
        Self { began: Instant::now(), rank, totals: Mutex::default(), file: OnceLock::new(), process }
    }

    /// Write entries to `<run_dir>/ledger/rank-K.arrow` from now on, with the cache of the node through which the rank
    /// reads, if any.
    ///
    /// # Errors
    /// [`LoaderError::RunFolder`] if the ledger cannot be created.
    ///
    /// # Panics
    /// If the recorder has a ledger already.
    pub fn write_to(&self, run_dir: &Path, cache: Option<&NodeCache>) -> Result<(), LoaderError> {
        let file = LedgerFile::create(run_dir, self.rank, cache).map_err(|why| match why {
            LedgerFileError::RunFolder { path, why } => {
                LoaderError::RunFolder { path: path.display().to_string(), why }
            }
            other => LoaderError::Thread { why: other.to_string() },
        })?;
        self.file.set(file).expect("a loader writes one ledger");
        Ok(())
    }

    /// Time since the recorder was created.
    pub fn now(&self) -> Nanos {
        self.began.elapsed().into()
    }

    pub(crate) const fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn add(&self, entry: Entry) {
        self.totals().add(&entry);
        if let Some(file) = self.file.get() {
            file.add(entry);
        }
    }

    /// Add a wait of the consumer: one entry per cause, back to back, the last one with the samples. A forked child
    /// adds nothing, because a lock may be held forever there.
    pub fn record_wait(&self, wait: &ConsumerWait) {
        if self.process != std::process::id() {
            return;
        }
        let parts = divide_wait(wait.start, wait.end, &wait.stages);
        let mut start = wait.start;
        for (left, &(cause, duration)) in (0..parts.len()).rev().zip(&parts) {
            self.add(Entry {
                start,
                duration,
                rank: self.rank,
                epoch: wait.epoch,
                step: wait.step,
                subject: Subject::Batch,
                op: Op::Wait,
                source: match cause {
                    Cause::OriginQueue | Cause::OriginRead | Cause::OriginRetry => Source::Origin,
                    Cause::Disk => Source::Disk,
                    Cause::Peer => Source::Peer,
                    _ => Source::None,
                },
                cause: Some(cause),
                bytes: Bytes::ZERO,
                samples: if left == 0 { wait.samples } else { 0 },
                attempt: 1,
                outcome: ReadOutcome::Ok,
            });
            start += duration;
        }
    }

    /// The sums over all entries, and the reason if the ledger was abandoned.
    pub fn sums(&self) -> (Totals, Option<String>) {
        (self.totals().clone(), self.file.get().and_then(LedgerFile::failure))
    }

    /// End the ledger file. A second call, and a call in a forked child, has no effect.
    pub fn close(&self) {
        if let Some(file) = self.file.get()
            && self.process == std::process::id()
        {
            file.close();
        }
    }

    fn totals(&self) -> MutexGuard<'_, Totals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
