// SPDX-License-Identifier: Apache-2.0
//! Reads of the origin that the caches avoid; no fault of a cache changes a batch.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use foresee_data_loader::{EpochSamples, Loader, LoaderError, LoaderOptions};
use foresee_data_plan::SampleSizes;
use foresee_ledger::Op;
use foresee_sim::SizeTable;
use foresee_testkit::wait_until;
use foresee_units::{Bytes, Epoch, Source, World};

use crate::hits::{PolicyKind, simulate};
use crate::support::{
    DataSet, cache, epoch, epochs, expected, ids_of, index_of, next, ram, read_from, run, sample_ids,
    write_sample,
};

/// Capacity for any data set of these tests, and for the reserve of the disk tier.
const DISK: u64 = 64 << 20;

#[test]
fn each_sample_is_read_at_the_origin_once_if_memory_holds_the_data() {
    let set = DataSet::files(&[1000; 60]);
    let mut options = epochs(&set, 5);
    let loader = set.loader(&ram(set.ram_for(&mut options, 60 * 1024)), options.clone());
    run(&set, &loader, &options);
    assert_eq!(read_from(&loader, Source::Origin), 60);
    assert_eq!(read_from(&loader, Source::Ram) + read_from(&loader, Source::Staging), 4 * 60);
    assert_eq!(loader.stats().totals.done(Op::Write, Source::Ram).expect("copies").samples, 60);
}

#[test]
fn large_samples_are_stored_on_disk_and_read_back_unchanged() {
    let set = DataSet::files(&[70_000, 200_001, 65_536, 65_535, 131_072, 99_999, 70_000, 1]);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let options = LoaderOptions { batch_size: 2, ..epochs(&set, 4) };
    let loader = set.loader(&cache(0, Some(dir.path()), DISK), options.clone());
    run(&set, &loader, &options);
    assert_eq!(loader.stats().totals.failed(Op::Read, Source::Disk).map(|tally| tally.count), None);
}

#[test]
fn the_simulator_predicts_the_hits_of_a_run() {
    let set = DataSet::files(&[640; 80]);
    for percent in [0, 20, 50, 90, 100] {
        let capacity = set.bytes() * percent / 100;
        let mut options = LoaderOptions { staging: Some(Bytes::new(3 * 4 * 640)), ..epochs(&set, 5) };
        let memory = set.ram_for(&mut options, capacity);
        let order: Vec<_> = (0..5).map(|number| expected(&options, number, 0)).collect();
        // The run is one epoch, so that the loader knows as much as the simulator from the first access on.
        let loader = set.loader(&ram(memory), LoaderOptions { order: None, epochs: None, ..options });
        let whole = order.concat();
        let samples = EpochSamples { ids: &whole.concat(), lengths: None };
        loader.begin_epoch(Epoch(0), 0, Some(samples)).expect("ids of the data set");
        assert_eq!(epoch(&set, &loader), whole);
        let accesses: Vec<_> = order.iter().map(|batches| sample_ids(batches)).collect();
        let sizes: Arc<dyn SampleSizes> = Arc::new(SizeTable::Uniform { count: 80, size: Bytes::new(640) });
        let reports = simulate(PolicyKind::PLANNER, &accesses, &sizes, Bytes::new(capacity));
        let hits: u64 = reports.iter().map(|report| report.hits).sum();
        let [memory, origin, joined] =
            [Source::Ram, Source::Origin, Source::Staging].map(|source| read_from(&loader, source));
        // A sample that is wanted again while it is in flight is neither a hit nor another read.
        assert!(memory <= hits && hits <= memory + joined, "{percent} %: {hits}, {memory} and {joined}");
        assert_eq!(memory + origin + joined, 5 * 80);
    }
}

