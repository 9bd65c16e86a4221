// SPDX-License-Identifier: Apache-2.0
//! The exchange of samples with the other nodes of a job: its actions become reads, messages and bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use foresee_data_fetch::peers::{
    LocalSamples, PeerAction, PeerCounts, PeerExchange, PeerMessage, Presence, SampleRead,
};
use foresee_data_plan::{EntryId, NodePlanner, NodeTier, WantedEpoch};
use foresee_data_tier::{Dest, Op, Payload, Scratch, Tier as _};
use foresee_units::{Bytes, Nanos, NodeIndex, Rank, ReadOutcome, SampleId};

use super::super::inbox::HostEvent;
use super::super::peer_job::{JoiningJob, PlanKey, SampleSet, start_drawing};
use super::{HostDataSet, HostDriver, PlannedRead};
use crate::data_set::DataSet;
use crate::driver::TicketOwner;
use crate::node::now;
use crate::node::peers::{Mesh, MeshEvent};
use crate::node::places::SlabRange;
use crate::origin_reads::ReadMemory as _;

/// A measured time of a read of the origin is one part in so many of the estimate.
const SMOOTHING: u64 = 8;

/// The exchange by one plan, which has one data set.
#[derive(Debug)]
pub(super) struct HostExchange {
    /// Tells its events from those of earlier exchanges.
    number: u64,
    plan: PlanKey,
    data: Arc<DataSet>,
    data_set: u32,
    /// The entry of sample 0.
    first: u32,
    exchange: PeerExchange,
    mesh: Mesh,
    /// Reads that the exchange decides about, with their memory.
    reads: BTreeMap<SampleId, ExchangeRead>,
    /// The thread that draws epochs, and whether it does so.
    drawing: Sender<WantedEpoch>,
    is_drawing: bool,
    origin_time: Nanos,
    /// Whether a consumer with its accesses was attached.
    has_consumer: bool,
}

/// A read with its memory; without a plan if the sample was offered.
#[derive(Debug)]
struct ExchangeRead {
    planned: Option<PlannedRead>,
    range: SlabRange,
    /// The node of which it was requested, and which may send into the memory until that is withdrawn.
    requested: Option<NodeIndex>,
}

/// A sample that is sent.
#[derive(Debug)]
pub(super) struct Sending {
    exchange: u64,
    node: NodeIndex,
    sample: SampleId,
    from: SentFrom,
}

/// Where the bytes of a sample are that is sent.
#[derive(Debug)]
enum SentFrom {
    /// In the memory of the cache, where this entry stays.
    Memory(EntryId),
    /// They are being read from the disk to this memory.
    Disk(Arc<Scratch>),
    /// In memory of their own.
    Copy,
}

/// What the node has of a data set.
struct LocalEntries<'a> {
    planner: &'a NodePlanner,
    data: &'a DataSet,
    first: u32,
}

impl LocalSamples for LocalEntries<'_> {
    fn count(&self) -> u64 {
        self.data.index().len()
    }

    fn size(&self, sample: SampleId) -> Bytes {
        self.data.index().size(sample)
    }

    fn presence(&self, sample: SampleId) -> Presence {
        let entry = EntryId(self.first + u32::try_from(sample.0).expect("entries are numbered in 32 bits"));
        if [NodeTier::Memory, NodeTier::Disk].iter().any(|&tier| self.planner.holds(entry, tier)) {
            Presence::Here(self.size(sample))
        } else if self.planner.is_reading(entry) {
            Presence::Soon
        } else {
            Presence::Missing
        }
    }
}

impl HostExchange {
    fn entry(&self, sample: SampleId) -> EntryId {
        EntryId(self.first + u32::try_from(sample.0).expect("entries are numbered in 32 bits"))
    }

    /// The sample of an entry, if it is one of this data set.
    fn sample(&self, entry: EntryId) -> Option<SampleId> {
        let sample = u64::from(entry.0.checked_sub(self.first)?);
        (sample < self.data.index().len()).then_some(SampleId(sample))
    }

    fn size(&self, sample: SampleId) -> Bytes {
        self.data.index().size(sample)
    }

    /// Take a read with its memory, which no node sends into any more, whatever it has said.
    fn end_read(&mut self, sample: SampleId) -> Option<ExchangeRead> {
        let read = self.reads.remove(&sample)?;
        if let Some(node) = read.requested {
            self.mesh.withdraw(node, sample);
        }
        Some(read)
    }
}

