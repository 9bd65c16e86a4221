// SPDX-License-Identifier: Apache-2.0
//! A rank, a server, and the connections between them, without threads.
//!
//! Each does what a driver around the crate's machines would do, and nothing that they decide.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use foresee_grad_queue::{
    Admission, Claim, Collect, CollectAction, JobView, Members, PacketId, ParkBudget, Plan, Round,
    RoundAction, Rounds, Sender, ServerId, Shard, SlotPair, Sum, TensorId, TensorSet,
};
use foresee_units::{Bytes, Rank};

/// A contribution in a connection.
#[derive(Clone, Debug)]
pub(crate) struct Push {
    pub(crate) sender: Sender,
    pub(crate) packet: PacketId,
    pub(crate) payload: Vec<u8>,
}

/// A result in a connection.
#[derive(Clone, Debug)]
pub(crate) struct Pull {
    pub(crate) generation: u32,
    pub(crate) round: Round,
    pub(crate) packet: PacketId,
    pub(crate) sum: Arc<Sum>,
}

/// A message of a rank about a round.
#[derive(Clone, Debug)]
pub(crate) enum Word {
    /// What everybody goes by from now on: the first word under a new membership.
    Change(u32),
    End(Sender, TensorSet),
    Got(Sender),
}

/// What a server tells a rank.
#[derive(Clone, Debug)]
pub(crate) enum News {
    Told(RoundAction),
    /// From here on it tells what holds under this membership; rounds before this one are done.
    Changed(u32, Round),
}

/// What is between one rank and one server.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) pushes: VecDeque<Push>,
    pub(crate) words: VecDeque<Word>,
    pub(crate) pulls: VecDeque<Pull>,
    pub(crate) news: VecDeque<News>,
    /// The server's reader has a payload in hand, and the generation that it was sent under.
    pub(crate) taking: Option<(Admission, Push)>,
    /// The server's reader was told to wait, with the packet at the front.
    pub(crate) held: bool,
    /// The rank's reader has a payload in hand.
    pub(crate) landing: Option<(Claim, Pull)>,
    /// The server took the place of a lost one: what it says when every rank has come to it.
    pub(crate) go_on: Option<Round>,
}

/// What a rank does in a round: which tensors it uses in its forward pass, and which gradients follow.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) uses: Vec<TensorId>,
    pub(crate) pushes: Vec<TensorId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Forward(usize),
    Backward(usize),
    Finished,
}

#[derive(Debug)]
pub(crate) struct RankNode {
    pub(crate) rank: Rank,
    pub(crate) alive: bool,
    pub(crate) collect: Collect,
    pub(crate) programs: Vec<Program>,
    pub(crate) phase: Phase,
    /// Packets to be sent, by server.
    pub(crate) queue: Vec<Vec<(Round, PacketId)>>,
    pub(crate) gradients: BTreeMap<(Round, TensorId), Vec<u8>>,
    pub(crate) received: BTreeMap<(Round, TensorId), Vec<u8>>,
    /// Rounds before this one were compared with what they have to be.
    pub(crate) compared: Round,
    /// A membership of which the rank has not heard that it comes.
    pub(crate) coming: Option<u32>,
    /// One that holds, of which it has not heard.
    pub(crate) news: Option<u32>,
    /// The newest one that it has said what it knows for.
    pub(crate) frozen: u32,
    /// Servers to which it does not listen until they have changed to that one.
    pub(crate) deaf: BTreeSet<usize>,
    /// Servers that it lost, and in whose place it has found nobody yet.
    pub(crate) lost: BTreeSet<usize>,
    /// Servers in the place of lost ones to which it has come, with their answers.
    pub(crate) resuming: Vec<(usize, Option<Round>)>,
    /// Rounds that are done, of which it must not know while a server is resuming.
    pub(crate) done_later: Vec<(ServerId, Round)>,
}

impl RankNode {
    /// Whether a server is there and knows the job.
    pub(crate) fn is_open(&self, server: usize) -> bool {
        !self.lost.contains(&server) && self.resuming.iter().all(|(other, _)| *other != server)
    }

    /// What the rank says under its name.
    pub(crate) fn sender(&self, round: Round) -> Sender {
        Sender { rank: self.rank, generation: self.collect.generation(), round }
    }

    pub(crate) fn queue_tensor(&mut self, plan: &Plan, round: Round, tensor: TensorId) {
        for server in (0..plan.config().pattern.servers()).map(ServerId) {
            let packets = 0..plan.packets_at(tensor, server).unwrap();
            let packets = packets.map(|nth| (round, plan.nth_packet_at(tensor, server, nth).unwrap()));
            self.queue[usize::from(server.0)].extend(packets);
        }
    }

