// SPDX-License-Identifier: Apache-2.0
//! A model of the node without tables: sets and lists, from which every decision is computed from scratch.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foresee_testkit::property;
use foresee_units::{ReadOutcome, Source};
use proptest::prelude::*;

use super::*;

const CONSUMERS: u32 = 3;
const ENTRIES: u32 = 14;

#[derive(Clone, Debug)]
enum Fact {
    Announce { consumer: u32, entries: Vec<u32> },
    Request { consumer: u32, skip: usize, deadline: u64 },
    Hits { consumer: u32, count: usize },
    Release { nth: prop::sample::Index },
    Hurry { nth: prop::sample::Index, deadline: u64 },
    Progress { consumer: u32, by: u64, interval: u64 },
    ReadDone { nth: prop::sample::Index, is_ok: bool },
    StoreDone { nth: prop::sample::Index, is_ok: bool },
    Lose { entry: u32, tier: NodeTier },
    Wait { millis: u64 },
    Resize { tier: NodeTier, bytes: u64 },
    Restart { consumer: u32 },
    Attach { consumer: u32 },
    Reserve { entry: u32, is_reserved: bool },
    Offer { entry: u32 },
}

fn fact() -> impl Strategy<Value = Fact> {
    let consumer = 0..CONSUMERS;
    let entries = prop::collection::vec(0..ENTRIES, 0..20);
    let tier = prop_oneof![Just(NodeTier::Memory), Just(NodeTier::Disk)];
    let nth = any::<prop::sample::Index>;
    prop_oneof![
        4 => (consumer.clone(), entries).prop_map(|(consumer, entries)| Fact::Announce { consumer, entries }),
        12 => (consumer.clone(), prop_oneof![9 => Just(0), 1 => 1..4_usize], 0..40_u64)
            .prop_map(|(consumer, skip, deadline)| Fact::Request { consumer, skip, deadline }),
        3 => (consumer.clone(), 0..6_usize).prop_map(|(consumer, count)| Fact::Hits { consumer, count }),
        10 => nth().prop_map(|nth| Fact::Release { nth }),
        2 => (nth(), 0..20_u64).prop_map(|(nth, deadline)| Fact::Hurry { nth, deadline }),
        4 => (consumer.clone(), 0..6_u64, 1..50_u64)
            .prop_map(|(consumer, by, interval)| Fact::Progress { consumer, by, interval }),
        10 => (nth(), prop::bool::weighted(0.9)).prop_map(|(nth, is_ok)| Fact::ReadDone { nth, is_ok }),
        6 => (nth(), prop::bool::weighted(0.9)).prop_map(|(nth, is_ok)| Fact::StoreDone { nth, is_ok }),
        1 => (0..ENTRIES, tier.clone()).prop_map(|(entry, tier)| Fact::Lose { entry, tier }),
        3 => (0..40_u64).prop_map(|millis| Fact::Wait { millis }),
        1 => (tier, 0..20_u64).prop_map(|(tier, bytes)| Fact::Resize { tier, bytes }),
        1 => consumer.clone().prop_map(|consumer| Fact::Restart { consumer }),
        1 => consumer.prop_map(|consumer| Fact::Attach { consumer }),
        3 => (0..ENTRIES, any::<bool>()).prop_map(|(entry, is_reserved)| Fact::Reserve { entry, is_reserved }),
        2 => (0..ENTRIES).prop_map(|entry| Fact::Offer { entry }),
    ]
}

/// A consumer as the model sees it.
#[derive(Clone, Debug, Default)]
struct Reader {
    /// Announced and not requested.
    ahead: VecDeque<u32>,
    first: u64,
    position: u64,
    since: u64,
    interval: u64,
}

impl Reader {
    /// Predicted time until the next use, relative to `now`, in milliseconds.
    fn time_until(&self, entry: u32, now: u64) -> Option<u64> {
        let at = self.ahead.iter().position(|&one| one == entry)? as u64;
        let idle = (now - self.since).saturating_sub(GRACE_MS);
        Some(idle + (self.first + at - self.position) * self.interval)
    }
}

struct Model {
    planner: NodePlanner,
    sizes: Vec<u64>,
    readers: Vec<Reader>,
    now: u64,
    capacity: [u64; 2],
    memory: BTreeSet<u32>,
    disk: BTreeSet<u32>,
    reading: BTreeMap<u32, Source>,
    /// Entries being written, and whether they leave the memory then.
    storing: BTreeMap<u32, bool>,
    /// Entries that were read, in order, and are written before they leave the memory, and those that have to be now.
    unsaved: VecDeque<u32>,
    early: VecDeque<u32>,
    pins: Vec<(u32, u64, u32)>,
    /// Deadline, consumer, access, entry.
    waiting: Vec<(u64, u32, u64, u32)>,
    failed_write: Option<u32>,
    /// Entries being written whose copy in memory was lost.
    suspect: BTreeSet<u32>,
    /// Those whose write has ended: they leave the disk next.
    spoiled: BTreeSet<u32>,
    reserved: BTreeSet<u32>,
}

