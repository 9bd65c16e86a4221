// SPDX-License-Identifier: Apache-2.0
//! Publishes the state of the host.

use std::sync::PoisonError;

use foresee_data_fetch::Repeats;
use foresee_data_plan::NodeTier;

use super::super::status::ConsumerState;
use super::HostDriver;
use crate::node::now;

impl HostDriver {
    pub(super) fn publish_status(&self) {
        let now = now();
        let mut repeats = Repeats::default();
        for queue in &self.queues {
            repeats.add(queue.reads.queue().repeats());
        }
        let mut status = self.shared.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.memory_used = self.planner.used(NodeTier::Memory);
        status.disk_used = self.planner.used(NodeTier::Disk);
        status.origin = self.origin;
        status.repeats = repeats;
        status.peers = self.peer_counts();
        // The texts of a consumer do not change, and this runs at every pause of the driver.
        status.consumers.retain(|state| self.consumers.contains_key(&state.number));
        for (&number, consumer) in &self.consumers {
            let known = status.consumers.iter().position(|state| state.number == number);
            let at = known.unwrap_or_else(|| {
                status.consumers.push(ConsumerState::new(number, consumer.facts.clone()));
                status.consumers.len() - 1
            });
            let state = &mut status.consumers[at];
            if state.data_set.is_none() {
                let data_set = consumer.data_set.map(|data_set| &self.data_sets[data_set as usize]);
                state.data_set = data_set.map(|data_set| data_set.public_uri.clone());
            }
            state.served = consumer.served;
            state.waiting = consumer.waiting();
            state.silent_for = now.saturating_sub(consumer.last_message);
        }
    }
}
