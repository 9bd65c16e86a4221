// SPDX-License-Identifier: Apache-2.0
//! What a rank's threads share behind one lock: the machine that decides, connections, memory, and what went wrong.
//!
//! What the machine asks for is done in its order under the same lock, and never waits: messages go to outboxes,
//! gradients are offered to interfaces, and a server is dialled by a thread of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use foresee_grad_queue::{Collect, Flow, Plan, QueueError, Round, ServerId, TensorId};
use foresee_grad_session::{RankAction, RankFailure, RankSession};
use foresee_units::{Nanos, Rank};
use foresee_wire::{Bye, Fault, FaultCode, Message};

use super::Core;
use super::landing::Landing;
use super::push::Push;
use super::routes::{Route, ServerLink, offer, routes};
use crate::error::ExchangeError;
use crate::interface::Interface;
use crate::options::RankOptions;
use crate::translate;

/// Behind the lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) rank: Rank,
    pub(super) machine: RankSession,
    /// By server.
    pub(super) links: Vec<ServerLink>,
    /// To servers that are open.
    pub(super) routes: Arc<[Route]>,
    pub(super) memory: Option<PlanMemory>,
    /// Why nothing goes on; the first reason stays.
    pub(super) failed: Option<ExchangeError>,
    pub(super) closed: bool,
    /// When the machine has something to do, as the timer knows it.
    pub(super) timeout: Option<Nanos>,
}

/// Memory that belongs to a plan.
#[derive(Debug)]
pub(super) struct PlanMemory {
    pub(super) plan: Arc<Plan>,
    /// For each tensor of this rank's own list its number in the plan.
    pub(super) ids: Vec<TensorId>,
    pub(super) landings: Vec<Arc<Landing>>,
    pub(super) flow: Flow,
    /// Gradients of rounds that are not done. They stay where they are, and unchanged.
    pub(super) retained: BTreeMap<(Round, TensorId), Arc<Push>>,
}

impl PlanMemory {
    /// The number in the plan of a tensor of this rank's own list.
    pub(super) fn id(&self, tensor: TensorId, rank: Rank) -> Result<TensorId, ExchangeError> {
        let id = self.ids.get(tensor.0 as usize).copied();
        let tensors = self.plan.tensors();
        Ok(id.ok_or(QueueError::NoSuchTensor { rank, tensor: tensor.0, tensors })?)
    }
}

impl State {
    /// The memory of the plan.
    pub(super) fn memory(&self) -> Result<&PlanMemory, ExchangeError> {
        self.memory.as_ref().ok_or_else(ExchangeError::no_plan)
    }

    /// What is known of the plan's rounds.
    pub(super) fn collect(&self) -> Result<&Collect, ExchangeError> {
        self.machine.collect().ok_or_else(ExchangeError::no_plan)
    }

    /// # Errors
    /// Why nothing goes on.
    pub(super) fn check(&self) -> Result<(), ExchangeError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Nothing goes on, for this reason unless there was one before.
    ///
    /// Where a rank is lost, servers are told at once: should this process end before it closes, they would take it for
    /// the rank that was lost first.
    pub(super) fn fail(&mut self, why: ExchangeError) {
        self.machine.handle_stopped();
        if self.failed.is_some() {
            return;
        }
        if matches!(why, ExchangeError::RankLost { .. }) {
            self.send_goodbye(&why);
        }
        self.failed = Some(why);
    }

    /// Sends every server a last message: that this rank leaves, and where another party is lost, which.
    pub(super) fn send_goodbye(&self, why: &ExchangeError) {
        let last = goodbye(self.rank, why);
        self.links.iter().for_each(|link| link.control.close(last.clone()));
    }

    /// The interfaces to all servers, be they open or not.
    pub(super) fn interfaces(&self) -> Vec<Interface> {
        let mut found: Vec<Interface> = Vec::new();
        for link in &self.links {
            if !found.iter().any(|known| known.is(&link.interface)) {
                found.push(link.interface.clone());
            }
        }
        found
    }

    pub(super) fn link(&self, server: ServerId) -> Option<&ServerLink> {
        self.links.get(usize::from(server.0))
    }
}

impl Core {
    /// Time since the start.
    pub(super) fn now(&self) -> Nanos {
        Nanos::from(self.start.elapsed())
    }

    /// Does what the machine asks for.
    pub(super) fn settle(self: &Arc<Self>, state: &mut State) {
        while let Some(action) = state.machine.poll_action() {
            self.perform(state, action);
        }
        let timeout = state.machine.poll_timeout();
        let before = std::mem::replace(&mut state.timeout, timeout);
        if timeout.is_some_and(|timeout| before.is_none_or(|before| timeout < before)) {
            self.timer.wake();
        }
    }

    fn perform(self: &Arc<Self>, state: &mut State, action: RankAction) {
        match action {
            RankAction::Send { server, pair, message } => {
                if let Some(link) = state.link(server).filter(|_| state.machine.pair(server) == pair) {
                    link.control.tell(translate::rank_frame(message));
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
                state.routes = routes(links.filter(|(server, _)| state.machine.is_open(*server)));
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

    /// What a failure is for callers.
    pub(super) fn error(&self, failure: RankFailure) -> ExchangeError {
        error(&self.options, failure)
    }

    /// Reports passed time to the machine, until the timer is closed.
    pub(super) fn run_timers(self: &Arc<Self>) {
        loop {
            let timeout = self.lock().timeout;
            let until: Option<Instant> = timeout.and_then(|timeout| self.start.checked_add(timeout.into()));
            if !self.timer.wait(until) {
                return;
            }
            let mut state = self.lock();
            if state.timeout.is_some_and(|timeout| timeout <= self.now()) {
                state.machine.handle_timeout(self.now());
                self.settle(&mut state);
                drop(state);
                self.changed.notify_all();
            }
        }
    }
}

/// What servers are told where this rank ends. Should it be the first to know that another party is lost, the others
/// are to hear of that one, and not that this rank has left.
fn goodbye(rank: Rank, why: &ExchangeError) -> Message {
    let whom = match why {
        ExchangeError::RankLost { rank, .. } => Some(rank.0),
        // A refusal of one server is no news to the others.
        ExchangeError::ServerLost { .. } | ExchangeError::Refused { .. } => None,
        // Ranks of one machine differ: only their hub knows.
        ExchangeError::Disagree(why) => return Message::Error(Fault::new(FaultCode::Plan, why.as_str())),
        _ => return Message::Bye(Bye { reason: "the rank is done".into() }),
    };
    let text = format!("rank {rank} has {why}");
    Message::Error(Fault { rank: whom, ..Fault::new(FaultCode::Lost, text) })
}

fn error(options: &RankOptions, failure: RankFailure) -> ExchangeError {
    let address = |server: ServerId| options.servers[usize::from(server.0)];
    match failure {
        // The server runs in the process of a rank, the first of its node.
        RankFailure::ServerLost { server, why, missing } if server.0 < options.beside => {
            let rank = Rank(u32::from(server.0) * options.local);
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
        RankFailure::Push { name, round } => {
            let found = format!("'{name}' in round {round}");
            let rule = "it is pushed once a round, after its last average has landed";
            ExchangeError::Setting { name: "a push", found, rule }
        }
    }
}
