// SPDX-License-Identifier: Apache-2.0
//! The events of a job: nodes execute actions, ranks step together, and faults happen.

use std::collections::BTreeMap;

use foresee_data_fetch::peers::{PeerAction, PeerFault, PeerMessage, PeerRequest, SampleRead};
use foresee_data_plan::{EntryId, NodeAction, NodeTier};
use foresee_testkit::{Dice, SimulatedRun};
use foresee_units::{Bytes, Nanos, Rank, ReadOutcome, SampleId, Source};

use crate::links::Links;
use crate::node::{SimNode, consumer};
use crate::setup::{Fault, Setup, node_index};

/// Events of a job that makes progress are far fewer.
const EVENTS_MAX: usize = 200_000;
/// Bytes of a message.
const MESSAGE: u64 = 50;
/// Reads of the origin in flight from which on a node reads nothing ahead.
const READS_MAX: usize = 8;
/// Time to connect again.
const RECONNECT: Nanos = Nanos::from_millis(200);

/// Something that happens at a time.
#[derive(Clone, Debug)]
enum Event {
    Connect(usize, usize),
    Message { from: usize, to: usize, connection: u64, message: PeerMessage },
    Sample { from: usize, to: usize, connection: u64, sample: SampleId },
    Sent { from: usize, to: usize, connection: u64, number: u64, sample: SampleId },
    OriginDone { node: usize, entry: u32 },
    DiskDone { node: usize, entry: u32 },
    StoreDone { node: usize, entry: u32 },
    StepDone,
    Wake,
    Fault(Fault),
}

impl Event {
    /// The node that handles it.
    fn node(&self) -> Option<usize> {
        match *self {
            Self::Message { to, .. } | Self::Sample { to, .. } => Some(to),
            Self::Sent { from, .. } => Some(from),
            Self::OriginDone { node, .. } | Self::DiskDone { node, .. } | Self::StoreDone { node, .. } => {
                Some(node)
            }
            Self::Connect(..) | Self::StepDone | Self::Wake | Self::Fault(_) => None,
        }
    }
}

/// A job and its links.
pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) nodes: Vec<SimNode>,
    pub(crate) faults: Vec<(usize, PeerFault)>,
    links: Links,
    dice: Dice,
    now: Nanos,
    events: BTreeMap<(Nanos, u64), Event>,
    count: u64,
    is_stepping: bool,
    trace: Option<Vec<String>>,
}

impl World {
    pub(crate) fn new(mut dice: Dice, setup: Setup) -> Self {
        let mut world = Self {
            nodes: (0..setup.nodes).map(|own| SimNode::new(&setup, own)).collect(),
            links: Links::new(setup.nodes, setup.link_rate, setup.link_latency),
            faults: Vec::new(),
            now: Nanos::ZERO,
            events: BTreeMap::new(),
            count: 0,
            is_stepping: false,
            trace: None,
            dice: Dice::new(dice.bits()),
            setup,
        };
        for a in 0..world.nodes.len() {
            for b in 0..a {
                world.after(Nanos::ZERO, Event::Connect(a, b));
            }
        }
        for fault in world.setup.faults.clone() {
            let delay = world.dice.pick(&[20, 300, 3000]);
            let delay = Nanos::from_millis(world.dice.below(delay) as u64);
            world.after(delay, Event::Fault(fault));
        }
        world
    }

    /// Run until all ranks that are left have done all steps.
    pub(crate) fn run(&mut self) {
        for node in 0..self.nodes.len() {
            self.act(node);
        }
        for _ in 0..EVENTS_MAX {
            if self.is_over() {
                return;
            }
            let timers = self.nodes.iter().filter(|node| !node.is_gone).flat_map(|node| {
                let times = [node.planner.poll_timeout(), node.exchange.poll_timeout()];
                times.into_iter().flatten().map(|time| time.max(node.frozen_until))
            });
            let timer = timers.min();
            let event = self.events.first_key_value().map(|(&(at, _), _)| at);
            let at = event.into_iter().chain(timer).min().expect("ranks wait, and nothing will happen");
            self.now = self.now.max(at);
            if event == Some(at) {
                let (_, event) = self.events.pop_first().unwrap();
                self.note(|| format!("{event:?}"));
                self.handle(event);
            }
            for node in 0..self.nodes.len() {
                self.act(node);
            }
            self.step();
        }
        panic!("the job does not end");
    }

    fn is_over(&self) -> bool {
        let all = self.setup.per_rank() as u64 * self.setup.epochs;
        self.alive().all(|node| node.ranks.iter().all(|rank| rank.consumed == all))
    }

