// SPDX-License-Identifier: Apache-2.0
//! The cache of samples that a process shares with its worker processes.
//!
//! A worker process copies samples that are cached from shared memory, and reports that later. For the others it sends a
//! request and waits for the answer, so a connection has at most one answer on its way. Large samples travel in memory files.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use foresee_units::{Bytes, SampleId};
use rustix::fs::MemfdFlags;
use rustix::net::Shutdown;
use serde::{Deserialize, Serialize};

use super::connection::{ConnectOptions, dial, greet, refused, unexpected};
use super::frame::{self, MESSAGE_BYTES_MAX};
use super::listener::refuse;
use super::message::{NodeReply, NodeRequest, RefusalCode};
use super::socket::{Datagram, MessageSocket};
use crate::address::NodeAddress;
use crate::error::NodeError;
use crate::memory::{LocationTable, LocationView, SlabMemory, SlabView, sealed};

/// The longest sample within a message. Beyond it a memory file costs less than the message.
const INLINE_MAX: usize = 4 << 10;

/// A message of a worker process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum SampleCacheRequest {
    /// The first message, with the number of samples of the dataset.
    Open {
        /// Samples are numbered from 0.
        samples: u64,
    },
    /// The worker process needs a sample. Answered by `Bytes`, `Read` or `Again`.
    Request {
        /// The sample.
        sample: u64,
        /// Whether it was requested before, and `Again` was the answer.
        is_retry: bool,
    },
    /// The worker process has copied these samples from shared memory.
    Hits(Vec<u64>),
    /// The worker process has read a sample.
    Insert {
        /// The sample.
        sample: u64,
        /// Its bytes.
        bytes: SentBytes,
    },
    /// The worker process cannot read a sample.
    Fail {
        /// The sample.
        sample: u64,
    },
    /// The worker process can read ahead. Answered by `Fetch` when there are samples to read.
    NextFetch,
    /// Answered by `Counts`.
    Counts,
    /// The worker process needs several samples. Answered by `Claimed`.
    Claim {
        /// The samples.
        samples: Vec<u64>,
    },
    /// The worker process has read several samples.
    InsertAll {
        /// The samples.
        samples: Vec<u64>,
        /// The number of bytes of each.
        lens: Vec<u64>,
        /// The bytes of all of them, one after another.
        bytes: SentBytes,
    },
    /// The worker process has found a sample on the disk, and sends `Insert`.
    DiskHit,
}

/// A message of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum SampleCacheReply {
    /// The cache is open. Two descriptors come with it: of the slab, then of the table of locations.
    Opened {
        /// Bytes of data in the slab.
        slab_bytes: u64,
    },
    /// The bytes of the requested sample.
    Bytes(SentBytes),
    /// The worker process reads the requested sample, and sends `Insert` or `Fail`.
    Read,
    /// The requested sample was being read, and that has ended: look for it again.
    Again,
    /// The worker process reads these samples ahead, and sends `Insert`, `InsertAll` or `Fail` for each.
    Fetch {
        /// The samples.
        samples: Vec<u64>,
    },
    /// See [`SampleCacheCounts`].
    Counts(SampleCacheCounts),
    /// The worker process reads these samples, as for `Fetch`. It requests those that it has claimed in vain.
    Claimed {
        /// The samples.
        samples: Vec<u64>,
    },
}

/// Numbers of requests and samples of a cache since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleCacheCounts {
    /// Requests answered from memory.
    pub hits: u64,
    /// Requests that waited for a read in flight.
    pub joins: u64,
    /// Requests whose sample was read for them.
    pub misses: u64,
    /// Samples read ahead.
    pub fetches: u64,
    /// Samples evicted.
    pub evictions: u64,
    /// Samples read that did not enter the cache.
    pub bypasses: u64,
    /// Samples, of those read for a request or ahead, that were on the disk.
    pub disk_hits: u64,
    /// Cached samples.
    pub samples: u64,
    /// Bytes that they occupy.
    pub bytes: u64,
    /// Bytes that samples may occupy.
    pub capacity: u64,
}

/// The bytes of a sample in a message. A received message always has them `Inline`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SentBytes {
    /// They are here.
    Inline(Vec<u8>),
    /// They are in the memory file whose descriptor comes with the message.
    File {
        /// Their number.
        len: u64,
    },
}

/// A permitted worker process as the host sees it. Dropping it closes the connection.
#[derive(Debug)]
pub struct SampleCachePeer {
    socket: MessageSocket,
    samples: u64,
}

/// A worker process's connection to a cache. Dropping it tells the host that what it reads will not come.
#[derive(Debug)]
pub struct SampleCacheConnection {
    socket: MessageSocket,
}

/// The memory of a cache as a worker process sees it: read-only.
#[derive(Debug)]
pub struct SampleCacheMemory {
    slab: SlabView,
    locations: LocationView,
}

