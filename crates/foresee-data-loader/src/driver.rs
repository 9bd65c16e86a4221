// SPDX-License-Identifier: Apache-2.0
//! The loop that executes the plan.
//!
//! One thread owns the planner, the schedule of epochs, the tiers, the reads and the staging buffer, so none of them
//! needs a lock. A turn takes commands and ends of operations, queries the deciders, executes their actions, and
//! delivers complete batches. Then the thread sleeps until it is woken or the fetch queue's next wake-up. Copies
//! within memory are done here, a bounded amount per turn: to hand a kilobyte to another thread costs more than to
//! copy it.

mod cache_fill;
mod command;
mod copies;
mod delivery;
mod fetch;
mod node;
mod plan;
mod progress;
mod rates;
mod read_ahead;
mod reattach;
mod schedule;
mod snapshot;
pub(crate) mod tickets;
mod tiers;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use foresee_data_fetch::Dispatch;
use foresee_data_plan::{HierarchyAccess, HierarchyPlanner};
use foresee_data_tier::{Completions, DiskTier, Done, RamTier, Tier};
use foresee_units::{Bytes, Nanos};

pub(crate) use command::{Command, CommandQueue};
use copies::NodeCopies;
use delivery::Delivery;
use fetch::Fetches;
use node::NodeLink;
use rates::Rates;
use schedule::{EpochSchedule, EpochSink};
pub use snapshot::DriverStats;
pub(crate) use tickets::TicketOwner;
use tiers::CacheTiers;

use crate::batch_queue::BatchQueue;
use crate::buffer::BufferPool;
use crate::cache::CacheShare;
use crate::config::LoaderConfig;
use crate::data_set::DataSet;
use crate::node::{Attached, HostSearch};
use crate::notices::Notices;
use crate::recorder::Recorder;
use crate::waker::Waker;

/// The state that the driver and the consumer's thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) waker: Arc<Waker>,
    pub(crate) commands: CommandQueue,
    pub(crate) batches: BatchQueue,
    pub(crate) recorder: Recorder,
    pub(crate) buffers: Arc<BufferPool>,
    pub(crate) stats: Mutex<DriverStats>,
    pub(crate) notices: Notices,
}

/// The tiers between which the driver moves bytes.
#[derive(Debug)]
pub(crate) struct DriverTiers {
    pub(crate) origin: Arc<dyn Tier>,
    pub(crate) ram: Option<Arc<RamTier>>,
    pub(crate) disk: Option<Arc<DiskTier>>,
    /// Memory for copies in flight to the disk tier.
    pub(crate) copies: Bytes,
    pub(crate) completions: Completions,
    pub(crate) share: Arc<CacheShare>,
}

/// The cache of the node at the start of a loader.
#[derive(Debug)]
pub(crate) enum DriverNode {
    /// The loader has caches of its own.
    None,
    /// It consumes from this host.
    Attached(Box<Attached>),
    /// It has no caches, and searches for a host that has not answered.
    Searching(HostSearch),
}

/// Maximum sleep. Only a change of the memory budget needs it, and is noticed within this time.
const SLEEP_MAX: Duration = Duration::from_millis(500);
/// Turns between two updates of `stats`.
const TURNS_PER_UPDATE: u32 = 64;

/// The driver's state, owned by its thread.
#[derive(Debug)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
    data: Arc<DataSet>,
    planner: HierarchyPlanner,
    access: HierarchyAccess,
    schedule: EpochSchedule,
    tiers: CacheTiers,
    fetches: Fetches,
    rates: Rates,
    delivery: Delivery,
    /// The cache of the node, while this loader consumes from it.
    node: Option<NodeLink>,
    /// What it has got from there, also after the end of the host.
    copies: Option<NodeCopies>,
    /// The search for a host after the last one has ended, or has not answered at the start.
    search: Option<HostSearch>,
    done: Vec<Done>,
    is_closing: bool,
}

impl Driver {
    pub(crate) fn new(
        shared: Arc<Shared>,
        config: &LoaderConfig,
        data: Arc<DataSet>,
        tiers: DriverTiers,
        planner: HierarchyPlanner,
        dispatch: Dispatch,
        node: DriverNode,
    ) -> Self {
        let (attached, search) = match node {
            DriverNode::None => (None, None),
            DriverNode::Attached(attached) => (Some(*attached), None),
            DriverNode::Searching(search) => (None, Some(search)),
        };
        Self {
            copies: attached.as_ref().map(|attached| NodeCopies::new(attached.host.clone())),
            node: attached.map(|attached| NodeLink::new(attached, 0)),
            search,
            planner,
            access: HierarchyAccess::default(),
            schedule: EpochSchedule::new(config.run.clone()),
            fetches: Fetches::new(Arc::clone(&tiers.origin), dispatch),
            tiers: CacheTiers::new(tiers, data.index().len()),
            rates: Rates::default(),
            delivery: Delivery::new(Arc::clone(&shared), config.staging),
            done: Vec::new(),
            is_closing: false,
            shared,
            data,
        }
    }

    /// Run until `close`.
    pub(crate) fn run(mut self) {
        let mut turns = 0_u32;
        loop {
            let is_busy = self.turn();
            if self.is_closing {
                self.publish_stats();
                return self.clear_memory();
            }
            turns = turns.wrapping_add(1);
            if !is_busy || turns.is_multiple_of(TURNS_PER_UPDATE) {
                self.publish_stats();
                self.rates.forget_old(self.now());
            }
            if !is_busy {
                self.shared.waker.wait(self.sleep_time());
            }
        }
    }

    /// Do one turn; return whether the next can follow at once.
    fn turn(&mut self) -> bool {
        self.take_commands();
        self.take_done();
        let consumer = self.shared.batches.snapshot();
        self.delivery.staging.note_taken(consumer.taken);
        let rate = self.rates.update_consumer(consumer, self.delivery.staging.next(), self.now());
        self.fetches.origin_reads.handle_consumer_rate(rate);
        self.update_budget();
        self.handle_node(consumer);
        self.handle_search();
        let is_busy = if self.node.is_some() { self.request_turn(consumer) } else { self.plan_turn() };
        if consumer.is_waiting {
            self.prioritize_head();
        }
        self.start_fetches();
        self.retry_writes();
        self.delivery.deliver(self.tiers.all_in_memory(), self.schedule.is_over());
        if consumer.is_waiting {
            self.report_wait();
        }
        is_busy
    }

    fn now(&self) -> Nanos {
        self.shared.recorder.now()
    }

    fn sleep_time(&self) -> Duration {
        let fetches = self.fetches.origin_reads.queue().poll_wakeup();
        let wakeup = fetches.into_iter().chain(self.node.as_ref().and_then(NodeLink::poll_wakeup)).min();
        wakeup.map_or(SLEEP_MAX, |at| Duration::from(at.saturating_sub(self.now())).min(SLEEP_MAX))
    }

    /// Handle ends of operations until there are none, because new operations may end at once.
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

/// Who plans the epochs: the host of the node's cache, or this loader.
fn sink<'a>(planner: &'a mut HierarchyPlanner, node: &'a mut Option<NodeLink>) -> &'a mut dyn EpochSink {
    match node {
        Some(node) => node,
        None => planner,
    }
}
