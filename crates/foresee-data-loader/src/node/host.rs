// SPDX-License-Identifier: Apache-2.0
//! The host of a node's cache: it owns the memory, the disk cache and all reads of the origins, and answers consumers.
//!
//! | file | thread | work |
//! |---|---|---|
//! | `reception` | `foresee-reception` | accepts consumers, notices when they leave |
//! | `opener` | `foresee-opener` | opens data sets (`data_sets`) |
//! | `session` | `foresee-host-N` | the rings of consumer N |
//! | `driver` | `foresee-host` | asks the planner, reads, evicts, answers (`consumer`, `super::places`) |
//! | `peer_job` | `foresee-orders` | draws the epochs of a job whose nodes exchange samples |
//!
//! Events go to the driver through `inbox`, and replies to the session of their consumer. `status` and `log` are for the
//! operator.

mod consumer;
mod data_sets;
mod driver;
mod inbox;
mod log;
mod opener;
mod peer_job;
#[cfg(test)]
mod process_tests;
mod reception;
mod session;
mod status;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use foresee_data_node::{
    ConnectOptions, ListenerOptions, NodeAddress, NodeError, NodeListener, NodeStatus, SAMPLE_ALIGN,
    SlabMemory, SlabOptions,
};
use foresee_data_plan::{NodePlanner, NodePlannerConfig, TierCapacity};
use foresee_data_tier::{Completions, disk_footprint, memory_limit};
use foresee_units::{Bytes, Nanos};

use super::peers::PeerListener;
use super::places::SlabPlaces;
use crate::waker::Waker;
use data_sets::{DataSetOpener, HostDisk, OpenerSettings};
use driver::{HostDriver, HostShared};
use inbox::{HostEvent, Inbox};
pub use log::HostLogEntry;
use log::HostLogReader;
use opener::OpenerThread;
use peer_job::JoiningJob;
pub use peer_job::{DrawEpoch, PeerJob, PlanKey, SampleSet};
use reception::{HostFacts, Reception, ReceptionHandle};
use status::HostStatus;

/// Time for a disk cache to finish its operations when the host closes.
const CLOSE_GRACE: Nanos = Nanos::from_secs(2);
/// Time for a peer that has connected to say who it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for another host at the address to answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum memory for the planner's look-ahead: some 90 million accesses of 12 bytes.
const LOOKAHEAD_MAX: Bytes = Bytes::new(1 << 30);
/// Share of the memory for entries that are read before they are requested, and its maximum: as a loader with a cache
/// of its own stages.
const READ_AHEAD_SHARE: u64 = 4;
const READ_AHEAD_MAX: Bytes = Bytes::new(2_000_000_000);
/// Time per access of a consumer that has reported no progress.
const INITIAL_INTERVAL: Nanos = Nanos::from_millis(1);
/// Time without progress after which a consumer counts as standing still: longer than steps of training, also of those
/// that write a checkpoint.
const STALL_GRACE: Nanos = Nanos::from_secs(30);
/// Time after which an answer that a consumer has not copied may be taken back, if others wait for memory.
const PIN_TIMEOUT: Nanos = Nanos::from_secs(2);
/// Share of the memory that a consumer that stands still keeps, if others need the space.
const STALLED_SHARE: u64 = 8;
/// Share of the memory for requests of the consumers, which is not reserved for other nodes.
const REQUESTED_SHARE: u64 = 8;
/// Size of a sample from which the overhead of the disk cache is computed.
const USUAL_SAMPLE: Bytes = Bytes::new(100_000);

/// Settings of a host.
#[derive(Clone, Debug)]
pub struct NodeHostOptions {
    /// Where consumers find it.
    pub address: NodeAddress,
    /// Memory of the cache, with the tables of its plan; at least 1 MiB.
    pub ram: Bytes,
    /// The directory of the disk cache, and its space; `None` for none.
    pub disk: Option<(PathBuf, Bytes)>,
    /// Users that may attach beside the own one.
    pub allow_uids: Vec<u32>,
    /// Version of the Foresee package, which consumers are told.
    pub version: String,
    /// Ranks that will attach, 1 or more: nothing is read ahead before each of them has had a batch. 1 if it is not known.
    pub ranks: u32,
    /// Whether ranks on other nodes read the same origins.
    pub others: OtherNodes,
    /// Whether to try the origin of a data set also if a rank of the consumer's job has just listed it. A service may have
    /// another network than its consumers.
    pub probes_listed: bool,
    /// Whether to use huge pages if enough of them are reserved.
    pub huge_pages: bool,
}

/// Ranks on other nodes that read the same origins as a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherNodes {
    /// There are none.
    None,
    /// There are some: the host yields to them as a single rank does.
    Apart,
    /// The same, and the nodes will probably exchange samples: until they do, and for some seconds at most, the host reads nothing
    /// ahead.
    Peers,
}

