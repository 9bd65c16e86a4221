// SPDX-License-Identifier: Apache-2.0
//! Takes connections, and hands over those whose dialler has proved itself.
//!
//! Apart from the handshake, which is one connection's: here is what many strangers at once may cost. Each connection
//! that is not proved yet holds one thread with a small stack and about 2 KiB (70 more under TLS), for one deadline,
//! and there are at most [`ListenOptions::strangers`] of them. When one more comes, the oldest of the address with
//! the most is dropped: whoever floods from one machine pushes out himself. A real rank needs two round trips.
//!
//! Refuses to decide who is welcome, and to print: what went wrong is counted and kept for whoever asks.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::bell::Waker;
use crate::control::{Fault, FaultCode};
use crate::error::WireError;
use crate::handshake::{Arrival, Keys, Reception};
use crate::silence::Timeouts;
use crate::socket::{self, LinkOptions, timespec};
use crate::tcp::Tcp;
use crate::tls::TlsServer;
use crate::transport::Wait;

/// Proved connections that wait for the caller. One more is refused: the caller is stuck or the job is too large.
const ARRIVALS_MAX: usize = 4096;
/// Failures that are kept for [`Listener::take_failures`]; the oldest go first.
const FAILURES_MAX: usize = 64;
/// Enough for TLS in a debug build, with room.
const STACK: usize = 512 << 10;
/// Pause after the system gave no connection for want of something, which no event ends.
const PAUSE: Duration = Duration::from_millis(100);

/// How to listen.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// The sockets' options; `local` is not used.
    pub link: LinkOptions,
    /// Encryption; `None`: none.
    pub tls: Option<TlsServer>,
    /// Waiting times; `handshake` is a stranger's.
    pub timeouts: Timeouts,
    /// Connections that may be unproved at once, at least 1; default 64.
    pub strangers: usize,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { link: LinkOptions::default(), tls: None, timeouts: Timeouts::default(), strangers: 64 }
    }
}

/// What became of connections so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visits {
    /// Accepted by the system, and given a place.
    pub came: u64,
    /// Proved themselves.
    pub proved: u64,
    /// Did not: another secret, another protocol, or gone.
    pub failed: u64,
    /// Took longer than the deadline.
    pub late: u64,
    /// Were dropped for newer ones.
    pub dropped: u64,
}

/// Listens at an address until it is dropped.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    arrivals: Receiver<Arrival>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Ends a listener from another thread.
#[derive(Clone, Debug)]
pub struct Closer(Arc<Shared>);

