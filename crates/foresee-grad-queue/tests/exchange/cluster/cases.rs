// SPDX-License-Identifier: Apache-2.0
//! What holds in every run, whatever is lost on the way.

use foresee_testkit::{property, seeds};
use proptest::prelude::*;

use super::{Cluster, Setup};

fn setup() -> impl Strategy<Value = Setup> {
    let park = prop::sample::select(vec![0_u64, 63, 64, 200, 1 << 20]);
    (any::<u64>(), 1..=5_u32, 1..=3_u16, 1..=8_u64, park, 0..4_u32).prop_map(
        |(seed, ranks, servers, rounds, park, breaks)| Setup {
            seed,
            ranks,
            servers,
            rounds,
            park,
            breaks,
            replacements: 0,
            losses: 0,
            older_first: true,
        },
    )
}

proptest! {
    #![proptest_config(property(2_000))]

    #[test]
    fn every_rank_gets_the_mean_in_rank_order_whatever_is_late_or_sent_twice(setup in setup()) {
        prop_assert_eq!(Cluster::new(setup).run(), Ok(()));
    }

    #[test]
    fn a_replaced_server_gives_the_same_bits(setup in setup(), replacements in 1..5_u32) {
        prop_assert_eq!(Cluster::new(Setup { replacements, ..setup }).run(), Ok(()));
    }

    #[test]
    fn survivors_of_a_lost_rank_agree_in_every_bit(setup in setup(), losses in 1..3_u32) {
        prop_assert_eq!(Cluster::new(Setup { losses, ..setup }).run(), Ok(()));
    }
}

#[test]
fn a_newer_round_in_front_of_an_older_one_can_stop_everything() {
    let run = |seed, older_first| {
        let setup = Setup {
            seed,
            ranks: 3,
            servers: 1,
            rounds: 4,
            park: 0,
            breaks: 0,
            replacements: 0,
            losses: 0,
            older_first,
        };
        Cluster::new(setup).run()
    };
    assert!(seeds(1_500).any(|seed| run(seed, false).is_err()), "the harness would not notice");
    assert!(seeds(1_500).all(|seed| run(seed, true).is_ok()));
}
