// SPDX-License-Identifier: Apache-2.0
//! The sending thread of an interface: run commands, observe sockets, let the scheduler choose, write, wait.
//!
//! It never sleeps: a wait ends with a command, an acknowledgment, space in a socket, the time at which the window
//! should have opened, or the time to check whether peers still acknowledge.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;

use foresee_grad_queue::{Connection, Grant, LinkMeter, Offer, Rules, Schedule, Ticket};
use foresee_units::{Bytes, Nanos};
use foresee_wire::{
    BATCH_MAX, Event, FrameSender, Header, Link, Poller, Sending, Silence, Timeouts, Wait, WireError,
};

use super::{Command, InterfaceStats, OnBroken, PacketSource, SenderShared};
use crate::sync::lock;

/// How often the system is asked for the round trip and the acknowledgments of each connection.
const REFRESH: Nanos = Nanos::from_millis(50);

pub(super) struct Sender {
    shared: Arc<SenderShared>,
    poller: Poller,
    schedule: Schedule,
    sockets: BTreeMap<Connection, Socket>,
    sources: BTreeMap<Ticket, Arc<dyn PacketSource>>,
    meter: LinkMeter,
    min_rtt: Nanos,
    refreshed: Nanos,
    stats: InterfaceStats,
    /// One buffer for each packet of a batch whose payload is computed when it is written.
    scratch: Vec<Vec<u8>>,
}

struct Socket {
    sender: FrameSender,
    link: Link,
    on_broken: Option<OnBroken>,
    /// How long bytes in flight were not acknowledged, and how often to check.
    silence: Silence,
    heartbeat: Nanos,
    /// Granted packets that a full socket did not take, or took half of.
    pending: VecDeque<(Arc<dyn PacketSource>, Grant)>,
}

impl Sender {
    pub(super) fn new(shared: Arc<SenderShared>, poller: Poller, rules: Rules, packet: NonZeroU32) -> Self {
        let stats = *lock(&shared.stats);
        Self {
            shared,
            poller,
            schedule: Schedule::new(rules, packet),
            sockets: BTreeMap::new(),
            sources: BTreeMap::new(),
            meter: LinkMeter::default(),
            min_rtt: Nanos::ZERO,
            refreshed: Nanos::ZERO,
            stats,
            scratch: (0..BATCH_MAX).map(|_| Vec::new()).collect(),
        }
    }

    /// Run until the interface's last handle is dropped.
    pub(super) fn run(mut self) {
        let mut events = Vec::new();
        while self.run_commands() {
            self.observe();
            self.send();
            self.publish();
            // Acknowledgments wake the poller; the timer covers lost ones.
            let drained = self.schedule.drain_time().map(|time| time.saturating_add(Nanos::new(100_000)));
            let wait =
                drained.into_iter().chain(self.check_interval()).min().map_or(Wait::Forever, Wait::within);
            match self.poller.wait(wait, &mut events) {
                Ok(_) => self.stats.wakes += 1,
                Err(why) => return self.fail_all(&why),
            }
            for event in std::mem::take(&mut events) {
                self.handle_event(event);
            }
        }
    }

