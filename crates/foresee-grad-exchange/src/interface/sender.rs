// SPDX-License-Identifier: Apache-2.0
//! The thread of an interface: take orders and facts, let the scheduler choose, write, wait.
//!
//! It never sleeps: a wait ends with an order, an acknowledgment, space in a socket, the time at which the window
//! should have opened, or the time to check whether the other ends still acknowledge.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::{Arc, PoisonError};

use foresee_grad_queue::{Connection, Grant, LinkMeter, Offer, Rules, Schedule, Ticket};
use foresee_units::{Bytes, Nanos};
use foresee_wire::{
    BATCH_MAX, Event, FrameSender, Header, Link, Poller, Sending, Silence, Timeouts, Wait, WireError,
};

use super::{Broken, Command, InterfaceStats, Parcel, Shared};

/// The shortest round trip and the window are looked up so often.
const REFRESH: Nanos = Nanos::from_millis(50);

pub(super) struct Sender {
    shared: Arc<Shared>,
    poller: Poller,
    schedule: Schedule,
    sockets: BTreeMap<Connection, Socket>,
    parcels: BTreeMap<Ticket, Arc<dyn Parcel>>,
    meter: LinkMeter,
    min_rtt: Nanos,
    refreshed: Nanos,
    stats: InterfaceStats,
    /// For the payloads of a batch that are made when they are written.
    rooms: Vec<Vec<u8>>,
}

