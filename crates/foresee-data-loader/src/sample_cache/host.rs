// SPDX-License-Identifier: Apache-2.0
//! The thread that answers worker processes. It never waits for one of them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use foresee_data_node::{
    AddressValues, Incoming, ListenerOptions, NodeError, NodeListener, RefusalCode, SampleCachePeer,
    SampleCacheReply, SampleCacheRequest, SentBytes,
};
use foresee_units::SampleId;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use super::cache::{FIRST_PEER, PeerAnswer, SampleCache};

/// Time for a worker process that has connected to send its first message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failure to accept, for example without descriptors.
const FAILURE_PAUSE: Duration = Duration::from_millis(200);
/// Events that one wait returns at most.
const EVENTS: usize = 64;
/// Keys of events; connections have their numbers.
const WAKE: u64 = 1 << 32;
const LISTENER: u64 = WAKE + 1;

/// Caches that this process has shared so far.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Lets worker processes use a cache. Dropping it closes their connections.
///
/// A forked child must not drop it.
#[derive(Debug)]
pub struct SampleCacheHost {
    cache: Arc<SampleCache>,
    path: PathBuf,
    wake: Arc<OwnedFd>,
    is_closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The thread of a host.
#[derive(Debug)]
struct Reception {
    cache: Arc<SampleCache>,
    /// Samples of the dataset.
    samples: u64,
    listener: NodeListener,
    wake: Arc<OwnedFd>,
    is_closing: Arc<AtomicBool>,
    epoll: OwnedFd,
    peers: BTreeMap<u32, SampleCachePeer>,
    next: u32,
}

impl SampleCacheHost {
    /// Bind a socket, and answer the worker processes of a dataset of `samples` samples. The memory of the cache is shared from
    /// now on. While worker processes are connected, they read ahead, and this process does not.
    ///
    /// # Errors
    /// [`NodeError::NoMemory`], [`NodeError::Directory`], [`NodeError::PathTooLong`], [`NodeError::InUse`],
    /// [`NodeError::Io`]: the cache stays that of this process.
    pub fn start(cache: Arc<SampleCache>, samples: u64) -> Result<Self, NodeError> {
        cache.share(samples)?;
        let listener = bind()?;
        let path = listener.path().to_owned();
        let failed = |doing| move |why: Errno| NodeError::Io { doing, why: why.into() };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(failed("creating an eventfd"))?);
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("creating an epoll descriptor"))?;
        for (file, key) in [(wake.as_fd(), WAKE), (listener.as_fd(), LISTENER)] {
            watch(&epoll, file, key)?;
        }
        let is_closing = Arc::new(AtomicBool::new(false));
        cache.begin_hosting(Arc::clone(&wake));
        let reception = Reception {
            cache: Arc::clone(&cache),
            samples,
            listener,
            wake: Arc::clone(&wake),
            is_closing: Arc::clone(&is_closing),
            epoll,
            peers: BTreeMap::new(),
            next: FIRST_PEER,
        };
        let thread = Builder::new().name("foresee-samples".into()).spawn(move || reception.run());
        let thread =
            thread.map_err(|why| NodeError::Io { doing: "starting a thread for worker processes", why })?;
        Ok(Self { cache, path, wake, is_closing, thread: Some(thread) })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SampleCacheHost {
    fn drop(&mut self) {
        self.is_closing.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // After a panic of the thread its worker processes have lost their host, and read for themselves.
            let _ = thread.join();
        }
        self.cache.end_hosting();
    }
}

impl Reception {
    fn run(mut self) {
        while !self.is_closing.load(Ordering::Acquire) {
            for key in self.wait() {
                match key {
                    WAKE => drop(rustix::io::read(&self.wake, &mut [0_u8; 8])),
                    LISTENER => self.receive_visitors(),
                    peer => self.read(u32::try_from(peer).expect("the number of a connection")),
                }
            }
            self.send_answers();
        }
        for &peer in self.peers.keys() {
            self.cache.lose(peer);
        }
    }

    /// Wait for events, and return their keys.
    fn wait(&self) -> Vec<u64> {
        let left = self.listener.next_deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut events = Vec::with_capacity(EVENTS);
        // An interrupted wait finds nothing, and is repeated.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), left.as_ref());
        let mut keys: Vec<u64> = events.iter().map(|event: &epoll::Event| event.data.u64()).collect();
        if keys.is_empty() && left.is_some() {
            // A silent visitor may be due.
            keys.push(LISTENER);
        }
        keys
    }

    fn receive_visitors(&mut self) {
        loop {
            match self.listener.accept(Duration::ZERO) {
                Ok(None) => return,
                Ok(Some(Incoming::SampleCache(peer))) => self.admit(peer),
                Ok(Some(Incoming::Attach(request))) => request.refuse(RefusalCode::Malformed, NOT_A_NODE),
                Ok(Some(Incoming::Status(request))) => request.refuse(RefusalCode::Malformed, NOT_A_NODE),
                Ok(Some(Incoming::Listing(peer))) => peer.refuse(RefusalCode::Malformed, NOT_A_NODE),
                Err(_) => {
                    std::thread::park_timeout(FAILURE_PAUSE);
                    return;
                }
            }
        }
    }

