// SPDX-License-Identifier: Apache-2.0
//! This rank's epochs: drawn ahead from the run's order, or given one by one by the caller.
//!
//! Drawing has a thread of its own, because a permutation of a hundred million samples takes seconds and the driver
//! must not stand still that long at an epoch's edge. One epoch waits in the channel while the next is drawn, so memory
//! is two epochs of this rank's ids and one permutation.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread::Builder;

use foresee_data_index::Index;
use foresee_data_order::{Avoid, Order, OrderError};
use foresee_units::{Epoch, SampleId, World};

use crate::errors::LoaderError;
use crate::waker::Waker;

/// How a rank's samples are cut into batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Samples per batch, at least 1.
    pub(crate) batch_size: u64,
    /// Whether a short last batch is left out.
    pub(crate) drop_last: bool,
}

impl Cut {
    /// Samples of an epoch of `len` that end up in batches.
    pub(crate) const fn used(self, len: u64) -> u64 {
        if self.drop_last { len - len % self.batch_size } else { len }
    }

    /// Batches of an epoch of `len` samples.
    pub(crate) const fn steps(self, len: u64) -> u64 {
        self.used(len).div_ceil(self.batch_size)
    }
}

/// Ids in four bytes where they fit: an epoch is kept for every epoch of look-ahead.
#[derive(Debug)]
enum Ids {
    Short(Box<[u32]>),
    Long(Box<[u64]>),
}

impl Ids {
    fn gather(n: u64, ids: impl Iterator<Item = SampleId>) -> Self {
        if u32::try_from(n).is_ok() {
            #[expect(clippy::cast_possible_truncation, reason = "every id is below n, which fits")]
            return Self::Short(ids.map(|id| id.0 as u32).collect());
        }
        Self::Long(ids.map(|id| id.0).collect())
    }

    fn len(&self) -> usize {
        match self {
            Self::Short(ids) => ids.len(),
            Self::Long(ids) => ids.len(),
        }
    }

    fn get(&self, place: usize) -> SampleId {
        match self {
            Self::Short(ids) => SampleId(u64::from(ids[place])),
            Self::Long(ids) => SampleId(ids[place]),
        }
    }
}

/// One rank's samples of an epoch from where it begins, in order, for a run without an order.
#[derive(Clone, Copy, Debug)]
pub struct EpochSamples<'a> {
    /// Samples of the data set; one may come several times.
    pub ids: &'a [u64],
    /// Samples of each batch; `None` cuts by the batch size.
    pub lengths: Option<&'a [u64]>,
}

impl EpochSamples<'_> {
    /// Checks the ids and lengths against the data set of `index`.
    pub(crate) fn check(&self, index: &Index) -> Result<(), LoaderError> {
        let (samples, given) = (index.samples(), self.ids.len() as u64);
        let mut faults = Vec::new();
        if let Some(id) = self.ids.iter().find(|&&id| id >= samples) {
            faults.push(format!(
                "sample {id} is in the epoch, but the data set has {samples}; check the sampler"
            ));
        }
        let lengths = self.lengths.unwrap_or_default();
        let cut = lengths.iter().fold(0_u64, |sum, &length| sum.saturating_add(length));
        if cut > given {
            faults.push(format!("batches of {cut} samples are in the epoch, but only {given} samples"));
        }
        if faults.is_empty() { Ok(()) } else { Err(LoaderError::Config { faults }) }
    }
}

/// One rank's epoch, cut into batches.
#[derive(Debug)]
pub(crate) struct RankEpoch {
    pub(crate) epoch: Epoch,
    /// Samples; of a table each has several entries.
    ids: Ids,
    index: Index,
    cut: Cut,
    /// Ends of the batches, where their lengths were given.
    ends: Option<Box<[u64]>>,
}

impl RankEpoch {
    /// An epoch of `samples`, which were checked.
    pub(crate) fn given(index: &Index, epoch: Epoch, samples: EpochSamples<'_>, cut: Cut) -> Self {
        let ends = samples.lengths.map(|lengths| {
            lengths
                .iter()
                .scan(0, |end, length| {
                    *end += length;
                    Some(*end)
                })
                .collect()
        });
        let ids = Ids::gather(index.samples(), samples.ids.iter().map(|&id| SampleId(id)));
        Self { epoch, ids, index: index.clone(), cut, ends }
    }

    pub(crate) fn steps(&self) -> u64 {
        match &self.ends {
            Some(ends) => ends.len() as u64,
            None => self.cut.steps(self.ids.len() as u64),
        }
    }

