// SPDX-License-Identifier: Apache-2.0
//! Whom errors and reports of waits may name: only a party that something happened to.

use std::collections::BTreeSet;

use foresee_grad_session::RankFailure;

use crate::faults::Culprits;
use crate::lies::Liar;
use crate::rank::RankNode;
use crate::world::World;

/// Why ranks failed that were training, by rank.
pub(crate) type Failures = Vec<(usize, RankFailure)>;

/// A failure in words, with every party that it names.
pub(crate) fn describe(failure: &RankFailure) -> String {
    match failure {
        RankFailure::ServerLost { server, why, missing } => {
            format!("lost server {server}: {why}; {missing}")
        }
        RankFailure::RankLost { rank, why, missing } => {
            format!("heard that rank {rank} is lost: {why}; {missing}")
        }
        RankFailure::Disagree(why) => format!("found a difference: {why}"),
        RankFailure::Refused { server, why } => format!("been refused by server {server}: {why}"),
        RankFailure::Queue(why) => format!("failed: {why}"),
        RankFailure::NoPlan => "no plan".into(),
        RankFailure::Push { name, round } => format!("pushed '{name}' in round {round}"),
    }
}

/// The numbers behind `word` in a text, and behind its plural.
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
    /// Whether a failure is for one of them.
    fn explain(&self, failure: &RankFailure, has_liar: bool) -> bool {
        let text = describe(failure);
        let named = |word, parties: &BTreeSet<usize>| !numbers(&text, word).is_disjoint(parties);
        match failure {
            RankFailure::RankLost { rank, .. } if self.ranks.contains(&(rank.0 as usize)) => true,
            RankFailure::ServerLost { server, .. } if self.servers.contains(&usize::from(server.0)) => true,
            RankFailure::Disagree(why)
                if has_liar && why.contains("did not receive the plan from every rank") =>
            {
                true
            }
            // A server takes a rank's word for what the first server proposed.
            RankFailure::Disagree(why) if has_liar && why.contains("a membership that was not announced") => {
                true
            }
            // Which rank told servers different things, no rank can know.
            RankFailure::Disagree(why)
                if has_liar && why.contains("the ranks' views of the round differ") =>
            {
                true
            }
            _ => named("rank", &self.ranks) || named("server", &self.servers),
        }
    }
}

impl World {
    /// Why ranks failed that were training.
    ///
    /// # Panics
    /// An error names nobody that something happened to.
    pub(crate) fn failures(&self) -> Failures {
        let failed =
            |(at, rank): (usize, &RankNode)| Some((at, rank.failure.clone().filter(|_| rank.is_alive)?));
        let failures: Failures = self.ranks.iter().enumerate().filter_map(failed).collect();
        for (at, failure) in &failures {
            assert!(
                self.liar == Some(Liar::Rank(*at)) || self.culprits.explain(failure, self.liar.is_some()),
                "rank {at} names the wrong party: {failure:?}; it was {:?}",
                self.culprits
            );
        }
        failures
    }

    /// Ranks are told only of ranks that are slow or away: time passes only while nobody else can do anything.
    pub(crate) fn check_wait(&self, server: usize, text: &str) {
        if self.liar.is_some() || server > 0 && text.contains("to propose") {
            // Whom the first server waits for, the others do not know.
            return;
        }
        let ranks = numbers(text, "rank");
        assert!(!ranks.is_empty(), "a report of a wait names nobody: {text}");
        let is_wrong = |rank: &&usize| !self.is_slow(**rank);
        let wrong: Vec<_> = ranks.iter().filter(is_wrong).collect();
        assert!(wrong.is_empty(), "ranks {wrong:?} are neither slow nor away: {text}");
    }

    /// Ranks wait, and nothing ends that by itself: each was told of a rank that does not come. A party that
    /// lies about its own part has the others wait, and no report is to be trusted.
    ///
    /// # Panics
    /// A rank waits for nothing.
    pub(crate) fn check_reports(&self) {
        for (at, rank) in self.ranks.iter().enumerate().filter(|(_, rank)| rank.is_running()) {
            let waits = rank.session.waits();
            let names = |text: &String| numbers(text, "rank").iter().any(|rank| self.is_slow(*rank));
            assert!(
                waits.iter().any(names) || self.liar.is_some(),
                "rank {at} waits for nothing ({:?}, {waits:?})",
                rank.phase
            );
        }
    }
}
