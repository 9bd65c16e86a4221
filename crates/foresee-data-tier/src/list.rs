// SPDX-License-Identifier: Apache-2.0
//! What an origin holds: every object with its size and tag, once per run, for the index.
//!
//! Apart from reading: a listing runs before training, over all objects at once, and is bounded by requests
//! rather than bytes. Refuses to be lazy: an entry that cannot be read is an error now, not at step 90,000.

mod posix;
mod split;
mod store;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::origin::{Client, OriginError, OriginOptions, wants_inode};
use crate::uri::{Place, Uri};

/// One object of the origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Relative to the origin's URI, without a leading slash; bytes, as file names are.
    pub key: Vec<u8>,
    /// Bytes.
    pub size: u64,
    /// See [`crate::posix_tag`]; for stores the `ETag` or `last-modified:SECONDS`; empty if neither is known.
    pub tag: Vec<u8>,
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

/// Lists everything below `uri`, sorted by the bytes of its key. Blocks; many requests run at once.
///
/// `keys` names the objects: those of a plain HTTP server, which has no listing, or the few that are wanted of
/// a directory or bucket; nothing else is looked at then. `progress` is called from several threads, about
/// once per directory or page. `cancel` ends the listing at the next directory or page.
///
/// A directory is walked as Python's `os.walk(followlinks=True)` walks it; a link that leads back to a
/// directory above itself is not entered again. Directories of the first level are told, too, as keys that end
/// in `/`: a class may have no file. Sockets, pipes and devices are left out. In a bucket,
/// zero-byte stand-ins for directories (`prefix/`) are left out.
///
/// # Errors
/// An unreadable directory, a link that leads nowhere, a key the store client cannot express, and whatever
/// the origin answers.
pub fn list(
    uri: &Uri,
    options: &OriginOptions,
    keys: Option<&[Vec<u8>]>,
    progress: &(dyn Fn(ListProgress) + Sync),
    cancel: &AtomicBool,
) -> Result<Vec<Listed>, OriginError> {
    let tally = Tally { sums: Sums::default(), progress, cancel, uri };
    let mut listed = match (uri.place(), keys) {
        (Place::Directory(root), None) => posix::walk(root, wants_inode(uri, options)?, &tally)?,
        (Place::Directory(root), Some(keys)) => {
            posix::ask_each(root, keys, wants_inode(uri, options)?, &tally)?
        }
        (Place::Bucket { .. }, None) => store::list_bucket(&Client::new(uri, options)?, &tally)?,
        (Place::Bucket { .. } | Place::Web { .. }, Some(keys)) => {
            store::ask_each(&Client::new(uri, options)?, keys, &tally)?
        }
        (Place::Web { .. }, None) => return Err(OriginError::NoListing { uri: uri.to_string() }),
    };
    listed.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(listed)
}

/// The running sums of one listing, shared by its threads or tasks.
struct Tally<'a> {
    sums: Sums,
    progress: &'a (dyn Fn(ListProgress) + Sync),
    cancel: &'a AtomicBool,
    uri: &'a Uri,
}

#[derive(Default)]
struct Sums {
    objects: AtomicU64,
    bytes: AtomicU64,
    steps: AtomicU64,
}

impl Tally<'_> {
    /// Counts one directory or page that brought `found`.
    fn step(&self, found: &[Listed]) {
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
