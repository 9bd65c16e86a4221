// SPDX-License-Identifier: Apache-2.0
//! A byzantine rank or server: well-formed messages and packets that are wrong or out of order, among correct ones.
//!
//! Payloads are not changed: only their sender knows the contents of a gradient or a sum.

use foresee_grad_queue::{PacketId, Round, TensorId, TensorSet};
use foresee_grad_session::{
    Change, Changed, Known, LostRank, NewMembers, RankMessage, Resume, Resumed, ServerMessage, Used,
};
use foresee_testkit::Dice;
use foresee_units::Rank;

use crate::faults::Fault;
use crate::network::{Pull, Push};
use crate::setup::Setup;
use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByzantinePeer {
    Rank(usize),
    Server(usize),
}

impl ByzantinePeer {
    pub(crate) fn draw(dice: &mut Dice, setup: &Setup) -> Option<Self> {
        if !setup.faults.contains(&Fault::WrongMessage) {
            return None;
        }
        Some(if dice.one_in(2) {
            Self::Rank(dice.below(setup.ranks as usize))
        } else {
            Self::Server(dice.below(usize::from(setup.servers)))
        })
    }
}

impl World {
    pub(crate) fn is_byzantine(&self, rank: Rank) -> bool {
        self.byzantine == Some(ByzantinePeer::Rank(rank.0 as usize))
    }

    /// The byzantine peer sends a wrong message over one of its connections.
    pub(crate) fn send_wrong_message(&mut self) {
        let (rank, server) = self.draw_pair();
        match self.byzantine {
            Some(ByzantinePeer::Rank(rank)) => self.send_as_byzantine_rank(rank, server),
            Some(ByzantinePeer::Server(server)) => self.send_as_byzantine_server(rank, server),
            None => {}
        }
    }

    fn send_as_byzantine_rank(&mut self, rank: usize, server: usize) {
        if self.pairs[rank][server].is_none() || !self.ranks[rank].is_running() {
            return;
        }
        self.culprits.ranks.insert(rank);
        if self.dice.one_in(4) {
            self.push_wrong_header(rank, server);
            return;
        }
        let message = self.rank_message(rank);
        if matches!(message, RankMessage::Change(_)) {
            // A server trusts a rank about the first server's decision, and misleads the others.
            self.culprits.servers.insert(server);
            // Ranks that it omits are declared lost.
            self.culprits.ranks.extend(1..self.ranks.len());
        }
        self.note(|| format!("wrong message {message:?}"));
        let at = self.dice.bits();
        if let Some(pair) = &mut self.pairs[rank][server] {
            let at = usize::try_from(at % (pair.up.len() as u64 + 1)).expect("it is small");
            pair.up.insert(at, message);
        }
    }

    fn send_as_byzantine_server(&mut self, rank: usize, server: usize) {
        if self.pairs[rank][server].is_none() {
            return;
        }
        self.culprits.servers.insert(server);
        if self.dice.one_in(4) {
            self.pull_wrong_header(rank, server);
            return;
        }
        let message = self.server_message(rank);
        self.note(|| format!("wrong message {message:?}"));
        let at = self.dice.bits();
        if let Some(pair) = &mut self.pairs[rank][server] {
            let at = usize::try_from(at % (pair.down.len() as u64 + 1)).expect("it is small");
            pair.down.insert(at, message);
        }
    }

    /// A contribution that was sent, with another header.
    fn push_wrong_header(&mut self, rank: usize, server: usize) {
        let which = self.dice.below(4);
        // Under a later plan it would count, with the contents of another tensor.
        let later = if self.plans.len() > 1 { 9 } else { 1 };
        let Some(pair) = &mut self.pairs[rank][server] else { return };
        let Some(true_one) = pair.pushes.back().cloned() else { return };
        let mut push = Push { ..true_one };
        match which {
            0 => push.generation += later,
            1 => push.round.0 += 9,
            2 => push.packet = PacketId { tensor: TensorId(77), packet: 0 },
            _ => {
                push.payload.pop();
            }
        }
        pair.pushes.push_back(push);
    }

