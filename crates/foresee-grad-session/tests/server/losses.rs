// SPDX-License-Identifier: Apache-2.0
//! Lost ranks, in jobs that continue without them.

use foresee_grad_queue::{Members, Round, ServerId};
use foresee_grad_session::{
    Change, Changed, Closed, JobSettings, Known, LostRank, NewMembers, Peer, RankMessage, ServerMessage,
    Used, members,
};
use foresee_units::{Nanos, Rank};

use crate::driver::{Driver, RECONNECT, end, plan, resume, set, settings};

fn survivors(world: u32) -> JobSettings {
    JobSettings { continues_after_loss: true, ..settings(world) }
}

fn live(ranks: &[u32]) -> Vec<u8> {
    members::to_bits(&Members::new(1, 8, ranks.iter().copied().map(Rank)).expect("within the world"))
}

fn silent() -> Closed {
    Closed::Silent("it was silent for 2 s".into())
}

fn known(generation: u32, oldest: u64, used: &[(u64, &[u32])]) -> RankMessage {
    let used = used.iter().map(|(round, tensors)| Used { round: Round(*round), used: set(tensors) });
    RankMessage::Known(Known { generation, oldest: Round(oldest), used: used.collect() })
}

/// The remaining ranks report their state.
fn settle(driver: &mut Driver, peers: &[Peer]) -> Change {
    for peer in peers {
        driver.message(*peer, known(2, 0, &[]));
    }
    match driver.take(peers[0]).pop() {
        Some(ServerMessage::Change(change)) => change,
        other => panic!("no change: {other:?}"),
    }
}

#[test]
fn the_first_server_proposes_members_and_combines_their_states() {
    let (mut driver, peers) = Driver::running(&survivors(3));
    for peer in &peers {
        drop(driver.take(*peer));
    }
    driver.close(peers[1], silent());
    assert!(driver.reason(peers[1]).contains("it was silent for 2 s; the others continue"));
    let why = "rank 1 is lost: it was silent for 2 s".into();
    let proposed = NewMembers { generation: 2, rank: Rank(1), live: live(&[0, 2]), why };
    assert_eq!(driver.take(peers[0]), [ServerMessage::Members(proposed)]);
    driver.message(peers[0], known(2, 3, &[(3, &[0])]));
    assert_eq!(driver.take(peers[0]), [], "one has not reported");
    driver.message(peers[2], known(2, 2, &[(2, &[1]), (4, &[2])]));
    let used = [(3, [0]), (4, [2])].map(|(round, tensors)| Used { round: Round(round), used: set(&tensors) });
    let change = Change { generation: 2, live: live(&[0, 2]), oldest: Round(3), used: used.into() };
    assert_eq!(driver.take(peers[0]), [ServerMessage::Change(change.clone())]);
    assert_eq!(driver.slots.len(), 1, "the server changes when a rank passes it on");
    drop(driver.take(peers[2]));
    driver.message(peers[0], RankMessage::Change(change));
    assert_eq!(driver.slots[1..], ["round 3, forget", "members 2 of [0, 2]"]);
    let messages = driver.take(peers[2]);
    let changed = Changed { generation: 2, oldest: Round(3) };
    assert_eq!(messages[0], ServerMessage::Changed(changed));
    assert!(matches!(&messages[1..], [ServerMessage::Used(_), ServerMessage::Used(_)]), "{messages:?}");
}

#[test]
fn another_server_reports_the_loss_and_changes_when_a_rank_passes_the_change_on() {
    let second = JobSettings { server: ServerId(1), ..survivors(2) };
    let (mut driver, peers) = Driver::running(&second);
    for peer in &peers {
        drop(driver.take(*peer));
    }
    driver.close(peers[1], silent());
    let lost = LostRank { rank: Rank(1), why: "it was silent for 2 s".into() };
    assert_eq!(driver.take(peers[0]), [ServerMessage::Lost(lost)]);
    let change = Change { generation: 2, live: live(&[0]), oldest: Round(0), used: Vec::new() };
    driver.message(peers[0], RankMessage::Change(change));
    let changed = Changed { generation: 2, oldest: Round(0) };
    assert_eq!(driver.take(peers[0]), [ServerMessage::Changed(changed)]);
    driver.message(peers[0], end(0, &[]));
    assert!(matches!(driver.take(peers[0])[..], [ServerMessage::Used(_)]));
}

