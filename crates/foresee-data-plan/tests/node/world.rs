// SPDX-License-Identifier: Apache-2.0
//! The events of a run: the node executes actions, consumers act, and faults happen.

use std::collections::BTreeMap;

use foresee_data_plan::{
    ConsumerId, EntryId, NodeAction, NodePlanner, NodePlannerConfig, NodeTier, TierCapacity,
};
use foresee_testkit::Dice;
use foresee_units::{Bytes, Nanos, ReadOutcome, Source};

use crate::checks::Contents;
use crate::consumer::{AccessState, SimConsumer};
use crate::setup::{ConsumerSetup, Fault, PIN_TIMEOUT, STALL_GRACE, Setup};

/// Events of a run that makes progress are far fewer.
const EVENTS_MAX: usize = 100_000;

/// Something that happens at a time.
#[derive(Clone, Copy, Debug)]
enum Event {
    Attach { consumer: usize },
    ReadDone { entry: u32 },
    StoreDone { entry: u32 },
    Copied { consumer: usize, life: u32, access: u64 },
    StepDone { consumer: usize, life: u32, position: u64 },
    Fault(Fault),
}

/// A node and its consumers.
pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) planner: NodePlanner,
    pub(crate) contents: Contents,
    pub(crate) consumers: Vec<SimConsumer>,
    pub(crate) trace: Option<Vec<String>>,
    dice: Dice,
    now: Nanos,
    events: BTreeMap<(Nanos, u64), Event>,
    count: u64,
}

impl World {
    pub(crate) fn new(dice: Dice, setup: Setup) -> Self {
        let tier = |capacity| TierCapacity {
            capacity: Bytes::new(capacity),
            align: setup.align,
            overhead: Bytes::ZERO,
        };
        let mut planner = NodePlanner::new(&NodePlannerConfig {
            memory: tier(setup.memory),
            disk: tier(setup.disk),
            table_budget: Bytes::new(setup.table_budget),
            read_ahead: Bytes::new(setup.read_ahead),
            initial_interval: Nanos::from_millis(5),
            stall_grace: STALL_GRACE,
            stalled_bytes_max: Bytes::new(setup.stalled_bytes_max),
            pin_timeout: PIN_TIMEOUT,
        });
        for &size in &setup.sizes {
            planner.handle_entry(Bytes::new(size)).expect("it is small");
        }
        let mut world = Self {
            contents: Contents::new(&setup),
            consumers: setup.consumers.iter().cloned().map(SimConsumer::new).collect(),
            planner,
            trace: None,
            dice,
            now: Nanos::ZERO,
            events: BTreeMap::new(),
            count: 0,
            setup,
        };
        for consumer in 0..world.consumers.len() {
            world.after(world.consumers[consumer].setup.attach_at, Event::Attach { consumer });
        }
        for fault in world.setup.faults.clone() {
            let delay = world.dice.pick(&[100, 1_000, 20_000]);
            let delay = Nanos::from_millis(world.dice.below(delay) as u64);
            world.after(delay, Event::Fault(fault));
        }
        world
    }

    /// Run until nothing is left to happen.
    pub(crate) fn run(&mut self) {
        for _ in 0..EVENTS_MAX {
            let event = self.events.first_key_value().map(|(&(at, _), _)| at);
            let timeout = self.planner.poll_timeout();
            let Some(at) = event.into_iter().chain(timeout).min() else {
                self.check_end();
                return;
            };
            self.now = self.now.max(at);
            self.contents.lost = None;
            self.contents.failed_write = None;
            if event == Some(at) {
                let (_, event) = self.events.pop_first().expect("there is one");
                self.note(|| format!("{event:?}"));
                self.handle(event);
            }
            self.act();
            while self.contents.reading.len() < self.setup.reads_max && self.planner.read_ahead(self.now) {
                self.act();
            }
            self.contents.check(&self.planner, self.now);
        }
        panic!("the run does not end");
    }

