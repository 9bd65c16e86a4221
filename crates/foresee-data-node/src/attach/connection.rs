// SPDX-License-Identifier: Apache-2.0
//! The consumer's end: it finds the host at an address, and attaches to its cache.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::frame::{self, HELLO_BYTES_MAX, MESSAGE_BYTES_MAX};
use super::message::{Hello, NodeReply, NodeRequest, Refusal, Welcome};
use super::socket::{Datagram, Deadline, MessageSocket};
use crate::address::{Access, NodeAddress, SocketDirectory};
use crate::error::NodeError;
use crate::memory::{SlabView, control};
use crate::peer::{PeerCredentials, PeerProcess};
use crate::ring::RingPair;

/// How a consumer connects.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Users beside the own one whose host is trusted with storage options.
    pub allow_uids: Vec<u32>,
    /// Maximum time of each step: the connection, and the host's answer. At least a microsecond.
    pub timeout: Duration,
}

/// A consumer's attachment to the cache of its node. Dropping it detaches.
#[derive(Debug)]
pub struct NodeConnection {
    socket: MessageSocket,
    process: Option<PeerProcess>,
    welcome: Welcome,
    slab: SlabView,
    rings: RingPair,
}

impl NodeConnection {
    /// Attach to the host at `address`.
    ///
    /// # Errors
    /// [`NodeError::NoHost`], [`NodeError::Stale`], [`NodeError::NotPermitted`], [`NodeError::Directory`]: none is
    /// there, or none that this user may use. [`NodeError::OtherUid`], [`NodeError::OtherVersion`],
    /// [`NodeError::Refused`]: it does not fit. [`NodeError::Late`], [`NodeError::Ended`], [`NodeError::PeerEnded`]: it
    /// does not answer. [`NodeError::Malformed`], [`NodeError::NotSealed`]: it is no host of a cache.
    pub fn connect(
        address: &NodeAddress,
        hello: &Hello,
        options: &ConnectOptions,
    ) -> Result<Self, NodeError> {
        let ours = rustix::process::geteuid().as_raw();
        let socket = dial(address, ours, options.timeout)?;
        // The host's user is known before anything is sent.
        let credentials = PeerCredentials::of(socket.fd()?)?;
        credentials.check(ours, &options.allow_uids)?;
        let process = PeerProcess::open(socket.fd()?, &credentials)?;
        let greeting = NodeRequest::Hello(hello.clone());
        match socket.send(&frame::encode(&greeting, HELLO_BYTES_MAX)?, &[], options.timeout) {
            // A host that refuses this user does so before it reads anything; its reason is still there.
            Ok(()) | Err(NodeError::Ended) => {}
            Err(fault) => return Err(fault),
        }
        let answer = socket.receive(MESSAGE_BYTES_MAX, true, options.timeout, "answer a new consumer")?;
        let (welcome, slab, rings) = open_memory(answer)?;
        Ok(Self { socket, process, welcome, slab, rings })
    }

    /// What the host told this consumer.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The host's slab.
    pub fn slab(&self) -> &SlabView {
        &self.slab
    }

    /// The rings of this consumer: requests to write, answers to read.
    ///
    /// # Errors
    /// [`NodeError::Forked`]: a forked child does not have their memory.
    pub fn rings(&mut self) -> Result<&mut RingPair, NodeError> {
        self.socket.fd()?;
        Ok(&mut self.rings)
    }

    /// The host's process, which can be polled for its end.
    pub fn process(&self) -> Option<&PeerProcess> {
        self.process.as_ref()
    }

    /// Send a message, and wait up to `timeout` until the host has space for it.
    ///
    /// # Errors
    /// [`NodeError::TooLong`]; [`NodeError::Late`]; [`NodeError::Ended`]: the host has ended; [`NodeError::Forked`].
    pub fn send(&self, message: &NodeRequest, timeout: Duration) -> Result<(), NodeError> {
        self.socket.send(&frame::encode(message, MESSAGE_BYTES_MAX)?, &[], timeout)
    }

