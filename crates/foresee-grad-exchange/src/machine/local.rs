// SPDX-License-Identifier: Apache-2.0
//! A rank's part in the exchange of its machine.
//!
//! It copies what it pushes into the shared memory, and results out of it: the caller may write to a result, and needs its
//! gradient's memory again. It knows its hub and no server.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foresee_grad_queue::{
    PACKET_BYTES_MIN, Pattern, Plan, PlanConfig, QueueError, Round, TensorId, TensorSet, TensorSpec,
};
use foresee_units::{Bytes, Rank};
use foresee_wire::{DialOptions, Fault, FaultCode, Hello, Message, Purpose, Role, Wait, draw_session};

use super::fault;
use super::hub::Hub;
use super::segment::Segment;
use crate::control::{Control, Ear, End};
use crate::error::ExchangeError;
use crate::gradient_exchange::GradientExchange;
use crate::options::MachineOptions;
use crate::rank::{Gradient, Landing, RankStats, Received, Waited, named, reach};
use crate::timeline::{Event, EventKind, Timeline};

/// How long an orderly end may take, and how often a rank that waits looks around.
const TICK: Duration = Duration::from_secs(1);

/// One rank of a machine whose ranks exchange as one. Dropping it closes it.
#[derive(Debug)]
pub struct LocalRank {
    core: Arc<Core>,
    control: Control,
    /// Where it is in this process.
    hub: Option<Arc<Hub>>,
}

/// What a rank's threads share.
#[derive(Debug)]
struct Core {
    options: MachineOptions,
    rank: Rank,
    state: Mutex<State>,
    /// The hub answered, or something failed.
    changed: Condvar,
    timeline: Timeline,
}

#[derive(Debug, Default)]
struct State {
    session: Option<Session>,
    answer: Option<Vec<u8>>,
    failed: Option<ExchangeError>,
    closed: bool,
}

/// What belongs to a plan.
#[derive(Debug)]
struct Session {
    plan: Arc<Plan>,
    /// For each tensor of this rank's own list its number in the plan.
    ids: Vec<TensorId>,
    segment: Arc<Segment>,
    /// This rank's own copies of averages.
    copies: Vec<Arc<Landing>>,
    /// The round after the one whose average a copy is of.
    copied: Vec<u64>,
    /// The round that is pushed now, and what was pushed in it.
    current: Round,
    pushed: TensorSet,
}

impl LocalRank {
    /// Connects `rank` to the hub of its machine at `address`, waiting up to the timeout for it to come up. `hub`: where it
    /// is in this process.
    ///
    /// # Errors
    /// [`ExchangeError::RankLost`]: nobody is there; [`ExchangeError::System`]; what the hub refuses.
    pub fn join(
        options: MachineOptions,
        rank: Rank,
        address: SocketAddr,
        hub: Option<Arc<Hub>>,
    ) -> Result<Self, ExchangeError> {
        let hello = Hello {
            session: draw_session().map_err(|why| ExchangeError::System(Arc::new(why)))?,
            ..Hello::new(Purpose::Gradients, Role::Control, options.job.as_str(), rank.0, options.world)
        };
        let how = DialOptions { timeouts: options.timeouts, ..DialOptions::default() };
        let until = Wait::within(options.timeouts.timeout);
        let connection = reach(address, &hello, &options.secret, &how, until)
            .map_err(|why| fault::unreachable(options.first, why))?;
        let timeline = Timeline::new(options.timeline);
        let (timeouts, state, changed) = (options.timeouts, Mutex::default(), Condvar::new());
        let core = Arc::new(Core { options, rank, state, changed, timeline });
        let ear = HubEar { core: Arc::clone(&core) };
        let control = Control::start(&format!("{rank}-machine"), connection, timeouts, ear)
            .map_err(|why| ExchangeError::System(Arc::new(why)))?;
        Ok(Self { core, control, hub })
    }

