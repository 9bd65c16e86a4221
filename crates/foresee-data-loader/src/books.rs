// SPDX-License-Identifier: Apache-2.0
//! The loader's bookkeeping: the run's clock, the sums, and the ledger file where one is wanted.
//!
//! A ledger that cannot be written any more (disk full) is given up and said so in the statistics: the
//! run is worth more than its minutes.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use foresee_ledger::{Entry, LedgerWriter, Totals};
use foresee_units::{Nanos, Rank};

use crate::errors::LoaderError;

#[derive(Debug)]
pub(crate) struct Books {
    began: Instant,
    rank: Rank,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    totals: Totals,
    writer: Option<LedgerWriter<BufWriter<File>>>,
    lost: Option<String>,
}

impl Books {
    pub(crate) fn new(rank: Rank) -> Self {
        Self { began: Instant::now(), rank, open: Mutex::default() }
    }

    /// Writes entries to `<folder>/ledger/rank-K.arrow` from now on.
    pub(crate) fn write_to(&self, folder: &Path) -> Result<(), LoaderError> {
        let fault = |path: &Path, error: &dyn std::fmt::Display| LoaderError::RunFolder {
            path: path.display().to_string(),
            why: error.to_string(),
        };
        let ledger = folder.join("ledger");
        std::fs::create_dir_all(&ledger).map_err(|error| fault(&ledger, &error))?;
        let (path, file) = self.fresh_file(&ledger)?;
        let writer = LedgerWriter::new(BufWriter::new(file)).map_err(|error| fault(&path, &error))?;
        self.lock().writer = Some(writer);
        Ok(())
    }

    /// `rank-K.arrow`, or `rank-K.2.arrow` and so on for further loaders of the rank: none overwrites another.
    fn fresh_file(&self, ledger: &Path) -> Result<(PathBuf, File), LoaderError> {
        for number in 1_u32.. {
            let name = match number {
                1 => format!("rank-{}.arrow", self.rank),
                _ => format!("rank-{}.{number}.arrow", self.rank),
            };
            let path = ledger.join(name);
            match File::create_new(&path) {
                Ok(file) => return Ok((path, file)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(LoaderError::RunFolder {
                        path: path.display().to_string(),
                        why: error.to_string(),
                    });
                }
            }
        }
        unreachable!("a folder does not hold 2^32 ledgers of one rank")
    }

    /// Time since the loader was made.
    pub(crate) fn now(&self) -> Nanos {
        self.began.elapsed().into()
    }

    pub(crate) const fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn add(&self, entry: Entry) {
        let mut open = self.lock();
        open.totals.add(&entry);
        if let Some(writer) = &mut open.writer
            && let Err(error) = writer.push(entry)
        {
            open.lost = Some(error.to_string());
            open.writer = None;
        }
    }

    /// The sums so far, and why the ledger was given up, if it was.
    pub(crate) fn sums(&self) -> (Totals, Option<String>) {
        let open = self.lock();
        (open.totals.clone(), open.lost.clone())
    }

    /// Ends the ledger file.
    pub(crate) fn close(&self) {
        let writer = self.lock().writer.take();
        if let Some(writer) = writer
            && let Err(error) = writer.finish()
        {
            self.lock().lost = Some(error.to_string());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
