// SPDX-License-Identifier: Apache-2.0
//! Options of ranks, nodes and servers. Addresses, the job's name and its secret have no defaults.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use foresee_grad_queue::{Policy, Wire, packet_bytes};
use foresee_units::{Bytes, BytesPerSecond, Nanos, Rank};
use foresee_wire::{LinkOptions, Secret, Timeouts, TlsClient, TlsServer};

use crate::interface::Interfaces;

/// Options of a rank.
#[derive(Clone, Debug)]
pub struct RankOptions {
    /// The job's name, the same on every rank.
    pub job: String,
    /// This rank, below `world`.
    pub rank: Rank,
    /// Ranks of the job, 1 to 65535.
    pub world: u32,
    /// Ranks for which this one exchanges, itself the first: 1, or all of its node. The same on every node.
    pub local_world: u32,
    /// Servers, in the same order on every rank; at least one.
    pub servers: Vec<SocketAddr>,
    /// Packets that each server takes in turn, in their order; empty: equal shares.
    pub shares: Vec<u32>,
    /// The secret that both ends prove to each other.
    pub secret: Secret,
    /// Encryption; `None`: none.
    pub tls: Option<TlsClient>,
    /// When a silent peer counts as lost.
    pub timeouts: Timeouts,
    /// The order of packets.
    pub policy: Policy,
    /// Bytes of a packet; `None`: by the rate that the link has delivered.
    pub packet_bytes: Option<NonZeroU32>,
    /// The dtype on the wire.
    pub wire: Wire,
    /// Capacity of the timeline in events, about 40 bytes each; 0: no timeline.
    pub timeline: usize,
    /// Socket options.
    pub link: LinkOptions,
    /// The interfaces to send through, shared with a server of this process; `None`: its own.
    pub interfaces: Option<Interfaces>,
    /// The number of servers, the first ones, that run in processes of ranks. They are lost with them and not replaced.
    pub colocated: u16,
    /// Retain gradients until every rank has received everything of their round, so that broken connections can be
    /// made again and lost servers replaced. Takes the memory of the gradients of one or two rounds. Otherwise a broken
    /// connection ends the exchange.
    pub recover: bool,
    /// Continue without lost ranks, which takes the same memory. Otherwise a lost rank ends the exchange. The same on
    /// every rank.
    pub continue_on_rank_loss: bool,
}

/// The rate assumed for a link that was not measured: 1 Gbit/s.
const DEFAULT_RATE: BytesPerSecond = BytesPerSecond::new(125_000_000);

impl RankOptions {
    /// Bytes of an ordinary packet if the slowest link delivers `rate`.
    pub(crate) fn packet(&self, rate: Option<BytesPerSecond>) -> NonZeroU32 {
        self.packet_bytes.unwrap_or_else(|| packet_bytes(rate.unwrap_or(DEFAULT_RATE)))
    }
}

/// Options of the ranks of one node that exchange as one, and of their [`NodeLeader`](crate::NodeLeader).
#[cfg(target_os = "linux")]
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The job's name, the same on every rank.
    pub job: String,
    /// Ranks of the job, 1 to 65535.
    pub world: u32,
    /// The node's first rank, whose process contains the leader.
    pub first: Rank,
    /// Ranks of the node: `first` and those that follow it.
    pub local_world: u32,
    /// The secret that they prove to each other.
    pub secret: Secret,
    /// When a silent process counts as lost.
    pub timeouts: Timeouts,
    /// The dtype on the wire.
    pub wire: Wire,
    /// As in [`RankOptions`].
    pub timeline: usize,
}

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The address to listen at; port 0: any free port.
    pub bind: SocketAddr,
    /// The secret that both ends prove to each other, for every job.
    pub secret: Secret,
    /// Encryption; `None`: none.
    pub tls: Option<TlsServer>,
    /// When a silent rank counts as lost.
    pub timeouts: Timeouts,
    /// The order of results, and whether packets or whole tensors are answered.
    pub policy: Policy,
    /// Capacity per job for contributions that arrive before their rank's turn.
    pub early_buffer: Bytes,
    /// The interval at which waiting ranks receive a report of the ranks that they wait for; at least 10 ms.
    pub wait_report_interval: Nanos,
    /// Concurrent jobs, at least 1.
    pub jobs: usize,
    /// Capacity of the timeline in events, about 40 bytes each; 0: no timeline.
    pub timeline: usize,
    /// Socket options; `local` is not used.
    pub link: LinkOptions,
    /// The interfaces to send through, shared with a rank of this process; `None`: its own.
    pub interfaces: Option<Interfaces>,
}

impl ServerOptions {
    /// Defaults: 30 s between wait reports, 64 MiB of early buffer, 64 jobs.
    pub fn new(bind: SocketAddr, secret: Secret) -> Self {
        Self {
            bind,
            secret,
            tls: None,
            timeouts: Timeouts::default(),
            policy: Policy::foresee(),
            early_buffer: Bytes::new(64 << 20),
            wait_report_interval: Nanos::from_secs(30),
            jobs: 64,
            timeline: 0,
            link: LinkOptions::default(),
            interfaces: None,
        }
    }
}