    /// Nodes that are not gone.
    fn alive(&self) -> impl Iterator<Item = &SimNode> {
        self.nodes.iter().filter(|node| !node.is_gone)
    }

    /// How often samples were read from the origin.
    pub(crate) fn origin_reads(&self) -> u64 {
        self.nodes.iter().flat_map(|node| node.origin_reads.values()).sum()
    }

    /// Begin a step if all ranks have their batches.
    fn step(&mut self) {
        if !self.is_stepping && self.alive().all(|node| node.is_ready(&self.setup)) && !self.is_over() {
            self.is_stepping = true;
            self.after(self.setup.step, Event::StepDone);
        }
    }

    fn end_step(&mut self) {
        self.is_stepping = false;
        let Self { setup, nodes, now, .. } = self;
        for (index, node) in nodes.iter_mut().enumerate().filter(|(_, node)| !node.is_gone) {
            for local in 0..node.ranks.len() {
                let consumed = node.ranks[local].step_end(setup);
                node.ranks[local].consumed = consumed;
                node.planner.handle_progress(consumer(local), consumed, Some(setup.step), *now);
                let rank = u32::try_from(index * setup.ranks_per_node + local).unwrap();
                node.exchange.handle_fetched(Rank(rank), consumed);
            }
            node.request(setup, *now);
            node.demand(setup, *now);
        }
    }

    fn handle(&mut self, event: Event) {
        if let Some(node) = event.node() {
            if self.nodes[node].is_gone {
                return;
            }
            if self.nodes[node].frozen_until > self.now {
                let delay = self.nodes[node].frozen_until - self.now;
                return self.after(delay, event);
            }
        }
        let now = self.now;
        match event {
            Event::Connect(a, b) => self.connect(a, b),
            Event::Message { from, to, connection, message } => {
                if self.links.connection((from, to)) == Some(connection) {
                    let (exchange, local) = self.nodes[to].split(&self.setup);
                    exchange.handle_message(node_index(from), message, &local, now);
                }
            }
            Event::Sample { from, to, connection, sample } => {
                if self.links.connection((from, to)) == Some(connection) {
                    let size = self.size(sample);
                    let exchange = &mut self.nodes[to].exchange;
                    exchange.handle_bytes(node_index(from), size, now);
                    if exchange.handle_received(node_index(from), sample, now) {
                        let one = &mut self.nodes[to];
                        assert!(one.reading.remove(&entry(sample)), "node {to} was not reading {sample}");
                        one.planner.handle_received(EntryId(entry(sample)), now);
                        one.exchange.handle_read_end(sample, size, true, now);
                    }
                }
            }
            Event::Sent { from, to, connection, number, sample } => {
                self.nodes[from].end_sending(number);
                if self.links.connection((from, to)) == Some(connection) {
                    let size = self.size(sample);
                    self.nodes[from].exchange.handle_sent(node_index(to), sample, size);
                }
            }
            Event::OriginDone { node, entry } => {
                *self.nodes[node].origin_reads.entry(entry).or_default() += 1;
                self.end_read(node, entry, ReadOutcome::Ok);
            }
            Event::DiskDone { node, entry } => {
                let holds = self.nodes[node].planner.holds(EntryId(entry), NodeTier::Disk);
                self.end_read(node, entry, if holds { ReadOutcome::Ok } else { ReadOutcome::Corrupt });
            }
            Event::StoreDone { node, entry } => {
                self.nodes[node].planner.handle_stored(EntryId(entry), ReadOutcome::Ok, now);
            }
            Event::StepDone => self.end_step(),
            Event::Wake => {}
            Event::Fault(fault) => self.fault(fault),
        }
    }

    /// A read of a node has ended.
    fn end_read(&mut self, node: usize, entry: u32, outcome: ReadOutcome) {
        let (now, size) = (self.now, self.size(SampleId(entry.into())));
        let one = &mut self.nodes[node];
        assert!(one.reading.remove(&entry), "node {node} was not reading {entry}");
        one.planner.handle_read(EntryId(entry), outcome, now);
        one.exchange.handle_read_end(SampleId(entry.into()), size, outcome == ReadOutcome::Ok, now);
    }

