// SPDX-License-Identifier: Apache-2.0
//! Batches, their order and their bytes: equal to the computed order for all budgets, positions and batch sizes.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use foresee_data_loader::{EpochSamples, Loader, LoaderError, LoaderOptions};
use foresee_data_order::{Avoid, Order};
use foresee_testkit::{property, wait_until};
use foresee_units::{Bytes, Epoch, SampleId, World};
use proptest::prelude::*;

use crate::support::{DataSet, cache, epoch, expected, ids_of, next, ram};

/// A part of a run of the consumer.
#[derive(Clone, Copy, Debug)]
enum Leg {
    /// To the epoch's end.
    Through,
    /// Some batches, then the begin of another epoch or position.
    Break { batches: usize, epoch: u64, position_percent: u64 },
}

#[derive(Clone, Debug)]
struct Case {
    sizes: Vec<u64>,
    batch_size: u64,
    drop_last: bool,
    order: u8,
    seed: u64,
    epochs: u64,
    world: (u32, u32),
    ram_percent: Option<u64>,
    disk: bool,
    staging_percent: u64,
    legs: Vec<Leg>,
}

fn case() -> impl Strategy<Value = Case> {
    let sizes = prop_oneof![
        prop::collection::vec(prop_oneof![Just(0), 1_u64..300, 1_u64..3000], 1..40),
        (1_usize..40, 0_u64..500).prop_map(|(count, size)| vec![size; count]),
        // One sample larger than everything else, and than most budgets.
        (prop::collection::vec(0_u64..50, 1..30), 10_000_u64..150_000).prop_map(|(mut sizes, large)| {
            sizes.push(large);
            sizes
        }),
    ];
    let leg = prop_oneof![
        3 => Just(Leg::Through),
        2 => (0_usize..6, 0_u64..4, 0_u64..=100)
            .prop_map(|(batches, epoch, position_percent)| Leg::Break { batches, epoch, position_percent }),
    ];
    let world = (1_u32..4).prop_flat_map(|size| (0..size, Just(size)));
    let shape = (1_u64..12, any::<bool>(), 0_u8..4, any::<u64>(), 1_u64..4, world);
    let budget = (prop::option::of(0_u64..=200), any::<bool>(), 100_u64..400);
    (sizes, shape, budget, prop::collection::vec(leg, 1..6)).prop_map(|(sizes, shape, budget, legs)| {
        let (batch_size, drop_last, order, seed, epochs, world) = shape;
        let (ram_percent, disk, staging_percent) = budget;
        Case {
            sizes,
            batch_size,
            drop_last,
            order,
            seed,
            epochs,
            world,
            ram_percent,
            disk,
            staging_percent,
            legs,
        }
    })
}

