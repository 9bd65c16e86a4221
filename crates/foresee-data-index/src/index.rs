// SPDX-License-Identifier: Apache-2.0
//! An open index, which maps a sample to the byte range of its object in constant time.
//!
//! Opening reads the frame and the contents, and no entry: ten million samples open like ten, and pages of a
//! mapped file are loaded on use. Clones are cheap and share the bytes.
//!
//! Entries are not trusted. One that contradicts the file, or whose key would leave the data set, reads as an
//! empty key, which no origin has, and an empty range; [`Index::entry`] and [`Index::verify`] report the fault.

use std::fmt;
use std::sync::Arc;

use foresee_units::{Bytes, SampleId};

use crate::contents::{ColumnPositions, Contents};
use crate::error::IndexError;
use crate::fingerprint::{self, Object};
use crate::layout::Layout;
use crate::select::Selection;
use crate::uri;

/// The bytes of an index: a mapped file or a vector. They must not change during the lifetime of the index.
pub type IndexBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The index of a data set.
#[derive(Clone)]
pub struct Index {
    inner: Arc<Inner>,
    /// The selected samples, if not all of the file; see [`Index::select`].
    selection: Option<Arc<Selection>>,
}

struct Inner {
    bytes: IndexBytes,
    /// Whether the bytes are pages of a file, which the kernel can reclaim.
    is_mapped: bool,
    contents: Contents,
    columns: ColumnPositions,
    fingerprint: [u8; 16],
}

/// A range of bytes in an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// The first byte.
    pub start: u64,
    /// Number of bytes; 0 is valid.
    pub len: u64,
}

/// All data of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The sample.
    pub sample: SampleId,
    /// Its object's number, 0 to [`Index::objects`] - 1; equal numbers are one object.
    pub object: u64,
    /// Its object's key, relative to [`Index::base_uri`]; any bytes.
    pub key: &'a [u8],
    /// Its object's size.
    pub object_size: Bytes,
    /// Its object's tag from the origin; empty without one.
    pub tag: &'a [u8],
    /// Its range in the object.
    pub range: ByteRange,
    /// Its class, in a layout with classes.
    pub label: Option<i64>,
}

impl Index {
    /// Open an index from its bytes.
    ///
    /// # Errors
    /// [`IndexError::NotAnIndex`], [`IndexError::NewerVersion`], [`IndexError::Truncated`] or
    /// [`IndexError::Damaged`]; the caller adds the file's name.
    pub fn open(bytes: IndexBytes) -> Result<Self, IndexError> {
        Self::open_bytes(bytes, false)
    }

