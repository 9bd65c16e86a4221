// SPDX-License-Identifier: Apache-2.0
//! Driver of a job: connections, slots and threads around the machine that decides.
//!
//! [`ServerJob`] decides behind one lock; what it asks for is done in its order, under the same lock where it never waits:
//! messages go to outboxes, connections are closed, slots change hands. What takes time, as a search through all slots,
//! is done behind the lock, and its result reported. A rank's control connection is read by `reader`, its data
//! connection by `sums`.

mod reader;
mod sums;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use foresee_grad_queue::{PACKET_BYTES_MAX, ServerId};
use foresee_grad_session::{
    EndTicket, Installation, JobAction, JobSettings, OwedTicket, Peer, RankHello, Refusal, RefusalCode, Role,
    ServerJob,
};
use foresee_units::{Bytes, Nanos, Rank};
use foresee_wire::{CAN_RECONNECT, Connection, Hello, Link, Message, WireError};

use super::Hall;
use super::session::{Session, Way, lock};
use crate::control::Control;
use crate::interface::{Interface, Path, Side};
use crate::translate;
use reader::ControlReader;

/// Two looks at the waits of a job are at least so far apart.
const LOOK_MIN: Nanos = Nanos::from_millis(5);

/// A job.
#[derive(Debug)]
pub(super) struct Job {
    hall: Arc<Hall>,
    name: String,
    server: ServerId,
    state: Mutex<JobState>,
}

/// What is behind the lock.
#[derive(Debug)]
struct JobState {
    machine: ServerJob,
    connections: BTreeMap<Peer, RankConnections>,
    session: Option<Arc<Session>>,
    /// Control connections that end once their last message has left.
    closing: Vec<Control>,
    /// When the machine has something to do, as the timer knows it.
    timeout: Option<Nanos>,
}

/// Both connections of a rank.
#[derive(Debug, Default)]
struct RankConnections {
    control: Option<Control>,
    way: Option<Way>,
    data: Option<Link>,
    /// Set once the pair is of no more use, so that the reader of it ends its wait for memory.
    gone: Arc<AtomicBool>,
}

/// What is done behind the lock.
enum Work {
    Skip(EndTicket, Arc<Session>),
    FindOwed(OwedTicket, Arc<Session>),
}

