// SPDX-License-Identifier: Apache-2.0
//! [`GradientExchange`], the contract of one rank's exchange: with the servers, or with the leader of its node.
//!
//! The Python class of this name is one of either kind.

use std::time::Duration;

use foresee_grad_queue::{Round, TensorId, TensorSpec};
use foresee_units::{Bytes, Rank};

use crate::ExchangeError;
use crate::rank::{Exchange, Gradient, RankStats, Received, Waited};
use crate::timeline::Event;

/// One rank's exchange of gradients; each method is described at [`Exchange`].
pub trait GradientExchange: Send + Sync + std::fmt::Debug {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Ranks of the job.
    fn world(&self) -> u32;

    /// The first rank that is left, as far as this one has heard.
    fn first(&self) -> Rank;

    /// Makes these tensors the plan of all coming rounds.
    ///
    /// # Errors
    /// [`ExchangeError::Disagree`] names the first tensor that differs, and both ranks.
    fn agree(&self, tensors: Vec<TensorSpec>) -> Result<(), ExchangeError>;

    /// Hands a tensor of the present round over. Never waits for another process.
    ///
    /// # Errors
    /// What failed before, and a push that the plan or the round does not allow.
    fn push(&self, tensor: TensorId, gradient: Gradient) -> Result<(), ExchangeError>;

    /// This rank pushes nothing more in the present round; `None` if `tick` passed before it may say so.
    ///
    /// # Errors
    /// What was lost; before a plan was agreed on.
    fn end_round(&self, tick: Duration) -> Result<Option<Round>, ExchangeError>;

    /// Waits until each of these tensors has landed, or is known to have been pushed by nobody; or for `tick`.
    ///
    /// # Errors
    /// What was lost.
    fn wait(&self, tensors: &[TensorId], tick: Duration) -> Result<Waited, ExchangeError>;

    /// How many of these tensors, in their order, have landed or are known to have been pushed by nobody. Never waits.
    ///
    /// # Errors
    /// Before a plan was agreed on.
    fn landed(&self, tensors: &[TensorId]) -> Result<usize, ExchangeError>;

    /// [`wait`](Self::wait) for every tensor.
    ///
    /// # Errors
    /// What was lost.
    fn wait_all(&self, tick: Duration) -> Result<Waited, ExchangeError>;

    /// Whether anybody pushed the tensor in the round that ended last; `None` while that is not known.
    ///
    /// # Errors
    /// Before a plan was agreed on.
    fn used(&self, tensor: TensorId) -> Result<Option<bool>, ExchangeError>;

    /// The average that landed last.
    ///
    /// # Errors
    /// Before a plan was agreed on; [`ExchangeError::Queue`] if the plan has no such tensor.
    fn received(&self, tensor: TensorId) -> Result<Received, ExchangeError>;

    /// What is still wanted, in words.
    fn missing(&self) -> String;

    /// Whom servers have been waiting for, each in words, as far as this process has heard.
    fn waits(&self) -> Vec<String>;

    /// What was lost and is back since the last call, in words.
    fn take_notices(&self) -> Vec<String>;

    /// Counts since the start.
    fn stats(&self) -> RankStats;

    /// What happened since the last call, and for how much more there was no room.
    fn take_timeline(&self) -> (Vec<Event>, u64);

    /// The plan's tensors by their numbers, each with its name and what travels of it.
    fn tensors(&self) -> Vec<(String, Bytes)>;

    /// Leaves in peace.
    fn close(&self);
}

impl GradientExchange for Exchange {
    fn rank(&self) -> Rank {
        self.rank()
    }

    fn first(&self) -> Rank {
        self.first()
    }

    fn world(&self) -> u32 {
        self.world()
    }

    fn agree(&self, tensors: Vec<TensorSpec>) -> Result<(), ExchangeError> {
        self.agree(tensors).map(drop)
    }

    fn push(&self, tensor: TensorId, gradient: Gradient) -> Result<(), ExchangeError> {
        self.push(tensor, gradient)
    }

    fn end_round(&self, tick: Duration) -> Result<Option<Round>, ExchangeError> {
        self.end_round(tick)
    }

    fn wait(&self, tensors: &[TensorId], tick: Duration) -> Result<Waited, ExchangeError> {
        self.wait(tensors, tick)
    }

    fn landed(&self, tensors: &[TensorId]) -> Result<usize, ExchangeError> {
        self.landed(tensors)
    }

    fn wait_all(&self, tick: Duration) -> Result<Waited, ExchangeError> {
        self.wait_all(tick)
    }

    fn used(&self, tensor: TensorId) -> Result<Option<bool>, ExchangeError> {
        self.used(tensor)
    }

    fn received(&self, tensor: TensorId) -> Result<Received, ExchangeError> {
        self.received(tensor)
    }

    fn missing(&self) -> String {
        self.missing()
    }

    fn waits(&self) -> Vec<String> {
        self.waits()
    }

    fn take_notices(&self) -> Vec<String> {
        self.take_notices()
    }

    fn stats(&self) -> RankStats {
        self.stats()
    }

    fn take_timeline(&self) -> (Vec<Event>, u64) {
        self.take_timeline()
    }

    fn tensors(&self) -> Vec<(String, Bytes)> {
        self.tensors()
    }

    fn close(&self) {
        self.close();
    }
}
