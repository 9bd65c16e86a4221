// SPDX-License-Identifier: Apache-2.0
//! Builder of an index: takes a listing, requests the file headers that it needs, sorts and validates.
//!
//! `handle_*` takes an input, and `poll_*` returns the next read. The caller lists and reads in any order and in
//! parallel, because the index depends on the set of objects alone. Memory during the build: keys and tags, and
//! 36 bytes per object (24, and half as much again while sorting).
//!
//! These are errors before training starts: an empty data set, a repeated key, a key outside of the data set,
//! array files of several kinds, and a file that ends inside a row.

use std::collections::{BTreeMap, VecDeque};

use crate::error::IndexError;
use crate::fingerprint::Object;
use crate::layout::folder::{self, Class, ClassCollector};
use crate::layout::npy::{NpyHead, NpyHeader};
use crate::layout::rows::{self, RowLayout};
use crate::layout::windows::Windows;
use crate::layout::{Layout, LayoutOptions};
use crate::listing::{Listed, ListedRef, ListingStore};
use crate::uri::{self, TAG_BYTES_MAX};

/// Bytes of an array file that are read first: NumPy's own headers have 128 bytes.
const HEAD_BYTES: u64 = 4096;

/// Collects a listing and builds an index of it.
#[derive(Debug)]
pub struct IndexBuilder {
    base: String,
    options: LayoutOptions,
    created: u64,
    store: ListingStore,
    objects: Vec<ListedRef>,
    ignored: u64,
    outside: u64,
    classes: ClassCollector,
    picks: Vec<u64>,
    request: VecDeque<HeadRequest>,
    heads: Heads,
}

/// A request for the first bytes of an object, which determine its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadRequest {
    /// Identifies the object in [`IndexBuilder::handle_head`].
    pub ticket: u64,
    /// The object's key.
    pub key: Vec<u8>,
    /// Number of bytes to read from its beginning, at most the object's size.
    pub bytes: u64,
}

impl IndexBuilder {
    /// Create a builder for the data set at `base_uri`, of which only the redacted form is stored.
    ///
    /// `created`: seconds since 1970 in UTC; stored, and not part of the fingerprint.
    pub fn new(base_uri: &str, options: LayoutOptions, created: u64) -> Result<Self, IndexError> {
        options.check()?;
        Ok(Self {
            base: uri::base_uri(base_uri),
            options,
            created,
            store: ListingStore::default(),
            objects: Vec::new(),
            ignored: 0,
            outside: 0,
            classes: ClassCollector::default(),
            picks: Vec::new(),
            request: VecDeque::new(),
            heads: BTreeMap::new(),
        })
    }

    /// Whether an object with this key, or an object in a folder with this key (it ends in `/`), can be a sample.
    pub fn accepts(&self, key: &[u8]) -> bool {
        if key.ends_with(b"/") {
            let class = folder::class(key).unwrap_or_default();
            return !matches!(self.options, LayoutOptions::Folder(_)) || !folder::is_leftover(class);
        }
        self.options.accepts(key)
    }

    /// Whether a listed key defines a class: a folder does, except leftover folders without samples.
    pub fn is_of_class(&self, key: &[u8]) -> bool {
        folder::class(key).is_some_and(|class| !folder::is_leftover(class) || self.options.accepts(key))
    }

    /// Add one listed object, in any order. Objects that the layout ignores are only counted.
    pub fn handle_listed(&mut self, listed: Listed) -> Result<(), IndexError> {
        let shown = |builder: &Self| uri::display(&builder.base, &listed.key);
        if matches!(self.options, LayoutOptions::Folder(_)) {
            self.classes.add(&listed.key);
        }
        if matches!(self.options, LayoutOptions::Npy | LayoutOptions::Windows(_))
            && listed.key.ends_with(b".npz")
        {
            return Err(IndexError::Npz { uri: shown(self) });
        }
        let is_accepted = self.options.accepts(&listed.key);
        match uri::check_key(&self.base, &listed.key) {
            // Users name the keys of a web server individually, and a query hides the end of a name.
            Err(error)
                if is_accepted
                    || matches!(error, IndexError::KeyEmpty { .. } | IndexError::KeyPresigned { .. }) =>
            {
                return Err(error);
            }
            _ if !is_accepted => {
                self.outside += u64::from(self.options.is_outside(&listed.key));
                self.ignored += u64::from(!listed.key.ends_with(b"/"));
                return Ok(());
            }
            _ => {}
        }
        if listed.tag.len() > TAG_BYTES_MAX {
            let (bytes, max) = (listed.tag.len() as u64, TAG_BYTES_MAX as u64);
            return Err(IndexError::TagTooLong { uri: shown(self), bytes, max });
        }
        let object = self.store.add(&listed);
        self.objects.push(object);
        if self.options.needs_head(&listed.key) {
            let (ticket, bytes) = (object.position(), HEAD_BYTES.min(object.size));
            self.heads.insert(ticket, (object, None));
            self.request.push_back(HeadRequest { ticket, key: listed.key, bytes });
        }
        Ok(())
    }

