// SPDX-License-Identifier: Apache-2.0
//! Accepts connections, and hands over those whose dialler is authenticated.
//!
//! The handshake is separate because it concerns one connection; this file bounds the cost of many
//! unauthenticated ones. Each holds one thread with a small stack and about 2 KiB (70 more under TLS) until one
//! deadline, and there are at most [`ListenOptions::pending_max`] of them. One more evicts the oldest of the
//! address with the most, so a flood from one address evicts its own connections. A real rank needs two round
//! trips.
//!
//! Failures are counted and stored for the caller, and never printed.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::control::{Fault, FaultCode};
use crate::error::WireError;
use crate::handshake::{Acceptor, Arrival, Keys};
use crate::silence::Timeouts;
use crate::socket::{self, LinkOptions, timespec};
use crate::tcp::Tcp;
use crate::tls::TlsServer;
use crate::transport::Wait;
use crate::waker::Waker;

/// Authenticated connections that wait for the caller. A further one is refused, because the caller is stuck or
/// the job too large.
const ARRIVALS_MAX: usize = 4096;
/// Failures stored for [`Listener::take_failures`]; the oldest are dropped first.
const FAILURES_MAX: usize = 64;
/// Enough for TLS in a debug build, with a margin.
const STACK: usize = 512 << 10;
/// Pause after the system lacked resources for a connection, because no event reports their return.
const PAUSE: Duration = Duration::from_millis(100);

/// Options of a listener.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// The sockets' options; `local` is not used.
    pub link: LinkOptions,
    /// Encryption; `None`: plain TCP.
    pub tls: Option<TlsServer>,
    /// Timeouts; `handshake` bounds an unauthenticated connection.
    pub timeouts: Timeouts,
    /// Maximum number of unauthenticated connections, at least 1; default 64.
    pub pending_max: usize,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { link: LinkOptions::default(), tls: None, timeouts: Timeouts::default(), pending_max: 64 }
    }
}

/// Counts of connections by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Accepted by the system and given a thread.
    pub accepted: u64,
    /// Authenticated.
    pub authenticated: u64,
    /// Failed: another secret, another protocol, or disconnected.
    pub failed: u64,
    /// Exceeded the deadline.
    pub timed_out: u64,
    /// Evicted by newer ones.
    pub evicted: u64,
}

/// Listens at an address until it is dropped.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    arrivals: Receiver<Arrival>,
    shared: Arc<ListenerShared>,
    thread: Option<JoinHandle<()>>,
}

/// Closes a listener from another thread.
#[derive(Clone, Debug)]
pub struct Closer(Arc<ListenerShared>);

struct ListenerShared {
    acceptor: Acceptor,
    handshake: Duration,
    pending_max: usize,
    link: LinkOptions,
    waker: Waker,
    state: Mutex<ListenerState>,
    /// Notified when an unauthenticated connection ends.
    ended: Condvar,
}

impl std::fmt::Debug for ListenerShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct ListenerState {
    /// Unauthenticated connections by order of arrival.
    pending: BTreeMap<u64, PendingConnection>,
    next: u64,
    closed: bool,
    counts: ConnectionCounts,
    failures: VecDeque<WireError>,
}

#[derive(Debug)]
struct PendingConnection {
    tcp: Arc<Tcp>,
    evicted: bool,
}

