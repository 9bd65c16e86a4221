// SPDX-License-Identifier: Apache-2.0
//! Reconnection after a break, and replacement of servers.

use foresee_grad_queue::Round;
use foresee_grad_session::{
    Closed, JobSettings, RankHello, RankMessage, Refusal, RefusalCode, Resume, Resumed, Role, ServerMessage,
    Used, members,
};
use foresee_units::{Nanos, Rank};

use crate::driver::{Driver, End, HEARTBEAT, RECONNECT, end, hello, plan, resume, set, settings};

fn broken() -> Closed {
    Closed::Broken("reset by peer".into())
}

/// A time less one nanosecond.
fn just_before(time: Nanos) -> Nanos {
    time.saturating_sub(Nanos::new(1))
}

#[test]
fn a_rank_that_reconnects_in_time_receives_the_messages_that_it_missed() {
    let of_two = settings(2);
    let (mut driver, peers) = Driver::running(&of_two);
    driver.message(peers[1], end(0, &[0]));
    driver.close(peers[1], broken());
    driver.message(peers[0], end(0, &[0]));
    driver.pass(just_before(RECONNECT));
    let back = driver.join(&of_two, 1);
    driver.message(back, RankMessage::Resume(resume(1, 0, plan(8))));
    let resumed = Resumed { generation: 1, oldest: Round(0), has_sums: true };
    let used = Used { round: Round(0), used: set(&[1, 2]) };
    assert_eq!(driver.take(back), [ServerMessage::Resumed(resumed), ServerMessage::Used(used)]);
    assert_eq!(driver.routes, [back]);
    driver.pass(Nanos::from_secs(1));
    assert!(!driver.job.is_over());
    // A rank reports done rounds for a server that missed them.
    driver.close(back, broken());
    let again = driver.join(&of_two, 1);
    drop(driver.take(peers[0]));
    driver.message(again, RankMessage::Resume(resume(1, 1, plan(8))));
    assert_eq!(driver.take(peers[0]), [ServerMessage::RoundDone(Round(0))]);
}

#[test]
fn a_rank_that_does_not_reconnect_in_time_is_lost_with_the_first_reason() {
    let (mut driver, peers) = Driver::running(&settings(2));
    driver.data_closed(peers[1], "its data connection ended", false);
    driver.close(peers[1], broken());
    driver.pass(just_before(RECONNECT));
    assert!(!driver.job.is_over());
    driver.pass(Nanos::new(1));
    assert_eq!(
        driver.reason(peers[0]),
        format!(
            "rank 1 of job 'run' is lost: its data connection ended; it did not reconnect within {RECONNECT}; check its output"
        )
    );
}

#[test]
fn each_reconnection_starts_a_new_grace_period() {
    let of_two = settings(2);
    let (mut driver, peers) = Driver::running(&of_two);
    driver.close(peers[1], broken());
    driver.pass(just_before(RECONNECT));
    let half = driver.connect(&hello(&of_two, 1, Role::Control)).unwrap();
    driver.pass(just_before(RECONNECT));
    assert!(!driver.job.is_over());
    driver.pass(Nanos::new(1));
    assert!(driver.job.is_over() && driver.is_closed(half));
}

#[test]
fn a_rank_without_recovery_is_lost_at_once() {
    let of_two = settings(2);
    let mut driver = Driver::new(of_two.clone());
    let connected = driver.join(&of_two, 0);
    let ends = |role| RankHello { reconnects: false, ..hello(&of_two, 1, role) };
    let peer = driver.connect(&ends(Role::Control)).unwrap();
    driver.connect(&ends(Role::Data)).unwrap();
    driver.close(peer, broken());
    assert!(driver.reason(connected).contains("rank 1 of job 'run' is lost: reset by peer"));
}

#[test]
fn a_control_connection_is_interrupted_a_heartbeat_after_its_data_connection_breaks() {
    let (mut driver, peers) = Driver::running(&settings(2));
    driver.data_closed(peers[1], "its data connection ended", false);
    driver.pass(just_before(HEARTBEAT));
    assert!(!driver.inboxes[&peers[1]].is_interrupted);
    driver.pass(Nanos::new(1));
    assert!(driver.inboxes[&peers[1]].is_interrupted && !driver.is_closed(peers[1]));
    driver.close(peers[1], broken());
    driver.pass(RECONNECT);
    assert!(driver.reason(peers[0]).contains("its data connection ended; it did not reconnect"));
}