    /// What the driver of a node does.
    fn act(&mut self, node: usize) {
        if self.nodes[node].is_gone || self.nodes[node].frozen_until > self.now {
            return;
        }
        loop {
            self.nodes[node].announce(&self.setup, node, self.now);
            self.nodes[node].request(&self.setup, self.now);
            if let Some(action) = self.nodes[node].planner.poll_action(self.now) {
                self.note(|| format!("    {node}: {action:?}"));
                self.execute(node, action);
                continue;
            }
            let now = self.now;
            let (exchange, local) = self.nodes[node].split(&self.setup);
            if let Some(action) = exchange.poll_action(&local, now) {
                self.note(|| format!("    {node}: {action:?}"));
                self.execute_peer(node, action);
                continue;
            }
            let one = &mut self.nodes[node];
            if one.reading.len() >= READS_MAX || !one.planner.read_ahead(now) {
                break;
            }
        }
        let planner = &self.nodes[node].planner;
        assert!(planner.used(NodeTier::Memory) <= Bytes::new(self.setup.memory));
        assert!(planner.used(NodeTier::Disk) <= Bytes::new(self.setup.disk));
    }

    fn execute(&mut self, node: usize, action: NodeAction) {
        let (now, disk_time) = (self.now, self.nodes[node].disk_time);
        match action {
            NodeAction::Read { entry, from, deadline, .. } => {
                assert!(self.nodes[node].reading.insert(entry.0), "node {node} reads {entry:?} twice");
                if from == Source::Disk {
                    return self.after(disk_time, Event::DiskDone { node, entry: entry.0 });
                }
                let sample = SampleId(entry.0.into());
                let read = SampleRead { sample, size: self.size(sample), deadline };
                self.nodes[node].exchange.handle_read(read, now);
            }
            NodeAction::Prioritize { entry, deadline } => {
                self.nodes[node].exchange.handle_deadline(SampleId(entry.0.into()), deadline, now);
            }
            NodeAction::Store { entry } => self.after(disk_time, Event::StoreDone { node, entry: entry.0 }),
            NodeAction::Evict { .. } => {}
            NodeAction::Answer { consumer, access, entry, .. } => {
                let one = &mut self.nodes[node];
                assert!(one.planner.holds(entry, NodeTier::Memory));
                let rank = &mut one.ranks[consumer.0 as usize];
                assert_eq!(
                    rank.log[usize::try_from(access).unwrap()],
                    entry.0,
                    "another sample was announced"
                );
                assert!(rank.waiting.remove(&access), "access {access} is answered twice");
                // It is copied at once.
                one.planner.handle_release(consumer, access);
            }
            NodeAction::Fail { .. } | NodeAction::TakeBack { .. } => {
                panic!("node {node}: {action:?}, although the origin has all samples and nothing is pinned")
            }
        }
    }

