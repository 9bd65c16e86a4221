// SPDX-License-Identifier: Apache-2.0
//! A lost server and the one in its place, of which every rank hears in its own time.
//!
//! What the drivers of both ends do: a rank says which rounds are done for it, the server begins when all ranks have said
//! so, and each rank pushes again once it has heard that. In between no round becomes done for that rank, and where it has
//! come to several servers their answers count together, oldest rounds first. More may be lost meanwhile, or again.

use std::collections::BTreeMap;

use foresee_grad_queue::{Round, ServerId};
use foresee_units::Bytes;

use super::Cluster;
use crate::node::ServerNode;

impl Cluster {
    /// Everything on the way to and from a server is lost, and what it knew.
    pub(super) fn lose_server(&mut self, server: usize) {
        self.came[server] = Some(BTreeMap::new());
        self.servers[server].offers.clear();
        for rank in 0..self.ranks.len() {
            self.break_link(rank, server);
            let node = &mut self.ranks[rank];
            node.lost.insert(server);
            node.resuming.retain(|(other, _)| *other != server);
            node.done_later.retain(|(other, _)| usize::from(other.0) != server);
            self.act_on_answers(rank);
        }
    }

    /// A rank has found the server in the place of a lost one, and says what is done.
    pub(super) fn come(&mut self, rank: usize, server: usize) {
        let node = &mut self.ranks[rank];
        node.lost.remove(&server);
        node.resuming.push((server, None));
        let Some(came) = &mut self.came[server] else { return };
        came.insert(rank, node.collect.oldest_kept());
        if came.len() < self.ranks.len() {
            return;
        }
        let oldest = came.values().copied().max().unwrap();
        self.came[server] = None;
        let (id, park) = (ServerId(u16::try_from(server).unwrap()), Bytes::new(self.setup.park));
        self.servers[server] = ServerNode::new(&self.plan, id, &self.members, park, oldest);
        self.links.iter_mut().for_each(|links| links[server].go_on = Some(oldest));
    }

    /// A rank hears that every rank has come, and that rounds before this one are done.
    pub(super) fn go_on(&mut self, rank: usize, server: usize) {
        let Some(oldest) = self.links[rank][server].go_on.take() else { return };
        let resuming = &mut self.ranks[rank].resuming;
        resuming.iter_mut().filter(|(other, _)| *other == server).for_each(|(_, told)| *told = Some(oldest));
        self.act_on_answers(rank);
    }

    fn act_on_answers(&mut self, rank: usize) {
        let node = &mut self.ranks[rank];
        let answers = node.resuming.iter().map(|(server, told)| Some(((*told)?, *server)));
        let Some(mut answers) = answers.collect::<Option<Vec<_>>>() else { return };
        node.resuming.clear();
        answers.sort_unstable();
        for (oldest, server) in answers {
            let id = ServerId(u16::try_from(server).unwrap());
            node.collect.handle_replaced(id, oldest).expect("what is done has landed");
            node.queue_again(&self.plan, id);
        }
        let done: Vec<(ServerId, Round)> = std::mem::take(&mut node.done_later);
        for (server, round) in done {
            node.collect.handle_done(server, round).expect("servers agree");
        }
        self.speak(rank);
    }
}
