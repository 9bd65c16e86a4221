// SPDX-License-Identifier: Apache-2.0
//! The start of a loader, at the first request for a batch: opens origin and caches, divides memory, starts the driver.
//!
//! After a failure everything is closed, and the start can be retried. The constants are defaults for a bucket, a
//! directory and a disk before the first measurement.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::Builder;
use std::time::Duration;

use foresee_data_fetch::{Dispatch, DispatchConfig};
use foresee_data_index::Index;
use foresee_data_plan::{
    HierarchyPlanner, PlannerConfig, PolicyChoice, SlowestTier, TierCapacity, TierIndex,
};
use foresee_data_tier::{
    CachedSample, Completions, DiskTier, Op, OriginError, OriginIdentity, OriginOptions, RamTier, Ticket,
    Tier, Uri, disk_footprint, open_origin, probe_origin,
};
use foresee_ledger::NodeCacheRole;
use foresee_units::{Bytes, SampleId};

use super::{Loader, Running};
use crate::cache::CacheShare;
use crate::disk_cache::{DiskCacheRequest, open_disk_cache};
use crate::driver::{Driver, DriverNode, DriverTiers};
use crate::errors::LoaderError;
use crate::node::{HostSearch, JoinProgress, JoinRequest, Joined, host_at, join, leave};
use crate::origin_queue::{OriginQueueInputs, origin_queue_config};

/// Bytes of planner tables per sample, for all tiers: ids, next uses, copies.
const TABLE_BYTES_PER_SAMPLE: u64 = 40;
/// Upper bound of the memory per object that the C library's allocator retains after a listing, besides the index
/// (`benchmarks/loading/budgets.py`): free pieces in the arenas of the listing threads.
const LISTING_BYTES_PER_OBJECT: u64 = 190;
/// Number of samples for the average of the disk tier's overhead.
const OVERHEAD_SAMPLES: u64 = 4096;
/// Maximum memory for copies in flight to the disk tier: a disk of 1 GB/s writes it during the creation of a segment.
const COPIES_MAX: Bytes = Bytes::new(32 << 20);
/// Minimum memory for these copies: with less, a short pause of the disk would cost reads at the origin.
const COPIES_MIN: Bytes = Bytes::new(8 << 20);

/// The opened tiers except for the disk, and the memory for copies and tables.
struct OpenTiers {
    origin: Arc<dyn Tier>,
    ram: Option<Arc<RamTier>>,
    copies: Bytes,
    tables: Bytes,
}

impl Loader {
    /// `None`: the host of the node's cache did not come or answer within `tick`.
    pub(super) fn spawn(
        &self,
        progress: &mut JoinProgress,
        tick: Duration,
    ) -> Result<Option<Running>, LoaderError> {
        let node = match self.join_node(progress, tick) {
            Joined::Waiting => return Ok(None),
            Joined::Consumer(attached) => DriverNode::Attached(attached),
            Joined::Lost(why, retry) => {
                self.shared.notices.add(format!(
                    "the host of this node's cache does not answer ({why}); this rank reads the origin alone until it does"
                ));
                // Without a thread for the search it stays alone.
                HostSearch::start(*retry).map_or(DriverNode::None, DriverNode::Searching)
            }
            Joined::Alone(reason) => {
                if let Some(reason) = reason {
                    self.shared.notices.add(reason);
                }
                DriverNode::None
            }
        };
        let has_own_caches = matches!(node, DriverNode::None);
        let running = self.spawn_joined(node);
        if running.is_err() && !has_own_caches {
            leave();
        }
        running.map(Some)
    }