    /// Open an index from a mapped file, as [`Self::open`]; its bytes do not count as memory of this process.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_mapped(file: IndexBytes) -> Result<Self, IndexError> {
        Self::open_bytes(file, true)
    }

    fn open_bytes(bytes: IndexBytes, is_mapped: bool) -> Result<Self, IndexError> {
        let (contents, columns) = Contents::read((*bytes).as_ref())?;
        if uri::base_uri(&contents.base_uri) != contents.base_uri {
            return Err(IndexError::Damaged { what: "its base URI is not one that an index holds" });
        }
        let fingerprint = fingerprint::from_hex(&contents.fingerprint)
            .ok_or(IndexError::Damaged { what: "its fingerprint is invalid" })?;
        let inner = Arc::new(Inner { bytes, is_mapped, contents, columns, fingerprint });
        Ok(Self { inner, selection: None })
    }

    /// The number of entries, 1 or more; an entry is read as a whole. Entries are samples in every layout except
    /// a table, whose samples have [`Self::parts`] of them and may share them.
    #[expect(clippy::len_without_is_empty, reason = "an index without samples is not written and not opened")]
    pub fn len(&self) -> u64 {
        match self.layout() {
            Layout::Table { .. } => self.objects(),
            _ => self.contents().samples,
        }
    }

    /// The number of samples, 1 or more.
    pub fn samples(&self) -> u64 {
        self.selection.as_ref().map_or(self.contents().samples, |selection| selection.len())
    }

    /// Entries of a sample, 1 or more.
    pub fn parts(&self) -> u64 {
        if let Layout::Table { parts } = self.layout() { *parts } else { 1 }
    }

    /// Whether samples may share entries.
    pub fn shares_entries(&self) -> bool {
        self.columns().pick.is_some() || self.selection.is_some()
    }

    /// Entry `part` of a sample. A damaged entry reads as entry 0; [`Self::verify`] finds it.
    pub fn entry_of(&self, sample: SampleId, part: u64) -> SampleId {
        self.entry_in_file(self.in_file(sample), part)
    }

    /// As [`Self::entry_of`], by the sample's number in the file.
    pub(crate) fn entry_in_file(&self, sample: SampleId, part: u64) -> SampleId {
        let number = sample.0 * self.parts() + part;
        SampleId(self.columns().pick.map_or(number, |_| self.pick(number).unwrap_or(0)))
    }

    /// The value for a sample's class: its label or, in a table, its row, by which the caller finds its target.
    pub fn sample_label(&self, sample: SampleId) -> Option<i64> {
        let sample = self.in_file(sample);
        match self.layout() {
            Layout::Table { .. } => i64::try_from(sample.0).ok(),
            _ => self.label(sample),
        }
    }

    /// The sample's number in the file.
    pub(crate) fn in_file(&self, sample: SampleId) -> SampleId {
        self.selection.as_ref().map_or(sample, |selection| selection.get(sample))
    }

    /// The same file with these samples.
    pub(crate) fn with_selection(&self, selection: Selection) -> Self {
        Self { inner: Arc::clone(&self.inner), selection: Some(Arc::new(selection)) }
    }

    /// The number of picks; 0 if samples of the file share no entry.
    pub(crate) fn picks(&self) -> u64 {
        self.contents().picks.as_ref().map_or(0, |it| it.count)
    }

    pub(crate) fn pick(&self, number: u64) -> Result<u64, IndexError> {
        let pick = self.columns().pick.and_then(|pick| pick.get(self.file(), number));
        pick.filter(|&pick| pick < self.objects())
            .ok_or(IndexError::Damaged { what: "a sample of its table names no object" })
    }

    /// An entry's size, from its own column alone, because a planner queries millions.
    ///
    /// # Panics
    /// If `sample` is not below [`Self::len`], as for every getter with a sample: a defect of the caller.
    pub fn size(&self, sample: SampleId) -> Bytes {
        self.assert_within(sample);
        let size = self.layout().row_bytes().or_else(|| self.columns().size.get(self.file(), sample.0));
        size.map_or(Bytes::ZERO, Bytes::new).min(self.max_size())
    }

    /// The key of a sample's object, relative to [`Self::base_uri`]; any bytes.
    pub fn key(&self, sample: SampleId) -> &[u8] {
        self.entry(sample).map_or(&[], |entry| entry.key)
    }

    /// The URI of a sample's object for messages; not every key is text, so it is unsuitable for opening the
    /// object.
    pub fn uri(&self, sample: SampleId) -> String {
        uri::display(self.base_uri(), self.key(sample))
    }

    /// As [`Self::uri`], for objects that have moved to `base`, of which only the redacted form is shown.
    pub fn uri_below(&self, base: &str, sample: SampleId) -> String {
        uri::display(&uri::base_uri(base), self.key(sample))
    }

    /// The range of a sample in its object.
    pub fn range(&self, sample: SampleId) -> ByteRange {
        self.entry(sample).map_or(ByteRange::default(), |entry| entry.range)
    }

    /// The number of a sample's object: samples with equal numbers may share a request.
    pub fn object(&self, sample: SampleId) -> u64 {
        self.entry(sample).map_or(0, |entry| entry.object)
    }

    /// The size of a sample's object.
    pub fn object_size(&self, sample: SampleId) -> Bytes {
        self.entry(sample).map_or(Bytes::ZERO, |entry| entry.object_size)
    }

    /// The tag of a sample's object; empty without one.
    pub fn tag(&self, sample: SampleId) -> &[u8] {
        self.entry(sample).map_or(&[], |entry| entry.tag)
    }

    /// A sample's class, in a layout with classes.
    pub fn label(&self, sample: SampleId) -> Option<i64> {
        self.columns().label?;
        self.entry(sample).ok().and_then(|entry| entry.label)
    }

    /// All of the above at once, or the contradiction to the file.
    ///
    /// # Errors
    /// [`IndexError::DamagedEntry`].
    pub fn entry(&self, sample: SampleId) -> Result<Entry<'_>, IndexError> {
        self.assert_within(sample);
        let (number, row) = self.locate(sample)?;
        let object = self.object_at(number)?;
        let damaged = |what| IndexError::DamagedEntry { object: number, what };
        let range = match (&self.contents().layout, self.contents().layout.row_bytes()) {
            (_, None) => ByteRange { start: 0, len: object.size },
            (Layout::Windows(windows), Some(len)) => {
                let start = windows.offset(row, object.start, object.size);
                ByteRange { start: start.ok_or_else(|| damaged("a window past the object's end"))?, len }
            }
            (_, Some(len)) => {
                let start = row.checked_mul(len).and_then(|offset| offset.checked_add(object.start));
                ByteRange { start: start.ok_or_else(|| damaged("a row past 2^64 bytes"))?, len }
            }
        };
        if range.start.checked_add(range.len).is_none_or(|end| end > object.size) {
            return Err(damaged("a row past the object's end"));
        }
        Ok(Entry {
            sample,
            object: number,
            key: object.key,
            object_size: Bytes::new(object.size),
            tag: object.tag,
            range,
            label: object.label.and_then(|label| i64::try_from(label).ok()),
        })
    }

    /// The number of objects with samples.
    pub fn objects(&self) -> u64 {
        self.contents().objects.count
    }

    /// The classes by label, any bytes; empty in a layout without labels.
    pub fn classes(&self) -> Vec<&[u8]> {
        let (Some(names), Some(classes)) = (self.columns().class, &self.contents().classes) else {
            return Vec::new();
        };
        // A class is a folder, which has a name; without this check a damaged count would be trusted.
        let name = |label| names.get(self.file(), label).filter(|name| !name.is_empty());
        (0..classes.count).map_while(name).collect()
    }

    /// The redacted base URI; ends in `/`, and a key follows.
    pub fn base_uri(&self) -> &str {
        &self.contents().base_uri
    }

    /// The layout of the objects.
    pub fn layout(&self) -> &Layout {
        &self.contents().layout
    }

    /// Identifies keys, ranges, sizes, tags, labels, layout and the selected samples: equal exactly if all of
    /// these are.
    pub fn fingerprint(&self) -> [u8; 16] {
        self.selection.as_ref().map_or(self.inner.fingerprint, |selection| selection.fingerprint())
    }

    /// The same, for all entries of the file.
    pub fn file_fingerprint(&self) -> [u8; 16] {
        self.inner.fingerprint
    }

    /// The time of its creation, in seconds since 1970 in UTC.
    pub fn created(&self) -> u64 {
        self.contents().created
    }

    /// The size of all samples, if it is equal.
    pub fn uniform_size(&self) -> Option<Bytes> {
        self.layout().row_bytes().or_else(|| self.columns().size.constant()).map(Bytes::new)
    }

    /// The size of the largest sample.
    pub fn max_size(&self) -> Bytes {
        Bytes::new(self.contents().max_bytes)
    }

    /// Bytes of the entries of all samples; shared entries count once.
    pub fn total_bytes(&self) -> Bytes {
        let all = Bytes::new(self.contents().total_bytes);
        self.selection.as_ref().map_or(all, |selection| selection.total_bytes())
    }

    /// The mean size of an entry of the file, rounded up.
    pub fn mean_size(&self) -> Bytes {
        Bytes::new(self.contents().total_bytes.div_ceil(self.len().max(1)))
    }

    /// Memory of the index in this process; 0 for a mapped file.
    pub fn memory(&self) -> Bytes {
        let file = Bytes::new(if self.inner.is_mapped { 0 } else { self.file().len() as u64 });
        self.selection.as_ref().map_or(file, |selection| file.saturating_add(selection.memory()))
    }

    fn assert_within(&self, sample: SampleId) {
        assert!(sample.0 < self.len(), "sample {sample} is not in an index of {}", self.len());
    }

    /// A sample's object, and the index of its row there.
    fn locate(&self, sample: SampleId) -> Result<(u64, u64), IndexError> {
        let Some(row_end) = self.columns().row_end else { return Ok((sample.0, 0)) };
        let damaged = |object| IndexError::DamagedEntry { object, what: "rows that are not in order" };
        let (mut low, mut high) = (0, self.objects());
        while low < high {
            let middle = low + (high - low) / 2;
            if row_end.get(self.file(), middle).ok_or_else(|| damaged(middle))? <= sample.0 {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let before = match low.checked_sub(1) {
            None => Some(0),
            Some(before) => row_end.get(self.file(), before),
        };
        let row = before.and_then(|before| sample.0.checked_sub(before)).ok_or_else(|| damaged(low))?;
        Ok((low, row))
    }

    /// Object `number`, after all checks that concern it alone.
    pub(crate) fn object_at(&self, number: u64) -> Result<Object<'_>, IndexError> {
        let (file, columns) = (self.file(), self.columns());
        let damaged = |what| IndexError::DamagedEntry { object: number, what };
        let key = columns.key.get(file, number).ok_or_else(|| damaged("a key outside of the file"))?;
        uri::check_key(self.base_uri(), key).map_err(|_| damaged("a key that no index holds"))?;
        let size = columns.size.get(file, number).ok_or_else(|| damaged("a size outside of the file"))?;
        let tag = columns.tag.get(file, number).ok_or_else(|| damaged("a tag outside of the file"))?;
        let label = match (columns.label, &self.contents().classes) {
            (Some(labels), Some(classes)) => {
                let label = labels.get(file, number).filter(|&label| label < classes.count);
                Some(label.ok_or_else(|| damaged("a label without a class"))?)
            }
            _ => None,
        };
        let Some((start, end)) = columns.row_start.zip(columns.row_end) else {
            if size > self.contents().max_bytes {
                return Err(damaged("a sample larger than the largest"));
            }
            return Ok(Object { key, size, tag, label, start: 0, rows: 1 });
        };
        let before = number.checked_sub(1).map_or(Some(0), |before| end.get(file, before));
        let rows = end.get(file, number).zip(before).and_then(|(end, before)| end.checked_sub(before));
        let rows = rows.ok_or_else(|| damaged("rows that are not in order"))?;
        let start = start.get(file, number).ok_or_else(|| damaged("a first row outside of the file"))?;
        Ok(Object { key, size, tag, label, start, rows })
    }

    pub(crate) fn contents(&self) -> &Contents {
        &self.inner.contents
    }

    fn columns(&self) -> &ColumnPositions {
        &self.inner.columns
    }

    /// All bytes of the file: written to a file they are this index again, without its selection.
    pub fn file(&self) -> &[u8] {
        (*self.inner.bytes).as_ref()
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("contents", self.contents()).finish_non_exhaustive()
    }
}
