// SPDX-License-Identifier: Apache-2.0
//! This rank's epochs: drawn in advance from the run's order, or given one by one by the caller.
//!
//! A separate thread draws them, because a permutation of a hundred million samples takes seconds, and the driver must
//! not stop that long between two epochs. One epoch waits in the channel while the next is drawn, so the memory is two
//! epochs of this rank's ids and one permutation.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread::Builder;

use foresee_data_index::Index;
use foresee_data_order::{Avoid, Ids, Order, OrderError};
use foresee_units::{Epoch, Rank, SampleId, World};

use crate::errors::LoaderError;
use crate::waker::Waker;

/// The division of a rank's samples into batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batching {
    /// Samples per batch, at least 1.
    pub(crate) batch_size: u64,
    /// Whether to drop a short last batch.
    pub(crate) drop_last: bool,
}

impl Batching {
    /// Batched samples of an epoch of `len`.
    pub(crate) const fn used(self, len: u64) -> u64 {
        if self.drop_last { len - len % self.batch_size } else { len }
    }

    /// Batches of an epoch of `len` samples.
    pub(crate) const fn steps(self, len: u64) -> u64 {
        self.used(len).div_ceil(self.batch_size)
    }
}

/// One rank's samples of an epoch from its position on, in order, for a run without an order.
#[derive(Clone, Copy, Debug)]
pub struct EpochSamples<'a> {
    /// Samples of the data set; one may occur several times.
    pub ids: &'a [u64],
    /// Samples of each batch; `None` divides by the batch size.
    pub lengths: Option<&'a [u64]>,
}

impl EpochSamples<'_> {
    /// Check the ids and lengths against the data set of `index`.
    pub(crate) fn check(&self, index: &Index) -> Result<(), LoaderError> {
        let (samples, count) = (index.samples(), self.ids.len() as u64);
        let mut faults = Vec::new();
        if let Some(id) = self.ids.iter().find(|&&id| id >= samples) {
            faults.push(format!(
                "sample {id} is in the epoch, but the data set has {samples}; check the sampler"
            ));
        }
        let lengths = self.lengths.unwrap_or_default();
        let batched = lengths.iter().fold(0_u64, |sum, &length| sum.saturating_add(length));
        if batched > count {
            faults.push(format!("batches of {batched} samples are in the epoch, but only {count} samples"));
        }
        if faults.is_empty() { Ok(()) } else { Err(LoaderError::Config { faults }) }
    }
}

/// One rank's epoch, divided into batches.
#[derive(Debug)]
pub(crate) struct RankEpoch {
    pub(crate) epoch: Epoch,
    /// Samples; each sample of a table has several entries.
    ids: Ids,
    index: Index,
    batching: Batching,
    /// Ends of the batches, if their lengths were given.
    ends: Option<Box<[u64]>>,
}

impl RankEpoch {
    /// An epoch of checked `samples`.
    pub(crate) fn new(
        index: &Index,
        epoch: Epoch,
        samples: EpochSamples<'_>,
        batching: Batching,
    ) -> Result<Self, OrderError> {
        let ends = samples.lengths.map(|lengths| {
            lengths
                .iter()
                .scan(0, |end, length| {
                    *end += length;
                    Some(*end)
                })
                .collect()
        });
        let ids = samples.ids.iter().map(|&id| SampleId(id));
        let ids = Ids::try_collect(index.samples(), samples.ids.len() as u64, ids)?;
        Ok(Self { epoch, ids, index: index.clone(), batching, ends })
    }

    pub(crate) fn steps(&self) -> u64 {
        match &self.ends {
            Some(ends) => ends.len() as u64,
            None => self.batching.steps(self.ids.len()),
        }
    }

