// SPDX-License-Identifier: Apache-2.0
//! One job on one server: who is there, what they agree on, and its end.
//!
//! A rank has two connections. Its control connection brings plans, ends of rounds and signs of life; its data
//! connection is read by a thread of its own. When one of them breaks, the rank is lost, and with it the job: every
//! other rank is told which. Unless the job is to go on with those that are left: `survive`. A job whose server was lost
//! begins here with what its ranks keep: `resume`.
//!
//! Refuses to guess: a job whose ranks do not agree ends with the difference.

mod ear;
mod resume;
mod survive;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use foresee_grad_queue::{
    Members, PACKET_BYTES_MAX, Plan, QueueError, Round, RoundAction, Rounds, ServerId, Shard,
};
use foresee_units::{Bytes, Rank};
use foresee_wire::{
    Ack, Connection, Fault, FaultCode, FrameReceiver, Header, Hello, Kind, Link, Message, Resume, Role,
    RoundDone, Used, Wait, WireError,
};

use ear::RankEar;
use survive::Decision;

use super::Hall;
use super::session::{Judged, Session, Told, Way, lock};
use crate::control::Control;
use crate::interface::Interface;
use crate::proposals;

/// What a rank hears that comes while its job ends for another reason.
const ENDING: &str = "the job is just ending here; come again";

/// The most packets of a plan at one server. Each costs up to 256 bytes before its first byte has come, and a tensor that
/// is told in a few bytes may have 2^32: 4 GiB are enough for 256 GiB in packets of 16 KiB.
const PACKETS_MAX: u64 = 1 << 24;

/// A job.
#[derive(Debug)]
pub(super) struct Job {
    hall: Arc<Hall>,
    name: String,
    server: ServerId,
    world: u32,
    /// Ranks of each machine that exchange as one.
    local: u32,
    /// Whether it goes on without ranks that are lost.
    survives: bool,
    inner: Mutex<Inner>,
    over: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    ranks: BTreeMap<Rank, Seat>,
    /// What ranks propose, until all have.
    proposals: BTreeMap<Rank, Vec<u8>>,
    /// What ranks know that come from a lost server, until all have come.
    resumes: BTreeMap<Rank, Resume>,
    session: Option<Arc<Session>>,
    /// Plans agreed on, and memberships, so far.
    generation: u32,
    /// Who is left, where anybody was lost.
    members: Option<Members>,
    /// Who that will be under this plan, where this server decides it.
    decision: Option<Decision>,
    /// The rank that left first in peace, why, and the first round that it has no part in.
    left: Option<(Rank, String, Round)>,
    /// The first round that nobody has ended.
    front: Round,
    seen: bool,
}

/// A rank's place.
#[derive(Debug)]
struct Seat {
    /// Which process of the rank.
    process: u64,
    control: Option<Control>,
    way: Option<Way>,
    data: Option<Link>,
    /// The first round of the plan that it has not ended.
    next: Round,
    /// The membership under which it speaks.
    generation: u32,
}

impl Job {
    /// The job that its first rank speaks of.
    pub(super) fn new(hall: Arc<Hall>, server: ServerId, hello: &Hello) -> Self {
        let Hello { job, world, local, survives, .. } = hello;
        let (inner, over) = (Mutex::default(), AtomicBool::new(false));
        let (name, world, local, survives) = (job.clone(), *world, *local, *survives);
        Self { hall, name, server, world, local, survives, inner, over }
    }

    /// Whether it has ended, or all its ranks have gone.
    pub(super) fn is_over(&self) -> bool {
        let inner = lock(&self.inner);
        self.over.load(Ordering::Relaxed) || inner.seen && inner.ranks.is_empty()
    }

