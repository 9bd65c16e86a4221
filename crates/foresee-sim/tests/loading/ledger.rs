// SPDX-License-Identifier: Apache-2.0
//! The ledger of a simulated run: its entries add up to the report, for every policy.

#![expect(clippy::cast_precision_loss, reason = "counts and times, all small")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use foresee_ledger::{Cause, Entry, Op, Subject};
use foresee_sim::loading::{
    Bucket, HandOver, OriginReaders, Place, Policy, Progress, Report, Run, RunError, Scenario,
};
use foresee_units::{Nanos, Source};

use crate::setups::{count, small};

fn with_bucket() -> Scenario {
    Scenario {
        bucket: Some(Bucket {
            miss: Nanos::from_millis(30),
            download: Nanos::from_millis(30),
            link: Nanos::ZERO,
            listing: Nanos::from_millis(20),
            hit: Nanos::from_millis(5),
            parallel: count(3),
            cache: Some(50),
            fetch: Some(20),
            threshold: None,
            strict: false,
        }),
        ..small()
    }
}

/// With memory and a disk.
fn logged(scenario: &Scenario, policy: Policy) -> Option<(Report, Vec<Entry>)> {
    let mut run = match Run::new(scenario, policy) {
        Err(RunError::Unsupported(_)) => return None,
        other => other.unwrap(),
    };
    let entries: Arc<Mutex<Vec<Entry>>> = Arc::default();
    let into = Arc::clone(&entries);
    run.write_to(&[Source::Ram, Source::Disk], Box::new(move |entry| into.lock().unwrap().push(entry)));
    while run.advance(u64::MAX) != Progress::Finished {}
    let report = run.report();
    drop(run);
    Some((report, Arc::into_inner(entries).unwrap().into_inner().unwrap()))
}

fn seconds<'a>(entries: impl Iterator<Item = &'a Entry>) -> (f64, usize) {
    entries.fold((0.0, 0), |(sum, rows), entry| (sum + entry.duration.as_secs_f64(), rows + 1))
}

/// Each row is rounded to the nearest nanosecond.
#[track_caller]
fn assert_sum<'a>(entries: impl Iterator<Item = &'a Entry>, expected: f64, what: &str) {
    let (sum, rows) = seconds(entries);
    assert!((sum - expected).abs() <= (rows + 1) as f64 * 1e-9, "{what}: {sum} instead of {expected}");
}

fn is_read_of(entry: &Entry, source: Source) -> bool {
    entry.op == Op::Read && entry.source == source
}

#[test]
fn entries_add_up_to_the_report() {
    let mut seen = 0;
    for (policy, hand_over) in
        HandOver::ALL.into_iter().flat_map(|hand_over| Policy::ALL.map(|policy| (policy, hand_over)))
    {
        let mut scenario = with_bucket();
        scenario.options.hand_over = hand_over;
        if hand_over == HandOver::Batch {
            scenario.options.readers = OriginReaders::Demand;
        }
        let Some((report, entries)) = logged(&scenario, policy) else { continue };
        seen += 1;
        let of = |place| report.from(place);
        let loads = report.loads.iter().fold((0, 0, 0.0), |(samples, bytes, seconds), load| {
            (samples + load.samples, bytes + load.bytes, seconds + load.seconds)
        });
        let windows = policy.reads_bucket();
        for (source, places) in [
            (Source::Origin, vec![Place::Origin]),
            (Source::Ram, vec![Place::Tier(0)]),
            (Source::Disk, vec![Place::Tier(1)]),
            (Source::Peer, vec![Place::Peer(0), Place::Peer(1)]),
        ] {
            let what = format!("{policy} {}", source.name());
            let rows: Vec<_> = entries.iter().filter(|entry| is_read_of(entry, source)).collect();
            let mut samples: u64 = places.iter().map(|&place| of(place).samples).sum();
            let mut bytes: u64 = places.iter().map(|&place| of(place).bytes).sum();
            let mut sum: f64 = places.iter().map(|&place| of(place).seconds).sum();
            if source == Source::Origin {
                (samples, bytes, sum) = (samples + loads.0, bytes + loads.1, sum + loads.2);
                assert_eq!(rows.len() as u64, report.origin_requests, "{what}");
                assert_eq!(
                    rows.iter().map(|row| row.bytes.get()).sum::<u64>(),
                    report.origin_bytes,
                    "{what}"
                );
            }
            if source == Source::Origin && windows {
                continue;
            }
            assert_eq!(rows.iter().map(|row| u64::from(row.samples)).sum::<u64>(), samples, "{what}");
            assert_eq!(rows.iter().map(|row| row.bytes.get()).sum::<u64>(), bytes, "{what}");
            assert_sum(rows.into_iter(), sum, &what);
        }
        let waits = || entries.iter().filter(|entry| entry.op == Op::Wait);
        assert_sum(waits(), report.stall, &format!("{policy} stall"));
        for (number, epoch) in report.epochs.iter().enumerate() {
            let of_epoch = |entry: &&Entry| entry.epoch.0 == number as u64;
            assert_sum(waits().filter(of_epoch), epoch.stall, &format!("{policy} stall of epoch {number}"));
            let last = waits().filter(of_epoch).map(|wait| wait.start + wait.duration).max().unwrap();
            assert!(last.as_secs_f64() <= epoch.end + 1e-9, "{policy}: no wait ends after its epoch");
        }
        let lists = entries.iter().filter(|entry| entry.op == Op::List).count();
        assert_eq!(lists as u64, report.listings, "{policy}");
    }
    assert!(seen >= 32, "{seen} policies have an answer");
}

