// SPDX-License-Identifier: Apache-2.0
//! The run: draw the next event, advance time if there is none, and check the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foresee_grad_queue::{Plan, Round, ServerId, TensorId};
use foresee_grad_session::{RankSession, ServerJob, ServerMessage};
use foresee_testkit::Dice;
use foresee_units::{Bytes, Nanos, Rank};

use crate::blame::Failures;
use crate::byzantine::ByzantinePeer;
use crate::faults::{Culprits, Fault};
use crate::network::{Notice, Pair};
use crate::rank::{PlanRound, Program, RankNode};
use crate::server::ServerNode;
use crate::setup::{Setup, draw_plan, rank_settings};

/// Servers check for waits as long as they run, which is no progress.
const ENDLESS: Nanos = Nanos::from_secs(3_600);

/// How rarely a message of a slow rank arrives.
const SLOWNESS: usize = 128;

/// Bound of events; a run of few ranks and rounds has some hundred.
const STEPS_MAX: u32 = 50_000;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Step(usize),
    Send(usize, usize),
    Judge(usize, usize),
    Take(usize, usize),
    Up(usize, usize),
    Goodbye(usize, usize),
    Down(usize, usize),
    Offer(usize),
    Arrive(usize, usize),
    ReceiveSum(usize, usize),
    Notice(usize),
}

pub(crate) struct World {
    pub(crate) dice: Dice,
    pub(crate) setup: Setup,
    pub(crate) now: Nanos,
    /// The time of the last event that was no timer.
    busy: Nanos,
    pub(crate) processes: u64,
    pub(crate) plans: Vec<Arc<Plan>>,
    pub(crate) ranks: Vec<RankNode>,
    pub(crate) servers: Vec<ServerNode>,
    /// By rank, then server.
    pub(crate) pairs: Vec<Vec<Option<Pair>>>,
    /// The end of the last outage of a link, by rank, then server.
    pub(crate) cut_until: Vec<Vec<Nanos>>,
    /// Consecutive failed attempts to connect, by rank, then server.
    pub(crate) failed_dials: Vec<Vec<u32>>,
    /// Pending notices, with their time.
    pub(crate) notices: Vec<(Nanos, Notice)>,
    pub(crate) faults: Vec<Fault>,
    /// Whether a rank may be lost in this run.
    pub(crate) may_lose: bool,
    pub(crate) culprits: Culprits,
    pub(crate) byzantine: Option<ByzantinePeer>,
    /// Members of every plan and membership.
    pub(crate) memberships: BTreeSet<Vec<Rank>>,
    /// The result of each tensor at the first rank that received it.
    pub(crate) results: BTreeMap<(PlanRound, TensorId), Vec<u8>>,
    pub(crate) trace: Option<Vec<String>>,
    /// Ranks wait forever, and received reports of the missing ranks.
    pub(crate) is_stuck: bool,
    steps: u32,
}

impl World {
    pub(crate) fn new(mut dice: Dice, mut setup: Setup) -> Self {
        let count = usize::try_from(setup.plans).expect("there are few");
        let plans: Vec<_> = (0..count).map(|_| Arc::new(draw_plan(&mut dice, setup.servers))).collect();
        let processes: Vec<u64> = (0..u64::from(setup.servers)).collect();
        let servers: Vec<ServerNode> = (0..setup.servers)
            .map(|server| ServerNode::new(ServerId(server), server.into(), Bytes::new(setup.early_bytes)))
            .collect();
        let ranks: Vec<RankNode> = (0..setup.ranks)
            .map(|rank| {
                let programs = plans.iter().map(|plan| draw_programs(&mut dice, plan, &setup)).collect();
                let session = RankSession::new(rank_settings(&setup, rank), &processes);
                let mut node = RankNode::new(session, servers.len(), programs);
                if setup.is_late {
                    node.paused_until = Nanos::from_millis(dice.below(90_000) as u64);
                }
                node
            })
            .collect();
        let byzantine = ByzantinePeer::draw(&mut dice, &setup);
        let by_pair = |_| vec![Nanos::ZERO; servers.len()];
        Self {
            dice,
            now: Nanos::ZERO,
            busy: Nanos::ZERO,
            processes: u64::from(setup.servers),
            plans,
            pairs: ranks.iter().map(|_| servers.iter().map(|_| None).collect()).collect(),
            cut_until: ranks.iter().map(by_pair).collect(),
            failed_dials: ranks.iter().map(|_| vec![0; servers.len()]).collect(),
            ranks,
            servers,
            notices: Vec::new(),
            may_lose: setup.faults.iter().any(|fault| fault.may_lose_a_rank()),
            faults: std::mem::take(&mut setup.faults),
            culprits: Culprits::default(),
            byzantine,
            memberships: BTreeSet::new(),
            results: BTreeMap::new(),
            trace: None,
            is_stuck: false,
            steps: 0,
            setup,
        }
    }

