// SPDX-License-Identifier: Apache-2.0
//! Admission, agreement on a plan, rounds, and reports of long waits.

use foresee_grad_queue::Round;
use foresee_grad_session::{
    Closed, JobSettings, RankHello, RankMessage, RefusalCode, Role, ServerMessage, Used,
};
use foresee_units::{Nanos, Rank};

use crate::driver::{Driver, End, HEARTBEAT, WAIT_CHECK, end, hello, plan, resume, set, settings};

#[test]
fn ranks_that_propose_one_plan_receive_it_once_all_are_connected() {
    let of_two = settings(2);
    let mut driver = Driver::new(of_two.clone());
    let first = driver.join(&of_two, 0);
    let second = driver.connect(&hello(&of_two, 1, Role::Control)).unwrap();
    driver.message(second, RankMessage::Plan(plan(8)));
    driver.message(first, RankMessage::Plan(plan(8)));
    assert_eq!(driver.take(first), [], "one data connection is missing");
    driver.connect(&hello(&of_two, 1, Role::Data)).unwrap();
    let agreed = ServerMessage::Plan { generation: 1, body: plan(8) };
    assert_eq!(driver.take(first), std::slice::from_ref(&agreed));
    assert_eq!(driver.take(second), [agreed]);
    assert_eq!(driver.slots, ["plan 1 of [0, 1] from round 0"]);
}

#[test]
fn different_plans_end_the_job_and_the_error_names_both_ranks_and_the_difference() {
    let of_two = settings(2);
    let mut driver = Driver::new(of_two.clone());
    let peers = [driver.join(&of_two, 0), driver.join(&of_two, 1)];
    driver.message(peers[0], RankMessage::Plan(plan(8)));
    driver.message(peers[1], RankMessage::Plan(plan(9)));
    for peer in peers {
        let text = driver.reason(peer);
        assert!(text.contains(" on rank 0 and ") && text.contains(" on rank 1; every rank must"), "{text}");
    }
    assert!(driver.job.is_over());
}

#[test]
fn bytes_that_encode_no_plan_end_the_job() {
    let alone = settings(1);
    let mut driver = Driver::new(alone.clone());
    let peer = driver.join(&alone, 0);
    driver.message(peer, RankMessage::Plan(vec![0xff; 40]));
    assert!(driver.is_closed(peer) && driver.job.is_over());
}

type Change = fn(&mut RankHello);

#[test]
fn a_different_setting_ends_a_job_without_a_plan_and_is_named() {
    let of_two = settings(2);
    let changes: [(Change, &str); 4] = [
        (|hello| hello.world = 3, "a world of 3 ranks, and others one of 2"),
        (|hello| hello.node_ranks = 2, "exchanges for 2 ranks of its node"),
        (|hello| hello.continues_after_loss = true, "continues when a rank is lost, unlike others"),
        (|hello| hello.server = 7, "number 7 of its list, and others as number 0"),
    ];
    for (change, text) in changes {
        let mut driver = Driver::new(of_two.clone());
        let peer = driver.join(&of_two, 0);
        let mut other = hello(&of_two, 1, Role::Control);
        change(&mut other);
        let refusal = driver.connect(&other).unwrap_err();
        assert!(refusal.code == RefusalCode::Plan && refusal.text.contains(text), "{refusal}");
        assert_eq!(driver.reason(peer), refusal.text);
        // A job with a plan continues without the refused rank.
        let (mut driver, peers) = Driver::running(&of_two);
        driver.connect(&other).unwrap_err();
        assert!(!driver.is_closed(peers[0]) && !driver.job.is_over());
    }
}

#[test]
fn a_rank_that_does_not_exchange_for_its_node_is_refused() {
    let of_nodes = JobSettings { node_ranks: 2, ..settings(4) };
    let mut driver = Driver::new(of_nodes.clone());
    let refusal = driver.connect(&hello(&of_nodes, 1, Role::Control)).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Protocol);
    assert!(refusal.text.contains("the first of every 2 ranks does"), "{refusal}");
    let (driver, _) = Driver::running(&of_nodes);
    assert_eq!(driver.slots, ["plan 1 of [0, 2] from round 0"]);
}

#[test]
fn a_second_process_of_a_rank_is_refused_and_the_first_continues() {
    let of_two = settings(2);
    let (mut driver, peers) = Driver::running(&of_two);
    let other = RankHello { process: 7, ..hello(&of_two, 1, Role::Control) };
    let refusal = driver.connect(&other).unwrap_err();
    assert!(refusal.text.contains("is already connected from another process"), "{refusal}");
    assert!(!driver.is_closed(peers[1]));
}

