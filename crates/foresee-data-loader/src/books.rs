// SPDX-License-Identifier: Apache-2.0
//! The loader's bookkeeping: the run's clock, the sums, and the ledger file where one is wanted.
//!
//! A ledger that cannot be written any more (disk full) is given up and said so in the statistics: the
//! run is worth more than its minutes.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use foresee_ledger::{Entry, LedgerWriter, Totals};
use foresee_units::{Nanos, Rank};

use crate::errors::LoaderError;

/// Entries that may wait for the file. When the disk is that far behind, whoever books waits for it: entries are
/// not thrown away.
const WAITING_MAX: usize = 1 << 14;

#[derive(Debug)]
pub(crate) struct Books {
    began: Instant,
    rank: Rank,
    totals: Mutex<Totals>,
    file: Mutex<Option<LedgerFile>>,
    /// Why the file was given up.
    lost: Arc<Mutex<Option<String>>>,
}

/// The ledger's file, written on a thread of its own: nobody who books holds a lock while the disk works.
#[derive(Debug)]
struct LedgerFile {
    entries: SyncSender<Entry>,
    thread: JoinHandle<()>,
}

impl Books {
    pub(crate) fn new(rank: Rank) -> Self {
        Self {
            began: Instant::now(),
            rank,
            totals: Mutex::default(),
            file: Mutex::default(),
            lost: Arc::default(),
        }
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
        let (entries, waiting) = sync_channel(WAITING_MAX);
        let lost = Arc::clone(&self.lost);
        let thread = Builder::new()
            .name("foresee-ledger".to_owned())
            .spawn(move || {
                if let Err(error) = write_all(writer, &waiting) {
                    *lock(&lost) = Some(error.to_string());
                    // Nobody may wait for a file that is given up.
                    waiting.iter().for_each(drop);
                }
            })
            .map_err(|error| LoaderError::Thread { why: error.to_string() })?;
        *lock(&self.file) = Some(LedgerFile { entries, thread });
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
        lock(&self.totals).add(&entry);
        let entries = lock(&self.file).as_ref().map(|file| file.entries.clone());
        if let Some(entries) = entries {
            // The thread reads until every sender is gone, so this fails only while the books are being closed.
            let _ = entries.send(entry);
        }
    }

    /// The sums so far, and why the ledger was given up, if it was.
    pub(crate) fn sums(&self) -> (Totals, Option<String>) {
        (lock(&self.totals).clone(), lock(&self.lost).clone())
    }

    /// Ends the ledger file.
    pub(crate) fn close(&self) {
        let file = lock(&self.file).take();
        if let Some(LedgerFile { entries, thread }) = file {
            drop(entries);
            if thread.join().is_err() {
                lock(&self.lost).get_or_insert_with(|| "its writer has failed".to_owned());
            }
        }
    }
}

fn write_all(
    mut writer: LedgerWriter<BufWriter<File>>,
    entries: &Receiver<Entry>,
) -> Result<(), foresee_ledger::LedgerError> {
    for entry in entries {
        writer.push(entry)?;
    }
    writer.finish()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