#[test]
fn the_first_server_acts_on_a_loss_that_another_server_detected() {
    let (mut driver, peers) = Driver::running(&survivors(2));
    driver.message(peers[0], RankMessage::Lost(LostRank { rank: Rank(1), why: "it is gone".into() }));
    assert!(driver.reason(peers[1]).contains("was declared lost: it is gone"));
    assert!(matches!(driver.take(peers[0]).last(), Some(ServerMessage::Members(_))));
}

#[test]
fn a_loss_while_members_report_restarts_the_change() {
    let (mut driver, peers) = Driver::running(&survivors(4));
    driver.close(peers[3], silent());
    driver.message(peers[0], known(2, 0, &[]));
    driver.close(peers[2], silent());
    let Some(ServerMessage::Members(proposed)) = driver.take(peers[0]).pop() else { panic!("no members") };
    assert_eq!((proposed.generation, proposed.live), (3, live(&[0, 1])));
    driver.message(peers[0], known(2, 0, &[]));
    driver.message(peers[0], known(3, 0, &[]));
    driver.message(peers[1], known(3, 0, &[]));
    let Some(ServerMessage::Change(change)) = driver.take(peers[0]).pop() else { panic!("no change") };
    assert_eq!(change.generation, 3);
}

#[test]
fn a_member_that_leaves_before_it_reports_its_state_restarts_the_change() {
    let (mut driver, peers) = Driver::running(&survivors(3));
    driver.close(peers[2], silent());
    driver.close(peers[1], Closed::Goodbye("done".into()));
    let Some(ServerMessage::Members(proposed)) = driver.take(peers[0]).pop() else { panic!("no members") };
    assert_eq!((proposed.generation, proposed.live), (3, live(&[0])));
}

#[test]
fn a_rank_that_disconnects_during_a_membership_change_is_lost_at_once() {
    let (mut driver, peers) = Driver::running(&survivors(3));
    driver.close(peers[2], silent());
    driver.close(peers[1], Closed::Broken("reset".into()));
    assert!(driver.reason(peers[1]).contains("was declared lost: reset"));
    // A rank that was absent before is lost when it reconnects.
    let of_three = survivors(3);
    let (mut driver, peers) = Driver::running(&of_three);
    driver.close(peers[1], Closed::Broken("reset".into()));
    driver.close(peers[2], silent());
    let back = driver.join(&of_three, 1);
    driver.message(back, RankMessage::Resume(resume(1, 0, plan(8))));
    assert!(driver.reason(back).contains("its connection broke while another rank was lost"));
}

#[test]
fn messages_of_a_rank_count_after_its_own_change() {
    let (mut driver, peers) = Driver::running(&survivors(3));
    driver.close(peers[1], silent());
    let change = settle(&mut driver, &[peers[0], peers[2]]);
    driver.message(peers[0], RankMessage::Change(change.clone()));
    driver.message(peers[2], end(0, &[]));
    driver.message(peers[0], end(0, &[]));
    let is_used = |driver: &mut Driver| {
        driver.take(peers[0]).iter().any(|message| matches!(message, ServerMessage::Used(_)))
    };
    assert!(!is_used(&mut driver), "rank 2 sent it under the previous membership");
    driver.message(peers[2], RankMessage::Change(change));
    driver.message(peers[2], end(0, &[]));
    assert!(is_used(&mut driver));
}

