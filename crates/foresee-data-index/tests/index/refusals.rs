// SPDX-License-Identifier: Apache-2.0
//! Errors of the builder, whose messages contain the URI and never a credential; and updates.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use foresee_data_index::{
    Diff, FolderOptions, Index, IndexBuilder, IndexError, IndexPlan, LayoutOptions, Listed,
};

const FLAT: LayoutOptions = LayoutOptions::Flat { extensions: Vec::new() };

fn listed(key: &str, size: u64, tag: &str) -> Listed {
    Listed { key: key.into(), size, tag: tag.into() }
}

fn plan(base: &str, options: LayoutOptions, listing: &[Listed]) -> Result<IndexPlan, IndexError> {
    let mut builder = IndexBuilder::new(base, options, 0)?;
    listing.iter().cloned().try_for_each(|listed| builder.handle_listed(listed))?;
    builder.finish()
}

fn index(options: LayoutOptions, listing: &[Listed]) -> Index {
    let mut file = Vec::new();
    plan("s3://bucket/d", options, listing).unwrap().write(&mut file).unwrap();
    Index::open(Arc::new(file)).unwrap()
}

fn refusal(options: LayoutOptions, listing: &[Listed]) -> String {
    plan("https://me:hunter2@host/d?sig=hunter2", options, listing).unwrap_err().to_string()
}

/// An array file's header: one axis of `rows`, `dtype`.
fn head(rows: u64, dtype: &str) -> Vec<u8> {
    let header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({rows},)}}");
    let length = u16::try_from(header.len()).unwrap().to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes()].concat()
}

fn arrays(files: &[(&str, u64, Vec<u8>)]) -> Result<IndexPlan, IndexError> {
    let mut builder = IndexBuilder::new("s3://bucket/d", LayoutOptions::Npy, 0)?;
    for (key, size, _) in files {
        builder.handle_listed(listed(key, *size, ""))?;
    }
    while let Some(request) = builder.poll_head() {
        let (_, _, head) = files.iter().find(|file| file.0.as_bytes() == request.key).unwrap();
        builder
            .handle_head(request.ticket, &head[..head.len().min(usize::try_from(request.bytes).unwrap())])?;
    }
    builder.finish()
}

