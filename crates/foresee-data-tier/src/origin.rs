// SPDX-License-Identifier: Apache-2.0
//! The slowest tier: the directory or bucket that holds the data set.
//!
//! One read of a sample is one request, and a failure is classified. [`PosixOrigin`] reads mounted file systems,
//! [`StoreOrigin`] S3 and plain HTTP. An origin never writes, deletes or retries: the caller decides when and how often
//! to read.

mod client;
mod fault;
pub(crate) mod flight;
mod list_page;
mod pages;
mod posix;
#[cfg(test)]
pub(crate) mod process_tests;
mod profiles;
#[cfg(test)]
pub(crate) mod shelf;
mod store;
mod tag;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use foresee_units::{Nanos, ReadOutcome, SampleId};

pub(crate) use client::{Client, Door, Failure, store_endpoint};
pub(crate) use list_page::{ListPage, PageObject};
pub use pages::CachedPages;
pub use posix::PosixOrigin;
pub(crate) use posix::{safe_key, tag_of, wants_inode};
pub use store::StoreOrigin;
pub(crate) use tag::object_tag;
pub use tag::posix_tag;

use crate::Tier;
use crate::completion::Completions;
use crate::uri::{Place, Uri, UriError};

/// Knows where in the origin each sample lies; the driver answers from the index.
pub trait Locate: Send + Sync {
    /// The sample's place, or `None` if the index has no such sample.
    ///
    /// Called by the origin's threads, once per read: quick, and without I/O.
    fn locate(&self, id: SampleId) -> Option<Location<'_>>;
}

/// Where one sample lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location<'a> {
    /// The object, relative to the origin's URI, without a leading slash.
    pub key: Cow<'a, [u8]>,
    /// The sample's first byte in the object; `None`: the sample is the whole object.
    pub start: Option<u64>,
    /// Bytes that may be read from `start` on: the sample's, and those behind it in its object if neighbours are to
    /// be read with it.
    pub len: u64,
    /// The object's tag as the listing gave it; empty: none was known and none is checked.
    pub tag: Cow<'a, [u8]>,
}

/// How to reach an origin.
#[derive(Clone)]
pub struct OriginOptions {
    /// Settings of the store by the names of `object_store` (`access_key_id`, `endpoint_url`, `region`,
    /// `skip_signature`, ...); they win over the environment's `AWS_*`. Of a directory: `file_tag`, `mtime` (default)
    /// or `inode`, which fact tells, next to the size, one version of a file from the next.
    pub storage: BTreeMap<String, String>,
    /// Reader threads for a directory, 1 or more; default 64, so that a disk or network file system sees
    /// a deep queue. Started only while reads are slow enough to need them.
    pub threads: usize,
    /// Longest wait for a TCP and TLS connection; default 5 s.
    pub connect_timeout: Nanos,
    /// Longest silence while an answer is awaited or read; default 30 s. There is no limit on a whole
    /// request: 64 MB over a slow link is legal.
    pub read_timeout: Nanos,
}

impl Default for OriginOptions {
    fn default() -> Self {
        Self {
            storage: BTreeMap::new(),
            threads: 64,
            connect_timeout: Nanos::from_secs(5),
            read_timeout: Nanos::from_secs(30),
        }
    }
}

impl std::fmt::Debug for OriginOptions {
    /// Shows the names of the settings, never their values.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OriginOptions")
            .field("storage", &self.storage.keys().collect::<Vec<_>>())
            .field("threads", &self.threads)
            .field("connect_timeout", &self.connect_timeout)
            .field("read_timeout", &self.read_timeout)
            .finish()
    }
}

/// Opens the origin at `uri`. Asks it nothing yet: see [`probe_origin`].
///
/// # Errors
/// An unusable setting, or a directory that cannot be opened.
pub fn open_origin(
    uri: &Uri,
    options: &OriginOptions,
    locate: Arc<dyn Locate>,
    completions: Completions,
) -> Result<Arc<dyn Tier>, OriginError> {
    match uri.place() {
        Place::Directory(root) => Ok(Arc::new(PosixOrigin::new(root, locate, completions, options.threads)?)),
        Place::Bucket { .. } | Place::Web { .. } => {
            Ok(Arc::new(StoreOrigin::new(uri, options, locate, completions)?))
        }
    }
}

