// SPDX-License-Identifier: Apache-2.0
//! The loop that executes the plan of a node's cache.
//!
//! One thread owns the planner, the places in the slab, the reads and the consumers, so none of them needs a lock. A turn
//! takes events and ends of operations, executes the planner's actions, and sends the answers. The bytes of samples do
//! not pass this thread: sources write to the slab, and consumers copy from it.

mod actions;
mod exchange;
mod meeting;
mod messages;
mod report;
mod start;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foresee_data_fetch::peers::PeerCounts;
use foresee_data_node::LocationTable;
use foresee_data_plan::{ConsumerId, EntryId, NodePlanner};
use foresee_data_tier::{Completions, DiskTier, Done, SampleKey, Tier};
use foresee_units::{Bytes, Nanos, SampleId, Source};

use self::exchange::{HostExchange, Sending};
use self::meeting::Meeting;
use self::start::ConsumerStart;
use super::consumer::{HostConsumer, Served};
use super::data_sets::OpenedDataSet;
use super::inbox::{HostEvent, Inbox};
use super::log::HostLog;
use super::peer_job::JoiningJob;
use super::reception::ReceptionHandle;
use super::status::HostStatus;
use crate::data_set::DataSet;
use crate::driver::TicketOwner;
use crate::node::now;
use crate::node::places::{SlabPlaces, SlabRange};
use crate::origin_reads::OriginReads;
use crate::waker::Waker;

/// Longest sleep: the status has times that pass while nothing happens.
const SLEEP_MAX: Duration = Duration::from_millis(500);
/// Reads of the disk in flight from which on nothing is read ahead.
const DISK_READS_MAX: usize = 64;
/// Longest time for which the replies of an incomplete batch are held back: then the consumer copies what is there, while the
/// rest is read.
const UNSENT_MAX: Nanos = Nanos::from_millis(50);
/// Turns between two updates of the status.
const TURNS_PER_UPDATE: u32 = 64;

/// What the driver shares with the other threads.
#[derive(Debug)]
pub(super) struct HostShared {
    pub(super) inbox: Arc<Inbox>,
    pub(super) waker: Arc<Waker>,
    pub(super) reception: Arc<ReceptionHandle>,
    pub(super) status: Arc<Mutex<HostStatus>>,
    pub(super) log: HostLog,
}

/// A data set in use.
#[derive(Debug)]
struct HostDataSet {
    data: Arc<DataSet>,
    public_uri: String,
    /// The number of its first entry.
    first: u32,
    locations: Arc<LocationTable>,
    origin: Arc<dyn Tier>,
    queue: usize,
    disk: Option<Arc<DiskTier>>,
}

/// A read that the planner has begun.
#[derive(Clone, Copy, Debug)]
struct PlannedRead {
    entry: EntryId,
    from: Source,
    deadline: Nanos,
    group: Option<EntryId>,
}

/// The reads of one bucket or file system.
#[derive(Debug)]
struct OriginQueue {
    reads: OriginReads<SlabRange>,
    completions: Completions,
}

/// See the module.
#[derive(Debug)]
pub(super) struct HostDriver {
    shared: HostShared,
    planner: NodePlanner,
    places: SlabPlaces,
    /// Memory for entries, which the planner may use when no entry waits for contiguous bytes.
    memory: Bytes,
    data_sets: Vec<HostDataSet>,
    queues: Vec<OriginQueue>,
    disk_completions: Completions,
    /// Numbers of the reads of origins in flight; the low 32 bits of a number are the entry.
    reads: BTreeMap<EntryId, u64>,
    reads_begun: u64,
    /// Reads of the disk in flight.
    disk_reads: usize,
    /// Reads that wait for contiguous bytes of the slab.
    unplaced: VecDeque<PlannedRead>,
    /// Writes that a busy disk refused.
    refused: VecDeque<EntryId>,
    consumers: BTreeMap<u32, HostConsumer>,
    start: ConsumerStart,
    /// Numbers of consumers by their numbers in the planner.
    numbers: Vec<Option<u32>>,
    /// Bytes read from the origins.
    origin: Served,
    /// The exchange with the other nodes of a job, and a job whose data set is not open yet.
    exchange: Option<Box<HostExchange>>,
    exchanges_begun: u64,
    meeting: Meeting,
    joining: Option<Box<JoiningJob>>,
    /// Samples whose bytes are on their way to other nodes, by number; also those of an exchange that has ended.
    sending: BTreeMap<u64, Sending>,
    sendings_begun: u64,
    /// What was exchanged before the present exchange.
    exchanged: Option<PeerCounts>,
    is_closing: bool,
}

