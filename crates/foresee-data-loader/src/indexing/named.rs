// SPDX-License-Identifier: Apache-2.0
//! Indexes of objects that the user names one by one: the rows of a table, and files of tokens.
//!
//! Only sizes and tags are requested from the origin. A row is never dropped: an unreadable object is an error, or an
//! entry whose read fails.

use std::collections::HashMap;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use foresee_data_index::{
    Exclude, Index, IndexBuilder, IndexError, LayoutOptions, Listed, NpyHead, NpyHeader, Summary,
    TableColumn, TableObjects, Windows,
};
use foresee_data_tier::{
    ListProgress, Listing, ObjectReader, OriginError, OriginObject, OriginOptions, Selection, Unreadable,
    Uri, list,
};

use super::{IndexingError, finish, now, read_heads};

/// Maximum number of objects in an error.
const SHOWN: usize = 3;
/// Size of a missing object: not 0, so that it is read, which fails.
const ABSENT_BYTES: u64 = 1;

/// The objects of a table.
#[derive(Clone, Debug)]
pub struct TableOptions {
    /// The base of relative rows: an absolute path or a URI.
    pub root: String,
    /// One column per object of a sample, 1 or more, of equal length.
    pub columns: Vec<TableColumn>,
    /// Known sizes in bytes per column. Such objects are not requested from the origin, and have no tag.
    pub sizes: Vec<Option<Vec<u64>>>,
    /// Options of the origin, not saved.
    pub storage: Vec<(String, String)>,
    /// Whether an unreadable object is an entry.
    pub allow_missing: bool,
}

/// Build the index of a table in memory; `progress` and `cancel` as in [`super::build_index`].
///
/// # Errors
/// [`IndexError::Row`] for a row that names no object of one store; [`IndexingError::Absent`].
pub fn build_table(
    table: TableOptions,
    progress: &(dyn Fn(ListProgress) + Sync),
    cancel: &AtomicBool,
) -> Result<Index, IndexingError> {
    let TableOptions { root, columns, sizes, storage, allow_missing } = table;
    let TableObjects { base, keys, by_key, picks } = TableObjects::of(&root, &columns, resolver())?;
    let parts = columns.len();
    let number_of = |entry: usize| picks.as_ref().map_or(entry, |picks| to_index(picks[entry]));
    let known = known_sizes(&columns, &sizes, keys.len(), number_of)?;
    let place = Uri::parse(&base).map_err(OriginError::from)?;
    let options = OriginOptions { storage: storage.into_iter().collect(), ..OriginOptions::default() };
    let unknown: Vec<usize> = by_key.into_iter().filter(|&number| known[number].is_none()).collect();
    let requested: Vec<Vec<u8>> = unknown.iter().map(|&number| keys[number].clone()).collect();
    let mut listing = Listing::default();
    if !requested.is_empty() {
        let selection = Selection { keys: Some(&requested), ..Selection::default() };
        listing = list(&place, &options, selection, progress, cancel)?;
    }
    if !allow_missing && !listing.unreadable.is_empty() {
        let absent: HashMap<&[u8], &Unreadable> =
            listing.unreadable.iter().map(|one| (one.key.as_slice(), one)).collect();
        let entries = columns.first().map_or(0, |column| column.rows.len()) * parts;
        let faults: Vec<_> = (0..entries)
            .filter_map(|entry| Some((entry, *absent.get(keys[number_of(entry)].as_slice())?)))
            .collect();
        let show = |&(entry, one): &(usize, &Unreadable)| {
            format!("{}, row {}: {}", columns[entry % parts].name, entry / parts, one.error)
        };
        let shown: Vec<String> = faults.iter().take(SHOWN).map(show).collect();
        let rows = faults.len() as u64;
        return Err(IndexingError::Absent { rows, shown: shown.join("; ") });
    }
    let layout = LayoutOptions::Table { parts: parts as u64 };
    let mut builder = IndexBuilder::new(&base, layout, now())?;
    let mut found = Vec::new();
    found.resize_with(keys.len(), || None);
    // Both lists are sorted by key.
    let mut objects = listing.objects.into_iter().peekable();
    for number in unknown {
        found[number] = objects.next_if(|object| object.key == keys[number]);
    }
    for ((key, size), object) in keys.into_iter().zip(known).zip(found) {
        let listed = match (size, object) {
            (Some(size), _) => Listed { key, size, tag: Vec::new() },
            (None, Some(object)) => Listed { key, size: object.size, tag: object.tag },
            (None, None) => Listed { key, size: ABSENT_BYTES, tag: Vec::new() },
        };
        builder.handle_listed(listed)?;
    }
    builder.handle_picks(picks.unwrap_or_default());
    Ok(finish(builder)?.0)
}

/// Sizes of the objects that a size column has.
fn known_sizes(
    columns: &[TableColumn],
    sizes: &[Option<Vec<u64>>],
    objects: usize,
    number_of: impl Fn(usize) -> usize,
) -> Result<Vec<Option<u64>>, IndexError> {
    let mut known = vec![None; objects];
    for (part, (column, sizes)) in columns.iter().zip(sizes).enumerate() {
        for (row, &size) in sizes.iter().flatten().enumerate() {
            let before = known[number_of(row * columns.len() + part)].replace(size);
            if before.is_some_and(|before| before != size) {
                return Err(IndexError::Row {
                    column: column.name.clone(),
                    row: row as u64,
                    value: String::from_utf8_lossy(&column.rows[row]).into_owned(),
                    cause: format!(
                        "its size is {size}, and {} in a row before; correct the sizes",
                        before.unwrap_or(0)
                    ),
                });
            }
        }
    }
    Ok(known)
}