/// A running host. Dropping it closes it.
#[derive(Debug)]
pub struct NodeHost {
    path: PathBuf,
    facts: HostFacts,
    capacities: HostCapacities,
    inbox: Arc<Inbox>,
    reception: Arc<ReceptionHandle>,
    status: Arc<Mutex<HostStatus>>,
    log: HostLogReader,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The process that created it.
    process: u32,
}

impl NodeHost {
    /// Allocate the memory, bind the socket, and serve consumers until [`close`](Self::close).
    ///
    /// # Errors
    /// [`NodeError::InUse`]: another host is there. [`NodeError::SlabTooLarge`], [`NodeError::NoMemory`]: the memory is
    /// not there. [`NodeError::Directory`], [`NodeError::NotASocket`], [`NodeError::Io`].
    pub fn start(options: NodeHostOptions) -> Result<Self, NodeError> {
        let NodeHostOptions {
            address,
            ram,
            disk,
            allow_uids,
            version,
            ranks,
            others,
            probes_listed,
            huge_pages,
        } = options;
        let (is_shared, has_peers) = (others != OtherNodes::None, others == OtherNodes::Peers);
        check_free(&address)?;
        let lookahead = Bytes::new(ram.get() / 8).min(LOOKAHEAD_MAX);
        let data = ram.saturating_sub(lookahead);
        // The tables of the plan need memory too.
        let limit = memory_limit();
        let available = limit.map(|limit| limit.saturating_sub(lookahead));
        let slab = SlabMemory::create(&SlabOptions { data, available, huge_pages });
        let slab = slab.map_err(|error| match (error, limit) {
            (NodeError::SlabTooLarge { .. }, Some(available)) => {
                NodeError::SlabTooLarge { bytes: ram, available }
            }
            (error, _) => error,
        })?;
        let slab = Arc::new(slab);
        // Only now: a host without memory has no socket.
        let listener =
            NodeListener::bind(&address, ListenerOptions { allow_uids, hello_timeout: HELLO_TIMEOUT })?;
        let disk = disk.map(|(dir, capacity)| HostDisk { dir, capacity });
        let disk_capacity = disk.as_ref().map_or(Bytes::ZERO, |disk| disk.capacity);

        let waker = Arc::new(Waker::default());
        let woken = Arc::clone(&waker);
        let disk_completions = Completions::new(move || woken.wake());
        let settings = OpenerSettings { disk, is_shared, probes_listed };
        let opener = DataSetOpener::new(settings, Arc::clone(&waker), disk_completions.clone());
        let inbox = Arc::new(Inbox::new(Arc::clone(&waker)));
        let handle = Arc::new(ReceptionHandle::new()?);
        let status = Arc::new(Mutex::new(HostStatus::default()));
        let (writer, log) = log::log();
        let facts = HostFacts { foresee: version, ram, disk: disk_capacity, since: Instant::now() };
        let mut planner = NodePlanner::new(&planner_config(data, lookahead));
        if !is_shared {
            planner.handle_expected(ranks);
        }
        let shared = HostShared {
            inbox: Arc::clone(&inbox),
            waker,
            reception: Arc::clone(&handle),
            status: Arc::clone(&status),
            log: writer.clone(),
        };
        let places = SlabPlaces::new(Arc::clone(&slab));
        let driver = HostDriver::new(shared, planner, places, data, ranks, has_peers, disk_completions);
        let path = listener.path().to_owned();
        let (sender, requests) = mpsc::channel();
        let opener = OpenerThread {
            opener,
            requests,
            reception: Arc::clone(&handle),
            inbox: Arc::clone(&inbox),
            log: writer.clone(),
        };
        let reception = Reception {
            listener,
            slab,
            facts: facts.clone(),
            requests: sender,
            handle: Arc::clone(&handle),
            inbox: Arc::clone(&inbox),
            status: Arc::clone(&status),
            log: writer,
        };
        let host = Self {
            path,
            facts,
            capacities: HostCapacities { memory: data, disk: disk_capacity },
            inbox,
            reception: handle,
            status,
            log,
            threads: Mutex::default(),
            process: std::process::id(),
        };
        let ended = Arc::clone(&host.reception);
        host.spawn("foresee-host", move || {
            // Without its driver a host answers nobody: its consumers have to notice.
            let _ = catch_unwind(AssertUnwindSafe(|| driver.run()));
            ended.close();
        })?;
        // Nobody waits for it: an origin that does not answer would delay the end of the host.
        drop(start_thread("foresee-opener", move || opener.run())?);
        host.spawn("foresee-reception", move || reception.run())?;
        Ok(host)
    }

