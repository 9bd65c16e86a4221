// SPDX-License-Identifier: Apache-2.0
//! Requests to the store of a URI, and their runtime.
//!
//! Listings and reads of file headers use the same client as the tier.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use foresee_units::{Nanos, ReadOutcome};
use futures_util::StreamExt;
use object_store::list::PaginatedListOptions;
use object_store::path::{Path, PathPart};
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore};
use tokio::runtime::Runtime;

use super::fault::Attempt;
pub(crate) use super::fault::Failure;
use super::list_page::ListPage;
use super::stores::{Pages, Remedies, StoreClient};
use super::{OriginError, OriginOptions};
use crate::credentials::SharedCredentials;
use crate::uri::Uri;

/// Threads that run requests: one GET takes less than 100 us of CPU time, so two threads carry 20,000 per second.
const RUNTIME_THREADS: usize = 2;
/// Maximum wait for tasks that do not yield at shutdown.
const SHUTDOWN: Duration = Duration::from_secs(1);

/// A store and the runtime of its requests.
#[derive(Debug)]
pub(crate) struct Client {
    runtime: Option<Runtime>,
    store: Arc<Store>,
}

/// The store, shared by tasks.
pub(crate) struct Store {
    objects: Arc<dyn ObjectStore>,
    pages: Option<Pages>,
    uri: Uri,
    /// Precedes each key, and ends with a slash; empty for plain HTTP, whose base is the URL.
    prefix: String,
    read_timeout: Nanos,
    remedies: Remedies,
    credentials: Option<Arc<SharedCredentials>>,
    /// Whether it answered a GET after it had refused a HEAD.
    refuses_head: AtomicBool,
}

/// The request for an object's size and tag.
#[derive(Clone, Copy, Debug)]
enum HeadRequest {
    Head,
    FirstByte,
    Whole,
}

impl Client {
    pub(crate) fn new(uri: &Uri, options: &OriginOptions) -> Result<Self, OriginError> {
        static PROVIDER: Once = Once::new();
        PROVIDER.call_once(|| {
            // An error means that the process has a provider already, which is sufficient.
            let _ = rustls::crypto::ring::default_provider().install_default();
        });
        let store = Store::new(uri, options)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .thread_name("foresee-origin")
            .enable_all()
            .build()
            .map_err(|error| OriginError::Host {
                uri: uri.to_string(),
                what: "threads for requests",
                cause: error.to_string(),
            })?;
        Ok(Self { runtime: Some(runtime), store: Arc::new(store) })
    }

    pub(crate) const fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub(crate) fn handle(&self) -> tokio::runtime::Handle {
        self.runtime().handle().clone()
    }

    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime().block_on(work)
    }

    pub(crate) fn probe(&self) -> Result<(), OriginError> {
        let store = &self.store;
        let answer = self.block_on(async {
            if store.pages.is_some() {
                let (delimiter, max_keys) = (Some("/".into()), Some(1));
                let page = PaginatedListOptions { delimiter, max_keys, ..PaginatedListOptions::default() };
                return store.page(page).await.map(drop);
            }
            match store.request_head(&Path::ROOT, HeadRequest::Head, &Arc::default()).await {
                Err(failure) if matches!(failure.status, None | Some(401)) => Err(failure),
                _ => Ok(()),
            }
        });
        answer.map_err(|failure| store.error(failure, store.uri.to_string()))
    }

    pub(crate) fn read_whole(&self, key: &[u8], range: Option<Range<u64>>) -> Result<Vec<u8>, OriginError> {
        let store = &self.store;
        if range.as_ref().is_some_and(Range::is_empty) {
            return Ok(Vec::new());
        }
        let path = store.path(key).map_err(|cause| store.bad_key(key, cause))?;
        let range = range.map(GetRange::Bounded);
        let read = self.block_on(async {
            let attempt = Arc::new(Attempt::default());
            let options = GetOptions { range, ..GetOptions::default() };
            let answer = store.get(&path, options, &attempt).await?;
            let mut bytes = Vec::new();
            let expected = answer.range.end - answer.range.start;
            let mut chunks = answer.into_stream();
            while let Some(chunk) = store.with_timeout(chunks.next()).await? {
                bytes.extend_from_slice(&chunk.map_err(|error| Failure::classify(&attempt, &error))?);
            }
            if bytes.len() as u64 == expected {
                Ok(bytes)
            } else {
                let cause = format!("{} of {expected} bytes came", bytes.len());
                Err(Failure::answer(ReadOutcome::Retryable, attempt.status(), cause))
            }
        });
        read.map_err(|failure| store.error(failure, store.uri.join(key)))
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("the runtime is there until the client is dropped")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(SHUTDOWN);
        }
    }
}

impl Store {
    fn new(uri: &Uri, options: &OriginOptions) -> Result<Self, OriginError> {
        let StoreClient { objects, pages, remedies, credentials } = StoreClient::new(uri, options)?;
        Ok(Self {
            objects,
            pages,
            uri: uri.clone(),
            prefix: uri.key_prefix(),
            read_timeout: options.read_timeout,
            remedies,
            credentials,
            refuses_head: AtomicBool::new(false),
        })
    }

    pub(crate) const fn uri(&self) -> &Uri {
        &self.uri
    }

    pub(crate) const fn remedies(&self) -> &Remedies {
        &self.remedies
    }

