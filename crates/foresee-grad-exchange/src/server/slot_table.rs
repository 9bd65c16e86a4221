// SPDX-License-Identifier: Apache-2.0
//! Byte path of a plan at a server: slots, and the results that it sends back.
//!
//! Each packet has a lock of its own; the reader whose cache holds the payload adds it under that lock. Results leave
//! through the interface, without a copy. The session counts rounds and members; readers use the copies here, without
//! the session's lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};

use foresee_grad_queue::{
    Admission, Answer, Buffer, Class, Connection, DiscardReason, EarlyBudget, Flow, JobView, Members,
    MissingContributions, Outcome, PacketId, PacketStream, Plan, Progress, QueueError, Round, Sender,
    ServerId, Shard, SlotPair, Sum, TensorId, Verdict,
};
use foresee_grad_session::{EndTicket, Installation, MissingTicket};
use foresee_units::{Bytes, Dtype, Rank};
use foresee_wire::{Header, Kind};

use super::ServerContext;
use crate::interface::{Interface, PacketSource};
use crate::sync::{lock, wait};
use crate::timeline::{EventKind, Timeline};

/// The slots of a plan in force.
#[derive(Debug)]
pub(super) struct SlotTable {
    plan: Arc<Plan>,
    /// Read after a packet's lock is taken, so that a later holder of the lock sees no older members.
    members: RwLock<Arc<Members>>,
    shard: Shard,
    slots: Vec<Mutex<SlotPair>>,
    early_buffer: Arc<EarlyBudget>,
    /// The oldest round that is not done.
    oldest: AtomicU64,
    /// Counts events after which a waiting reader may continue.
    events: Mutex<u64>,
    changed: Condvar,
    answer: Answer,
    /// If whole tensors are answered: the ready packets of each tensor, for even and odd rounds, and the round, which may
    /// end before all of them are ready.
    ready: Mutex<Vec<[(Round, u32); 2]>>,
    /// The routes of each rank's results.
    routes: RwLock<Arc<[RankRoute]>>,
    flow: Flow,
    timeline: Timeline,
}

/// The data connection to a rank.
#[derive(Clone, Debug)]
pub(super) struct RankRoute {
    pub(super) rank: Rank,
    pub(super) interface: Interface,
    pub(super) connection: Connection,
}

/// What to do with a payload that was announced by its header.
pub(super) enum PushAdmission {
    Read(Admission),
    Discard,
}

