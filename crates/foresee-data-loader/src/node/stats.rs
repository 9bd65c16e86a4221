// SPDX-License-Identifier: Apache-2.0
//! What a loader reports about the cache of its node: its host, and the samples that it got from there.

use std::time::Duration;

use foresee_data_node::{ConnectOptions, NodeAddress, NodeStatus};
use foresee_ledger::NodeCache;

use super::client::CopyCounts;

/// Time for each step of a request for the status of the host.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// The host of the node's cache that a loader reads through.
#[derive(Clone, Debug)]
pub struct NodeHostFacts {
    /// The role of this rank, and the capacity of the whole node.
    pub cache: NodeCache,
    /// Where the host is found.
    pub address: NodeAddress,
}

/// Counters of a loader that reads, or has read, through the cache of its node.
#[derive(Clone, Debug)]
pub struct NodeStats {
    /// The host.
    pub host: NodeHostFacts,
    /// Whether the loader is attached. Otherwise the host has ended, and the loader reads the origin itself.
    pub is_attached: bool,
    /// Copied samples by the source from which the host had them.
    pub copied: CopyCounts,
}

impl NodeStats {
    /// The state of the host, for all its consumers; `None` if the loader is not attached, or the host does not answer
    /// within about a second.
    pub fn status(&self) -> Option<NodeStatus> {
        let options =
            ConnectOptions { allow_uids: self.host.address.trusted_uids(), timeout: STATUS_TIMEOUT };
        self.is_attached.then(|| NodeStatus::query(&self.host.address, &options).ok()).flatten()
    }
}
