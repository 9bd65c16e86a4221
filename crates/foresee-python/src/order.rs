// SPDX-License-Identifier: Apache-2.0
//! The access orders of `foresee-data-order`, as arrays.
//!
//! The loader uses that crate in Rust. These functions are for commands, for tests against the installed torch, and for
//! users who inspect an order. Ids are `uint32` if all of them fit, else `uint64`. The interpreter is released while a
//! list is drawn. Every `OrderError` is a `ValueError`, but lack of memory is a `MemoryError`.

use std::num::NonZeroU64;

use foresee_data_order::{
    AuditSum, Avoid, BatchSampler, EpochOrder, Ids, Keyed, LoaderDraws, Mt19937, Order, OrderError,
    RandomSampler, Until, randperm,
};
use foresee_units::{Epoch, Rank, SampleId};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A seed of torch: up to 64 bits, a negative one as its two's complement.
#[derive(Clone, Copy, FromPyObject)]
pub(crate) enum Seed {
    Plain(u64),
    Negative(i64),
}

impl Seed {
    const fn get(self) -> u64 {
        match self {
            Self::Plain(seed) => seed,
            Self::Negative(seed) => seed.cast_unsigned(),
        }
    }
}

/// `torch.randperm(n)` seeded with `seed`.
#[pyfunction]
pub(crate) fn order_randperm(py: Python<'_>, n: u64, seed: Seed) -> PyResult<Bound<'_, PyAny>> {
    let ids = py.detach(|| randperm(n, &mut Mt19937::new(seed.get()))).map_err(to_python)?;
    Ok(array(py, ids))
}

/// The indices of one rank's `DistributedSampler`, from global position `start` on, at any world size.
#[pyfunction]
#[pyo3(signature = (n, world_size, rank, *, seed=Seed::Plain(0), epoch=0, shuffle=true, drop_last=false, start=0))]
#[expect(clippy::too_many_arguments, reason = "torch's own arguments, most of them keywords")]
pub(crate) fn order_distributed(
    py: Python<'_>,
    n: u64,
    world_size: u32,
    rank: u32,
    seed: Seed,
    epoch: u64,
    shuffle: bool,
    drop_last: bool,
    start: u64,
) -> PyResult<Bound<'_, PyAny>> {
    let order = Order::Distributed { n, seed: seed.get(), shuffle, drop_last };
    rank_array(py, order, epoch, world_size, rank, start)
}

/// The indices of one rank under Accelerate's `SeedableRandomSampler` and `BatchSamplerShard`, batch after batch.
#[pyfunction]
#[pyo3(signature = (
    n, world_size, rank, batch_size, *, seed=Seed::Plain(0), epoch=0, drop_last=false, even_batches=true, start=0
))]
#[expect(clippy::too_many_arguments, reason = "Accelerate's own arguments, most of them keywords")]
pub(crate) fn order_seedable_shard(
    py: Python<'_>,
    n: u64,
    world_size: u32,
    rank: u32,
    batch_size: u64,
    seed: Seed,
    epoch: u64,
    drop_last: bool,
    even_batches: bool,
    start: u64,
) -> PyResult<Bound<'_, PyAny>> {
    let batch_size = NonZeroU64::new(batch_size).ok_or(OrderError::EmptyBatch).map_err(to_python)?;
    let order = Order::SeedableShard { n, seed: seed.get(), batch_size, drop_last, even_batches };
    rank_array(py, order, epoch, world_size, rank, start)
}

