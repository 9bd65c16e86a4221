// SPDX-License-Identifier: Apache-2.0
//! Random facts: whatever servers send, and whenever connections break, the machine stays within its rules.
//!
//! The driver checks that messages go over the present pair, that one attempt to connect is under way, that a rank fails
//! once, and that no timer is over after it was handled.

use foresee_grad_queue::{Round, TensorId};
use foresee_grad_session::{
    Change, Changed, Closed, DialFault, LostRank, NewMembers, Refusal, RefusalCode, Resumed, ServerMessage,
    Used,
};
use foresee_testkit::property;
use foresee_units::{Nanos, Rank};
use proptest::prelude::*;

use crate::proposed::{Driver, SERVERS, TIMEOUT, plan};

#[derive(Clone, Debug)]
enum Fact {
    Message(usize, ServerMessage),
    Close(usize, Closed),
    DataClose(usize, bool),
    Answer(usize, bool),
    Push(u32),
    End,
    Agree,
    Pass(u64),
}

fn messages() -> impl Strategy<Value = ServerMessage> {
    let rounds = || prop_oneof![12 => 0_u64..3, 1 => Just(u64::MAX)].prop_map(Round);
    let generations = || prop_oneof![12 => 0_u32..4, 1 => Just(u32::MAX)];
    let bodies = prop_oneof![6 => Just(plan().encode()), 1 => prop::collection::vec(any::<u8>(), 0..4)];
    let sets = || prop_oneof![8 => (0_u8..8).prop_map(|set| vec![set]), 1 => Just(vec![9, 9])];
    let live = || (0_u8..8).prop_map(|set| vec![set]);
    let why = || String::from("gone");
    prop_oneof![
        4 => (generations(), bodies).prop_map(|(generation, body)| ServerMessage::Plan { generation, body }),
        4 => (rounds(), sets()).prop_map(|(round, used)| ServerMessage::Used(Used { round, used })),
        4 => rounds().prop_map(ServerMessage::RoundDone),
        4 => (generations(), rounds(), any::<bool>()).prop_map(|(generation, oldest, knows)| {
            ServerMessage::Resumed(Resumed { generation, oldest, knows })
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
    let at = || 0_usize..2;
    let ends = prop_oneof![
        1 => Just(Closed::Goodbye("done".into())),
        6 => Just(Closed::Broken("reset".into())),
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

fn play(driver: &mut Driver, fact: Fact) {
    match fact {
        Fact::Message(at, message) => driver.hear(SERVERS[at], message),
        Fact::Close(at, closed) => driver.close(SERVERS[at], closed),
        Fact::DataClose(at, is_silence) => {
            let pair = driver.rank.pair(SERVERS[at]);
            driver.rank.handle_data_closed(SERVERS[at], pair, "it ended", is_silence, driver.now);
        }
        Fact::Answer(at, is_same) => driver.answer(SERVERS[at], is_same),
        Fact::Push(tensor) => {
            let known = driver.rank.plan().is_some_and(|plan| tensor < plan.tensors());
            if known {
                let _ = driver.rank.handle_push(TensorId(tensor));
            }
        }
        Fact::End => drop(driver.rank.handle_end()),
        Fact::Agree => driver.agree(),
        Fact::Pass(millis) => driver.pass(Nanos::from_millis(millis)),
    }
    driver.perform();
}

proptest! {
    #![proptest_config(property(20_000))]

    #[test]
    fn whatever_servers_do_a_lost_server_is_back_or_named_in_time(
        is_running: bool,
        survives: bool,
        facts in prop::collection::vec(facts(), 0..60),
    ) {
        let mut driver = if is_running { Driver::running(survives) } else { Driver::new(survives) };
        for fact in facts {
            play(&mut driver, fact);
            prop_assert_eq!(driver.rank.is_over(), driver.failure.is_some());
        }
        // No server answers any more: the rank ends by itself, and says why.
        for server in SERVERS {
            driver.close(server, Closed::Broken("reset".into()));
        }
        while driver.failure.is_none() {
            let before = driver.now;
            driver.pass(TIMEOUT);
            for server in std::mem::take(&mut driver.dials) {
                let fault = DialFault::NobodyThere;
                driver.rank.handle_not_connected(server, fault, "nobody is there", driver.now);
                driver.perform();
            }
            prop_assert!(driver.now < before.saturating_add(TIMEOUT).saturating_add(TIMEOUT));
            prop_assert!(driver.now < Nanos::from_secs(300), "it waits without a timer: {:?}", driver.rank);
        }
    }
}
