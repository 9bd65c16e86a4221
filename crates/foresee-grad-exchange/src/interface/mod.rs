// SPDX-License-Identifier: Apache-2.0
//! Network interfaces: offers come from any thread, packets leave in the scheduler's order.
//!
//! Each network interface has one thread that writes to sockets. Packets for the same process are passed in memory. A
//! rank's pushes and, where a server shares its process, that server's sums leave through the same instance, so that
//! the bound on bytes in flight holds for the interface and an urgent packet of either goes first.
//!
//! A [`Parcel`] yields the bytes of a packet only when it is about to be written. `foresee_grad_queue::Schedule`
//! chooses the next packet.

mod memory;
mod sender;
mod several;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use foresee_grad_queue::{Class, Connection, Flow, Lane, Round, Rules, Ticket};
use foresee_units::{Bytes, Nanos};
use foresee_wire::{FrameSender, Header, Poller, Timeouts, Waker, WireError};

use memory::MemoryEnd;
pub(crate) use memory::{PacketReceiver, Side};
use sender::Sender;
pub use several::Interfaces;
pub(crate) use several::Path;

/// What is offered: asked for a packet when that is written, and again when the rest of it is.
///
/// Dropped after its last packet was given to the system or to a receiver of this process, or when its connections are gone.
pub(crate) trait Parcel: Send + Sync {
    /// The header of the `packet`-th packet that goes over `connection`.
    fn header(&self, connection: Connection, packet: u32) -> Header;

    /// The payload of that packet, with the same bytes every time. It lies in `self`, or was written to `room` for this call.
    fn payload<'a>(&'a self, connection: Connection, packet: u32, room: &'a mut Vec<u8>) -> &'a [u8];

    /// A packet is about to be handed over. Called once for each; quick, for the thread waits.
    fn leaves(&self, _connection: Connection, _packet: u32) {}
}

/// Hears that a connection is of no more use. Called once, by the interface's thread, which holds no lock then: quick.
pub(crate) type Broken = Box<dyn FnOnce(WireError) + Send>;

/// What an interface has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceStats {
    /// Payload that was given to the system.
    pub sent: Bytes,
    /// Packets of it.
    pub packets: u64,
    /// Calls to the system that wrote it.
    pub writes: u64,
    /// Times that the thread woke.
    pub wakes: u64,
    /// How much may be under way now.
    pub window: Bytes,
    /// What the interface was seen to deliver, per second; 0 before it was measured.
    pub rate: u64,
    /// Whether what it sends stays on this machine.
    pub is_local: bool,
}

impl InterfaceStats {
    /// Those that reach other machines; all, where none does.
    pub fn of_network(all: &[Self]) -> Vec<Self> {
        let network: Vec<Self> = all.iter().copied().filter(|one| !one.is_local).collect();
        if network.is_empty() { all.to_vec() } else { network }
    }
}

/// A way for packets; clones are the same one.
#[derive(Clone, Debug)]
pub(crate) enum Interface {
    /// Through sockets, by a thread that ends with the last handle of it.
    Network(Arc<Handle>),
    /// To a receiver of this process.
    Memory(Arc<MemoryEnd>),
}

pub(crate) struct Handle {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread and its clients share.
pub(crate) struct Shared {
    inbox: Mutex<Inbox>,
    waker: Waker,
    start: Instant,
    tickets: AtomicU64,
    connections: AtomicU32,
    stats: Mutex<InterfaceStats>,
}

#[derive(Default)]
struct Inbox {
    orders: Vec<Command>,
    stop: bool,
}

/// What clients ask of the thread, in their order.
enum Command {
    Open {
        connection: Connection,
        sender: Box<FrameSender>,
        timeouts: Timeouts,
        broken: Broken,
    },
    Close {
        connection: Connection,
    },
    Offer {
        ticket: Ticket,
        flow: Flow,
        round: Round,
        class: Class,
        lanes: Vec<Lane>,
        parcel: Arc<dyn Parcel>,
        at: Nanos,
    },
    Packet {
        bytes: NonZeroU32,
    },
    Acked {
        connection: Connection,
        bytes: Bytes,
    },
}

impl Interface {
    /// Whether both are the same way.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Network(one), Self::Network(other)) => Arc::ptr_eq(one, other),
            (Self::Memory(one), Self::Memory(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// The number under which all that a job sends through an interface goes in one order, be it a rank's or that of a
    /// server beside it; jobs share interfaces evenly. Two jobs of one number would go in one order too, which does no harm.
    pub(crate) fn flow_of(job: &str) -> Flow {
        // FNV-1a: no table has to know which jobs there were.
        Flow::new(
            job.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)),
        )
    }