    fn spawn_joined(&self, node: DriverNode) -> Result<Running, LoaderError> {
        let config = &self.config.options;
        let attached = match &node {
            DriverNode::Attached(attached) => Some(attached),
            DriverNode::Searching(_) | DriverNode::None => None,
        };
        if let Some(folder) = &config.run_dir {
            let cache = attached.map(|attached| &attached.host.cache);
            self.shared.recorder.write_to(folder, cache)?;
        }
        let waker = Arc::clone(&self.shared.waker);
        let completions = Completions::new(move || waker.wake());
        let uri = Uri::parse(&config.uri).map_err(OriginError::from)?;
        let options = self.origin_options();
        // The host has tried its origin already, once for all its consumers.
        if !config.listed && attached.is_none() {
            probe_origin(&uri, &options)?;
        }
        let origin = open_origin(&uri, &options, Arc::clone(&self.data) as _, completions.clone())?;
        let index = self.data.index();
        let tables = Bytes::new(index.len().saturating_mul(TABLE_BYTES_PER_SAMPLE));
        let staged = self.config.staging.saturating_add(tables).saturating_add(listing_memory(index));
        let (copies, within_ram) = self.copies_capacity(staged);
        let fixed = staged.saturating_add(within_ram);
        let (share, ram) = match &node {
            DriverNode::Attached(_) | DriverNode::Searching(_) => (Arc::new(CacheShare::empty()), None),
            DriverNode::None => self.cache.join(index.total_bytes(), fixed, config.local_world.size())?,
        };
        let tiers = OpenTiers { origin, ram, copies, tables };
        let running = self.start_driver(&uri, tiers, completions, &share, node);
        if running.is_err() {
            self.cache.leave(share);
        }
        running
    }

