// SPDX-License-Identifier: Apache-2.0
//! A run: consumers that announce, hand out and request, and readers, in random order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foresee_data_plan::{
    ConsumerId, FetchGrouping, NeighbourGroups, ObjectRange, ReaderId, SampleCacheConfig, SampleCachePlanner,
    SampleLookup,
};
use foresee_testkit::{Dice, SimulatedRun};
use foresee_units::{Bytes, Nanos, SampleId};

use crate::setup::{CacheSetup, ConsumerSetup, Grouping};

/// Events without activity after which a consumer stands still.
const GRACE: u64 = 200;
/// Events after which a run hangs.
const EVENTS_MAX: u32 = 200_000;

/// A consumer of the run.
#[derive(Debug)]
pub(crate) struct SimItemConsumer {
    setup: ConsumerSetup,
    epoch: usize,
    /// Accesses of the epoch that are not announced, and announced ones that are not handed out.
    pending: VecDeque<u32>,
    queue: VecDeque<u32>,
    /// Handed out and not requested: position and sample.
    outstanding: VecDeque<(u64, u32)>,
    handed_out: u64,
    /// The sample that it waits for.
    waits_for: Option<u32>,
    active_at: u64,
    paused_until: u64,
    is_first: bool,
    pub(crate) requests: u64,
}

/// A cache with its planner.
#[derive(Debug)]
pub(crate) struct CacheWorld {
    pub(crate) setup: CacheSetup,
    dice: Dice,
    planner: SampleCachePlanner,
    pub(crate) consumers: Vec<SimItemConsumer>,
    cached: BTreeSet<u32>,
    /// By sample being read: its reader.
    reading: BTreeMap<u32, u32>,
    now: u64,
    pub(crate) reads: u64,
    pub(crate) hits: u64,
    pub(crate) trace: Option<Vec<String>>,
}

impl CacheWorld {
    pub(crate) fn new(mut dice: Dice, make: impl Fn(&mut Dice) -> CacheSetup) -> Self {
        let setup = make(&mut dice);
        let capacity = Bytes::new(setup.capacity);
        let mut planner =
            SampleCachePlanner::new(SampleCacheConfig { capacity, stall_grace: Nanos::new(GRACE) });
        let consumers: Vec<_> = setup.consumers.iter().cloned().map(SimItemConsumer::new).collect();
        for (index, one) in (0..).zip(&consumers) {
            planner.handle_attach(ConsumerId(index), false, Nanos::ZERO);
            one.expect(&mut planner, index);
        }
        let (cached, reading) = (BTreeSet::new(), BTreeMap::new());
        Self { setup, dice, planner, consumers, cached, reading, now: 0, reads: 0, hits: 0, trace: None }
    }

    pub(crate) fn run(&mut self) {
        for _ in 0..EVENTS_MAX {
            self.now += 1;
            let parties = self.consumers.len() + self.setup.readers;
            let party = self.dice.below(parties);
            if party < self.consumers.len() {
                self.consumer_event(party);
            } else {
                self.reader_event(u32::try_from(party).expect("it is small"));
            }
            self.apply();
            if self.consumers.iter().all(SimItemConsumer::is_finished) {
                return;
            }
        }
        panic!("the run hangs: {:?}", self.consumers);
    }

    fn consumer_event(&mut self, party: usize) {
        let number = u32::try_from(party).expect("it is small");
        let (id, now) = (ConsumerId(number), Nanos::new(self.now));
        let one = &mut self.consumers[party];
        if one.waits_for.is_some() || self.now < one.paused_until {
            return;
        }
        if one.queue.len() <= one.setup.threshold && !one.pending.is_empty() {
            let len = one.setup.fetch_size.min(one.pending.len());
            let window: Vec<u32> = one.pending.drain(..len).collect();
            self.planner.handle_announce(id, &mut window.iter().map(|&each| SampleId(each.into())), now);
            one.queue.extend(window);
            one.active_at = self.now;
        } else if one.may_hand_out()
            && let Some(sample) = one.queue.pop_front()
        {
            one.outstanding.push_back((one.handed_out, sample));
            one.handed_out += 1;
            one.active_at = self.now;
            self.planner.handle_handed_out(id, one.handed_out, now);
        } else if let Some(offset) = one.next_request(&mut self.dice) {
            let (_, sample) = one.outstanding.remove(offset).expect("it is handed out");
            if one.setup.left_out > 0 && self.dice.one_in(one.setup.left_out) {
                return;
            }
            (one.active_at, one.requests) = (self.now, one.requests + 1);
            self.request(party, sample);
        } else if one.pending.is_empty() && one.epoch + 1 < one.setup.epochs.len() {
            one.epoch += 1;
            one.pending = one.setup.epochs[one.epoch].iter().copied().collect();
            if std::mem::take(&mut one.is_first) {
                one.paused_until = self.now + u64::from(one.setup.pause);
            }
        }
    }