/// Asks the origin one small question, so that a wrong address, bucket or key fails before training starts.
///
/// A directory is opened, a bucket lists one object, a web server answers a `HEAD` for its base (any answer
/// but 401 will do: a server need not show its base, nor know `HEAD`). Blocks for one round trip.
///
/// # Errors
/// What went wrong, with the URI and the remedy.
pub fn probe_origin(uri: &Uri, options: &OriginOptions) -> Result<(), OriginError> {
    match uri.place() {
        Place::Directory(root) => posix::open_root(root).map(drop),
        Place::Bucket { .. } | Place::Web { .. } => Client::new(uri, options)?.probe(),
    }
}

/// Reads one object, or `range` of it, at once and on this thread: headers at index time, never samples.
///
/// A range that reaches beyond the object's end is cut there.
///
/// # Errors
/// [`OriginError::Missing`] and whatever else the origin answers.
pub fn read_whole(
    uri: &Uri,
    options: &OriginOptions,
    key: &[u8],
    range: Option<std::ops::Range<u64>>,
) -> Result<Vec<u8>, OriginError> {
    match uri.place() {
        Place::Directory(root) => posix::read_whole(uri, root, key, range),
        Place::Bucket { .. } | Place::Web { .. } => Client::new(uri, options)?.read_whole(key, range),
    }
}

