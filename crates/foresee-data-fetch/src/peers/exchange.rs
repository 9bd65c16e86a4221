// SPDX-License-Identifier: Apache-2.0
//! One node's part in the exchange of samples.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foresee_data_plan::{JobPlan, JobPlanAction, NextSource, PlacedSource};
use foresee_units::{Bytes, Nanos, NodeIndex, Rank, SampleId};

use super::action::{LocalSamples, PeerAction, PeerCounts, PeerExchangeConfig, PeerFault, SampleRead};
use super::message::{PeerMessage, PeerRequest};
use super::offers::{Offered, Pending, PendingOffer};
use super::reads::{GiveUp, PeerRead, PeerReads, ReadAction};
use super::sends::{PeerSends, Presence, TooManyRequests};
use super::waiting::WaitingReads;

/// Offers of one node that wait for memory, at most; further ones are declined.
const OFFERS_MAX: usize = 4096;
/// Another node is used while its answer takes at most so many times as long as a read of the origin, or is in time.
const SLOW_ANSWER: u64 = 4;

/// See the [module](super).
///
/// The caller's obligations: it reports each fact once, executes actions in order, and polls until `None` after each fact and
/// at each [`poll_timeout`](Self::poll_timeout). A sample is read once at a time: from [`handle_read`](Self::handle_read) or a
/// found [space](Self::handle_space) to [`handle_read_end`](Self::handle_read_end), which the caller reports also for what it
/// read from the origin or the disk. Times are monotonic.
#[derive(Debug)]
pub struct PeerExchange {
    config: PeerExchangeConfig,
    plan: JobPlan,
    reads: PeerReads,
    sends: PeerSends,
    origin_time: Nanos,
    /// Connected nodes, with the number of their offers that wait for memory.
    connected: BTreeMap<NodeIndex, usize>,
    refused: BTreeSet<NodeIndex>,
    offered: Offered,
    pending: Pending,
    /// The offer for which the caller looks for memory.
    attempt: Option<PendingOffer>,
    /// Samples that are received because they were offered.
    receiving: BTreeSet<SampleId>,
    /// Reads that wait for the plan of their access or for an offer, and until when.
    waiting: WaitingReads,
    /// Samples that a node should have had: they are offered to it again.
    repairs: BTreeMap<SampleId, NodeIndex>,
    /// The latest checkpoint, for nodes that connect later.
    checkpoint: Option<(u64, u64)>,
    next_passed: Nanos,
    actions: VecDeque<PeerAction>,
    counts: PeerCounts,
}

impl PeerExchange {
    /// Create it without connections, which are expected from now on. `plan`: the plan of the job, as this node follows it.
    pub fn new(config: PeerExchangeConfig, plan: JobPlan, now: Nanos) -> Self {
        Self {
            reads: PeerReads::new(config.reads, plan.others(), now),
            plan,
            sends: PeerSends::new(config.sends),
            origin_time: config.origin_time,
            connected: BTreeMap::new(),
            refused: BTreeSet::new(),
            offered: Offered::new(config.offered_max),
            pending: Pending::default(),
            attempt: None,
            receiving: BTreeSet::new(),
            waiting: WaitingReads::default(),
            repairs: BTreeMap::new(),
            checkpoint: None,
            next_passed: Nanos::ZERO,
            actions: VecDeque::new(),
            counts: PeerCounts::default(),
            config,
        }
    }

    /// The plan of the job.
    pub const fn plan(&self) -> &JobPlan {
        &self.plan
    }

    /// The plan of the job, to give it epochs and contents.
    pub const fn plan_mut(&mut self) -> &mut JobPlan {
        &mut self.plan
    }

    /// Counts so far.
    pub const fn counts(&self) -> PeerCounts {
        self.counts
    }

    // ---- connections

    /// There is a connection to a node now, which no longer uses an earlier one.
    pub fn handle_connected(&mut self, node: NodeIndex, now: Nanos) {
        if self.refused.contains(&node) {
            return;
        }
        self.handle_disconnected(node, now);
        self.connected.insert(node, 0);
        self.plan.handle_alive(node);
        self.reads.handle_connected(node, now);
        self.sends.handle_connected(node);
        self.send(node, PeerMessage::Passed(self.plan.fetched_through()));
        for sample in self.offered.samples_for(node) {
            self.send(node, PeerMessage::Offer(sample));
        }
        if let Some((position, hash)) = self.checkpoint {
            self.send(node, PeerMessage::Checkpoint { position, hash });
        }
    }

