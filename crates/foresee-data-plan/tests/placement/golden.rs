// SPDX-License-Identifier: Apache-2.0
//! Golden placements: transcripts in `testdata/plan/placement/*.txt`, replayed line by line, and the hash of a larger plan.
//!
//! `testdata/plan/README.md` describes the format. `UPDATE_GOLDEN=1` rewrites the answers.

#![expect(clippy::unwrap_used, reason = "a transcript that cannot be read fails its test")]

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use foresee_data_plan::{PlacedSource, Placement, PlacementConfig, PlacementPlanner, TierCapacity};
use foresee_units::{Bytes, NodeIndex, SampleId};

use crate::job::{Job, Table};

#[test]
fn every_golden_placement_is_unchanged() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/plan/placement");
    let mut paths: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no scenario in {}", folder.display());
    for path in paths {
        let expected = std::fs::read_to_string(&path).unwrap();
        let replayed = replay(&expected);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, replayed).unwrap();
        } else {
            assert_eq!(replayed, expected, "{}; UPDATE_GOLDEN=1 accepts the new plan", path.display());
        }
    }
}

/// On every platform and in every build.
#[test]
fn the_hash_of_a_plan_depends_on_its_inputs_alone() {
    let hash = |job: &Job| {
        let mut hash = 0;
        job.run(|planner, _, _, _, _| hash = planner.plan_hash());
        hash
    };
    let job = Job { sizes: (0..500).map(|sample| 1 + sample % 7).collect(), ..Job::equal(500, 5, 4, 3.0) };
    assert_eq!(hash(&job), hash(&job));
    assert_eq!(hash(&job), 2_800_886_477_344_208_314);
    let mut others = vec![Job { seed: 2, ..job.clone() }, Job { capacities: vec![299; 5], ..job.clone() }];
    others.push(Job { horizon: 1, ..job.clone() });
    for other in others {
        assert_ne!(hash(&other), hash(&job), "{other:?}");
    }
}

/// The transcript with new answers.
fn replay(transcript: &str) -> String {
    let mut answers = String::new();
    let mut scenario = Scenario::default();
    for line in transcript.lines().filter(|line| !line.starts_with('>')) {
        writeln!(answers, "{line}").unwrap();
        if !line.is_empty() && !line.starts_with('#') {
            scenario.apply(line, &mut answers);
        }
    }
    answers
}

#[derive(Default)]
struct Scenario {
    sizes: Vec<u64>,
    capacities: Vec<TierCapacity>,
    horizon: usize,
    planner: Option<PlacementPlanner>,
}

impl Scenario {
    fn apply(&mut self, line: &str, answers: &mut String) {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut numbers = rest.split(' ').filter_map(|word| word.parse().ok());
        match verb {
            "sizes" => self.sizes = numbers.collect(),
            "capacity" => {
                let [capacity, align, overhead] = std::array::from_fn(|_| numbers.next().unwrap());
                let [capacity, overhead] = [capacity, overhead].map(Bytes::new);
                self.capacities.push(TierCapacity { capacity, align, overhead });
            }
            "horizon" => self.horizon = usize::try_from(numbers.next().unwrap()).unwrap(),
            "contents" => {
                for (node, sample) in pairs(rest) {
                    let held = if self.planner().handle_contents(node, sample) { "held" } else { "not held" };
                    writeln!(answers, "> {} at {} is {held}", sample.0, node.0).unwrap();
                }
            }
            "epoch" => self.planner().handle_epoch(&mut pairs(rest)),
            "next" => self.planner().handle_next_epoch(),
            "end" => self.planner().handle_end(),
            "access" => {
                for (node, sample) in pairs(rest) {
                    let placement = self.planner().handle_access(node, sample);
                    writeln!(answers, "> {} by {} {}", sample.0, node.0, shown(&placement)).unwrap();
                }
            }
            "hash" => writeln!(answers, "> {:016x}", self.planner().plan_hash()).unwrap(),
            _ => panic!("unknown line: {line}"),
        }
    }

    fn planner(&mut self) -> &mut PlacementPlanner {
        let Self { sizes, capacities, horizon, planner } = self;
        planner.get_or_insert_with(|| {
            let config = PlacementConfig { capacities: capacities.clone(), horizon: *horizon };
            PlacementPlanner::new(config, Arc::new(Table(sizes.clone()))).unwrap()
        })
    }
}

fn pairs(words: &str) -> impl Iterator<Item = (NodeIndex, SampleId)> {
    words.split(' ').map(|word| {
        let (node, sample) = word.split_once(':').unwrap();
        (NodeIndex(node.parse().unwrap()), SampleId(sample.parse().unwrap()))
    })
}

fn shown(placement: &Placement) -> String {
    let mut shown = match placement.source {
        PlacedSource::Own => "from itself".to_owned(),
        PlacedSource::Peer(NodeIndex(peer)) => format!("from {peer}"),
        PlacedSource::Origin => "from the origin".to_owned(),
    };
    match placement.holder {
        Some(NodeIndex(holder)) => write!(shown, ", held by {holder}").unwrap(),
        None => shown.push_str(", held by none"),
    }
    for SampleId(dropped) in &placement.dropped {
        write!(shown, ", drop {dropped}").unwrap();
    }
    shown
}
