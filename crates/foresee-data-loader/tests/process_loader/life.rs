// SPDX-License-Identifier: Apache-2.0
//! Threads, descriptors and memory of a loader, and their release. Each test runs alone in its own process.

use std::fs;

use foresee_data_loader::LoaderOptions;
use foresee_testkit::wait_until;
use foresee_units::Bytes;

use crate::support::{DataSet, cache, epoch, expected, next, ram};

const DISK: u64 = 64 << 20;

/// Run the named test alone in its own process.
pub(crate) fn alone(name: &str, body: impl FnOnce()) {
    const ALONE: &str = "FORESEE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let program = std::env::current_exe().expect("this program");
    let ran = std::process::Command::new(program)
        .args(["--exact", name, "--nocapture"])
        .env(ALONE, "1")
        .output()
        .expect("this program runs again");
    let output = [ran.stdout, ran.stderr].map(|out| String::from_utf8_lossy(&out).into_owned()).concat();
    assert!(ran.status.success() && output.contains("1 passed"), "{name}, alone: {output}");
}

/// A number of `/proc/self/status`.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let value = status.lines().find_map(|line| line.strip_prefix(name)).expect("a number");
    value.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
}

/// Threads of loaders: all of the process except for the first and that of the test. Linux counts them, because a new
/// thread has no name yet, and a listing may omit some while others end.
fn threads() -> u64 {
    status("Threads:") - 2
}

/// Whether a thread of this name exists.
fn has_thread(name: &str) -> bool {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux").filter_map(Result::ok);
    // A thread that ends after the listing has no name any more.
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
            loader.start(std::time::Duration::ZERO).expect("a folder");
            wait_until("the driver has started", || has_thread("foresee-driver"));
            loader.close();
            wait_until("all threads are gone", || threads() == 0);
            // The memory of the cache has a descriptor, which exists as long as the cache.
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
        // Allocators round; a leak of one batch per epoch would be 4 MB.
        assert!(later < memory + (2 << 20), "{memory} bytes, then {later}");
        // The thread that draws the order may be between two epochs; readers close files between reads.
        assert!(files_later <= files + 4, "{files} descriptors, then {files_later}");
    });
}

#[test]
fn closed_loaders_leave_no_threads_descriptors_or_memory() {
    alone("life::closed_loaders_leave_no_threads_descriptors_or_memory", || {
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
        wait_until("all threads are gone", || threads() == 0);
        let (memory, files) = (resident(), descriptors());
        (0..60).for_each(|turn| once(turn % 10));
        wait_until("all threads are gone", || threads() == 0);
        assert_eq!(descriptors(), files);
        assert!(resident() < memory + (2 << 20), "{memory} bytes, then {}", resident());
    });
}
