// SPDX-License-Identifier: Apache-2.0
//! The interfaces of a process: one sending thread per outgoing route.
//!
//! A rank and its colocated server share threads through clones of one [`Interfaces`]. Traffic that stays on the host has
//! a thread of its own, since its rate would otherwise be taken for the link's. Packets between the two stay in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, Weak};

use foresee_grad_queue::{Connection, Rules};
use foresee_wire::{Connection as WireConnection, Link, Timeouts, WireError};

use super::memory::{CONNECTION, MemoryEnd, MemoryPair, MemoryReceiver, PacketReceiver, Side};
use super::{Interface, InterfaceStats, OnBroken, SenderHandle};
use crate::sync::lock;

/// Interfaces, started when a connection first needs them; clones are the same ones.
#[derive(Clone, Debug)]
pub struct Interfaces(Arc<InterfaceSet>);

#[derive(Debug)]
struct InterfaceSet {
    rules: Rules,
    packet: NonZeroU32,
    senders: Mutex<BTreeMap<RouteKey, Arc<SenderHandle>>>,
    in_process: Mutex<InProcess>,
}

/// The rank and the server that send through these interfaces.
#[derive(Debug, Default)]
struct InProcess {
    /// Their ids in handshakes, by which the other end of a connection recognizes them.
    processes: BTreeSet<u64>,
    /// Connections between the two, by nonce.
    pairs: BTreeMap<[u8; 32], Weak<MemoryPair>>,
}

/// The sending and the receiving half of one end of a data connection.
pub(crate) struct DataPath {
    pub(crate) interface: Interface,
    pub(crate) connection: Connection,
    pub(crate) receiver: PacketReceiver,
}

/// A local address, and whether its packets stay on this host.
type RouteKey = (IpAddr, bool);

impl Interfaces {
    /// An empty set. `rules`: of their schedulers; `packet`: bytes of an ordinary packet.
    pub fn new(rules: Rules, packet: NonZeroU32) -> Self {
        let (senders, in_process) = (Mutex::default(), Mutex::default());
        Self(Arc::new(InterfaceSet { rules, packet, senders, in_process }))
    }

    /// Add a rank or a server by the random id that it sends in handshakes, before it has connections.
    pub(crate) fn add_process(&self, process: u64) {
        lock(&self.0.in_process).processes.insert(process);
    }

    /// Attach a data connection. `on_broken` is called when it breaks, which memory does not.
    ///
    /// # Errors
    /// The system has no thread or no poller left.
    pub(crate) fn attach(
        &self,
        data: WireConnection,
        side: Side,
        timeouts: Timeouts,
        on_broken: OnBroken,
    ) -> Result<DataPath, WireError> {
        let other = if side == Side::Dialler { data.welcome.session } else { data.hello.session };
        if let Some(pair) = self.memory_pair(other, data.nonce) {
            let interface = Interface::Memory(Arc::new(MemoryEnd::new(Arc::clone(&pair), side)));
            let receiver = PacketReceiver::Memory(MemoryReceiver::new(pair, side));
            return Ok(DataPath { interface, connection: CONNECTION, receiver });
        }
        let sender = self.sender_of(&data.link())?;
        let connection = sender.open(data.sender, timeouts, on_broken);
        let receiver = PacketReceiver::Network(data.receiver);
        Ok(DataPath { interface: Interface::Network(sender), connection, receiver })
    }

    /// The memory of a connection if its other end `other` is in this process; the first end makes it.
    fn memory_pair(&self, other: u64, nonce: [u8; 32]) -> Option<Arc<MemoryPair>> {
        let mut in_process = lock(&self.0.in_process);
        if !in_process.processes.contains(&other) {
            return None;
        }
        in_process.pairs.retain(|_, pair| pair.strong_count() > 0);
        if let Some(pair) = in_process.pairs.get(&nonce).and_then(Weak::upgrade) {
            return Some(pair);
        }
        let pair = Arc::new(MemoryPair::new(self.0.rules, self.0.packet));
        in_process.pairs.insert(nonce, Arc::downgrade(&pair));
        Some(pair)
    }

    fn sender_of(&self, link: &Link) -> Result<Arc<SenderHandle>, WireError> {
        let (local, peer) = (link.local().ip(), link.peer().ip());
        let key = (local, peer == local || peer.is_loopback());
        let mut senders = lock(&self.0.senders);
        if let Some(sender) = senders.get(&key) {
            return Ok(Arc::clone(sender));
        }
        let sender = Arc::new(SenderHandle::start(&local.to_string(), key.1, self.0.rules, self.0.packet)?);
        senders.insert(key, Arc::clone(&sender));
        Ok(sender)
    }

    /// Counters of each interface.
    pub(crate) fn stats(&self) -> Vec<InterfaceStats> {
        let memory: Vec<_> = lock(&self.0.in_process).pairs.values().filter_map(Weak::upgrade).collect();
        let network: Vec<_> = lock(&self.0.senders).values().map(|sender| sender.stats()).collect();
        network.into_iter().chain(memory.iter().map(|pair| pair.stats())).collect()
    }
}
