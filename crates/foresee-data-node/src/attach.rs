// SPDX-License-Identifier: Apache-2.0
//! How a consumer joins the host of a node's cache: messages over a Unix socket that preserves their boundaries.
//!
//! The handshake passes the memory of both. Afterwards the socket carries rare messages, and its end shows the end of
//! the other side. Samples take the rings.

mod attachment;
mod connection;
mod frame;
mod listener;
mod listing;
mod message;
#[cfg(test)]
mod process_tests;
mod sample_cache;
mod socket;
mod status;

pub use attachment::{AttachRequest, Attachment, ReceivedRequest, WelcomeFacts};
pub use connection::{ConnectOptions, NodeConnection};
pub use frame::{HELLO_BYTES_MAX, MESSAGE_BYTES_MAX, PROTOCOL_VERSION};
pub use listener::{Incoming, ListenerOptions, NodeListener, PENDING_MAX};
pub use listing::{ListingConnection, ListingCounts, ListingKey, ListingPeer, ListingReply, ListingRequest};
pub use message::{
    DataSetDescription, Hello, NodeReply, NodeRequest, Refusal, RefusalCode, StorageOptions, Welcome,
};
pub use sample_cache::{
    SampleCacheConnection, SampleCacheCounts, SampleCacheMemory, SampleCachePeer, SampleCacheReply,
    SampleCacheRequest, SentBytes,
};
pub use status::{
    AnswerCount, ConsumerStatus, NodeStatus, OriginStatus, PeerStatus, StatusRequest, TierStatus,
};