    /// The path of its socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its state.
    pub fn status(&self) -> NodeStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).to_message(&self.facts)
    }

    /// Wait up to `timeout` for the next event; `None` if there was none.
    ///
    /// # Errors
    /// The host has ended, and all events were read.
    pub fn next_event(&self, timeout: Duration) -> Result<Option<HostLogEntry>, HostEnded> {
        self.log.next(timeout)
    }

    /// What this host can reserve for the samples that other nodes of a job read here: its tiers, without the memory for
    /// requests and reads ahead, and without a part of the disk that is smaller than a sample of `largest` bytes.
    pub fn reservable(&self, largest: Bytes) -> TierCapacity {
        let HostCapacities { memory, disk } = self.capacities;
        let config = planner_config(memory, Bytes::ZERO);
        let kept = config.read_ahead + Bytes::new(memory.get() / REQUESTED_SHARE).max(largest);
        let capacity = memory.saturating_sub(kept) + disk.saturating_sub(largest);
        let overhead = if disk.is_zero() { Bytes::ZERO } else { config.disk.overhead };
        TierCapacity { capacity, align: SAMPLE_ALIGN, overhead }
    }

    /// The samples that this host has, if the loader of a plan is attached with its accesses, and the host exchanges samples for
    /// no other one. `None` also if it does not answer within `timeout`.
    pub fn contents(&self, plan: PlanKey, timeout: Duration) -> Option<SampleSet> {
        let (reply, contents) = mpsc::sync_channel(1);
        self.inbox.push(HostEvent::ContentsWanted { plan, reply });
        contents.recv_timeout(timeout).ok()?
    }

    /// Exchange samples with the other nodes of a job, when the data set is open, instead of those by an earlier plan of the same
    /// loader. The host reads nothing in groups of the data set then.
    pub fn join_job(&self, job: PeerJob, listener: PeerListener) {
        self.inbox.push(HostEvent::JobJoined { joining: Box::new(JoiningJob { job, listener }) });
    }

    /// The nodes of the job will not meet: nothing is held for that any more.
    pub fn expect_no_peers(&self) {
        self.inbox.push(HostEvent::NoMeeting);
    }

    /// Close when no consumer is left.
    pub(super) fn close_when_empty(&self) {
        self.reception.close_when_empty(true);
    }

    /// Stay open although no consumer is left; `false` if the host has ended, or does so now.
    pub(super) fn keep_open(&self) -> bool {
        self.reception.close_when_empty(false) && !self.has_ended()
    }

    /// Whether it has closed itself.
    fn has_ended(&self) -> bool {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).iter().all(JoinHandle::is_finished)
    }

    /// Detach all consumers, finish writes to the disk, and remove the socket. Idempotent, from any thread; without
    /// effect in a forked child.
    pub fn close(&self) {
        if self.process != std::process::id() {
            return;
        }
        self.reception.close();
        self.inbox.push(HostEvent::Close);
        for thread in std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner)) {
            // A panic of the driver was reported already: its consumers have lost their host.
            let _ = thread.join();
        }
    }

    fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), NodeError> {
        let thread = start_thread(name, run)?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }
}

impl Drop for NodeHost {
    fn drop(&mut self) {
        self.close();
    }
}

/// Bytes of both tiers.
#[derive(Clone, Copy, Debug)]
struct HostCapacities {
    memory: Bytes,
    disk: Bytes,
}

fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, NodeError> {
    let thread = Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(|why| NodeError::Io { doing: "starting a thread of the host", why })
}

/// The host has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the host of the node's cache has ended")]
pub struct HostEnded;

/// Check that no other host is at an address, before memory is allocated in vain. The bind decides.
fn check_free(address: &NodeAddress) -> Result<(), NodeError> {
    let options = ConnectOptions { allow_uids: Vec::new(), timeout: PROBE_TIMEOUT };
    match NodeStatus::query(address, &options) {
        Ok(_) | Err(NodeError::Late { .. }) => Err(NodeError::InUse { path: address.path().to_owned() }),
        Err(_) => Ok(()),
    }
}

/// The disk has no space before a data set is opened.
fn planner_config(memory: Bytes, lookahead: Bytes) -> NodePlannerConfig {
    let overhead = disk_footprint(USUAL_SAMPLE).saturating_sub(USUAL_SAMPLE);
    NodePlannerConfig {
        memory: TierCapacity { capacity: memory, align: SAMPLE_ALIGN, overhead: Bytes::ZERO },
        disk: TierCapacity { capacity: Bytes::ZERO, align: 1, overhead },
        table_budget: lookahead,
        read_ahead: Bytes::new(memory.get() / READ_AHEAD_SHARE).min(READ_AHEAD_MAX),
        initial_interval: INITIAL_INTERVAL,
        stall_grace: STALL_GRACE,
        stalled_bytes_max: Bytes::new(memory.get() / STALLED_SHARE),
        pin_timeout: PIN_TIMEOUT,
    }
}