impl Case {
    fn options(&self, set: &DataSet) -> LoaderOptions {
        let (n, seed, drop_last) = (set.len(), self.seed, self.drop_last);
        let batch_size = NonZeroU64::new(self.batch_size).expect("1 or more");
        let order = match self.order {
            0 => Order::Distributed { n, seed, shuffle: true, drop_last },
            1 => Order::Sequential { n, drop_last },
            2 => Order::Keyed { n, seed, drop_last },
            _ => {
                Order::SeedableShard { n, seed, batch_size, drop_last, even_batches: seed.is_multiple_of(2) }
            }
        };
        let (rank, size) = self.world;
        let mut options = LoaderOptions {
            batch_size: self.batch_size,
            drop_last: self.drop_last,
            order: Some(order),
            epochs: Some(self.epochs),
            world: World::new(rank, size).expect("inside"),
            ..set.options()
        };
        let three = 3 * (set.sizes.iter().max().copied().unwrap_or(0) * self.batch_size).min(set.bytes());
        options.staging = Some(Bytes::new(three * self.staging_percent / 100));
        options
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 200, ..property(48) })]

    #[test]
    fn every_batch_is_the_one_of_the_order_with_its_exact_bytes(case in case()) {
        let set = DataSet::files(&case.sizes);
        let mut options = case.options(&set);
        let dir = tempfile::tempdir().expect("a temporary folder");
        let memory = case.ram_percent.map_or(0, |percent| {
            set.ram_for(&mut options, set.bytes() * percent / 100)
        });
        let disk = if case.disk { 4 << 20 } else { 0 };
        let loader = set.loader(&cache(memory, Some(dir.path()), disk), options.clone());
        let (mut at, mut end) = ((0, 0), case.epochs);
        for leg in &case.legs {
            let batches = if at.0 < end { expected(&options, at.0, at.1) } else { Vec::new() };
            match *leg {
                Leg::Through => {
                    prop_assert_eq!(epoch(&set, &loader), batches, "epoch {} from {}", at.0, at.1);
                    // After the run's end every epoch is empty, and the same one.
                    at = (at.0 + u64::from(at.0 < end), 0);
                }
                Leg::Break { batches: taken, epoch: to, position_percent } => {
                    for batch in batches.iter().take(taken) {
                        let got = next(&loader).expect("a batch").expect("not the end");
                        set.check(&got);
                        prop_assert_eq!(&ids_of(&got), batch);
                        prop_assert_eq!(got.epoch, Epoch(at.0));
                    }
                    // A requested epoch after the end is drawn, and is the last.
                    at = (to, set.len() * position_percent / 100);
                    end = case.epochs.max(to + 1);
                    loader.begin_epoch(Epoch(at.0), at.1, None).expect("a valid position");
                }
            }
        }
        loader.close();
    }

    #[test]
    fn epochs_that_begin_with_samples_are_divided_by_the_given_lengths(
        sizes in prop::collection::vec(0_u64..400, 1..30),
        picks in prop::collection::vec(prop::collection::vec((any::<prop::sample::Index>(), 1_u64..6), 0..30), 1..4),
        ram_percent in 0_u64..150,
    ) {
        let set = DataSet::files(&sizes);
        let mut options = LoaderOptions { order: None, epochs: None, batch_size: 6, ..set.options() };
        let loader = set.loader(&ram(set.ram_for(&mut options, set.bytes() * ram_percent / 100)), options);
        for (number, picks) in (0..).zip(&picks) {
            // With replacement: a sample may occur several times in a batch and in neighbouring batches.
            let ids: Vec<u64> = picks.iter().map(|(pick, _)| pick.index(sizes.len()) as u64).collect();
            let (mut lengths, mut left) = (Vec::new(), ids.len() as u64);
            for &(_, length) in picks {
                lengths.push(length.min(left));
                left -= length.min(left);
                if left == 0 {
                    break;
                }
            }
            begin(&loader, number, 0, &ids, Some(&lengths)).expect("ids of the data set");
            let mut rest = ids.as_slice();
            let batches: Vec<Vec<u64>> = lengths
                .iter()
                .map(|&length| {
                    let (batch, others) = rest.split_at(usize::try_from(length).expect("small"));
                    rest = others;
                    batch.to_vec()
                })
                .collect();
            prop_assert_eq!(epoch(&set, &loader), batches);
        }
    }
}

#[test]
fn an_avoided_sample_is_replaced_by_its_substitute() {
    let set = DataSet::files(&[90; 48]);
    let options = LoaderOptions { avoid: [5, 40].map(SampleId).to_vec(), epochs: Some(3), ..set.options() };
    let avoid = Avoid::new(48, options.avoid.clone()).expect("ids of the data set");
    let loader = set.loader(&ram(0), options.clone());
    for number in 0..3 {
        let plain = expected(&options, number, 0);
        let of_order: Vec<Vec<u64>> = plain
            .iter()
            .map(|ids| ids.iter().map(|&id| avoid.substitute(7, Epoch(number), SampleId(id)).0).collect())
            .collect();
        assert_ne!(plain, of_order);
        assert!(of_order.iter().flatten().all(|id| ![5, 40].contains(id)));
        assert_eq!(epoch(&set, &loader), of_order);
    }
    let unknown = LoaderOptions { avoid: vec![SampleId(48)], ..set.options() };
    let error = Loader::new(set.index.clone(), ram(0), unknown).expect_err("an id too many");
    assert!(error.to_string().contains("sample 48 is not in a data set of 48"), "{error}");
}

#[test]
fn all_ranks_together_hand_out_each_sample_once_and_a_resume_at_another_world_size_hands_out_the_rest() {
    let set = DataSet::files(&[90; 48]);
    let mut seen: BTreeMap<u64, u32> = BTreeMap::new();
    let mut count = |batches: &[Vec<u64>]| {
        for id in batches.iter().flatten() {
            *seen.entry(*id).or_default() += 1;
        }
    };
    let options = |rank, size, batch_size| LoaderOptions {
        world: World::new(rank, size).expect("inside"),
        batch_size,
        ..set.options()
    };
    for rank in 0..4 {
        let loader = set.loader(&ram(0), options(rank, 4, 3));
        let two: Vec<_> = (0..2).map(|_| ids_of(&next(&loader).expect("one").expect("one"))).collect();
        count(&two);
    }
    for rank in 0..2 {
        let loader = set.loader(&ram(0), options(rank, 2, 4));
        loader.begin_epoch(Epoch(0), 2 * 4 * 3, None).expect("a valid position");
        count(&epoch(&set, &loader));
    }
    assert_eq!(seen.len(), 48);
    assert!(seen.values().all(|&times| times == 1), "{seen:?}");
}