#[test]
fn a_data_connection_without_acknowledgments_is_replaced_once() {
    let of_two = settings(2);
    let (mut driver, mut peers) = Driver::running(&of_two);
    let silent = |driver: &mut Driver, peer| {
        driver.data_closed(peer, "nothing was acknowledged for 2 s", true);
        driver.pass(HEARTBEAT);
    };
    silent(&mut driver, peers[1]);
    assert!(driver.inboxes[&peers[1]].is_interrupted);
    driver.close(peers[1], broken());
    peers[1] = driver.join(&of_two, 1);
    driver.message(peers[1], RankMessage::Resume(resume(1, 0, plan(8))));
    silent(&mut driver, peers[1]);
    assert!(driver.reason(peers[1]).contains("was declared lost: nothing was acknowledged for 2 s"));
    // A confirmed round in between resets the count.
    let (mut driver, mut peers) = Driver::running(&of_two);
    silent(&mut driver, peers[1]);
    driver.close(peers[1], broken());
    peers[1] = driver.join(&of_two, 1);
    driver.message(peers[1], RankMessage::Resume(resume(1, 0, plan(8))));
    driver.message(peers[1], end(0, &[]));
    driver.message(peers[1], RankMessage::Got(Round(0)));
    silent(&mut driver, peers[1]);
    assert!(driver.inboxes[&peers[1]].is_interrupted && !driver.job.is_over());
}

#[test]
fn a_rank_that_dials_again_replaces_its_pair_before_the_server_detects_the_break() {
    let of_two = settings(2);
    let (mut driver, peers) = Driver::running(&of_two);
    let back = driver.join(&of_two, 1);
    assert!(driver.inboxes[&peers[1]].end == End::WithoutReason && back != peers[1]);
    driver.message(peers[1], end(9, &[]));
    driver.close(peers[1], broken());
    driver.data_closed(peers[1], "it ended", false);
    driver.job.handle_violation(peers[1], "it is no frame");
    driver.pass(HEARTBEAT);
    assert!(!driver.job.is_over(), "the replaced pair does not count any more");
    driver.message(back, RankMessage::Resume(resume(1, 0, plan(8))));
    driver.pass(RECONNECT);
    assert!(!driver.job.is_over());
}

#[test]
fn another_process_of_an_absent_rank_ends_the_job_and_may_connect_to_the_next_one() {
    let of_two = settings(2);
    let (mut driver, peers) = Driver::running(&of_two);
    driver.close(peers[1], broken());
    let other = RankHello { process: 7, ..hello(&of_two, 1, Role::Control) };
    assert_eq!(driver.connect(&other).unwrap_err().code, RefusalCode::Busy);
    assert!(driver.reason(peers[0]).contains("another process of it connected"));
    // Nothing is lost before a plan.
    let mut driver = Driver::new(of_two.clone());
    let connected = driver.join(&of_two, 0);
    let gone = driver.join(&of_two, 1);
    driver.close(gone, broken());
    driver.connect(&other).unwrap();
    assert!(!driver.is_closed(connected));
}

#[test]
fn a_rank_that_missed_the_plan_receives_it_after_reconnecting() {
    let of_two = settings(2);
    let (mut driver, peers) = Driver::running(&of_two);
    driver.close(peers[1], broken());
    let back = driver.join(&of_two, 1);
    driver.message(back, RankMessage::Resume(Resume::default()));
    driver.message(back, RankMessage::Plan(plan(8)));
    assert_eq!(driver.take(back), [ServerMessage::Plan { generation: 1, body: plan(8) }]);
    assert_eq!(driver.slots.len(), 1, "its proposal was answered, and is no new one");
}

#[test]
fn a_proposal_counts_once_both_connections_are_established() {
    let of_two = settings(2);
    let mut driver = Driver::new(of_two.clone());
    let peers = [driver.join(&of_two, 0), driver.join(&of_two, 1)];
    driver.message(peers[0], RankMessage::Plan(plan(8)));
    driver.close(peers[1], broken());
    let back = driver.connect(&hello(&of_two, 1, Role::Control)).unwrap();
    driver.message(back, RankMessage::Resume(Resume::default()));
    driver.message(back, RankMessage::Plan(plan(8)));
    assert_eq!(driver.slots.len(), 0);
    driver.connect(&hello(&of_two, 1, Role::Data)).unwrap();
    assert_eq!(driver.slots, ["plan 1 of [0, 1] from round 0"]);
}