#[test]
fn used_tensors_are_reported_when_all_end_the_round_and_it_is_done_when_all_confirm_it() {
    let (mut driver, peers) = Driver::running(&settings(2));
    for peer in &peers {
        drop(driver.take(*peer));
    }
    driver.message(peers[0], end(0, &[1]));
    assert_eq!(driver.take(peers[0]), []);
    driver.message(peers[1], end(0, &[1, 2]));
    let used = ServerMessage::Used(Used { round: Round(0), used: set(&[0, 2]) });
    assert_eq!(driver.take(peers[0]), [used]);
    driver.message(peers[0], RankMessage::Got(Round(0)));
    driver.message(peers[1], RankMessage::Got(Round(0)));
    assert_eq!(driver.take(peers[0]), [ServerMessage::RoundDone(Round(0))]);
    assert_eq!(driver.slots[1..], ["rank 0 skips", "rank 1 skips", "round 1, forget"]);
}

#[test]
fn slots_drop_sums_of_done_rounds_only_after_a_server_was_lost() {
    let (mut driver, peers) = Driver::running(&settings(1));
    for round in 0..5 {
        driver.message(peers[0], end(round, &[]));
        driver.message(peers[0], RankMessage::Got(Round(round)));
    }
    assert_eq!(
        driver.slots[1..],
        ["round 1, forget", "round 2, forget", "round 3, forget", "round 4", "round 5"]
    );
}

#[test]
fn a_rank_that_violates_the_order_of_rounds_ends_the_job_and_is_named() {
    let early = |messages: &[RankMessage], wanted: &str| {
        let (mut driver, peers) = Driver::running(&settings(2));
        for message in messages {
            driver.message(peers[1], message.clone());
        }
        let text = driver.reason(peers[0]);
        assert!(text.contains("rank 1") && text.contains(wanted), "{text}");
    };
    early(&[end(1, &[])], "round 1");
    early(&[RankMessage::Got(Round(0))], "round 0");
    early(&[RankMessage::RoundEnd { round: Round(0), absent: vec![0xff] }], "");
    early(&[RankMessage::Known(known())], "changes the membership of a job that ends");
    let of_two = settings(2);
    let mut driver = Driver::new(of_two.clone());
    let peer = driver.join(&of_two, 0);
    driver.message(peer, end(0, &[]));
    assert!(driver.reason(peer).contains("rank 0 names rounds before a plan"));
}

fn known() -> foresee_grad_session::Known {
    foresee_grad_session::Known { generation: 2, oldest: Round(0), used: Vec::new() }
}

#[test]
fn a_rank_in_a_later_round_than_a_proposing_rank_ends_the_job() {
    let (mut driver, peers) = Driver::running(&settings(2));
    for peer in &peers {
        driver.message(*peer, end(0, &[]));
        driver.message(*peer, RankMessage::Got(Round(0)));
    }
    driver.message(peers[0], RankMessage::Plan(plan(9)));
    driver.message(peers[1], end(1, &[]));
    let text = driver.reason(peers[0]);
    assert!(text.contains("rank 0 proposes a plan while rank 1 continues"), "{text}");
}

#[test]
fn a_second_plan_has_the_next_generation_and_starts_at_round_0() {
    let (mut driver, peers) = Driver::running(&settings(1));
    driver.message(peers[0], end(0, &[]));
    driver.message(peers[0], RankMessage::Got(Round(0)));
    driver.message(peers[0], RankMessage::Plan(plan(9)));
    driver.message(peers[0], end(0, &[]));
    let messages = driver.take(peers[0]);
    assert!(matches!(&messages[..], [.., ServerMessage::Plan { generation: 2, .. }, ServerMessage::Used(_)]));
    assert_eq!(driver.slots.last().unwrap(), "plan 2 of [0] from round 0");
}

#[test]
fn a_long_wait_is_reported_to_waiting_ranks_at_every_second_check() {
    let (mut driver, peers) = Driver::running(&settings(3));
    for peer in &peers {
        drop(driver.take(*peer));
    }
    driver.message(peers[0], end(0, &[]));
    driver.pass(WAIT_CHECK);
    assert_eq!(driver.take(peers[0]), []);
    driver.pass(WAIT_CHECK);
    let text = "ranks 1, 2 to end round 0; 2 packets of 't0' of rank 1 have not arrived";
    assert_eq!(driver.take(peers[0]), [ServerMessage::Waiting(text.into())]);
    assert_eq!(driver.take(peers[1]), []);
    driver.pass(WAIT_CHECK);
    assert_eq!(driver.take(peers[0]), []);
    driver.pass(WAIT_CHECK);
    assert_eq!(driver.take(peers[0]).len(), 1);
}

