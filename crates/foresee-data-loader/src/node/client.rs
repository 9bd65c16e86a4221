// SPDX-License-Identifier: Apache-2.0
//! The attachment of one loader to the cache of its node.
//!
//! The driver queues commands and drains events. A thread of its own owns rings and socket, and copies samples from the
//! host's memory into those of their batches. All that the host sends is checked: a fault ends the attachment.

mod batches;
mod copy;
mod messages;
#[cfg(test)]
mod process_tests;
mod shared;
#[cfg(test)]
mod tests;
mod thread;

use std::collections::BTreeMap;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use foresee_data_index::Index;
use foresee_data_node::message::{BatchRequest, ConsumerProgress, SAMPLES_MAX};
use foresee_data_node::ring::RingWaker;
use foresee_data_node::{
    ConnectOptions, DataSetDescription, Hello, NodeAddress, NodeConnection, NodeError, StorageOptions,
    index_file,
};
use foresee_units::{Bytes, Nanos, SampleId, Source};

use self::copy::{BatchMemory, SharedSamples};
use self::shared::{QueuedBatch, Shared, Wake};
use self::thread::ClientThread;
use crate::buffer::Buffer;
use crate::waker::Waker;

/// The data set that a host opens for a loader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeDataSet<'a> {
    pub(crate) index: &'a Index,
    /// The present location of its objects.
    pub(crate) uri: &'a str,
    /// Options of the origin. They may contain credentials.
    pub(crate) storage: &'a [(String, String)],
    /// Whether a rank of this job has just listed the origin.
    pub(crate) is_listed: bool,
}

/// Accesses that the loader will request, in their order; they may be a part of an epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeAnnouncement {
    /// Entries of the index.
    pub(crate) samples: Vec<SampleId>,
    /// See [`Announcement::generation`](foresee_data_node::message::Announcement::generation).
    pub(crate) generation: u32,
    /// Whether accesses that were announced before and not requested are void.
    pub(crate) is_restart: bool,
    /// Whether the epoch or window is complete with these samples.
    pub(crate) is_epoch_end: bool,
    /// Whether no epoch follows.
    pub(crate) is_end: bool,
}

/// A batch to request: the next announced accesses.
#[derive(Debug)]
pub(crate) struct NodeBatch {
    /// Its number, greater than those of all batches before.
    pub(crate) number: u64,
    /// Time of `CLOCK_MONOTONIC` at which it is needed; [`Nanos::MAX`] if it is not known.
    pub(crate) deadline: Nanos,
    /// Entries of the index; 1 to [`NodeClient::samples_max`]. Entries of zero bytes are requested like others.
    pub(crate) samples: Box<[SampleId]>,
    /// Offset and length of each sample in the buffer, disjoint. Nothing else accesses them until they are reported.
    pub(crate) spans: Box<[(usize, usize)]>,
    /// The memory of the batch, which is mapped. The client gives it up when the batch is complete or withdrawn.
    pub(crate) buffer: Arc<Buffer>,
}

/// Samples and bytes of one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCount {
    /// Number of samples.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Copied samples by the source from which the host had them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// From its memory, with the samples that another consumer caused it to read.
    pub memory: CopyCount,
    /// From its disk.
    pub disk: CopyCount,
    /// From another node.
    pub peer: CopyCount,
    /// From the origin.
    pub origin: CopyCount,
}

impl CopyCounts {
    /// The counts by source, the fastest source first.
    pub const fn each(self) -> [(Source, CopyCount); 4] {
        let Self { memory, disk, peer, origin } = self;
        [(Source::Ram, memory), (Source::Disk, disk), (Source::Peer, peer), (Source::Origin, origin)]
    }

    /// Add other counts.
    pub(crate) fn add(&mut self, other: Self) {
        let Self { memory, disk, peer, origin } = self;
        let counts = [memory, disk, peer, origin].into_iter().zip(other.each());
        for (count, (_, more)) in counts {
            count.samples += more.samples;
            count.bytes += more.bytes;
        }
    }

