// SPDX-License-Identifier: Apache-2.0
//! How a loader attaches to the host at an address, on a thread of its own: one attempt at its start, and a search after
//! its host has ended or has not answered.
//!
//! The loader polls the outcome, so that a host that does not answer delays neither its driver nor a signal. There is one
//! thread per loader at most: a search begins only when an attempt has failed or an attachment has ended.

#[cfg(test)]
mod process_tests;

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use foresee_data_node::{ConnectOptions, Hello, LauncherValues, NodeAddress, NodeError};
use foresee_ledger::{NodeCache, NodeCacheRole};
use foresee_units::Nanos;

use super::backoff::{AttachBackoff, is_permanent};
use super::client::{NodeClient, NodeDataSet};
use super::now;
use super::stats::NodeHostFacts;
use crate::data_set::DataSet;
use crate::waker::Waker;

/// Maximum time of an attempt without a message of the host, which reports while it opens a data set. The end of the
/// loader waits as long at most.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// An address, and what a loader attaches with there.
pub(crate) struct AttachTarget {
    pub(crate) address: NodeAddress,
    pub(crate) role: NodeCacheRole,
    pub(crate) hello: Hello,
    pub(crate) data: Arc<DataSet>,
    pub(crate) uri: String,
    pub(crate) storage: Vec<(String, String)>,
    /// Whether a rank of this job has just listed the origin.
    pub(crate) is_listed: bool,
    pub(crate) waker: Arc<Waker>,
}

/// A client, and how its loader attaches again.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) client: NodeClient,
    pub(crate) host: NodeHostFacts,
    pub(crate) retry: AttachRetry,
}

/// Where and when a loader attaches again.
#[derive(Debug)]
pub(crate) struct AttachRetry {
    target: AttachTarget,
    backoff: AttachBackoff,
}

/// Why an attempt has failed, and how its loader attaches later.
#[derive(Debug)]
pub(crate) struct AttachFailure {
    pub(crate) why: NodeError,
    pub(crate) retry: Box<AttachRetry>,
}

/// An attempt or a search in progress. Dropping it ends its thread.
#[derive(Debug)]
pub(crate) struct HostSearch {
    role: NodeCacheRole,
    shared: Arc<SearchShared>,
    thread: Option<JoinHandle<()>>,
    /// The process that created it: a forked child has no thread.
    process: u32,
}

#[derive(Debug, Default)]
struct SearchShared {
    state: Mutex<SearchState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SearchState {
    is_stopped: bool,
    outcome: Option<Result<Attached, AttachFailure>>,
}

impl AttachTarget {
    fn connect(&self, is_wanted: impl Fn() -> bool) -> Result<(NodeClient, NodeHostFacts), NodeError> {
        let Self { address, role, hello, data, uri, storage, is_listed, waker } = self;
        // A service for several users has a user of its own. Who owns the directory of the socket that FORESEE_NODE names
        // can replace the socket, so trust in that socket is trust in this user.
        let options = ConnectOptions { allow_uids: address.trusted_uids(), timeout: SILENCE_MAX };
        let data = NodeDataSet { index: data.index(), uri, storage, is_listed: *is_listed };
        let client = NodeClient::attach(address, hello, &options, data, Arc::clone(waker), is_wanted)?;
        let boot_id = LauncherValues::from_environment().boot_id.unwrap_or_default();
        let (ram, disk) = client.capacity();
        let cache = NodeCache { id: address.host_id(&boot_id), role: *role, ram, disk };
        Ok((client, NodeHostFacts { cache, address: address.clone() }))
    }
}

/// URI and storage options may contain credentials.
impl fmt::Debug for AttachTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachTarget").field("address", &self.address).finish_non_exhaustive()
    }
}

