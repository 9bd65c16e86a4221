// SPDX-License-Identifier: Apache-2.0
//! The start of a loader: opens origin and caches, divides memory, starts the driver.
//!
//! It runs on the first request for a batch. If it fails, everything that was opened is given back, and the start can be
//! tried again. The constants suit a bucket, a directory and a disk before anything has been measured.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::Builder;

use foresee_data_fetch::{CoalesceConfig, Dispatch, DispatchConfig};
use foresee_data_index::Index;
use foresee_data_plan::{PlannerConfig, PlannerStack, PolicyChoice, SlowestTier, TierIndex, TierRoom};
use foresee_data_tier::{
    Completions, DiskConfig, DiskTier, Held, Op, OriginError, OriginIdentity, OriginOptions, RamTier, Ticket,
    Tier, Uri, disk_footprint, open_origin, probe_origin,
};
use foresee_units::{Bytes, SampleId};

use super::{Loader, Running};
use crate::cache::Member;
use crate::data_set::CacheEntries;
use crate::driver::{Driver, Places};
use crate::errors::LoaderError;

/// Bytes of planner tables per sample, all tiers: ids, next uses, holdings.
const TABLE_BYTES_PER_SAMPLE: u64 = 40;
/// Upper bound of what the C library's allocator retains of a listing besides the index, for each object
/// (`benchmarks/loading/budgets.py`): free pieces in the arenas of the threads that listed.
const LISTING_BYTES_PER_OBJECT: u64 = 190;
/// Neighbouring rows of one object are read as one when the gap costs less than a request does: some 30 ms at
/// 80 MB/s for a bucket; a disk seeks in far less.
const COALESCE_GAP: Bytes = Bytes::new(1 << 20);
const COALESCE_TARGET: Bytes = Bytes::new(8 << 20);
/// Threads of the disk tier: enough to keep one device busy, few enough to leave the cores to training.
const DISK_THREADS: usize = 4;
/// How many samples the disk tier's overhead is averaged over.
const OVERHEAD_SAMPLES: u64 = 4096;
/// Memory for copies on their way to the disk tier: what a disk of 1 GB/s writes while a segment is being made.
const COPIES_MOST: Bytes = Bytes::new(32 << 20);
/// And at least: a small budget must not mean that a disk's shortest pause costs reads at the origin.
const COPIES_LEAST: Bytes = Bytes::new(8 << 20);
/// Below this a disk tier holds next to nothing.
const DISK_LEAST: Bytes = Bytes::new(1 << 20);
const COALESCE_PARTS: usize = 256;
/// A bucket is tens of milliseconds away and answers a thousand requests a second or more: that many keep it busy from the
/// first round trip on.
const STORE_IN_FLIGHT_FIRST: u32 = 32;
/// Of a directory fewer, of all ranks of a machine together: its answers are near.
const DIRECTORY_IN_FLIGHT_FIRST: u32 = 16;
/// A directory is asked by at most this many threads at once, a bucket over that many connections.
const DIRECTORY_IN_FLIGHT: u32 = 64;
/// So many bytes of a directory are read at once at first by all ranks of a machine, but never fewer than two samples by
/// each. Reads that share a disk end together: the first batch waits for all of them, and after the last one all their
/// batches are still to be computed.
const DIRECTORY_BYTES_FIRST: u64 = 32 << 20;

/// What the driver is given besides the disk tier, and how memory is divided beside the slab.
struct Tiers {
    origin: Arc<dyn Tier>,
    ram: Option<Arc<RamTier>>,
    copies: Bytes,
    tables: Bytes,
}

impl Loader {
    pub(super) fn spawn(&self) -> Result<Running, LoaderError> {
        if let Some(folder) = &self.config.run_dir {
            self.shared.metrics.write_to(folder)?;
        }
        let waker = Arc::clone(&self.shared.waker);
        let completions = Completions::new(move || waker.wake());
        let uri = Uri::parse(&self.config.uri).map_err(OriginError::from)?;
        let options = self.origin_options();
        if !self.config.listed {
            probe_origin(&uri, &options)?;
        }
        let origin = open_origin(&uri, &options, Arc::clone(&self.data) as _, completions.clone())?;
        let index = self.data.index();
        let tables = Bytes::new(index.len().saturating_mul(TABLE_BYTES_PER_SAMPLE));
        let staged = self.config.staging.saturating_add(tables).saturating_add(listing_memory(index));
        let (copies, within) = self.copies_capacity(staged);
        let fixed = staged.saturating_add(within);
        let (member, ram) = self.cache.join(index.total_bytes(), fixed, self.config.local.size())?;
        let tiers = Tiers { origin, ram, copies, tables };
        let running = self.drive(&uri, tiers, completions, &member);
        if running.is_err() {
            // The others get back what it would have had.
            self.cache.leave(member);
        }
        running
    }

