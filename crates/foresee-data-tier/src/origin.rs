// SPDX-License-Identifier: Apache-2.0
//! The slowest tier: the directory or bucket that contains the data set.
//!
//! One read of a sample is one request, and a failure is classified. [`PosixOrigin`] reads mounted file systems,
//! [`StoreOrigin`] buckets, the Hugging Face hub and plain HTTP. An origin never writes, deletes or retries.

mod client;
mod fault;
mod list_page;
mod pages;
mod pending;
mod posix;
mod store;
mod stores;
mod tag;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use foresee_units::{Nanos, ReadOutcome, SampleId};

pub(crate) use client::{Client, Failure, Store};
pub(crate) use list_page::{ListPage, PageObject};
pub use pages::CachedPages;
pub use posix::PosixOrigin;
pub(crate) use posix::{safe_key, tag_of, wants_inode};
pub use store::StoreOrigin;
pub(crate) use stores::store_endpoint;
pub(crate) use tag::object_tag;
pub use tag::posix_tag;

use crate::Tier;
use crate::completion::Completions;
use crate::credentials::{Credentials, process_credentials};
use crate::uri::{Uri, UriError, UriParts};

/// Maps each sample to its bytes in the origin, from the index.
pub trait Locate: Send + Sync {
    /// The sample's location, or `None` if the index has no such sample.
    ///
    /// Threads of the origin call it once per read, so it must be quick and do no I/O.
    fn locate(&self, id: SampleId) -> Option<Location<'_>>;
}

/// Location of one sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location<'a> {
    /// The object, relative to the origin's URI, without a leading slash.
    pub key: Cow<'a, [u8]>,
    /// The sample's first byte in the object; `None` if the sample is the whole object.
    pub start: Option<u64>,
    /// Bytes that may be read from `start` on: those of the sample, and of its neighbours if they are read with it.
    pub len: u64,
    /// The object's tag from the listing; empty if it is unknown, and then it is not checked.
    pub tag: Cow<'a, [u8]>,
}

/// Settings of an origin.
#[derive(Clone)]
pub struct OriginOptions {
    /// Settings of the store with the names of `object_store` (`access_key_id`, `endpoint_url`, `region`,
    /// `skip_signature`, ...); they override the environment's `AWS_*`, `GOOGLE_*`, `AZURE_*` or `HF_*`. For a directory: `file_tag`, `mtime`
    /// (default) or `inode`, which identifies a version of a file together with its size.
    pub storage: BTreeMap<String, String>,
    /// Obtains credentials that `storage` or the environment name; by default that of the process, if it has one.
    pub credentials: Option<Arc<Credentials>>,
    /// Reader threads for a directory, 1 or more; default 64, for a deep queue at a disk or network file system.
    /// Threads are only started while reads are slow.
    pub threads: usize,
    /// Timeout of a TCP and TLS connection; default 5 s.
    pub connect_timeout: Nanos,
    /// Maximum time without a byte while an answer is awaited or read; default 30 s. A whole request has no timeout:
    /// 64 MB over a slow link is valid.
    pub read_timeout: Nanos,
}

impl Default for OriginOptions {
    fn default() -> Self {
        Self {
            storage: BTreeMap::new(),
            credentials: process_credentials(),
            threads: 64,
            connect_timeout: Nanos::from_secs(5),
            read_timeout: Nanos::from_secs(30),
        }
    }
}

impl std::fmt::Debug for OriginOptions {
    /// Shows the names of the settings, and no values.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OriginOptions")
            .field("storage", &self.storage.keys().collect::<Vec<_>>())
            .field("credentials", &self.credentials)
            .field("threads", &self.threads)
            .field("connect_timeout", &self.connect_timeout)
            .field("read_timeout", &self.read_timeout)
            .finish()
    }
}

