// SPDX-License-Identifier: Apache-2.0
//! The run: draws what happens next, and does for the machines what their drivers do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foresee_grad_queue::{
    Buffer, Discarded, Dtype, Op, Outcome, Pattern, Plan, PlanConfig, Round, Sender, ServerId, TensorId,
    TensorSpec, Verdict, Wire,
};
use foresee_grad_session::{
    Closed, DialFault, JobAction, JobSettings, Peer, RankAction, RankFailure, RankHello, RankSession,
    RankSettings, Refusal, RefusalCode, Role, ServerJob, SumAdmission,
};
use foresee_testkit::Dice;
use foresee_units::{Bytes, Nanos, Rank};

use crate::network::{Notice, Pair, Pull, Push};
use crate::rank::{Phase, Program, RankNode};
use crate::server::ServerNode;

const HEARTBEAT: Nanos = Nanos::from_secs(1);
const RECONNECT: Nanos = Nanos::from_secs(3);
const TIMEOUT: Nanos = Nanos::from_secs(30);

/// What a run is made of.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) ranks: u32,
    pub(crate) servers: u16,
    pub(crate) rounds: u64,
    /// Bytes that a server may hold for contributions out of turn.
    pub(crate) park: u64,
    pub(crate) survives: bool,
    /// Connections that break, both of a pair or the data connection alone.
    pub(crate) breaks: u32,
    /// Servers that are killed and replaced.
    pub(crate) replacements: u32,
    /// Ranks that are killed.
    pub(crate) losses: u32,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Step(usize),
    Send(usize, usize),
    Judge(usize, usize),
    Take(usize, usize),
    Up(usize, usize),
    Down(usize, usize),
    Offer(usize),
    Arrive(usize, usize),
    Land(usize, usize),
    Notice(usize),
}

pub(crate) struct World {
    dice: Dice,
    setup: Setup,
    now: Nanos,
    processes: u64,
    pub(crate) plan: Arc<Plan>,
    pub(crate) ranks: Vec<RankNode>,
    servers: Vec<ServerNode>,
    /// By rank, then server.
    pairs: Vec<Vec<Option<Pair>>>,
    notices: Vec<Notice>,
    /// Members of every plan and membership.
    pub(crate) memberships: BTreeSet<Vec<Rank>>,
    /// The result of each tensor, as the first rank got it.
    pub(crate) results: BTreeMap<(Round, TensorId), Vec<u8>>,
}

impl World {
    pub(crate) fn new(setup: Setup) -> Self {
        let mut dice = Dice::new(setup.seed);
        let plan = Arc::new(draw_plan(&mut dice, setup.servers));
        let all: Vec<TensorId> = (0..plan.tensors()).map(TensorId).collect();
        let processes: Vec<u64> = (0..u64::from(setup.servers)).collect();
        let servers: Vec<ServerNode> = (0..setup.servers)
            .map(|server| ServerNode::new(ServerId(server), server.into(), Bytes::new(setup.park)))
            .collect();
        let ranks: Vec<RankNode> = (0..setup.ranks)
            .map(|rank| {
                let programs = (0..setup.rounds).map(|_| {
                    let uses = dice.some_of(&all);
                    let pushes = dice.some_of(&uses);
                    Program { uses, pushes }
                });
                let programs = programs.collect();
                let session = RankSession::new(rank_settings(&setup, rank), &processes);
                RankNode::new(session, servers.len(), programs)
            })
            .collect();
        let pairs = ranks.iter().map(|_| servers.iter().map(|_| None).collect()).collect();
        let mut world = Self {
            dice,
            now: Nanos::ZERO,
            processes: u64::from(setup.servers),
            plan,
            ranks,
            servers,
            pairs,
            notices: Vec::new(),
            memberships: BTreeSet::new(),
            results: BTreeMap::new(),
            setup,
        };
        for rank in 0..world.ranks.len() {
            for server in 0..world.servers.len() {
                world.connect(rank, server, 0).expect("every rank has a place");
            }
            world.ranks[rank].session.handle_proposal(&world.plan.encode());
            world.settle_rank(rank);
        }
        world
    }

