// SPDX-License-Identifier: Apache-2.0
//! Building an index before training: list the origin, read the file headers that the layout needs, write the file.

mod named;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use foresee_data_index::{
    Exclude, FolderOptions, HeadRequest, Index, IndexBuilder, IndexError, LayoutOptions, Listed, Summary,
};
use foresee_data_tier::{ListProgress, ObjectReader, OriginError, OriginOptions, Selection, Uri, list};

pub use named::{TableOptions, WindowOptions, build_table, build_windows};

/// Maximum of concurrent reads of array headers.
const HEADS: usize = 16;

/// Failure to build, open or save an index.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexingError {
    /// The origin cannot be listed or read.
    #[error(transparent)]
    Origin(#[from] OriginError),
    /// The listing is not a data set, or the file is not an index.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// Rows of a table name objects that cannot be read.
    #[error(
        "{rows} rows name objects that cannot be read: {shown}; restore them or correct the table, or pass \
         allow_missing=True to keep these rows: reading one is a fault, which on_error= handles"
    )]
    Absent {
        /// Number of rows.
        rows: u64,
        /// The first rows, each with its cause.
        shown: String,
    },
    /// A file without a header, without a given type.
    #[error("{uri} has no header that states its type; pass dtype=, such as dtype=\"uint16\"")]
    NoDtype {
        /// The file.
        uri: String,
    },
    /// The index file cannot be opened or written.
    #[error("index file {}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

/// List `uri`, and build its index in memory.
///
/// `storage`: options of the origin, not saved. `keys`: objects of an origin without a listing. `exclude`: excluded
/// objects. Unreadable objects that are no samples are excluded too. `or_flat`: a folder data set without a class
/// folder becomes a flat one. `progress` is called from several threads; `cancel` ends the listing with
/// [`OriginError::Cancelled`].
#[expect(clippy::too_many_arguments, reason = "each is a separate option of the listing")]
pub fn build_index(
    uri: &str,
    storage: Vec<(String, String)>,
    layout: LayoutOptions,
    or_flat: bool,
    keys: Option<&[Vec<u8>]>,
    exclude: &Exclude,
    progress: &(dyn Fn(ListProgress) + Sync),
    cancel: &AtomicBool,
) -> Result<(Index, Summary), IndexingError> {
    let place = Uri::parse(uri).map_err(OriginError::from)?;
    let options = OriginOptions { storage: storage.into_iter().collect(), ..OriginOptions::default() };
    let mut builder = IndexBuilder::new(uri, layout.clone(), now())?;
    let selection = Selection { keys, is_excluded: &|key| exclude.matches(key) };
    let listing = list(&place, &options, selection, progress, cancel)?;
    if let Some(unreadable) = listing.unreadable.into_iter().find(|one| builder.accepts(&one.key)) {
        return Err(unreadable.error.into());
    }
    if let LayoutOptions::Folder(FolderOptions { extensions, .. }) = layout
        && or_flat
        && !listing.objects.iter().any(|found| builder.is_of_class(&found.key))
    {
        builder = IndexBuilder::new(uri, LayoutOptions::Flat { extensions }, now())?;
    }
    for found in listing.objects {
        builder.handle_listed(Listed { key: found.key, size: found.size, tag: found.tag })?;
    }
    read_heads(&mut builder, &place, &options)?;
    finish(builder)
}

/// Write an index in memory, and open it.
fn finish(builder: IndexBuilder) -> Result<(Index, Summary), IndexingError> {
    let plan = builder.finish()?;
    let mut bytes = Vec::new();
    plan.write(&mut bytes)?;
    Ok((Index::open(Arc::new(bytes))?, plan.summary()))
}

/// Seconds since 1970 in UTC.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Read the headers that `builder` requests, several concurrently.
fn read_heads(builder: &mut IndexBuilder, place: &Uri, options: &OriginOptions) -> Result<(), IndexingError> {
    loop {
        let wanted: Vec<_> = std::iter::from_fn(|| builder.poll_head()).take(HEADS).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let reader = ObjectReader::open(place, options)?;
        let read = |wanted: &HeadRequest| reader.read(&wanted.key, Some(0..wanted.bytes));
        let heads: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = wanted.iter().map(|wanted| scope.spawn(|| read(wanted))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a reading thread does not panic"))
                .collect()
        });
        for (wanted, head) in wanted.iter().zip(heads) {
            builder.handle_head(wanted.ticket, &head?)?;
        }
    }
}

/// Map an index file: ten million samples are available at once.
pub fn open_index(path: &Path) -> Result<Index, IndexingError> {
    let fault = |source| IndexingError::File { path: path.to_owned(), source };
    let file = File::open(path).map_err(fault)?;
    // SAFETY: an index file is never changed in place: `save_index` renames another file over it, so the mapped inode
    // does not change. (Truncating it by hand during training ends the process.)
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(fault)?;
    Ok(Index::open_mapped(Arc::new(map))?)
}

/// Write an index file: a new file first, then a rename, so a partial file is never visible. `path` may be the file
/// that `index` is mapped from: it leaves the directory, and the mapping keeps it alive.
pub fn save_index(index: &Index, path: &Path) -> Result<(), IndexingError> {
    let fault = |source| IndexingError::File { path: path.to_owned(), source };
    let (part, file) = create_part(path).map_err(fault)?;
    let write = || {
        let mut out = &file;
        out.write_all(index.file())?;
        out.sync_all()?;
        std::fs::rename(&part, path)
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(&part);
        fault(error)
    })
}

/// Create a new file next to `path`. An existing one may be mapped, or belong to another thread.
fn create_part(path: &Path) -> std::io::Result<(PathBuf, File)> {
    let mut nth = 0_u32;
    loop {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}-{nth}.part", std::process::id()));
        let part = path.with_file_name(name);
        match File::create_new(&part) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => nth += 1,
            created => return created.map(|file| (part, file)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The index of a directory of plain files.
    fn flat_index(uri: &str) -> Index {
        let layout = LayoutOptions::Flat { extensions: Vec::new() };
        let (index, _) = build_index(
            uri,
            Vec::new(),
            layout,
            false,
            None,
            &Exclude::default(),
            &|_| {},
            &AtomicBool::new(false),
        )
        .expect("an index");
        index
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).expect("a folder");
        let mut names: Vec<_> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
        names.sort();
        names
    }

    #[test]
    fn an_opened_index_is_saved_to_another_path_and_over_the_file_it_is_mapped_from() {
        let (data, dir) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        for id in 0..2000 {
            std::fs::write(data.path().join(format!("{id:04}")), [7; 3]).expect("a file");
        }
        let uri = data.path().display().to_string();
        let built = flat_index(&uri);
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        save_index(&built, &first).expect("saved");
        let mapped = open_index(&first).expect("an index");
        save_index(&mapped, &second).expect("saved to another path");
        std::fs::write(dir.path().join(format!("first.{}-0.part", std::process::id())), "of another thread")
            .expect("a file");
        save_index(&mapped, &first).expect("saved over its own file");
        mapped.verify().expect("the mapping is whole");
        for path in [&first, &second] {
            assert_eq!(std::fs::read(path).expect("a file"), built.file());
        }
        assert_eq!(names(dir.path()).len(), 3, "no part of this save is left, and the other file stays");
        let error = save_index(&mapped, &dir.path().join("none/x")).expect_err("no such folder");
        assert!(error.to_string().contains("none/x"), "{error}");
    }
}