    /// Run the pending commands; false when the last handle was dropped.
    fn run_commands(&mut self) -> bool {
        let (commands, is_stopped) = {
            let mut inbox = lock(&self.shared.inbox);
            (std::mem::take(&mut inbox.commands), inbox.is_stopped)
        };
        for command in commands {
            self.handle_command(command);
        }
        !is_stopped
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Open { connection, sender, timeouts, on_broken } => {
                self.open(connection, *sender, timeouts, on_broken);
            }
            Command::Close(connection) => self.remove(connection),
            Command::Offer { ticket, flow, round, class, mut streams, source, at } => {
                // A connection may have broken since the offer was made.
                streams.retain(|stream| self.sockets.contains_key(&stream.connection));
                let offer = Offer { ticket, flow, round, class, streams: &streams };
                if !streams.is_empty() {
                    self.schedule
                        .handle_offer(&offer, at)
                        .expect("streams are those of a plan, tickets are counted");
                    self.sources.insert(ticket, source);
                }
            }
            Command::SetPacketBytes(bytes) => self.schedule.handle_packet(bytes),
            Command::Acknowledge { connection, bytes } => {
                // A faulty peer may acknowledge more than is outstanding, which gives it no extra credit.
                let _ = self.schedule.handle_acked(connection, bytes);
            }
        }
    }

    fn open(&mut self, connection: Connection, sender: FrameSender, timeouts: Timeouts, on_broken: OnBroken) {
        let link = sender.link();
        if let Err(why) = self.poller.add(connection.get(), &link, true) {
            on_broken(why);
            return;
        }
        self.schedule.handle_open(connection).expect("connections are counted");
        let (silence, heartbeat) = (Silence::new(timeouts.timeout, self.shared.now()), timeouts.heartbeat);
        let (on_broken, pending) = (Some(on_broken), VecDeque::new());
        self.sockets.insert(connection, Socket { sender, link, on_broken, silence, heartbeat, pending });
        // The new link may have another round trip: ask for it at once.
        self.refreshed = Nanos::ZERO;
    }

    fn handle_event(&mut self, event: Event) {
        let connection = Connection::new(event.token);
        if event.broken {
            let Some(socket) = self.sockets.get(&connection) else { return };
            let peer = socket.link.peer();
            self.fail(connection, WireError::Ended { peer });
        } else if event.writable {
            self.resume(connection);
        }
    }

    /// Observe the bytes in flight of each socket and the rate of the interface, from which the window follows.
    fn observe(&mut self) {
        let now = self.shared.now();
        let mut failed = Vec::new();
        for (&connection, socket) in &mut self.sockets {
            if self.schedule.in_flight_of(connection) == Bytes::ZERO {
                socket.silence.handle_received(now);
                continue;
            }
            // The written half of a frame counts twice, so the window errs on the short side.
            let rest: u64 = socket.pending.iter().map(|(_, grant)| u64::from(grant.bytes)).sum();
            match socket.link.queued() {
                // If the system does not report it, a small send buffer bounds the bytes in flight.
                Ok(queued) => {
                    let queued = queued.unwrap_or(Bytes::ZERO) + Bytes::new(rest);
                    self.schedule.handle_in_flight(connection, queued).expect("it is open");
                }
                Err(why) => failed.push((connection, why)),
            }
        }
        for (connection, why) in failed {
            self.fail(connection, why);
        }
        let due = now.saturating_sub(self.refreshed) >= REFRESH || self.refreshed == Nanos::ZERO;
        if due && !self.sockets.is_empty() {
            self.refreshed = now.max(Nanos::new(1));
            self.refresh_links(now);
        }
        let (in_flight, waits) = (self.schedule.in_flight(), !self.schedule.is_idle());
        let progress = self.meter.handle_progress(now, in_flight, waits, self.min_rtt);
        if let Some(rate) = progress.rate {
            self.schedule.handle_link(rate, self.min_rtt);
            self.stats.rate = rate.get();
        }
        self.schedule.handle_late(progress.late);
    }

    /// Ask the system for each connection's round trip and last acknowledgment.
    fn refresh_links(&mut self, now: Nanos) {
        let (mut min_rtt, mut failed) = (None, Vec::new());
        for (&connection, socket) in &mut self.sockets {
            let Ok(Some(info)) = socket.link.info() else { continue };
            min_rtt = info.min_rtt.into_iter().chain(min_rtt).min();
            socket.silence.handle_info(&info, now);
            if socket.silence.is_dead(now) {
                let (peer, lasts) = (socket.link.peer(), socket.silence.lasts(now));
                failed.push((connection, WireError::Unacknowledged { peer, lasts }));
            }
        }
        self.min_rtt = min_rtt.unwrap_or(self.min_rtt);
        for (connection, why) in failed {
            self.fail(connection, why);
        }
    }

    /// The longest time between two checks of acknowledgments; `None` while no bytes are in flight.
    fn check_interval(&self) -> Option<Nanos> {
        let is_in_flight = |connection: &Connection| self.schedule.in_flight_of(*connection) > Bytes::ZERO;
        let sockets = self.sockets.iter().filter(|(connection, _)| is_in_flight(connection));
        sockets.map(|(_, socket)| socket.heartbeat).min()
    }

    fn send(&mut self) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while let Some(grant) = self.schedule.poll_send(self.shared.now()) {
            batch.clear();
            batch.push(grant);
            while batch.len() < BATCH_MAX
                && let Some(more) = self.schedule.poll_more(self.shared.now())
            {
                batch.push(more);
            }
            self.write(&batch);
        }
        self.meter.handle_sent(self.shared.now(), !self.schedule.is_idle());
    }

    /// Write a batch of granted packets of one connection, in one system call if the socket takes all of it.
    fn write(&mut self, batch: &[Grant]) {
        let connection = batch[0].connection;
        self.meter.handle_granted(Bytes::new(batch.iter().map(|grant| u64::from(grant.bytes)).sum()));
        let sources: Vec<_> = batch.iter().map(|grant| Arc::clone(&self.sources[&grant.ticket])).collect();
        for grant in batch.iter().filter(|grant| grant.last) {
            self.sources.remove(&grant.ticket);
        }
        for (source, grant) in sources.iter().zip(batch) {
            source.on_send(connection, grant.packet);
        }
        let socket = self.sockets.get_mut(&connection).expect("only open connections are granted");
        let frames: Vec<(Header, &[u8])> = batch
            .iter()
            .zip(sources.iter().zip(&mut self.scratch))
            .map(|(grant, (source, scratch))| {
                (source.header(connection, grant.packet), source.payload(connection, grant.packet, scratch))
            })
            .collect();
        self.stats.writes += 1;
        let sent = match socket.sender.send_frames(&frames, usize::MAX) {
            Ok(sent) => sent,
            Err(why) => return self.fail(connection, why),
        };
        let whole = sent.begun - usize::from(sent.state == Sending::Half);
        socket.pending.extend(sources[whole..].iter().cloned().zip(batch[whole..].iter().copied()));
        batch[..whole].iter().for_each(|grant| self.count(*grant));
        if whole < batch.len() {
            self.schedule.handle_blocked(connection).expect("it is open");
            if let Err(why) = self.poller.want_writable(connection.get(), true) {
                self.fail(connection, why);
            }
        }
    }

    /// Write the packets that a full socket left pending, in their order and before any other.
    fn resume(&mut self, connection: Connection) {
        while let Some(socket) = self.sockets.get_mut(&connection) {
            let Some((source, grant)) = socket.pending.front().cloned() else {
                self.schedule.handle_writable(connection).expect("it is open");
                if let Err(why) = self.poller.want_writable(connection.get(), false) {
                    self.fail(connection, why);
                }
                return;
            };
            let header = source.header(connection, grant.packet);
            let payload = source.payload(connection, grant.packet, &mut self.scratch[0]);
            self.stats.writes += 1;
            let state = if socket.sender.is_half_written() {
                socket.sender.resume(payload)
            } else {
                socket.sender.send(&header, payload)
            };
            match state {
                Ok(Sending::Done) => {
                    socket.pending.pop_front();
                    self.count(grant);
                }
                Ok(Sending::Half | Sending::Blocked) => return,
                Err(why) => return self.fail(connection, why),
            }
        }
    }

    fn count(&mut self, grant: Grant) {
        self.stats.packets += 1;
        self.stats.sent += Bytes::new(grant.bytes.into());
    }

    /// End a broken connection. Its owner is notified before its reader sees the end.
    fn fail(&mut self, connection: Connection, why: WireError) {
        let on_broken = self.sockets.get_mut(&connection).and_then(|socket| socket.on_broken.take());
        if let Some(on_broken) = on_broken {
            on_broken(why);
        }
        self.remove(connection);
    }

    /// Drop a connection and its queued packets.
    fn remove(&mut self, connection: Connection) {
        let Some(socket) = self.sockets.remove(&connection) else { return };
        self.poller.remove(connection.get());
        self.meter.handle_closed(self.schedule.in_flight_of(connection));
        for unsent in self.schedule.handle_closed(connection).expect("it was open") {
            if unsent.last {
                self.sources.remove(&unsent.ticket);
            }
        }
        socket.link.shutdown();
    }

    /// End every connection: the poller failed.
    fn fail_all(&mut self, why: &WireError) {
        let connections: Vec<_> = self.sockets.keys().copied().collect();
        for connection in connections {
            let reason = std::io::Error::other(why.to_string());
            self.fail(connection, WireError::System { doing: "waiting for connections", why: reason });
        }
    }

    fn publish(&mut self) {
        self.stats.window = self.schedule.window();
        *lock(&self.shared.stats) = self.stats;
    }
}
