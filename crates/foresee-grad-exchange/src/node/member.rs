// SPDX-License-Identifier: Apache-2.0
//! A rank that exchanges through the leader of its node.
//!
//! It copies pushed gradients into the shared memory, and results out of it: the caller may write to a result, and needs
//! its gradient's memory again. It connects to its leader and to no server.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use foresee_grad_queue::{
    PACKET_BYTES_MIN, Pattern, Plan, PlanConfig, QueueError, Round, TensorId, TensorSet, TensorSpec,
};
use foresee_units::Rank;
use foresee_wire::{DialOptions, Fault, FaultCode, Hello, Message, Purpose, Role, Wait, draw_session};

use super::fault::{from_fault, join_error, to_fault};
use super::leader::NodeLeader;
use super::segment::Segment;
use crate::control::{Control, ControlEnd, ControlHandler};
use crate::error::{ExchangeError, plan_id};
use crate::gradient_exchange::{GradientExchange, RankStats, WaitOutcome};
use crate::options::NodeOptions;
use crate::rank::{Gradient, ReceiveBuffer, ServerExchange, dial_until};
use crate::sync::{lock, wait};
use crate::timeline::{Event, EventKind, Timeline};

/// How long an orderly end may take, and how often a waiting rank checks its state.
const TICK: Duration = Duration::from_secs(1);

/// One rank of a node whose ranks exchange as one. Dropping it closes it.
#[derive(Debug)]
pub struct NodeMember {
    core: Arc<MemberCore>,
    control: Control,
    /// The leader, if it is in this process.
    leader: Option<Arc<NodeLeader>>,
}

/// State that the member's threads share.
#[derive(Debug)]
struct MemberCore {
    options: NodeOptions,
    rank: Rank,
    state: Mutex<MemberState>,
    /// Notified when the leader answered, or something failed.
    changed: Condvar,
    timeline: Timeline,
}

#[derive(Debug, Default)]
struct MemberState {
    plan: Option<MemberPlan>,
    answer: Option<Vec<u8>>,
    failed: Option<ExchangeError>,
    is_closed: bool,
}

/// A plan with its memory and the progress of this rank.
#[derive(Debug)]
struct MemberPlan {
    plan: Arc<Plan>,
    /// The plan's id of each tensor of this rank's own list.
    ids: Vec<TensorId>,
    segment: Arc<Segment>,
    /// This rank's own copies of averages.
    copies: Vec<Arc<ReceiveBuffer>>,
    /// The round after the one that each copy is of.
    copied: Vec<u64>,
    /// The current round, and the tensors that were pushed in it.
    current: Round,
    pushed: TensorSet,
}

impl NodeMember {
    /// Connect `rank` to the leader of its node at `address`, waiting up to the timeout for it to come up. `leader`: if it
    /// is in this process.
    ///
    /// # Errors
    /// [`ExchangeError::RankLost`]: nothing listens there; [`ExchangeError::System`]; a refusal of the leader.
    pub fn join(
        options: NodeOptions,
        rank: Rank,
        address: SocketAddr,
        leader: Option<Arc<NodeLeader>>,
    ) -> Result<Self, ExchangeError> {
        let hello = Hello {
            session: draw_session()?,
            ..Hello::new(Purpose::Gradients, Role::Control, options.job.as_str(), rank.0, options.world)
        };
        let dial = DialOptions { timeouts: options.timeouts, ..DialOptions::default() };
        let until = Wait::within(options.timeouts.timeout);
        let connection = dial_until(address, &hello, &options.secret, &dial, until)
            .map_err(|why| join_error(options.first, why))?;
        let timeline = Timeline::new(options.timeline);
        let (timeouts, state, changed) = (options.timeouts, Mutex::default(), Condvar::new());
        let core = Arc::new(MemberCore { options, rank, state, changed, timeline });
        let handler = LeaderHandler { core: Arc::clone(&core) };
        let control = Control::start(&format!("{rank}-node"), connection, timeouts, handler)?;
        Ok(Self { core, control, leader })
    }

    fn wait_for_answer(&self) -> Result<Vec<u8>, ExchangeError> {
        let mut state = self.core.lock();
        loop {
            state.check()?;
            if let Some(answer) = state.answer.take() {
                return Ok(answer);
            }
            state = wait(&self.core.changed, state);
        }
    }

