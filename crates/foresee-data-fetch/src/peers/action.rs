// SPDX-License-Identifier: Apache-2.0
//! What goes in and out of an exchange: settings, reads, actions, faults, counts.

use foresee_units::{Bytes, Nanos, NodeIndex, SampleId};

use super::message::PeerMessage;
use super::reads::PeerReadsConfig;
use super::sends::{PeerSendsConfig, Presence};

/// Settings of a [`PeerExchange`](super::PeerExchange).
#[derive(Clone, Copy, Debug)]
pub struct PeerExchangeConfig {
    /// Requests to other nodes.
    pub reads: PeerReadsConfig,
    /// Answers to other nodes.
    pub sends: PeerSendsConfig,
    /// Time between two [`PeerMessage::Passed`]: less than half of the patience of the readers.
    pub interval: Nanos,
    /// Bytes of samples that are kept for nodes to which they were offered, at most.
    pub offered_max: Bytes,
    /// Time of a read of the origin before [`PeerExchange::handle_origin_time`](super::PeerExchange::handle_origin_time).
    pub origin_time: Nanos,
}

/// What a node has, and what it knows about samples.
pub trait LocalSamples {
    /// Number of samples; they are numbered from 0.
    fn count(&self) -> u64;

    /// The size of a sample below [`count`](Self::count).
    fn size(&self, sample: SampleId) -> Bytes;

    /// Whether a sample below [`count`](Self::count) is in memory or on the disk, or will be.
    fn presence(&self, sample: SampleId) -> Presence;
}

/// A read that the plan of the node's cache begins, of a sample that the node does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRead {
    /// The sample.
    pub sample: SampleId,
    /// Its size.
    pub size: Bytes,
    /// When it is needed; [`Nanos::MAX`] if that is not known.
    pub deadline: Nanos,
}

/// What the caller has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAction {
    /// Send a message to a node.
    Send {
        /// The receiver.
        node: NodeIndex,
        /// The message.
        message: PeerMessage,
    },
    /// Send a sample to a node; then report [`PeerExchange::handle_sent`](super::PeerExchange::handle_sent), or [`PeerExchange::handle_gone`](super::PeerExchange::handle_gone).
    SendSample {
        /// The receiver.
        node: NodeIndex,
        /// The sample.
        sample: SampleId,
        /// Its size.
        size: Bytes,
    },
    /// Read a sample of [`PeerExchange::handle_read`](super::PeerExchange::handle_read) from the origin.
    ReadOrigin {
        /// The sample.
        sample: SampleId,
    },
    /// A node offers a sample: find memory for it, and report [`PeerExchange::handle_space`](super::PeerExchange::handle_space).
    Receive {
        /// The sample.
        sample: SampleId,
    },
    /// The node cannot have a sample that it was offered, after memory was found for it.
    Abandon {
        /// The sample.
        sample: SampleId,
    },
    /// Other nodes read a sample here: keep its last copy.
    Reserve {
        /// The sample.
        sample: SampleId,
    },
    /// No other node reads a sample here any more.
    Release {
        /// The sample.
        sample: SampleId,
    },
    /// End the connection to a node, and make no other: see [`PeerFault`].
    Refuse {
        /// The node.
        node: NodeIndex,
        /// Why.
        fault: PeerFault,
    },
}

/// Why two nodes cannot exchange samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerFault {
    /// They do not have the same order, sizes or capacities.
    #[error(
        "it plans other accesses before position {position} of the run; check that all nodes have the same data set, seed, batch size and Foresee version"
    )]
    OtherPlan {
        /// Position in the order of all accesses.
        position: u64,
    },
    /// It names a sample that does not exist.
    #[error("it names sample {sample} of {count}")]
    NoSuchSample {
        /// The sample.
        sample: SampleId,
        /// Number of samples.
        count: u64,
    },
    /// It requests more than it may.
    #[error("it requests {requests} samples at a time")]
    TooManyRequests {
        /// Number of its requests.
        requests: usize,
    },
}

/// Counts of an exchange, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCounts {
    /// Samples that were read from other nodes.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: Bytes,
    /// Samples that were sent to other nodes.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: Bytes,
    /// Reads for which another node should have had the sample, and had not.
    pub missing: u64,
    /// Reads for which another node was too slow, or the plan came too late.
    pub late: u64,
    /// Reads for which another node was silent or not connected.
    pub silent: u64,
}

impl std::ops::Add for PeerCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            received: self.received + other.received,
            received_bytes: self.received_bytes + other.received_bytes,
            sent: self.sent + other.sent,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            missing: self.missing + other.missing,
            late: self.late + other.late,
            silent: self.silent + other.silent,
        }
    }
}