impl SentBytes {
    /// Prepare bytes to be sent, with the descriptor that has to come with them.
    ///
    /// # Errors
    /// [`NodeError::NoMemory`]; [`NodeError::Io`].
    fn pack(bytes: &[u8]) -> Result<(Self, Option<OwnedFd>), NodeError> {
        if bytes.len() <= INLINE_MAX {
            return Ok((Self::Inline(bytes.to_vec()), None));
        }
        let len = bytes.len() as u64;
        let no_memory = |why: std::io::Error| NodeError::NoMemory { bytes: Bytes::new(len), why };
        let file =
            sealed::create("foresee-sample", MemfdFlags::empty()).map_err(|why| no_memory(why.into()))?;
        let file = File::from(file);
        file.write_all_at(bytes, 0).map_err(no_memory)?;
        Ok((Self::File { len }, Some(file.into())))
    }

    /// The bytes of a received message, `Inline`. They are copied, because their sender could still change the file.
    ///
    /// # Errors
    /// [`NodeError::Malformed`]: the descriptor is missing, or the file is shorter.
    fn unpack(self, descriptors: Vec<OwnedFd>) -> Result<Self, NodeError> {
        match (self, <[_; 1]>::try_from(descriptors)) {
            (Self::Inline(bytes), Err(none)) if none.is_empty() => Ok(Self::Inline(bytes)),
            (Self::File { len }, Ok([file])) => {
                let file = File::from(file);
                let has_bytes = file.metadata().is_ok_and(|found| found.is_file() && found.len() >= len);
                let mut bytes = vec![0; if has_bytes { usize::try_from(len).unwrap_or(0) } else { 0 }];
                let is_read = has_bytes && file.read_exact_at(&mut bytes, 0).is_ok();
                let lacks = || unexpected("has no file with the bytes of its sample");
                is_read.then_some(Self::Inline(bytes)).ok_or_else(lacks)
            }
            _ => Err(unexpected("has other descriptors than its sample needs")),
        }
    }
}

impl SampleCachePeer {
    pub(super) fn new(socket: MessageSocket, samples: u64) -> Self {
        Self { socket, samples }
    }

    /// The number of samples that the dataset has in the worker process.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Accept the worker process.
    ///
    /// # Errors
    /// [`NodeError::Late`], [`NodeError::Ended`]: the connection should end.
    pub fn accept(&self, slab: &SlabMemory, locations: &LocationTable) -> Result<(), NodeError> {
        let reply = SampleCacheReply::Opened { slab_bytes: slab.data_bytes().get() };
        self.send_with(reply, &[slab.file()?, locations.file()?])
    }

