// SPDX-License-Identifier: Apache-2.0
//! What the host of a node's cache and its consumers share: memory, rings and sockets. Linux only.
#![cfg(target_os = "linux")]

mod address;
mod attach;
mod error;
mod fork;
mod memory;
pub mod message;
mod offer;
mod peer;
pub mod ring;

pub use address::{
    AddressValues, DirectoryFault, LauncherValues, NodeAddress, NodeDiscovery, SOCKET_PATH_BYTES_MAX,
};
pub use attach::{
    AnswerCount, AttachRequest, Attachment, ConnectOptions, ConsumerStatus, DataSetDescription,
    HELLO_BYTES_MAX, Hello, Incoming, ListenerOptions, ListingConnection, ListingCounts, ListingKey,
    ListingPeer, ListingReply, ListingRequest, MESSAGE_BYTES_MAX, NodeConnection, NodeListener, NodeReply,
    NodeRequest, NodeStatus, OriginStatus, PENDING_MAX, PROTOCOL_VERSION, PeerStatus, ReceivedRequest,
    Refusal, RefusalCode, SampleCacheConnection, SampleCacheCounts, SampleCacheMemory, SampleCachePeer,
    SampleCacheReply, SampleCacheRequest, SentBytes, StatusRequest, StorageOptions, TierStatus, Welcome,
    WelcomeFacts,
};
pub use error::NodeError;
pub use memory::{
    INDEX_BYTES_MAX, IndexFault, IndexMapping, LENGTH_BYTES, LocationTable, LocationView, RING_BYTES_MAX,
    RING_BYTES_MIN, SAMPLE_ALIGN, SealFault, SlabLocation, SlabMemory, SlabOptions, SlabView,
    check_sealed_index, index_file, map_index,
};
pub use offer::PeerOffer;
pub use peer::{OVERFLOW_UID, PeerCredentials, PeerProcess};
