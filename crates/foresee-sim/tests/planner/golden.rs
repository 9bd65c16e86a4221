// SPDX-License-Identifier: Apache-2.0
//! Golden plans: transcripts in `testdata/plan/*.txt` with inputs and accesses, replayed line by line.
//!
//! `testdata/plan/README.md` describes the format. `UPDATE_GOLDEN=1` rewrites the expected lines; a changed plan
//! then appears as a diff to review.

#![expect(clippy::unwrap_used, reason = "a transcript that cannot be read fails its test")]

use std::fmt::Write as _;
use std::path::Path;

use foresee_data_plan::{
    Access, NextUse, PlannedSource, Planner, PlannerConfig, Policy, PolicyChoice, TierCapacity, TierIndex,
};
use foresee_units::{Bytes, SampleId};

use crate::support::unequal;

#[test]
fn every_golden_plan_is_unchanged() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/plan");
    let mut scenarios: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    scenarios.sort();
    assert!(!scenarios.is_empty(), "no scenario in {}", folder.display());
    for path in scenarios {
        let expected = std::fs::read_to_string(&path).unwrap();
        let replayed = replay(&expected);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, replayed).unwrap();
        } else {
            assert_eq!(replayed, expected, "{}; UPDATE_GOLDEN=1 accepts the new plan", path.display());
        }
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
    tiers: Vec<TierCapacity>,
    policy: PolicyChoice,
    planner: Option<Planner>,
}

impl Scenario {
    fn apply(&mut self, line: &str, answers: &mut String) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let numbers = || -> Vec<u64> { rest.split(' ').map(|number| number.parse().unwrap()).collect() };
        match word {
            "sizes" => self.sizes = numbers(),
            "tier" => {
                let [capacity, align, overhead] = numbers()[..] else { panic!("three numbers: {line}") };
                let (capacity, overhead) = (Bytes::new(capacity), Bytes::new(overhead));
                self.tiers.push(TierCapacity { capacity, align, overhead });
            }
            "policy" => {
                self.policy = match rest {
                    "auto" => PolicyChoice::Auto,
                    "next_use" => PolicyChoice::NextUse,
                    "pin" => PolicyChoice::Pin,
                    _ => panic!("no policy: {line}"),
                }
            }
            "held" => {
                let (id, tier) = copy(&numbers());
                let accepted = self.planner().handle_held(id, tier);
                writeln!(answers, "> {}", if accepted { "counted on" } else { "refused" }).unwrap();
            }
            "epoch" => self.planner().handle_epoch(&mut numbers().into_iter().map(SampleId)),
            "end" => self.planner().handle_end(),
            "poll" => self.poll(rest.parse().unwrap_or(u64::MAX), answers),
            "lost" => {
                let (id, tier) = copy(&numbers());
                self.planner().handle_lost(id, tier);
            }
            "room" => {
                let numbers = numbers();
                let tier = TierIndex(u8::try_from(numbers[0]).unwrap());
                let mut evicted = Vec::new();
                self.planner().handle_capacity(tier, Bytes::new(numbers[1]), &mut evicted);
                writeln!(answers, ">{}", leaving(&evicted)).unwrap();
            }
            "restart" => self.planner().handle_restart(),
            "hash" => {
                let planner = self.planner();
                let policy = match planner.policy() {
                    Some(Policy::NextUse) => "next_use",
                    Some(Policy::Pin) => "pin",
                    None => "not chosen",
                };
                writeln!(answers, "> policy {policy}, plan {:016x}", planner.plan_hash()).unwrap();
            }
            _ => panic!("no such fact: {line}"),
        }
    }

    fn planner(&mut self) -> &mut Planner {
        let Self { sizes, tiers, policy, planner } = self;
        planner.get_or_insert_with(|| {
            let config =
                PlannerConfig { tiers: tiers.clone(), policy: *policy, table_budget: Bytes::new(1 << 20) };
            Planner::new(config, unequal(sizes)).unwrap()
        })
    }

    fn poll(&mut self, count: u64, answers: &mut String) {
        let mut access = Access::default();
        for _ in 0..count {
            if !self.planner().poll_access(&mut access) {
                return;
            }
            let Access { seq, sample, source, fill, next_use, ref evict } = access;
            let source = match source {
                PlannedSource::Tier(TierIndex(tier)) => format!("tier {tier}"),
                PlannedSource::Origin => "origin".to_owned(),
            };
            write!(answers, "> {seq}: sample {sample} from {source}{}", leaving(evict)).unwrap();
            if let Some(TierIndex(tier)) = fill {
                write!(answers, " keep {tier}").unwrap();
            }
            match next_use {
                NextUse::At(seq) => writeln!(answers, " next {seq}"),
                NextUse::Unknown => writeln!(answers, " next unknown"),
                NextUse::Never => writeln!(answers, " next never"),
            }
            .unwrap();
        }
    }
}

fn copy(numbers: &[u64]) -> (SampleId, TierIndex) {
    (SampleId(numbers[0]), TierIndex(u8::try_from(numbers[1]).unwrap()))
}

fn leaving(copies: &[(SampleId, TierIndex)]) -> String {
    copies.iter().fold(String::new(), |line, (id, TierIndex(tier))| line + &format!(" evict {id}@{tier}"))
}