    /// Return the next message if there is one.
    ///
    /// # Errors
    /// [`NodeError::Ended`]: the worker process has ended. [`NodeError::Malformed`]: the connection must end.
    pub fn receive(&self) -> Result<Option<SampleCacheRequest>, NodeError> {
        let datagram = match self.socket.receive(MESSAGE_BYTES_MAX, true, Duration::ZERO, "send a message") {
            Ok(datagram) => datagram,
            Err(NodeError::Late { .. }) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        match frame::decode(&datagram.bytes)? {
            NodeRequest::SampleCache(SampleCacheRequest::Open { .. }) => {
                Err(unexpected("is a second first message"))
            }
            NodeRequest::SampleCache(SampleCacheRequest::Insert { sample, bytes }) => {
                let bytes = bytes.unpack(datagram.descriptors)?;
                Ok(Some(SampleCacheRequest::Insert { sample, bytes }))
            }
            NodeRequest::SampleCache(SampleCacheRequest::InsertAll { samples, lens, bytes }) => {
                let bytes = bytes.unpack(datagram.descriptors)?;
                Ok(Some(SampleCacheRequest::InsertAll { samples, lens, bytes }))
            }
            NodeRequest::SampleCache(message) => Ok(Some(message)),
            _ => Err(unexpected("is not about a cache of samples")),
        }
    }

    /// Send a message without waiting.
    ///
    /// # Errors
    /// [`NodeError::Late`]: the worker process does not read, and the connection should end. [`NodeError::Ended`].
    pub fn send(&self, message: SampleCacheReply) -> Result<(), NodeError> {
        self.send_with(message, &[])
    }

    /// Send the bytes of a requested sample, as [`send`](Self::send) does.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`NodeError::NoMemory`].
    pub fn send_bytes(&self, bytes: &[u8]) -> Result<(), NodeError> {
        let (bytes, file) = SentBytes::pack(bytes)?;
        let descriptors: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        self.send_with(SampleCacheReply::Bytes(bytes), &descriptors)
    }

    /// Refuse the worker process with a reason for users.
    pub fn refuse(self, code: RefusalCode, text: impl Into<String>) {
        refuse(&self.socket, code, text.into());
    }

    fn send_with(&self, message: SampleCacheReply, descriptors: &[BorrowedFd<'_>]) -> Result<(), NodeError> {
        let bytes = frame::encode(&NodeReply::SampleCache(message), MESSAGE_BYTES_MAX)?;
        self.socket.send(&bytes, descriptors, Duration::ZERO)
    }
}

impl AsFd for SampleCachePeer {
    /// The socket, readable when a message or the end is there.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl SampleCacheConnection {
    /// Connect to the cache of a dataset of `samples` samples.
    ///
    /// # Errors
    /// As [`NodeStatus::query`](super::NodeStatus::query), but for the answer; [`NodeError::Refused`]: the dataset has
    /// another number of samples there. [`NodeError::NotSealed`].
    pub fn open(
        address: &NodeAddress,
        samples: u64,
        options: &ConnectOptions,
    ) -> Result<(Self, SampleCacheMemory), NodeError> {
        let (socket, _) = dial(address, options)?;
        greet(&socket, &NodeRequest::SampleCache(SampleCacheRequest::Open { samples }), options.timeout)?;
        let connection = Self { socket };
        let (reply, descriptors) = connection.receive_with(options.timeout)?;
        let SampleCacheReply::Opened { slab_bytes } = reply else {
            return Err(unexpected("does not open a cache of samples"));
        };
        let [slab, locations] = <[_; 2]>::try_from(descriptors).map_err(|found| NodeError::Malformed {
            why: format!("an open cache with {} descriptors instead of 2", found.len()),
        })?;
        let memory = SampleCacheMemory {
            slab: SlabView::open(slab.as_fd(), Bytes::new(slab_bytes))?,
            locations: LocationView::open(locations.as_fd(), samples)?,
        };
        Ok((connection, memory))
    }

    /// Send a message, and wait up to `timeout` until the host has space for it.
    ///
    /// # Errors
    /// [`NodeError::Late`]; [`NodeError::Ended`]: the host has ended; [`NodeError::Forked`].
    pub fn send(&self, message: SampleCacheRequest, timeout: Duration) -> Result<(), NodeError> {
        let bytes = frame::encode(&NodeRequest::SampleCache(message), MESSAGE_BYTES_MAX)?;
        self.socket.send(&bytes, &[], timeout)
    }

    /// Send the bytes of a sample, as [`send`](Self::send) does.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`NodeError::NoMemory`].
    pub fn insert(&self, sample: SampleId, bytes: &[u8], timeout: Duration) -> Result<(), NodeError> {
        let (bytes, file) = SentBytes::pack(bytes)?;
        self.send_bytes(SampleCacheRequest::Insert { sample: sample.0, bytes }, file.as_ref(), timeout)
    }

    /// Send the bytes of several samples in one message, as [`send`](Self::send) does.
    ///
    /// # Errors
    /// As [`insert`](Self::insert); [`NodeError::TooLong`] for ten thousands of samples.
    pub fn insert_all(&self, reads: &[(SampleId, &[u8])], timeout: Duration) -> Result<(), NodeError> {
        let whole: Vec<u8> = reads.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        let (bytes, file) = SentBytes::pack(&whole)?;
        let samples = reads.iter().map(|(sample, _)| sample.0).collect();
        let lens = reads.iter().map(|(_, bytes)| bytes.len() as u64).collect();
        self.send_bytes(SampleCacheRequest::InsertAll { samples, lens, bytes }, file.as_ref(), timeout)
    }

    fn send_bytes(
        &self,
        message: SampleCacheRequest,
        file: Option<&OwnedFd>,
        timeout: Duration,
    ) -> Result<(), NodeError> {
        let message = NodeRequest::SampleCache(message);
        let descriptors: Vec<_> = file.into_iter().map(AsFd::as_fd).collect();
        self.socket.send(&frame::encode(&message, MESSAGE_BYTES_MAX)?, &descriptors, timeout)
    }

    /// Wait up to `timeout` for the host's next message.
    ///
    /// # Errors
    /// [`NodeError::Late`]; [`NodeError::Refused`] with its reason; [`NodeError::Ended`]: the host has ended;
    /// [`NodeError::Malformed`]; [`NodeError::Forked`].
    pub fn receive(&self, timeout: Duration) -> Result<SampleCacheReply, NodeError> {
        match self.receive_with(timeout)? {
            (SampleCacheReply::Bytes(bytes), descriptors) => {
                Ok(SampleCacheReply::Bytes(bytes.unpack(descriptors)?))
            }
            (message, _) => Ok(message),
        }
    }

    /// End the waits of other threads for a message.
    pub fn shut_down(&self) {
        if let Ok(socket) = self.socket.fd() {
            // A connection that has ended needs no shutdown.
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
        }
    }

    fn receive_with(&self, timeout: Duration) -> Result<(SampleCacheReply, Vec<OwnedFd>), NodeError> {
        let Datagram { bytes, descriptors } =
            self.socket.receive(MESSAGE_BYTES_MAX, true, timeout, "answer a request of a sample")?;
        match frame::decode(&bytes)? {
            NodeReply::SampleCache(message) => Ok((message, descriptors)),
            NodeReply::Refusal(refusal) => Err(refused(refusal)),
            _ => Err(unexpected("is not about a cache of samples")),
        }
    }
}

impl SampleCacheMemory {
    /// A copy of a sample's bytes; `None` if it is not cached.
    ///
    /// # Errors
    /// [`NodeError::OutsideSlab`], [`NodeError::NoSample`]: the memory is invalid. [`NodeError::Forked`].
    pub fn copy(&self, sample: SampleId) -> Result<Option<Vec<u8>>, NodeError> {
        self.locations.copy_with_length(&self.slab, sample)
    }
}
