// SPDX-License-Identifier: Apache-2.0
//! How the loader in the process of a node's host makes the nodes of its job exchange samples.
//!
//! Each node offers what the others have to know; whoever runs the loaders collects the offers of all nodes. When the ranks
//! continue elsewhere than planned, by an early end of an epoch or a loaded state, the next generation is offered.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foresee_data_node::PeerOffer;
use foresee_data_order::Tail;
use foresee_data_plan::{JobShape, TierCapacity};
use foresee_units::{Bytes, Epoch, NodeIndex};
use foresee_wire::{LinkOptions, Secret, WireError};
use xxhash_rust::xxh3::xxh3_128;

use super::{Loader, lock};
use crate::config::LoaderConfig;
use crate::errors::LoaderError;
use crate::node::{HostLogEntry, NodeHost, PeerJob, PeerListener, PeerOptions, PlanKey, SampleSet};
use crate::orders::RunOrder;

/// Epochs after the current one that a plan looks ahead, 2 bytes per sample each.
const HORIZON: usize = 8;
/// Contents above this size are left out, on all nodes: what a node has is its own matter then.
const CONTENTS_BYTES_MAX: usize = 16 << 20;

/// A node's place in its job.
#[derive(Clone, Debug)]
pub struct PeerPlace {
    /// This node.
    pub node: NodeIndex,
    /// Number of nodes. Ranks are numbered node by node, the same number on each.
    pub nodes: u16,
    /// Address of this node at which the others reach it.
    pub address: IpAddr,
    /// The secret of the job.
    pub secret: Secret,
}

/// The result of [`Loader::peer_offer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextOffer {
    /// Give these bytes to all nodes, and theirs to [`Loader::join_peers`].
    Offer {
        /// Identity of the loader within the job.
        loader: [u8; 16],
        /// How often the loader has continued elsewhere before.
        generation: u32,
        /// What the other nodes have to know.
        bytes: Vec<u8>,
    },
    /// There is no further generation yet: call again.
    Waiting,
    /// The loader is not attached yet, or the host exchanges samples for another one: call again after a pause.
    NotReady,
    /// There will be none, since the loader is closed.
    Closed,
    /// There will be none, since this process is not the host of the node's cache.
    NotHost,
}

/// Why nodes do not exchange samples.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// See [`LoaderError`].
    #[error(transparent)]
    Loader(#[from] LoaderError),
    /// The address cannot be used.
    #[error("this node cannot listen at {address}: {why}")]
    Listen {
        /// The address.
        address: IpAddr,
        /// Why not.
        why: WireError,
    },
    /// The bytes are no offer of this version.
    #[error(
        "node {node} has another version of Foresee, or its offer is damaged; install one version on all nodes"
    )]
    Damaged {
        /// Whose offer it is.
        node: NodeIndex,
    },
    /// A node has another run.
    #[error(
        "node {node} has {theirs}, and this node {ours}: nodes exchange samples only if they have the same {what}"
    )]
    Differs {
        /// The other node.
        node: NodeIndex,
        /// What is different.
        what: &'static str,
        /// Its value there.
        theirs: String,
        /// Its value here.
        ours: String,
    },
    /// The plan of all nodes has steps in which each rank has a batch.
    #[error(
        "ranks have different numbers of samples in an epoch, or no order; give all of them the same number"
    )]
    Uneven,
    /// The bytes are not from all nodes.
    #[error("{offers} offers are there, of {nodes} nodes")]
    Incomplete {
        /// Offers that are there.
        offers: usize,
        /// Nodes of the job.
        nodes: u16,
    },
    /// The loader has continued elsewhere meanwhile, or is closed.
    #[error("the loader is not at this generation any more")]
    Past,
}

/// Where the present generation of a run began.
#[derive(Clone, Copy, Debug)]
pub(super) struct GenerationStart {
    pub(super) generation: u32,
    pub(super) epoch: Epoch,
    pub(super) position: u64,
}

