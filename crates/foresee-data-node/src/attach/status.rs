// SPDX-License-Identifier: Apache-2.0
//! State of a host for tools: what it caches and for whom. It contains no credentials.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::connection::{ConnectOptions, dial, greet, refused};
use super::frame::{self, HEADER_BYTES, MESSAGE_BYTES_MAX};
use super::listener::refuse;
use super::message::{NodeReply, NodeRequest, RefusalCode};
use super::socket::MessageSocket;
use crate::address::NodeAddress;
use crate::error::NodeError;
use crate::peer::PeerCredentials;

/// Bytes of the longest encoded count.
const VARINT_BYTES_MAX: usize = 5;

/// A snapshot of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Version of the host's Foresee package.
    pub foresee: String,
    /// The host's process number in its own pid namespace.
    pub pid: u32,
    /// Seconds since its start.
    pub uptime_seconds: u64,
    /// Memory of the cache.
    pub memory: TierStatus,
    /// Disk space of the cache; a capacity of 0 without a disk.
    pub disk: TierStatus,
    /// Reads of all origins since the start.
    pub origin: OriginStatus,
    /// The exchange of samples with other nodes of a job; `None` without one.
    pub peers: Option<PeerStatus>,
    /// The attached consumers.
    pub consumers: Vec<ConsumerStatus>,
    /// Consumers that are left out of the list because the message is full.
    pub omitted_consumers: u32,
}

/// Space of one tier, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierStatus {
    /// Bytes that it may hold.
    pub capacity: u64,
    /// Bytes that it holds.
    pub used: u64,
}

/// Reads of origins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginStatus {
    /// Received bytes.
    pub bytes: u64,
    /// Requests, with repeated ones.
    pub requests: u64,
    /// Requests put back after a failed attempt.
    pub retries: u64,
    /// Attempts that the origin refused because of its load.
    pub throttles: u64,
    /// Second attempts of reads that were late.
    pub hedges: u64,
}

/// Samples that a host has exchanged with other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Samples received.
    pub received: AnswerCount,
    /// Samples sent.
    pub sent: AnswerCount,
    /// Reads for which another node should have had the sample, and had not.
    pub missing: u64,
    /// Reads for which another node was too slow.
    pub late: u64,
    /// Reads for which another node was silent or not connected.
    pub silent: u64,
}

/// One consumer of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerStatus {
    /// Its number, unique in the life of the host.
    pub number: u32,
    /// Its process number as the host sees it; `None` if it is not visible there.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: u32,
    /// Name of its job.
    pub job: String,
    /// Its rank.
    pub rank: u32,
    /// Its rank among those of this node.
    pub local_rank: u32,
    /// The data set, as [`public_uri`](super::DataSetDescription::public_uri); `None` before it opened one.
    pub data_set: Option<String>,
    /// Answers from memory.
    pub memory: AnswerCount,
    /// Answers read from disk.
    pub disk: AnswerCount,
    /// Answers received from other nodes.
    pub peers: AnswerCount,
    /// Answers read from the origin.
    pub origin: AnswerCount,
    /// Samples that are requested and not answered yet.
    pub waiting: u64,
    /// Nanoseconds since its last message.
    pub idle_nanos: u64,
}

/// Answered samples of one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerCount {
    /// Number of samples.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A permitted peer that has requested the status. Dropping it closes the connection without an answer.
#[derive(Debug)]
pub struct StatusRequest {
    socket: MessageSocket,
    credentials: PeerCredentials,
}

impl NodeStatus {
    /// Request the status of the host at `address`, without attaching to it.
    ///
    /// # Errors
    /// As [`NodeConnection::connect`](super::NodeConnection::connect), but for the memory.
    pub fn query(address: &NodeAddress, options: &ConnectOptions) -> Result<Self, NodeError> {
        let (socket, _) = dial(address, options)?;
        greet(&socket, &NodeRequest::Status, options.timeout)?;
        let answer = socket.receive(MESSAGE_BYTES_MAX, false, options.timeout, "send its status")?;
        match frame::decode(&answer.bytes)? {
            NodeReply::Status(status) => Ok(status),
            NodeReply::Refusal(refusal) => Err(refused(refusal)),
            _ => Err(NodeError::Malformed { why: "it is neither a status nor a refusal".into() }),
        }
    }

    /// Encode it without the last consumers if all do not fit.
    fn encode(mut self) -> Result<Vec<u8>, NodeError> {
        let consumers = std::mem::take(&mut self.consumers);
        let count = u32::try_from(consumers.len()).expect("the host has as many descriptors");
        // The longest count, to which the length of the list adds at most as many bytes.
        self.omitted_consumers = u32::MAX;
        let fixed = HEADER_BYTES + frame::body_bytes(&NodeReply::Status(self.clone())) + VARINT_BYTES_MAX;
        let mut left = MESSAGE_BYTES_MAX.saturating_sub(fixed);
        let fits = |consumer: &ConsumerStatus| match left.checked_sub(frame::body_bytes(consumer)) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        };
        self.consumers = consumers.into_iter().take_while(fits).collect();
        self.omitted_consumers = count - u32::try_from(self.consumers.len()).expect("at most all of them");
        frame::encode(&NodeReply::Status(self), MESSAGE_BYTES_MAX)
    }
}

impl StatusRequest {
    pub(super) fn new(socket: MessageSocket, credentials: PeerCredentials) -> Self {
        Self { socket, credentials }
    }

    /// What the kernel knows about the peer.
    pub fn credentials(&self) -> PeerCredentials {
        self.credentials
    }

    /// Answer without waiting. If not all consumers fit into the message, the last ones are left out and counted.
    ///
    /// # Errors
    /// [`NodeError::Ended`] or [`NodeError::Late`]: the peer left or does not read.
    pub fn answer(self, status: NodeStatus) -> Result<(), NodeError> {
        self.socket.send(&status.encode()?, &[], Duration::ZERO)
    }

    /// Refuse with a reason for users.
    pub fn refuse(self, code: RefusalCode, text: impl Into<String>) {
        refuse(&self.socket, code, text.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8]) -> NodeStatus {
        match frame::decode(bytes).unwrap() {
            NodeReply::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    fn with_consumers(count: u32, job: &str) -> NodeStatus {
        let consumer = |number| ConsumerStatus { number, job: job.into(), ..ConsumerStatus::default() };
        NodeStatus { consumers: (0..count).map(consumer).collect(), ..NodeStatus::default() }
    }

    #[test]
    fn a_status_that_fits_is_complete() {
        for count in [0, 1, 1000] {
            let status = with_consumers(count, "training");
            assert_eq!(decode(&status.clone().encode().unwrap()), status);
        }
    }

    #[test]
    fn a_long_status_leaves_the_last_consumers_out_and_counts_them() {
        for (count, job) in [(4000, "training".to_owned()), (70, "x".repeat(1000)), (1, "x".repeat(70_000))] {
            let status = with_consumers(count, &job);
            let encoded = status.clone().encode().unwrap();
            let found = decode(&encoded);
            let shown = found.consumers.len();
            assert_eq!(found.consumers, status.consumers[..shown]);
            assert!(found.omitted_consumers > 0);
            assert_eq!(shown + found.omitted_consumers as usize, count as usize);
            let one_more = frame::body_bytes(&status.consumers[shown]);
            assert!(
                encoded.len() + one_more + 2 * VARINT_BYTES_MAX > MESSAGE_BYTES_MAX,
                "no space is wasted"
            );
        }
    }
}