    fn record(&mut self, source: Source, bytes: u64) {
        let count = match source {
            Source::Ram => &mut self.memory,
            Source::Disk => &mut self.disk,
            Source::Peer => &mut self.peer,
            Source::Origin => &mut self.origin,
            Source::None | Source::Staging | Source::Server => unreachable!("no answer has this source"),
        };
        count.samples += 1;
        count.bytes += bytes;
    }
}

/// A report for the driver. Those of a batch that was withdrawn meanwhile are to be ignored.
#[derive(Debug)]
pub(crate) enum NodeEvent {
    /// The bytes of these positions are in the batch's memory.
    Copied { batch: u64, positions: Box<[u32]>, by_source: CopyCounts },
    /// The host could not read the sample; the bytes of its span are undefined.
    Failed { batch: u64, position: u32 },
    /// The host can use the next epoch. It is reported once between two announcements.
    EpochWanted,
    /// The last event. The client writes no memory any more, and will not fill these positions, by batch.
    Ended { why: NodeError, missing: Vec<(u64, Vec<u32>)> },
}

/// The attachment of one loader. Dropping it detaches; no memory of a batch is written afterwards.
#[derive(Debug)]
pub(crate) struct NodeClient {
    shared: Arc<Shared>,
    connection: Arc<NodeConnection>,
    samples: Arc<SharedSamples>,
    ring_waker: RingWaker,
    samples_max: usize,
    thread: ManuallyDrop<JoinHandle<()>>,
}

