// SPDX-License-Identifier: Apache-2.0
//! Golden files: a newly written index equals the one in `testdata/index`, byte for byte, and matches the JSON
//! next to it. `UPDATE_GOLDEN=1` rewrites them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;

use foresee_data_index::{FolderOptions, Index, IndexBuilder, LayoutOptions, Listed, Windows};

/// Key, size and tag of each object; `head` has the first bytes of all of them.
fn check(name: &str, options: LayoutOptions, objects: &[(&[u8], u64, &[u8])], head: &[u8]) {
    check_picks(name, options, objects, head, Vec::new());
}

fn check_picks(
    name: &str,
    options: LayoutOptions,
    objects: &[(&[u8], u64, &[u8])],
    head: &[u8],
    picks: Vec<u64>,
) {
    let mut builder =
        IndexBuilder::new("s3://me:hunter2@bucket/train?sig=hunter2", options, 1_790_000_000).unwrap();
    for &(key, size, tag) in objects {
        builder.handle_listed(Listed { key: key.to_vec(), size, tag: tag.to_vec() }).unwrap();
    }
    builder.handle_picks(picks);
    while let Some(request) = builder.poll_head() {
        builder.handle_head(request.ticket, head).unwrap();
    }
    let mut written = Vec::new();
    builder.finish().unwrap().write(&mut written).unwrap();

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/index");
    let [binary, text] = ["fidx", "json"].map(|extension| folder.join(name).with_extension(extension));
    if std::env::var("UPDATE_GOLDEN").is_ok_and(|value| value == "1") {
        std::fs::write(&binary, &written).unwrap();
        std::fs::write(&text, dump(written.clone())).unwrap();
    }
    let golden = std::fs::read(&binary).unwrap();
    assert_eq!(dump(golden.clone()), std::fs::read_to_string(&text).unwrap(), "{name}: read");
    assert!(golden == written, "{name}: another file is written; if so intended, raise FORMAT_VERSION");
}

fn dump(file: Vec<u8>) -> String {
    let index = Index::open(Arc::new(file)).unwrap();
    index.verify().unwrap();
    serde_json::to_string_pretty(&index.dump(u64::MAX)).unwrap() + "\n"
}

#[test]
fn an_index_of_class_folders_is_unchanged() {
    let objects: [(&[u8], u64, &[u8]); 8] = [
        (b"dog/2.png", 3, b"\"9b2d\""),
        (b"dog/10.PNG", 4, b"\"9b2d\""),
        (b"cat/sub/1.jpg", 0, b"W/\"d41d\""),
        (b"cat/sub.d/1.jpg", 300, b""),
        ("cat/é.webp".as_bytes(), 6, b"\"77\""),
        (b"bird/", 0, b""),
        (b"cat/notes.txt", 7, b""),
        (b"dog/caf\xe9.jpg", 5, b"\xff"),
    ];
    let options = FolderOptions { allow_empty: true, ..FolderOptions::default() };
    check("folder", LayoutOptions::Folder(options), &objects, b"");
}

#[test]
fn an_index_of_array_rows_is_unchanged() {
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }";
    let head = format!("{header:<117}\n");
    let head = [b"\x93NUMPY\x01\x00\x76\x00", head.as_bytes()].concat();
    let objects: [(&[u8], u64, &[u8]); 3] =
        [(b"part-1.npy", 152, b"\"b1\""), (b"part-0.npy", 152, b"\"a0\""), (b"README", 7, b"")];
    check("npy", LayoutOptions::Npy, &objects, &head);
}

#[test]
fn an_index_of_a_table_whose_rows_share_objects_is_unchanged() {
    let objects: [(&[u8], u64, &[u8]); 4] =
        [(b"b.jpg", 5, b"\"b2\""), (b"b.png", 2, b""), (b"a.jpg", 7, b"\"a0\""), (b"a.png", 3, b"")];
    check_picks("table", LayoutOptions::Table { parts: 2 }, &objects, b"", vec![0, 1, 2, 3, 0, 3]);
}

#[test]
fn an_index_of_overlapping_windows_is_unchanged() {
    let objects: [(&[u8], u64, &[u8]); 3] =
        [(b"b.bin", 22, b"\"b2\""), (b"a.bin", 4, b""), (b"c.bin", 10, b"\"c0\"")];
    let (dtype, item_bytes, length, stride) = ("<u2".to_owned(), 2, 5, 4);
    let windows = Windows { dtype, item_bytes, length, stride, drop_tail: false };
    check("windows", LayoutOptions::Windows(windows), &objects, b"");
}
