// SPDX-License-Identifier: Apache-2.0
//! Finds the host of the node's cache for a loader, or makes this process the host.
//!
//! | found | the loader |
//! |---|---|
//! | a service, at `FORESEE_NODE` or at its usual path | consumes from it |
//! | several ranks of one launcher on this node, or on several nodes that exchange samples | consumes from the host in the process of the lowest local rank |
//! | neither, or no memory and no disk to share | uses its own caches |

#[cfg(test)]
mod process_tests;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foresee_data_node::{
    AddressValues, Hello, LauncherValues, NodeAddress, NodeDiscovery, NodeError, RefusalCode,
};
use foresee_ledger::NodeCacheRole;
use foresee_units::World;

use super::host::{NodeHost, NodeHostOptions, OtherNodes};
use super::search::{AttachFailure, AttachRetry, AttachTarget, Attached, HostSearch};
use crate::cache::Cache;
use crate::data_set::DataSet;
use crate::waker::Waker;

/// Time in which the lowest local rank has to become the host. The ranks of a job start together.
const HOST_WAIT: Duration = Duration::from_secs(20);
/// Sizes of the rings: several batches of requests, and their answers. A batch of more samples takes several messages.
const REQUEST_RING: u32 = 256 << 10;
const ANSWER_RING: u32 = 512 << 10;

/// Who a loader is, for the host.
#[derive(Clone, Debug)]
pub struct NodeIdentity {
    /// Name of the job, for status and log.
    pub job: String,
    /// Version of the Foresee package.
    pub version: String,
}

/// Hosts in this process, by their addresses.
static HOSTS: Mutex<Vec<Arc<NodeHost>>> = Mutex::new(Vec::new());
/// Whether a loader of this process waited for the host in vain.
static IS_HOST_LATE: AtomicBool = AtomicBool::new(false);

/// How far a loader is.
#[derive(Debug)]
pub(crate) struct JoinProgress {
    /// When it has begun.
    since: Instant,
    /// The attempt to attach in progress.
    attempt: Option<HostSearch>,
}

impl JoinProgress {
    pub(crate) fn begin() -> Self {
        Self { since: Instant::now(), attempt: None }
    }
}

/// What a loader joins with.
pub(crate) struct JoinRequest<'a> {
    /// Maximum time of this call.
    pub(crate) tick: Duration,
    pub(crate) identity: &'a NodeIdentity,
    /// See [`Hello::loader`].
    pub(crate) loader: [u8; 16],
    /// Whether the node exchanges samples with others, for which it needs a host also for a single rank.
    pub(crate) has_peers: bool,
    pub(crate) cache: &'a Cache,
    pub(crate) world: World,
    pub(crate) local_world: World,
    pub(crate) data: &'a Arc<DataSet>,
    pub(crate) uri: &'a str,
    pub(crate) storage: &'a [(String, String)],
    /// Whether a rank of this job has just listed the origin.
    pub(crate) is_listed: bool,
    pub(crate) waker: &'a Arc<Waker>,
}

/// The result of [`join`].
#[derive(Debug)]
pub(crate) enum Joined {
    Consumer(Box<Attached>),
    /// The host is not there, or has not answered yet: the loader has to call again.
    Waiting,
    /// The host has ended or does not answer, for this reason: the loader reads without caches, and searches for it.
    Lost(NodeError, Box<AttachRetry>),
    /// The loader uses its own caches; with the reason, if the user expects otherwise.
    Alone(Option<String>),
}

/// Attach to the host of this node's cache, or become it. Calls are short, so that the caller can handle signals in
/// between.
pub(crate) fn join(request: &JoinRequest<'_>, progress: &mut JoinProgress) -> Joined {
    let cache = request.cache;
    if cache.ram().is_zero() {
        return Joined::Alone(None);
    }
    match try_join(request, progress) {
        Ok(joined) => joined,
        Err(error) => Joined::Alone(Some(format!(
            "this rank does not share the cache of its node, and reads alone: {error}"
        ))),
    }
}

fn try_join(request: &JoinRequest<'_>, progress: &mut JoinProgress) -> Result<Joined, NodeError> {
    let values = AddressValues::from_environment();
    let NodeDiscovery::At(service) = values.service()? else { return Ok(Joined::Alone(None)) };
    let is_at_rank =
        progress.attempt.as_ref().is_some_and(|one| one.role() != NodeCacheRole::ServiceConsumer);
    if !is_at_rank {
        match attach(request, progress, &service, NodeCacheRole::ServiceConsumer) {
            // The user named it, and expects it to be there.
            Err(error @ (NodeError::NoHost { .. } | NodeError::Stale { .. })) if service.is_explicit() => {
                return Err(error);
            }
            Err(NodeError::NoHost { .. } | NodeError::Stale { .. }) => {}
            outcome => return outcome,
        }
    }
    if request.local_world.size() == 1 && !request.has_peers {
        return Ok(Joined::Alone(None));
    }
    let Some(address) = values.launched(&LauncherValues::from_environment())? else {
        return Ok(Joined::Alone(None));
    };
    if request.local_world.rank().0 == 0 {
        become_host(request, &address)?;
        return attach(request, progress, &address, NodeCacheRole::Host);
    }
    attach_when_ready(request, progress, &address)
}

