// SPDX-License-Identifier: Apache-2.0
//! Credentials of a [`CredentialSource`], which all clients in this process share.
//!
//! The source obtains them in a thread of its own, so a request to the store runs none of its code, and only waits
//! while there are no valid credentials.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use foresee_units::Nanos;
use object_store::CredentialProvider;
use tokio::sync::Notify;

use super::refresh::{RefreshState, Step};
use super::{CredentialReply, CredentialRequest, CredentialSource, ObtainedCredentials};

/// Converts the values of credentials to those of a store; the error names what is missing.
pub(crate) type ConvertCredential<C> = fn(&BTreeMap<String, String>) -> Result<C, String>;

/// The answers to one request for credentials, which are renewed before they expire.
pub(crate) struct SharedCredentials {
    source: Arc<dyn CredentialSource>,
    request: CredentialRequest,
    results: Arc<Results>,
}

struct Results {
    state: Mutex<RefreshState<ObtainedCredentials>>,
    /// Notified of each result.
    changed: Notify,
    started: Instant,
}

impl SharedCredentials {
    pub(super) fn new(source: Arc<dyn CredentialSource>, request: CredentialRequest) -> Self {
        let results = Results { state: Mutex::default(), changed: Notify::new(), started: Instant::now() };
        Self { source, request, results: Arc::new(results) }
    }

    async fn obtain(&self) -> Result<Arc<ObtainedCredentials>, String> {
        loop {
            let changed = self.results.changed.notified();
            let step = self.results.state().poll(self.now());
            match step {
                Step::Use(credentials) => return Ok(credentials),
                Step::UseAndFetch(credentials) => {
                    self.fetch();
                    return Ok(credentials);
                }
                Step::Fetch => self.fetch(),
                Step::Wait => {}
                Step::Fail(cause) => return Err(cause),
            }
            changed.await;
        }
    }

    fn fetch(&self) {
        let results = Arc::clone(&self.results);
        let reply = CredentialReply::new(move |result| {
            let lifetime = |end: SystemTime| end.duration_since(SystemTime::now()).unwrap_or_default().into();
            let result = result.map(|found| {
                let lifetime = found.expires.map(lifetime);
                (found, lifetime)
            });
            results.state().record(result, results.started.elapsed().into());
            results.changed.notify_waiters();
        });
        self.source.obtain(&self.request, reply);
    }

    fn error(&self, cause: &str) -> object_store::Error {
        let of = match &self.request {
            CredentialRequest::Profile(Some(name)) => format!("the AWS profile {name:?}"),
            CredentialRequest::Profile(None) => "the default AWS profile".to_owned(),
            CredentialRequest::Provider(_) => "the credential provider".to_owned(),
        };
        object_store::Error::Generic { store: "credentials", source: format!("{of}: {cause}").into() }
    }

    /// The time now, for [`refuse`](Self::refuse).
    pub(crate) fn now(&self) -> Nanos {
        self.results.started.elapsed().into()
    }

    /// Note that the store refused the credentials of a request that began at `began`. True if newer ones may be
    /// accepted, and then the next request uses them.
    pub(crate) fn refuse(&self, began: Nanos) -> bool {
        self.results.state().refuse(began, self.now())
    }
}

impl Results {
    fn state(&self) -> MutexGuard<'_, RefreshState<ObtainedCredentials>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SharedCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedCredentials").field("request", &self.request).finish_non_exhaustive()
    }
}

/// Shared credentials in the form of one store.
#[derive(Debug)]
pub(crate) struct ProvidedCredentials<C> {
    pub(crate) shared: Arc<SharedCredentials>,
    pub(crate) convert: ConvertCredential<C>,
}

impl<C: fmt::Debug + Send + Sync + 'static> CredentialProvider for ProvidedCredentials<C> {
    type Credential = C;

    fn get_credential<'this, 'future>(
        &'this self,
    ) -> Pin<Box<dyn Future<Output = object_store::Result<Arc<C>>> + Send + 'future>>
    where
        'this: 'future,
        Self: 'future,
    {
        Box::pin(async {
            let converted = self.shared.obtain().await.and_then(|found| (self.convert)(&found.values));
            converted.map(Arc::new).map_err(|cause| self.shared.error(&cause))
        })
    }
}
