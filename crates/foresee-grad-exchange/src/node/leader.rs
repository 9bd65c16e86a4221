// SPDX-License-Identifier: Apache-2.0
//! The leader of a node, in the process of its first rank: it exchanges with servers for all ranks of the node.
//!
//! One thread pushes a tensor when every rank of the node has pushed it, or all have ended the round; the mean is
//! computed when a packet leaves. Another thread publishes received averages in the shared memory. The exchange ends when
//! all ranks have left, and fails for all of them when one is lost.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use foresee_grad_queue::{Plan, QueueError, Round, TensorId};
use foresee_grad_session::proposals;
use foresee_units::Rank;
use foresee_wire::{Closer, ListenOptions, Listener, Message, WireError};

use super::fault::to_fault;
use super::members::Members;
use super::segment::Segment;
use crate::error::ExchangeError;
use crate::gradient_exchange::GradientExchange;
use crate::options::{NodeOptions, RankOptions};
use crate::rank::{Gradient, ProgressCursor, ServerExchange};
use crate::sync::{lock, no_thread, spawn, wait, wait_timeout};
use crate::timeline::{Event, EventKind};

/// How long a call to the exchange takes before its thread checks whether it has to stop.
const TICK: Duration = Duration::from_millis(100);

/// The leader of a node. Dropping it ends the node's exchange.
#[derive(Debug)]
pub struct NodeLeader {
    core: Arc<LeaderCore>,
    address: SocketAddr,
    closer: Closer,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// State that the leader's threads share.
#[derive(Debug)]
pub(super) struct LeaderCore {
    pub(super) options: NodeOptions,
    state: Mutex<LeaderState>,
    /// Notified when a rank came, proposed, left, or was lost.
    changed: Condvar,
    exchange: OnceLock<ServerExchange>,
}

#[derive(Debug, Default)]
pub(super) struct LeaderState {
    pub(super) members: Members,
    /// The plans that ranks propose, until all have.
    pub(super) proposals: BTreeMap<Rank, Vec<u8>>,
    segment: Option<Arc<Segment>>,
    /// Plans agreed on so far.
    plans: u32,
    /// The reason that ended the exchange.
    pub(super) failed: Option<ExchangeError>,
    pub(super) is_closed: bool,
}

/// A plan with its memory.
struct NodePlan {
    plan: Arc<Plan>,
    segment: Arc<Segment>,
    /// Each tensor's id in the exchange and in the plan, the most urgent first.
    ids: Vec<(TensorId, TensorId)>,
}

impl NodeLeader {
    /// Listen for the ranks of this node.
    ///
    /// # Errors
    /// [`ExchangeError::System`]: the loopback interface has no free port.
    pub fn listen(options: NodeOptions) -> Result<Self, ExchangeError> {
        let secret = options.secret.clone();
        let listen = ListenOptions { timeouts: options.timeouts, ..ListenOptions::default() };
        let keys = Arc::new(move |_: &foresee_wire::Hello| Some(secret.clone()));
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), keys, listen)?;
        let (address, closer) = (listener.address(), listener.closer());
        let leader =
            Self { core: Arc::new(LeaderCore::new(options)), address, closer, threads: Mutex::default() };
        let core = Arc::clone(&leader.core);
        leader.spawn("foresee-node", move || core.accept(listener))?;
        Ok(leader)
    }

    /// The address at which the ranks of this node join.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connect to the servers, for all ranks of the node; once.
    ///
    /// # Errors
    /// As [`ServerExchange::open`]. The node's ranks receive the error, too.
    ///
    /// # Panics
    /// When called again.
    pub fn connect(&self, options: RankOptions) -> Result<(), ExchangeError> {
        let exchange = ServerExchange::open(options).inspect_err(|why| self.core.fail(why))?;
        self.core.exchange.set(exchange).expect("it is connected once");
        let core = Arc::clone(&self.core);
        self.spawn("foresee-node-push", move || {
            if let Err(why) = core.run() {
                core.fail(&why);
            }
        })
    }

    /// End the exchange once every rank of the node that joined has left, or after `timeout`.
    pub fn close(&self, timeout: Duration) {
        let until = Instant::now() + timeout;
        let mut state = self.core.lock();
        while !state.is_over() && state.members.is_any_present() {
            let Some(left) = until.checked_duration_since(Instant::now()) else { break };
            state = wait_timeout(&self.core.changed, state, left);
        }
        state.is_closed = true;
        let controls = state.members.controls();
        drop(state);
        self.closer.close();
        self.core.wake();
        if let Some(exchange) = self.exchange() {
            exchange.close();
        }
        for control in controls {
            control.close_with_goodbye("the leader of this node is done");
        }
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            // A panic has been printed already.
            let _ = thread.join();
        }
    }

    /// The exchange with the servers, once it is connected.
    pub(super) fn exchange(&self) -> Option<&ServerExchange> {
        self.core.exchange.get()
    }

    /// Events of packets since the last call. Members have the events of pushed tensors themselves.
    pub(super) fn take_timeline(&self) -> (Vec<Event>, u64) {
        let (mut events, dropped) = self.exchange().map(ServerExchange::take_timeline).unwrap_or_default();
        events.retain(|event| event.kind != EventKind::Pushed);
        (events, dropped)
    }

    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ExchangeError> {
        let thread = spawn(name.to_owned(), work)?;
        lock(&self.threads).push(thread);
        Ok(())
    }
}