impl NodeClient {
    /// Attach to the host at `address`, open the data set, and start the thread, which wakes `waker` with each event.
    /// The index is sent if the host lacks it. The timeout of `options` is the maximum time without a message of the host;
    /// while the host opens the data set, `is_wanted` returns whether to wait on.
    pub(crate) fn attach(
        address: &NodeAddress,
        hello: &Hello,
        options: &ConnectOptions,
        data: NodeDataSet<'_>,
        waker: Arc<Waker>,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Self, NodeError> {
        let (connection, rings) = NodeConnection::connect(address, hello, options)?;
        let index = || index_file(data.index.file());
        let (data_set, locations) =
            connection.open_data_set(describe(data)?, index, options.timeout, is_wanted)?;
        let samples_max = SAMPLES_MAX.min((rings.writer.message_max() - BatchRequest::FIXED_BYTES) / 8);
        let samples = Arc::new(SharedSamples { slab: Arc::clone(connection.slab()), locations });
        let (connection, shared) = (Arc::new(connection), Arc::new(Shared::new(waker)));
        let ring_waker = rings.waiter.waker();
        let thread = ClientThread::new(
            Arc::clone(&shared),
            Arc::clone(&connection),
            rings,
            Arc::clone(&samples),
            data_set,
        );
        let spawned = Builder::new().name("foresee-node".into()).spawn(move || thread.run());
        let thread =
            spawned.map_err(|why| NodeError::Io { doing: "starting a thread for the node's cache", why })?;
        Ok(Self { shared, connection, samples, ring_waker, samples_max, thread: ManuallyDrop::new(thread) })
    }

    /// Memory and disk space of the host.
    pub(crate) fn capacity(&self) -> (Bytes, Bytes) {
        let welcome = self.connection.welcome();
        (Bytes::new(welcome.ram_bytes), Bytes::new(welcome.disk_bytes))
    }

    /// The most samples of a batch: the ring of requests holds one message of so many.
    pub(crate) const fn samples_max(&self) -> usize {
        self.samples_max
    }

    /// Queue accesses, which the thread sends in messages of a suitable size.
    pub(crate) fn announce(&self, announcement: NodeAnnouncement) {
        let wake = self.shared.announce(announcement);
        self.wake(wake);
    }

    /// Queue a request. Returns `false`, and takes nothing, once the attachment has ended.
    ///
    /// # Panics
    /// The batch breaks the rules of its fields.
    #[must_use]
    pub(crate) fn request(&self, batch: NodeBatch) -> bool {
        let NodeBatch { number, deadline, samples, spans, buffer } = batch;
        assert!((1..=self.samples_max).contains(&samples.len()), "a batch fits into a message");
        assert_eq!(samples.len(), spans.len(), "each sample has a span");
        for &(offset, len) in &spans {
            // A span outside of the memory panics here, and not in the thread.
            // SAFETY: nothing else accesses the span, as the batch promises.
            let _ = unsafe { buffer.slice_mut(offset, len) };
        }
        let memory = Arc::new(BatchMemory::new(buffer));
        let queued = self.shared.request(QueuedBatch { number, deadline, samples, spans, memory });
        queued.inspect(|&wake| self.wake(wake)).is_some()
    }

    /// Copy the next announced accesses from the host's memory without a request, if all of them are there and the attachment
    /// has not ended. The host learns of it with the next message. On `false` the bytes of the spans are undefined.
    ///
    /// # Safety
    /// Nothing else accesses the spans, which are mapped.
    pub(crate) unsafe fn copy_hits(
        &self,
        samples: &[SampleId],
        buffer: &Buffer,
        spans: &[(usize, usize)],
    ) -> bool {
        // A request finds out what is wrong with an invalid table.
        // SAFETY: as the caller promises.
        let are_copied = unsafe { self.samples.copy_all(samples, buffer, spans) }.unwrap_or(false);
        are_copied && self.shared.count_hits(samples.len() as u64)
    }

    /// Withdraw a batch. When this returns, no byte of its memory is written any more, and the client has given it up:
    /// it waits for the copy of one sample at most. No effect if the batch is complete.
    pub(crate) fn withdraw(&self, number: u64) {
        if let Some((memory, wake)) = self.shared.withdraw(number) {
            memory.withdraw();
            self.wake(wake);
        }
    }

    /// Report the accesses that the consumer has consumed since the attachment, and its time per
    /// access ([`Nanos::ZERO`] if it is not measured yet). `is_waiting`: it waits for the batch of its next access. Only the latest
    /// report is sent.
    pub(crate) fn progress(&self, accesses: u64, interval: Nanos, is_waiting: bool) {
        let wake = self.shared.progress(ConsumerProgress { accesses, interval, is_waiting });
        self.wake(wake);
    }

    /// Move all events to the end of `into`.
    pub(crate) fn drain(&self, into: &mut Vec<NodeEvent>) {
        self.shared.drain(into);
    }

    fn wake(&self, wake: Wake) {
        // A forked child does not have the memory of the rings.
        if wake == Wake::Needed && self.connection.check_fork().is_ok() {
            self.ring_waker.wake();
        }
    }
}

impl Drop for NodeClient {
    fn drop(&mut self) {
        // In a forked child there is no thread, and its locks may be held forever.
        if self.connection.check_fork().is_err() {
            return;
        }
        self.shared.close();
        self.ring_waker.wake();
        // SAFETY: taken once, here.
        let thread = unsafe { ManuallyDrop::take(&mut self.thread) };
        thread.join().expect("the thread catches its panics");
    }
}

/// The whole index file is opened, whatever samples of it are selected: accesses are entries of the file.
fn describe(data: NodeDataSet<'_>) -> Result<DataSetDescription, NodeError> {
    let whole = Index::open_mapped(Arc::new(IndexFile(data.index.clone())))
        .map_err(|why| NodeError::Io { doing: "reading an index again", why: io::Error::other(why) })?;
    Ok(DataSetDescription {
        uri: data.uri.to_owned(),
        storage_options: StorageOptions(data.storage.iter().cloned().collect::<BTreeMap<_, _>>()),
        fingerprint: whole.fingerprint(),
        samples: whole.len(),
        is_listed: data.is_listed,
    })
}

/// The bytes of an index file, without a selection of its samples.
struct IndexFile(Index);

impl AsRef<[u8]> for IndexFile {
    fn as_ref(&self) -> &[u8] {
        self.0.file()
    }
}
