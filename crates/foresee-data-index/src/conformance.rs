// SPDX-License-Identifier: Apache-2.0
//! Conformance suite of layouts: the guarantees of every index.
//!
//! The tests of a layout check its samples; this suite checks the index. It panics with the guarantee that is
//! violated.

use std::sync::Arc;

use foresee_units::SampleId;

use crate::{
    Diff, FolderOptions, Index, IndexBuilder, IndexError, IndexPlan, LayoutOptions, Listed, Summary, Windows,
};

/// A data set in memory: its listing, and the bytes of its file headers.
#[derive(Clone, Debug)]
pub(crate) struct MemoryDataSet {
    /// The layout.
    pub(crate) options: LayoutOptions,
    /// Objects with key, tag and bytes.
    pub(crate) objects: Vec<(Vec<u8>, Vec<u8>, Vec<u8>)>,
}

/// The base URI of the suite; its password and query must not be stored.
const BASE: &str = "s3://key:hunter2@bucket/train?X-Amz-Signature=hunter2";

impl MemoryDataSet {
    /// Create a data set of objects with the given bytes and one tag.
    pub(crate) fn new(options: LayoutOptions, objects: &[(&str, &[u8])]) -> Self {
        let object = |&(key, bytes): &(&str, &[u8])| (key.into(), b"\"tag\"".to_vec(), bytes.to_vec());
        Self { options, objects: objects.iter().map(object).collect() }
    }

    /// Its listing, sorted and validated.
    pub(crate) fn plan(&self) -> Result<IndexPlan, IndexError> {
        let mut builder = IndexBuilder::new(BASE, self.options.clone(), 1_790_000_000)?;
        for (key, tag, bytes) in &self.objects {
            builder.handle_listed(Listed { key: key.clone(), size: bytes.len() as u64, tag: tag.clone() })?;
        }
        while let Some(request) = builder.poll_head() {
            let bytes = self.bytes_of(&request.key);
            let end = usize::try_from(request.bytes).expect("a head fits in memory");
            builder.handle_head(request.ticket, &bytes[..end])?;
        }
        builder.finish()
    }

    /// Its index.
    pub(crate) fn index(&self) -> Result<Index, IndexError> {
        Index::open(Arc::new(write(&self.plan()?)))
    }

    fn bytes_of(&self, key: &[u8]) -> &[u8] {
        let found = self.objects.iter().find(|object| object.0 == key);
        &found.expect("only listed objects are asked for").2
    }
}

/// Run the whole suite; `data_set` must have at least two samples.
pub(crate) fn check(data_set: &MemoryDataSet) {
    let index = data_set.index().expect("the data set is sound");
    let summary = data_set.plan().expect("the data set is sound").summary();
    index.verify().expect("what was just written holds");
    samples_lie_in_their_objects(data_set, &index, summary);
    if !data_set.options.keeps_order() {
        the_order_of_the_listing_is_of_no_account(data_set, &index);
    }
    bad_keys_are_refused(data_set);
    a_change_is_found_and_nothing_else(data_set, &index);
    every_flipped_bit_is_found(&index);
    every_cut_is_found(&index);
    let file = index.file();
    assert!(!contains(file, b"hunter2"), "a credential reached the index");
    assert_eq!(index.base_uri(), "s3://bucket/train/");
}

fn samples_lie_in_their_objects(data_set: &MemoryDataSet, index: &Index, summary: Summary) {
    assert_eq!((index.samples(), index.objects()), (summary.samples, summary.objects));
    assert!(index.len() >= 2, "the suite needs two samples");
    let (mut total, mut largest) = (0, 0);
    for sample in (0..index.len()).map(SampleId) {
        let entry = index.entry(sample).expect("every sample has an entry");
        let bytes = data_set.bytes_of(entry.key);
        assert_eq!(entry.object_size.get(), bytes.len() as u64);
        assert!(entry.range.start + entry.range.len <= entry.object_size.get(), "a range past its object");
        assert_eq!(
            entry.label.is_some(),
            !index.classes().is_empty(),
            "a label without classes or none with"
        );
        assert_eq!((index.key(sample), index.tag(sample)), (entry.key, entry.tag));
        assert_eq!((index.range(sample), index.object(sample)), (entry.range, entry.object));
        assert_eq!((index.size(sample).get(), index.label(sample)), (entry.range.len, entry.label));
        assert_eq!(index.object_size(sample), entry.object_size);
        assert!(index.uniform_size().is_none_or(|size| size.get() == entry.range.len));
        total += entry.range.len;
        largest = largest.max(entry.range.len);
    }
    assert_eq!((index.total_bytes().get(), index.max_size().get()), (total, largest));
    assert_eq!((summary.total_bytes, summary.max_bytes), (total, largest));
}

fn the_order_of_the_listing_is_of_no_account(data_set: &MemoryDataSet, index: &Index) {
    let mut shuffled = data_set.clone();
    shuffled.objects.reverse();
    let half = shuffled.objects.len() / 2;
    shuffled.objects.rotate_left(half);
    let shuffled = shuffled.index().expect("the data set is sound");
    assert_eq!(shuffled.file(), index.file(), "another order of listing, another index");
}

