// SPDX-License-Identifier: Apache-2.0
//! Rules of injected faults.
//!
//! This file only decides; `server` and `body` execute the faults. Random choices follow from a seed in the rule,
//! so that a failed run can be repeated.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use foresee_units::{GAMMA, SplitMix64};
use serde::{Deserialize, Serialize};

/// A kind of fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Fault {
    /// Answers with this status (400 to 599) and S3's error document instead of the object.
    Status {
        /// For example 503, S3's `SlowDown`.
        status: u16,
        /// Code of the error document; absent: `SlowDown` for 503, else `InjectedFault`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        /// Value of `Retry-After`, in seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_s: Option<u32>,
    },
    /// Answers with this status, these headers and this body, such as the page of a login form.
    Answer {
        /// 200 to 599.
        status: u16,
        /// Headers by name.
        #[serde(default)]
        headers: BTreeMap<String, String>,
        /// The body.
        #[serde(default)]
        body: String,
    },
    /// Answers as if the request had neither `Range` nor `If-Match`, as a simple web server does.
    IgnoreConditions,
    /// Answers a listing with an empty page, whose token leads to the page that was requested.
    EmptyPage,
    /// Sends half of the body, then nothing for `ms`, then the rest; without `ms` the rest never follows.
    Stall {
        /// Duration in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ms: Option<u64>,
    },
    /// Announces the whole body, sends half of it and closes the connection.
    ShortBody,
    /// Resets the connection (TCP RST) instead of an answer.
    Reset,
}

/// The conditions and frequency of a [`Fault`]. All conditions must hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultRule {
    /// The fault.
    #[serde(flatten)]
    pub fault: Fault,
    /// Only for requests of this method, such as `HEAD`; empty: all.
    #[serde(default)]
    pub method: String,
    /// Only for requests whose path contains this; empty: all.
    #[serde(default)]
    pub path: String,
    /// Maximum number of requests; absent: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// Percentage of requests, 0 to 100; absent: all.
    #[serde(default = "always")]
    pub percent: f64,
    /// Seed of the choices of `percent`.
    #[serde(default)]
    pub seed: u64,
}

fn always() -> f64 {
    100.0
}

/// The current rules.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: Mutex<Vec<FaultRule>>,
}

impl Faults {
    pub(crate) fn new(rules: Vec<FaultRule>) -> Self {
        Self { rules: Mutex::new(rules) }
    }

    /// Replace the rules.
    pub(crate) fn set(&self, rules: Vec<FaultRule>) {
        *self.rules.lock().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    /// The current rules, with the remaining count of each `next`.
    pub(crate) fn rules(&self) -> Vec<FaultRule> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The fault of a request with `method` for `path`, from the first rule that applies, whose count is reduced by one.
    pub(crate) fn draw(&self, method: &str, path: &str) -> Option<Fault> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        rules.iter_mut().find_map(|rule| rule.draw(method, path))
    }
}

impl From<Fault> for FaultRule {
    /// A rule for every request.
    fn from(fault: Fault) -> Self {
        Self { fault, method: String::new(), path: String::new(), next: None, percent: 100.0, seed: 0 }
    }
}

impl FaultRule {
    /// An error if this rule is invalid.
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Fault::Status { status, .. } = self.fault
            && !(400..600).contains(&status)
        {
            return Err(format!("a fault's status is 400 to 599 (got {status})"));
        }
        if let Fault::Answer { status, .. } = self.fault
            && !(200..600).contains(&status)
        {
            return Err(format!("an answer's status is 200 to 599 (got {status})"));
        }
        if !(0.0..=100.0).contains(&self.percent) {
            return Err(format!("a fault's percent is 0 to 100 (got {})", self.percent));
        }
        Ok(())
    }

    fn draw(&mut self, method: &str, path: &str) -> Option<Fault> {
        let is_for = (self.method.is_empty() || self.method == method) && path.contains(&self.path);
        if self.next == Some(0) || !is_for || !self.chance() {
            return None;
        }
        if let Some(left) = &mut self.next {
            *left -= 1;
        }
        Some(self.fault.clone())
    }

    /// Return true in `percent` of a hundred draws, and advance the seed.
    fn chance(&mut self) -> bool {
        let mut draw = SplitMix64::new(self.seed);
        self.seed = self.seed.wrapping_add(GAMMA);
        draw.uniform() * 100.0 < self.percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(rules: &str) -> Faults {
        Faults::new(serde_json::from_str(rules).expect("valid rules"))
    }

    #[test]
    fn the_next_two_requests_fail_and_then_none() {
        let faults = parse(r#"[{"kind": "status", "status": 503, "next": 2}]"#);
        let slow_down = Some(Fault::Status { status: 503, code: None, retry_after_s: None });
        let drawn = ["/a", "/b", "/c"].map(|path| faults.draw("GET", path));
        assert_eq!(drawn, [slow_down.clone(), slow_down, None]);
    }

    #[test]
    fn a_path_that_does_not_match_consumes_no_fault() {
        let faults = parse(r#"[{"kind": "reset", "path": "/train/", "next": 1}]"#);
        assert_eq!(faults.draw("GET", "/bucket/val/1"), None);
        assert_eq!(faults.draw("GET", "/bucket/train/1"), Some(Fault::Reset));
        assert_eq!(faults.draw("GET", "/bucket/train/1"), None);
    }

    #[test]
    fn a_rule_for_one_method_concerns_no_other() {
        let faults = parse(r#"[{"kind": "ignore_conditions", "method": "HEAD"}]"#);
        assert_eq!(faults.draw("GET", "/k"), None);
        assert_eq!(faults.draw("HEAD", "/k"), Some(Fault::IgnoreConditions));
    }

    #[test]
    fn a_seed_makes_the_same_third_fail_again() {
        let rules = r#"[{"kind": "short_body", "percent": 33, "seed": 5}]"#;
        let draw = || {
            let faults = parse(rules);
            (0..3_000).map(|_| faults.draw("GET", "/k").is_some()).collect::<Vec<_>>()
        };
        let failed = draw().iter().filter(|hit| **hit).count();
        assert!((900..1_080).contains(&failed), "{failed} of 3000");
        assert_eq!(draw(), draw());
    }

    #[test]
    fn an_unknown_kind_is_refused() {
        assert!(serde_json::from_str::<Vec<FaultRule>>(r#"[{"kind": "explode"}]"#).is_err());
    }
}
