// SPDX-License-Identifier: Apache-2.0
//! One job on one server: who is there, and where each of them stands.
//!
//! A rank has two connections. Its control connection brings plans, ends of rounds and signs of life (`ear`); its data
//! connection is read by a thread of its own (`reading`). Once all ranks are here they agree on what they exchange
//! (`plan`). When a connection breaks, the rank may come again for a while (`away`); then it is lost, and with it the job
//! (`loss`): every other rank is told which. Unless the job is to go on with those that are left: `survive`. A job whose
//! server was lost begins here with what its ranks keep: `resume`. Where nothing moves, ranks hear whom they wait for:
//! `waits`.
//!
//! Refuses to guess: a job whose ranks do not agree ends with the difference.

mod away;
mod ear;
mod loss;
mod plan;
mod reading;
mod resume;
mod seat;
mod survive;
mod waits;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use foresee_grad_queue::{Members, Round, RoundAction, ServerId};
use foresee_units::{Bytes, Rank};
use foresee_wire::{Connection, Fault, FaultCode, Hello, Message, Resume, Role, RoundDone, Used, WireError};

use ear::RankEar;
use seat::Seat;
use survive::Decision;
use waits::Look;
pub(super) use waits::Wanted;

use super::Hall;
use super::session::{Session, Told, Way, lock};
use crate::control::Control;

