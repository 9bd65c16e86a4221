// SPDX-License-Identifier: Apache-2.0
//! What a loader takes of its process, and that it gives it back.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use foresee_data_loader::{Loader, LoaderError, LoaderOptions, Next};
use foresee_units::Bytes;

use crate::support::{DataSet, alone, cache, epoch, eventually, expected, next, ram};

const DISK: u64 = 64 << 20;

/// The figure behind a name in what Linux says of this process.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let figure = status.lines().find_map(|line| line.strip_prefix(name)).expect("a figure");
    figure.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
}

/// How many threads loaders have, in a process that a test has alone: all but its first and the test's own. Counted by
/// Linux, since a thread that comes up has no name of ours yet, and a listing may leave some out while others end.
fn threads() -> u64 {
    status("Threads:") - 2
}

/// Whether a thread of this name is there.
fn has_thread(name: &str) -> bool {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux").filter_map(Result::ok);
    // A thread that ends between the listing and the look has no name any more.
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
        .any(|found| found.trim() == name)
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("Linux").count()
}

/// Resident memory in bytes.
fn resident() -> u64 {
    status("VmRSS:") << 10
}

fn long_run(set: &DataSet, epochs: u64) -> LoaderOptions {
    LoaderOptions { epochs: Some(epochs), staging: Some(Bytes::new(64 << 10)), ..set.options() }
}

#[test]
fn no_thread_and_no_descriptor_is_left_after_close() {
    alone("life::no_thread_and_no_descriptor_is_left_after_close", || {
        let set = DataSet::files(&[4000; 40]);
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut options = long_run(&set, 3);
        let budget = set.ram_for(&mut options, 60_000);
        let before = descriptors();
        for stop_after in [0, 1, 7, 40] {
            let loader = set.loader(&cache(budget, Some(dir.path()), DISK), options.clone());
            assert_eq!(threads(), 0, "no thread before the start");
            for _ in 0..stop_after {
                next(&loader).expect("a batch or an end");
            }
            loader.start().expect("a folder");
            eventually("the driver has come up", || has_thread("foresee-driver"));
            loader.close();
            eventually("all threads are gone", || threads() == 0);
            // The memory of the cache is a descriptor too, and stays as long as the cache.
            drop(loader);
            assert_eq!(descriptors(), before);
        }
    });
}

#[test]
fn fifty_epochs_take_no_more_memory_and_descriptors_than_ten() {
    alone("life::fifty_epochs_take_no_more_memory_and_descriptors_than_ten", || {
        let set = DataSet::files(&[20_000; 100]);
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut options = long_run(&set, 60);
        options.staging = Some(Bytes::new(400_000));
        let budget = set.ram_for(&mut options, 800_000);
        let loader = set.loader(&cache(budget, Some(dir.path()), DISK), options.clone());
        let run = |epochs: std::ops::Range<u64>| {
            for number in epochs {
                assert_eq!(epoch(&set, &loader), expected(&options, number, 0));
            }
            (resident(), descriptors())
        };
        let (memory, files) = run(0..10);
        let (later, files_later) = run(10..60);
        // Allocators round; a leak of one batch per epoch alone would be 4 MB.
        assert!(later < memory + (2 << 20), "{memory} bytes, then {later}");
        // The order's thread may be between two epochs; readers keep no file open between reads.
        assert!(files_later <= files + 4, "{files} descriptors, then {files_later}");
    });
}

#[test]
fn loaders_come_and_go_without_a_trace() {
    alone("life::loaders_come_and_go_without_a_trace", || {
        let set = DataSet::files(&[3000; 30]);
        let mut options = long_run(&set, 2);
        let shared = ram(set.ram_for(&mut options, 60_000));
        let once = |stop_after: usize| {
            let loader = set.loader(&shared, options.clone());
            for _ in 0..stop_after {
                next(&loader).expect("a batch or an end");
            }
        };
        (0..10).for_each(&once);
        eventually("all threads are gone", || threads() == 0);
        let (memory, files) = (resident(), descriptors());
        (0..60).for_each(|turn| once(turn % 10));
        eventually("all threads are gone", || threads() == 0);
        assert_eq!(descriptors(), files);
        assert!(resident() < memory + (2 << 20), "{memory} bytes, then {}", resident());
    });
}

#[test]
fn a_wait_without_limit_ends_by_a_batch_or_by_close() {
    let set = DataSet::files(&[100; 8]);
    let loader = set.loader(&ram(0), set.options());
    assert!(matches!(loader.next_batch(Duration::MAX), Ok(Next::Batch(_))));
    let never_told = set.loader(&ram(0), LoaderOptions { order: None, epochs: None, ..set.options() });
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| never_told.next_batch(Duration::MAX));
        never_told.close();
        assert!(matches!(waiter.join().expect("no panic"), Err(LoaderError::Closed)));
    });
}

#[test]
fn a_closed_loader_says_so_and_can_be_closed_again() {
    let set = DataSet::files(&[100; 8]);
    let loader = set.loader(&ram(0), set.options());
    next(&loader).expect("a batch");
    loader.close();
    loader.close();
    assert!(matches!(next(&loader), Err(LoaderError::Closed)));
    assert!(matches!(loader.start(), Err(LoaderError::Closed)));
    let never_started = set.loader(&ram(0), set.options());
    never_started.close();
    assert!(matches!(never_started.start(), Err(LoaderError::Closed)));
}

#[test]
fn many_threads_may_close_ask_and_seek_at_once() {
    let set = DataSet::files(&[300; 40]);
    for _ in 0..10 {
        let loader: Arc<Loader> = Arc::new(set.loader(&ram(0), long_run(&set, 50)));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| while next(&loader).is_ok() {});
            }
            scope.spawn(|| {
                for number in 0..20 {
                    loader.seek(foresee_units::Epoch(number % 5), number).expect("a place inside");
                    loader.stats();
                }
                loader.close();
            });
        });
        assert!(matches!(next(&loader), Err(LoaderError::Closed)));
    }
}

#[test]
fn a_configuration_with_several_faults_names_them_all() {
    let set = DataSet::files(&[1000; 8]);
    let options = LoaderOptions {
        batch_size: 0,
        epochs: Some(0),
        threads: Some(0),
        staging: Some(Bytes::new(10)),
        ..set.options()
    };
    let error = Loader::new(set.index.clone(), ram(0), options).expect_err("nothing of it fits");
    let LoaderError::Config { faults } = &error else { panic!("{error}") };
    assert_eq!(faults.len(), 4, "{error}");
}

#[test]
fn a_run_folder_gets_a_ledger_and_one_that_cannot_be_written_is_named() {
    let set = DataSet::files(&[1000; 8]);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let options = LoaderOptions { run_dir: Some(dir.path().join("run")), ..set.options() };
    let loader = set.loader(&ram(0), options);
    epoch(&set, &loader);
    loader.close();
    let ledger = fs::read(dir.path().join("run/ledger/rank-0.arrow")).expect("a ledger");
    assert!(ledger.len() > 100 && loader.stats().ledger_lost.is_none());
    let blocked = LoaderOptions { run_dir: Some(set.path(0)), ..set.options() };
    let error = set.loader(&ram(0), blocked).start().expect_err("a file is in the way");
    assert!(
        matches!(error, LoaderError::RunFolder { .. }) && error.to_string().contains("000000"),
        "{error}"
    );
}
