// SPDX-License-Identifier: Apache-2.0
//! Broken connections: dialled again, resumed with the same server or a replacement, or given up.

use foresee_grad_queue::{Round, ServerId};
use foresee_grad_session::{
    Closed, DialFault, RankFailure, RankMessage, RankSettings, Refusal, RefusalCode, Resume, SumAdmission,
};
use foresee_units::{Nanos, Rank};

use crate::driver::{BIAS, Dial, Driver, EMBEDDING, HEARTBEAT, RECONNECT, TIMEOUT, broken, settings};

/// At the start, the process of each server has its number.
const SAME: u64 = 0;
const OTHER: u64 = 10;

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

#[test]
fn a_reconnection_is_logged_and_counted() {
    let mut driver = Driver::running(settings(2));
    driver.close(0, broken());
    assert!(driver.rank.is_lost(ServerId(0)) && !driver.rank.is_connected());
    assert_eq!(driver.closed, [0]);
    driver.pass(ms(200));
    driver.connect(0, SAME);
    let known = Resume { generation: 1, oldest: Round(0), live: Vec::new(), body: driver.plan.encode() };
    assert_eq!(driver.take(0), [RankMessage::Resume(known)]);
    assert!(!driver.rank.is_connected(), "the server has not answered");
    let mut driver = Driver::running(settings(2));
    driver.close(0, broken());
    driver.pass(ms(200));
    driver.resume(0, SAME, 0, true);
    assert!(driver.rank.is_connected());
    assert_eq!((driver.rank.reconnects(), driver.rank.replacements()), (1, 0));
    let notices = driver.rank.take_notices();
    let message =
        "the connection to server 0 at 10.0.0.0:1 broke (reset) and was re-established after 200.0 ms";
    assert_eq!(notices, [message]);
    assert!(driver.rank.take_notices().is_empty());
}

#[test]
fn repeated_replacements_of_a_server_are_logged_and_counted() {
    let mut driver = Driver::running(settings(1));
    driver.whole_round();
    for times in 1..=3 {
        driver.close(0, broken());
        driver.resume(0, OTHER + times, 1, false);
        assert_eq!((driver.rank.reconnects(), driver.rank.replacements()), (0, times));
    }
    let notices = driver.rank.take_notices();
    assert!(
        notices.len() == 3 && notices[0].contains("server 0 at 10.0.0.0:1 was lost (reset)"),
        "{notices:?}"
    );
    assert!(notices[0].contains("was replaced after"), "{notices:?}");
    driver.whole_round();
    assert_eq!(driver.failure, None);
}

#[test]
fn gradients_with_received_sums_are_not_offered_again_to_a_server_that_has_its_sums() {
    let mut driver = Driver::running(settings(1));
    driver.end(&[EMBEDDING, BIAS]);
    driver.used(0, &[EMBEDDING, BIAS]);
    driver.arrive(0, BIAS);
    driver.close(0, broken());
    driver.resume(0, SAME, 0, true);
    assert_eq!(driver.offered, [(0, 0, EMBEDDING)]);
    let end = RankMessage::RoundEnd { round: Round(0), absent: vec![0] };
    assert_eq!(driver.take(0).last(), Some(&end), "the end of the round is repeated");
    driver.arrive(0, EMBEDDING);
    driver.offered.clear();
    driver.close(0, broken());
    driver.resume(0, SAME, 0, true);
    assert_eq!(driver.offered, []);
}

#[test]
fn a_server_that_disconnects_before_its_answer_still_has_its_sums() {
    let mut driver = Driver::running(settings(1));
    driver.end(&[BIAS]);
    driver.used(0, &[BIAS]);
    driver.arrive(0, BIAS);
    driver.close(0, broken());
    driver.connect(0, SAME);
    driver.close(0, broken());
    driver.resume(0, SAME, 0, true);
    assert_eq!(driver.offered, [], "ranks may be two rounds ahead, and the server sums no older one");
    driver.close(0, broken());
    driver.connect(0, OTHER);
    driver.close(0, broken());
    driver.resume(0, OTHER, 0, true);
    assert_eq!(driver.offered, [(0, 0, BIAS)], "another one has its sums from other ranks");
    assert_eq!((driver.rank.reconnects(), driver.rank.replacements()), (1, 1));
}

#[test]
fn all_retained_gradients_are_offered_again_to_a_replacement_server() {
    let mut driver = Driver::running(settings(2));
    driver.end(&[EMBEDDING, BIAS]);
    driver.used(0, &[EMBEDDING, BIAS]);
    driver.arrive(0, EMBEDDING);
    driver.arrive(0, BIAS);
    driver.push(BIAS).unwrap();
    driver.close(1, broken());
    driver.resume(1, OTHER, 0, false);
    assert_eq!(driver.offered, [(1, 0, EMBEDDING), (1, 0, BIAS)], "the older round first");
}

