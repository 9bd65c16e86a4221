// SPDX-License-Identifier: Apache-2.0
//! Ranks and servers, one random event at a time, with connections, servers and ranks that are lost on the way.

mod cases;
mod faults;
mod replace;
mod results;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foresee_grad_queue::{
    Arrival, Buffer, Collect, Discarded, Dtype, Members, Op, Outcome, PacketId, Pattern, Plan, PlanConfig,
    Progress, Round, RoundAction, ServerId, SumHeader, TensorId, TensorSet, TensorSpec, Verdict, Wire,
};
use foresee_testkit::Dice;
use foresee_units::{Bytes, Rank};

use crate::node::{Link, News, Phase, Program, Pull, Push, RankNode, ServerNode, Word};

/// What a run is made of.
#[derive(Clone, Debug)]
struct Setup {
    seed: u64,
    ranks: u32,
    servers: u16,
    rounds: u64,
    /// Bytes that a server may park.
    park: u64,
    breaks: u32,
    replacements: u32,
    losses: u32,
    older_first: bool,
}

/// What ranks and servers go by after a loss.
struct Change {
    members: Members,
    oldest: Round,
    promises: Vec<(Round, TensorSet)>,
}

struct Cluster {
    dice: Dice,
    plan: Arc<Plan>,
    members: Members,
    ranks: Vec<RankNode>,
    servers: Vec<ServerNode>,
    /// By rank, then server.
    links: Vec<Vec<Link>>,
    setup: Setup,
    /// By generation.
    changes: BTreeMap<u32, Change>,
    /// The ranks that have said what they know, for the newest generation.
    known: BTreeSet<usize>,
    /// The live ranks of each generation.
    alive: Vec<BTreeSet<Rank>>,
    /// The result of each packet, as the first rank got it.
    results: BTreeMap<(Round, TensorId), Vec<u8>>,
    /// Rank and server of every link that may do something.
    pairs: Vec<(usize, usize)>,
    /// By server, where one in the place of a lost one waits for ranks: which rounds are done for those that came.
    came: Vec<Option<BTreeMap<usize, Round>>>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Step(usize),
    Freeze(usize),
    Hear(usize),
    Send(usize, usize),
    Judge(usize, usize),
    Take(usize, usize),
    Word(usize, usize),
    Offer(usize),
    Arrive(usize, usize),
    Land(usize, usize),
    News(usize, usize),
    Come(usize, usize),
    GoOn(usize, usize),
}

impl Cluster {
    fn new(setup: Setup) -> Self {
        let mut dice = Dice::new(setup.seed);
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
        let shares: Vec<u32> = (0..setup.servers).map(|_| 1 + u32::from(dice.one_in(2))).collect();
        let pattern = Pattern::new(&shares).unwrap();
        let config = PlanConfig { packet_bytes: 64, wire: Wire::Own, pattern };
        let plan = Arc::new(Plan::new(config, sizes.into_iter().enumerate().map(spec).collect()).unwrap());
        let members = Members::all(0, setup.ranks).unwrap();
        let all: Vec<TensorId> = (0..plan.tensors()).map(TensorId).collect();
        let program = |dice: &mut Dice| {
            let uses = dice.some_of(&all);
            let pushes = dice.some_of(&uses);
            Program { uses, pushes }
        };
        let ranks = members.iter().map(|rank| RankNode {
            rank,
            alive: true,
            collect: Collect::new(Arc::clone(&plan), rank, 0, Round(0)),
            programs: (0..setup.rounds).map(|_| program(&mut dice)).collect(),
            phase: Phase::Forward(0),
            queue: vec![Vec::new(); usize::from(setup.servers)],
            gradients: BTreeMap::new(),
            received: BTreeMap::new(),
            compared: Round(0),
            coming: None,
            news: None,
            frozen: 0,
            deaf: BTreeSet::new(),
            lost: BTreeSet::new(),
            resuming: Vec::new(),
            done_later: Vec::new(),
        });
        let ranks: Vec<RankNode> = ranks.collect();
        let park = Bytes::new(setup.park);
        let server = |server| ServerNode::new(&plan, ServerId(server), &members, park, Round(0));
        let servers: Vec<ServerNode> = (0..setup.servers).map(server).collect();
        let pairs = (0..ranks.len()).flat_map(|rank| (0..servers.len()).map(move |server| (rank, server)));
        Self {
            dice,
            links: ranks.iter().map(|_| servers.iter().map(|_| Link::default()).collect()).collect(),
            pairs: pairs.collect(),
            came: servers.iter().map(|_| None).collect(),
            changes: BTreeMap::new(),
            known: BTreeSet::new(),
            alive: vec![members.iter().collect()],
            results: BTreeMap::new(),
            plan,
            members,
            ranks,
            servers,
            setup,
        }
    }