    /// Precedes each key.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The store's path of `key`.
    pub(crate) fn path(&self, key: &[u8]) -> Result<Path, &'static str> {
        let key = str::from_utf8(key).map_err(|_| "it is not UTF-8, and a store's keys are")?;
        let named = [self.prefix.as_str(), key].concat();
        if key.is_empty() || named.starts_with('/') || named.ends_with('/') {
            return Err("it is empty, or begins or ends with a slash");
        }
        if self.pages.is_none() {
            return Path::parse(&named).map_err(|_| "it has an empty, . or .. part or a control character");
        }
        // Part by part: the client's own parser refuses an empty part, which is valid in a bucket. A URL with . or ..
        // as a part names another object, however it is encoded.
        named.split('/').try_fold(Path::ROOT, |path, part| {
            let part =
                PathPart::parse(part).map_err(|_| "it has . or .. as a part, or a control character")?;
            Ok(path.join(part))
        })
    }

    /// The error of a call outside of a tier.
    pub(crate) fn error(&self, failure: Failure, uri: String) -> OriginError {
        failure.into_error(uri, &self.remedies)
    }

    pub(crate) fn bad_key(&self, key: &[u8], cause: &'static str) -> OriginError {
        let key = String::from_utf8_lossy(key).into_owned();
        OriginError::BadKey { uri: self.uri.to_string(), key, cause }
    }

    /// Send one GET (or HEAD), and wait for its headers.
    pub(crate) async fn get(
        &self,
        path: &Path,
        mut options: GetOptions,
        attempt: &Arc<Attempt>,
    ) -> Result<GetResult, Failure> {
        options.extensions.insert(Arc::clone(attempt));
        let began = self.credential_time();
        let answer = self.with_timeout(self.objects.get_opts(path, options)).await?;
        answer.map_err(|error| self.classify(attempt, &error, began))
    }

    /// Size and tag of one object, by a HEAD. A web server may refuse it, because a URL that is presigned for GET is
    /// valid for nothing else, and some servers do not implement HEAD. Then it sends a GET, for one byte if possible.
    pub(crate) async fn head(&self, path: &Path, attempt: &Arc<Attempt>) -> Result<ObjectMeta, Failure> {
        if !self.refuses_head.load(Ordering::Relaxed) {
            match self.request_head(path, HeadRequest::Head, attempt).await {
                Err(failure) if self.pages.is_none() && matches!(failure.status, Some(403 | 405 | 501)) => {}
                answer => return Ok(answer?.meta),
            }
        }
        let meta = match self.request_head(path, HeadRequest::FirstByte, attempt).await {
            // The server ignores ranges, or the object has no first byte: only the headers of the answer are used.
            Err(failure) if matches!(failure.status, Some(200 | 416)) => {
                self.request_head(path, HeadRequest::Whole, attempt).await?.meta
            }
            Err(failure) => return Err(failure),
            Ok(answer) => {
                let meta = answer.meta.clone();
                // Read the byte and the end after it, because only a connection that was read to its end is reused.
                // Errors do not matter here.
                let rest = answer.into_stream().take(2).for_each(|_| std::future::ready(()));
                let _ = self.with_timeout(rest).await;
                meta
            }
        };
        // Only a successful GET proves that the method was refused, and not the object.
        self.refuses_head.store(true, Ordering::Relaxed);
        Ok(meta)
    }

    async fn request_head(
        &self,
        path: &Path,
        what: HeadRequest,
        attempt: &Arc<Attempt>,
    ) -> Result<GetResult, Failure> {
        let range = matches!(what, HeadRequest::FirstByte).then_some(GetRange::Bounded(0..1));
        let options = GetOptions { head: matches!(what, HeadRequest::Head), range, ..GetOptions::default() };
        self.get(path, options, attempt).await
    }

    /// One page of the listing below the prefix.
    pub(crate) async fn page(&self, options: PaginatedListOptions) -> Result<ListPage, Failure> {
        self.page_of(&self.prefix, options).await
    }

    /// One page of the keys with `prefix`.
    pub(crate) async fn page_of(
        &self,
        prefix: &str,
        mut options: PaginatedListOptions,
    ) -> Result<ListPage, Failure> {
        let Some(pages) = &self.pages else { unreachable!("plain HTTP is never listed") };
        let attempt = Arc::new(Attempt::for_page());
        let pages = match pages {
            Pages::Bucket(pages) => pages,
            Pages::Repository(tree) => {
                let (is_top, token) = (options.delimiter.is_some(), options.page_token.as_deref());
                return self.with_timeout(tree.page(prefix, is_top, token, &attempt)).await?;
            }
        };
        options.extensions.insert(Arc::clone(&attempt));
        let prefix = (!prefix.is_empty()).then_some(prefix);
        let began = self.credential_time();
        let answer = self.with_timeout(pages.list_paginated(prefix, options)).await?;
        answer.map_err(|error| self.classify(&attempt, &error, began))?;
        Failure::parse_page(&attempt)
    }

    /// The time on the clock of the credentials, if they are renewed.
    fn credential_time(&self) -> Nanos {
        self.credentials.as_ref().map_or(Nanos::ZERO, |credentials| credentials.now())
    }

    /// Classify `error` of a request that began at `began`, and renew credentials that the store refused.
    fn classify(&self, attempt: &Attempt, error: &object_store::Error, began: Nanos) -> Failure {
        let failure = Failure::classify(attempt, error);
        match &self.credentials {
            Some(credentials) if failure.refuses_credentials() && credentials.refuse(began) => {
                failure.retryable()
            }
            _ => failure,
        }
    }

    /// The result of `work`, or a failure after the read timeout.
    pub(crate) async fn with_timeout<T>(&self, work: impl Future<Output = T>) -> Result<T, Failure> {
        let limit = self.read_timeout;
        tokio::time::timeout(limit.into(), work).await.map_err(|_| Failure::silence(limit))
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("uri", &self.uri).finish_non_exhaustive()
    }
}