    fn act(&mut self) {
        while let Some(action) = self.planner.poll_action(self.now) {
            self.note(|| format!("    {action:?}"));
            self.contents.apply(action, &self.consumers, self.now);
            self.execute(action);
        }
    }

    fn check_end(&self) {
        for (index, one) in self.consumers.iter().enumerate() {
            let is_gone = !one.is_attached || one.stopped_until == Nanos::MAX;
            assert!(is_gone || one.is_finished(), "consumer {index} waits for good: {one:?}");
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Attach { consumer } => self.attach(consumer),
            Event::ReadDone { entry } => {
                let Some((from, _)) = self.contents.reading.remove(&entry) else { return };
                let fails = self.fails();
                if !fails {
                    self.contents.memory.insert(entry);
                } else if from == Source::Disk {
                    self.contents.disk.remove(&entry);
                }
                let outcome = if fails { ReadOutcome::Corrupt } else { ReadOutcome::Ok };
                self.planner.handle_read(EntryId(entry), outcome, self.now);
            }
            Event::StoreDone { entry } => {
                self.contents.storing.remove(&entry);
                let (fails, is_suspect) = (self.fails(), self.contents.suspect.remove(&entry));
                if fails || is_suspect {
                    self.contents.failed_write = Some(entry);
                } else {
                    self.contents.disk.insert(entry);
                }
                let outcome = if fails { ReadOutcome::Full } else { ReadOutcome::Ok };
                self.planner.handle_stored(EntryId(entry), outcome, self.now);
            }
            Event::Copied { consumer, life, .. } | Event::StepDone { consumer, life, .. } => {
                let one = &self.consumers[consumer];
                if life != one.life || !one.is_attached {
                    return;
                }
                if one.stopped_until > self.now {
                    if one.stopped_until < Nanos::MAX {
                        let delay = one.stopped_until - self.now;
                        self.after(delay, event);
                    }
                    return;
                }
                match event {
                    Event::Copied { access, .. } => self.copied(consumer, access),
                    Event::StepDone { position, .. } => self.step_done(consumer, position),
                    _ => {}
                }
                self.act_of(consumer);
            }
            Event::Fault(fault) => self.fault(fault),
        }
    }

    /// What the node's drivers do.
    fn execute(&mut self, action: NodeAction) {
        let latency = |dice: &mut Dice, most| Nanos::from_millis(1 + dice.below(most) as u64);
        match action {
            NodeAction::Read { entry, from, .. } => {
                let delay = latency(&mut self.dice, if from == Source::Disk { 3 } else { 60 });
                self.after(delay, Event::ReadDone { entry: entry.0 });
            }
            NodeAction::Store { entry } => {
                let delay = latency(&mut self.dice, 5);
                self.after(delay, Event::StoreDone { entry: entry.0 });
            }
            NodeAction::Answer { consumer, access, .. } | NodeAction::TakeBack { consumer, access, .. } => {
                let consumer = consumer.0 as usize;
                let (since, one) = (self.now, &mut self.consumers[consumer]);
                let Some(state) = one.states.get_mut(&access) else { return };
                if let NodeAction::Answer { .. } = action {
                    *state = AccessState::Answered { since };
                    let life = one.life;
                    let delay = latency(&mut self.dice, 2);
                    self.after(delay, Event::Copied { consumer, life, access });
                } else if matches!(state, AccessState::Answered { .. }) {
                    *state = AccessState::TakenBack;
                }
            }
            NodeAction::Fail { consumer, access, .. } => {
                let (consumer, life) = (consumer.0 as usize, self.consumers[consumer.0 as usize].life);
                self.consumers[consumer].states.insert(access, AccessState::Done);
                self.after(Nanos::ZERO, Event::Copied { consumer, life, access });
            }
            NodeAction::Evict { .. } | NodeAction::Prioritize { .. } => {}
        }
    }

    fn attach(&mut self, consumer: usize) {
        self.planner.handle_attach(id(consumer), self.now);
        let one = &mut self.consumers[consumer];
        one.is_attached = true;
        one.progress_at = self.now;
        self.act_of(consumer);
    }

