// SPDX-License-Identifier: Apache-2.0
//! A control connection: messages out in order, messages in, heartbeats both ways.
//!
//! One thread writes messages, and a PING where there was none; the other reads. A caller that sends a message never
//! waits for the network, and no lock is held over it. It is separate from the data connections so that heartbeats do
//! not queue behind bulk data. Messages are not interpreted here.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use foresee_units::Nanos;
use foresee_wire::{
    Bye, Connection, Fault, FrameReceiver, FrameSender, Heartbeat, Link, Message, Ping, Silence, Timeouts,
    Wait, WireError,
};

/// A handle; clones are the same connection.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    outbox: Arc<Outbox>,
    link: Link,
}

/// How a control connection ended. Reported once, after the last message.
#[derive(Debug)]
pub(crate) enum End {
    /// The other end said that it goes, and why.
    Bye(String),
    /// The other end said what went wrong.
    Fault(Fault),
    /// The connection broke.
    Broken(WireError),
    /// Nothing was heard for so long.
    Silent(Nanos),
}

/// Hears what comes. Called by one thread, in order; [`Some`] is a reason to end the connection, told to the other end.
pub(crate) trait Ear: Send + 'static {
    fn hear(&mut self, message: Message) -> Result<(), Fault>;
    fn ended(&mut self, end: End);
}

#[derive(Debug, Default)]
struct Outbox {
    state: Mutex<Letters>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Letters {
    waiting: VecDeque<Message>,
    /// What is told last.
    closing: bool,
    /// The connection is of no more use.
    dead: bool,
}

impl Control {
    /// Takes a proved connection over. `name`: of its threads.
    pub(crate) fn start(
        name: &str,
        connection: Connection,
        timeouts: Timeouts,
        ear: impl Ear,
    ) -> Result<Self, WireError> {
        let link = connection.link();
        let control = Self { outbox: Arc::default(), link: link.clone() };
        let system = |why| WireError::System { doing: "starting a thread", why };
        let (outbox, sender) = (Arc::clone(&control.outbox), connection.sender);
        thread::Builder::new()
            .name(format!("foresee-tell-{name}"))
            .spawn(move || Teller { outbox, sender, timeouts }.run())
            .map_err(system)?;
        let (outbox, receiver) = (Arc::clone(&control.outbox), connection.receiver);
        thread::Builder::new()
            .name(format!("foresee-hear-{name}"))
            .spawn(move || Hearer { outbox, receiver, timeouts, ear, link }.run())
            .map_err(system)?;
        Ok(control)
    }

    /// Puts a message behind those told before. Never waits.
    pub(crate) fn tell(&self, message: Message) {
        let mut letters = self.outbox.lock();
        if !letters.closing && !letters.dead {
            letters.waiting.push_back(message);
            self.outbox.bell.notify_one();
        }
    }

    /// Tells a last message, after which the connection ends.
    pub(crate) fn close(&self, last: Message) {
        let mut letters = self.outbox.lock();
        if !letters.closing && !letters.dead {
            letters.waiting.push_back(last);
            letters.closing = true;
            self.outbox.bell.notify_one();
        }
    }

    /// Ends the connection in peace.
    pub(crate) fn bye(&self, reason: &str) {
        self.close(Message::Bye(Bye { reason: reason.into() }));
    }

    /// Waits until everything told has left, or `time` is over.
    pub(crate) fn drain(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut letters = self.outbox.lock();
        while !letters.dead {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return };
            letters = self.outbox.bell.wait_timeout(letters, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether the connection is of no more use.
    pub(crate) fn is_dead(&self) -> bool {
        self.outbox.lock().dead
    }

    /// The connection as a whole.
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }
}

impl Outbox {
    fn lock(&self) -> std::sync::MutexGuard<'_, Letters> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn die(&self) {
        self.lock().dead = true;
        self.bell.notify_all();
    }
}

struct Teller {
    outbox: Arc<Outbox>,
    sender: FrameSender,
    timeouts: Timeouts,
}

impl Teller {
    fn run(mut self) {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(self.timeouts.heartbeat, Nanos::ZERO);
        while let Some(next) = self.next(start, &mut heartbeat) {
            let last = matches!(next, Message::Bye(_) | Message::Error(_));
            if self.sender.send_message(&next, 0, Wait::within(self.timeouts.timeout)).is_err() || last {
                break;
            }
        }
        self.outbox.die();
        // The other thread, and the other end, learn it from the connection. What was written still arrives.
        self.sender.link().shutdown();
    }

    /// What to tell, as soon as there is something; `None` at the end.
    fn next(&self, start: Instant, heartbeat: &mut Heartbeat) -> Option<Message> {
        let mut letters = self.outbox.lock();
        loop {
            if let Some(message) = letters.waiting.pop_front() {
                return Some(message);
            }
            if letters.closing || letters.dead {
                return None;
            }
            let now = Nanos::from(start.elapsed());
            if let Some(number) = heartbeat.poll_ping(now) {
                return Some(Message::Ping(Ping { number }));
            }
            let rest = Duration::from(heartbeat.deadline().saturating_sub(now));
            letters = self.outbox.bell.wait_timeout(letters, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

struct Hearer<E> {
    outbox: Arc<Outbox>,
    receiver: FrameReceiver,
    timeouts: Timeouts,
    ear: E,
    link: Link,
}

impl<E: Ear> Hearer<E> {
    fn run(mut self) {
        let end = self.hear();
        self.ear.ended(end);
        self.outbox.die();
        self.link.shutdown();
    }

    fn hear(&mut self) -> End {
        let start = Instant::now();
        let now = || Nanos::from(start.elapsed());
        let mut silence = Silence::new(self.timeouts.timeout, Nanos::ZERO);
        loop {
            let deadline = start.checked_add(Duration::from(silence.deadline()));
            match self.receiver.next_message(deadline.map_or(Wait::Forever, Wait::Until)) {
                Ok(Some(Message::Bye(bye))) => return End::Bye(bye.reason),
                Ok(Some(Message::Error(fault))) => return End::Fault(fault),
                Ok(Some(message)) => {
                    silence.handle_received(now());
                    if matches!(message, Message::Ping(_)) {
                        continue;
                    }
                    if let Err(fault) = self.ear.hear(message) {
                        let control = Control { outbox: Arc::clone(&self.outbox), link: self.link.clone() };
                        control.close(Message::Error(fault.clone()));
                        control.drain(Duration::from(self.timeouts.handshake));
                        return End::Fault(fault);
                    }
                }
                Ok(None) => {
                    let peer = self.link.peer();
                    return End::Broken(WireError::Ended { peer });
                }
                Err(WireError::Late { .. }) => {
                    if silence.is_dead(now()) {
                        return End::Silent(silence.lasts(now()));
                    }
                }
                Err(why) => return End::Broken(why),
            }
        }
    }
}