/// One epoch of `RandomSampler(generator=g)`, `state` being `g.get_state()`: the indices and the state after it.
///
/// `count`: the number of samples; `None` runs to the end, which draws one more permutation.
#[pyfunction]
#[pyo3(signature = (n, state, *, replacement=false, num_samples=None, count=None))]
pub(crate) fn order_random<'py>(
    py: Python<'py>,
    n: u64,
    state: &[u8],
    replacement: bool,
    num_samples: Option<u64>,
    count: Option<u64>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyBytes>)> {
    let drawn = py.detach(|| {
        let mut generator = Mt19937::from_state(state)?;
        let sampler = RandomSampler::new(n, replacement, num_samples)?;
        let ids = sampler.draw(&mut generator, count.map_or(Until::End, Until::Taken))?;
        Ok((ids, generator.state()))
    });
    let (ids, state) = drawn.map_err(to_python)?;
    Ok((array(py, ids), PyBytes::new(py, &state)))
}

/// Epochs of a shuffling `DataLoader`: for each its `base_seed` (or `None`) and the sampler's indices; then the state.
///
/// `epochs`: the number of batches of each epoch, or `None` for all of them and the end. `state`: of `generator=`, or
/// with `generator_given=False` of torch's default generator.
#[pyfunction]
#[pyo3(signature = (
    n, state, epochs, *, batch_size=1, drop_last=false, replacement=false, num_samples=None, generator_given=true,
    num_workers=0, prefetch_factor=2, persistent_workers=false
))]
#[expect(clippy::too_many_arguments, reason = "torch's own arguments, most of them keywords")]
#[expect(clippy::fn_params_excessive_bools, reason = "torch's own arguments, most of them keywords")]
#[expect(clippy::type_complexity, reason = "a list of pairs, and a state")]
pub(crate) fn order_loader<'py>(
    py: Python<'py>,
    n: u64,
    state: &[u8],
    epochs: Vec<Option<u64>>,
    batch_size: u64,
    drop_last: bool,
    replacement: bool,
    num_samples: Option<u64>,
    generator_given: bool,
    num_workers: u64,
    prefetch_factor: u64,
    persistent_workers: bool,
) -> PyResult<(Vec<(Option<u64>, Bound<'py, PyAny>)>, Bound<'py, PyBytes>)> {
    let drawn = py.detach(|| {
        let mut generator = Mt19937::from_state(state)?;
        let sampler = RandomSampler::new(n, replacement, num_samples)?;
        let mut loader =
            LoaderDraws::new(sampler, BatchSampler::new(batch_size, drop_last)?, generator_given)
                .with_workers(num_workers, prefetch_factor, persistent_workers);
        let epochs: Result<Vec<_>, _> =
            epochs.into_iter().map(|batches| loader.epoch(&mut generator, batches)).collect();
        Ok((epochs?, generator.state()))
    });
    let (epochs, state) = drawn.map_err(to_python)?;
    let epochs = epochs.into_iter().map(|epoch| (epoch.base_seed, array(py, epoch.ids))).collect();
    Ok((epochs, PyBytes::new(py, &state)))
}

/// The samples at the given positions of the `keyed-1` order.
#[pyfunction]
pub(crate) fn order_keyed<'py>(
    py: Python<'py>,
    n: u64,
    seed: Seed,
    epoch: u64,
    positions: PyReadonlyArray1<'py, u64>,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    keyed_array(py, n, seed, epoch, &positions, |keyed, position| keyed.id(position).0)
}

/// The positions of the given samples in the `keyed-1` order: the inverse of `order_keyed`.
#[pyfunction]
pub(crate) fn order_keyed_inverse<'py>(
    py: Python<'py>,
    n: u64,
    seed: Seed,
    epoch: u64,
    ids: PyReadonlyArray1<'py, u64>,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    keyed_array(py, n, seed, epoch, &ids, |keyed, id| keyed.position(SampleId(id)))
}

/// The substitute in `epoch` of each sample in `avoid`.
#[pyfunction]
pub(crate) fn order_substitutes<'py>(
    py: Python<'py>,
    n: u64,
    seed: Seed,
    epoch: u64,
    avoid: PyReadonlyArray1<'py, u64>,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let avoid = avoid.as_slice()?;
    let substitutes = py.detach(|| {
        let set = Avoid::new(n, avoid.iter().copied().map(SampleId))?;
        let substitute = |&id| set.substitute(seed.get(), Epoch(epoch), SampleId(id)).0;
        Ok(avoid.iter().map(substitute).collect::<Vec<u64>>())
    });
    Ok(substitutes.map_err(to_python)?.into_pyarray(py))
}