    fn admit(&mut self, peer: SampleCachePeer) {
        if peer.samples() != self.samples {
            let text = format!(
                "the dataset has {} samples in the worker process and {} in the process that shares its cache",
                peer.samples(),
                self.samples
            );
            return peer.refuse(RefusalCode::DataSet, text);
        }
        let number = self.next;
        if watch(&self.epoll, peer.as_fd(), number.into()).is_err() || self.cache.accept(&peer).is_err() {
            return;
        }
        self.next += 1;
        self.peers.insert(number, peer);
    }

    /// Handle all messages of a connection.
    fn read(&mut self, number: u32) {
        while let Some(peer) = self.peers.get(&number) {
            let Ok(message) = peer.receive() else { return self.remove(number) };
            let Some(message) = message else { return };
            if !self.handle(number, message) {
                return self.remove(number);
            }
        }
    }

    /// Handle a message; `false` if it is invalid, or cannot be answered.
    fn handle(&self, number: u32, message: SampleCacheRequest) -> bool {
        let is_valid = |&sample: &u64| sample < self.samples;
        match message {
            SampleCacheRequest::Request { sample, is_retry } if is_valid(&sample) => {
                let answer = self.cache.request_of(number, SampleId(sample), is_retry);
                answer.is_none_or(|answer| self.send(number, answer))
            }
            SampleCacheRequest::Hits(samples) if samples.iter().all(is_valid) => {
                self.cache.note_hits(&samples);
                true
            }
            SampleCacheRequest::Insert { sample, bytes: SentBytes::Inline(bytes) } if is_valid(&sample) => {
                self.cache.insert(SampleId(sample), &bytes);
                true
            }
            SampleCacheRequest::Fail { sample } if is_valid(&sample) => {
                self.cache.fail(SampleId(sample));
                true
            }
            SampleCacheRequest::DiskHit => {
                self.cache.note_disk_hit();
                true
            }
            SampleCacheRequest::NextFetch => {
                self.cache.note_fetcher(number);
                true
            }
            SampleCacheRequest::InsertAll { samples, lens, bytes: SentBytes::Inline(bytes) }
                if samples.iter().all(is_valid) =>
            {
                let Some(reads) = divide(&samples, &lens, &bytes) else { return false };
                self.cache.insert_all(&reads);
                true
            }
            SampleCacheRequest::Claim { samples } if samples.iter().all(is_valid) => {
                let samples = numbers(self.cache.claim_of(number, &samples));
                let reply = SampleCacheReply::Claimed { samples };
                self.peers.get(&number).is_some_and(|peer| peer.send(reply).is_ok())
            }
            SampleCacheRequest::Counts => {
                let reply = SampleCacheReply::Counts(self.cache.counts());
                self.peers.get(&number).is_some_and(|peer| peer.send(reply).is_ok())
            }
            _ => false,
        }
    }

    fn send_answers(&mut self) {
        loop {
            let answers = self.cache.take_answers();
            if answers.is_empty() {
                return;
            }
            for (number, answer) in answers {
                if !self.send(number, answer) {
                    self.remove(number);
                }
            }
        }
    }

    /// Send an answer, for which a waiting connection has space; `false` if it cannot be sent.
    fn send(&self, number: u32, answer: PeerAnswer) -> bool {
        let Some(peer) = self.peers.get(&number) else { return true };
        let sent = match answer {
            PeerAnswer::Bytes(bytes) => peer.send_bytes(&bytes),
            PeerAnswer::Read => peer.send(SampleCacheReply::Read),
            PeerAnswer::Again => peer.send(SampleCacheReply::Again),
            PeerAnswer::Fetch(group) => peer.send(SampleCacheReply::Fetch { samples: numbers(group) }),
        };
        sent.is_ok()
    }

    fn remove(&mut self, number: u32) {
        if let Some(peer) = self.peers.remove(&number) {
            // Closing the socket would do it, unless a child that is just being forked still has it.
            let _ = epoll::delete(&self.epoll, peer.as_fd());
            self.cache.lose(number);
        }
    }
}

fn numbers(samples: Vec<SampleId>) -> Vec<u64> {
    samples.into_iter().map(|sample| sample.0).collect()
}

/// Divide the bytes of several samples; `None` if the lengths are those of other bytes or samples.
fn divide<'a>(samples: &[u64], lens: &[u64], mut bytes: &'a [u8]) -> Option<Vec<(SampleId, &'a [u8])>> {
    let mut reads = Vec::with_capacity(samples.len());
    for (&sample, &len) in samples.iter().zip(lens) {
        let (data, rest) = bytes.split_at_checked(usize::try_from(len).ok()?)?;
        reads.push((SampleId(sample), data));
        bytes = rest;
    }
    (samples.len() == lens.len() && bytes.is_empty()).then_some(reads)
}

/// Bind a socket of this process.
fn bind() -> Result<NodeListener, NodeError> {
    let values = AddressValues::from_environment();
    let options = ListenerOptions { allow_uids: Vec::new(), hello_timeout: HELLO_TIMEOUT };
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let address = values.samples(std::process::id(), number)?;
    NodeListener::bind(&address, options)
}

fn watch(epoll: &OwnedFd, file: BorrowedFd<'_>, key: u64) -> Result<(), NodeError> {
    epoll::add(epoll, file, epoll::EventData::new_u64(key), epoll::EventFlags::IN)
        .map_err(|why| NodeError::Io { doing: "waiting for worker processes", why: why.into() })
}

const NOT_A_NODE: &str =
    "this socket is for the worker processes of a loader; use the socket of a node's cache";
