// SPDX-License-Identifier: Apache-2.0
//! A driver of one job with connections in memory, and plans for it.

use std::collections::{BTreeMap, BTreeSet};

use foresee_grad_queue::{
    Dtype, Op, Pattern, Plan, PlanConfig, Round, ServerId, TensorId, TensorSet, TensorSpec, Wire,
};
use foresee_grad_session::{
    Closed, JobAction, JobSettings, Peer, RankHello, RankMessage, Refusal, Resume, Role, ServerJob,
    ServerMessage,
};
use foresee_units::{Nanos, Rank};

pub(crate) const HEARTBEAT: Nanos = Nanos::from_millis(100);
pub(crate) const RECONNECT: Nanos = Nanos::from_millis(300);
pub(crate) const WAIT_CHECK: Nanos = Nanos::from_secs(5);
pub(crate) const TENSORS: u32 = 3;

/// How a pair of connections was closed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum End {
    #[default]
    Open,
    WithoutReason,
    For(Refusal),
}

/// The state of a pair of connections, as its rank sees it.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) messages: Vec<ServerMessage>,
    pub(crate) end: End,
    pub(crate) is_interrupted: bool,
}

pub(crate) struct Driver {
    pub(crate) job: ServerJob,
    pub(crate) now: Nanos,
    pub(crate) inboxes: BTreeMap<Peer, Inbox>,
    /// Events of the slots, in order: plans, members, done rounds, skipped tensors.
    pub(crate) slots: Vec<String>,
    pub(crate) routes: Vec<Peer>,
    connected: BTreeSet<(Peer, bool)>,
    has_slots: bool,
}

pub(crate) fn settings(world: u32) -> JobSettings {
    JobSettings {
        name: "run".into(),
        server: ServerId(0),
        world,
        node_ranks: 1,
        continues_after_loss: false,
        heartbeat: HEARTBEAT,
        grace_period: RECONNECT,
        wait_check_interval: WAIT_CHECK,
    }
}

pub(crate) fn hello(settings: &JobSettings, rank: u32, role: Role) -> RankHello {
    RankHello {
        rank: Rank(rank),
        world: settings.world,
        node_ranks: settings.node_ranks,
        server: settings.server.0.into(),
        continues_after_loss: settings.continues_after_loss,
        process: u64::from(rank) + 100,
        reconnects: true,
        role,
    }
}

/// A plan of [`TENSORS`] tensors, encoded; `width` distinguishes plans.
pub(crate) fn plan(width: u64) -> Vec<u8> {
    let spec = |tensor: u32| TensorSpec {
        name: format!("t{tensor}"),
        dtype: Dtype::F32,
        shape: vec![width],
        strides: vec![1],
        class: 0,
        op: Op::Mean,
    };
    let pattern = Pattern::new(&[1]).expect("a server is enough");
    let config = PlanConfig { packet_bytes: 64, wire: Wire::Own, pattern };
    Plan::new(config, (0..TENSORS).map(spec).collect()).expect("a plan").encode()
}

/// Tensors of the plan, as an encoded set.
pub(crate) fn set(tensors: &[u32]) -> Vec<u8> {
    let mut set = TensorSet::none(TENSORS);
    for tensor in tensors {
        set.insert(TensorId(*tensor));
    }
    set.to_bytes()
}

pub(crate) fn end(round: u64, absent: &[u32]) -> RankMessage {
    RankMessage::RoundEnd { round: Round(round), absent: set(absent) }
}

pub(crate) fn resume(generation: u32, oldest: u64, body: Vec<u8>) -> Resume {
    Resume { generation, oldest: Round(oldest), live: Vec::new(), body }
}

impl Driver {
    pub(crate) fn new(settings: JobSettings) -> Self {
        Self {
            job: ServerJob::new(settings, Nanos::ZERO),
            now: Nanos::ZERO,
            inboxes: BTreeMap::new(),
            slots: Vec::new(),
            routes: Vec::new(),
            connected: BTreeSet::new(),
            has_slots: false,
        }
    }

    /// A job whose ranks are all connected and have agreed on a plan.
    pub(crate) fn running(settings: &JobSettings) -> (Self, Vec<Peer>) {
        let mut driver = Self::new(settings.clone());
        let ranks = (0..settings.world).step_by(settings.node_ranks as usize);
        let peers: Vec<Peer> = ranks.map(|rank| driver.join(settings, rank)).collect();
        for peer in &peers {
            driver.message(*peer, RankMessage::Plan(plan(8)));
        }
        (driver, peers)
    }

