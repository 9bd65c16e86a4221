// SPDX-License-Identifier: Apache-2.0
//! The clock and the ledger of a loader without an engine.
//!
//! Samples that Python makes itself are not read here, but the training loop waits for them all the same. Its waits
//! have the same clock, the same sums and the same ledger file as those of an engine.

use std::path::Path;

use foresee_ledger::Totals;
use foresee_units::{Nanos, Rank};

use crate::errors::LoaderError;
use crate::metrics::{ConsumerWait, Metrics};

/// Clock, waits and ledger of one training loop.
#[derive(Debug)]
pub struct Recorder {
    metrics: Metrics,
    /// The process that made it.
    process: u32,
}

impl Recorder {
    /// A recorder of `rank`. No file yet.
    pub fn new(rank: Rank) -> Self {
        Self { metrics: Metrics::new(rank), process: std::process::id() }
    }

    /// Writes `<run_dir>/ledger/rank-K.arrow` from now on. Once.
    ///
    /// # Errors
    /// [`LoaderError::RunFolder`] where the ledger cannot be created.
    pub fn write_to(&self, run_dir: &Path) -> Result<(), LoaderError> {
        self.metrics.write_to(run_dir)
    }

    /// Time since the recorder was made.
    pub fn now(&self) -> Nanos {
        self.metrics.now()
    }

    /// See [`crate::Loader::record_wait`].
    pub fn record_wait(&self, wait: &ConsumerWait) {
        if self.process == std::process::id() {
            self.metrics.add_wait(wait);
        }
    }

    /// Sums over all waits, and why the ledger was given up, if it was.
    pub fn sums(&self) -> (Totals, Option<String>) {
        self.metrics.sums()
    }

    /// Ends the ledger file. Idempotent.
    pub fn close(&self) {
        if self.process == std::process::id() {
            self.metrics.close();
        }
    }
}
