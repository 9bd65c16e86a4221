// SPDX-License-Identifier: Apache-2.0
//! Losses: of a connection, of a rank.
//!
//! Each does what the drivers of both ends would do, in the order that the machines' documentation asks for.

use foresee_grad_queue::{Round, ServerId};

use super::{Change, Cluster};
use crate::node::{News, Word};

impl Cluster {
    /// Everything on the way is lost, and both ends know.
    pub(super) fn break_link(&mut self, rank: usize, server: usize) {
        let link = std::mem::take(&mut self.links[rank][server]);
        if let Some((claim, _)) = link.landing {
            self.ranks[rank].collect.abandon(claim);
        }
    }

    pub(super) fn reconnect(&mut self, rank: usize, server: usize) {
        let id = ServerId(u16::try_from(server).unwrap());
        let (node, other) = (&mut self.ranks[rank], &mut self.servers[server]);
        if !node.alive {
            return;
        }
        node.collect.handle_reconnect(id);
        node.queue_again(&self.plan, id);
        let generation = node.collect.generation();
        if generation > 0 {
            self.links[rank][server].words.push_back(Word::Change(generation));
        }
        other.rounds.handle_oldest(node.rank, node.collect.oldest_kept()).expect("nobody is far ahead");
        other.offer_all(&self.plan, node.rank);
        let news = other.news();
        self.links[rank][server].news.extend(news);
        self.announce(server);
        self.speak(rank);
    }

    pub(super) fn lose(&mut self, lost: usize) {
        self.ranks[lost].alive = false;
        self.members = self.members.without(&[self.ranks[lost].rank]).unwrap();
        self.alive.push(self.members.iter().collect());
        for server in 0..self.servers.len() {
            self.break_link(lost, server);
        }
        self.pairs.retain(|(rank, _)| *rank != lost);
        self.known.clear();
        for rank in self.ranks.iter_mut().filter(|rank| rank.alive) {
            rank.coming = Some(self.members.generation());
        }
    }

    /// A rank hears that somebody is lost, and says what it knows; it does not listen to servers that know better. What
    /// any that is left has heard, everybody has to go by.
    pub(super) fn freeze(&mut self, at: usize) {
        let rank = &mut self.ranks[at];
        let Some(generation) = rank.coming.take() else { return };
        rank.frozen = generation;
        rank.deaf.extend(0..self.servers.len());
        self.known.insert(at);
        if self.known.len() < self.members.iter().count() {
            return;
        }
        let survivors = || self.ranks.iter().filter(|rank| rank.alive);
        let oldest = survivors().map(|rank| rank.collect.oldest_kept()).max().unwrap();
        let promises = (oldest.0..oldest.0 + 2).map(Round).filter_map(|round| {
            let told = survivors().find_map(|rank| rank.collect.used(round).cloned());
            Some((round, told?))
        });
        let change = Change { members: self.members.clone(), oldest, promises: promises.collect() };
        self.changes.insert(generation, change);
        for rank in self.ranks.iter_mut().filter(|rank| rank.alive) {
            rank.news = Some(generation);
        }
    }

    /// A rank hears of a new membership that holds, and tells every server.
    pub(super) fn hear(&mut self, rank: usize) {
        let Some(generation) = self.ranks[rank].news.take() else { return };
        self.ranks[rank].collect.handle_generation(generation);
        for server in (0..self.setup.servers).map(ServerId) {
            self.ranks[rank].queue_again(&self.plan, server);
            self.links[rank][usize::from(server.0)].words.push_back(Word::Change(generation));
        }
        self.speak(rank);
    }

    /// A server hears of it, from the first of those who are left, and again from the others.
    pub(super) fn change(&mut self, server: usize, generation: u32) {
        let node = &mut self.servers[server];
        if generation <= node.rounds.members().generation() {
            return;
        }
        let Change { members, oldest, promises } = &self.changes[&generation];
        node.rounds.handle_members(members.clone(), *oldest, promises).expect("nobody is far ahead");
        for pair in &mut node.pairs {
            assert!(pair.adopt(members) <= 2);
        }
        node.offers.clear();
        let changed = News::Changed(generation, node.rounds.oldest());
        for rank in members.iter() {
            let link = &mut self.links[usize::try_from(rank.0).unwrap()][server];
            link.held = false;
            link.news.push_back(changed.clone());
        }
        self.announce(server);
    }
}
