// SPDX-License-Identifier: Apache-2.0
//! The state of a host, for `foresee node status`, `stats()` and tests.

use foresee_data_fetch::Repeats;
use foresee_data_fetch::peers::PeerCounts;
use foresee_data_node::{AnswerCount, ConsumerStatus, NodeStatus, OriginStatus, PeerStatus, TierStatus};
use foresee_units::{Bytes, Nanos};

use super::consumer::{Served, ServedBySource};
use super::inbox::ConsumerFacts;
use super::reception::HostFacts;

/// State of a host.
#[derive(Clone, Debug, Default)]
pub(super) struct HostStatus {
    /// Bytes of entries in memory, and of those being read.
    pub(super) memory_used: Bytes,
    pub(super) disk_used: Bytes,
    /// Reads of the origins that have ended.
    pub(super) origin: Served,
    /// The exchange with the other nodes of a job.
    pub(super) peers: Option<PeerCounts>,
    /// Repeated reads of the origins.
    pub(super) repeats: Repeats,
    pub(super) consumers: Vec<ConsumerState>,
}

/// State of a consumer.
#[derive(Clone, Debug)]
pub(super) struct ConsumerState {
    pub(super) number: u32,
    pub(super) facts: ConsumerFacts,
    /// URI of its data set, without credentials.
    pub(super) data_set: Option<String>,
    pub(super) served: ServedBySource,
    /// Samples requested and not answered.
    pub(super) waiting: u64,
    /// Time since its last message.
    pub(super) silent_for: Nanos,
}

impl HostStatus {
    /// The same for a reader in another process.
    pub(super) fn to_message(&self, facts: &HostFacts) -> NodeStatus {
        let Repeats { retries, throttles, hedges } = self.repeats;
        let count = |samples, bytes: Bytes| AnswerCount { samples, bytes: bytes.get() };
        let (bytes, requests) = (self.origin.bytes.get(), self.origin.samples);
        NodeStatus {
            foresee: facts.foresee.clone(),
            pid: std::process::id(),
            uptime_seconds: facts.since.elapsed().as_secs(),
            memory: TierStatus { capacity: facts.ram.get(), used: self.memory_used.get() },
            disk: TierStatus { capacity: facts.disk.get(), used: self.disk_used.get() },
            origin: OriginStatus { bytes, requests, retries, throttles, hedges },
            peers: self.peers.map(|counts| PeerStatus {
                received: count(counts.received, counts.received_bytes),
                sent: count(counts.sent, counts.sent_bytes),
                missing: counts.missing,
                late: counts.late,
                silent: counts.silent,
            }),
            consumers: self.consumers.iter().map(ConsumerState::to_message).collect(),
            omitted_consumers: 0,
        }
    }
}

impl ConsumerState {
    /// A consumer without a data set.
    pub(super) fn new(number: u32, facts: ConsumerFacts) -> Self {
        Self {
            number,
            facts,
            data_set: None,
            served: ServedBySource::default(),
            waiting: 0,
            silent_for: Nanos::ZERO,
        }
    }

    fn to_message(&self) -> ConsumerStatus {
        let count = |served: Served| AnswerCount { samples: served.samples, bytes: served.bytes.get() };
        ConsumerStatus {
            number: self.number,
            pid: self.facts.pid,
            uid: self.facts.uid,
            job: self.facts.job.clone(),
            rank: self.facts.rank,
            local_rank: self.facts.local_rank,
            data_set: self.data_set.clone(),
            memory: count(self.served.memory),
            disk: count(self.served.disk),
            peers: count(self.served.peers),
            origin: count(self.served.origin),
            waiting: self.waiting,
            idle_nanos: self.silent_for.get(),
        }
    }
}