    /// The trace of events, if requested.
    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now} {}", what()));
        }
    }

    /// Run until every rank has finished and every server has ended the job. Returns the failures of running ranks.
    ///
    /// # Panics
    /// If a rule is violated, or a rank waits and no state machine has a timer.
    pub(crate) fn run(&mut self) -> Failures {
        while self.ranks.iter().any(RankNode::is_running) {
            if !self.handle_next() {
                self.check_reports();
                self.is_stuck = true;
                return self.failures();
            }
            self.inject();
        }
        // Messages in flight arrive, and servers end the job.
        while self.servers.iter().any(|server| server.job.is_some()) {
            assert!(self.handle_next(), "a server retains a job whose ranks are gone");
        }
        self.check_end();
        self.failures()
    }

    /// Handle one event; return false if there will be none.
    fn handle_next(&mut self) -> bool {
        self.steps += 1;
        assert!(self.steps < STEPS_MAX, "a run does not end");
        let events = self.events();
        if events.is_empty() {
            return self.pass_time();
        }
        let event = self.draw_event(&events);
        if !self.is_report(event) {
            self.busy = self.now;
        }
        self.note(|| format!("{event:?}"));
        self.act(event);
        self.check_bounds();
        true
    }

    /// The next event: any of these, but rarely a message of a slow rank.
    fn draw_event(&mut self, events: &[Event]) -> Event {
        let event = self.dice.pick(events);
        let is_slow = |event: &Event| matches!(event, Event::Up(rank, _) if Some(*rank) == self.setup.slow);
        let others: Vec<Event> = events.iter().filter(|event| !is_slow(event)).copied().collect();
        if !is_slow(&event) || others.is_empty() || self.dice.one_in(SLOWNESS) {
            return event;
        }
        self.dice.pick(&others)
    }

    /// Whether an event is a report of a wait, which is no progress.
    fn is_report(&self, event: Event) -> bool {
        let Event::Down(rank, server) = event else { return false };
        let pair = self.pairs[rank][server].as_ref();
        matches!(pair.and_then(|pair| pair.down.front()), Some(ServerMessage::Waiting(_)))
    }

    fn check_end(&self) {
        let ranks = self.ranks.iter().enumerate();
        for (at, rank) in ranks.filter(|(_, rank)| rank.is_alive && rank.failure.is_none()) {
            let is_whole = rank.plan + 1 == self.plans.len() && rank.compared == Round(self.setup.rounds);
            assert!(is_whole || rank.is_leaving || self.setup.hasty == Some(at), "all was compared");
        }
    }

    /// Advance to the next timer; return false if there is none that makes progress.
    fn pass_time(&mut self) -> bool {
        let ranks = self.ranks.iter().filter_map(RankNode::timeout);
        let timers = ranks.chain(self.servers.iter().filter_map(ServerNode::timeout));
        let pauses = self.ranks.iter().map(|rank| rank.paused_until);
        let links = self.cut_until.iter().flatten().copied();
        let notices = self.notices.iter().map(|(at, _)| *at);
        let ends = pauses.chain(links).chain(notices).filter(|at| *at > self.now);
        let Some(next) = timers.chain(ends).min() else { return false };
        if next > self.busy.saturating_add(ENDLESS) {
            return false;
        }
        self.now = self.now.max(next);
        for at in 0..self.ranks.len() {
            if self.ranks[at].timeout().is_some_and(|timeout| timeout <= self.now) {
                self.note(|| format!("timeout of rank {at}"));
                self.ranks[at].session.handle_timeout(self.now);
                self.settle_rank(at);
            }
        }
        for at in 0..self.servers.len() {
            if self.servers[at].timeout().is_some_and(|timeout| timeout <= self.now) {
                self.note(|| format!("timeout of server {at}"));
                self.report(at, ServerJob::handle_timeout);
            }
        }
        true
    }

    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for at in 0..self.ranks.len() {
            let rank = &self.ranks[at];
            let may_step =
                rank.is_running() && rank.paused_until <= self.now && rank.may_step(at, &self.setup);
            events.extend(may_step.then_some(Event::Step(at)));
            for (server, pair) in self.pairs[at].iter().enumerate() {
                let Some(pair) = pair else { continue };
                let mut may = |yes: bool, event| events.extend(yes.then_some(event));
                let has_capacity = pair.pushes.len() < 3 && !pair.is_without_data && rank.is_running();
                may(has_capacity && rank.has_waiting(server), Event::Send(at, server));
                if self.now < self.cut_until[at][server] {
                    continue;
                }
                may(
                    pair.taking.is_none() && !pair.is_held && !pair.pushes.is_empty(),
                    Event::Judge(at, server),
                );
                may(pair.taking.is_some(), Event::Take(at, server));
                may(!pair.up.is_empty(), Event::Up(at, server));
                may(pair.up.is_empty() && pair.goodbye.is_some(), Event::Goodbye(at, server));
                let may_receive = |front: usize| rank.has_started() && pair.not_before[front] <= rank.version;
                may(!pair.down.is_empty() && may_receive(0), Event::Down(at, server));
                may(
                    pair.receiving.is_none() && !pair.pulls.is_empty() && may_receive(1),
                    Event::Arrive(at, server),
                );
                may(pair.receiving.is_some() && rank.is_running(), Event::ReceiveSum(at, server));
            }
        }
        let offers = self.servers.iter().enumerate().filter(|(_, server)| !server.offers.is_empty());
        events.extend(offers.map(|(server, _)| Event::Offer(server)));
        // The rank reads earlier messages of a connection first.
        let is_unread = |notice: &Notice| {
            notice
                .rank()
                .is_some_and(|(rank, _)| self.ranks[rank].is_running() && !self.ranks[rank].has_started())
        };
        let due = self.notices.iter().enumerate();
        let due = due.filter(|(_, (at, notice))| *at <= self.now && !is_unread(notice));
        events.extend(due.map(|(nth, _)| Event::Notice(nth)));
        events
    }

    fn act(&mut self, event: Event) {
        match event {
            Event::Step(rank) => self.step(rank),
            Event::Send(rank, server) => self.send(rank, server),
            Event::Judge(rank, server) => self.judge(rank, server),
            Event::Take(rank, server) => self.take(rank, server),
            Event::Up(rank, server) => self.up(rank, server),
            Event::Goodbye(rank, server) => self.goodbye(rank, server),
            Event::Down(rank, server) => self.down(rank, server),
            Event::Offer(server) => self.send_result(server),
            Event::Arrive(rank, server) => self.arrive(rank, server),
            Event::ReceiveSum(rank, server) => self.receive_sum(rank, server),
            Event::Notice(at) => {
                let (_, notice) = self.notices.swap_remove(at);
                self.note(|| format!("{notice:?}"));
                self.notice(notice);
            }
        }
    }
}

fn draw_programs(dice: &mut Dice, plan: &Plan, setup: &Setup) -> Vec<Program> {
    let all: Vec<TensorId> = (0..plan.tensors()).map(TensorId).collect();
    let mut draw = || {
        if setup.is_dense {
            let mut pushes = all.clone();
            pushes.rotate_left(dice.below(all.len()));
            return Program { uses: all.clone(), pushes };
        }
        let uses = dice.some_of(&all);
        let pushes = dice.some_of(&uses);
        Program { uses, pushes }
    };
    (0..setup.rounds).map(|_| draw()).collect()
}
