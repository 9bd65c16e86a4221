// SPDX-License-Identifier: Apache-2.0
//! The loop that follows the plan.
//!
//! One thread owns the planner, the fetch queue, the staging line and the table of reads, so none of them needs
//! a lock. A turn takes what came in (commands, ends of operations), asks the deciders what to do, does it, and
//! hands over what is complete; then the thread sleeps until the bell rings or the fetch queue's next moment.
//! Decides nothing itself: which sample, from where, kept or not, when and how often stand in
//! `foresee-data-plan`. Copies within memory are done here, a bounded amount per turn: handing a kilobyte to
//! another thread costs more than copying it. Only a consumer who waits for large samples lends a hand.

mod command;
mod fault;
mod fetch;
mod keep;
mod look;
mod plan;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use foresee_data_fetch::{Dispatch, Pace};
use foresee_data_plan::{PlannerStack, StackAccess};
use foresee_data_tier::{Completions, DiskTier, Done, RamTier, Tier};
use foresee_model::RateModel;
use foresee_units::{Bytes, Nanos};

pub(crate) use command::{Command, Inbox};
use fetch::Attempt;
use keep::{DiskCopies, Tiers};
pub use look::DriverFacts;

use crate::bell::Bell;
use crate::buffer::{Buffer, BufferPool};
use crate::cache::Member;
use crate::config::LoaderConfig;
use crate::data_set::DataSet;
use crate::gather::Gather;
use crate::handover::{Handed, Handover};
use crate::metrics::Metrics;
use crate::orders::{OrderAhead, RankEpoch};
use crate::reads::Reads;
use crate::staging::Staging;

/// What the driver shares with the consumer's thread.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) bell: Arc<Bell>,
    pub(crate) inbox: Inbox,
    pub(crate) handover: Handover,
    pub(crate) metrics: Metrics,
    pub(crate) buffers: Arc<BufferPool>,
    pub(crate) facts: std::sync::Mutex<DriverFacts>,
}

/// The places that the driver moves bytes between.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) origin: Arc<dyn Tier>,
    pub(crate) ram: Option<Arc<RamTier>>,
    pub(crate) disk: Option<Arc<DiskTier>>,
    /// Memory for copies on their way to the disk tier.
    pub(crate) copies: Bytes,
    pub(crate) completions: Completions,
}

/// Longest sleep: a change of the memory budget is noticed within this, and nothing else needs it.
const SLEEP_MAX: Duration = Duration::from_millis(500);
/// A source that was slow once is tried again after this long without a measurement.
const RATES_LAST: Nanos = Nanos::from_secs(30);
/// Turns between two looks at the figures that `stats` shows.
const TURNS_PER_LOOK: u32 = 64;

/// The driver's state; lives on its thread.
#[derive(Debug)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
    config: LoaderConfig,
    data: Arc<DataSet>,
    origin: Arc<dyn Tier>,
    completions: Completions,
    tiers: Tiers,
    member: Arc<Member>,
    planner: PlannerStack,
    access: StackAccess,
    dispatch: Dispatch,
    /// How the consumer goes through the batches, once he has taken a step.
    pace: Option<Pace>,
    orders: Option<OrderAhead>,
    /// Epochs that the planner knows and that are not fully opened as batches.
    known: VecDeque<RankEpoch>,
    /// Next step of the first known epoch.
    step: u64,
    run_ends: bool,
    staging: Staging,
    reads: Reads,
    attempts: HashMap<u64, Attempt>,
    copies: DiskCopies,
    /// Copies out of memory for a batch, by its slot, that the consumer is not done with.
    gathering: Option<(u64, Arc<Gather>)>,
    /// Samples that the memory tier has taken and not lost.
    in_memory: u64,
    /// What sources take, as measured in this run.
    rates: RateModel,
    /// Reads that the disk tier has not ended.
    disk_reads: u32,
    generation: u64,
    room: Bytes,
    /// The system refused memory for a batch: nothing is handed over any more, the consumer gets the reason.
    starved: bool,
    done: Vec<Done>,
    ready: Vec<Handed>,
    closing: bool,
}

impl Driver {
    pub(crate) fn new(
        shared: Arc<Shared>,
        config: LoaderConfig,
        data: Arc<DataSet>,
        places: Places,
        member: Arc<Member>,
        planner: PlannerStack,
        dispatch: Dispatch,
    ) -> Self {
        let staging = Staging::new(config.staging);
        let room = member.room();
        Self {
            shared,
            config,
            data,
            origin: places.origin,
            completions: places.completions,
            tiers: Tiers { ram: places.ram, disk: places.disk },
            member,
            planner,
            access: StackAccess::default(),
            dispatch,
            pace: None,
            orders: None,
            known: VecDeque::new(),
            step: 0,
            run_ends: false,
            staging,
            reads: Reads::default(),
            attempts: HashMap::new(),
            copies: DiskCopies::new(places.copies),
            gathering: None,
            in_memory: 0,
            rates: RateModel::default(),
            disk_reads: 0,
            generation: 0,
            room,
            starved: false,
            done: Vec::new(),
            ready: Vec::new(),
            closing: false,
        }
    }

    /// Runs until `close`.
    pub(crate) fn run(mut self) {
        let mut turns = 0_u32;
        loop {
            let busy = self.turn();
            if self.closing {
                self.publish_facts();
                return self.clear_memory();
            }
            turns = turns.wrapping_add(1);
            if !busy || turns.is_multiple_of(TURNS_PER_LOOK) {
                self.publish_facts();
                self.rates.forget_before(self.now().saturating_sub(RATES_LAST));
            }
            if !busy {
                self.shared.bell.wait(Some(self.sleep()));
            }
        }
    }

    /// One turn; whether there is more to do at once.
    fn turn(&mut self) -> bool {
        self.take_commands();
        self.take_done();
        let look = self.shared.handover.look();
        self.staging.note_taken(look.taken);
        self.follow_pace(look);
        self.follow_budget();
        let more = self.plan_some();
        if look.wanted {
            self.hurry();
        }
        self.start_fetches();
        self.retry_writes();
        self.hand_over();
        if look.wanted && self.ready.is_empty() {
            self.explain_wait();
        }
        more
    }

    fn now(&self) -> Nanos {
        self.shared.metrics.now()
    }

    fn sleep(&self) -> Duration {
        let now = self.now();
        self.dispatch
            .poll_wakeup()
            .map_or(SLEEP_MAX, |at| Duration::from(at.saturating_sub(now)).min(SLEEP_MAX))
    }

    /// Handles ends until there are none: what they lead to may end at once.
    fn take_done(&mut self) {
        loop {
            let mut done = std::mem::take(&mut self.done);
            self.completions.drain(&mut done);
            if done.is_empty() {
                self.done = done;
                return;
            }
            for end in done.drain(..) {
                self.handle_done(&end);
            }
            self.done = done;
        }
    }

    /// Sees to it that a buffer has its memory before the first byte comes; `false`, and the run ends, where the
    /// system has none.
    fn give_memory(&mut self, buffer: &Buffer) -> bool {
        if let Err(error) = buffer.take_memory() {
            self.shared.handover.break_with(error);
            self.starved = true;
        }
        !self.starved
    }

    fn hand_over(&mut self) {
        if self.starved {
            return;
        }
        self.staging.take_ready(&mut self.ready);
        if !self.ready.is_empty() {
            let near = self.all_in_memory();
            self.shared.handover.push(self.generation, self.ready.drain(..), near);
        }
        if self.run_ends && self.known.is_empty() && self.staging.is_empty() {
            self.shared.handover.finish(self.generation);
        }
    }
}