impl HostDriver {
    /// `memory`: bytes of the slab that the planner may use. `ranks`: those that will attach, as far as known. `has_peers`: see
    /// [`NodeHostOptions`](super::NodeHostOptions).
    pub(super) fn new(
        shared: HostShared,
        planner: NodePlanner,
        places: SlabPlaces,
        memory: Bytes,
        ranks: u32,
        has_peers: bool,
        disk_completions: Completions,
    ) -> Self {
        Self {
            shared,
            planner,
            places,
            memory,
            data_sets: Vec::new(),
            queues: Vec::new(),
            disk_completions,
            reads: BTreeMap::new(),
            reads_begun: 0,
            disk_reads: 0,
            unplaced: VecDeque::new(),
            refused: VecDeque::new(),
            consumers: BTreeMap::new(),
            start: ConsumerStart::new(ranks),
            numbers: Vec::new(),
            origin: Served::default(),
            exchange: None,
            exchanges_begun: 0,
            meeting: Meeting::new(has_peers),
            joining: None,
            sending: BTreeMap::new(),
            sendings_begun: 0,
            exchanged: None,
            is_closing: false,
        }
    }

    /// Run until the host closes; then close the origins and the disk caches.
    pub(super) fn run(mut self) {
        let mut turns = 0_u32;
        while !self.is_closing {
            let is_busy = self.turn();
            turns = turns.wrapping_add(1);
            if !is_busy || turns.is_multiple_of(TURNS_PER_UPDATE) {
                self.publish_status();
            }
            if !is_busy {
                self.shared.waker.wait(self.sleep_time());
            }
        }
        self.consumers.clear();
        self.publish_status();
        for data_set in &self.data_sets {
            data_set.origin.close(Nanos::ZERO);
            if let Some(disk) = &data_set.disk {
                disk.close(super::CLOSE_GRACE);
            }
        }
    }

    /// Do one turn; return whether the next can follow at once.
    fn turn(&mut self) -> bool {
        let events = self.shared.inbox.take();
        let mut is_busy = !events.is_empty();
        for event in events {
            self.handle_event(event);
            self.act();
        }
        is_busy |= self.take_done();
        self.act();
        self.send_replies();
        is_busy
    }

    /// Execute the planner's actions until there are none, because a read may end at once.
    fn act(&mut self) {
        loop {
            let now = now();
            while let Some(action) = self.planner.poll_action(now) {
                self.execute(action, now);
            }
            self.read_held(now);
            if self.act_in_exchange(now) {
                continue;
            }
            let has_placed = self.place_waiting(now);
            let has_ended = self.start_reads(now);
            if has_placed || has_ended {
                continue;
            }
            if !self.may_read_ahead(now) || !self.planner.read_ahead(now) {
                return;
            }
        }
    }

    /// Whether further reads would neither wait behind others nor delay the first batch of a consumer.
    fn may_read_ahead(&self, now: Nanos) -> bool {
        let without_batch = self.consumers.values().filter(|one| !one.has_batch).map(|one| one.attached);
        let is_starting = self.start.is_going_on(without_batch, now);
        let is_busy = self.disk_reads >= DISK_READS_MAX || !self.unplaced.is_empty();
        let is_meeting = self.meeting.is_going_on(now);
        !is_busy
            && !is_starting
            && !is_meeting
            && !self.queues.iter().any(|queue| queue.reads.queue().is_saturated())
    }

    /// Handle ends of operations; return whether there were any.
    fn take_done(&mut self) -> bool {
        let mut done: Vec<Done> = Vec::new();
        self.disk_completions.drain(&mut done);
        let mut has_any = !done.is_empty();
        for end in &done {
            self.handle_disk_end(end);
            self.act();
        }
        if has_any | self.disk_completions.take_writable() {
            for entry in std::mem::take(&mut self.refused) {
                self.store(entry);
            }
        }
        for queue in 0..self.queues.len() {
            done.clear();
            self.queues[queue].completions.drain(&mut done);
            has_any |= !done.is_empty();
            for end in &done {
                self.handle_attempt_end(queue, end);
            }
        }
        has_any
    }

