// SPDX-License-Identifier: Apache-2.0
//! The cache as a worker process sees it: it copies samples that are cached, and requests the others.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foresee_data_node::{
    ConnectOptions, NodeAddress, NodeError, SampleCacheConnection, SampleCacheCounts, SampleCacheMemory,
    SampleCacheReply, SampleCacheRequest, SentBytes,
};
use foresee_units::SampleId;

/// Time for each step of connecting, and to send a message. The host answers without waiting for anybody.
const TIMEOUT: Duration = Duration::from_secs(10);
/// No limit: the end of the host ends the wait.
const UNLIMITED: Duration = Duration::MAX;
/// Bytes of several samples from which on each is sent alone: one message would copy all of them again.
const TOGETHER_MAX: usize = 1 << 20;
/// Samples of one message.
const SAMPLES_MAX: usize = 1 << 12;
/// Hits are reported when there are as many, or when the last report is as old.
const HITS_MAX: usize = 32;
const HITS_INTERVAL: Duration = Duration::from_millis(1);

/// The cache that another process shares. Any number of threads may use it.
///
/// After an error its methods return what an empty cache would: every sample is read by the caller. A forked child must
/// not use it.
#[derive(Debug)]
pub struct SampleCacheClient {
    address: NodeAddress,
    samples: u64,
    memory: SampleCacheMemory,
    state: Mutex<ClientState>,
}

#[derive(Debug)]
struct ClientState {
    /// Connections that wait for no answer.
    idle: Vec<Arc<SampleCacheConnection>>,
    /// Those of threads that wait for a sample to read ahead.
    fetching: Vec<Arc<SampleCacheConnection>>,
    hits: Vec<u64>,
    reported: Instant,
    is_closed: bool,
    /// Why the cache is of no use any more.
    fault: Option<String>,
}

/// A request whose answer has not come.
#[derive(Debug)]
pub struct PendingRequest {
    sample: SampleId,
    connection: Arc<SampleCacheConnection>,
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub enum RemoteAnswer {
    /// The bytes of the sample.
    Bytes(Vec<u8>),
    /// The caller reads the sample, then calls [`insert`](SampleCacheClient::insert) or
    /// [`fail`](SampleCacheClient::fail).
    Read,
}

impl SampleCacheClient {
    /// Connect to the cache whose socket is `path`, for a dataset of `samples` samples.
    ///
    /// # Errors
    /// Those of [`SampleCacheConnection::open`].
    pub fn connect(path: &Path, samples: u64) -> Result<Self, NodeError> {
        let address = NodeAddress::explicit(path)?;
        let (connection, memory) = open(&address, samples)?;
        let state = ClientState {
            idle: vec![Arc::new(connection)],
            fetching: Vec::new(),
            hits: Vec::new(),
            reported: Instant::now(),
            is_closed: false,
            fault: None,
        };
        Ok(Self { address, samples, memory, state: Mutex::new(state) })
    }

    /// Why the cache is of no use any more: its host has ended, or does not answer.
    pub fn fault(&self) -> Option<String> {
        self.lock().fault.clone()
    }

    /// A copy of a sample's bytes; `None` if it is not cached.
    pub fn copy(&self, sample: SampleId) -> Option<Vec<u8>> {
        let bytes = self.try_or_else(|| self.memory.copy(sample), None)?;
        let mut state = self.lock();
        state.hits.push(sample.0);
        if state.hits.len() >= HITS_MAX || state.reported.elapsed() >= HITS_INTERVAL {
            drop(state);
            self.report_hits();
        }
        Some(bytes)
    }

    /// Request a sample that is not cached; `None` if the caller reads it and keeps it to itself.
    pub fn request(&self, sample: SampleId) -> Option<PendingRequest> {
        self.report_hits();
        let send = || {
            let connection = self.take()?;
            connection.send(SampleCacheRequest::Request { sample: sample.0, is_retry: false }, TIMEOUT)?;
            Ok(Some(PendingRequest { sample, connection }))
        };
        self.try_or_else(send, None)
    }

    /// Wait up to `timeout` for the answer; `None` if it has not come.
    pub fn wait(&self, request: &PendingRequest, timeout: Duration) -> Option<RemoteAnswer> {
        let receive = || match request.connection.receive(timeout) {
            Err(NodeError::Late { .. }) => Ok(None),
            Err(fault) => Err(fault),
            Ok(SampleCacheReply::Again) => {
                if let Some(bytes) = self.memory.copy(request.sample)? {
                    self.put_back(&request.connection);
                    return Ok(Some(RemoteAnswer::Bytes(bytes)));
                }
                let again = SampleCacheRequest::Request { sample: request.sample.0, is_retry: true };
                request.connection.send(again, TIMEOUT)?;
                Ok(None)
            }
            Ok(reply) => {
                self.put_back(&request.connection);
                match reply {
                    SampleCacheReply::Bytes(SentBytes::Inline(bytes)) => Ok(Some(RemoteAnswer::Bytes(bytes))),
                    SampleCacheReply::Read => Ok(Some(RemoteAnswer::Read)),
                    _ => Err(NodeError::Malformed { why: "it answers no request of a sample".into() }),
                }
            }
        };
        self.try_or_else(receive, Some(RemoteAnswer::Read))
    }