    /// Wait until `poll` returns a result, and call it after each wake-up; `None` once the time is over.
    fn wait_until<T>(
        &self,
        until: Instant,
        mut poll: impl FnMut(&mut MemberPlan) -> Result<Option<T>, ExchangeError>,
    ) -> Result<Option<T>, ExchangeError> {
        loop {
            let (segment, seen) = {
                let mut state = self.core.lock();
                state.check()?;
                let plan = state.plan()?;
                let seen = plan.segment.result_waker().count();
                if let Some(found) = poll(plan)? {
                    return Ok(Some(found));
                }
                (Arc::clone(&plan.segment), seen)
            };
            let Some(left) = until.checked_duration_since(Instant::now()) else { return Ok(None) };
            segment.result_waker().wait(seen, left.min(TICK));
        }
    }

    /// The exchange with the servers, if the leader is in this process.
    fn exchange(&self) -> Option<&ServerExchange> {
        self.leader.as_ref()?.exchange()
    }
}

impl GradientExchange for NodeMember {
    fn rank(&self) -> Rank {
        self.core.rank
    }

    /// Always rank 0: a job whose nodes exchange as one does not continue without a rank.
    fn first(&self) -> Rank {
        Rank(0)
    }

    fn world(&self) -> u32 {
        self.core.options.world
    }

    fn agree(&self, tensors: Vec<TensorSpec>) -> Result<Arc<Plan>, ExchangeError> {
        let config = PlanConfig {
            packet_bytes: PACKET_BYTES_MIN.get(),
            wire: self.core.options.wire,
            pattern: Pattern::new(&[1])?,
        };
        let proposal = Plan::new(config, tensors)?;
        if self.core.lock().plan.is_some() {
            while self.wait_all(TICK)? != WaitOutcome::Received {}
        }
        self.control.send(Message::Plan(foresee_wire::Plan { generation: 0, body: proposal.encode() }));
        let answer = self.wait_for_answer()?;
        let member_plan = MemberPlan::new(&answer, &proposal, &self.core.options).inspect_err(|why| {
            // The others must not wait for this rank.
            self.control.close(Message::Error(to_fault(why)));
        })?;
        let plan = Arc::clone(&member_plan.plan);
        self.core.lock().plan = Some(member_plan);
        Ok(plan)
    }

    fn plan(&self) -> Result<Arc<Plan>, ExchangeError> {
        Ok(Arc::clone(&self.core.lock().plan()?.plan))
    }

    fn push(&self, tensor: TensorId, gradient: Gradient) -> Result<(), ExchangeError> {
        let mut state = self.core.lock();
        state.check()?;
        let plan = state.plan()?;
        let tensor = plan.id(tensor, self.core.rank)?;
        let (segment, round) = (Arc::clone(&plan.segment), plan.current);
        plan.check_push(tensor, gradient.len())?;
        plan.pushed.insert(tensor);
        drop(state);
        self.core.timeline.tensor(EventKind::Pushed, round, tensor);
        let place = self.core.place();
        // SAFETY: the memory of this rank, round and tensor, to which only this thread writes. The leader reads it after
        // `pushed` announces it, and no longer needs the bytes of two rounds ago.
        unsafe { gradient.copy_to(segment.contribution(place, round, tensor)) };
        segment.pushed(place, tensor).store(round.0 + 1, Ordering::Release);
        segment.push_waker().wake();
        Ok(())
    }

    fn end_round(&self, tick: Duration) -> Result<Option<Round>, ExchangeError> {
        let place = self.core.place();
        self.wait_until(Instant::now() + tick, |plan| {
            if plan.first_awaited((0..plan.plan.tensors()).map(TensorId)).is_some() {
                return Ok(None);
            }
            let round = plan.current;
            plan.segment.ended(place).store(round.0 + 1, Ordering::Release);
            plan.segment.push_waker().wake();
            plan.current = round.next();
            plan.pushed = TensorSet::none(plan.plan.tensors());
            Ok(Some(round))
        })
    }

    fn wait(&self, tensors: &[TensorId], tick: Duration) -> Result<WaitOutcome, ExchangeError> {
        let until = Instant::now() + tick;
        let rank = self.core.rank;
        let mut awaited = None;
        let received = self.wait_until(until, |plan| {
            let ids = tensors.iter().map(|tensor| plan.id(*tensor, rank));
            let ids = ids.collect::<Result<Vec<_>, _>>()?;
            let Some(first) = plan.first_awaited(ids) else { return Ok(Some(())) };
            if awaited.is_none() {
                let last = plan.last_round().unwrap_or_default();
                self.core.timeline.tensor(EventKind::Waiting, last, first);
                awaited = Some((last, first));
            }
            Ok(None)
        });
        if let Some((last, first)) = awaited {
            self.core.timeline.tensor(EventKind::Resumed, last, first);
        }
        Ok(received?.map_or(WaitOutcome::TimedOut, |()| WaitOutcome::Received))
    }