    /// Entries of the samples that end up in batches, in order.
    pub(crate) fn used(&self) -> impl Iterator<Item = SampleId> + '_ {
        let used = match &self.ends {
            Some(ends) => ends.last().copied().unwrap_or(0),
            None => self.cut.used(self.ids.len() as u64),
        };
        self.range(0..used).flat_map(|sample| self.entries_of(sample))
    }

    /// The entries of a sample.
    pub(crate) fn entries_of(&self, sample: SampleId) -> impl Iterator<Item = SampleId> + '_ {
        (0..self.index.parts()).map(move |part| self.index.entry_of(sample, part))
    }

    /// Places of the samples of a step.
    pub(crate) fn step(&self, step: u64) -> Range<u64> {
        if let Some(ends) = &self.ends {
            let step = usize::try_from(step).expect("a step that exists");
            let start = if step == 0 { 0 } else { ends[step - 1] };
            return start..ends[step];
        }
        let start = step * self.cut.batch_size;
        start..(start + self.cut.batch_size).min(self.ids.len() as u64)
    }

    /// Samples at `places`.
    pub(crate) fn range(&self, places: Range<u64>) -> impl Iterator<Item = SampleId> + '_ {
        places.map(|place| self.ids.get(usize::try_from(place).expect("ids are in memory")))
    }
}

/// An order that is known for the whole run.
#[derive(Clone, Debug)]
pub(crate) struct RunOrder {
    pub(crate) order: Order,
    pub(crate) avoid: Avoid,
    pub(crate) world: World,
    pub(crate) cut: Cut,
    /// How many epochs the run has; `None` if nobody knows.
    pub(crate) epochs: Option<u64>,
    pub(crate) index: Index,
}

impl RunOrder {
    /// Steps this rank has in an epoch that begins at global `position`.
    pub(crate) fn steps(&self, position: u64) -> Result<u64, OrderError> {
        let plain = unshuffled(self.order).epoch(Epoch(0))?;
        Ok(self.cut.steps(plain.rank(self.world, position)?.len()))
    }

    fn draw(&self, epoch: Epoch, position: u64) -> Result<RankEpoch, OrderError> {
        let stream = self.order.epoch(epoch)?.avoiding(&self.avoid).rank(self.world, position)?;
        let ids = Ids::gather(self.index.samples(), stream.iter());
        Ok(RankEpoch { epoch, ids, index: self.index.clone(), cut: self.cut, ends: None })
    }
}

/// An order of the same length that costs nothing to draw: no length hangs on a permutation.
const fn unshuffled(order: Order) -> Order {
    match order {
        Order::Distributed { n, drop_last, .. } | Order::Keyed { n, drop_last, .. } => {
            Order::Sequential { n, drop_last }
        }
        other => other,
    }
}

/// What the thread has drawn so far.
#[derive(Debug)]
pub(crate) enum Drawn {
    Epoch(RankEpoch),
    NotYet,
    Failed(OrderError),
    /// The run has no further epoch.
    End,
}

/// Epochs drawn ahead. Dropping it ends the thread with its next epoch.
#[derive(Debug)]
pub(crate) struct OrderAhead {
    drawn: Receiver<Result<RankEpoch, OrderError>>,
}

impl OrderAhead {
    /// Draws `run` from global `position` of `epoch` on, and wakes the driver when an epoch is there.
    ///
    /// An epoch behind the run's last one is drawn alone: the caller asked for it in spite of the number.
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
                let failed = drawn.is_err();
                let listens = sender.send(drawn).is_ok();
                if failed || !listens {
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

    pub(crate) fn poll(&self) -> Drawn {
        match self.drawn.try_recv() {
            Ok(Ok(epoch)) => Drawn::Epoch(epoch),
            Ok(Err(error)) => Drawn::Failed(error),
            Err(TryRecvError::Empty) => Drawn::NotYet,
            Err(TryRecvError::Disconnected) => Drawn::End,
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
        let cut = Cut { batch_size: 2, drop_last: true };
        let epoch =
            RankEpoch::given(&table(9, 3), Epoch(0), EpochSamples { ids: &[2, 0, 1], lengths: None }, cut);
        assert_eq!((epoch.steps(), epoch.step(0)), (1, 0..2));
        assert_eq!(epoch.used().map(|id| id.0).collect::<Vec<_>>(), [6, 7, 8, 0, 1, 2]);
        assert_eq!(epoch.range(0..2).map(|id| id.0).collect::<Vec<_>>(), [2, 0]);
    }

    fn given(ids: &[u64], lengths: Option<&[u64]>, batch_size: u64, drop_last: bool) -> RankEpoch {
        let samples = EpochSamples { ids, lengths };
        RankEpoch::given(&table(100, 1), Epoch(0), samples, Cut { batch_size, drop_last })
    }

    #[test]
    fn a_short_last_batch_is_kept_or_dropped_as_asked() {
        let ids: Vec<u64> = (0..10).collect();
        let kept = given(&ids, None, 4, false);
        assert_eq!((kept.steps(), kept.step(2), kept.used().count()), (3, 8..10, 10));
        let dropped = given(&ids, None, 4, true);
        assert_eq!((dropped.steps(), dropped.used().count()), (2, 8));
    }

    #[test]
    fn lengths_that_were_given_cut_the_batches() {
        let epoch = given(&[5, 6, 7, 8], Some(&[1, 3]), 64, false);
        assert_eq!((epoch.steps(), epoch.step(0), epoch.step(1)), (2, 0..1, 1..4));
        assert_eq!(epoch.range(1..4).map(|id| id.0).collect::<Vec<_>>(), [6, 7, 8]);
    }
}
