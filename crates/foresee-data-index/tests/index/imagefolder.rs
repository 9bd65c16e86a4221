// SPDX-License-Identifier: Apache-2.0
//! The folder layout against torchvision, on a tree that is hard to sort (`testdata/index/imagefolder.py`).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use foresee_data_index::{FolderOptions, Index, IndexBuilder, IndexError, IndexPlan, LayoutOptions, Listed};
use foresee_units::SampleId;
use serde_json::Value;

const ANSWER: &str = include_str!("../../../../testdata/index/imagefolder.json");

/// The bytes of percent-encoded text.
fn decoded(value: &Value) -> Vec<u8> {
    let mut bytes = value.as_str().unwrap().bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        let mut digit = || char::from(bytes.next().unwrap()).to_digit(16).unwrap();
        decoded.push(if byte == b'%' { u8::try_from(digit() * 16 + digit()).unwrap() } else { byte });
    }
    decoded
}

fn plan(answer: &Value, allow_empty: bool) -> Result<IndexPlan, IndexError> {
    let options = LayoutOptions::Folder(FolderOptions { allow_empty, ..FolderOptions::default() });
    let mut builder = IndexBuilder::new("/data/tree", options, 0)?;
    for listed in answer["listing"].as_array().unwrap() {
        let size = listed["bytes"].as_u64().unwrap();
        builder.handle_listed(Listed { key: decoded(&listed["key"]), size, tag: Vec::new() })?;
    }
    builder.finish()
}

#[test]
fn classes_labels_and_order_are_those_of_torchvision() {
    let answer: Value = serde_json::from_str(ANSWER).unwrap();
    let mut file = Vec::new();
    plan(&answer, true).unwrap().write(&mut file).unwrap();
    let index = Index::open(Arc::new(file)).unwrap();
    let classes: Vec<_> = answer["classes"].as_array().unwrap().iter().map(decoded).collect();
    assert_eq!(index.classes(), classes);
    let found: Vec<_> = (0..index.len())
        .map(SampleId)
        .map(|sample| (String::from_utf8_lossy(index.key(sample)), index.key(sample), index.label(sample)))
        .collect();
    let samples: Vec<_> = answer["samples"].as_array().unwrap().iter().collect();
    let keys: Vec<_> = samples.iter().map(|sample| decoded(&sample["key"])).collect();
    let expected: Vec<_> = keys
        .iter()
        .zip(&samples)
        .map(|(key, sample)| (String::from_utf8_lossy(key), key.as_slice(), sample["label"].as_i64()))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn empty_classes_are_refused_where_torchvision_refuses_them() {
    let answer: Value = serde_json::from_str(ANSWER).unwrap();
    let empty = answer["empty_classes"].as_array().unwrap();
    match plan(&answer, false).unwrap_err() {
        IndexError::EmptyClasses { class, count, .. } => {
            assert_eq!((class.as_str(), count), (empty[0].as_str().unwrap(), empty.len() as u64));
        }
        other => panic!("{other}"),
    }
}