/// Open the origin at `uri`, without a request; see [`probe_origin`].
///
/// # Errors
/// An invalid setting, or a directory that cannot be opened.
pub fn open_origin(
    uri: &Uri,
    options: &OriginOptions,
    locate: Arc<dyn Locate>,
    completions: Completions,
) -> Result<Arc<dyn Tier>, OriginError> {
    match uri.parts() {
        UriParts::Directory(root) => {
            Ok(Arc::new(PosixOrigin::new(root, locate, completions, options.threads)?))
        }
        UriParts::Bucket { .. } | UriParts::Repository(_) | UriParts::Web { .. } => {
            Ok(Arc::new(StoreOrigin::new(uri, options, locate, completions)?))
        }
    }
}

/// Send one small request, so that a wrong address, bucket or key fails before training starts.
///
/// A directory is opened, a bucket lists one object, and a web server answers a `HEAD` for its base with any status
/// except 401. Blocks for one round trip.
///
/// # Errors
/// The fault, with the URI and the remedy.
pub fn probe_origin(uri: &Uri, options: &OriginOptions) -> Result<(), OriginError> {
    match uri.parts() {
        UriParts::Directory(root) => posix::open_root(root).map(drop),
        UriParts::Bucket { .. } | UriParts::Repository(_) | UriParts::Web { .. } => {
            Client::new(uri, options)?.probe()
        }
    }
}

/// Reads objects on the caller's thread: file headers during indexing, and samples without a plan. Any number of threads
/// may read at a time. It keeps its connections.
#[derive(Debug)]
pub struct ObjectReader {
    uri: Uri,
    place: ReadPlace,
}

#[derive(Debug)]
enum ReadPlace {
    Directory(PathBuf),
    Store(Client),
}

impl ObjectReader {
    /// Prepare to read objects of `uri`. Nothing is requested.
    ///
    /// # Errors
    /// A setting is unknown or invalid, or the system refuses threads for requests.
    pub fn open(uri: &Uri, options: &OriginOptions) -> Result<Self, OriginError> {
        let place = match uri.parts() {
            UriParts::Directory(root) => ReadPlace::Directory(root.to_owned()),
            UriParts::Bucket { .. } | UriParts::Repository(_) | UriParts::Web { .. } => {
                ReadPlace::Store(Client::new(uri, options)?)
            }
        };
        Ok(Self { uri: uri.clone(), place })
    }

    /// Read one object, or `range` of it. A range past the object's end is cut there.
    ///
    /// # Errors
    /// [`OriginError::Missing`] and any other error of the origin.
    pub fn read(&self, key: &[u8], range: Option<std::ops::Range<u64>>) -> Result<Vec<u8>, OriginError> {
        match &self.place {
            ReadPlace::Directory(root) => posix::read_whole(&self.uri, root, key, range),
            ReadPlace::Store(client) => client.read_whole(key, range),
        }
    }
}

