// SPDX-License-Identifier: Apache-2.0
//! One rank's samples over all epochs, as one stream.
//!
//! It is separate from the epochs because it must hold at most one of their lists: 4 bytes per sample, or none
//! for a computed order. A window of it is `stream.by_ref().take(w)`.

use foresee_units::{Epoch, SampleId, World};

use crate::{Order, OrderError, RankStream};

/// One sample of one rank, with its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSample {
    /// The epoch.
    pub epoch: Epoch,
    /// Index among this rank's samples of the epoch, from where the epoch was entered.
    pub index: u64,
    /// Global position in the epoch, over all ranks.
    pub position: u64,
    /// The sample.
    pub id: SampleId,
}

/// The accesses of one rank, epoch after epoch.
#[derive(Clone, Debug)]
pub struct RunStream {
    order: Order,
    world: World,
    current: RankStream,
    index: u64,
    /// Number of epochs after the current one; `None`: unlimited.
    more: Option<u64>,
}

impl RunStream {
    /// Start at global position `start` of epoch `first`, for `epochs` epochs (including that one), or without
    /// end.
    ///
    /// Later epochs start at 0. A run without samples for this rank ends at once, for any number of epochs.
    ///
    /// # Errors
    /// As [`Order::epoch`] and [`EpochOrder::deal`](crate::EpochOrder::deal).
    pub fn new(
        order: Order,
        world: World,
        first: Epoch,
        start: u64,
        epochs: Option<u64>,
    ) -> Result<Self, OrderError> {
        let current = order.epoch(first)?.rank(world, start)?;
        let index = if epochs == Some(0) { current.len() } else { 0 };
        Ok(Self { order, world, current, index, more: epochs.map(|epochs| epochs.saturating_sub(1)) })
    }

    /// Enter the next epoch; `false` if there is none, or if this rank has no samples in it.
    fn turn(&mut self) -> Result<bool, OrderError> {
        let epoch = self.current.deal().order().epoch();
        let (more, next) = (self.more.map(|more| more.checked_sub(1)), epoch.0.checked_add(1));
        let (Some(next), false) = (next, more == Some(None)) else { return Ok(false) };
        self.more = more.flatten();
        self.current = self.order.epoch(Epoch(next))?.rank(self.world, 0)?;
        self.index = 0;
        // Every epoch has the same length from here on: if one is empty, all are.
        Ok(!self.current.is_empty())
    }
}

impl Iterator for RunStream {
    type Item = Result<RunSample, OrderError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.index == self.current.len() {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
        let index = self.index;
        self.index += 1;
        let epoch = self.current.deal().order().epoch();
        Some(Ok(RunSample {
            epoch,
            index,
            position: self.current.position(index),
            id: self.current.get(index),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: Order = Order::Distributed { n: 10, seed: 1, shuffle: true, drop_last: false };

    #[test]
    fn a_run_is_its_epochs_one_after_the_other() {
        let world = World::new(1, 3).unwrap();
        let run: Vec<RunSample> =
            RunStream::new(ORDER, world, Epoch(2), 4, Some(3)).unwrap().map(Result::unwrap).collect();
        let mut expected = Vec::new();
        for (epoch, start) in [(2, 4), (3, 0), (4, 0)] {
            let stream = ORDER.epoch(Epoch(epoch)).unwrap().rank(world, start).unwrap();
            expected.extend((0..stream.len()).map(|index| RunSample {
                epoch: Epoch(epoch),
                index,
                position: stream.position(index),
                id: stream.get(index),
            }));
        }
        assert_eq!(run, expected);
        assert_eq!(run.len(), 2 + 4 + 4);
    }

    #[test]
    fn an_unlimited_run_is_read_window_by_window() {
        let mut run = RunStream::new(ORDER, World::ALONE, Epoch(0), 0, None).unwrap();
        assert_eq!(run.by_ref().take(25).count(), 25);
        assert_eq!(run.next().unwrap().unwrap().epoch, Epoch(2));
    }

    #[test]
    fn a_run_without_samples_ends_even_with_unlimited_epochs() {
        let nobody = Order::Distributed { n: 2, seed: 0, shuffle: true, drop_last: true };
        let world = World::new(0, 3).unwrap();
        assert!(RunStream::new(nobody, world, Epoch(0), 0, None).unwrap().next().is_none());
        assert!(RunStream::new(ORDER, world, Epoch(0), 0, Some(0)).unwrap().next().is_none());
        let finished = RunStream::new(ORDER, World::ALONE, Epoch(0), 10, None).unwrap();
        assert_eq!(finished.take(10).map(|a| a.unwrap().epoch).last(), Some(Epoch(1)));
    }
}
