// SPDX-License-Identifier: Apache-2.0
//! Listed, unreadable and skipped entries of a directory.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{ListProgress, Listing, OriginError, OriginObject, OriginOptions, Selection, Uri, list};

fn list_objects(root: &Path) -> Result<Vec<OriginObject>, OriginError> {
    let uri = Uri::from_path(root)?;
    let listing = select(&uri, Selection::default())?;
    match listing.unreadable.into_iter().next() {
        Some(unreadable) => Err(unreadable.error),
        None => Ok(listing.objects),
    }
}

fn select(uri: &Uri, selection: Selection<'_>) -> Result<Listing, OriginError> {
    list(uri, &OriginOptions::default(), selection, &|_| {}, &AtomicBool::new(false))
}

fn keys(root: &Path) -> Vec<Vec<u8>> {
    let all = list_objects(root).expect("a listing").into_iter().map(|listed| listed.key);
    all.filter(|key| !key.ends_with(b"/")).collect()
}

fn tree(files: &[&[u8]]) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a directory");
    for file in files {
        let path = root.path().join(std::ffi::OsStr::from_bytes(file));
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(path, file).expect("a file");
    }
    root
}

#[test]
fn files_are_listed_in_byte_order_with_size_and_tag() {
    let root = tree(&[b"b/1", b"a/2", b"a-b", b"a/\xff\xfe", b"z"]);
    assert_eq!(keys(root.path()), [b"a-b".as_slice(), b"a/2", b"a/\xff\xfe", b"b/1", b"z"]);
    let first = &list_objects(root.path()).expect("a listing")[0];
    let stat = rustix::fs::stat(root.path().join("a-b")).expect("a file");
    assert_eq!((first.size, first.tag.as_slice()), (3, &crate::origin::tag_of(&stat, false)[..]));
}

#[test]
fn folders_of_the_first_level_are_listed_even_if_empty() {
    let root = tree(&[b"a/1", b"b/below/2", b"z"]);
    std::fs::create_dir(root.path().join("empty")).expect("a directory");
    let all = list_objects(root.path()).expect("a listing").into_iter().map(|listed| listed.key);
    let folders: Vec<_> = all.filter(|key| key.ends_with(b"/")).collect();
    assert_eq!(folders, [b"a/".as_slice(), b"b/", b"empty/"]);
}

#[test]
fn only_the_named_keys_are_looked_up() {
    let root = tree(&[b"a/1", b"a/2", b"z"]);
    let uri = Uri::from_path(root.path()).expect("a path");
    let ask = |keys: &[Vec<u8>]| {
        select(&uri, Selection { keys: Some(keys), ..Selection::default() }).expect("a directory")
    };
    let found = ask(&[b"z".to_vec(), b"a/1".to_vec()]).objects;
    assert_eq!(found.iter().map(|one| one.key.as_slice()).collect::<Vec<_>>(), [b"a/1".as_slice(), b"z"]);
    assert_eq!(found[1], *list_objects(root.path()).expect("a listing").last().expect("z is last"));
    for wrong in [b"missing".as_slice(), b"a", b"../z"] {
        let found = ask(&[wrong.to_vec(), b"z".to_vec()]);
        assert_eq!((found.objects.len(), found.unreadable.len()), (1, 1));
        let message = found.unreadable[0].error.to_string();
        assert!(message.contains(&*String::from_utf8_lossy(wrong)), "{message}");
    }
}

#[test]
fn links_are_followed_and_a_link_back_up_is_not_entered_again() {
    let root = tree(&[b"a/1", b"elsewhere/2"]);
    symlink(root.path().join("elsewhere"), root.path().join("a/there")).expect("a link");
    symlink(root.path(), root.path().join("a/back")).expect("a link");
    symlink("1", root.path().join("a/same")).expect("a link");
    assert_eq!(keys(root.path()), [b"a/1".as_slice(), b"a/same", b"a/there/2", b"elsewhere/2"]);
}