impl Model {
    fn new(memory: u64, disk: u64, sizes: &[u64]) -> Self {
        let mut planner = planner(memory, disk, u64::MAX);
        for &size in sizes {
            planner.handle_entry(Bytes::new(size)).unwrap();
        }
        let mut model = Self {
            planner,
            sizes: sizes.to_vec(),
            readers: vec![Reader::default(); CONSUMERS as usize],
            now: 0,
            capacity: [memory, disk],
            memory: BTreeSet::new(),
            disk: BTreeSet::new(),
            reading: BTreeMap::new(),
            storing: BTreeMap::new(),
            unsaved: VecDeque::new(),
            early: VecDeque::new(),
            pins: Vec::new(),
            waiting: Vec::new(),
            failed_write: None,
            suspect: BTreeSet::new(),
            spoiled: BTreeSet::new(),
            reserved: BTreeSet::new(),
        };
        (0..CONSUMERS).for_each(|consumer| model.attach(consumer));
        model
    }

    fn attach(&mut self, consumer: u32) {
        self.planner.handle_attach(ConsumerId(consumer), ms(self.now));
        let reader = Reader { since: self.now, interval: INTERVAL_MS, ..Reader::default() };
        self.readers[consumer as usize] = reader;
        self.pins.retain(|&(one, ..)| one != consumer);
        self.waiting.retain(|&(_, one, ..)| one != consumer);
    }

