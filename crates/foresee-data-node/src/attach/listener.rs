// SPDX-License-Identifier: Apache-2.0
//! The host's listening socket: it takes over a path of an ended host, and accepts consumers.
//!
//! A peer that connects and sends nothing occupies a place in a bounded list until its time is over; no thread waits
//! for it.

mod path;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::attachment::AttachRequest;
use super::frame::{self, HELLO_BYTES_MAX, MESSAGE_BYTES_MAX};
use super::listing::{ListingPeer, ListingRequest};
use super::message::{NodeReply, NodeRequest, Refusal, RefusalCode};
use super::sample_cache::{SampleCachePeer, SampleCacheRequest};
use super::socket::{Deadline, MessageSocket};
use super::status::StatusRequest;
use crate::address::NodeAddress;
use crate::error::NodeError;
use crate::fork::Descriptor;
use crate::peer::{PeerCredentials, PeerProcess};
use path::BoundPath;

/// Peers that are connected and have sent no message yet. Beyond it, the oldest one is dropped.
pub const PENDING_MAX: usize = 64;

/// Connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 128;
/// The key of the listening socket among those of pending peers.
const LISTENER: u64 = 0;

/// Whom a listener accepts.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Users that may attach beside the own one. With any of them, other users may reach the socket.
    pub allow_uids: Vec<u32>,
    /// Time within which a connected peer must send its first message.
    pub hello_timeout: Duration,
}

/// The listening socket of a host. It can be polled for reading: [`accept`](Self::accept) has work then.
#[derive(Debug)]
pub struct NodeListener {
    socket: MessageSocket,
    /// Holds the listening socket and all pending peers.
    epoll: Descriptor,
    pending: BTreeMap<u64, PendingPeer>,
    next_key: u64,
    refused: u64,
    options: ListenerOptions,
    uid: u32,
    /// Dropped last: the path is free after the socket is closed.
    path: BoundPath,
}

/// The first message of a permitted peer.
#[derive(Debug)]
pub enum Incoming {
    /// A consumer that wants to attach.
    Attach(AttachRequest),
    /// A tool that wants the status.
    Status(StatusRequest),
    /// A rank that shares a listing.
    Listing(ListingPeer),
    /// A worker process that shares a cache of samples.
    SampleCache(SampleCachePeer),
}

#[derive(Debug)]
struct PendingPeer {
    socket: MessageSocket,
    credentials: PeerCredentials,
    /// `None` if it lies beyond the clock's range.
    deadline: Option<Instant>,
}

impl NodeListener {
    /// Bind `address` and listen. The directory is created if it is missing, for its owner alone without
    /// `allow_uids`; a socket that an ended host left is removed.
    ///
    /// # Errors
    /// [`NodeError::InUse`], [`NodeError::NotASocket`], [`NodeError::Directory`], [`NodeError::Io`].
    pub fn bind(address: &NodeAddress, options: ListenerOptions) -> Result<Self, NodeError> {
        let uid = rustix::process::geteuid().as_raw();
        let (socket, path) = BoundPath::bind(address, uid, !options.allow_uids.is_empty(), BACKLOG)?;
        let failed = NodeError::io::<Errno>("creating an epoll descriptor");
        let epoll = Descriptor::new(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(&failed)?)?;
        let (data, flags) = (epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN);
        epoll::add(epoll.get()?, socket.fd()?, data, flags).map_err(&failed)?;
        let pending = BTreeMap::new();
        Ok(Self { socket, epoll, pending, next_key: LISTENER + 1, refused: 0, options, uid, path })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        self.path.get()
    }

    /// Peers that were refused or dropped before they were attached, since the start.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Wait up to `timeout` for the first message of a peer; `None` if none came. Zero only checks.
    ///
    /// Peers of other users, of other versions, with invalid messages, and silent ones are refused here.
    ///
    /// # Errors
    /// [`NodeError::Io`], for example without descriptors: the connection stays in the queue, and the caller frees
    /// some before it calls again. [`NodeError::Forked`].
    pub fn accept(&mut self, timeout: Duration) -> Result<Option<Incoming>, NodeError> {
        let deadline = Deadline::after(timeout);
        loop {
            self.drop_silent_peers()?;
            // The keys are in order of connection, so the first peer's time is over first.
            let next = self.pending.first_key_value().and_then(|(_, peer)| peer.deadline);
            let left = deadline.or_earlier(next).left();
            let mut events = Vec::with_capacity(1);
            match epoll::wait(self.epoll.get()?, spare_capacity(&mut events), left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(why) => return Err(NodeError::io("waiting for consumers")(why)),
            }
            match events.first().map(|event: &epoll::Event| event.data.u64()) {
                Some(LISTENER) => self.accept_peer()?,
                Some(key) => {
                    // A forked child that has not closed a dropped peer's socket yet causes events without a peer.
                    let Some(peer) = self.remove(key)? else { continue };
                    match Self::read_first(peer) {
                        Some(incoming) => return Ok(Some(incoming)),
                        None => self.refused += 1,
                    }
                }
                None if deadline.is_over() => return Ok(None),
                None => {}
            }
        }
    }