#[test]
fn every_rank_waits_once_for_every_batch() {
    for policy in [Policy::Perfect, Policy::Naive, Policy::Foresee, Policy::Nopfs, Policy::FiftyFifty] {
        let (_, entries) = logged(&with_bucket(), policy).unwrap();
        let waits: Vec<_> = entries.iter().filter(|entry| entry.op == Op::Wait).collect();
        let places: BTreeSet<_> = waits.iter().map(|wait| (wait.rank.0, wait.epoch.0, wait.step.0)).collect();
        assert_eq!((waits.len(), places.len()), (2 * 4 * 25, 2 * 4 * 25), "{policy}");
        assert!(waits.iter().all(|wait| wait.subject == Subject::Batch && wait.samples == 8), "{policy}");
        assert!(waits.iter().all(|wait| wait.cause.is_some()), "{policy}");
        assert!(entries.iter().all(|entry| entry.op == Op::Wait || entry.cause.is_none()), "{policy}");
    }
}

#[test]
fn a_wait_has_the_cause_of_its_first_missing_sample() {
    let causes = |policy| -> BTreeSet<Cause> {
        let (_, entries) = logged(&with_bucket(), policy).unwrap();
        entries.iter().filter(|entry| entry.duration > Nanos::ZERO).filter_map(|entry| entry.cause).collect()
    };
    assert_eq!(causes(Policy::Perfect), BTreeSet::new());
    assert_eq!(causes(Policy::Naive), BTreeSet::from([Cause::OriginRead]));
    assert!(causes(Policy::StagingBuffer).is_subset(&BTreeSet::from([
        Cause::OriginRead,
        Cause::OriginQueue,
        Cause::Transform
    ])));
    assert!(causes(Policy::Direct).contains(&Cause::OriginRead));
}

#[test]
fn loads_before_training_come_before_the_first_wait() {
    let (report, entries) = logged(&with_bucket(), Policy::DeepioOrdered).unwrap();
    assert!(report.init > 0.0);
    let first = entries.iter().find(|entry| entry.op == Op::Wait).unwrap().start.as_secs_f64();
    assert!((first - report.init).abs() < 1e-9);
    let loads = report.loads.iter().map(|load| load.samples).sum::<u64>();
    let loads = entries.iter().take(usize::try_from(loads).unwrap());
    let last = loads.map(|entry| entry.start + entry.duration).max().unwrap().as_secs_f64();
    assert!((last - report.init).abs() < 1e-8, "{last} of {}", report.init);
}

#[test]
fn logging_does_not_change_the_report() {
    for policy in Policy::ALL {
        if let Some((report, _)) = logged(&with_bucket(), policy) {
            assert_eq!(report, crate::setups::run(&with_bucket(), policy));
        }
    }
}