    fn count_received(&self, tensors: &[TensorId]) -> Result<usize, ExchangeError> {
        let mut state = self.core.lock();
        let plan = state.plan()?;
        for (count, tensor) in tensors.iter().enumerate() {
            if plan.first_awaited([plan.id(*tensor, self.core.rank)?]).is_some() {
                return Ok(count);
            }
        }
        Ok(tensors.len())
    }

    fn used(&self, tensor: TensorId) -> Result<Option<bool>, ExchangeError> {
        let mut state = self.core.lock();
        let plan = state.plan()?;
        let tensor = plan.id(tensor, self.core.rank)?;
        let Some(last) = plan.last_round() else { return Ok(None) };
        let is_received = plan.segment.received(tensor).load(Ordering::Acquire) > last.0;
        Ok(if is_received { Some(true) } else { plan.segment.used(last, tensor) })
    }

    fn average(&self, tensor: TensorId) -> Result<Arc<ReceiveBuffer>, ExchangeError> {
        let mut state = self.core.lock();
        let plan = state.plan()?;
        let tensor = plan.id(tensor, self.core.rank)?;
        let at = tensor.0 as usize;
        let copy = Arc::clone(&plan.copies[at]);
        let received = plan.segment.received(tensor).load(Ordering::Acquire);
        if received > plan.copied[at] {
            plan.copied[at] = received;
            let segment = Arc::clone(&plan.segment);
            drop(state);
            // SAFETY: the average is unchanged until every rank of the node, this one included, has pushed the tensor
            // again. Until then the copy is the caller's, and one thread at a time calls this.
            unsafe {
                let result = std::slice::from_raw_parts(segment.result(tensor), copy.len());
                copy.slice_mut(0, copy.len()).copy_from_slice(result);
            }
        }
        Ok(copy)
    }

    fn missing(&self) -> String {
        let missing = self.core.lock().missing(self.core.options.first);
        self.waits().into_iter().fold(missing, |text, waits| format!("{text}; {waits}"))
    }

    /// Reports of servers arrive at the leader: only the rank in its process knows them.
    fn waits(&self) -> Vec<String> {
        self.exchange().map(ServerExchange::waits).unwrap_or_default()
    }

    fn take_notices(&self) -> Vec<String> {
        self.exchange().map(ServerExchange::take_notices).unwrap_or_default()
    }

    fn stats(&self) -> RankStats {
        let rounds = self.core.lock().plan.as_ref().map_or(0, |plan| plan.current.0);
        RankStats { rounds, ..self.exchange().map(ServerExchange::stats).unwrap_or_default() }
    }

    fn take_timeline(&self) -> (Vec<Event>, u64) {
        let (mut events, mut dropped) = self.core.timeline.take();
        if let Some(leader) = &self.leader {
            let (packets, more) = leader.take_timeline();
            events.extend(packets);
            events.sort_by_key(|event| event.at);
            dropped += more;
        }
        (events, dropped)
    }

    /// If the leader is in this process, wait until the node's other ranks have left, or for the timeout.
    fn close(&self) {
        {
            let mut state = self.core.lock();
            if std::mem::replace(&mut state.is_closed, true) {
                return;
            }
            state.failed.get_or_insert(ExchangeError::Closed);
        }
        self.core.wake();
        self.control.close_with_goodbye("the rank is done");
        self.control.drain(TICK);
        if let Some(leader) = &self.leader {
            leader.close(self.core.options.timeouts.timeout.into());
        }
    }
}

impl Drop for NodeMember {
    fn drop(&mut self) {
        self.close();
    }
}

impl MemberCore {
    fn lock(&self) -> MutexGuard<'_, MemberState> {
        lock(&self.state)
    }

    /// The rank's place among the node's ranks.
    fn place(&self) -> usize {
        (self.rank.0 - self.options.first.0) as usize
    }

    /// Make waiting calls check the state again.
    fn wake(&self) {
        let segment = self.lock().plan.as_ref().map(|plan| Arc::clone(&plan.segment));
        self.changed.notify_all();
        if let Some(segment) = segment {
            segment.result_waker().wake();
        }
    }
}

impl MemberState {
    fn check(&self) -> Result<(), ExchangeError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn plan(&mut self) -> Result<&mut MemberPlan, ExchangeError> {
        self.plan.as_mut().ok_or_else(ExchangeError::no_plan)
    }

    /// Describe what this rank still waits for, and which ranks of the node, whose first one is `first`.
    fn missing(&self, first: Rank) -> String {
        self.plan.as_ref().map_or_else(|| "no plan was agreed on".into(), |plan| plan.missing(first))
    }
}

