// SPDX-License-Identifier: Apache-2.0
//! Listing of an origin: every object with its size and tag, once per run, for the index.
//!
//! It runs before training, for all objects at once, and is limited by requests rather than bytes. Unreadable objects
//! are reported with their error, because only the caller knows whether they are samples.

mod posix;
mod split;
mod store;
mod suggest;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::origin::{Client, OriginError, OriginOptions, wants_inode};
use crate::uri::{Uri, UriParts};

/// One object of the origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginObject {
    /// Relative to the origin's URI, without a leading slash; any bytes, as in file names.
    pub key: Vec<u8>,
    /// Size in bytes.
    pub size: u64,
    /// See [`crate::posix_tag`]; in stores the `ETag` or `last-modified:SECONDS`; empty if neither is known.
    pub tag: Vec<u8>,
}

/// The result of a listing.
#[derive(Debug, Default)]
pub struct Listing {
    /// All readable objects, sorted by the bytes of their keys; and folders of the first level, whose keys end in
    /// `/`, because a class may have no file.
    pub objects: Vec<OriginObject>,
    /// Unreadable objects, sorted likewise.
    pub unreadable: Vec<Unreadable>,
}

/// An object, or with a final `/` in its key a folder, that exists and cannot be read.
#[derive(Debug)]
pub struct Unreadable {
    /// As in [`OriginObject`].
    pub key: Vec<u8>,
    /// The error, with the remedy.
    pub error: OriginError,
}

/// The progress of a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListProgress {
    /// Objects found.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Directories read, or requests answered.
    pub steps: u64,
}

/// Which objects to list.
#[derive(Clone, Copy)]
pub struct Selection<'a> {
    /// Only these objects: for a plain HTTP server, which has no listing, or for a few objects of a directory or
    /// bucket.
    pub keys: Option<&'a [Vec<u8>]>,
    /// Whether to skip the object of a key or, if the key ends in `/`, a folder and all its content.
    pub is_excluded: &'a (dyn Fn(&[u8]) -> bool + Sync),
}

impl Default for Selection<'_> {
    fn default() -> Self {
        Self { keys: None, is_excluded: &|_| false }
    }
}

impl fmt::Debug for Selection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Selection").field("keys", &self.keys).finish_non_exhaustive()
    }
}

/// List the objects of `selection` below `uri`. Blocks; many requests run at once.
///
/// Several threads call `progress`, about once per directory or page. `cancel` ends the listing at the next directory
/// or page.
///
/// A directory is walked like Python's `os.walk(followlinks=True)`; a link to a parent directory is not entered
/// again. Sockets, pipes and devices are skipped. In a bucket, placeholders of directories (`prefix/`) are listed on
/// the first level, and skipped below.
///
/// # Errors
/// A missing directory, a bucket's prefix without objects, and any error of the origin. An unreadable directory, file
/// or link below `uri`, a missing object of `selection.keys`, and a key that the store client cannot express are
/// [`Listing::unreadable`].
pub fn list(
    uri: &Uri,
    options: &OriginOptions,
    selection: Selection<'_>,
    progress: &(dyn Fn(ListProgress) + Sync),
    cancel: &AtomicBool,
) -> Result<Listing, OriginError> {
    let wanted: Option<Vec<Vec<u8>>> =
        selection.keys.map(|keys| keys.iter().filter(|key| !(selection.is_excluded)(key)).cloned().collect());
    let context = ListContext {
        totals: ListTotals::default(),
        progress,
        cancel,
        uri,
        is_excluded: selection.is_excluded,
    };
    let mut listing = match (uri.parts(), wanted) {
        (UriParts::Directory(root), None) => posix::walk(root, wants_inode(uri, options)?, &context)?,
        (UriParts::Directory(root), Some(keys)) => {
            posix::look_up_each(root, &keys, wants_inode(uri, options)?, &context)?
        }
        (UriParts::Bucket { .. } | UriParts::Repository(_), None) => {
            store::list_bucket(&Client::new(uri, options)?, &context)?
        }
        (UriParts::Bucket { .. } | UriParts::Repository(_) | UriParts::Web { .. }, Some(keys)) => {
            store::look_up_each(&Client::new(uri, options)?, &keys, &context)?
        }
        (UriParts::Web { .. }, None) => return Err(OriginError::NoListing { uri: uri.to_string() }),
    };
    listing.objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    listing.unreadable.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(listing)
}

/// The running totals of one listing, shared by its threads or tasks.
struct ListContext<'a> {
    totals: ListTotals,
    progress: &'a (dyn Fn(ListProgress) + Sync),
    cancel: &'a AtomicBool,
    uri: &'a Uri,
    is_excluded: &'a (dyn Fn(&[u8]) -> bool + Sync),
}

#[derive(Default)]
struct ListTotals {
    objects: AtomicU64,
    bytes: AtomicU64,
    steps: AtomicU64,
}

impl ListContext<'_> {
    /// Count one directory or page with the objects `found`.
    fn record_step(&self, found: &[OriginObject]) {
        let bytes: u64 = found.iter().map(|listed| listed.size).sum();
        let add = |sum: &AtomicU64, more| sum.fetch_add(more, Ordering::Relaxed) + more;
        (self.progress)(ListProgress {
            objects: add(&self.totals.objects, found.len() as u64),
            bytes: add(&self.totals.bytes, bytes),
            steps: add(&self.totals.steps, 1),
        });
    }

    fn check_cancelled(&self) -> Result<(), OriginError> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(OriginError::Cancelled { uri: self.uri.to_string() });
        }
        Ok(())
    }
}

impl fmt::Debug for ListContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListContext").field("uri", self.uri).finish_non_exhaustive()
    }
}
