// SPDX-License-Identifier: Apache-2.0
//! Losses: of a connection, of a rank.
//!
//! Each does what the drivers of both ends would do, in the order that the machines' documentation asks for.

use foresee_grad_queue::{Round, ServerId};
use foresee_units::Rank;

use super::Cluster;
use crate::node::Word;

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
        // What anybody knows, everybody has to go by.
        let survivors = || self.ranks.iter().filter(|rank| rank.alive);
        let of_ranks = survivors().map(|rank| rank.collect.oldest_kept());
        let oldest = of_ranks.chain(self.servers.iter().map(|server| server.rounds.oldest())).max().unwrap();
        let promises: Vec<_> = (oldest.0..oldest.0 + 2)
            .map(Round)
            .filter_map(|round| {
                let told = survivors().find_map(|rank| rank.collect.used(round).cloned());
                let told = told.or_else(|| self.servers.iter().find_map(|s| s.rounds.used(round).cloned()));
                Some((round, told?))
            })
            .collect();
        for server in 0..self.servers.len() {
            let node = &mut self.servers[server];
            node.rounds.handle_oldest(Rank(0), oldest).expect("nobody is far ahead");
            for (round, used) in &promises {
                node.rounds.handle_promise(*round, used.clone()).unwrap();
            }
            node.rounds.handle_members(self.members.clone());
            for pair in &mut node.pairs {
                assert!(pair.adopt(&self.members) <= 2);
            }
            node.offers.clear();
            self.reoffer(server);
            self.announce(server);
        }
        for rank in self.ranks.iter_mut().filter(|rank| rank.alive) {
            rank.news = Some(self.members.generation());
        }
    }

    fn reoffer(&mut self, server: usize) {
        for rank in self.members.iter() {
            self.servers[server].offer_all(&self.plan, rank);
            let news = self.servers[server].news();
            let link = &mut self.links[usize::try_from(rank.0).unwrap()][server];
            link.held = false;
            link.news.extend(news);
        }
    }

    /// A rank hears of a new membership, some time after the servers.
    pub(super) fn hear(&mut self, rank: usize) {
        let Some(generation) = self.ranks[rank].news.take() else { return };
        self.ranks[rank].collect.handle_generation(generation);
        for server in (0..self.setup.servers).map(ServerId) {
            self.ranks[rank].queue_again(&self.plan, server);
            let oldest = Word::Oldest(self.ranks[rank].collect.oldest_kept());
            self.links[rank][usize::from(server.0)].words.push_back(oldest);
        }
        self.speak(rank);
    }
}
