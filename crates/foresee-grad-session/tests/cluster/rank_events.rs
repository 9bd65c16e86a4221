// SPDX-License-Identifier: Apache-2.0
//! Events of ranks: steps, messages sent, and messages received.

use foresee_grad_queue::{ServerId, TensorId};
use foresee_grad_session::{
    Closed, RankAction, RankFailure, RankSession, Refusal, RefusalCode, SumAdmission,
};
use foresee_units::{Bytes, Nanos, Rank};

use crate::blame::describe;
use crate::network::{Notice, Push};
use crate::rank::Phase;
use crate::setup::{TIMEOUT, rank_settings, server_id};
use crate::world::World;

impl World {
    pub(crate) fn step(&mut self, at: usize) {
        let rank = &mut self.ranks[at];
        match rank.phase {
            Phase::Start => self.start(at),
            Phase::Agree => {
                rank.install();
                let failure = rank.failure.clone();
                if let Some(failure) = failure {
                    self.fail(at, failure);
                }
            }
            Phase::Stay => self.leave(at),
            Phase::Finished => {}
            Phase::Forward(_) | Phase::Backward(_) if rank.may_leave() => self.leave(at),
            Phase::Forward(_) | Phase::Backward(_) => self.step_round(at),
        }
        self.settle_rank(at);
    }

    /// A rank connects to every server and proposes its first plan; or it retries after a refusal.
    fn start(&mut self, at: usize) {
        for server in 0..self.servers.len() {
            if self.ranks[at].known[server].is_some() {
                continue;
            }
            // The result of an earlier attempt is ignored.
            self.notices.retain(|(_, notice)| notice.rank() != Some((at, server)));
            let refusal = if self.is_cut(at, server) {
                Refusal::new(RefusalCode::Busy, "the network is down")
            } else if let Err(refusal) = self.connect(at, server, 0) {
                refusal
            } else {
                self.ranks[at].known[server] = Some(self.servers[server].process);
                continue;
            };
            let since = *self.ranks[at].dials_since.get_or_insert(self.now);
            let is_late = self.now.saturating_sub(since) > TIMEOUT;
            if refusal.code != RefusalCode::Busy || is_late {
                self.fail(at, RankFailure::Refused { server: server_id(server), why: refusal.text });
                return;
            }
            self.ranks[at].paused_until = self.now.saturating_add(Nanos::from_millis(100));
            return;
        }
        let settings = rank_settings(&self.setup, u32::try_from(at).expect("there are few"));
        let node = &mut self.ranks[at];
        let processes: Vec<u64> = node.known.iter().copied().flatten().collect();
        node.session = RankSession::new(settings, &processes);
        node.session.handle_proposal(&self.plans[0].encode());
        node.phase = Phase::Agree;
    }

    /// A rank says goodbye.
    fn leave(&mut self, at: usize) {
        self.ranks[at].phase = Phase::Finished;
        self.close(at, &Closed::Goodbye("the rank is done".into()));
    }

    /// A rank closes all connections: servers read the reason after its messages.
    pub(crate) fn close(&mut self, at: usize, how: &Closed) {
        self.ranks[at].session.handle_stopped();
        for server in 0..self.servers.len() {
            if let Some(pair) = &mut self.pairs[at][server] {
                pair.goodbye = Some(how.clone());
            }
        }
    }

    /// A rank fails and closes; it reports the lost party, if there is one.
    pub(crate) fn fail(&mut self, at: usize, failure: RankFailure) {
        let rank = Rank(u32::try_from(at).expect("there are few"));
        let text = format!("rank {rank} has {}", describe(&failure));
        let how = match &failure {
            RankFailure::RankLost { rank, .. } => {
                Closed::Refused(Refusal::new(RefusalCode::Lost, text).about(*rank))
            }
            RankFailure::ServerLost { .. } | RankFailure::Refused { .. } => {
                Closed::Refused(Refusal::new(RefusalCode::Lost, text))
            }
            RankFailure::Disagree(why) => Closed::Refused(Refusal::new(RefusalCode::Plan, why)),
            _ => Closed::Goodbye("the rank is done".into()),
        };
        self.note(|| format!("rank {at} fails: {failure:?}"));
        if self.ranks[at].has_all(self.setup.rounds) {
            // It lacks nothing: the other end has closed first.
            self.ranks[at].phase = Phase::Finished;
        } else {
            self.ranks[at].failure = Some(failure);
        }
        self.close(at, &how);
    }