#[test]
fn a_newer_gradient_waits_behind_a_deferred_older_one() {
    let mut driver = Driver::running(settings(1));
    for round in 0..2 {
        driver.end(&[EMBEDDING, BIAS]);
        driver.used(round, &[EMBEDDING, BIAS]);
        driver.arrive(round, EMBEDDING);
        driver.arrive(round, BIAS);
    }
    driver.close(0, broken());
    driver.resume(0, OTHER, 0, false);
    let confirm = |driver: &mut Driver, round, tensor, packets| {
        for nth in 0..packets {
            assert!(matches!(driver.sum(0, 1, round, tensor, nth), Ok(SumAdmission::Confirmed)));
        }
    };
    confirm(&mut driver, 0, BIAS, 1);
    confirm(&mut driver, 1, BIAS, 1);
    driver.offered.clear();
    let (round, holding) = driver.push(BIAS).unwrap();
    assert_eq!((round, holding), (Round(2), vec![ServerId(0)]), "the embedding of round 1 is held");
    assert_eq!(driver.offered, []);
    confirm(&mut driver, 0, EMBEDDING, 3);
    assert_eq!(driver.offered, [(0, 1, EMBEDDING), (0, 2, BIAS)]);
}

#[test]
fn a_gradient_pushed_while_a_server_is_lost_is_offered_after_reconnection() {
    let mut driver = Driver::running(settings(2));
    driver.close(1, broken());
    let (round, holding) = driver.push(EMBEDDING).unwrap();
    assert_eq!((round, holding), (Round(0), Vec::new()), "a lost server holds nothing");
    assert!(!driver.rank.is_open(ServerId(1)));
    driver.resume(1, SAME, 0, true);
    assert_eq!(driver.offered, [(1, 0, EMBEDDING)]);
}

#[test]
fn a_rank_that_has_lost_a_server_reports_it_when_another_rank_is_lost() {
    let mut driver = Driver::running(RankSettings { world: 3, ..settings(2) });
    driver.close(0, broken());
    let lost = Refusal::new(RefusalCode::Lost, "rank 1 did not come again").about(Rank(1));
    driver.close(1, Closed::Refused(lost));
    let failure = driver.failure.as_ref();
    let Some(RankFailure::RankLost { rank: Rank(1), why, .. }) = failure else {
        panic!("not the rank: {failure:?}")
    };
    assert_eq!(why, "rank 1 did not come again; this rank has lost server 0, too: reset");
}

#[test]
fn a_control_connection_is_interrupted_a_heartbeat_after_its_data_connection_ends() {
    let mut driver = Driver::running(settings(1));
    driver.close_data(0, "the data connection was reset", false);
    driver.pass(HEARTBEAT.saturating_sub(ms(1)));
    assert_eq!(driver.interrupted, []);
    driver.pass(ms(1));
    assert_eq!(driver.interrupted, [0]);
    driver.close(0, Closed::Broken("interrupted".into()));
    driver.resume(0, SAME, 0, true);
    let notices = driver.rank.take_notices();
    assert!(notices[0].contains("broke (the data connection was reset)"), "the first reason: {notices:?}");
}

#[test]
fn a_data_connection_without_acknowledgments_is_replaced_once() {
    let mut driver = Driver::running(settings(1));
    for _ in 0..2 {
        assert_eq!(driver.failure, None);
        driver.close_data(0, "nothing was acknowledged for 2.0 s", true);
        driver.pass(HEARTBEAT);
        driver.close(0, broken());
        if driver.failure.is_none() {
            driver.resume(0, SAME, 0, true);
        }
    }
    assert!(driver.failure().contains("nothing was acknowledged for 2.0 s"), "{}", driver.failure());
}

#[test]
fn connections_that_break_before_a_sum_arrives_are_given_up_in_time() {
    let break_often = |every: Nanos, arrives: bool| {
        let mut driver = Driver::running(settings(1));
        driver.end(&[EMBEDDING]);
        driver.used(0, &[EMBEDDING]);
        for times in 0..110 {
            driver.close(0, broken());
            if driver.failure.is_some() {
                return (times, Some(driver.failure()));
            }
            driver.pass(every);
            driver.resume(0, SAME, 0, true);
            if arrives && times == 50 {
                driver.arrive_packet(0, 0, EMBEDDING, 0);
            }
        }
        (110, driver.failure.is_some().then(|| driver.failure()))
    };
    let (times, failure) = break_often(ms(40), false);
    let text = failure.expect("it is given up");
    assert_eq!(times, 63);
    assert!(text.contains("connections to it broke 64 times within 2.5 s"), "{text}");
    assert!(text.contains("before a sum arrived"), "{text}");
    assert!(text.contains("a device that ends connections once they carry data"), "{text}");
    assert_eq!(break_often(ms(20), false).0, 100, "not before the timeout");
    assert_eq!(break_often(ms(40), true), (110, None));
}