    /// Runs until every rank is through.
    ///
    /// # Errors
    /// Why a rank failed.
    ///
    /// # Panics
    /// A rank waits, and no machine has a timer.
    pub(crate) fn run(&mut self) -> Result<(), RankFailure> {
        let Setup { mut breaks, mut replacements, mut losses, .. } = self.setup;
        loop {
            let events = self.events();
            let is_done = self.ranks.iter().all(|rank| !rank.is_running() || rank.phase == Phase::Finished);
            if is_done {
                return self.finish();
            }
            if events.is_empty() {
                self.pass_time();
            } else {
                let event = self.dice.pick(&events);
                self.act(event);
            }
            if breaks > 0 && self.dice.one_in(40) {
                breaks -= 1;
                let (rank, server) = self.draw_pair();
                if self.dice.one_in(3) {
                    self.break_data(rank, server);
                } else {
                    self.deliver_some(rank, server);
                    self.break_pair(rank, server);
                }
            }
            if replacements > 0 && self.dice.one_in(60) {
                replacements -= 1;
                let server = self.dice.below(self.servers.len());
                self.replace_server(server);
            }
            let has_plans = self.ranks.iter().all(|rank| rank.session.plan().is_some());
            if losses > 0 && has_plans && self.dice.one_in(80) {
                losses -= 1;
                let rank = self.dice.below(self.ranks.len());
                self.kill_rank(rank);
            }
        }
    }

    fn finish(&self) -> Result<(), RankFailure> {
        let failed = self.ranks.iter().filter(|rank| rank.is_alive).find_map(|rank| rank.failure.as_ref());
        if let Some(failure) = failed {
            return Err(failure.clone());
        }
        for rank in self.ranks.iter().filter(|rank| rank.is_alive) {
            assert_eq!(rank.phase, Phase::Finished, "each is through");
            assert_eq!(rank.compared, Round(self.setup.rounds), "all was compared");
            assert!(rank.retained.len() <= 4 * self.plan.tensors() as usize, "few rounds are retained");
        }
        Ok(())
    }

    /// Nothing happens before the next timer.
    fn pass_time(&mut self) {
        let ranks = self.ranks.iter().filter_map(RankNode::timeout);
        let next = ranks.chain(self.servers.iter().filter_map(ServerNode::timeout)).min();
        // Servers look at waits as long as they live, which does not help anybody on.
        let limit = Nanos::from_secs(3_600);
        let Some(next) = next.filter(|next| *next < limit) else {
            let waiting: Vec<_> = (0..)
                .zip(&self.ranks)
                .filter(|(_, rank)| rank.is_running())
                .map(|(at, rank)| (at, rank.phase))
                .collect();
            panic!("ranks wait for nothing: {waiting:?}");
        };
        self.now = self.now.max(next);
        for at in 0..self.ranks.len() {
            if self.ranks[at].timeout().is_some_and(|timeout| timeout <= self.now) {
                self.ranks[at].session.handle_timeout(self.now);
                self.settle_rank(at);
            }
        }
        for at in 0..self.servers.len() {
            if self.servers[at].timeout().is_some_and(|timeout| timeout <= self.now) {
                self.report(at, ServerJob::handle_timeout);
            }
        }
    }

    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for at in 0..self.ranks.len() {
            let rank = &self.ranks[at];
            events.extend((rank.is_running() && rank.may_step(self.setup.rounds)).then_some(Event::Step(at)));
            for (server, pair) in self.pairs[at].iter().enumerate() {
                let Some(pair) = pair else { continue };
                let mut may = |yes: bool, event| events.extend(yes.then_some(event));
                let room = pair.pushes.len() < 3 && !pair.is_without_data && rank.is_running();
                may(room && rank.has_waiting(server), Event::Send(at, server));
                may(
                    pair.taking.is_none() && !pair.is_held && !pair.pushes.is_empty(),
                    Event::Judge(at, server),
                );
                may(pair.taking.is_some(), Event::Take(at, server));
                may(!pair.up.is_empty(), Event::Up(at, server));
                let hears = |front: usize| rank.is_running() && pair.not_before[front] <= rank.version;
                may(!pair.down.is_empty() && hears(0), Event::Down(at, server));
                may(pair.landing.is_none() && !pair.pulls.is_empty() && hears(1), Event::Arrive(at, server));
                may(pair.landing.is_some(), Event::Land(at, server));
            }
        }
        let offers = self.servers.iter().enumerate().filter(|(_, server)| !server.offers.is_empty());
        events.extend(offers.map(|(server, _)| Event::Offer(server)));
        events.extend((0..self.notices.len()).map(Event::Notice));
        events
    }

    fn act(&mut self, event: Event) {
        match event {
            Event::Step(rank) => self.step(rank),
            Event::Send(rank, server) => self.send(rank, server),
            Event::Judge(rank, server) => self.judge(rank, server),
            Event::Take(rank, server) => self.take(rank, server),
            Event::Up(rank, server) => self.up(rank, server),
            Event::Down(rank, server) => self.down(rank, server),
            Event::Offer(server) => self.send_result(server),
            Event::Arrive(rank, server) => self.arrive(rank, server),
            Event::Land(rank, server) => self.land(rank, server),
            Event::Notice(at) => {
                let notice = self.notices.swap_remove(at);
                self.notice(notice);
            }
        }
    }
}

