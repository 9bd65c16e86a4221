// SPDX-License-Identifier: Apache-2.0
//! State of a rank behind its lock: the session, connections, memory, and the failure.
//!
//! Actions of the session are performed in order under the same lock, and never wait: messages go to outboxes,
//! gradients are offered to interfaces, and a thread of its own dials a server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use foresee_grad_queue::{Collector, Flow, Plan, QueueError, Round, ServerId, TensorId};
use foresee_grad_session::{RankAction, RankFailure, RankSession};
use foresee_units::{Nanos, Rank};
use foresee_wire::{Bye, Fault, FaultCode, Message, WireError};

use super::RankCore;
use super::push::Push;
use super::receive_buffer::ReceiveBuffer;
use super::routes::{Route, ServerLink, offer, routes};
use crate::error::{ExchangeError, plan_id};
use crate::interface::Interface;
use crate::options::RankOptions;
use crate::translate;

#[derive(Debug)]
pub(super) struct RankState {
    pub(super) rank: Rank,
    pub(super) session: RankSession,
    /// By server.
    pub(super) links: Vec<ServerLink>,
    /// Routes to open servers.
    pub(super) routes: Arc<[Route]>,
    pub(super) memory: Option<PlanMemory>,
    /// The first reason that ended the exchange.
    pub(super) failed: Option<ExchangeError>,
    pub(super) is_closed: bool,
    /// The session's timeout that the timer waits for.
    pub(super) timeout: Option<Nanos>,
}

/// Memory that belongs to a plan.
#[derive(Debug)]
pub(super) struct PlanMemory {
    pub(super) plan: Arc<Plan>,
    /// The plan's id of each tensor of this rank's own list.
    pub(super) ids: Vec<TensorId>,
    pub(super) buffers: Vec<Arc<ReceiveBuffer>>,
    pub(super) flow: Flow,
    /// The replay buffer: gradients of rounds that are not done, in their own memory and unchanged.
    pub(super) retained: BTreeMap<(Round, TensorId), Arc<Push>>,
}

impl PlanMemory {
    /// The plan's id of a tensor of this rank's own list.
    pub(super) fn id(&self, tensor: TensorId, rank: Rank) -> Result<TensorId, QueueError> {
        plan_id(&self.plan, &self.ids, tensor, rank)
    }
}

impl RankState {
    pub(super) fn memory(&self) -> Result<&PlanMemory, ExchangeError> {
        self.memory.as_ref().ok_or_else(ExchangeError::no_plan)
    }

    /// The rounds of the plan.
    pub(super) fn collect(&self) -> Result<&Collector, ExchangeError> {
        self.session.collector().ok_or_else(ExchangeError::no_plan)
    }

    /// # Errors
    /// The reason that ended the exchange.
    pub(super) fn check(&self) -> Result<(), ExchangeError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// End the exchange for this reason, unless it has ended before.
    ///
    /// Servers receive the loss of a rank at once. If this process ended before it reported that, they would consider
    /// this rank the first lost one.
    pub(super) fn fail(&mut self, why: ExchangeError) {
        self.session.handle_stopped();
        if self.failed.is_some() {
            return;
        }
        if matches!(why, ExchangeError::RankLost { .. }) {
            self.send_goodbye(&why);
        }
        self.failed = Some(why);
    }

    /// Send every server a last message: a goodbye, or the peer that was lost.
    pub(super) fn send_goodbye(&self, why: &ExchangeError) {
        let last = goodbye(self.rank, why);
        self.links.iter().for_each(|link| link.control.close(last.clone()));
    }

    /// The interfaces to all servers, open or not.
    pub(super) fn interfaces(&self) -> Vec<Interface> {
        let mut found: Vec<Interface> = Vec::new();
        for link in &self.links {
            if !found.iter().any(|known| known.is_same(&link.interface)) {
                found.push(link.interface.clone());
            }
        }
        found
    }

    pub(super) fn link(&self, server: ServerId) -> Option<&ServerLink> {
        self.links.get(usize::from(server.0))
    }
}

impl RankCore {
    /// Perform the actions of the session.
    pub(super) fn perform_actions(self: &Arc<Self>, state: &mut RankState) {
        while let Some(action) = state.session.poll_action() {
            self.perform(state, action);
        }
        let timeout = state.session.poll_timeout();
        let before = std::mem::replace(&mut state.timeout, timeout);
        if timeout.is_some_and(|timeout| before.is_none_or(|before| timeout < before)) {
            self.timer.wake();
        }
    }