impl HostDriver {
    /// The samples that are here, if the loader of a plan is attached with its accesses, and this host exchanges samples for no
    /// other one.
    pub(super) fn contents_for(&self, plan: &PlanKey) -> Option<SampleSet> {
        if self.exchange.is_some() {
            return None;
        }
        let data_set = self.consumers.values().find(|one| one.follows(plan))?.data_set?;
        let HostDataSet { data, first, .. } = &self.data_sets[data_set as usize];
        let local = LocalEntries { planner: &self.planner, data, first: *first };
        Some(SampleSet::new(data.index().len(), |sample| matches!(local.presence(sample), Presence::Here(_))))
    }

    /// Begin to exchange samples, now or when the data set is opened.
    pub(super) fn join_job(&mut self, joining: Box<JoiningJob>) {
        if let Some(one) = &self.exchange
            && (one.plan.loader != joining.job.plan.loader || one.plan.job != joining.job.plan.job)
        {
            let why = "this host exchanges the samples of another job already".to_owned();
            self.shared.log.add("no exchange of samples", None, vec![("why", why)]);
            return;
        }
        let is_same =
            |index: &usize| self.data_sets[*index].data.index().file_fingerprint() == joining.job.fingerprint;
        let Some(index) = (0..self.data_sets.len()).find(is_same) else {
            self.joining = Some(joining);
            return;
        };
        let (data, first) = (Arc::clone(&self.data_sets[index].data), self.data_sets[index].first);
        if let Err(why) = self.start_exchange(*joining, data, first, index) {
            self.shared.log.add("no exchange of samples", None, vec![("why", why)]);
        }
    }

    fn start_exchange(
        &mut self,
        joining: JoiningJob,
        data: Arc<DataSet>,
        first: u32,
        index: usize,
    ) -> Result<(), String> {
        let JoiningJob { job, listener } = joining;
        self.end_exchange("the ranks continue elsewhere");
        let number = self.exchanges_begun;
        self.exchanges_begun += 1;
        let exchange = job.exchange(&listener, Arc::clone(&data))?;
        let inbox = Arc::clone(&self.shared.inbox);
        let events = move |node, event| inbox.push(HostEvent::Peer { exchange: number, node, event });
        let mesh =
            listener.connect(&job.addresses, &(Arc::new(events) as _)).map_err(|why| why.to_string())?;
        let drawing =
            start_drawing(job.draw, number, Arc::clone(&self.shared.inbox)).map_err(|why| why.to_string())?;
        // One read of the origin would bring samples that other nodes hold.
        self.planner.handle_ungrouped(EntryId(first));
        self.exchange = Some(Box::new(HostExchange {
            number,
            plan: job.plan,
            data,
            data_set: u32::try_from(index).expect("data sets are numbered in 32 bits"),
            first,
            exchange,
            mesh,
            reads: BTreeMap::new(),
            drawing,
            is_drawing: false,
            origin_time: Nanos::ZERO,
            has_consumer: false,
        }));
        for (read, range) in self.meeting.end() {
            if let Some(range) = self.read_by_exchange(read, range, now()) {
                self.read_origin(read, range, now());
            }
        }
        self.want_epochs();
        for number in self.consumers.keys().copied().collect::<Vec<_>>() {
            self.note_fetched(number);
        }
        Ok(())
    }

    /// An epoch of the job is drawn; without samples the run has no such epoch.
    pub(super) fn take_epoch(&mut self, exchange: u64, wanted: WantedEpoch, samples: Option<Vec<SampleId>>) {
        let Some(one) = self.exchange.as_mut().filter(|one| one.number == exchange) else { return };
        one.is_drawing = false;
        let plan = one.exchange.plan_mut();
        match (wanted, samples) {
            (_, None) => plan.handle_end(),
            (WantedEpoch::Accesses(_), Some(samples)) => plan.handle_epoch(&mut samples.into_iter()),
            (WantedEpoch::Later(_), Some(samples)) => plan.handle_later_epoch(&mut samples.into_iter()),
        }
    }

    /// Have the epoch drawn that the plan wants.
    fn want_epochs(&mut self) {
        let Some(one) = self.exchange.as_mut().filter(|one| !one.is_drawing) else { return };
        if let Some(wanted) = one.exchange.plan().wanted_epoch() {
            one.is_drawing = one.drawing.send(wanted).is_ok();
        }
    }

    // ---- what the plan of the cache does

