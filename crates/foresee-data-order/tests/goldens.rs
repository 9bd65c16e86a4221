// SPDX-License-Identifier: Apache-2.0
//! The orders of torch and Accelerate, case by case, from `testdata/order`; the tests do not need torch.
//!
//! `testdata/order/make.py` documents each kind of line; one function of this file evaluates each kind.

#![expect(clippy::unwrap_used, reason = "a failure ends the test; helpers too")]

use std::num::NonZeroU64;

use foresee_data_order::{Ids, Mt19937, Order, RandomSampler, Until, randperm};
use foresee_units::{Epoch, Rank};

const TORCH: &str = include_str!("../../../testdata/order/torch.txt");
const SHARD: &str = include_str!("../../../testdata/order/shard.txt");

/// Evaluate every line of `kind`, and return their number.
fn check(file: &str, kind: &str, answer: impl Fn(&[&str]) -> String) -> usize {
    let cases = file.lines().filter_map(|line| line.strip_prefix(kind)?.strip_prefix(' ')?.split_once(" = "));
    cases
        .map(|(arguments, expected)| {
            let answer = answer(&arguments.split(' ').collect::<Vec<_>>());
            assert_eq!(answer, expected, "{kind} {arguments}");
        })
        .count()
}

/// FNV-1a over 64-bit words.
fn fold(words: impl IntoIterator<Item = u64>) -> String {
    let start = 0xCBF2_9CE4_8422_2325_u64;
    let hash = words.into_iter().fold(start, |hash, word| (hash ^ word).wrapping_mul(0x0000_0100_0000_01B3));
    format!("{hash:016x}")
}

fn fold_ids(ids: &Ids) -> String {
    fold(ids.iter().map(|id| id.0))
}

fn fold_state(generator: &Mt19937) -> String {
    fold(generator.state().into_iter().map(u64::from))
}

fn number(text: &str) -> u64 {
    text.parse().unwrap()
}

/// For each epoch of `order`, rank after rank: the number of indices and their hash.
fn fold_ranks(order: &Order, ranks: u32, epochs: &[u64]) -> Vec<String> {
    let fold_epoch = |&epoch: &u64| {
        let sharded = order.epoch(Epoch(epoch)).unwrap().shard(ranks, 0).unwrap();
        fold((0..ranks).flat_map(|rank| {
            let stream = sharded.rank(Rank(rank)).unwrap();
            let mut words = vec![stream.len()];
            words.extend(stream.iter().map(|id| id.0));
            words
        }))
    };
    epochs.iter().map(fold_epoch).collect()
}

#[test]
fn the_generator_draws_and_saves_as_torch_does() {
    let cases = check(TORCH, "draws", |arguments| {
        let mut generator = Mt19937::new(number(arguments[0]));
        let mut drawn: Vec<u64> = (0..3).map(|_| generator.random63()).collect();
        let powers = [28, 32].map(|bits| 1_u64 << bits);
        let highs =
            [1, 7, powers[0] - 1, powers[0], powers[0] + 1, 1 << 31, powers[1] - 1, powers[1], powers[1] + 1];
        for high in highs.into_iter().chain([1 << 40, 1 << 62]) {
            drawn.extend((0..3).map(|_| generator.below(high)));
        }
        format!("{} {}", fold(drawn), fold_state(&generator))
    });
    assert_eq!(cases, 9);
}

#[test]
fn randperm_matches_torch() {
    let cases = check(TORCH, "randperm", |arguments| {
        let n = number(arguments[0]);
        let ids = randperm(n, &mut Mt19937::new(number(arguments[1]))).unwrap();
        if n > 12 {
            return fold_ids(&ids);
        }
        ids.iter().map(|id| id.to_string()).collect::<Vec<_>>().join(" ")
    });
    assert_eq!(cases, 38 * 8);
}

#[test]
fn distributed_sampler_matches_torch_in_6480_epochs_of_all_ranks() {
    let cases = check(TORCH, "distributed", |arguments| {
        let n = number(arguments[0]);
        let [shuffle, drop_last] = [2, 3].map(|place| arguments[place] == "1");
        let ranks = arguments[1].parse().unwrap();
        let folds = [0, 42, (1 << 32) - 2].map(|seed| {
            fold_ranks(&Order::Distributed { n, seed, shuffle, drop_last }, ranks, &[0, 1, 90]).join(" ")
        });
        folds.join(" ")
    });
    assert_eq!(cases * 9, 6480);
}

#[test]
fn random_sampler_matches_torch_and_leaves_the_same_generator_state() {
    let cases = check(TORCH, "random", |arguments| {
        let [n, num_samples, seed] = [0, 1, 3].map(|place| number(arguments[place]));
        let until = if arguments[4] == "end" { Until::End } else { Until::Taken(number(arguments[4])) };
        let mut generator = Mt19937::new(seed);
        generator.below(9);
        let sampler = RandomSampler::new(n, arguments[2] == "1", Some(num_samples)).unwrap();
        let ids = sampler.draw(&mut generator, until).unwrap();
        format!("{} {}", fold_ids(&ids), fold_state(&generator))
    });
    assert!(cases > 100, "{cases}");
}

#[test]
fn seedable_shard_matches_accelerate_in_2304_epochs_of_all_ranks() {
    let cases = check(SHARD, "shard", |arguments| {
        let n = number(arguments[0]);
        let batch_size: NonZeroU64 = arguments[2].parse().unwrap();
        let [drop_last, even_batches] = [3, 4].map(|place| arguments[place] == "1");
        let ranks = arguments[1].parse().unwrap();
        let folds = [0, 42].map(|seed| {
            let order = Order::SeedableShard { n, seed, batch_size, drop_last, even_batches };
            fold_ranks(&order, ranks, &[0, 3]).join(" ")
        });
        folds.join(" ")
    });
    assert_eq!(cases * 4, 2304);
}