    /// Wait up to `timeout` for the host's next message.
    ///
    /// # Errors
    /// [`NodeError::Late`]; [`NodeError::Refused`] with its reason; [`NodeError::Ended`]: the host has ended;
    /// [`NodeError::Malformed`]; [`NodeError::Forked`].
    pub fn receive(&self, timeout: Duration) -> Result<NodeReply, NodeError> {
        let datagram = self.socket.receive(MESSAGE_BYTES_MAX, false, timeout, "send a message")?;
        match frame::decode(&datagram.bytes)? {
            NodeReply::Refusal(refusal) => Err(refused(refusal)),
            NodeReply::Welcome(_) => Err(NodeError::Malformed { why: "it is a second welcome".into() }),
            message => Ok(message),
        }
    }
}

impl AsFd for NodeConnection {
    /// The socket, readable when a message or the end is there.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn dial(address: &NodeAddress, ours: u32, timeout: Duration) -> Result<MessageSocket, NodeError> {
    let path = address.path();
    let name = SocketAddrUnix::new(path).map_err(NodeError::io("naming the socket of a host"))?;
    let socket = MessageSocket::create()?;
    // A connection to a host with a full queue waits as long as a send may.
    set_socket_timeout(socket.fd()?, Timeout::Send, Some(timeout))
        .map_err(NodeError::io("setting the timeout of a connection"))?;
    if !address.is_explicit() && address.directory().symlink_metadata().is_ok() {
        SocketDirectory::open(address.directory(), ours, Access::Private)?;
    }
    let deadline = Deadline::after(timeout);
    let outcome = loop {
        match rustix::net::connect(socket.fd()?, &name) {
            Err(Errno::INTR) if !deadline.is_over() => {}
            outcome => break outcome,
        }
    };
    match outcome {
        Ok(()) => Ok(socket),
        Err(Errno::NOENT | Errno::NOTDIR) => Err(NodeError::NoHost { path: path.to_owned() }),
        Err(Errno::CONNREFUSED) if is_socket(path) => Err(NodeError::Stale { path: path.to_owned() }),
        Err(Errno::CONNREFUSED | Errno::PROTOTYPE) => Err(NodeError::NotASocket { path: path.to_owned() }),
        Err(why @ (Errno::ACCESS | Errno::PERM)) => {
            Err(NodeError::NotPermitted { path: path.to_owned(), why: why.into() })
        }
        Err(Errno::AGAIN | Errno::INTR) => Err(NodeError::Late { what: "accept the connection" }),
        Err(why) => Err(NodeError::io("connecting to the host of the node's cache")(why)),
    }
}

/// The system also refuses connections to other files.
fn is_socket(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.file_type().is_socket())
}

/// Verify and map the memory that comes with a welcome.
fn open_memory(answer: Datagram) -> Result<(Welcome, SlabView, RingPair), NodeError> {
    let welcome = match frame::decode(&answer.bytes)? {
        NodeReply::Welcome(welcome) => welcome,
        NodeReply::Refusal(refusal) => return Err(refused(refusal)),
        _ => return Err(NodeError::Malformed { why: "it is neither a welcome nor a refusal".into() }),
    };
    let [slab, memory] = <[_; 2]>::try_from(answer.descriptors).map_err(|found| NodeError::Malformed {
        why: format!("a welcome with {} descriptors instead of 2", found.len()),
    })?;
    let slab = SlabView::open(slab.as_fd(), welcome.slots, welcome.slab())?;
    let rings = control::open(memory.as_fd(), welcome.request_ring_bytes, welcome.answer_ring_bytes)?;
    Ok((welcome, slab, rings))
}

fn refused(Refusal { code, text }: Refusal) -> NodeError {
    NodeError::Refused { code, text }
}