    /// A sum that was sent, with another header.
    fn pull_wrong_header(&mut self, rank: usize, server: usize) {
        let which = self.dice.below(3);
        let Some(pair) = &mut self.pairs[rank][server] else { return };
        let Some(true_one) = pair.pulls.back().cloned() else { return };
        let mut pull = Pull { ..true_one };
        match which {
            0 => pull.generation += 1,
            1 => pull.round.0 += 9,
            _ => pull.packet = PacketId { tensor: TensorId(77), packet: 0 },
        }
        pair.pulls.push_back(pull);
    }

    fn rank_message(&mut self, rank: usize) -> RankMessage {
        let (generation, round) = self.about(rank);
        let body = self.body();
        let (kind, other) = (self.dice.below(8), self.other());
        match kind {
            0 => RankMessage::Plan(body),
            1 | 2 => RankMessage::RoundEnd { round, absent: self.set() },
            3 | 4 => RankMessage::Got(round),
            5 => RankMessage::Resume(Resume { generation, oldest: round, live: Vec::new(), body }),
            6 => {
                self.culprits.ranks.insert(other);
                RankMessage::Lost(LostRank { rank: number(other), why: "gone".into() })
            }
            _ if self.dice.one_in(2) => {
                RankMessage::Known(Known { generation, oldest: round, used: self.used(round) })
            }
            _ => RankMessage::Change(Change {
                generation,
                live: vec![1],
                oldest: round,
                used: self.used(round),
            }),
        }
    }

    fn server_message(&mut self, rank: usize) -> ServerMessage {
        let (generation, round) = self.about(rank);
        let (kind, other) = (self.dice.below(9), self.other());
        match kind {
            0 => ServerMessage::Plan { generation, body: self.body() },
            1 | 2 => ServerMessage::Used(Used { round, used: self.set() }),
            3 | 4 => ServerMessage::RoundDone(round),
            5 => ServerMessage::Resumed(Resumed { generation, oldest: round, has_sums: self.dice.one_in(2) }),
            6 => {
                self.culprits.ranks.insert(other);
                ServerMessage::Lost(LostRank { rank: number(other), why: "gone".into() })
            }
            7 if self.dice.one_in(2) => {
                self.culprits.ranks.insert(other);
                ServerMessage::Members(NewMembers {
                    generation,
                    rank: number(other),
                    live: vec![1],
                    why: format!("rank {other} is lost"),
                })
            }
            7 => ServerMessage::Change(Change {
                generation,
                live: vec![1],
                oldest: round,
                used: self.used(round),
            }),
            _ => ServerMessage::Changed(Changed { generation, oldest: round }),
        }
    }

    /// A membership and a round near those of a rank.
    fn about(&mut self, rank: usize) -> (u32, Round) {
        let (generation, round) = self.ranks[rank]
            .session
            .collector()
            .map_or((0, 0), |collect| (collect.generation(), collect.current().0));
        let generation = (generation + self.dice.pick(&[0, 1, 2])).saturating_sub(self.dice.pick(&[0, 1]));
        let round = (round + self.dice.pick(&[0, 1, 7])).saturating_sub(self.dice.pick(&[0, 1, 2]));
        (generation, Round(round))
    }

    fn other(&mut self) -> usize {
        self.dice.below(self.ranks.len())
    }

    fn body(&mut self) -> Vec<u8> {
        let bodies: Vec<Vec<u8>> =
            self.plans.iter().map(|plan| plan.encode()).chain([vec![1, 2, 3]]).collect();
        self.dice.pick(&bodies)
    }

    fn set(&mut self) -> Vec<u8> {
        if self.dice.one_in(8) {
            return vec![0xff; 3];
        }
        let tensors = self.plans[0].tensors();
        let mut set = TensorSet::none(tensors);
        for tensor in (0..tensors).map(TensorId) {
            if self.dice.one_in(2) {
                set.insert(tensor);
            }
        }
        set.to_bytes()
    }

    fn used(&mut self, round: Round) -> Vec<Used> {
        (0..self.dice.below(2)).map(|_| Used { round, used: self.set() }).collect()
    }
}

fn number(rank: usize) -> Rank {
    Rank(u32::try_from(rank).expect("there are few"))
}