/// The `audit-1` sum, modulo 2^128, of samples at every `stride`-th global position of one epoch, from `first` on and
/// below `limit`.
#[pyfunction]
#[pyo3(signature = (seed, epoch, ids, *, first, stride, limit=None))]
pub(crate) fn order_audit_sum<'py>(
    py: Python<'py>,
    seed: Seed,
    epoch: u64,
    ids: PyReadonlyArray1<'py, i64>,
    first: u64,
    stride: u64,
    limit: Option<u64>,
) -> PyResult<u128> {
    let ids = ids.as_slice()?;
    Ok(py.detach(|| {
        let mut sum = AuditSum::default();
        for (at, &id) in (0_u64..).zip(ids) {
            let position = first.wrapping_add(at.wrapping_mul(stride));
            if limit.is_none_or(|limit| position < limit) {
                sum.add(seed.get(), Epoch(epoch), position, SampleId(id.cast_unsigned()));
            }
        }
        sum.sum
    }))
}

/// The expected `order_audit_sum` of all ranks over a `DistributedSampler` epoch, from `start` to its end.
#[pyfunction]
#[pyo3(signature = (n, world_size, *, seed=Seed::Plain(0), epoch=0, shuffle=true, drop_last=false, start=0))]
#[expect(clippy::too_many_arguments, reason = "torch's own arguments, most of them keywords")]
pub(crate) fn order_audit_expected(
    py: Python<'_>,
    n: u64,
    world_size: u32,
    seed: Seed,
    epoch: u64,
    shuffle: bool,
    drop_last: bool,
    start: u64,
) -> PyResult<u128> {
    let order = Order::Distributed { n, seed: seed.get(), shuffle, drop_last };
    py.detach(|| {
        let sharded = order.epoch(Epoch(epoch))?.shard(world_size, start)?;
        Ok(sharded.expected_audit(sharded.start()..sharded.end()).sum)
    })
    .map_err(to_python)
}

fn rank_array(
    py: Python<'_>,
    order: Order,
    epoch: u64,
    world_size: u32,
    rank: u32,
    start: u64,
) -> PyResult<Bound<'_, PyAny>> {
    let ids = py.detach(|| {
        let epoch: EpochOrder = order.epoch(Epoch(epoch))?;
        let stream = epoch.shard(world_size, start)?.rank(Rank(rank))?;
        Ok(stream.iter().collect::<Ids>())
    });
    Ok(array(py, ids.map_err(to_python)?))
}

fn keyed_array<'py>(
    py: Python<'py>,
    n: u64,
    seed: Seed,
    epoch: u64,
    values: &PyReadonlyArray1<'py, u64>,
    lookup: fn(&Keyed, u64) -> u64,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let values = values.as_slice()?;
    if let Some(outside) = values.iter().find(|&&value| value >= n) {
        return Err(PyValueError::new_err(format!("{outside} is not below n = {n}")));
    }
    let answers = py.detach(|| {
        let keyed = Keyed::new(n, seed.get(), Epoch(epoch))?;
        Ok(values.iter().map(|&value| lookup(&keyed, value)).collect::<Vec<u64>>())
    });
    Ok(answers.map_err(to_python)?.into_pyarray(py))
}

fn array(py: Python<'_>, ids: Ids) -> Bound<'_, PyAny> {
    match ids {
        Ids::U32(ids) => ids.into_pyarray(py).into_any(),
        Ids::U64(ids) => ids.into_pyarray(py).into_any(),
    }
}

fn to_python(error: OrderError) -> PyErr {
    match error {
        OrderError::NoMemory { .. } => PyMemoryError::new_err(error.to_string()),
        _ => PyValueError::new_err(error.to_string()),
    }
}