    /// The connection to a node has ended.
    pub fn handle_disconnected(&mut self, node: NodeIndex, now: Nanos) {
        if self.connected.remove(&node).is_none() {
            return;
        }
        self.reads.handle_disconnected(node, now);
        self.sends.handle_disconnected(node);
        self.pending.remove_node(node);
        self.attempt = self.attempt.filter(|attempt| attempt.node != node);
        self.withdraw_offers(node);
        self.actions.retain(|action| match action {
            PeerAction::Send { node: to, .. } | PeerAction::SendSample { node: to, .. } => *to != node,
            _ => true,
        });
    }

    fn withdraw_offers(&mut self, node: NodeIndex) {
        for sample in self.offered.remove_node(node) {
            self.release(sample);
        }
    }

    /// A message has arrived from a connected node.
    pub fn handle_message(
        &mut self,
        node: NodeIndex,
        message: PeerMessage,
        local: &dyn LocalSamples,
        now: Nanos,
    ) {
        if !self.connected.contains_key(&node) {
            return;
        }
        self.handle_bytes(node, Bytes::ZERO, now);
        if let Err(fault) = self.apply(node, message, local, now) {
            self.refuse(node, fault, now);
        }
    }

    /// Bytes of samples have arrived from a node; the last sample may be incomplete.
    pub fn handle_bytes(&mut self, node: NodeIndex, bytes: Bytes, now: Nanos) {
        if self.reads.handle_alive(node, bytes, now) {
            self.plan.handle_alive(node);
        }
    }

    /// A sample is complete that a node has sent. Returns whether it is wanted from that node; then report also
    /// [`handle_read_end`](Self::handle_read_end).
    pub fn handle_received(&mut self, node: NodeIndex, sample: SampleId, now: Nanos) -> bool {
        let Some(read) = self.reads.handle_received(node, sample, now) else { return false };
        self.counts.received += 1;
        self.counts.received_bytes += read.size;
        true
    }

    /// A sample of [`PeerAction::SendSample`] is no longer in the memory of this node, or on its way.
    pub fn handle_sent(&mut self, node: NodeIndex, sample: SampleId, size: Bytes) {
        self.sends.handle_sent(node, size);
        self.counts.sent += 1;
        self.counts.sent_bytes += size;
        if self.offered.remove(sample, node) {
            self.release(sample);
        }
    }

    /// A sample of [`PeerAction::SendSample`] was not here.
    pub fn handle_gone(&mut self, node: NodeIndex, sample: SampleId, size: Bytes) {
        self.sends.handle_gone(node, sample, size);
    }

    // ---- reads of this node

    /// A read of the origin takes so long now, until its end.
    pub const fn handle_origin_time(&mut self, time: Nanos) {
        self.origin_time = time;
    }

    /// The plan of the cache begins a read of a sample that is not here.
    pub fn handle_read(&mut self, read: SampleRead, now: Nanos) {
        if let Some(NextSource { position, source }) = self.plan.next_source(read.sample) {
            self.read_from(source, position, read, now);
        } else {
            self.plan.handle_awaited(read.sample, true);
            self.wait(read, now, now);
        }
    }

    /// A sample that is being read is needed at another time. Reads of the origin are the caller's.
    pub fn handle_deadline(&mut self, sample: SampleId, deadline: Nanos, now: Nanos) {
        if let Some(read) = self.end_waiting(sample) {
            return self.handle_read(SampleRead { deadline, ..read }, now);
        }
        if let Some(PeerRead { node, size, .. }) = self.reads.of(sample) {
            let give_up = self.give_up(node, size, deadline, now);
            self.reads.handle_deadline(sample, deadline, give_up);
        }
    }

    /// A read has ended: the sample is here now, or cannot be read.
    pub fn handle_read_end(&mut self, sample: SampleId, size: Bytes, is_here: bool, now: Nanos) {
        self.reads.withdraw(sample, now);
        self.end_waiting(sample);
        self.receiving.remove(&sample);
        self.sends.handle_presence(sample, is_here.then_some(size));
        let repair = self.repairs.remove(&sample);
        let planned = self.plan.offer_to(sample);
        if !is_here {
            return;
        }
        for node in repair.into_iter().chain(planned).collect::<BTreeSet<_>>() {
            self.offer(sample, size, node);
        }
    }

