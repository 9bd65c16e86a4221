// SPDX-License-Identifier: Apache-2.0
//! Opens the origins and disk caches of data sets.
//!
//! A data set stays open until the host ends, so that a later consumer finds what is cached. Data sets in one bucket
//! share a fetch queue, and so one limit of concurrent requests.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use foresee_data_fetch::{Dispatch, DispatchConfig};
use foresee_data_index::Index;
use foresee_data_node::{DataSetDescription, LocationTable};
use foresee_data_tier::{
    CachedSample, Completions, DiskTier, OriginIdentity, OriginOptions, Tier, Uri, open_origin, probe_origin,
};
use foresee_units::Bytes;

use crate::cache::disk_need;
use crate::data_set::DataSet;
use crate::disk_cache::{DiskCacheRequest, open_disk_cache};
use crate::errors::LoaderError;
use crate::origin_queue::{OriginQueueInputs, origin_queue_config};
use crate::waker::Waker;

/// A data set for the driver; data sets are numbered from 0 in the order in which they are opened.
#[derive(Debug)]
pub(super) struct OpenedDataSet {
    pub(super) data: Arc<DataSet>,
    /// Its URI without credentials.
    pub(super) public_uri: String,
    pub(super) locations: Arc<LocationTable>,
    pub(super) origin: Arc<dyn Tier>,
    /// The number of its fetch queue.
    pub(super) queue: usize,
    /// The queue itself, if it is new.
    pub(super) new_queue: Option<(Dispatch, Completions)>,
    pub(super) disk: Option<Arc<DiskTier>>,
    /// Samples in the disk cache.
    pub(super) held: Vec<CachedSample>,
}

/// What has to be done for a description.
pub(super) enum Opening {
    /// It is open under this number.
    Known(u32),
    /// It is open under this number, and its origin is replaced: the consumer has other settings, for example newer
    /// credentials.
    Renewed(u32, Arc<dyn Tier>),
    /// The host needs the index.
    IndexNeeded,
}

/// Disk space of the host.
#[derive(Clone, Debug)]
pub(super) struct HostDisk {
    pub(super) dir: PathBuf,
    pub(super) capacity: Bytes,
}

/// How data sets are opened.
#[derive(Clone, Debug)]
pub(super) struct OpenerSettings {
    pub(super) disk: Option<HostDisk>,
    /// Whether ranks on other nodes read the same origins.
    pub(super) is_shared: bool,
    /// Whether to try an origin that a rank has just listed.
    pub(super) probes_listed: bool,
}

/// Opens data sets, and remembers them.
#[derive(Debug)]
pub(super) struct DataSetOpener {
    settings: OpenerSettings,
    /// Disk space of opened data sets.
    disk_used: Bytes,
    waker: Arc<Waker>,
    /// For ends of operations at the disks.
    disk_completions: Completions,
    known: Vec<KnownDataSet>,
    queues: Vec<(Vec<u8>, Completions)>,
}

#[derive(Debug)]
struct KnownDataSet {
    data: Arc<DataSet>,
    locations: Arc<LocationTable>,
    identity: OriginIdentity,
    uri: String,
    options: OriginOptions,
    queue: usize,
}

impl DataSetOpener {
    pub(super) fn new(settings: OpenerSettings, waker: Arc<Waker>, disk_completions: Completions) -> Self {
        let (known, queues) = (Vec::new(), Vec::new());
        Self { settings, disk_used: Bytes::ZERO, waker, disk_completions, known, queues }
    }

    /// Find the data set of a description.
    ///
    /// # Errors
    /// [`LoaderError::Origin`]: the URI or a setting is not usable.
    pub(super) fn find(&mut self, description: &DataSetDescription) -> Result<Opening, LoaderError> {
        let (uri, options) = origin_of(description)?;
        let identity = OriginIdentity::new(&uri, &options)?;
        let is_known = |one: &KnownDataSet| {
            one.identity == identity && one.data.index().file_fingerprint() == description.fingerprint
        };
        let Some(index) = self.known.iter().position(is_known) else { return Ok(Opening::IndexNeeded) };
        let number = u32::try_from(index).expect("data sets are numbered in 32 bits");
        let known = &mut self.known[index];
        if known.options.storage == options.storage && known.uri == description.uri {
            return Ok(Opening::Known(number));
        }
        let completions = self.queues[known.queue].1.clone();
        let origin = open_origin(&uri, &options, Arc::clone(&known.data) as _, completions)?;
        known.uri.clone_from(&description.uri);
        known.options = options;
        Ok(Opening::Renewed(number, origin))
    }