/// Why an origin cannot be opened, listed or read. Every variant has the URI and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OriginError {
    /// An invalid URI.
    #[error(transparent)]
    Uri(#[from] UriError),
    /// A setting that is unknown or invalid.
    #[error(
        "origin {uri}: setting {name:?} is not usable ({cause}); correct it in storage_options or the environment"
    )]
    BadOption {
        /// The origin.
        uri: String,
        /// The setting's name; its value is never shown.
        name: String,
        /// The fault.
        cause: String,
    },
    /// The bucket, or an object in a store, does not exist.
    #[error("{uri} does not exist ({cause}); check its spelling, and for a bucket its region and endpoint")]
    Missing {
        /// The missing object.
        uri: String,
        /// The answer.
        cause: String,
    },
    /// The directory or file does not exist.
    #[error("{uri} does not exist; {remedy}")]
    NoFile {
        /// The missing path.
        uri: String,
        /// The remedy.
        remedy: String,
    },
    /// A bucket's listing is empty.
    #[error("nothing is stored at {uri}; {found}")]
    Nothing {
        /// The listed URI.
        uri: String,
        /// Objects in the bucket that the user may have meant.
        found: String,
    },
    /// A file or folder that was listed and cannot be read.
    #[error("{uri} cannot be read ({cause}); {remedy}, or leave it out with exclude= (--exclude)")]
    Unreadable {
        /// The file or folder.
        uri: String,
        /// The system's error.
        cause: String,
        /// How to make it readable.
        remedy: &'static str,
        /// The kind of the system's error; a broken link and a link to itself are not found.
        kind: std::io::ErrorKind,
    },
    /// The object is now something else.
    #[error("{uri} has changed since it was indexed ({cause}); index the data set again")]
    Changed {
        /// The object.
        uri: String,
        /// Its current kind.
        cause: &'static str,
    },
    /// No permission.
    #[error("{uri}: access denied ({cause}); grant read and list permission, or correct the credentials")]
    Denied {
        /// The requested URI.
        uri: String,
        /// The answer.
        cause: String,
    },
    /// No credentials could be found or refreshed.
    #[error("{uri}: no usable credentials ({cause}); {remedy}")]
    NoCredentials {
        /// The requested URI.
        uri: String,
        /// The attempts.
        cause: String,
        /// The variables to set.
        remedy: &'static str,
    },
    /// The bucket is in another region.
    #[error(
        "{uri} failed ({cause}); set region {} in storage_options= (--option region=...) or as AWS_REGION={}",
        .region.as_deref().map_or_else(|| "of the bucket".to_owned(), |region| format!("{region:?}")),
        .region.as_deref().unwrap_or("...")
    )]
    WrongRegion {
        /// The requested URI.
        uri: String,
        /// The answer.
        cause: String,
        /// The bucket's region, if the answer contains it.
        region: Option<String>,
    },
    /// The clocks of this host and the store differ.
    #[error(
        "{uri} failed ({cause}); set this host's clock, such as with `timedatectl set-ntp true`, and try again"
    )]
    ClockDiffers {
        /// The requested URI.
        uri: String,
        /// The answer, with both times.
        cause: String,
    },
    /// The endpoint is not a store.
    #[error(
        "{uri} is not served by a store ({cause}); {remedy}, and look for a proxy or login page in between"
    )]
    NoStore {
        /// The requested URI.
        uri: String,
        /// A description of the answer.
        cause: String,
        /// How to set the address.
        remedy: &'static str,
    },
    /// No answer.
    #[error("{uri} cannot be reached ({cause}); check the endpoint, the network and proxy settings")]
    Unreachable {
        /// The requested URI.
        uri: String,
        /// The fault.
        cause: String,
    },
    /// A key that no request can express.
    #[error(
        "key {key:?} cannot be read below {uri}: {cause}; rename the object, or leave it out with exclude= (--exclude)"
    )]
    BadKey {
        /// The origin.
        uri: String,
        /// The key, with invalid UTF-8 replaced.
        key: String,
        /// The reason.
        cause: &'static str,
    },
    /// Any other answer.
    #[error("{uri} failed ({cause}); try again, and if it persists ask the origin's operator")]
    Failed {
        /// The requested URI.
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
    /// The caller cancelled the listing.
    #[error("listing {uri} was cancelled; start it again to get an index")]
    Cancelled {
        /// The origin.
        uri: String,
    },
    /// The host refused a thread or another resource.
    #[error("{uri}: this host refuses {what} ({cause}); raise its limit (ulimit -u, ulimit -n)")]
    Host {
        /// The origin.
        uri: String,
        /// The resource.
        what: &'static str,
        /// The system's error.
        cause: String,
    },
}

impl OriginError {
    /// Convert an error of the file system about `uri`.
    pub(crate) fn from_io(uri: impl Into<String>, error: &std::io::Error) -> Self {
        let (uri, cause) = (uri.into(), error.to_string());
        match error.kind() {
            std::io::ErrorKind::NotFound => Self::NoFile { uri, remedy: "check the path".to_owned() },
            std::io::ErrorKind::PermissionDenied => Self::Denied { uri, cause },
            _ => Self::Failed { uri, cause },
        }
    }
}

/// The message for a write or a drop.
const READ_ONLY: &str = "an origin is only read: it is never written to and nothing in it is deleted";

fn not_in_index(id: SampleId) -> String {
    format!("sample {} is not in the index", id.0)
}

/// First byte, in its object, of a read of `len` bytes from `offset` of the sample; an error past the sample's end.
fn start_in_object(location: &Location<'_>, offset: u64, len: usize) -> Result<u64, (ReadOutcome, String)> {
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
