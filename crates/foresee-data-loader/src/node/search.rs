// SPDX-License-Identifier: Apache-2.0
//! The search of a loader for a host after its host has ended: at the same address, on a thread of its own.
//!
//! The driver polls the outcome and never waits. There is one thread per loader at most, because a search begins only when
//! an attachment has ended.

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

/// Time for each step of the first attachment, which may include the recovery of a disk cache.
const FIRST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for each step of a later one. A host that needs longer to open the data set has it open at the next attempt, and
/// the end of the loader waits for this step at most.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);

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

/// A search in progress. Dropping it ends its thread.
#[derive(Debug)]
pub(crate) struct HostSearch {
    shared: Arc<SearchShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct SearchShared {
    state: Mutex<SearchState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SearchState {
    is_stopped: bool,
    outcome: Option<Result<Attached, NodeError>>,
}

impl AttachTarget {
    /// Attach for the first time.
    ///
    /// # Errors
    /// As [`NodeClient::attach`].
    pub(crate) fn attach(self) -> Result<Attached, NodeError> {
        let (client, host) = self.connect(FIRST_TIMEOUT)?;
        let retry = AttachRetry { target: self, backoff: AttachBackoff::new(now()) };
        Ok(Attached { client, host, retry })
    }

    fn connect(&self, timeout: Duration) -> Result<(NodeClient, NodeHostFacts), NodeError> {
        let Self { address, role, hello, data, uri, storage, is_listed, waker } = self;
        // A service for several users has a user of its own. Who owns the directory of the socket that FORESEE_NODE names
        // can replace the socket, so trust in that socket is trust in this user.
        let options = ConnectOptions { allow_uids: address.trusted_uids(), timeout };
        let data = NodeDataSet { index: data.index(), uri, storage, is_listed: *is_listed };
        let client = NodeClient::attach(address, hello, &options, data, Arc::clone(waker))?;
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
    /// Start to search after the loss of a host.
    ///
    /// # Errors
    /// [`NodeError::Io`]: the system refuses a thread.
    pub(crate) fn start(mut retry: AttachRetry) -> Result<Self, NodeError> {
        let first = retry.backoff.handle_loss(now());
        let shared = Arc::new(SearchShared::default());
        let searching = Arc::clone(&shared);
        let thread = Builder::new()
            .name("foresee-search".into())
            .spawn(move || retry.run(first, &searching))
            .map_err(|why| NodeError::Io { doing: "starting a thread for the node's cache", why })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Take the outcome: a new attachment, or why there will be none. The search has ended then.
    pub(crate) fn poll(&self) -> Option<Result<Attached, NodeError>> {
        self.shared.lock().outcome.take()
    }
}

impl Drop for HostSearch {
    fn drop(&mut self) {
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

    /// Wait until `at`; return `false`, at once, when the search has to end.
    fn wait_until(&self, at: Nanos) -> bool {
        let left = Duration::from(at.saturating_sub(now()));
        let waited = self.changed.wait_timeout_while(self.lock(), left, |state| !state.is_stopped);
        !waited.unwrap_or_else(PoisonError::into_inner).0.is_stopped
    }
}

impl AttachRetry {
    fn run(mut self, first: Nanos, shared: &SearchShared) {
        let mut at = first;
        while shared.wait_until(at) {
            let error = match self.target.connect(SEARCH_TIMEOUT) {
                Ok((client, host)) => {
                    self.backoff.handle_attached(now());
                    let waker = Arc::clone(&self.target.waker);
                    shared.lock().outcome = Some(Ok(Attached { client, host, retry: self }));
                    return waker.wake();
                }
                Err(error) => error,
            };
            if is_permanent(&error) {
                shared.lock().outcome = Some(Err(error));
                return self.target.waker.wake();
            }
            at = self.backoff.handle_failure(now());
        }
    }
}