fn to_index(number: u64) -> usize {
    usize::try_from(number).expect("the objects are in memory")
}

/// The object of `key`; `objects` are sorted by key.
fn object_of<'a>(objects: &'a [OriginObject], key: &[u8]) -> &'a OriginObject {
    let at = objects.binary_search_by(|object| object.key.as_slice().cmp(key));
    &objects[at.expect("a missing object is an error")]
}

/// Real paths of folders, each resolved once.
fn resolver() -> impl FnMut(&[u8]) -> Option<Vec<u8>> {
    let mut known: HashMap<Vec<u8>, Option<Vec<u8>>> = HashMap::new();
    move |path| {
        if let Some(found) = known.get(path) {
            return found.clone();
        }
        let real = std::fs::canonicalize(Path::new(std::ffi::OsStr::from_bytes(path))).ok();
        let found = real.map(|real| real.into_os_string().into_vec());
        known.insert(path.to_vec(), found.clone());
        found
    }
}

/// Files, and their division into windows.
#[derive(Clone, Debug)]
pub struct WindowOptions {
    /// Directory or prefix of `.npy` and `.bin` files, in the order of their names; `None` for `files`.
    pub uri: Option<String>,
    /// The base of relative files, and the files in order.
    pub files: (String, TableColumn),
    /// The windows. An empty `dtype` is that of the first `.npy` file.
    pub windows: Windows,
    /// Excluded objects of a listing.
    pub exclude: Exclude,
    /// Options of the origin, not saved.
    pub storage: Vec<(String, String)>,
}

/// Build the index of windows in memory; `progress` and `cancel` as in [`super::build_index`].
pub fn build_windows(
    options: WindowOptions,
    progress: &(dyn Fn(ListProgress) + Sync),
    cancel: &AtomicBool,
) -> Result<(Index, Summary), IndexingError> {
    let WindowOptions { uri, files: (root, column), mut windows, exclude, storage } = options;
    let origin = OriginOptions { storage: storage.into_iter().collect(), ..OriginOptions::default() };
    let is_excluded = |key: &[u8]| exclude.matches(key);
    let (base, objects) = if let Some(uri) = uri {
        let selection = Selection { keys: None, is_excluded: &is_excluded };
        let listing =
            list(&Uri::parse(&uri).map_err(OriginError::from)?, &origin, selection, progress, cancel)?;
        let is_array = |key: &[u8]| key.ends_with(b".npy") || key.ends_with(b".bin");
        if let Some(unreadable) = listing.unreadable.into_iter().find(|one| is_array(&one.key)) {
            return Err(unreadable.error.into());
        }
        (uri, listing.objects.into_iter().filter(|object| is_array(&object.key)).collect())
    } else {
        let TableObjects { base, keys, picks, .. } = TableObjects::of(&root, &[column], resolver())?;
        let selection = Selection { keys: Some(&keys), ..Selection::default() };
        let listing =
            list(&Uri::parse(&base).map_err(OriginError::from)?, &origin, selection, progress, cancel)?;
        if let Some(unreadable) = listing.unreadable.into_iter().next() {
            return Err(unreadable.error.into());
        }
        let picks = picks.unwrap_or_else(|| (0..keys.len() as u64).collect());
        let found = |pick: u64| object_of(&listing.objects, &keys[to_index(pick)]).clone();
        (base, picks.into_iter().map(found).collect::<Vec<_>>())
    };
    let place = Uri::parse(&base).map_err(OriginError::from)?;
    if windows.dtype.is_empty() {
        (windows.dtype, windows.item_bytes) = type_of(&place, &origin, &objects)?;
    }
    let mut builder = IndexBuilder::new(&base, LayoutOptions::Windows(windows), now())?;
    for found in objects {
        builder.handle_listed(Listed { key: found.key, size: found.size, tag: found.tag })?;
    }
    read_heads(&mut builder, &place, &origin)?;
    finish(builder)
}

/// Type and size of an element, from the first file with a header.
fn type_of(
    place: &Uri,
    origin: &OriginOptions,
    objects: &[OriginObject],
) -> Result<(String, u64), IndexingError> {
    if let Some(plain) = objects.iter().find(|object| !object.key.ends_with(b".npy")) {
        return Err(IndexingError::NoDtype { uri: place.join(&plain.key) });
    }
    let Some(first) = objects.first() else {
        let (uri, layout) = (place.to_string(), "windows (.npy .bin)".to_owned());
        return Err(IndexError::Empty { uri, ignored: 0, layout }.into());
    };
    let reader = ObjectReader::open(place, origin)?;
    let head = |bytes: u64| -> Result<NpyHead, IndexingError> {
        let head = reader.read(&first.key, Some(0..bytes.min(first.size)))?;
        let found = NpyHeader::read(&head);
        Ok(found.map_err(|reason| IndexError::Npy { uri: place.join(&first.key), reason })?)
    };
    let mut found = head(4096)?;
    if let NpyHead::Needs(bytes) = found {
        found = head(bytes)?;
    }
    match found {
        NpyHead::Whole(header) => Ok((header.dtype, header.row_bytes)),
        NpyHead::Needs(expected) => {
            let uri = place.join(&first.key);
            Err(IndexError::ArrayLength { uri, expected, found: first.size }.into())
        }
    }
}