/// Attach to the host in the process of the lowest local rank, which may not have started it yet.
fn attach_when_ready(
    request: &JoinRequest<'_>,
    progress: &mut JoinProgress,
    address: &NodeAddress,
) -> Result<Joined, NodeError> {
    // A loader that waited in vain is enough: the next ones of this process only look.
    let most = if IS_HOST_LATE.load(Ordering::Relaxed) { Duration::ZERO } else { HOST_WAIT };
    let left = most.saturating_sub(progress.since.elapsed());
    let tick = request.tick.min(left);
    let attached = address
        .wait_for_host(tick)
        .and_then(|()| attach(request, progress, address, NodeCacheRole::RankConsumer));
    let is_stale = match attached {
        Err(NodeError::NoHost { .. }) => false,
        // The host of an earlier run or loader has ended, and the next one does not have its place yet.
        Err(NodeError::Stale { .. }) | Ok(Joined::Lost(NodeError::Ended | NodeError::PeerEnded, _)) => true,
        outcome => return outcome,
    };
    if left.is_zero() {
        IS_HOST_LATE.store(true, Ordering::Relaxed);
        return Ok(Joined::Alone(Some(format!(
            "this rank does not share the cache of its node, and reads alone: local rank 0 has started no loader within \
             {} s; start the loaders of all ranks together, run `foresee node`, or set FORESEE_NODE=off",
            HOST_WAIT.as_secs()
        ))));
    }
    if is_stale {
        std::thread::park_timeout(tick);
    }
    Ok(Joined::Waiting)
}

/// Attach to the host at an address, or continue to.
fn attach(
    request: &JoinRequest<'_>,
    progress: &mut JoinProgress,
    address: &NodeAddress,
    role: NodeCacheRole,
) -> Result<Joined, NodeError> {
    let attempt = match progress.attempt.take() {
        Some(attempt) => attempt,
        None => begin_attempt(request, address, role)?,
    };
    match attempt.wait(request.tick) {
        None => {
            progress.attempt = Some(attempt);
            Ok(Joined::Waiting)
        }
        Some(Ok(attached)) => Ok(Joined::Consumer(Box::new(attached))),
        Some(Err(AttachFailure { why, retry })) if is_loss(&why) => Ok(Joined::Lost(why, retry)),
        Some(Err(AttachFailure { why, .. })) => Err(why),
    }
}

/// Whether a host was there, and may be again.
const fn is_loss(error: &NodeError) -> bool {
    match error {
        NodeError::Late { .. } | NodeError::Ended | NodeError::PeerEnded => true,
        NodeError::Refused { code, .. } => matches!(code, RefusalCode::Closing),
        _ => false,
    }
}

fn begin_attempt(
    request: &JoinRequest<'_>,
    address: &NodeAddress,
    role: NodeCacheRole,
) -> Result<HostSearch, NodeError> {
    // Most loaders have no service, and need no thread to learn that.
    if address.path().symlink_metadata().is_err() {
        return Err(NodeError::NoHost { path: address.path().to_owned() });
    }
    let hello = Hello {
        foresee: request.identity.version.clone(),
        pid: std::process::id(),
        job: request.identity.job.clone(),
        loader: request.loader,
        rank: request.world.rank().0,
        local_rank: request.local_world.rank().0,
        request_ring_bytes: REQUEST_RING,
        answer_ring_bytes: ANSWER_RING,
    };
    let target = AttachTarget {
        address: address.clone(),
        role,
        hello,
        data: Arc::clone(request.data),
        uri: request.uri.to_owned(),
        storage: request.storage.to_vec(),
        is_listed: request.is_listed,
        waker: Arc::clone(request.waker),
    };
    HostSearch::attempt(target)
}

/// Start a host in this process, unless an earlier loader has.
fn become_host(request: &JoinRequest<'_>, address: &NodeAddress) -> Result<(), NodeError> {
    let mut hosts = HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
    hosts.retain(|host| host.keep_open());
    if hosts.iter().any(|host| host.path() == address.path()) {
        return Ok(());
    }
    let cache = request.cache;
    let disk = cache.disk_dir().map(|dir| (dir.clone(), cache.disk()));
    hosts.push(Arc::new(NodeHost::start(NodeHostOptions {
        address: address.clone(),
        ram: cache.ram(),
        disk,
        allow_uids: Vec::new(),
        version: request.identity.version.clone(),
        ranks: request.local_world.size(),
        others: match request.has_peers {
            true => OtherNodes::Peers,
            false if request.world.size() > request.local_world.size() => OtherNodes::Apart,
            false => OtherNodes::None,
        },
        probes_listed: false,
        huge_pages: true,
    })?));
    Ok(())
}

/// The host in this process at an address.
pub(crate) fn host_at(path: &Path) -> Option<Arc<NodeHost>> {
    let hosts = HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
    hosts.iter().find(|host| host.path() == path).map(Arc::clone)
}

/// A loader of this process has closed: hosts of this process end when their last consumer leaves.
pub(crate) fn leave() {
    for host in HOSTS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        host.close_when_empty();
    }
}
