// SPDX-License-Identifier: Apache-2.0
//! Opens the disk cache of a data set, for a loader or for the host of a node's cache.

use std::path::Path;
use std::sync::Arc;

use foresee_data_tier::{CachedSample, Completions, DiskConfig, DiskTier, OriginIdentity};
use foresee_units::Bytes;

use crate::data_set::{CacheEntries, DataSet};
use crate::errors::LoaderError;

/// Threads of the disk tier: they keep one device busy, and leave the cores to training.
const DISK_THREADS: usize = 4;
/// Minimum size of a useful disk tier.
const DISK_MIN: Bytes = Bytes::new(1 << 20);

/// What a disk cache is opened with.
#[derive(Debug)]
pub(crate) struct DiskCacheRequest<'a> {
    pub(crate) dir: &'a Path,
    /// Space for this data set.
    pub(crate) capacity: Bytes,
    /// Space of the whole directory.
    pub(crate) directory_capacity: Bytes,
    pub(crate) data: &'a Arc<DataSet>,
    pub(crate) origin: OriginIdentity,
    /// Processes of this node that open it for the same data set.
    pub(crate) ranks: u32,
    pub(crate) completions: &'a Completions,
}

/// Open the cache, and return the samples that it holds; no tier if its space is too small to be useful.
pub(crate) fn open_disk_cache(
    request: DiskCacheRequest<'_>,
) -> Result<(Option<Arc<DiskTier>>, Vec<CachedSample>), LoaderError> {
    let DiskCacheRequest { dir, capacity, directory_capacity, data, origin, ranks, completions } = request;
    // The rest that other data sets leave may be too small; a small budget of the user is still opened, and reports its
    // fault.
    if capacity.is_zero() || capacity < DISK_MIN.min(directory_capacity) {
        return Ok((None, Vec::new()));
    }
    let config = DiskConfig {
        dir: dir.to_owned(),
        capacity,
        directory_capacity,
        entries: Arc::new(CacheEntries::new(Arc::clone(data), origin.clone())),
        origin,
        fingerprint: data.fingerprint(),
        ranks,
        threads: DISK_THREADS,
    };
    let (disk, held) = DiskTier::open(&config, completions.clone())?;
    Ok((Some(Arc::new(disk)), held))
}