struct Shared {
    reception: Reception,
    handshake: Duration,
    strangers: usize,
    link: LinkOptions,
    bell: Waker,
    lobby: Mutex<Lobby>,
    /// A stranger left the lobby.
    left: Condvar,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("lobby", &self.lobby).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Lobby {
    /// Unproved connections by their order of arrival.
    waiting: BTreeMap<u64, Stranger>,
    next: u64,
    closed: bool,
    visits: Visits,
    failures: VecDeque<WireError>,
}

#[derive(Debug)]
struct Stranger {
    tcp: Arc<Tcp>,
    dropped: bool,
}

impl Listener {
    /// Listens at `address`; port 0 is the system's choice.
    ///
    /// # Errors
    /// [`WireError::PortInUse`], or an address that is not this machine's.
    pub fn bind(address: SocketAddr, keys: Keys, options: ListenOptions) -> Result<Self, WireError> {
        let socket = socket::listen(address, &options.link)?;
        let system = |doing, why| WireError::System { doing, why };
        let address = rustix::net::getsockname(&socket)
            .and_then(SocketAddr::try_from)
            .map_err(|why| WireError::Address { address, why: why.into() })?;
        let timeout = options.timeouts.timeout;
        let shared = Arc::new(Shared {
            reception: Reception { keys, tls: options.tls, timeout },
            handshake: options.timeouts.handshake.into(),
            strangers: options.strangers.max(1),
            link: options.link,
            bell: Waker::new().map_err(|why| system("making a bell", why))?,
            lobby: Mutex::default(),
            left: Condvar::new(),
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

    /// Where it listens, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next dialler that has proved itself; `None` if none came in time.
    ///
    /// # Errors
    /// [`WireError::Closed`] once it is closed.
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

    /// What became of connections so far.
    pub fn visits(&self) -> Visits {
        self.shared.lobby().visits
    }

    /// Why the last connections failed, the oldest first; each is told once, and at most 64 are kept.
    pub fn take_failures(&self) -> Vec<WireError> {
        self.shared.lobby().failures.drain(..).collect()
    }

    /// What ends it from another thread.
    pub fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.shared))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.closer().close();
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed; there is nothing to add.
            let _ = thread.join();
        }
        let mut lobby = self.shared.lobby();
        while !lobby.waiting.is_empty() {
            lobby = self.shared.left.wait(lobby).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Closer {
    /// Ends the listener: nobody is accepted any more, unproved connections end, and so does a waiting
    /// [`Listener::accept`]. Proved ones stay.
    pub fn close(&self) {
        let mut lobby = self.0.lobby();
        lobby.closed = true;
        for stranger in lobby.waiting.values() {
            stranger.tcp.shutdown();
        }
        drop(lobby);
        self.0.bell.wake();
        self.0.left.notify_all();
    }
}

impl Shared {
    fn lobby(&self) -> MutexGuard<'_, Lobby> {
        // What a panic could leave behind is a stranger more; no invariant spans two fields.
        self.lobby.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The listening thread.
    fn listen(self: &Arc<Self>, socket: &OwnedFd, arrivals: &SyncSender<Arrival>) {
        while !self.lobby().closed {
            match socket::accept(socket, &self.link) {
                Ok(Some(tcp)) => self.admit(tcp, arrivals),
                Ok(None) => self.rest(Some(socket)),
                Err(fault) => {
                    // No descriptors or no memory are left. A stranger's may be the ones that are missing.
                    let mut lobby = self.lobby();
                    lobby.fail(fault);
                    lobby.drop_one();
                    drop(lobby);
                    self.rest(None);
                }
            }
        }
    }

    /// Waits for a connection or the bell; without a socket for the bell or the end of a pause.
    fn rest(&self, socket: Option<&OwnedFd>) {
        let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
        fds.extend(socket.map(|socket| PollFd::new(socket, PollFlags::IN)));
        let pause = socket.is_none().then(|| timespec(PAUSE));
        // Interrupted is as good as woken: the caller looks again.
        let _ = poll(&mut fds, pause.as_ref());
    }

    /// Makes room for a connection and gives it a thread.
    fn admit(self: &Arc<Self>, tcp: Tcp, arrivals: &SyncSender<Arrival>) {
        let tcp = Arc::new(tcp);
        let mut lobby = self.lobby();
        while lobby.waiting.len() >= self.strangers && !lobby.closed {
            // Its thread notices at once: all that it waits for is this connection.
            lobby.drop_one();
            lobby = self.left.wait(lobby).unwrap_or_else(PoisonError::into_inner);
        }
        if lobby.closed {
            return;
        }
        lobby.visits.came += 1;
        let number = lobby.next;
        lobby.next += 1;
        lobby.waiting.insert(number, Stranger { tcp: Arc::clone(&tcp), dropped: false });
        drop(lobby);

        let (shared, arrivals) = (Arc::clone(self), arrivals.clone());
        let wait = Wait::within(self.handshake);
        let spawned =
            std::thread::Builder::new().name("foresee-greet".into()).stack_size(STACK).spawn(move || {
                // Leaves the lobby however this thread ends.
                let place = Place { shared: &shared, number };
                place.greet(tcp, &arrivals, wait);
            });
        if let Err(why) = spawned {
            let mut lobby = self.lobby();
            lobby.waiting.remove(&number);
            lobby.fail(WireError::System { doing: "starting a thread", why });
        }
    }
}

/// A stranger's place in the lobby.
struct Place<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Place<'_> {
    fn greet(self, tcp: Arc<Tcp>, arrivals: &SyncSender<Arrival>, wait: Wait) {
        let outcome = self.shared.reception.receive(tcp, wait);
        let mut lobby = self.shared.lobby();
        let dropped = lobby.waiting.get(&self.number).is_none_or(|stranger| stranger.dropped);
        match outcome {
            // Its end was ours: counted when it was dropped. It may have proved itself just before.
            Ok(_) | Err(_) if dropped || lobby.closed => {}
            Ok(arrival) => {
                lobby.visits.proved += 1;
                // Before the caller has it, and not when this thread ends: from here on neither a flood of strangers
                // nor the end of the listener may take it.
                lobby.waiting.remove(&self.number);
                match arrivals.try_send(arrival) {
                    Ok(()) | Err(TrySendError::Disconnected(_)) => {}
                    Err(TrySendError::Full(arrival)) => {
                        drop(lobby);
                        let text = format!("{ARRIVALS_MAX} ranks wait already; dial again later");
                        // It dials again either way.
                        let _ = arrival.refuse(Fault::new(FaultCode::Busy, text), Wait::Never);
                    }
                }
            }
            Err(fault) => {
                if fault.is_late() {
                    lobby.visits.late += 1;
                } else {
                    lobby.visits.failed += 1;
                }
                lobby.fail(fault);
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.shared.lobby().waiting.remove(&self.number);
        self.shared.left.notify_all();
    }
}

impl Lobby {
    fn fail(&mut self, fault: WireError) {
        if self.failures.len() == FAILURES_MAX {
            self.failures.pop_front();
        }
        self.failures.push_back(fault);
    }

    /// Ends the oldest connection of the address that has most.
    fn drop_one(&mut self) {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for stranger in self.waiting.values().filter(|stranger| !stranger.dropped) {
            *counts.entry(stranger.tcp.peer().ip()).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or(0);
        let oldest = self
            .waiting
            .values_mut()
            .find(|stranger| !stranger.dropped && counts[&stranger.tcp.peer().ip()] == most);
        if let Some(stranger) = oldest {
            stranger.dropped = true;
            stranger.tcp.shutdown();
            self.visits.dropped += 1;
        }
    }
}

#[cfg(test)]
mod process_tests;
