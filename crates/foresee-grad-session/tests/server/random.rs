// SPDX-License-Identifier: Apache-2.0
//! Random messages of ranks and random breaks: the state machine of a job follows its rules.
//!
//! The driver checks that nothing is sent over a closed connection, that a pair is closed once, and that no timer is
//! due after it was handled.

use foresee_grad_queue::{Round, ServerId};
use foresee_grad_session::{
    Change, Closed, JobSettings, Known, LostRank, Peer, RankHello, RankMessage, Refusal, RefusalCode, Resume,
    Role, Used,
};
use foresee_testkit::property;
use foresee_units::{Nanos, Rank};
use proptest::prelude::*;

use crate::driver::{Driver, End, RECONNECT, hello, plan, settings};

#[derive(Clone, Debug)]
enum Fact {
    Connect { rank: u32, role: bool, process: u64, reconnects: bool },
    Message(usize, RankMessage),
    Close(usize, Closed),
    DataClose(usize, bool),
    Violation(usize),
    Lost(usize),
    Pass(u64),
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => Just(plan(8)),
        1 => Just(plan(9)),
        1 => prop::collection::vec(any::<u8>(), 0..4),
    ]
}

fn sets() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![8 => (0_u8..8).prop_map(|set| vec![set]), 1 => prop::collection::vec(any::<u8>(), 0..3)]
}

fn rounds() -> impl Strategy<Value = Round> {
    prop_oneof![12 => 0_u64..3, 1 => Just(u64::MAX), 1 => 0..u64::MAX].prop_map(Round)
}

fn generations() -> impl Strategy<Value = u32> {
    prop_oneof![12 => 0_u32..4, 1 => Just(u32::MAX)]
}

fn used() -> impl Strategy<Value = Vec<Used>> {
    prop::collection::vec((rounds(), sets()).prop_map(|(round, used)| Used { round, used }), 0..3)
}

fn messages() -> impl Strategy<Value = RankMessage> {
    let live = || prop::collection::vec(0_u8..8, 0..2);
    prop_oneof![
        4 => bytes().prop_map(RankMessage::Plan),
        6 => (rounds(), sets()).prop_map(|(round, absent)| RankMessage::RoundEnd { round, absent }),
        6 => rounds().prop_map(RankMessage::Got),
        2 => (generations(), rounds(), live(), bytes()).prop_map(|(generation, oldest, live, body)| {
            RankMessage::Resume(Resume { generation, oldest, live, body })
        }),
        1 => (0_u32..4).prop_map(|rank| RankMessage::Lost(LostRank { rank: Rank(rank), why: "gone".into() })),
        3 => (generations(), rounds(), used())
            .prop_map(|(generation, oldest, used)| RankMessage::Known(Known { generation, oldest, used })),
        2 => (generations(), live(), rounds(), used()).prop_map(|(generation, live, oldest, used)| {
            RankMessage::Change(Change { generation, live, oldest, used })
        }),
    ]
}

fn ends() -> impl Strategy<Value = Closed> {
    prop_oneof![
        Just(Closed::Goodbye("done".into())),
        Just(Closed::Broken("reset".into())),
        Just(Closed::Broken("reset".into())),
        Just(Closed::Silent("silent".into())),
        Just(Closed::Refused(Refusal::new(RefusalCode::Lost, "elsewhere"))),
        Just(Closed::Refused(Refusal::new(RefusalCode::Other, "trouble"))),
    ]
}

fn facts() -> impl Strategy<Value = Fact> {
    let at = || 0_usize..8;
    let connect =
        (0_u32..3, any::<bool>(), prop_oneof![9 => Just(0_u64), 1 => Just(1)], prop::bool::weighted(0.9));
    prop_oneof![
        6 => connect.prop_map(|(rank, role, process, reconnects)| Fact::Connect { rank, role, process, reconnects }),
        12 => (at(), messages()).prop_map(|(at, message)| Fact::Message(at, message)),
        2 => (at(), ends()).prop_map(|(at, closed)| Fact::Close(at, closed)),
        1 => (at(), any::<bool>()).prop_map(|(at, silence)| Fact::DataClose(at, silence)),
        1 => at().prop_map(Fact::Violation),
        1 => at().prop_map(Fact::Lost),
        4 => (0_u64..400).prop_map(Fact::Pass),
    ]
}

/// The pair of an event: mostly one of the last.
fn pick(peers: &[Peer], at: usize) -> Option<Peer> {
    (!peers.is_empty()).then(|| peers[peers.len() - 1 - at % peers.len()])
}

fn play(settings: &JobSettings, facts: &[Fact]) -> (Driver, Vec<Peer>) {
    let (mut driver, mut peers) = Driver::running(settings);
    for fact in facts {
        match fact.clone() {
            Fact::Connect { rank, role, process, reconnects } => {
                let role = if role { Role::Control } else { Role::Data };
                let own = hello(settings, rank % settings.world, role);
                let own = RankHello { process: own.process + process, reconnects, ..own };
                if let Ok(peer) = driver.connect(&own)
                    && !peers.contains(&peer)
                {
                    peers.push(peer);
                }
            }
            Fact::Message(at, message) => pick(&peers, at).into_iter().for_each(|peer| {
                driver.message(peer, message.clone());
            }),
            Fact::Close(at, closed) => pick(&peers, at).into_iter().for_each(|peer| {
                driver.close(peer, closed.clone());
            }),
            Fact::DataClose(at, silence) => pick(&peers, at).into_iter().for_each(|peer| {
                driver.data_closed(peer, "it ended", silence);
            }),
            Fact::Violation(at) => pick(&peers, at).into_iter().for_each(|peer| {
                driver.job.handle_violation(peer, "it is no frame");
                driver.perform();
            }),
            Fact::Lost(at) => pick(&peers, at).into_iter().for_each(|peer| {
                driver.job.handle_lost(peer, "no thread");
                driver.perform();
            }),
            Fact::Pass(millis) => driver.pass(Nanos::from_millis(millis)),
        }
        assert!(driver.job.ranks() <= settings.world, "a rank has one place");
    }
    (driver, peers)
}

proptest! {
    #![proptest_config(property(20_000))]

    #[test]
    fn with_random_rank_messages_every_wait_has_a_timer_and_every_end_a_reason(
        world in 1_u32..4,
        server in 0_u16..2,
        continues_after_loss: bool,
        facts in prop::collection::vec(facts(), 0..60),
    ) {
        let settings = JobSettings { continues_after_loss, server: ServerId(server), ..settings(world) };
        let (mut driver, peers) = play(&settings, &facts);
        // All ranks disconnect forever: the job ends without help, with a reason.
        for peer in &peers {
            driver.close(*peer, Closed::Broken("reset".into()));
        }
        driver.pass(RECONNECT);
        prop_assert!(driver.job.is_over() || driver.job.ranks() == 0, "{:?}", driver.job);
        prop_assert_eq!(driver.job.poll_timeout(), None);
        let open: Vec<_> = driver.inboxes.iter().filter(|(_, inbox)| inbox.end == End::Open).collect();
        prop_assert!(open.is_empty(), "left open: {open:?}");
    }
}
