// SPDX-License-Identifier: Apache-2.0
//! [`ServerExchange`]: a rank that exchanges with servers.
//!
//! A [`RankSession`] decides behind one lock (`state`); threads read what servers send (`receive`), dial them again
//! (`dial`) and report passed time. Pushes never wait.

mod agree;
mod connect;
mod dial;
#[cfg(target_os = "linux")]
mod progress;
mod push;
mod receive;
mod receive_buffer;
mod routes;
mod state;

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use foresee_grad_queue::{Collector, Plan, Round, TensorId, TensorSpec};
use foresee_grad_session::RankSession;
use foresee_units::{Nanos, Rank};

use crate::error::ExchangeError;
use crate::gradient_exchange::{GradientExchange, RankStats, WaitOutcome};
use crate::interface::{Interface, Interfaces};
use crate::options::RankOptions;
use crate::sync::{Timer, lock, wait_timeout};
use crate::timeline::{Event, EventKind, Timeline};
#[cfg(target_os = "linux")]
pub(crate) use connect::dial_until;
#[cfg(target_os = "linux")]
pub(crate) use progress::ProgressCursor;
pub use push::Gradient;
use push::Push;
pub use receive_buffer::ReceiveBuffer;
pub(crate) use receive_buffer::tensor_bytes;
use state::RankState;

/// How long an orderly end may take.
const LINGER: Duration = Duration::from_secs(2);

/// The exchange of a rank with servers. Dropping it closes it.
#[derive(Debug)]
pub struct ServerExchange {
    core: Arc<RankCore>,
}

/// State that all threads of a rank share.
#[derive(Debug)]
pub(crate) struct RankCore {
    options: RankOptions,
    /// Distinguishes this process from one that takes its place.
    process: u64,
    interfaces: Interfaces,
    state: Mutex<RankState>,
    /// Notified when something was received, answered, or failed.
    changed: Condvar,
    timeline: Timeline,
    /// The origin of this rank's clock.
    start: Instant,
    timer: Timer,
}

impl ServerExchange {
    /// Connect to every server, waiting up to the timeout for each to come up.
    ///
    /// # Errors
    /// [`ExchangeError::Setting`], [`ExchangeError::Server`], [`ExchangeError::System`].
    pub fn open(options: RankOptions) -> Result<Self, ExchangeError> {
        connect::open(options)
    }

    /// The plan's id of the first of these tensors that is still awaited. A received tensor is returned even after a
    /// loss, so ranks that are done need not wait for those that still read their last averages.
    fn first_awaited(
        &self,
        state: &RankState,
        tensors: &[TensorId],
    ) -> Result<Option<TensorId>, ExchangeError> {
        let failed = state.check();
        if state.memory.is_none() {
            failed.clone()?;
        }
        match tensors.get(self.count_settled(state, tensors)?) {
            Some(first) => {
                let id = state.memory()?.id(*first, self.rank())?;
                failed.map(|()| Some(id))
            }
            None => Ok(None),
        }
    }

    fn count_settled(&self, state: &RankState, tensors: &[TensorId]) -> Result<usize, ExchangeError> {
        let (memory, collect) = (state.memory()?, state.collect()?);
        let current = collect.current();
        for (count, tensor) in tensors.iter().enumerate() {
            if !collect.is_settled(memory.id(*tensor, self.rank())?, current) {
                return Ok(count);
            }
        }
        Ok(tensors.len())
    }

    /// Wait while another rank may lack something of the last round: this rank's share, its end of the round, or a
    /// gradient that this rank would have to push again.
    fn linger(&self) -> MutexGuard<'_, RankState> {
        let mut state = self.core.lock();
        let mut until = Instant::now() + LINGER;
        while state.session.is_needed() {
            let is_bounded = state.session.is_connected() || state.session.is_waiting();
            if !is_bounded {
                // The time for pushing again starts once a server is back.
                until = Instant::now() + LINGER;
            }
            match self.core.wait_until(state, until) {
                Err(again) if is_bounded => return again,
                Ok(again) | Err(again) => state = again,
            }
        }
        state
    }
}

impl GradientExchange for ServerExchange {
    fn rank(&self) -> Rank {
        self.core.options.rank
    }

    fn world(&self) -> u32 {
        self.core.options.world
    }

    fn first(&self) -> Rank {
        self.core.lock().session.first_member()
    }

    fn agree(&self, tensors: Vec<TensorSpec>) -> Result<Arc<Plan>, ExchangeError> {
        self.agree_with_buffers(tensors, |plan| {
            let bytes =
                |tensor| tensor_bytes(plan, tensor).expect("a rank has the proposed tensors in memory");
            Ok((0..plan.tensors()).map(|tensor| ReceiveBuffer::new(bytes(TensorId(tensor)))).collect())
        })
    }

    fn plan(&self) -> Result<Arc<Plan>, ExchangeError> {
        Ok(Arc::clone(&self.core.lock().memory()?.plan))
    }

