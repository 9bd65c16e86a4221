// SPDX-License-Identifier: Apache-2.0
//! One data set for the parts of the loader that do not know its index: sizes for the planner, places for the origin, keys
//! for the caches.

use std::borrow::Cow;
use std::sync::Arc;

use foresee_data_index::Index;
use foresee_data_plan::SampleSizes;
use foresee_data_tier::{
    Entries, EntryKey, Fingerprint, Locate, Location, OriginIdentity, SampleKey, TagHash,
};
use foresee_units::{Bytes, SampleId};
use xxhash_rust::xxh3::xxh3_64;

/// One data set, as every part of the loader needs it.
#[derive(Debug)]
pub struct DataSet {
    index: Index,
    /// Where its objects are now.
    base: String,
    fingerprint: Fingerprint,
}

impl DataSet {
    /// The data set of `index`, whose objects are below the URI `base`.
    pub fn new(index: Index, base: &str) -> Self {
        let fingerprint = Fingerprint(index.fingerprint());
        Self { index, base: base.to_owned(), fingerprint }
    }

    /// Where a sample's object is now, for messages.
    pub fn uri(&self, id: SampleId) -> String {
        self.index.uri_below(&self.base, id)
    }

    /// Its index.
    pub const fn index(&self) -> &Index {
        &self.index
    }

    /// Identity of its content listing.
    pub const fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Identity of one version of a sample.
    pub fn key(&self, id: SampleId) -> SampleKey {
        SampleKey { fingerprint: self.fingerprint, id, tag: TagHash(xxh3_64(self.index.tag(id))) }
    }
}

impl SampleSizes for DataSet {
    fn count(&self) -> u64 {
        self.index.len()
    }

    fn size(&self, id: SampleId) -> Bytes {
        self.index.size(id)
    }

    fn uniform(&self) -> Option<Bytes> {
        self.index.uniform_size()
    }
}

impl Locate for DataSet {
    fn locate(&self, id: SampleId) -> Option<Location<'_>> {
        if id.0 >= self.index.len() {
            return None;
        }
        let range = self.index.range(id);
        let size = self.index.object_size(id).get();
        let whole = range.start == 0 && range.len == size;
        Some(Location {
            key: Cow::Borrowed(self.index.key(id)),
            start: (!whole).then_some(range.start),
            // Neighbours are read together with it.
            len: size.saturating_sub(range.start),
            tag: Cow::Borrowed(self.index.tag(id)),
        })
    }
}

/// The data set at its place, as the disk tier names its samples.
#[derive(Debug)]
pub(crate) struct CacheEntries {
    data: Arc<DataSet>,
    origin: OriginIdentity,
}

impl CacheEntries {
    pub(crate) const fn new(data: Arc<DataSet>, origin: OriginIdentity) -> Self {
        Self { data, origin }
    }
}

impl Entries for CacheEntries {
    fn count(&self) -> u64 {
        self.data.index().len()
    }

    fn key(&self, id: SampleId) -> SampleKey {
        self.data.key(id)
    }

    fn entry(&self, key: &SampleKey) -> EntryKey {
        let index = self.data.index();
        let range = index.range(key.id);
        self.origin.entry(index.key(key.id), index.tag(key.id), range.start, range.len)
    }
}
