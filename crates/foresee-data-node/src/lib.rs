// SPDX-License-Identifier: Apache-2.0
//! What the host of a node's cache and its consumers share: memory, rings and sockets. Linux only.
#![cfg(target_os = "linux")]

mod address;
mod attach;
mod error;
mod fork;
mod memory;
pub mod message;
mod peer;
pub mod ring;

pub use address::{
    AddressValues, DirectoryFault, LauncherValues, NodeAddress, NodeDiscovery, SOCKET_PATH_BYTES_MAX,
};
pub use attach::{
    AttachRequest, Attachment, ConnectOptions, DataSetDescription, DataSetIndex, HELLO_BYTES_MAX, Hello,
    ListenerOptions, MESSAGE_BYTES_MAX, NodeConnection, NodeListener, NodeReply, NodeRequest,
    OrderDescription, PENDING_MAX, PROTOCOL_VERSION, Refusal, RefusalCode, StorageOptions, Welcome,
    WelcomeFacts,
};
pub use error::NodeError;
pub use memory::{RING_BYTES_MAX, RING_BYTES_MIN, SealFault, SlabMemory, SlabOptions, SlabView};
pub use peer::{OVERFLOW_UID, PeerCredentials, PeerProcess};
