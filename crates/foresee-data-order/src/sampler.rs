// SPDX-License-Identifier: Apache-2.0
//! torch's samplers with an order that is known one epoch at a time, because it depends on a generator with other
//! users.
//!
//! The number of words drawn matters as much as the list: the generator is written back, and its other users must
//! see the same state as with torch.
//!
//! `SubsetRandomSampler` and `WeightedRandomSampler` are not covered. The first is a [`randperm`] over the
//! caller's own list; the second is torch's `multinomial`, whose floating point is not portable, so use torch's
//! list.

use std::num::NonZeroU64;
use std::ops::Range;

use foresee_units::SampleId;

use crate::mt19937::WIDE_RANGE;
use crate::randperm::randperm_words;
use crate::{Ids, Mt19937, OrderError, randperm};

/// Block size of torch's draws with replacement.
const REPLACEMENT_BLOCK: u64 = 32;

/// How far a sampler is consumed. It draws on demand, so an epoch that stops early leaves another generator
/// state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// To its `StopIteration`.
    End,
    /// This number of samples, without the query that detects the end.
    Taken(u64),
}

/// `torch.utils.data.RandomSampler`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomSampler {
    n: u64,
    replacement: bool,
    num_samples: u64,
}

impl RandomSampler {
    /// A sampler of `num_samples` (default n) from `n` samples.
    ///
    /// # Errors
    /// [`OrderError::NothingToDraw`] if torch raises its `ValueError`; [`OrderError::EmptyDataSet`].
    pub fn new(n: u64, replacement: bool, num_samples: Option<u64>) -> Result<Self, OrderError> {
        match (n, num_samples.unwrap_or(n)) {
            (_, 0) => Err(OrderError::NothingToDraw),
            (0, num_samples) => Err(OrderError::EmptyDataSet { num_samples }),
            (n, num_samples) => Ok(Self { n, replacement, num_samples }),
        }
    }

    /// Samples per epoch, torch's `len(sampler)`; never 0.
    #[expect(clippy::len_without_is_empty, reason = "a sampler of nothing is refused")]
    pub const fn len(&self) -> u64 {
        self.num_samples
    }

    /// The samples of one epoch, drawn from `generator` as by `RandomSampler(generator=g)` from g.
    ///
    /// After its last full permutation the sampler draws one more, of which it uses `num_samples % n` samples:
    /// none by default. That happens when one sample too many is requested, hence `until`.
    ///
    /// # Errors
    /// [`OrderError::NoMemory`].
    pub fn draw(&self, generator: &mut Mt19937, until: Until) -> Result<Ids, OrderError> {
        let taken = match until {
            Until::End => self.num_samples,
            Until::Taken(taken) => taken.min(self.num_samples),
        };
        if self.replacement {
            self.draw_with_replacement(generator, until, taken)
        } else {
            self.draw_permutations(generator, until, taken)
        }
    }

    /// The same without `generator=`: the first sample draws a 63-bit seed from the `global` generator.
    ///
    /// # Errors
    /// As [`draw`](Self::draw).
    pub fn draw_seeded(&self, global: &mut Mt19937, until: Until) -> Result<Ids, OrderError> {
        if until == Until::Taken(0) {
            return Ok(Ids::U32(Vec::new()));
        }
        self.draw(&mut Mt19937::new(global.random63()), until)
    }

    fn draw_permutations(
        &self,
        generator: &mut Mt19937,
        until: Until,
        taken: u64,
    ) -> Result<Ids, OrderError> {
        let permutations = match until {
            Until::End => self.num_samples / self.n + 1,
            Until::Taken(_) => taken.div_ceil(self.n),
        };
        let mut ids = Ids::with_capacity(self.n, taken)?;
        for _ in 0..permutations {
            match taken - ids.len() {
                0 => generator.skip(randperm_words(self.n)),
                missing => ids.append_head(&randperm(self.n, generator)?, missing),
            }
        }
        Ok(ids)
    }

    fn draw_with_replacement(
        &self,
        generator: &mut Mt19937,
        until: Until,
        taken: u64,
    ) -> Result<Ids, OrderError> {
        let drawn = match until {
            Until::End => self.num_samples,
            Until::Taken(_) => taken.next_multiple_of(REPLACEMENT_BLOCK).min(self.num_samples),
        };
        let draws = (0..taken).map(|_| SampleId(generator.below(self.n)));
        let ids = Ids::try_collect(self.n, taken, draws)?;
        generator.skip((drawn - taken).saturating_mul(if self.n < WIDE_RANGE { 1 } else { 2 }));
        Ok(ids)
    }
}

