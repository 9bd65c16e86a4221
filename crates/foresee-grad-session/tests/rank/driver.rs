// SPDX-License-Identifier: Apache-2.0
//! A driver of one rank with connections in memory, and a plan for it.

use std::sync::Arc;

use foresee_grad_queue::{
    Dtype, Op, Pattern, Plan, PlanConfig, Round, ServerId, TensorId, TensorSet, TensorSpec, Wire,
};
use foresee_grad_session::{
    Closed, DialFault, RankAction, RankFailure, RankMessage, RankSession, RankSettings, Resumed,
    ServerMessage, SumAdmission, Used,
};
use foresee_units::{Nanos, Rank};

pub(crate) const HEARTBEAT: Nanos = Nanos::from_millis(100);
pub(crate) const RECONNECT: Nanos = Nanos::from_millis(300);
pub(crate) const TIMEOUT: Nanos = Nanos::from_secs(2);
/// A tensor of three packets, and one of one packet.
pub(crate) const EMBEDDING: u32 = 0;
pub(crate) const BIAS: u32 = 1;

/// When a server is dialled: the longest attempt, and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dial {
    pub(crate) server: u16,
    pub(crate) within: Nanos,
    pub(crate) until: Nanos,
}

pub(crate) struct Driver {
    pub(crate) rank: RankSession,
    pub(crate) now: Nanos,
    pub(crate) plan: Arc<Plan>,
    pub(crate) sent: Vec<(u16, RankMessage)>,
    /// Server, round, tensor.
    pub(crate) offered: Vec<(u16, u64, u32)>,
    pub(crate) dials: Vec<Dial>,
    pub(crate) closed: Vec<u16>,
    pub(crate) interrupted: Vec<u16>,
    pub(crate) failure: Option<RankFailure>,
    servers: u16,
}

/// Rank 0 of two, with `servers` servers.
pub(crate) fn settings(servers: u16) -> RankSettings {
    RankSettings {
        rank: Rank(0),
        world: 2,
        node_ranks: 1,
        servers: (0..servers).map(|server| format!("10.0.0.{server}:1")).collect(),
        colocated: 0,
        recovers: true,
        continues_after_loss: false,
        timeout: TIMEOUT,
        heartbeat: HEARTBEAT,
        handshake: Nanos::from_secs(1),
        grace_period: RECONNECT,
    }
}

pub(crate) fn plan(servers: u16) -> Plan {
    let spec = |(name, elements): (&str, u64)| TensorSpec {
        name: name.into(),
        dtype: Dtype::F32,
        shape: vec![elements],
        strides: vec![1],
        class: 0,
        op: Op::Mean,
    };
    let pattern = Pattern::new(&vec![1; usize::from(servers)]).unwrap();
    let config = PlanConfig { packet_bytes: 64, wire: Wire::Own, pattern };
    Plan::new(config, [("embedding", 40), ("bias", 3)].into_iter().map(spec).collect()).unwrap()
}

/// Tensors of the plan, as an encoded set.
pub(crate) fn set(tensors: &[u32]) -> Vec<u8> {
    let mut set = TensorSet::none(2);
    for tensor in tensors {
        set.insert(TensorId(*tensor));
    }
    set.to_bytes()
}

pub(crate) fn broken() -> Closed {
    Closed::Broken("reset".into())
}

impl Driver {
    /// A rank that is connected to every server.
    pub(crate) fn new(settings: RankSettings) -> Self {
        let servers = u16::try_from(settings.servers.len()).unwrap();
        let processes: Vec<u64> = (0..u64::from(servers)).collect();
        Self {
            rank: RankSession::new(settings, &processes),
            now: Nanos::ZERO,
            plan: Arc::new(plan(servers)),
            sent: Vec::new(),
            offered: Vec::new(),
            dials: Vec::new(),
            closed: Vec::new(),
            interrupted: Vec::new(),
            failure: None,
            servers,
        }
    }

    /// A rank under a plan.
    pub(crate) fn running(settings: RankSettings) -> Self {
        let mut driver = Self::new(settings);
        driver.propose();
        for server in 0..driver.servers {
            driver.receive_plan(server);
        }
        driver.install();
        driver.sent.clear();
        driver
    }

    pub(crate) fn propose(&mut self) {
        self.rank.handle_proposal(&self.plan.encode());
        self.perform();
    }

    pub(crate) fn receive_plan(&mut self, server: u16) {
        self.receive(server, ServerMessage::Plan { generation: 1, body: self.plan.encode() });
    }

    pub(crate) fn install(&mut self) {
        let known = self.rank.first_answer().expect("the first server has answered");
        assert_eq!(self.rank.poll_agreement(&known), Some(Ok(())));
        self.rank.install(Arc::clone(&self.plan), known.0);
        self.perform();
    }

    pub(crate) fn message(
        &mut self,
        server: u16,
        message: ServerMessage,
    ) -> Result<Option<ServerMessage>, RankFailure> {
        let id = ServerId(server);
        let received = self.rank.handle_message(id, self.rank.pair(id), message, self.now);
        self.perform();
        received
    }

    /// Receive a message that the rank handles at once.
    pub(crate) fn receive(&mut self, server: u16, message: ServerMessage) {
        assert_eq!(self.message(server, message), Ok(None));
    }

    pub(crate) fn close(&mut self, server: u16, closed: Closed) {
        let id = ServerId(server);
        self.rank.handle_closed(id, self.rank.pair(id), closed, self.now);
        self.perform();
    }