    /// Open the disk tier of `share`, and start the driver.
    fn start_driver(
        &self,
        uri: &Uri,
        OpenTiers { origin, ram, copies, tables }: OpenTiers,
        completions: Completions,
        share: &Arc<CacheShare>,
        node: DriverNode,
    ) -> Result<Running, LoaderError> {
        let (disk, held) = self.open_disk(uri, share, &completions)?;
        let planner = self.planner(share, ram.as_ref(), disk.as_ref(), &held, tables)?;
        let dispatch = Dispatch::new(self.queue_config(uri));
        let tiers = DriverTiers {
            origin: Arc::clone(&origin),
            ram,
            disk: disk.clone(),
            copies,
            completions,
            share: Arc::clone(share),
        };
        let is_consumer = !matches!(node, DriverNode::None);
        let host = match &node {
            DriverNode::Attached(attached) if attached.host.cache.role == NodeCacheRole::Host => {
                host_at(attached.host.address.path())
            }
            _ => None,
        };
        let mut driver = Driver::new(
            Arc::clone(&self.shared),
            &self.config,
            Arc::clone(&self.data),
            tiers,
            planner,
            dispatch,
            node,
        );
        driver.begin();
        let shared = Arc::clone(&self.shared);
        let driver = Builder::new()
            .name("foresee-driver".to_owned())
            .spawn(move || {
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| driver.run())) {
                    shared.batches.fail(LoaderError::Broken { why: panic_message(panic.as_ref()) });
                }
            })
            .map_err(|error| LoaderError::Thread { why: error.to_string() })?;
        Ok(Running { driver, origin, disk, share: Arc::clone(share), is_consumer, host })
    }

    /// Attach to the cache of this node, if it has one.
    fn join_node(&self, progress: &mut JoinProgress, tick: Duration) -> Joined {
        let options = &self.config.options;
        let Some(identity) = &options.node else { return Joined::Alone(None) };
        let request = JoinRequest {
            tick,
            identity,
            loader: self.config.identity,
            has_peers: options.peers
                && self.config.run.is_some()
                && !self.expects_no_peers.load(Ordering::Relaxed),
            cache: &self.cache,
            world: options.world,
            local_world: options.local_world,
            data: &self.data,
            uri: &options.uri,
            storage: &options.storage,
            is_listed: options.listed,
            waker: &self.shared.waker,
        };
        join(&request, progress)
    }

    /// Memory for copies in flight to the disk tier, and its part within `ram=`, of which `staged` is used.
    fn copies_capacity(&self, staged: Bytes) -> (Bytes, Bytes) {
        let ram = self.cache.ram();
        if self.cache.disk_dir().is_none() {
            return (Bytes::ZERO, Bytes::ZERO);
        }
        if ram.is_zero() {
            return (COPIES_MAX, Bytes::ZERO);
        }
        let share = COPIES_MAX.min(Bytes::new(ram.get() / 8));
        (share.max(COPIES_MIN), share.min(ram.saturating_sub(staged)))
    }

    pub(super) fn origin_options(&self) -> OriginOptions {
        let storage = self.config.options.storage.iter().cloned().collect();
        let mut options = OriginOptions { storage, ..OriginOptions::default() };
        if let Some(threads) = self.config.options.threads {
            options.threads = threads;
        }
        options
    }

    fn open_disk(
        &self,
        uri: &Uri,
        share: &CacheShare,
        completions: &Completions,
    ) -> Result<(Option<Arc<DiskTier>>, Vec<CachedSample>), LoaderError> {
        let Some(dir) = self.cache.disk_dir() else { return Ok((None, Vec::new())) };
        open_disk_cache(DiskCacheRequest {
            dir,
            capacity: share.disk(),
            directory_capacity: self.cache.disk(),
            data: &self.data,
            origin: OriginIdentity::new(uri, &self.origin_options())?,
            ranks: self.config.options.local_world.size(),
            completions,
        })
    }

    fn planner(
        &self,
        share: &CacheShare,
        ram: Option<&Arc<RamTier>>,
        disk: Option<&Arc<DiskTier>>,
        held: &[CachedSample],
        tables: Bytes,
    ) -> Result<HierarchyPlanner, LoaderError> {
        let mut tiers = Vec::new();
        if ram.is_some() {
            let (capacity, align) = (share.capacity(), RamTier::GRANULE.get());
            tiers.push(TierCapacity { capacity, align, overhead: Bytes::ZERO });
        }
        if let Some(disk) = disk {
            // All copies of a read-only tier are counted, and none is added.
            let overhead = if disk.is_read_only() { Bytes::ZERO } else { self.disk_overhead() };
            tiers.push(TierCapacity { capacity: disk.usable_capacity(), align: 1, overhead });
        }
        let slowest = match disk {
            None => SlowestTier::OfThisRun,
            Some(disk) if disk.is_read_only() => SlowestTier::ReadOnly,
            Some(_) => SlowestTier::Durable,
        };
        let disk_index = TierIndex(u8::from(ram.is_some()));
        let config = PlannerConfig { tiers, policy: PolicyChoice::Auto, table_budget: tables };
        let mut planner = HierarchyPlanner::new(config, slowest, Arc::clone(&self.data) as _)
            .map_err(|error| LoaderError::Config { faults: vec![error.to_string()] })?;
        for copy in held {
            let fits =
                copy.len == self.data.index().size(copy.id) && planner.handle_held(copy.id, disk_index);
            if !fits && let Some(disk) = disk {
                disk.submit(Op::Drop { ticket: Ticket(u64::MAX), key: self.data.key(copy.id) });
            }
        }
        Ok(planner)
    }

    /// The disk tier's overhead of a sample: exact if all have one size, else the average of some thousand samples.
    /// If the planner assumes too much capacity, the tier reports it, and copies that do not fit are lost.
    fn disk_overhead(&self) -> Bytes {
        let index = self.data.index();
        let stride = (index.len() / OVERHEAD_SAMPLES).max(1);
        let (mut added, mut count) = (0, 0);
        let mut id = 0;
        while id < index.len() && !(count > 0 && index.uniform_size().is_some()) {
            let size = index.size(SampleId(id));
            added += disk_footprint(size).saturating_sub(size).get();
            count += 1;
            id += stride;
        }
        Bytes::new(added.div_ceil(count.max(1)))
    }

    /// Initial concurrency of this rank at the origin.
    pub fn first_in_flight(&self) -> Result<u32, LoaderError> {
        let uri = Uri::parse(&self.config.options.uri).map_err(OriginError::from)?;
        Ok(self.queue_config(&uri).limit.start)
    }

    fn queue_config(&self, uri: &Uri) -> DispatchConfig {
        let (options, index) = (&self.config.options, self.data.index());
        origin_queue_config(&OriginQueueInputs {
            is_directory: uri.is_directory(),
            threads: options.threads,
            mean_size: index.mean_size(),
            samples: index.len(),
            objects: index.objects(),
            local_queues: options.local_world.size(),
            is_shared: options.world.size() > 1,
        })
    }
}

/// Memory of an index that this process listed; the pages of a mapped index file are not counted.
fn listing_memory(index: &Index) -> Bytes {
    let retained = Bytes::new(index.objects().saturating_mul(LISTING_BYTES_PER_OBJECT));
    if index.memory().is_zero() { Bytes::ZERO } else { index.memory().saturating_add(retained) }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