impl MemberPlan {
    /// The plan that the leader answers, with its memory.
    fn new(answer: &[u8], proposal: &Plan, options: &NodeOptions) -> Result<Self, ExchangeError> {
        let malformed = || ExchangeError::Disagree("the leader of this node is of another version".into());
        let (length, rest) = answer.split_first_chunk().ok_or_else(malformed)?;
        let (path, plan) = rest.split_at_checked(u16::from_le_bytes(*length).into()).ok_or_else(malformed)?;
        let path = std::str::from_utf8(path).map_err(|_| malformed())?;
        let plan = Arc::new(Plan::decode(plan)?);
        let ids = plan.align(proposal).map_err(QueueError::PlansDiffer)?;
        let segment = Segment::open(path, &plan, options.local_world as usize);
        let segment = Arc::new(segment.map_err(|why| ExchangeError::Setting {
            name: "the memory of this node's ranks",
            found: format!("shared through {path} ({why})"),
            rule: "they run as one user, in one container; else pass hierarchical=False on every rank",
        })?);
        let tensors = plan.tensors();
        let copies = (0..tensors).map(|tensor| ReceiveBuffer::new(segment.bytes(TensorId(tensor)))).collect();
        Ok(Self {
            plan,
            ids,
            segment,
            copies,
            copied: vec![0; tensors as usize],
            current: Round(0),
            pushed: TensorSet::none(tensors),
        })
    }

    /// The plan's id of a tensor of this rank's own list.
    fn id(&self, tensor: TensorId, rank: Rank) -> Result<TensorId, QueueError> {
        plan_id(&self.plan, &self.ids, tensor, rank)
    }

    fn last_round(&self) -> Option<Round> {
        self.current.0.checked_sub(1).map(Round)
    }

    /// The first of these tensors that is still awaited.
    fn first_awaited(&self, tensors: impl IntoIterator<Item = TensorId>) -> Option<TensorId> {
        let last = self.last_round()?;
        tensors.into_iter().find(|tensor| {
            self.segment.received(*tensor).load(Ordering::Acquire) <= last.0
                && self.segment.used(last, *tensor) != Some(false)
        })
    }

    fn check_push(&self, tensor: TensorId, bytes: usize) -> Result<(), ExchangeError> {
        if bytes != self.segment.bytes(tensor) {
            return Err(ExchangeError::wrong_size(bytes));
        }
        if self.pushed.contains(tensor) || self.first_awaited([tensor]).is_some() {
            return Err(ExchangeError::early_push(&self.plan.name(tensor), self.current));
        }
        Ok(())
    }

    fn missing(&self, first: Rank) -> String {
        let Some(last) = self.last_round() else { return "no round has ended yet".into() };
        let tensors = (0..self.plan.tensors()).map(TensorId);
        let awaited: Vec<_> = tensors.filter(|tensor| self.first_awaited([*tensor]).is_some()).collect();
        let Some(tensor) = awaited.first() else { return format!("nothing of round {last} was missing") };
        let behind: Vec<_> = self
            .segment
            .rounds_ended()
            .zip(first.0..)
            .filter(|(ended, _)| *ended <= last.0)
            .map(|(_, rank)| rank.to_string())
            .collect();
        let ranks = if behind.is_empty() {
            "the ranks of this node have all pushed".to_owned()
        } else {
            format!("of this node rank {} had not ended it", behind.join(", "))
        };
        format!(
            "{} tensors of round {last} were missing, '{}' among them; {ranks}",
            awaited.len(),
            self.plan.name(*tensor)
        )
    }
}

/// Handler of the leader's messages.
struct LeaderHandler {
    core: Arc<MemberCore>,
}

impl ControlHandler for LeaderHandler {
    fn on_message(&mut self, message: Message) -> Result<(), Fault> {
        let Message::Plan(plan) = message else {
            let text = format!("the leader of this node sends {}, which is not for ranks", message.kind());
            return Err(Fault::new(FaultCode::Protocol, text));
        };
        self.core.lock().answer = Some(plan.body);
        self.core.wake();
        Ok(())
    }

    fn on_end(&mut self, end: ControlEnd) {
        let rank = self.core.options.first;
        let lost = |why: String| {
            let missing = self.core.lock().missing(rank);
            ExchangeError::RankLost { rank, why: format!("{why}; it is the leader of this node"), missing }
        };
        let why = match end {
            ControlEnd::Fault(fault) => from_fault(fault),
            ControlEnd::Goodbye(reason) => lost(format!("it left: {reason}")),
            ControlEnd::Broken(why) => lost(why.to_string()),
            ControlEnd::Silent(time) => lost(format!("it was silent for {time}")),
        };
        self.core.lock().failed.get_or_insert(why);
        self.core.wake();
    }
}