    /// Set the objects of a table's samples, in sequence, by the order in which objects were listed. Without it
    /// each object is one sample.
    pub fn handle_picks(&mut self, picks: Vec<u64>) {
        self.picks = picks;
    }

    /// The next header to read; `None` if none is needed now. Several may be requested at once.
    pub fn poll_head(&mut self) -> Option<HeadRequest> {
        self.request.pop_front()
    }

    /// Handle the first bytes of the object that `ticket` identifies; requests more if its header is longer.
    ///
    /// # Panics
    /// If no header was requested under `ticket`.
    pub fn handle_head(&mut self, ticket: u64, first: &[u8]) -> Result<(), IndexError> {
        let (object, header) = self.heads.get_mut(&ticket).expect("a ticket comes from poll_head");
        let uri = || uri::display(&self.base, self.store.key(*object));
        match NpyHeader::read(first).map_err(|reason| IndexError::Npy { uri: uri(), reason })? {
            NpyHead::Whole(whole) => *header = Some(whole),
            NpyHead::Needs(bytes) if bytes > object.size => {
                return Err(IndexError::ArrayLength { uri: uri(), expected: bytes, found: object.size });
            }
            NpyHead::Needs(bytes) => {
                let key = self.store.key(*object).to_vec();
                self.request.push_back(HeadRequest { ticket, key, bytes });
            }
        }
        Ok(())
    }

    /// Sort and validate all listed objects.
    pub fn finish(self) -> Result<IndexPlan, IndexError> {
        let Self {
            base, options, created, store, mut objects, ignored, outside, classes, heads, picks, ..
        } = self;
        if !options.keeps_order() {
            // A stable sort, because it detects the sorted runs of a parallel listing.
            objects.sort_by(|&one, &other| options.compare(store.key(one), store.key(other)));
            if let Some(pair) = objects.windows(2).find(|pair| store.key(pair[0]) == store.key(pair[1])) {
                return Err(IndexError::Duplicate { uri: uri::display(&base, store.key(pair[0])) });
            }
        }
        let count = objects.len() as u64;
        if let Some((pick, &object)) = (0..).zip(&picks).find(|(_, object)| **object >= count) {
            return Err(IndexError::Pick { pick, object, objects: count });
        }
        let classes = match &options {
            LayoutOptions::Folder(folder) => {
                classes.finish(&base, folder, objects.iter().map(|&one| store.key(one)))?
            }
            _ => Vec::new(),
        };
        let empty = || IndexError::Empty { uri: base.clone(), ignored, layout: options.describe() };
        if objects.is_empty() {
            return Err(empty());
        }
        let show = |object: ListedRef| uri::display(&base, store.key(object));
        let mut tail = WindowRemainder::default();
        let (layout, row_layouts) = match &options {
            LayoutOptions::Folder(folder) => (Layout::Folder(folder.clone()), None),
            LayoutOptions::Flat { extensions } => (Layout::Flat { extensions: extensions.clone() }, None),
            LayoutOptions::Bin { row_bytes, extensions } => {
                let rows = |&one: &ListedRef| rows::whole_rows(one.size, *row_bytes, || show(one));
                let row_layouts = objects.iter().map(rows).collect::<Result<_, _>>()?;
                (Layout::Bin { row_bytes: *row_bytes, extensions: extensions.clone() }, Some(row_layouts))
            }
            LayoutOptions::Npy => {
                let (layout, row_layouts) = rows_of_arrays(&objects, &heads, show)?;
                (layout, Some(row_layouts))
            }
            LayoutOptions::Table { parts } => (Layout::Table { parts: *parts }, None),
            LayoutOptions::Windows(windows) => {
                let row_layouts = windows_of_arrays(windows, &base, &objects, &heads, show, &mut tail)?;
                (Layout::Windows(windows.clone()), Some(row_layouts))
            }
        };
        let mut plan = IndexPlan {
            summary: Summary { ignored, outside, classes: classes.len() as u64, tail, ..Summary::default() },
            base,
            created,
            layout,
            store,
            objects,
            classes,
            row_layouts,
            picks,
        };
        plan.summarize()?;
        if let Layout::Table { parts } = plan.layout {
            let entries = if plan.picks.is_empty() { count } else { plan.picks.len() as u64 };
            plan.summary.samples = entries / parts;
        }
        if plan.summary.samples == 0 {
            return Err(IndexError::Empty { uri: plan.base, ignored, layout: options.describe() });
        }
        Ok(plan)
    }
}