    /// Runs until every rank is through, or nothing can happen any more.
    fn run(&mut self) -> Result<(), String> {
        let (mut breaks, mut replacements, mut losses) =
            (self.setup.breaks, self.setup.replacements, self.setup.losses);
        loop {
            let events = self.events();
            if events.is_empty() {
                break;
            }
            let event = self.dice.pick(&events);
            self.act(event);
            self.check_bounds();
            if breaks > 0 && self.dice.one_in(40) {
                breaks -= 1;
                let (rank, server) = self.dice.pick(&self.pairs.clone());
                if self.ranks[rank].is_open(server) {
                    self.break_link(rank, server);
                    self.reconnect(rank, server);
                }
            }
            if replacements > 0 && self.dice.one_in(60) {
                replacements -= 1;
                // One, or several at once.
                let all: Vec<usize> = (0..self.servers.len()).collect();
                let one = self.dice.pick(&all);
                let others = if self.dice.one_in(2) { self.dice.some_of(&all) } else { Vec::new() };
                let lost: BTreeSet<usize> = others.into_iter().chain([one]).collect();
                for server in lost {
                    self.lose_server(server);
                }
            }
            if losses > 0 && self.members.count() > 1 && self.dice.one_in(80) {
                losses -= 1;
                let rank = self.dice.below(self.ranks.len());
                if self.ranks[rank].alive {
                    self.lose(rank);
                }
            }
        }
        self.finish()
    }

