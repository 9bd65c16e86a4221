// SPDX-License-Identifier: Apache-2.0
//! The loader's bookkeeping: the run's clock, the sums, and the ledger file where one is wanted.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use foresee_ledger::{Entry, Totals};
use foresee_ledger_file::{LedgerFile, LedgerFileError};
use foresee_units::{Nanos, Rank};

use crate::errors::LoaderError;

#[derive(Debug)]
pub(crate) struct Books {
    began: Instant,
    rank: Rank,
    totals: Mutex<Totals>,
    file: OnceLock<LedgerFile>,
}

impl Books {
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
