// SPDX-License-Identifier: Apache-2.0
//! A job whose nodes exchange samples, as the host of one node's cache knows it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use foresee_data_fetch::peers::{PeerExchange, PeerExchangeConfig, PeerReadsConfig, PeerSendsConfig};
use foresee_data_node::NodeError;
use foresee_data_plan::{JobPlan, JobPlanConfig, JobShape, PlacementConfig, TierCapacity, WantedEpoch};
use foresee_units::{Bytes, BytesPerSecond, Nanos, SampleId};

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

/// What all nodes of a job know. They must have equal values, except for [`draw`](Self::draw), which must give equal lists.
pub struct PeerJob {
    /// The index file of the data set: its fingerprint.
    pub fingerprint: [u8; 16],
    /// By node: where it listens.
    pub addresses: Vec<SocketAddr>,
    /// By node: what it reserves, see [`NodeHost::reservable`](super::NodeHost::reservable).
    pub capacities: Vec<TierCapacity>,
    /// Ranks, nodes and batches.
    pub shape: JobShape,
    /// Epochs that the plan looks ahead.
    pub horizon: usize,
    /// The samples of an epoch of the run, from 0, by step and rank; `None` if the run has no such epoch. Called on a thread of
    /// its own.
    pub draw: DrawEpoch,
}

/// See [`PeerJob::draw`].
pub type DrawEpoch = Box<dyn FnMut(u64) -> Option<Vec<SampleId>> + Send>;

impl std::fmt::Debug for PeerJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerJob")
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
        let Self { capacities, shape, horizon, .. } = self;
        let placement = PlacementConfig { capacities: capacities.clone(), horizon: *horizon };
        let own = listener.options().own;
        let config = JobPlanConfig { own, shape: shape.clone(), placement, ahead: AHEAD };
        let plan = JobPlan::new(config, data).map_err(|why| why.to_string())?;
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
    inbox: Arc<Inbox>,
) -> Result<Sender<WantedEpoch>, NodeError> {
    let (sender, wanted): (_, Receiver<WantedEpoch>) = channel();
    drop(start_thread("foresee-orders", move || {
        while let Ok(wanted) = wanted.recv() {
            let (WantedEpoch::Accesses(epoch) | WantedEpoch::Later(epoch)) = wanted;
            inbox.push(HostEvent::EpochDrawn { wanted, samples: draw(epoch) });
        }
    })?);
    Ok(sender)
}
