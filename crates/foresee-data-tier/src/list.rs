// SPDX-License-Identifier: Apache-2.0
//! Listing of an origin: every object with its size and tag, once per run, for the index.
//!
//! It is separate from reading because it runs before training, over all objects at once, and is bounded by requests
//! rather than bytes. Objects that cannot be read are reported with their error; whether they are samples is not known
//! here.

mod nearby;
mod posix;
mod split;
mod store;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::origin::{Client, OriginError, OriginOptions, wants_inode};
use crate::uri::{Place, Uri};

/// One object of the origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginObject {
    /// Relative to the origin's URI, without a leading slash; bytes, as file names are.
    pub key: Vec<u8>,
    /// Bytes.
    pub size: u64,
    /// See [`crate::posix_tag`]; for stores the `ETag` or `last-modified:SECONDS`; empty if neither is known.
    pub tag: Vec<u8>,
}

/// What a listing found.
#[derive(Debug, Default)]
pub struct Listing {
    /// All objects that can be read, sorted by the bytes of their keys; and folders of the first level, whose keys end in
    /// `/`: a class may have no file.
    pub objects: Vec<OriginObject>,
    /// The others, sorted alike.
    pub unreadable: Vec<Unreadable>,
}

/// An object, or with a `/` at the end of its key a folder, that is there and cannot be read.
#[derive(Debug)]
pub struct Unreadable {
    /// As that of a [`OriginObject`].
    pub key: Vec<u8>,
    /// Why not, and what to do.
    pub error: OriginError,
}

/// How far a listing has come.
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
    /// These and no others: those of a plain HTTP server, which has no listing, or the few that are wanted of a directory
    /// or bucket.
    pub keys: Option<&'a [Vec<u8>]>,
    /// Whether to leave out the object of a key or, where the key ends in `/`, a folder and all that is in it.
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

/// Lists everything of `selection` below `uri`. Blocks; many requests run at once.
///
/// `progress` is called from several threads, about once per directory or page. `cancel` ends the listing at the next
/// directory or page.
///
/// A directory is walked as Python's `os.walk(followlinks=True)` walks it; a link that leads back to a
/// directory above itself is not entered again. Sockets, pipes and devices are left out. In a bucket, stand-ins for
/// directories (`prefix/`) are told where they are on the first level, and left out below.
///
/// # Errors
/// A directory that is not there, a bucket's prefix without any object, and whatever the origin answers. A directory,
/// file or link below `uri` that cannot be read, one of `selection.keys` that is not there, and a key that the store client
/// cannot express, are [`Listing::unreadable`].
pub fn list(
    uri: &Uri,
    options: &OriginOptions,
    selection: Selection<'_>,
    progress: &(dyn Fn(ListProgress) + Sync),
    cancel: &AtomicBool,
) -> Result<Listing, OriginError> {
    let wanted: Option<Vec<Vec<u8>>> =
        selection.keys.map(|keys| keys.iter().filter(|key| !(selection.is_excluded)(key)).cloned().collect());
    let tally = Tally { sums: Sums::default(), progress, cancel, uri, is_excluded: selection.is_excluded };
    let mut listing = match (uri.place(), wanted) {
        (Place::Directory(root), None) => posix::walk(root, wants_inode(uri, options)?, &tally)?,
        (Place::Directory(root), Some(keys)) => {
            posix::ask_each(root, &keys, wants_inode(uri, options)?, &tally)?
        }
        (Place::Bucket { .. }, None) => store::list_bucket(&Client::new(uri, options)?, &tally)?,
        (Place::Bucket { .. } | Place::Web { .. }, Some(keys)) => {
            store::ask_each(&Client::new(uri, options)?, &keys, &tally)?
        }
        (Place::Web { .. }, None) => return Err(OriginError::NoListing { uri: uri.to_string() }),
    };
    listing.objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    listing.unreadable.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(listing)
}

/// The running sums of one listing, shared by its threads or tasks.
struct Tally<'a> {
    sums: Sums,
    progress: &'a (dyn Fn(ListProgress) + Sync),
    cancel: &'a AtomicBool,
    uri: &'a Uri,
    is_excluded: &'a (dyn Fn(&[u8]) -> bool + Sync),
}

#[derive(Default)]
struct Sums {
    objects: AtomicU64,
    bytes: AtomicU64,
    steps: AtomicU64,
}

impl Tally<'_> {
    /// Counts one directory or page that brought `found`.
    fn step(&self, found: &[OriginObject]) {
        let bytes: u64 = found.iter().map(|listed| listed.size).sum();
        let add = |sum: &AtomicU64, more| sum.fetch_add(more, Ordering::Relaxed) + more;
        (self.progress)(ListProgress {
            objects: add(&self.sums.objects, found.len() as u64),
            bytes: add(&self.sums.bytes, bytes),
            steps: add(&self.sums.steps, 1),
        });
    }

    fn check(&self) -> Result<(), OriginError> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(OriginError::Cancelled { uri: self.uri.to_string() });
        }
        Ok(())
    }
}

impl fmt::Debug for Tally<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tally").field("uri", self.uri).finish_non_exhaustive()
    }
}