    /// The consumer announces, requests, and starts a step, as far as it can.
    fn act_of(&mut self, consumer: usize) {
        let mut is_done = false;
        while !is_done {
            self.announce_of(consumer);
            is_done = !self.find_or_request(consumer);
        }
        let one = &mut self.consumers[consumer];
        let batch = one.batch(one.position);
        if self.setup.hurries && !one.is_stepping {
            for access in batch.clone() {
                self.planner.handle_deadline(id(consumer), access, self.now, self.now);
            }
        }
        let is_ready =
            |access| matches!(one.states.get(&access), Some(AccessState::Copied | AccessState::Done));
        if !one.is_stepping && !batch.is_empty() && batch.clone().all(is_ready) {
            one.is_stepping = true;
            let delay = Nanos::new(one.setup.interval.get() * (batch.end - batch.start));
            let (life, position) = (one.life, batch.end);
            self.after(delay, Event::StepDone { consumer, life, position });
        }
    }

    fn announce_of(&mut self, consumer: usize) {
        let one = &mut self.consumers[consumer];
        while self.planner.wants_epoch(id(consumer)) {
            if let Some(entries) = one.next_window() {
                one.log.extend(&entries);
                self.planner.handle_epoch(id(consumer), &mut entries.into_iter().map(EntryId), self.now);
            } else {
                self.planner.handle_end(id(consumer));
            }
        }
    }

    /// Obtain the announced accesses ahead of the consumer; return whether it has found one without a request.
    fn find_or_request(&mut self, consumer: usize) -> bool {
        let one = &mut self.consumers[consumer];
        let ahead = one.position + one.setup.batch * one.setup.depth;
        let mut has_found = false;
        while one.next < ahead.min(one.log.len() as u64) {
            let access = one.next;
            one.next += 1;
            let entry = one.log[usize::try_from(access).expect("it is small")];
            if self.setup.finds && self.contents.published.contains(&entry) {
                let bytes = self.planner.handle_hits(id(consumer), 1, self.now).expect("it is announced");
                assert_eq!(bytes, Bytes::new(self.setup.sizes[entry as usize]));
                one.states.insert(access, AccessState::Done);
                has_found = true;
                continue;
            }
            let delay = Nanos::new(one.setup.interval.get() * (access - one.position));
            request(&mut self.planner, &mut self.contents, consumer, one, access, self.now + delay, self.now);
        }
        has_found
    }

    fn copied(&mut self, consumer: usize, access: u64) {
        let now = self.now;
        let one = &mut self.consumers[consumer];
        match one.states.get(&access) {
            Some(AccessState::Answered { .. }) => _ = one.states.insert(access, AccessState::Copied),
            Some(AccessState::TakenBack) => {
                request(&mut self.planner, &mut self.contents, consumer, one, access, now, now);
            }
            _ => {}
        }
        let batch = if one.setup.releases_batches { one.batch(access) } else { access..access + 1 };
        let state = |access| one.states.get(&access).copied();
        if batch.clone().all(|one| matches!(state(one), Some(AccessState::Copied | AccessState::Done))) {
            for access in batch {
                if one.states.insert(access, AccessState::Done) == Some(AccessState::Copied) {
                    self.planner.handle_release(id(consumer), access);
                    self.contents.pins.remove(&(id(consumer).0, access));
                }
            }
        }
    }

    fn step_done(&mut self, consumer: usize, position: u64) {
        let one = &mut self.consumers[consumer];
        one.states = one.states.split_off(&position);
        one.position = position;
        one.is_stepping = false;
        one.progress_at = self.now;
        let interval = Some(one.setup.interval).filter(|_| one.setup.reports_interval);
        self.planner.handle_progress(id(consumer), position, interval, self.now);
    }