    /// Let the exchange decide where an entry is read; returns the memory if it does not.
    pub(super) fn read_by_exchange(
        &mut self,
        read: PlannedRead,
        range: SlabRange,
        now: Nanos,
    ) -> Option<SlabRange> {
        let found = self.exchange.as_mut().and_then(|one| Some((one.sample(read.entry)?, one)));
        let Some((sample, one)) = found else { return Some(range) };
        let size = one.size(sample);
        one.reads.insert(sample, ExchangeRead { planned: Some(read), range, requested: None });
        one.exchange.handle_read(SampleRead { sample, size, deadline: read.deadline }, now);
        None
    }

    /// A read has another deadline; returns whether the exchange decides about it.
    pub(super) fn prioritize_in_exchange(&mut self, entry: EntryId, deadline: Nanos, now: Nanos) -> bool {
        let found = self.exchange.as_mut().and_then(|one| Some((one.sample(entry)?, one)));
        let Some((sample, one)) = found.filter(|(sample, one)| one.reads.contains_key(sample)) else {
            return false;
        };
        if let Some(ExchangeRead { planned: Some(planned), .. }) = one.reads.get_mut(&sample) {
            planned.deadline = deadline;
        }
        one.exchange.handle_deadline(sample, deadline, now);
        true
    }

    /// A read of an entry has ended, from any source.
    pub(super) fn note_read_end(&mut self, entry: EntryId, outcome: ReadOutcome, now: Nanos) {
        let found = self.exchange.as_mut().and_then(|one| Some((one.sample(entry)?, one)));
        if let Some((sample, one)) = found {
            let size = one.size(sample);
            one.exchange.handle_read_end(sample, size, outcome == ReadOutcome::Ok, now);
        }
    }

    /// A read of the origin took so long.
    pub(super) fn note_origin_time(&mut self, time: Nanos) {
        if let Some(one) = &mut self.exchange {
            let (before, time) = (one.origin_time.get(), time.get());
            let smoothed = if before == 0 { time } else { before - before / SMOOTHING + time / SMOOTHING };
            one.origin_time = Nanos::new(smoothed);
            one.exchange.handle_origin_time(one.origin_time);
        }
    }

    /// A consumer has got further.
    pub(super) fn note_fetched(&mut self, number: u32) {
        let Some(consumer) = self.consumers.get(&number) else { return };
        let is_followed = |one: &&mut Box<HostExchange>| {
            consumer.data_set == Some(one.data_set) && consumer.follows(&one.plan)
        };
        let Some(one) = self.exchange.as_mut().filter(is_followed) else { return };
        one.has_consumer = true;
        let next = self.planner.announced(consumer.id).start;
        one.exchange.handle_fetched(Rank(consumer.facts.rank), consumer.passed(next));
    }

    /// A consumer has other accesses than before: if they are later ones than those of the plan, that has ended.
    pub(super) fn note_generation(&mut self, number: u32) {
        let Some(consumer) = self.consumers.get(&number) else { return };
        let is_past = |one: &HostExchange| {
            consumer.is_of_loader(&one.plan) && consumer.generation > one.plan.generation
        };
        if self.exchange.as_deref().is_some_and(is_past) {
            self.end_exchange("a rank continues at another position than planned");
        }
    }

    /// A consumer has left: with the last one of its loader, the plan ends.
    pub(super) fn note_detached(&mut self) {
        let Some(one) = &self.exchange else { return };
        if one.has_consumer && !self.consumers.values().any(|consumer| consumer.is_of_loader(&one.plan)) {
            self.end_exchange("the loaders of this node have closed");
        }
    }

    /// Exchange nothing more by the present plan. What is being read is read from the origin.
    fn end_exchange(&mut self, why: &str) {
        let Some(mut one) = self.exchange.take() else { return };
        self.meeting.begin_again(now());
        self.exchanged = Some(self.exchanged.unwrap_or_default() + one.exchange.counts());
        let samples: Vec<_> = one.reads.keys().copied().collect();
        let ended = samples.into_iter().filter_map(|sample| Some((one.entry(sample), one.end_read(sample)?)));
        let ended: Vec<_> = ended.collect();
        for node in one.exchange.plan().others() {
            one.mesh.refuse(node, why.to_owned());
        }
        for sample in (0..one.data.index().len()).map(SampleId) {
            self.planner.handle_reserved(one.entry(sample), false);
        }
        self.shared.log.add("exchange of samples ended", None, vec![("why", why.to_owned())]);
        for (entry, read) in ended {
            match read.planned {
                Some(planned) => self.read_origin(planned, read.range, now()),
                None => self.end_read(entry, ReadOutcome::Cancelled),
            }
        }
    }

