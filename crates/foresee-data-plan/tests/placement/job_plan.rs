// SPDX-License-Identifier: Apache-2.0
//! The plan of a job as its nodes follow it.

#![expect(clippy::unwrap_used, reason = "numbers of small jobs fit")]

use std::collections::BTreeSet;
use std::sync::Arc;

use foresee_data_plan::{
    JobPlan, JobPlanAction, JobPlanConfig, JobShape, NextSource, PlacedSource, PlacementConfig, TierCapacity,
    WantedEpoch,
};
use foresee_testkit::Dice;
use foresee_units::{Bytes, NodeIndex, Rank, SampleId};

use crate::job::{Job, Table};

/// A job of which every node follows the plan.
struct Followed {
    job: Job,
    shape: JobShape,
    ahead: u64,
    plans: Vec<JobPlan>,
    /// By node: what it has reserved.
    reserved: Vec<BTreeSet<SampleId>>,
    /// By node: accesses of each of its ranks that are fetched.
    fetched: Vec<u64>,
    differs: Vec<(usize, NodeIndex, u64)>,
}

impl Followed {
    fn new(job: Job, ranks_per_node: usize, batch: usize, ahead: u64) -> Self {
        let nodes = job.capacities.len();
        let shape = JobShape {
            nodes: (0..nodes * ranks_per_node)
                .map(|rank| NodeIndex(u16::try_from(rank / ranks_per_node).unwrap()))
                .collect(),
            batch,
        };
        let plans = (0..nodes).map(|own| plan(&job, &shape, own, ahead)).collect();
        let (reserved, fetched) = (vec![BTreeSet::new(); nodes], vec![0; nodes]);
        Self { job, shape, ahead, plans, reserved, fetched, differs: Vec::new() }
    }

    fn samples(&self, epoch: u64) -> Vec<SampleId> {
        self.job.epoch(usize::try_from(epoch).unwrap()).into_iter().map(|(_, sample)| sample).collect()
    }

    /// Give a node all epochs that it wants, and take its actions.
    fn poll(&mut self, node: usize) {
        loop {
            while let Some(wanted) = self.plans[node].wanted_epoch() {
                let (WantedEpoch::Accesses(epoch) | WantedEpoch::Later(epoch)) = wanted;
                if epoch == self.job.epochs as u64 {
                    self.plans[node].handle_end();
                    continue;
                }
                let mut samples = self.samples(epoch).into_iter();
                match wanted {
                    WantedEpoch::Accesses(_) => self.plans[node].handle_epoch(&mut samples),
                    WantedEpoch::Later(_) => self.plans[node].handle_later_epoch(&mut samples),
                }
            }
            self.tell(node);
            let Some(action) = self.plans[node].poll_action() else { return };
            match action {
                JobPlanAction::Reserve(sample) => {
                    assert!(self.reserved[node].insert(sample), "{sample} is reserved already");
                }
                JobPlanAction::Release(sample) => {
                    assert!(self.reserved[node].remove(&sample), "{sample} is not reserved");
                }
                JobPlanAction::Offer { sample, node: to } => {
                    assert!(to != index(node), "{sample} is offered to its reader");
                }
                JobPlanAction::Settled(_) | JobPlanAction::Planned(_) => {}
                JobPlanAction::Checkpoint { position, hash } => {
                    for other in (0..self.plans.len()).filter(|&other| other != node) {
                        self.plans[other].handle_checkpoint(index(node), position, hash);
                    }
                }
                JobPlanAction::Differs { node: other, position } => {
                    self.differs.push((node, other, position));
                }
            }
        }
    }

    /// All ranks of a node fetch a step; the others are told.
    fn step(&mut self, node: usize) {
        let all = (self.job.sizes.len() * self.job.epochs / self.shape.nodes.len()) as u64;
        self.fetched[node] = (self.fetched[node] + self.shape.batch as u64).min(all);
        let ranks = (0_u32..).zip(self.shape.nodes.clone()).filter(|&(_, owner)| owner == index(node));
        for (rank, _) in ranks {
            self.plans[node].handle_fetched(Rank(rank), self.fetched[node]);
        }
        self.tell(node);
    }