    fn fault(&mut self, fault: Fault) {
        let consumer = self.dice.below(self.consumers.len());
        let bits = self.dice.bits();
        let one = &mut self.consumers[consumer];
        match fault {
            Fault::Stop { forever: true } => one.stopped_until = Nanos::MAX,
            Fault::Stop { forever: false } if one.stopped_until < Nanos::MAX => {
                one.stopped_until = self.now + Nanos::from_millis(bits % 40_000);
            }
            Fault::ChangeRate => one.setup.interval = Nanos::from_millis(bits % 200),
            Fault::Vanish if one.is_attached => self.detach(consumer),
            Fault::Replace if one.is_attached => {
                self.detach(consumer);
                let life = self.consumers[consumer].life + 1;
                let setup = ConsumerSetup::draw(&mut self.dice, self.setup.sizes.len());
                self.consumers[consumer] = SimConsumer::new(setup);
                self.consumers[consumer].life = life;
                self.attach(consumer);
            }
            Fault::Restart if one.is_attached && one.stopped_until <= self.now => {
                self.planner.handle_restart(id(consumer), self.now);
                one.progress_at = self.now;
                let first = self.planner.announced(id(consumer)).start;
                assert_eq!(first, one.log.len() as u64, "numbers continue");
                let pinned: Vec<u64> = one.states.keys().copied().collect();
                one.restart(bits % one.setup.epochs, first);
                let number = id(consumer).0;
                self.contents.waiting.retain(|&(one, _), _| one != number);
                for access in pinned {
                    self.planner.handle_release(id(consumer), access);
                }
                self.contents.pins.retain(|&(one, _), _| one != number);
                self.act_of(consumer);
            }
            Fault::Lose => self.lose(),
            Fault::Resize => {
                let tier = usize::from(bits % 2 == 1);
                let most = [self.setup.memory, self.setup.disk][tier];
                let capacity = Bytes::new(self.dice.bits() % (2 * most + 1));
                self.contents.capacity[tier] = capacity;
                self.planner.handle_capacity([NodeTier::Memory, NodeTier::Disk][tier], capacity, self.now);
            }
            _ => {}
        }
    }

    fn detach(&mut self, consumer: usize) {
        let number = id(consumer).0;
        self.planner.handle_detach(id(consumer), self.now);
        self.consumers[consumer].is_attached = false;
        self.contents.waiting.retain(|&(one, _), _| one != number);
        self.contents.pins.retain(|&(one, _), _| one != number);
    }

    fn lose(&mut self) {
        let tier = self.dice.pick(&[NodeTier::Memory, NodeTier::Disk]);
        let copies = if tier == NodeTier::Memory { &self.contents.memory } else { &self.contents.disk };
        let copies: Vec<u32> = copies.iter().copied().collect();
        if copies.is_empty() {
            return;
        }
        let entry = self.dice.pick(&copies);
        self.note(|| format!("    lost: {entry} in {tier:?}"));
        if tier == NodeTier::Memory {
            self.contents.memory.remove(&entry);
            self.contents.lost = Some(entry);
            if self.contents.storing.contains(&entry) {
                self.contents.suspect.insert(entry);
            }
        } else {
            self.contents.disk.remove(&entry);
        }
        self.planner.handle_lost(EntryId(entry), tier, self.now);
    }

    fn fails(&mut self) -> bool {
        self.setup.failures > 0 && self.dice.one_in(self.setup.failures)
    }

    fn after(&mut self, delay: Nanos, event: Event) {
        self.count += 1;
        self.events.insert((self.now + delay, self.count), event);
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now} {}", line()));
        }
    }
}

fn request(
    planner: &mut NodePlanner,
    contents: &mut Contents,
    consumer: usize,
    one: &mut SimConsumer,
    access: u64,
    deadline: Nanos,
    now: Nanos,
) {
    one.states.insert(access, AccessState::Requested);
    let entry = one.log[usize::try_from(access).expect("it is small")];
    contents.waiting.insert((id(consumer).0, access), entry);
    planner.handle_request(id(consumer), access, deadline, now).expect("it is announced");
}

fn id(consumer: usize) -> ConsumerId {
    ConsumerId(u32::try_from(consumer).expect("there are few"))
}
