// SPDX-License-Identifier: Apache-2.0
//! [`GradientExchange`], the contract of one rank's exchange: with servers, or with the leader of its node.
//!
//! Calls come from one thread at a time, except pushes, which come from autograd's threads.

use std::sync::Arc;
use std::time::Duration;

use foresee_grad_queue::{Plan, Round, TensorId, TensorSpec};
use foresee_units::Rank;

use crate::ExchangeError;
use crate::interface::InterfaceStats;
use crate::rank::{Gradient, ReceiveBuffer};
use crate::timeline::Event;

/// One rank's exchange of gradients. A [`TensorId`] is a tensor's place in the list that this rank passed to
/// [`agree`](Self::agree). Waits end with their result, an error, or after `tick`.
pub trait GradientExchange: Send + Sync + std::fmt::Debug {
    /// This rank.
    fn rank(&self) -> Rank;

    /// The number of ranks of the job.
    fn world(&self) -> u32;

    /// The first live rank that this rank knows of: it pushes the tensors that one rank alone pushes.
    ///
    /// If the first rank is lost during a round, its pushes of that round are in no sum that lacks this rank's share.
    fn first(&self) -> Rank;

    /// Make these tensors the plan of all coming rounds, which are counted from 0 again. Every rank calls it, with
    /// nothing in flight. Where order, classes or packet sizes differ, those of rank 0 hold.
    ///
    /// Unless the options set it, the packet size suits the rate that the slowest interface has delivered so far.
    ///
    /// # Errors
    /// [`ExchangeError::Disagree`] names the first tensor that differs, and both ranks.
    fn agree(&self, tensors: Vec<TensorSpec>) -> Result<Arc<Plan>, ExchangeError>;

    /// The plan that was agreed on last.
    ///
    /// # Errors
    /// No plan was agreed on.
    fn plan(&self) -> Result<Arc<Plan>, ExchangeError>;

    /// Push a tensor of the current round. Never waits for another process. If connections may be made again, the
    /// gradient is retained until every rank has received everything of the round.
    ///
    /// # Errors
    /// An earlier failure; [`ExchangeError::Queue`] if the plan has no such tensor; [`ExchangeError::Setting`] if the
    /// size differs, the tensor was pushed in this round, or its last average has not arrived.
    fn push(&self, tensor: TensorId, gradient: Gradient) -> Result<(), ExchangeError>;

    /// End the current round: this rank pushes nothing more in it. Returns the round that ended; `None` if within
    /// `tick` the round before was not yet received here or its end not yet known to every server.
    ///
    /// # Errors
    /// The loss of a peer; no plan was agreed on.
    fn end_round(&self, tick: Duration) -> Result<Option<Round>, ExchangeError>;

    /// Wait until each of these tensors was received, or is known to have been pushed by no rank, in every round that
    /// ended.
    ///
    /// # Errors
    /// The loss of a peer, if they were not received; no plan was agreed on.
    fn wait(&self, tensors: &[TensorId], tick: Duration) -> Result<WaitOutcome, ExchangeError>;

    /// [`wait`](Self::wait) for every tensor.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    fn wait_all(&self, tick: Duration) -> Result<WaitOutcome, ExchangeError> {
        let tensors = self.plan()?.tensors();
        self.wait(&(0..tensors).map(TensorId).collect::<Vec<_>>(), tick)
    }

    /// Count how many of these tensors, in their order, need no more waiting. Never waits.
    ///
    /// # Errors
    /// No plan was agreed on, or the plan has no such tensor.
    fn count_received(&self, tensors: &[TensorId]) -> Result<usize, ExchangeError>;

    /// Whether any rank pushed the tensor in the round that ended last; `None` while that is not known.
    ///
    /// # Errors
    /// No plan was agreed on.
    fn used(&self, tensor: TensorId) -> Result<Option<bool>, ExchangeError>;

    /// The average that was received last, in the model's dtype and memory order. Its bytes stay unchanged until the
    /// tensor's next push, or the end of a round without one.
    ///
    /// # Errors
    /// No plan was agreed on; [`ExchangeError::Queue`] if the plan has no such tensor.
    fn average(&self, tensor: TensorId) -> Result<Arc<ReceiveBuffer>, ExchangeError>;

    /// Describe what this rank still waits for.
    fn missing(&self) -> String;

    /// Describe which ranks servers wait for, as far as they have reported it; a part of [`missing`](Self::missing).
    fn waits(&self) -> Vec<String>;

    /// Messages for the log since the last call: connections, servers and ranks that were lost or replaced.
    fn take_notices(&self) -> Vec<String>;

    /// Counters since the start.
    fn stats(&self) -> RankStats;

    /// Events since the last call, if the options ask for a timeline, and how many more were dropped. Tensors have
    /// their ids in the plan.
    fn take_timeline(&self) -> (Vec<Event>, u64);

    /// Close the exchange. A wait of another thread ends with [`ExchangeError::Closed`]; a second call does nothing.
    ///
    /// It lingers up to two seconds for its last results, and with them for its share in those of other ranks; then
    /// until every rank has all results, and as long as a server is being replaced, since this rank's gradients may
    /// be needed again.
    fn close(&self);
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The tensors were received.
    Received,
    /// The time is over.
    TimedOut,
}

/// Counters of one rank since its start.
#[derive(Clone, Debug, Default)]
pub struct RankStats {
    /// Rounds that this rank ended.
    pub rounds: u64,
    /// Lost servers that were replaced.
    pub servers_replaced: u64,
    /// Broken connections that were made again, to the same server.
    pub reconnects: u64,
    /// Losses of ranks after which the others continued.
    pub ranks_lost: u64,
    /// Counters of each interface.
    pub interfaces: Vec<InterfaceStats>,
}
