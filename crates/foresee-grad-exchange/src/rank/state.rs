// SPDX-License-Identifier: Apache-2.0
//! What a rank's threads share behind one lock: the plan, how far its rounds are, what is kept, what went wrong.
//!
//! Refuses to hold the lock over the network: what servers are to be told is put into their outboxes.

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_grad_queue::{
    Collect, CollectAction, Flow, Plan, QueueError, Round, ServerId, TensorId, TensorSet,
};
use foresee_units::Rank;
use foresee_wire::{Got, Message, RoundEnd};

use super::keep::Kept;
use super::landing::Landing;
use super::survive::Membership;
use super::ways::Ways;
use crate::error::ExchangeError;

/// Behind the lock.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) session: Option<Session>,
    /// The connections to each server.
    pub(super) ways: Ways,
    /// What was proposed to each server, until the plan is at work.
    pub(super) asked: Vec<Option<Arc<[u8]>>>,
    /// What each server, over the connections that are there now, answered to the present proposal.
    pub(super) answers: Vec<Option<(u32, Arc<[u8]>)>>,
    /// Servers connected again that were told what this rank knows, until all of them have answered.
    pub(super) resuming: Vec<ServerId>,
    /// Rounds that other servers say are done; counted once no server is resuming.
    pub(super) done_later: Vec<(ServerId, Round)>,
    /// Servers that took the place of lost ones.
    pub(super) servers_back: u64,
    /// Connections that were made again, to the server that they broke from.
    pub(super) reconnects: u64,
    /// Who is left.
    pub(super) membership: Membership,
    /// What is worth a line of the log, until somebody takes it.
    pub(super) notices: Vec<String>,
    /// Why nothing goes on; the first reason stays.
    pub(super) failed: Option<ExchangeError>,
    pub(super) closed: bool,
}

impl State {
    pub(super) fn session(&mut self) -> Result<&mut Session, ExchangeError> {
        let rule = "ranks agree on a plan first";
        self.session.as_mut().ok_or(ExchangeError::Setting { name: "a round", found: "begun".into(), rule })
    }

    /// Nothing goes on, for this reason unless there was one before.
    pub(super) fn fail(&mut self, why: ExchangeError) {
        self.failed.get_or_insert(why);
    }

    /// A server says that a round is done.
    pub(super) fn hear_done(&mut self, server: ServerId, round: Round) -> Result<(), ExchangeError> {
        if self.resuming.is_empty() {
            self.session()?.collect.handle_done(server, round)?;
            self.go_on();
        } else {
            self.session()?;
            self.done_later.push((server, round));
        }
        Ok(())
    }

    /// Does what has become possible: tells servers, offers what was held, lets go of what need not be kept.
    pub(super) fn go_on(&mut self) {
        let Some(session) = &mut self.session else { return };
        session.tell(&self.ways);
        self.ways.release(&session.collect, session.flow);
        session.kept.forget_before(session.collect.oldest_kept());
    }

    /// What is still wanted, in words.
    pub(super) fn missing(&self) -> String {
        let missing = self.session.as_ref().map_or_else(|| "no plan was agreed on".into(), Session::missing);
        self.waits().into_iter().fold(missing, |text, waits| format!("{text}; {waits}"))
    }

    /// Whom servers wait for, each in words, as far as they have said so.
    pub(super) fn waits(&self) -> Vec<String> {
        let waits = self.ways.iter().filter_map(|way| Some((way.server, way.waiting.as_ref()?)));
        waits.map(|(server, whom)| format!("server {server} waits for {whom}")).collect()
    }
}

/// What belongs to a plan.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) plan: Arc<Plan>,
    /// For each tensor of this rank's own list its number in the plan.
    pub(super) ids: Vec<TensorId>,
    pub(super) collect: Collect,
    pub(super) landings: Vec<Arc<Landing>>,
    pub(super) flow: Flow,
    /// What the last rounds used, oldest first.
    pub(super) used: VecDeque<(Round, TensorSet)>,
    /// What a server in the place of a lost one is sent again.
    pub(super) kept: Kept,
}

impl Session {
    /// The number in the plan of a tensor of this rank's own list.
    pub(super) fn id(&self, tensor: TensorId, rank: Rank) -> Result<TensorId, ExchangeError> {
        let id = self.ids.get(tensor.0 as usize).copied();
        let tensors = self.plan.tensors();
        Ok(id.ok_or(QueueError::NoSuchTensor { rank, tensor: tensor.0, tensors })?)
    }

    /// Puts what servers are to be told into their outboxes, in order.
    pub(super) fn tell(&mut self, ways: &Ways) {
        while let Some(action) = self.collect.poll_action() {
            let (server, message) = match action {
                CollectAction::End(server, round) => {
                    let skipped =
                        self.collect.skipped(round).expect("a round that ended has skipped something or not");
                    (server, Message::RoundEnd(RoundEnd { round: round.0, absent: skipped.to_bytes() }))
                }
                CollectAction::Got(server, round) => (server, Message::Got(Got { round: round.0 })),
            };
            ways.tell(server, message);
        }
    }

    /// A server says what a round used.
    pub(super) fn hear_used(
        &mut self,
        server: ServerId,
        round: Round,
        set: &[u8],
    ) -> Result<(), ExchangeError> {
        let used = TensorSet::from_bytes(set, self.plan.tensors())?;
        self.collect.handle_used(server, round, &used)?;
        if self.used.back().is_none_or(|(last, _)| *last < round) {
            self.used.push_back((round, used));
            if self.used.len() > 2 {
                self.used.pop_front();
            }
        }
        Ok(())
    }

    /// The round whose averages are waited for: the one before the one that is pushed.
    pub(super) fn last_round(&self) -> Option<Round> {
        self.collect.current().0.checked_sub(1).map(Round)
    }

    /// Whether nothing of the rounds that ended is on its way any more, to or from whom ever: only such a plan may give
    /// way to another, whose rounds have the same numbers.
    pub(super) fn is_quiet(&self) -> bool {
        // A round is forgotten when all ranks have all of it, and every server was told that this one has.
        self.last_round().is_none_or(|last| self.collect.skipped(last).is_none())
    }

    /// Whether packets of the round that ended last are missing here. What others used of it may not be known yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.last_round().is_some_and(|last| self.collect.waiting(last).next().is_some())
    }

    /// Whether every server was told that the round that ended last did.
    pub(super) fn has_told(&self) -> bool {
        self.last_round().is_none_or(|last| self.collect.has_told_end(last))
    }

    /// Whether anybody pushed `tensor` in the last round that ended; `None` while that is not known.
    pub(super) fn was_used(&self, tensor: TensorId) -> Option<bool> {
        let last = self.last_round()?;
        let told = self.used.iter().find(|(round, _)| *round == last).map(|(_, set)| set.contains(tensor));
        told.or_else(|| self.collect.is_used(last, tensor))
    }

    fn missing(&self) -> String {
        let Some(last) = self.last_round() else { return "no round has ended yet".into() };
        let waiting: Vec<_> = self.collect.waiting(last).collect();
        let packets: u64 = waiting.iter().map(|(_, missing)| u64::from(*missing)).sum();
        match waiting.first() {
            None => format!("nothing of round {last} was missing"),
            Some((tensor, missing)) => format!(
                "{packets} packets of {} tensors of round {last} were missing, {missing} of them of '{}'",
                waiting.len(),
                self.plan.name(*tensor),
            ),
        }
    }
}