    // ---- what other nodes do

    pub(super) fn handle_peer(&mut self, exchange: u64, node: NodeIndex, event: MeshEvent) {
        let now = now();
        match event {
            MeshEvent::Sent(number) => return self.handle_sent(number),
            MeshEvent::Disconnected(_) => self.end_sendings(exchange, node),
            _ => {}
        }
        let Some(one) = self.exchange.as_mut().filter(|one| one.number == exchange) else { return };
        match event {
            MeshEvent::Sent(_) => {}
            MeshEvent::Connected => {
                let fields = vec![("node", node.to_string())];
                self.shared.log.add("node connected", None, fields);
                one.exchange.handle_connected(node, now);
            }
            MeshEvent::Disconnected(why) => {
                let fields = vec![("node", node.to_string()), ("why", why)];
                self.shared.log.add("node disconnected", None, fields);
                one.exchange.handle_disconnected(node, now);
            }
            MeshEvent::Message(message) => {
                let local = LocalEntries { planner: &self.planner, data: &one.data, first: one.first };
                one.exchange.handle_message(node, message, &local, now);
            }
            MeshEvent::Bytes(bytes) => one.exchange.handle_bytes(node, bytes, now),
            MeshEvent::Received(sample, bytes) => {
                one.exchange.handle_bytes(node, bytes, now);
                if one.exchange.handle_received(node, sample, now) && one.reads.remove(&sample).is_some() {
                    let entry = one.entry(sample);
                    self.planner.handle_received(entry, now);
                    self.note_read_end(entry, ReadOutcome::Ok, now);
                }
            }
        }
    }

    /// The bytes of a sample that was sent are not needed any more.
    fn handle_sent(&mut self, number: u64) {
        let Some(Sending { exchange, node, sample, .. }) = self.end_sending(number) else { return };
        if let Some(one) = self.exchange.as_mut().filter(|one| one.number == exchange) {
            one.exchange.handle_sent(node, sample, one.size(sample));
        }
    }

    /// Nothing more is sent to a node on a connection.
    fn end_sendings(&mut self, exchange: u64, node: NodeIndex) {
        let to_node = |one: &Sending| one.exchange == exchange && one.node == node;
        let ended = self.sending.iter().filter(|(_, one)| to_node(one)).map(|(&number, _)| number);
        for number in ended.collect::<Vec<_>>() {
            self.end_sending(number);
        }
    }

    fn end_sending(&mut self, number: u64) -> Option<Sending> {
        let sending = self.sending.remove(&number)?;
        if let SentFrom::Memory(entry) = sending.from {
            self.planner.handle_sent(entry);
        }
        Some(sending)
    }

    // ---- actions of the exchange

    /// Execute the actions of the exchange; return whether there were any.
    pub(super) fn act_in_exchange(&mut self, now: Nanos) -> bool {
        let mut has_any = false;
        loop {
            let Some(one) = &mut self.exchange else { return has_any };
            let local = LocalEntries { planner: &self.planner, data: &one.data, first: one.first };
            let Some(action) = one.exchange.poll_action(&local, now) else { break };
            self.execute_in_exchange(action, now);
            has_any = true;
        }
        self.want_epochs();
        has_any
    }

    pub(super) fn peer_counts(&self) -> Option<PeerCounts> {
        let present = self.exchange.as_ref().map(|one| one.exchange.counts());
        match (self.exchanged, present) {
            (Some(before), Some(present)) => Some(before + present),
            (before, present) => before.or(present),
        }
    }

    /// When to act in the exchange again.
    pub(super) fn exchange_timeout(&self) -> Option<Nanos> {
        self.exchange.as_ref()?.exchange.poll_timeout()
    }