#[test]
fn every_error_has_the_uri_and_no_credential() {
    let folder = || LayoutOptions::Folder(FolderOptions::default());
    let bin = |row_bytes| LayoutOptions::Bin { row_bytes, extensions: Vec::new() };
    for (message, uri, reason) in [
        (refusal(FLAT, &[]), "https://host/d/", "no sample"),
        (refusal(FLAT, &[listed("a/", 0, "")]), "https://host/d/", "no sample"),
        (refusal(folder(), &[listed("a.png", 1, "")]), "https://host/d/", "no class folder"),
        (
            refusal(folder(), &[listed("c/a.txt", 1, "")]),
            "https://host/d/",
            "first is c; supported extensions: .jpg",
        ),
        (refusal(FLAT, &[listed("a", 1, ""), listed("a", 1, "")]), "https://host/d/a", "listed twice"),
        (refusal(FLAT, &[listed("../a", 1, "")]), "https://host/d/../a", "outside of its data set"),
        (refusal(FLAT, &[listed("a?sig=hunter2", 1, "")]), "https://host/d/a", "presigned"),
        (refusal(FLAT, &[listed("https://me:hunter2@h/a", 1, "")]), "https://h/a", "outside of its data set"),
        (refusal(FLAT, &[listed("a", 1, &"t".repeat(65_537))]), "https://host/d/a", "tag of 65537 bytes"),
        (refusal(bin(4), &[listed("a", 10, "")]), "https://host/d/a", "2 are left over after rows of 4"),
        (refusal(bin(4), &[listed("a", 0, "")]), "https://host/d/", "no sample"),
        (refusal(bin(0), &[]), "", "a row of 0 bytes"),
        (
            refusal(LayoutOptions::Npy, &[listed("a.npz", 9, "")]),
            "https://host/d/a.npz",
            "save its arrays as .npy",
        ),
        (refusal(LayoutOptions::Npy, &[listed("a.npy", 9, "")]), "https://host/d/a.npy", "not received"),
        (refusal(bin(1), &[listed("a", u64::MAX, ""), listed("b", 1, "")]), "https://host/d/b", "past 2^64"),
        (refusal(LayoutOptions::Flat { extensions: vec![".PNG".into()] }, &[]), "", "in lower case"),
    ] {
        assert!(message.contains(uri) && message.contains(reason), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn array_files_of_two_kinds_or_of_another_length_are_refused() {
    let (long, short) = (head(2, "<f4"), head(2, "<f8"));
    let size = |head: &[u8], bytes: u64| head.len() as u64 + bytes;
    let error =
        arrays(&[("a.npy", size(&long, 8), long.clone()), ("b.npy", size(&short, 16), short)]).unwrap_err();
    assert!(
        error.to_string().starts_with("rows of s3://bucket/d/b.npy are <f8 [], those of s3://bucket/d/a.npy")
    );
    for bytes in [7, 9] {
        let error = arrays(&[("a.npy", size(&long, bytes), long.clone())]).unwrap_err();
        assert!(matches!(error, IndexError::ArrayLength { .. }), "{error}");
    }
    let error = arrays(&[("a.npy", 20, long)]).unwrap_err().to_string();
    assert!(error.contains("s3://bucket/d/a.npy has 20 bytes"), "{error}");
    let error = arrays(&[("a.npy", 4, b"PK\x03\x04".to_vec())]).unwrap_err().to_string();
    assert!(error.starts_with("s3://bucket/d/a.npy: not an npy file"), "{error}");
}

#[test]
fn a_header_longer_than_the_first_read_is_requested_again() {
    let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': (2,)}}{}", " ".repeat(9000));
    let length = u16::try_from(header.len()).unwrap().to_le_bytes();
    let head = [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes()].concat();
    let plan = arrays(&[("a.npy", head.len() as u64 + 2, head)]).unwrap();
    assert_eq!(plan.summary().samples, 2);
}

#[test]
fn samples_of_zero_bytes_are_valid_and_counted() {
    let summary = plan("/d", FLAT, &[listed("a", 0, ""), listed("b", 5, "")]).unwrap().summary();
    assert_eq!((summary.samples, summary.zero_sized, summary.total_bytes), (2, 1, 5));
}

#[test]
fn an_update_counts_added_removed_and_changed_objects() {
    let old =
        index(FLAT, &[listed("a", 1, "x"), listed("b", 1, "x"), listed("c", 1, "x"), listed("e", 1, "x")]);
    let mut builder = old.rebuild(9).unwrap();
    for one in [
        listed("f", 1, "x"),
        listed("e", 1, "x"),
        listed("c", 2, "x"),
        listed("b", 1, "y"),
        listed("0", 1, "x"),
    ] {
        builder.handle_listed(one).unwrap();
    }
    let mut file = Vec::new();
    builder.finish().unwrap().write(&mut file).unwrap();
    let new = Index::open(Arc::new(file)).unwrap();
    assert_eq!(old.diff(&new).unwrap(), Diff { added: 2, removed: 1, changed: 2, same: 1 });
    assert_ne!(old.fingerprint(), new.fingerprint());
    let bin = index(LayoutOptions::Bin { row_bytes: 1, extensions: Vec::new() }, &[listed("a", 1, "x")]);
    assert!(matches!(old.diff(&bin), Err(IndexError::LayoutsDiffer { .. })));
}

#[test]
fn the_fingerprint_excludes_only_location_and_time() {
    let written = |base: &str, created, size, tag| {
        let mut builder = IndexBuilder::new(base, FLAT, created).unwrap();
        builder.handle_listed(listed("a", size, tag)).unwrap();
        let mut file = Vec::new();
        builder.finish().unwrap().write(&mut file).unwrap();
        Index::open(Arc::new(file)).unwrap().fingerprint()
    };
    let one = written("s3://one", 1, 5, "x");
    assert_eq!(one, written("s3://two/copy", 2, 5, "x"));
    assert_ne!(one, written("s3://one", 1, 6, "x"));
    assert_ne!(one, written("s3://one", 1, 5, "y"));
}

#[test]
fn keys_and_folders_without_samples_never_cause_an_error() {
    let folder =
        |allow_empty| LayoutOptions::Folder(FolderOptions { allow_empty, ..FolderOptions::default() });
    let left_out =
        ["../x.txt", "/x.txt", "_temporary//0/part", ".ipynb_checkpoints/", "cat/a\nb.txt", "cat/"];
    let listing: Vec<_> = left_out
        .iter()
        .chain(&["cat/1.png", "cat//2.png", "_used/3.png"])
        .map(|key| listed(key, 1, ""))
        .collect();
    let found = index(folder(false), &listing);
    assert_eq!(found.classes(), [b"_used".as_slice(), b"cat"]);
    assert_eq!(found.len(), 3);
    let found = index(folder(true), &listing);
    assert_eq!(found.classes(), [b".ipynb_checkpoints".as_slice(), b"_temporary", b"_used", b"cat"]);
    for key in ["../x.png", "/x.png", "cat/../x.png"] {
        let error =
            plan("s3://b/d", folder(false), &[listed("cat/1.png", 1, ""), listed(key, 1, "")]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("s3://b/d/{key} is outside")) && text.contains("exclude="), "{text}");
    }
}

#[test]
fn an_unreadable_object_is_wanted_only_if_it_could_be_a_sample() {
    let wants = |options: LayoutOptions, key: &str| {
        IndexBuilder::new("/d", options, 0).unwrap().accepts(key.as_bytes())
    };
    let folder = || LayoutOptions::Folder(FolderOptions::default());
    for (key, in_folders, flat) in [
        ("cat/1.png", true, true),
        ("cat/notes.txt", false, true),
        ("1.png", false, true),
        ("private/", true, true),
        ("cat/.private/", true, true),
        (".Trash-0/", false, true),
    ] {
        assert_eq!((wants(folder(), key), wants(FLAT, key)), (in_folders, flat), "{key}");
    }
}
