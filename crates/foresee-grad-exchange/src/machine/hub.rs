// SPDX-License-Identifier: Apache-2.0
//! The exchange of a machine, in the process of its first rank: it exchanges with servers for all ranks of the machine.
//!
//! One thread goes up: it offers a tensor when every rank of the machine has pushed it, or all have ended the round; the
//! mean is computed when a packet leaves. Another one notes in the shared memory what has landed. The exchange ends when
//! all ranks have left, and fails all of them when one is lost.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use foresee_grad_queue::{Plan, QueueError, Round, TensorId};
use foresee_grad_session::proposals;
use foresee_units::Rank;
use foresee_wire::{Closer, ListenOptions, Listener, Message, WireError};

use super::fault;
use super::seats::Seats;
use super::segment::Segment;
use crate::error::ExchangeError;
use crate::options::{MachineOptions, RankOptions};
use crate::rank::{Exchange, Gradient, RankStats, Told};
use crate::timeline::{Event, EventKind};

/// How long the exchange waits before it is looked whether the machine still wants it.
const TICK: Duration = Duration::from_millis(100);

/// The exchange of a machine. Dropping it ends it.
#[derive(Debug)]
pub struct Hub {
    shared: Arc<Shared>,
    address: SocketAddr,
    closer: Closer,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What its threads share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: MachineOptions,
    state: Mutex<State>,
    /// Somebody came, proposed, left, or was lost.
    changed: Condvar,
    exchange: OnceLock<Exchange>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) seats: Seats,
    /// What ranks propose, until all have.
    pub(super) proposals: BTreeMap<Rank, Vec<u8>>,
    segment: Option<Arc<Segment>>,
    /// Plans agreed on so far.
    plans: u32,
    /// Why nothing goes on.
    pub(super) failed: Option<ExchangeError>,
    pub(super) closed: bool,
}

/// A plan's memory, and the numbers of its tensors.
struct Session {
    plan: Arc<Plan>,
    segment: Arc<Segment>,
    /// For each tensor of the first rank's list, by which the exchange knows them, its number in the plan; the most urgent
    /// first.
    ids: Vec<(TensorId, TensorId)>,
}