/// What a rank hears that comes while its job ends for another reason.
const ENDING: &str = "the job is just ending here; come again";

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
    /// Whether its plan came from another server, so that ranks do not tell again of all rounds that they have ended.
    resumed: bool,
    /// Plans agreed on, and memberships, so far.
    generation: u32,
    /// Who is left, where anybody was lost.
    members: Option<Members>,
    /// Who that will be under this plan, where this server decides it.
    decision: Option<Decision>,
    /// Of the ranks that left in peace the one that has the smallest part in rounds, why it left, and the first round that
    /// it has no part in.
    left: Option<(Rank, String, Round)>,
    /// The first round that nobody has ended.
    front: Round,
    /// What ranks waited for when it was last looked at.
    look: Option<Look>,
    seen: bool,
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

    /// Ranks that are connected, or may come again.
    pub(super) fn ranks(&self) -> u32 {
        u32::try_from(lock(&self.inner).ranks.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn parked_peak(&self) -> Bytes {
        lock(&self.inner).session.as_ref().map_or(Bytes::ZERO, |session| session.parked_peak())
    }

    /// Gives a connection that has not come yet its place, or says why it has none.
    pub(super) fn expects(self: &Arc<Self>, hello: &Hello) -> Result<(), Fault> {
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
        if hello.target != u32::from(self.server.0) {
            // Each order would be a job of its own here, whose ranks wait for the others for ever.
            let text = format!(
                "rank {rank} of job '{name}' has this server as number {} of its list, and others as number {}; pass the same \
                 servers in the same order on all, each once",
                hello.target, self.server.0
            );
            return Err(Fault::new(FaultCode::Plan, text));
        }
        let mut inner = lock(&self.inner);
        if self.over.load(Ordering::Relaxed) {
            return Err(Fault::new(FaultCode::Busy, ENDING));
        }
        let here = inner.ranks.contains_key(&Rank(rank));
        let lost = inner.members.as_ref().is_some_and(|members| !members.contains(Rank(rank)))
            || self.survives && inner.session.is_some() && !here;
        if lost {
            let text =
                format!("rank {rank} of job '{name}' was taken for lost, and the others go on without it");
            return Err(Fault { rank: Some(rank), ..Fault::new(FaultCode::Lost, text) });
        }
        if inner.session.is_none() {
            // Nothing was agreed on, so nobody counts on what a process said that is no more.
            inner.forget_other(Rank(rank), hello.session);
        }
        let session = inner.session.clone();
        let seat = inner.ranks.entry(Rank(rank)).or_insert_with(|| Seat::new(hello));
        if self.welcomes_again(Rank(rank), seat, hello) {
            // It says again what it proposes: agreed on before that, the plan would be proposed anew behind its own answer.
            inner.proposals.remove(&Rank(rank));
            drop(inner);
            if let Some(session) = session {
                // A reader of what it had may wait for room.
                session.wake();
            }
            return Ok(());
        }
        let taken = match hello.role {
            Role::Control => seat.control.is_some(),
            _ => seat.way.is_some(),
        };
        if seat.process != hello.session && seat.away.is_some() {
            // The process that was away is no more, and this one takes its place once all have heard so.
            drop(inner);
            self.lose(Rank(rank), "its connections broke, and another process of it has come");
            return Err(Fault::new(FaultCode::Busy, ENDING));
        }
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
        if inner.ranks.get(&rank).is_some_and(|seat| seat.control.is_none() && seat.away.is_none()) {
            inner.ranks.remove(&rank);
        }
    }

    /// A rank's control connection.
    pub(super) fn control(self: &Arc<Self>, connection: Connection) {
        let rank = Rank(connection.hello.rank);
        let epoch = lock(&self.inner).ranks.get(&rank).map_or(0, |seat| seat.epoch);
        let ear = RankEar { job: Arc::clone(self), rank, epoch };
        let name = format!("{}-{}", self.name, rank.0);
        match Control::start(&name, connection, self.hall.options.timeouts, ear) {
            Ok(control) => {
                match lock(&self.inner).ranks.get_mut(&rank) {
                    Some(seat) => seat.control = Some(control),
                    // The job has ended since the rank was let in.
                    None => control.close(Message::Error(Fault::new(FaultCode::Closing, ENDING))),
                }
                self.settle(rank);
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
            let epoch = lock(&self.inner).ranks.get(&rank).map_or(0, |seat| seat.epoch);
            let broken =
                Box::new(move |why: WireError| job.suspect(rank, epoch, &why.to_string(), why.is_silence()));
            let timeouts = self.hall.options.timeouts;
            let way =
                Way { rank, connection: interface.open(connection.sender, timeouts, broken), interface };
            let gone = if let Some(seat) = lock(&self.inner).ranks.get_mut(&rank) {
                seat.way = Some(way);
                seat.data = Some(link);
                Arc::clone(&seat.gone)
            } else {
                way.interface.close(way.connection);
                link.shutdown();
                return Ok(());
            };
            self.settle(rank);
            let (job, receiver) = (Arc::clone(self), connection.receiver);
            thread::Builder::new()
                .name(format!("foresee-sum-{}-{}", self.name, rank.0))
                .spawn(move || job.read(rank, epoch, receiver, &gone))
                .map_err(|why| WireError::System { doing: "starting a thread", why })?;
            Ok(())
        });
        if let Err(why) = result {
            self.lose(rank, &why.to_string());
        }
    }

    /// A connection of a rank has come, perhaps after what travelled on the other one.
    fn settle(self: &Arc<Self>, rank: Rank) {
        if let Err(fault) = self.rejoin(rank).and_then(|()| self.restore()).and_then(|()| self.agree()) {
            self.end(&fault);
        }
    }

    /// The plan and the membership under which a rank speaks over these connections; `None` if it has come again over others.
    /// Found at one moment: what it says of one plan must not count for the next, which it may have agreed to since.
    fn spoken_under(&self, rank: Rank, epoch: u32) -> Result<Option<(Arc<Session>, u32)>, Fault> {
        let inner = lock(&self.inner);
        let Some(seat) = inner.ranks.get(&rank).filter(|seat| seat.epoch == epoch) else { return Ok(None) };
        let Some(session) = &inner.session else {
            return Err(Fault::new(
                FaultCode::Protocol,
                format!("rank {rank} speaks of rounds before a plan"),
            ));
        };
        Ok(Some((Arc::clone(session), seat.generation)))
    }

    /// A rank has ended a round, as it says over these connections.
    fn advance(&self, rank: Rank, epoch: u32, round: Round) {
        let mut inner = lock(&self.inner);
        let Some(seat) = inner.ranks.get_mut(&rank).filter(|seat| seat.epoch == epoch) else { return };
        seat.next = seat.next.max(round.next());
        inner.front = inner.front.max(round.next());
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