    fn finish(&self) -> Result<(), String> {
        let waiting = self.ranks.iter().filter(|rank| rank.alive && rank.phase != Phase::Finished);
        let waiting: Vec<_> = waiting.map(|rank| (rank.rank, rank.collect.current(), rank.phase)).collect();
        if !waiting.is_empty() {
            return Err(format!("deadlock: {waiting:?}"));
        }
        let end = Round(self.setup.rounds);
        for server in &self.servers {
            assert_eq!((server.rounds.oldest(), server.park.parked()), (end, Bytes::ZERO));
            assert_eq!(server.offers, []);
        }
        for rank in self.ranks.iter().filter(|rank| rank.alive) {
            assert_eq!((rank.collect.oldest_kept(), rank.compared), (end, end), "rank {}", rank.rank);
            assert!(rank.queue.iter().all(Vec::is_empty), "rank {} still has something to send", rank.rank);
        }
        Ok(())
    }

    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for (at, rank) in self.ranks.iter().enumerate().filter(|(_, rank)| rank.alive) {
            events.extend(self.may_step(rank).then_some(Event::Step(at)));
            // Both come from one server, in this order.
            let first = rank.news.map(|_| Event::Hear(at));
            events.extend(first.or_else(|| rank.coming.map(|_| Event::Freeze(at))));
        }
        for (rank, server) in self.pairs.iter().copied() {
            let (link, id) = (&self.links[rank][server], ServerId(u16::try_from(server).unwrap()));
            let node = &self.ranks[rank];
            let newer = |pull: &Pull| pull.generation > node.collect.generation();
            let known = self.servers[server].rounds.members().generation();
            let ahead = |push: &Push| push.sender.generation > known;
            let early = |news: &News| match news {
                News::Changed(generation, _) => *generation > node.collect.generation(),
                News::Told(_) => false,
            };
            let mut may = |yes: bool, event| events.extend(yes.then_some(event));
            let room = link.pushes.len() < 3 && !node.queue[server].is_empty() && node.is_open(server);
            may(room && !node.sendable(id, self.setup.older_first).is_empty(), Event::Send(rank, server));
            let judge =
                link.taking.is_none() && !link.held && link.pushes.front().is_some_and(|push| !ahead(push));
            may(judge, Event::Judge(rank, server));
            may(link.taking.is_some(), Event::Take(rank, server));
            may(!link.words.is_empty(), Event::Word(rank, server));
            let arrive = link.landing.is_none() && link.pulls.front().is_some_and(|pull| !newer(pull));
            may(arrive, Event::Arrive(rank, server));
            may(link.landing.is_some(), Event::Land(rank, server));
            may(link.news.front().is_some_and(|news| !early(news)), Event::News(rank, server));
            may(node.alive && node.lost.contains(&server), Event::Come(rank, server));
            may(link.go_on.is_some(), Event::GoOn(rank, server));
        }
        let offers = self.servers.iter().enumerate().filter(|(_, server)| !server.offers.is_empty());
        events.extend(offers.map(|(server, _)| Event::Offer(server)));
        events
    }

    fn may_step(&self, rank: &RankNode) -> bool {
        let round = rank.collect.current();
        let Some(program) = rank.programs.get(usize::try_from(round.0).unwrap()) else {
            return rank.phase != Phase::Finished
                && rank.collect.is_round_settled(Round(self.setup.rounds - 1));
        };
        match rank.phase {
            Phase::Forward(nth) => {
                program.uses.get(nth).is_none_or(|tensor| rank.collect.is_settled(*tensor, round))
            }
            Phase::Backward(nth) => nth < program.pushes.len() || rank.collect.may_end(),
            Phase::Finished => false,
        }
    }

    fn act(&mut self, event: Event) {
        match event {
            Event::Step(rank) => self.step(rank),
            Event::Freeze(rank) => self.freeze(rank),
            Event::Hear(rank) => self.hear(rank),
            Event::Send(rank, server) => self.send(rank, server),
            Event::Judge(rank, server) => self.judge(rank, server),
            Event::Take(rank, server) => self.take(rank, server),
            Event::Word(rank, server) => self.word(rank, server),
            Event::Offer(server) => self.offer(server),
            Event::Arrive(rank, server) => self.arrive(rank, server),
            Event::Land(rank, server) => self.land(rank, server),
            Event::News(rank, server) => self.news(rank, server),
            Event::Come(rank, server) => self.come(rank, server),
            Event::GoOn(rank, server) => self.go_on(rank, server),
        }
    }

    fn step(&mut self, at: usize) {
        let rank = &mut self.ranks[at];
        let round = rank.collect.current();
        let Some(program) = rank.programs.get(usize::try_from(round.0).unwrap()) else {
            rank.phase = Phase::Finished;
            return;
        };
        match rank.phase {
            Phase::Forward(nth) if nth < program.uses.len() => rank.phase = Phase::Forward(nth + 1),
            Phase::Forward(_) => rank.phase = Phase::Backward(0),
            Phase::Backward(nth) if nth < program.pushes.len() => {
                let tensor = program.pushes[nth];
                rank.phase = Phase::Backward(nth + 1);
                let elements = self.plan.elements(tensor).unwrap();
                let gradient = (0..elements).flat_map(|_| self.dice.value().to_le_bytes()).collect();
                rank.gradients.insert((round, tensor), gradient);
                rank.collect.handle_push(tensor);
                rank.queue_tensor(&self.plan, round, tensor);
            }
            Phase::Backward(_) => {
                rank.collect.handle_end();
                rank.phase = Phase::Forward(0);
            }
            Phase::Finished => {}
        }
        self.speak(at);
    }

    /// What a rank may have to say after anything happened to it.
    fn speak(&mut self, rank: usize) {
        self.compare(rank);
        for (server, word) in self.ranks[rank].words() {
            let server = usize::from(server.0);
            // To a server that does not know the job it is said when it does.
            if self.ranks[rank].is_open(server) {
                self.links[rank][server].words.push_back(word);
            }
        }
    }

    fn send(&mut self, rank: usize, server: usize) {
        let id = ServerId(u16::try_from(server).unwrap());
        let node = &mut self.ranks[rank];
        let at = self.dice.pick(&node.sendable(id, self.setup.older_first));
        let (round, packet) = node.queue[server].swap_remove(at);
        let payload = node.payload(&self.plan, round, packet);
        self.links[rank][server].pushes.push_back(Push { sender: node.sender(round), packet, payload });
    }

    fn judge(&mut self, rank: usize, server: usize) {
        let link = &mut self.links[rank][server];
        let Some(Push { sender, packet, payload }) = link.pushes.front().cloned() else { return };
        let (pair, job) = self.servers[server].at(&self.plan, sender.rank, packet);
        match pair.verdict(&job, packet, sender, payload.len() as u64).expect("ranks keep the rules") {
            Verdict::Read(ticket) => {
                link.pushes.pop_front();
                link.taking = Some((ticket, Push { sender, packet, payload }));
            }
            Verdict::Discard(why) => {
                link.pushes.pop_front();
                if why == Discarded::Answered {
                    self.servers[server].offers.push((sender.rank, sender.round, packet));
                }
            }
            Verdict::Hold => link.held = true,
        }
    }

    fn take(&mut self, rank: usize, server: usize) {
        let Some((ticket, push)) = self.links[rank][server].taking.take() else { return };
        let node = &mut self.servers[server];
        let (pair, job) = node.at(&self.plan, push.sender.rank, push.packet);
        let generation = job.members.generation();
        let progress =
            pair.take(&job, ticket, &mut Buffer::from(&*push.payload)).expect("ranks keep the rules");
        if !matches!(progress.outcome, Outcome::Ignored(_)) {
            assert_eq!(push.sender.generation, generation, "an old generation is never summed");
        }
        self.progress(server, push.sender.round, push.packet, progress);
    }

    fn progress(&mut self, server: usize, round: Round, packet: PacketId, progress: Progress) {
        if progress.outcome == Outcome::Ready {
            let node = &mut self.servers[server];
            node.offers.extend(node.rounds.members().iter().map(|rank| (rank, round, packet)));
        }
        if progress.wake {
            for link in self.links.iter_mut().map(|links| &mut links[server]) {
                link.held &= link.pushes.front().is_none_or(|push| push.packet != packet);
            }
        }
    }

    fn word(&mut self, rank: usize, server: usize) {
        let Some(word) = self.links[rank][server].words.pop_front() else { return };
        match word {
            Word::Change(generation) => self.change(server, generation),
            Word::End(sender, skipped) => {
                for tensor in skipped.iter() {
                    for index in self.servers[server].shard.of_tensor(tensor) {
                        let node = &mut self.servers[server];
                        let packet = node.shard.packet(&self.plan, index).unwrap();
                        let promised =
                            node.rounds.used(sender.round).is_some_and(|used| used.contains(tensor));
                        let (pair, job) = node.at(&self.plan, sender.rank, packet);
                        let progress =
                            pair.skip(&job, packet, sender, promised).expect("ranks keep the rules");
                        if progress.outcome == Outcome::Ignored(Discarded::Answered) {
                            self.servers[server].offers.push((sender.rank, sender.round, packet));
                        }
                        self.progress(server, sender.round, packet, progress);
                    }
                }
                self.servers[server]
                    .rounds
                    .handle_end(sender, &skipped)
                    .map(drop)
                    .expect("ranks keep the rules");
            }
            Word::Got(sender) => {
                self.servers[server].rounds.handle_got(sender).map(drop).expect("ranks keep the rules");
            }
        }
        self.announce(server);
    }

    fn announce(&mut self, server: usize) {
        while let Some(action) = self.servers[server].rounds.poll_action() {
            if let RoundAction::Done(round) = &action {
                self.servers[server].pairs.iter_mut().for_each(|pair| pair.forget_done(round.next()));
                self.links.iter_mut().for_each(|links| links[server].held = false);
            }
            for rank in self.servers[server].rounds.members().iter() {
                let told = News::Told(action.clone());
                self.links[usize::try_from(rank.0).unwrap()][server].news.push_back(told);
            }
        }
    }

    fn offer(&mut self, server: usize) {
        let node = &mut self.servers[server];
        let (rank, round, packet) = node.offers.swap_remove(self.dice.below(node.offers.len()));
        let generation = node.rounds.members().generation();
        let (pair, _) = node.at(&self.plan, rank, packet);
        // A result that has left its slot is with every rank; this offer was a repetition.
        if let Some(sum) = pair.ready(round).cloned() {
            let pull = Pull { generation, round, packet, sum };
            self.links[usize::try_from(rank.0).unwrap()][server].pulls.push_back(pull);
        }
    }

    fn arrive(&mut self, rank: usize, server: usize) {
        let link = &mut self.links[rank][server];
        let Some(pull) = link.pulls.pop_front() else { return };
        let header = SumHeader {
            server: ServerId(u16::try_from(server).unwrap()),
            generation: pull.generation,
            round: pull.round,
            packet: pull.packet,
            bytes: pull.sum.bytes().len() as u64,
        };
        match self.ranks[rank].collect.arrive(header).expect("servers send by the plan") {
            Arrival::Read(claim) => link.landing = Some((claim, pull)),
            Arrival::Discard(_) => {}
            Arrival::Hold => panic!("a rank was asked about a generation that it has not heard of"),
        }
    }

    fn land(&mut self, rank: usize, server: usize) {
        let Some((claim, pull)) = self.links[rank][server].landing.take() else { return };
        let node = &mut self.ranks[rank];
        if let Some(offset) = claim.offset() {
            let tensor = pull.packet.tensor;
            let bytes = usize::try_from(self.plan.bytes(tensor).unwrap().get()).unwrap();
            let buffer = node.received.entry((pull.round, tensor)).or_insert_with(|| vec![0xee; bytes]);
            let offset = usize::try_from(offset).unwrap();
            buffer[offset..offset + pull.sum.bytes().len()].copy_from_slice(pull.sum.bytes());
        }
        let _ = node.collect.land(claim);
        self.speak(rank);
    }

    fn news(&mut self, rank: usize, server: usize) {
        let Some(news) = self.links[rank][server].news.pop_front() else { return };
        let (node, id) = (&mut self.ranks[rank], ServerId(u16::try_from(server).unwrap()));
        match news {
            News::Changed(generation, oldest) => {
                if generation == node.frozen {
                    node.deaf.remove(&server);
                }
                match oldest.0.checked_sub(1).filter(|_| !node.deaf.contains(&server)) {
                    Some(last) if node.resuming.is_empty() => node.collect.handle_done(id, Round(last)),
                    _ => Ok(()),
                }
            }
            News::Told(_) if node.deaf.contains(&server) => Ok(()),
            News::Told(RoundAction::Used(round, used)) => node.collect.handle_used(id, round, &used),
            News::Told(RoundAction::Done(round)) if node.resuming.is_empty() => {
                node.collect.handle_done(id, round)
            }
            News::Told(RoundAction::Done(round)) => {
                node.done_later.push((id, round));
                Ok(())
            }
        }
        .expect("servers agree");
        self.speak(rank);
    }

    fn check_bounds(&self) {
        for server in &self.servers {
            assert!(server.park.parked() <= server.park.limit() && server.park.peak() <= server.park.limit());
        }
    }
}