    /// Offer a sample that is here to a node: now, or when it connects for the first time.
    fn offer(&mut self, sample: SampleId, size: Bytes, node: NodeIndex) {
        let is_there = self.connected.contains_key(&node);
        let is_expected = !self.refused.contains(&node) && !self.plan.is_silent(node);
        if (is_there || is_expected) && self.offered.add(sample, size, node) {
            self.actions.push_back(PeerAction::Reserve { sample });
            self.send(node, PeerMessage::Offer(sample));
        }
    }

    /// Whether there is memory for the sample of [`PeerAction::Receive`]. If so, its read has begun.
    pub fn handle_space(&mut self, sample: SampleId, size: Bytes, is_found: bool, now: Nanos) {
        let Some(attempt) = self.attempt.take().filter(|attempt| attempt.sample == sample) else {
            if is_found {
                // The node that has offered it is gone.
                self.actions.push_back(PeerAction::Abandon { sample });
            }
            return;
        };
        let node = attempt.node;
        if is_found {
            self.receiving.insert(sample);
            let (deadline, give_up) = (Nanos::MAX, Nanos::MAX);
            self.reads.handle_read(PeerRead { sample, node, position: 0, size, deadline, give_up }, now);
        } else if self.pending.try_again(attempt, now) {
            return;
        } else {
            self.send(node, PeerMessage::Decline(sample));
        }
        if let Some(offers) = self.connected.get_mut(&node) {
            *offers -= 1;
        }
    }

    /// A rank of this node has got the samples of its first `accesses` accesses, from the start of the plan.
    pub fn handle_fetched(&mut self, rank: Rank, accesses: u64) {
        self.plan.handle_fetched(rank, accesses);
    }

    // ---- actions

    /// The next action at time `now`; `None` until a fact is reported or the time of [`poll_timeout`](Self::poll_timeout) has
    /// come.
    pub fn poll_action(&mut self, local: &dyn LocalSamples, now: Nanos) -> Option<PeerAction> {
        loop {
            if let Some(action) = self.actions.pop_front() {
                return Some(action);
            }
            if let Some(action) = self.plan.poll_action() {
                self.follow(action, local, now);
            } else if self.end_late(now) {
                // A read has begun.
            } else if let Some(action) = self.reads.poll_action(now) {
                self.act_on_read(action);
            } else if let Some(action) = self.sends.poll_action() {
                return Some(action.into());
            } else if self.attempt.is_none()
                && let Some(offer) = self.pending.take(now)
            {
                self.attempt = Some(offer);
                return Some(PeerAction::Receive { sample: offer.sample });
            } else if self.next_passed <= now && !self.connected.is_empty() {
                self.next_passed = now.saturating_add(self.config.interval);
                self.send_all(&PeerMessage::Passed(self.plan.fetched_through()));
            } else {
                return None;
            }
        }
    }

