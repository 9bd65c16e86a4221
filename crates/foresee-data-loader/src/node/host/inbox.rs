// SPDX-License-Identifier: Apache-2.0
//! What reaches the host's driver from its other threads, in order.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};

use foresee_data_plan::WantedEpoch;
use foresee_data_tier::Tier;
use foresee_units::{NodeIndex, SampleId};

use super::data_sets::OpenedDataSet;
use super::peer_job::{JoiningJob, PlanKey, SampleSet};
use super::session::Session;
use crate::node::peers::MeshEvent;
use crate::waker::Waker;

/// One event.
#[derive(Debug)]
pub(super) enum HostEvent {
    /// A consumer has attached; numbers are unique in the life of the host.
    Attached { consumer: u32, facts: ConsumerFacts, session: Session },
    /// It has left, or its process has ended.
    Detached { consumer: u32 },
    /// A message of its ring.
    Message { consumer: u32, bytes: Vec<u8> },
    /// Its ring is broken, so it has to leave.
    Broken { consumer: u32, why: String },
    /// A data set that no consumer has opened before; numbers count from 0, in order.
    DataSetOpened { data_set: Box<OpenedDataSet> },
    /// The origin of a data set has other settings from now on.
    DataSetRenewed { data_set: u32, origin: Arc<dyn Tier> },
    /// A consumer reads this data set from now on.
    DataSetChosen { consumer: u32, data_set: u32 },
    /// Exchange samples with the other nodes of a job.
    JobJoined { joining: Box<JoiningJob> },
    /// A loader asks which samples are here, to make a plan with other nodes.
    ContentsWanted { plan: PlanKey, reply: SyncSender<Option<SampleSet>> },
    /// The nodes of the job will not meet.
    NoMeeting,
    /// An epoch of the job that the plan of an exchange wants; without samples the run has no such epoch.
    EpochDrawn { exchange: u64, wanted: WantedEpoch, samples: Option<Vec<SampleId>> },
    /// Something has happened on the connection to another node.
    Peer { exchange: u64, node: NodeIndex, event: MeshEvent },
    /// The host ends.
    Close,
}

/// What a consumer said about itself, for status and log.
#[derive(Clone, Debug)]
pub(super) struct ConsumerFacts {
    /// `None` if the process is in a pid namespace that the host does not see.
    pub(super) pid: Option<u32>,
    pub(super) uid: u32,
    pub(super) job: String,
    pub(super) loader: [u8; 16],
    pub(super) rank: u32,
    pub(super) local_rank: u32,
}

/// Pending events.
#[derive(Debug)]
pub(super) struct Inbox {
    events: Mutex<Vec<HostEvent>>,
    waker: Arc<Waker>,
}

impl Inbox {
    /// `waker` wakes the driver.
    pub(super) fn new(waker: Arc<Waker>) -> Self {
        Self { events: Mutex::default(), waker }
    }

    pub(super) fn push(&self, event: HostEvent) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        self.waker.wake();
    }

    pub(super) fn take(&self) -> Vec<HostEvent> {
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
