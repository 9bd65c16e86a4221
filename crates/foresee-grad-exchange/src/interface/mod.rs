// SPDX-License-Identifier: Apache-2.0
//! Network interfaces: offers come from any thread, packets leave in the scheduler's order.
//!
//! Each network interface has one thread that writes to sockets. Packets for the same process are passed in memory. A
//! rank's pushes and, where a server shares its process, that server's sums leave through the same instance, so that
//! the bound on bytes in flight holds for the interface and an urgent packet of either goes first.
//!
//! A [`PacketSource`] yields the bytes of a packet only when it is about to be written. `foresee_grad_queue::Schedule`
//! chooses the next packet.

mod memory;
mod sender;
mod set;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use foresee_grad_queue::{Class, Connection, Flow, PacketStream, Round, Rules, Ticket};
use foresee_units::{Bytes, Nanos};
use foresee_wire::{FrameSender, Header, Poller, Timeouts, Waker, WireError};

use crate::sync::{lock, spawn};
use memory::MemoryEnd;
pub(crate) use memory::{PacketReceiver, Side};
use sender::Sender;
pub(crate) use set::DataPath;
pub use set::Interfaces;

/// The packets of an offer. It is called when a packet is written, and again when the rest of it is.
///
/// It is dropped after its last packet was given to the system or to a receiver of this process, or when its connections
/// are closed.
pub(crate) trait PacketSource: Send + Sync {
    /// The header of the `packet`-th packet that goes over `connection`.
    fn header(&self, connection: Connection, packet: u32) -> Header;

    /// The payload of that packet, with the same bytes every time: in `self`, or written to `scratch` by this call.
    fn payload<'a>(&'a self, connection: Connection, packet: u32, scratch: &'a mut Vec<u8>) -> &'a [u8];

    /// A packet is about to be sent. Called once for each; it must be quick, since the sending thread waits.
    fn on_send(&self, _connection: Connection, _packet: u32) {}
}

/// Callback for a connection that broke. The sending thread calls it once, without a lock; it must be quick.
pub(crate) type OnBroken = Box<dyn FnOnce(WireError) + Send>;

/// Counters of an interface since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceStats {
    /// Payload given to the system.
    pub sent: Bytes,
    /// Packets of that payload.
    pub packets: u64,
    /// System calls that wrote it.
    pub writes: u64,
    /// How often the sending thread woke up.
    pub wakes: u64,
    /// The current bound on bytes in flight.
    pub window: Bytes,
    /// The rate that the interface delivers, in bytes per second; 0 before it was measured.
    pub rate: u64,
    /// Whether its packets stay on this host.
    pub is_local: bool,
}

impl InterfaceStats {
    /// The interfaces that reach other hosts; all, if none does.
    pub fn of_network(all: &[Self]) -> Vec<Self> {
        let network: Vec<Self> = all.iter().copied().filter(|one| !one.is_local).collect();
        if network.is_empty() { all.to_vec() } else { network }
    }
}

/// An interface; clones are the same one.
#[derive(Clone, Debug)]
pub(crate) enum Interface {
    /// Through sockets, by a thread that ends with the last handle of it.
    Network(Arc<SenderHandle>),
    /// To a receiver of this process.
    Memory(Arc<MemoryEnd>),
}

pub(crate) struct SenderHandle {
    shared: Arc<SenderShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// State that the sending thread shares with its handles.
pub(crate) struct SenderShared {
    inbox: Mutex<Inbox>,
    waker: Waker,
    start: Instant,
    tickets: AtomicU64,
    connections: AtomicU32,
    stats: Mutex<InterfaceStats>,
}

#[derive(Default)]
struct Inbox {
    commands: Vec<Command>,
    is_stopped: bool,
}

/// A command to the sending thread.
enum Command {
    Open {
        connection: Connection,
        sender: Box<FrameSender>,
        timeouts: Timeouts,
        on_broken: OnBroken,
    },
    Close(Connection),
    Offer {
        ticket: Ticket,
        flow: Flow,
        round: Round,
        class: Class,
        streams: Vec<PacketStream>,
        source: Arc<dyn PacketSource>,
        at: Nanos,
    },
    SetPacketBytes(NonZeroU32),
    Acknowledge {
        connection: Connection,
        bytes: Bytes,
    },
}

impl Interface {
    /// Whether both are the same interface.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Network(one), Self::Network(other)) => Arc::ptr_eq(one, other),
            (Self::Memory(one), Self::Memory(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// The flow of a job. Packets of one flow leave in one order, those of a rank and of its colocated server alike, and
    /// flows share an interface evenly. Two jobs with equal hashes would share one flow, which does no harm.
    pub(crate) fn flow_of(job: &str) -> Flow {
        // FNV-1a needs no table of jobs.
        Flow::new(
            job.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)),
        )
    }

