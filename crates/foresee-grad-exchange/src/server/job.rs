// SPDX-License-Identifier: Apache-2.0
//! Driver of a job: connections, slots and threads around the session.
//!
//! [`ServerJob`] decides behind one lock. Its actions are performed in order: under the same lock if they never wait, as
//! messages and closed connections; after it is released if they take time, as a search through all slots. `handler`
//! receives a rank's messages, `sums` its pushes.

mod handler;
mod sums;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use foresee_grad_queue::{PACKET_BYTES_MAX, ServerId};
use foresee_grad_session::{
    EndTicket, Installation, JobAction, JobSettings, MissingTicket, Peer, RankHello, Refusal, RefusalCode,
    Role, ServerJob,
};
use foresee_units::{Bytes, Nanos, Rank};
use foresee_wire::{CAN_RECONNECT, Connection, Hello, Link, Message, WireError};

use super::ServerContext;
use super::slot_table::{RankRoute, SlotTable};
use crate::control::{Control, WeakControl};
use crate::interface::{DataPath, Interface, Side};
use crate::sync::{lock, spawn};
use crate::translate;
use handler::RankHandler;

/// The shortest interval between two searches for the ranks that a job waits for.
const WAIT_CHECK_MIN: Nanos = Nanos::from_millis(5);

#[derive(Debug)]
pub(super) struct Job {
    context: Arc<ServerContext>,
    name: String,
    server: ServerId,
    state: Mutex<JobState>,
}

#[derive(Debug)]
struct JobState {
    session: ServerJob,
    connections: BTreeMap<Peer, RankConnections>,
    slots: Option<Arc<SlotTable>>,
    /// Control connections that end after their last message.
    closing: Vec<WeakControl>,
    /// The session's timeout that the timer waits for.
    timeout: Option<Nanos>,
}

/// Both connections of a rank.
#[derive(Debug, Default)]
struct RankConnections {
    control: Option<Control>,
    route: Option<RankRoute>,
    data: Option<Link>,
    /// Set when the pair is closed, so that its reader ends its wait for memory.
    is_gone: Arc<AtomicBool>,
}

/// An action that is performed without the lock.
enum SlowAction {
    Skip(EndTicket, Arc<SlotTable>),
    FindMissing(MissingTicket, Arc<SlotTable>),
}