#[test]
fn only_a_sample_whose_origin_has_changed_is_copied_again() {
    let set = DataSet::files(&[2000; 20]);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let options = epochs(&set, 2);
    let first = set.loader(&cache(0, Some(dir.path()), DISK), options.clone());
    run(&set, &first, &options);
    // The last copies are still being written.
    wait_until("all samples on the disk", || {
        first.stats().totals.done(Op::Write, Source::Disk).is_some_and(|done| done.samples == 20)
    });
    first.close();
    let of_first = set.index.fingerprint();
    fs::write(set.dir.path().join("000003"), [9; 2000]).expect("a file");
    let index = index_of(&set.uri, set.index.layout().options(), None);
    assert_ne!(index.fingerprint(), of_first, "another data set, of mostly the same objects");
    let second = Loader::new(index, cache(0, Some(dir.path()), DISK), options).expect("a configuration");
    let mut seen = 0;
    while let Some(batch) = next(&second).expect("a batch or the end") {
        assert!(batch.faults.is_empty(), "{:?}", batch.faults);
        for (place, id) in batch.ids.iter().enumerate() {
            let changed = crate::support::sample_of(&batch, place) == [9; 2000];
            assert_eq!(changed, id.0 == 3, "sample {id}");
            seen += 1;
        }
    }
    assert_eq!(seen, 20);
    // A sample on a disk that is late may be read at the origin too, but is not copied again.
    let copied = || second.stats().totals.done(Op::Write, Source::Disk).map_or(0, |done| done.samples);
    wait_until("a copy of the changed sample", || copied() > 0);
    second.close();
    assert_eq!(copied(), 1, "all others were on the disk");
    assert!(read_from(&second, Source::Disk) > 0, "nothing is late before the first batch");
}

#[test]
fn a_cache_directory_that_cannot_be_used_is_named_before_the_first_batch() {
    let set = DataSet::files(&[10; 4]);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("in-the-way");
    fs::write(&file, b"a file").expect("a file");
    let loader = set.loader(&cache(0, Some(&file), DISK), set.options());
    let error = loader.start(std::time::Duration::ZERO).expect_err("a file is no directory");
    assert!(matches!(error, LoaderError::Disk(_)), "{error}");
    assert!(error.to_string().contains("in-the-way"), "{error}");

    let locked = dir.path().join("locked");
    fs::create_dir(&locked).expect("a folder");
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).expect("permissions");
    if fs::write(locked.join("probe"), b"").is_ok() {
        return; // Root may write everywhere.
    }
    let error = set
        .loader(&cache(0, Some(&locked), DISK), set.options())
        .start(std::time::Duration::ZERO)
        .expect_err("read-only");
    assert!(error.to_string().contains("locked"), "{error}");
}

#[test]
fn a_start_that_failed_can_be_tried_again() {
    let set = DataSet::files(&[10; 4]);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("cache");
    fs::write(&file, b"a file").expect("a file");
    let loader = set.loader(&cache(0, Some(&file), DISK), set.options());
    loader.start(std::time::Duration::ZERO).expect_err("a file is no directory");
    fs::remove_file(&file).expect("the file exists");
    assert_eq!(epoch(&set, &loader), expected(&set.options(), 0, 0));
}

#[test]
fn two_loaders_use_one_cache_directory_at_once() {
    let set = DataSet::files(&[2000; 40]);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let options = |rank| LoaderOptions {
        world: World::new(rank, 2).expect("inside"),
        local_world: World::new(rank, 2).expect("inside"),
        ..epochs(&set, 3)
    };
    let loaders = [0, 1].map(|rank| set.loader(&cache(0, Some(dir.path()), DISK), options(rank)));
    std::thread::scope(|scope| {
        for (rank, loader) in (0..).zip(&loaders) {
            let (set, options) = (&set, options(rank));
            scope.spawn(move || run(set, loader, &options));
        }
    });
}

