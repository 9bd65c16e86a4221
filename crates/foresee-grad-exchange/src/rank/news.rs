// SPDX-License-Identifier: Apache-2.0
//! Progress of a round, tensor by tensor, for the leader of a node, which passes it on. Each fact is reported once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foresee_grad_queue::{Round, TensorId, TensorSet};

use super::state::State;
use super::{Exchange, ExchangeError};

/// What was told of the round that ended last.
#[derive(Debug, Default)]
pub(crate) struct Told {
    of: Option<(Round, TensorSet, bool)>,
}

/// Something new.
#[derive(Debug)]
pub(crate) struct News {
    /// Of this round.
    pub(crate) round: Round,
    /// These have landed. They have their numbers in the plan.
    pub(crate) landed: Vec<TensorId>,
    /// This is what it used.
    pub(crate) used: Option<TensorSet>,
}

impl Exchange {
    /// Waits for something that was not told yet; `None` once `tick` has passed, or `stop` is set and the exchange
    /// [nudged](Self::nudge).
    ///
    /// # Errors
    /// What was lost; before a plan was agreed on.
    pub(crate) fn news(
        &self,
        told: &mut Told,
        stop: &AtomicBool,
        tick: Duration,
    ) -> Result<Option<News>, ExchangeError> {
        let until = Instant::now() + tick;
        let mut state = self.core.lock();
        loop {
            state.check()?;
            if let Some(news) = told.next(&state)? {
                return Ok(Some(news));
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            match self.core.wait_until(state, until) {
                Ok(again) => state = again,
                Err(_) => return Ok(None),
            }
        }
    }

    /// Has whoever waits look again.
    pub(crate) fn nudge(&self) {
        drop(self.core.lock());
        self.core.changed.notify_all();
    }

    /// Nothing goes on, for this reason unless there was one before. Servers hear of a lost rank at once, and of anything
    /// else with [`close`](Self::close).
    pub(crate) fn fail(&self, why: ExchangeError) {
        self.core.fail(why);
    }
}

impl Told {
    fn next(&mut self, state: &State) -> Result<Option<News>, ExchangeError> {
        let (collect, machine) = (state.collect()?, &state.machine);
        let (Some(last), current) = (machine.last_round(), collect.current()) else { return Ok(None) };
        let tensors = state.memory()?.plan.tensors();
        let (round, landed, used) = match &mut self.of {
            Some(of) if of.0 == last => of,
            of => of.insert((last, TensorSet::none(tensors), false)),
        };
        let is_new = |tensor: &TensorId| {
            !landed.contains(*tensor)
                && collect.is_settled(*tensor, current)
                && machine.was_used(*tensor) == Some(true)
        };
        let new: Vec<_> = (0..tensors).map(TensorId).filter(is_new).collect();
        for tensor in &new {
            landed.insert(*tensor);
        }
        let set = machine.used(*round).filter(|_| !*used).cloned();
        *used |= set.is_some();
        Ok((!new.is_empty() || set.is_some()).then_some(News { round: *round, landed: new, used: set }))
    }
}