    /// Opens the caches of `member` and starts the driver.
    fn drive(
        &self,
        uri: &Uri,
        Tiers { origin, ram, copies, tables }: Tiers,
        completions: Completions,
        member: &Arc<Member>,
    ) -> Result<Running, LoaderError> {
        let (disk, held) = self.open_disk(uri, member, &completions)?;
        let planner = self.planner(member, ram.as_ref(), disk.as_ref(), &held, tables)?;
        let dispatch = Dispatch::new(self.dispatch_config(uri));
        let places = Places { origin: Arc::clone(&origin), ram, disk: disk.clone(), copies, completions };
        let mut driver = Driver::new(
            Arc::clone(&self.shared),
            &self.config,
            Arc::clone(&self.data),
            places,
            Arc::clone(member),
            planner,
            dispatch,
        );
        driver.begin();
        let shared = Arc::clone(&self.shared);
        let driver = Builder::new()
            .name("foresee-driver".to_owned())
            .spawn(move || {
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| driver.run())) {
                    shared.batches.break_with(LoaderError::Broken { why: words_of(panic.as_ref()) });
                }
            })
            .map_err(|error| LoaderError::Thread { why: error.to_string() })?;
        Ok(Running { driver, origin, disk, member: Arc::clone(member) })
    }

    /// Memory for copies on their way to the disk tier, and how much of it is part of `ram=`, of which `staged` is taken.
    fn copies_capacity(&self, staged: Bytes) -> (Bytes, Bytes) {
        let ram = self.cache.ram();
        if self.cache.disk_dir().is_none() {
            return (Bytes::ZERO, Bytes::ZERO);
        }
        if ram.is_zero() {
            return (COPIES_MOST, Bytes::ZERO);
        }
        let share = COPIES_MOST.min(Bytes::new(ram.get() / 8));
        (share.max(COPIES_LEAST), share.min(ram.saturating_sub(staged)))
    }

    pub(super) fn origin_options(&self) -> OriginOptions {
        let mut options =
            OriginOptions { storage: self.config.storage.iter().cloned().collect(), ..Default::default() };
        if let Some(threads) = self.config.threads {
            options.threads = threads;
        }
        options
    }

    fn open_disk(
        &self,
        uri: &Uri,
        member: &Member,
        completions: &Completions,
    ) -> Result<(Option<Arc<DiskTier>>, Vec<Held>), LoaderError> {
        // What other loaders have left may be too little; what the user asked for is never passed over in silence.
        let enough = member.disk() >= DISK_LEAST.min(self.cache.disk()) && !member.disk().is_zero();
        let Some(dir) = self.cache.disk_dir().filter(|_| enough) else {
            return Ok((None, Vec::new()));
        };
        let origin = OriginIdentity::new(uri, &self.origin_options())?;
        let config = DiskConfig {
            dir: dir.clone(),
            capacity: member.disk(),
            directory_capacity: self.cache.disk(),
            entries: Arc::new(CacheEntries::new(Arc::clone(&self.data), origin.clone())),
            origin,
            fingerprint: self.data.fingerprint(),
            ranks: self.config.local.size(),
            threads: DISK_THREADS,
        };
        let (disk, held) = DiskTier::open(&config, completions.clone())?;
        Ok((Some(Arc::new(disk)), held))
    }

    fn planner(
        &self,
        member: &Member,
        ram: Option<&Arc<RamTier>>,
        disk: Option<&Arc<DiskTier>>,
        held: &[Held],
        tables: Bytes,
    ) -> Result<PlannerStack, LoaderError> {
        let mut tiers = Vec::new();
        if ram.is_some() {
            tiers.push(TierRoom {
                capacity: member.capacity(),
                align: RamTier::GRANULE.get(),
                overhead: Bytes::ZERO,
            });
        }
        if let Some(disk) = disk {
            // What a read-only tier holds, it holds: nothing has to fit.
            let overhead = if disk.is_read_only() { Bytes::ZERO } else { self.disk_overhead() };
            tiers.push(TierRoom { capacity: disk.room(), align: 1, overhead });
        }
        let slowest = match disk {
            None => SlowestTier::OfThisRun,
            Some(disk) if disk.is_read_only() => SlowestTier::ReadOnly,
            Some(_) => SlowestTier::Durable,
        };
        let disk_index = TierIndex(u8::from(ram.is_some()));
        let config = PlannerConfig { tiers, policy: PolicyChoice::Auto, table_budget: tables };
        let mut planner = PlannerStack::new(config, slowest, Arc::clone(&self.data) as _)
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

    /// What the disk tier adds to a sample: exactly, where all are of one size; else on average over some thousand
    /// of them. A plan that counts on a little too much capacity learns so from the tier, and drops the samples that did not fit.
    fn disk_overhead(&self) -> Bytes {
        let index = self.data.index();
        let stride = (index.len() / OVERHEAD_SAMPLES).max(1);
        let (mut added, mut seen) = (0, 0);
        let mut id = 0;
        while id < index.len() && !(seen > 0 && index.uniform_size().is_some()) {
            let size = index.size(SampleId(id));
            added += disk_footprint(size).saturating_sub(size).get();
            seen += 1;
            id += stride;
        }
        Bytes::new(added.div_ceil(seen.max(1)))
    }

    /// How many reads of the origin this rank begins with.
    pub fn first_in_flight(&self) -> Result<u32, LoaderError> {
        Ok(self.dispatch_config(&Uri::parse(&self.config.uri).map_err(OriginError::from)?).limit.start)
    }

    fn dispatch_config(&self, uri: &Uri) -> DispatchConfig {
        let shared = self.config.world.size() > 1;
        let mut config = DispatchConfig { shared, ..DispatchConfig::adaptive() };
        if uri.is_directory() {
            // A second read of the same file waits behind the first on the same disk.
            config.hedge_share = 0.0;
            config.limit.max = self
                .config
                .threads
                .map_or(DIRECTORY_IN_FLIGHT, |threads| u32::try_from(threads).unwrap_or(DIRECTORY_IN_FLIGHT));
        }
        let index = self.data.index();
        let mean = index.mean_size().get();
        let first = first_in_flight(uri.is_directory(), mean, self.config.local.size());
        config.limit.start = first.min(config.limit.max);
        if self.data.index().objects() < self.data.index().len() {
            config.coalesce = Some(CoalesceConfig {
                gap: COALESCE_GAP,
                target: COALESCE_TARGET,
                max_parts: COALESCE_PARTS,
            });
        }
        config
    }
}