    /// An ordinary packet has so many bytes from now on.
    pub(crate) fn packet(&self, bytes: NonZeroU32) {
        match self {
            Self::Network(handle) => handle.shared.tell(Command::Packet { bytes }),
            Self::Memory(end) => end.packet(bytes),
        }
    }

    /// Nothing more goes over `connection`; what waits for it is dropped. `broken` is not called any more.
    pub(crate) fn close(&self, connection: Connection) {
        match self {
            Self::Network(handle) => handle.shared.tell(Command::Close { connection }),
            Self::Memory(end) => end.close(),
        }
    }

    /// There is something to send. Never waits.
    pub(crate) fn offer(
        &self,
        flow: Flow,
        (round, class): (Round, Class),
        lanes: Vec<Lane>,
        parcel: Arc<dyn Parcel>,
    ) {
        match self {
            Self::Network(handle) => {
                let shared = &handle.shared;
                let ticket = Ticket::new(shared.tickets.fetch_add(1, Ordering::Relaxed));
                shared.tell(Command::Offer { ticket, flow, round, class, lanes, parcel, at: shared.now() });
            }
            Self::Memory(end) => end.offer(flow, (round, class), &lanes, parcel),
        }
    }

    /// The other end's application has dealt with `bytes`: frees credit.
    pub(crate) fn acked(&self, connection: Connection, bytes: Bytes) {
        match self {
            Self::Network(handle) => handle.shared.tell(Command::Acked { connection, bytes }),
            Self::Memory(end) => end.acked(bytes),
        }
    }

    /// What it has done so far, in both directions.
    pub(crate) fn stats(&self) -> InterfaceStats {
        match self {
            Self::Network(handle) => handle.stats(),
            Self::Memory(end) => end.stats(),
        }
    }
}

impl Handle {
    /// Starts the thread. `name`: for the thread; `is_local`: whether what it sends stays on this machine; `rules`: what
    /// its scheduler obeys; `packet`: bytes of an ordinary packet.
    ///
    /// # Errors
    /// The system has no thread or no poller to give.
    fn start(name: &str, is_local: bool, rules: Rules, packet: NonZeroU32) -> Result<Self, WireError> {
        let poller = Poller::new()?;
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            waker: poller.waker(),
            start: Instant::now(),
            tickets: AtomicU64::new(0),
            connections: AtomicU32::new(0),
            stats: Mutex::new(InterfaceStats { is_local, ..InterfaceStats::default() }),
        });
        let sender = Sender::new(Arc::clone(&shared), poller, rules, packet);
        let thread = thread::Builder::new()
            .name(format!("foresee-send-{name}"))
            .spawn(move || sender.run())
            .map_err(|why| WireError::System { doing: "starting a thread", why })?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Hands a connection's sending half over. It is the thread's until the connection closes or breaks; one whose other
    /// end acknowledges nothing for a timeout counts as broken, where the system tells.
    fn open(&self, sender: FrameSender, timeouts: Timeouts, broken: Broken) -> Connection {
        let connection = Connection::new(self.shared.connections.fetch_add(1, Ordering::Relaxed));
        self.shared.tell(Command::Open { connection, sender: Box::new(sender), timeouts, broken });
        connection
    }

    fn stats(&self) -> InterfaceStats {
        *self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Time since the start of the thread: the scheduler's clock.
    fn now(&self) -> Nanos {
        Nanos::from(self.start.elapsed())
    }

    fn tell(&self, command: Command) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let first = inbox.orders.is_empty();
        inbox.orders.push(command);
        drop(inbox);
        // Whoever finds orders there knows that the bell was rung for them and not yet answered.
        if first {
            self.waker.wake();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.inbox.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.shared.waker.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The last handle may be held by a parcel, which the thread itself drops.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interface").finish_non_exhaustive()
    }
}