    /// Tell the others what a node has passed.
    fn tell(&mut self, node: usize) {
        let passed = self.plans[node].fetched_through();
        for other in (0..self.plans.len()).filter(|&other| other != node) {
            self.plans[other].handle_passed(index(node), passed);
        }
    }

    fn is_over(&self) -> bool {
        let all = (self.job.sizes.len() * self.job.epochs) as u64;
        self.plans.iter().all(|plan| plan.fetched_through() == all)
    }
}

fn index(node: usize) -> NodeIndex {
    NodeIndex(u16::try_from(node).unwrap())
}

fn plan(job: &Job, shape: &JobShape, own: usize, ahead: u64) -> JobPlan {
    let limits = |&bytes: &u64| TierCapacity { capacity: Bytes::new(bytes), align: 1, overhead: Bytes::ZERO };
    let placement =
        PlacementConfig { capacities: job.capacities.iter().map(limits).collect(), horizon: job.horizon };
    let config = JobPlanConfig { own: index(own), shape: shape.clone(), placement, ahead };
    JobPlan::new(config, Arc::new(Table(job.sizes.clone()))).unwrap()
}

#[test]
fn every_node_knows_where_it_reads_and_keeps_what_others_still_read() {
    for seed in foresee_testkit::seeds(2000) {
        let mut dice = Dice::new(seed);
        let (nodes, ranks_per_node, batch) = (2 + dice.below(4), 1 + dice.below(3), 1 + dice.below(5));
        let per_rank = 1 + dice.below(20);
        let mut job = Job::equal(
            nodes * ranks_per_node * per_rank,
            nodes,
            1 + dice.below(4),
            dice.pick(&[0.3, 1.0, 1.2]),
        );
        job.horizon = dice.below(4);
        job.seed = seed;
        let mut followed = Followed::new(job, ranks_per_node, batch, 1 + dice.below(200) as u64);
        let per_epoch = followed.job.sizes.len();
        while !followed.is_over() {
            let node = dice.below(nodes);
            followed.poll(node);
            // Everything up to the next step of the node is planned.
            let from = followed.plans[node].fetched_through();
            if from == (per_epoch * followed.job.epochs) as u64 {
                continue;
            }
            assert!(followed.plans[node].planned() > from, "seed {seed}: the plan has stopped at {from}");
            let sample =
                followed.samples(from / per_epoch as u64)[usize::try_from(from).unwrap() % per_epoch];
            let NextSource { position, source } = followed.plans[node].next_source(sample).unwrap();
            assert_eq!(position, from, "seed {seed}");
            if let PlacedSource::Peer(holder) = source {
                followed.poll(usize::from(holder.0));
                let holding = &followed.plans[usize::from(holder.0)];
                let has = followed.reserved[usize::from(holder.0)].contains(&sample);
                assert!(
                    has || holding.planned() < position,
                    "seed {seed}: node {node} reads {sample} at {position} on {holder}, which has not reserved it"
                );
                assert!(has || holding.expects(sample, position));
            }
            followed.step(node);
        }
        for node in (0..nodes).chain(0..nodes) {
            followed.poll(node);
        }
        for node in 0..nodes {
            let held: BTreeSet<SampleId> = (0..per_epoch as u64)
                .map(SampleId)
                .filter(|&sample| followed.plans[node].placement().holder_of(sample) == Some(index(node)))
                .collect();
            assert_eq!(followed.reserved[node], held, "seed {seed}");
        }
        assert_eq!(followed.differs, [], "seed {seed}");
        let hashes: BTreeSet<u64> = followed.plans.iter().map(|plan| plan.placement().plan_hash()).collect();
        assert_eq!(hashes.len(), 1, "seed {seed}");
    }
}