/// Headers of array files by the position of their objects; `None` until they are received.
type Heads = BTreeMap<u64, (ListedRef, Option<NpyHeader>)>;

/// Check that an array file has the `size` that its header promises.
fn check_length(header: &NpyHeader, size: u64, uri: impl Fn() -> String) -> Result<(), IndexError> {
    match header.file_bytes() {
        None => Err(IndexError::TooLarge { uri: uri() }),
        Some(expected) if expected != size => {
            Err(IndexError::ArrayLength { uri: uri(), expected, found: size })
        }
        Some(_) => Ok(()),
    }
}

/// The row type that all array files share, and the rows of each file.
fn rows_of_arrays(
    objects: &[ListedRef],
    heads: &Heads,
    show: impl Fn(ListedRef) -> String,
) -> Result<(Layout, Vec<RowLayout>), IndexError> {
    let mut first: Option<(ListedRef, &NpyHeader)> = None;
    let mut row_layouts = Vec::with_capacity(objects.len());
    for &one in objects {
        let header = heads.get(&one.position()).and_then(|(_, header)| header.as_ref());
        let header = header.ok_or_else(|| IndexError::HeadMissing { uri: show(one) })?;
        let &mut (first_object, kind) = first.get_or_insert((one, header));
        if (&header.dtype, header.row_shape()) != (&kind.dtype, kind.row_shape()) {
            let describe = |header: &NpyHeader| format!("{} {:?}", header.dtype, header.row_shape());
            return Err(IndexError::RowsDiffer {
                uri: show(one),
                found: describe(header),
                first_uri: show(first_object),
                expected: describe(kind),
            });
        }
        check_length(header, one.size, || show(one))?;
        row_layouts.push(RowLayout { start: header.data_start, rows: header.rows() });
    }
    let (_, kind) = first.expect("an empty listing was refused before");
    let layout = Layout::Npy {
        dtype: kind.dtype.clone(),
        shape: kind.row_shape().to_vec(),
        row_bytes: kind.row_bytes,
    };
    Ok((layout, row_layouts))
}

/// The windows of each file; `tail` counts the elements outside of all windows.
fn windows_of_arrays(
    windows: &Windows,
    base: &str,
    objects: &[ListedRef],
    heads: &Heads,
    show: impl Fn(ListedRef) -> String,
    tail: &mut WindowRemainder,
) -> Result<Vec<RowLayout>, IndexError> {
    let (mut row_layouts, mut longest) = (Vec::with_capacity(objects.len()), 0);
    for &one in objects {
        let mut start = 0;
        if let Some((_, header)) = heads.get(&one.position()) {
            let header = header.as_ref().ok_or_else(|| IndexError::HeadMissing { uri: show(one) })?;
            if header.dtype != windows.dtype || !header.row_shape().is_empty() {
                return Err(IndexError::NotFlat {
                    uri: show(one),
                    found: format!("{} {:?}", header.dtype, header.shape),
                    expected: windows.dtype.clone(),
                });
            }
            check_length(header, one.size, || show(one))?;
            start = header.data_start;
        }
        let (rows, elements) = windows.rows(start, one.size, || show(one))?;
        tail.elements = tail.elements.saturating_add(elements);
        tail.files += u64::from(elements > 0);
        longest = longest.max((one.size - start) / windows.item_bytes);
        row_layouts.push(rows);
    }
    if row_layouts.iter().all(|one| one.rows == 0) {
        let (uri, files, length) = (base.to_owned(), objects.len() as u64, windows.length);
        return Err(IndexError::NoWindows { uri, files, length, longest });
    }
    Ok(row_layouts)
}

