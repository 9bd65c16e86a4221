// SPDX-License-Identifier: Apache-2.0
//! Connections between nodes: bytes of a node leave one after another, and what is sent on a connection arrives in order, or is
//! lost with the connection.

use std::collections::{BTreeMap, BTreeSet};

use foresee_units::{BytesPerSecond, Nanos};

/// All connections of a job.
#[derive(Debug)]
pub(crate) struct Links {
    latency: Nanos,
    /// By node: rate of what it sends.
    rates: Vec<BytesPerSecond>,
    /// By node: until when its interface is busy.
    busy: Vec<Nanos>,
    /// Connected pairs, the lower number first, with the number of their connection.
    connected: BTreeMap<(usize, usize), u64>,
    /// When the last thing sent on a connection in this direction arrives.
    arrivals: BTreeMap<(usize, usize), Nanos>,
    refused: BTreeSet<(usize, usize)>,
    count: u64,
}

impl Links {
    pub(crate) fn new(nodes: usize, rate: BytesPerSecond, latency: Nanos) -> Self {
        Self {
            latency,
            rates: vec![rate; nodes],
            busy: vec![Nanos::ZERO; nodes],
            connected: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            refused: BTreeSet::new(),
            count: 0,
        }
    }

    pub(crate) fn slow_down(&mut self, node: usize, times: u64) {
        self.rates[node] = BytesPerSecond::new((self.rates[node].get() / times).max(1));
    }

    /// Connect two nodes; `false` if they are, or one has refused the other.
    pub(crate) fn connect(&mut self, nodes: (usize, usize)) -> bool {
        let pair = ordered(nodes);
        if self.refused.contains(&pair) || self.connected.contains_key(&pair) {
            return false;
        }
        self.count += 1;
        self.connected.insert(pair, self.count);
        true
    }

    /// End a connection; `false` if there is none.
    pub(crate) fn disconnect(&mut self, nodes: (usize, usize)) -> bool {
        self.connected.remove(&ordered(nodes)).is_some()
    }

    pub(crate) fn refuse(&mut self, nodes: (usize, usize)) {
        self.refused.insert(ordered(nodes));
    }

    /// The number of the connection between two nodes.
    pub(crate) fn connection(&self, nodes: (usize, usize)) -> Option<u64> {
        self.connected.get(&ordered(nodes)).copied()
    }

    /// Send bytes; returns when they have left, and when they arrive.
    pub(crate) fn send(&mut self, (from, to): (usize, usize), bytes: u64, now: Nanos) -> (Nanos, Nanos) {
        let left = self.busy[from].max(now) + Nanos::new(bytes * 1_000_000_000 / self.rates[from].get());
        self.busy[from] = left;
        let last = self.arrivals.entry((from, to)).or_default();
        let arrives = (left + self.latency).max(*last);
        *last = arrives;
        (left, arrives)
    }
}

fn ordered((a, b): (usize, usize)) -> (usize, usize) {
    (a.min(b), a.max(b))
}
