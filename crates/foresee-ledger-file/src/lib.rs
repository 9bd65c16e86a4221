// SPDX-License-Identifier: Apache-2.0
//! The ledger's file in a run folder, written by a thread of its own, so that logging does not wait for the disk.
//!
//! If a file can no longer be written (disk full), it is abandoned and reports the reason, because the run is more
//! important. An existing file is never overwritten.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use foresee_ledger::{Entry, LedgerError, LedgerWriter, NodeCache};
use foresee_units::Rank;

/// Maximum number of entries that wait for the file. If the disk is that far behind, callers wait: entries are
/// never dropped.
const QUEUE_MAX: usize = 1 << 14;

/// Failure to create a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerFileError {
    /// The run folder is not writable.
    #[error("{}: {why}", path.display())]
    RunFolder {
        /// The path that could not be created.
        path: PathBuf,
        /// The system's error.
        why: String,
    },
    /// The system has no thread left.
    #[error("no thread for the ledger: {why}")]
    Thread {
        /// The system's error.
        why: String,
    },
}

/// A file of entries, `<folder>/ledger/rank-K.arrow`. Dropping it closes it.
#[derive(Debug)]
pub struct LedgerFile {
    open: Mutex<Option<Open>>,
    /// Why the file was abandoned.
    failure: Arc<Mutex<Option<String>>>,
}

#[derive(Debug)]
struct Open {
    entries: SyncSender<Entry>,
    thread: JoinHandle<()>,
}

impl LedgerFile {
    /// Create a file of `rank`: `rank-K.arrow`, or `rank-K.2.arrow` and so on if the rank has others. `cache` is the
    /// cache of its node through which the rank reads, if it has one.
    ///
    /// # Errors
    /// The folder is not writable, or there is no thread.
    pub fn create(folder: &Path, rank: Rank, cache: Option<&NodeCache>) -> Result<Self, LedgerFileError> {
        let (path, file) = create_file(folder, rank)?;
        let writer = LedgerWriter::new(BufWriter::new(file), cache).map_err(|why| fault(&path, &why))?;
        let (entries, queue) = sync_channel(QUEUE_MAX);
        let failure: Arc<Mutex<Option<String>>> = Arc::default();
        let reported = Arc::clone(&failure);
        let thread = Builder::new()
            .name("foresee-ledger".to_owned())
            .spawn(move || {
                if let Err(why) = write_all(writer, &queue) {
                    *lock(&reported) = Some(why.to_string());
                    // No caller may block on an abandoned file.
                    queue.iter().for_each(drop);
                }
            })
            .map_err(|why| LedgerFileError::Thread { why: why.to_string() })?;
        Ok(Self { open: Mutex::new(Some(Open { entries, thread })), failure })
    }

    /// Add an entry; without effect after a close.
    pub fn add(&self, entry: Entry) {
        let entries = lock(&self.open).as_ref().map(|open| open.entries.clone());
        if let Some(entries) = entries {
            // The thread reads until every sender is dropped, so this fails only during a close.
            let _ = entries.send(entry);
        }
    }

    /// The reason, if the file was abandoned.
    pub fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    /// Write the waiting entries and the end. A second call has no effect.
    pub fn close(&self) {
        let open = lock(&self.open).take();
        if let Some(Open { entries, thread }) = open {
            drop(entries);
            if thread.join().is_err() {
                lock(&self.failure).get_or_insert_with(|| "its writer panicked".to_owned());
            }
        }
    }
}

impl Drop for LedgerFile {
    fn drop(&mut self) {
        self.close();
    }
}

/// Files of entries of several ranks, written by the calling thread: for runs in virtual time, which a slow disk
/// does not affect.
///
/// It buffers about thirty megabytes of entries in total, for any number of ranks, and has one open file per
/// rank.
#[derive(Debug)]
pub struct LedgerFiles {
    /// By rank.
    writers: Vec<LedgerWriter<BufWriter<File>>>,
    failure: Option<LedgerError>,
}

