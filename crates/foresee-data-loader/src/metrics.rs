// SPDX-License-Identifier: Apache-2.0
//! The loader's bookkeeping: the run's clock, the sums, and the ledger file where one is wanted.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use foresee_ledger::{Cause, Entry, Op, Subject, Totals, divide};
use foresee_ledger_file::{LedgerFile, LedgerFileError};
use foresee_units::{Bytes, Epoch, Nanos, Rank, ReadOutcome, Source, Step};

use crate::errors::LoaderError;

/// One wait of the consumer, over; times on the loader's clock.
#[derive(Clone, Debug)]
pub struct ConsumerWait {
    /// Epoch and step of the batch that was waited for.
    pub epoch: Epoch,
    /// See `epoch`.
    pub step: Step,
    /// Samples of the batch; 0 where the wait ended without one.
    pub samples: u32,
    /// When it was asked for.
    pub asked: Nanos,
    /// When it was there.
    pub got: Nanos,
    /// Which stages it was in, and since when each; see [`divide`].
    pub turns: Vec<(Cause, Nanos)>,
}

#[derive(Debug)]
pub(crate) struct Metrics {
    began: Instant,
    rank: Rank,
    totals: Mutex<Totals>,
    file: OnceLock<LedgerFile>,
}

impl Metrics {
    pub(crate) fn new(rank: Rank) -> Self {
        Self { began: Instant::now(), rank, totals: Mutex::default(), file: OnceLock::new() }
    }

    /// Writes entries to `<folder>/ledger/rank-K.arrow` from now on. Once.
    pub(crate) fn write_to(&self, folder: &Path) -> Result<(), LoaderError> {
        let file = LedgerFile::create(folder, self.rank).map_err(|why| match why {
            LedgerFileError::RunFolder { path, why } => {
                LoaderError::RunFolder { path: path.display().to_string(), why }
            }
            other => LoaderError::Thread { why: other.to_string() },
        })?;
        self.file.set(file).expect("a loader writes one ledger");
        Ok(())
    }

    /// Time since the loader was made.
    pub(crate) fn now(&self) -> Nanos {
        self.began.elapsed().into()
    }

    pub(crate) const fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn add(&self, entry: Entry) {
        lock(&self.totals).add(&entry);
        if let Some(file) = self.file.get() {
            file.add(entry);
        }
    }

    /// Adds a wait of the consumer: one entry per cause, back to back, the last one with the samples.
    pub(crate) fn add_wait(&self, wait: &ConsumerWait) {
        let parts = divide(wait.asked, wait.got, &wait.turns);
        let mut start = wait.asked;
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

    /// The sums so far, and why the ledger was given up, if it was.
    pub(crate) fn sums(&self) -> (Totals, Option<String>) {
        (lock(&self.totals).clone(), self.file.get().and_then(LedgerFile::lost))
    }

    /// Ends the ledger file.
    pub(crate) fn close(&self) {
        if let Some(file) = self.file.get() {
            file.close();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