    pub(crate) fn close_data(&mut self, server: u16, why: &str, is_silence: bool) {
        let id = ServerId(server);
        self.rank.handle_data_closed(id, self.rank.pair(id), why, is_silence, self.now);
        self.perform();
    }

    /// A new pair of connections to this process of a server.
    pub(crate) fn connect(&mut self, server: u16, process: u64) {
        let next = self.rank.pair(ServerId(server)) + 1;
        assert_eq!(self.rank.begin_pair(ServerId(server)), Some(next));
        self.rank.handle_connected(ServerId(server), process, self.now);
        self.perform();
    }

    /// The same, and the server's answer.
    pub(crate) fn resume(&mut self, server: u16, process: u64, oldest: u64, has_sums: bool) {
        self.connect(server, process);
        let resumed = Resumed { generation: 1, oldest: Round(oldest), has_sums };
        self.receive(server, ServerMessage::Resumed(resumed));
    }

    pub(crate) fn not_connected(&mut self, server: u16, fault: DialFault) {
        self.rank.handle_not_connected(ServerId(server), fault, "refused", self.now);
        self.perform();
    }

    /// Advance time, timer by timer.
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

    pub(crate) fn push(&mut self, tensor: u32) -> Result<(Round, Vec<ServerId>), RankFailure> {
        let pushed = self.rank.handle_push(TensorId(tensor));
        self.perform();
        pushed
    }

    /// Push these tensors and end the round.
    pub(crate) fn end(&mut self, tensors: &[u32]) -> Round {
        for tensor in tensors {
            self.push(*tensor).unwrap();
        }
        let round = self.rank.handle_end().unwrap().expect("it may end");
        self.perform();
        round
    }

    /// The averages of a tensor arrive, from every server.
    pub(crate) fn arrive(&mut self, round: u64, tensor: u32) {
        for server in 0..self.servers {
            for nth in 0..self.plan.packets_at(TensorId(tensor), ServerId(server)).unwrap() {
                self.arrive_packet(server, round, tensor, nth);
            }
        }
    }

    pub(crate) fn arrive_packet(&mut self, server: u16, round: u64, tensor: u32, nth: u32) {
        let generation = self.rank.collector().unwrap().generation();
        match self.sum(server, generation, round, tensor, nth) {
            Ok(SumAdmission::Read(claim, of)) => {
                assert_eq!(of, Round(round));
                self.rank.handle_received(ServerId(server), claim).unwrap();
                self.perform();
            }
            other => panic!("it is wanted: {other:?}"),
        }
    }

    /// A sum that a server is about to send.
    pub(crate) fn sum(
        &mut self,
        server: u16,
        generation: u32,
        round: u64,
        tensor: u32,
        nth: u32,
    ) -> Result<SumAdmission, RankFailure> {
        let packet = self.plan.nth_packet_at(TensorId(tensor), ServerId(server), nth).unwrap();
        let (_, bytes) = self.plan.range(packet).unwrap();
        let admission =
            self.rank.handle_sum(ServerId(server), generation, Round(round).low(), packet, bytes.into());
        self.perform();
        admission
    }

    /// Every server reports the used tensors of a round.
    pub(crate) fn used(&mut self, round: u64, tensors: &[u32]) {
        for server in 0..self.servers {
            let used = Used { round: Round(round), used: set(tensors) };
            self.receive(server, ServerMessage::Used(used));
        }
    }

    /// Every server reports that a round is done.
    pub(crate) fn done(&mut self, round: u64) {
        (0..self.servers).for_each(|server| self.receive(server, ServerMessage::RoundDone(Round(round))));
    }

    /// A complete round with both tensors.
    pub(crate) fn whole_round(&mut self) {
        let round = self.end(&[EMBEDDING, BIAS]).0;
        self.used(round, &[EMBEDDING, BIAS]);
        self.arrive(round, EMBEDDING);
        self.arrive(round, BIAS);
        self.done(round);
    }

    /// Messages to a server since the last call.
    pub(crate) fn take(&mut self, server: u16) -> Vec<RankMessage> {
        let (own, others) = std::mem::take(&mut self.sent).into_iter().partition(|(to, _)| *to == server);
        self.sent = others;
        let own: Vec<(u16, RankMessage)> = own;
        own.into_iter().map(|(_, message)| message).collect()
    }

    /// Dials since the last call.
    pub(crate) fn take_dials(&mut self) -> Vec<Dial> {
        std::mem::take(&mut self.dials)
    }

    /// The failure of the rank, as text.
    pub(crate) fn failure(&self) -> String {
        format!("{:?}", self.failure.as_ref().expect("it failed"))
    }

    pub(crate) fn perform(&mut self) {
        while let Some(action) = self.rank.poll_action() {
            match action {
                RankAction::Send { server, pair, message } => {
                    assert_eq!(pair, self.rank.pair(server), "nothing is sent over an old pair");
                    self.sent.push((server.0, message));
                }
                RankAction::Offer { server, round, tensor, .. } => {
                    assert!(self.rank.is_open(server), "a gradient is offered to an open server");
                    self.offered.push((server.0, round.0, tensor.0));
                }
                RankAction::Dial { server, within, until } => {
                    self.dials.push(Dial { server: server.0, within, until });
                }
                RankAction::Close(server) => self.closed.push(server.0),
                RankAction::Interrupt(server) => self.interrupted.push(server.0),
                RankAction::Fail(failure) => {
                    assert_eq!(self.failure.replace(failure), None, "a rank fails once");
                }
                RankAction::Route | RankAction::Forget(_) => {}
            }
        }
    }
}