#[test]
fn ranks_that_wait_for_the_first_plan_learn_each_second_which_ranks_are_missing() {
    let of_three = settings(3);
    let mut driver = Driver::new(of_three.clone());
    let (first, _) = (driver.join(&of_three, 0), driver.join(&of_three, 2));
    driver.message(first, RankMessage::Plan(plan(8)));
    let second = Nanos::from_secs(1);
    let waiting = |text: &str| [ServerMessage::Waiting(text.into())];
    driver.pass(Nanos::from_millis(500));
    assert_eq!(driver.take(first), waiting("rank 2 to propose its tensors, and for rank 1 to connect"));
    driver.join(&of_three, 1);
    driver.pass(second);
    assert_eq!(driver.take(first), waiting("ranks 1, 2 to propose their tensors").as_slice());
}

#[test]
fn a_start_that_a_rank_gives_up_is_blamed_on_the_rank_that_never_connected() {
    let of_four = settings(4);
    let mut driver = Driver::new(of_four.clone());
    let peers = [0, 1].map(|rank| driver.join(&of_four, rank));
    for peer in peers {
        driver.message(peer, RankMessage::Plan(plan(8)));
    }
    driver.close(peers[0], Closed::Goodbye("the rank is done".into()));
    let refusal = driver.refusal(peers[1]);
    assert_eq!((refusal.code, refusal.rank), (RefusalCode::Lost, Some(Rank(2))));
    assert_eq!(
        refusal.text,
        "ranks 2, 3 of job 'run' have not connected, and rank 0 gave up (the rank is done); check the output of ranks \
         2, 3, or pass a larger start_timeout="
    );
}

#[test]
fn a_goodbye_ends_the_job_only_if_others_begin_another_round() {
    let (mut driver, peers) = Driver::running(&settings(2));
    for peer in &peers {
        driver.message(*peer, end(0, &[]));
        driver.message(*peer, RankMessage::Got(Round(0)));
    }
    driver.close(peers[1], Closed::Goodbye("the rank is done".into()));
    assert!(!driver.job.is_over());
    driver.message(peers[0], end(1, &[]));
    let text = driver.reason(peers[0]);
    assert!(text.contains("rank 1 of job 'run' left (the rank is done) while others continue"), "{text}");
    let (mut driver, peers) = Driver::running(&settings(2));
    for peer in &peers {
        driver.close(*peer, Closed::Goodbye("the rank is done".into()));
    }
    assert!(driver.job.is_over() && driver.inboxes[&peers[0]].end == End::WithoutReason);
}

#[test]
fn a_job_is_over_only_after_a_rank_has_connected() {
    let of_two = settings(2);
    let mut driver = Driver::new(of_two.clone());
    assert!(!driver.job.is_over());
    let peer = driver.job.admit(&hello(&of_two, 0, Role::Control), driver.now).unwrap();
    assert_eq!(driver.job.ranks(), 1);
    driver.job.handle_not_connected(peer);
    driver.perform();
    assert!(driver.job.is_over() && driver.job.ranks() == 0);
    assert_eq!(driver.job.poll_timeout(), None);
}

#[test]
fn a_rank_that_never_had_both_connections_may_try_again() {
    let of_two = settings(2);
    let mut driver = Driver::new(of_two.clone());
    driver.join(&of_two, 0);
    let half = driver.connect(&hello(&of_two, 1, Role::Control)).unwrap();
    driver.close(half, Closed::Broken("reset".into()));
    assert!(!driver.job.is_over());
    let again = driver.join(&of_two, 1);
    assert_ne!(again, half, "messages of the first pair do not count for the second");
    driver.data_closed(half, "reset", false);
    driver.pass(HEARTBEAT);
    assert!(!driver.is_closed(again));
    assert_eq!(again.rank, Rank(1));
}

#[test]
fn a_plan_with_more_packets_than_possible_slots_is_refused() {
    let alone = settings(1);
    // The plan is proposed, or resumed from a lost server.
    let body = plan(16 << 24);
    for message in [RankMessage::Plan(body.clone()), RankMessage::Resume(resume(1, 0, body))] {
        let mut driver = Driver::new(alone.clone());
        let peer = driver.join(&alone, 0);
        driver.message(peer, message);
        let text = driver.reason(peer);
        assert!(text.contains("use larger packets, or more servers"), "{text}");
    }
}
