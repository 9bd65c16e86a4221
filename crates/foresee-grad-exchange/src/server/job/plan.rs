// SPDX-License-Identifier: Apache-2.0
//! From what every rank proposes to the plan that holds, and the session that sums by it.
//!
//! Apart from `proposals`, which compares them. Refuses a plan whose packets no memory would hold, wherever it comes from.

use std::num::NonZeroU32;
use std::sync::Arc;

use foresee_grad_queue::{Members, PACKET_BYTES_MAX, Plan, Round, Rounds, Shard};
use foresee_units::Rank;
use foresee_wire::{Fault, FaultCode, Message};

use super::seat::Seat;
use super::{Inner, Job};
use crate::interface::Interface;
use crate::proposals;
use crate::server::session::{Session, lock};

/// The most packets of a plan at one server. Each costs up to 256 bytes before its first byte has come, and a tensor that
/// is told in a few bytes may have 2^32: 4 GiB are enough for 256 GiB in packets of 16 KiB.
const PACKETS_MAX: u64 = 1 << 24;

impl Job {
    /// A rank proposes a plan, or confirms the one that the first server found. `epoch`: by which of its connections.
    pub(super) fn propose(&self, rank: Rank, epoch: u32, body: Vec<u8>) -> Result<(), Fault> {
        {
            let mut inner = lock(&self.inner);
            let seat = inner.ranks.get_mut(&rank).filter(|seat| seat.epoch == epoch);
            let Some(seat) = seat else { return Ok(()) };
            if std::mem::take(&mut seat.answered) {
                return Ok(());
            }
            if seat.away.is_some() {
                seat.proposed = Some(body);
                return Ok(());
            }
            inner.proposals.insert(rank, body);
        }
        self.check_in_step()?;
        self.agree()
    }

    /// Whoever proposes a plan has no round open, and begins none before the plan is agreed on: a rank that is in a later
    /// round of the one before would wait for it, and it for that rank.
    pub(super) fn check_in_step(&self) -> Result<(), Fault> {
        let inner = lock(&self.inner);
        if inner.session.is_none() || inner.resumed {
            return Ok(());
        }
        let next = |rank: &Rank| inner.ranks.get(rank).map(|seat| seat.next);
        for proposer in inner.proposals.keys() {
            let ahead =
                inner.ranks.iter().find(|(_, seat)| next(proposer).is_some_and(|next| seat.next > next));
            if let Some((rank, _)) = ahead {
                return Err(Fault::new(FaultCode::Plan, proposals::out_of_step(*proposer, *rank)));
            }
        }
        Ok(())
    }

    /// Once every rank has proposed, and both connections of each are here, the plan holds.
    pub(super) fn agree(&self) -> Result<(), Fault> {
        let mut inner = lock(&self.inner);
        if inner.proposals.len() < self.expected(&inner) || !self.is_full(&inner) {
            return Ok(());
        }
        let proposals = std::mem::take(&mut inner.proposals);
        let plan = proposals::common(&proposals)?;
        let generation = inner.generation + 1;
        self.install(&mut inner, Arc::new(plan), generation, Round(0))?;
        let body = proposals.into_values().next().expect("a world has ranks");
        let controls: Vec<_> = inner.ranks.values().filter_map(|seat| seat.control.clone()).collect();
        drop(inner);
        for control in controls {
            control.tell(Message::Plan(foresee_wire::Plan { generation, body: body.clone() }));
        }
        Ok(())
    }

    /// Whether both connections of every rank are here, and whoever was away has said what it knows.
    pub(super) fn is_full(&self, inner: &Inner) -> bool {
        let whole = |seat: &&Seat| seat.control.is_some() && seat.way.is_some() && seat.away.is_none();
        let here = inner.ranks.values().filter(whole);
        here.count() == self.expected(inner)
    }

    /// Who exchanges with servers: the first rank of each machine, or those that are left.
    pub(super) fn every(&self, inner: &Inner) -> Vec<Rank> {
        match &inner.members {
            Some(members) => members.iter().collect(),
            None => (0..self.world).step_by(self.local as usize).map(Rank).collect(),
        }
    }

    /// How many that are.
    pub(super) fn expected(&self, inner: &Inner) -> usize {
        let count = inner.members.as_ref().map_or(self.world / self.local, Members::count);
        count as usize
    }

    /// A plan holds from now on, for rounds from `oldest` on.
    pub(super) fn install(
        &self,
        inner: &mut Inner,
        plan: Arc<Plan>,
        generation: u32,
        oldest: Round,
    ) -> Result<(), Fault> {
        let refused = |why: &dyn std::fmt::Display| Fault::new(FaultCode::Plan, why.to_string());
        let packets = Shard::new(&plan, self.server).packets();
        if packets > PACKETS_MAX {
            return Err(refused(&format_args!(
                "server {} would sum {packets} packets in every round, and {PACKETS_MAX} are possible; take larger packets, or \
                 more servers",
                self.server
            )));
        }
        let members = Members::of(generation, self.world, self.every(inner)).map_err(|why| refused(&why))?;
        let ways: Vec<_> = inner.ranks.values().filter_map(|seat| seat.way.clone()).collect();
        let flow = Interface::flow_of(&self.name);
        let packet = NonZeroU32::new(plan.config().packet_bytes)
            .map_or(PACKET_BYTES_MAX, |packet| packet.min(PACKET_BYTES_MAX));
        for way in &ways {
            way.interface.packet(packet);
        }
        let rounds = Rounds::new(members.clone(), plan.tensors(), oldest);
        let session = Session::new(plan, self.server, members, rounds, ways, flow, &self.hall);
        inner.session = Some(Arc::new(session));
        inner.resumed = false;
        inner.generation = generation;
        inner.resumes.clear();
        inner.decision = None;
        inner.front = oldest;
        inner.ranks.values_mut().for_each(|seat| (seat.next, seat.generation) = (oldest, generation));
        Ok(())
    }
}
