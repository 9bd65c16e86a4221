// SPDX-License-Identifier: Apache-2.0
//! The client of each kind of store, with its settings from the environment and from the caller.
//!
//! Settings of the caller override the environment. Unknown ones of the caller are refused, so that a misspelt key
//! does not cause anonymous access. The client's own retries are off, because only the caller knows the deadline.

mod azure;
mod gcs;
mod hugging_face;
mod profiles;
mod provided;
mod s3;
mod web;

use std::sync::Arc;
use std::time::Duration;

use object_store::list::PaginatedListStore;
use object_store::{ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};

use self::hugging_face::RepositoryTree;
use super::{OriginError, OriginOptions};
use crate::credentials::SharedCredentials;
use crate::uri::{BucketKind, Uri, UriParts};

/// Idle connections in the pool: as many as a driver has requests in flight.
const IDLE_CONNECTIONS: usize = 256;

/// The client of one store.
pub(super) struct StoreClient {
    pub(super) objects: Arc<dyn ObjectStore>,
    /// Its listing; plain HTTP has none.
    pub(super) pages: Option<Pages>,
    pub(super) remedies: Remedies,
    /// Its credentials, if the process obtains them.
    pub(super) credentials: Option<Arc<SharedCredentials>>,
}

/// The listing of a store.
pub(super) enum Pages {
    /// Pages that the client requests, in XML.
    Bucket(Arc<dyn PaginatedListStore>),
    Repository(RepositoryTree),
}

/// Remedies of one store for errors about its settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remedies {
    /// How to set credentials.
    pub(crate) credentials: &'static str,
    /// How to set the address.
    pub(crate) endpoint: &'static str,
    /// Text for the end of a refusal's cause: where credentials come from.
    pub(crate) sources: &'static str,
    /// Text for the end of a cause that is about credentials, if this host has some that are not read.
    pub(crate) hint: String,
}

impl StoreClient {
    /// Create the client of the store at `uri`, without a request.
    ///
    /// # Panics
    /// If `uri` is a directory.
    pub(super) fn new(uri: &Uri, options: &OriginOptions) -> Result<Self, OriginError> {
        match uri.parts() {
            UriParts::Bucket { kind: BucketKind::S3, name, .. } => s3::client(uri, name, options),
            UriParts::Bucket { kind: BucketKind::Gcs, name, .. } => gcs::client(uri, name, options),
            UriParts::Bucket { kind: BucketKind::Azure, name, .. } => azure::client(uri, name, options),
            UriParts::Repository(path) => hugging_face::client(uri, path, options),
            UriParts::Web { base, query } => web::client(uri, base, query.as_deref(), options),
            UriParts::Directory(_) => unreachable!("directories are opened as PosixOrigin"),
        }
    }

    fn of_bucket<S: ObjectStore + PaginatedListStore>(
        store: S,
        remedies: Remedies,
        credentials: Option<Arc<SharedCredentials>>,
    ) -> Self {
        let store = Arc::new(store);
        Self {
            objects: Arc::clone(&store) as Arc<dyn ObjectStore>,
            pages: Some(Pages::Bucket(store)),
            remedies,
            credentials,
        }
    }
}

/// The endpoint of a bucket's or repository's store from settings and environment; empty for the provider's own, and
/// for other origins.
pub(crate) fn store_endpoint(uri: &Uri, options: &OriginOptions) -> Result<String, OriginError> {
    let endpoint = match uri.parts() {
        UriParts::Bucket { kind: BucketKind::S3, .. } => s3::endpoint(uri, options)?,
        UriParts::Bucket { kind: BucketKind::Gcs, .. } => gcs::endpoint(uri, options)?,
        UriParts::Bucket { kind: BucketKind::Azure, .. } => azure::endpoint(uri, options)?,
        UriParts::Repository(_) => hugging_face::endpoint(uri, options)?,
        UriParts::Web { .. } | UriParts::Directory(_) => String::new(),
    };
    Ok(endpoint.trim_end_matches('/').to_ascii_lowercase())
}

/// The error about the setting `name`.
fn bad_option(uri: &Uri, name: &str, cause: impl Into<String>) -> OriginError {
    OriginError::BadOption { uri: uri.to_string(), name: name.to_owned(), cause: cause.into() }
}

/// The environment's variables that begin with `prefix` and are not empty, with names in lower case.
fn environment(prefix: &str) -> impl Iterator<Item = (String, String)> + '_ {
    std::env::vars_os().filter_map(move |(name, value)| {
        let name = name.to_str().filter(|name| name.starts_with(prefix))?.to_ascii_lowercase();
        Some((name, value.into_string().ok().filter(|value| !value.is_empty())?))
    })
}

/// The variable `name` of the environment, unless it is empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// No timeout on a whole request: a large object over a slow link is valid.
fn without_request_timeout() -> ClientOptions {
    ClientOptions::new().with_timeout_disabled()
}

/// Settings that users cannot change: timeouts, the pool, and HTTP/1.1 (a store's throughput comes from many
/// connections).
fn connection_settings(options: &OriginOptions, plain: bool) -> Vec<(ClientConfigKey, String)> {
    let connect = Duration::from(options.connect_timeout);
    let mut settings = vec![
        (ClientConfigKey::ConnectTimeout, format!("{}ms", connect.as_millis().max(1))),
        (ClientConfigKey::PoolMaxIdlePerHost, IDLE_CONNECTIONS.to_string()),
        (ClientConfigKey::Http1Only, "true".to_owned()),
    ];
    if plain {
        settings.push((ClientConfigKey::AllowHttp, "true".to_owned()));
    }
    settings
}

/// Whether an address is plain HTTP.
fn is_plain(endpoint: &str) -> bool {
    endpoint.to_ascii_lowercase().starts_with("http://")
}

fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() }
}