/// Entries that are buffered, over all ranks.
const ROWS_BUFFERED: usize = 1 << 18;

impl LedgerFiles {
    /// Create files of ranks 0 to `ranks - 1`; `cache` gives the cache of the node of each rank, if it has one.
    ///
    /// # Errors
    /// The folder is not writable, or the process may not open that many files.
    pub fn create(
        folder: &Path,
        ranks: u32,
        cache: impl Fn(Rank) -> Option<NodeCache>,
    ) -> Result<Self, LedgerFileError> {
        let rows = ROWS_BUFFERED / ranks.max(1) as usize;
        let writers = (0..ranks)
            .map(|rank| {
                let (path, file) = create_file(folder, Rank(rank))?;
                let cache = cache(Rank(rank));
                LedgerWriter::with_rows(BufWriter::new(file), cache.as_ref(), rows)
                    .map_err(|why| fault(&path, &why))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { writers, failure: None })
    }

    /// Add an entry to the file of its rank; without effect after a write error.
    ///
    /// # Panics
    /// If no file exists for the entry's rank.
    pub fn add(&mut self, entry: Entry) {
        if self.failure.is_none()
            && let Err(why) = self.writers[entry.rank.0 as usize].push(entry)
        {
            self.failure = Some(why);
        }
    }

    /// Write the buffered entries and the ends.
    ///
    /// # Errors
    /// A file could not be written.
    pub fn finish(self) -> Result<(), LedgerError> {
        if let Some(why) = self.failure {
            return Err(why);
        }
        self.writers.into_iter().try_for_each(LedgerWriter::finish)
    }
}

/// Create a file of a rank under an unused name.
fn create_file(folder: &Path, rank: Rank) -> Result<(PathBuf, File), LedgerFileError> {
    let ledger = folder.join("ledger");
    std::fs::create_dir_all(&ledger).map_err(|why| fault(&ledger, &why))?;
    for number in 1_u32.. {
        let name = match number {
            1 => format!("rank-{rank}.arrow"),
            _ => format!("rank-{rank}.{number}.arrow"),
        };
        let path = ledger.join(name);
        match File::create_new(&path) {
            Ok(file) => return Ok((path, file)),
            Err(why) if why.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(why) => return Err(fault(&path, &why)),
        }
    }
    unreachable!("a folder does not hold 2^32 ledgers of one rank")
}

fn fault(path: &Path, why: &dyn std::fmt::Display) -> LedgerFileError {
    LedgerFileError::RunFolder { path: path.to_owned(), why: why.to_string() }
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
    fn ledgers_of_one_rank_have_different_names() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let file = LedgerFile::create(folder.path(), Rank(3), None).unwrap();
            file.add(entry());
            file.close();
            file.close();
            file.add(entry());
            assert_eq!(file.failure(), None);
        }
        for name in ["rank-3.arrow", "rank-3.2.arrow"] {
            assert!(std::fs::metadata(folder.path().join("ledger").join(name)).unwrap().len() > 0);
        }
    }

    #[test]
    fn entries_of_many_ranks_go_to_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = LedgerFiles::create(folder.path(), 4, |_| None).unwrap();
        files.add(entry());
        files.finish().unwrap();
        let len = |rank| {
            let path = folder.path().join(format!("ledger/rank-{rank}.arrow"));
            std::fs::metadata(path).unwrap().len()
        };
        assert!(len(3) > len(0) && len(0) == len(2), "the entry is of rank 3");
    }

    #[test]
    fn an_invalid_folder_is_named_in_the_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a file");
        std::fs::write(&file, "").unwrap();
        let why = LedgerFile::create(&file, Rank(0), None).unwrap_err();
        assert!(why.to_string().contains("a file/ledger"), "{why}");
        let why = LedgerFiles::create(&file, 2, |_| None).unwrap_err();
        assert!(why.to_string().contains("a file/ledger"), "{why}");
    }
}