    fn answer(&self) -> Result<Vec<u8>, ExchangeError> {
        let mut state = self.core.lock();
        loop {
            state.check()?;
            if let Some(answer) = state.answer.take() {
                return Ok(answer);
            }
            state = self.core.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits, looking at `ready` whenever something has landed; `None` with the time.
    fn until<T>(
        &self,
        until: Instant,
        mut ready: impl FnMut(&mut Session) -> Result<Option<T>, ExchangeError>,
    ) -> Result<Option<T>, ExchangeError> {
        loop {
            let (segment, seen) = {
                let mut state = self.core.lock();
                state.check()?;
                let session = state.session()?;
                let seen = session.segment.down().count();
                if let Some(found) = ready(session)? {
                    return Ok(Some(found));
                }
                (Arc::clone(&session.segment), seen)
            };
            let Some(left) = until.checked_duration_since(Instant::now()) else { return Ok(None) };
            segment.down().wait(seen, left.min(TICK));
        }
    }
}

impl GradientExchange for LocalRank {
    fn rank(&self) -> Rank {
        self.core.rank
    }

    /// Nobody of a job whose ranks exchange as one goes on without another.
    fn first(&self) -> Rank {
        Rank(0)
    }

    fn world(&self) -> u32 {
        self.core.options.world
    }

    fn agree(&self, tensors: Vec<TensorSpec>) -> Result<(), ExchangeError> {
        let config = PlanConfig {
            packet_bytes: PACKET_BYTES_MIN.get(),
            wire: self.core.options.wire,
            pattern: Pattern::new(&[1])?,
        };
        let proposal = Plan::new(config, tensors)?;
        if self.core.lock().session.is_some() {
            while self.wait_all(TICK)? != Waited::Landed {}
        }
        self.control.tell(Message::Plan(foresee_wire::Plan { generation: 0, body: proposal.encode() }));
        let answer = self.answer()?;
        let session = Session::new(&answer, &proposal, &self.core.options).inspect_err(|why| {
            // The others are not to wait for this rank.
            self.control.close(Message::Error(fault::told(why)));
        })?;
        self.core.lock().session = Some(session);
        Ok(())
    }

    fn push(&self, tensor: TensorId, gradient: Gradient) -> Result<(), ExchangeError> {
        let mut state = self.core.lock();
        state.check()?;
        let session = state.session()?;
        let tensor = session.id(tensor, self.core.rank)?;
        let (segment, round) = (Arc::clone(&session.segment), session.current);
        session.may_push(tensor, gradient.len())?;
        session.pushed.insert(tensor);
        drop(state);
        self.core.timeline.tensor(EventKind::Pushed, round, tensor);
        let place = self.core.place();
        // SAFETY: the place of this rank, round and tensor, to which nobody else writes. The hub reads it once it is said
        // to be pushed, and is done with what was there two rounds ago.
        unsafe { gradient.copy_to(segment.contribution(place, round, tensor)) };
        segment.pushed(place, tensor).store(round.0 + 1, Ordering::Release);
        segment.up().ring();
        Ok(())
    }

    fn end_round(&self, tick: Duration) -> Result<Option<Round>, ExchangeError> {
        let place = self.core.place();
        self.until(Instant::now() + tick, |session| {
            if session.first_unsettled((0..session.plan.tensors()).map(TensorId)).is_some() {
                return Ok(None);
            }
            let round = session.current;
            session.segment.ended(place).store(round.0 + 1, Ordering::Release);
            session.segment.up().ring();
            session.current = round.next();
            session.pushed = TensorSet::none(session.plan.tensors());
            Ok(Some(round))
        })
    }

    fn wait(&self, tensors: &[TensorId], tick: Duration) -> Result<Waited, ExchangeError> {
        let until = Instant::now() + tick;
        let rank = self.core.rank;
        let mut waited_for = None;
        let landed = self.until(until, |session| {
            let ids = tensors.iter().map(|tensor| session.id(*tensor, rank));
            let ids = ids.collect::<Result<Vec<_>, _>>()?;
            let Some(first) = session.first_unsettled(ids.into_iter()) else { return Ok(Some(())) };
            if waited_for.is_none() {
                let last = session.last_round().unwrap_or_default();
                self.core.timeline.tensor(EventKind::Waiting, last, first);
                waited_for = Some((last, first));
            }
            Ok(None)
        });
        if let Some((last, first)) = waited_for {
            self.core.timeline.tensor(EventKind::Resumed, last, first);
        }
        Ok(landed?.map_or(Waited::Tick, |()| Waited::Landed))
    }

    fn landed(&self, tensors: &[TensorId]) -> Result<usize, ExchangeError> {
        let mut state = self.core.lock();
        let session = state.session()?;
        for (count, tensor) in tensors.iter().enumerate() {
            let id = session.id(*tensor, self.core.rank)?;
            if session.first_unsettled([id].into_iter()).is_some() {
                return Ok(count);
            }
        }
        Ok(tensors.len())
    }

    fn wait_all(&self, tick: Duration) -> Result<Waited, ExchangeError> {
        let tensors = self.core.lock().session()?.plan.tensors();
        self.wait(&(0..tensors).map(TensorId).collect::<Vec<_>>(), tick)
    }

    fn used(&self, tensor: TensorId) -> Result<Option<bool>, ExchangeError> {
        let mut state = self.core.lock();
        let session = state.session()?;
        let tensor = session.id(tensor, self.core.rank)?;
        let Some(last) = session.last_round() else { return Ok(None) };
        let has_landed = session.segment.landed(tensor).load(Ordering::Acquire) > last.0;
        Ok(if has_landed { Some(true) } else { session.segment.used(last, tensor) })
    }

    fn received(&self, tensor: TensorId) -> Result<Received, ExchangeError> {
        let mut state = self.core.lock();
        let session = state.session()?;
        let tensor = session.id(tensor, self.core.rank)?;
        let at = tensor.0 as usize;
        let copy = Arc::clone(&session.copies[at]);
        let landed = session.segment.landed(tensor).load(Ordering::Acquire);
        if landed > session.copied[at] {
            session.copied[at] = landed;
            let segment = Arc::clone(&session.segment);
            drop(state);
            // SAFETY: the average stays until every rank of the machine has pushed the tensor again, this one among them;
            // the copy is the caller's until then, and one thread at a time asks for it.
            unsafe {
                let result = std::slice::from_raw_parts(segment.result(tensor), copy.len());
                copy.slice_mut(0, copy.len()).copy_from_slice(result);
            }
        }
        Ok(Received::new(copy))
    }

    fn missing(&self) -> String {
        let missing = {
            let state = self.core.lock();
            state.session.as_ref().map_or_else(
                || "no plan was agreed on".into(),
                |session| session.missing(self.core.options.first),
            )
        };
        self.waits().into_iter().fold(missing, |text, waits| format!("{text}; {waits}"))
    }

    /// Of the first rank alone, in whose process the hub hears of it.
    fn waits(&self) -> Vec<String> {
        self.hub.as_ref().map_or_else(Vec::new, |hub| hub.waits())
    }

    fn take_notices(&self) -> Vec<String> {
        self.hub.as_ref().map_or_else(Vec::new, |hub| hub.take_notices())
    }

    fn stats(&self) -> RankStats {
        let rounds = self.core.lock().session.as_ref().map_or(0, |session| session.current.0);
        let stats = self.hub.as_ref().and_then(|hub| hub.stats()).unwrap_or_default();
        RankStats { rounds, ..stats }
    }

    fn take_timeline(&self) -> (Vec<Event>, u64) {
        let (mut events, mut left_out) = self.core.timeline.take();
        if let Some(hub) = &self.hub {
            let (packets, more) = hub.take_timeline();
            events.extend(packets);
            events.sort_by_key(|event| event.at);
            left_out += more;
        }
        (events, left_out)
    }

    fn tensors(&self) -> Vec<(String, Bytes)> {
        let state = self.core.lock();
        state.session.as_ref().map_or_else(Vec::new, |session| named(&session.plan))
    }

    /// Where the hub is in this process it stays until the machine's other ranks have left, or for the timeout.
    fn close(&self) {
        {
            let mut state = self.core.lock();
            if std::mem::replace(&mut state.closed, true) {
                return;
            }
            state.failed.get_or_insert(ExchangeError::Closed);
        }
        self.core.wake();
        self.control.bye("the rank is done");
        self.control.drain(TICK);
        if let Some(hub) = &self.hub {
            hub.close(self.core.options.timeouts.timeout.into());
        }
    }
}

impl Drop for LocalRank {
    fn drop(&mut self) {
        self.close();
    }
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its place among the machine's ranks.
    fn place(&self) -> usize {
        (self.rank.0 - self.options.first.0) as usize
    }

    /// Has whoever waits look again.
    fn wake(&self) {
        let segment = self.lock().session.as_ref().map(|session| Arc::clone(&session.segment));
        self.changed.notify_all();
        if let Some(segment) = segment {
            segment.down().ring();
        }
    }

    fn fail(&self, why: ExchangeError) {
        self.lock().failed.get_or_insert(why);
        self.wake();
    }
}

impl State {
    fn check(&self) -> Result<(), ExchangeError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn session(&mut self) -> Result<&mut Session, ExchangeError> {
        let rule = "ranks agree on a plan first";
        self.session.as_mut().ok_or(ExchangeError::Setting { name: "a round", found: "begun".into(), rule })
    }
}

impl Session {
    /// The plan that the hub answers, with its memory.
    fn new(answer: &[u8], proposal: &Plan, options: &MachineOptions) -> Result<Self, ExchangeError> {
        let strange = || ExchangeError::Disagree("the hub of this machine is of another version".into());
        let (length, rest) = answer.split_first_chunk().ok_or_else(strange)?;
        let (path, plan) = rest.split_at_checked(u16::from_le_bytes(*length).into()).ok_or_else(strange)?;
        let path = std::str::from_utf8(path).map_err(|_| strange())?;
        let plan = Arc::new(Plan::decode(plan)?);
        let ids = plan.align(proposal).map_err(QueueError::PlansDiffer)?;
        let segment = Segment::open(path, &plan, options.local as usize);
        let segment = Arc::new(segment.map_err(|why| ExchangeError::Setting {
            name: "the memory of this machine's ranks",
            found: format!("shared through {path} ({why})"),
            rule: "they run as one user, in one container; else pass hierarchical=False on every rank",
        })?);
        let tensors = plan.tensors();
        let copies = (0..tensors).map(|tensor| Landing::new(segment.bytes(TensorId(tensor)))).collect();
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

    /// The number in the plan of a tensor of this rank's own list.
    fn id(&self, tensor: TensorId, rank: Rank) -> Result<TensorId, ExchangeError> {
        let id = self.ids.get(tensor.0 as usize).copied();
        let tensors = self.plan.tensors();
        Ok(id.ok_or(QueueError::NoSuchTensor { rank, tensor: tensor.0, tensors })?)
    }

    fn last_round(&self) -> Option<Round> {
        self.current.0.checked_sub(1).map(Round)
    }

    /// The first of these that may still be on its way.
    fn first_unsettled(&self, mut tensors: impl Iterator<Item = TensorId>) -> Option<TensorId> {
        let last = self.last_round()?;
        tensors.find(|tensor| {
            self.segment.landed(*tensor).load(Ordering::Acquire) <= last.0
                && self.segment.used(last, *tensor) != Some(false)
        })
    }

    fn may_push(&self, tensor: TensorId, bytes: usize) -> Result<(), ExchangeError> {
        if bytes != self.segment.bytes(tensor) {
            let found = format!("{bytes} bytes");
            let rule = "it has the bytes of its plan";
            return Err(ExchangeError::Setting { name: "a gradient", found, rule });
        }
        if self.pushed.contains(tensor) || self.first_unsettled([tensor].into_iter()).is_some() {
            let found = format!("'{}' in round {}", self.plan.name(tensor), self.current);
            let rule = "it is pushed once a round, after its last average has landed";
            return Err(ExchangeError::Setting { name: "a push", found, rule });
        }
        Ok(())
    }

    /// What is still wanted, in words; and of whom of the machine, whose first rank is `first`.
    fn missing(&self, first: Rank) -> String {
        let Some(last) = self.last_round() else { return "no round has ended yet".into() };
        let unsettled: Vec<_> = (0..self.plan.tensors())
            .map(TensorId)
            .filter(|tensor| self.first_unsettled([*tensor].into_iter()).is_some())
            .collect();
        let Some(tensor) = unsettled.first() else { return format!("nothing of round {last} was missing") };
        let behind: Vec<_> = self
            .segment
            .rounds_ended()
            .zip(first.0..)
            .filter(|(ended, _)| *ended <= last.0)
            .map(|(_, rank)| rank.to_string())
            .collect();
        let whom = if behind.is_empty() {
            "the ranks of this machine have all pushed".to_owned()
        } else {
            format!("of this machine rank {} had not ended it", behind.join(", "))
        };
        format!(
            "{} tensors of round {last} were missing, '{}' among them; {whom}",
            unsettled.len(),
            self.plan.name(*tensor)
        )
    }
}

/// Hears the hub.
struct HubEar {
    core: Arc<Core>,
}

impl Ear for HubEar {
    fn hear(&mut self, message: Message) -> Result<(), Fault> {
        let Message::Plan(plan) = message else {
            let text = format!("the hub of this machine sends {}, which is not for ranks", message.kind());
            return Err(Fault::new(FaultCode::Protocol, text));
        };
        self.core.lock().answer = Some(plan.body);
        self.core.wake();
        Ok(())
    }

    fn ended(&mut self, end: End) {
        let rank = self.core.options.first;
        let lost = |why: String| {
            let state = self.core.lock();
            let missing = state.session.as_ref().map(|session| session.missing(rank));
            let missing = missing.unwrap_or_else(|| "no plan was agreed on".into());
            ExchangeError::RankLost { rank, why: format!("{why}; it exchanges for this machine"), missing }
        };
        let why = match end {
            End::Fault(fault) => fault::heard(fault),
            End::Bye(reason) => lost(format!("it left: {reason}")),
            End::Broken(why) => lost(why.to_string()),
            End::Silent(time) => lost(format!("it was silent for {time}")),
        };
        self.core.fail(why);
    }
}