/// A data set, sorted and validated, not yet written.
#[derive(Debug)]
pub struct IndexPlan {
    pub(crate) base: String,
    pub(crate) created: u64,
    pub(crate) layout: Layout,
    pub(crate) classes: Vec<Class>,
    pub(crate) store: ListingStore,
    /// In the order of their samples.
    pub(crate) objects: Vec<ListedRef>,
    summary: Summary,
    row_layouts: Option<Vec<RowLayout>>,
    picks: Vec<u64>,
}

/// Summary of a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Samples, 1 or more.
    pub samples: u64,
    /// Objects with samples.
    pub objects: u64,
    /// Classes; 0 in a layout without labels.
    pub classes: u64,
    /// Listed objects that the layout ignores, without folders.
    pub ignored: u64,
    /// Of these, files next to class folders that would be samples in one.
    pub outside: u64,
    /// Objects of zero bytes: valid, but mostly failed uploads.
    pub zero_sized: u64,
    /// Bytes of all samples.
    pub total_bytes: u64,
    /// Bytes of the largest sample.
    pub max_bytes: u64,
    /// Elements outside of all windows.
    pub tail: WindowRemainder,
}

/// Elements at the ends of files that no window contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowRemainder {
    /// Number of elements.
    pub elements: u64,
    /// Files with such elements.
    pub files: u64,
}

impl IndexPlan {
    /// The summary of the listing.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// The layout with its detected values.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// All objects in the order of their samples.
    pub(crate) fn objects(&self) -> impl Iterator<Item = Object<'_>> {
        let mut labels = self.labels();
        self.objects.iter().zip(self.row_layouts()).map(move |(&object, rows)| Object {
            key: self.store.key(object),
            size: object.size,
            tag: self.store.tag(object),
            label: labels.next(),
            start: rows.start,
            rows: rows.rows,
        })
    }

    /// The rows of each object, in their order.
    pub(crate) fn row_layouts(&self) -> impl Iterator<Item = RowLayout> {
        const WHOLE: RowLayout = RowLayout { start: 0, rows: 1 };
        (0..self.objects.len())
            .map(|number| self.row_layouts.as_ref().map_or(WHOLE, |row_layouts| row_layouts[number]))
    }

    /// Objects of the samples of a table that share some; otherwise empty.
    pub(crate) fn picks(&self) -> &[u64] {
        &self.picks
    }

    /// The label of each object, in their order; empty in a layout without labels.
    pub(crate) fn labels(&self) -> impl Iterator<Item = u64> {
        let count = |class: &Class| usize::try_from(class.samples).expect("counted in memory");
        (0_u64..).zip(&self.classes).flat_map(move |(label, class)| std::iter::repeat_n(label, count(class)))
    }

    fn summarize(&mut self) -> Result<(), IndexError> {
        let mut summary = self.summary;
        for object in self.objects() {
            let sample_bytes = self.layout.row_bytes().unwrap_or(object.size);
            summary
                .count(&object, sample_bytes)
                .ok_or_else(|| IndexError::TooLarge { uri: uri::display(&self.base, object.key) })?;
        }
        self.summary = summary;
        Ok(())
    }
}

impl Summary {
    /// Count one more object; `None` past 2^64 samples or bytes.
    fn count(&mut self, object: &Object<'_>, sample_bytes: u64) -> Option<()> {
        self.samples = self.samples.checked_add(object.rows)?;
        self.total_bytes = self.total_bytes.checked_add(object.rows.checked_mul(sample_bytes)?)?;
        self.max_bytes = self.max_bytes.max(sample_bytes);
        self.objects += 1;
        self.zero_sized += u64::from(object.size == 0);
        Some(())
    }
}
