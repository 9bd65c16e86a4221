// SPDX-License-Identifier: Apache-2.0
//! A driver for one rank of a job with two servers, whose connections are lists.

use std::sync::Arc;

use foresee_grad_queue::{Dtype, Op, Pattern, Plan, PlanConfig, ServerId, TensorSpec, Wire};
use foresee_grad_session::{
    Closed, RankAction, RankFailure, RankMessage, RankSession, RankSettings, ServerMessage,
};
use foresee_units::{Nanos, Rank};

pub(crate) const SERVERS: [ServerId; 2] = [ServerId(0), ServerId(1)];
pub(crate) const TIMEOUT: Nanos = Nanos::from_secs(10);

pub(crate) struct Driver {
    pub(crate) rank: RankSession,
    pub(crate) now: Nanos,
    /// What was sent to each server.
    pub(crate) sent: [Vec<RankMessage>; 2],
    pub(crate) failure: Option<RankFailure>,
    /// Servers that are to be dialled.
    pub(crate) dials: Vec<ServerId>,
    /// The process that answers next.
    process: u64,
}

/// A plan of three tensors over both servers.
pub(crate) fn plan() -> Plan {
    let spec = |tensor: u32| TensorSpec {
        name: format!("t{tensor}"),
        dtype: Dtype::F32,
        shape: vec![32],
        strides: vec![1],
        class: 0,
        op: Op::Mean,
    };
    let pattern = Pattern::dedicated(2).expect("there are servers");
    let config = PlanConfig { packet_bytes: 64, wire: Wire::Own, pattern };
    Plan::new(config, (0..3).map(spec).collect()).expect("it is a plan")
}

impl Driver {
    /// Rank 0 of three, which has proposed a plan.
    pub(crate) fn new(survives: bool) -> Self {
        let settings = RankSettings {
            rank: Rank(0),
            world: 3,
            local: 1,
            servers: vec!["10.0.0.0:1".into(), "10.0.0.1:1".into()],
            beside: 0,
            recover: true,
            survives,
            timeout: TIMEOUT,
            heartbeat: Nanos::from_secs(1),
            handshake: Nanos::from_secs(2),
            reconnect: Nanos::from_secs(3),
        };
        let rank = RankSession::new(settings, &[0, 1]);
        let sent = [Vec::new(), Vec::new()];
        let mut driver = Self { rank, now: Nanos::ZERO, sent, failure: None, dials: Vec::new(), process: 2 };
        driver.rank.handle_proposal(&plan().encode());
        driver.perform();
        driver
    }

    /// The same, once both servers have agreed.
    pub(crate) fn running(survives: bool) -> Self {
        let mut driver = Self::new(survives);
        for server in SERVERS {
            driver.hear(server, ServerMessage::Plan { generation: 1, body: plan().encode() });
        }
        driver.agree();
        driver
    }

    /// Takes the plan that both servers agree on, once there is one.
    pub(crate) fn agree(&mut self) {
        let Some(known) = self.rank.first_answer() else { return };
        if let Some(Ok(())) = self.rank.poll_agreement(&known) {
            self.rank.install(Arc::new(Plan::decode(&known.1).expect("it is the rank's")), known.0);
            self.perform();
        }
    }

    pub(crate) fn hear(&mut self, server: ServerId, message: ServerMessage) {
        let pair = self.rank.pair(server);
        let _ = self.rank.handle_message(server, pair, message, self.now);
        self.perform();
    }

    /// The control connection to a server ends, once.
    pub(crate) fn close(&mut self, server: ServerId, closed: Closed) {
        if self.rank.is_lost(server) {
            return;
        }
        let pair = self.rank.pair(server);
        self.rank.handle_closed(server, pair, closed, self.now);
        self.perform();
    }

    /// A server answers that is dialled: the same process as before, or another one.
    pub(crate) fn answer(&mut self, server: ServerId, is_same: bool) {
        let Some(at) = self.dials.iter().position(|dialled| *dialled == server) else { return };
        self.dials.remove(at);
        if self.rank.begin_pair(server).is_some() {
            self.process += u64::from(!is_same);
            let process = if is_same { u64::from(server.0) } else { self.process };
            self.rank.handle_connected(server, process, self.now);
        }
        self.perform();
    }

    /// Lets time pass, timer by timer.
    pub(crate) fn pass(&mut self, time: Nanos) {
        let until = self.now.saturating_add(time);
        while let Some(next) = self.rank.poll_timeout().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            self.rank.handle_timeout(self.now);
            self.perform();
            let next = self.rank.poll_timeout();
            assert!(next.is_none_or(|next| next > self.now), "a timer that was handled is over");
        }
        self.now = until;
    }

    pub(crate) fn perform(&mut self) {
        while let Some(action) = self.rank.poll_action() {
            match action {
                RankAction::Send { server, pair, message } => {
                    assert_eq!(pair, self.rank.pair(server), "messages go over the present pair");
                    self.sent[usize::from(server.0)].push(message);
                }
                RankAction::Dial { server, .. } => {
                    assert!(!self.dials.contains(&server), "one attempt at a time");
                    self.dials.push(server);
                }
                RankAction::Fail(failure) => {
                    assert!(self.failure.is_none(), "a rank fails once");
                    self.failure = Some(failure);
                }
                RankAction::Close(_)
                | RankAction::Interrupt(_)
                | RankAction::Route
                | RankAction::Offer { .. }
                | RankAction::Forget(_) => {}
            }
        }
    }
}