#[test]
fn a_sample_that_was_handed_on_stays_until_all_nodes_have_passed() {
    // In the second epoch the other node reads the first one's sample, and keeps it.
    let mut job = Job::equal(2, 2, 4, 2.0);
    job.seed = (0..100)
        .find(|&seed| {
            let job = Job { seed, ..job.clone() };
            let first = |epoch| job.epoch(epoch)[0].1;
            first(0) != first(1) && first(1) == first(2) && first(2) == first(3)
        })
        .unwrap();
    let mut followed = Followed::new(job, 1, 1, 100);
    let sample = followed.samples(0)[0];
    followed.poll(0);
    followed.poll(1);
    assert!(followed.reserved[0].contains(&sample) && followed.reserved[1].contains(&sample));
    for node in [0, 0, 1] {
        followed.step(node);
        followed.poll(0);
        assert!(followed.reserved[0].contains(&sample), "the second node has not read it here");
    }
    followed.step(1);
    followed.poll(0);
    assert!(!followed.reserved[0].contains(&sample));
}

#[test]
fn a_node_that_has_left_is_not_waited_for() {
    let mut followed = Followed::new(Job::equal(60, 3, 3, 1.2), 1, 1, 1000);
    for _ in 0..60 {
        followed.step(0);
        followed.step(1);
        followed.poll(0);
        followed.poll(1);
    }
    let before = followed.reserved[0].len();
    followed.plans[0].handle_silent(index(2));
    followed.poll(0);
    assert!(followed.reserved[0].len() < before, "what others have taken over is released");
}

#[test]
fn nodes_with_different_orders_notice_it_at_the_end_of_the_epoch() {
    let job = Job::equal(100, 2, 2, 1.2);
    let mut followed = Followed::new(job.clone(), 1, 1, 1000);
    let other = Job { seed: 5, ..job };
    followed.plans[1] = plan(&other, &followed.shape, 1, followed.ahead);
    followed.poll(0);
    followed.job.seed = 5;
    followed.poll(1);
    followed.job.seed = 1;
    assert_eq!(followed.differs.first(), Some(&(1, index(0), 100)));
    followed.poll(0);
    assert!(followed.differs.contains(&(0, index(1), 100)));
}

#[test]
fn a_sample_without_space_at_its_reader_is_offered_to_another_node() {
    let mut job = Job::equal(12, 2, 3, 1.2);
    // All space is on the second node.
    job.capacities = vec![0, 20];
    let mut followed = Followed::new(job, 1, 1, 100);
    followed.poll(0);
    followed.poll(1);
    let first = followed.samples(0)[0];
    assert_eq!(followed.plans[0].next_source(first).unwrap().source, PlacedSource::Origin);
    assert_eq!(followed.plans[0].offer_to(first), Some(index(1)));
    assert!(followed.reserved[1].contains(&first) && followed.plans[1].expects(first, 12));
    assert!(!followed.plans[1].expects(first, 0), "not before the first node has read it");
}

#[test]
fn the_plan_runs_on_to_an_access_that_is_awaited() {
    let mut followed = Followed::new(Job::equal(40, 2, 3, 1.2), 1, 1, 4);
    followed.poll(0);
    assert_eq!(followed.plans[0].planned(), 4);
    // A sample that this node reads in the second epoch.
    let sample = followed.samples(1)[20];
    if followed.samples(0).iter().position(|&one| one == sample).unwrap() % 2 == 0 {
        assert!(followed.plans[0].next_source(sample).is_none());
    }
    followed.plans[0].handle_awaited(sample, true);
    followed.poll(0);
    let position = followed.plans[0].next_source(sample).unwrap().position;
    assert!(position <= 60 && followed.plans[0].planned() > position);
    let planned = followed.plans[0].planned();
    followed.step(0);
    followed.poll(0);
    assert_eq!(followed.plans[0].planned(), planned, "it was found");
}
