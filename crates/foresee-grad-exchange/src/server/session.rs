// SPDX-License-Identifier: Apache-2.0
//! Byte path of a plan at a server: slots, and results on their way back.
//!
//! Each packet has a lock of its own; a sum is added under it, by the reader in whose cache the payload lies. Results
//! leave through the interface, without a copy. The job's machine counts rounds and members; here is what readers have to
//! know of them without its lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use foresee_grad_queue::{
    Answer, Buffer, Class, Connection, Discarded, Flow, JobView, Lane, Members, Outcome, PacketId,
    ParkBudget, Plan, QueueError, Round, Sender, ServerId, Shard, SlotPair, Sum, TensorId, Verdict, Waits,
};
use foresee_grad_session::{EndTicket, Installation, OwedTicket};
use foresee_units::{Bytes, Dtype, Rank};
use foresee_wire::{Header, Kind};

use super::Hall;
use crate::interface::{Interface, Parcel};
use crate::timeline::{EventKind, Timeline};

/// A plan at work.
#[derive(Debug)]
pub(super) struct Session {
    plan: Arc<Plan>,
    /// Taken after a packet's lock: who took that later must not see older ones.
    members: RwLock<Arc<Members>>,
    shard: Shard,
    slots: Vec<Mutex<SlotPair>>,
    park: Arc<ParkBudget>,
    /// The oldest round that is not done.
    oldest: AtomicU64,
    /// Counts what may let a held reader go on.
    moved: Mutex<u64>,
    bell: Condvar,
    answer: Answer,
    /// Packets of each tensor that are ready, for even and odd rounds, where whole tensors are answered; and which round
    /// that was, since one may end before all of them are.
    ready: Mutex<Vec<[(Round, u32); 2]>>,
    /// Where each rank's results go.
    ways: RwLock<Arc<[Way]>>,
    flow: Flow,
    timeline: Timeline,
}

/// The way to a rank.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) rank: Rank,
    pub(super) interface: Interface,
    pub(super) connection: Connection,
}

/// What to do with a payload that waits in its connection.
pub(super) enum Judged {
    Read(foresee_grad_queue::Admission),
    Discard,
}

