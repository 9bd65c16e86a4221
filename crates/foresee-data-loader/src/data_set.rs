// SPDX-License-Identifier: Apache-2.0
//! One data set for the other modules: sizes for the planner, locations for the origin, keys for the caches.

use std::borrow::Cow;
use std::sync::Arc;

use foresee_data_index::Index;
use foresee_data_plan::{GROUPED_SIZE_MAX, ObjectRange, SampleSizes};
use foresee_data_tier::{
    Entries, EntryKey, Fingerprint, Locate, Location, OriginIdentity, SampleKey, TagHash,
};
use foresee_units::{Bytes, SampleId};
use xxhash_rust::xxh3::xxh3_64;

/// A data set and its location.
#[derive(Debug)]
pub struct DataSet {
    index: Index,
    /// The present location of its objects.
    base: String,
    fingerprint: Fingerprint,
    /// Whether neighbours in an object are read together: they are small, and objects have several.
    is_grouped: bool,
}

impl DataSet {
    /// Create the data set of `index`, whose objects are below the URI `base`.
    pub fn new(index: Index, base: &str) -> Self {
        let fingerprint = Fingerprint(index.fingerprint());
        let is_grouped = index.objects() < index.len() && index.mean_size() <= GROUPED_SIZE_MAX;
        Self { index, base: base.to_owned(), fingerprint, is_grouped }
    }

    /// The URI of a sample's object, for messages.
    pub fn uri(&self, id: SampleId) -> String {
        self.index.uri_below(&self.base, id)
    }

    /// The index.
    pub const fn index(&self) -> &Index {
        &self.index
    }

    /// The identity of its content.
    pub const fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The identity of one version of a sample.
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

    fn grouped_range(&self, id: SampleId) -> Option<ObjectRange> {
        if !self.is_grouped || id.0 >= self.index.len() {
            return None;
        }
        let range = self.index.range(id);
        Some(ObjectRange { object: self.index.object(id), start: range.start, len: range.len })
    }
}

impl Locate for DataSet {
    fn locate(&self, id: SampleId) -> Option<Location<'_>> {
        if id.0 >= self.index.len() {
            return None;
        }
        let range = self.index.range(id);
        let size = self.index.object_size(id).get();
        let is_whole = range.start == 0 && range.len == size;
        Some(Location {
            key: Cow::Borrowed(self.index.key(id)),
            start: (!is_whole).then_some(range.start),
            // A read may be joined with those of its neighbours.
            len: size.saturating_sub(range.start),
            tag: Cow::Borrowed(self.index.tag(id)),
        })
    }
}

/// The data set with its origin, whose identity is part of the entries of the disk tier.
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