impl HostSearch {
    /// Start the only attempt at the start of a loader.
    ///
    /// # Errors
    /// [`NodeError::Io`]: the system refuses a thread.
    pub(crate) fn attempt(target: AttachTarget) -> Result<Self, NodeError> {
        let retry = AttachRetry { target, backoff: AttachBackoff::new(now()) };
        Self::spawn(retry, |retry, shared| {
            let outcome = retry.attempt(shared);
            shared.end(outcome);
        })
    }

    /// Start to search, after the loss of a host or an attempt without an answer. The outcome wakes the driver.
    ///
    /// # Errors
    /// As [`attempt`](Self::attempt).
    pub(crate) fn start(mut retry: AttachRetry) -> Result<Self, NodeError> {
        let first = retry.backoff.handle_loss(now());
        Self::spawn(retry, move |retry, shared| retry.search(first, shared))
    }

    fn spawn(
        retry: AttachRetry,
        run: impl FnOnce(AttachRetry, &SearchShared) + Send + 'static,
    ) -> Result<Self, NodeError> {
        let (role, shared) = (retry.target.role, Arc::new(SearchShared::default()));
        let searching = Arc::clone(&shared);
        let thread = Builder::new()
            .name("foresee-search".into())
            .spawn(move || run(retry, &searching))
            .map_err(|why| NodeError::Io { doing: "starting a thread for the node's cache", why })?;
        Ok(Self { role, shared, thread: Some(thread), process: std::process::id() })
    }

    /// What the loader is at the host.
    pub(crate) const fn role(&self) -> NodeCacheRole {
        self.role
    }

    /// Take the outcome: a new attachment, or why there will be none. Its thread ends then.
    pub(crate) fn poll(&self) -> Option<Result<Attached, AttachFailure>> {
        self.shared.lock().outcome.take()
    }

    /// Wait up to `timeout` for the outcome, and take it.
    pub(crate) fn wait(&self, timeout: Duration) -> Option<Result<Attached, AttachFailure>> {
        let has_thread_ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        let is_pending = |state: &mut SearchState| state.outcome.is_none();
        let timeout = if has_thread_ended { Duration::ZERO } else { timeout };
        let waited = self.shared.changed.wait_timeout_while(self.shared.lock(), timeout, is_pending);
        let outcome = waited.unwrap_or_else(PoisonError::into_inner).0.outcome.take();
        assert!(outcome.is_some() || !has_thread_ended, "the thread of an attempt ends with its outcome");
        outcome
    }
}

impl Drop for HostSearch {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        self.shared.lock().is_stopped = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // After a panic there is no outcome, and the loader reads alone.
            let _ = thread.join();
        }
    }
}

impl SearchShared {
    fn lock(&self) -> MutexGuard<'_, SearchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, outcome: Result<Attached, AttachFailure>) {
        self.lock().outcome = Some(outcome);
        self.changed.notify_one();
    }

    /// Wait until `at`; return `false`, at once, when the search has to end.
    fn wait_until(&self, at: Nanos) -> bool {
        let left = Duration::from(at.saturating_sub(now()));
        let waited = self.changed.wait_timeout_while(self.lock(), left, |state| !state.is_stopped);
        !waited.unwrap_or_else(PoisonError::into_inner).0.is_stopped
    }
}

impl AttachRetry {
    fn attempt(mut self, shared: &SearchShared) -> Result<Attached, AttachFailure> {
        match self.target.connect(|| !shared.lock().is_stopped) {
            Ok((client, host)) => {
                self.backoff.handle_attached(now());
                Ok(Attached { client, host, retry: self })
            }
            Err(why) => Err(AttachFailure { why, retry: Box::new(self) }),
        }
    }

    fn search(mut self, first: Nanos, shared: &SearchShared) {
        let (mut at, waker) = (first, Arc::clone(&self.target.waker));
        while shared.wait_until(at) {
            match self.attempt(shared) {
                Err(AttachFailure { why, retry }) if !is_permanent(&why) => self = *retry,
                outcome => {
                    shared.end(outcome);
                    return waker.wake();
                }
            }
            at = self.backoff.handle_failure(now());
        }
    }
}
