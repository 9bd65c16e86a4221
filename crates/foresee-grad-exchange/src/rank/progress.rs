// SPDX-License-Identifier: Apache-2.0
//! Progress of a round, tensor by tensor, for the leader of a node, which passes it on. Each fact is reported once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foresee_grad_queue::{Round, TensorId, TensorSet};

use super::state::RankState;
use super::{ExchangeError, ServerExchange};

/// The progress that was reported of the round that ended last.
#[derive(Debug, Default)]
pub(crate) struct ProgressCursor {
    reported: Option<(Round, TensorSet, bool)>,
}

/// New progress of a round.
#[derive(Debug)]
pub(crate) struct RoundProgress {
    pub(crate) round: Round,
    /// Tensors that were received, by their ids in the plan.
    pub(crate) received: Vec<TensorId>,
    /// The tensors that the round used, once that is known.
    pub(crate) used: Option<TensorSet>,
}

impl ServerExchange {
    /// Wait for progress that was not reported; `None` once `tick` has passed, or `stop` is set and the exchange
    /// [woken](Self::wake).
    ///
    /// # Errors
    /// The loss of a peer; no plan was agreed on.
    pub(crate) fn next_progress(
        &self,
        cursor: &mut ProgressCursor,
        stop: &AtomicBool,
        tick: Duration,
    ) -> Result<Option<RoundProgress>, ExchangeError> {
        let until = Instant::now() + tick;
        let mut state = self.core.lock();
        loop {
            state.check()?;
            if let Some(progress) = cursor.next(&state)? {
                return Ok(Some(progress));
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

    /// Make waiting calls check their condition again.
    pub(crate) fn wake(&self) {
        drop(self.core.lock());
        self.core.changed.notify_all();
    }

    /// End the exchange for this reason, unless it has ended before. Servers receive the loss of a rank at once, and any
    /// other reason with [`close`](crate::GradientExchange::close).
    pub(crate) fn fail(&self, why: ExchangeError) {
        self.core.fail(why);
    }
}

impl ProgressCursor {
    fn next(&mut self, state: &RankState) -> Result<Option<RoundProgress>, ExchangeError> {
        let (collect, session) = (state.collect()?, &state.session);
        let (Some(last), current) = (session.last_round(), collect.current()) else { return Ok(None) };
        let tensors = state.memory()?.plan.tensors();
        let (round, received, is_used_reported) = match &mut self.reported {
            Some(reported) if reported.0 == last => reported,
            reported => reported.insert((last, TensorSet::none(tensors), false)),
        };
        let is_new = |tensor: &TensorId| {
            !received.contains(*tensor)
                && collect.is_settled(*tensor, current)
                && session.is_used(*tensor) == Some(true)
        };
        let new: Vec<_> = (0..tensors).map(TensorId).filter(is_new).collect();
        for tensor in &new {
            received.insert(*tensor);
        }
        let used = session.used(*round).filter(|_| !*is_used_reported).cloned();
        *is_used_reported |= used.is_some();
        Ok((!new.is_empty() || used.is_some()).then_some(RoundProgress {
            round: *round,
            received: new,
            used,
        }))
    }
}