/// Why an origin cannot be opened, listed or asked. Every variant names the URI and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OriginError {
    /// The URI cannot be read.
    #[error(transparent)]
    Uri(#[from] UriError),
    /// A setting that the store does not know or cannot read.
    #[error(
        "origin {uri}: setting {name:?} is not usable ({cause}); correct it in storage_options or the environment"
    )]
    BadOption {
        /// The origin.
        uri: String,
        /// The setting's name; its value is never shown.
        name: String,
        /// What is wrong with it.
        cause: String,
    },
    /// The bucket, or an object in a store, does not exist.
    #[error("{uri} does not exist ({cause}); check its spelling, and for a bucket its region and endpoint")]
    Missing {
        /// What was looked for.
        uri: String,
        /// The answer.
        cause: String,
    },
    /// The directory or file does not exist.
    #[error("{uri} does not exist; {remedy}")]
    NoFile {
        /// What was looked for.
        uri: String,
        /// What to write instead.
        remedy: String,
    },
    /// A bucket's listing is empty.
    #[error("nothing is stored at {uri}; {found}")]
    Nothing {
        /// What was listed.
        uri: String,
        /// What the bucket has instead.
        found: String,
    },
    /// A file or folder that was listed and cannot be read.
    #[error("{uri} cannot be read ({cause}); {remedy}, or leave it out with exclude= (--exclude)")]
    Unreadable {
        /// The file or folder.
        uri: String,
        /// The system's answer.
        cause: String,
        /// How to make it readable.
        remedy: &'static str,
        /// The kind of the system's answer; a link that leads nowhere or to itself is not found.
        kind: std::io::ErrorKind,
    },
    /// Something else lies where an object was.
    #[error("{uri} has changed since it was indexed ({cause}); index the data set again")]
    Changed {
        /// The object.
        uri: String,
        /// What it is now.
        cause: &'static str,
    },
    /// No permission.
    #[error("{uri}: access denied ({cause}); grant read and list permission, or correct the credentials")]
    Denied {
        /// What was asked for.
        uri: String,
        /// The answer.
        cause: String,
    },
    /// No credentials could be found or refreshed.
    #[error(
        "{uri}: no usable credentials ({cause}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
         skip_signature=true in storage_options= (--option skip_signature=true) for a public bucket"
    )]
    NoCredentials {
        /// What was asked for.
        uri: String,
        /// What was tried.
        cause: String,
    },
    /// The bucket lies in another region.
    #[error(
        "{uri} failed ({cause}); set region {} in storage_options= (--option region=...) or as AWS_REGION={}",
        .region.as_deref().map_or_else(|| "of the bucket".to_owned(), |region| format!("{region:?}")),
        .region.as_deref().unwrap_or("...")
    )]
    WrongRegion {
        /// What was asked for.
        uri: String,
        /// The answer.
        cause: String,
        /// The bucket's, if the answer names it.
        region: Option<String>,
    },
    /// Requests carry their time, and the store's clock shows another.
    #[error(
        "{uri} failed ({cause}); set this host's clock, such as with `timedatectl set-ntp true`, and try again"
    )]
    ClockDiffers {
        /// What was asked for.
        uri: String,
        /// The answer, with both times.
        cause: String,
    },
    /// Something that is no store answered.
    #[error(
        "{uri} is not served by a store ({cause}); name the address of the S3 API, not of its web console, as endpoint \
         in storage_options= (--option endpoint=...) or as AWS_ENDPOINT_URL, and look for a proxy or login page in \
         between"
    )]
    NoStore {
        /// What was asked for.
        uri: String,
        /// What answered.
        cause: String,
    },
    /// No answer came.
    #[error("{uri} cannot be reached ({cause}); check the endpoint, the network and proxy settings")]
    Unreachable {
        /// What was asked for.
        uri: String,
        /// The fault.
        cause: String,
    },
    /// A key that cannot be asked for.
    #[error(
        "key {key:?} cannot be read below {uri}: {cause}; rename the object, or leave it out with exclude= (--exclude)"
    )]
    BadKey {
        /// The origin.
        uri: String,
        /// The key, with bytes that are not UTF-8 replaced.
        key: String,
        /// Why not.
        cause: &'static str,
    },
    /// The origin answered something else.
    #[error("{uri} failed ({cause}); try again, and if it persists ask the origin's operator")]
    Failed {
        /// What was asked for.
        uri: String,
        /// The answer.
        cause: String,
    },
    /// Plain HTTP has no listing.
    #[error(
        "{uri} is plain HTTP, which has no listing; write its keys, one per line, to a file, make an index with \
         `foresee index {uri} --keys FILE -o NAME.fidx`, and give that index instead of the URI"
    )]
    NoListing {
        /// The origin.
        uri: String,
    },
    /// The caller's cancel flag was raised.
    #[error("listing {uri} was cancelled; start it again to get an index")]
    Cancelled {
        /// The origin.
        uri: String,
    },
    /// The machine refused a thread or the like.
    #[error("{uri}: this machine refuses {what} ({cause}); raise its limit (ulimit -u, ulimit -n)")]
    Machine {
        /// The origin.
        uri: String,
        /// What was refused.
        what: &'static str,
        /// Its answer.
        cause: String,
    },
}

impl OriginError {
    /// From an error of the file system about `uri`.
    pub(crate) fn from_io(uri: impl Into<String>, error: &std::io::Error) -> Self {
        let (uri, cause) = (uri.into(), error.to_string());
        match error.kind() {
            std::io::ErrorKind::NotFound => Self::NoFile { uri, remedy: "check the path".to_owned() },
            std::io::ErrorKind::PermissionDenied => Self::Denied { uri, cause },
            _ => Self::Failed { uri, cause },
        }
    }
}

/// What an origin answers to a write or a drop.
const READ_ONLY: &str = "an origin is only read: it is never written to and nothing in it is deleted";

fn not_in_index(id: SampleId) -> String {
    format!("sample {} is not in the index", id.0)
}

/// Where a read of `len` bytes from `offset` of the sample begins in its object, if the sample is that long.
fn first_byte_of(location: &Location<'_>, offset: u64, len: usize) -> Result<u64, (ReadOutcome, String)> {
    let within = u64::try_from(len).ok().and_then(|len| offset.checked_add(len));
    let start = location.start.unwrap_or(0).checked_add(offset);
    match (within, start) {
        (Some(end), Some(start)) if end <= location.len && start.checked_add(location.len).is_some() => {
            Ok(start)
        }
        _ => {
            let cause = format!("{len} bytes from {offset} are not within its {} bytes", location.len);
            Err((ReadOutcome::Failed, cause))
        }
    }
}
