// SPDX-License-Identifier: Apache-2.0
//! The interfaces of a process: one sending thread for each way out of the machine.
//!
//! Whoever sends through the same way shares its thread, so a rank and the server beside it are given clones of one
//! [`Interfaces`]. What stays on the machine takes nothing from a link: it has a thread of its own, or its rate would be
//! taken for the link's.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foresee_grad_queue::Rules;
use foresee_wire::{Link, WireError};

use super::{Interface, InterfaceStats};

/// Interfaces, made when a connection first needs them; clones are the same ones.
#[derive(Clone, Debug)]
pub struct Interfaces(Arc<Several>);

#[derive(Debug)]
struct Several {
    rules: Rules,
    packet: NonZeroU32,
    ways: Mutex<BTreeMap<Way, Interface>>,
}

/// A local address, and whether what leaves it stays on this machine.
type Way = (IpAddr, bool);

impl Interfaces {
    /// None yet. `rules`: what their schedulers obey; `packet`: bytes of an ordinary packet.
    pub fn new(rules: Rules, packet: NonZeroU32) -> Self {
        Self(Arc::new(Several { rules, packet, ways: Mutex::default() }))
    }

    /// The one through which a connection goes.
    pub(crate) fn of(&self, link: &Link) -> Result<Interface, WireError> {
        let (local, peer) = (link.local().ip(), link.peer().ip());
        let way = (local, peer == local || peer.is_loopback());
        let mut ways = self.ways();
        if let Some(interface) = ways.get(&way) {
            return Ok(interface.clone());
        }
        let interface = Interface::start(&local.to_string(), way.1, self.0.rules, self.0.packet)?;
        ways.insert(way, interface.clone());
        Ok(interface)
    }

    /// What each has done so far.
    pub(crate) fn stats(&self) -> Vec<InterfaceStats> {
        self.ways().values().map(Interface::stats).collect()
    }

    fn ways(&self) -> MutexGuard<'_, BTreeMap<Way, Interface>> {
        self.0.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
