// SPDX-License-Identifier: Apache-2.0
//! A directory as an origin: its guarantees and failures.

use super::*;
use crate::conformance;
use crate::test_support::{MemoryIndex, open_directory, read, with_queue};

#[test]
fn a_directory_has_the_guarantees_of_reads() {
    for threads in [1, 2, 64] {
        conformance::check_reads(|completions, samples| open_directory(completions, samples, threads));
    }
}

#[test]
fn an_origin_is_never_written_to() {
    let completions = Completions::new(|| {});
    let filled = open_directory(completions.clone(), &[vec![1, 2, 3]], 2);
    let payload = crate::Payload::from_vec(vec![9]);
    filled.tier.submit(Op::Write { ticket: Ticket(1), key: filled.keys[0], payload });
    filled.tier.submit(Op::Drop { ticket: Ticket(2), key: filled.keys[0] });
    let mut done = Vec::new();
    completions.drain(&mut done);
    assert!(done.len() == 2 && done.iter().all(|done| done.outcome == ReadOutcome::Failed), "{done:?}");
}

/// One file `a` of three bytes, read with the index that `prepare` fills.
fn outcome_for(prepare: impl FnOnce(&Path, &mut MemoryIndex)) -> crate::Done {
    let root = tempfile::tempdir().expect("a directory");
    std::fs::write(root.path().join("a"), b"abc").expect("a file");
    let mut index = MemoryIndex::default();
    prepare(root.path(), &mut index);
    let (origin, queue) = with_queue(|completions| {
        PosixOrigin::new(root.path(), Arc::new(index), completions, 2).expect("a directory")
    });
    read(&origin, &queue, 0, 3).0
}

#[test]
fn a_changed_file_is_detected_and_named() {
    let done = outcome_for(|root, index| {
        let stat = rustix::fs::stat(root.join("a")).expect("a file");
        index.add(b"a", None, 3, &tag_of(&stat, false));
        std::fs::write(root.join("a"), b"xyzw").expect("a file");
    });
    assert_eq!(done.outcome, ReadOutcome::Changed);
    assert!(done.detail.message.is_some_and(|message| message.contains("/a: the file has changed")));
}

#[test]
fn another_inode_is_a_change_only_if_the_tag_has_the_inode_number() {
    for (with_inode, expected) in [(false, ReadOutcome::Ok), (true, ReadOutcome::Changed)] {
        let done = outcome_for(|root, index| {
            let stat = rustix::fs::stat(root.join("a")).expect("a file");
            index.add(b"a", None, 3, &tag_of(&stat, with_inode));
            let copy = root.join("copy");
            std::fs::copy(root.join("a"), &copy).expect("a copy");
            let times =
                std::fs::metadata(root.join("a")).and_then(|original| original.modified()).expect("a time");
            std::fs::File::options()
                .write(true)
                .open(&copy)
                .and_then(|file| file.set_modified(times))
                .expect("set");
            std::fs::rename(copy, root.join("a")).expect("replaced");
        });
        assert_eq!(done.outcome, expected);
    }
}

#[test]
fn a_directory_in_place_of_a_file_is_reported_as_a_change() {
    for tagged in [false, true] {
        let done = outcome_for(|root, index| {
            let stat = rustix::fs::stat(root.join("a")).expect("a file");
            let tag = tag_of(&stat, false);
            index.add(b"a", None, 3, if tagged { &tag } else { b"" });
            std::fs::remove_file(root.join("a")).expect("a file");
            std::fs::create_dir(root.join("a")).expect("a directory");
        });
        assert_eq!(done.outcome, ReadOutcome::Changed, "{done:?}");
        let message = done.detail.message.expect("a failure has a message");
        assert!(message.contains("/a: it is a directory") && message.contains("index"), "{message}");
    }
}

#[test]
fn a_short_file_without_a_tag_is_retryable() {
    let done = outcome_for(|_, index| index.add(b"a", Some(1), 3, b""));
    assert_eq!((done.outcome, done.bytes.get()), (ReadOutcome::Retryable, 2));
}

#[test]
fn open_and_stat_are_measured_separately() {
    let done = outcome_for(|root, index| {
        let stat = rustix::fs::stat(root.join("a")).expect("a file");
        index.add(b"a", None, 3, &tag_of(&stat, false));
    });
    assert!(done.detail.open.is_some_and(|open| open <= done.service), "{done:?}");
    assert!(done.detail.stat.is_some_and(|stat| stat <= done.service), "{done:?}");
}

#[test]
fn keys_that_leave_the_root_are_refused() {
    for key in [b"../a".as_slice(), b"b/../../a", b"/etc/hostname", b"", b"a\0b", b".."] {
        assert_eq!(
            outcome_for(|_, index| index.add(key, None, 3, b"")).outcome,
            ReadOutcome::Failed,
            "{key:?}"
        );
    }
    assert!(safe_key(b"..a/b..") && safe_key(b"./a"));
}

#[test]
fn a_pipe_under_a_samples_name_fails_instead_of_hanging() {
    let done = outcome_for(|root, index| {
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, root.join("p"), kind, Mode::RUSR, 0).expect("a pipe");
        index.add(b"p", None, 3, b"");
    });
    assert_eq!(done.outcome, ReadOutcome::Failed, "{done:?}");
}

#[test]
fn a_panic_of_the_locator_only_ends_its_own_read() {
    let done = outcome_for(|_, index| index.panic_at(0));
    assert_eq!(done.outcome, ReadOutcome::Failed);
}

#[test]
fn header_reads_are_cut_at_the_end_of_the_file() {
    let root = tempfile::tempdir().expect("a directory");
    std::fs::write(root.path().join("a"), b"abcdef").expect("a file");
    let uri = Uri::from_path(root.path()).expect("a path");
    let options = OriginOptions::default();
    let reader = crate::ObjectReader::open(&uri, &options).expect("settings");
    let read = |key: &[u8], range| reader.read(key, range);
    assert_eq!(read(b"a", None).expect("a file"), b"abcdef");
    assert_eq!(read(b"a", Some(4..100)).expect("a file"), b"ef");
    assert_eq!(read(b"a", Some(50..100)).expect("a file"), b"");
    assert!(matches!(read(b"x", None), Err(OriginError::NoFile { .. })));
    std::fs::create_dir(root.path().join("d")).expect("a directory");
    assert!(matches!(read(b"d", Some(0..3)), Err(OriginError::Changed { .. })));
    assert!(matches!(read(b"../a", None), Err(OriginError::BadKey { .. })));
}
