// SPDX-License-Identifier: Apache-2.0
//! Whom the ranks of a job wait for: found now and then, and told to those who wait.
//!
//! Each job is looked at twice in the time after which a wait is worth a word. What two looks in a row find has lasted for
//! half of that time, and is told at every second of them: so a rank has heard of a long wait when the whole time is over,
//! and never hears of it more often. Only then are the slots gone through, of which there may be millions.
//!
//! Apart from losses: slow is not lost, and nobody acts on what is told here. Refuses to say anything while no rank waits.

use std::fmt::Write as _;

use foresee_grad_queue::Round;
use foresee_units::Rank;
use foresee_wire::{Message, Waiting};

use super::survive::cut;
use super::{Inner, Job};
use crate::server::session::lock;

/// So many ranks are named one by one.
const NAMED_MAX: usize = 4;

/// What ranks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Wanted {
    /// What the others exchange.
    Plan,
    /// That the others push all that they will push in a round.
    End(Round),
    /// That the others have everything of a round.
    Landed(Round),
}

/// What the last look found, and whether it was told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    generation: u32,
    wanted: Wanted,
    told: bool,
}

impl Job {
    /// Looks whether ranks wait, and tells them for whom if they did at the last look and were not told then.
    pub(in crate::server) fn look_at_waits(&self) {
        let (wanted, session) = {
            let mut inner = lock(&self.inner);
            let Some((wanted, _)) = self.wait_of(&inner) else {
                inner.look = None;
                return;
            };
            let generation = inner.generation;
            let before = inner.look.filter(|look| look.wanted == wanted && look.generation == generation);
            let tells = before.is_some_and(|look| !look.told);
            inner.look = Some(Look { generation, wanted, told: tells });
            if !tells {
                return;
            }
            (wanted, inner.session.clone())
        };
        let owed = match (wanted, &session) {
            (Wanted::End(round), Some(session)) => {
                let owed = session.owed(round);
                owed.first().map(|_| owed.describe(&session.plan).to_string())
            }
            _ => None,
        };
        let inner = lock(&self.inner);
        // Behind word of its end none of a wait may follow.
        let now = self.wait_of(&inner);
        let Some((_, whom)) = now.filter(|(still, _)| *still == wanted) else { return };
        let message = Message::Waiting(Waiting { text: cut(&inner.words(wanted, &whom, owed.as_deref())) });
        let waiting = inner.ranks.iter().filter(|(rank, _)| !whom.contains(rank));
        for control in waiting.filter_map(|(_, seat)| seat.control.as_ref()) {
            control.tell(message.clone());
        }
    }

    /// What some ranks wait for, and of whom.
    fn wait_of(&self, inner: &Inner) -> Option<(Wanted, Vec<Rank>)> {
        if inner.proposals.is_empty() && inner.resumes.is_empty() {
            return inner.session.as_ref()?.wait();
        }
        // Who has heard of no plan proposes one behind what it knows.
        let knows = |rank: &Rank| inner.resumes.get(rank).is_some_and(|known| known.generation > 0);
        let has_said = |rank: &Rank| inner.proposals.contains_key(rank) || knows(rank);
        let whom: Vec<_> = self.every(inner).into_iter().filter(|rank| !has_said(rank)).collect();
        (!whom.is_empty()).then_some((Wanted::Plan, whom))
    }
}

impl Inner {
    fn words(&self, wanted: Wanted, whom: &[Rank], owed: Option<&str>) -> String {
        match wanted {
            Wanted::Plan => {
                let (here, away): (Vec<Rank>, Vec<Rank>) =
                    whom.iter().partition(|rank| self.ranks.contains_key(rank));
                let here = (!here.is_empty()).then(|| format!("{} to propose its tensors", names(&here)));
                let away = (!away.is_empty()).then(|| format!("{} to come", names(&away)));
                here.into_iter().chain(away).collect::<Vec<_>>().join(", and for ")
            }
            Wanted::End(round) => {
                let mut text = format!("{} to end round {round}", names(whom));
                if let Some(owed) = owed {
                    let _ = write!(text, "; {owed} have not come");
                }
                text
            }
            Wanted::Landed(round) => format!("{} to have all of round {round}", names(whom)),
        }
    }
}

/// The ranks, the first of them by number.
fn names(ranks: &[Rank]) -> String {
    let (named, others) = ranks.split_at(ranks.len().min(NAMED_MAX));
    let numbers: Vec<_> = named.iter().map(Rank::to_string).collect();
    let rest = if others.is_empty() { String::new() } else { format!(" and {} others", others.len()) };
    format!("rank{} {}{rest}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(", "))
}