    /// When [`accept`](Self::accept) has to be called next although nothing can be read: a silent peer is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.pending.first_key_value().and_then(|(_, peer)| peer.deadline)
    }

    fn accept_peer(&mut self) -> Result<(), NodeError> {
        let socket = match rustix::net::accept_with(self.socket.fd()?, SocketFlags::CLOEXEC) {
            Ok(fd) => MessageSocket::new(fd)?,
            // The peer has gone again.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(()),
            Err(why) => return Err(NodeError::io("accepting a consumer")(why)),
        };
        let credentials = PeerCredentials::of(socket.fd()?)?;
        if let Err(fault) = credentials.check(self.uid, &self.options.allow_uids) {
            refuse(&socket, RefusalCode::User, fault.to_string());
            self.refused += 1;
            return Ok(());
        }
        if self.pending.len() == PENDING_MAX
            && let Some((&oldest, _)) = self.pending.first_key_value()
        {
            self.remove(oldest)?;
            self.refused += 1;
        }
        let key = self.next_key;
        self.next_key += 1;
        let (data, flags) = (epoll::EventData::new_u64(key), epoll::EventFlags::IN);
        epoll::add(self.epoll.get()?, socket.fd()?, data, flags)
            .map_err(NodeError::io("waiting for the message of a consumer"))?;
        let deadline = Instant::now().checked_add(self.options.hello_timeout);
        self.pending.insert(key, PendingPeer { socket, credentials, deadline });
        Ok(())
    }

    fn drop_silent_peers(&mut self) -> Result<(), NodeError> {
        let now = Instant::now();
        while let Some((&key, peer)) = self.pending.first_key_value()
            && peer.deadline.is_some_and(|deadline| deadline <= now)
        {
            self.remove(key)?;
            self.refused += 1;
        }
        Ok(())
    }

    /// Take a pending peer out of the list and of the events.
    fn remove(&mut self, key: u64) -> Result<Option<PendingPeer>, NodeError> {
        let Some(peer) = self.pending.remove(&key) else { return Ok(None) };
        epoll::delete(self.epoll.get()?, peer.socket.fd()?)
            .map_err(NodeError::io("ending the wait for the message of a consumer"))?;
        Ok(Some(peer))
    }

    /// Read the first message of a peer that has sent one or has left; `None` if it is refused.
    fn read_first(peer: PendingPeer) -> Option<Incoming> {
        let PendingPeer { socket, credentials, .. } = peer;
        let outcome = socket
            .receive(HELLO_BYTES_MAX, false, Duration::ZERO, "send its first message")
            .and_then(|datagram| frame::decode(&datagram.bytes));
        let hello = match outcome {
            Ok(NodeRequest::Hello(hello)) => hello,
            Ok(NodeRequest::Status) => {
                return Some(Incoming::Status(StatusRequest::new(socket, credentials)));
            }
            Ok(NodeRequest::Listing(ListingRequest::Find { key })) => {
                return Some(Incoming::Listing(ListingPeer::new(socket, key)));
            }
            Ok(NodeRequest::SampleCache(SampleCacheRequest::Open { samples })) => {
                return Some(Incoming::SampleCache(SampleCachePeer::new(socket, samples)));
            }
            Ok(_) => {
                let text = "the message is none that begins a connection";
                refuse(&socket, RefusalCode::Malformed, text.into());
                return None;
            }
            Err(fault @ NodeError::OtherVersion { .. }) => {
                refuse(&socket, RefusalCode::Version, fault.to_string());
                return None;
            }
            Err(fault @ NodeError::Malformed { .. }) => {
                refuse(&socket, RefusalCode::Malformed, fault.to_string());
                return None;
            }
            Err(_) => return None,
        };
        match socket.fd().and_then(|fd| PeerProcess::open(fd, &credentials)) {
            Ok(process) => Some(Incoming::Attach(AttachRequest::new(socket, credentials, process, hello))),
            Err(fault) => {
                refuse(&socket, RefusalCode::Resources, fault.to_string());
                None
            }
        }
    }
}

impl AsFd for NodeListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.pollable()
    }
}

/// Send a refusal if the peer can take it at once; it is closed in any case.
pub(super) fn refuse(socket: &MessageSocket, code: RefusalCode, text: String) {
    let refusal = NodeReply::Refusal(Refusal { code, text });
    if let Ok(bytes) = frame::encode(&refusal, MESSAGE_BYTES_MAX) {
        // A peer that has left or does not read misses only the reason.
        let _ = socket.send(&bytes, &[], Duration::ZERO);
    }
}
