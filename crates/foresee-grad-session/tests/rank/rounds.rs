// SPDX-License-Identifier: Apache-2.0
//! Gradients, ends of rounds, and sums that a server is about to send.

use foresee_grad_queue::{Round, ServerId};
use foresee_grad_session::{RankFailure, RankMessage, RankSettings, ServerMessage, SumAdmission, Used};

use crate::driver::{BIAS, Driver, EMBEDDING, broken, set, settings};

#[test]
fn a_round_is_ended_reported_and_dropped() {
    let mut driver = Driver::running(settings(2));
    driver.end(&[EMBEDDING]);
    for server in [0, 1] {
        let end = RankMessage::RoundEnd { round: Round(0), absent: set(&[BIAS]) };
        assert_eq!(driver.take(server), [end]);
    }
    driver.used(0, &[EMBEDDING]);
    driver.arrive(0, EMBEDDING);
    for server in [0, 1] {
        assert_eq!(driver.take(server), [RankMessage::Got(Round(0))]);
    }
    driver.done(0);
    assert!(driver.rank.is_quiet());
    assert_eq!(driver.rank.missing(), "nothing of round 0 was missing");
}

#[test]
fn misuse_is_refused_with_the_tensor_and_changes_nothing() {
    let mut driver = Driver::new(settings(1));
    assert_eq!(driver.push(BIAS), Err(RankFailure::NoPlan));
    assert_eq!(driver.rank.handle_end(), Err(RankFailure::NoPlan));
    let mut driver = Driver::running(settings(1));
    driver.push(BIAS).unwrap();
    let refused = |round| Err(RankFailure::Push { name: "bias".into(), round: Round(round) });
    assert_eq!(driver.push(BIAS), refused(0), "once per round");
    driver.end(&[]);
    assert_eq!(driver.push(BIAS), refused(1), "its last average has not arrived");
    driver.used(0, &[BIAS]);
    driver.arrive(0, BIAS);
    driver.push(BIAS).unwrap();
    assert_eq!(driver.failure, None);
}

#[test]
fn a_round_does_not_end_before_the_last_one_has_arrived() {
    let mut driver = Driver::running(settings(1));
    driver.end(&[BIAS]);
    assert_eq!(driver.rank.handle_end(), Ok(None));
    driver.used(0, &[BIAS]);
    assert_eq!(driver.rank.handle_end(), Ok(None));
    driver.arrive(0, BIAS);
    assert_eq!(driver.rank.handle_end(), Ok(Some(Round(1))));
}

#[test]
fn used_tensors_count_once_all_servers_report_the_same_set() {
    let report = |tensors: &[u32]| ServerMessage::Used(Used { round: Round(0), used: set(tensors) });
    let mut driver = Driver::running(settings(2));
    driver.end(&[]);
    driver.receive(0, report(&[]));
    driver.push(BIAS).expect_err("the other server may still sum it");
    // The replacement reports again.
    driver.close(0, broken());
    driver.resume(0, 10, 0, false);
    driver.receive(1, report(&[]));
    driver.push(BIAS).expect_err("the report of a lost server does not count");
    driver.receive(0, report(&[]));
    driver.push(BIAS).unwrap();
    let mut driver = Driver::running(settings(2));
    driver.end(&[]);
    driver.receive(0, report(&[]));
    let Err(RankFailure::Disagree(text)) = driver.message(1, report(&[BIAS])) else { panic!("they differ") };
    assert!(text.contains("server 1") && text.contains("views of the round differ"), "{text}");
}

#[test]
fn a_rank_is_needed_until_others_have_all_results_of_its_gradients() {
    let mut driver = Driver::running(settings(1));
    assert!(!driver.rank.is_needed(), "it has pushed nothing");
    driver.end(&[BIAS]);
    assert!(driver.rank.is_needed(), "its contribution may be in flight");
    driver.used(0, &[BIAS]);
    driver.arrive(0, BIAS);
    assert!(driver.rank.is_needed());
    driver.done(0);
    assert!(!driver.rank.is_needed());
    let mut alone = Driver::running(RankSettings { world: 1, ..settings(1) });
    alone.end(&[BIAS]);
    assert!(!alone.rank.is_needed(), "its contribution is in no result of another rank");
    alone.used(0, &[BIAS]);
    alone.arrive(0, BIAS);
    assert!(!alone.rank.is_needed());
    alone.close(0, broken());
    assert!(!alone.rank.is_needed(), "no rank waits for a server that it does not use");
}

