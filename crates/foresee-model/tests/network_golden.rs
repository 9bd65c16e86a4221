// SPDX-License-Identifier: Apache-2.0
//! Golden steps: worked examples in `testdata/network/*.txt`, evaluated line by line.
//!
//! `testdata/network/README.md` describes the format. `UPDATE_GOLDEN=1` rewrites answers that have changed.

#![expect(clippy::unwrap_used, reason = "a scenario that cannot be read fails its test")]

use std::fmt::Write as _;
use std::path::Path;

use foresee_model::{Compat, GradientStep, Layer, Link, Policy, RequiredBandwidth, ServerMix, Transfer};
use foresee_units::Bytes;

#[test]
fn every_golden_step_is_unchanged() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/network");
    let mut scenarios: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    scenarios.sort();
    assert!(scenarios.len() >= 7, "scenarios are missing in {}", folder.display());
    for path in scenarios {
        let expected = std::fs::read_to_string(&path).unwrap();
        let recomputed = recompute(&expected);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, recomputed).unwrap();
        } else {
            assert_eq!(recomputed, expected, "{}; UPDATE_GOLDEN=1 accepts the new answers", path.display());
        }
    }
}

/// The file, with new answers where they differ by more than rounding.
fn recompute(text: &str) -> String {
    let mut output = String::new();
    let mut scenario = Scenario::default();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        writeln!(output, "{line}").unwrap();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        for answer in scenario.answers(line) {
            let expected = lines.next_if(|line| line.starts_with('>')).unwrap_or_default();
            let line = if agree(expected, &answer) { expected } else { &answer };
            writeln!(output, "{line}").unwrap();
        }
        while lines.next_if(|line| line.starts_with('>')).is_some() {}
    }
    output
}

#[derive(Default)]
struct Scenario {
    layers: Vec<Layer>,
    bandwidth: f64,
}

impl Scenario {
    fn answers(&mut self, line: &str) -> Vec<String> {
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| fraction(words[at]);
        match words[0] {
            "layer" => {
                let bytes = Bytes::new(words[1].parse().unwrap());
                let (backward, forward, update) = (number(2), number(3), number(4));
                self.layers.push(Layer { bytes, backward, forward, update });
                Vec::new()
            }
            "bandwidth" => {
                self.bandwidth = number(1);
                Vec::new()
            }
            "backward" => {
                let timeline = self.step().timeline(Policy::Oracle, self.link()).unwrap();
                vec![row("", &timeline.backward)]
            }
            "time" => vec![format!("> {}", self.time(policy(words[1])))],
            "cost" => vec![format!("> {}", self.step().barrier_cost(self.link()).unwrap())],
            "follow" => {
                let timeline = self.step().timeline(policy(words[1]), self.link()).unwrap();
                vec![
                    row(" push", &timeline.push),
                    row(" pull", &timeline.pull),
                    row(" forward", &timeline.forward),
                    carried(&timeline.uplink),
                ]
            }
            "need" => {
                let need = self.step().required_bandwidth(policy(words[1]), number(2), 1.0).unwrap();
                vec![match need {
                    RequiredBandwidth::AtLeast(rate) => format!("> {rate}"),
                    RequiredBandwidth::Infeasible { .. } => "> infeasible".to_owned(),
                }]
            }
            "servers" | "dedicated" => {
                let mix = if words[0] == "servers" { ServerMix::best } else { ServerMix::dedicated_only };
                let mix = mix(words[1].parse().unwrap(), words[2].parse().unwrap()).unwrap();
                vec![row("", &[mix.share_of_link(), mix.colocated(), mix.dedicated()])]
            }
            _ => panic!("no such question: {line}"),
        }
    }

    fn step(&self) -> GradientStep {
        GradientStep::new(self.layers.iter().copied()).unwrap()
    }

    fn link(&self) -> Link {
        Link::new(self.bandwidth, 1.0).unwrap()
    }

    /// Closed form and timeline must agree before they are compared with the file.
    fn time(&self, policy: Policy) -> f64 {
        let step = self.step();
        let closed = step.time(policy, self.link()).unwrap();
        let followed = step.timeline(policy, self.link()).unwrap().time();
        assert!(near(closed, followed), "{policy}: {closed} by closed form, {followed} followed");
        closed
    }
}

fn policy(word: &str) -> Policy {
    let (name, compat) = match word.split_once(':') {
        Some((name, compat)) => (name, Compat::named(compat).unwrap()),
        None => (word, Compat::Physical),
    };
    Policy::named(name, compat).unwrap_or_else(|| panic!("no policy: {word}"))
}

fn row(name: &str, numbers: &[f64]) -> String {
    let mut line = format!(">{name}");
    for number in numbers {
        write!(line, " {number}").unwrap();
    }
    line
}

fn carried(transfers: &[Transfer]) -> String {
    let mut line = "> uplink".to_owned();
    for Transfer { layer, start, end } in transfers {
        write!(line, " {layer}:{start}-{end}").unwrap();
    }
    line
}

/// Whether two answers have the same words and, to 1e-9, the same numbers.
fn agree(expected: &str, answer: &str) -> bool {
    let words = |line: &str| -> Vec<String> {
        line.split([' ', ':', '-']).filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let (expected, answer) = (words(expected), words(answer));
    expected.len() == answer.len()
        && expected.iter().zip(&answer).all(|(expected, answer)| match answer.parse::<f64>() {
            Ok(number) if expected.starts_with(|first: char| first.is_ascii_digit()) => {
                near(fraction(expected), number)
            }
            _ => expected == answer,
        })
}

fn fraction(word: &str) -> f64 {
    let number = |digits: &str| digits.parse::<f64>().unwrap_or_else(|_| panic!("no number: {word}"));
    word.split_once('/').map_or_else(|| number(word), |(above, below)| number(above) / number(below))
}

fn near(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * one.abs().max(other.abs())
}
