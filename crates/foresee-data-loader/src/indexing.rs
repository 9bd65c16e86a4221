// SPDX-License-Identifier: Apache-2.0
//! Making an index: list the origin, read what heads the layout asks for, write the file.
//!
//! The place where the origin's words become the index's, since neither may know the other. Apart from the engine:
//! it runs before training, and the CLI needs nothing else of this crate.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use foresee_data_index::{Index, IndexBuilder, IndexBytes, IndexError, LayoutOptions, Listed, Summary};
use foresee_data_tier::{ListProgress, OriginError, OriginOptions, Uri, list, read_whole};

/// Why there is no index.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexingError {
    /// The origin cannot be listed or read.
    #[error(transparent)]
    Origin(#[from] OriginError),
    /// The listing does not make a data set, or the file is not an index.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The index file cannot be opened or written.
    #[error("index file {}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
}

/// Lists `uri` and makes an index of it, in memory.
///
/// `storage`: options of the origin, used and not kept. `keys`: objects of an origin that has no listing.
/// `progress` is called from several threads; `cancel` ends the listing with [`OriginError::Cancelled`].
pub fn build_index(
    uri: &str,
    storage: Vec<(String, String)>,
    layout: LayoutOptions,
    keys: Option<&[Vec<u8>]>,
    progress: &(dyn Fn(ListProgress) + Sync),
    cancel: &AtomicBool,
) -> Result<(Index, Arc<Vec<u8>>, Summary), IndexingError> {
    let place = Uri::parse(uri)?;
    let options = OriginOptions { storage: storage.into_iter().collect(), ..OriginOptions::default() };
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut builder = IndexBuilder::new(uri, layout, created)?;
    for found in list(&place, &options, keys, progress, cancel)? {
        builder.handle_listed(Listed { key: found.key, size: found.size, tag: found.tag })?;
    }
    while let Some(wanted) = builder.poll_head() {
        let head = read_whole(&place, &options, &wanted.key, Some(0..wanted.bytes))?;
        builder.handle_head(wanted.ticket, &head)?;
    }
    let plan = builder.finish()?;
    let mut bytes = Vec::new();
    plan.write(&mut bytes)?;
    let bytes = Arc::new(bytes);
    let index = Index::open(Arc::clone(&bytes) as IndexBytes)?;
    Ok((index, bytes, plan.summary()))
}

/// Opens an index file by mapping it: ten million samples are there at once.
pub fn open_index(path: &Path) -> Result<Index, IndexingError> {
    let fault = |source| IndexingError::File { path: path.to_owned(), source };
    let file = File::open(path).map_err(fault)?;
    // SAFETY: an index file is never changed in place: `save_index` writes another and renames it over this one,
    // so the mapped inode stays as it is. (Truncating it by hand while training runs ends the process.)
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(fault)?;
    Ok(Index::open(Arc::new(map))?)
}

/// Writes an index file: another file first, then a rename, so nobody ever sees half of one.
pub fn save_index(bytes: &[u8], path: &Path) -> Result<(), IndexingError> {
    let fault = |source| IndexingError::File { path: path.to_owned(), source };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let write = || {
        let mut out = BufWriter::new(File::create(&part)?);
        out.write_all(bytes)?;
        out.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
        std::fs::rename(&part, path)
    };
    write().map_err(|error| {
        // The half-written file is of no use to anyone; the fault is what matters.
        let _ = std::fs::remove_file(&part);
        fault(error)
    })
}