impl Listener {
    /// Listen at `address`; the system chooses port 0.
    ///
    /// # Errors
    /// [`WireError::PortInUse`], or an address that does not belong to this node.
    pub fn bind(address: SocketAddr, keys: Keys, options: ListenOptions) -> Result<Self, WireError> {
        let socket = socket::listen(address, &options.link)?;
        let system = |doing, why| WireError::System { doing, why };
        let address = rustix::net::getsockname(&socket)
            .and_then(SocketAddr::try_from)
            .map_err(|why| WireError::Address { address, why: why.into() })?;
        let timeout = options.timeouts.timeout;
        let shared = Arc::new(ListenerShared {
            acceptor: Acceptor { keys, tls: options.tls, timeout },
            handshake: options.timeouts.handshake.into(),
            pending_max: options.pending_max.max(1),
            link: options.link,
            waker: Waker::new().map_err(|why| system("making a waker", why))?,
            state: Mutex::default(),
            ended: Condvar::new(),
        });
        let (sender, arrivals) = mpsc::sync_channel(ARRIVALS_MAX);
        let thread = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("foresee-listen".into())
                .spawn(move || shared.listen(&socket, &sender))
                .map_err(|why| system("starting a thread", why))?
        };
        Ok(Self { address, arrivals, shared, thread: Some(thread) })
    }

    /// The listener's address, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Return the next authenticated dialler; `None` if there was none in time.
    ///
    /// # Errors
    /// [`WireError::Closed`] after it was closed.
    pub fn accept(&mut self, wait: Wait) -> Result<Option<Arrival>, WireError> {
        let closed = || WireError::Closed { peer: self.address };
        match wait.left() {
            None => self.arrivals.recv().map(Some).map_err(|_| closed()),
            Some(left) => match self.arrivals.recv_timeout(left) {
                Ok(arrival) => Ok(Some(arrival)),
                Err(RecvTimeoutError::Timeout) => Ok(None),
                Err(RecvTimeoutError::Disconnected) => Err(closed()),
            },
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> ConnectionCounts {
        self.shared.state().counts
    }

    /// The reasons of the last failures, oldest first; each is returned once, and at most 64 are stored.
    pub fn take_failures(&self) -> Vec<WireError> {
        self.shared.state().failures.drain(..).collect()
    }

    /// A handle that closes the listener from another thread.
    pub fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.shared))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.closer().close();
        if let Some(thread) = self.thread.take() {
            // Its panic was printed already.
            let _ = thread.join();
        }
        let mut state = self.shared.state();
        while !state.pending.is_empty() {
            state = self.shared.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Closer {
    /// Close the listener: it accepts no more connections, and ends unauthenticated ones and a waiting
    /// [`Listener::accept`]. Authenticated ones stay.
    pub fn close(&self) {
        let mut state = self.0.state();
        state.closed = true;
        for pending in state.pending.values() {
            pending.tcp.shutdown();
        }
        drop(state);
        self.0.waker.wake();
        self.0.ended.notify_all();
    }
}

impl ListenerShared {
    fn state(&self) -> MutexGuard<'_, ListenerState> {
        // A panic can at most leave a surplus connection; no invariant spans two fields.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The main loop of the listening thread.
    fn listen(self: &Arc<Self>, socket: &OwnedFd, arrivals: &SyncSender<Arrival>) {
        while !self.state().closed {
            match socket::accept(socket, &self.link) {
                Ok(Some(tcp)) => self.start_handshake(tcp, arrivals),
                Ok(None) => self.wait_for_connection(Some(socket)),
                Err(fault) => {
                    // The system is out of descriptors or memory, which an unauthenticated connection may hold.
                    let mut state = self.state();
                    state.record_failure(fault);
                    state.evict_one();
                    drop(state);
                    self.wait_for_connection(None);
                }
            }
        }
    }

    /// Wait for a connection or a wake-up; without a socket, for a wake-up or the end of a pause.
    fn wait_for_connection(&self, socket: Option<&OwnedFd>) {
        let mut fds = vec![PollFd::new(&self.waker, PollFlags::IN)];
        fds.extend(socket.map(|socket| PollFd::new(socket, PollFlags::IN)));
        let pause = socket.is_none().then(|| timespec(PAUSE));
        // An interruption counts as a wake-up: the caller checks again.
        let _ = poll(&mut fds, pause.as_ref());
    }

    /// Evict connections if there are too many, and give this one a thread.
    fn start_handshake(self: &Arc<Self>, tcp: Tcp, arrivals: &SyncSender<Arrival>) {
        let tcp = Arc::new(tcp);
        let mut state = self.state();
        while state.pending.len() >= self.pending_max && !state.closed {
            // Its thread notices immediately, because it only waits for this connection.
            state.evict_one();
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return;
        }
        state.counts.accepted += 1;
        let number = state.next;
        state.next += 1;
        state.pending.insert(number, PendingConnection { tcp: Arc::clone(&tcp), evicted: false });
        drop(state);

        let (shared, arrivals) = (Arc::clone(self), arrivals.clone());
        let wait = Wait::within(self.handshake);
        let spawned =
            std::thread::Builder::new().name("foresee-greet".into()).stack_size(STACK).spawn(move || {
                // Removes the entry on every exit of this thread.
                let entry = PendingEntry { shared: &shared, number };
                entry.authenticate(tcp, &arrivals, wait);
            });
        if let Err(why) = spawned {
            let mut state = self.state();
            state.pending.remove(&number);
            state.record_failure(WireError::System { doing: "starting a thread", why });
        }
    }
}

/// The entry of an unauthenticated connection.
struct PendingEntry<'a> {
    shared: &'a ListenerShared,
    number: u64,
}

impl PendingEntry<'_> {
    fn authenticate(self, tcp: Arc<Tcp>, arrivals: &SyncSender<Arrival>, wait: Wait) {
        let outcome = self.shared.acceptor.receive(tcp, wait);
        let mut state = self.shared.state();
        let evicted = state.pending.get(&self.number).is_none_or(|pending| pending.evicted);
        match outcome {
            // This side ended it and counted it then. It may have completed its handshake just before.
            Ok(_) | Err(_) if evicted || state.closed => {}
            Ok(arrival) => {
                state.counts.authenticated += 1;
                // Removed before the caller gets it, and not when this thread ends: from here on neither an
                // eviction nor the end of the listener may close it.
                state.pending.remove(&self.number);
                match arrivals.try_send(arrival) {
                    Ok(()) | Err(TrySendError::Disconnected(_)) => {}
                    Err(TrySendError::Full(arrival)) => {
                        drop(state);
                        let text = format!("{ARRIVALS_MAX} ranks are waiting; dial again later");
                        // It dials again in both cases.
                        let _ = arrival.refuse(Fault::new(FaultCode::Busy, text), Wait::Never);
                    }
                }
            }
            Err(fault) => {
                if fault.is_late() {
                    state.counts.timed_out += 1;
                } else {
                    state.counts.failed += 1;
                }
                state.record_failure(fault);
            }
        }
    }
}

impl Drop for PendingEntry<'_> {
    fn drop(&mut self) {
        self.shared.state().pending.remove(&self.number);
        self.shared.ended.notify_all();
    }
}

impl ListenerState {
    fn record_failure(&mut self, fault: WireError) {
        if self.failures.len() == FAILURES_MAX {
            self.failures.pop_front();
        }
        self.failures.push_back(fault);
    }

    /// End the oldest connection of the address with the most.
    fn evict_one(&mut self) {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for pending in self.pending.values().filter(|pending| !pending.evicted) {
            *counts.entry(pending.tcp.peer().ip()).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or(0);
        let oldest = self
            .pending
            .values_mut()
            .find(|pending| !pending.evicted && counts[&pending.tcp.peer().ip()] == most);
        if let Some(pending) = oldest {
            pending.evicted = true;
            pending.tcp.shutdown();
            self.counts.evicted += 1;
        }
    }
}

#[cfg(test)]
mod process_tests;
