// SPDX-License-Identifier: Apache-2.0
//! What the caches spare an origin that is far away, within a run and from one run to the next.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use foresee_data_loader::{Loader, LoaderOptions};
use foresee_ledger::Op;
use foresee_testkit::wait_until;
use foresee_units::Source;

use crate::origin::Testbed;
use crate::support::{DataSet, cache, epochs, expected, ids_of, next, read_from, run};

/// Room for any data set of these tests, and for what the disk tier keeps back.
const DISK: u64 = 64 << 20;

/// All epochs of a run, each batch taken only when it is ready: where nobody waits no copy is given up for him.
fn run_at_ease(set: &DataSet, loader: &Loader, options: &LoaderOptions) {
    loader.start().expect("an origin and caches");
    for number in 0..options.epochs.expect("a run that ends") {
        let batches = std::iter::from_fn(|| {
            wait_until("a batch is ready", || loader.stats().ready > 0);
            next(loader).expect("a batch or the end")
        });
        let batches: Vec<_> = batches.inspect(|batch| set.check(batch)).map(|batch| ids_of(&batch)).collect();
        assert_eq!(batches, expected(options, number, 0), "epoch {number}");
    }
}

/// Samples at an origin so far away that a copy on disk is always the sooner one.
fn far(sizes: &[u64]) -> Testbed {
    Testbed::serve(sizes, &[("latency_ms", "200")])
}

/// Until the disk tier has taken every sample: copies that it had no hand free for yet are given up at the end.
fn all_on_disk(set: &DataSet, loader: &Loader) {
    wait_until("the disk has taken every sample", || {
        loader.stats().totals.done(Op::Write, Source::Disk).is_some_and(|done| done.samples == set.len())
    });
}

/// Two runs on one cache directory with room for all; each is looked at when it has ended.
fn run_twice(set: &DataSet, ram: u64, options: &LoaderOptions, look: impl Fn(&Loader)) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for first in [true, false] {
        let loader = set.loader(&cache(ram, Some(dir.path()), DISK), options.clone());
        run_at_ease(set, &loader, options);
        assert_eq!(read_from(&loader, Source::Origin), if first { set.len() } else { 0 });
        look(&loader);
        if first {
            all_on_disk(set, &loader);
        }
        loader.close();
    }
}

#[test]
fn each_sample_is_read_at_the_origin_once_where_memory_and_disk_together_hold_the_data() {
    let testbed = far(&[3000; 60]);
    let set = testbed.data_set();
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut options = epochs(set, 4);
    let memory = set.ram_for(&mut options, 25 * 3008);
    let loader = set.loader(&cache(memory, Some(dir.path()), DISK), options.clone());
    run_at_ease(set, &loader, &options);
    assert_eq!(read_from(&loader, Source::Origin), 60);
    assert!(read_from(&loader, Source::Disk) > 0, "the disk serves what memory cannot hold");
    let served =
        [Source::Origin, Source::Ram, Source::Disk, Source::Staging].map(|from| read_from(&loader, from));
    assert_eq!(served.iter().sum::<u64>(), 4 * 60, "every sample of every batch is booked once: {served:?}");
}

#[test]
fn where_the_disk_has_room_for_all_the_next_run_finds_there_what_memory_held_and_takes_it_up_again() {
    let testbed = far(&[2000; 40]);
    let set = testbed.data_set();
    let mut options = epochs(set, 3);
    let ram = set.ram_for(&mut options, 20 * 2048);
    run_twice(set, ram, &options, |loader| {
        assert!(
            read_from(loader, Source::Ram) >= 20,
            "half of the data lie in memory from the second epoch on"
        );
    });
}

#[test]
fn a_run_of_one_epoch_fills_a_disk_with_room_for_all_for_the_next() {
    let testbed = far(&[2000; 40]);
    let set = testbed.data_set();
    run_twice(set, 0, &epochs(set, 1), |_| {});
}

#[test]
fn a_second_run_finds_the_first_ones_samples_on_disk() {
    let testbed = far(&[2000; 40]);
    let set = testbed.data_set();
    run_twice(set, 0, &epochs(set, 2), |loader| {
        let later = read_from(loader, Source::Disk) + read_from(loader, Source::Staging);
        assert_eq!(later + read_from(loader, Source::Origin), 2 * 40);
    });
}

#[test]
fn flipped_bytes_on_disk_cost_reads_and_never_a_batch() {
    let testbed = far(&[2000; 40]);
    let set = testbed.data_set();
    let dir = tempfile::tempdir().expect("a temporary folder");
    let options = epochs(set, 2);
    let first = set.loader(&cache(0, Some(dir.path()), DISK), options.clone());
    run_at_ease(set, &first, &options);
    all_on_disk(set, &first);
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

/// Flips a bit in every `step`-th byte; how many.
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
