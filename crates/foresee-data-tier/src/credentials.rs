// SPDX-License-Identifier: Apache-2.0
//! Credentials that another part of the process obtains: AWS profiles, and functions of the caller.
//!
//! The storage options only name them, so secrets are neither saved nor sent to other processes, and each process
//! obtains its own. [`refresh`] decides when credentials are obtained again.

mod provided;
mod refresh;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

pub(crate) use self::provided::{ConvertCredential, ProvidedCredentials, SharedCredentials};

/// What a [`CredentialSource`] is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CredentialRequest {
    /// The AWS profile of this name; `None` is the default one.
    Profile(Option<String>),
    /// The function that this process has registered under this name.
    Provider(String),
}

/// Credentials of a store, by name.
#[derive(Clone, PartialEq, Eq)]
pub struct ObtainedCredentials {
    /// S3: `access_key_id`, `secret_access_key` and perhaps `token`. Google: `token`. Azure: `access_key`, `sas_token`
    /// or `token`.
    pub values: BTreeMap<String, String>,
    /// The end of their validity, if they have one.
    pub expires: Option<SystemTime>,
}

impl fmt::Debug for ObtainedCredentials {
    /// Shows the names, and no values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObtainedCredentials")
            .field("values", &self.values.keys().collect::<Vec<_>>())
            .field("expires", &self.expires)
            .finish()
    }
}

/// Credentials, or the fault with its remedy and without secrets.
pub type CredentialResult = Result<ObtainedCredentials, String>;

/// Obtains credentials for this process.
pub trait CredentialSource: fmt::Debug + Send + Sync {
    /// Whether [`CredentialRequest::Profile`] can be answered.
    fn reads_profiles(&self) -> bool;

    /// Region and endpoint of an AWS profile, as storage options; may read files.
    ///
    /// # Errors
    /// The fault and the remedy, without secrets.
    fn profile_settings(&self, profile: Option<&str>) -> Result<BTreeMap<String, String>, String>;

    /// Start to obtain credentials, and return; `reply` may be used from any thread.
    fn obtain(&self, request: &CredentialRequest, reply: CredentialReply);
}

/// Receives the result of [`CredentialSource::obtain`]. Dropped without one, it reports a failure.
pub struct CredentialReply {
    send: Option<Box<dyn FnOnce(CredentialResult) + Send>>,
}

impl CredentialReply {
    /// A reply that calls `send` once.
    pub fn new(send: impl FnOnce(CredentialResult) + Send + 'static) -> Self {
        Self { send: Some(Box::new(send)) }
    }

    /// Report the result.
    pub fn send(mut self, result: CredentialResult) {
        self.report(result);
    }

    fn report(&mut self, result: CredentialResult) {
        if let Some(send) = self.send.take() {
            send(result);
        }
    }
}

impl Drop for CredentialReply {
    fn drop(&mut self) {
        self.report(Err("the request for credentials ended without a result".to_owned()));
    }
}

impl fmt::Debug for CredentialReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialReply").finish_non_exhaustive()
    }
}

/// The credentials of a process: those of one source, obtained once for all origins that use them.
pub struct Credentials {
    source: Arc<dyn CredentialSource>,
    known: Mutex<Known>,
}

/// Requests with their credentials, and the process that they belong to.
#[derive(Default)]
struct Known {
    process: u32,
    shared: HashMap<CredentialRequest, Arc<SharedCredentials>>,
}

impl Credentials {
    /// Credentials of `source`, none of which are obtained yet.
    pub fn new(source: Arc<dyn CredentialSource>) -> Arc<Self> {
        Arc::new(Self { source, known: Mutex::default() })
    }

    pub(crate) fn source(&self) -> &dyn CredentialSource {
        &*self.source
    }

    /// The credentials that answer `request`.
    pub(crate) fn shared(&self, request: &CredentialRequest) -> Arc<SharedCredentials> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // A forked child does not have the threads that its parent's requests wait for.
        let process = std::process::id();
        if known.process != process {
            *known = Known { process, ..Known::default() };
        }
        let new = || Arc::new(SharedCredentials::new(Arc::clone(&self.source), request.clone()));
        Arc::clone(known.shared.entry(request.clone()).or_insert_with(new))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("source", &self.source).finish_non_exhaustive()
    }
}

static CREDENTIALS: OnceLock<Arc<Credentials>> = OnceLock::new();

/// Set the source of this process, which each later [`OriginOptions::default`](crate::OriginOptions) has. Only the
/// first call has an effect.
pub fn set_credential_source(source: Arc<dyn CredentialSource>) {
    CREDENTIALS.get_or_init(|| Credentials::new(source));
}

/// The credentials of this process, if it has a source.
pub(crate) fn process_credentials() -> Option<Arc<Credentials>> {
    CREDENTIALS.get().cloned()
}

#[cfg(test)]
mod process_tests;
