// SPDX-License-Identifier: Apache-2.0
//! Hostile input: opening and reading any file ends with a result, in little memory.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use foresee_data_index::{Index, IndexBuilder, IndexError, LayoutOptions, Listed};
use foresee_testkit::property;
use foresee_units::SampleId;
use proptest::prelude::*;

fn build(options: LayoutOptions, listing: &[(Vec<u8>, u64, Vec<u8>)]) -> Vec<u8> {
    let mut builder = IndexBuilder::new("/data", options, 0).unwrap();
    for (key, size, tag) in listing {
        builder.handle_listed(Listed { key: key.clone(), size: *size, tag: tag.clone() }).unwrap();
    }
    let mut file = Vec::new();
    builder.finish().unwrap().write(&mut file).unwrap();
    file
}

fn rows() -> Vec<u8> {
    let object = |number: u64| (format!("{number}.bin").into_bytes(), number * 8, b"tag".to_vec());
    let options = LayoutOptions::Bin { row_bytes: 8, extensions: Vec::new() };
    build(options, &(0..20).map(object).collect::<Vec<_>>())
}

/// Read the data of a loader, and some more.
fn use_all(file: Vec<u8>) {
    let Ok(index) = Index::open(Arc::new(file)) else { return };
    let _ = index.verify();
    let _ = (index.classes(), index.uniform_size(), index.total_bytes(), index.fingerprint());
    let _ = index.diff(&index.clone());
    let last = index.len() - 1;
    for sample in [0, 1, last / 3, last / 2, last].map(|sample| SampleId(sample.min(last))) {
        let _ = (index.size(sample), index.label(sample), index.tag(sample), index.uri(sample));
        let (key, range) = (index.key(sample), index.range(sample));
        assert!(
            index.entry(sample).is_ok() || (key.is_empty() && range.len == 0),
            "a damaged entry is empty"
        );
        assert!(!key.split(|&byte| byte == b'/').any(|part| part == b".."), "a key leaves its data set");
        assert!(range.start.checked_add(range.len).is_some_and(|end| end <= index.object_size(sample).get()));
    }
    let _ = serde_json::to_vec(&index.dump(10));
}

/// The file with modified contents and a matching trailer, as an attacker would send.
fn with_contents(file: &[u8], edit: impl Fn(&mut serde_json::Value)) -> Vec<u8> {
    let end = file.len() - 40;
    let place = u64::from_le_bytes(file[end..end + 8].try_into().unwrap());
    let at = usize::try_from(place).unwrap();
    let mut contents = serde_json::from_slice(&file[at..end]).unwrap();
    edit(&mut contents);
    let contents = serde_json::to_vec(&contents).unwrap();
    let place = [(at as u64).to_le_bytes(), (contents.len() as u64).to_le_bytes()].concat();
    let sum = blake3::hash(&[&file[..16], &contents, &place].concat());
    [&file[..at], &contents, &place, &sum.as_bytes()[..16], b"FIDX-END"].concat()
}

#[test]
fn an_index_of_a_later_version_is_refused_with_both_versions() {
    let mut file = rows();
    file[8..12].copy_from_slice(&7_u32.to_le_bytes());
    let error = Index::open(Arc::new(file)).unwrap_err();
    assert!(matches!(error, IndexError::NewerVersion { found: 7, supported: 2 }), "{error}");
    assert!(error.to_string().contains("version 7") && error.to_string().contains("up to 2"));
}

#[test]
fn a_file_that_is_not_an_index_is_distinguished_from_a_truncated_one() {
    let open = |bytes: &[u8]| Index::open(Arc::new(bytes.to_vec())).unwrap_err();
    assert!(matches!(open(b""), IndexError::NotAnIndex));
    assert!(matches!(open(b"PK\x03\x04 and so on"), IndexError::NotAnIndex));
    let file = rows();
    assert!(matches!(open(&file[..5]), IndexError::Truncated { bytes: 5 }));
    assert!(matches!(open(&file[..file.len() - 1]), IndexError::Truncated { .. }));
}

