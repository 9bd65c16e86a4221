// SPDX-License-Identifier: Apache-2.0
//! Publishes the state of the host.

use std::sync::PoisonError;

use foresee_data_plan::NodeTier;

use super::super::status::{ConsumerState, HostStatus, RepeatedReads};
use super::HostDriver;
use crate::node::now;

impl HostDriver {
    pub(super) fn publish_status(&self) {
        let now = now();
        let consumers = self.consumers.iter().map(|(&number, consumer)| ConsumerState {
            number,
            facts: consumer.facts.clone(),
            data_set: consumer.data_set.map(|data_set| self.data_sets[data_set as usize].public_uri.clone()),
            served: consumer.served,
            waiting: consumer.waiting(),
            silent_for: now.saturating_sub(consumer.last_message),
        });
        let mut repeated = RepeatedReads::default();
        for stats in self.queues.iter().map(|queue| queue.reads.queue().stats()) {
            repeated.retries += stats.retries;
            repeated.throttles += stats.throttles;
            repeated.hedges += stats.hedges;
        }
        let status = HostStatus {
            memory_used: self.planner.used(NodeTier::Memory),
            disk_used: self.planner.used(NodeTier::Disk),
            origin: self.origin,
            repeated,
            consumers: consumers.collect(),
        };
        *self.shared.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}