/// `torch.utils.data.BatchSampler`: consecutive groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSampler {
    batch_size: NonZeroU64,
    drop_last: bool,
}

impl BatchSampler {
    /// Batches of `batch_size` samples; `drop_last` drops the short last one.
    ///
    /// # Errors
    /// [`OrderError::EmptyBatch`] if torch raises its `ValueError`.
    pub fn new(batch_size: u64, drop_last: bool) -> Result<Self, OrderError> {
        NonZeroU64::new(batch_size)
            .map(|batch_size| Self { batch_size, drop_last })
            .ok_or(OrderError::EmptyBatch)
    }

    /// The number of batches in `samples`.
    pub fn batches(&self, samples: u64) -> u64 {
        if self.drop_last { samples / self.batch_size } else { samples.div_ceil(self.batch_size.get()) }
    }

    /// The range of the `batch`-th batch in `samples`; `None` past the last one.
    pub fn range(&self, samples: u64, batch: u64) -> Option<Range<u64>> {
        let first = (batch < self.batches(samples)).then(|| batch * self.batch_size.get())?;
        Some(first..samples.min(first.saturating_add(self.batch_size.get())))
    }

    /// How far the inner sampler of `samples` is consumed when `requested` batches were requested.
    ///
    /// A short last batch exhausts the sampler, and so does a request for one batch too many.
    pub fn until(&self, samples: u64, requested: u64) -> Until {
        if requested <= samples / self.batch_size {
            Until::Taken(requested * self.batch_size.get())
        } else {
            Until::End
        }
    }
}

/// The draws of `torch.utils.data.DataLoader` around its sampler, epoch by epoch.
#[derive(Clone, Debug)]
pub struct LoaderDraws {
    sampler: RandomSampler,
    batches: BatchSampler,
    generator_given: bool,
    num_workers: u64,
    prefetch_factor: u64,
    persistent_workers: bool,
    begun: bool,
}

/// One epoch of a [`LoaderDraws`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoaderEpoch {
    /// The seed of worker processes; `None` if persistent ones keep theirs.
    pub base_seed: Option<u64>,
    /// The samples that the loader has requested; prefetching workers get more than the training loop uses.
    pub ids: Ids,
}

impl LoaderDraws {
    /// A loader over `sampler` in `batches`.
    ///
    /// `generator_given`: whether `generator=` was passed to both loader and sampler, as with `shuffle=True`.
    pub const fn new(sampler: RandomSampler, batches: BatchSampler, generator_given: bool) -> Self {
        Self {
            sampler,
            batches,
            generator_given,
            num_workers: 0,
            prefetch_factor: 0,
            persistent_workers: false,
            begun: false,
        }
    }

    /// The same with 1 or more worker processes, each of which gets `prefetch_factor` batches ahead.
    #[must_use]
    pub const fn with_workers(
        self,
        num_workers: u64,
        prefetch_factor: u64,
        persistent_workers: bool,
    ) -> Self {
        Self { num_workers, prefetch_factor, persistent_workers, ..self }
    }