    /// Entries of the batched samples, in order.
    pub(crate) fn used(&self) -> impl Iterator<Item = SampleId> + '_ {
        let used = match &self.ends {
            Some(ends) => ends.last().copied().unwrap_or(0),
            None => self.batching.used(self.ids.len()),
        };
        self.range(0..used).flat_map(|sample| self.entries_of(sample))
    }

    /// As [`used`](Self::used), from `step` on.
    pub(crate) fn used_from(&self, step: u64) -> impl Iterator<Item = SampleId> + '_ {
        (step..self.steps())
            .flat_map(|step| self.range(self.step(step)))
            .flat_map(|sample| self.entries_of(sample))
    }

    /// The entries of a sample.
    pub(crate) fn entries_of(&self, sample: SampleId) -> impl Iterator<Item = SampleId> + '_ {
        (0..self.index.parts()).map(move |part| self.index.entry_of(sample, part))
    }

    /// Positions of the samples of a step.
    pub(crate) fn step(&self, step: u64) -> Range<u64> {
        if let Some(ends) = &self.ends {
            let step = usize::try_from(step).expect("an existing step");
            let start = if step == 0 { 0 } else { ends[step - 1] };
            return start..ends[step];
        }
        let start = step * self.batching.batch_size;
        start..(start + self.batching.batch_size).min(self.ids.len())
    }

    /// Samples at `positions`.
    pub(crate) fn range(&self, positions: Range<u64>) -> impl Iterator<Item = SampleId> + '_ {
        positions.map(|position| self.ids.get(position))
    }
}

/// An order that is known for the whole run.
#[derive(Clone, Debug)]
pub(crate) struct RunOrder {
    pub(crate) order: Order,
    pub(crate) avoid: Avoid,
    pub(crate) world: World,
    pub(crate) batching: Batching,
    /// Epochs of the run; `None` if unknown.
    pub(crate) epochs: Option<u64>,
    pub(crate) index: Index,
}

impl RunOrder {
    /// Steps of this rank in an epoch that begins at global `position`.
    pub(crate) fn steps(&self, position: u64) -> Result<u64, OrderError> {
        // Nothing is drawn for a length, which does not depend on the permutation.
        let order = match self.order {
            Order::Distributed { n, drop_last, .. } | Order::Keyed { n, drop_last, .. } => {
                Order::Sequential { n, drop_last }
            }
            other => other,
        };
        Ok(self.batching.steps(order.epoch(Epoch(0))?.rank(self.world, position)?.len()))
    }

    fn draw(&self, epoch: Epoch, position: u64) -> Result<RankEpoch, OrderError> {
        let stream = self.order.epoch(epoch)?.avoiding(&self.avoid).rank(self.world, position)?;
        let ids = Ids::try_collect(self.index.samples(), stream.len(), stream.iter())?;
        Ok(RankEpoch { epoch, ids, index: self.index.clone(), batching: self.batching, ends: None })
    }
}

impl RunOrder {
    /// The entries of all ranks in an epoch from global `position` on, by step, rank and place in the batch; `None` if ranks have
    /// different numbers of samples.
    pub(crate) fn draw_all(&self, epoch: Epoch, position: u64) -> Result<Option<Vec<SampleId>>, OrderError> {
        let ranks = self.world.size();
        let epoch = self.order.epoch(epoch)?.avoiding(&self.avoid).shard(ranks, position)?;
        let streams = (0..ranks).map(|rank| epoch.rank(Rank(rank))).collect::<Result<Vec<_>, _>>()?;
        let len = streams[0].len();
        if streams.iter().any(|stream| stream.len() != len) {
            return Ok(None);
        }
        let (used, parts) = (self.batching.used(len), self.index.parts());
        let capacity = used.saturating_mul(ranks.into()).saturating_mul(parts);
        let mut all = Vec::new();
        let is_in_memory =
            usize::try_from(capacity).is_ok_and(|capacity| all.try_reserve_exact(capacity).is_ok());
        if !is_in_memory {
            return Err(OrderError::NoMemory { n: capacity, bytes: capacity.saturating_mul(8) });
        }
        let mut start = 0;
        while start < used {
            let end = used.min(start + self.batching.batch_size);
            for sample in streams.iter().flat_map(|stream| stream.ids(start..end)) {
                all.extend((0..parts).map(|part| self.index.entry_of(sample, part)));
            }
            start = end;
        }
        Ok(Some(all))
    }
}

/// The next result of an [`OrderThread`].
#[derive(Debug)]
pub(crate) enum DrawnEpoch {
    Epoch(RankEpoch),
    Pending,
    Failed(OrderError),
    /// The run has no further epoch.
    End,
}

