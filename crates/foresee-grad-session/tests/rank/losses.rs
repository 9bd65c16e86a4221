// SPDX-License-Identifier: Apache-2.0
//! Lost ranks: a new membership, and membership messages that a rank refuses.

use foresee_grad_queue::Round;
use foresee_grad_session::{
    Change, Changed, Known, LostRank, NewMembers, RankFailure, RankMessage, RankSettings, ServerMessage,
    SumAdmission, Used,
};
use foresee_units::Rank;

use crate::driver::{BIAS, Driver, EMBEDDING, broken, set, settings};

fn survivor(servers: u16) -> RankSettings {
    RankSettings { continues_after_loss: true, world: 3, ..settings(servers) }
}

fn members(generation: u32) -> ServerMessage {
    let why = "rank 2 is lost".into();
    ServerMessage::Members(NewMembers { generation, rank: Rank(2), live: vec![0b11], why })
}

fn change(generation: u32, used: &[u32]) -> Change {
    let used = vec![Used { round: Round(0), used: set(used) }];
    Change { generation, live: vec![0b11], oldest: Round(0), used }
}

fn changed(generation: u32) -> ServerMessage {
    ServerMessage::Changed(Changed { generation, oldest: Round(0) })
}

#[test]
fn a_rank_reports_its_state_and_offers_again_under_a_new_membership() {
    let mut driver = Driver::running(survivor(2));
    driver.end(&[EMBEDDING, BIAS]);
    driver.used(0, &[EMBEDDING, BIAS]);
    driver.arrive(0, BIAS);
    driver.sent.clear();
    driver.receive(0, members(2));
    let used = vec![Used { round: Round(0), used: set(&[EMBEDDING, BIAS]) }];
    let known = Known { generation: 2, oldest: Round(0), used };
    assert_eq!(driver.sent, [(0, RankMessage::Known(known))]);
    // Reports about rounds do not count before the server has changed.
    driver.receive(1, ServerMessage::RoundDone(Round(7)));
    driver.sent.clear();
    driver.receive(0, ServerMessage::Change(change(2, &[EMBEDDING, BIAS])));
    let report = RankMessage::Change(change(2, &[EMBEDDING, BIAS]));
    assert!(driver.sent.contains(&(0, report.clone())) && driver.sent.contains(&(1, report)));
    assert_eq!(driver.offered, [(0, 0, EMBEDDING), (1, 0, EMBEDDING)], "what has arrived stays as it is");
    driver.receive(0, changed(2));
    driver.receive(1, changed(2));
    assert_eq!(driver.rank.lost_ranks(), 1);
    assert_eq!(driver.rank.take_notices(), ["rank 2 is lost; the 2 remaining ranks continue"]);
    driver.arrive(0, EMBEDDING);
    driver.used(0, &[EMBEDDING, BIAS]);
    driver.done(0);
    assert!(driver.rank.is_quiet() && driver.failure.is_none());
}

#[test]
fn a_change_message_that_arrives_before_its_membership_is_retried() {
    let mut driver = Driver::running(survivor(2));
    driver.receive(0, members(2));
    assert_eq!(driver.message(1, changed(2)), Ok(Some(changed(2))));
    driver.end(&[BIAS]);
    assert!(matches!(driver.sum(1, 2, 0, EMBEDDING, 0), Ok(SumAdmission::Retry)));
    driver.receive(0, ServerMessage::Change(change(2, &[BIAS])));
    driver.receive(1, changed(2));
}

#[test]
fn a_loss_that_another_server_detected_is_passed_on_to_the_first() {
    let mut driver = Driver::running(survivor(2));
    let lost = LostRank { rank: Rank(2), why: "it is silent".into() };
    driver.receive(1, ServerMessage::Lost(lost.clone()));
    assert_eq!(driver.sent, [(0, RankMessage::Lost(lost.clone()))]);
    driver.receive(0, ServerMessage::Lost(lost));
    assert_eq!(driver.sent.len(), 1, "the first server knows");
}

#[test]
fn membership_messages_without_an_announced_loss_are_refused() {
    let cases = [
        (false, vec![changed(2)], "changes the membership of a job that ends when a rank is lost"),
        (false, vec![members(2)], "changes the membership of a job that ends when a rank is lost"),
        (
            false,
            vec![ServerMessage::Change(change(2, &[]))],
            "changes the membership of a job that ends when a rank is lost",
        ),
        (true, vec![changed(2)], "sends CHANGED of a membership that was not announced"),
        (true, vec![members(2), changed(2)], "sends CHANGED of a membership that was not announced"),
        (
            true,
            vec![ServerMessage::Change(change(2, &[]))],
            "sends CHANGE of a membership that was not announced",
        ),
        (true, vec![members(1)], "sends MEMBERS of a membership that was not announced"),
        (true, vec![members(2), members(2)], "sends MEMBERS of a membership that was not announced"),
    ];
    for (continues_after_loss, messages, wanted) in cases {
        let mut driver = Driver::running(RankSettings { continues_after_loss, ..survivor(2) });
        let (last, before) = messages.split_last().unwrap();
        for message in before {
            driver.receive(0, message.clone());
        }
        let text = format!("{:?}", driver.message(0, last.clone()).unwrap_err());
        assert!(text.contains(wanted), "{text}");
        assert_eq!(driver.failure(), text, "nothing continues after a failure");
    }
    let mut driver = Driver::running(survivor(2));
    let text = format!("{:?}", driver.message(1, members(2)).unwrap_err());
    assert!(text.contains("server 1 sends MEMBERS of a membership that was not announced"), "{text}");
}

#[test]
fn a_rank_lost_while_ranks_agree_or_a_server_is_lost_ends_the_job() {
    let during = |driver: &mut Driver, what: &str| {
        let failure = driver.message(0, members(2)).unwrap_err();
        let RankFailure::RankLost { rank: Rank(2), why, .. } = failure else { panic!("{failure:?}") };
        assert_eq!(why, format!("rank 2 is lost, while {what}"));
    };
    let mut driver = Driver::new(survivor(2));
    during(&mut driver, "ranks agree on a plan");
    let mut driver = Driver::running(survivor(2));
    driver.propose();
    during(&mut driver, "ranks agree on a plan");
    let mut driver = Driver::running(survivor(2));
    driver.close(1, broken());
    during(&mut driver, "a server is lost, too");
    driver = Driver::running(survivor(2));
    driver.end(&[BIAS]);
    driver.close(1, broken());
    driver.resume(1, 10, 0, false);
    during(&mut driver, "a replacement server repeats sums of a lost one");
}

#[test]
fn a_server_lost_while_the_membership_changes_ends_the_job() {
    let mut driver = Driver::running(survivor(2));
    driver.receive(0, members(2));
    driver.close(1, broken());
    assert!(driver.failure().contains("server: ServerId(1)"), "{}", driver.failure());
}

#[test]
fn a_server_replaced_in_the_round_of_a_loss_ends_the_job() {
    let mut driver = Driver::running(survivor(2));
    driver.end(&[BIAS]);
    driver.used(0, &[BIAS]);
    driver.receive(0, members(2));
    driver.receive(0, ServerMessage::Change(change(2, &[BIAS])));
    driver.receive(0, changed(2));
    driver.receive(1, changed(2));
    driver.close(1, broken());
    driver.connect(1, 10);
    let resumed = foresee_grad_session::Resumed { generation: 2, oldest: Round(0), has_sums: false };
    let text = format!("{:?}", driver.message(1, ServerMessage::Resumed(resumed)).unwrap_err());
    assert!(text.contains("reset; a rank was lost in the same round"), "{text}");
}