impl GenerationStart {
    pub(super) const FIRST: Self = Self { generation: 0, epoch: Epoch(0), position: 0 };
}

/// An offer, while those of other nodes are collected.
#[derive(Debug)]
pub(super) struct Offered {
    offer: PeerOffer,
    place: PeerPlace,
    listener: PeerListener,
}

impl Loader {
    /// Wait up to `tick` for the next generation after `after`, and offer this node's part in it. The caller does so in the process
    /// of the lowest local rank of each node.
    ///
    /// # Errors
    /// [`ExchangeError::Listen`], [`ExchangeError::Uneven`]; [`ExchangeError::Loader`] in a forked child.
    pub fn peer_offer(
        &self,
        after: Option<u32>,
        place: &PeerPlace,
        tick: Duration,
    ) -> Result<NextOffer, ExchangeError> {
        self.check_process()?;
        let until = Instant::now() + tick;
        let start = loop {
            let start = lock(&self.start);
            if self.shared.batches.is_closed() {
                return Ok(NextOffer::Closed);
            }
            if after.is_none_or(|after| start.generation > after) {
                break *start;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(NextOffer::Waiting);
            }
            drop(self.moved.wait_timeout(start, left));
        };
        if self.config.run.as_ref().is_none_or(|run| run.order.tail() == Tail::Uneven) {
            return Err(ExchangeError::Uneven);
        }
        let host = match &*lock(&self.running) {
            None => None,
            Some(running) => match &running.host {
                None => return Ok(NextOffer::NotHost),
                Some(host) => Some(Arc::clone(host)),
            },
        };
        let plan = PlanKey { generation: start.generation, ..self.plan_key() };
        let contents = host.as_ref().and_then(|host| host.contents(plan, tick));
        let (Some(host), Some(contents)) = (host, contents) else {
            return Ok(NextOffer::NotReady);
        };
        let offered = self.offer(start, place, &host, &contents)?;
        let bytes = offered.offer.encode();
        let loader = offered.offer.loader;
        *lock(&self.offered) = Some(offered);
        Ok(NextOffer::Offer { loader, generation: start.generation, bytes })
    }

    fn offer(
        &self,
        start: GenerationStart,
        place: &PeerPlace,
        host: &NodeHost,
        contents: &SampleSet,
    ) -> Result<Offered, ExchangeError> {
        let key = self.plan_key();
        let loader = hex(key.loader);
        let options = PeerOptions {
            // Connections of an earlier generation are refused.
            job: format!("{loader}/{}", start.generation),
            own: place.node,
            nodes: place.nodes,
            secret: place.secret.clone(),
            tls: None,
            link: LinkOptions::default(),
        };
        let address = place.address;
        let listener = PeerListener::bind(options, (address, 0).into())
            .map_err(|why| ExchangeError::Listen { address, why })?;
        let TierCapacity { capacity, align, overhead } = host.reservable(self.data.index().max_size());
        let identity = self.config.options.node.as_ref();
        let offer = PeerOffer {
            foresee: identity.map(|identity| identity.version.clone()).unwrap_or_default(),
            loader: key.loader,
            generation: start.generation,
            epoch: start.epoch.0,
            position: start.position,
            address: listener.address(),
            capacity: capacity.get(),
            align,
            overhead: overhead.get(),
            contents: Some(contents.as_bytes())
                .filter(|bytes| bytes.len() <= CONTENTS_BYTES_MAX)
                .unwrap_or_default()
                .to_vec(),
        };
        Ok(Offered { offer, place: place.clone(), listener })
    }

