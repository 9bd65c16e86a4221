// SPDX-License-Identifier: Apache-2.0
//! Test vectors of staggering: `testdata/models/stagger.json`, which Python's closed forms match too, simulated
//! step by step.
//!
//! The simulation has whole steps, so makespans may differ by a few of them; the frontier's match to the
//! nanosecond.

#![expect(clippy::unwrap_used, reason = "a vector that cannot be read fails its test")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "seconds of some hours to nanoseconds and back"
)]

use std::path::Path;

use foresee_model::Compat;
use foresee_sim::{Correction, Job, SharedData, Storage, simulate_jobs};
use foresee_units::Nanos;
use serde_json::Value;

fn vectors() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/stagger.json");
    let mut file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let Value::Array(cases) = file["cases"].take() else { panic!("cases is no list") };
    cases
}

fn seconds(value: &Value) -> Nanos {
    Nanos::new((value.as_f64().unwrap() * 1e9).round() as u64)
}

fn job(job_inputs: &Value, start: f64) -> Job {
    Job {
        compute: seconds(&job_inputs["compute"]),
        wait: seconds(&job_inputs["wait"]),
        wait_cached: seconds(&job_inputs["wait_cached"]),
        wait_conc: job_inputs.get("wait_conc").map(seconds).into_iter().collect(),
        batch: 1,
        epochs: job_inputs["epochs"].as_u64().unwrap(),
        start: Nanos::new((start * 1e9).round() as u64),
    }
}

fn alone(job_inputs: &Value) -> f64 {
    let [compute, wait, cached, steps, epochs] = ["compute", "wait", "wait_cached", "steps", "epochs"]
        .map(|figure| job_inputs[figure].as_f64().unwrap());
    steps * (compute + wait + (epochs - 1.0) * (compute + cached))
}

#[test]
fn makespans_of_two_jobs_match_within_some_steps() {
    let mut played = 0;
    for vector in vectors() {
        let (inputs, expected) = (&vector["inputs"], &vector["expected"]);
        let (leader, follower) = (&inputs["leader"], &inputs["follower"]);
        let starts: Vec<f64> = match vector["ask"].as_str().unwrap() {
            "plan" => continue,
            "optimum" if expected.get("start").is_none() => continue,
            "optimum" => vec![expected["start"].as_f64().unwrap()],
            _ => match inputs.get("percent").and_then(Value::as_array) {
                Some(shares) => {
                    shares.iter().map(|share| share.as_f64().unwrap() / 100.0 * alone(leader)).collect()
                }
                None => {
                    inputs["start"].as_array().unwrap().iter().map(|start| start.as_f64().unwrap()).collect()
                }
            },
        };
        let makespans = match &expected["makespan"] {
            Value::Array(all) => all.clone(),
            one => vec![one.clone()],
        };
        let compat =
            Compat::named(inputs.get("compat").map_or("physical", |compat| compat.as_str().unwrap()));
        let storage = Storage::Competing { compat: compat.unwrap(), correction: Correction::None };
        let samples = leader["steps"].as_u64().unwrap();
        let data = SharedData { samples, cache: samples, storage };
        for (start, makespan) in starts.into_iter().zip(makespans) {
            let jobs = [job(leader, 0.0), job(follower, start)];
            let report = simulate_jobs(&jobs, &data).unwrap();
            let steps = jobs.iter().map(|job| job.compute + *job.wait_conc.iter().max().unwrap());
            let step = steps.max().unwrap().as_secs_f64();
            let (simulated, wanted) = (report.makespan.as_secs_f64(), makespan.as_f64().unwrap());
            let id = &vector["id"];
            assert!((simulated - wanted).abs() <= 3.0 * step, "{id} at {start}: {simulated} for {wanted}");
            played += 1;
        }
    }
    assert!(played >= 30, "vectors are missing");
}

#[test]
fn the_plan_of_the_frontier_matches_to_the_nanosecond() {
    let plans: Vec<Value> = vectors().into_iter().filter(|vector| vector["ask"] == "plan").collect();
    assert!(!plans.is_empty());
    for vector in plans {
        let (inputs, expected) = (&vector["inputs"], &vector["expected"]);
        let jobs_inputs = inputs["jobs"].as_array().unwrap();
        let starts = expected["starts"].as_array().unwrap();
        let samples = jobs_inputs[0]["steps"].as_u64().unwrap();
        let storage = Storage::Coalescing { read: seconds(&inputs["read"]) };
        let data = SharedData { samples, cache: samples, storage };
        let planned: Vec<Job> = jobs_inputs
            .iter()
            .zip(starts)
            .map(|(job_inputs, start)| job(job_inputs, start.as_f64().unwrap()))
            .collect();
        let report = simulate_jobs(&planned, &data).unwrap();
        assert_eq!(report.makespan, seconds(&expected["makespan"]));
        assert_eq!(report.gpu_time, seconds(&expected["gpu_seconds"]));
        let at_once: Vec<Job> = jobs_inputs.iter().map(|job_inputs| job(job_inputs, 0.0)).collect();
        let report = simulate_jobs(&at_once, &data).unwrap();
        assert_eq!(report.makespan, seconds(&expected["makespan"]));
        assert_eq!(report.gpu_time, seconds(&expected["gpu_seconds_simultaneous"]));
    }
}