#[test]
fn a_batch_has_its_position_in_the_epoch() {
    let set = DataSet::files(&[5; 10]);
    let options = LoaderOptions { epochs: Some(2), ..set.options() };
    let loader = set.loader(&ram(0), options);
    for number in 0..2 {
        let places: Vec<_> = std::iter::from_fn(|| next(&loader).expect("a batch or the end"))
            .map(|batch| (batch.epoch, batch.step.0, batch.start, batch.last))
            .collect();
        let epoch = Epoch(number);
        assert_eq!(places, [(epoch, 0, 0, false), (epoch, 1, 4, false), (epoch, 2, 8, true)]);
    }
}

#[test]
fn after_the_last_epoch_every_call_returns_the_end_of_the_epoch() {
    let set = DataSet::files(&[5; 3]);
    let loader = set.loader(&ram(0), set.options());
    assert_eq!(epoch(&set, &loader).concat().len(), 3);
    for _ in 0..3 {
        assert!(next(&loader).expect("no error").is_none());
    }
    loader.begin_epoch(Epoch(0), 0, None).expect("a valid position");
    assert_eq!(epoch(&set, &loader).concat().len(), 3, "the run can be repeated");
}

#[test]
fn a_run_of_unknown_length_continues() {
    let set = DataSet::files(&[40; 9]);
    let mut options = LoaderOptions { epochs: None, ..set.options() };
    let loader = set.loader(&ram(set.ram_for(&mut options, 200)), options.clone());
    for number in 0..40 {
        assert_eq!(epoch(&set, &loader), expected(&options, number, 0), "epoch {number}");
    }
}

#[test]
fn epochs_without_a_batch_pass_one_at_a_time_in_a_run_of_unknown_length() {
    let set = DataSet::files(&[40; 3]);
    let options = LoaderOptions { epochs: None, drop_last: true, ..set.options() };
    let loader = set.loader(&ram(0), options);
    for _ in 0..5000 {
        assert!(next(&loader).expect("no error").is_none());
    }
    let ready = ready_at_rest(&loader);
    assert!(ready <= 1 << 16, "{ready} ends of epochs wait to be taken");
}

#[test]
fn samples_without_bytes_do_not_fill_memory_with_batches() {
    let set = DataSet::files(&[0; 8]);
    let options = LoaderOptions { epochs: None, ..set.options() };
    let loader = set.loader(&ram(0), options.clone());
    for number in 0..2000 {
        assert_eq!(epoch(&set, &loader), expected(&options, number, 0));
    }
    let ready = ready_at_rest(&loader);
    assert!(ready <= 1 << 16, "{ready} batches wait to be taken");
}

/// Begin an epoch with its own samples.
fn begin(
    loader: &Loader,
    epoch: u64,
    position: u64,
    ids: &[u64],
    lengths: Option<&[u64]>,
) -> Result<(), LoaderError> {
    loader.begin_epoch(Epoch(epoch), position, Some(EpochSamples { ids, lengths }))
}

/// Number of ready batches and ends once it no longer changes.
fn ready_at_rest(loader: &Loader) -> usize {
    let (mut ready, mut same) = (0, 0);
    wait_until("the loader is idle", || {
        let now = loader.stats().ready;
        same = if now == ready { same + 1 } else { 0 };
        ready = now;
        assert!(ready <= 100_000, "{ready} are ready, and the number grows");
        ready > 0 && same > 100
    });
    ready
}

#[test]
fn a_position_past_the_end_of_the_epoch_is_an_error_and_changes_nothing() {
    let set = DataSet::files(&[5; 10]);
    let options = set.options();
    let loader = set.loader(&ram(0), options.clone());
    let error = loader.begin_epoch(Epoch(0), 11, None).expect_err("there are ten samples");
    assert!(matches!(error, LoaderError::Order(_)), "{error}");
    assert_eq!(epoch(&set, &loader), expected(&options, 0, 0));
}

