// SPDX-License-Identifier: Apache-2.0
//! Commands from the consumer's thread to the driver, and the epochs that the driver knows.

use std::sync::{Mutex, PoisonError};

use foresee_units::Epoch;

use super::Driver;
use crate::orders::{Drawn, OrderAhead, RankEpoch};

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
    /// Begins at the start of the run; a seek that came before takes over at once.
    pub(crate) fn begin(&mut self) {
        self.draw_from(Epoch(0), 0);
    }

    pub(super) fn take_commands(&mut self) {
        for command in self.shared.inbox.take() {
            match command {
                Command::BeginEpoch { generation, epoch, position, order } => {
                    self.void_staged(generation);
                    self.draw_from(epoch, position);
                    if let Some(order) = order {
                        self.learn(order);
                    }
                }
                Command::Close => self.closing = true,
            }
        }
    }

    /// Forgets everything planned and staged. Reads for a cache continue; reads for a batch that is not wanted any more
    /// are cancelled.
    fn void_staged(&mut self, generation: u64) {
        self.generation = generation;
        self.ready.clear();
        self.gathering = None;
        self.staging.clear();
        self.known.clear();
        self.step = 0;
        self.run_ends = false;
        self.abandon_reads();
        self.planner.handle_restart();
    }

    /// Begins to draw the run's order ahead, where there is one.
    fn draw_from(&mut self, epoch: Epoch, position: u64) {
        self.orders = None;
        if let Some(run) = &self.config.run {
            match OrderAhead::start(run.clone(), epoch, position, std::sync::Arc::clone(&self.shared.bell)) {
                Ok(orders) => self.orders = Some(orders),
                Err(error) => self.shared.handover.break_with(error),
            }
        }
    }

    /// Tells the planner as many epochs ahead as it wants to know.
    ///
    /// `false` while they are still being drawn. To plan before would make the plan hang on how fast they are
    /// drawn, and no two ranks or runs would plan alike.
    pub(super) fn learn_epochs(&mut self) -> bool {
        while !self.run_ends && !self.knows_enough() {
            let Some(orders) = &self.orders else { return true };
            match orders.poll() {
                Drawn::Epoch(epoch) => self.learn(epoch),
                Drawn::NotYet => return false,
                Drawn::Failed(error) => {
                    self.shared.handover.break_with(error.into());
                    return false;
                }
                Drawn::End => {
                    self.planner.handle_end();
                    self.run_ends = true;
                }
            }
        }
        true
    }

    fn knows_enough(&self) -> bool {
        // A rank may have no samples at all (fewer samples than ranks): no number of such epochs is ever enough.
        let empty = self.known.back().is_some_and(|epoch| epoch.steps() == 0);
        empty || (!self.known.is_empty() && !self.planner.wants_epoch())
    }

    fn learn(&mut self, epoch: RankEpoch) {
        self.planner.handle_epoch(&mut epoch.used());
        self.known.push_back(epoch);
    }
}
