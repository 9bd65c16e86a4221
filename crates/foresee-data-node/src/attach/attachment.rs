// SPDX-License-Identifier: Apache-2.0
//! The host's end of one consumer: its request to attach, then its socket and process. The rings are separate.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use foresee_units::Bytes;

use super::frame::{self, MESSAGE_BYTES_MAX};
use super::listener::refuse;
use super::message::{Hello, NodeReply, NodeRequest, RefusalCode, Welcome};
use super::socket::MessageSocket;
use crate::error::NodeError;
use crate::memory::{LocationTable, SlabMemory, control};
use crate::peer::{PeerCredentials, PeerProcess};
use crate::ring::RingPair;

/// What a host tells a new consumer beside the shape of the shared memory.
#[derive(Clone, Debug)]
pub struct WelcomeFacts {
    /// Version of the Foresee package.
    pub foresee: String,
    /// The number of the consumer, unique in the life of the host.
    pub consumer: u32,
    /// Memory of the node's cache.
    pub ram: Bytes,
    /// Disk space of the node's cache.
    pub disk: Bytes,
}

/// A permitted peer that has sent a valid [`Hello`]. Dropping it closes the connection without a reason.
#[derive(Debug)]
pub struct AttachRequest {
    socket: MessageSocket,
    credentials: PeerCredentials,
    process: Option<PeerProcess>,
    hello: Hello,
}

impl AttachRequest {
    pub(super) fn new(
        socket: MessageSocket,
        credentials: PeerCredentials,
        process: Option<PeerProcess>,
        hello: Hello,
    ) -> Self {
        Self { socket, credentials, process, hello }
    }

    /// What the peer sent.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// What the kernel knows about the peer.
    pub fn credentials(&self) -> PeerCredentials {
        self.credentials
    }

    /// Accept the consumer: create its control memory, and send it with `slab`. Returns the attachment, and the rings:
    /// requests to read, answers to write.
    ///
    /// Socket and rings may belong to different threads. A forked child does not have the memory of the rings, and must
    /// not use them or what they have made; it may drop them.
    ///
    /// # Errors
    /// [`NodeError::RingSize`], [`NodeError::NoMemory`], [`NodeError::TooManyDescriptors`]: the consumer is refused
    /// with the reason. [`NodeError::Ended`] or [`NodeError::Late`]: it left or does not read.
    pub fn accept(self, slab: &SlabMemory, facts: WelcomeFacts) -> Result<(Attachment, RingPair), NodeError> {
        let (request_ring_bytes, answer_ring_bytes) =
            (self.hello.request_ring_bytes, self.hello.answer_ring_bytes);
        let (rings, file) = match control::create(request_ring_bytes, answer_ring_bytes) {
            Ok(created) => created,
            Err(fault) => {
                refuse(&self.socket, RefusalCode::Resources, fault.to_string());
                return Err(fault);
            }
        };
        let welcome = NodeReply::Welcome(Welcome {
            foresee: facts.foresee,
            consumer: facts.consumer,
            slab_bytes: slab.data_bytes().get(),
            ram_bytes: facts.ram.get(),
            disk_bytes: facts.disk.get(),
            request_ring_bytes,
            answer_ring_bytes,
        });
        let bytes = frame::encode(&welcome, MESSAGE_BYTES_MAX)?;
        // A new socket has space for its first message, so a consumer cannot make the host wait.
        self.socket.send(&bytes, &[slab.file()?, file.as_fd()], Duration::ZERO)?;
        let Self { socket, credentials, process, hello } = self;
        Ok((Attachment { socket, credentials, process, hello, consumer: facts.consumer }, rings))
    }

    /// Refuse the consumer with a reason for users.
    pub fn refuse(self, code: RefusalCode, text: impl Into<String>) {
        refuse(&self.socket, code, text.into());
    }
}

/// An attached consumer as the host sees it, but for the rings. Dropping it ends the attachment.
#[derive(Debug)]
pub struct Attachment {
    socket: MessageSocket,
    credentials: PeerCredentials,
    process: Option<PeerProcess>,
    hello: Hello,
    consumer: u32,
}

/// A message of an attached consumer.
#[derive(Debug)]
pub struct ReceivedRequest {
    /// The message, which is no first one.
    pub message: NodeRequest,
    /// The descriptor of an index file that came with [`NodeRequest::OpenDataSet`], for
    /// [`map_index`](crate::map_index).
    pub index: Option<OwnedFd>,
}

impl Attachment {
    /// The number of the consumer.
    pub fn consumer(&self) -> u32 {
        self.consumer
    }

    /// What the consumer sent when it attached.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// What the kernel knows about the consumer.
    pub fn credentials(&self) -> PeerCredentials {
        self.credentials
    }

    /// The consumer's process, which can be polled for its end.
    pub fn process(&self) -> Option<&PeerProcess> {
        self.process.as_ref()
    }

    /// Return the next message if there is one.
    ///
    /// # Errors
    /// [`NodeError::Ended`]: the consumer has left. [`NodeError::Malformed`]: the attachment must end.
    pub fn receive(&self) -> Result<Option<ReceivedRequest>, NodeError> {
        let mut datagram =
            match self.socket.receive(MESSAGE_BYTES_MAX, true, Duration::ZERO, "send a message") {
                Ok(datagram) => datagram,
                Err(NodeError::Late { .. }) => return Ok(None),
                Err(fault) => return Err(fault),
            };
        let malformed = |why: &str| NodeError::Malformed { why: why.into() };
        let message = match frame::decode(&datagram.bytes)? {
            NodeRequest::Hello(_)
            | NodeRequest::Status
            | NodeRequest::Listing(_)
            | NodeRequest::SampleCache(_) => {
                return Err(malformed("it is a first message, or of a peer that does not attach"));
            }
            message => message,
        };
        let index = datagram.descriptors.pop();
        let is_expected = index.is_none() || matches!(message, NodeRequest::OpenDataSet(_));
        if !is_expected || !datagram.descriptors.is_empty() {
            return Err(malformed("it has a descriptor that is no index of a data set"));
        }
        Ok(Some(ReceivedRequest { message, index }))
    }

    /// Send a message without waiting.
    ///
    /// # Errors
    /// [`NodeError::Late`]: the consumer does not read, and the attachment should end. [`NodeError::Ended`].
    pub fn send(&self, message: &NodeReply) -> Result<(), NodeError> {
        self.send_with(message, &[])
    }

    /// Answer that a data set is open under this number, and send the locations of its samples.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_opened(&self, data_set: u32, locations: &LocationTable) -> Result<(), NodeError> {
        self.send_with(&NodeReply::DataSetOpened { data_set }, &[locations.file()?])
    }

    fn send_with(&self, message: &NodeReply, descriptors: &[BorrowedFd<'_>]) -> Result<(), NodeError> {
        self.socket.send(&frame::encode(message, MESSAGE_BYTES_MAX)?, descriptors, Duration::ZERO)
    }
}

impl AsFd for Attachment {
    /// The socket, readable when a message or the end is there.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