struct Socket {
    sender: FrameSender,
    link: Link,
    broken: Option<Broken>,
    /// For how long nothing that is owed was acknowledged, and how often to ask.
    silence: Silence,
    heartbeat: Nanos,
    /// Granted, and not or half written, because the socket was full.
    waiting: VecDeque<(Arc<dyn Parcel>, Grant)>,
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>, poller: Poller, rules: Rules, packet: NonZeroU32) -> Self {
        let stats = *shared.stats.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            shared,
            poller,
            schedule: Schedule::new(rules, packet),
            sockets: BTreeMap::new(),
            parcels: BTreeMap::new(),
            meter: LinkMeter::default(),
            min_rtt: Nanos::ZERO,
            refreshed: Nanos::ZERO,
            stats,
            rooms: (0..BATCH_MAX).map(|_| Vec::new()).collect(),
        }
    }

    /// Until the interface's last handle is gone.
    pub(super) fn run(mut self) {
        let mut events = Vec::new();
        while self.obey() {
            self.learn();
            self.send();
            self.publish();
            // Acknowledgments wake; the timer stands behind them, for they may be dropped.
            let drained = self.schedule.drain_time().map(|time| time.saturating_add(Nanos::new(100_000)));
            let wait = match drained.into_iter().chain(self.next_look()).min() {
                Some(time) => Wait::within(time),
                None => Wait::Forever,
            };
            match self.poller.wait(wait, &mut events) {
                Ok(_) => self.stats.wakes += 1,
                // Nothing can be waited for any more: every connection ends with the reason.
                Err(why) => return self.give_up(&why),
            }
            for event in std::mem::take(&mut events) {
                self.handle_event(event);
            }
        }
    }

    /// What clients asked for; false when there are none left.
    fn obey(&mut self) -> bool {
        let (commands, stop) = {
            let mut inbox = self.shared.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            (std::mem::take(&mut inbox.orders), inbox.stop)
        };
        for command in commands {
            self.handle_command(command);
        }
        !stop
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Open { connection, sender, timeouts, broken } => {
                self.open(connection, *sender, timeouts, broken);
            }
            Command::Close { connection } => self.forget(connection),
            Command::Offer { ticket, flow, round, class, mut lanes, parcel, at } => {
                // A connection may have broken while the offer was on its way here.
                lanes.retain(|lane| self.sockets.contains_key(&lane.connection));
                let offer = Offer { ticket, flow, round, class, lanes: &lanes };
                if !lanes.is_empty() {
                    self.schedule
                        .handle_offer(&offer, at)
                        .expect("lanes are those of a plan, tickets are counted");
                    self.parcels.insert(ticket, parcel);
                }
            }
            Command::Packet { bytes } => self.schedule.handle_packet(bytes),
            Command::Acked { connection, bytes } => {
                // More than is outstanding comes from a peer that is wrong; credit is not money.
                let _ = self.schedule.handle_acked(connection, bytes);
            }
        }
    }

    fn open(&mut self, connection: Connection, sender: FrameSender, timeouts: Timeouts, broken: Broken) {
        let link = sender.link();
        if let Err(why) = self.poller.add(connection.get(), &link, true) {
            broken(why);
            return;
        }
        self.schedule.handle_open(connection).expect("connections are counted");
        let (silence, heartbeat) = (Silence::new(timeouts.timeout, self.shared.now()), timeouts.heartbeat);
        let (broken, waiting) = (Some(broken), VecDeque::new());
        self.sockets.insert(connection, Socket { sender, link, broken, silence, heartbeat, waiting });
        // The link may be another one than before: look at it at once.
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

    /// How far each socket is, what the interface delivers, and how large the window is by that.
    fn learn(&mut self) {
        let now = self.shared.now();
        let mut failed = Vec::new();
        for (&connection, socket) in &mut self.sockets {
            if self.schedule.in_flight_of(connection) == Bytes::ZERO {
                socket.silence.handle_received(now);
                continue;
            }
            // A frame that is half written counts twice for its first half: the window errs on the short side.
            let rest: u64 = socket.waiting.iter().map(|(_, grant)| u64::from(grant.bytes)).sum();
            match socket.link.queued() {
                // Where the system does not tell, a small send buffer is the window.
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
            self.look(now);
        }
        let (in_flight, waits) = (self.schedule.in_flight(), !self.schedule.is_idle());
        let progress = self.meter.handle_progress(now, in_flight, waits, self.min_rtt);
        if let Some(rate) = progress.rate {
            self.schedule.handle_link(rate, self.min_rtt);
            self.stats.rate = rate.get();
        }
        self.schedule.handle_late(progress.late);
    }

    /// What the system knows of each connection: its round trip, and when the other end last acknowledged anything.
    fn look(&mut self, now: Nanos) {
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

    /// How long until the other ends have to be asked for; `None` while they owe nothing.
    fn next_look(&self) -> Option<Nanos> {
        let owing = |connection: &Connection| self.schedule.in_flight_of(*connection) > Bytes::ZERO;
        let sockets = self.sockets.iter().filter(|(connection, _)| owing(connection));
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

    /// Writes what was granted on one connection, in one call to the system if it takes it all.
    fn write(&mut self, batch: &[Grant]) {
        let connection = batch[0].connection;
        self.meter.handle_granted(Bytes::new(batch.iter().map(|grant| u64::from(grant.bytes)).sum()));
        let parcels: Vec<_> = batch.iter().map(|grant| Arc::clone(&self.parcels[&grant.ticket])).collect();
        for grant in batch.iter().filter(|grant| grant.last) {
            self.parcels.remove(&grant.ticket);
        }
        for (parcel, grant) in parcels.iter().zip(batch) {
            parcel.leaves(connection, grant.packet);
        }
        let socket = self.sockets.get_mut(&connection).expect("only open connections are granted");
        let frames: Vec<(Header, &[u8])> = batch
            .iter()
            .zip(parcels.iter().zip(&mut self.rooms))
            .map(|(grant, (parcel, room))| {
                (parcel.header(connection, grant.packet), parcel.payload(connection, grant.packet, room))
            })
            .collect();
        self.stats.writes += 1;
        let sent = match socket.sender.send_frames(&frames, usize::MAX) {
            Ok(sent) => sent,
            Err(why) => return self.fail(connection, why),
        };
        let whole = sent.begun - usize::from(sent.state == Sending::Half);
        socket.waiting.extend(parcels[whole..].iter().cloned().zip(batch[whole..].iter().copied()));
        batch[..whole].iter().for_each(|grant| self.account(*grant));
        if whole < batch.len() {
            self.schedule.handle_blocked(connection).expect("it is open");
            if let Err(why) = self.poller.want_writable(connection.get(), true) {
                self.fail(connection, why);
            }
        }
    }

    /// Goes on with what a full socket left over, in its order; nothing else may go before.
    fn resume(&mut self, connection: Connection) {
        while let Some(socket) = self.sockets.get_mut(&connection) {
            let Some((parcel, grant)) = socket.waiting.front().cloned() else {
                self.schedule.handle_writable(connection).expect("it is open");
                if let Err(why) = self.poller.want_writable(connection.get(), false) {
                    self.fail(connection, why);
                }
                return;
            };
            let header = parcel.header(connection, grant.packet);
            let payload = parcel.payload(connection, grant.packet, &mut self.rooms[0]);
            self.stats.writes += 1;
            let state = if socket.sender.is_half_written() {
                socket.sender.resume(payload)
            } else {
                socket.sender.send(&header, payload)
            };
            match state {
                Ok(Sending::Done) => {
                    socket.waiting.pop_front();
                    self.account(grant);
                }
                Ok(Sending::Half | Sending::Blocked) => return,
                Err(why) => return self.fail(connection, why),
            }
        }
    }

    fn account(&mut self, grant: Grant) {
        self.stats.packets += 1;
        self.stats.sent += Bytes::new(grant.bytes.into());
    }

    /// The connection is of no more use: its owner hears why, before whoever reads it sees no more than its end.
    fn fail(&mut self, connection: Connection, why: WireError) {
        let broken = self.sockets.get_mut(&connection).and_then(|socket| socket.broken.take());
        if let Some(broken) = broken {
            broken(why);
        }
        self.forget(connection);
    }

    /// Drops a connection and what waits for it.
    fn forget(&mut self, connection: Connection) {
        let Some(socket) = self.sockets.remove(&connection) else { return };
        self.poller.remove(connection.get());
        self.meter.handle_closed(self.schedule.in_flight_of(connection));
        for unsent in self.schedule.handle_closed(connection).expect("it was open") {
            if unsent.last {
                self.parcels.remove(&unsent.ticket);
            }
        }
        socket.link.shutdown();
    }

    fn give_up(&mut self, why: &WireError) {
        let connections: Vec<_> = self.sockets.keys().copied().collect();
        for connection in connections {
            let reason = std::io::Error::other(why.to_string());
            self.fail(connection, WireError::System { doing: "waiting for connections", why: reason });
        }
    }

    fn publish(&mut self) {
        self.stats.window = self.schedule.window();
        *self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner) = self.stats;
    }
}
