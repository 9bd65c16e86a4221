// SPDX-License-Identifier: Apache-2.0
//! LBANN's dynamic data store: the first reader of a sample stores it in memory, if it fits, and serves it to all
//! ranks. Jacobs et al., "Parallelizing training of deep generative models on massive scientific datasets",
//! CLUSTER 2019.
//!
//! It is not designed for data sets beyond the memory of all ranks together. Its preloading form is in `shards`.

use super::peers_can_be_read;
use super::visible::Visible;
use crate::loading::prefetch::{Access, Caching, Supply};
use crate::loading::rates::{ORIGIN, Rates};
use crate::loading::run::Setup;

pub(super) struct LbannDynamic {
    /// By sample: the rank that stores it, or one of the two constants below.
    holder: Vec<u32>,
    visible: Visible,
    /// By rank: free memory in bytes.
    free_bytes: Vec<f64>,
}

/// Not read yet.
const UNREAD: u32 = u32::MAX;
/// Its first reader had no memory left.
const NOT_CACHED: u32 = u32::MAX - 1;

impl LbannDynamic {
    pub(super) fn new(setup: &Setup) -> Result<Self, String> {
        fits(setup)?;
        peers_can_be_read(setup)?;
        let samples = setup.sizes.len() as usize;
        let free_bytes = memory(setup).unwrap_or(0.0);
        let mut visible = Visible::new(1, setup.paper);
        visible.open(setup.sizes.len());
        Ok(Self { holder: vec![UNREAD; samples], visible, free_bytes: vec![free_bytes; setup.epochs.ranks] })
    }
}

impl Caching for LbannDynamic {
    fn look_up(&mut self, ids: &[u32]) {
        self.visible.look_up(ids);
    }

    fn supply(&mut self, access: Access, at: f64, rates: &Rates) -> Supply {
        let holder = self.holder[access.id as usize];
        let code = if holder as usize == access.rank {
            Rates::local(0)
        } else if holder < NOT_CACHED && self.visible.at(access.nth, 0, at) {
            rates.peer(0)
        } else {
            ORIGIN
        };
        Supply::From(rates.faster(code))
    }

    fn fetched(&mut self, access: Access, size: f64, at: f64) {
        let holder = &mut self.holder[access.id as usize];
        if *holder == UNREAD {
            let free_bytes = &mut self.free_bytes[access.rank];
            if size <= *free_bytes {
                *free_bytes -= size;
                *holder = u32::try_from(access.rank).expect("ranks were given in 32 bits");
                self.visible.hold(access.id as usize, at);
            } else {
                *holder = NOT_CACHED;
            }
        }
    }

    fn end_step(&mut self, ends: &[f64]) {
        self.visible.end_step(ends);
    }
}

/// Memory of one rank, in bytes.
#[expect(clippy::cast_precision_loss, reason = "a capacity, far below 2^53")]
fn memory(setup: &Setup) -> Option<f64> {
    setup.scenario.cluster.tiers.first().map(|tier| tier.capacity.get() as f64)
}

/// Check that the data set fits into the memory of all ranks.
pub(super) fn fits(setup: &Setup) -> Result<(), String> {
    let memory = memory(setup).ok_or("it caches in the fastest tier, and cluster.tiers is empty")?;
    let ranks = setup.scenario.cluster.ranks;
    if setup.sizes.total() > f64::from(ranks) * memory {
        let size = setup.sizes.bytes();
        let each = setup.scenario.cluster.tiers[0].capacity;
        return Err(format!(
            "its store has to fit into memory, and {size} are more than {ranks} times {each}"
        ));
    }
    Ok(())
}
