// SPDX-License-Identifier: Apache-2.0
//! Commands from the consumer's thread to the driver.

use std::sync::{Mutex, PoisonError};

use foresee_units::Epoch;

use super::{Driver, sink};
use crate::orders::RankEpoch;

/// One command.
#[derive(Debug)]
pub(crate) enum Command {
    /// Discard everything staged, and stage from `position` of `epoch` on.
    BeginEpoch {
        generation: u64,
        epoch: Epoch,
        position: u64,
        /// This rank's samples from there on, for a run without an order.
        order: Option<RankEpoch>,
    },
    Close,
}

/// Pending commands.
#[derive(Debug, Default)]
pub(crate) struct CommandQueue(Mutex<Vec<Command>>);

impl CommandQueue {
    pub(crate) fn push(&self, command: Command) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(command);
    }

    fn take(&self) -> Vec<Command> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Driver {
    /// Begin at the start of the run; an epoch that the consumer began already replaces it at once.
    pub(crate) fn begin(&mut self) {
        self.publish_stats();
        self.draw_from(Epoch(0), 0);
    }

    pub(super) fn take_commands(&mut self) {
        for command in self.shared.commands.take() {
            match command {
                Command::BeginEpoch { generation, epoch, position, order } => {
                    self.delivery.restart(generation);
                    // Reads for a cache continue; those for discarded batches are cancelled.
                    self.abandon_reads();
                    match &mut self.node {
                        Some(node) => node.restart(generation),
                        None => self.planner.handle_restart(),
                    }
                    self.draw_from(epoch, position);
                    if let Some(order) = order {
                        let Self { schedule, planner, node, .. } = self;
                        schedule.add(order, sink(planner, node));
                    }
                }
                Command::Close => self.is_closing = true,
            }
        }
    }

    fn draw_from(&mut self, epoch: Epoch, position: u64) {
        if let Err(error) = self.schedule.restart(epoch, position, &self.shared.waker) {
            self.shared.batches.fail(error);
        }
    }
}