fn bad_keys_are_refused(data_set: &MemoryDataSet) {
    let with = |key: &[u8], tag: &[u8]| {
        let mut with = data_set.clone();
        let bytes =
            data_set.objects.iter().find(|object| object.0 == key).map_or(&[][..], |object| &object.2);
        with.objects.push((key.to_vec(), tag.to_vec(), bytes.to_vec()));
        with.index().expect_err("a bad key was taken")
    };
    let taken = data_set.index().expect("the data set is sound").key(SampleId(0)).to_vec();
    if !data_set.options.keeps_order() {
        assert!(matches!(with(&taken, b"other"), IndexError::Duplicate { .. }));
    }
    let below = |folder: &[u8]| [folder, &taken].concat();
    assert!(matches!(with(&below(b"a/../../"), b""), IndexError::KeyEscapes { .. }));
    assert!(matches!(with(&below(b"/etc/"), b""), IndexError::KeyEscapes { .. }));
    assert!(matches!(with(b"", b""), IndexError::KeyEmpty { .. }));
    let long = below(&vec![b'k'; crate::KEY_BYTES_MAX]);
    assert!(matches!(with(&long, b""), IndexError::KeyTooLong { .. }));
}

fn a_change_is_found_and_nothing_else(data_set: &MemoryDataSet, index: &Index) {
    let same = Diff { same: index.objects(), ..Diff::default() };
    assert_eq!(index.diff(index).expect("both are sound"), same);
    let taken = index.key(SampleId(0)).to_vec();
    let mut changed = data_set.clone();
    for object in &mut changed.objects {
        if object.0 == taken {
            object.1 = b"\"another\"".to_vec();
        }
    }
    let changed = changed.index().expect("a tag may change");
    let one = Diff { changed: 1, same: index.objects() - 1, ..Diff::default() };
    assert_eq!(index.diff(&changed).expect("both are sound"), one);
    assert_ne!(index.fingerprint(), changed.fingerprint(), "another tag, the same fingerprint");
}

fn every_flipped_bit_is_found(index: &Index) {
    for at in 0..index.file().len() {
        let mut file = index.file().to_vec();
        file[at] ^= 1 << (at % 8);
        let found = Index::open(Arc::new(file)).and_then(|damaged| damaged.verify());
        assert!(found.is_err(), "byte {at} was changed without an error");
    }
}

fn every_cut_is_found(index: &Index) {
    for end in 0..index.file().len() {
        let cut = Index::open(Arc::new(index.file()[..end].to_vec()));
        assert!(cut.is_err(), "cut to {end} bytes without an error");
    }
}

fn write(plan: &IndexPlan) -> Vec<u8> {
    let mut file = Vec::new();
    plan.write(&mut file).expect("memory takes every byte");
    file
}

fn contains(file: &[u8], text: &[u8]) -> bool {
    file.windows(text.len()).any(|window| window == text)
}

#[test]
fn folder_passes_the_conformance_suite() {
    let options = LayoutOptions::Folder(FolderOptions::default());
    check(&MemoryDataSet::new(
        options,
        &[
            ("b/2.png", b"22"),
            ("b/1.png", b""),
            ("a/x/9.jpg", b"999"),
            ("a/notes", b"?"),
            ("c.d/é.PNG", b"1"),
        ],
    ));
}

#[test]
fn flat_passes_the_conformance_suite() {
    let options = LayoutOptions::Flat { extensions: vec![".wav".to_owned()] };
    check(&MemoryDataSet::new(options, &[("2.wav", b"22"), ("a/1.WAV", b"1"), ("readme", b"?")]));
    let every = LayoutOptions::Flat { extensions: Vec::new() };
    check(&MemoryDataSet::new(every, &[("a", b"same"), ("b", b"size")]));
}

#[test]
fn bin_passes_the_conformance_suite() {
    let options = LayoutOptions::Bin { row_bytes: 3, extensions: vec![".bin".to_owned()] };
    check(&MemoryDataSet::new(
        options,
        &[("b.bin", b"aaabbb"), ("0.bin", b""), ("a.bin", b"ccc"), ("x", b"?")],
    ));
}

#[test]
fn table_passes_the_conformance_suite() {
    let options = LayoutOptions::Table { parts: 2 };
    check(&MemoryDataSet::new(options, &[("b/2", b"22"), ("a", b""), ("b/1", b"1"), ("c", b"333")]));
}

#[test]
fn windows_pass_the_conformance_suite() {
    for drop_tail in [true, false] {
        let windows = Windows { dtype: "<u2".to_owned(), item_bytes: 2, length: 3, stride: 2, drop_tail };
        check(&MemoryDataSet::new(
            LayoutOptions::Windows(windows),
            &[("b.bin", b"aabbccddeeff"), ("0.bin", b""), ("a.bin", b"aabbccdd")],
        ));
    }
}

#[test]
fn npy_passes_the_conformance_suite() {
    let array = |rows: u64| {
        let header = format!("{{'descr': '<i2', 'fortran_order': False, 'shape': ({rows}, 2), }}\n");
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend_from_slice(&u16::try_from(header.len()).unwrap().to_le_bytes());
        file.extend_from_slice(header.as_bytes());
        (0..rows * 4).for_each(|byte| file.push(byte.to_le_bytes()[0]));
        file
    };
    let (one, none, three) = (array(1), array(0), array(3));
    check(&MemoryDataSet::new(
        LayoutOptions::Npy,
        &[("b.npy", &one), ("a.npy", &three), ("c.npy", &none), ("x", b"?")],
    ));
}