#[test]
fn an_epoch_has_the_order_of_the_run_or_its_own_samples_and_never_both() {
    let set = DataSet::files(&[5; 4]);
    let loader = set.loader(&ram(0), set.options());
    let error = begin(&loader, 0, 0, &[0, 1], None).expect_err("the run has an order");
    assert!(matches!(error, LoaderError::Config { .. }), "{error}");
    assert_eq!(epoch(&set, &loader).concat().len(), 4);
    let without_order = set.loader(&ram(0), LoaderOptions { order: None, ..set.options() });
    let error = without_order.begin_epoch(Epoch(0), 0, None).expect_err("the samples are unknown");
    assert!(matches!(error, LoaderError::Config { .. }), "{error}");
}

#[test]
fn samples_that_do_not_fit_the_data_set_are_named_and_change_nothing() {
    let set = DataSet::files(&[5; 4]);
    let loader = set.loader(&ram(0), LoaderOptions { order: None, ..set.options() });
    begin(&loader, 0, 0, &[3, 2], None).expect("ids of the data set");
    let error = begin(&loader, 0, 0, &[0, 4], None).expect_err("ids go to 3").to_string();
    assert!(error.contains("sample 4") && error.contains("4;"), "{error}");
    let error = begin(&loader, 0, 0, &[0, 1], Some(&[2, 1])).expect_err("3 of 2").to_string();
    assert!(error.contains("batches of 3 samples"), "{error}");
    assert_eq!(epoch(&set, &loader), [[3, 2]]);
}

#[test]
fn an_epoch_at_a_position_has_the_remaining_samples() {
    let set = DataSet::files(&[300; 20]);
    let loader = set.loader(&ram(0), LoaderOptions { order: None, ..set.options() });
    begin(&loader, 3, 8, &[19, 4, 4, 0, 7, 1], None).expect("ids of the data set");
    let places: Vec<_> = std::iter::from_fn(|| next(&loader).expect("a batch or the end"))
        .map(|batch| (batch.epoch, batch.step.0, batch.start, batch.last, ids_of(&batch)))
        .collect();
    let epoch = Epoch(3);
    assert_eq!(places, [(epoch, 0, 0, false, vec![19, 4, 4, 0]), (epoch, 1, 4, true, vec![7, 1])]);
}

#[test]
fn no_batch_of_an_epoch_is_delivered_after_it_began_again_with_other_samples() {
    let set = DataSet::files(&[300; 24]);
    let staging = Some(Bytes::new(64 << 10));
    let mut options = LoaderOptions { order: None, staging, ..set.options() };
    let loader = set.loader(&ram(set.ram_for(&mut options, set.bytes())), options);
    let first: Vec<u64> = (0..12).collect();
    let second: Vec<u64> = (12..22).rev().collect();
    loader.start(std::time::Duration::ZERO).expect("a folder");
    for taken in 0..=first.len() / 4 {
        begin(&loader, 1, 4, &first, None).expect("ids of the data set");
        for batch in first.chunks(4).take(taken) {
            assert_eq!(ids_of(&next(&loader).expect("a batch").expect("not the end")), batch);
        }
        wait_until("the rest is staged", || loader.stats().ready > first.len() / 4 - taken);
        begin(&loader, 1, 4, &second, None).expect("ids of the data set");
        let batches: Vec<_> = second.chunks(4).map(<[u64]>::to_vec).collect();
        assert_eq!(epoch(&set, &loader), batches, "{taken} batches of the first were taken");
    }
}

#[test]
fn duplicates_inside_one_staging_window_are_read_once() {
    let set = DataSet::files(&[1000; 4]);
    let loader = set.loader(&ram(0), LoaderOptions { order: None, ..set.options() });
    loader.start(std::time::Duration::ZERO).expect("a folder");
    begin(&loader, 0, 0, &[2, 2, 2, 2, 2, 1, 2, 1], None).expect("ids of the data set");
    assert_eq!(epoch(&set, &loader), [[2, 2, 2, 2], [2, 1, 2, 1]]);
}

#[test]
fn rows_of_one_file_are_read_together() {
    let set = DataSet::rows(3, 200, 64);
    let order = Order::Sequential { n: set.len(), drop_last: false };
    let options = LoaderOptions { order: Some(order), batch_size: 50, ..set.options() };
    let loader = set.loader(&ram(0), options.clone());
    assert_eq!(epoch(&set, &loader), expected(&options, 0, 0));
    let stats = loader.stats();
    assert_eq!(stats.driver.origin.retries, 0, "no joined read has failed");
    let reads = stats.totals.done(foresee_ledger::Op::Read, foresee_units::Source::Origin).expect("reads");
    assert_eq!(reads.samples, 600);
    assert!(reads.count < 300, "{} requests for 600 neighbouring rows", reads.count);
}