    /// Set the bytes of an ordinary packet.
    pub(crate) fn set_packet_bytes(&self, bytes: NonZeroU32) {
        match self {
            Self::Network(handle) => handle.shared.send(Command::SetPacketBytes(bytes)),
            Self::Memory(end) => end.set_packet_bytes(bytes),
        }
    }

    /// Close `connection`: its queued packets are dropped, and its callback is not called any more.
    pub(crate) fn close(&self, connection: Connection) {
        match self {
            Self::Network(handle) => handle.shared.send(Command::Close(connection)),
            Self::Memory(end) => end.close(),
        }
    }

    /// Offer packets to send. Never waits.
    pub(crate) fn offer(
        &self,
        flow: Flow,
        (round, class): (Round, Class),
        streams: Vec<PacketStream>,
        source: Arc<dyn PacketSource>,
    ) {
        match self {
            Self::Network(handle) => {
                let shared = &handle.shared;
                let ticket = Ticket::new(shared.tickets.fetch_add(1, Ordering::Relaxed));
                shared.send(Command::Offer { ticket, flow, round, class, streams, source, at: shared.now() });
            }
            Self::Memory(end) => end.offer(flow, (round, class), &streams, source),
        }
    }

    /// The peer's application acknowledged `bytes`, which frees credit.
    pub(crate) fn acknowledge(&self, connection: Connection, bytes: Bytes) {
        match self {
            Self::Network(handle) => handle.shared.send(Command::Acknowledge { connection, bytes }),
            Self::Memory(end) => end.acknowledge(bytes),
        }
    }

    /// Counters since the start; those of a memory interface are of both directions.
    pub(crate) fn stats(&self) -> InterfaceStats {
        match self {
            Self::Network(handle) => handle.stats(),
            Self::Memory(end) => end.stats(),
        }
    }
}

impl SenderHandle {
    /// Start a sending thread. `name`: of the thread; `is_local`: whether its packets stay on this host.
    ///
    /// # Errors
    /// The system has no thread or no poller left.
    fn start(name: &str, is_local: bool, rules: Rules, packet: NonZeroU32) -> Result<Self, WireError> {
        let poller = Poller::new()?;
        let shared = Arc::new(SenderShared {
            inbox: Mutex::default(),
            waker: poller.waker(),
            start: Instant::now(),
            tickets: AtomicU64::new(0),
            connections: AtomicU32::new(0),
            stats: Mutex::new(InterfaceStats { is_local, ..InterfaceStats::default() }),
        });
        let sender = Sender::new(Arc::clone(&shared), poller, rules, packet);
        let thread = spawn(format!("foresee-send-{name}"), move || sender.run())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Hand over a connection's sending half. The thread owns it until the connection closes or breaks. A connection whose
    /// peer acknowledges nothing for a timeout counts as broken, if the system reports acknowledgments.
    fn open(&self, sender: FrameSender, timeouts: Timeouts, on_broken: OnBroken) -> Connection {
        let connection = Connection::new(self.shared.connections.fetch_add(1, Ordering::Relaxed));
        self.shared.send(Command::Open { connection, sender: Box::new(sender), timeouts, on_broken });
        connection
    }

    fn stats(&self) -> InterfaceStats {
        *lock(&self.shared.stats)
    }
}

impl SenderShared {
    /// Time since the start of the thread: the scheduler's clock.
    fn now(&self) -> Nanos {
        Nanos::from(self.start.elapsed())
    }

    fn send(&self, command: Command) {
        let mut inbox = lock(&self.inbox);
        let is_first = inbox.commands.is_empty();
        inbox.commands.push(command);
        drop(inbox);
        // Pending commands imply a wake-up that the thread has not answered yet.
        if is_first {
            self.waker.wake();
        }
    }
}

impl Drop for SenderHandle {
    fn drop(&mut self) {
        lock(&self.shared.inbox).is_stopped = true;
        self.shared.waker.wake();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // A packet source may own the last handle, and the thread itself drops that.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl std::fmt::Debug for SenderHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SenderHandle").finish_non_exhaustive()
    }
}