    fn request(&mut self, party: usize, sample: u32) {
        let reader = ReaderId(u32::try_from(party).expect("it is small"));
        if self.setup.claims && self.claim(party, sample) {
            return;
        }
        let answer = self.planner.handle_request(SampleId(sample.into()), reader, Nanos::new(self.now));
        self.log(|| format!("{party} requests {sample}: {answer:?}"));
        self.on_answer(party, sample, answer);
    }

    /// Claim a sample; whether the consumer reads it now.
    fn claim(&mut self, party: usize, sample: u32) -> bool {
        let reader = u32::try_from(party).expect("it is small");
        let now = Nanos::new(self.now);
        let claimed = with_grouping(&self.setup, |grouping| {
            self.planner.handle_claim(&[SampleId(sample.into())], ReaderId(reader), grouping, now)
        });
        self.log(|| format!("{party} claims {sample}: {claimed:?}"));
        let is_available = self.cached.contains(&sample) || self.reading.contains_key(&sample);
        if claimed.is_empty() {
            // Samples with a read of their own may be left to the readers ahead: then the consumer requests them.
            let may_be_left = matches!(self.setup.grouping, Grouping::Neighbours { .. });
            assert!(is_available || may_be_left, "{sample} is not claimed");
            return false;
        }
        assert!(!is_available && claimed[0] == SampleId(sample.into()));
        for SampleId(one) in claimed {
            self.start(u32::try_from(one).expect("it is small"), reader);
        }
        self.consumers[party].waits_for = Some(sample);
        true
    }

    fn on_answer(&mut self, party: usize, sample: u32, answer: SampleLookup) {
        match answer {
            SampleLookup::Hit => {
                assert!(self.cached.contains(&sample), "a hit without bytes");
                self.hits += 1;
            }
            SampleLookup::Join => {
                assert!(self.reading.contains_key(&sample), "joined no read");
                self.consumers[party].waits_for = Some(sample);
            }
            SampleLookup::Read => {
                self.start(sample, u32::try_from(party).expect("it is small"));
                self.consumers[party].waits_for = Some(sample);
            }
        }
    }

    fn start(&mut self, sample: u32, reader: u32) {
        assert!(!self.cached.contains(&sample), "{sample} is read although it is cached");
        assert!(self.reading.insert(sample, reader).is_none(), "{sample} is read twice at a time");
        self.reads += 1;
    }

    fn reader_event(&mut self, reader: u32) {
        if let Some(&sample) = self.dice.some_of(&self.reading.keys().copied().collect::<Vec<_>>()).first() {
            if self.setup.lost_readers > 0 && self.dice.one_in(self.setup.lost_readers) {
                self.lose(self.reading[&sample]);
            } else {
                self.end(sample);
            }
        }
        if self.reading.values().any(|&one| one == reader) {
            return;
        }
        let now = Nanos::new(self.now);
        let group = with_grouping(&self.setup, |grouping| {
            self.planner.poll_fetch_group(ReaderId(reader), grouping, now)
        });
        self.log(|| format!("reader {reader} fetches {group:?}"));
        for (place, SampleId(sample)) in group.into_iter().enumerate() {
            let sample = u32::try_from(sample).expect("it is small");
            let is_announced = self.consumers.iter().any(|one| one.announces(sample));
            let leaves_out = self.setup.consumers.iter().any(|one| one.left_out > 0);
            let is_neighbour = place > 0 && matches!(self.setup.grouping, Grouping::Neighbours { .. });
            let may_be_unannounced = leaves_out || is_neighbour && holds_all(&self.setup);
            assert!(is_announced || may_be_unannounced, "{sample} is fetched, but not announced");
            self.start(sample, reader);
        }
    }

    /// A read ends: with the sample, or with an error that its readers get.
    fn end(&mut self, sample: u32) {
        self.reading.remove(&sample);
        let fails = self.setup.failures > 0 && self.dice.one_in(self.setup.failures);
        if fails {
            self.planner.handle_failed(SampleId(sample.into()));
        } else {
            let size = Bytes::new(self.setup.sizes[sample as usize]);
            let enters = self.planner.handle_read(SampleId(sample.into()), size);
            self.log(|| format!("{sample} was read, enters: {enters}"));
            self.apply();
            if enters {
                self.cached.insert(sample);
            }
        }
        let waiting = self.consumers.iter_mut().filter(|one| one.waits_for == Some(sample));
        waiting.for_each(|one| one.waits_for = None);
    }