#[test]
fn lengths_of_2_to_the_63_are_refused_or_read_as_empty() {
    let file = rows();
    let giant = serde_json::json!(1_u64 << 63);
    for pointer in [
        "/objects/count",
        "/objects/key/bytes",
        "/objects/key/end/base",
        "/objects/size/base",
        "/objects/tag/bytes",
        "/rows/start/base",
        "/rows/end/base",
        "/samples",
        "/max_bytes",
        "/total_bytes",
        "/layout/row_bytes",
    ] {
        let set = |contents: &mut serde_json::Value| *contents.pointer_mut(pointer).unwrap() = giant.clone();
        let hostile = with_contents(&file, set);
        let found = Index::open(Arc::new(hostile.clone())).and_then(|index| index.verify());
        assert!(found.is_err(), "{pointer}");
        use_all(hostile);
    }
}

#[test]
fn columns_of_zero_width_do_not_cause_endless_work() {
    let listing = [(b"a".to_vec(), 1, Vec::new())];
    let file = build(LayoutOptions::Flat { extensions: Vec::new() }, &listing);
    let hostile = with_contents(&file, |contents| {
        contents["objects"]["count"] = serde_json::json!(u64::MAX);
        contents["samples"] = serde_json::json!(u64::MAX);
    });
    assert_eq!(Index::open(Arc::new(hostile.clone())).unwrap().len(), u64::MAX);
    use_all(hostile);
}

#[test]
fn a_forged_key_or_base_does_not_leave_the_data_set() {
    let listing = [(b"aa/bb".to_vec(), 1, Vec::new()), (b"cc/dd".to_vec(), 1, Vec::new())];
    let mut file = build(LayoutOptions::Flat { extensions: Vec::new() }, &listing);
    let at = file.windows(5).position(|window| window == b"aa/bb").unwrap();
    file[at..at + 2].copy_from_slice(b"..");
    let index = Index::open(Arc::new(file.clone())).unwrap();
    assert!(index.key(SampleId(0)).is_empty() && index.entry(SampleId(0)).is_err());
    assert_eq!(index.key(SampleId(1)), b"cc/dd");
    let secret = |contents: &mut serde_json::Value| contents["base_uri"] = "s3://me:pass@b/".into();
    assert!(Index::open(Arc::new(with_contents(&file, secret))).is_err());
}

proptest! {
    #![proptest_config(property(256))]

    #[test]
    fn every_listing_is_restored_from_its_index(
        mut listing in prop::collection::btree_map(
            prop::collection::vec(any::<u8>(), 1..12), (any::<u32>(), prop::collection::vec(any::<u8>(), 0..9)), 1..40,
        ),
    ) {
        listing.retain(|key, _| key[0] != b'/' && !key.ends_with(b"/") && !key.windows(2).any(|two| two == b".."));
        prop_assume!(!listing.is_empty());
        let objects: Vec<_> =
            listing.iter().rev().map(|(key, (size, tag))| (key.clone(), u64::from(*size), tag.clone())).collect();
        let file = build(LayoutOptions::Flat { extensions: Vec::new() }, &objects);
        let index = Index::open(Arc::new(file)).unwrap();
        index.verify().unwrap();
        prop_assert_eq!(index.len(), listing.len() as u64);
        for (sample, (key, (size, tag))) in (0..).map(SampleId).zip(&listing) {
            let entry = index.entry(sample).unwrap();
            prop_assert_eq!((entry.key, entry.range.len, entry.tag), (&key[..], u64::from(*size), &tag[..]));
        }
    }

    #[test]
    fn random_bytes_are_not_an_index(bytes in prop::collection::vec(any::<u8>(), 0..200), keep_head: bool) {
        use_all(if keep_head { [&rows()[..16], &bytes].concat() } else { bytes });
    }

    #[test]
    fn changed_bytes_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..9)) {
        let mut file = rows();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        use_all(file);
    }

    #[test]
    fn forged_contents_never_panic(
        numbers in prop::collection::vec((0_usize..12, prop_oneof![0_u64..70, Just(1 << 63), any::<u64>()]), 1..4),
    ) {
        const POINTERS: [&str; 12] = [
            "/objects/count", "/objects/key/bytes", "/objects/key/end/base", "/objects/key/end/width",
            "/objects/size/base", "/objects/size/width", "/objects/tag/bytes", "/rows/start/base",
            "/rows/end/base", "/rows/end/width", "/samples", "/layout/row_bytes",
        ];
        use_all(with_contents(&rows(), |contents| {
            for &(which, number) in &numbers {
                *contents.pointer_mut(POINTERS[which]).unwrap() = serde_json::json!(number);
            }
        }));
    }
}
