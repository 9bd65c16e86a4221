// SPDX-License-Identifier: Apache-2.0
//! Traffic of whole runs: reads of the origin, reads in the node itself, and transfers between nodes.
//!
//! Each node has further copies in the space that its held samples leave: those with the nearest next uses, as a node's own
//! planner chooses them.

use std::collections::{BTreeMap, BTreeSet};

use foresee_data_plan::PlacedSource;
use foresee_units::SampleId;

use crate::job::Job;

/// Traffic of a run, in data sets; `local` is the share of all accesses that needs no transfer and no origin.
#[derive(Clone, Copy, Debug)]
struct Traffic {
    origin: f64,
    local: f64,
    moved: f64,
}

/// Copies of one node that it does not hold for all, by their next use.
#[derive(Default)]
struct Copies {
    by_use: BTreeSet<(usize, SampleId)>,
    uses: BTreeMap<SampleId, usize>,
}

impl Copies {
    fn remove(&mut self, sample: SampleId) -> bool {
        self.uses.remove(&sample).is_some_and(|at| self.by_use.remove(&(at, sample)))
    }

    fn insert(&mut self, sample: SampleId, next: Option<usize>) {
        if let Some(at) = next {
            self.uses.insert(sample, at);
            self.by_use.insert((at, sample));
        }
    }

    /// Keep at most `count` copies, those with the nearest uses.
    fn shrink(&mut self, count: u64) {
        while self.uses.len() as u64 > count {
            let (_, sample) = self.by_use.pop_last().expect("as many as uses");
            self.uses.remove(&sample);
        }
    }
}

fn traffic(job: &Job) -> Traffic {
    let users: Vec<BTreeMap<SampleId, u16>> = (0..job.epochs)
        .map(|epoch| job.epoch(epoch).into_iter().map(|(node, sample)| (sample, node.0)).collect())
        .collect();
    let next_use = |epoch: usize, node: u16, sample: SampleId| {
        (epoch + 1..job.epochs).find(|&later| users[later][&sample] == node)
    };
    let mut copies: Vec<Copies> = job.capacities.iter().map(|_| Copies::default()).collect();
    let (mut origin, mut local, mut moved) = (0_u32, 0_u32, 0_u32);
    job.run(|planner, epoch, node, sample, placement| {
        let has_copy = copies[usize::from(node.0)].remove(sample);
        match placement.source {
            PlacedSource::Origin => origin += 1,
            PlacedSource::Own => local += 1,
            PlacedSource::Peer(_) if has_copy => local += 1,
            PlacedSource::Peer(_) => moved += 1,
        }
        if placement.source == PlacedSource::Origin && placement.holder.is_some_and(|holder| holder != node) {
            moved += 1;
        }
        // The reader has the bytes, and so has a holder that hands them on.
        let mut with_copy = vec![node];
        if let PlacedSource::Peer(holder) = placement.source {
            with_copy.push(holder);
        }
        for one in with_copy {
            let own = &mut copies[usize::from(one.0)];
            own.remove(sample);
            if placement.holder != Some(one) {
                own.insert(sample, next_use(epoch, one.0, sample));
            }
        }
        for one in [Some(node), placement.holder].into_iter().flatten() {
            let free = job.capacities[usize::from(one.0)] - planner.held(one).get();
            copies[usize::from(one.0)].shrink(free);
        }
    });
    let [samples, epochs] =
        [job.sizes.len(), job.epochs].map(|count| f64::from(u32::try_from(count).expect("a small count")));
    let accesses = samples * epochs;
    Traffic {
        origin: f64::from(origin) / samples,
        local: f64::from(local) / accesses,
        moved: f64::from(moved) / samples,
    }
}

/// Nodes, epochs, horizon, capacity in data sets; then data sets read from the origin, share of accesses in the node itself,
/// data sets moved between nodes. `docs/notes/065` has these values.
const RUNS: [(usize, usize, usize, f64, Traffic); 11] = [
    (16, 30, 8, 0.5, Traffic { origin: 15.5, local: 0.059, moved: 12.73 }),
    (16, 30, 8, 1.05, Traffic { origin: 1.0, local: 0.209, moved: 22.73 }),
    (16, 30, 8, 1.25, Traffic { origin: 1.0, local: 0.257, moved: 21.29 }),
    (16, 30, 8, 2.0, Traffic { origin: 1.0, local: 0.350, moved: 18.51 }),
    (16, 30, 1, 1.05, Traffic { origin: 1.0, local: 0.133, moved: 25.02 }),
    (16, 30, 4, 1.05, Traffic { origin: 1.0, local: 0.199, moved: 23.03 }),
    (16, 30, 30, 1.05, Traffic { origin: 1.0, local: 0.206, moved: 22.82 }),
    (8, 10, 10, 2.0, Traffic { origin: 1.0, local: 0.395, moved: 5.05 }),
    (8, 10, 10, 1.05, Traffic { origin: 1.0, local: 0.268, moved: 6.32 }),
    (8, 10, 10, 0.5, Traffic { origin: 5.5, local: 0.110, moved: 3.40 }),
    (8, 10, 10, 0.2, Traffic { origin: 8.2, local: 0.110, moved: 0.70 }),
];

#[test]
fn traffic_is_that_of_the_notes() {
    for (nodes, epochs, horizon, capacity, expected) in RUNS {
        let found = traffic(&Job { horizon, ..Job::equal(4_000, nodes, epochs, capacity) });
        let differences = [
            found.origin - expected.origin,
            10.0 * (found.local - expected.local),
            found.moved - expected.moved,
        ];
        assert!(
            differences.iter().all(|one| one.abs() < 0.006),
            "{nodes} nodes, capacity {capacity}: {found:?}"
        );
    }
}

/// An independent model, whose plan has all copies of all nodes, moves 6.0 data sets with eight nodes, ten epochs and space
/// for 1.05 data sets.
#[test]
fn the_network_carries_at_most_a_twentieth_more_than_by_a_plan_of_all_copies() {
    let moved = traffic(&Job::equal(20_000, 8, 10, 1.05)).moved;
    assert!(moved <= 1.05 * 6.0, "{moved}");
}
