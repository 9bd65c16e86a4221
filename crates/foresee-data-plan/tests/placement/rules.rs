// SPDX-License-Identifier: Apache-2.0
//! Rules that hold for every run, whatever the sizes, capacities and horizon.

use std::collections::BTreeMap;

use foresee_data_plan::PlacedSource;
use foresee_testkit::property;
use foresee_units::{NodeIndex, SampleId};
use proptest::prelude::*;

use crate::job::Job;

fn jobs() -> impl Strategy<Value = Job> {
    let sizes = prop::collection::vec(1_u64..9, 1..60);
    let capacities = prop::collection::vec(0_u64..120, 1..6);
    (sizes, capacities, 1_usize..6, 1_usize..6, any::<u64>()).prop_map(
        |(sizes, capacities, epochs, horizon, seed)| Job { sizes, capacities, epochs, horizon, seed },
    )
}

proptest! {
    #![proptest_config(property(20_000))]

    #[test]
    fn the_plan_is_consistent_and_within_the_capacities(job in jobs()) {
        let mut holders: BTreeMap<SampleId, NodeIndex> = BTreeMap::new();
        let mut failed = None;
        let size = |sample: SampleId| job.sizes[usize::try_from(sample.0).unwrap()];
        job.run(|planner, _, node, sample, placement| {
            let source = match holders.get(&sample) {
                None => PlacedSource::Origin,
                Some(&holder) if holder == node => PlacedSource::Own,
                Some(&holder) => PlacedSource::Peer(holder),
            };
            for dropped in &placement.dropped {
                if holders.remove(dropped) != placement.holder {
                    failed = Some(format!("{dropped:?} was dropped, but not held by {:?}", placement.holder));
                }
            }
            holders.remove(&sample);
            holders.extend(placement.holder.map(|holder| (sample, holder)));
            let mut held = vec![0; job.capacities.len()];
            for (&sample, holder) in &holders {
                held[usize::from(holder.0)] += size(sample);
            }
            let reported: Vec<u64> = (0..).map(NodeIndex).take(held.len()).map(|one| planner.held(one).get()).collect();
            if source != placement.source || held != reported || held.iter().zip(&job.capacities).any(|(used, capacity)| used > capacity) {
                failed = Some(format!("{sample:?} by {node:?}: {placement:?}, held {held:?}, reported {reported:?}"));
            }
        });
        prop_assert_eq!(failed, None);
        prop_assert!(job.horizon + 1 < job.epochs || holders.is_empty(), "held after the run: {:?}", holders);
    }

    #[test]
    fn with_space_for_all_each_sample_leaves_the_origin_once(job in jobs()) {
        // A sample fits into some node while the nodes together have space for it and less than it in each is lost.
        let largest = job.sizes.iter().max().copied().unwrap();
        let data: u64 = job.sizes.iter().sum();
        let nodes = job.capacities.len() as u64;
        let each = data.div_ceil(nodes) + largest;
        let job = Job { capacities: vec![each; job.capacities.len()], ..job };
        let mut reads: BTreeMap<SampleId, u32> = BTreeMap::new();
        job.run(|_, _, _, sample, placement| {
            *reads.entry(sample).or_default() += u32::from(placement.source == PlacedSource::Origin);
        });
        prop_assert!(reads.values().all(|&count| count == 1), "{:?}", reads);
    }
}
