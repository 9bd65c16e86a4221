// SPDX-License-Identifier: Apache-2.0
//! A loader that loses the host of its node's cache, or gets no answer at its start, and returns to one.
//!
//! In between it reads the origin without caches: an attached loader has no memory and no disk of its own, so nothing is
//! left to free when it returns.

#[cfg(test)]
mod process_tests;

use foresee_data_node::NodeError;
use foresee_data_node::message::UNKNOWN_GENERATION;

use super::Driver;
use super::copies::NodeCopies;
use super::node::NodeLink;
use crate::node::{AttachFailure, Attached, HostSearch, is_permanent};

impl Driver {
    /// Continue without the host: the plan is made here from now on. `is_needed`: whether anything is left to read.
    pub(super) fn leave_node(&mut self, why: &NodeError, is_needed: bool) {
        let Some(node) = self.node.take() else { return };
        let retry = node.into_retry();
        self.search = if is_permanent(why) { None } else { HostSearch::start(retry).ok() };
        if is_needed {
            let until = match self.search {
                Some(_) => "until a host is there again",
                None => "from now on",
            };
            self.shared.notices.add(format!(
                "this node's cache is gone ({why}); this rank reads the origin alone {until}. Run `foresee node` for a \
                 cache that outlives its ranks"
            ));
        }
        self.planner.handle_restart();
        self.schedule.announce_again(&mut self.planner);
    }

    /// Return to a host that the search has found.
    pub(super) fn handle_search(&mut self) {
        let Some(outcome) = self.search.as_ref().and_then(HostSearch::poll) else { return };
        self.search = None;
        match outcome {
            Ok(attached) => self.return_to_node(attached),
            Err(AttachFailure { why, .. }) => self.shared.notices.add(format!(
                "this rank does not share the cache of its node, and reads alone from now on: {why}"
            )),
        }
    }

    /// Request all batches from a host from the next one on. Those that are open are read alone to their end.
    fn return_to_node(&mut self, attached: Attached) {
        self.read_rest_alone();
        self.planner.handle_restart();
        let again = if self.copies.is_some() { " again" } else { "" };
        match &mut self.copies {
            Some(copies) => copies.handle_host(attached.host.clone()),
            None => self.copies = Some(NodeCopies::new(attached.host.clone())),
        }
        let node = self.node.insert(NodeLink::new(attached, UNKNOWN_GENERATION));
        self.schedule.announce_again(node);
        self.shared.notices.add(format!("this rank reads through this node's cache{again}"));
    }

    /// Read the samples of the newest batch that have no source yet.
    fn read_rest_alone(&mut self) {
        let Some(stage) = self.delivery.staging.planning() else { return };
        let (planned, count) = (stage.planned, stage.entries.len());
        stage.planned = count;
        stage.pending += count - planned;
        let slot = self.delivery.staging.newest();
        self.read_alone(slot, planned..count);
    }
}