impl Drop for NodeLeader {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

impl LeaderCore {
    pub(super) fn new(options: NodeOptions) -> Self {
        Self { options, state: Mutex::default(), changed: Condvar::new(), exchange: OnceLock::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LeaderState> {
        lock(&self.state)
    }

    fn accept(self: Arc<Self>, mut listener: Listener) {
        loop {
            match listener.accept(foresee_wire::Wait::Forever) {
                Ok(Some(arrival)) => self.admit(arrival),
                Err(WireError::Late { .. }) => {}
                // It was closed, or failed; connected ranks stay.
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Make waiting threads check the state again.
    pub(super) fn wake(&self) {
        let segment = self.lock().segment.clone();
        self.changed.notify_all();
        if let Some(segment) = segment {
            segment.push_waker().wake();
        }
    }

    /// End the exchange, and report the reason to the node's ranks and to the servers.
    pub(super) fn fail(&self, why: &ExchangeError) {
        {
            let mut state = self.lock();
            if state.is_over() {
                return;
            }
            state.failed = Some(why.clone());
            // Under the lock, so that a thread that closes the leader for this reason finds it reported.
            for control in state.members.controls() {
                control.close(Message::Error(to_fault(why)));
            }
            if let Some(exchange) = self.exchange.get() {
                exchange.fail(why.clone());
            }
        }
        self.wake();
        if let Some(exchange) = self.exchange.get() {
            exchange.close();
        }
    }

    /// A rank of the node was lost.
    pub(super) fn lose(&self, rank: Rank, why: String) {
        let missing = self.missing();
        self.fail(&ExchangeError::RankLost { rank, why, missing });
    }

    fn missing(&self) -> String {
        self.exchange.get().map_or_else(|| "no plan was agreed on".into(), ServerExchange::missing)
    }

    /// Run plan after plan, until the exchange ends.
    fn run(&self) -> Result<(), ExchangeError> {
        let exchange = self.exchange.get().expect("it runs once it is connected");
        while let Some(proposals) = self.all_proposals()? {
            let plan = self.agree(exchange, &proposals)?;
            self.run_plan(exchange, &plan)?;
        }
        Ok(())
    }

    /// Wait for the proposals of every rank of the node; `None` at the end.
    fn all_proposals(&self) -> Result<Option<BTreeMap<Rank, Vec<u8>>>, ExchangeError> {
        let mut state = self.lock();
        loop {
            if state.is_over() {
                return Ok(None);
            }
            let ranks = self.options.local_world as usize;
            // The answer goes over the control connections, which may be registered after the proposals.
            if state.proposals.len() == ranks && state.members.controls().len() == ranks {
                return Ok(Some(std::mem::take(&mut state.proposals)));
            }
            if let Some((rank, why)) = state.members.departed().next().filter(|_| !state.proposals.is_empty())
            {
                let missing = "ranks agree on a plan".into();
                return Err(ExchangeError::RankLost { rank, why, missing });
            }
            state = wait(&self.changed, state);
        }
    }

    fn agree(
        &self,
        exchange: &ServerExchange,
        proposals: &BTreeMap<Rank, Vec<u8>>,
    ) -> Result<NodePlan, ExchangeError> {
        let first = proposals::common(proposals).map_err(|why| ExchangeError::Disagree(why.text))?;
        let specs = (0..first.tensors()).filter_map(|tensor| first.tensor(TensorId(tensor)).cloned());
        let mut created = None;
        let plan = exchange.agree_with_buffers(specs.collect(), |plan| {
            let segment = Segment::create(plan, self.options.local_world as usize);
            let segment = Arc::new(segment.map_err(|why| ExchangeError::Setting {
                name: "the gradients of this node's ranks",
                found: format!("in shared memory ({why})"),
                rule: "it holds two of each rank and their mean; free some, or pass hierarchical=False on every rank",
            })?);
            created = Some(Arc::clone(&segment));
            Ok(segment.receive_buffers())
        })?;
        let segment = created.expect("a plan that was agreed on has its memory");
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
            (state.plans, state.members.controls())
        };
        for control in controls {
            control.send(Message::Plan(foresee_wire::Plan { generation, body: body.clone() }));
        }
        Ok(NodePlan { plan, segment, ids })
    }

    /// Run the rounds of a plan, until there is another one or the exchange ends.
    fn run_plan(&self, exchange: &ServerExchange, plan: &NodePlan) -> Result<(), ExchangeError> {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            thread::Builder::new()
                .name("foresee-node-recv".into())
                .spawn_scoped(scope, || self.publish_results(exchange, &plan.segment, &stop))
                .map_err(no_thread)?;
            let ended = self.push_rounds(exchange, plan);
            stop.store(true, Ordering::Relaxed);
            exchange.wake();
            ended
        })
    }

    fn push_rounds(&self, exchange: &ServerExchange, plan: &NodePlan) -> Result<(), ExchangeError> {
        let segment = &plan.segment;
        let ranks = self.options.local_world as usize;
        let mut round = Round(0);
        let mut pending = plan.ids.clone();
        loop {
            let seen = segment.push_waker().count();
            if self.is_interrupted() {
                return Ok(());
            }
            // Read before the pushes, since a rank pushes before it ends.
            let has_ended = |rank| segment.ended(rank).load(Ordering::Acquire) > round.0;
            let all_ended = (0..ranks).all(has_ended);
            let mut failed = None;
            pending.retain(|(own, id)| {
                let has_pushed = |rank: &usize| segment.pushed(*rank, *id).load(Ordering::Acquire) > round.0;
                let contributors: Vec<_> = (0..ranks).filter(has_pushed).collect();
                if contributors.is_empty() || contributors.len() < ranks && !all_ended {
                    return true;
                }
                let gradient = plan.mean(round, *id, &contributors, self.options.local_world);
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
                pending.clone_from(&plan.ids);
                continue;
            }
            if (0..ranks).any(has_ended) {
                self.check_departed(|rank| !has_ended(rank))?;
                self.check_in_step(has_ended)?;
            }
            segment.push_waker().wait(seen, self.options.timeouts.heartbeat.into());
        }
    }

    /// Fail if a rank has left without having ended a round that others have.
    fn check_departed(&self, is_awaited: impl Fn(usize) -> bool) -> Result<(), ExchangeError> {
        let departed = {
            let state = self.lock();
            let first = self.options.first.0;
            state.members.departed().find(|(rank, _)| is_awaited((rank.0 - first) as usize))
        };
        let Some((rank, why)) = departed else { return Ok(()) };
        Err(ExchangeError::RankLost { rank, why, missing: self.missing() })
    }

    /// Fail if a rank has ended a round while another one, which has not, proposes a new plan.
    fn check_in_step(&self, has_ended: impl Fn(usize) -> bool) -> Result<(), ExchangeError> {
        let first = self.options.first.0;
        let place = |rank: u32| (rank - first) as usize;
        let proposer = self.lock().proposals.keys().copied().find(|rank| !has_ended(place(rank.0)));
        let ahead = (first..first + self.options.local_world).find(|rank| has_ended(place(*rank)));
        match (proposer, ahead) {
            (Some(proposer), Some(ahead)) => {
                Err(ExchangeError::Disagree(proposals::out_of_step(proposer, Rank(ahead))))
            }
            _ => Ok(()),
        }
    }

    fn publish_results(&self, exchange: &ServerExchange, segment: &Segment, stop: &AtomicBool) {
        let mut cursor = ProgressCursor::default();
        while !stop.load(Ordering::Relaxed) {
            match exchange.next_progress(&mut cursor, stop, TICK) {
                Ok(Some(progress)) => {
                    for tensor in progress.received {
                        segment.received(tensor).store(progress.round.0 + 1, Ordering::Release);
                    }
                    if let Some(used) = progress.used {
                        segment.publish_used(progress.round, &used);
                    }
                    segment.result_waker().wake();
                }
                Ok(None) => {}
                Err(why) => return self.fail(&why),
            }
        }
    }

    /// Whether rounds stop: for another plan, or for good.
    fn is_interrupted(&self) -> bool {
        let state = self.lock();
        state.is_over() || state.proposals.len() == self.options.local_world as usize
    }
}

impl LeaderState {
    fn is_over(&self) -> bool {
        self.is_closed || self.failed.is_some()
    }
}

impl NodePlan {
    /// The mean over the node's ranks: the sum of the contributions, divided by the number of ranks.
    fn mean(&self, round: Round, tensor: TensorId, contributors: &[usize], ranks: u32) -> Gradient {
        let addends =
            contributors.iter().map(|rank| self.segment.contribution(*rank, round, tensor).cast_const());
        let op = self.plan.tensor(tensor).expect("the plan has its tensors").op;
        let owner = Box::new(Arc::clone(&self.segment));
        // SAFETY: the memory is mapped while the owner lives. A rank overwrites this contribution when it pushes the tensor
        // two rounds later. By then the round in between was received here, for which every node has pushed the tensor
        // after it received this round's average: the bytes are not needed any more.
        unsafe { Gradient::mean_of(addends.collect(), self.segment.bytes(tensor), op.divisor(ranks), owner) }
    }
}