#[test]
fn a_replacement_server_resumes_from_the_latest_of_the_oldest_rounds() {
    let of_three = settings(3);
    let mut driver = Driver::new(of_three.clone());
    let peers: Vec<_> = (0..3).map(|rank| driver.join(&of_three, rank)).collect();
    driver.message(peers[0], RankMessage::Resume(resume(4, 7, plan(8))));
    driver.message(peers[1], RankMessage::Resume(resume(4, 8, plan(8))));
    assert_eq!(driver.slots.len(), 0, "one is missing");
    // It has received no plan, and proposes the current one.
    driver.message(peers[2], RankMessage::Resume(Resume::default()));
    driver.message(peers[2], RankMessage::Plan(plan(8)));
    assert_eq!(driver.slots, ["plan 4 of [0, 1, 2] from round 8"]);
    let resumed = Resumed { generation: 4, oldest: Round(8), has_sums: false };
    assert_eq!(driver.take(peers[1]), [ServerMessage::Resumed(resumed)]);
    assert_eq!(driver.take(peers[2]), [ServerMessage::Plan { generation: 4, body: plan(8) }]);
    assert_eq!(driver.slots.len(), 1);
}

#[test]
fn ranks_that_resume_from_a_lost_server_with_different_plans_are_refused() {
    let of_two = settings(2);
    let mut driver = Driver::new(of_two.clone());
    let peers = [driver.join(&of_two, 0), driver.join(&of_two, 1)];
    driver.message(peers[0], RankMessage::Resume(resume(4, 7, plan(8))));
    driver.message(peers[1], RankMessage::Resume(resume(4, 7, plan(9))));
    let text = driver.reason(peers[0]);
    assert!(text.contains("rank 0 and rank 1 resume from a lost server with different plans"), "{text}");
}

#[test]
fn generations_and_rounds_that_would_overflow_are_refused() {
    let refused = |known: Resume| {
        let of_two = settings(2);
        let mut driver = Driver::new(of_two.clone());
        let peer = driver.join(&of_two, 0);
        driver.message(peer, RankMessage::Resume(known));
        driver.reason(peer)
    };
    assert!(refused(resume(u32::MAX, 0, plan(8))).contains("membership 4294967295"));
    assert!(refused(resume(1, u64::MAX, plan(8))).contains("round 18446744073709551615"));
    let live = vec![0b10];
    let text = refused(Resume { live, ..resume(2, 0, plan(8)) });
    assert!(text.contains("rank 0 resumes with a membership that this job cannot have"), "{text}");
}

#[test]
fn a_rank_that_resumes_from_a_lost_server_is_refused_by_a_server_that_runs_the_job() {
    let (mut driver, peers) = Driver::running(&settings(2));
    driver.message(peers[1], RankMessage::Resume(resume(1, 0, plan(8))));
    assert!(driver.reason(peers[0]).contains("resumes from a lost server at one that runs its job"));
}

#[test]
fn a_replacement_server_resumes_with_the_remaining_ranks() {
    let survivors = JobSettings { continues_after_loss: true, ..settings(3) };
    let mut driver = Driver::new(survivors.clone());
    let peers = [driver.join(&survivors, 0), driver.join(&survivors, 2)];
    let left = foresee_grad_queue::Members::new(5, 3, [Rank(0), Rank(2)]).unwrap();
    for peer in peers {
        let known = Resume { live: members::to_bits(&left), ..resume(5, 2, plan(8)) };
        driver.message(peer, RankMessage::Resume(known));
    }
    assert_eq!(driver.slots, ["plan 5 of [0, 2] from round 2"]);
    let refusal = driver.connect(&hello(&survivors, 1, Role::Control)).unwrap_err();
    assert!(refusal.code == RefusalCode::Lost && refusal.rank == Some(Rank(1)), "{refusal}");
}

#[test]
fn a_rank_that_reports_another_loss_ends_the_job_for_that_reason() {
    let (mut driver, peers) = Driver::running(&settings(2));
    let lost = Refusal::new(RefusalCode::Lost, "server 1 is lost").about(Rank(5));
    driver.close(peers[1], Closed::Refused(lost));
    assert_eq!(driver.reason(peers[0]), "server 1 is lost");
    let (mut driver, peers) = Driver::running(&settings(2));
    driver.close(peers[1], Closed::Refused(Refusal::new(RefusalCode::Other, "out of memory")));
    assert!(driver.reason(peers[0]).contains("rank 1 of job 'run' is lost: out of memory"));
    let (mut driver, peers) = Driver::running(&settings(2));
    driver.close(peers[1], Closed::Silent("it was silent for 2 s".into()));
    assert!(driver.reason(peers[0]).contains("rank 1 of job 'run' is lost: it was silent for 2 s"));
}
