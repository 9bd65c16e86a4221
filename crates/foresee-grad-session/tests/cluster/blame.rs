// SPDX-License-Identifier: Apache-2.0
//! Errors and reports of waits may only name a party with a fault.

use std::collections::BTreeSet;

use foresee_grad_session::RankFailure;

use crate::byzantine::ByzantinePeer;
use crate::faults::Culprits;
use crate::rank::RankNode;
use crate::world::World;

/// Failures of running ranks, by rank.
pub(crate) type Failures = Vec<(usize, RankFailure)>;

/// A failure as text, with every party that it names.
pub(crate) fn describe(failure: &RankFailure) -> String {
    match failure {
        RankFailure::ServerLost { server, why, missing } => {
            format!("lost server {server}: {why}; {missing}")
        }
        RankFailure::RankLost { rank, why, missing } => {
            format!("received that rank {rank} is lost: {why}; {missing}")
        }
        RankFailure::Disagree(why) => format!("found a difference: {why}"),
        RankFailure::Refused { server, why } => format!("been refused by server {server}: {why}"),
        RankFailure::Queue(why) => format!("failed: {why}"),
        RankFailure::NoPlan => "no plan".into(),
        RankFailure::Push { name, round } => format!("pushed '{name}' in round {round}"),
    }
}

/// The numbers after `word`, or its plural, in a text.
fn numbers(text: &str, word: &str) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices(word) {
        let rest = text[at + word.len()..].trim_start_matches('s').trim_start();
        for part in rest.split(", ") {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            let Ok(number) = digits.parse() else { break };
            found.insert(number);
            if digits.len() < part.len() {
                break;
            }
        }
    }
    found
}

impl Culprits {
    /// Whether a failure names one of them.
    fn explain(&self, failure: &RankFailure, has_byzantine_peer: bool) -> bool {
        let text = describe(failure);
        let named = |word, parties: &BTreeSet<usize>| !numbers(&text, word).is_disjoint(parties);
        match failure {
            RankFailure::RankLost { rank, .. } if self.ranks.contains(&(rank.0 as usize)) => true,
            RankFailure::ServerLost { server, .. } if self.servers.contains(&usize::from(server.0)) => true,
            RankFailure::Disagree(why)
                if has_byzantine_peer && why.contains("did not receive the plan from every rank") =>
            {
                true
            }
            // A server trusts a rank about the first server's proposal.
            RankFailure::Disagree(why)
                if has_byzantine_peer && why.contains("a membership that was not announced") =>
            {
                true
            }
            // No rank can know which rank sent different reports to the servers.
            RankFailure::Disagree(why)
                if has_byzantine_peer && why.contains("the ranks' views of the round differ") =>
            {
                true
            }
            _ => named("rank", &self.ranks) || named("server", &self.servers),
        }
    }
}

impl World {
    /// The failures of running ranks.
    ///
    /// # Panics
    /// If an error names no party with a fault.
    pub(crate) fn failures(&self) -> Failures {
        let failed =
            |(at, rank): (usize, &RankNode)| Some((at, rank.failure.clone().filter(|_| rank.is_alive)?));
        let failures: Failures = self.ranks.iter().enumerate().filter_map(failed).collect();
        for (at, failure) in &failures {
            assert!(
                self.byzantine == Some(ByzantinePeer::Rank(*at))
                    || self.culprits.explain(failure, self.byzantine.is_some()),
                "rank {at} names the wrong party: {failure:?}; it was {:?}",
                self.culprits
            );
        }
        failures
    }

    /// Reports of waits name only slow or absent ranks: time passes only while no other rank can act.
    pub(crate) fn check_wait(&self, server: usize, text: &str) {
        if self.byzantine.is_some() || server > 0 && text.contains("to propose") {
            // The other servers do not know the ranks that the first server waits for.
            return;
        }
        let ranks = numbers(text, "rank");
        assert!(!ranks.is_empty(), "a report of a wait names no rank: {text}");
        let is_wrong = |rank: &&usize| !self.is_slow(**rank);
        let wrong: Vec<_> = ranks.iter().filter(is_wrong).collect();
        assert!(wrong.is_empty(), "ranks {wrong:?} are neither slow nor absent: {text}");
    }

    /// If ranks wait forever, each has received a report of a missing rank. A byzantine party can make the others wait,
    /// and its reports may be wrong.
    ///
    /// # Panics
    /// If a rank waits without a report.
    pub(crate) fn check_reports(&self) {
        for (at, rank) in self.ranks.iter().enumerate().filter(|(_, rank)| rank.is_running()) {
            let waits = rank.session.waits();
            let names = |text: &String| numbers(text, "rank").iter().any(|rank| self.is_slow(*rank));
            assert!(
                waits.iter().any(names) || self.byzantine.is_some(),
                "rank {at} waits for nothing ({:?}, {waits:?})",
                rank.phase
            );
        }
    }
}
