// SPDX-License-Identifier: Apache-2.0
//! Replay buffer: gradients are retained until their round is done, and offered again to a server that may lack them.
//!
//! It stores rounds and tensors; the driver owns their memory. A gradient is deferred while the server still sums an
//! older round of the same tensor.

use std::collections::{BTreeMap, VecDeque};

use foresee_grad_queue::{Collector, Round, ServerId, TensorId};

use super::connection::ServerConnection;
use super::{RankAction, RankPlan, RankSession};

/// Retained gradients by round, in order of pushes.
#[derive(Debug, Default)]
pub(super) struct ReplayBuffer(BTreeMap<Round, Vec<TensorId>>);

impl ReplayBuffer {
    pub(super) fn retain(&mut self, round: Round, tensor: TensorId) {
        self.0.entry(round).or_default().push(tensor);
    }

    /// Drop rounds before `oldest`; return whether there were any.
    pub(super) fn drop_before(&mut self, oldest: Round) -> bool {
        let before = self.0.len();
        self.0 = self.0.split_off(&oldest);
        self.0.len() < before
    }

    /// The retained gradients, older rounds first.
    fn iter(&self) -> impl Iterator<Item = (Round, TensorId)> + '_ {
        self.0.iter().flat_map(|(round, tensors)| tensors.iter().map(|tensor| (*round, *tensor)))
    }
}

impl RankSession {
    /// Defer a gradient for servers that may not receive it yet; return those. Older gradients go first: the server may
    /// have no memory for a newer payload, which then blocks the older one that it waits for.
    pub(super) fn defer(&mut self, round: Round, tensor: TensorId) -> Vec<ServerId> {
        let ids = self.ids();
        let Some(RankPlan { collector, .. }) = &self.plan else { return Vec::new() };
        let mut deferring = Vec::new();
        for (server, connection) in ids.zip(&mut self.servers).filter(|(_, connection)| connection.is_open())
        {
            let has_older = connection.deferred.front().is_some_and(|(older, _)| *older < round);
            if has_older || !collector.may_push_to(server, tensor, round) {
                connection.deferred.push_back((round, tensor));
                deferring.push(server);
            }
        }
        deferring
    }

    /// Offer the deferred gradients that may be sent now.
    pub(super) fn offer_deferred(&mut self) {
        let ids = self.ids();
        let Some(RankPlan { collector, .. }) = &self.plan else { return };
        for (server, connection) in ids.zip(&mut self.servers) {
            offer_deferred(server, connection, collector, &mut self.actions);
        }
    }

    /// Offer the retained gradients whose sums have not arrived: the server dropped them under a new membership, or never
    /// received them over a broken connection. A replacement server is offered all gradients of the open rounds.
    pub(super) fn offer_missing(&mut self, server: ServerId) {
        let Some(RankPlan { collector, replay, .. }) = &self.plan else { return };
        let Some(connection) = self.servers.get_mut(usize::from(server.0)) else { return };
        let is_missing = |(round, tensor): &(Round, TensorId)| {
            !collector.is_settled(*tensor, round.next()) || collector.has_repeat(server, *tensor, *round)
        };
        connection.deferred = replay.iter().filter(is_missing).collect();
        offer_deferred(server, connection, collector, &mut self.actions);
    }
}

fn offer_deferred(
    server: ServerId,
    connection: &mut ServerConnection,
    collector: &Collector,
    actions: &mut VecDeque<RankAction>,
) {
    let generation = collector.generation();
    while let Some((round, _)) = connection.deferred.front().copied() {
        let may_go =
            |(of, tensor): &(Round, TensorId)| *of == round && collector.may_push_to(server, *tensor, round);
        let (offered, left): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut connection.deferred).into_iter().partition(may_go);
        connection.deferred = left;
        let offer = |(round, tensor)| RankAction::Offer { server, round, tensor, generation };
        actions.extend(offered.into_iter().map(offer));
        if connection.deferred.front().is_some_and(|(left, _)| *left == round) {
            return;
        }
    }
}