#[test]
fn unreadable_entries_are_listed_separately() {
    let root = tree(&[b"a/1", b"z"]);
    symlink("nowhere", root.path().join("a/lost")).expect("a link");
    symlink("self", root.path().join("self")).expect("a link");
    let uri = Uri::from_path(root.path()).expect("a path");
    let found = select(&uri, Selection::default()).expect("a listing");
    let keys: Vec<_> = found.objects.iter().map(|one| one.key.as_slice()).collect();
    assert_eq!(keys, [b"a/".as_slice(), b"a/1", b"z"]);
    let unreadable: Vec<_> =
        found.unreadable.iter().map(|one| (one.key.as_slice(), one.error.to_string())).collect();
    assert_eq!(unreadable.iter().map(|one| one.0).collect::<Vec<_>>(), [b"a/lost".as_slice(), b"self"]);
    for (text, cause) in [
        (&unreadable[0].1, "/a/lost cannot be read (a link that leads nowhere)"),
        (&unreadable[1].1, "itself"),
    ] {
        assert!(
            text.contains(cause) && text.contains("remove the link, or leave it out with exclude="),
            "{text}"
        );
    }
}

#[test]
fn excluded_entries_are_neither_listed_nor_entered() {
    let root = tree(&[b"a/1", b"a/old/2", b"old/3", b"z"]);
    symlink("nowhere", root.path().join("lost")).expect("a link");
    let uri = Uri::from_path(root.path()).expect("a path");
    let seen = Mutex::new(Vec::new());
    let is_excluded = |key: &[u8]| {
        seen.lock().expect("no panic").push(key.to_vec());
        key.ends_with(b"old/") || key == b"lost"
    };
    let found =
        select(&uri, Selection { is_excluded: &is_excluded, ..Selection::default() }).expect("a listing");
    let keys: Vec<_> = found.objects.iter().map(|one| one.key.as_slice()).collect();
    assert_eq!((keys, found.unreadable.len()), (vec![b"a/".as_slice(), b"a/1", b"z"], 0));
    assert!(!seen.lock().expect("no panic").iter().any(|key| key.ends_with(b"/2") || key.ends_with(b"/3")));
    let keys = [b"z".to_vec(), b"lost".to_vec()];
    let found = select(&uri, Selection { keys: Some(&keys), is_excluded: &is_excluded }).expect("z is there");
    assert_eq!(found.objects.len(), 1);
}

#[test]
fn pipes_and_empty_directories_have_no_entries() {
    let root = tree(&[]);
    std::fs::create_dir(root.path().join("empty")).expect("a directory");
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, root.path().join("p"), rustix::fs::FileType::Fifo, mode, 0)
        .expect("a pipe");
    assert_eq!(keys(root.path()), Vec::<Vec<u8>>::new());
}

#[test]
fn a_missing_root_and_a_cancel_flag_end_the_listing_with_an_error() {
    let gone = list_objects(Path::new("/no/such/root")).expect_err("missing").to_string();
    assert!(gone.contains("/no/such/root does not exist; / has the folders"), "{gone}");
    let root = tree(&[b"a"]);
    let uri = Uri::from_path(root.path()).expect("a path");
    let raised = AtomicBool::new(true);
    let stopped = list(&uri, &OriginOptions::default(), Selection::default(), &|_| {}, &raised);
    assert!(matches!(stopped, Err(OriginError::Cancelled { .. })));
    raised.store(false, Ordering::Relaxed);
    let found = list(&uri, &OriginOptions::default(), Selection::default(), &|_| {}, &raised).expect("one");
    assert_eq!(found.objects.len(), 1);
}

#[test]
fn progress_ends_at_the_totals() {
    let root = tree(&[b"a/1", b"b/22", b"c/d/333"]);
    let last = Mutex::new(ListProgress::default());
    let note = |now: ListProgress| {
        let mut last = last.lock().expect("no panic");
        if now.steps > last.steps {
            *last = now;
        }
    };
    let uri = Uri::from_path(root.path()).expect("a path");
    list(&uri, &OriginOptions::default(), Selection::default(), &note, &AtomicBool::new(false))
        .expect("a listing");
    let last = *last.lock().expect("no panic");
    assert_eq!(last.steps, 5);
    assert!(last.objects <= 3 && last.bytes <= 14, "{last:?}");
}
