// SPDX-License-Identifier: Apache-2.0
//! Connections between a rank and a server, and notices of their ends.

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_grad_queue::{Admission, Claim, PacketId, Round, Sum};
use foresee_grad_session::{Closed, Peer, RankMessage, ServerMessage};

/// A contribution in a connection.
#[derive(Clone, Debug)]
pub(crate) struct Push {
    pub(crate) generation: u32,
    pub(crate) round: Round,
    pub(crate) packet: PacketId,
    pub(crate) payload: Vec<u8>,
}

/// A result in a connection.
#[derive(Clone, Debug)]
pub(crate) struct Pull {
    pub(crate) generation: u32,
    pub(crate) round: Round,
    pub(crate) packet: PacketId,
    pub(crate) sum: Arc<Sum>,
}

/// Both connections of a pair, and what is in them.
#[derive(Debug)]
pub(crate) struct Pair {
    /// The pair, as its rank counts them.
    pub(crate) number: u32,
    /// The pair, as its server counts them.
    pub(crate) peer: Peer,
    pub(crate) up: VecDeque<RankMessage>,
    /// How the rank closed its end, after its messages.
    pub(crate) goodbye: Option<Closed>,
    pub(crate) down: VecDeque<ServerMessage>,
    pub(crate) pushes: VecDeque<Push>,
    pub(crate) pulls: VecDeque<Pull>,
    /// The payload that the server's reader is reading.
    pub(crate) taking: Option<(Admission, Push)>,
    /// The server's reader holds the packet at the front.
    pub(crate) is_held: bool,
    /// The payload that the rank's reader is reading.
    pub(crate) receiving: Option<(Claim, Pull)>,
    /// The rank retries the message, or the sum, at the front after this many changes.
    pub(crate) not_before: [u64; 2],
    /// Its data connection broke: packets and results are lost, messages still arrive.
    pub(crate) is_without_data: bool,
}

impl Pair {
    pub(crate) fn new(number: u32, peer: Peer) -> Self {
        Self {
            number,
            peer,
            up: VecDeque::new(),
            goodbye: None,
            down: VecDeque::new(),
            pushes: VecDeque::new(),
            pulls: VecDeque::new(),
            taking: None,
            is_held: false,
            receiving: None,
            not_before: [0; 2],
            is_without_data: false,
        }
    }
}

/// A notice that an end is about to receive.
#[derive(Clone, Debug)]
pub(crate) enum Notice {
    /// The control connection of a pair ended at a rank.
    RankClosed { rank: usize, server: usize, number: u32, closed: Closed },
    /// The data connection ended at the same node.
    RankDataClosed { rank: usize, server: usize, number: u32 },
    /// The control connection ended at a process of a server.
    ServerClosed { server: usize, process: u64, peer: Peer, closed: Closed },
    /// The data connection ended at the same node.
    ServerDataClosed { server: usize, process: u64, peer: Peer },
    /// A rank dials a server.
    Dial { rank: usize, server: usize },
    /// A pair of connections breaks.
    Break { rank: usize, server: usize },
    /// Another process of a rank that was killed connects to a server.
    Stranger { rank: usize, server: usize },
}

impl Notice {
    /// The rank that receives it, with the server of the connection.
    pub(crate) fn rank(&self) -> Option<(usize, usize)> {
        match self {
            Self::RankClosed { rank, server, .. } | Self::RankDataClosed { rank, server, .. } => {
                Some((*rank, *server))
            }
            _ => None,
        }
    }
}
