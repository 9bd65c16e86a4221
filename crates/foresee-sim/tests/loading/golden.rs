// SPDX-License-Identifier: Apache-2.0
//! Golden outputs of every policy on the published scenarios, with one file per scenario.
//!
//! Values are seconds, except for reads of the origin; compute, stall and barrier are sums over all ranks. The
//! scenarios of the thesis have a tenth of their size except for the first, the others about 20,000 samples.
//! `UPDATE_GOLDEN=1` accepts new values.

use std::path::Path;

use foresee_model::Compat;
use foresee_sim::loading::{Policy, Report, Scenario};

use crate::scenarios::{paper, thesis, vectors};
use crate::setups::try_run;

macro_rules! golden_outputs {
    ($($test:ident: $id:literal,)+) => {
        $(
            #[test]
            fn $test() {
                check($id);
            }
        )+

        #[test]
        fn every_published_scenario_has_golden_outputs() {
            let all = [vectors("loading_thesis.json"), vectors("loading_paper.json")].concat();
            let ids: Vec<_> = all.iter().map(|case| case["id"].as_str().unwrap()).collect();
            assert_eq!(ids, [$($id),+]);
        }
    };
}

golden_outputs! {
    thesis_1_still_gives_its_golden_outputs: "thesis-1",
    thesis_2_still_gives_its_golden_outputs: "thesis-2",
    thesis_3_still_gives_its_golden_outputs: "thesis-3",
    thesis_4_still_gives_its_golden_outputs: "thesis-4",
    mnist_printed_still_gives_its_golden_outputs: "mnist-printed",
    mnist_script_still_gives_its_golden_outputs: "mnist-script",
    imagenet_1k_printed_still_gives_its_golden_outputs: "imagenet-1k-printed",
    imagenet_1k_script_still_gives_its_golden_outputs: "imagenet-1k-script",
    openimages_printed_still_gives_its_golden_outputs: "openimages-printed",
    openimages_script_still_gives_its_golden_outputs: "openimages-script",
    imagenet_22k_printed_still_gives_its_golden_outputs: "imagenet-22k-printed",
    imagenet_22k_script_still_gives_its_golden_outputs: "imagenet-22k-script",
    cosmoflow_printed_still_gives_its_golden_outputs: "cosmoflow-printed",
    cosmoflow_script_still_gives_its_golden_outputs: "cosmoflow-script",
    cosmoflow_512_printed_still_gives_its_golden_outputs: "cosmoflow-512-printed",
    cosmoflow_512_script_still_gives_its_golden_outputs: "cosmoflow-512-script",
}

fn check(id: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/loading_golden");
    let path = folder.join(format!("{id}.txt"));
    let of_thesis = id.starts_with("thesis");
    let cases = vectors(if of_thesis { "loading_thesis.json" } else { "loading_paper.json" });
    let case = cases.iter().find(|case| case["id"] == id).unwrap();
    let mut lines = vec!["# compat policy total init compute stall barrier origin_reads".to_owned()];
    for compat in Compat::ALL {
        let scenario = if of_thesis { thesis(case, compat) } else { paper(case, compat) };
        for policy in Policy::ALL.into_iter().filter(|policy| !policy.reads_bucket()) {
            lines.push(line(&scenario, policy, policy.name()));
        }
        let mut exchanging = scenario.clone();
        exchanging.options.peers = true;
        lines.push(line(&exchanging, Policy::Foresee, "foresee_with_peers"));
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert_eq!(expected.lines().count(), lines.len());
    for (expected, given) in expected.lines().zip(&lines) {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let same = words(expected).iter().zip(words(given)).all(|(one, other)| {
            // Sizes are drawn through logarithms and cosines, whose last bit depends on the platform.
            match (one.parse::<f64>(), other.parse::<f64>()) {
                (Ok(one), Ok(other)) => (one - other).abs() <= 1e-4 * one.abs() + 1e-3,
                _ => *one == other,
            }
        });
        assert!(same, "{given}, and it was {expected}; UPDATE_GOLDEN=1 accepts it");
    }
}

fn line(scenario: &Scenario, policy: Policy, name: &str) -> String {
    let name = format!("{} {name}", scenario.options.compat.name());
    match try_run(scenario, policy) {
        Ok(report) => format!("{name} {}", values(&report)),
        Err(_) => format!("{name} unsupported"),
    }
}

fn values(report: &Report) -> String {
    let Report { total, init, compute, stall, barrier, origin_requests, .. } = report;
    format!("{total:.3} {init:.3} {compute:.3} {stall:.3} {barrier:.3} {origin_requests}")
}
