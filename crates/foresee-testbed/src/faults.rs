// SPDX-License-Identifier: Apache-2.0
//! What goes wrong, when, and for whom.
//!
//! Decides only; `server` and `body` carry it out. Chances come from a seed in the rule, so a run that failed can
//! be run again.

use std::sync::{Mutex, PoisonError};

use foresee_units::{GAMMA, SplitMix64};
use serde::{Deserialize, Serialize};

/// One way for an answer to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Fault {
    /// Answers with this status (400 to 599) and S3's error document instead of the object.
    Status {
        /// For example 503, S3's `SlowDown`.
        status: u16,
        /// Sent as `Retry-After`, in seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_s: Option<u32>,
    },
    /// Sends half of the body, then nothing for `ms`, then the rest; without `ms` nothing ever comes.
    Stall {
        /// How long, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ms: Option<u64>,
    },
    /// Promises the whole body, sends half of it and closes the connection.
    ShortBody,
    /// Resets the connection (TCP RST) instead of an answer.
    Reset,
}

/// For whom and how often a [`Fault`] happens. All conditions must hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultRule {
    /// What happens.
    #[serde(flatten)]
    pub fault: Fault,
    /// Only to requests whose path contains this; empty: to all.
    #[serde(default)]
    pub path: String,
    /// To at most so many requests; absent: without end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// To so many of a hundred requests, 0 to 100; absent: to all.
    #[serde(default = "always")]
    pub percent: f64,
    /// Where the chances of `percent` start.
    #[serde(default)]
    pub seed: u64,
}

fn always() -> f64 {
    100.0
}

/// The rules in force.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: Mutex<Vec<FaultRule>>,
}

impl Faults {
    pub(crate) fn new(rules: Vec<FaultRule>) -> Self {
        Self { rules: Mutex::new(rules) }
    }

    /// Replaces the rules.
    pub(crate) fn set(&self, rules: Vec<FaultRule>) {
        *self.rules.lock().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    /// The rules as they stand, with what is left of each `next`.
    pub(crate) fn rules(&self) -> Vec<FaultRule> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What happens to a request for `path`: the first rule that applies. Uses that rule up by one.
    pub(crate) fn draw(&self, path: &str) -> Option<Fault> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        rules.iter_mut().find_map(|rule| rule.draw(path))
    }
}

impl FaultRule {
    /// Why this rule cannot be followed, if so.
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Fault::Status { status, .. } = self.fault
            && !(400..600).contains(&status)
        {
            return Err(format!("a fault's status is 400 to 599 (got {status})"));
        }
        if !(0.0..=100.0).contains(&self.percent) {
            return Err(format!("a fault's percent is 0 to 100 (got {})", self.percent));
        }
        Ok(())
    }

    fn draw(&mut self, path: &str) -> Option<Fault> {
        if self.next == Some(0) || !path.contains(&self.path) || !self.chance() {
            return None;
        }
        if let Some(left) = &mut self.next {
            *left -= 1;
        }
        Some(self.fault)
    }

    /// Return true in `percent` of a hundred draws; the seed moves on.
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
        let slow_down = Some(Fault::Status { status: 503, retry_after_s: None });
        assert_eq!([faults.draw("/a"), faults.draw("/b"), faults.draw("/c")], [slow_down, slow_down, None]);
    }

    #[test]
    fn a_path_that_does_not_match_uses_nothing_up() {
        let faults = parse(r#"[{"kind": "reset", "path": "/train/", "next": 1}]"#);
        assert_eq!(faults.draw("/bucket/val/1"), None);
        assert_eq!(faults.draw("/bucket/train/1"), Some(Fault::Reset));
        assert_eq!(faults.draw("/bucket/train/1"), None);
    }

    #[test]
    fn a_seed_makes_the_same_third_fail_again() {
        let rules = r#"[{"kind": "short_body", "percent": 33, "seed": 5}]"#;
        let draw = || {
            let faults = parse(rules);
            (0..3_000).map(|_| faults.draw("/k").is_some()).collect::<Vec<_>>()
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
