// SPDX-License-Identifier: Apache-2.0
//! Listings that the ranks of a job on one node share: one rank lists, and its host passes the index to the others.
//!
//! Each rank has one connection per listing, and leaves it open: its end shows the host that the rank has ended.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::connection::{ConnectOptions, dial, greet, refused, unexpected};
use super::frame::{self, MESSAGE_BYTES_MAX};
use super::listener::refuse;
use super::message::{NodeReply, NodeRequest, RefusalCode};
use super::socket::{Datagram, MessageSocket};
use crate::address::NodeAddress;
use crate::error::NodeError;
use crate::memory::check_sealed_index;

/// Identity of a listing: a digest of all that determines its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListingKey(pub [u8; 16]);

/// Facts about a listing that its index does not contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListingCounts {
    /// Files next to class folders.
    pub outside: u64,
    /// Elements outside of all windows.
    pub tail_elements: u64,
    /// Files with such elements.
    pub tail_files: u64,
}

/// A message of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ListingRequest {
    /// The first message: request the index of a listing.
    Find {
        /// The listing.
        key: ListingKey,
    },
    /// The rank still lists.
    Alive,
    /// The rank has listed. The descriptor of the index comes with it ([`index_file`](crate::index_file)).
    Built(ListingCounts),
    /// The rank cannot list.
    Failed,
}

/// A message of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ListingReply {
    /// This rank lists.
    Wanted,
    /// Another rank lists. It is repeated while that rank is alive.
    Pending,
    /// The index, whose descriptor comes with it.
    Built(ListingCounts),
}

/// A permitted rank that has requested a listing, as the host sees it. Dropping it closes the connection.
#[derive(Debug)]
pub struct ListingPeer {
    pub(super) socket: MessageSocket,
    key: ListingKey,
}

/// A rank's connection to the host of its listings. Dropping it tells the host that the rank has ended.
#[derive(Debug)]
pub struct ListingConnection {
    socket: MessageSocket,
}

impl ListingPeer {
    pub(super) fn new(socket: MessageSocket, key: ListingKey) -> Self {
        Self { socket, key }
    }

    /// The requested listing.
    pub fn key(&self) -> ListingKey {
        self.key
    }

    /// Return the next message if there is one, and the index that comes with [`ListingRequest::Built`].
    ///
    /// # Errors
    /// [`NodeError::Ended`]: the rank has ended. [`NodeError::Malformed`], [`NodeError::Index`]: the connection must end.
    pub fn receive(&self) -> Result<Option<(ListingRequest, Option<File>)>, NodeError> {
        let datagram = match self.socket.receive(MESSAGE_BYTES_MAX, true, Duration::ZERO, "send a message") {
            Ok(datagram) => datagram,
            Err(NodeError::Late { .. }) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        match frame::decode(&datagram.bytes)? {
            NodeRequest::Listing(ListingRequest::Find { .. }) => Err(unexpected("is a second first message")),
            NodeRequest::Listing(message) => {
                let index = index_of(datagram, matches!(message, ListingRequest::Built(_)))?;
                Ok(Some((message, index)))
            }
            _ => Err(unexpected("is not about a listing")),
        }
    }

    /// Send a message without waiting; `index` comes with [`ListingReply::Built`].
    ///
    /// # Errors
    /// [`NodeError::Late`]: the rank does not read, and the connection should end. [`NodeError::Ended`].
    pub fn send(&self, message: ListingReply, index: Option<&File>) -> Result<(), NodeError> {
        let bytes = frame::encode(&NodeReply::Listing(message), MESSAGE_BYTES_MAX)?;
        let descriptors: Vec<_> = index.into_iter().map(AsFd::as_fd).collect();
        self.socket.send(&bytes, &descriptors, Duration::ZERO)
    }

    /// Refuse the rank with a reason for users.
    pub fn refuse(self, code: RefusalCode, text: impl Into<String>) {
        refuse(&self.socket, code, text.into());
    }
}

impl AsFd for ListingPeer {
    /// The socket, readable when a message or the end is there.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl ListingConnection {
    /// Request the listing `key` from the host at `address`.
    ///
    /// # Errors
    /// As [`NodeStatus::query`](super::NodeStatus::query), but for the answer.
    pub fn find(address: &NodeAddress, key: ListingKey, options: &ConnectOptions) -> Result<Self, NodeError> {
        let (socket, _) = dial(address, options)?;
        greet(&socket, &NodeRequest::Listing(ListingRequest::Find { key }), options.timeout)?;
        Ok(Self { socket })
    }

    /// Wait up to `timeout` for the host's next message, and the index that comes with [`ListingReply::Built`].
    ///
    /// # Errors
    /// [`NodeError::Late`]; [`NodeError::Refused`] with its reason; [`NodeError::Ended`]: the host has ended;
    /// [`NodeError::Malformed`], [`NodeError::Index`]; [`NodeError::Forked`].
    pub fn receive(&self, timeout: Duration) -> Result<(ListingReply, Option<File>), NodeError> {
        let datagram = self.socket.receive(MESSAGE_BYTES_MAX, true, timeout, "finish a listing")?;
        match frame::decode(&datagram.bytes)? {
            NodeReply::Listing(message) => {
                let index = index_of(datagram, matches!(message, ListingReply::Built(_)))?;
                Ok((message, index))
            }
            NodeReply::Refusal(refusal) => Err(refused(refusal)),
            _ => Err(unexpected("is not about a listing")),
        }
    }

    /// Send a message; `index` comes with [`ListingRequest::Built`].
    ///
    /// # Errors
    /// [`NodeError::Late`]; [`NodeError::Ended`]: the host has ended; [`NodeError::Forked`].
    pub fn send(
        &self,
        message: ListingRequest,
        index: Option<&OwnedFd>,
        timeout: Duration,
    ) -> Result<(), NodeError> {
        let bytes = frame::encode(&NodeRequest::Listing(message), MESSAGE_BYTES_MAX)?;
        let descriptors: Vec<_> = index.into_iter().map(AsFd::as_fd).collect();
        self.socket.send(&bytes, &descriptors, timeout)
    }
}

/// The index that came with a message, which has one descriptor if `is_expected` and none otherwise.
fn index_of(datagram: Datagram, is_expected: bool) -> Result<Option<File>, NodeError> {
    let count = datagram.descriptors.len();
    if count != usize::from(is_expected) {
        return Err(unexpected(&format!("has {count} descriptors")));
    }
    let index = datagram.descriptors.into_iter().next().map(File::from);
    index.as_ref().map_or(Ok(()), check_sealed_index)?;
    Ok(index)
}