    fn execute_peer(&mut self, node: usize, action: PeerAction) {
        let now = self.now;
        match action {
            PeerAction::Send { node: to, message } => self.send(node, usize::from(to.0), message),
            PeerAction::SendSample { node: to, sample, size } => {
                self.send_sample(node, usize::from(to.0), sample, size);
            }
            PeerAction::ReadOrigin { sample } => {
                let entry = entry(sample);
                assert!(self.nodes[node].reading.contains(&entry));
                let longest = usize::try_from(self.setup.origin.get()).unwrap();
                let delay = Nanos::new(1 + self.dice.below(longest) as u64);
                self.after(delay, Event::OriginDone { node, entry });
            }
            PeerAction::Receive { sample } => {
                let size = self.size(sample);
                let is_found = self.nodes[node].planner.handle_offer(EntryId(entry(sample)), now);
                if is_found {
                    assert!(self.nodes[node].reading.insert(entry(sample)));
                }
                self.nodes[node].exchange.handle_space(sample, size, is_found, now);
            }
            PeerAction::Abandon { sample } => self.end_read(node, entry(sample), ReadOutcome::Cancelled),
            PeerAction::Reserve { sample } => {
                self.nodes[node].planner.handle_reserved(EntryId(entry(sample)), true);
            }
            PeerAction::Release { sample } => {
                self.nodes[node].planner.handle_reserved(EntryId(entry(sample)), false);
            }
            PeerAction::Refuse { node: other, fault } => {
                self.faults.push((node, fault));
                let pair = (node, usize::from(other.0));
                self.links.refuse(pair);
                self.disconnect(pair);
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, message: PeerMessage) {
        let connection = self.links.connection((from, to)).expect("the exchange knows what is connected");
        let message = match message {
            PeerMessage::Request(mut requests) if self.nodes[from].misbehaves == Some(Fault::Invent) => {
                requests.push(PeerRequest { sample: SampleId(u64::MAX), position: 0, deadline: Nanos::MAX });
                PeerMessage::Request(requests)
            }
            other => other,
        };
        let (_, arrives) = self.links.send((from, to), MESSAGE, self.now);
        self.at(arrives, Event::Message { from, to, connection, message });
    }

    fn send_sample(&mut self, from: usize, to: usize, sample: SampleId, size: Bytes) {
        let (now, one) = (self.now, &mut self.nodes[from]);
        let holds = |tier| one.planner.holds(EntryId(entry(sample)), tier);
        let (is_here, is_slow) = (holds(NodeTier::Memory) || holds(NodeTier::Disk), !holds(NodeTier::Memory));
        if !is_here || one.misbehaves == Some(Fault::Deny) {
            return one.exchange.handle_gone(node_index(to), sample, size);
        }
        if one.misbehaves == Some(Fault::Withhold) {
            return;
        }
        self.count += 1;
        let (number, begins) = (self.count, if is_slow { now + one.disk_time } else { now });
        if one.planner.handle_sending(EntryId(entry(sample))) {
            one.sending.insert(number, (to, entry(sample)));
        }
        let connection = self.links.connection((from, to)).expect("the exchange knows what is connected");
        let (left, arrives) = self.links.send((from, to), size.get(), begins);
        self.at(left, Event::Sent { from, to, connection, number, sample });
        self.at(arrives, Event::Sample { from, to, connection, sample });
    }

    fn connect(&mut self, a: usize, b: usize) {
        let is_gone = [a, b].iter().any(|&node| self.nodes[node].is_gone);
        if is_gone || !self.links.connect((a, b)) {
            return;
        }
        for (node, other) in [(a, b), (b, a)] {
            self.nodes[node].exchange.handle_connected(node_index(other), self.now);
        }
    }

    fn disconnect(&mut self, (a, b): (usize, usize)) {
        if self.links.disconnect((a, b)) {
            for (node, other) in [(a, b), (b, a)] {
                let one = &mut self.nodes[node];
                one.exchange.handle_disconnected(node_index(other), self.now);
                let to_other = one.sending.iter().filter(|(_, (to, _))| *to == other);
                for number in to_other.map(|(&number, _)| number).collect::<Vec<_>>() {
                    one.end_sending(number);
                }
            }
        }
    }

    fn fault(&mut self, fault: Fault) {
        let node = self.dice.below(self.nodes.len());
        let other = (node + 1 + self.dice.below(self.nodes.len() - 1)) % self.nodes.len();
        let is_last = self.alive().count() == 1;
        let one = &mut self.nodes[node];
        match fault {
            Fault::Cut(time) => {
                self.disconnect((node, other));
                self.after(time.max(RECONNECT), Event::Connect(node, other));
            }
            Fault::Freeze(time) => {
                one.frozen_until = self.now + time;
                self.after(time, Event::Wake);
            }
            Fault::Crash if !is_last => {
                one.is_gone = true;
                for other in (0..self.nodes.len()).filter(|&other| other != node) {
                    self.disconnect((node, other));
                }
            }
            Fault::Crash => {}
            Fault::SlowLink(times) => self.links.slow_down(node, times),
            Fault::SlowDisk(time) => one.disk_time = time,
            Fault::Lose if one.frozen_until > self.now => {}
            Fault::Lose => {
                for entry in 0..u32::try_from(self.setup.sizes.len()).unwrap() {
                    if self.dice.one_in(2) {
                        let tier = self.dice.pick(&[NodeTier::Memory, NodeTier::Disk]);
                        one.planner.handle_lost(EntryId(entry), tier, self.now);
                    }
                }
            }
            Fault::Deny | Fault::Withhold | Fault::Invent => one.misbehaves = Some(fault),
        }
    }

    fn size(&self, sample: SampleId) -> Bytes {
        Bytes::new(self.setup.sizes[usize::try_from(sample.0).unwrap()])
    }

    fn after(&mut self, delay: Nanos, event: Event) {
        self.at(self.now + delay, event);
    }

    fn at(&mut self, time: Nanos, event: Event) {
        self.count += 1;
        self.events.insert((time, self.count), event);
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now:?} {}", text()));
        }
    }
}

impl SimulatedRun for World {
    fn start_trace(&mut self) {
        self.trace = Some(Vec::new());
    }

    fn report(&self) -> String {
        let trace = self.trace.as_deref().unwrap_or_default().join("\n");
        let counts: Vec<_> = self.nodes.iter().map(|node| node.exchange.counts()).collect();
        format!("{trace}\n{:#?}\n{counts:#?}\n{:?}", self.setup, self.faults)
    }
}

fn entry(sample: SampleId) -> u32 {
    u32::try_from(sample.0).unwrap()
}