impl Session {
    pub(super) fn new(
        installation: Installation,
        server: ServerId,
        ways: Vec<Way>,
        flow: Flow,
        hall: &Hall,
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
            park: ParkBudget::new(hall.options.park),
            moved: Mutex::new(0),
            bell: Condvar::new(),
            answer: hall.options.policy.answer(),
            ready: Mutex::new(vec![[(Round(0), 0); 2]; tensors as usize]),
            ways: RwLock::new(ways.into()),
            flow,
            timeline: hall.timeline.clone(),
            plan,
        }
    }

    /// The plan.
    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The membership that counts.
    fn members(&self) -> Arc<Members> {
        Arc::clone(&self.members.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Rounds before this one are done.
    fn oldest(&self) -> Round {
        Round(self.oldest.load(Ordering::Acquire))
    }

    /// Sends results for a rank this way from now on.
    pub(super) fn route(&self, way: &Way) {
        let mut ways = self.ways.write().unwrap_or_else(PoisonError::into_inner);
        *ways = ways.iter().filter(|other| other.rank != way.rank).chain([way]).cloned().collect();
    }

    /// Other members count from now on: what was being summed is forgotten, results stay.
    pub(super) fn adopt(&self, members: Members) {
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

    /// Judges a contribution by its header; waits while its turn has not come and there is no room for it. `alive`
    /// says whether the wait still has a purpose.
    pub(super) fn judge(
        &self,
        rank: Rank,
        header: &Header,
        alive: impl Fn() -> bool,
    ) -> Result<Judged, QueueError> {
        if header.generation < self.members().generation() {
            // It may be of another plan, in which the packet has no place.
            return Ok(Judged::Discard);
        }
        let packet = PacketId { tensor: TensorId(header.tensor), packet: header.packet };
        let slot = self.slot(rank, packet)?;
        loop {
            let seen = *lock(&self.moved);
            let oldest = self.oldest();
            let sender =
                Sender { rank, generation: header.generation, round: Round::near(header.round, oldest) };
            let verdict = {
                let mut slot = lock(slot);
                let members = self.members();
                slot.verdict(&self.view(&members, oldest), packet, sender, header.length.into())?
            };
            match verdict {
                Verdict::Read(admission) => return Ok(Judged::Read(admission)),
                Verdict::Discard(why) => {
                    if why == Discarded::Answered {
                        self.answer_again(rank, packet, sender.round);
                    }
                    return Ok(Judged::Discard);
                }
                Verdict::Hold => {
                    let mut moved = lock(&self.moved);
                    while *moved == seen && alive() {
                        moved = self.bell.wait(moved).unwrap_or_else(PoisonError::into_inner);
                    }
                    if !alive() {
                        return Ok(Judged::Discard);
                    }
                }
            }
        }
    }

    /// Adds a payload; a result that is complete leaves. What the buffer holds afterwards means nothing.
    pub(super) fn take(
        self: &Arc<Self>,
        rank: Rank,
        header: &Header,
        admission: foresee_grad_queue::Admission,
        payload: &mut Buffer,
    ) -> Result<(), QueueError> {
        let packet = PacketId { tensor: TensorId(header.tensor), packet: header.packet };
        let slot = self.slot(rank, packet)?;
        let oldest = self.oldest();
        let round = Round::near(header.round, oldest);
        let (progress, sum) = {
            let mut slot = lock(slot);
            let members = self.members();
            let progress = slot.take(&self.view(&members, oldest), admission, payload)?;
            (progress, slot.ready(round).cloned())
        };
        self.timeline.packet(EventKind::Arrived, round, packet, Some(rank.0));
        if progress.wake {
            self.wake();
        }
        match (progress.outcome, sum) {
            (Outcome::Ready, Some(sum)) => self.complete(packet, round, sum),
            (Outcome::Ignored(Discarded::Answered), Some(_)) => self.answer_again(rank, packet, round),
            _ => {}
        }
        Ok(())
    }

    /// A rank has pushed all that it pushes in a round, and not the tensors of this ticket.
    pub(super) fn skip(&self, ticket: &EndTicket) -> Result<(), QueueError> {
        let (sender, oldest) = (ticket.sender(), self.oldest());
        let Sender { rank, round, .. } = sender;
        for tensor in ticket.skipped().iter() {
            let promised = ticket.is_promised(tensor);
            for index in self.shard.of_tensor(tensor) {
                let Some(packet) = self.shard.packet(&self.plan, index) else { continue };
                let slot = &self.slots[usize::try_from(index).expect("slots lie in memory")];
                let (progress, sum) = {
                    let mut slot = lock(slot);
                    let members = self.members();
                    let progress = slot.skip(&self.view(&members, oldest), packet, sender, promised)?;
                    (progress, slot.ready(round).cloned())
                };
                if progress.wake {
                    self.wake();
                }
                match (progress.outcome, sum) {
                    (Outcome::Ready, Some(sum)) => self.complete(packet, round, sum),
                    (Outcome::Ignored(Discarded::Answered), Some(_)) => {
                        self.answer_again(rank, packet, round);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// What the ranks that are waited for owe to the sums of a round that others have begun. Goes through all slots.
    pub(super) fn owed(&self, ticket: &OwedTicket) -> Waits {
        let mut waits = Waits::new(ticket.round());
        for (index, slot) in (0..).zip(&self.slots) {
            if let Some(packet) = self.shard.packet(&self.plan, index) {
                waits.add(packet, &lock(slot), ticket.waited_for());
            }
        }
        waits
    }

    /// Lets held readers look again, for instance at a job that ended.
    pub(super) fn wake(&self) {
        *lock(&self.moved) += 1;
        self.bell.notify_all();
    }

    /// The most that was ever parked.
    pub(super) fn parked_peak(&self) -> Bytes {
        self.park.peak()
    }

    fn ways(&self) -> Arc<[Way]> {
        Arc::clone(&self.ways.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn view<'a>(&'a self, members: &'a Members, oldest: Round) -> JobView<'a> {
        JobView { plan: &self.plan, members, park: &self.park, oldest }
    }

    fn slot(&self, rank: Rank, packet: PacketId) -> Result<&Mutex<SlotPair>, QueueError> {
        let index = self.shard.index(&self.plan, rank, packet)?;
        Ok(&self.slots[usize::try_from(index).expect("slots lie in memory")])
    }

    /// A sum is complete.
    fn complete(&self, packet: PacketId, round: Round, sum: Arc<Sum>) {
        self.timeline.packet(EventKind::Summed, round, packet, None);
        match self.answer {
            Answer::Packet => self.offer(&self.ways(), packet.tensor, round, vec![(packet, sum)]),
            Answer::Tensor => {
                let packets = self.shard.of_tensor(packet.tensor);
                let parity = usize::from(!round.0.is_multiple_of(2));
                let whole = {
                    let mut ready = lock(&self.ready);
                    let (of, count) = &mut ready[packet.tensor.0 as usize][parity];
                    if *of != round {
                        (*of, *count) = (round, 0);
                    }
                    *count += 1;
                    u64::from(*count) == packets.end - packets.start
                };
                if whole {
                    let sums = packets.filter_map(|index| self.result(index, round)).collect();
                    self.offer(&self.ways(), packet.tensor, round, sums);
                }
            }
        }
    }

    fn result(&self, index: u64, round: Round) -> Option<(PacketId, Arc<Sum>)> {
        let packet = self.shard.packet(&self.plan, index)?;
        let slot = lock(&self.slots[usize::try_from(index).expect("slots lie in memory")]);
        Some((packet, Arc::clone(slot.ready(round)?)))
    }

    /// A rank seems not to have a result: it is offered once more, to it alone.
    fn answer_again(&self, rank: Rank, packet: PacketId, round: Round) {
        let Ok(index) = self.shard.index(&self.plan, rank, packet) else { return };
        let Some(result) = self.result(index, round) else { return };
        if let Some(way) = self.ways().iter().find(|way| way.rank == rank) {
            self.offer(std::slice::from_ref(way), packet.tensor, round, vec![result]);
        }
    }

    /// Hands results to the interfaces, for these ranks.
    fn offer(&self, ways: &[Way], tensor: TensorId, round: Round, sums: Vec<(PacketId, Arc<Sum>)>) {
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
        // One offer per interface, with a lane for each rank behind it.
        let mut rest: Vec<&Way> = ways.iter().collect();
        while let Some(way) = rest.first().copied() {
            let (here, others): (Vec<_>, Vec<_>) =
                rest.into_iter().partition(|other| other.interface.is(&way.interface));
            let lanes = here.iter().map(|way| Lane::new(way.connection, count, whole, end)).collect();
            way.interface.offer(self.flow, (round, class), lanes, Arc::clone(&result) as Arc<dyn Parcel>);
            rest = others;
        }
    }
}

/// Results of one tensor, on their way to ranks.
struct Results {
    generation: u32,
    round: Round,
    class: Class,
    dtype: Dtype,
    sums: Vec<(PacketId, Arc<Sum>)>,
}

impl Parcel for Results {
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

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