#[test]
fn each_break_has_the_full_time_to_reconnect() {
    let mut driver = Driver::running(settings(1));
    driver.close(0, broken());
    let within = HEARTBEAT.saturating_add(HEARTBEAT);
    assert_eq!(driver.take_dials(), [Dial { server: 0, within, until: TIMEOUT }]);
    driver.pass(ms(1_900));
    driver.resume(0, SAME, 0, true);
    driver.close(0, broken());
    assert_eq!(driver.take_dials(), [Dial { server: 0, within, until: TIMEOUT.saturating_add(ms(1_900)) }]);
    driver.pass(ms(1_900));
    assert_eq!(driver.failure, None);
}

#[test]
fn a_lost_server_without_replacement_is_an_error_that_names_missing_results() {
    let mut driver = Driver::running(settings(1));
    driver.end(&[EMBEDDING]);
    driver.close(0, broken());
    let mut attempts = Vec::new();
    while driver.failure.is_none() {
        attempts.extend(driver.take_dials());
        driver.not_connected(0, DialFault::NotListening);
        driver.pass(ms(100));
    }
    assert_eq!(driver.now, TIMEOUT, "up to the last attempt");
    let within: Vec<_> = attempts.iter().take(4).map(|dial| dial.within).collect();
    assert_eq!(within, [ms(200), ms(400), ms(800), ms(1_000)], "up to the time of a handshake");
    let text = driver.failure();
    for part in ["server: ServerId(0)", "reset; no server replaced it within 2.0 s: refused", "'embedding'"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_replacement_server_that_some_rank_does_not_reach_is_an_error_in_time() {
    let mut driver = Driver::running(settings(1));
    driver.close(0, broken());
    driver.connect(0, OTHER);
    driver.pass(TIMEOUT);
    let text = driver.failure();
    assert!(
        text.contains("a server replaced it, and not every rank connected to that one within 2.0 s"),
        "{text}"
    );
}

#[test]
fn a_permanent_connection_fault_is_an_error_at_once() {
    let mut driver = Driver::running(settings(1));
    driver.close(0, broken());
    driver.not_connected(0, DialFault::Permanent);
    assert!(driver.failure().contains("reset; refused"), "{}", driver.failure());
}

#[test]
fn without_recovery_a_broken_connection_is_an_error_at_once() {
    for closed in [broken(), Closed::Silent("silent".into()), Closed::Unacknowledged("silent".into())] {
        let mut driver = Driver::running(RankSettings { recovers: false, ..settings(2) });
        driver.close(1, closed);
        assert!(driver.failure().contains("server: ServerId(1)"), "{}", driver.failure());
        assert!(driver.dials.is_empty() && driver.rank.poll_timeout().is_none());
    }
}

#[test]
fn a_colocated_server_is_dialled_for_its_grace_period_and_not_replaced() {
    let colocated = || RankSettings { colocated: 1, ..settings(2) };
    let mut driver = Driver::running(colocated());
    driver.close(0, broken());
    assert_eq!(driver.take_dials()[0].until, RECONNECT.saturating_add(HEARTBEAT));
    driver.not_connected(0, DialFault::NotListening);
    assert!(driver.failure().contains("server: ServerId(0)"), "{}", driver.failure());
    let mut driver = Driver::running(colocated());
    driver.close(1, broken());
    assert_eq!(driver.take_dials()[0].until, TIMEOUT);
    driver.not_connected(1, DialFault::NotListening);
    assert_eq!(driver.failure, None);
    for closed in [Closed::Silent("silent".into()), Closed::Unacknowledged("silent".into())] {
        let mut driver = Driver::running(colocated());
        driver.close(0, closed);
        assert!(driver.failure().contains("silent"), "it is lost with its rank: {}", driver.failure());
    }
}

#[test]
fn a_stopped_rank_accepts_no_connection() {
    let mut driver = Driver::running(settings(1));
    driver.close(0, broken());
    driver.rank.handle_stopped();
    assert_eq!(driver.rank.begin_pair(ServerId(0)), None);
    driver.not_connected(0, DialFault::Permanent);
    assert!(driver.failure.is_none() && driver.rank.poll_timeout().is_none());
}
