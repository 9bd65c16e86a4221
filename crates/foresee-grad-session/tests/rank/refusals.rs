// SPDX-License-Identifier: Apache-2.0
//! What a rank does not do twice, and what it takes from no server.

use foresee_grad_queue::{Round, ServerId};
use foresee_grad_session::{Change, Closed, NewMembers, RankFailure, RankMessage, ServerMessage, Used};
use foresee_units::{Nanos, Rank};

use crate::proposed::{Driver, plan};

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
fn an_answer_of_the_first_server_that_comes_twice_is_passed_on_once() {
    let mut driver = Driver::new(false);
    let answer = || ServerMessage::Plan { generation: 1, body: plan().encode() };
    driver.hear(ServerId(0), answer());
    driver.hear(ServerId(1), answer());
    // This rank computes for long, and the first server is replaced meanwhile.
    driver.pass(Nanos::from_secs(60));
    driver.close(ServerId(0), Closed::Broken("reset".into()));
    driver.answer(ServerId(0), false);
    driver.hear(ServerId(0), answer());
    let plans = driver.sent[1].iter().filter(|message| matches!(message, RankMessage::Plan(_)));
    assert_eq!(plans.count(), 1);
}

#[test]
fn what_a_server_may_not_send_is_refused_by_its_number() {
    let used = |set: Vec<u8>| ServerMessage::Used(Used { round: Round(0), used: set });
    let mut driver = Driver::new(false);
    driver.hear(ServerId(1), ServerMessage::RoundDone(Round(0)));
    assert_eq!(refused(&driver).0, ServerId(1));
    let mut driver = Driver::new(false);
    driver.hear(ServerId(0), ServerMessage::Plan { generation: 1, body: vec![1, 2, 3] });
    assert_eq!(refused(&driver).0, ServerId(0));
    for message in [used(vec![0xff; 9]), used(vec![1]), ServerMessage::RoundDone(Round(7))] {
        let mut driver = Driver::running(false);
        driver.hear(ServerId(1), message);
        assert_eq!(refused(&driver).0, ServerId(1));
    }
}

#[test]
fn members_and_states_that_this_rank_contradicts_are_refused() {
    let mut driver = Driver::running(true);
    driver.hear(ServerId(0), members(0b100));
    assert!(refused(&driver).1.contains("proposes members without this rank"));
    for (state, wanted) in [
        (change(0b011, 0), "changes to other members than it proposed"),
        (change(0b101, 3), "takes rounds for done that this rank does not hold"),
    ] {
        let mut driver = Driver::running(true);
        driver.hear(ServerId(0), members(0b101));
        driver.hear(ServerId(0), state);
        assert!(refused(&driver).1.contains(wanted));
    }
}
