// SPDX-License-Identifier: Apache-2.0
//! Messages that a rank refuses, and repetitions that it ignores.

use foresee_grad_queue::{Round, ServerId};
use foresee_grad_session::{Change, NewMembers, RankFailure, RankMessage, RankSettings, ServerMessage, Used};
use foresee_units::{Nanos, Rank};

use crate::driver::{Driver, broken, settings};

/// Rank 0 of three, with two servers.
fn of_three(continues_after_loss: bool) -> RankSettings {
    RankSettings { world: 3, continues_after_loss, ..settings(2) }
}

/// The same, which has proposed a plan.
fn proposed() -> Driver {
    let mut driver = Driver::new(of_three(false));
    driver.propose();
    driver
}

/// Send a message that the rank refuses.
fn send_refused(driver: &mut Driver, server: u16, message: ServerMessage) {
    assert!(driver.message(server, message).is_err());
}

fn refused(driver: &Driver) -> (ServerId, &str) {
    match driver.failure.as_ref() {
        Some(RankFailure::ServerLost { server, why, .. }) => (*server, why),
        other => panic!("it does not name the server: {other:?}"),
    }
}

fn members(live: u8) -> ServerMessage {
    ServerMessage::Members(NewMembers { generation: 2, rank: Rank(1), live: vec![live], why: "gone".into() })
}

fn change(live: u8, oldest: u64) -> ServerMessage {
    let (oldest, live) = (Round(oldest), vec![live]);
    ServerMessage::Change(Change { generation: 2, live, oldest, used: Vec::new() })
}

#[test]
fn a_repeated_answer_of_the_first_server_is_passed_on_once() {
    let mut driver = proposed();
    driver.receive_plan(0);
    driver.receive_plan(1);
    // The first server is replaced while this rank computes.
    driver.pass(Nanos::from_secs(60));
    driver.close(0, broken());
    driver.connect(0, 2);
    driver.receive_plan(0);
    let sent = driver.take(1);
    assert_eq!(sent.iter().filter(|message| matches!(message, RankMessage::Plan(_))).count(), 1);
}

#[test]
fn an_invalid_message_of_a_server_is_refused_with_its_number() {
    let used = |set: Vec<u8>| ServerMessage::Used(Used { round: Round(0), used: set });
    let mut driver = proposed();
    send_refused(&mut driver, 1, ServerMessage::RoundDone(Round(0)));
    assert_eq!(refused(&driver).0, ServerId(1));
    let mut driver = proposed();
    send_refused(&mut driver, 0, ServerMessage::Plan { generation: 1, body: vec![1, 2, 3] });
    assert_eq!(refused(&driver).0, ServerId(0));
    for message in [used(vec![0xff; 9]), used(vec![1]), ServerMessage::RoundDone(Round(7))] {
        let mut driver = Driver::running(of_three(false));
        send_refused(&mut driver, 1, message);
        assert_eq!(refused(&driver).0, ServerId(1));
    }
}

#[test]
fn members_and_states_that_contradict_this_rank_are_refused() {
    let mut driver = Driver::running(of_three(true));
    send_refused(&mut driver, 0, members(0b100));
    assert!(refused(&driver).1.contains("proposes members without this rank"));
    for (state, wanted) in [
        (change(0b011, 0), "changes to other members than it proposed"),
        (change(0b101, 3), "reports rounds as done that this rank lacks"),
    ] {
        let mut driver = Driver::running(of_three(true));
        driver.receive(0, members(0b101));
        send_refused(&mut driver, 0, state);
        assert!(refused(&driver).1.contains(wanted));
    }
}

#[test]
fn a_change_with_used_tensors_of_an_open_round_reports_that_ranks_differ() {
    let mut driver = Driver::running(of_three(true));
    driver.receive(0, members(0b101));
    let used = vec![Used { round: Round(0), used: vec![1] }];
    let change = Change { generation: 2, live: vec![0b101], oldest: Round(0), used };
    send_refused(&mut driver, 0, ServerMessage::Change(change));
    let failure = driver.failure.as_ref();
    let Some(RankFailure::Disagree(why)) = failure else { panic!("not the ranks: {failure:?}") };
    assert!(why.contains("used tensors of round 0, which this rank has not ended"), "{why}");
}
