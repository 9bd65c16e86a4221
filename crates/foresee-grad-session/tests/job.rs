// SPDX-License-Identifier: Apache-2.0
//! A job on a server: proposals and departures in a rare order.

#![expect(clippy::unwrap_used, reason = "all of it is a test")]

use foresee_grad_queue::{
    Dtype, Op, Pattern, Plan, PlanConfig, Round, ServerId, TensorId, TensorSet, TensorSpec, Wire,
};
use foresee_grad_session::{
    Closed, JobAction, JobSettings, Peer, RankHello, RankMessage, Refusal, Resume, Role, ServerJob,
    ServerMessage,
};
use foresee_units::{Nanos, Rank};

fn plan() -> Vec<u8> {
    let spec = TensorSpec {
        name: "weights".into(),
        dtype: Dtype::F32,
        shape: vec![8],
        strides: vec![1],
        class: 0,
        op: Op::Mean,
    };
    let config = PlanConfig { packet_bytes: 64, wire: Wire::Own, pattern: Pattern::new(&[1]).unwrap() };
    Plan::new(config, vec![spec]).unwrap().encode()
}

struct Driver {
    job: ServerJob,
    plans: Vec<(Peer, u32)>,
    closed: Vec<(Peer, Option<Refusal>)>,
}

impl Driver {
    fn new(world: u32) -> Self {
        let settings = JobSettings {
            name: "run".into(),
            server: ServerId(0),
            world,
            node_ranks: 1,
            continues_after_loss: false,
            heartbeat: Nanos::from_millis(100),
            grace_period: Nanos::from_millis(300),
            wait_check_interval: Nanos::from_secs(5),
        };
        Self { job: ServerJob::new(settings, Nanos::ZERO), plans: Vec::new(), closed: Vec::new() }
    }

    /// Both connections of a rank.
    fn join(&mut self, rank: u32, world: u32) -> Peer {
        let peers = [Role::Control, Role::Data].map(|role| {
            let hello = RankHello {
                rank: Rank(rank),
                world,
                node_ranks: 1,
                server: 0,
                continues_after_loss: false,
                process: u64::from(rank) + 100,
                reconnects: true,
                role,
            };
            let peer = self.job.admit(&hello, Nanos::ZERO).unwrap();
            self.job.handle_connected(peer, role).unwrap();
            self.perform();
            peer
        });
        peers[0]
    }

    fn message(&mut self, peer: Peer, message: RankMessage) {
        self.job.handle_message(peer, message);
        self.perform();
    }

    fn close(&mut self, peer: Peer, closed: Closed) {
        self.job.handle_closed(peer, closed, Nanos::ZERO);
        self.perform();
    }

    fn perform(&mut self) {
        while let Some(action) = self.job.poll_action() {
            match action {
                JobAction::Send { peer, message: ServerMessage::Plan { generation, .. } } => {
                    self.plans.push((peer, generation));
                }
                JobAction::Close { peer, reason } => self.closed.push((peer, reason)),
                JobAction::Skip(ticket) => self.job.handle_skipped(&ticket),
                _ => {}
            }
        }
    }
}

fn end(round: u64) -> RankMessage {
    let mut absent = TensorSet::none(1);
    absent.insert(TensorId(0));
    RankMessage::RoundEnd { round: Round(round), absent: absent.to_bytes() }
}

#[test]
fn a_proposal_is_dropped_with_its_connection_and_counts_once_when_repeated() {
    let mut driver = Driver::new(2);
    let (first, second) = (driver.join(0, 2), driver.join(1, 2));
    driver.message(second, RankMessage::Plan(plan()));
    driver.close(second, Closed::Broken("reset".into()));
    driver.message(first, RankMessage::Plan(plan()));
    assert_eq!(driver.plans, [], "what it proposed is forgotten");
    let second = driver.join(1, 2);
    driver.message(second, RankMessage::Resume(Resume::default()));
    assert_eq!(driver.plans, []);
    driver.message(second, RankMessage::Plan(plan()));
    assert_eq!(driver.plans, [(first, 1), (second, 1)]);
    // A second copy of the proposal would request the next plan, with the first rank out of step.
    driver.message(first, end(0));
    driver.message(second, end(0));
    for peer in [first, second] {
        driver.message(peer, RankMessage::Got(Round(0)));
    }
    driver.message(first, end(1));
    assert_eq!(driver.plans.len(), 2);
    assert!(
        driver.closed.iter().all(|(_, reason)| reason.is_none()),
        "no rank is refused: {:?}",
        driver.closed
    );
}

#[test]
fn a_rank_that_leaves_before_a_round_is_named_although_an_earlier_departure_was_complete() {
    let mut driver = Driver::new(3);
    let peers = [0, 1, 2].map(|rank| driver.join(rank, 3));
    for peer in peers {
        driver.message(peer, RankMessage::Plan(plan()));
    }
    driver.message(peers[0], end(0));
    driver.message(peers[1], end(0));
    driver.close(peers[1], Closed::Goodbye("the rank is done".into()));
    assert!(
        driver.closed.iter().all(|(_, reason)| reason.is_none()),
        "no contribution of the first one is missing"
    );
    driver.close(peers[2], Closed::Goodbye("the rank is done".into()));
    let (_, reason) = driver.closed.iter().find(|(peer, _)| *peer == peers[0]).expect("it was notified");
    let text = reason.as_ref().unwrap().to_string();
    assert!(text.contains("rank 2 of job 'run' left"), "{text}");
}
