// SPDX-License-Identifier: Apache-2.0
//! The consumer's end: it finds the host at an address, and attaches to its cache.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::frame::{self, HELLO_BYTES_MAX, MESSAGE_BYTES_MAX};
use super::message::{DataSetDescription, Hello, NodeReply, NodeRequest, Refusal, Welcome};
use super::socket::{Datagram, Deadline, MessageSocket};
use crate::address::{Access, NodeAddress, SocketDirectory};
use crate::error::NodeError;
use crate::memory::{LocationView, SlabView, control};
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

/// A consumer's attachment to the cache of its node, but for the rings. Dropping it detaches.
#[derive(Debug)]
pub struct NodeConnection {
    socket: MessageSocket,
    process: Option<PeerProcess>,
    welcome: Welcome,
    slab: Arc<SlabView>,
}

impl NodeConnection {
    /// Attach to the host at `address`. Returns the connection, and the rings: requests to write, answers to read.
    ///
    /// Socket and rings may belong to different threads. A forked child does not have the memory of the rings, and must
    /// not use them or what they have made; it may drop them.
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
    ) -> Result<(Self, RingPair), NodeError> {
        let (socket, credentials) = dial(address, options)?;
        let process = PeerProcess::open(socket.fd()?, &credentials)?;
        greet(&socket, &NodeRequest::Hello(hello.clone()), options.timeout)?;
        let answer = socket.receive(MESSAGE_BYTES_MAX, true, options.timeout, "answer a new consumer")?;
        let (welcome, slab, rings) = open_memory(answer)?;
        Ok((Self { socket, process, welcome, slab: Arc::new(slab) }, rings))
    }

    /// What the host told this consumer.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The host's slab.
    pub fn slab(&self) -> &Arc<SlabView> {
        &self.slab
    }

    /// Check that this process has attached, and thus has the memory of the rings.
    ///
    /// # Errors
    /// [`NodeError::Forked`]: it is a child that was forked later.
    pub fn check_fork(&self) -> Result<(), NodeError> {
        self.socket.fd().map(|_| ())
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

    /// Open a data set, and return the number that the host gives it, with the locations of its samples. `index` is called
    /// if the host lacks the index, and returns the file that the host maps ([`index_file`](crate::index_file), or an index
    /// file opened for reading). `timeout` is the maximum time between two messages of the host, which reports while it opens
    /// the data set. `is_wanted` is called with each report; `false` gives up.
    ///
    /// # Errors
    /// As [`send`](Self::send) and [`receive`](Self::receive), and those of `index`. [`NodeError::Late`] also if the data
    /// set is not wanted any more. [`NodeError::NotSealed`]: the table of locations is none. After all of them but
    /// [`NodeError::TooLong`] and [`NodeError::Refused`] the attachment must end: an answer may still come.
    pub fn open_data_set(
        &self,
        description: DataSetDescription,
        index: impl FnOnce() -> Result<OwnedFd, NodeError>,
        timeout: Duration,
        is_wanted: impl Fn() -> bool,
    ) -> Result<(u32, LocationView), NodeError> {
        let receive = || loop {
            match self.receive_with(true, timeout)? {
                (NodeReply::Opening, _) if is_wanted() => {}
                (NodeReply::Opening, _) => return Err(NodeError::Late { what: "open the data set" }),
                reply => return Ok(reply),
            }
        };
        let samples = description.samples;
        let message = frame::encode(&NodeRequest::OpenDataSet(description), MESSAGE_BYTES_MAX)?;
        self.socket.send(&message, &[], timeout)?;
        match receive()? {
            (NodeReply::IndexNeeded, _) => {}
            reply => return open_locations(reply, samples),
        }
        self.socket.send(&message, &[index()?.as_fd()], timeout)?;
        open_locations(receive()?, samples)
    }

    /// Wait up to `timeout` for the host's next message.
    ///
    /// # Errors
    /// [`NodeError::Late`]; [`NodeError::Refused`] with its reason; [`NodeError::Ended`]: the host has ended;
    /// [`NodeError::Malformed`]; [`NodeError::Forked`].
    pub fn receive(&self, timeout: Duration) -> Result<NodeReply, NodeError> {
        self.receive_with(false, timeout).map(|(message, _)| message)
    }

    fn receive_with(
        &self,
        takes_descriptors: bool,
        timeout: Duration,
    ) -> Result<(NodeReply, Vec<OwnedFd>), NodeError> {
        let Datagram { bytes, descriptors } =
            self.socket.receive(MESSAGE_BYTES_MAX, takes_descriptors, timeout, "send a message")?;
        match frame::decode(&bytes)? {
            NodeReply::Refusal(refusal) => Err(refused(refusal)),
            NodeReply::Welcome(_)
            | NodeReply::Status(_)
            | NodeReply::Listing(_)
            | NodeReply::SampleCache(_) => Err(unexpected("is no answer to an attached consumer")),
            message => Ok((message, descriptors)),
        }
    }
}

/// The answer about a data set of `samples` samples.
fn open_locations(
    (message, descriptors): (NodeReply, Vec<OwnedFd>),
    samples: u64,
) -> Result<(u32, LocationView), NodeError> {
    let NodeReply::DataSetOpened { data_set } = message else {
        return Err(unexpected("does not answer a data set"));
    };
    let [file] = <[_; 1]>::try_from(descriptors).map_err(|found| NodeError::Malformed {
        why: format!("an open data set with {} descriptors instead of 1", found.len()),
    })?;
    Ok((data_set, LocationView::open(file.as_fd(), samples)?))
}

pub(super) fn unexpected(what: &str) -> NodeError {
    NodeError::Malformed { why: format!("it {what}") }
}

impl AsFd for NodeConnection {
    /// The socket, readable when a message or the end is there.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Connect to the host at `address`, whose user is known before anything is sent.
pub(super) fn dial(
    address: &NodeAddress,
    options: &ConnectOptions,
) -> Result<(MessageSocket, PeerCredentials), NodeError> {
    let ours = rustix::process::geteuid().as_raw();
    let socket = connect_socket(address, ours, options.timeout)?;
    let credentials = PeerCredentials::of(socket.fd()?)?;
    credentials.check(ours, &options.allow_uids)?;
    Ok((socket, credentials))
}

/// Send the first message.
pub(super) fn greet(
    socket: &MessageSocket,
    message: &NodeRequest,
    timeout: Duration,
) -> Result<(), NodeError> {
    match socket.send(&frame::encode(message, HELLO_BYTES_MAX)?, &[], timeout) {
        // A host that refuses this user does so before it reads anything; its reason is still there.
        Ok(()) | Err(NodeError::Ended) => Ok(()),
        Err(fault) => Err(fault),
    }
}

fn connect_socket(address: &NodeAddress, ours: u32, timeout: Duration) -> Result<MessageSocket, NodeError> {
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
        _ => return Err(unexpected("is neither a welcome nor a refusal")),
    };
    let [slab, memory] = <[_; 2]>::try_from(answer.descriptors).map_err(|found| NodeError::Malformed {
        why: format!("a welcome with {} descriptors instead of 2", found.len()),
    })?;
    let slab = SlabView::open(slab.as_fd(), welcome.slab())?;
    let rings = control::open(memory.as_fd(), welcome.request_ring_bytes, welcome.answer_ring_bytes)?;
    Ok((welcome, slab, rings))
}

pub(super) fn refused(Refusal { code, text }: Refusal) -> NodeError {
    NodeError::Refused { code, text }
}
