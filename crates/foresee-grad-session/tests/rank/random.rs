// SPDX-License-Identifier: Apache-2.0
//! Random messages of servers and random breaks: the state machine of a rank follows its rules.
//!
//! Messages use the current pair, one attempt to connect is in progress at a time, a rank fails once, and no timer is due
//! after it was handled.

use std::sync::Arc;

use foresee_grad_queue::{Round, ServerId};
use foresee_grad_session::{
    Change, Changed, Closed, DialFault, LostRank, NewMembers, RankSettings, Refusal, RefusalCode, Resumed,
    ServerMessage, Used,
};
use foresee_testkit::property;
use foresee_units::{Nanos, Rank};
use proptest::prelude::*;

use crate::driver::{Driver, TIMEOUT, broken, plan, settings};

#[derive(Clone, Debug)]
enum Fact {
    Message(u16, ServerMessage),
    Close(u16, Closed),
    DataClose(u16, bool),
    Answer(u16, bool),
    Push(u32),
    End,
    Agree,
    Pass(u64),
}

fn messages() -> impl Strategy<Value = ServerMessage> {
    let rounds = || prop_oneof![12 => 0_u64..3, 1 => Just(u64::MAX)].prop_map(Round);
    let generations = || prop_oneof![12 => 0_u32..4, 1 => Just(u32::MAX)];
    let bodies = prop_oneof![6 => Just(plan(2).encode()), 1 => prop::collection::vec(any::<u8>(), 0..4)];
    let sets = || prop_oneof![8 => (0_u8..4).prop_map(|set| vec![set]), 1 => Just(vec![9, 9])];
    let live = || (0_u8..8).prop_map(|set| vec![set]);
    let why = || String::from("gone");
    prop_oneof![
        4 => (generations(), bodies).prop_map(|(generation, body)| ServerMessage::Plan { generation, body }),
        4 => (rounds(), sets()).prop_map(|(round, used)| ServerMessage::Used(Used { round, used })),
        4 => rounds().prop_map(ServerMessage::RoundDone),
        4 => (generations(), rounds(), any::<bool>()).prop_map(|(generation, oldest, has_sums)| {
            ServerMessage::Resumed(Resumed { generation, oldest, has_sums })
        }),
        1 => (0_u32..3).prop_map(move |rank| ServerMessage::Lost(LostRank { rank: Rank(rank), why: why() })),
        2 => (generations(), 0_u32..3, live()).prop_map(move |(generation, rank, live)| {
            ServerMessage::Members(NewMembers { generation, rank: Rank(rank), live, why: why() })
        }),
        2 => (generations(), live(), rounds()).prop_map(|(generation, live, oldest)| {
            ServerMessage::Change(Change { generation, live, oldest, used: Vec::new() })
        }),
        2 => (generations(), rounds())
            .prop_map(|(generation, oldest)| ServerMessage::Changed(Changed { generation, oldest })),
        1 => Just(ServerMessage::Waiting("rank 1 to end round 0".into())),
    ]
}

fn facts() -> impl Strategy<Value = Fact> {
    let at = || 0_u16..2;
    let ends = prop_oneof![
        1 => Just(Closed::Goodbye("done".into())),
        6 => Just(broken()),
        2 => Just(Closed::Silent("silent".into())),
        1 => Just(Closed::Refused(Refusal::new(RefusalCode::Lost, "elsewhere"))),
        2 => Just(Closed::Refused(Refusal::new(RefusalCode::Closing, "it closes"))),
    ];
    prop_oneof![
        12 => (at(), messages()).prop_map(|(at, message)| Fact::Message(at, message)),
        4 => (at(), ends).prop_map(|(at, closed)| Fact::Close(at, closed)),
        2 => (at(), any::<bool>()).prop_map(|(at, is_silence)| Fact::DataClose(at, is_silence)),
        6 => (at(), any::<bool>()).prop_map(|(at, is_same)| Fact::Answer(at, is_same)),
        4 => (0_u32..4).prop_map(Fact::Push),
        3 => Just(Fact::End),
        2 => Just(Fact::Agree),
        3 => (0_u64..900).prop_map(Fact::Pass),
    ]
}

fn play(driver: &mut Driver, processes: &mut u64, fact: Fact) {
    match fact {
        Fact::Message(at, message) => drop(driver.message(at, message)),
        Fact::Close(at, closed) => close(driver, at, closed),
        Fact::DataClose(at, is_silence) => driver.close_data(at, "it ended", is_silence),
        Fact::Answer(at, is_same) => answer(driver, processes, at, is_same),
        Fact::Push(tensor) => {
            let known = driver.rank.plan().is_some_and(|plan| tensor < plan.tensors());
            if known {
                let _ = driver.push(tensor);
            }
        }
        Fact::End => drop(driver.rank.handle_end()),
        Fact::Agree => {
            if let Some(known) = driver.rank.first_answer()
                && driver.rank.poll_agreement(&known) == Some(Ok(()))
            {
                driver.rank.install(Arc::clone(&driver.plan), known.0);
            }
        }
        Fact::Pass(millis) => driver.pass(Nanos::from_millis(millis)),
    }
    driver.perform();
    let dialled = |server| driver.dials.iter().filter(|dial| dial.server == server).count();
    assert!((0..2).all(|server| dialled(server) <= 1), "one attempt at a time");
}

/// The control connection to a server ends, once.
fn close(driver: &mut Driver, server: u16, closed: Closed) {
    if !driver.rank.is_lost(ServerId(server)) {
        driver.close(server, closed);
    }
}

/// A dialled server answers: the same process as before, or another one.
fn answer(driver: &mut Driver, processes: &mut u64, server: u16, is_same: bool) {
    let Some(at) = driver.dials.iter().position(|dial| dial.server == server) else { return };
    driver.dials.remove(at);
    if driver.rank.begin_pair(ServerId(server)).is_some() {
        *processes += u64::from(!is_same);
        let process = if is_same { u64::from(server) } else { *processes };
        driver.rank.handle_connected(ServerId(server), process, driver.now);
    }
}

proptest! {
    #![proptest_config(property(20_000))]

    #[test]
    fn with_random_server_messages_a_lost_server_reconnects_or_is_named_in_time(
        is_running: bool,
        continues_after_loss: bool,
        facts in prop::collection::vec(facts(), 0..60),
    ) {
        let settings = RankSettings { world: 3, continues_after_loss, ..settings(2) };
        let mut driver = if is_running { Driver::running(settings) } else { Driver::new(settings) };
        if !is_running {
            driver.propose();
        }
        let mut processes = 2;
        for fact in facts {
            play(&mut driver, &mut processes, fact);
            prop_assert_eq!(driver.rank.is_over(), driver.failure.is_some());
        }
        // No server answers any more: the rank ends without help, with a reason.
        for server in 0..2 {
            close(&mut driver, server, broken());
        }
        while driver.failure.is_none() {
            let before = driver.now;
            driver.pass(TIMEOUT);
            for dial in driver.take_dials() {
                driver.not_connected(dial.server, DialFault::NotListening);
            }
            prop_assert!(driver.now < before.saturating_add(TIMEOUT).saturating_add(TIMEOUT));
            prop_assert!(driver.now < Nanos::from_secs(300), "it waits without a timer: {:?}", driver.rank);
        }
    }
}