    /// Draw one epoch from `generator`, the given or the global one.
    ///
    /// `batches`: the number of `next` calls on the iterator before it was dropped, or `None` for a loop that ran
    /// to its end. At `iter()` the loader draws its `base_seed`, before the sampler draws anything. Persistent
    /// workers keep that of the first epoch, so their later epochs differ from those of other loaders.
    ///
    /// # Errors
    /// As [`RandomSampler::draw`].
    pub fn epoch(
        &mut self,
        generator: &mut Mt19937,
        batches: Option<u64>,
    ) -> Result<LoaderEpoch, OrderError> {
        let keeps_seed = self.begun && self.persistent_workers && self.num_workers > 0;
        self.begun = true;
        let base_seed = (!keeps_seed).then(|| generator.random63());
        let until = batches.map_or(Until::End, |taken| {
            let ahead = self.num_workers.saturating_mul(self.prefetch_factor);
            self.batches.until(self.sampler.len(), taken.saturating_add(ahead))
        });
        let ids = if self.generator_given {
            self.sampler.draw(generator, until)
        } else {
            self.sampler.draw_seeded(generator, until)
        }?;
        Ok(LoaderEpoch { base_seed, ids })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(ids: &Ids) -> Vec<u64> {
        ids.iter().map(|id| id.0).collect()
    }

    #[test]
    fn an_exhausted_sampler_has_drawn_one_permutation_more_than_one_stopped_early() {
        let sampler = RandomSampler::new(10, false, None).unwrap();
        let [mut ended, mut broken] = [(); 2].map(|()| Mt19937::new(3));
        let ids = sampler.draw(&mut ended, Until::End).unwrap();
        assert_eq!(ids, sampler.draw(&mut broken, Until::Taken(10)).unwrap());
        assert_ne!(ended, broken);
        randperm(10, &mut broken).unwrap();
        assert_eq!(ended, broken);
    }

    #[test]
    fn more_samples_than_the_data_set_has_take_further_permutations() {
        let sampler = RandomSampler::new(4, false, Some(10)).unwrap();
        let mut generator = Mt19937::new(1);
        let ids = listed(&sampler.draw(&mut generator, Until::End).unwrap());
        let mut again = Mt19937::new(1);
        let three: Vec<u64> = (0..3).flat_map(|_| listed(&randperm(4, &mut again).unwrap())).collect();
        assert_eq!(ids, three[..10]);
        assert_eq!(generator, again);
    }

    #[test]
    fn an_unused_sampler_has_drawn_nothing() {
        for replacement in [false, true] {
            let sampler = RandomSampler::new(4, replacement, None).unwrap();
            let mut generator = Mt19937::new(1);
            assert!(sampler.draw(&mut generator, Until::Taken(0)).unwrap().is_empty());
            assert!(sampler.draw_seeded(&mut generator, Until::Taken(0)).unwrap().is_empty());
            assert_eq!(generator, Mt19937::new(1));
        }
    }

    #[test]
    fn replacement_draws_in_blocks_of_32_even_if_one_sample_is_taken() {
        let sampler = RandomSampler::new(7, true, Some(40)).unwrap();
        for (taken, words) in [(1, 32), (32, 32), (33, 40), (40, 40)] {
            let [mut generator, mut skipped] = [(); 2].map(|()| Mt19937::new(5));
            sampler.draw(&mut generator, Until::Taken(taken)).unwrap();
            skipped.skip(words);
            assert_eq!(generator, skipped, "{taken}");
        }
    }

    #[test]
    fn value_errors_are_those_of_torch() {
        assert_eq!(RandomSampler::new(5, false, Some(0)), Err(OrderError::NothingToDraw));
        assert_eq!(RandomSampler::new(0, false, None), Err(OrderError::NothingToDraw));
        assert_eq!(RandomSampler::new(0, true, Some(3)), Err(OrderError::EmptyDataSet { num_samples: 3 }));
        assert_eq!(BatchSampler::new(0, true), Err(OrderError::EmptyBatch));
    }

    #[test]
    fn batches_cover_the_samples_and_report_exhaustion() {
        let [keep, cut] = [false, true].map(|drop_last| BatchSampler::new(4, drop_last).unwrap());
        assert_eq!((keep.batches(10), cut.batches(10)), (3, 2));
        assert_eq!((keep.range(10, 2), cut.range(10, 2)), (Some(8..10), None));
        assert_eq!((keep.until(10, 2), keep.until(10, 3)), (Until::Taken(8), Until::End));
        assert_eq!((keep.until(8, 2), keep.until(8, 3)), (Until::Taken(8), Until::End));
    }

    #[test]
    fn persistent_workers_draw_their_base_seed_only_once() {
        let sampler = RandomSampler::new(6, false, None).unwrap();
        let plain =
            LoaderDraws::new(sampler, BatchSampler::new(2, false).unwrap(), true).with_workers(2, 2, false);
        let seeds = |mut loader: LoaderDraws| {
            let mut generator = Mt19937::new(0);
            [(); 3].map(|()| loader.epoch(&mut generator, None).unwrap().base_seed.is_some())
        };
        assert_eq!(seeds(plain.clone()), [true; 3]);
        assert_eq!(seeds(plain.with_workers(2, 2, true)), [true, false, false]);
    }
}
