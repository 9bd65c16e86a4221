// SPDX-License-Identifier: Apache-2.0
//! The interfaces of a process: one sending thread for each way out of the machine.
//!
//! Whoever sends through the same way shares its thread, so a rank and the server beside it are given clones of one
//! [`Interfaces`]. What stays on the machine takes nothing from a link: it has a thread of its own, or its rate would be
//! taken for the link's. What the two send to one another stays in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use foresee_grad_queue::{Connection, Rules};
use foresee_wire::{Connection as WireConnection, Link, Timeouts, WireError};

use super::memory::{CONNECTION, MemoryEnd, MemoryPair, MemoryReceiver, PacketReceiver, Side};
use super::{Broken, Handle, Interface, InterfaceStats};

/// Interfaces, made when a connection first needs them; clones are the same ones.
#[derive(Clone, Debug)]
pub struct Interfaces(Arc<Several>);

#[derive(Debug)]
struct Several {
    rules: Rules,
    packet: NonZeroU32,
    ways: Mutex<BTreeMap<Way, Arc<Handle>>>,
    inside: Mutex<Inside>,
}

/// What sends through these interfaces itself.
#[derive(Debug, Default)]
struct Inside {
    /// Its numbers, by which the other end of a connection knows it.
    processes: BTreeSet<u64>,
    /// Connections between two of them, by their nonce.
    pairs: BTreeMap<[u8; 32], Weak<MemoryPair>>,
}

/// How packets go and come at one end of a data connection.
pub(crate) struct Path {
    pub(crate) interface: Interface,
    pub(crate) connection: Connection,
    pub(crate) receiver: PacketReceiver,
}

/// A local address, and whether what leaves it stays on this machine.
type Way = (IpAddr, bool);

impl Interfaces {
    /// None yet. `rules`: what their schedulers obey; `packet`: bytes of an ordinary packet.
    pub fn new(rules: Rules, packet: NonZeroU32) -> Self {
        Self(Arc::new(Several { rules, packet, ways: Mutex::default(), inside: Mutex::default() }))
    }

    /// A rank or a server sends through these interfaces; `process` is what it says of itself in handshakes, and is drawn at
    /// random. To be called before it has connections.
    pub(crate) fn enter(&self, process: u64) {
        self.inside().processes.insert(process);
    }

    /// The way of a data connection's packets. `broken` hears where it breaks by itself, which memory does not.
    ///
    /// # Errors
    /// The system has no thread or no poller to give.
    pub(crate) fn attach(
        &self,
        data: WireConnection,
        side: Side,
        timeouts: Timeouts,
        broken: Broken,
    ) -> Result<Path, WireError> {
        let other = if side == Side::Dialler { data.welcome.session } else { data.hello.session };
        if let Some(pair) = self.pair(other, data.nonce) {
            let interface = Interface::Memory(Arc::new(MemoryEnd::new(Arc::clone(&pair), side)));
            let receiver = PacketReceiver::Memory(MemoryReceiver::new(pair, side));
            return Ok(Path { interface, connection: CONNECTION, receiver });
        }
        let handle = self.of(&data.link())?;
        let connection = handle.open(data.sender, timeouts, broken);
        let receiver = PacketReceiver::Network(data.receiver);
        Ok(Path { interface: Interface::Network(handle), connection, receiver })
    }

    /// The memory of a connection whose other end, `other`, sends through these interfaces too: made by the first end.
    fn pair(&self, other: u64, nonce: [u8; 32]) -> Option<Arc<MemoryPair>> {
        let mut inside = self.inside();
        if !inside.processes.contains(&other) {
            return None;
        }
        inside.pairs.retain(|_, pair| pair.strong_count() > 0);
        if let Some(pair) = inside.pairs.get(&nonce).and_then(Weak::upgrade) {
            return Some(pair);
        }
        let pair = Arc::new(MemoryPair::new(self.0.rules, self.0.packet));
        inside.pairs.insert(nonce, Arc::downgrade(&pair));
        Some(pair)
    }

    /// The one through which a connection goes.
    fn of(&self, link: &Link) -> Result<Arc<Handle>, WireError> {
        let (local, peer) = (link.local().ip(), link.peer().ip());
        let way = (local, peer == local || peer.is_loopback());
        let mut ways = self.ways();
        if let Some(handle) = ways.get(&way) {
            return Ok(Arc::clone(handle));
        }
        let handle = Arc::new(Handle::start(&local.to_string(), way.1, self.0.rules, self.0.packet)?);
        ways.insert(way, Arc::clone(&handle));
        Ok(handle)
    }

    /// What each has done so far.
    pub(crate) fn stats(&self) -> Vec<InterfaceStats> {
        let memory: Vec<_> = self.inside().pairs.values().filter_map(Weak::upgrade).collect();
        let network: Vec<_> = self.ways().values().map(|handle| handle.stats()).collect();
        network.into_iter().chain(memory.iter().map(|pair| pair.stats())).collect()
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ways(&self) -> MutexGuard<'_, BTreeMap<Way, Arc<Handle>>> {
        self.0.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
