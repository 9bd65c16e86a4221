// SPDX-License-Identifier: Apache-2.0
//! Properties of every order, world size, flag and cut.

#![expect(clippy::unwrap_used, reason = "a failure ends the test; helpers too")]

use std::num::NonZeroU64;

use foresee_data_order::{Avoid, EpochOrder, Order, Tail};
use foresee_testkit::property;
use foresee_units::{Epoch, Rank, SampleId, World};
use proptest::prelude::*;

fn orders() -> impl Strategy<Value = Order> {
    (0_u64..2000, any::<u64>(), any::<[bool; 2]>(), 1_u64..9, 0..4).prop_map(
        |(n, seed, [drop_last, flag], batch_size, kind)| match kind {
            0 => Order::Distributed { n, seed, shuffle: flag, drop_last },
            1 => Order::Sequential { n, drop_last },
            2 => Order::Keyed { n, seed, drop_last },
            _ => {
                let batch_size = NonZeroU64::new(batch_size).unwrap();
                Order::SeedableShard { n, seed, batch_size, drop_last, even_batches: flag }
            }
        },
    )
}

/// The samples of `steps` steps of batch `batch`, or of all, over all ranks in global order.
///
/// Each rank's stream is read separately, and all are merged by the positions that they report.
fn hand_out(epoch: &EpochOrder, size: u32, start: u64, batches: u64, batch: u64) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    for rank in 0..size {
        let stream = epoch.rank(World::new(rank, size).unwrap(), start).unwrap();
        let count = stream.len().min(batches.saturating_mul(batch));
        out.extend(stream.ids(0..count).zip(0..).map(|(id, index)| (stream.position(index), id.0)));
    }
    out.sort_unstable();
    out
}

proptest! {
    #![proptest_config(property(400))]

    #[test]
    fn avoided_samples_are_replaced_alike_on_all_ranks_and_every_other_position_stays(
        order in orders(), epoch in 0_u64..5, size in 1_u32..9, picks in prop::collection::vec(any::<u64>(), 0..20),
    ) {
        let n = order.n();
        prop_assume!(n > 30);
        let avoid = Avoid::new(n, picks.iter().map(|pick| SampleId(pick % n))).unwrap();
        let plain = order.epoch(Epoch(epoch)).unwrap();
        let list = plain.clone().avoiding(&avoid);
        let expected: Vec<(u64, u64)> = hand_out(&plain, size, 0, u64::MAX, 1)
            .into_iter()
            .map(|(position, id)| (position, avoid.substitute(order.seed(), Epoch(epoch), SampleId(id)).0))
            .collect();
        prop_assert!(expected.iter().all(|&(_, id)| !avoid.contains(SampleId(id))));
        prop_assert_eq!(&hand_out(&list, size, 0, u64::MAX, 1), &expected);
    }

    #[test]
    fn the_ranks_together_hand_out_the_epoch_and_torchs_padding(
        order in orders(), epoch in 0_u64..5, size in 1_u32..40,
    ) {
        let list = order.epoch(Epoch(epoch)).unwrap();
        let (n, round) = (order.n(), order.group().get() * u64::from(size));
        let end = match list.tail() {
            Tail::Pad => n.div_ceil(round) * round,
            Tail::Cut => n / round * round,
            Tail::Uneven => n,
        };
        let expected: Vec<(u64, u64)> = (0..end).map(|p| (p, list.id(p % n).0)).collect();
        prop_assert_eq!(hand_out(&list, size, 0, u64::MAX, 1), expected);
        let mut ids: Vec<u64> = (0..n).map(|place| list.id(place).0).collect();
        ids.sort_unstable();
        prop_assert!(ids.into_iter().eq(0..n));
    }

    #[test]
    fn any_chain_of_world_sizes_and_cuts_hands_out_every_sample_once(
        order in orders(),
        legs in prop::collection::vec((1_u32..12, 1_u64..9, 0_u64..20), 1..6),
        last in 1_u32..12,
    ) {
        let list = order.epoch(Epoch(1)).unwrap();
        let n = order.n();
        let mut position = 0;
        let mut handed_out = Vec::new();
        for (size, batch, steps) in legs {
            // A rank of an order with groups takes whole batches.
            let batch = if order.group().get() > 1 { order.group().get() } else { batch };
            let leg = hand_out(&list, size, position, steps, batch);
            let whole = steps * batch * u64::from(size);
            let next = (position + whole).min(n);
            if position + whole <= n {
                // Every rank is still inside the list, so exactly a prefix was handed out.
                prop_assert!(leg.iter().map(|&(position, _)| position).eq(position..next));
                handed_out.extend(leg);
                position = next;
            }
        }
        let rest = hand_out(&list, last, position, u64::MAX, 1);
        let end = list.shard(last, position).unwrap().end();
        prop_assert!(rest.iter().map(|&(position, _)| position).eq(position..end));
        handed_out.extend(rest);
        prop_assert!(handed_out.iter().take(usize::try_from(n).unwrap()).all(|&(p, id)| id == list.id(p).0));
        if list.tail() == Tail::Cut {
            prop_assert!(n - end < u64::from(last) * order.group().get());
        } else {
            let mut ids: Vec<u64> = handed_out.iter().filter(|(p, _)| *p < n).map(|&(_, id)| id).collect();
            ids.sort_unstable();
            prop_assert!(ids.into_iter().eq(0..n));
            prop_assert!(handed_out.iter().filter(|(p, _)| *p >= n).all(|&(p, id)| id == list.id((p - n) % n).0));
        }
    }

    #[test]
    fn resuming_at_the_same_world_size_changes_nothing(
        order in orders(), size in 1_u32..12, batch in 1_u64..9, steps in 0_u64..50,
    ) {
        let list = order.epoch(Epoch(3)).unwrap();
        let batch = if order.group().get() > 1 { order.group().get() } else { batch };
        let whole = list.shard(size, 0).unwrap();
        let position = steps * batch * u64::from(size);
        prop_assume!(position <= order.n());
        let rest = list.shard(size, position).unwrap();
        prop_assert_eq!(rest.end(), whole.end());
        for rank in 0..size {
            let [all, rest] = [&whole, &rest].map(|sharded| sharded.rank(Rank(rank)).unwrap());
            prop_assert_eq!(rest.len(), all.len() - steps * batch);
            prop_assert!(rest.iter().eq(all.ids(steps * batch..all.len())));
        }
    }
}

