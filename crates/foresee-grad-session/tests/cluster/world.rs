// SPDX-License-Identifier: Apache-2.0
//! The run: draws what happens next, and does for the machines what their drivers do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foresee_grad_queue::{Plan, Round, ServerId, TensorId};
use foresee_grad_session::{RankFailure, RankSession, ServerJob};
use foresee_testkit::Dice;
use foresee_units::{Bytes, Nanos, Rank};

use crate::network::{Notice, Pair};
use crate::rank::{Phase, Program, RankNode};
use crate::server::ServerNode;
use crate::setup::{Setup, draw_plan, rank_settings};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
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
    pub(crate) dice: Dice,
    pub(crate) setup: Setup,
    pub(crate) now: Nanos,
    pub(crate) processes: u64,
    pub(crate) plan: Arc<Plan>,
    pub(crate) ranks: Vec<RankNode>,
    pub(crate) servers: Vec<ServerNode>,
    /// By rank, then server.
    pub(crate) pairs: Vec<Vec<Option<Pair>>>,
    pub(crate) notices: Vec<Notice>,
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

    pub(crate) fn finish(&self) -> Result<(), RankFailure> {
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
    pub(crate) fn pass_time(&mut self) {
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

    pub(crate) fn events(&mut self) -> Vec<Event> {
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

    pub(crate) fn act(&mut self, event: Event) {
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