    /// When to poll again if nothing is reported until then.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let passed = (!self.connected.is_empty()).then_some(self.next_passed);
        let offer = self.pending.timeout().filter(|_| self.attempt.is_none());
        passed.into_iter().chain(self.reads.timeout()).chain(offer).chain(self.waiting.timeout()).min()
    }

    // ---- inside

    fn apply(
        &mut self,
        node: NodeIndex,
        message: PeerMessage,
        local: &dyn LocalSamples,
        now: Nanos,
    ) -> Result<(), PeerFault> {
        let count = local.count();
        let check = |sample: SampleId| {
            if sample.0 < count { Ok(sample) } else { Err(PeerFault::NoSuchSample { sample, count }) }
        };
        match message {
            PeerMessage::Request(requests) => {
                for request in requests {
                    let PeerRequest { sample, position, .. } = request;
                    let presence = match local.presence(check(sample)?) {
                        Presence::Missing if self.plan.expects(sample, position) => Presence::Soon,
                        // The two would wait for each other.
                        Presence::Soon if self.reads.of(sample).is_some_and(|read| read.node == node) => {
                            Presence::Missing
                        }
                        presence => presence,
                    };
                    let accepted = self.sends.handle_request(node, request, presence);
                    accepted
                        .map_err(|TooManyRequests { requests }| PeerFault::TooManyRequests { requests })?;
                }
            }
            PeerMessage::Withdraw(sample) => self.sends.handle_withdrawn(node, check(sample)?),
            PeerMessage::Later(sample) => self.reads.handle_later(node, check(sample)?, now),
            PeerMessage::Missing(sample) => self.reads.handle_missing(node, check(sample)?, now),
            PeerMessage::Offer(sample) => self.consider_offer(node, check(sample)?, local, now),
            PeerMessage::Decline(sample) => {
                if self.offered.remove(check(sample)?, node) {
                    self.release(sample);
                }
            }
            PeerMessage::Passed(position) => self.plan.handle_passed(node, position),
            PeerMessage::Checkpoint { position, hash } => {
                self.plan.handle_checkpoint(node, position, hash);
            }
        }
        Ok(())
    }

    /// A sample that this node holds by the plan, or will hold, is wanted; another one is not.
    fn consider_offer(&mut self, node: NodeIndex, sample: SampleId, local: &dyn LocalSamples, now: Nanos) {
        if let Some(SampleRead { sample, size, deadline }) = self.end_waiting(sample) {
            let give_up = self.give_up(node, size, deadline, now);
            let read = PeerRead { sample, node, position: 0, size, deadline, give_up };
            return self.reads.handle_read(read, now);
        }
        let is_absent = local.presence(sample) == Presence::Missing;
        let is_wanted = is_absent && self.plan.is_reserved(sample);
        match self.connected.get_mut(&node) {
            Some(offers) if is_wanted && *offers < OFFERS_MAX => {
                *offers += 1;
                self.pending.add(node, sample, now);
            }
            _ => self.send(node, PeerMessage::Decline(sample)),
        }
    }

    /// Read a sample from where the plan says, or from the origin.
    fn read_from(&mut self, source: PlacedSource, position: u64, read: SampleRead, now: Nanos) {
        let SampleRead { sample, size, deadline } = read;
        let node = match source {
            PlacedSource::Peer(node) => node,
            // Another node has not offered it yet.
            PlacedSource::Own if self.plan.expects_offer(sample, position) => {
                return self.wait(read, self.latest(deadline, now), now);
            }
            PlacedSource::Own | PlacedSource::Origin => {
                return self.actions.push_back(PeerAction::ReadOrigin { sample });
            }
        };
        let is_silent = !self.reads.is_usable(node, now);
        let is_late = self.reads.estimate(node, size, now) > self.latest(deadline, now);
        if is_silent || is_late {
            let count = if is_silent { &mut self.counts.silent } else { &mut self.counts.late };
            *count += 1;
            return self.actions.push_back(PeerAction::ReadOrigin { sample });
        }
        let give_up = self.give_up(node, size, deadline, now);
        self.reads.handle_read(PeerRead { sample, node, position, size, deadline, give_up }, now);
    }

    /// Let a read wait, until `end` if it is needed now. Its deadline is a prediction before it has passed, and
    /// [`handle_deadline`](Self::handle_deadline) says when it is needed.
    fn wait(&mut self, read: SampleRead, end: Nanos, now: Nanos) {
        self.waiting.add(read, if read.deadline > now { Nanos::MAX } else { end });
    }

    /// End the first read that has waited for too long. If its access cannot be planned yet, the node that has the sample now is
    /// asked.
    fn end_late(&mut self, now: Nanos) -> bool {
        let Some(read) = self.waiting.late(now).and_then(|sample| self.end_waiting(sample)) else {
            return false;
        };
        let holder = self.plan.placement().holder_of(read.sample);
        let is_planned = self.plan.next_source(read.sample).is_some();
        let node = holder.filter(|&node| !is_planned && node != self.plan.own());
        if node.is_none() {
            self.counts.late += 1;
        }
        let source = node.map_or(PlacedSource::Origin, PlacedSource::Peer);
        self.read_from(source, self.plan.planned(), read, now);
        true
    }

    /// A read waits no longer.
    fn end_waiting(&mut self, sample: SampleId) -> Option<SampleRead> {
        let read = self.waiting.remove(sample)?;
        self.plan.handle_awaited(sample, false);
        Some(read)
    }

    fn follow(&mut self, action: JobPlanAction, local: &dyn LocalSamples, now: Nanos) {
        match action {
            JobPlanAction::Reserve(sample) => self.actions.push_back(PeerAction::Reserve { sample }),
            JobPlanAction::Release(sample) => self.release(sample),
            JobPlanAction::Planned(sample) => {
                if let Some(read) = self.end_waiting(sample) {
                    self.handle_read(read, now);
                }
            }
            JobPlanAction::Offer { sample, node } => {
                // What is read later is offered then.
                if let Presence::Here(size) = local.presence(sample) {
                    self.offer(sample, size, node);
                }
            }
            JobPlanAction::Settled(sample) => {
                if let Some(SampleRead { sample, .. }) = self.end_waiting(sample) {
                    self.counts.missing += 1;
                    self.actions.push_back(PeerAction::ReadOrigin { sample });
                } else if self.sends.is_awaited(sample) && local.presence(sample) == Presence::Missing {
                    self.sends.handle_presence(sample, None);
                }
            }
            JobPlanAction::Checkpoint { position, hash } => {
                self.checkpoint = Some((position, hash));
                self.send_all(&PeerMessage::Checkpoint { position, hash });
            }
            JobPlanAction::Differs { node, position } => {
                self.refuse(node, PeerFault::OtherPlan { position }, now);
            }
        }
    }

    fn act_on_read(&mut self, action: ReadAction) {
        match action {
            ReadAction::Request(node, requests) => self.send(node, PeerMessage::Request(requests)),
            ReadAction::Withdraw(node, sample) => self.send(node, PeerMessage::Withdraw(sample)),
            ReadAction::Silent(node) => {
                self.plan.handle_silent(node);
                if !self.connected.contains_key(&node) {
                    self.withdraw_offers(node);
                }
            }
            ReadAction::GiveUp(PeerRead { sample, node, .. }, why) => {
                match why {
                    GiveUp::Missing => self.counts.missing += 1,
                    GiveUp::Late => self.counts.late += 1,
                    GiveUp::Silent => self.counts.silent += 1,
                }
                if self.receiving.remove(&sample) {
                    return self.actions.push_back(PeerAction::Abandon { sample });
                }
                if why == GiveUp::Missing {
                    self.repairs.insert(sample, node);
                }
                self.actions.push_back(PeerAction::ReadOrigin { sample });
            }
        }
    }

    /// When an answer of another node is so late that the origin is read instead: bytes of the origin are dearer than those of
    /// the network, so not as soon as the origin would be faster.
    fn latest(&self, deadline: Nanos, now: Nanos) -> Nanos {
        let slow = self.origin_time.get().saturating_mul(SLOW_ANSWER);
        deadline.saturating_sub(self.origin_time).max(now.saturating_add(Nanos::new(slow)))
    }

    /// When a read of another node that begins now is given up: when it is late, and has taken twice as long as expected.
    fn give_up(&self, node: NodeIndex, size: Bytes, deadline: Nanos, now: Nanos) -> Nanos {
        if deadline == Nanos::MAX {
            return Nanos::MAX;
        }
        let expected = self.reads.estimate(node, size, now);
        self.latest(deadline, now).max(expected.saturating_add(expected.saturating_sub(now)))
    }

    /// The plan or an offer needs a sample no longer: release it if neither does.
    fn release(&mut self, sample: SampleId) {
        if !self.offered.contains(sample) && !self.plan.is_reserved(sample) {
            self.actions.push_back(PeerAction::Release { sample });
        }
    }

    fn refuse(&mut self, node: NodeIndex, fault: PeerFault, now: Nanos) {
        self.handle_disconnected(node, now);
        self.reads.handle_abandoned(node, now);
        if self.refused.insert(node) {
            self.actions.push_back(PeerAction::Refuse { node, fault });
        }
    }

    fn send(&mut self, node: NodeIndex, message: PeerMessage) {
        if self.connected.contains_key(&node) {
            self.actions.push_back(PeerAction::Send { node, message });
        }
    }

    fn send_all(&mut self, message: &PeerMessage) {
        let nodes = self.connected.keys();
        self.actions.extend(nodes.map(|&node| PeerAction::Send { node, message: message.clone() }));
    }
}