    /// Exchange samples with the nodes that have made these offers, in their order, of the generation that this node offered last.
    ///
    /// # Errors
    /// [`ExchangeError::Damaged`], [`ExchangeError::Differs`], [`ExchangeError::Incomplete`], [`ExchangeError::Past`];
    /// [`ExchangeError::Loader`] in a forked child.
    pub fn join_peers(&self, offers: &[Vec<u8>]) -> Result<(), ExchangeError> {
        self.check_process()?;
        let Offered { offer, place, listener } = lock(&self.offered).take().ok_or(ExchangeError::Past)?;
        let host = lock(&self.running).as_ref().and_then(|running| running.host.clone());
        let (Some(host), Some(run)) = (host, self.config.run.clone()) else {
            return Err(ExchangeError::Past);
        };
        if lock(&self.start).generation != offer.generation {
            return Err(ExchangeError::Past);
        }
        if offers.len() != usize::from(place.nodes) {
            return Err(ExchangeError::Incomplete { offers: offers.len(), nodes: place.nodes });
        }
        let decode = |(node, bytes): (u16, &Vec<u8>)| {
            let node = NodeIndex(node);
            let theirs = PeerOffer::decode(bytes).ok_or(ExchangeError::Damaged { node })?;
            check(&offer, node, &theirs).map(|()| theirs)
        };
        let offers = (0_u16..).zip(offers).map(decode).collect::<Result<Vec<_>, _>>()?;
        let (epoch, position) = (offer.epoch, offer.position);
        let job = PeerJob {
            plan: PlanKey { generation: offer.generation, ..self.plan_key() },
            fingerprint: self.data.index().file_fingerprint(),
            addresses: offers.iter().map(|offer| offer.address).collect(),
            capacities: offers.iter().map(capacity_of).collect(),
            contents: offers.into_iter().map(|offer| SampleSet::from_bytes(offer.contents)).collect(),
            shape: self.job_shape(&run, place.nodes),
            horizon: HORIZON,
            draw: Box::new(move |nth| {
                let number = epoch.checked_add(nth)?;
                let is_of_run = nth == 0 || run.epochs.is_none_or(|epochs| number < epochs);
                let from = if nth == 0 { position } else { 0 };
                is_of_run.then(|| run.draw_all(Epoch(number), from).ok().flatten())?
            }),
        };
        host.join_job(job, listener);
        Ok(())
    }

    /// The nodes of the job will not exchange samples: nothing waits for that any more.
    pub fn expect_no_peers(&self) {
        self.expects_no_peers.store(true, Ordering::Relaxed);
        if let Some(host) = lock(&self.running).as_ref().and_then(|running| running.host.as_ref()) {
            host.expect_no_peers();
        }
    }

    /// What has happened in the host of the node's cache since the last call, if that is in this process.
    pub fn host_events(&self) -> Vec<HostLogEntry> {
        let host = lock(&self.running).as_ref().and_then(|running| running.host.clone());
        let next = || host.as_ref()?.next_event(Duration::ZERO).ok()?;
        std::iter::from_fn(next).collect()
    }

    /// How often the loader has continued elsewhere; `None` if it is closed.
    pub fn generation(&self) -> Option<u32> {
        (!self.shared.batches.is_closed()).then(|| lock(&self.start).generation)
    }

    /// The first generation of this loader.
    fn plan_key(&self) -> PlanKey {
        let identity = self.config.options.node.as_ref();
        let job = identity.map(|identity| identity.job.clone()).unwrap_or_default();
        PlanKey { job, loader: self.config.identity, generation: 0 }
    }

    fn job_shape(&self, run: &RunOrder, nodes: u16) -> JobShape {
        let ranks = self.config.options.world.size();
        let per_node = (ranks / u32::from(nodes)).max(1);
        let node =
            |rank: u32| NodeIndex(u16::try_from(rank / per_node).expect("nodes are counted in 16 bits"));
        let batch = run.batching.batch_size.saturating_mul(run.index.parts());
        JobShape {
            nodes: (0..ranks).map(node).collect(),
            batch: usize::try_from(batch).expect("a batch fits into memory"),
        }
    }
}

