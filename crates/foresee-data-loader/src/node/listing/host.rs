// SPDX-License-Identifier: Apache-2.0
//! The host of the listings of a job on this node: a thread in one of its ranks, which never waits for a single rank.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use foresee_data_node::{
    Incoming, ListenerOptions, ListingPeer, ListingReply, ListingRequest, NodeAddress, NodeError,
    NodeListener, RefusalCode,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};

use super::registry::{Answer, ListingRegistry};

/// Time for a rank that has connected to request a listing.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failure to accept, for example without descriptors.
const FAILURE_PAUSE: Duration = Duration::from_millis(200);

/// A running host. Dropping it closes it.
#[derive(Debug)]
pub(super) struct ListingHost {
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// The process that created it.
    process: u32,
}

/// The thread of a host.
#[derive(Debug)]
struct ListingReception {
    listener: NodeListener,
    wake: Arc<OwnedFd>,
    peers: BTreeMap<u32, ListingPeer>,
    registry: ListingRegistry<File>,
    next: u32,
}

impl ListingHost {
    /// Bind the socket, and answer ranks until it is dropped.
    ///
    /// # Errors
    /// [`NodeError::InUse`]: another rank is the host. [`NodeError::Directory`], [`NodeError::NotASocket`],
    /// [`NodeError::Io`].
    pub(super) fn start(address: &NodeAddress) -> Result<Self, NodeError> {
        let options = ListenerOptions { allow_uids: Vec::new(), hello_timeout: HELLO_TIMEOUT };
        let listener = NodeListener::bind(address, options)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|why| NodeError::Io { doing: "creating an eventfd", why: why.into() })?;
        let wake = Arc::new(wake);
        let reception = ListingReception {
            listener,
            wake: Arc::clone(&wake),
            peers: BTreeMap::new(),
            registry: ListingRegistry::default(),
            next: 0,
        };
        let thread = Builder::new().name("foresee-listings".into()).spawn(move || reception.run());
        let thread = thread.map_err(|why| NodeError::Io { doing: "starting a thread for listings", why })?;
        Ok(Self { wake, thread: Some(thread), process: std::process::id() })
    }
}

impl Drop for ListingHost {
    fn drop(&mut self) {
        // A forked child has no thread to end.
        if self.process == std::process::id()
            && let Some(thread) = self.thread.take()
        {
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
            // After a panic of the thread its ranks have lost their host, and list alone.
            let _ = thread.join();
        }
    }
}

impl ListingReception {
    fn run(mut self) {
        while let Some((has_visitors, readable)) = self.wait() {
            for number in readable {
                self.read(number);
            }
            if has_visitors {
                self.receive_visitors();
            }
        }
    }

    /// Wait until a rank connects or sends something; `None` if the host closes.
    fn wait(&self) -> Option<(bool, Vec<u32>)> {
        let mut polled =
            vec![PollFd::new(&self.wake, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        polled.extend(self.peers.values().map(|peer| PollFd::from_borrowed_fd(peer.as_fd(), PollFlags::IN)));
        let left = self.listener.next_deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        // An interrupted wait finds nothing, and is repeated.
        let _ = rustix::event::poll(&mut polled, left.as_ref());
        if !polled[0].revents().is_empty() {
            return None;
        }
        let has_visitors = left.is_some() || !polled[1].revents().is_empty();
        let peers = polled[2..].iter().zip(self.peers.keys());
        Some((has_visitors, peers.filter(|(fd, _)| !fd.revents().is_empty()).map(|(_, &n)| n).collect()))
    }

    fn receive_visitors(&mut self) {
        loop {
            match self.listener.accept(Duration::ZERO) {
                Ok(None) => return,
                Ok(Some(Incoming::Listing(peer))) => {
                    let number = self.next;
                    self.next += 1;
                    let answer = self.registry.handle_find(number, peer.key());
                    self.peers.insert(number, peer);
                    self.send(vec![(number, answer)]);
                }
                Ok(Some(Incoming::Attach(request))) => request.refuse(RefusalCode::Malformed, NO_CACHE),
                Ok(Some(Incoming::Status(request))) => request.refuse(RefusalCode::Malformed, NO_CACHE),
                Ok(Some(Incoming::SampleCache(peer))) => peer.refuse(RefusalCode::Malformed, NO_CACHE),
                Err(_) => {
                    std::thread::park_timeout(FAILURE_PAUSE);
                    return;
                }
            }
        }
    }

    /// Read all messages of a rank.
    fn read(&mut self, number: u32) {
        while let Some(peer) = self.peers.get(&number) {
            let told = match peer.receive() {
                Ok(None) => return,
                Ok(Some((ListingRequest::Alive, _))) => Ok(self.registry.handle_alive(number)),
                Ok(Some((ListingRequest::Built(counts), Some(index)))) => {
                    self.registry.handle_built(number, counts, index)
                }
                Ok(Some((ListingRequest::Failed, _))) => self.registry.handle_failed(number),
                Ok(Some(_)) | Err(_) => return self.remove(number),
            };
            match told {
                Ok(told) => self.send(told),
                Err(_) => return self.remove(number),
            }
        }
    }

    /// Send answers. A rank that has ended or does not read leaves its listing, which may be the turn of another one.
    fn send(&mut self, mut told: Vec<(u32, Answer)>) {
        while let Some((number, answer)) = told.pop() {
            let Some(peer) = self.peers.get(&number) else { continue };
            let sent = match (answer, self.registry.built(number)) {
                (Answer::Index, Some((counts, index))) => {
                    peer.send(ListingReply::Built(*counts), Some(index))
                }
                (Answer::List, _) => peer.send(ListingReply::Wanted, None),
                (Answer::Pending | Answer::Index, _) => peer.send(ListingReply::Pending, None),
            };
            if sent.is_err() {
                self.peers.remove(&number);
                told.extend(self.registry.handle_left(number));
            }
        }
    }

    fn remove(&mut self, number: u32) {
        self.peers.remove(&number);
        let told = self.registry.handle_left(number);
        self.send(told.into_iter().collect());
    }
}

const NO_CACHE: &str =
    "this is the host of a job's listings, which has no cache; use the socket of a node's cache";
