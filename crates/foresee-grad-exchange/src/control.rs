// SPDX-License-Identifier: Apache-2.0
//! A control connection: messages out in order, messages in, heartbeats both ways.
//!
//! One thread writes messages, and a PING where there was none; the other reads. A caller that sends a message never
//! waits for the network, and no lock is held over it. It is separate from the data connections so that heartbeats do
//! not queue behind bulk data. Messages are not interpreted here.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

use foresee_units::Nanos;
use foresee_wire::{
    Bye, Connection, Fault, FrameReceiver, FrameSender, Heartbeat, Link, Message, Ping, Silence, Timeouts,
    Wait, WireError,
};

use crate::sync::{lock, spawn, wait_timeout};

/// A handle; clones are the same connection.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    outbox: Arc<Outbox>,
}

/// A handle that does not keep the socket open once both threads have ended.
#[derive(Clone, Debug)]
pub(crate) struct WeakControl(Weak<Outbox>);

/// How a control connection ended. Reported once, after the last message.
#[derive(Debug)]
pub(crate) enum ControlEnd {
    /// The other end left, for this reason.
    Goodbye(String),
    /// The other end reported a fault.
    Fault(Fault),
    /// The connection broke.
    Broken(WireError),
    /// Nothing was received for this long.
    Silent(Nanos),
}

/// Receiver of a connection's messages. One thread calls it, in order.
pub(crate) trait ControlHandler: Send + 'static {
    /// Handle a message. A fault ends the connection and is sent to the other end.
    fn on_message(&mut self, message: Message) -> Result<(), Fault>;
    fn on_end(&mut self, end: ControlEnd);
}

#[derive(Debug)]
struct Outbox {
    state: Mutex<OutboxState>,
    changed: Condvar,
    link: Link,
}

#[derive(Debug, Default)]
struct OutboxState {
    messages: VecDeque<Message>,
    /// The last message is queued.
    is_closing: bool,
    /// The connection ended.
    is_dead: bool,
}

impl Control {
    /// Take over an authenticated connection. `name`: of its threads.
    pub(crate) fn start(
        name: &str,
        connection: Connection,
        timeouts: Timeouts,
        handler: impl ControlHandler,
    ) -> Result<Self, WireError> {
        let (state, changed, link) = (Mutex::default(), Condvar::new(), connection.link());
        let control = Self { outbox: Arc::new(Outbox { state, changed, link }) };
        let (outbox, sender) = (Arc::clone(&control.outbox), connection.sender);
        spawn(format!("foresee-write-{name}"), move || ControlWriter { outbox, sender, timeouts }.run())?;
        let reader =
            ControlReader { control: control.clone(), receiver: connection.receiver, timeouts, handler };
        spawn(format!("foresee-read-{name}"), move || reader.run())?;
        Ok(control)
    }

    /// Queue a message. Never waits.
    pub(crate) fn send(&self, message: Message) {
        self.push(message, false);
    }

    /// Queue a last message, after which the connection ends.
    pub(crate) fn close(&self, last: Message) {
        self.push(last, true);
    }

    /// End the connection without an error.
    pub(crate) fn close_with_goodbye(&self, reason: &str) {
        self.close(Message::Bye(Bye { reason: reason.into() }));
    }

    fn push(&self, message: Message, is_last: bool) {
        let mut outbox = lock(&self.outbox.state);
        if !outbox.is_closing && !outbox.is_dead {
            outbox.messages.push_back(message);
            outbox.is_closing = is_last;
            self.outbox.changed.notify_one();
        }
    }

    /// Wait until every queued message was written, or `time` is over.
    pub(crate) fn drain(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut outbox = lock(&self.outbox.state);
        while !outbox.is_dead {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return };
            outbox = wait_timeout(&self.outbox.changed, outbox, left);
        }
    }

    /// The connection as a whole.
    pub(crate) fn link(&self) -> &Link {
        &self.outbox.link
    }

    pub(crate) fn downgrade(&self) -> WeakControl {
        WeakControl(Arc::downgrade(&self.outbox))
    }
}

impl WeakControl {
    /// The connection, unless its threads have ended.
    pub(crate) fn upgrade(&self) -> Option<Control> {
        self.0.upgrade().map(|outbox| Control { outbox })
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Outbox {
    fn mark_dead(&self) {
        lock(&self.state).is_dead = true;
        self.changed.notify_all();
    }
}

struct ControlWriter {
    outbox: Arc<Outbox>,
    sender: FrameSender,
    timeouts: Timeouts,
}

impl ControlWriter {
    fn run(mut self) {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(self.timeouts.heartbeat, Nanos::ZERO);
        while let Some(next) = self.next(start, &mut heartbeat) {
            let is_last = matches!(next, Message::Bye(_) | Message::Error(_));
            if self.sender.send_message(&next, 0, Wait::within(self.timeouts.timeout)).is_err() || is_last {
                break;
            }
        }
        self.outbox.mark_dead();
        // The reader and the other end see the end of the connection. Written messages still arrive.
        self.sender.link().shutdown();
    }

    /// Wait for the next message, or the time of a heartbeat; `None` at the end.
    fn next(&self, start: Instant, heartbeat: &mut Heartbeat) -> Option<Message> {
        let mut outbox = lock(&self.outbox.state);
        loop {
            if let Some(message) = outbox.messages.pop_front() {
                return Some(message);
            }
            if outbox.is_closing || outbox.is_dead {
                return None;
            }
            let now = Nanos::from(start.elapsed());
            if let Some(number) = heartbeat.poll_ping(now) {
                return Some(Message::Ping(Ping { number }));
            }
            let rest = Duration::from(heartbeat.deadline().saturating_sub(now));
            outbox = wait_timeout(&self.outbox.changed, outbox, rest);
        }
    }
}

struct ControlReader<H> {
    control: Control,
    receiver: FrameReceiver,
    timeouts: Timeouts,
    handler: H,
}

impl<H: ControlHandler> ControlReader<H> {
    fn run(mut self) {
        let end = self.read();
        self.handler.on_end(end);
        self.control.outbox.mark_dead();
        self.control.link().shutdown();
    }

    fn read(&mut self) -> ControlEnd {
        let start = Instant::now();
        let now = || Nanos::from(start.elapsed());
        let mut silence = Silence::new(self.timeouts.timeout, Nanos::ZERO);
        loop {
            let deadline = start.checked_add(Duration::from(silence.deadline()));
            match self.receiver.next_message(deadline.map_or(Wait::Forever, Wait::Until)) {
                Ok(Some(Message::Bye(bye))) => return ControlEnd::Goodbye(bye.reason),
                Ok(Some(Message::Error(fault))) => return ControlEnd::Fault(fault),
                Ok(Some(message)) => {
                    silence.handle_received(now());
                    if matches!(message, Message::Ping(_)) {
                        continue;
                    }
                    if let Err(fault) = self.handler.on_message(message) {
                        self.control.close(Message::Error(fault.clone()));
                        self.control.drain(Duration::from(self.timeouts.handshake));
                        return ControlEnd::Fault(fault);
                    }
                }
                Ok(None) => return ControlEnd::Broken(WireError::Ended { peer: self.control.link().peer() }),
                Err(WireError::Late { .. }) => {
                    if silence.is_dead(now()) {
                        return ControlEnd::Silent(silence.lasts(now()));
                    }
                }
                Err(why) => return ControlEnd::Broken(why),
            }
        }
    }
}
