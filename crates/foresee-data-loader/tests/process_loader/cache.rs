// SPDX-License-Identifier: Apache-2.0
//! Reads of a distant origin that the caches avoid, within a run and between runs.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use foresee_data_loader::{Loader, LoaderOptions};
use foresee_ledger::Op;
use foresee_testkit::wait_until;
use foresee_units::Source;

use crate::origin::Testbed;
use crate::support::{DataSet, cache, epochs, expected, ids_of, next, read_from, run};

/// Capacity for any data set of these tests, and for the reserve of the disk tier.
const DISK: u64 = 64 << 20;

/// Run all epochs, and take each batch only when it is ready: without a wait no copy is dropped.
fn run_without_waits(set: &DataSet, loader: &Loader, options: &LoaderOptions) {
    loader.start(std::time::Duration::ZERO).expect("an origin and caches");
    for number in 0..options.epochs.expect("a run that ends") {
        let batches = std::iter::from_fn(|| {
            wait_until("a batch is ready", || loader.stats().ready > 0);
            next(loader).expect("a batch or the end")
        });
        let batches: Vec<_> = batches.inspect(|batch| set.check(batch)).map(|batch| ids_of(&batch)).collect();
        assert_eq!(batches, expected(options, number, 0), "epoch {number}");
    }
}

/// Samples at an origin so distant that a copy on disk is always faster.
fn distant(sizes: &[u64]) -> Testbed {
    Testbed::serve(sizes, &[("latency_ms", "200")])
}

/// Wait until the disk tier has stored every sample, because pending copies are dropped at the end.
fn wait_for_disk(set: &DataSet, loader: &Loader) {
    wait_until("the disk has stored every sample", || {
        loader.stats().totals.done(Op::Write, Source::Disk).is_some_and(|done| done.samples == set.len())
    });
}

/// Run twice on one cache directory that can hold all; `check` each run at its end.
fn run_twice(set: &DataSet, ram: u64, options: &LoaderOptions, check: impl Fn(&Loader)) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for first in [true, false] {
        let loader = set.loader(&cache(ram, Some(dir.path()), DISK), options.clone());
        run_without_waits(set, &loader, options);
        assert_eq!(read_from(&loader, Source::Origin), if first { set.len() } else { 0 });
        check(&loader);
        if first {
            wait_for_disk(set, &loader);
        }
        loader.close();
    }
}

#[test]
fn each_sample_is_read_at_the_origin_once_if_memory_and_disk_together_hold_the_data() {
    let testbed = distant(&[3000; 60]);
    let set = testbed.data_set();
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut options = epochs(set, 4);
    let memory = set.ram_for(&mut options, 25 * 3008);
    let loader = set.loader(&cache(memory, Some(dir.path()), DISK), options.clone());
    run_without_waits(set, &loader, &options);
    assert_eq!(read_from(&loader, Source::Origin), 60);
    assert!(read_from(&loader, Source::Disk) > 0, "the disk serves what memory cannot hold");
    let served =
        [Source::Origin, Source::Ram, Source::Disk, Source::Staging].map(|from| read_from(&loader, from));
    assert_eq!(served.iter().sum::<u64>(), 4 * 60, "every sample of every batch is counted once: {served:?}");
}

#[test]
fn if_the_disk_can_hold_all_the_next_run_finds_the_samples_of_memory_there_and_copies_them_up() {
    let testbed = distant(&[2000; 40]);
    let set = testbed.data_set();
    let mut options = epochs(set, 3);
    let ram = set.ram_for(&mut options, 20 * 2048);
    run_twice(set, ram, &options, |loader| {
        assert!(
            read_from(loader, Source::Ram) >= 20,
            "half of the data are in memory from the second epoch on"
        );
    });
}

#[test]
fn a_run_of_one_epoch_fills_a_disk_that_can_hold_all_for_the_next_run() {
    let testbed = distant(&[2000; 40]);
    let set = testbed.data_set();
    run_twice(set, 0, &epochs(set, 1), |_| {});
}

#[test]
fn a_second_run_finds_the_first_ones_samples_on_disk() {
    let testbed = distant(&[2000; 40]);
    let set = testbed.data_set();
    run_twice(set, 0, &epochs(set, 2), |loader| {
        let later = read_from(loader, Source::Disk) + read_from(loader, Source::Staging);
        assert_eq!(later + read_from(loader, Source::Origin), 2 * 40);
    });
}

#[test]
fn flipped_bytes_on_disk_cost_reads_and_never_a_batch() {
    let testbed = distant(&[2000; 40]);
    let set = testbed.data_set();
    let dir = tempfile::tempdir().expect("a temporary folder");
    let options = epochs(set, 2);
    let first = set.loader(&cache(0, Some(dir.path()), DISK), options.clone());
    run_without_waits(set, &first, &options);
    wait_for_disk(set, &first);
    first.close();
    let flipped: usize = segments(dir.path()).iter().map(|path| flip(path, 5000)).sum();
    assert!(flipped > 5, "{flipped} bytes");
    let second = set.loader(&cache(0, Some(dir.path()), DISK), options.clone());
    run(set, &second, &options);
    let corrupt = second.stats().totals.failed(Op::Read, Source::Disk).expect("found").count;
    assert!(corrupt > 5, "{corrupt} corrupt reads");
    assert!(read_from(&second, Source::Origin) >= corrupt);
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(segments(&path));
        } else if path.extension().is_some_and(|extension| extension == "seg") {
            found.push(path);
        }
    }
    found
}

/// Flip a bit in every `step`-th byte; return their number.
fn flip(path: &Path, step: usize) -> usize {
    let file = fs::File::options().read(true).write(true).open(path).expect("a segment");
    let len = usize::try_from(file.metadata().expect("its size").len()).expect("small");
    for at in (1000..len).step_by(step) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at as u64).expect("inside");
        file.write_all_at(&[byte[0] ^ 4], at as u64).expect("inside");
    }
    (1000..len).step_by(step).count()
}