    fn push(&self, tensor: TensorId, gradient: Gradient) -> Result<(), ExchangeError> {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        state.check()?;
        let memory = state.memory.as_mut().ok_or_else(ExchangeError::no_plan)?;
        let tensor = memory.id(tensor, self.rank())?;
        let (plan, flow) = (Arc::clone(&memory.plan), memory.flow);
        if gradient.len() != memory.buffers[tensor.0 as usize].len() {
            return Err(ExchangeError::wrong_size(gradient.len()));
        }
        let pushed = state.session.handle_push(tensor);
        let (round, holding) = pushed.map_err(|failure| self.core.error(failure))?;
        let generation = state.session.collector().map_or(0, Collector::generation);
        let timeline = self.core.timeline.clone();
        timeline.tensor(EventKind::Pushed, round, tensor);
        let push = Arc::new(Push { plan, tensor, round, gradient, timeline });
        if state.session.retains() {
            memory.retained.insert((round, tensor), Arc::clone(&push));
        }
        let open = Arc::clone(&state.routes);
        drop(guard);
        let open = if holding.is_empty() { open } else { routes::without(&open, &holding) };
        // If a server is lost from here on, the gradient is offered again once its replacement is connected.
        for route in &*open {
            routes::offer(&push, flow, generation, route);
        }
        Ok(())
    }

    fn end_round(&self, tick: Duration) -> Result<Option<Round>, ExchangeError> {
        let until = Instant::now() + tick;
        let mut state = self.core.lock();
        loop {
            state.check()?;
            if let Some(round) = state.session.handle_end().map_err(|failure| self.core.error(failure))? {
                self.core.perform_actions(&mut state);
                drop(state);
                // A round without elements is over at once.
                self.core.changed.notify_all();
                return Ok(Some(round));
            }
            match self.core.wait_until(state, until) {
                Ok(again) => state = again,
                Err(_) => return Ok(None),
            }
        }
    }

    fn wait(&self, tensors: &[TensorId], tick: Duration) -> Result<WaitOutcome, ExchangeError> {
        let until = Instant::now() + tick;
        let mut state = self.core.lock();
        let Some(first) = self.first_awaited(&state, tensors)? else { return Ok(WaitOutcome::Received) };
        let last = state.session.last_round().unwrap_or_default();
        self.core.timeline.tensor(EventKind::Waiting, last, first);
        let outcome = loop {
            match self.core.wait_until(state, until) {
                Ok(again) => state = again,
                Err(_) => break WaitOutcome::TimedOut,
            }
            if self.first_awaited(&state, tensors)?.is_none() {
                break WaitOutcome::Received;
            }
        };
        self.core.timeline.tensor(EventKind::Resumed, last, first);
        Ok(outcome)
    }

    fn count_received(&self, tensors: &[TensorId]) -> Result<usize, ExchangeError> {
        self.count_settled(&self.core.lock(), tensors)
    }

    fn used(&self, tensor: TensorId) -> Result<Option<bool>, ExchangeError> {
        let state = self.core.lock();
        Ok(state.session.is_used(state.memory()?.id(tensor, self.rank())?))
    }

    fn average(&self, tensor: TensorId) -> Result<Arc<ReceiveBuffer>, ExchangeError> {
        let state = self.core.lock();
        let memory = state.memory()?;
        let tensor = memory.id(tensor, self.rank())?;
        Ok(Arc::clone(&memory.buffers[tensor.0 as usize]))
    }

    fn missing(&self) -> String {
        self.core.lock().session.missing()
    }

    fn waits(&self) -> Vec<String> {
        self.core.lock().session.waits()
    }

    fn take_notices(&self) -> Vec<String> {
        self.core.lock().session.take_notices()
    }

    fn stats(&self) -> RankStats {
        let state = self.core.lock();
        let session = &state.session;
        RankStats {
            rounds: session.collector().map_or(0, |collector| collector.current().0),
            servers_replaced: session.replacements(),
            reconnects: session.reconnects(),
            ranks_lost: session.lost_ranks(),
            interfaces: state.interfaces().iter().map(Interface::stats).collect(),
        }
    }

    fn take_timeline(&self) -> (Vec<Event>, u64) {
        self.core.timeline.take()
    }

    fn close(&self) {
        let controls: Vec<_> = {
            let mut state = self.linger();
            if std::mem::replace(&mut state.is_closed, true) {
                return;
            }
            state.fail(ExchangeError::Closed);
            if let Some(why) = &state.failed {
                state.send_goodbye(why);
            }
            state.links.iter().map(|link| link.control.clone()).collect()
        };
        self.core.changed.notify_all();
        let until = Instant::now() + LINGER;
        for control in &controls {
            control.drain(until.saturating_duration_since(Instant::now()));
        }
        let mut state = self.core.lock();
        for link in &state.links {
            link.interface.close(link.connection);
            link.data.shutdown();
        }
        if let Some(memory) = &mut state.memory {
            memory.retained.clear();
        }
        drop(state);
        self.core.timer.close();
    }
}

impl Drop for ServerExchange {
    fn drop(&mut self) {
        self.close();
    }
}

impl RankCore {
    fn lock(&self) -> MutexGuard<'_, RankState> {
        lock(&self.state)
    }

    /// Time since the start.
    fn now(&self) -> Nanos {
        Nanos::from(self.start.elapsed())
    }

    /// Wait for a change; the lock comes back as an error once the time is over.
    fn wait_until<'a>(
        &self,
        state: MutexGuard<'a, RankState>,
        until: Instant,
    ) -> Result<MutexGuard<'a, RankState>, MutexGuard<'a, RankState>> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(state);
        }
        Ok(wait_timeout(&self.changed, state, left))
    }

    /// Report a fact to the session, perform its actions, and notify waiting threads.
    fn report(self: &Arc<Self>, fact: impl FnOnce(&mut RankSession, Nanos)) {
        let mut state = self.lock();
        fact(&mut state.session, self.now());
        self.perform_actions(&mut state);
        drop(state);
        self.changed.notify_all();
    }

    /// End the exchange for this reason, unless it has ended before.
    fn fail(&self, why: ExchangeError) {
        self.lock().fail(why);
        self.changed.notify_all();
    }
}