#[test]
fn an_empty_data_set_is_an_empty_run_and_a_position_past_the_end_is_an_error() {
    let order = Order::Distributed { n: 0, seed: 0, shuffle: true, drop_last: false };
    let epoch = order.epoch(Epoch(0)).unwrap();
    assert!(epoch.rank(World::new(2, 3).unwrap(), 0).unwrap().is_empty());
    assert_eq!(
        epoch.shard(3, 1).unwrap_err().to_string(),
        "position 1 is past the end of an epoch of 0 samples; was the state saved for another data set?"
    );
    assert_eq!(epoch.shard(0, 0).unwrap_err().to_string(), "world size should be at least 1 (got 0)");
    assert!(epoch.shard(3, 0).unwrap().rank(Rank(3)).is_err());
}

#[test]
fn padding_past_2_to_the_64_is_an_error_and_not_an_overflow() {
    let batch_size = NonZeroU64::new(1 << 40).unwrap();
    let order = Order::SeedableShard { n: 5, seed: 0, batch_size, drop_last: false, even_batches: true };
    assert!(order.epoch(Epoch(0)).unwrap().shard(u32::MAX, 0).is_err());
    let order = Order::Keyed { n: u64::MAX, seed: 0, drop_last: false };
    assert!(order.epoch(Epoch(0)).unwrap().shard(7, 0).is_err());
    let order = Order::Keyed { n: u64::MAX, seed: 0, drop_last: true };
    let sharded = order.epoch(Epoch(0)).unwrap().shard(7, 0).unwrap();
    assert_eq!(sharded.end(), u64::MAX / 7 * 7);
    assert!(sharded.rank(Rank(6)).unwrap().get(u64::MAX / 7 - 1).0 < u64::MAX);
}

#[test]
fn a_list_from_another_sampler_is_distributed_like_any_other() {
    let ids = [5, 3, 3, 9, 1].map(SampleId).into_iter().collect();
    let epoch = EpochOrder::from_list(Epoch(0), 0, ids, Tail::Pad);
    let stream = epoch.rank(World::new(1, 2).unwrap(), 0).unwrap();
    assert_eq!(stream.iter().map(|id| id.0).collect::<Vec<_>>(), [3, 9, 5]);
}