    fn size_of<'a>(&self, entries: impl IntoIterator<Item = &'a u32>) -> u64 {
        entries.into_iter().map(|&entry| self.sizes[entry as usize]).sum()
    }

    fn used(&self) -> [u64; 2] {
        let memory = self.size_of(&self.memory) + self.size_of(self.reading.keys());
        [memory, self.size_of(&self.disk) + self.size_of(self.storing.keys())]
    }

    /// Whether the copy in memory may leave it now.
    fn is_idle(&self, entry: u32) -> bool {
        !self.is_pinned(entry) && !self.storing.contains_key(&entry)
    }

    fn is_pinned(&self, entry: u32) -> bool {
        self.pins.iter().any(|&(.., pinned)| pinned == entry)
    }

    /// Earliest predicted use; `u64::MAX` if none is announced.
    fn key(&self, entry: u32) -> u64 {
        let times = self.readers.iter().filter_map(|one| one.time_until(entry, self.now));
        times.min().unwrap_or(u64::MAX)
    }

    /// Whether only the memory has a copy of the entry, and it is reserved.
    fn is_last(&self, entry: u32) -> bool {
        self.reserved.contains(&entry) && !self.disk.contains(&entry)
    }

    /// Whether the disk has space for any entry, free or taken by copies that are not reserved.
    fn takes_reserved(&self) -> bool {
        let free = self.capacity[1].saturating_sub(self.used()[1]);
        let others: Vec<u32> = self.victims(NodeTier::Disk).into_iter().map(|one| one.2).collect();
        *self.sizes.iter().max().unwrap() <= free + self.size_of(&others)
    }

    /// Evictable copies of a tier with their keys, the first to leave first: unknown, then clean, then farthest.
    /// Clean ones are no sooner in memory while the disk has unused space. Reserved entries leave the memory for the disk,
    /// unknown ones after the others.
    fn victims(&self, tier: NodeTier) -> Vec<(bool, u64, u32)> {
        let mut victims: Vec<_> = match tier {
            NodeTier::Memory => {
                let takes_reserved = self.takes_reserved();
                let leaves =
                    |entry: &&u32| self.is_idle(**entry) && (takes_reserved || !self.is_last(**entry));
                self.memory
                    .iter()
                    .filter(leaves)
                    .map(|&one| (self.disk.contains(&one), self.key(one), one))
                    .collect()
            }
            NodeTier::Disk => {
                let leaves =
                    |entry: &&u32| !self.reading.contains_key(*entry) && !self.reserved.contains(*entry);
                self.disk.iter().filter(leaves).map(|&one| (true, self.key(one), one)).collect()
            }
        };
        victims.sort_by_key(|&(is_clean, key, entry)| {
            let is_unknown = key == u64::MAX;
            let is_first = is_unknown && (tier == NodeTier::Disk || !self.is_last(entry));
            (is_unknown, is_first, is_clean, key, entry)
        });
        victims.reverse();
        if tier == NodeTier::Memory
            && let Some(at) = victims.iter().position(|one| !one.0 && one.1 < u64::MAX)
            && let free = self.capacity[1].saturating_sub(self.used()[1])
            && (self.is_last(victims[at].2)
                || self.sizes[victims[at].2 as usize] <= free
                || self.victims(NodeTier::Disk).iter().any(|one| one.1 == u64::MAX))
            && let Some(first) = victims.iter().position(|one| one.1 < u64::MAX)
            && (victims[at].1, victims[at].2) > (victims[first].1, victims[first].2)
        {
            victims.swap(first, at);
        }
        victims
    }

    /// Whether the victim is the first to leave the tier; the age of unknown entries is left open.
    fn check_victim(&self, entry: u32, tier: NodeTier) {
        let first = self.victims(tier)[0];
        if first.1 == u64::MAX {
            assert_eq!(self.key(entry), u64::MAX, "{entry} leaves before {first:?}, which has no use");
            let are_last = [entry, first.2].map(|one| tier == NodeTier::Memory && self.is_last(one));
            assert_eq!(are_last[0], are_last[1], "{entry} leaves, and {first:?} should");
        } else {
            assert_eq!(entry, first.2, "another victim than {first:?} in {tier:?}");
        }
    }

    /// Check that a reserved entry leaves the node because nothing else can.
    fn check_last(&self, entry: u32, tier: NodeTier) {
        assert_eq!(self.victims(tier), [], "{entry} is reserved");
        if tier == NodeTier::Memory {
            let busy = self.memory.iter().filter(|&&one| !self.is_idle(one));
            assert_eq!(self.size_of(busy.chain(self.reading.keys())), 0, "{entry} is reserved");
        } else {
            assert!(self.used()[1] > self.capacity[1], "{entry} is reserved");
        }
    }

    /// Whether the disk has free space for a victim of the memory, or copies used later.
    fn is_worth_storing(&self, victim: u32) -> bool {
        let key = self.key(victim);
        let later = self.victims(NodeTier::Disk).into_iter().filter(|one| key < u64::MAX && one.1 > key);
        let later: Vec<u32> = later.map(|one| one.2).collect();
        let size = self.sizes[victim as usize];
        size <= self.capacity[1] && self.used()[1] + size <= self.capacity[1] + self.size_of(&later)
    }

    /// Move entries to be written early to those that have to be now.
    fn store_early(&mut self) {
        let data = self.sizes.iter().sum::<u64>();
        while let Some(&entry) = self.unsaved.front() {
            let size = self.sizes[entry as usize];
            let is_stored = self.disk.contains(&entry)
                || self.storing.contains_key(&entry)
                || self.early.contains(&entry)
                || self.suspect.contains(&entry);
            let planned = self.size_of(&self.early);
            let has_space = self.used()[1] + planned + size <= self.capacity[1];
            let early = self.storing.iter().filter(|(_, leaves)| !**leaves).map(|(entry, _)| entry);
            let is_lost = !self.memory.contains(&entry) || self.failed_write == Some(entry);
            if data <= self.capacity[1] && !is_lost && !is_stored && has_space {
                let early = self.size_of(early) + planned;
                if early > 0 && early + size > self.capacity[0] / 8 {
                    return;
                }
                self.early.push_back(entry);
            }
            self.unsaved.pop_front();
        }
    }

    fn drain(&mut self) {
        let mut leaving = Vec::new();
        while let Some(action) = self.planner.poll_action(ms(self.now)) {
            match action {
                NodeAction::Read { entry: EntryId(entry), from, deadline, .. } => {
                    let requests = self.waiting.iter().filter(|one| !self.reading.contains_key(&one.3));
                    let first = requests.map(|one| one.0).min().unwrap();
                    assert_eq!(deadline, ms(first), "not the first deadline");
                    assert!(self.waiting.iter().any(|one| one.0 == first && one.3 == entry));
                    self.reading.insert(entry, from);
                    assert!(self.used()[0] <= self.capacity[0]);
                }
                NodeAction::Store { entry: EntryId(entry) } => {
                    let is_early = self.early.pop_front_if(|early| *early == entry).is_some();
                    if !is_early {
                        self.check_victim(entry, NodeTier::Memory);
                    }
                    assert!(self.memory.contains(&entry) && !self.disk.contains(&entry));
                    let is_sooner = |&(_, key): &(u32, u64)| key > self.key(entry);
                    assert!(
                        self.reserved.contains(&entry) || leaving.iter().all(is_sooner),
                        "a sooner use left the disk"
                    );
                    leaving.clear();
                    self.storing.insert(entry, !is_early);
                    assert!(self.used()[1] <= self.capacity[1]);
                }
                NodeAction::Evict { entry: EntryId(entry), tier: NodeTier::Memory } => {
                    let has_failed = self.failed_write.take() == Some(entry);
                    if !has_failed && self.is_last(entry) {
                        self.check_last(entry, NodeTier::Memory);
                    } else if !has_failed {
                        self.check_victim(entry, NodeTier::Memory);
                        let is_held = self.disk.contains(&entry) || self.storing.contains_key(&entry);
                        assert!(is_held || !self.is_worth_storing(entry), "{entry} should be on disk");
                    }
                    assert!(self.memory.remove(&entry) && !self.is_pinned(entry));
                }
                NodeAction::Evict { entry: EntryId(entry), tier: NodeTier::Disk } => {
                    if self.spoiled.remove(&entry) {
                        continue;
                    }
                    if self.reserved.contains(&entry) {
                        self.check_last(entry, NodeTier::Disk);
                    } else {
                        self.check_victim(entry, NodeTier::Disk);
                    }
                    if self.used()[1] <= self.capacity[1] {
                        leaving.push((entry, self.key(entry)));
                    }
                    assert!(self.disk.remove(&entry));
                }
                NodeAction::Answer { consumer, access, entry, .. } => {
                    assert!(self.memory.contains(&entry.0));
                    self.end_wait(consumer, access, entry);
                    self.pins.push((consumer.0, access, entry.0));
                }
                NodeAction::Fail { consumer, access, entry, .. } => self.end_wait(consumer, access, entry),
                NodeAction::TakeBack { consumer, access, entry } => {
                    let at = self.pins.iter().position(|&one| one == (consumer.0, access, entry.0));
                    self.pins.remove(at.expect("it is pinned"));
                }
                NodeAction::Prioritize { entry, .. } => assert!(self.reading.contains_key(&entry.0)),
            }
        }
        assert!(leaving.is_empty(), "copies left the disk for nothing: {leaving:?}");
        assert_eq!(self.early, [], "they should be written before they leave the memory");
        let used = [NodeTier::Memory, NodeTier::Disk].map(|tier| self.planner.used(tier).get());
        assert_eq!(used, self.used());
    }

    fn end_wait(&mut self, consumer: ConsumerId, access: u64, entry: EntryId) {
        let is_it = |one: &(u64, u32, u64, u32)| (one.1, one.2, one.3) == (consumer.0, access, entry.0);
        let at = self.waiting.iter().position(is_it).expect("it was requested");
        self.waiting.remove(at);
    }

    fn end_read(&mut self, entry: u32, from: Source, is_ok: bool) {
        self.reading.remove(&entry);
        if is_ok {
            self.memory.insert(entry);
            self.unsaved.extend(Some(entry).filter(|_| from != Source::Disk));
            self.store_early();
        } else if from == Source::Disk {
            self.disk.remove(&entry);
        }
    }

    fn reserve(&mut self, entry: u32, is_reserved: bool) {
        self.planner.handle_reserved(EntryId(entry), is_reserved);
        if is_reserved {
            self.reserved.insert(entry);
        } else {
            self.reserved.remove(&entry);
        }
    }

    fn offer(&mut self, entry: u32) {
        let is_present = self.memory.contains(&entry)
            || self.disk.contains(&entry)
            || self.reading.contains_key(&entry)
            || self.storing.contains_key(&entry);
        let is_accepted = self.planner.handle_offer(EntryId(entry), ms(self.now));
        assert!(!is_accepted || !is_present, "{entry} is here");
        self.reading.extend(is_accepted.then_some((entry, Source::Peer)));
    }

    fn handle(&mut self, fact: Fact) {
        let now = ms(self.now);
        match fact {
            Fact::Announce { consumer, entries } => {
                self.readers[consumer as usize].ahead.extend(&entries);
                self.planner.handle_epoch(ConsumerId(consumer), &mut entries.into_iter().map(EntryId), now);
            }
            Fact::Request { consumer, skip, deadline } => {
                let reader = &mut self.readers[consumer as usize];
                let access = reader.first + skip as u64;
                let deadline = self.now + deadline;
                let result = self.planner.handle_request(ConsumerId(consumer), access, ms(deadline), now);
                assert_eq!(result.is_ok(), skip < reader.ahead.len());
                if result.is_ok() {
                    let entry = reader.ahead.drain(..=skip).next_back().unwrap();
                    reader.first = access + 1;
                    self.waiting.push((deadline, consumer, access, entry));
                }
            }
            Fact::Hits { consumer, count } => {
                let reader = &mut self.readers[consumer as usize];
                let result = self.planner.handle_hits(ConsumerId(consumer), count as u64, now);
                assert_eq!(result.is_ok(), count <= reader.ahead.len());
                if let Ok(bytes) = result {
                    let passed: Vec<u32> = reader.ahead.drain(..count).collect();
                    reader.first += count as u64;
                    assert_eq!(bytes.get(), self.size_of(&passed));
                }
            }
            Fact::Release { nth } if !self.pins.is_empty() => {
                let (consumer, access, _) = self.pins.remove(nth.index(self.pins.len()));
                self.planner.handle_release(ConsumerId(consumer), access);
            }
            Fact::Hurry { nth, deadline } if !self.waiting.is_empty() => {
                let nth = nth.index(self.waiting.len());
                let (before, consumer, access, _) = self.waiting[nth];
                // A deadline in the past counts as now, also one that was in the future before.
                let deadline = self.now + deadline;
                self.waiting[nth].0 = before.min(deadline);
                self.planner.handle_deadline(ConsumerId(consumer), access, ms(deadline), now);
            }
            Fact::Progress { consumer, by, interval } => {
                let reader = &mut self.readers[consumer as usize];
                let position = (reader.position + by).min(reader.first);
                if position > reader.position {
                    reader.since = self.now;
                }
                (reader.position, reader.interval) = (position, interval);
                self.planner.handle_progress(ConsumerId(consumer), position, Some(ms(interval)), now);
            }
            Fact::ReadDone { nth, is_ok } if !self.reading.is_empty() => {
                let (&entry, &from) = self.reading.iter().nth(nth.index(self.reading.len())).unwrap();
                self.end_read(entry, from, is_ok);
                let outcome = if is_ok { ReadOutcome::Ok } else { ReadOutcome::Failed };
                self.planner.handle_read(EntryId(entry), outcome, now);
            }
            Fact::StoreDone { nth, is_ok } if !self.storing.is_empty() => {
                let (&entry, &leaves) = self.storing.iter().nth(nth.index(self.storing.len())).unwrap();
                self.storing.remove(&entry);
                if self.suspect.remove(&entry) {
                    self.spoiled.insert(entry);
                } else if is_ok {
                    self.disk.insert(entry);
                } else {
                    self.failed_write = Some(entry).filter(|&entry| leaves && !self.is_pinned(entry));
                }
                self.store_early();
                let outcome = if is_ok { ReadOutcome::Ok } else { ReadOutcome::Failed };
                self.planner.handle_stored(EntryId(entry), outcome, now);
            }
            Fact::Lose { entry, tier } => {
                self.planner.handle_lost(EntryId(entry), tier, now);
                let copies = if tier == NodeTier::Memory { &mut self.memory } else { &mut self.disk };
                if copies.remove(&entry) && tier == NodeTier::Memory && self.storing.contains_key(&entry) {
                    self.suspect.insert(entry);
                }
            }
            Fact::Wait { millis } => self.now += millis,
            Fact::Resize { tier, bytes } => {
                self.capacity[usize::from(tier == NodeTier::Disk)] = bytes;
                self.planner.handle_capacity(tier, Bytes::new(bytes), now);
            }
            Fact::Restart { consumer } => {
                self.planner.handle_restart(ConsumerId(consumer), now);
                let reader = &mut self.readers[consumer as usize];
                reader.first += reader.ahead.drain(..).count() as u64;
                (reader.position, reader.since) = (reader.first, self.now);
                self.waiting.retain(|&(_, one, ..)| one != consumer);
            }
            Fact::Attach { consumer } => self.attach(consumer),
            Fact::Reserve { entry, is_reserved } => self.reserve(entry, is_reserved),
            Fact::Offer { entry } => self.offer(entry),
            Fact::Release { .. } | Fact::Hurry { .. } | Fact::ReadDone { .. } | Fact::StoreDone { .. } => {}
        }
        self.drain();
    }
}

proptest! {
    #![proptest_config(property(20_000))]

    #[test]
    fn every_decision_is_that_of_a_model_without_tables(
        memory in 0..20_u64,
        disk in prop_oneof![Just(0), 0..20_u64, Just(60)],
        sizes in prop_oneof![
            Just(vec![1; ENTRIES as usize]),
            prop::collection::vec(0..5_u64, ENTRIES as usize),
        ],
        facts in prop::collection::vec(fact(), 1..200),
    ) {
        let mut model = Model::new(memory, disk, &sizes);
        for fact in facts {
            model.handle(fact);
        }
    }
}
