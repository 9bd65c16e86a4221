// SPDX-License-Identifier: Apache-2.0
//! Commands from the consumer's thread to the driver.

use std::sync::{Mutex, PoisonError};

use foresee_units::Epoch;

use super::Driver;
use crate::orders::RankEpoch;

/// One command.
#[derive(Debug)]
pub(crate) enum Command {
    /// Stage from `position` of `epoch` on; everything staged so far is void.
    BeginEpoch {
        generation: u64,
        epoch: Epoch,
        position: u64,
        /// This rank's samples from there on, for a run without an order.
        order: Option<RankEpoch>,
    },
    Close,
}

/// The commands not yet taken.
#[derive(Debug, Default)]
pub(crate) struct Inbox(Mutex<Vec<Command>>);

impl Inbox {
    pub(crate) fn put(&self, command: Command) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(command);
    }

    fn take(&self) -> Vec<Command> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Driver {
    /// Begins at the start of the run; an epoch that the consumer began before replaces it at once.
    pub(crate) fn begin(&mut self) {
        self.draw_from(Epoch(0), 0);
    }

    pub(super) fn take_commands(&mut self) {
        for command in self.shared.inbox.take() {
            match command {
                Command::BeginEpoch { generation, epoch, position, order } => {
                    self.delivery.restart(generation);
                    // Reads for a cache continue; those for a batch that is not wanted any more are cancelled.
                    self.abandon_reads();
                    self.planner.handle_restart();
                    self.draw_from(epoch, position);
                    if let Some(order) = order {
                        self.schedule.add(order, &mut self.planner);
                    }
                }
                Command::Close => self.closing = true,
            }
        }
    }

    fn draw_from(&mut self, epoch: Epoch, position: u64) {
        if let Err(error) = self.schedule.restart(epoch, position, &self.shared.waker) {
            self.shared.batches.break_with(error);
        }
    }
}
