// SPDX-License-Identifier: Apache-2.0
//! Gradients that are retained until their round is done, and offered again to a server that may lack them.
//!
//! The machine knows them by round and tensor; the driver has their memory. What a server may not have yet is held, since
//! it sums an older round of the same tensor first.

use std::collections::{BTreeMap, VecDeque};

use foresee_grad_queue::{Collector, Round, ServerId, TensorId};

use super::connection::ServerConnection;
use super::{RankAction, RankPlan, RankSession};

/// Retained gradients by round, in the order in which they were pushed.
#[derive(Debug, Default)]
pub(super) struct Replay(BTreeMap<Round, Vec<TensorId>>);

impl Replay {
    pub(super) fn retain(&mut self, round: Round, tensor: TensorId) {
        self.0.entry(round).or_default().push(tensor);
    }

    /// Forgets rounds before `oldest`; returns it if there were any.
    pub(super) fn forget_before(&mut self, oldest: Round) -> Option<Round> {
        let before = self.0.len();
        self.0 = self.0.split_off(&oldest);
        (self.0.len() < before).then_some(oldest)
    }

    /// What is retained, older rounds first.
    fn iter(&self) -> impl Iterator<Item = (Round, TensorId)> + '_ {
        self.0.iter().flat_map(|(round, tensors)| tensors.iter().map(|tensor| (*round, *tensor)))
    }
}

impl RankSession {
    /// Holds a gradient for servers that may not have it yet; returns those. An older one goes first: were a newer one in
    /// front of it, a payload that the server has no memory for could keep back the one that it waits for.
    pub(super) fn hold(&mut self, round: Round, tensor: TensorId) -> Vec<ServerId> {
        let ids = self.ids();
        let Some(RankPlan { collect, .. }) = &self.plan else { return Vec::new() };
        let mut holding = Vec::new();
        for (server, connection) in ids.zip(&mut self.servers).filter(|(_, connection)| connection.is_open())
        {
            let has_older = connection.held.front().is_some_and(|(held, _)| *held < round);
            if has_older || !collect.may_push_to(server, tensor, round) {
                connection.held.push_back((round, tensor));
                holding.push(server);
            }
        }
        holding
    }

    /// Offers what is held and may be sent now.
    pub(super) fn release(&mut self) {
        let ids = self.ids();
        let Some(RankPlan { collect, .. }) = &self.plan else { return };
        for (server, connection) in ids.zip(&mut self.servers).filter(|(_, own)| !own.held.is_empty()) {
            release(server, connection, collect, &mut self.actions);
        }
    }

    /// Offers what is retained and has not arrived here: under a new membership the server has forgotten it, and over a
    /// connection that broke it may not have come, unless the server has the result. A server in the place of a lost one is
    /// asked for all of the open rounds again, so all of them is offered to it.
    pub(super) fn offer_missing(&mut self, server: ServerId) {
        let Some(RankPlan { collect, replay, .. }) = &self.plan else { return };
        let Some(connection) = self.servers.get_mut(usize::from(server.0)) else { return };
        let is_missing = |(round, tensor): &(Round, TensorId)| {
            !collect.is_settled(*tensor, round.next()) || collect.has_repeat(server, *tensor, *round)
        };
        connection.held = replay.iter().filter(is_missing).collect();
        release(server, connection, collect, &mut self.actions);
    }
}

fn release(
    server: ServerId,
    connection: &mut ServerConnection,
    collect: &Collector,
    actions: &mut VecDeque<RankAction>,
) {
    let generation = collect.generation();
    while let Some((round, _)) = connection.held.front().copied() {
        let may_go =
            |(of, tensor): &(Round, TensorId)| *of == round && collect.may_push_to(server, *tensor, round);
        let (offered, left): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut connection.held).into_iter().partition(may_go);
        connection.held = left;
        let offer = |(round, tensor)| RankAction::Offer { server, round, tensor, generation };
        actions.extend(offered.into_iter().map(offer));
        if connection.held.front().is_some_and(|(held, _)| *held == round) {
            return;
        }
    }
}