    /// Request several samples that are not cached; see [`SampleCache::claim`](super::SampleCache::claim). Samples above a number of
    /// 4096 are not claimed.
    pub fn claim(&self, samples: &[SampleId]) -> Vec<SampleId> {
        self.report_hits();
        let samples = &samples[..samples.len().min(SAMPLES_MAX)];
        let query = || {
            let connection = self.take()?;
            let wanted = samples.iter().map(|sample| sample.0).collect();
            connection.send(SampleCacheRequest::Claim { samples: wanted }, TIMEOUT)?;
            match connection.receive(TIMEOUT)? {
                SampleCacheReply::Claimed { samples } => {
                    self.put_back(&connection);
                    Ok(samples.into_iter().map(SampleId).collect())
                }
                _ => Err(NodeError::Malformed { why: "it does not answer with claimed samples".into() }),
            }
        };
        self.try_or_else(query, samples.to_vec())
    }

    /// Several samples were read: they may enter the cache.
    pub fn insert_all(&self, reads: &[(SampleId, &[u8])]) {
        let bytes: usize = reads.iter().map(|(_, bytes)| bytes.len()).sum();
        if reads.len() <= SAMPLES_MAX && bytes <= TOGETHER_MAX {
            self.send(|connection| connection.insert_all(reads, TIMEOUT));
        } else {
            for &(sample, bytes) in reads {
                self.insert(sample, bytes);
            }
        }
    }

    /// A sample was read: it may enter the cache.
    pub fn insert(&self, sample: SampleId, bytes: &[u8]) {
        self.send(|connection| connection.insert(sample, bytes, TIMEOUT));
    }

    /// The sample that is inserted next was on the disk.
    pub fn note_disk_hit(&self) {
        self.send(|connection| connection.send(SampleCacheRequest::DiskHit, TIMEOUT));
    }

    /// The read of a sample has failed.
    pub fn fail(&self, sample: SampleId) {
        self.send(|connection| connection.send(SampleCacheRequest::Fail { sample: sample.0 }, TIMEOUT));
    }

    /// Wait for the next samples to read ahead together; none after [`close`](Self::close), or without a host.
    pub fn next_fetch(&self) -> Vec<SampleId> {
        let wait = || {
            let connection = self.take()?;
            {
                let mut state = self.lock();
                if state.is_closed {
                    return Ok(Vec::new());
                }
                state.fetching.push(Arc::clone(&connection));
            }
            let received = connection
                .send(SampleCacheRequest::NextFetch, TIMEOUT)
                .and_then(|()| connection.receive(UNLIMITED));
            let mut state = self.lock();
            state.fetching.retain(|other| !Arc::ptr_eq(other, &connection));
            match received {
                _ if state.is_closed => Ok(Vec::new()),
                Ok(SampleCacheReply::Fetch { samples }) => {
                    state.idle.push(connection);
                    Ok(samples.into_iter().map(SampleId).collect())
                }
                Ok(_) => Err(NodeError::Malformed { why: "it names no samples to read ahead".into() }),
                Err(fault) => Err(fault),
            }
        };
        self.try_or_else(wait, Vec::new())
    }

    /// Counts over all processes that share the cache; `None` without a host.
    pub fn counts(&self) -> Option<SampleCacheCounts> {
        self.report_hits();
        let query = || {
            let connection = self.take()?;
            connection.send(SampleCacheRequest::Counts, TIMEOUT)?;
            match connection.receive(TIMEOUT)? {
                SampleCacheReply::Counts(counts) => {
                    self.put_back(&connection);
                    Ok(Some(counts))
                }
                _ => Err(NodeError::Malformed { why: "it does not answer with counts".into() }),
            }
        };
        self.try_or_else(query, None)
    }

    /// End the waits of [`next_fetch`](Self::next_fetch).
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        for connection in &state.fetching {
            connection.shut_down();
        }
    }

    fn report_hits(&self) {
        let hits = {
            let mut state = self.lock();
            state.reported = Instant::now();
            std::mem::take(&mut state.hits)
        };
        if !hits.is_empty() {
            self.send(|connection| connection.send(SampleCacheRequest::Hits(hits), TIMEOUT));
        }
    }

    /// Send a message that has no answer.
    fn send(&self, send: impl FnOnce(&SampleCacheConnection) -> Result<(), NodeError>) {
        let send = || {
            let connection = self.take()?;
            send(&connection)?;
            self.put_back(&connection);
            Ok(())
        };
        self.try_or_else(send, ());
    }

    /// Do something with the host, or note why it fails, and return what an empty cache would.
    fn try_or_else<T>(&self, work: impl FnOnce() -> Result<T, NodeError>, without: T) -> T {
        if self.lock().fault.is_some() {
            return without;
        }
        work().unwrap_or_else(|fault| {
            self.lock().fault.get_or_insert_with(|| fault.to_string());
            without
        })
    }

    /// A connection that waits for no answer.
    fn take(&self) -> Result<Arc<SampleCacheConnection>, NodeError> {
        if let Some(connection) = self.lock().idle.pop() {
            return Ok(connection);
        }
        Ok(Arc::new(open(&self.address, self.samples)?.0))
    }

    fn put_back(&self, connection: &Arc<SampleCacheConnection>) {
        self.lock().idle.push(Arc::clone(connection));
    }

    fn lock(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open(
    address: &NodeAddress,
    samples: u64,
) -> Result<(SampleCacheConnection, SampleCacheMemory), NodeError> {
    SampleCacheConnection::open(
        address,
        samples,
        &ConnectOptions { allow_uids: Vec::new(), timeout: TIMEOUT },
    )
}
