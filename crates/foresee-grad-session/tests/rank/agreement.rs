// SPDX-License-Identifier: Apache-2.0
//! Agreement on a plan, and refusals that end a job.

use foresee_grad_queue::{Plan, ServerId, TensorId, TensorSpec};
use foresee_grad_session::{
    Closed, RankFailure, RankMessage, RankSettings, Refusal, RefusalCode, Resume, ServerMessage,
};
use foresee_units::{Nanos, Rank};

use crate::driver::{Driver, TIMEOUT, broken, settings};

#[test]
fn a_plan_is_proposed_to_the_first_server_and_its_answer_to_the_others() {
    let mut driver = Driver::new(settings(3));
    driver.propose();
    let plan = RankMessage::Plan(driver.plan.encode());
    assert_eq!(driver.sent, [(0, plan.clone())]);
    driver.receive_plan(0);
    assert_eq!(driver.sent[1..], [(1, plan.clone()), (2, plan)]);
    let known = driver.rank.first_answer().unwrap();
    driver.receive_plan(2);
    assert_eq!(driver.rank.poll_agreement(&known), None);
    driver.receive_plan(1);
    driver.install();
    assert_eq!(driver.rank.collector().unwrap().generation(), 1);
}

#[test]
fn a_server_that_some_rank_does_not_reach_is_named_after_the_timeout() {
    let mut driver = Driver::new(settings(3));
    driver.propose();
    driver.receive_plan(0);
    let known = driver.rank.first_answer().unwrap();
    driver.receive_plan(1);
    driver.pass(TIMEOUT.saturating_add(Nanos::from_millis(1_999)));
    assert_eq!(driver.rank.poll_agreement(&known), None);
    driver.pass(Nanos::from_millis(1));
    let Some(Err(RankFailure::Disagree(text))) = driver.rank.poll_agreement(&known) else {
        panic!("in time")
    };
    assert!(text.contains("server 2 at 10.0.0.2:1 did not receive the plan from every rank"), "{text}");
    assert!(text.contains("pass the same servers in the same order on all"), "{text}");
}

#[test]
fn a_server_that_agrees_on_another_plan_is_named() {
    let mut driver = Driver::new(settings(2));
    driver.propose();
    driver.receive_plan(0);
    let known = driver.rank.first_answer().unwrap();
    driver.receive(1, ServerMessage::Plan { generation: 2, body: driver.plan.encode() });
    let Some(Err(RankFailure::Disagree(text))) = driver.rank.poll_agreement(&known) else {
        panic!("it fails immediately")
    };
    assert!(text.contains("server 1 agrees on another plan than server 0"), "{text}");
}

#[test]
fn a_first_server_that_answers_with_other_tensors_is_named() {
    let mut driver = Driver::new(settings(2));
    driver.propose();
    let spec = TensorSpec { shape: vec![41], ..driver.plan.tensor(TensorId(0)).unwrap().clone() };
    let other = Plan::new(driver.plan.config().clone(), vec![spec]).unwrap();
    let answer = ServerMessage::Plan { generation: 1, body: other.encode() };
    assert!(driver.message(0, answer).is_err());
    let failure = driver.failure.as_ref();
    let Some(RankFailure::ServerLost { server: ServerId(0), why, .. }) = failure else {
        panic!("not the server: {failure:?}")
    };
    assert!(why.contains("answers with a plan that this rank has not proposed"), "{why}");
    assert!(driver.take(1).is_empty(), "the other servers would compare it with the plans of other ranks");
}

#[test]
fn a_server_lost_while_ranks_agree_is_sent_the_proposal_again() {
    let mut driver = Driver::new(settings(2));
    driver.propose();
    driver.receive_plan(0);
    for server in [0, 1] {
        driver.close(server, broken());
        driver.sent.clear();
        driver.connect(server, 10);
        let plan = RankMessage::Plan(driver.plan.encode());
        assert_eq!(driver.take(server), [RankMessage::Resume(Resume::default()), plan]);
    }
    driver.receive_plan(1);
    assert_eq!(driver.rank.first_answer(), None, "what a lost server answered, the next one answers again");
    driver.receive_plan(0);
    driver.install();
    assert_eq!(driver.rank.replacements(), 2);
}

#[test]
fn a_proposal_to_a_lost_server_is_sent_after_reconnection() {
    let mut driver = Driver::new(settings(1));
    driver.close(0, broken());
    driver.propose();
    assert_eq!(driver.sent, []);
    driver.connect(0, 0);
    assert_eq!(driver.take(0).len(), 2);
    driver.receive_plan(0);
    driver.install();
}

#[test]
fn a_plan_may_be_replaced_once_every_rank_has_its_last_round() {
    let mut driver = Driver::running(settings(1));
    assert!(driver.rank.is_quiet());
    driver.end(&[0, 1]);
    driver.used(0, &[0, 1]);
    driver.arrive(0, 0);
    driver.arrive(0, 1);
    assert!(!driver.rank.is_quiet());
    driver.done(0);
    assert!(driver.rank.is_quiet());
}

#[test]
fn a_refusal_is_an_error_about_the_rank_or_server_in_it() {
    let failed = |closed: Closed| {
        let mut driver = Driver::running(settings(2));
        driver.close(1, closed);
        driver.failure
    };
    let refused = |code, rank| {
        let refusal = Refusal { code, rank, text: "for a reason".into() };
        failed(Closed::Refused(refusal))
    };
    let why = || String::from("for a reason");
    let missing = || String::from("no round has ended yet");
    let server = ServerId(1);
    assert_eq!(
        refused(RefusalCode::Lost, Some(Rank(1))),
        Some(RankFailure::RankLost { rank: Rank(1), why: why(), missing: missing() })
    );
    assert_eq!(refused(RefusalCode::Lost, None), Some(RankFailure::Refused { server, why: why() }));
    assert_eq!(refused(RefusalCode::Plan, Some(Rank(1))), Some(RankFailure::Disagree(why())));
    for code in [RefusalCode::Protocol, RefusalCode::Busy, RefusalCode::Other] {
        assert_eq!(refused(code, Some(Rank(1))), Some(RankFailure::Refused { server, why: why() }));
    }
    assert_eq!(refused(RefusalCode::Closing, None), None, "another server may take its place");
    let left = RankFailure::ServerLost { server, why: "it left: for a reason".into(), missing: missing() };
    assert_eq!(failed(Closed::Goodbye(why())), Some(left));
}

#[test]
fn a_server_that_closes_without_replacement_is_an_error() {
    let closing = || Closed::Refused(Refusal::new(RefusalCode::Closing, "it was stopped"));
    for settings in
        [RankSettings { recovers: false, ..settings(1) }, RankSettings { colocated: 1, ..settings(1) }]
    {
        let mut driver = Driver::running(settings);
        driver.close(0, closing());
        assert!(driver.failure().contains("it was stopped"), "{}", driver.failure());
    }
}

#[test]
fn events_of_an_old_pair_of_connections_change_nothing() {
    let mut driver = Driver::running(settings(1));
    driver.close(0, broken());
    driver.resume(0, 0, 0, true);
    driver.rank.handle_closed(ServerId(0), 0, Closed::Goodbye("late".into()), driver.now);
    driver.rank.handle_data_closed(ServerId(0), 0, "late", false, driver.now);
    let strange = ServerMessage::Plan { generation: 9, body: Vec::new() };
    assert_eq!(driver.rank.handle_message(ServerId(0), 0, strange, driver.now), Ok(None));
    assert!(driver.rank.poll_action().is_none() && driver.rank.poll_timeout().is_none());
    assert_eq!(driver.failure, None);
}