/// Draws epochs in advance. After a drop the thread ends with its next epoch.
#[derive(Debug)]
pub(crate) struct OrderThread {
    drawn: Receiver<Result<RankEpoch, OrderError>>,
}

impl OrderThread {
    /// Draw `run` from global `position` of `epoch` on, and wake the driver for each epoch.
    ///
    /// An epoch after the run's last one is drawn as a single epoch, because the caller requested it.
    pub(crate) fn start(
        run: RunOrder,
        epoch: Epoch,
        position: u64,
        waker: Arc<Waker>,
    ) -> Result<Self, LoaderError> {
        let (sender, drawn) = sync_channel(1);
        let draw = move || {
            let mut position = position;
            let end = run.epochs.map_or(u64::MAX, |epochs| epochs.max(epoch.0.saturating_add(1)));
            for epoch in epoch.0..end {
                let drawn = run.draw(Epoch(epoch), position);
                let has_failed = drawn.is_err();
                if sender.send(drawn).is_err() || has_failed {
                    break;
                }
                waker.wake();
                position = 0;
            }
            drop(sender);
            waker.wake();
        };
        Builder::new()
            .name("foresee-order".to_owned())
            .spawn(draw)
            .map_err(|error| LoaderError::Thread { why: error.to_string() })?;
        Ok(Self { drawn })
    }

    pub(crate) fn poll(&self) -> DrawnEpoch {
        match self.drawn.try_recv() {
            Ok(Ok(epoch)) => DrawnEpoch::Epoch(epoch),
            Ok(Err(error)) => DrawnEpoch::Failed(error),
            Err(TryRecvError::Empty) => DrawnEpoch::Pending,
            Err(TryRecvError::Disconnected) => DrawnEpoch::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use foresee_data_index::{IndexBuilder, LayoutOptions, Listed};

    use super::*;

    fn table(objects: u64, parts: u64) -> Index {
        let mut builder = IndexBuilder::new("/data", LayoutOptions::Table { parts }, 0).expect("a layout");
        for key in 0..objects {
            let listed = Listed { key: format!("{key:03}").into_bytes(), size: 1, tag: Vec::new() };
            builder.handle_listed(listed).expect("a key");
        }
        let mut file = Vec::new();
        builder.finish().expect("objects").write(&mut file).expect("memory");
        Index::open(Arc::new(file)).expect("an index")
    }

    #[test]
    fn a_sample_of_several_objects_is_planned_as_all_of_them_and_counted_once() {
        let batching = Batching { batch_size: 2, drop_last: true };
        let samples = EpochSamples { ids: &[2, 0, 1], lengths: None };
        let epoch = RankEpoch::new(&table(9, 3), Epoch(0), samples, batching).expect("memory");
        assert_eq!((epoch.steps(), epoch.step(0)), (1, 0..2));
        assert_eq!(epoch.used().map(|id| id.0).collect::<Vec<_>>(), [6, 7, 8, 0, 1, 2]);
        assert_eq!(epoch.range(0..2).map(|id| id.0).collect::<Vec<_>>(), [2, 0]);
    }

    fn epoch_of(ids: &[u64], lengths: Option<&[u64]>, batch_size: u64, drop_last: bool) -> RankEpoch {
        let samples = EpochSamples { ids, lengths };
        RankEpoch::new(&table(100, 1), Epoch(0), samples, Batching { batch_size, drop_last }).expect("memory")
    }

    #[test]
    fn a_short_last_batch_is_kept_or_dropped_as_configured() {
        let ids: Vec<u64> = (0..10).collect();
        let full = epoch_of(&ids, None, 4, false);
        assert_eq!((full.steps(), full.step(2), full.used().count()), (3, 8..10, 10));
        let dropped = epoch_of(&ids, None, 4, true);
        assert_eq!((dropped.steps(), dropped.used().count()), (2, 8));
    }

    #[test]
    fn given_lengths_determine_the_batches() {
        let epoch = epoch_of(&[5, 6, 7, 8], Some(&[1, 3]), 64, false);
        assert_eq!((epoch.steps(), epoch.step(0), epoch.step(1)), (2, 0..1, 1..4));
        assert_eq!(epoch.range(1..4).map(|id| id.0).collect::<Vec<_>>(), [6, 7, 8]);
    }
}
