// SPDX-License-Identifier: Apache-2.0
//! A rank's exchange: connect, agree on a plan, then push, end rounds, wait, take.
//!
//! Calls come from one thread at a time, but for pushes, which come from autograd's and never wait. The others end with
//! what they wait for, an error, or a tick. A tensor is a number of the plan here.

mod agree;
mod connect;
mod dial;
mod landing;
#[cfg(target_os = "linux")]
mod news;
mod push;
mod receive;
mod routes;
mod state;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foresee_grad_queue::{Collect, Plan, Round, ServerId, TensorId};
use foresee_units::{Bytes, Rank};
use foresee_wire::WireError;

use crate::error::ExchangeError;
use crate::interface::{Interface, InterfaceStats, Interfaces};
use crate::options::RankOptions;
use crate::timeline::{Event, EventKind, Timeline};
use crate::timer::Timer;
#[cfg(target_os = "linux")]
pub(crate) use connect::reach;
pub(crate) use landing::Landing;
#[cfg(target_os = "linux")]
pub(crate) use news::Told;
pub use push::Gradient;
use push::Push;
use state::State;

/// How long an orderly end may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// A rank's end of the exchange. Dropping it closes it.
#[derive(Debug)]
pub struct Exchange {
    core: Arc<Core>,
}

/// What all threads of a rank share.
#[derive(Debug)]
pub(crate) struct Core {
    options: RankOptions,
    /// Tells this process from one that takes its place.
    process: u64,
    interfaces: Interfaces,
    state: Mutex<State>,
    /// Something landed, was answered, or failed.
    changed: Condvar,
    timeline: Timeline,
    /// Time is counted from here.
    start: Instant,
    timer: Timer,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// With what was waited for.
    Landed,
    /// With its time.
    Tick,
}

/// An average, in the model's dtype and order of memory.
///
/// The memory stays as it is until the tensor's next push, or the end of a round without one.
#[derive(Clone, Debug)]
pub struct Received {
    landing: Arc<Landing>,
}

impl Received {
    pub(crate) fn new(landing: Arc<Landing>) -> Self {
        Self { landing }
    }

    /// The first byte, on a cache line; valid for as long as `self` lives.
    pub fn pointer(&self) -> *mut u8 {
        self.landing.pointer()
    }

    /// Bytes of the tensor.
    pub fn len(&self) -> usize {
        self.landing.len()
    }

    /// Whether the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy.
    pub fn to_vec(&self) -> Vec<u8> {
        // SAFETY: nothing of the tensor is under way before its next push, which is the caller's.
        unsafe { self.landing.slice_mut(0, self.len()) }.to_vec()
    }
}

/// Counts since the start.
#[derive(Clone, Debug, Default)]
pub struct RankStats {
    /// Rounds that ended here.
    pub rounds: u64,
    /// Servers that took the place of lost ones.
    pub servers_back: u64,
    /// Connections that broke and were made again, to the same server.
    pub reconnects: u64,
    /// Losses of ranks after which the others went on.
    pub ranks_lost: u64,
    /// Of each interface.
    pub interfaces: Vec<InterfaceStats>,
}

impl Exchange {
    /// Connects to every server, waiting up to the handshake's timeout for each to come up.
    ///
    /// # Errors
    /// [`ExchangeError::Setting`], [`ExchangeError::Server`], [`ExchangeError::System`].
    pub fn open(options: RankOptions) -> Result<Self, ExchangeError> {
        connect::open(options)
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.core.options.rank
    }

    /// Ranks of the job.
    pub fn world(&self) -> u32 {
        self.core.options.world
    }

    /// Hands a tensor of the present round over. Never waits. Where a broken connection may be made again, the gradient is
    /// kept until every rank has everything of the round.
    ///
    /// # Errors
    /// What failed before; [`ExchangeError::Queue`] if the plan has no such tensor or another size. A tensor that was pushed in this
    /// round, or whose last average has not landed, is a [`ExchangeError::Setting`].
    pub fn push(&self, tensor: TensorId, gradient: Gradient) -> Result<(), ExchangeError> {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        state.check()?;
        let memory = state.memory.as_mut().ok_or_else(ExchangeError::no_plan)?;
        let tensor = memory.id(tensor, self.rank())?;
        let (plan, flow) = (Arc::clone(&memory.plan), memory.flow);
        let bytes = memory.landings[tensor.0 as usize].len();
        if gradient.len() != bytes {
            let found = format!("{} bytes", gradient.len());
            return Err(ExchangeError::Setting {
                name: "a gradient",
                found,
                rule: "it has the bytes of its plan",
            });
        }
        let pushed = state.machine.handle_push(tensor);
        let (round, holding) = pushed.map_err(|failure| self.core.error(failure))?;
        let generation = state.machine.collect().map_or(0, Collect::generation);
        let timeline = self.core.timeline.clone();
        timeline.tensor(EventKind::Pushed, round, tensor);
        let push = Arc::new(Push { plan, tensor, round, gradient, timeline });
        if state.machine.retains() {
            memory.retained.insert((round, tensor), Arc::clone(&push));
        }
        let open = Arc::clone(&state.routes);
        drop(guard);
        let open = if holding.is_empty() { open } else { routes::without(&open, &holding) };
        // A server that is lost from here on is offered it again by whoever connects to the next one.
        for route in &*open {
            routes::offer(&push, flow, generation, route);
        }
        Ok(())
    }

