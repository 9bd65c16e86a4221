// SPDX-License-Identifier: Apache-2.0
//! The loop that follows the plan.
//!
//! One thread owns the planner, the schedule of epochs, the tiers, the reads and the staging line, so none of them needs
//! a lock. A turn takes what came in (commands, ends of operations), asks the deciders what to do, does it, and hands
//! over what is complete; then the thread sleeps until it is woken or the fetch queue's next moment comes. Copies within
//! memory are done here, a bounded amount per turn: handing a kilobyte to another thread costs more than copying it.

mod cache_fill;
mod command;
mod delivery;
mod fault;
mod fetch;
mod plan;
mod rates;
mod schedule;
mod snapshot;
mod tickets;
mod tiers;

use std::sync::Arc;
use std::time::Duration;

use foresee_data_fetch::Dispatch;
use foresee_data_plan::{PlannerStack, StackAccess};
use foresee_data_tier::{Completions, DiskTier, Done, RamTier, Tier};
use foresee_units::{Bytes, Nanos};

pub(crate) use command::{Command, Inbox};
use delivery::Delivery;
use fetch::Fetches;
use rates::Rates;
use schedule::EpochSchedule;
pub use snapshot::DriverFacts;
use tiers::CacheTiers;

use crate::batch_queue::BatchQueue;
use crate::buffer::BufferPool;
use crate::cache::Member;
use crate::config::LoaderConfig;
use crate::data_set::DataSet;
use crate::metrics::Metrics;
use crate::waker::Waker;

/// What the driver shares with the consumer's thread.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) waker: Arc<Waker>,
    pub(crate) inbox: Inbox,
    pub(crate) batches: BatchQueue,
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
/// Turns between two updates of the metrics that `stats` shows.
const TURNS_PER_UPDATE: u32 = 64;

/// The driver's state; lives on its thread.
#[derive(Debug)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
    data: Arc<DataSet>,
    planner: PlannerStack,
    access: StackAccess,
    schedule: EpochSchedule,
    tiers: CacheTiers,
    fetches: Fetches,
    rates: Rates,
    delivery: Delivery,
    done: Vec<Done>,
    closing: bool,
}

impl Driver {
    pub(crate) fn new(
        shared: Arc<Shared>,
        config: &LoaderConfig,
        data: Arc<DataSet>,
        places: Places,
        member: Arc<Member>,
        planner: PlannerStack,
        dispatch: Dispatch,
    ) -> Self {
        Self {
            planner,
            access: StackAccess::default(),
            schedule: EpochSchedule::new(config.run.clone()),
            fetches: Fetches::new(Arc::clone(&places.origin), dispatch),
            tiers: CacheTiers::new(places, member, data.index().len()),
            rates: Rates::default(),
            delivery: Delivery::new(Arc::clone(&shared), config.staging),
            done: Vec::new(),
            closing: false,
            shared,
            data,
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
            if !busy || turns.is_multiple_of(TURNS_PER_UPDATE) {
                self.publish_facts();
                self.rates.forget_old(self.now());
            }
            if !busy {
                self.shared.waker.wait(Some(self.sleep()));
            }
        }
    }

    /// One turn; whether there is more to do at once.
    fn turn(&mut self) -> bool {
        self.take_commands();
        self.take_done();
        let consumer = self.shared.batches.snapshot();
        self.delivery.staging.note_taken(consumer.taken);
        let rate = self.rates.follow_consumer(consumer, self.delivery.staging.next(), self.now());
        self.fetches.dispatch.handle_pace(rate);
        self.follow_budget();
        let more = self.plan_some();
        if consumer.is_waiting {
            self.prioritize_head();
        }
        self.start_fetches();
        self.retry_writes();
        self.delivery.hand_over(self.tiers.hold_all_in_memory(), self.schedule.is_over());
        if consumer.is_waiting {
            self.explain_wait();
        }
        more
    }

    fn now(&self) -> Nanos {
        self.shared.metrics.now()
    }

    fn sleep(&self) -> Duration {
        let now = self.now();
        let wakeup = self.fetches.dispatch.poll_wakeup();
        wakeup.map_or(SLEEP_MAX, |at| Duration::from(at.saturating_sub(now)).min(SLEEP_MAX))
    }

    /// Handles ends until there are none: what they lead to may end at once.
    fn take_done(&mut self) {
        loop {
            let mut done = std::mem::take(&mut self.done);
            self.tiers.drain(&mut done);
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
}
