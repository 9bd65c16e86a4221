// SPDX-License-Identifier: Apache-2.0
//! The cache that the ranks of a node share, as the header of a ledger describes it.
//!
//! Keys and names are part of the saved format (`docs/formats/ledger.md`).

use foresee_units::{Bytes, named_enum};

named_enum! {
    /// How a rank reads through the cache of its node.
    NodeCacheRole {
        /// The host runs in the process of this rank, which consumes from it like the others.
        Host => "host",
        /// The host runs in the process of another rank of this node.
        RankConsumer => "rank_consumer",
        /// The host is a service of the node (`foresee node`).
        ServiceConsumer => "service_consumer",
    }
}

/// The cache of a node, from which a rank gets its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCache {
    /// Identity of its host: equal for all ranks that share the cache, different for those of other nodes.
    pub id: String,
    /// How this rank reads through it.
    pub role: NodeCacheRole,
    /// Memory of the whole node's cache.
    pub ram: Bytes,
    /// Disk space of the whole node's cache; 0 without a disk.
    pub disk: Bytes,
}

impl NodeCache {
    /// The entries of a ledger's header: key and value.
    pub fn metadata(&self) -> [(String, String); 4] {
        [
            ("foresee.node.id", self.id.clone()),
            ("foresee.node.role", self.role.name().to_owned()),
            ("foresee.node.ram_bytes", self.ram.get().to_string()),
            ("foresee.node.disk_bytes", self.disk.get().to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
    }
}
