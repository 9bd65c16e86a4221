// SPDX-License-Identifier: Apache-2.0
//! Reports of long waits: ranks that wait are told for whom, and for what.
//!
//! The job looks twice in the time after which a wait is reported. What two looks in a row find has lasted for half of
//! that time, and is reported at every second of them. Only then are the slots searched, of which there may be millions.
//! A report changes nothing: slow is not lost.

use std::fmt::Write as _;

use foresee_grad_queue::{Members, Round};
use foresee_units::{Nanos, Rank};

use super::ServerJob;
use super::action::{JobAction, OwedTicket, Peer};
use crate::ServerMessage;

/// Ranks that are named one by one.
const NAMED_MAX: usize = 4;

/// How often ranks that wait for the first plan of a server are told for whom: they may give up after a short time of
/// their own.
const LOOK_START: Nanos = Nanos::from_millis(1_000);

/// What ranks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The proposals of others.
    Plan,
    /// That others push all that they will push in a round.
    End(Round),
    /// That others hold everything of a round.
    Got(Round),
}

/// What the last look found, and whether it was reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitSnapshot {
    generation: u32,
    wanted: Wanted,
    is_reported: bool,
}

impl ServerJob {
    /// Looks whether ranks wait, and reports for whom if they did at the last look and were not told then.
    pub(super) fn look_at_waits(&mut self, now: Nanos) {
        if now < self.next_look {
            return;
        }
        self.next_look = now.saturating_add(self.settings.look);
        let Some((wanted, whom)) = self.wait() else {
            self.waits = None;
            return;
        };
        let generation = self.generation;
        let before = self.waits.filter(|last| last.wanted == wanted && last.generation == generation);
        let is_reported = before.is_some_and(|last| !last.is_reported);
        self.waits = Some(WaitSnapshot { generation, wanted, is_reported });
        match wanted {
            _ if !is_reported => {}
            Wanted::End(round) | Wanted::Got(round) => {
                // What another rank has pushed may be behind a payload that waits for these.
                if let Ok(waited_for) = Members::new(generation, self.settings.world, whom) {
                    let ticket = OwedTicket { round, wanted, waited_for };
                    self.actions.push_back(JobAction::FindOwed(ticket));
                }
            }
            Wanted::Plan => self.report_wait(wanted, None),
        }
    }

    /// Whether ranks have proposed tensors, or come from a lost server, and there is no plan yet.
    pub(super) fn starts(&self) -> bool {
        self.plan.is_none() && self.has_applicants()
    }

    /// Whether a rank waits here for a plan: it proposed one, or has that of a lost server.
    fn has_applicants(&self) -> bool {
        !self.proposals.is_empty() || self.resumes.values().any(|known| known.generation > 0)
    }

    /// Tells ranks that wait for the first plan here for whom they do.
    pub(super) fn look_at_start(&mut self, now: Nanos) {
        if now < self.next_start_look || !self.starts() {
            return;
        }
        self.next_start_look = now.saturating_add(LOOK_START);
        let Some((wanted, whom)) = self.wait() else { return };
        let text = self.describe(wanted, &whom, None);
        let has_sent = |rank: &Rank| self.proposals.contains_key(rank) || self.resumes.contains_key(rank);
        let waiting: Vec<Peer> = self.connected().filter(|peer| has_sent(&peer.rank)).collect();
        for peer in waiting {
            self.send(peer, ServerMessage::Waiting(text.clone()));
        }
    }

    /// The slots were searched for what ranks owe to a round; `None` if they owe nothing.
    pub fn handle_owed(&mut self, ticket: &OwedTicket, owed: Option<&str>) {
        self.report_wait(ticket.wanted, owed);
    }

    fn report_wait(&mut self, wanted: Wanted, owed: Option<&str>) {
        // After a message of its end none of a wait may follow.
        let Some((_, whom)) = self.wait().filter(|(now, _)| *now == wanted) else { return };
        let text = self.describe(wanted, &whom, owed);
        let waiting: Vec<Peer> = self.connected().filter(|peer| !whom.contains(&peer.rank)).collect();
        for peer in waiting {
            self.send(peer, ServerMessage::Waiting(text.clone()));
        }
    }

    /// What some ranks wait for, and of whom.
    fn wait(&self) -> Option<(Wanted, Vec<Rank>)> {
        if self.has_applicants() {
            // A rank without a plan proposes one after its state.
            let has_plan = |rank: &Rank| self.resumes.get(rank).is_some_and(|known| known.generation > 0);
            let has_sent = |rank: &Rank| self.proposals.contains_key(rank) || has_plan(rank);
            let whom: Vec<Rank> = self.every().into_iter().filter(|rank| !has_sent(rank)).collect();
            return (!whom.is_empty()).then_some((Wanted::Plan, whom));
        }
        let rounds = &self.plan.as_ref()?.rounds;
        let live = rounds.members().count() as usize;
        // Where all are asked for something, none of them waits for it yet.
        let some = |ranks: Vec<Rank>| (!ranks.is_empty() && ranks.len() < live).then_some(ranks);
        let (round, ranks) = rounds.waiting_for_end();
        if let Some(ranks) = some(ranks.collect()) {
            return Some((Wanted::End(round), ranks));
        }
        let waiting: Vec<Rank> = rounds.waiting_for_got().collect();
        // What a rank that has left contributed may not have come.
        let gone: Vec<Rank> = waiting.iter().copied().filter(|rank| !self.ranks.contains_key(rank)).collect();
        let ranks = if gone.is_empty() { some(waiting)? } else { gone };
        Some((Wanted::Got(rounds.oldest()), ranks))
    }

    fn describe(&self, wanted: Wanted, whom: &[Rank], owed: Option<&str>) -> String {
        match wanted {
            Wanted::Plan => {
                let (here, away): (Vec<Rank>, Vec<Rank>) =
                    whom.iter().partition(|rank| self.ranks.contains_key(rank));
                let whose = if here.len() == 1 { "its" } else { "their" };
                let here = (!here.is_empty()).then(|| format!("{} to propose {whose} tensors", names(&here)));
                let away = (!away.is_empty()).then(|| format!("{} to come", names(&away)));
                here.into_iter().chain(away).collect::<Vec<_>>().join(", and for ")
            }
            Wanted::End(round) | Wanted::Got(round) => {
                let what = if matches!(wanted, Wanted::End(_)) { "end" } else { "have all of" };
                let has_left = !whom.iter().any(|rank| self.ranks.contains_key(rank));
                let left = if has_left { " (no longer connected)" } else { "" };
                let mut text = format!("{}{left} to {what} round {round}", names(whom));
                if let Some(owed) = owed {
                    let _ = write!(text, "; {owed} have not come");
                }
                text
            }
        }
    }
}

/// The ranks, the first of them by number.
pub(super) fn names(ranks: &[Rank]) -> String {
    let (named, others) = ranks.split_at(ranks.len().min(NAMED_MAX));
    let numbers: Vec<_> = named.iter().map(Rank::to_string).collect();
    let rest = if others.is_empty() { String::new() } else { format!(" and {} others", others.len()) };
    format!("rank{} {}{rest}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(", "))
}
