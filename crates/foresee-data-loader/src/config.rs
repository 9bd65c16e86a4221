// SPDX-License-Identifier: Apache-2.0
//! What a loader is told, checked once and for all at the same time.

use std::path::PathBuf;

use foresee_data_index::Index;
use foresee_data_order::Avoid;
use foresee_units::{Bytes, SampleId, World};

use crate::errors::LoaderError;
use crate::orders::{Cut, RunOrder};

/// Largest staging buffer that is chosen without being asked for.
const STAGING_MAX: Bytes = Bytes::new(2_000_000_000);
/// Batches on their way to the consumer, by default.
const STAGING_BATCHES: u64 = 8;
/// Enough samples on their way to keep a distant origin busy even when batches are tiny, and to wake the driver
/// once for many of them.
const STAGING_SAMPLES: u64 = 4096;
/// But no more than this for their sake.
const STAGING_SAMPLES_BYTES: Bytes = Bytes::new(64 << 20);

/// What the face passes on; optional where a default exists.
#[derive(Clone, Debug)]
pub struct LoaderOptions {
    /// Where the index's objects lie now.
    pub uri: String,
    /// Storage options of the origin; never shown, never kept in files.
    pub storage: Vec<(String, String)>,
    /// Samples per batch, at least 1.
    pub batch_size: u64,
    /// Leave out a short last batch.
    pub drop_last: bool,
    /// The run's order, or `None` where each epoch begins with its samples.
    pub order: Option<foresee_data_order::Order>,
    /// Samples that the order has a substitute for; empty for none. Announced epochs are taken as they are.
    pub avoid: Vec<SampleId>,
    /// Epochs of the run, at least 1; `None` if nobody knows.
    pub epochs: Option<u64>,
    /// This rank among all.
    pub world: World,
    /// This rank among those of its machine.
    pub local: World,
    /// Bytes on their way to the consumer and held by it; at least three batches.
    pub staging: Option<Bytes>,
    /// Threads that read the origin, 1 to 256.
    pub threads: Option<usize>,
    /// Where the ledger goes.
    pub run_dir: Option<PathBuf>,
    /// The origin has just been listed with the same options: nobody asks it again whether it can be reached.
    pub listed: bool,
}

/// A checked configuration.
#[derive(Clone, Debug)]
pub(crate) struct LoaderConfig {
    pub(crate) uri: String,
    pub(crate) storage: Vec<(String, String)>,
    pub(crate) run: Option<RunOrder>,
    pub(crate) cut: Cut,
    pub(crate) world: World,
    pub(crate) local: World,
    pub(crate) staging: Bytes,
    pub(crate) threads: Option<usize>,
    pub(crate) run_dir: Option<PathBuf>,
    pub(crate) listed: bool,
}

impl LoaderConfig {
    /// Checks `options` against the data and the memory budget; every fault is reported, not only the first.
    pub(crate) fn check(options: LoaderOptions, index: &Index, ram: Bytes) -> Result<Self, LoaderError> {
        let mut faults = Vec::new();
        if options.batch_size == 0 {
            faults.push("batch_size is 0; use 1 or more".to_owned());
        }
        if options.epochs == Some(0) {
            faults.push("epochs is 0; use 1 or more, or leave it out".to_owned());
        }
        if let Some(threads) = options.threads.filter(|threads| !(1..=256).contains(threads)) {
            faults.push(format!("threads is {threads}; use 1 to 256"));
        }
        let batch_size = options.batch_size.max(1);
        let batch = batch_bytes_max(index, batch_size);
        let least = least_staging(batch);
        if let Some(staging) = options.staging.filter(|&staging| staging < least) {
            faults.push(format!(
                "the staging buffer of {staging} does not hold three batches ({least}); use smaller batches or more staging"
            ));
        }
        let staging = options.staging.unwrap_or_else(|| default_staging(index, batch_size, ram));
        if !ram.is_zero() && staging > ram {
            faults.push(format!(
                "ram={ram} does not hold three batches of up to {batch}; use smaller batches, or ram={} or more",
                least.saturating_add(batch)
            ));
        }
        let avoid = Avoid::new(index.len(), options.avoid).map_err(|error| faults.push(error.to_string()));
        let (Ok(avoid), true) = (avoid, faults.is_empty()) else {
            return Err(LoaderError::Config { faults });
        };
        let cut = Cut { batch_size, drop_last: options.drop_last };
        let run = options.order.map(|order| RunOrder {
            order,
            avoid,
            world: options.world,
            cut,
            epochs: options.epochs,
            index: index.clone(),
        });
        Ok(Self {
            uri: options.uri,
            storage: options.storage,
            run,
            cut,
            world: options.world,
            local: options.local,
            staging,
            threads: options.threads,
            run_dir: options.run_dir,
            listed: options.listed,
        })
    }
}

/// An upper bound of a batch's bytes, not above the data set itself unless samples may share entries.
fn batch_bytes_max(index: &Index, batch_size: u64) -> Bytes {
    let items = batch_size.saturating_mul(index.parts());
    let largest = Bytes::new(index.max_size().get().saturating_mul(items));
    if index.shares_entries() { largest } else { largest.min(index.total_bytes()) }
}

/// Three of the largest batches: one in use, one ready, one on its way.
const fn least_staging(batch: Bytes) -> Bytes {
    batch.saturating_add(batch).saturating_add(batch)
}

/// Eight batches of mean size, or 4096 samples if that is more (and at most 64 MiB); at most 2 GB; of a RAM budget
/// at most a quarter; but never less than [`least_staging`].
fn default_staging(index: &Index, batch_size: u64, ram: Bytes) -> Bytes {
    let mean = index.mean_size().get().saturating_mul(index.parts());
    let of_samples = |samples: u64| Bytes::new(mean.saturating_mul(samples));
    let ahead = of_samples(STAGING_SAMPLES).min(STAGING_SAMPLES_BYTES);
    let mut staging = of_samples(batch_size.saturating_mul(STAGING_BATCHES)).max(ahead).min(STAGING_MAX);
    if !ram.is_zero() {
        staging = staging.min(Bytes::new(ram.get() / 4));
    }
    let batch = batch_bytes_max(index, batch_size);
    staging.max(least_staging(batch))
}
