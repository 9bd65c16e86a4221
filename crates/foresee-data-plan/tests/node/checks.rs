// SPDX-License-Identifier: Apache-2.0
//! What the node holds, from the actions alone, and the invariants of every action and every event.

use std::collections::{BTreeMap, BTreeSet};

use foresee_data_plan::{NodeAction, NodePlanner, NodeTier};
use foresee_units::{Bytes, Nanos, ReadOutcome, Source};

use crate::consumer::SimConsumer;
use crate::setup::{PIN_TIMEOUT, STALL_GRACE, Setup};

/// The contents of the node.
#[derive(Debug)]
pub(crate) struct Contents {
    sizes: Vec<Bytes>,
    align: u64,
    pub(crate) memory: BTreeSet<u32>,
    /// Those in memory that were answered once, which consumers find without a request.
    pub(crate) published: BTreeSet<u32>,
    pub(crate) disk: BTreeSet<u32>,
    pub(crate) reading: BTreeMap<u32, (Source, Nanos)>,
    pub(crate) storing: BTreeSet<u32>,
    /// Entries whose copy in memory was lost during the write.
    pub(crate) suspect: BTreeSet<u32>,
    /// By consumer and access: entry, and time of the answer.
    pub(crate) pins: BTreeMap<(u32, u64), (u32, Nanos)>,
    /// By consumer and access: the entry that it waits for.
    pub(crate) waiting: BTreeMap<(u32, u64), u32>,
    /// Capacities of the memory and the disk.
    pub(crate) capacity: [Bytes; 2],
    stalled_bytes_max: Bytes,
    read_ahead: Bytes,
    /// The entry whose copy in memory was lost in this event.
    pub(crate) lost: Option<u32>,
    /// The entry whose write has failed in this event.
    pub(crate) failed_write: Option<u32>,
    pub(crate) origin_reads: u64,
    pub(crate) answers: u64,
    pub(crate) taken_back: u64,
    pub(crate) failures: u64,
    /// The most bytes in flight and pinned at a time.
    pub(crate) transit_max: Bytes,
}

impl Contents {
    pub(crate) fn new(setup: &Setup) -> Self {
        Self {
            sizes: setup.sizes.iter().copied().map(Bytes::new).collect(),
            align: setup.align,
            memory: BTreeSet::new(),
            published: BTreeSet::new(),
            disk: BTreeSet::new(),
            reading: BTreeMap::new(),
            storing: BTreeSet::new(),
            suspect: BTreeSet::new(),
            pins: BTreeMap::new(),
            waiting: BTreeMap::new(),
            capacity: [Bytes::new(setup.memory), Bytes::new(setup.disk)],
            stalled_bytes_max: Bytes::new(setup.stalled_bytes_max),
            read_ahead: Bytes::new(setup.read_ahead),
            lost: None,
            failed_write: None,
            origin_reads: 0,
            answers: 0,
            taken_back: 0,
            failures: 0,
            transit_max: Bytes::ZERO,
        }
    }

    /// Check an action against the contents, and apply it.
    pub(crate) fn apply(&mut self, action: NodeAction, consumers: &[SimConsumer], now: Nanos) {
        match action {
            NodeAction::Read { entry, from, deadline, .. } => {
                assert!(
                    !self.memory.contains(&entry.0) && !self.reading.contains_key(&entry.0),
                    "read twice"
                );
                let is_on_disk = self.disk.contains(&entry.0);
                assert_eq!(from, if is_on_disk { Source::Disk } else { Source::Origin }, "another source");
                let is_requested = self.waiting.values().any(|&one| one == entry.0);
                assert!(is_requested || self.is_ahead(entry.0, consumers), "nobody needs it");
                self.reading.insert(entry.0, (from, deadline));
                self.origin_reads += u64::from(from == Source::Origin);
                assert!(self.memory_used() <= self.capacity[0], "no space in memory");
            }
            NodeAction::Prioritize { entry, deadline } => {
                let (_, earlier) = self.reading.get_mut(&entry.0).expect("it is being read");
                assert!(deadline < *earlier || *earlier <= now, "it is neither earlier nor late");
                *earlier = deadline;
            }
            NodeAction::Store { entry } => {
                assert!(self.memory.contains(&entry.0), "there are no bytes to write");
                assert!(!self.disk.contains(&entry.0) && self.storing.insert(entry.0), "written twice");
                assert!(self.disk_used() <= self.capacity[1], "no space on disk");
            }
            NodeAction::Evict { entry, tier: NodeTier::Memory } => {
                if self.failed_write.take_if(|one| *one == entry.0).is_none() {
                    self.check_order(entry.0, consumers, now);
                }
                assert!(self.memory.remove(&entry.0), "not in memory");
                self.published.remove(&entry.0);
                assert!(!self.is_pinned(entry.0), "an answered entry is evicted");
                assert!(!self.storing.contains(&entry.0), "evicted during its write");
            }
            NodeAction::Evict { entry, tier: NodeTier::Disk } => {
                let is_suspect = self.failed_write.take_if(|one| *one == entry.0).is_some();
                assert!(self.disk.remove(&entry.0) || is_suspect, "not on disk");
                let source = self.reading.get(&entry.0).map(|(source, _)| *source);
                assert_ne!(source, Some(Source::Disk), "evicted during its read");
            }
            NodeAction::Answer { consumer, access, entry, .. } => {
                assert!(self.memory.contains(&entry.0), "there are no bytes to answer with");
                self.end_wait(consumer.0, access, entry.0);
                self.pins.insert((consumer.0, access), (entry.0, now));
                self.published.insert(entry.0);
                self.answers += 1;
            }
            NodeAction::Fail { consumer, access, entry, outcome } => {
                self.end_wait(consumer.0, access, entry.0);
                let cost = self.cost(entry.0);
                assert!(outcome != ReadOutcome::Full || cost > self.capacity[0], "it would fit");
                self.failures += 1;
            }
            NodeAction::TakeBack { consumer, access, entry } => {
                let (pinned, since) = self.pins.remove(&(consumer.0, access)).expect("it is pinned");
                assert_eq!(pinned, entry.0);
                assert!(self.lost == Some(pinned) || now >= since + PIN_TIMEOUT, "taken back too early");
                self.taken_back += 1;
            }
        }
        self.transit_max = self.transit_max.max(self.transit());
    }