impl SlotTable {
    pub(super) fn new(
        installation: Installation,
        server: ServerId,
        routes: Vec<RankRoute>,
        flow: Flow,
        context: &ServerContext,
    ) -> Self {
        let Installation { plan, members, oldest } = installation;
        let shard = Shard::new(&plan, server);
        let slots = (0..shard.packets()).map(|_| Mutex::default()).collect();
        let tensors = plan.tensors();
        Self {
            oldest: AtomicU64::new(oldest.0),
            members: RwLock::new(Arc::new(members)),
            shard,
            slots,
            early_buffer: EarlyBudget::new(context.options.early_buffer),
            events: Mutex::new(0),
            changed: Condvar::new(),
            answer: context.options.policy.answer(),
            ready: Mutex::new(vec![[(Round(0), 0); 2]; tensors as usize]),
            routes: RwLock::new(routes.into()),
            flow,
            timeline: context.timeline.clone(),
            plan,
        }
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The current membership.
    fn members(&self) -> Arc<Members> {
        Arc::clone(&self.members.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Rounds before this one are done.
    fn oldest(&self) -> Round {
        Round(self.oldest.load(Ordering::Acquire))
    }

    /// Send a rank's results over this route from now on.
    pub(super) fn set_route(&self, route: &RankRoute) {
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        *routes = routes.iter().filter(|other| other.rank != route.rank).chain([route]).cloned().collect();
    }

    /// Change the membership: sums in progress are dropped, results stay.
    pub(super) fn set_members(&self, members: Members) {
        let members = Arc::new(members);
        *self.members.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&members);
        for slot in &self.slots {
            lock(slot).adopt(&members);
        }
        self.wake();
    }

    /// Rounds before `oldest` are done; `forget`: slots may still hold parts of them.
    pub(super) fn advance(&self, oldest: Round, forget: bool) {
        self.oldest.store(oldest.0, Ordering::Release);
        if forget {
            self.slots.iter().for_each(|slot| lock(slot).forget_done(oldest));
            self.wake();
        }
    }

    /// Admit a contribution by its header. Wait until its turn, or until there is space to hold it, as long as
    /// `is_connected`.
    pub(super) fn admit(
        &self,
        rank: Rank,
        header: &Header,
        is_connected: impl Fn() -> bool,
    ) -> Result<PushAdmission, QueueError> {
        if header.generation < self.members().generation() {
            // It may belong to an earlier plan, so its packet id is not looked up.
            return Ok(PushAdmission::Discard);
        }
        let packet = PacketId { tensor: TensorId(header.tensor), packet: header.packet };
        let slot = self.slot(rank, packet)?;
        loop {
            let seen = *lock(&self.events);
            let oldest = self.oldest();
            let sender =
                Sender { rank, generation: header.generation, round: Round::near(header.round, oldest) };
            let verdict = {
                let mut slot = lock(slot);
                let members = self.members();
                slot.admit(&self.view(&members, oldest), packet, sender, header.length.into())?
            };
            match verdict {
                Verdict::Read(admission) => return Ok(PushAdmission::Read(admission)),
                Verdict::Discard(why) => {
                    if why == DiscardReason::Answered {
                        self.answer_again(rank, packet, sender.round);
                    }
                    return Ok(PushAdmission::Discard);
                }
                Verdict::Hold => {
                    let mut events = lock(&self.events);
                    while *events == seen && is_connected() {
                        events = wait(&self.changed, events);
                    }
                    if !is_connected() {
                        return Ok(PushAdmission::Discard);
                    }
                }
            }
        }
    }

    /// Add a payload to its sum; send the result if it is complete. The contents of the buffer are unspecified afterwards.
    pub(super) fn add(
        self: &Arc<Self>,
        rank: Rank,
        header: &Header,
        admission: Admission,
        payload: &mut Buffer,
    ) -> Result<(), QueueError> {
        let packet = PacketId { tensor: TensorId(header.tensor), packet: header.packet };
        let slot = self.slot(rank, packet)?;
        let oldest = self.oldest();
        let round = Round::near(header.round, oldest);
        let (progress, sum) = {
            let mut slot = lock(slot);
            let members = self.members();
            let progress = slot.accept(&self.view(&members, oldest), admission, payload)?;
            (progress, slot.ready(round).cloned())
        };
        self.timeline.packet(EventKind::Arrived, round, packet, Some(rank.0));
        self.handle_progress(progress, sum, rank, packet, round);
        Ok(())
    }

    /// A rank has ended a round without the tensors of this ticket.
    pub(super) fn skip(&self, ticket: &EndTicket) -> Result<(), QueueError> {
        let (sender, oldest) = (ticket.sender, self.oldest());
        let Sender { rank, round, .. } = sender;
        for tensor in ticket.skipped.iter() {
            let promised = ticket.is_promised(tensor);
            for index in self.shard.of_tensor(tensor) {
                let Some(packet) = self.shard.packet(&self.plan, index) else { continue };
                let (progress, sum) = {
                    let mut slot = lock(self.slot_at(index));
                    let members = self.members();
                    let progress = slot.skip(&self.view(&members, oldest), packet, sender, promised)?;
                    (progress, slot.ready(round).cloned())
                };
                self.handle_progress(progress, sum, rank, packet, round);
            }
        }
        Ok(())
    }

    fn handle_progress(
        &self,
        progress: Progress,
        sum: Option<Arc<Sum>>,
        rank: Rank,
        packet: PacketId,
        round: Round,
    ) {
        if progress.wake {
            self.wake();
        }
        match (progress.outcome, sum) {
            (Outcome::Ready, Some(sum)) => self.complete(packet, round, sum),
            (Outcome::Ignored(DiscardReason::Answered), Some(_)) => self.answer_again(rank, packet, round),
            _ => {}
        }
    }

    /// The contributions that awaited ranks owe to the sums that others have begun. Searches all slots.
    pub(super) fn find_missing(&self, ticket: &MissingTicket) -> MissingContributions {
        let mut missing = MissingContributions::new(ticket.round);
        for (index, slot) in (0..).zip(&self.slots) {
            if let Some(packet) = self.shard.packet(&self.plan, index) {
                missing.add(packet, &lock(slot), &ticket.awaited);
            }
        }
        missing
    }

    /// Make waiting readers check their condition again.
    pub(super) fn wake(&self) {
        *lock(&self.events) += 1;
        self.changed.notify_all();
    }

    /// The peak of the early buffer.
    pub(super) fn early_buffer_peak(&self) -> Bytes {
        self.early_buffer.peak()
    }

    fn routes(&self) -> Arc<[RankRoute]> {
        Arc::clone(&self.routes.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn view<'a>(&'a self, members: &'a Members, oldest: Round) -> JobView<'a> {
        JobView { plan: &self.plan, members, early_budget: &self.early_buffer, oldest }
    }

    fn slot(&self, rank: Rank, packet: PacketId) -> Result<&Mutex<SlotPair>, QueueError> {
        Ok(self.slot_at(self.shard.index(&self.plan, rank, packet)?))
    }

    fn slot_at(&self, index: u64) -> &Mutex<SlotPair> {
        &self.slots[usize::try_from(index).expect("slots are in memory")]
    }

    /// Send a complete sum, or its tensor once all of it is complete.
    fn complete(&self, packet: PacketId, round: Round, sum: Arc<Sum>) {
        self.timeline.packet(EventKind::Summed, round, packet, None);
        match self.answer {
            Answer::Packet => self.offer(&self.routes(), packet.tensor, round, vec![(packet, sum)]),
            Answer::Tensor => {
                let packets = self.shard.of_tensor(packet.tensor);
                let parity = usize::from(!round.0.is_multiple_of(2));
                let is_whole = {
                    let mut ready = lock(&self.ready);
                    let (of, count) = &mut ready[packet.tensor.0 as usize][parity];
                    if *of != round {
                        (*of, *count) = (round, 0);
                    }
                    *count += 1;
                    u64::from(*count) == packets.end - packets.start
                };
                if is_whole {
                    let sums = packets.filter_map(|index| self.result(index, round)).collect();
                    self.offer(&self.routes(), packet.tensor, round, sums);
                }
            }
        }
    }

    fn result(&self, index: u64, round: Round) -> Option<(PacketId, Arc<Sum>)> {
        let packet = self.shard.packet(&self.plan, index)?;
        let slot = lock(self.slot_at(index));
        Some((packet, Arc::clone(slot.ready(round)?)))
    }

    /// Send a result again, to a rank that seems to lack it.
    fn answer_again(&self, rank: Rank, packet: PacketId, round: Round) {
        let Ok(index) = self.shard.index(&self.plan, rank, packet) else { return };
        let Some(result) = self.result(index, round) else { return };
        if let Some(route) = self.routes().iter().find(|route| route.rank == rank) {
            self.offer(std::slice::from_ref(route), packet.tensor, round, vec![result]);
        }
    }

    /// Offer results to the interfaces of these ranks.
    fn offer(&self, routes: &[RankRoute], tensor: TensorId, round: Round, sums: Vec<(PacketId, Arc<Sum>)>) {
        let (Some(spec), Some(dtype)) = (self.plan.tensor(tensor), self.plan.wire_dtype(tensor)) else {
            return;
        };
        let (Some((_, first)), Some((_, last))) = (sums.first(), sums.last()) else { return };
        let size = |sum: &Sum| u32::try_from(sum.bytes().len()).expect("a packet's size is 32 bits");
        let (whole, end) = (size(first), size(last));
        let count = u32::try_from(sums.len()).expect("a tensor's packets are counted in 32 bits");
        let class = Class::new(spec.class);
        let result: Arc<Results> =
            Arc::new(Results { generation: self.members().generation(), round, class, dtype, sums });
        // One offer per interface, with a packet stream for each of its ranks.
        let mut rest: Vec<&RankRoute> = routes.iter().collect();
        while let Some(first) = rest.first().copied() {
            let (same, others): (Vec<_>, Vec<_>) =
                rest.into_iter().partition(|other| other.interface.is_same(&first.interface));
            let streams =
                same.iter().map(|route| PacketStream::new(route.connection, count, whole, end)).collect();
            first.interface.offer(
                self.flow,
                (round, class),
                streams,
                Arc::clone(&result) as Arc<dyn PacketSource>,
            );
            rest = others;
        }
    }
}

/// Results of one tensor.
struct Results {
    generation: u32,
    round: Round,
    class: Class,
    dtype: Dtype,
    sums: Vec<(PacketId, Arc<Sum>)>,
}

impl PacketSource for Results {
    fn header(&self, _: Connection, packet: u32) -> Header {
        let (packet, sum) = &self.sums[packet as usize];
        Header {
            kind: Kind::Sum,
            dtype: Some(self.dtype),
            generation: self.generation,
            round: self.round.low(),
            tensor: packet.tensor.0,
            packet: packet.packet,
            length: u32::try_from(sum.bytes().len()).expect("a packet's size is 32 bits"),
            class: self.class.get().into(),
            contributors: sum.contributors(),
            checksum: None,
        }
    }

    fn payload<'a>(&'a self, _: Connection, packet: u32, _: &'a mut Vec<u8>) -> &'a [u8] {
        self.sums[packet as usize].1.bytes()
    }
}