impl Job {
    /// The job of a rank that is the first to connect.
    pub(super) fn new(hall: Arc<Hall>, server: ServerId, hello: &Hello) -> Self {
        let timeouts = hall.options.timeouts;
        let settings = JobSettings {
            name: hello.job.clone(),
            server,
            world: hello.world,
            local: hello.node_ranks,
            survives: hello.survives,
            heartbeat: timeouts.heartbeat,
            reconnect: timeouts.reconnect,
            look: Nanos::new(hall.options.say.get() / 2).max(LOOK_MIN),
        };
        let state = Mutex::new(JobState {
            machine: ServerJob::new(settings, hall.now()),
            connections: BTreeMap::new(),
            session: None,
            closing: Vec::new(),
            timeout: None,
        });
        Self { hall, name: hello.job.clone(), server, state }
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.state).machine.is_over()
    }

    /// Ranks that are connected, or may reconnect.
    pub(super) fn ranks(&self) -> u32 {
        lock(&self.state).machine.ranks()
    }

    pub(super) fn parked_peak(&self) -> Bytes {
        lock(&self.state).session.as_ref().map_or(Bytes::ZERO, |session| session.parked_peak())
    }

    /// When the machine has something to do.
    pub(super) fn timeout(&self) -> Option<Nanos> {
        lock(&self.state).timeout
    }

    /// Time has passed.
    pub(super) fn handle_timeout(&self) {
        self.report(ServerJob::handle_timeout);
    }

    /// Gives a connection that has not come yet its place, or refuses it.
    pub(super) fn admit(&self, hello: &Hello) -> Result<Peer, Refusal> {
        let hello = RankHello {
            rank: Rank(hello.rank),
            world: hello.world,
            local: hello.node_ranks,
            target: hello.target,
            survives: hello.survives,
            process: hello.session,
            reconnects: hello.capabilities & CAN_RECONNECT > 0,
            role: if hello.role == foresee_wire::Role::Control { Role::Control } else { Role::Data },
        };
        self.report(|machine, now| machine.admit(&hello, now))
    }

    /// A connection that was admitted did not come.
    pub(super) fn handle_not_connected(&self, peer: Peer) {
        self.report(|machine, _| machine.handle_not_connected(peer));
    }

    /// Ends the job: every rank is told the reason, and `time` is theirs to hear it.
    pub(super) fn end(&self, reason: &Refusal, time: Duration) {
        self.report(|machine, _| machine.end(reason));
        let closing = std::mem::take(&mut lock(&self.state).closing);
        for control in closing {
            control.drain(time);
            control.link().shutdown();
        }
    }

    /// A rank's control connection.
    pub(super) fn control(self: &Arc<Self>, peer: Peer, connection: Connection) {
        let reader = ControlReader { job: Arc::clone(self), peer };
        let name = format!("{}-{}", self.name, peer.rank);
        // What it reads is handled once the machine knows of the connection.
        let mut state = lock(&self.state);
        match Control::start(&name, connection, self.hall.options.timeouts, reader) {
            Ok(control) => {
                state.connections.entry(peer).or_default().control = Some(control);
                self.connected(state, peer, Role::Control);
            }
            Err(why) => {
                state.machine.handle_lost(peer, &why.to_string());
                self.settle(state);
            }
        }
    }

    /// A rank's data connection.
    pub(super) fn data(self: &Arc<Self>, peer: Peer, connection: Connection) {
        let link = connection.link();
        let mut state = lock(&self.state);
        let job = Arc::clone(self);
        let broken = Box::new(move |why: WireError| {
            let (text, silence) = (why.to_string(), why.is_silence());
            job.report(|machine, now| machine.handle_data_closed(peer, &text, silence, now));
        });
        let timeouts = self.hall.options.timeouts;
        let attached = self.hall.interfaces.attach(connection, Side::Listener, timeouts, broken);
        let started = attached.and_then(|Path { interface, connection, receiver }| {
            let connections = state.connections.entry(peer).or_default();
            connections.way = Some(Way { rank: peer.rank, connection, interface });
            connections.data = Some(link);
            let (job, gone) = (Arc::clone(self), Arc::clone(&connections.gone));
            thread::Builder::new()
                .name(format!("foresee-sum-{}-{}", self.name, peer.rank))
                .spawn(move || job.read(peer, receiver, &gone))
                .map_err(|why| WireError::System { doing: "starting a thread", why })
        });
        match started {
            Ok(_) => self.connected(state, peer, Role::Data),
            Err(why) => {
                state.machine.handle_lost(peer, &why.to_string());
                state.close(peer, None);
                self.settle(state);
            }
        }
    }

    /// Reports a connection to the machine; closes it if the job has ended since it was admitted.
    fn connected(&self, mut state: MutexGuard<'_, JobState>, peer: Peer, role: Role) {
        if let Err(refusal) = state.machine.handle_connected(peer, role) {
            state.close(peer, Some(&refusal));
        }
        self.settle(state);
    }

    /// Reports a fact to the machine, and does what it asks for.
    fn report<R>(&self, fact: impl FnOnce(&mut ServerJob, Nanos) -> R) -> R {
        let now = self.hall.now();
        let mut state = lock(&self.state);
        let result = fact(&mut state.machine, now);
        self.settle(state);
        result
    }

    /// Does what the machine asks for: first what never waits, in its order, then the rest without the lock.
    fn settle(&self, mut state: MutexGuard<'_, JobState>) {
        let mut works = Vec::new();
        while let Some(action) = state.machine.poll_action() {
            works.extend(self.perform(&mut state, action));
        }
        let timeout = state.machine.poll_timeout();
        let before = std::mem::replace(&mut state.timeout, timeout);
        drop(state);
        if timeout.is_some_and(|timeout| before.is_none_or(|before| timeout < before)) {
            self.hall.timer.wake();
        }
        for work in works {
            self.work(work);
        }
    }

    fn perform(&self, state: &mut JobState, action: JobAction) -> Option<Work> {
        match action {
            JobAction::Send { peer, message } => {
                if let Some(control) = state.control(peer) {
                    control.tell(translate::server_frame(message));
                }
            }
            JobAction::Close { peer, reason } => state.close(peer, reason.as_ref()),
            JobAction::Interrupt(peer) => {
                if let Some(control) = state.control(peer) {
                    control.link().shutdown();
                }
            }
            JobAction::Install(installation) => self.install(state, installation),
            JobAction::Route(peer) => {
                let way = state.connections.get(&peer).and_then(|connections| connections.way.as_ref());
                if let (Some(session), Some(way)) = (&state.session, way) {
                    session.route(way);
                }
            }
            JobAction::Adopt(members) => {
                if let Some(session) = &state.session {
                    session.adopt(members);
                }
            }
            JobAction::Advance { oldest, forget } => {
                if let Some(session) = &state.session {
                    session.advance(oldest, forget);
                }
            }
            JobAction::Skip(ticket) => return Some(Work::Skip(ticket, Arc::clone(state.session.as_ref()?))),
            JobAction::FindOwed(ticket) => {
                return Some(Work::FindOwed(ticket, Arc::clone(state.session.as_ref()?)));
            }
            JobAction::Uninstall => {
                if let Some(session) = state.session.take() {
                    session.wake();
                }
            }
        }
        None
    }

    fn work(&self, work: Work) {
        match work {
            Work::Skip(ticket, session) => {
                let skipped = session.skip(&ticket).map_err(|why| why.to_string());
                self.report(|machine, _| match skipped {
                    Ok(()) => machine.handle_skipped(&ticket),
                    Err(why) => machine.handle_violation(ticket.peer(), &why),
                });
            }
            Work::FindOwed(ticket, session) => {
                let owed = session.owed(&ticket);
                let text = owed.first().map(|_| owed.describe(session.plan()).to_string());
                self.report(|machine, _| machine.handle_owed(&ticket, text.as_deref()));
            }
        }
    }

    fn install(&self, state: &mut JobState, installation: Installation) {
        let ways: Vec<Way> = state.connections.values().filter_map(|own| own.way.clone()).collect();
        let packet = NonZeroU32::new(installation.plan.config().packet_bytes)
            .map_or(PACKET_BYTES_MAX, |packet| packet.min(PACKET_BYTES_MAX));
        for way in &ways {
            way.interface.packet(packet);
        }
        let flow = Interface::flow_of(&self.name);
        let session = Session::new(installation, self.server, ways, flow, &self.hall);
        if let Some(before) = state.session.replace(Arc::new(session)) {
            before.wake();
        }
    }
}

impl JobState {
    fn control(&self, peer: Peer) -> Option<&Control> {
        self.connections.get(&peer)?.control.as_ref()
    }

    /// Closes both connections of a pair: at once, or when the rank was told the reason.
    fn close(&mut self, peer: Peer, reason: Option<&Refusal>) {
        let Some(connections) = self.connections.remove(&peer) else { return };
        connections.gone.store(true, Ordering::Relaxed);
        if let Some(way) = &connections.way {
            way.interface.close(way.connection);
        }
        if let Some(link) = &connections.data {
            link.shutdown();
        }
        match (connections.control, reason) {
            (Some(control), Some(reason)) => {
                control.close(Message::Error(translate::fault(reason)));
                self.closing.retain(|control| !control.is_dead());
                self.closing.push(control);
            }
            (Some(control), None) => control.link().shutdown(),
            (None, _) => {}
        }
        if let Some(session) = &self.session {
            // A reader of it may wait for memory.
            session.wake();
        }
    }
}

/// The reason that ranks are told when their server closes.
pub(super) fn stopped() -> Refusal {
    Refusal::new(RefusalCode::Closing, "the server is stopped")
}