#[test]
fn a_change_that_names_other_ranks_or_sets_is_refused() {
    let refused = |change: Change, wanted: &str| {
        let (mut driver, peers) = Driver::running(&JobSettings { server: ServerId(1), ..survivors(2) });
        driver.message(peers[0], RankMessage::Change(change));
        let text = driver.reason(peers[1]);
        assert!(text.contains(wanted), "{text}");
        assert_eq!(driver.slots.len(), 1);
    };
    let change = Change { generation: 2, live: live(&[0]), oldest: Round(0), used: Vec::new() };
    let cannot = "rank 0 passes on an invalid membership";
    refused(Change { live: live(&[5]), ..change.clone() }, cannot);
    refused(Change { live: Vec::new(), ..change.clone() }, cannot);
    refused(Change { generation: u32::MAX, ..change.clone() }, "membership 4294967295");
    let used = vec![Used { round: Round(0), used: vec![1, 2, 3] }];
    refused(Change { used, ..change.clone() }, cannot);
    refused(Change { oldest: Round(1 << 40), ..change }, "round 1099511627776");
}

#[test]
fn a_loss_while_ranks_agree_on_a_plan_ends_the_job() {
    let (mut driver, peers) = Driver::running(&survivors(2));
    driver.message(peers[0], RankMessage::Plan(plan(9)));
    driver.close(peers[1], silent());
    assert!(driver.job.is_over() && driver.reason(peers[0]).contains("rank 1 of job 'run' is lost"));
}

#[test]
fn the_last_rank_that_is_lost_ends_the_job() {
    let (mut driver, peers) = Driver::running(&survivors(1));
    driver.close(peers[0], silent());
    assert!(driver.job.is_over() && driver.job.poll_timeout().is_none());
}

#[test]
fn a_rank_that_said_goodbye_is_lost_when_others_begin_another_round() {
    let (mut driver, peers) = Driver::running(&survivors(2));
    driver.close(peers[1], Closed::Goodbye("done".into()));
    driver.pass(RECONNECT.saturating_add(Nanos::from_secs(1)));
    drop(driver.take(peers[0]));
    driver.message(peers[0], end(0, &[]));
    let Some(ServerMessage::Members(proposed)) = driver.take(peers[0]).pop() else { panic!("no members") };
    assert_eq!(proposed.why, "rank 1 is lost: it left (done)");
}

#[test]
fn the_first_server_refuses_a_change_that_it_has_not_proposed() {
    let (mut driver, peers) = Driver::running(&survivors(2));
    let change = Change { generation: 2, live: live(&[0]), oldest: Round(0), used: Vec::new() };
    driver.message(peers[0], RankMessage::Change(change));
    let text = driver.reason(peers[1]);
    assert!(text.contains("rank 0 passes on an invalid membership: this server has not proposed"), "{text}");
}

#[test]
fn others_continue_without_a_rank_that_left_with_contributions_in_flight() {
    let (mut driver, peers) = Driver::running(&survivors(2));
    for peer in &peers {
        driver.message(*peer, end(0, &[]));
    }
    drop(driver.take(peers[0]));
    driver.close(peers[1], Closed::Goodbye("done".into()));
    let Some(ServerMessage::Members(proposed)) = driver.take(peers[0]).pop() else { panic!("no members") };
    assert_eq!(proposed.why, "rank 1 is lost: it left before it had all results of a round that it ended");
}

#[test]
fn a_rank_that_left_with_contributions_in_flight_is_reported_to_the_others() {
    let of_two = JobSettings { continues_after_loss: false, ..survivors(2) };
    let (mut driver, peers) = Driver::running(&of_two);
    for peer in &peers {
        driver.message(*peer, end(0, &[]));
    }
    driver.close(peers[1], Closed::Goodbye("done".into()));
    drop(driver.take(peers[0]));
    driver.pass(of_two.wait_check_interval.saturating_add(of_two.wait_check_interval));
    let Some(ServerMessage::Waiting(text)) = driver.take(peers[0]).pop() else { panic!("no report") };
    assert!(text.contains("rank 1 (no longer connected) to receive all of round 0; 2 packets"), "{text}");
}

#[test]
fn a_rank_that_others_continue_without_receives_the_reason() {
    let (mut driver, peers) = Driver::running(&JobSettings { server: ServerId(1), ..survivors(2) });
    let change = Change { generation: 2, live: live(&[0]), oldest: Round(0), used: Vec::new() };
    driver.message(peers[0], RankMessage::Change(change));
    let text = driver.reason(peers[1]);
    assert!(text.contains("rank 1 of job 'run' was declared lost, and the others continue"), "{text}");
}
