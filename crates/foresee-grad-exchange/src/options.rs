// SPDX-License-Identifier: Apache-2.0
//! Options of ranks and servers. Addresses, the job's name and its secret have no defaults.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use foresee_grad_queue::{Policy, Wire, packet_bytes};
use foresee_units::{Bytes, BytesPerSecond, Nanos, Rank};
use foresee_wire::{LinkOptions, Secret, Timeouts, TlsClient, TlsServer};

use crate::interface::Interfaces;

/// A rank's part.
#[derive(Clone, Debug)]
pub struct RankOptions {
    /// The job's name, the same on every rank.
    pub job: String,
    /// This rank, below `world`.
    pub rank: Rank,
    /// Ranks of the job, 1 to 65535.
    pub world: u32,
    /// Ranks for which this one exchanges, itself the first: 1, or all of its machine. The same on every machine.
    pub local: u32,
    /// Servers, in the same order on every rank; at least one.
    pub servers: Vec<SocketAddr>,
    /// How many packets each server takes in turn, in their order; empty: equally many.
    pub shares: Vec<u32>,
    /// What both ends prove to each other.
    pub secret: Secret,
    /// Encryption; `None`: none.
    pub tls: Option<TlsClient>,
    /// When a silent peer counts as lost.
    pub timeouts: Timeouts,
    /// Which packet goes first.
    pub policy: Policy,
    /// Bytes of a packet; `None`: by what the link was seen to deliver.
    pub packet_bytes: Option<NonZeroU32>,
    /// The dtype on the wire.
    pub wire: Wire,
    /// How many events of its timeline to keep between two looks at them, some 40 bytes each; 0: none.
    pub timeline: usize,
    /// The sockets' options.
    pub link: LinkOptions,
    /// The interfaces to send through, shared with a server of this process; `None`: its own.
    pub interfaces: Option<Interfaces>,
    /// So many servers, the first ones, are beside ranks and are lost with them: nobody takes their places.
    pub beside: u16,
    /// Keep gradients until every rank has everything of their round, so that a connection that breaks can be made again, and
    /// another server take the place of a lost one: as much memory as the gradients of a round or two. Otherwise a broken
    /// connection ends the exchange.
    pub recover: bool,
    /// Go on without ranks that are lost, which takes the same memory. Otherwise a lost rank ends the exchange. The same
    /// on every rank.
    pub survives: bool,
}

/// A link whose rate nobody has measured is taken for this: 1 Gbit/s.
const USUAL_LINK: BytesPerSecond = BytesPerSecond::new(125_000_000);

impl RankOptions {
    /// Bytes of an ordinary packet, where the slowest link was seen to deliver `rate`.
    pub(crate) fn packet(&self, rate: Option<BytesPerSecond>) -> NonZeroU32 {
        self.packet_bytes.unwrap_or_else(|| packet_bytes(rate.unwrap_or(USUAL_LINK)))
    }
}

/// What the ranks of one machine that exchange as one are told, each of them and their [`Hub`](crate::Hub).
#[cfg(target_os = "linux")]
#[derive(Clone, Debug)]
pub struct MachineOptions {
    /// The job's name, the same on every rank.
    pub job: String,
    /// Ranks of the job, 1 to 65535.
    pub world: u32,
    /// The machine's first rank, in whose process the hub is.
    pub first: Rank,
    /// Ranks of the machine: `first` and those that follow it.
    pub local: u32,
    /// What they prove to each other.
    pub secret: Secret,
    /// When a silent process counts as lost.
    pub timeouts: Timeouts,
    /// The dtype on the wire.
    pub wire: Wire,
    /// As in [`RankOptions`].
    pub timeline: usize,
}

/// A server's part.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where to listen; port 0 is the system's choice.
    pub bind: SocketAddr,
    /// What both ends prove to each other, for every job.
    pub secret: Secret,
    /// Encryption; `None`: none.
    pub tls: Option<TlsServer>,
    /// When a silent rank counts as lost.
    pub timeouts: Timeouts,
    /// Which result goes first, and whether packets or whole tensors are answered.
    pub policy: Policy,
    /// Contributions that may wait for the turn of their rank, for each job.
    pub park: Bytes,
    /// After so long a wait ranks are told whom it is for, and again after as long; a hundredth of a second at least. The
    /// word comes within this time, since those who hear it look for it then.
    pub say: Nanos,
    /// Jobs at once, at least 1.
    pub jobs: usize,
    /// How many events of its timeline to keep between two looks at them, some 40 bytes each; 0: none.
    pub timeline: usize,
    /// The sockets' options; `local` is not used.
    pub link: LinkOptions,
    /// The interfaces to send through, shared with a rank of this process; `None`: its own.
    pub interfaces: Option<Interfaces>,
}

impl ServerOptions {
    /// With what suits most: 30 s, 64 MiB to park, 64 jobs.
    pub fn new(bind: SocketAddr, secret: Secret) -> Self {
        Self {
            bind,
            secret,
            tls: None,
            timeouts: Timeouts::default(),
            policy: Policy::foresee(),
            park: Bytes::new(64 << 20),
            say: Nanos::from_secs(30),
            jobs: 64,
            timeline: 0,
            link: LinkOptions::default(),
            interfaces: None,
        }
    }
}
