// SPDX-License-Identifier: Apache-2.0
//! Reports of long waits: ranks learn which ranks they wait for, and for what.
//!
//! Checks take place twice in the time after which a wait is reported. A wait that two consecutive checks find has
//! lasted for half of that time; it is reported at every second check. Only then are the slots searched, because there
//! may be millions. A report changes nothing: a slow rank is not a lost one.

use std::fmt::Write as _;

use foresee_grad_queue::{Members, Round};
use foresee_units::{Nanos, Rank};

use super::ServerJob;
use super::action::{JobAction, MissingTicket, Peer};
use crate::ServerMessage;

/// Ranks that are named one by one.
const NAMED_MAX: usize = 4;

/// Interval of reports to ranks that wait for a server's first plan, since their own start timeout may be short.
const START_CHECK_INTERVAL: Nanos = Nanos::from_millis(1_000);

/// What ranks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitReason {
    /// The proposals of others.
    Plan,
    /// The end of a round at others.
    End(Round),
    /// The confirmation that others have all results of a round.
    Got(Round),
}

/// The result of the last check, and whether it was reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitSnapshot {
    generation: u32,
    reason: WaitReason,
    is_reported: bool,
}

impl ServerJob {
    /// Check whether ranks wait; report it if the last check found the same wait and did not report it.
    pub(super) fn check_waits(&mut self, now: Nanos) {
        if now < self.next_wait_check {
            return;
        }
        self.next_wait_check = now.saturating_add(self.settings.wait_check_interval);
        let Some((reason, awaited)) = self.wait() else {
            self.waits = None;
            return;
        };
        let generation = self.generation;
        let before = self.waits.filter(|last| last.reason == reason && last.generation == generation);
        let is_reported = before.is_some_and(|last| !last.is_reported);
        self.waits = Some(WaitSnapshot { generation, reason, is_reported });
        match reason {
            _ if !is_reported => {}
            WaitReason::End(round) | WaitReason::Got(round) => {
                // A contribution may be queued behind a payload that waits for the awaited ranks.
                if let Ok(awaited) = Members::new(generation, self.settings.world, awaited) {
                    let ticket = MissingTicket { round, awaited, reason };
                    self.actions.push_back(JobAction::FindMissing(ticket));
                }
            }
            WaitReason::Plan => self.report_wait(reason, None),
        }
    }

    /// Whether there is no plan yet, and a rank waits for one.
    pub(super) fn is_starting(&self) -> bool {
        self.plan.is_none() && self.is_plan_awaited()
    }

    /// Whether a rank waits for a plan: it proposed one, or has the plan of a lost server.
    fn is_plan_awaited(&self) -> bool {
        !self.proposals.is_empty() || self.resumes.values().any(|state| state.generation > 0)
    }

    /// Report to ranks that wait for the first plan which ranks are missing.
    pub(super) fn check_start(&mut self, now: Nanos) {
        if now < self.next_start_check || !self.is_starting() {
            return;
        }
        self.next_start_check = now.saturating_add(START_CHECK_INTERVAL);
        let Some((reason, awaited)) = self.wait() else { return };
        let text = self.describe(reason, &awaited, None);
        let has_sent =
            |peer: &Peer| self.proposals.contains_key(&peer.rank) || self.resumes.contains_key(&peer.rank);
        let waiting = self.connected().filter(has_sent).collect();
        self.send_waiting(waiting, &text);
    }

    /// Report a wait after the slots were searched; `missing` describes the missing contributions, if any.
    pub fn handle_missing(&mut self, ticket: &MissingTicket, missing: Option<&str>) {
        self.report_wait(ticket.reason, missing);
    }

    fn report_wait(&mut self, reason: WaitReason, missing: Option<&str>) {
        // The wait may have ended in the meantime.
        let Some((_, awaited)) = self.wait().filter(|(now, _)| *now == reason) else { return };
        let text = self.describe(reason, &awaited, missing);
        let waiting = self.connected().filter(|peer| !awaited.contains(&peer.rank)).collect();
        self.send_waiting(waiting, &text);
    }

    fn send_waiting(&mut self, peers: Vec<Peer>, text: &str) {
        for peer in peers {
            self.send(peer, ServerMessage::Waiting(text.to_owned()));
        }
    }

    /// What some ranks wait for, and the ranks that they wait for.
    fn wait(&self) -> Option<(WaitReason, Vec<Rank>)> {
        if self.is_plan_awaited() {
            // A rank without a plan proposes one after its state.
            let has_plan = |rank: &Rank| self.resumes.get(rank).is_some_and(|state| state.generation > 0);
            let has_sent = |rank: &Rank| self.proposals.contains_key(rank) || has_plan(rank);
            let awaited: Vec<Rank> =
                self.exchanging_ranks().into_iter().filter(|rank| !has_sent(rank)).collect();
            return (!awaited.is_empty()).then_some((WaitReason::Plan, awaited));
        }
        let rounds = &self.plan.as_ref()?.rounds;
        let live = rounds.members().count() as usize;
        // If all ranks are awaited, none of them waits yet.
        let some = |ranks: Vec<Rank>| (!ranks.is_empty() && ranks.len() < live).then_some(ranks);
        let (round, ranks) = rounds.waiting_for_end();
        if let Some(ranks) = some(ranks.collect()) {
            return Some((WaitReason::End(round), ranks));
        }
        let waiting: Vec<Rank> = rounds.waiting_for_got().collect();
        // The last contributions of a rank that left may be lost.
        let gone: Vec<Rank> = waiting.iter().copied().filter(|rank| !self.ranks.contains_key(rank)).collect();
        let ranks = if gone.is_empty() { some(waiting)? } else { gone };
        Some((WaitReason::Got(rounds.oldest()), ranks))
    }

    fn describe(&self, reason: WaitReason, awaited: &[Rank], missing: Option<&str>) -> String {
        match reason {
            WaitReason::Plan => {
                let (connected, absent): (Vec<Rank>, Vec<Rank>) =
                    awaited.iter().partition(|rank| self.ranks.contains_key(rank));
                let their = if connected.len() == 1 { "its" } else { "their" };
                let propose = |ranks| format!("{} to propose {their} tensors", rank_names(ranks));
                let proposals = (!connected.is_empty()).then(|| propose(&connected));
                let connects = (!absent.is_empty()).then(|| format!("{} to connect", rank_names(&absent)));
                proposals.into_iter().chain(connects).collect::<Vec<_>>().join(", and for ")
            }
            WaitReason::End(round) | WaitReason::Got(round) => {
                let what = if matches!(reason, WaitReason::End(_)) { "end" } else { "receive all of" };
                let has_left = !awaited.iter().any(|rank| self.ranks.contains_key(rank));
                let left = if has_left { " (no longer connected)" } else { "" };
                let mut text = format!("{}{left} to {what} round {round}", rank_names(awaited));
                if let Some(missing) = missing {
                    let _ = write!(text, "; {missing} have not arrived");
                }
                text
            }
        }
    }
}

/// The ranks as text, the first ones by number.
pub(super) fn rank_names(ranks: &[Rank]) -> String {
    let (named, others) = ranks.split_at(ranks.len().min(NAMED_MAX));
    let numbers: Vec<_> = named.iter().map(Rank::to_string).collect();
    let rest = if others.is_empty() { String::new() } else { format!(" and {} others", others.len()) };
    format!("rank{} {}{rest}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(", "))
}