/// Memory of the process for an index that it listed itself; an index file is mapped, and its pages are not the process's.
fn listing_memory(index: &Index) -> Bytes {
    let retained = Bytes::new(index.objects().saturating_mul(LISTING_BYTES_PER_OBJECT));
    if index.memory().is_zero() { Bytes::ZERO } else { index.memory().saturating_add(retained) }
}

/// What one of `ranks` of a machine asks for at once at first, of samples of `mean` bytes.
fn first_in_flight(directory: bool, mean: u64, ranks: u32) -> u32 {
    if !directory {
        return STORE_IN_FLIGHT_FIRST;
    }
    let fitting = u32::try_from(DIRECTORY_BYTES_FIRST / mean.max(1)).unwrap_or(u32::MAX);
    (DIRECTORY_IN_FLIGHT_FIRST.min(fitting) / ranks.max(1)).max(2)
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().map(ToString::to_string);
    words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::first_in_flight;

    #[test]
    fn a_directory_of_large_samples_begins_with_few_at_once() {
        let of = |mean| first_in_flight(true, mean, 1);
        assert_eq!([0, 1, 110_000, 2 << 20].map(of), [16; 4]);
        assert_eq!([4 << 20, 12 << 20, 1 << 40].map(of), [8, 2, 2]);
    }

    #[test]
    fn ranks_of_a_machine_ask_a_directory_for_as_much_as_one_alone() {
        let of = |directory, ranks| first_in_flight(directory, 110_000, ranks);
        assert_eq!([1, 2, 4, 8, 100].map(|ranks| of(true, ranks)), [16, 8, 4, 2, 2]);
        assert_eq!([1, 8].map(|ranks| of(false, ranks)), [32; 2]);
        assert_eq!(first_in_flight(true, 4 << 20, 2), 4);
    }
}