#[test]
fn a_repeated_sum_is_discarded() {
    let mut driver = Driver::running(settings(1));
    driver.end(&[EMBEDDING]);
    driver.used(0, &[EMBEDDING]);
    let Ok(SumAdmission::Read(claim, _)) = driver.sum(0, 1, 0, EMBEDDING, 0) else { panic!("it is wanted") };
    driver.rank.handle_interrupted(claim);
    driver.arrive_packet(0, 0, EMBEDDING, 0);
    assert!(matches!(driver.sum(0, 1, 0, EMBEDDING, 0), Ok(SumAdmission::Discard)));
}

#[test]
fn a_sum_that_a_replacement_server_repeats_counts_again() {
    let mut driver = Driver::running(settings(1));
    driver.end(&[EMBEDDING]);
    driver.used(0, &[EMBEDDING]);
    driver.arrive_packet(0, 0, EMBEDDING, 0);
    driver.close(0, broken());
    assert!(matches!(driver.sum(0, 1, 0, EMBEDDING, 1), Ok(SumAdmission::Discard)), "of the lost one");
    driver.connect(0, 10);
    assert!(matches!(driver.sum(0, 1, 0, EMBEDDING, 1), Ok(SumAdmission::Retry)), "it has not answered");
    let resumed = foresee_grad_session::Resumed { generation: 1, oldest: Round(0), has_sums: false };
    driver.receive(0, ServerMessage::Resumed(resumed));
    assert!(matches!(driver.sum(0, 1, 0, EMBEDDING, 0), Ok(SumAdmission::Confirmed)));
    driver.arrive_packet(0, 0, EMBEDDING, 1);
}

#[test]
fn sums_before_a_plan_or_under_an_unknown_membership_are_refused() {
    let mut driver = Driver::new(settings(1));
    let text = format!("{:?}", driver.sum(0, 1, 0, BIAS, 0).unwrap_err());
    assert!(text.contains("it sends sums before a plan"), "{text}");
    let mut driver = Driver::running(settings(1));
    driver.push(BIAS).unwrap();
    let text = format!("{:?}", driver.sum(0, 2, 0, BIAS, 0).unwrap_err());
    assert!(text.contains("sums of an unannounced membership"), "{text}");
}

#[test]
fn a_wait_that_a_server_reports_is_shown_until_its_next_message() {
    let mut driver = Driver::running(settings(2));
    driver.end(&[BIAS]);
    driver.receive(1, ServerMessage::Waiting("rank 1 to end round 0".into()));
    assert_eq!(driver.rank.waits(), ["server 1 waits for rank 1 to end round 0"]);
    let missing = driver.rank.missing();
    assert!(missing.contains("of 'bias'") && missing.ends_with("; server 1 waits for rank 1 to end round 0"));
    driver.receive(1, ServerMessage::Used(Used { round: Round(0), used: set(&[BIAS]) }));
    assert!(driver.rank.waits().is_empty());
}

#[test]
fn done_rounds_of_other_servers_count_once_a_replacement_has_answered() {
    let mut driver = Driver::running(settings(2));
    driver.end(&[EMBEDDING, BIAS]);
    driver.used(0, &[EMBEDDING, BIAS]);
    driver.arrive(0, EMBEDDING);
    driver.arrive(0, BIAS);
    driver.close(1, broken());
    driver.connect(1, 10);
    driver.receive(0, ServerMessage::RoundDone(Round(0)));
    assert!(!driver.rank.is_quiet());
    let resumed = foresee_grad_session::Resumed { generation: 1, oldest: Round(0), has_sums: false };
    driver.receive(1, ServerMessage::Resumed(resumed));
    assert_eq!(driver.offered, [(1, 0, EMBEDDING), (1, 0, BIAS)], "the next server sums it once more");
    assert!(driver.rank.is_open(ServerId(1)));
}