    /// Open a data set that [`find`](Self::find) did not find, with its index and the table of its locations.
    ///
    /// # Errors
    /// Its origin or its disk cache cannot be opened, or the index is of another data set.
    pub(super) fn open(
        &mut self,
        description: &DataSetDescription,
        index: Index,
        locations: Arc<LocationTable>,
    ) -> Result<(u32, OpenedDataSet), LoaderError> {
        self.check(&index, description)?;
        let (uri, options) = origin_of(description)?;
        let identity = OriginIdentity::new(&uri, &options)?;
        if self.settings.probes_listed || !description.is_listed {
            probe_origin(&uri, &options)?;
        }
        let data = Arc::new(DataSet::new(index, &description.uri));
        let key = queue_key(&uri, &identity);
        let known_queue = self.queues.iter().position(|(other, _)| *other == key);
        let waker = Arc::clone(&self.waker);
        let new = || Completions::new(move || waker.wake());
        let completions = known_queue.map_or_else(new, |queue| self.queues[queue].1.clone());
        let origin = open_origin(&uri, &options, Arc::clone(&data) as _, completions.clone())?;
        let (disk, held) = self.open_disk(&data, &identity)?;
        // Nothing fails from here on: the driver gets what is counted here.
        let queue = known_queue.unwrap_or(self.queues.len());
        let new_queue = known_queue.is_none().then(|| {
            self.queues.push((key, completions.clone()));
            (Dispatch::new(self.queue_config(&uri, data.index())), completions)
        });
        let number = u32::try_from(self.known.len()).expect("data sets are numbered in 32 bits");
        let (location, public_uri) = (description.uri.clone(), description.public_uri());
        self.known.push(KnownDataSet {
            data: Arc::clone(&data),
            locations: Arc::clone(&locations),
            identity,
            uri: location,
            options,
            queue,
        });
        Ok((number, OpenedDataSet { data, public_uri, locations, origin, queue, new_queue, disk, held }))
    }

    /// The locations of an open data set.
    pub(super) fn locations(&self, data_set: u32) -> &Arc<LocationTable> {
        &self.known[data_set as usize].locations
    }

    /// Check what the planner cannot represent.
    fn check(&self, index: &Index, description: &DataSetDescription) -> Result<(), LoaderError> {
        let mut faults = Vec::new();
        if index.file_fingerprint() != description.fingerprint {
            let fault = "the index is of another data set than its description; install one version of Foresee everywhere";
            faults.push(fault.to_owned());
        }
        let (largest, most) = (index.max_size(), Bytes::new(u32::MAX.into()));
        if largest > most {
            faults.push(format!("a sample of {largest} is too large for a node's cache (at most {most})"));
        }
        let entries: u64 = self.known.iter().map(|known| known.data.index().len()).sum();
        if entries.saturating_add(index.len()) >= u32::MAX.into() {
            let (have, more) = (entries, index.len());
            faults.push(format!(
                "the node's cache has {have} samples, and {more} more are too many; start it again"
            ));
        }
        if faults.is_empty() { Ok(()) } else { Err(LoaderError::Config { faults }) }
    }

    /// Settings of the fetch queue of an origin.
    fn queue_config(&self, uri: &Uri, index: &Index) -> DispatchConfig {
        origin_queue_config(&OriginQueueInputs {
            is_directory: uri.is_directory(),
            threads: None,
            mean_size: index.mean_size(),
            samples: index.len(),
            objects: index.objects(),
            local_queues: 1,
            is_shared: self.settings.is_shared,
        })
    }

    fn open_disk(
        &mut self,
        data: &Arc<DataSet>,
        identity: &OriginIdentity,
    ) -> Result<(Option<Arc<DiskTier>>, Vec<CachedSample>), LoaderError> {
        let Some(disk) = &self.settings.disk else { return Ok((None, Vec::new())) };
        let free = disk.capacity.saturating_sub(self.disk_used);
        let capacity = disk_need(data.index().total_bytes()).min(free);
        let opened = open_disk_cache(DiskCacheRequest {
            dir: &disk.dir,
            capacity,
            directory_capacity: disk.capacity,
            data,
            origin: identity.clone(),
            ranks: 1,
            completions: &self.disk_completions,
        })?;
        if opened.0.is_some() {
            self.disk_used += capacity;
        }
        Ok(opened)
    }
}

fn origin_of(description: &DataSetDescription) -> Result<(Uri, OriginOptions), LoaderError> {
    let uri = Uri::parse(&description.uri).map_err(foresee_data_tier::OriginError::from)?;
    let storage = description.storage_options.0.clone();
    Ok((uri, OriginOptions { storage, ..OriginOptions::default() }))
}

/// Identity of what limits requests: a bucket, a web server, or the file system of a directory.
fn queue_key(uri: &Uri, identity: &OriginIdentity) -> Vec<u8> {
    let device = uri.directory_path().and_then(|path| path.metadata().ok()).map_or(0, |found| found.dev());
    [identity.store(), &device.to_le_bytes()].concat()
}