    /// Ranks that are connected.
    pub(super) fn ranks(&self) -> u32 {
        u32::try_from(lock(&self.inner).ranks.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn parked_peak(&self) -> Bytes {
        lock(&self.inner).session.as_ref().map_or(Bytes::ZERO, |session| session.parked_peak())
    }

    /// Gives a connection that has not come yet its place, or says why it has none.
    pub(super) fn expects(&self, hello: &Hello) -> Result<(), Fault> {
        let (rank, name) = (hello.rank, &self.name);
        if hello.world != self.world {
            let text = format!(
                "rank {rank} of job '{name}' says that the job has {} ranks, and others say {}; start all ranks with one world size",
                hello.world, self.world
            );
            return Err(Fault::new(FaultCode::Plan, text));
        }
        if hello.local != self.local {
            let text = format!(
                "rank {rank} of job '{name}' exchanges for {} ranks of its machine, and others for {}; start equally many ranks \
                 on every machine, in the order of the machines, or pass local_average=False on all",
                hello.local, self.local
            );
            return Err(Fault::new(FaultCode::Plan, text));
        }
        if hello.survives != self.survives {
            let text = format!(
                "rank {rank} of job '{name}' {} when a rank is lost, and others do otherwise; pass the same on_rank_loss on all",
                if hello.survives { "goes on" } else { "ends" }
            );
            return Err(Fault::new(FaultCode::Plan, text));
        }
        let mut inner = lock(&self.inner);
        if self.over.load(Ordering::Relaxed) {
            return Err(Fault::new(FaultCode::Busy, ENDING));
        }
        if inner.members.as_ref().is_some_and(|members| !members.contains(Rank(rank))) {
            let text =
                format!("rank {rank} of job '{name}' was taken for lost, and the others go on without it");
            return Err(Fault { rank: Some(rank), ..Fault::new(FaultCode::Lost, text) });
        }
        let seat = inner.ranks.entry(Rank(rank)).or_insert_with(|| Seat {
            process: hello.session,
            control: None,
            way: None,
            data: None,
            next: Round(0),
            generation: 0,
        });
        let taken = match hello.role {
            Role::Control => seat.control.is_some(),
            _ => seat.way.is_some(),
        };
        if taken || seat.process != hello.session {
            let text = format!(
                "rank {rank} of job '{name}' is here already, in another process; give each job a name of its own, and each \
                 rank its number"
            );
            return Err(Fault::new(FaultCode::Busy, text));
        }
        inner.seen = true;
        Ok(())
    }

    /// A connection that was expected did not come. A rank that is here already has not left by that.
    pub(super) fn forget(&self, hello: &Hello) {
        let (rank, mut inner) = (Rank(hello.rank), lock(&self.inner));
        if inner.ranks.get(&rank).is_some_and(|seat| seat.control.is_none()) {
            inner.ranks.remove(&rank);
        }
    }

    /// A rank's control connection.
    pub(super) fn control(self: &Arc<Self>, connection: Connection) {
        let rank = Rank(connection.hello.rank);
        let ear = RankEar { job: Arc::clone(self), rank };
        let name = format!("{}-{}", self.name, rank.0);
        match Control::start(&name, connection, self.hall.options.timeouts, ear) {
            Ok(control) => {
                match lock(&self.inner).ranks.get_mut(&rank) {
                    Some(seat) => seat.control = Some(control),
                    // The job has ended since the rank was let in.
                    None => control.close(Message::Error(Fault::new(FaultCode::Closing, ENDING))),
                }
                self.settle();
            }
            Err(why) => self.lose(rank, &why.to_string()),
        }
    }

    /// A rank's data connection.
    pub(super) fn data(self: &Arc<Self>, connection: Connection) {
        let rank = Rank(connection.hello.rank);
        let link = connection.link();
        let result = self.hall.interfaces.of(&link).and_then(|interface| {
            let job = Arc::clone(self);
            let broken = Box::new(move |why: WireError| job.suspect(rank, &why.to_string()));
            let way = Way { rank, connection: interface.open(connection.sender, broken), interface };
            if let Some(seat) = lock(&self.inner).ranks.get_mut(&rank) {
                seat.way = Some(way);
                seat.data = Some(link);
            } else {
                way.interface.close(way.connection);
                link.shutdown();
                return Ok(());
            }
            self.settle();
            let (job, receiver) = (Arc::clone(self), connection.receiver);
            thread::Builder::new()
                .name(format!("foresee-sum-{}-{}", self.name, rank.0))
                .spawn(move || job.read(rank, receiver))
                .map_err(|why| WireError::System { doing: "starting a thread", why })?;
            Ok(())
        });
        if let Err(why) = result {
            self.lose(rank, &why.to_string());
        }
    }

    /// A connection has come, perhaps after the proposals that travelled on the other one.
    fn settle(&self) {
        if let Err(fault) = self.restore().and_then(|()| self.agree()) {
            self.end(&fault);
        }
    }

    /// Ends the job: every rank is told why.
    pub(super) fn end(&self, fault: &Fault) {
        self.over.store(true, Ordering::Relaxed);
        let (ranks, session) = {
            let mut inner = lock(&self.inner);
            (std::mem::take(&mut inner.ranks), inner.session.take())
        };
        for seat in ranks.values() {
            if let Some(control) = &seat.control {
                control.close(Message::Error(fault.clone()));
            }
        }
        for seat in ranks.into_values() {
            if let Some(control) = &seat.control {
                control.drain(self.hall.options.timeouts.handshake.into());
            }
            seat.close();
        }
        if let Some(session) = session {
            session.wake();
        }
    }

    /// A data connection broke. The control connection of the same rank mostly knows better why, a moment later: it is
    /// heard first.
    fn suspect(self: &Arc<Self>, rank: Rank, why: &str) {
        let (job, pause) = (Arc::clone(self), self.hall.options.timeouts.heartbeat);
        let told = why.to_owned();
        let later = move || {
            thread::sleep(pause.into());
            job.lose(rank, &told);
        };
        if thread::Builder::new().name("foresee-suspect".into()).spawn(later).is_err() {
            self.lose(rank, why);
        }
    }

    /// A rank broke off.
    fn lose(&self, rank: Rank, why: &str) {
        let seat = {
            let mut inner = lock(&self.inner);
            if self.over.load(Ordering::Relaxed) || !inner.ranks.contains_key(&rank) {
                return;
            }
            let seat = inner.ranks.remove(&rank);
            let whole = seat.as_ref().is_some_and(|seat| seat.control.is_some() && seat.way.is_some());
            if self.go_on_without(&mut inner, rank, why) {
                if inner.ranks.is_empty() {
                    self.over.store(true, Ordering::Relaxed);
                }
            } else if inner.session.is_some() || whole {
                // From here on nobody takes the place of the lost rank, which may be about to come again.
                self.over.store(true, Ordering::Relaxed);
            } else {
                // One that never came with both connections is as if it had not begun to: it may try again.
                inner.proposals.remove(&rank);
                inner.resumes.remove(&rank);
            }
            seat
        };
        if let Some(seat) = seat {
            if let Some(control) = seat.control.as_ref().filter(|_| self.survives) {
                let text =
                    format!("rank {rank} of job '{}' is taken for lost: {why}; the others go on", self.name);
                let fault = Fault { rank: Some(rank.0), ..Fault::new(FaultCode::Lost, text) };
                control.close(Message::Error(fault));
            }
            seat.close();
        }
        if !self.over.load(Ordering::Relaxed) {
            return;
        }
        let text = format!("rank {rank} of job '{}' is lost: {why}; look at its output", self.name);
        let mut fault = Fault::new(FaultCode::Lost, text);
        fault.rank = Some(rank.0);
        self.end(&fault);
    }

    /// A rank said that it goes. What it has contributed stays; only a round that it has no part in is a fault.
    fn leave(&self, rank: Rank, reason: String) {
        let (seat, last) = {
            let mut inner = lock(&self.inner);
            let seat = inner.ranks.remove(&rank);
            inner.proposals.remove(&rank);
            inner.resumes.remove(&rank);
            if let Some(seat) = &seat {
                inner.left.get_or_insert((rank, reason, seat.next));
                // What it knows is waited for.
                if inner.decision.as_ref().is_some_and(Decision::is_open) {
                    self.go_on_without(&mut inner, rank, "it has left meanwhile");
                }
            }
            (seat, inner.ranks.is_empty().then(|| inner.session.take()).flatten())
        };
        if let Some(seat) = seat {
            seat.close();
        }
        if let Some(session) = last {
            // A reader may hold what it has no room for, until ranks push that never will.
            self.over.store(true, Ordering::Relaxed);
            session.wake();
        }
        self.check_left();
    }

    /// Ends the job if somebody has begun what a rank that left has no part in.
    fn check_left(&self) {
        let (rank, reason) = {
            let mut inner = lock(&self.inner);
            let Some((rank, reason, first)) = inner.left.clone() else { return };
            if inner.front <= first && inner.proposals.is_empty() && inner.resumes.is_empty() {
                return;
            }
            if self.go_on_without(&mut inner, rank, &format!("it has left ({reason})")) {
                return;
            }
            (rank, reason)
        };
        let text = format!(
            "rank {rank} of job '{}' has left ({reason}) while others go on; every rank must take the same number of steps",
            self.name
        );
        let mut fault = Fault::new(FaultCode::Lost, text);
        fault.rank = Some(rank.0);
        self.end(&fault);
    }

    /// The membership under which a rank speaks.
    fn generation_of(&self, rank: Rank) -> u32 {
        lock(&self.inner).ranks.get(&rank).map_or(0, |seat| seat.generation)
    }

    /// A rank has ended a round.
    fn advance(&self, rank: Rank, round: Round) {
        let mut inner = lock(&self.inner);
        if let Some(seat) = inner.ranks.get_mut(&rank) {
            seat.next = seat.next.max(round.next());
        }
        inner.front = inner.front.max(round.next());
    }

    /// Reads what a rank pushes, until its connection ends.
    fn read(self: &Arc<Self>, rank: Rank, mut receiver: FrameReceiver) {
        if let Err(why) = self.sum(rank, &mut receiver) {
            let mut fault = Fault::new(FaultCode::Protocol, why);
            fault.rank = Some(rank.0);
            self.end(&fault);
        }
    }

    /// # Errors
    /// In words: what the plan does not allow, or what is no frame.
    fn sum(self: &Arc<Self>, rank: Rank, receiver: &mut FrameReceiver) -> Result<(), String> {
        let mut room = Vec::new();
        let words = |why: QueueError| why.to_string();
        while let Some(Some(header)) = understood(receiver.header(Wait::Forever))? {
            let session = lock(&self.inner).session.clone();
            let Some(session) = session.filter(|_| header.kind == Kind::Push) else {
                self.lose(rank, &format!("it sends {} before a plan was agreed on", header.kind));
                return Ok(());
            };
            let alive = || !self.over.load(Ordering::Relaxed);
            match session.judge(rank, &header, alive).map_err(words)? {
                Judged::Read(admission) => {
                    room.resize(admission.bytes(), 0);
                    if understood(receiver.payload(&mut room, Wait::Forever))?.is_none() {
                        return Ok(());
                    }
                    session.take(rank, &header, admission, &room).map_err(words)?;
                    if self.hall.options.policy.push().credit.is_some() {
                        self.acknowledge(rank, &header);
                    }
                }
                Judged::Discard => {
                    if understood(receiver.discard(Wait::Forever))?.is_none() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Tells a rank that a partition has come: its credit is free again. Only schedules with a credit wait for it.
    fn acknowledge(&self, rank: Rank, header: &Header) {
        let control = lock(&self.inner).ranks.get(&rank).and_then(|seat| seat.control.clone());
        if let Some(control) = control {
            let round = u64::from(header.round);
            control.tell(Message::Ack(Ack { round, tensor: header.tensor, partition: header.packet }));
        }
    }

    /// A rank proposes a plan, or confirms the one that the first server found.
    fn propose(&self, rank: Rank, body: Vec<u8>) -> Result<(), Fault> {
        lock(&self.inner).proposals.insert(rank, body);
        self.agree()
    }

    /// Once every rank has proposed, and both connections of each are here, the plan holds.
    fn agree(&self) -> Result<(), Fault> {
        let mut inner = lock(&self.inner);
        if inner.proposals.len() < self.expected(&inner) || !self.is_full(&inner) {
            return Ok(());
        }
        let proposals = std::mem::take(&mut inner.proposals);
        let plan = proposals::common(&proposals)?;
        let refused = |why: &dyn std::fmt::Display| Fault::new(FaultCode::Plan, why.to_string());
        let packets = Shard::new(&plan, self.server).packets();
        if packets > PACKETS_MAX {
            return Err(refused(&format_args!(
                "server {} would sum {packets} packets in every round, and {PACKETS_MAX} are possible; take larger packets, or \
                 more servers",
                self.server
            )));
        }
        let generation = inner.generation + 1;
        self.install(&mut inner, Arc::new(plan), generation, Round(0)).map_err(|why| refused(&why))?;
        let body = proposals.into_values().next().expect("a world has ranks");
        let controls: Vec<_> = inner.ranks.values().filter_map(|seat| seat.control.clone()).collect();
        drop(inner);
        for control in controls {
            control.tell(Message::Plan(foresee_wire::Plan { generation, body: body.clone() }));
        }
        Ok(())
    }

    /// Whether both connections of every rank are here.
    fn is_full(&self, inner: &Inner) -> bool {
        let here = inner.ranks.values().filter(|seat| seat.control.is_some() && seat.way.is_some());
        here.count() == self.expected(inner)
    }

    /// Who exchanges with servers: the first rank of each machine, or those that are left.
    fn every(&self, inner: &Inner) -> Vec<Rank> {
        match &inner.members {
            Some(members) => members.iter().collect(),
            None => (0..self.world).step_by(self.local as usize).map(Rank).collect(),
        }
    }

    /// How many that are.
    fn expected(&self, inner: &Inner) -> usize {
        let count = inner.members.as_ref().map_or(self.world / self.local, Members::count);
        count as usize
    }

    /// A plan holds from now on, for rounds from `oldest` on.
    fn install(
        &self,
        inner: &mut Inner,
        plan: Arc<Plan>,
        generation: u32,
        oldest: Round,
    ) -> Result<(), QueueError> {
        let members = Members::of(generation, self.world, self.every(inner))?;
        let ways: Vec<_> = inner.ranks.values().filter_map(|seat| seat.way.clone()).collect();
        let flow = Interface::flow_of(&self.name);
        let packet = NonZeroU32::new(plan.config().packet_bytes)
            .map_or(PACKET_BYTES_MAX, |packet| packet.min(PACKET_BYTES_MAX));
        for way in &ways {
            way.interface.packet(packet);
        }
        let rounds = Rounds::new(members.clone(), plan.tensors(), oldest);
        let session = Session::new(plan, self.server, members, rounds, ways, flow, &self.hall);
        inner.session = Some(Arc::new(session));
        inner.generation = generation;
        inner.resumes.clear();
        inner.decision = None;
        inner.front = oldest;
        inner.ranks.values_mut().for_each(|seat| (seat.next, seat.generation) = (oldest, generation));
        Ok(())
    }

    /// Tells every rank what was found, unless the membership is another one since.
    fn act(&self, told: Told) {
        if !told.actions.is_empty() {
            lock(&self.inner).announce(told);
        }
    }
}

impl Inner {
    /// Tells every rank what was found, unless the membership is another one since: whoever changed it has told what still
    /// holds, and behind that nothing may follow that was found before.
    fn announce(&self, told: Told) {
        if self.session.as_ref().is_none_or(|session| session.members().generation() != told.generation) {
            return;
        }
        for action in told.actions {
            self.tell(&match action {
                RoundAction::Used(round, used) => {
                    Message::Used(Used { round: round.0, used: used.to_bytes() })
                }
                RoundAction::Done(round) => Message::RoundDone(RoundDone { round: round.0 }),
            });
        }
    }

    /// Tells every rank that is here.
    fn tell(&self, message: &Message) {
        for control in self.ranks.values().filter_map(|seat| seat.control.as_ref()) {
            control.tell(message.clone());
        }
    }
}

/// What was read; `None` at the connection's end, of which the control connection is told more. What is no frame is seen
/// here alone: nothing behind it can be read, and whoever sent it would wait for ever.
fn understood<T>(read: Result<T, WireError>) -> Result<Option<T>, String> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(why @ WireError::Malformed { .. }) => Err(why.to_string()),
        Err(_) => Ok(None),
    }
}

impl Seat {
    fn close(&self) {
        if let Some(way) = &self.way {
            way.interface.close(way.connection);
        }
        if let Some(link) = &self.data {
            link.shutdown();
        }
        if let Some(control) = &self.control {
            control.link().shutdown();
        }
    }
}