    /// Both connections of a rank.
    pub(crate) fn join(&mut self, settings: &JobSettings, rank: u32) -> Peer {
        let control = self.connect(&hello(settings, rank, Role::Control)).expect("there is a place");
        assert_eq!(self.connect(&hello(settings, rank, Role::Data)), Ok(control));
        control
    }

    pub(crate) fn connect(&mut self, hello: &RankHello) -> Result<Peer, Refusal> {
        let admitted = self.job.admit(hello, self.now);
        self.perform();
        let peer = admitted?;
        self.connected.insert((peer, hello.role == Role::Data));
        self.inboxes.entry(peer).or_default();
        let outcome = self.job.handle_connected(peer, hello.role);
        self.perform();
        outcome.map(|()| peer)
    }

    pub(crate) fn message(&mut self, peer: Peer, message: RankMessage) {
        self.job.handle_message(peer, message);
        self.perform();
    }

    pub(crate) fn close(&mut self, peer: Peer, closed: Closed) {
        self.job.handle_closed(peer, closed, self.now);
        self.perform();
    }

    pub(crate) fn data_closed(&mut self, peer: Peer, why: &str, is_silence: bool) {
        self.job.handle_data_closed(peer, why, is_silence, self.now);
        self.perform();
    }

    /// Advance time, timer by timer.
    pub(crate) fn pass(&mut self, time: Nanos) {
        let until = self.now.saturating_add(time);
        while let Some(next) = self.job.poll_timeout().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            self.job.handle_timeout(self.now);
            self.perform();
            let next = self.job.poll_timeout();
            assert!(next.is_none_or(|next| next > self.now), "a timer that was handled is over");
        }
        self.now = until;
    }

    /// The messages of a pair since the last call.
    pub(crate) fn take(&mut self, peer: Peer) -> Vec<ServerMessage> {
        std::mem::take(&mut self.inboxes.get_mut(&peer).expect("it is connected").messages)
    }

    /// The reason for which a pair was closed.
    pub(crate) fn reason(&self, peer: Peer) -> String {
        self.refusal(peer).text
    }

    /// The refusal with which a pair was closed.
    pub(crate) fn refusal(&self, peer: Peer) -> Refusal {
        match &self.inboxes[&peer].end {
            End::For(refusal) => refusal.clone(),
            other => panic!("no reason: {other:?}"),
        }
    }

    pub(crate) fn is_closed(&self, peer: Peer) -> bool {
        self.inboxes[&peer].end != End::Open
    }

    pub(crate) fn perform(&mut self) {
        while let Some(action) = self.job.poll_action() {
            match action {
                JobAction::Send { peer, message } => {
                    assert!(self.connected.contains(&(peer, false)), "{peer:?} has no control connection");
                    let inbox = self.inboxes.get_mut(&peer).expect("it is connected");
                    assert_eq!(inbox.end, End::Open, "{message:?} is sent over a closed connection");
                    inbox.messages.push(message);
                }
                JobAction::Close { peer, reason } => {
                    if let Some(inbox) = self.inboxes.get_mut(&peer) {
                        assert_eq!(inbox.end, End::Open, "a pair is closed once");
                        inbox.end = reason.map_or(End::WithoutReason, End::For);
                    }
                }
                JobAction::Interrupt(peer) => {
                    self.inboxes.get_mut(&peer).expect("it is connected").is_interrupted = true;
                }
                JobAction::Install(installation) => {
                    self.has_slots = true;
                    let members = &installation.members;
                    let ranks: Vec<_> = members.iter().map(|rank| rank.0).collect();
                    self.slots.push(format!(
                        "plan {} of {ranks:?} from round {}",
                        members.generation(),
                        installation.oldest
                    ));
                }
                JobAction::Route(peer) => {
                    assert!(self.connected.contains(&(peer, true)), "{peer:?} has no data connection");
                    self.routes.push(peer);
                }
                JobAction::Adopt(members) => {
                    let ranks: Vec<_> = members.iter().map(|rank| rank.0).collect();
                    self.slots.push(format!("members {} of {ranks:?}", members.generation()));
                }
                JobAction::Advance { oldest, forget } => {
                    let rest = if forget { ", forget" } else { "" };
                    self.slots.push(format!("round {oldest}{rest}"));
                }
                JobAction::Skip(ticket) => {
                    assert!(self.has_slots, "there are slots");
                    if !ticket.skipped.is_empty() {
                        self.slots.push(format!("rank {} skips", ticket.sender.rank));
                    }
                    self.job.handle_skipped(&ticket);
                }
                JobAction::FindMissing(ticket) => {
                    assert!(self.has_slots, "there are slots");
                    self.job.handle_missing(&ticket, Some("2 packets of 't0' of rank 1"));
                }
                JobAction::Uninstall => self.has_slots = false,
            }
        }
    }
}