    fn step_round(&mut self, at: usize) {
        let rank = &mut self.ranks[at];
        let collect = rank.session.collector().expect("it has a plan");
        let (round, generation) = (collect.current(), collect.generation());
        let programs = &rank.programs[rank.plan];
        let Some(program) = programs.get(usize::try_from(round.0).expect("few rounds")) else {
            if rank.plan + 1 == self.plans.len() {
                rank.phase = Phase::Stay;
            } else {
                rank.plan += 1;
                rank.phase = Phase::Agree;
                rank.session.handle_proposal(&self.plans[rank.plan].encode());
            }
            return;
        };
        match rank.phase {
            Phase::Forward(nth) if nth < program.uses.len() => rank.phase = Phase::Forward(nth + 1),
            Phase::Forward(_) => rank.phase = Phase::Backward(0),
            Phase::Backward(nth) if nth < program.pushes.len() => {
                let tensor = program.pushes[nth];
                rank.phase = Phase::Backward(nth + 1);
                let plan = &self.plans[rank.plan];
                let elements = plan.elements(tensor).expect("it is the plan's");
                let gradient = (0..elements).flat_map(|_| self.dice.value().to_le_bytes()).collect();
                rank.gradients.insert(((rank.plan, round), tensor), gradient);
                if rank.session.retains() {
                    rank.retained.insert((round, tensor));
                }
                let (_, holding) = rank.session.handle_push(tensor).expect("it may be pushed");
                for server in (0..self.setup.servers).map(ServerId) {
                    if rank.session.is_open(server) && !holding.contains(&server) {
                        rank.offer(plan, server, round, tensor, generation);
                    }
                }
            }
            Phase::Backward(_) => {
                assert_eq!(rank.session.handle_end(), Ok(Some(round)), "it may end");
                rank.phase = Phase::Forward(0);
            }
            _ => {}
        }
    }

    pub(crate) fn settle_rank(&mut self, at: usize) {
        self.ranks[at].version += 1;
        self.ranks[at].session.take_notices();
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
                rank.offer(&self.plans[rank.plan], server, round, tensor, generation);
            }
            RankAction::Forget(oldest) => rank.retained = rank.retained.split_off(&(oldest, TensorId(0))),
            RankAction::Dial { server, .. } => {
                self.notices.push((self.now, Notice::Dial { rank: at, server: usize::from(server.0) }));
            }
            RankAction::Fail(failure) => self.fail(at, failure),
        }
    }

    pub(crate) fn send(&mut self, rank: usize, server: usize) {
        let node = &mut self.ranks[rank];
        let Some(group) = node.next_group(server) else { return };
        let (plan, round, packet, generation) = group.swap_remove(self.dice.below(group.len()));
        let payload = node.payload(&self.plans[plan], (plan, round), packet);
        if let Some(pair) = &mut self.pairs[rank][server] {
            pair.pushes.push_back(Push { generation, round, packet, payload });
        }
    }

    pub(crate) fn down(&mut self, rank: usize, server: usize) {
        let Some(pair) = self.pairs[rank][server].as_mut().filter(|_| self.ranks[rank].has_started()) else {
            return;
        };
        let Some(message) = pair.down.pop_front() else { return };
        let (id, number) = (server_id(server), pair.number);
        if let Some(trace) = &mut self.trace {
            trace.push(format!("    {message:?}"));
        }
        let node = &mut self.ranks[rank];
        let received = node.session.handle_message(id, number, message, self.now);
        if let Ok(Some(again)) = received {
            pair.down.push_front(again);
            // This changes nothing.
            pair.not_before[0] = node.version + 1;
            assert!(node.session.poll_action().is_none(), "a message that is held back changes nothing");
            return;
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
                assert_eq!(round, pull.round, "rounds are distinguished by their low bits");
                pair.receiving = Some((claim, pull));
            }
            Ok(SumAdmission::Discard | SumAdmission::Confirmed) => {}
            Ok(SumAdmission::Retry) => {
                pair.pulls.push_front(pull);
                pair.not_before[1] = node.version + 1;
                return;
            }
            Err(failure) => self.fail(rank, failure),
        }
        self.settle_rank(rank);
    }

    pub(crate) fn receive_sum(&mut self, rank: usize, server: usize) {
        let receiving = self.pairs[rank][server].as_mut().and_then(|pair| pair.receiving.take());
        let Some((claim, pull)) = receiving else { return };
        let node = &mut self.ranks[rank];
        let tensor = pull.packet.tensor;
        let bytes = self.plans[node.plan].bytes(tensor).map_or(0, Bytes::get);
        let bytes = usize::try_from(bytes).expect("it is small");
        let round = (node.plan, pull.round);
        let buffer = node.received.entry((round, tensor)).or_insert_with(|| vec![0xee; bytes]);
        let offset = usize::try_from(claim.offset().expect("it is read")).expect("it is small");
        buffer[offset..offset + pull.sum.bytes().len()].copy_from_slice(pull.sum.bytes());
        node.session.handle_received(server_id(server), claim);
        self.settle_rank(rank);
    }
}
