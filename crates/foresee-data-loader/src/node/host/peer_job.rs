// SPDX-License-Identifier: Apache-2.0
//! A job whose nodes exchange samples, as the host of one node's cache knows it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use foresee_data_fetch::peers::{PeerExchange, PeerExchangeConfig, PeerReadsConfig, PeerSendsConfig};
use foresee_data_node::NodeError;
use foresee_data_plan::{JobPlan, JobPlanConfig, JobShape, PlacementConfig, TierCapacity, WantedEpoch};
use foresee_units::{Bytes, BytesPerSecond, Nanos, NodeIndex, SampleId};

use super::inbox::{HostEvent, Inbox};
use super::start_thread;
use crate::data_set::DataSet;
use crate::node::now;
use crate::node::peers::PeerListener;

/// Bytes and samples that are requested of one node at a time.
const REQUESTED_MAX: Bytes = Bytes::new(256 << 20);
const REQUESTS_MAX: usize = 1 << 16;
/// Rate of a node before it was measured: that of a slow network.
const INITIAL_RATE: BytesPerSecond = BytesPerSecond::new(100_000_000);
/// Time without a message after which a node counts as silent, and time between two messages.
const PATIENCE: Nanos = Nanos::from_millis(1000);
const INTERVAL: Nanos = Nanos::from_millis(100);
/// Bytes on their way to one node: several samples, and few milliseconds of a fast network.
const IN_FLIGHT_MAX: Bytes = Bytes::new(4 << 20);
/// Bytes that are kept for nodes to which they were offered.
const OFFERED_MAX: Bytes = Bytes::new(64 << 20);
/// Time of a read of the origin before it was measured.
const ORIGIN_TIME: Nanos = Nanos::from_millis(100);
/// Accesses of all nodes for which the plan runs ahead.
const AHEAD: u64 = 1 << 16;

/// The accesses that a plan is about: those of one loader of each rank, after all of them continued elsewhere equally often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanKey {
    /// Name of the job.
    pub job: String,
    /// Identity of the loader within the job.
    pub loader: [u8; 16],
    /// How often the loaders have continued elsewhere before.
    pub generation: u32,
}

/// Samples of a data set, a bit for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleSet(Vec<u8>);

impl SampleSet {
    /// The samples below `count` that are chosen.
    ///
    /// # Panics
    /// If memory cannot have a bit of each.
    pub fn new(count: u64, mut is_chosen: impl FnMut(SampleId) -> bool) -> Self {
        let mut bytes =
            vec![0; usize::try_from(count.div_ceil(8)).expect("a bit of each sample fits into memory")];
        for (at, byte) in (0_u64..).zip(&mut bytes) {
            for bit in (0..8).filter(|bit| at * 8 + bit < count && is_chosen(SampleId(at * 8 + bit))) {
                *byte |= 1 << bit;
            }
        }
        Self(bytes)
    }

    /// Samples by the bits of these bytes, the lowest bit of the first byte first.
    pub const fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The samples below `count`, ascending.
    pub fn iter(&self, count: u64) -> impl Iterator<Item = SampleId> + '_ {
        let bits = (0_u64..).zip(&self.0).flat_map(|(at, byte)| {
            (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| at * 8 + bit)
        });
        bits.take_while(move |&sample| sample < count).map(SampleId)
    }
}

/// What all nodes of a job know. They must have equal values, except for [`draw`](Self::draw), which must give equal lists.
pub struct PeerJob {
    /// See [`PlanKey`].
    pub plan: PlanKey,
    /// The index file of the data set: its fingerprint.
    pub fingerprint: [u8; 16],
    /// By node: where it listens.
    pub addresses: Vec<SocketAddr>,
    /// By node: what it reserves, see [`NodeHost::reservable`](super::NodeHost::reservable).
    pub capacities: Vec<TierCapacity>,
    /// By node: the samples that it has at the start. Of several nodes with a sample, the first one keeps it for all.
    pub contents: Vec<SampleSet>,
    /// Ranks, nodes and batches.
    pub shape: JobShape,
    /// Epochs that the plan looks ahead.
    pub horizon: usize,
    /// The samples of an epoch of the plan, from 0, by step and rank; `None` if it has no such epoch. Called on a thread of its
    /// own.
    pub draw: DrawEpoch,
}

/// See [`PeerJob::draw`].
pub type DrawEpoch = Box<dyn FnMut(u64) -> Option<Vec<SampleId>> + Send>;

impl std::fmt::Debug for PeerJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerJob")
            .field("plan", &self.plan)
            .field("addresses", &self.addresses)
            .field("capacities", &self.capacities)
            .field("shape", &self.shape)
            .field("horizon", &self.horizon)
            .finish_non_exhaustive()
    }
}

/// A job that waits for its data set to be opened.
#[derive(Debug)]
pub(super) struct JoiningJob {
    pub(super) job: PeerJob,
    pub(super) listener: PeerListener,
}

impl PeerJob {
    /// This node's exchange for a data set.
    ///
    /// # Errors
    /// The plan refuses the number of samples or nodes.
    pub(super) fn exchange(
        &self,
        listener: &PeerListener,
        data: Arc<DataSet>,
    ) -> Result<PeerExchange, String> {
        let Self { capacities, contents, shape, horizon, .. } = self;
        let placement = PlacementConfig { capacities: capacities.clone(), horizon: *horizon };
        let own = listener.options().own;
        let config = JobPlanConfig { own, shape: shape.clone(), placement, ahead: AHEAD };
        let count = data.index().len();
        let mut plan = JobPlan::new(config, data).map_err(|why| why.to_string())?;
        for (node, samples) in (0..).map(NodeIndex).zip(contents) {
            for sample in samples.iter(count) {
                plan.handle_contents(node, sample);
            }
        }
        let config = PeerExchangeConfig {
            reads: PeerReadsConfig {
                requested_max: REQUESTED_MAX,
                requests_max: REQUESTS_MAX,
                initial_rate: INITIAL_RATE,
                patience: PATIENCE,
            },
            sends: PeerSendsConfig { in_flight_max: IN_FLIGHT_MAX, requests_max: REQUESTS_MAX },
            interval: INTERVAL,
            offered_max: OFFERED_MAX,
            origin_time: ORIGIN_TIME,
        };
        Ok(PeerExchange::new(config, plan, now()))
    }
}

/// Start the thread that draws the epochs of a job; it ends with the returned queue.
pub(super) fn start_drawing(
    mut draw: DrawEpoch,
    exchange: u64,
    inbox: Arc<Inbox>,
) -> Result<Sender<WantedEpoch>, NodeError> {
    let (sender, wanted): (_, Receiver<WantedEpoch>) = channel();
    drop(start_thread("foresee-orders", move || {
        while let Ok(wanted) = wanted.recv() {
            let (WantedEpoch::Accesses(epoch) | WantedEpoch::Later(epoch)) = wanted;
            inbox.push(HostEvent::EpochDrawn { exchange, wanted, samples: draw(epoch) });
        }
    })?);
    Ok(sender)
}