/// What happens to ranks.
impl World {
    fn step(&mut self, at: usize) {
        let rank = &mut self.ranks[at];
        match rank.phase {
            Phase::Agree => rank.install(),
            Phase::Finished => {}
            Phase::Forward(_) | Phase::Backward(_) => self.step_round(at),
        }
        self.settle_rank(at);
    }

    fn step_round(&mut self, at: usize) {
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

    fn settle_rank(&mut self, at: usize) {
        self.ranks[at].version += 1;
        while let Some(action) = self.ranks[at].session.poll_action() {
            self.perform_rank(at, action);
        }
        self.compare(at);
    }

    fn perform_rank(&mut self, at: usize, action: RankAction) {
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

    fn send(&mut self, rank: usize, server: usize) {
        let node = &mut self.ranks[rank];
        let Some(group) = node.next_group(server) else { return };
        let (round, packet, generation) = group.swap_remove(self.dice.below(group.len()));
        let payload = node.payload(&self.plan, round, packet);
        if let Some(pair) = &mut self.pairs[rank][server] {
            pair.pushes.push_back(Push { generation, round, packet, payload });
        }
    }

    fn down(&mut self, rank: usize, server: usize) {
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

    fn arrive(&mut self, rank: usize, server: usize) {
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

    fn land(&mut self, rank: usize, server: usize) {
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

/// What happens to servers.
impl World {
    fn up(&mut self, rank: usize, server: usize) {
        let Some(pair) = &mut self.pairs[rank][server] else { return };
        let (peer, Some(message)) = (pair.peer, pair.up.pop_front()) else { return };
        self.report(server, |job, _| job.handle_message(peer, message));
    }

    fn judge(&mut self, rank: usize, server: usize) {
        let Some(pair) = &mut self.pairs[rank][server] else { return };
        let (peer, Some(push)) = (pair.peer, pair.pushes.front().cloned()) else { return };
        let node = &mut self.servers[server];
        let Some(slots) = &mut node.slots else { return };
        let sender = Sender { rank: peer.rank, generation: push.generation, round: push.round };
        let (slot, view) = slots.at(peer.rank, push.packet);
        let bytes = push.payload.len() as u64;
        match slot.verdict(&view, push.packet, sender, bytes).expect("ranks keep the rules") {
            Verdict::Read(admission) => {
                pair.pushes.pop_front();
                pair.taking = Some((admission, push));
            }
            Verdict::Discard(why) => {
                pair.pushes.pop_front();
                if why == Discarded::Answered {
                    let outcome = Outcome::Ignored(why);
                    node.offers.extend(slots.results(peer.rank, push.round, push.packet, outcome));
                }
            }
            Verdict::Hold => pair.is_held = true,
        }
    }

    fn take(&mut self, rank: usize, server: usize) {
        let Some(pair) = &mut self.pairs[rank][server] else { return };
        let (peer, Some((admission, push))) = (pair.peer, pair.taking.take()) else { return };
        let node = &mut self.servers[server];
        let Some(slots) = &mut node.slots else { return };
        let current = slots.members.generation();
        let (slot, view) = slots.at(peer.rank, push.packet);
        let progress =
            slot.take(&view, admission, &mut Buffer::from(&*push.payload)).expect("ranks keep the rules");
        if !matches!(progress.outcome, Outcome::Ignored(_)) {
            assert_eq!(push.generation, current, "an old generation is never summed");
        }
        node.offers.extend(slots.results(peer.rank, push.round, push.packet, progress.outcome));
        if progress.wake {
            self.wake(server);
        }
    }

    /// Readers that were held look again.
    fn wake(&mut self, server: usize) {
        for pair in self.pairs.iter_mut().filter_map(|pairs| pairs[server].as_mut()) {
            pair.is_held = false;
        }
    }

    fn send_result(&mut self, server: usize) {
        let offers = &mut self.servers[server].offers;
        let offer = offers.swap_remove(self.dice.below(offers.len()));
        let pair = self.pairs[offer.peer.rank.0 as usize][server].as_mut();
        if let Some(pair) = pair.filter(|pair| pair.peer == offer.peer && !pair.is_without_data) {
            let pull = Pull {
                generation: offer.generation,
                round: offer.round,
                packet: offer.packet,
                sum: offer.sum,
            };
            pair.pulls.push_back(pull);
        }
    }

    /// Reports a fact to a server's job, and does what it asks for.
    fn report<R>(&mut self, server: usize, fact: impl FnOnce(&mut ServerJob, Nanos) -> R) -> Option<R> {
        let now = self.now;
        let result = fact(self.servers[server].job.as_mut()?, now);
        while let Some(action) = self.servers[server].job.as_mut().and_then(ServerJob::poll_action) {
            self.perform_server(server, action);
        }
        let node = &mut self.servers[server];
        if node.job.as_ref().is_some_and(ServerJob::is_over) {
            node.job = None;
        }
        Some(result)
    }

    fn pair_of(&mut self, server: usize, peer: Peer) -> Option<&mut Pair> {
        self.pairs[peer.rank.0 as usize][server].as_mut().filter(|pair| pair.peer == peer)
    }

    fn perform_server(&mut self, server: usize, action: JobAction) {
        match action {
            JobAction::Send { peer, message } => {
                if let Some(pair) = self.pair_of(server, peer) {
                    pair.down.push_back(message);
                }
            }
            JobAction::Close { peer, reason } => self.close_pair(server, peer, reason),
            JobAction::Interrupt(peer) => {
                if self.pair_of(server, peer).is_some() {
                    self.break_pair(peer.rank.0 as usize, server);
                }
            }
            JobAction::Install(installation) => {
                self.memberships.insert(installation.members.iter().collect());
                let peers = self.pairs.iter().filter_map(|pairs| Some(pairs[server].as_ref()?.peer));
                let peers: Vec<Peer> = peers.collect();
                self.servers[server].install(installation, peers.into_iter());
                self.wake(server);
            }
            JobAction::Route(peer) => {
                if let Some(slots) = &mut self.servers[server].slots {
                    slots.routes.insert(peer.rank, peer);
                }
            }
            JobAction::Adopt(members) => {
                self.memberships.insert(members.iter().collect());
                if let Some(slots) = &mut self.servers[server].slots {
                    slots.adopt(members);
                }
                self.wake(server);
            }
            JobAction::Advance { oldest, forget } => {
                if let Some(slots) = &mut self.servers[server].slots {
                    slots.advance(oldest, forget);
                }
                self.wake(server);
            }
            JobAction::Skip(ticket) => {
                self.servers[server].skip(&ticket);
                self.wake(server);
                if let Some(job) = &mut self.servers[server].job {
                    job.handle_skipped(&ticket);
                }
            }
            JobAction::FindOwed(ticket) => {
                if let Some(job) = &mut self.servers[server].job {
                    job.handle_owed(ticket, None);
                }
            }
            JobAction::Uninstall => self.servers[server].slots = None,
        }
    }
}

/// What happens to connections.
impl World {
    fn draw_pair(&mut self) -> (usize, usize) {
        (self.dice.below(self.ranks.len()), self.dice.below(self.servers.len()))
    }

    /// Connects a rank's pair of this number, or reports why not.
    fn connect(&mut self, rank: usize, server: usize, number: u32) -> Result<(), Refusal> {
        let hello = |role| RankHello {
            rank: Rank(u32::try_from(rank).expect("there are few")),
            world: self.setup.ranks,
            local: 1,
            target: u32::try_from(server).expect("there are few"),
            survives: self.setup.survives,
            process: 1_000 + rank as u64,
            reconnects: true,
            role,
        };
        let (control, data) = (hello(Role::Control), hello(Role::Data));
        let settings = job_settings(&self.setup, server);
        let now = self.now;
        self.servers[server].job.get_or_insert_with(|| ServerJob::new(settings, now));
        let refused = || Refusal::new(RefusalCode::Busy, "the job is over");
        let peer = self.report(server, |job, now| job.admit(&control, now)).ok_or_else(refused)??;
        self.drop_pair(rank, server, false, false);
        self.pairs[rank][server] = Some(Pair::new(number, peer));
        self.report(server, |job, _| job.handle_connected(peer, Role::Control)).ok_or_else(refused)??;
        let second = self.report(server, |job, now| job.admit(&data, now)).ok_or_else(refused)??;
        assert_eq!(second, peer, "both connections are of one pair");
        self.report(server, |job, _| job.handle_connected(peer, Role::Data)).ok_or_else(refused)?
    }

    fn dial(&mut self, rank: usize, server: usize) {
        let id = server_id(server);
        if !self.ranks[rank].is_running() {
            return;
        }
        if self.dice.one_in(4) {
            let session = &mut self.ranks[rank].session;
            session.handle_not_connected(id, DialFault::Temporary, "the network is away", self.now);
            return self.settle_rank(rank);
        }
        let number = self.ranks[rank].session.pair(id) + 1;
        match self.connect(rank, server, number) {
            Ok(()) => {
                let process = self.servers[server].process;
                let session = &mut self.ranks[rank].session;
                assert_eq!(session.begin_pair(id), Some(number), "it goes on");
                session.handle_connected(id, process, self.now);
            }
            Err(refusal) => {
                self.drop_pair(rank, server, false, true);
                let is_passing = matches!(refusal.code, RefusalCode::Busy | RefusalCode::Closing);
                let fault = if is_passing { DialFault::Temporary } else { DialFault::Permanent };
                let session = &mut self.ranks[rank].session;
                session.handle_not_connected(id, fault, &refusal.text, self.now);
            }
        }
        self.settle_rank(rank);
    }

    /// What is in the connections of a pair is lost; the ends that are named learn of it.
    fn drop_pair(&mut self, rank: usize, server: usize, tell_server: bool, tell_rank: bool) {
        let Some(pair) = self.pairs[rank][server].take() else { return };
        if let Some((claim, _)) = pair.landing {
            self.ranks[rank].session.handle_cut(claim);
        }
        let closed = || Closed::Broken("reset".into());
        if tell_server {
            let process = self.servers[server].process;
            let closed = closed();
            self.notices.push(Notice::ServerClosed { server, process, peer: pair.peer, closed });
        }
        if tell_rank {
            self.notices.push(Notice::RankClosed { rank, server, number: pair.number, closed: closed() });
        }
    }

    fn break_pair(&mut self, rank: usize, server: usize) {
        self.drop_pair(rank, server, true, true);
    }

    /// Some of what was sent before a connection breaks still arrives.
    fn deliver_some(&mut self, rank: usize, server: usize) {
        let Some(pair) = &self.pairs[rank][server] else { return };
        let (up, down) = (self.dice.below(pair.up.len() + 1), self.dice.below(pair.down.len() + 1));
        for _ in 0..up {
            self.up(rank, server);
        }
        for _ in 0..down {
            self.down(rank, server);
        }
    }

    /// The data connection breaks; whoever notices first has to end the other one.
    fn break_data(&mut self, rank: usize, server: usize) {
        let Some(pair) = &mut self.pairs[rank][server] else { return };
        pair.is_without_data = true;
        pair.pushes.clear();
        pair.pulls.clear();
        pair.taking = None;
        if let Some((claim, _)) = pair.landing.take() {
            self.ranks[rank].session.handle_cut(claim);
        }
        let (number, peer, process) = (pair.number, pair.peer, self.servers[server].process);
        let (at_rank, at_server) = self.dice.pick(&[(true, true), (true, false), (false, true)]);
        self.notices.extend(at_rank.then_some(Notice::RankDataClosed { rank, server, number }));
        self.notices.extend(at_server.then_some(Notice::ServerDataClosed { server, process, peer }));
    }

    /// A server closes a pair, perhaps with a reason that the rank is told behind all messages.
    fn close_pair(&mut self, server: usize, peer: Peer, reason: Option<Refusal>) {
        let rank = peer.rank.0 as usize;
        let Some(pair) = self.pair_of(server, peer) else { return };
        let number = pair.number;
        let messages = std::mem::take(&mut pair.down);
        self.drop_pair(rank, server, false, false);
        if self.ranks[rank].is_running() {
            // What was sent before still arrives.
            for message in messages {
                let received =
                    self.ranks[rank].session.handle_message(server_id(server), number, message, self.now);
                if !matches!(received, Ok(None)) {
                    break;
                }
            }
            self.settle_rank(rank);
        }
        let closed = reason.map_or(Closed::Broken("it ended".into()), Closed::Refused);
        self.notices.push(Notice::RankClosed { rank, server, number, closed });
    }

    fn replace_server(&mut self, server: usize) {
        for rank in 0..self.ranks.len() {
            self.deliver_some(rank, server);
            self.drop_pair(rank, server, false, true);
        }
        self.processes += 1;
        let park = Bytes::new(self.setup.park);
        self.servers[server] = ServerNode::new(server_id(server), self.processes, park);
    }

    fn kill_rank(&mut self, rank: usize) {
        let left = self.ranks.iter().filter(|rank| rank.is_alive).count();
        if left > 1 && self.ranks[rank].is_alive {
            self.ranks[rank].is_alive = false;
            for server in 0..self.servers.len() {
                // What it sent before may still arrive.
                let Some(pair) = &self.pairs[rank][server] else { continue };
                let (process, closed) = (self.servers[server].process, Closed::Broken("reset".into()));
                self.notices.push(Notice::ServerClosed { server, process, peer: pair.peer, closed });
            }
        }
    }

    fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::RankClosed { rank, server, number, closed } => {
                if self.ranks[rank].is_running() {
                    let session = &mut self.ranks[rank].session;
                    session.handle_closed(server_id(server), number, closed, self.now);
                    self.settle_rank(rank);
                }
            }
            Notice::RankDataClosed { rank, server, number } => {
                if self.ranks[rank].is_running() {
                    let session = &mut self.ranks[rank].session;
                    session.handle_data_closed(server_id(server), number, "it ended", false, self.now);
                    self.settle_rank(rank);
                }
            }
            Notice::ServerClosed { server, process, peer, closed } => {
                if self.servers[server].process == process {
                    self.report(server, |job, now| job.handle_closed(peer, closed, now));
                }
            }
            Notice::ServerDataClosed { server, process, peer } => {
                if self.servers[server].process == process {
                    self.report(server, |job, now| job.handle_data_closed(peer, "it ended", false, now));
                }
            }
            Notice::Dial { rank, server } => self.dial(rank, server),
        }
    }
}

fn server_id(server: usize) -> ServerId {
    ServerId(u16::try_from(server).expect("there are few"))
}

fn job_settings(setup: &Setup, server: usize) -> JobSettings {
    JobSettings {
        name: "run".into(),
        server: server_id(server),
        world: setup.ranks,
        local: 1,
        survives: setup.survives,
        heartbeat: HEARTBEAT,
        reconnect: RECONNECT,
        look: TIMEOUT,
    }
}

fn rank_settings(setup: &Setup, rank: u32) -> RankSettings {
    RankSettings {
        rank: Rank(rank),
        world: setup.ranks,
        local: 1,
        servers: (0..setup.servers).map(|server| format!("10.0.0.{server}:1")).collect(),
        beside: 0,
        recover: true,
        survives: setup.survives,
        timeout: TIMEOUT,
        heartbeat: HEARTBEAT,
        handshake: Nanos::from_secs(10),
        reconnect: RECONNECT,
    }
}

fn draw_plan(dice: &mut Dice, servers: u16) -> Plan {
    let tensors = 1 + dice.below(4);
    // 16 floats a packet: none, a part of one, several with a short last one.
    let spec = |(index, elements): (usize, u64)| TensorSpec {
        name: format!("t{index}"),
        dtype: Dtype::F32,
        shape: vec![elements],
        strides: vec![1],
        class: 0,
        op: Op::Mean,
    };
    let sizes: Vec<u64> = (0..tensors).map(|_| dice.pick(&[0, 3, 16, 40, 70])).collect();
    let shares: Vec<u32> = (0..servers).map(|_| 1 + u32::from(dice.one_in(2))).collect();
    let pattern = Pattern::new(&shares).expect("there are servers");
    let config = PlanConfig { packet_bytes: 64, wire: Wire::Own, pattern };
    Plan::new(config, sizes.into_iter().enumerate().map(spec).collect()).expect("it is a plan")
}
