// SPDX-License-Identifier: Apache-2.0
//! What holds in every run, whatever is lost on the way.

use foresee_grad_session::RankFailure;
use foresee_testkit::property;
use proptest::prelude::*;

use crate::setup::Setup;
use crate::world::World;

fn setup() -> impl Strategy<Value = Setup> {
    let park = prop::sample::select(vec![0_u64, 63, 64, 200, 1 << 20]);
    (any::<u64>(), 1..=4_u32, 1..=3_u16, 1..=6_u64, park).prop_map(|(seed, ranks, servers, rounds, park)| {
        Setup { seed, ranks, servers, rounds, park, survives: false, breaks: 0, replacements: 0, losses: 0 }
    })
}

proptest! {
    #![proptest_config(property(10_000))]

    #[test]
    fn connections_that_break_change_no_bit_and_end_no_job(setup in setup(), breaks in 0..6_u32, survives: bool) {
        prop_assert_eq!(World::new(Setup { survives, breaks, ..setup }).run(), Ok(()));
    }

    #[test]
    fn servers_that_are_replaced_change_no_bit_and_end_no_job(
        setup in setup(),
        replacements in 1..5_u32,
        breaks in 0..3_u32,
    ) {
        prop_assert_eq!(World::new(Setup { breaks, replacements, ..setup }).run(), Ok(()));
    }

    #[test]
    fn ranks_that_are_left_go_on_with_equal_bits(setup in setup(), losses in 1..3_u32) {
        prop_assert_eq!(World::new(Setup { losses, survives: true, ..setup }).run(), Ok(()));
    }

    #[test]
    fn whatever_is_lost_at_once_every_rank_ends_with_a_result_or_a_reason(
        setup in setup(),
        breaks in 0..4_u32,
        replacements in 0..3_u32,
        losses in 0..3_u32,
        survives: bool,
    ) {
        let all = Setup { survives, breaks, replacements, losses, ..setup };
        match World::new(all).run() {
            Ok(()) | Err(RankFailure::RankLost { .. } | RankFailure::ServerLost { .. }) => {}
            Err(RankFailure::Refused { why, .. }) => prop_assert!(why.contains("lost"), "{why}"),
            Err(other) => prop_assert!(false, "{other:?}"),
        }
    }
}