    fn execute_in_exchange(&mut self, action: PeerAction, now: Nanos) {
        let Some(one) = &mut self.exchange else { return };
        match action {
            PeerAction::Send { node, message } => {
                match &message {
                    PeerMessage::Request(requests) => {
                        for sample in requests.iter().map(|request| request.sample) {
                            if let Some(read) = one.reads.get_mut(&sample) {
                                read.requested = Some(node);
                                // SAFETY: the range is this read's; nothing else accesses it before the sample is received
                                // or withdrawn.
                                one.mesh.expect(node, sample, unsafe { read.range.dest() });
                            }
                        }
                    }
                    PeerMessage::Withdraw(sample) => one.mesh.withdraw(node, *sample),
                    _ => {}
                }
                one.mesh.send(node, message);
            }
            PeerAction::SendSample { node, sample, size } => self.send_sample(node, sample, size),
            PeerAction::ReadOrigin { sample } => {
                if let Some(ExchangeRead { planned: Some(planned), range, .. }) = one.end_read(sample) {
                    self.read_origin(planned, range, now);
                }
            }
            PeerAction::Receive { sample } => self.receive_offer(sample, now),
            PeerAction::Abandon { sample } => {
                let entry = one.entry(sample);
                if one.end_read(sample).is_some() {
                    self.end_read(entry, ReadOutcome::Cancelled);
                }
            }
            PeerAction::Reserve { sample } => self.planner.handle_reserved(one.entry(sample), true),
            PeerAction::Release { sample } => self.planner.handle_reserved(one.entry(sample), false),
            PeerAction::Refuse { node, fault } => {
                let fields = vec![("node", node.to_string()), ("why", fault.to_string())];
                self.shared.log.add("node refused", None, fields);
                one.mesh.refuse(node, fault.to_string());
            }
        }
    }

    /// Find memory for a sample that another node offers.
    fn receive_offer(&mut self, sample: SampleId, now: Nanos) {
        let Some(one) = &self.exchange else { return };
        let (entry, size) = (one.entry(sample), one.size(sample));
        let mut range = None;
        if self.planner.handle_offer(entry, now) {
            while let Some(action) = self.planner.poll_action(now) {
                self.execute(action, now);
            }
            range = self.places.allocate(entry, size).ok().flatten();
            if range.is_none() {
                self.planner.handle_read(entry, ReadOutcome::Cancelled, now);
            }
        }
        let Some(one) = &mut self.exchange else { return };
        let is_found = range.is_some();
        if let Some(range) = range {
            one.reads.insert(sample, ExchangeRead { planned: None, range, requested: None });
        }
        one.exchange.handle_space(sample, size, is_found, now);
    }

    /// Send a sample from the memory, or read it from the disk first.
    fn send_sample(&mut self, node: NodeIndex, sample: SampleId, size: Bytes) {
        let Some(one) = &mut self.exchange else { return };
        let (exchange, entry, number) = (one.number, one.entry(sample), self.sendings_begun);
        self.sendings_begun += 1;
        if self.planner.handle_sending(entry) {
            let payload = self.places.payload(entry, size);
            // Without a connection, its end is on its way here.
            let is_sent = payload.is_some_and(|payload| one.mesh.send_sample(node, number, sample, payload));
            self.sending.insert(number, Sending { exchange, node, sample, from: SentFrom::Memory(entry) });
            if !is_sent {
                self.end_sending(number);
            }
            return;
        }
        let data_set = &self.data_sets[one.data_set as usize];
        match data_set.disk.as_ref().filter(|_| self.planner.holds(entry, NodeTier::Disk)) {
            Some(disk) => {
                let len = usize::try_from(size.get()).expect("a sample fits into memory");
                let (dest, scratch) = Dest::from_vec(vec![0; len]);
                let from = SentFrom::Disk(scratch);
                self.sending.insert(number, Sending { exchange, node, sample, from });
                let (ticket, key) = (TicketOwner::PeerRead.ticket(number), data_set.key(entry));
                disk.submit(Op::Read { ticket, key, offset: 0, dest });
            }
            None => one.exchange.handle_gone(node, sample, size),
        }
    }

    /// A sample was read from the disk to be sent.
    pub(super) fn handle_peer_read(&mut self, number: u64, outcome: ReadOutcome) {
        // None if the connection has ended.
        let Some(Sending { exchange, node, sample, from }) = self.sending.remove(&number) else { return };
        let SentFrom::Disk(scratch) = from else { return };
        let Some(one) = self.exchange.as_mut().filter(|one| one.number == exchange) else { return };
        let size = one.size(sample);
        if let Some(bytes) = scratch.into_bytes().ok().filter(|_| outcome == ReadOutcome::Ok) {
            if one.mesh.send_sample(node, number, sample, Payload::from_vec(bytes)) {
                self.sending.insert(number, Sending { exchange, node, sample, from: SentFrom::Copy });
            }
            return;
        }
        one.exchange.handle_gone(node, sample, size);
        if outcome == ReadOutcome::Corrupt {
            let entry = one.entry(sample);
            self.planner.handle_lost(entry, NodeTier::Disk, now());
        }
    }
}