#[test]
fn two_loaders_share_one_memory_and_never_hold_more_than_it() {
    let train = DataSet::files(&[1024; 200]);
    let valid = DataSet::files(&[1000; 100]);
    let options = |set: &DataSet, seed| LoaderOptions {
        epochs: Some(6),
        order: Some(set.shuffled(seed)),
        staging: Some(Bytes::new(16 * 1024)),
        ..set.options()
    };
    let budget = (150 << 10) + train.listing() + valid.listing();
    let shared = ram(budget);
    let (first, second) = (options(&train, 1), options(&valid, 2));
    let trainer = train.loader(&shared, first.clone());
    for number in 0..2 {
        assert_eq!(epoch(&train, &trainer), expected(&first, number, 0));
    }
    let before = used(&trainer);
    assert!(before > Bytes::new(90 << 10), "alone it fills its share: {before}");
    let validator = valid.loader(&shared, second.clone());
    validator.start(std::time::Duration::ZERO).expect("both fit");
    for number in 2..6 {
        assert_eq!(epoch(&train, &trainer), expected(&first, number, 0));
        assert_eq!(epoch(&valid, &validator), expected(&second, number - 2, 0));
        for loader in [&trainer, &validator] {
            for (facts, _) in loader.stats().driver.tiers {
                assert!(facts.used <= facts.capacity, "{facts:?}");
            }
        }
    }
    wait_until("both shares together leave the staging buffers their memory", || {
        used(&trainer) + used(&validator) <= Bytes::new(budget - 2 * (16 << 10))
    });
    assert!(used(&trainer) > Bytes::ZERO && used(&validator) > Bytes::ZERO);
    validator.close();
    trainer.close();
}

#[test]
fn a_closed_loader_returns_its_memory() {
    let set = DataSet::files(&[1024; 64]);
    let mut options = LoaderOptions { staging: Some(Bytes::new(16 << 10)), ..epochs(&set, 3) };
    let shared = ram(set.ram_for(&mut options, 64 << 10));
    for _ in 0..3 {
        let loader = set.loader(&shared, options.clone());
        run(&set, &loader, &options);
        assert_eq!(read_from(&loader, Source::Origin), 64, "the memory tier was empty again");
    }
}

fn used(loader: &Loader) -> Bytes {
    loader.stats().driver.tiers.first().map_or(Bytes::ZERO, |(_, used)| *used)
}

#[test]
fn staged_bytes_stay_within_the_staging_buffer() {
    let set = DataSet::files(&[4000; 64]);
    let staging = Bytes::new(4 * 4 * 4000);
    let mut options = LoaderOptions { staging: Some(staging), ..epochs(&set, 3) };
    let loader = set.loader(&ram(set.ram_for(&mut options, 64 * 4032)), options.clone());
    for number in 0..3 {
        for batch in expected(&options, number, 0) {
            let got = next(&loader).expect("a batch").expect("not the end");
            assert_eq!(ids_of(&got), batch);
            let staged = loader.stats().driver.staged.1;
            assert!(staged <= staging, "{staged} are staged");
        }
        assert!(next(&loader).expect("the end").is_none());
    }
}

#[test]
fn batches_that_the_consumer_holds_do_not_change() {
    let set = DataSet::files(&[700; 50]);
    let mut options = epochs(&set, 3);
    let loader = set.loader(&ram(set.ram_for(&mut options, 20_000)), options);
    let mut held = Vec::new();
    for _ in 0..3 {
        while let Some(batch) = next(&loader).expect("a batch or the end") {
            held.push(batch);
        }
    }
    loader.close();
    drop(loader);
    assert_eq!(held.len(), 3 * 13);
    for batch in &held {
        set.check(batch);
    }
}

#[test]
fn a_file_that_is_replaced_during_a_run_is_a_fault_of_its_sample_only() {
    let set = DataSet::files(&[500; 12]);
    let options = epochs(&set, 2);
    let loader = set.loader(&ram(0), options.clone());
    fs::remove_file(set.path(5)).expect("the file exists");
    write_sample(set.dir.path(), 12, 500);
    fs::rename(set.path(12), set.path(7)).expect("a rename");
    let mut batches = Vec::new();
    let mut faults = Vec::new();
    while let Some(batch) = next(&loader).expect("a batch or the end") {
        set.check(&batch);
        faults.extend(batch.faults.iter().map(|fault| (batch.ids[fault.index].0, fault.kind())));
        batches.push(ids_of(&batch));
    }
    faults.sort_unstable();
    assert_eq!(faults, [(5, "missing"), (7, "changed")]);
    assert_eq!(batches, expected(&options, 0, 0), "the epoch has its full length");
}