fn capacity_of(offer: &PeerOffer) -> TierCapacity {
    let PeerOffer { capacity, align, overhead, .. } = *offer;
    TierCapacity { capacity: Bytes::new(capacity), align, overhead: Bytes::new(overhead) }
}

/// Check that another node has the same run.
fn check(ours: &PeerOffer, node: NodeIndex, theirs: &PeerOffer) -> Result<(), ExchangeError> {
    let place = |offer: &PeerOffer| format!("position {} of epoch {}", offer.position, offer.epoch);
    let bytes = |offer: &PeerOffer| offer.contents.len().to_string();
    let compared = [
        ("version of Foresee", theirs.foresee.clone(), ours.foresee.clone()),
        ("data set, order and batches", hex(theirs.loader), hex(ours.loader)),
        ("generation", theirs.generation.to_string(), ours.generation.to_string()),
        ("start", place(theirs), place(ours)),
        ("bytes of contents", bytes(theirs), bytes(ours)),
    ];
    match compared.into_iter().find(|(_, theirs, ours)| theirs != ours) {
        Some((what, theirs, ours)) => Err(ExchangeError::Differs { node, what, theirs, ours }),
        None => Ok(()),
    }
}

/// 32 digits.
fn hex(identity: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(identity))
}

/// The identity of a loader: equal on all ranks that read the same data in the same order, and another one for each loader of
/// a process. All of a run's accesses follow from what it stands for.
pub(crate) fn loader_identity(config: &LoaderConfig) -> [u8; 16] {
    static CREATED: Mutex<BTreeMap<u128, u32>> = Mutex::new(BTreeMap::new());
    let Some(RunOrder { order, avoid, world, batching, epochs, index }) = &config.run else { return [0; 16] };
    let local = config.options.local_world.size();
    let avoided: Vec<_> = avoid.ids().map(|id| id.0).collect();
    let prints = (index.fingerprint(), index.file_fingerprint());
    let text = format!("{order:?} {avoided:?} {} {local} {batching:?} {epochs:?} {prints:?}", world.size());
    let described = xxh3_128(text.as_bytes());
    let mut created = lock(&CREATED);
    let number = created.entry(described).or_default();
    *number += 1;
    xxh3_128(&[&described.to_le_bytes()[..], &number.to_le_bytes()].concat()).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> PeerOffer {
        PeerOffer {
            foresee: "1".into(),
            loader: [1; 16],
            generation: 0,
            epoch: 2,
            position: 3,
            address: ([127, 0, 0, 1], 4).into(),
            capacity: 5,
            align: 64,
            overhead: 0,
            contents: vec![6],
        }
    }

    #[test]
    fn a_node_with_another_run_is_named_with_what_differs() {
        let (node, ours) = (NodeIndex(3), offer());
        assert!(check(&ours, node, &PeerOffer { address: ([10, 0, 0, 1], 1).into(), ..offer() }).is_ok());
        let theirs = PeerOffer { epoch: 4, ..offer() };
        let fault = check(&ours, node, &theirs).expect_err("another start").to_string();
        assert_eq!(
            fault,
            "node 3 has position 3 of epoch 4, and this node position 3 of epoch 2: nodes exchange samples only if they have \
             the same start"
        );
        let theirs = PeerOffer { foresee: "2".into(), ..offer() };
        assert!(
            check(&ours, node, &theirs)
                .expect_err("another version")
                .to_string()
                .contains("version of Foresee")
        );
    }

    #[test]
    fn a_set_has_a_bit_of_each_sample() {
        let set = SampleSet::new(11, |sample| sample.0 % 3 == 1);
        assert_eq!(set.as_bytes(), [0b1001_0010, 0b100]);
        assert_eq!(set.iter(11).map(|sample| sample.0).collect::<Vec<_>>(), [1, 4, 7, 10]);
        assert_eq!(set.iter(8).count(), 3, "bits after the last sample are ignored");
    }
}