    fn handle_event(&mut self, event: HostEvent) {
        match event {
            HostEvent::Attached { consumer, facts, session } => self.attach(consumer, facts, session),
            HostEvent::Detached { consumer } => self.detach(consumer),
            HostEvent::Message { consumer, bytes } => self.handle_message(consumer, &bytes),
            HostEvent::Broken { consumer, why } => self.shared.reception.end(consumer, why),
            HostEvent::DataSetOpened { data_set } => self.add_data_set(*data_set),
            HostEvent::DataSetRenewed { data_set, origin } => {
                self.data_sets[data_set as usize].origin = origin;
            }
            HostEvent::DataSetChosen { consumer, data_set } => {
                if let Some(one) = self.consumers.get_mut(&consumer) {
                    one.data_set = Some(data_set);
                }
            }
            HostEvent::JobJoined { joining } => self.join_job(joining),
            HostEvent::ContentsWanted { plan, reply } => {
                // The loader may have stopped waiting.
                let _ = reply.try_send(self.contents_for(&plan));
            }
            HostEvent::NoMeeting => self.end_meeting(now()),
            HostEvent::EpochDrawn { exchange, wanted, samples } => self.take_epoch(exchange, wanted, samples),
            HostEvent::Peer { exchange, node, event } => self.handle_peer(exchange, node, event),
            HostEvent::Close => self.is_closing = true,
        }
    }

    fn add_data_set(&mut self, opened: OpenedDataSet) {
        let OpenedDataSet { data, public_uri, locations, origin, queue, new_queue, disk, held } = opened;
        if let Some((dispatch, completions)) = new_queue {
            self.queues.push(OriginQueue {
                reads: OriginReads::new(dispatch, |attempt| TicketOwner::OriginRead.ticket(attempt)),
                completions,
            });
        }
        let first = self.entries();
        let index = data.index();
        for id in (0..index.len()).map(SampleId) {
            self.planner
                .handle_entry(index.size(id))
                .expect("sizes and number were checked when it was opened");
        }
        self.planner.handle_data_set(EntryId(first), Arc::clone(&data) as _);
        self.places.add_entries(usize::try_from(index.len()).expect("entries are numbered in 32 bits"));
        self.data_sets.push(HostDataSet { data, public_uri, first, locations, origin, queue, disk });
        self.update_disk_capacity();
        self.meeting.note_data_set(!held.is_empty(), now());
        let new = &self.data_sets[self.data_sets.len() - 1];
        for copy in held {
            let entry = new.entry(copy.id);
            let fits = copy.len == new.data.index().size(copy.id) && self.planner.handle_held(entry);
            if !fits {
                new.drop_from_disk(entry);
            }
        }
        if let Some(joining) = self.joining.take() {
            self.join_job(joining);
        }
    }

    fn entries(&self) -> u32 {
        self.data_sets.last().map_or(0, |last| {
            last.first + u32::try_from(last.data.index().len()).expect("entries are numbered in 32 bits")
        })
    }

    /// The data set of an entry.
    fn data_set_of(&self, entry: EntryId) -> &HostDataSet {
        HostDataSet::of(&self.data_sets, entry)
    }

    fn size(&self, entry: EntryId) -> Bytes {
        let data_set = self.data_set_of(entry);
        data_set.data.index().size(data_set.sample(entry))
    }

    /// The consumer of a number in the planner.
    fn consumer_of(&mut self, id: ConsumerId) -> Option<&mut HostConsumer> {
        let number = (*self.numbers.get(id.0 as usize)?)?;
        self.consumers.get_mut(&number)
    }

    fn sleep_time(&self) -> Duration {
        let queues = self.queues.iter().filter_map(|queue| queue.reads.queue().poll_wakeup());
        let unsent = self.consumers.values().filter_map(HostConsumer::unsent_since);
        let held = unsent.map(|since| since.saturating_add(UNSENT_MAX));
        let next = queues.chain(self.planner.poll_timeout()).chain(held).chain(self.exchange_timeout());
        let next = next.chain(self.meeting.poll_timeout()).min();
        next.map_or(SLEEP_MAX, |at| Duration::from(at.saturating_sub(now())).min(SLEEP_MAX))
    }
}

impl HostDataSet {
    /// The data set of an entry, among those in use.
    fn of(data_sets: &[Self], entry: EntryId) -> &Self {
        let after = data_sets.partition_point(|one| one.first <= entry.0);
        &data_sets[after - 1]
    }

    fn sample(&self, entry: EntryId) -> SampleId {
        SampleId(u64::from(entry.0 - self.first))
    }

    /// The entry of a sample, which must exist.
    fn entry(&self, sample: SampleId) -> EntryId {
        EntryId(self.first + u32::try_from(sample.0).expect("entries are numbered in 32 bits"))
    }

    fn key(&self, entry: EntryId) -> SampleKey {
        self.data.key(self.sample(entry))
    }
}