    /// Everything that a server may be without: pushed, kept, and not answered, or to be summed once more.
    pub(crate) fn queue_again(&mut self, plan: &Plan, server: ServerId) {
        let mut queue = Vec::new();
        let (oldest, current) = (self.collect.oldest_kept(), self.collect.current());
        for round in (oldest.0..=current.0).map(Round) {
            let kept: Vec<TensorId> =
                self.collect.kept(round).into_iter().flat_map(TensorSet::iter).collect();
            for tensor in kept {
                let once_more = self.collect.is_asked_again(server, tensor, round);
                for nth in 0..plan.packets_at(tensor, server).unwrap() {
                    let packet = plan.nth_packet_at(tensor, server, nth).unwrap();
                    if once_more || !self.collect.has_landed(round, packet) {
                        queue.push((round, packet));
                    }
                }
            }
        }
        self.queue[usize::from(server.0)] = queue;
    }

    /// Which queued packets may leave. An older round goes first: were a newer one in front of it, a payload that the
    /// server has no room for could keep back the one that it waits for.
    pub(crate) fn sendable(&self, server: ServerId, older_first: bool) -> Vec<usize> {
        let queue = &self.queue[usize::from(server.0)];
        let oldest = queue.iter().map(|(round, _)| *round).min();
        let may = |(_, (round, packet)): &(usize, &(Round, PacketId))| {
            (!older_first || Some(*round) == oldest)
                && self.collect.may_push_to(server, packet.tensor, *round)
        };
        queue.iter().enumerate().filter(may).map(|(at, _)| at).collect()
    }

    pub(crate) fn payload(&self, plan: &Plan, round: Round, packet: PacketId) -> Vec<u8> {
        let (offset, bytes) = plan.range(packet).unwrap();
        let offset = usize::try_from(offset).unwrap();
        self.gradients[&(round, packet.tensor)][offset..offset + usize::try_from(bytes).unwrap()].to_vec()
    }

    /// What the rank has to tell servers.
    pub(crate) fn words(&mut self) -> Vec<(ServerId, Word)> {
        let mut words = Vec::new();
        while let Some(action) = self.collect.poll_action() {
            words.push(match action {
                CollectAction::End(server, round) => {
                    (server, Word::End(self.sender(round), self.collect.skipped(round).unwrap()))
                }
                CollectAction::Got(server, round) => (server, Word::Got(self.sender(round))),
            });
        }
        words
    }
}

#[derive(Debug)]
pub(crate) struct ServerNode {
    pub(crate) shard: Shard,
    pub(crate) pairs: Vec<SlotPair>,
    pub(crate) rounds: Rounds,
    pub(crate) park: Arc<ParkBudget>,
    /// Results to be sent: to whom, of which round.
    pub(crate) offers: Vec<(Rank, Round, PacketId)>,
}

impl ServerNode {
    pub(crate) fn new(plan: &Plan, server: ServerId, members: &Members, park: Bytes, oldest: Round) -> Self {
        let shard = Shard::new(plan, server);
        let pairs = (0..shard.packets()).map(|_| SlotPair::default()).collect();
        let rounds = Rounds::new(members.clone(), plan.tensors(), oldest);
        Self { shard, pairs, rounds, park: ParkBudget::new(park), offers: Vec::new() }
    }

    /// The packet's slots, and what they are to know.
    pub(crate) fn at<'a>(
        &'a mut self,
        plan: &'a Plan,
        rank: Rank,
        packet: PacketId,
    ) -> (&'a mut SlotPair, JobView<'a>) {
        let index = self.shard.index(plan, rank, packet).expect("ranks send by the plan");
        let (members, oldest) = (self.rounds.members(), self.rounds.oldest());
        let job = JobView { plan, members, park: &self.park, oldest };
        (&mut self.pairs[usize::try_from(index).unwrap()], job)
    }

    /// Offers whatever is ready to a rank that may have missed it.
    pub(crate) fn offer_all(&mut self, plan: &Plan, rank: Rank) {
        self.offers.retain(|(to, _, _)| *to != rank);
        let oldest = self.rounds.oldest();
        for (index, pair) in (0..).zip(&self.pairs) {
            let packet = self.shard.packet(plan, index).unwrap();
            let ready = (oldest.0..oldest.0 + 3).map(Round).filter(|round| pair.ready(*round).is_some());
            self.offers.extend(ready.map(|round| (rank, round, packet)));
        }
    }

    /// What a rank that may have missed it has to hear again.
    pub(crate) fn news(&self) -> Vec<News> {
        let oldest = self.rounds.oldest();
        let done = oldest.0.checked_sub(1).map(|round| RoundAction::Done(Round(round)));
        let used = |round| Some(RoundAction::Used(round, self.rounds.used(round)?.clone()));
        let told = done.into_iter().chain([oldest, oldest.next()].into_iter().filter_map(used));
        let changed = News::Changed(self.rounds.members().generation(), oldest);
        [changed].into_iter().chain(told.map(News::Told)).collect()
    }
}