    /// This rank pushes nothing more in the present round; the next one begins. Returns the round that ended; `None`
    /// if `tick` passed before everything of the round before had landed here and every server had heard of its end.
    ///
    /// # Errors
    /// What was lost; before a plan was agreed on.
    pub fn end_round(&self, tick: Duration) -> Result<Option<Round>, ExchangeError> {
        let until = Instant::now() + tick;
        let mut state = self.core.lock();
        loop {
            state.check()?;
            if let Some(round) = state.machine.handle_end().map_err(|failure| self.core.error(failure))? {
                self.core.settle(&mut state);
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

    /// Waits until each of these tensors has landed, or is known to have been pushed by nobody, in every round that
    /// ended; or for `tick`.
    ///
    /// # Errors
    /// What was lost, if they have not landed; the exchange stays lost.
    pub fn wait(&self, tensors: &[TensorId], tick: Duration) -> Result<Waited, ExchangeError> {
        let until = Instant::now() + tick;
        let mut state = self.core.lock();
        let Some(first) = self.unsettled(&state, tensors)? else { return Ok(Waited::Landed) };
        let last = state.machine.last_round().unwrap_or_default();
        self.core.timeline.tensor(EventKind::Waiting, last, first);
        let waited = loop {
            match self.core.wait_until(state, until) {
                Ok(again) => state = again,
                Err(_) => break Waited::Tick,
            }
            if self.unsettled(&state, tensors)?.is_none() {
                break Waited::Landed;
            }
        };
        self.core.timeline.tensor(EventKind::Resumed, last, first);
        Ok(waited)
    }

    /// The first of these tensors that is still on its way, by its number in the plan. What has landed is there whoever
    /// was lost since: ranks that are through need not wait for those that still look at their last averages.
    fn unsettled(&self, state: &State, tensors: &[TensorId]) -> Result<Option<TensorId>, ExchangeError> {
        let failed = state.check();
        if state.memory.is_none() {
            failed.clone()?;
        }
        match tensors.get(self.settled(state, tensors)?) {
            Some(first) => {
                let id = state.memory()?.id(*first, self.rank())?;
                failed.map(|()| Some(id))
            }
            None => Ok(None),
        }
    }

    /// How many of these tensors, in their order, are not on their way any more.
    fn settled(&self, state: &State, tensors: &[TensorId]) -> Result<usize, ExchangeError> {
        let (memory, collect) = (state.memory()?, state.collect()?);
        let current = collect.current();
        for (count, tensor) in tensors.iter().enumerate() {
            if !collect.is_settled(memory.id(*tensor, self.rank())?, current) {
                return Ok(count);
            }
        }
        Ok(tensors.len())
    }

    /// How many of these tensors, in their order, have landed or are known to have been pushed by nobody. Never waits.
    ///
    /// # Errors
    /// Before a plan was agreed on, and for a tensor that the plan does not have.
    pub fn landed(&self, tensors: &[TensorId]) -> Result<usize, ExchangeError> {
        self.settled(&self.core.lock(), tensors)
    }

    /// Waits until everything of every round that ended has landed, or for `tick`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_all(&self, tick: Duration) -> Result<Waited, ExchangeError> {
        let tensors = {
            let state = self.core.lock();
            state.memory()?.plan.tensors()
        };
        self.wait(&(0..tensors).map(TensorId).collect::<Vec<_>>(), tick)
    }

    /// Whether anybody pushed the tensor in the round that ended last; `None` while that is not known.
    ///
    /// # Errors
    /// Before a plan was agreed on.
    pub fn used(&self, tensor: TensorId) -> Result<Option<bool>, ExchangeError> {
        let state = self.core.lock();
        Ok(state.machine.was_used(state.memory()?.id(tensor, self.rank())?))
    }

    /// The average that landed last.
    ///
    /// # Errors
    /// Before a plan was agreed on; [`ExchangeError::Queue`] if the plan has no such tensor.
    pub fn received(&self, tensor: TensorId) -> Result<Received, ExchangeError> {
        let state = self.core.lock();
        let memory = state.memory()?;
        let tensor = memory.id(tensor, self.rank())?;
        Ok(Received::new(Arc::clone(&memory.landings[tensor.0 as usize])))
    }

    /// The first rank that is left, as far as this one has heard: it pushes what one rank alone pushes.
    ///
    /// Should the one before it be lost in a round, what that one pushed of it is in no sum that lacks this rank's part.
    pub fn first(&self) -> Rank {
        self.core.lock().machine.first()
    }

    /// What is still wanted, in words; for the line that says who waits for whom.
    pub fn missing(&self) -> String {
        self.core.lock().machine.missing()
    }

    /// Whom servers have been waiting for, each in words, as far as they have said so; a part of what is [missing](Self::missing).
    pub fn waits(&self) -> Vec<String> {
        self.core.lock().machine.waits()
    }

    /// What is worth a line of a log and was not taken before: connections and servers that were lost and are back.
    pub fn take_notices(&self) -> Vec<String> {
        self.core.lock().machine.take_notices()
    }

    /// Counts since the start.
    pub fn stats(&self) -> RankStats {
        let state = self.core.lock();
        let machine = &state.machine;
        RankStats {
            rounds: machine.collect().map_or(0, |collect| collect.current().0),
            servers_back: machine.replaced(),
            reconnects: machine.reconnected(),
            ranks_lost: machine.ranks_lost(),
            interfaces: state.interfaces().iter().map(Interface::stats).collect(),
        }
    }

    /// What happened since the last call, where the options ask for a timeline; and how many events more, for which there
    /// was no room. Tensors have their numbers in the plan that was agreed on.
    pub fn take_timeline(&self) -> (Vec<Event>, u64) {
        self.core.timeline.take()
    }

    /// The plan's tensors by their numbers, each with its name and what travels of it; none before a plan was agreed on.
    pub fn tensors(&self) -> Vec<(String, Bytes)> {
        let state = self.core.lock();
        state.memory.as_ref().map_or_else(Vec::new, |memory| named(&memory.plan))
    }

    /// Leaves in peace. A wait of another thread ends with [`ExchangeError::Closed`]; a second call does nothing.
    ///
    /// It stays for up to two seconds until its last results are here, and with them its part in those of other ranks;
    /// then until every rank has all results, and for as long as a server is being replaced: what this rank retains may
    /// be needed again.
    pub fn close(&self) {
        let controls: Vec<_> = {
            let mut state = self.stay();
            if std::mem::replace(&mut state.closed, true) {
                return;
            }
            state.fail(ExchangeError::Closed);
            if let Some(why) = &state.failed {
                state.send_goodbye(why);
            }
            state.links.iter().map(|link| link.control.clone()).collect()
        };
        self.core.changed.notify_all();
        let until = Instant::now() + FAREWELL;
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

    /// Waits while another rank may lack something of the last round: this rank's part of it, its end, or what this rank
    /// would have to push again.
    fn stay(&self) -> MutexGuard<'_, State> {
        let mut state = self.core.lock();
        let mut until = Instant::now() + FAREWELL;
        while state.machine.is_needed() {
            let is_bounded = state.machine.is_connected() || state.machine.is_waiting();
            if !is_bounded {
                // What it has to push again takes its time once a server is back.
                until = Instant::now() + FAREWELL;
            }
            match self.core.wait_until(state, until) {
                Err(again) if is_bounded => return again,
                Ok(again) | Err(again) => state = again,
            }
        }
        state
    }
}

/// The tensors of a plan, each with its name and what travels of it.
pub(crate) fn named(plan: &Plan) -> Vec<(String, Bytes)> {
    let tensors = (0..plan.tensors()).map(TensorId);
    tensors.map(|tensor| (plan.name(tensor), plan.bytes(tensor).unwrap_or_default())).collect()
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.close();
    }
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change; the lock comes back as an error once the time is over.
    fn wait_until<'a>(
        &self,
        state: MutexGuard<'a, State>,
        until: Instant,
    ) -> Result<MutexGuard<'a, State>, MutexGuard<'a, State>> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(state);
        }
        Ok(self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0)
    }

    /// A data connection broke.
    fn data_closed(self: &Arc<Self>, server: ServerId, pair: u32, why: &WireError) {
        let mut state = self.lock();
        state.machine.handle_data_closed(server, pair, &why.to_string(), why.is_silence(), self.now());
        self.settle(&mut state);
    }

    /// Nothing goes on, for this reason unless there was one before.
    fn fail(&self, why: ExchangeError) {
        self.lock().fail(why);
        self.changed.notify_all();
    }
}