    fn lose(&mut self, reader: u32) {
        let ended = self.planner.handle_reader_lost(ReaderId(reader));
        let expected: Vec<SampleId> = self
            .reading
            .iter()
            .filter(|&(_, &one)| one == reader)
            .map(|(&one, _)| SampleId(one.into()))
            .collect();
        assert_eq!(ended, expected);
        self.reading.retain(|_, one| *one != reader);
        for SampleId(sample) in ended {
            let sample = u32::try_from(sample).expect("it is small");
            for party in 0..self.consumers.len() {
                if self.consumers[party].waits_for.take_if(|one| *one == sample).is_some() {
                    let reader = ReaderId(u32::try_from(party).expect("it is small"));
                    let now = Nanos::new(self.now);
                    let answer = self.planner.handle_retry(SampleId(sample.into()), reader, now);
                    self.on_answer(party, sample, answer);
                }
            }
        }
    }

    /// Execute evictions, and check the state.
    fn apply(&mut self) {
        while let Some(SampleId(victim)) = self.planner.poll_eviction() {
            let victim = u32::try_from(victim).expect("it is small");
            self.log(|| format!("{victim} is evicted"));
            assert!(self.cached.remove(&victim), "{victim} is evicted, but not cached");
            // Requests name no consumer, so equal samples of several may be mistaken for one another.
            let is_exact = (0..self.consumers.len()).all(|party| self.skipped(party) == 0);
            let moves = |one: &SimItemConsumer| self.now - one.active_at <= GRACE;
            let owner = self.consumers.iter().position(|one| moves(one) && one.announces(victim));
            assert!(!is_exact || owner.is_none(), "{victim} is evicted, but {owner:?} has announced it");
        }
        let used: u64 = self.cached.iter().map(|&sample| self.setup.sizes[sample as usize]).sum();
        assert!(used <= self.setup.capacity, "{used} bytes are cached");
    }

    /// Accesses of a consumer that were passed over.
    pub(crate) fn skipped(&self, party: usize) -> u64 {
        let id = ConsumerId(u32::try_from(party).expect("it is small"));
        self.planner.outstanding(id).expect("it is attached").1
    }

    fn log(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now}: {}", line()));
        }
    }
}

/// Whether the cache can hold all samples.
fn holds_all(setup: &CacheSetup) -> bool {
    setup.sizes.iter().sum::<u64>() <= setup.capacity
}

fn with_grouping<T>(setup: &CacheSetup, plan: impl FnOnce(FetchGrouping<'_>) -> T) -> T {
    let has_peers = match setup.grouping {
        Grouping::Single => return plan(FetchGrouping::Single),
        Grouping::InOrder => return plan(FetchGrouping::InOrder),
        Grouping::Neighbours { has_peers } => has_peers,
    };
    let range_of = |SampleId(sample): SampleId| {
        let before = setup.sizes.get(..usize::try_from(sample).ok()?)?;
        let len = *setup.sizes.get(before.len())?;
        Some(ObjectRange { object: 0, start: before.iter().sum(), len })
    };
    let groups = NeighbourGroups { range_of: &range_of, holds_all: holds_all(setup), has_peers };
    plan(FetchGrouping::Neighbours(groups))
}

impl SimItemConsumer {
    fn new(setup: ConsumerSetup) -> Self {
        Self {
            pending: setup.epochs[0].iter().copied().collect(),
            setup,
            epoch: 0,
            queue: VecDeque::new(),
            outstanding: VecDeque::new(),
            handed_out: 0,
            waits_for: None,
            active_at: 0,
            paused_until: 0,
            is_first: true,
            requests: 0,
        }
    }

    fn expect(&self, planner: &mut SampleCachePlanner, index: u32) {
        let Some(is_right) = self.setup.expects else { return };
        let mut all: Vec<u32> = self.setup.epochs.iter().flatten().copied().collect();
        if !is_right {
            all.reverse();
        }
        planner.handle_expect(ConsumerId(index), &mut all.iter().map(|&one| SampleId(one.into())));
    }

    /// Whether the loader's queue has space: its batches end in order.
    fn may_hand_out(&self) -> bool {
        let oldest = self.outstanding.front().map_or(self.handed_out, |&(position, _)| position);
        self.handed_out - oldest < self.setup.depth as u64
    }

    /// Place among the outstanding accesses of the next request.
    fn next_request(&self, dice: &mut Dice) -> Option<usize> {
        let window = self.outstanding.len().min(self.setup.reorder + 1);
        (window > 0).then(|| dice.below(window))
    }

    fn announces(&self, sample: u32) -> bool {
        self.queue.contains(&sample) || self.outstanding.iter().any(|&(_, one)| one == sample)
    }

    fn is_finished(&self) -> bool {
        let left = self.pending.len() + self.queue.len() + self.outstanding.len();
        left == 0 && self.waits_for.is_none() && self.epoch + 1 == self.setup.epochs.len()
    }
}

impl SimulatedRun for CacheWorld {
    fn start_trace(&mut self) {
        self.trace = Some(Vec::new());
    }

    fn report(&self) -> String {
        format!("{:#?}\n{}", self.setup, self.trace.as_deref().unwrap_or_default().join("\n"))
    }
}
