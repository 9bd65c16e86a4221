// SPDX-License-Identifier: Apache-2.0
//! How a rank goes on when others are lost: say what it knows, hear what all go by, tell every server, push again.
//!
//! From when the first server tells who is left, this rank hears of no round's end until each server has changed: what it
//! has said it knows is then what all go by. Sums under the old membership may land meanwhile; they stay as they are, at
//! the servers too.
//!
//! Refuses where ranks agree on a plan just then, or a server is lost at the same time: what is exact then nobody knows. And
//! words that no server says before others were heard: whoever waits for those to come hears nothing else.

use foresee_grad_queue::{Round, ServerId};
use foresee_units::Rank;
use foresee_wire::{Change, Changed, Kind, Known, Lost, Members, Message, Used};

use super::state::State;
use super::{Core, ExchangeError};

/// The server that decides who is left.
const FIRST: ServerId = ServerId(0);

/// Memberships, where the job goes on without ranks that are lost.
#[derive(Debug, Default)]
pub(super) struct Membership {
    /// The newest one that was announced; 0: none under this plan.
    coming: u32,
    /// Why, for people.
    why: String,
    /// Who is left; empty: everybody.
    pub(super) live: Vec<u8>,
    /// The newest one that each server has changed to.
    changed: Vec<u32>,
    /// Ranks that were lost.
    pub(super) lost: u64,
}

impl Membership {
    /// Whether a rank was lost and not every server has changed yet.
    pub(super) fn is_changing(&self) -> bool {
        self.coming > 0 && self.changed.iter().any(|generation| *generation < self.coming)
    }

    /// Whether what a server says of rounds is of a membership that does not count any more.
    pub(super) fn is_deaf_to(&self, server: ServerId) -> bool {
        self.coming > 0 && self.changed.get(usize::from(server.0)).is_none_or(|told| *told < self.coming)
    }

    /// Whether this one was announced last, and comes from whom it has to.
    fn is_announced(&self, server: ServerId, generation: u32) -> bool {
        server == FIRST && self.coming > 0 && generation == self.coming
    }

    /// Whether one was announced, and what all go by under it is about to be heard.
    pub(super) fn is_coming(&self, generation: u32) -> bool {
        generation <= self.coming
    }

    /// A plan counts memberships anew.
    pub(super) fn forget(&mut self) {
        self.coming = 0;
    }
}

impl Core {
    /// A server goes by the new membership: what it says from here on counts. Waits until this rank has heard what that
    /// is, which another server tells.
    pub(super) fn hear_changed(&self, server: ServerId, told: Changed) -> Result<(), ExchangeError> {
        let mut state = self.lock();
        loop {
            let known = state.session()?.collect.generation();
            if state.is_over() || told.generation < state.membership.coming {
                return Ok(());
            }
            if known >= told.generation {
                break;
            }
            // The first server has told by the same connection; the others wait for this rank's word that one comes.
            if server == FIRST || !state.membership.is_coming(told.generation) {
                return Err(untold(server, Kind::Changed));
            }
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        if let Some(changed) = state.membership.changed.get_mut(usize::from(server.0)) {
            *changed = told.generation;
        }
        if let Some(last) = told.oldest.checked_sub(1) {
            state.hear_done(server, Round(last))?;
        }
        Ok(())
    }
}

impl State {
    /// A server has lost a rank.
    pub(super) fn hear_lost(&self, server: ServerId, lost: Lost) {
        if server != FIRST {
            self.ways.tell(FIRST, Message::Lost(lost));
        }
    }

    /// Somebody is lost, and these are left.
    pub(super) fn hear_members(&mut self, server: ServerId, told: &Members) -> Result<(), ExchangeError> {
        let agreeing = self.session.is_none() || self.asked.iter().any(Option::is_some);
        if agreeing || !self.ways.are_open() || !self.resuming.is_empty() {
            let during = if agreeing { "ranks agree on a plan" } else { "a server is lost, too" };
            let why = format!("{}, while {during}", told.why);
            let rank = Rank(told.rank);
            return Err(ExchangeError::RankLost { rank, why, missing: self.missing() });
        }
        let servers = self.ways.len();
        let known = self.session()?.collect.generation().max(self.membership.coming);
        if server != FIRST || told.generation <= known {
            return Err(untold(server, Kind::Members));
        }
        self.membership.coming = told.generation;
        self.membership.why.clone_from(&told.why);
        self.membership.changed.resize(servers, 0);
        let collect = &self.session()?.collect;
        let oldest = collect.oldest_kept();
        let rounds = (oldest.0..collect.current().0).map(Round);
        let used = rounds.filter_map(|round| Some((round, collect.used(round)?)));
        let used = used.map(|(round, used)| Used { round: round.0, used: used.to_bytes() }).collect();
        let known = Known { generation: told.generation, oldest: oldest.0, used };
        self.ways.tell(FIRST, Message::Known(known));
        Ok(())
    }

    /// What everybody goes by from now on.
    pub(super) fn hear_change(&mut self, server: ServerId, told: &Change) -> Result<(), ExchangeError> {
        if !self.membership.is_announced(server, told.generation) {
            return Err(untold(server, Kind::Change));
        }
        let session = self.session.as_mut().ok_or(ExchangeError::Setting {
            name: "a membership",
            found: "told".into(),
            rule: "ranks agree on a plan first",
        })?;
        session.collect.handle_generation(told.generation);
        for server in 0..self.ways.len() {
            let server = ServerId(u16::try_from(server).expect("there are up to 4096"));
            self.ways.tell(server, Message::Change(told.clone()));
            self.ways.offer_missing(server, &session.kept, &session.collect, session.flow);
        }
        let left = foresee_grad_session::members::from_bits(&told.live).count();
        self.membership.live.clone_from(&told.live);
        let why = std::mem::take(&mut self.membership.why);
        self.notices.push(format!("{why}; the {left} that are left go on"));
        self.membership.lost += 1;
        self.go_on();
        Ok(())
    }
}

/// What a server may not say yet.
fn untold(server: ServerId, kind: Kind) -> ExchangeError {
    let why = format!(
        "server {server} sends {kind} of a membership that was not announced; it may be of another version"
    );
    ExchangeError::Disagree(why)
}