    /// Check what holds after every event, when no action is left.
    pub(crate) fn check(&self, planner: &NodePlanner, now: Nanos) {
        assert_eq!(planner.used(NodeTier::Memory), self.memory_used());
        assert_eq!(planner.used(NodeTier::Disk), self.disk_used());
        let in_use = |entry: &&u32| self.is_pinned(**entry) || self.storing.contains(*entry);
        if self.memory_used() > self.capacity[0] {
            let leaving = self.storing.intersection(&self.memory).filter(|entry| !self.is_pinned(**entry));
            let leaving: Bytes = leaving.map(|&entry| self.cost(entry)).sum();
            let is_enough = self.memory_used() <= self.capacity[0] + leaving;
            assert!(
                is_enough || self.memory.iter().all(|one| in_use(&one)),
                "a reduced memory is not emptied"
            );
            assert!(self.has_end(planner), "a reduced memory stays full");
        }
        if self.disk_used() > self.capacity[1] {
            assert!(
                self.disk.iter().all(|one| self.reading.contains_key(one)),
                "a reduced disk is not emptied"
            );
        }
        let starved = self.waiting.values().any(|entry| !self.reading.contains_key(entry));
        assert!(!starved || self.has_end(planner), "requests wait for nothing: {:?}", self.waiting);
        assert!(planner.poll_timeout().is_none_or(|at| at > now), "a timeout has passed without an action");
    }

    /// Whether a consumer is near the use of an entry: it may be read ahead of a request.
    fn is_ahead(&self, entry: u32, consumers: &[SimConsumer]) -> bool {
        let starved = self.waiting.values().any(|one| !self.reading.contains_key(one));
        let is_near = |one: &SimConsumer| {
            let before = one.announced().take_while(|&other| other != entry);
            let bytes: Bytes = before.map(|other| self.sizes[other as usize]).sum();
            one.is_attached && one.uses(entry) && bytes < self.read_ahead
        };
        !starved && consumers.iter().any(is_near)
    }

    /// Bytes in flight and pinned.
    fn transit(&self) -> Bytes {
        let pinned: BTreeSet<u32> = self.pins.values().map(|(entry, _)| *entry).collect();
        self.reading.keys().chain(&pinned).map(|&entry| self.cost(entry)).sum()
    }

    fn has_end(&self, planner: &NodePlanner) -> bool {
        !self.reading.is_empty() || !self.storing.is_empty() || planner.poll_timeout().is_some()
    }

    fn end_wait(&mut self, consumer: u32, access: u64, entry: u32) {
        assert_eq!(self.waiting.remove(&(consumer, access)), Some(entry), "no such request");
    }

    pub(crate) fn is_pinned(&self, entry: u32) -> bool {
        self.pins.values().any(|(pinned, _)| *pinned == entry)
    }

    fn cost(&self, entry: u32) -> Bytes {
        self.sizes[entry as usize].round_up(self.align)
    }

    fn memory_used(&self) -> Bytes {
        self.memory.iter().chain(self.reading.keys()).map(|&entry| self.cost(entry)).sum()
    }

    fn disk_used(&self) -> Bytes {
        self.disk.iter().chain(&self.storing).map(|&entry| self.cost(entry)).sum()
    }

    /// Check that nothing less useful than the victim could have left the memory.
    fn check_order(&self, victim: u32, consumers: &[SimConsumer], now: Nanos) {
        let uses = |entry: u32| consumers.iter().filter(move |one| one.is_attached && one.uses(entry));
        let stands_still = |one: &SimConsumer| now.saturating_sub(one.progress_at) > STALL_GRACE;
        let evictable = |entry: &&u32| !self.is_pinned(**entry) && !self.storing.contains(*entry);
        if uses(victim).next().is_none() {
            return;
        }
        let useless = self.memory.iter().filter(evictable).find(|&&entry| uses(entry).next().is_none());
        assert_eq!(useless, None, "an entry without an announced use stays");
        if uses(victim).any(stands_still) {
            return;
        }
        for (index, one) in
            consumers.iter().enumerate().filter(|(_, one)| one.is_attached && stands_still(one))
        {
            let only = |entry: &&u32| one.uses(**entry) && uses(**entry).count() == 1;
            let protected: Bytes =
                self.memory.iter().filter(evictable).filter(only).map(|&entry| self.cost(entry)).sum();
            assert!(
                protected <= self.stalled_bytes_max,
                "{protected} stay for consumer {index}, which stands still"
            );
        }
    }
}