    fn perform(self: &Arc<Self>, state: &mut RankState, action: RankAction) {
        match action {
            RankAction::Send { server, pair, message } => {
                if let Some(link) = state.link(server).filter(|_| state.session.pair(server) == pair) {
                    link.control.send(translate::rank_frame(message));
                }
            }
            RankAction::Close(server) => state.link(server).into_iter().for_each(ServerLink::close),
            RankAction::Interrupt(server) => {
                if let Some(link) = state.link(server) {
                    link.control.link().shutdown();
                }
            }
            RankAction::Route => {
                let links = (0..).map(ServerId).zip(&state.links);
                state.routes = routes(links.filter(|(server, _)| state.session.is_open(*server)));
            }
            RankAction::Offer { server, round, tensor, generation } => {
                let push = state
                    .memory
                    .as_ref()
                    .and_then(|memory| Some((memory.retained.get(&(round, tensor))?, memory.flow)));
                if let (Some((push, flow)), Some(link)) = (push, state.link(server)) {
                    offer(push, flow, generation, &link.route(server));
                }
            }
            RankAction::Forget(oldest) => {
                if let Some(memory) = &mut state.memory {
                    memory.retained = memory.retained.split_off(&(oldest, TensorId(0)));
                }
            }
            RankAction::Dial { server, within, until } => {
                if let Err(why) = self.dial(state, server, within, until) {
                    state.fail(why);
                }
            }
            RankAction::Fail(failure) => {
                let why = self.error(failure);
                state.fail(why);
            }
        }
    }

    /// The error of a session's failure.
    pub(super) fn error(&self, failure: RankFailure) -> ExchangeError {
        error(&self.options, failure)
    }

    /// A data connection broke.
    pub(super) fn data_closed(self: &Arc<Self>, server: ServerId, pair: u32, why: &WireError) {
        self.report(|session, now| {
            session.handle_data_closed(server, pair, &why.to_string(), why.is_silence(), now);
        });
    }

    /// Report passed time to the session, until the timer is closed.
    pub(super) fn run_timer(self: &Arc<Self>) {
        loop {
            let timeout = self.lock().timeout;
            let until: Option<Instant> = timeout.and_then(|timeout| self.start.checked_add(timeout.into()));
            if !self.timer.wait(until) {
                return;
            }
            let mut state = self.lock();
            if state.timeout.is_some_and(|timeout| timeout <= self.now()) {
                state.session.handle_timeout(self.now());
                self.perform_actions(&mut state);
                drop(state);
                self.changed.notify_all();
            }
        }
    }
}

/// The last message to servers. If this rank is the first to know of another lost peer, it reports that peer and not
/// that it leaves.
fn goodbye(rank: Rank, why: &ExchangeError) -> Message {
    let lost = match why {
        ExchangeError::RankLost { rank, .. } => Some(rank.0),
        ExchangeError::ServerLost { .. } | ExchangeError::Refused { .. } => None,
        // Ranks of one node differ: only their leader knows.
        ExchangeError::Disagree(why) => return Message::Error(Fault::new(FaultCode::Plan, why.as_str())),
        _ => return Message::Bye(Bye { reason: "the rank is done".into() }),
    };
    let text = format!("rank {rank} has {why}");
    Message::Error(Fault { rank: lost, ..Fault::new(FaultCode::Lost, text) })
}

fn error(options: &RankOptions, failure: RankFailure) -> ExchangeError {
    let address = |server: ServerId| options.servers[usize::from(server.0)];
    match failure {
        // The server runs in the process of a rank, the first of its node.
        RankFailure::ServerLost { server, why, missing } if server.0 < options.colocated => {
            let rank = Rank(u32::from(server.0) * options.local_world);
            let why = format!(
                "server {server} at {} runs in its process and is lost: {why}; look at the output of rank {rank}",
                address(server)
            );
            ExchangeError::RankLost { rank, why, missing }
        }
        RankFailure::ServerLost { server, why, missing } => {
            ExchangeError::ServerLost { server: server.0, address: address(server), why, missing }
        }
        RankFailure::RankLost { rank, why, missing } => ExchangeError::RankLost { rank, why, missing },
        RankFailure::Disagree(why) => ExchangeError::Disagree(why),
        RankFailure::Refused { server, why } => {
            ExchangeError::Refused { server: server.0, address: address(server), why }
        }
        RankFailure::Queue(why) => ExchangeError::Queue(why),
        RankFailure::NoPlan => ExchangeError::no_plan(),
        RankFailure::Push { name, round } => ExchangeError::early_push(&name, round),
    }
}
