// SPDX-License-Identifier: Apache-2.0
//! The loading policies, one family per file, each with its source and its limits.

mod by_read;
mod first_come;
mod hash_owner;
mod lbann;
mod node_planned;
mod node_planning;
mod nopfs;
mod placed;
mod planned;
mod shards;
mod static_share;
mod uncached;
mod visible;
mod window;

use super::contention::ContentionDriver;
use super::policy::Policy;
use super::prefetch::{Caching, PrefetchDriver};
use super::rates::Rates;
use super::run::{Driver, Setup};
use super::scenario::OriginReaders;
use super::serial::SerialDriver;

use hash_owner::HashOwner;
use lbann::LbannDynamic;
use node_planned::NodePlannedCache;
use nopfs::{Fill, Nopfs};
use placed::PlacedCache;
use planned::PlannedCache;
use shards::{Reading, Shards};
use static_share::StaticShare;
use uncached::Uncached;
use window::{Window, WindowDriver};

/// Create the driver of a policy; an error if the policy does not support the scenario.
pub(super) fn driver(policy: Policy, setup: &Setup, rates: Rates) -> Result<Box<dyn Driver>, String> {
    let prefetching =
        |caching: Result<Shards, String>, rates| caching.map(|caching| boxed(caching, rates, setup));
    let node_cache = setup.scenario.options.node_cache;
    let is_uncached = matches!(policy, Policy::Perfect | Policy::Naive | Policy::StagingBuffer);
    if node_cache.is_some() && policy != Policy::Foresee && !is_uncached {
        return Err("its ranks have caches of their own, and the scenario has one cache per node".to_owned());
    }
    match policy {
        Policy::Perfect => Ok(Box::new(SerialDriver::perfect(rates))),
        Policy::Naive => Ok(Box::new(SerialDriver::naive(rates, setup))),
        Policy::StagingBuffer => Ok(boxed(Uncached, rates, setup)),
        Policy::DeepioOrdered => prefetching(Shards::new(Reading::AsOrdered, 1, setup), rates),
        Policy::DeepioOptimistic => prefetching(Shards::new(Reading::Own, 1, setup), rates),
        Policy::ParallelStaging => prefetching(Shards::new(Reading::Own, usize::MAX, setup), rates),
        Policy::LbannDynamic => Ok(boxed(LbannDynamic::new(setup)?, rates, setup)),
        Policy::LbannPreloading => {
            lbann::fits(setup)?;
            prefetching(Shards::new(Reading::AsOrdered, 1, setup), rates)
        }
        Policy::LocalityAware => prefetching(Shards::new(Reading::WhereHeld, 1, setup), rates),
        Policy::HashOwner => Ok(boxed(HashOwner::new(setup)?, rates, setup)),
        Policy::StaticShare => Ok(boxed(StaticShare::new(setup), rates, setup)),
        Policy::Nopfs => Ok(boxed(Nopfs::new(Fill::Threads, setup)?, rates, setup)),
        Policy::NopfsOnAccess => Ok(boxed(Nopfs::new(Fill::OnAccess, setup)?, rates, setup)),
        Policy::NopfsPrestaged => Ok(boxed(Nopfs::new(Fill::Before, setup)?, rates, setup)),
        Policy::Foresee if setup.scenario.options.peers && !setup.scenario.cluster.tiers.is_empty() => {
            let ranks_per_node = node_cache.map_or(1, |ranks| ranks.get() as usize);
            Ok(boxed(PlacedCache::new(setup, ranks_per_node)?, rates, setup))
        }
        Policy::Foresee => match node_cache {
            None => Ok(boxed(PlannedCache::new(setup)?, rates, setup)),
            Some(ranks) => Ok(boxed(NodePlannedCache::new(setup, ranks.get() as usize)?, rates, setup)),
        },
        Policy::Direct => Ok(Box::new(WindowDriver::new(Window::Direct, setup, &rates)?)),
        Policy::Disk => Ok(Box::new(WindowDriver::new(Window::Disk, setup, &rates)?)),
        Policy::Cache => Ok(Box::new(WindowDriver::new(Window::Cache, setup, &rates)?)),
        Policy::FullFetch => Ok(Box::new(WindowDriver::new(Window::FullFetch, setup, &rates)?)),
        Policy::FiftyFifty => Ok(Box::new(WindowDriver::new(Window::FiftyFifty, setup, &rates)?)),
    }
}

fn boxed<C: Caching + 'static>(caching: C, rates: Rates, setup: &Setup) -> Box<dyn Driver> {
    match setup.scenario.options.readers {
        OriginReaders::Demand | OriginReaders::Queue => {
            Box::new(ContentionDriver::new(caching, rates, setup))
        }
        OriginReaders::All | OriginReaders::Active => Box::new(PrefetchDriver::new(caching, rates, setup)),
    }
}

/// Check that the rate of the link to peers is known; one rank needs none.
fn peers_can_be_read(setup: &Setup) -> Result<(), String> {
    let cluster = &setup.scenario.cluster;
    if cluster.ranks > 1 && cluster.peer_link.is_none() && !cluster.tiers.is_empty() {
        return Err("it reads from peers, and cluster.peer_link was not measured".to_owned());
    }
    Ok(())
}