impl Hub {
    /// Listens for the ranks of this machine.
    ///
    /// # Errors
    /// [`ExchangeError::System`]: no port of the loopback interface is to be had.
    pub fn listen(options: MachineOptions) -> Result<Self, ExchangeError> {
        let system = |why| ExchangeError::System(Arc::new(why));
        let secret = options.secret.clone();
        let listen = ListenOptions { timeouts: options.timeouts, ..ListenOptions::default() };
        let keys = Arc::new(move |_: &foresee_wire::Hello| Some(secret.clone()));
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), keys, listen).map_err(system)?;
        let (address, closer) = (listener.address(), listener.closer());
        let shared = Arc::new(Shared::new(options));
        let hub = Self { shared, address, closer, threads: Mutex::default() };
        let inside = Arc::clone(&hub.shared);
        hub.start("foresee-machine", move || inside.receive(listener))?;
        Ok(hub)
    }

    /// Where the ranks of this machine reach it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects to the servers, for all ranks of the machine; once.
    ///
    /// # Errors
    /// As [`Exchange::open`]. The machine's ranks are told.
    ///
    /// # Panics
    /// When called again.
    pub fn connect(&self, options: RankOptions) -> Result<(), ExchangeError> {
        let exchange = Exchange::open(options).inspect_err(|why| self.shared.fail(why))?;
        self.shared.exchange.set(exchange).expect("it is connected once");
        let inside = Arc::clone(&self.shared);
        self.start("foresee-hub-up", move || inside.run())
    }

    /// Ends it: once every rank of the machine that came has left, or after `patience`.
    pub fn close(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let mut state = self.shared.lock();
        while !state.closed && state.failed.is_none() && state.seats.is_taken() {
            let Some(left) = until.checked_duration_since(Instant::now()) else { break };
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.closed = true;
        let controls = state.seats.controls();
        drop(state);
        self.closer.close();
        self.shared.ring();
        if let Some(exchange) = self.shared.exchange.get() {
            exchange.close();
        }
        for control in controls {
            control.bye("the rank that exchanges for this machine is done");
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // Its panic has been printed; there is nothing to add.
            let _ = thread.join();
        }
    }

    /// Counts of the exchange with the servers.
    pub(super) fn stats(&self) -> Option<RankStats> {
        self.shared.exchange.get().map(Exchange::stats)
    }

    /// Whom servers have been waiting for.
    pub(super) fn waits(&self) -> Vec<String> {
        self.shared.exchange.get().map(Exchange::waits).unwrap_or_default()
    }

    /// What was lost and is back since the last call.
    pub(super) fn take_notices(&self) -> Vec<String> {
        self.shared.exchange.get().map(Exchange::take_notices).unwrap_or_default()
    }

    /// What packets did since the last call. That a tensor was pushed is what its ranks tell.
    pub(super) fn take_timeline(&self) -> (Vec<Event>, u64) {
        let (mut events, left_out) =
            self.shared.exchange.get().map(Exchange::take_timeline).unwrap_or_default();
        events.retain(|event| event.kind != EventKind::Pushed);
        (events, left_out)
    }

    fn start(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ExchangeError> {
        let system = |why| WireError::System { doing: "starting a thread", why };
        let spawned = thread::Builder::new().name(name.into()).spawn(work);
        let thread = spawned.map_err(|why| ExchangeError::System(Arc::new(system(why))))?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

impl Shared {
    /// A hub to which no rank has come.
    pub(super) fn new(options: MachineOptions) -> Self {
        Self { options, state: Mutex::default(), changed: Condvar::new(), exchange: OnceLock::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn receive(self: Arc<Self>, mut listener: Listener) {
        loop {
            match listener.accept(foresee_wire::Wait::Forever) {
                Ok(Some(arrival)) => self.admit(arrival),
                Err(WireError::Late { .. }) => {}
                // It was closed, or can listen no more; who is there stays.
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Something of the state changed: whoever waits looks again.
    pub(super) fn ring(&self) {
        let segment = self.lock().segment.clone();
        self.changed.notify_all();
        if let Some(segment) = segment {
            segment.up().ring();
        }
    }

    /// Nothing goes on: the machine's ranks are told, and the servers.
    pub(super) fn fail(&self, why: &ExchangeError) {
        {
            let mut state = self.lock();
            if state.closed || state.failed.is_some() {
                return;
            }
            state.failed = Some(why.clone());
            // Under the lock: whoever closes the hub because of this finds all of it said.
            for control in state.seats.controls() {
                control.close(Message::Error(fault::told(why)));
            }
            if let Some(exchange) = self.exchange.get() {
                exchange.fail(why.clone());
            }
        }
        self.ring();
        if let Some(exchange) = self.exchange.get() {
            exchange.close();
        }
    }

    /// A rank of the machine broke off.
    pub(super) fn lose(&self, rank: Rank, why: String) {
        let missing = self.missing();
        self.fail(&ExchangeError::RankLost { rank, why, missing });
    }

    fn missing(&self) -> String {
        self.exchange.get().map_or_else(|| "no plan was agreed on".into(), Exchange::missing)
    }

    fn run(&self) {
        if let Err(why) = self.serve() {
            self.fail(&why);
        }
    }

    /// Plan after plan, until it is over.
    fn serve(&self) -> Result<(), ExchangeError> {
        let exchange = self.exchange.get().expect("it runs once it is connected");
        while let Some(proposals) = self.all_proposals()? {
            let session = self.agree(exchange, &proposals)?;
            self.rounds(exchange, &session)?;
        }
        Ok(())
    }

    /// What every rank of the machine proposes; `None` at the end.
    fn all_proposals(&self) -> Result<Option<BTreeMap<Rank, Vec<u8>>>, ExchangeError> {
        let mut state = self.lock();
        loop {
            if state.is_over() {
                return Ok(None);
            }
            let ranks = self.options.local as usize;
            // An answer needs a way back.
            if state.proposals.len() == ranks && state.seats.controls().len() == ranks {
                return Ok(Some(std::mem::take(&mut state.proposals)));
            }
            if let Some((rank, why)) = state.seats.gone().next().filter(|_| !state.proposals.is_empty()) {
                let missing = "ranks agree on a plan".into();
                return Err(ExchangeError::RankLost { rank, why, missing });
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn agree(
        &self,
        exchange: &Exchange,
        proposals: &BTreeMap<Rank, Vec<u8>>,
    ) -> Result<Session, ExchangeError> {
        let first = proposals::common(proposals).map_err(|why| ExchangeError::Disagree(why.text))?;
        let specs = (0..first.tensors()).filter_map(|tensor| first.tensor(TensorId(tensor)).cloned());
        let mut made = None;
        let plan = exchange.agree_over(specs.collect(), |plan| {
            let segment = Segment::create(plan, self.options.local as usize);
            let segment = Arc::new(segment.map_err(|why| ExchangeError::Setting {
                name: "the gradients of this machine's ranks",
                found: format!("in shared memory ({why})"),
                rule: "it holds two of each rank and their mean; free some, or pass hierarchical=False on every rank",
            })?);
            made = Some(Arc::clone(&segment));
            Ok(segment.landings())
        })?;
        let segment = made.expect("a plan that was agreed on has its memory");
        let ids = plan.align(&first).map_err(QueueError::PlansDiffer)?;
        let mut ids: Vec<_> = (0..).map(TensorId).zip(ids).collect();
        ids.sort_by_key(|(_, id)| plan.tensor(*id).map(|spec| spec.class));
        let path = segment.path();
        let length = u16::try_from(path.len()).expect("it is a short path");
        let body = [&length.to_le_bytes()[..], path.as_bytes(), &plan.encode()].concat();
        let (generation, controls) = {
            let mut state = self.lock();
            state.plans += 1;
            state.segment = Some(Arc::clone(&segment));
            (state.plans, state.seats.controls())
        };
        for control in controls {
            control.tell(Message::Plan(foresee_wire::Plan { generation, body: body.clone() }));
        }
        Ok(Session { plan, segment, ids })
    }

    /// The rounds of a plan, until there is another or it is over.
    fn rounds(&self, exchange: &Exchange, session: &Session) -> Result<(), ExchangeError> {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let system = |why| WireError::System { doing: "starting a thread", why };
            thread::Builder::new()
                .name("foresee-hub-down".into())
                .spawn_scoped(scope, || self.go_down(exchange, &session.segment, &stop))
                .map_err(|why| ExchangeError::System(Arc::new(system(why))))?;
            let ended = self.go_up(exchange, session);
            stop.store(true, Ordering::Relaxed);
            exchange.nudge();
            ended
        })
    }

    fn go_up(&self, exchange: &Exchange, session: &Session) -> Result<(), ExchangeError> {
        let segment = &session.segment;
        let ranks = self.options.local as usize;
        let mut round = Round(0);
        let mut pending = session.ids.clone();
        loop {
            let seen = segment.up().count();
            if self.is_interrupted() {
                return Ok(());
            }
            // First, since a rank pushes before it ends.
            let has_ended = |rank| segment.ended(rank).load(Ordering::Acquire) > round.0;
            let all_ended = (0..ranks).all(has_ended);
            let mut failed = None;
            pending.retain(|(own, id)| {
                let has = |rank: &usize| segment.pushed(*rank, *id).load(Ordering::Acquire) > round.0;
                let contributors: Vec<_> = (0..ranks).filter(has).collect();
                if contributors.is_empty() || contributors.len() < ranks && !all_ended {
                    return true;
                }
                let gradient = session.mean(round, *id, &contributors, self.options.local);
                failed = exchange.push(*own, gradient).err().or(failed.take());
                false
            });
            if let Some(why) = failed {
                return Err(why);
            }
            if all_ended {
                while exchange.end_round(TICK)?.is_none() {
                    if self.is_interrupted() {
                        return Ok(());
                    }
                }
                round = round.next();
                pending.clone_from(&session.ids);
                continue;
            }
            if (0..ranks).any(has_ended) {
                self.check_left(|rank| !has_ended(rank))?;
                self.check_in_step(has_ended)?;
            }
            segment.up().wait(seen, self.options.timeouts.heartbeat.into());
        }
    }

    /// Fails if somebody has left without having ended what others have.
    fn check_left(&self, owes: impl Fn(usize) -> bool) -> Result<(), ExchangeError> {
        let gone = {
            let state = self.lock();
            let first = self.options.first.0;
            state.seats.gone().find(|(rank, _)| owes((rank.0 - first) as usize))
        };
        let Some((rank, why)) = gone else { return Ok(()) };
        Err(ExchangeError::RankLost { rank, why, missing: self.missing() })
    }

    /// Fails if a rank has ended a round of which another, that asks for a plan, knows nothing.
    fn check_in_step(&self, has_ended: impl Fn(usize) -> bool) -> Result<(), ExchangeError> {
        let first = self.options.first.0;
        let place = |rank: u32| (rank - first) as usize;
        let proposer = self.lock().proposals.keys().copied().find(|rank| !has_ended(place(rank.0)));
        let ahead = (first..first + self.options.local).find(|rank| has_ended(place(*rank)));
        match (proposer, ahead) {
            (Some(proposer), Some(ahead)) => {
                Err(ExchangeError::Disagree(proposals::out_of_step(proposer, Rank(ahead))))
            }
            _ => Ok(()),
        }
    }

    fn go_down(&self, exchange: &Exchange, segment: &Segment, stop: &AtomicBool) {
        let mut told = Told::default();
        while !stop.load(Ordering::Relaxed) {
            match exchange.news(&mut told, stop, TICK) {
                Ok(Some(news)) => {
                    for tensor in news.landed {
                        segment.landed(tensor).store(news.round.0 + 1, Ordering::Release);
                    }
                    if let Some(used) = news.used {
                        segment.tell_used(news.round, &used);
                    }
                    segment.down().ring();
                }
                Ok(None) => {}
                Err(why) => return self.fail(&why),
            }
        }
    }

    /// Whether rounds end here: for another plan, or for good.
    fn is_interrupted(&self) -> bool {
        let state = self.lock();
        state.is_over() || state.proposals.len() == self.options.local as usize
    }
}

impl State {
    fn is_over(&self) -> bool {
        self.closed || self.failed.is_some()
    }
}

impl Session {
    /// The mean over the machine's ranks: the sum of those that contribute, divided by how many there are.
    fn mean(&self, round: Round, tensor: TensorId, contributors: &[usize], ranks: u32) -> Gradient {
        let parts =
            contributors.iter().map(|rank| self.segment.contribution(*rank, round, tensor).cast_const());
        let op = self.plan.tensor(tensor).expect("the plan has its tensors").op;
        let owner = Box::new(Arc::clone(&self.segment));
        // SAFETY: the memory is mapped while the owner lives. A rank writes to the place of this round and tensor again
        // when it pushes the tensor two rounds later. Then the round in between has landed here, for which every machine
        // has pushed the tensor, having this round's average: nobody reads these bytes any more for what they say.
        unsafe { Gradient::of_several(parts.collect(), self.segment.bytes(tensor), op.divisor(ranks), owner) }
    }
}
