// SPDX-License-Identifier: Apache-2.0
//! What the cache does for its worker processes: their requests, and the answers that the thread of the host sends.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use foresee_data_node::{NodeError, SampleCachePeer};
use foresee_data_plan::{ReaderId, SampleLookup};
use foresee_units::SampleId;
use rustc_hash::FxHashMap;

use super::SampleCache;

/// Number of the first connection; before it are the threads of this process.
pub(in crate::sample_cache) const FIRST_PEER: u32 = 1;

/// Connections of worker processes, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Peers {
    pub(super) count: usize,
    /// Those that wait for a read in flight.
    pub(super) joined: FxHashMap<SampleId, Vec<u32>>,
    /// Those that wait for a sample to read ahead.
    pub(super) fetchers: VecDeque<u32>,
    /// Answers that the host's thread has to send.
    pub(super) answers: Vec<(u32, PeerAnswer)>,
    /// Wakes that thread.
    wake: Option<Arc<OwnedFd>>,
}

/// The answer to a connection of a worker process.
#[derive(Debug)]
pub(in crate::sample_cache) enum PeerAnswer {
    /// The bytes of the requested sample.
    Bytes(Arc<[u8]>),
    /// The worker process reads the requested sample.
    Read,
    /// The read that the request joined has ended.
    Again,
    /// The worker process reads these samples ahead.
    Fetch(Vec<SampleId>),
}

impl SampleCache {
    /// Wake the thread of the host by `wake` from now on.
    pub(in crate::sample_cache) fn begin_hosting(&self, wake: Arc<OwnedFd>) {
        self.lock().peers.wake = Some(wake);
    }

    /// The host has ended, with all connections.
    pub(in crate::sample_cache) fn end_hosting(&self) {
        self.lock().peers.wake = None;
    }

    /// Let a worker process map the memory, and count its connection.
    pub(in crate::sample_cache) fn accept(&self, peer: &SampleCachePeer) -> Result<(), NodeError> {
        let mut state = self.lock();
        state.store.accept(peer)?;
        state.peers.count += 1;
        Ok(())
    }

    /// A connection has ended: its reads have failed.
    pub(in crate::sample_cache) fn lose(&self, peer: u32) {
        let mut state = self.lock();
        state.peers.count -= 1;
        state.peers.fetchers.retain(|&other| other != peer);
        for waiting in state.peers.joined.values_mut() {
            waiting.retain(|&other| other != peer);
        }
        for sample in state.planner.handle_reader_lost(ReaderId(peer)) {
            state.end_read(sample, None);
        }
        self.notify_ends(state);
    }

    /// A worker process requests a sample; `None` if it has to wait, and gets an answer later.
    pub(in crate::sample_cache) fn request_of(
        &self,
        peer: u32,
        sample: SampleId,
        is_retry: bool,
    ) -> Option<PeerAnswer> {
        let mut state = self.lock_for_accesses();
        let answer = match self.look_up(&mut state, sample, ReaderId(peer), is_retry) {
            SampleLookup::Hit => Some(PeerAnswer::Bytes(state.cached(sample))),
            SampleLookup::Read => Some(PeerAnswer::Read),
            SampleLookup::Join => {
                state.peers.joined.entry(sample).or_default().push(peer);
                None
            }
        };
        self.wake_readers(&state);
        answer
    }

    /// A worker process requests several samples; see [`SampleCache::claim`].
    pub(in crate::sample_cache) fn claim_of(&self, peer: u32, samples: &[u64]) -> Vec<SampleId> {
        let mut state = self.lock_for_accesses();
        let samples: Vec<SampleId> = samples.iter().copied().map(SampleId).collect();
        let claimed = self.claim_for(&mut state, &samples, ReaderId(peer));
        self.wake_readers(&state);
        claimed
    }

    /// A worker process has copied these samples.
    pub(in crate::sample_cache) fn note_hits(&self, samples: &[u64]) {
        let (mut state, now) = (self.lock_for_accesses(), self.now());
        for &sample in samples {
            state.planner.handle_hit(SampleId(sample), now);
        }
        state.counts.hits += samples.len() as u64;
        self.wake_readers(&state);
    }

    /// A worker process can read ahead: it gets an answer later.
    pub(in crate::sample_cache) fn note_fetcher(&self, peer: u32) {
        self.lock().peers.fetchers.push_back(peer);
    }

    /// The answers that are due.
    pub(in crate::sample_cache) fn take_answers(&self) -> Vec<(u32, PeerAnswer)> {
        let mut state = self.lock();
        while let Some(&peer) = state.peers.fetchers.front() {
            let group = self.fetch_for(&mut state, ReaderId(peer));
            if group.is_empty() {
                break;
            }
            state.peers.fetchers.pop_front();
            state.peers.answers.push((peer, PeerAnswer::Fetch(group)));
        }
        std::mem::take(&mut state.peers.answers)
    }
}

impl Peers {
    pub(super) fn wake_host(&self) {
        if let Some(wake) = &self.wake {
            // The counter is full only if the thread has yet to wake up.
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
    }
}