impl Job {
    /// The job of the rank that connects first.
    pub(super) fn new(context: Arc<ServerContext>, server: ServerId, hello: &Hello) -> Self {
        let timeouts = context.options.timeouts;
        let settings = JobSettings {
            name: hello.job.clone(),
            server,
            world: hello.world,
            node_ranks: hello.node_ranks,
            continues_after_loss: hello.survives,
            heartbeat: timeouts.heartbeat,
            grace_period: timeouts.reconnect,
            wait_check_interval: Nanos::new(context.options.wait_report_interval.get() / 2)
                .max(WAIT_CHECK_MIN),
        };
        let state = Mutex::new(JobState {
            session: ServerJob::new(settings, context.now()),
            connections: BTreeMap::new(),
            slots: None,
            closing: Vec::new(),
            timeout: None,
        });
        Self { context, name: hello.job.clone(), server, state }
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.state).session.is_over()
    }

    /// The number of ranks that are connected, or may reconnect.
    pub(super) fn ranks(&self) -> u32 {
        lock(&self.state).session.ranks()
    }

    pub(super) fn early_buffer_peak(&self) -> Bytes {
        lock(&self.state).slots.as_ref().map_or(Bytes::ZERO, |slots| slots.early_buffer_peak())
    }

    /// The session's timeout.
    pub(super) fn timeout(&self) -> Option<Nanos> {
        lock(&self.state).timeout
    }

    /// Time has passed.
    pub(super) fn handle_timeout(&self) {
        self.report(ServerJob::handle_timeout);
    }

    /// Admit a connection by its HELLO, or refuse it.
    pub(super) fn admit(&self, hello: &Hello) -> Result<Peer, Refusal> {
        let hello = RankHello {
            rank: Rank(hello.rank),
            world: hello.world,
            node_ranks: hello.node_ranks,
            server: hello.target,
            continues_after_loss: hello.survives,
            process: hello.session,
            reconnects: hello.capabilities & CAN_RECONNECT > 0,
            role: if hello.role == foresee_wire::Role::Control { Role::Control } else { Role::Data },
        };
        self.report(|session, now| session.admit(&hello, now))
    }

    /// An admitted connection failed.
    pub(super) fn handle_not_connected(&self, peer: Peer) {
        self.report(|session, _| session.handle_not_connected(peer));
    }

    /// End the job: send every rank the reason, and wait up to `time` until it was sent.
    pub(super) fn end(&self, reason: &Refusal, time: Duration) {
        self.report(|session, _| session.end(reason));
        let closing = std::mem::take(&mut lock(&self.state).closing);
        for control in closing.iter().filter_map(WeakControl::upgrade) {
            control.drain(time);
            control.link().shutdown();
        }
    }

    /// Attach a rank's control connection.
    pub(super) fn control(self: &Arc<Self>, peer: Peer, connection: Connection) {
        let handler = RankHandler { job: Arc::clone(self), peer };
        let name = format!("{}-{}", self.name, peer.rank);
        // The lock holds messages back until the session knows the connection.
        let mut state = lock(&self.state);
        match Control::start(&name, connection, self.context.options.timeouts, handler) {
            Ok(control) => {
                state.connections.entry(peer).or_default().control = Some(control);
                self.connected(state, peer, Role::Control);
            }
            Err(why) => {
                state.session.handle_lost(peer, &why.to_string());
                self.perform_actions(state);
            }
        }
    }

    /// Attach a rank's data connection.
    pub(super) fn data(self: &Arc<Self>, peer: Peer, connection: Connection) {
        let link = connection.link();
        let mut state = lock(&self.state);
        let job = Arc::clone(self);
        let on_broken = Box::new(move |why: WireError| {
            let (text, silence) = (why.to_string(), why.is_silence());
            job.report(|session, now| session.handle_data_closed(peer, &text, silence, now));
        });
        let timeouts = self.context.options.timeouts;
        let attached = self.context.interfaces.attach(connection, Side::Listener, timeouts, on_broken);
        let started = attached.and_then(|DataPath { interface, connection, receiver }| {
            let connections = state.connections.entry(peer).or_default();
            connections.route = Some(RankRoute { rank: peer.rank, connection, interface });
            connections.data = Some(link);
            let (job, is_gone) = (Arc::clone(self), Arc::clone(&connections.is_gone));
            let name = format!("foresee-sum-{}-{}", self.name, peer.rank);
            spawn(name, move || job.read(peer, receiver, &is_gone))
        });
        match started {
            Ok(_) => self.connected(state, peer, Role::Data),
            Err(why) => {
                state.session.handle_lost(peer, &why.to_string());
                state.close(peer, None);
                self.perform_actions(state);
            }
        }
    }

    /// Report a connection to the session; close it if the job has ended since it was admitted.
    fn connected(&self, mut state: MutexGuard<'_, JobState>, peer: Peer, role: Role) {
        if let Err(refusal) = state.session.handle_connected(peer, role) {
            state.close(peer, Some(&refusal));
        }
        self.perform_actions(state);
    }

    /// Report a fact to the session, and perform its actions.
    fn report<R>(&self, fact: impl FnOnce(&mut ServerJob, Nanos) -> R) -> R {
        let now = self.context.now();
        let mut state = lock(&self.state);
        let result = fact(&mut state.session, now);
        self.perform_actions(state);
        result
    }

    /// Perform the session's actions: first those that never wait, in their order, then the others without the lock.
    fn perform_actions(&self, mut state: MutexGuard<'_, JobState>) {
        let mut slow = Vec::new();
        while let Some(action) = state.session.poll_action() {
            slow.extend(self.perform(&mut state, action));
        }
        let timeout = state.session.poll_timeout();
        let before = std::mem::replace(&mut state.timeout, timeout);
        drop(state);
        if timeout.is_some_and(|timeout| before.is_none_or(|before| timeout < before)) {
            self.context.timer.wake();
        }
        for action in slow {
            self.perform_slow(action);
        }
    }

    fn perform(&self, state: &mut JobState, action: JobAction) -> Option<SlowAction> {
        match action {
            JobAction::Send { peer, message } => {
                if let Some(control) = state.control(peer) {
                    control.send(translate::server_frame(message));
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
                let route = state.connections.get(&peer).and_then(|connections| connections.route.as_ref());
                if let (Some(slots), Some(route)) = (&state.slots, route) {
                    slots.set_route(route);
                }
            }
            JobAction::Adopt(members) => {
                if let Some(slots) = &state.slots {
                    slots.set_members(members);
                }
            }
            JobAction::Advance { oldest, forget } => {
                if let Some(slots) = &state.slots {
                    slots.advance(oldest, forget);
                }
            }
            JobAction::Skip(ticket) => return Some(SlowAction::Skip(ticket, state.slots.clone()?)),
            JobAction::FindMissing(ticket) => {
                return Some(SlowAction::FindMissing(ticket, state.slots.clone()?));
            }
            JobAction::Uninstall => {
                if let Some(slots) = state.slots.take() {
                    slots.wake();
                }
            }
        }
        None
    }

    fn perform_slow(&self, action: SlowAction) {
        match action {
            SlowAction::Skip(ticket, slots) => {
                let skipped = slots.skip(&ticket).map_err(|why| why.to_string());
                self.report(|session, _| match skipped {
                    Ok(()) => session.handle_skipped(&ticket),
                    Err(why) => session.handle_violation(ticket.peer, &why),
                });
            }
            SlowAction::FindMissing(ticket, slots) => {
                let text = slots.find_missing(&ticket).describe(slots.plan());
                self.report(|session, _| session.handle_missing(&ticket, text.as_deref()));
            }
        }
    }

    fn install(&self, state: &mut JobState, installation: Installation) {
        let routes: Vec<_> = state.connections.values().filter_map(|own| own.route.clone()).collect();
        let packet = NonZeroU32::new(installation.plan.config().packet_bytes)
            .map_or(PACKET_BYTES_MAX, |packet| packet.min(PACKET_BYTES_MAX));
        for route in &routes {
            route.interface.set_packet_bytes(packet);
        }
        let flow = Interface::flow_of(&self.name);
        let slots = SlotTable::new(installation, self.server, routes, flow, &self.context);
        if let Some(before) = state.slots.replace(Arc::new(slots)) {
            before.wake();
        }
    }
}

impl JobState {
    fn control(&self, peer: Peer) -> Option<&Control> {
        self.connections.get(&peer)?.control.as_ref()
    }

    /// Close both connections of a pair: at once, or after the reason was sent.
    fn close(&mut self, peer: Peer, reason: Option<&Refusal>) {
        let Some(connections) = self.connections.remove(&peer) else { return };
        connections.is_gone.store(true, Ordering::Relaxed);
        if let Some(route) = &connections.route {
            route.interface.close(route.connection);
        }
        if let Some(link) = &connections.data {
            link.shutdown();
        }
        match (connections.control, reason) {
            (Some(control), Some(reason)) => {
                control.close(Message::Error(translate::fault(reason)));
                self.closing.retain(|control| !control.is_gone());
                self.closing.push(control.downgrade());
            }
            (Some(control), None) => control.link().shutdown(),
            (None, _) => {}
        }
        if let Some(slots) = &self.slots {
            // Its reader may wait for memory.
            slots.wake();
        }
    }
}

/// The reason that ranks receive when their server closes.
pub(super) fn stopped() -> Refusal {
    Refusal::new(RefusalCode::Closing, "the server is stopped")
}
