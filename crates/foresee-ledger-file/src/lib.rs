// SPDX-License-Identifier: Apache-2.0
//! The ledger's file in a run folder, written on a thread of its own: nobody who books waits for the disk.
//!
//! Apart from the ledger, which knows entries and no files. A file that cannot be written any more (disk full) is given
//! up, and says so to whoever asks: the run is worth more than its minutes. Refuses to overwrite another's file.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use foresee_ledger::{Entry, LedgerError, LedgerWriter};
use foresee_units::Rank;

/// Entries that may wait for the file. When the disk is that far behind, whoever books waits for it: entries are
/// not thrown away.
const WAITING_MAX: usize = 1 << 14;

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerFileError {
    /// The run folder cannot be written to.
    #[error("{}: {why}", path.display())]
    RunFolder {
        /// What could not be made.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
    /// The system has no thread.
    #[error("no thread for the ledger: {why}")]
    Thread {
        /// The system's words.
        why: String,
    },
}

/// A file of entries, `<folder>/ledger/rank-K.arrow`. Dropping it ends it.
#[derive(Debug)]
pub struct LedgerFile {
    open: Mutex<Option<Open>>,
    /// Why the file was given up.
    lost: Arc<Mutex<Option<String>>>,
}

#[derive(Debug)]
struct Open {
    entries: SyncSender<Entry>,
    thread: JoinHandle<()>,
}

impl LedgerFile {
    /// A new file of `rank`: `rank-K.arrow`, or `rank-K.2.arrow` and so on where there are others of the rank.
    ///
    /// # Errors
    /// The folder cannot be written to, or there is no thread.
    pub fn create(folder: &Path, rank: Rank) -> Result<Self, LedgerFileError> {
        let (path, file) = new_file(folder, rank)?;
        let writer = LedgerWriter::new(BufWriter::new(file)).map_err(|why| fault(&path, &why))?;
        let (entries, waiting) = sync_channel(WAITING_MAX);
        let lost: Arc<Mutex<Option<String>>> = Arc::default();
        let told = Arc::clone(&lost);
        let thread = Builder::new()
            .name("foresee-ledger".to_owned())
            .spawn(move || {
                if let Err(why) = write_all(writer, &waiting) {
                    *lock(&told) = Some(why.to_string());
                    // Nobody may wait for a file that is given up.
                    waiting.iter().for_each(drop);
                }
            })
            .map_err(|why| LedgerFileError::Thread { why: why.to_string() })?;
        Ok(Self { open: Mutex::new(Some(Open { entries, thread })), lost })
    }

    /// Adds an entry; nothing, once it was closed.
    pub fn add(&self, entry: Entry) {
        let entries = lock(&self.open).as_ref().map(|open| open.entries.clone());
        if let Some(entries) = entries {
            // The thread reads until every sender is gone, so this fails only while the file is being closed.
            let _ = entries.send(entry);
        }
    }

    /// Why it was given up, if it was.
    pub fn lost(&self) -> Option<String> {
        lock(&self.lost).clone()
    }

    /// Writes what waits, and the end. A second call does nothing.
    pub fn close(&self) {
        let open = lock(&self.open).take();
        if let Some(Open { entries, thread }) = open {
            drop(entries);
            if thread.join().is_err() {
                lock(&self.lost).get_or_insert_with(|| "its writer has failed".to_owned());
            }
        }
    }
}

impl Drop for LedgerFile {
    fn drop(&mut self) {
        self.close();
    }
}

/// Files of entries of several ranks, written by whoever books them: for runs in virtual time, which no disk makes late.
///
/// Keeps some thirty megabytes of entries at most, however many ranks there are, and one open file per rank.
#[derive(Debug)]
pub struct LedgerFiles {
    /// By rank.
    writers: Vec<LedgerWriter<BufWriter<File>>>,
    lost: Option<LedgerError>,
}

/// Entries that wait for their files, over all ranks.
const ROWS_KEPT: usize = 1 << 18;

impl LedgerFiles {
    /// New files of ranks 0 to `ranks - 1`.
    ///
    /// # Errors
    /// The folder cannot be written to, or the process may not open so many files.
    pub fn create(folder: &Path, ranks: u32) -> Result<Self, LedgerFileError> {
        let rows = ROWS_KEPT / ranks.max(1) as usize;
        let writers = (0..ranks)
            .map(|rank| {
                let (path, file) = new_file(folder, Rank(rank))?;
                LedgerWriter::with_rows(BufWriter::new(file), rows).map_err(|why| fault(&path, &why))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { writers, lost: None })
    }

    /// Adds an entry to the file of its rank; nothing, once a file could not be written.
    ///
    /// # Panics
    /// If it is of another rank than those that there are files of.
    pub fn add(&mut self, entry: Entry) {
        if self.lost.is_none()
            && let Err(why) = self.writers[entry.rank.0 as usize].push(entry)
        {
            self.lost = Some(why);
        }
    }

    /// Writes the rest, and the ends.
    ///
    /// # Errors
    /// A file could not be written.
    pub fn finish(self) -> Result<(), LedgerError> {
        if let Some(why) = self.lost {
            return Err(why);
        }
        self.writers.into_iter().try_for_each(LedgerWriter::finish)
    }
}

/// The file of a rank that none has yet.
fn new_file(folder: &Path, rank: Rank) -> Result<(PathBuf, File), LedgerFileError> {
    let ledger = folder.join("ledger");
    std::fs::create_dir_all(&ledger).map_err(|why| fault(&ledger, &why))?;
    fresh(&ledger, rank).map_err(|(path, why)| fault(&path, &why))
}

fn fault(path: &Path, why: &dyn std::fmt::Display) -> LedgerFileError {
    LedgerFileError::RunFolder { path: path.to_owned(), why: why.to_string() }
}

fn fresh(ledger: &Path, rank: Rank) -> Result<(PathBuf, File), (PathBuf, std::io::Error)> {
    for number in 1_u32.. {
        let name = match number {
            1 => format!("rank-{rank}.arrow"),
            _ => format!("rank-{rank}.{number}.arrow"),
        };
        let path = ledger.join(name);
        match File::create_new(&path) {
            Ok(file) => return Ok((path, file)),
            Err(why) if why.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(why) => return Err((path, why)),
        }
    }
    unreachable!("a folder does not hold 2^32 ledgers of one rank")
}

fn write_all(
    mut writer: LedgerWriter<BufWriter<File>>,
    entries: &Receiver<Entry>,
) -> Result<(), LedgerError> {
    for entry in entries {
        writer.push(entry)?;
    }
    writer.finish()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use foresee_ledger::{Op, Subject};
    use foresee_units::{Bytes, Epoch, Nanos, ReadOutcome, Source, Step};

    use super::*;

    fn entry() -> Entry {
        Entry {
            start: Nanos::ZERO,
            duration: Nanos::from_secs(1),
            rank: Rank(3),
            epoch: Epoch(0),
            step: Step(7),
            subject: Subject::Tensor(5),
            op: Op::Push,
            source: Source::Server,
            cause: None,
            bytes: Bytes::new(100),
            samples: 0,
            attempt: 1,
            outcome: ReadOutcome::Ok,
        }
    }

    #[test]
    fn ledgers_of_one_rank_lie_side_by_side() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let file = LedgerFile::create(folder.path(), Rank(3)).unwrap();
            file.add(entry());
            file.close();
            file.close();
            file.add(entry());
            assert_eq!(file.lost(), None);
        }
        for name in ["rank-3.arrow", "rank-3.2.arrow"] {
            assert!(std::fs::metadata(folder.path().join("ledger").join(name)).unwrap().len() > 0);
        }
    }

    #[test]
    fn entries_of_many_ranks_go_to_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = LedgerFiles::create(folder.path(), 4).unwrap();
        files.add(entry());
        files.finish().unwrap();
        let len = |rank| {
            let path = folder.path().join(format!("ledger/rank-{rank}.arrow"));
            std::fs::metadata(path).unwrap().len()
        };
        assert!(len(3) > len(0) && len(0) == len(2), "the entry is of rank 3");
    }

    #[test]
    fn a_folder_that_cannot_be_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a file");
        std::fs::write(&file, "").unwrap();
        let why = LedgerFile::create(&file, Rank(0)).unwrap_err();
        assert!(why.to_string().contains("a file/ledger"), "{why}");
        let why = LedgerFiles::create(&file, 2).unwrap_err();
        assert!(why.to_string().contains("a file/ledger"), "{why}");
    }
}
