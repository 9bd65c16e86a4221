// SPDX-License-Identifier: Apache-2.0
//! What happens to ranks: their steps, what they send, and what arrives.

use foresee_grad_queue::{ServerId, TensorId};
use foresee_grad_session::{RankAction, SumAdmission};
use foresee_units::Bytes;

use crate::network::{Notice, Push};
use crate::rank::Phase;
use crate::setup::server_id;
use crate::world::World;

impl World {
    pub(crate) fn step(&mut self, at: usize) {
        let rank = &mut self.ranks[at];
        match rank.phase {
            Phase::Agree => rank.install(),
            Phase::Finished => {}
            Phase::Forward(_) | Phase::Backward(_) => self.step_round(at),
        }
        self.settle_rank(at);
    }

    pub(crate) fn step_round(&mut self, at: usize) {
        let rank = &mut self.ranks[at];
        let collect = rank.session.collect().expect("it has a plan");
        let (round, generation) = (collect.current(), collect.generation());
        let Some(program) = rank.programs.get(usize::try_from(round.0).expect("few rounds")) else {
            rank.phase = Phase::Finished;
            return;
        };
        match rank.phase {
            Phase::Forward(nth) if nth < program.uses.len() => rank.phase = Phase::Forward(nth + 1),
            Phase::Forward(_) => rank.phase = Phase::Backward(0),
            Phase::Backward(nth) if nth < program.pushes.len() => {
                let tensor = program.pushes[nth];
                rank.phase = Phase::Backward(nth + 1);
                let elements = self.plan.elements(tensor).expect("it is the plan's");
                let gradient = (0..elements).flat_map(|_| self.dice.value().to_le_bytes()).collect();
                rank.gradients.insert((round, tensor), gradient);
                rank.retained.insert((round, tensor));
                let (_, holding) = rank.session.handle_push(tensor).expect("it may be pushed");
                for server in (0..self.setup.servers).map(ServerId) {
                    if rank.session.is_open(server) && !holding.contains(&server) {
                        rank.offer(&self.plan, server, round, tensor, generation);
                    }
                }
            }
            Phase::Backward(_) => {
                assert_eq!(rank.session.handle_end(), Ok(Some(round)), "it may end");
                rank.phase = Phase::Forward(0);
                self.settle_rank(at);
            }
            Phase::Agree | Phase::Finished => {}
        }
    }

    pub(crate) fn settle_rank(&mut self, at: usize) {
        self.ranks[at].version += 1;
        while let Some(action) = self.ranks[at].session.poll_action() {
            self.perform_rank(at, action);
        }
        self.compare(at);
    }

    pub(crate) fn perform_rank(&mut self, at: usize, action: RankAction) {
        let rank = &mut self.ranks[at];
        match action {
            RankAction::Send { server, pair, message } => {
                let own = self.pairs[at][usize::from(server.0)].as_mut();
                if let Some(own) = own.filter(|own| own.number == pair) {
                    own.up.push_back(message);
                }
            }
            RankAction::Close(server) => {
                let server = usize::from(server.0);
                rank.queues[server].clear();
                self.drop_pair(at, server, true, false);
            }
            RankAction::Interrupt(server) => self.break_pair(at, usize::from(server.0)),
            RankAction::Route => {}
            RankAction::Offer { server, round, tensor, generation } => {
                assert!(rank.retained.contains(&(round, tensor)), "what is offered again is retained");
                rank.offer(&self.plan, server, round, tensor, generation);
            }
            RankAction::Forget(oldest) => rank.retained = rank.retained.split_off(&(oldest, TensorId(0))),
            RankAction::Dial { server, .. } => {
                self.notices.push(Notice::Dial { rank: at, server: usize::from(server.0) });
            }
            RankAction::Fail(failure) => {
                rank.failure = Some(failure);
                for server in 0..self.servers.len() {
                    self.drop_pair(at, server, true, false);
                }
            }
        }
    }

    pub(crate) fn send(&mut self, rank: usize, server: usize) {
        let node = &mut self.ranks[rank];
        let Some(group) = node.next_group(server) else { return };
        let (round, packet, generation) = group.swap_remove(self.dice.below(group.len()));
        let payload = node.payload(&self.plan, round, packet);
        if let Some(pair) = &mut self.pairs[rank][server] {
            pair.pushes.push_back(Push { generation, round, packet, payload });
        }
    }

    pub(crate) fn down(&mut self, rank: usize, server: usize) {
        let Some(pair) = self.pairs[rank][server].as_mut().filter(|_| self.ranks[rank].is_running()) else {
            return;
        };
        let Some(message) = pair.down.pop_front() else { return };
        let (id, number) = (server_id(server), pair.number);
        let node = &mut self.ranks[rank];
        let received = node.session.handle_message(id, number, message, self.now);
        if let Ok(Some(again)) = received {
            pair.down.push_front(again);
            // The version counts this call, too.
            pair.not_before[0] = node.version + 2;
        }
        self.settle_rank(rank);
    }

    pub(crate) fn arrive(&mut self, rank: usize, server: usize) {
        let Some(pair) = &mut self.pairs[rank][server] else { return };
        let Some(pull) = pair.pulls.pop_front() else { return };
        let node = &mut self.ranks[rank];
        let bytes = pull.sum.bytes().len() as u64;
        let admission =
            node.session.handle_sum(server_id(server), pull.generation, pull.round.low(), pull.packet, bytes);
        match admission {
            Ok(SumAdmission::Read(claim, round)) => {
                assert_eq!(round, pull.round, "rounds are told apart by their low bits");
                pair.landing = Some((claim, pull));
            }
            Ok(SumAdmission::Discard | SumAdmission::Confirmed) => {}
            Ok(SumAdmission::Later) => {
                pair.pulls.push_front(pull);
                pair.not_before[1] = node.version + 2;
            }
            Err(failure) => node.failure = Some(failure),
        }
        self.settle_rank(rank);
    }

    pub(crate) fn land(&mut self, rank: usize, server: usize) {
        let landing = self.pairs[rank][server].as_mut().and_then(|pair| pair.landing.take());
        let Some((claim, pull)) = landing else { return };
        let node = &mut self.ranks[rank];
        let tensor = pull.packet.tensor;
        let bytes = usize::try_from(self.plan.bytes(tensor).map_or(0, Bytes::get)).expect("it is small");
        let buffer = node.received.entry((pull.round, tensor)).or_insert_with(|| vec![0xee; bytes]);
        let offset = usize::try_from(claim.offset().expect("it is read")).expect("it is small");
        buffer[offset..offset + pull.sum.bytes().len()].copy_from_slice(pull.sum.bytes());
        node.session.handle_arrived(server_id(server), claim);
        self.settle_rank(rank);
    }
}
