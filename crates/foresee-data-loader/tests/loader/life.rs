// SPDX-License-Identifier: Apache-2.0
//! Configuration, close, and run folder of a loader.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use foresee_data_loader::{Loader, LoaderError, LoaderOptions, Next};
use foresee_units::Bytes;

use crate::support::{DataSet, epoch, next, ram};

fn long_run(set: &DataSet, epochs: u64) -> LoaderOptions {
    LoaderOptions { epochs: Some(epochs), staging: Some(Bytes::new(64 << 10)), ..set.options() }
}

#[test]
fn a_wait_without_limit_ends_by_a_batch_or_by_close() {
    let set = DataSet::files(&[100; 8]);
    let loader = set.loader(&ram(0), set.options());
    assert!(matches!(loader.next_batch(Duration::MAX), Ok(Next::Batch(_))));
    let without_order = set.loader(&ram(0), LoaderOptions { order: None, epochs: None, ..set.options() });
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| without_order.next_batch(Duration::MAX));
        without_order.close();
        assert!(matches!(waiter.join().expect("no panic"), Err(LoaderError::Closed)));
    });
}

#[test]
fn a_closed_loader_reports_it_and_can_be_closed_again() {
    let set = DataSet::files(&[100; 8]);
    let loader = set.loader(&ram(0), set.options());
    next(&loader).expect("a batch");
    loader.close();
    loader.close();
    assert!(matches!(next(&loader), Err(LoaderError::Closed)));
    assert!(matches!(loader.start(Duration::ZERO), Err(LoaderError::Closed)));
    let never_started = set.loader(&ram(0), set.options());
    never_started.close();
    assert!(matches!(never_started.start(Duration::ZERO), Err(LoaderError::Closed)));
}

#[test]
fn several_threads_may_close_request_and_begin_epochs_at_once() {
    let set = DataSet::files(&[300; 40]);
    for _ in 0..10 {
        let loader: Arc<Loader> = Arc::new(set.loader(&ram(0), long_run(&set, 50)));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| while next(&loader).is_ok() {});
            }
            scope.spawn(|| {
                for number in 0..20 {
                    loader
                        .begin_epoch(foresee_units::Epoch(number % 5), number, None)
                        .expect("a valid position");
                    loader.stats();
                }
                loader.close();
            });
        });
        assert!(matches!(next(&loader), Err(LoaderError::Closed)));
    }
}

#[test]
fn a_configuration_with_several_faults_reports_them_all() {
    let set = DataSet::files(&[1000; 8]);
    let options = LoaderOptions {
        batch_size: 0,
        epochs: Some(0),
        threads: Some(0),
        staging: Some(Bytes::new(10)),
        ..set.options()
    };
    let error = Loader::new(set.index.clone(), ram(0), options).expect_err("all of it is invalid");
    let LoaderError::Config { faults } = &error else { panic!("{error}") };
    assert_eq!(faults.len(), 4, "{error}");
}

#[test]
fn a_run_folder_gets_a_ledger_and_an_unwritable_one_is_named() {
    let set = DataSet::files(&[1000; 8]);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let options = LoaderOptions { run_dir: Some(dir.path().join("run")), ..set.options() };
    let loader = set.loader(&ram(0), options);
    epoch(&set, &loader);
    loader.close();
    let ledger = fs::read(dir.path().join("run/ledger/rank-0.arrow")).expect("a ledger");
    assert!(ledger.len() > 100 && loader.stats().ledger_failure.is_none());
    let blocked = LoaderOptions { run_dir: Some(set.path(0)), ..set.options() };
    let error = set.loader(&ram(0), blocked).start(Duration::ZERO).expect_err("a file is in the way");
    assert!(
        matches!(error, LoaderError::RunFolder { .. }) && error.to_string().contains("000000"),
        "{error}"
    );
}
