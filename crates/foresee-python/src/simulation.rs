// SPDX-License-Identifier: Apache-2.0
//! Loading in virtual time: scenarios from Python's words, a run that is advanced, its report as a dictionary.
//!
//! Separate from the loader, whose bytes are real. `foresee.planning.simulation` is its face; whatever is wrong with a
//! scenario is a `foresee.ConfigError`. The interpreter is released while time passes.

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foresee_ledger_file::LedgerFiles;
use foresee_model::{AccessFrequency, Compat, ModelError, OriginCurve, Ratio, ThreadCurve};
use foresee_sim::loading::{
    AccessOrder, Bucket, Cluster, DataSet, HandOver, Options, OriginReaders, Place, Policy, Progress,
    ReadCount, Reads, Report, Run, RunError, Scenario, Tier, Training, WriteCost, draw_reads,
};
use foresee_units::{Bytes, BytesPerSecond, Nanos, Source};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

pyo3::import_exception!(foresee.errors, ConfigError);

/// Adds what stands in this file to the native module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<LoadingRun>()?;
    module.add("LOADING_POLICIES", Policy::ALL.map(Policy::name))?;
    module.add_function(wrap_pyfunction!(reads_above, module)?)?;
    module.add_function(wrap_pyfunction!(reads_expected, module)?)?;
    module.add_function(wrap_pyfunction!(reads_counted, module)?)?;
    module.add_function(wrap_pyfunction!(reads_drawn, module)?)
}

/// Rates by count, as `(count, bytes per second)`.
type Points = Vec<(u32, u64)>;

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct TierGiven {
    capacity: u64,
    threads: u32,
    read: Points,
    write: Option<Points>,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct BucketGiven {
    miss_ns: u64,
    download_ns: u64,
    link_ns: u64,
    listing_ns: u64,
    hit_ns: u64,
    parallel: u32,
    cache: Option<u64>,
    fetch: Option<u64>,
    threshold: Option<u64>,
    strict: bool,
}

#[derive(FromPyObject)]
enum DataGiven<'py> {
    #[pyo3(transparent)]
    Sizes(PyReadonlyArray1<'py, u64>),
    /// Count, mean, deviation, seed.
    Drawn(u64, f64, f64, u64),
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct ScenarioGiven<'py> {
    data: DataGiven<'py>,
    ranks: u32,
    staging: TierGiven,
    tiers: Vec<TierGiven>,
    origin: Points,
    origin_link: Option<u64>,
    origin_latency_ns: u64,
    origin_requests: Option<u64>,
    peer_link: Option<u64>,
    batch: u32,
    epochs: u32,
    drop_last: bool,
    compute: u64,
    preprocess: Option<u64>,
    compat: String,
    order: String,
    seed: u64,
    barrier: bool,
    readers: String,
    write_cost: String,
    hand_over: String,
    bucket: Option<BucketGiven>,
}

#[derive(IntoPyObject)]
enum Begun {
    Run(LoadingRun),
    Unsupported(String),
}

/// One policy on one scenario, advanced bit by bit.
#[pyclass(frozen, module = "foresee._native")]
struct LoadingRun {
    run: Mutex<Box<Run>>,
    ranks: u32,
    /// What it writes its entries to, until the end.
    files: Arc<Mutex<Option<LedgerFiles>>>,
}

#[pymethods]
impl LoadingRun {
    /// The run at its start; a text where the policy has no answer for the scenario.
    #[staticmethod]
    fn begin(py: Python<'_>, scenario: ScenarioGiven<'_>, policy: &str) -> PyResult<Begun> {
        let policy: Policy = policy
            .parse()
            .map_err(|why: foresee_sim::loading::UnknownPolicy| ConfigError::new_err(why.to_string()))?;
        let scenario = scenario_of(scenario)?;
        match py.detach(|| Run::new(&scenario, policy)) {
            Ok(run) => Ok(Begun::Run(Self {
                run: Mutex::new(Box::new(run)),
                ranks: scenario.cluster.ranks,
                files: Arc::default(),
            })),
            Err(RunError::Unsupported(why)) => Ok(Begun::Unsupported(why.reason)),
            Err(why) => Err(ConfigError::new_err(why.to_string())),
        }
    }

    /// Writes a ledger for each rank below `folder`, of what is simulated from now on; `memory`: which tiers are memory.
    fn write_to(&self, py: Python<'_>, folder: PathBuf, memory: Vec<bool>) -> PyResult<()> {
        let files = py
            .detach(|| LedgerFiles::create(&folder, self.ranks))
            .map_err(|why| PyOSError::new_err(why.to_string()))?;
        *lock(&self.files) = Some(files);
        let tiers: Vec<_> =
            memory.into_iter().map(|memory| if memory { Source::Ram } else { Source::Disk }).collect();
        let files = Arc::clone(&self.files);
        let sink = move |entry| {
            if let Some(files) = lock(&files).as_mut() {
                files.add(entry);
            }
        };
        lock(&self.run).write_to(&tiers, Box::new(sink));
        Ok(())
    }

    /// Ends the ledgers.
    fn end_ledgers(&self, py: Python<'_>) -> PyResult<()> {
        let files = lock(&self.files).take();
        py.detach(|| files.map_or(Ok(()), LedgerFiles::finish))
            .map_err(|why| PyOSError::new_err(why.to_string()))
    }

    /// Goes on; the stage, and how much of it is done, of how much.
    fn advance(&self, py: Python<'_>, steps: u64) -> (&'static str, u64, u64) {
        match py.detach(|| lock(&self.run).advance(steps)) {
            Progress::Preparing { done, of } => ("preparing", done, of),
            Progress::Training { done, of } => ("training", done, of),
            Progress::Finished => ("finished", 1, 1),
        }
    }

    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let report = py.detach(|| lock(&self.run).report());
        told(py, &report)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The least number of reads above `(1 + delta)` times the mean, and how many samples a rank is expected to read that
/// often; `delta` as a decimal number or a ratio of two.
#[pyfunction]
#[pyo3(signature = (ranks, epochs, samples, delta, *, compat="physical"))]
fn reads_above(ranks: u32, epochs: u32, samples: u64, delta: &str, compat: &str) -> PyResult<(u64, f64)> {
    let frequency = AccessFrequency::new(ranks, epochs, samples).map_err(of_model)?;
    let (delta, compat) = (delta.parse::<Ratio>().map_err(of_model)?, compat_of(compat)?);
    Ok((frequency.least_reads_above(delta, compat), frequency.expected_above(delta, compat)))
}

/// How many samples a rank is expected to read 0, 1, ... `epochs` times.
#[pyfunction]
fn reads_expected(
    py: Python<'_>,
    ranks: u32,
    epochs: u32,
    samples: u64,
) -> PyResult<Bound<'_, PyArray1<f64>>> {
    let frequency = AccessFrequency::new(ranks, epochs, samples).map_err(of_model)?;
    let counts: Vec<f64> =
        py.detach(|| (0..=u64::from(epochs)).map(|reads| frequency.expected_exactly(reads)).collect());
    Ok(counts.into_pyarray(py))
}

/// How many samples `rank` reads 0, 1, ... `epochs` times in the order of `DistributedSampler` with that seed.
#[pyfunction]
fn reads_counted(
    py: Python<'_>,
    seed: u64,
    ranks: u32,
    epochs: u16,
    samples: u32,
    rank: u32,
) -> PyResult<Bound<'_, PyArray1<u64>>> {
    AccessFrequency::new(ranks, epochs.into(), samples.into()).map_err(of_model)?;
    if rank >= ranks {
        return Err(ConfigError::new_err(format!("rank={rank}; below {ranks}, the number of ranks")));
    }
    let order = AccessOrder::Distributed { seed };
    let mut count = ReadCount::new(order, samples, ranks, epochs.into(), rank);
    while py.detach(|| count.count_epoch()) {
        py.check_signals()?;
    }
    Ok(count.histogram().into_pyarray(py))
}

/// How many samples a rank reads 0, 1, ... `epochs` times, where a seed deals each sample anew in each epoch.
#[pyfunction]
fn reads_drawn(
    py: Python<'_>,
    seed: u64,
    ranks: u32,
    epochs: u16,
    samples: u32,
) -> PyResult<Bound<'_, PyArray1<u64>>> {
    AccessFrequency::new(ranks, epochs.into(), samples.into()).map_err(of_model)?;
    let counts = py.detach(|| draw_reads(seed, samples, ranks, epochs.into()));
    Ok(counts.into_pyarray(py))
}

fn of_model(why: ModelError) -> PyErr {
    ConfigError::new_err(why.to_string())
}

fn compat_of(name: &str) -> PyResult<Compat> {
    match name {
        "physical" => Ok(Compat::Physical),
        "paper" => Ok(Compat::Paper),
        _ => Err(ConfigError::new_err(format!("compat={name:?}; one of 'physical', 'paper'"))),
    }
}

fn scenario_of(given: ScenarioGiven<'_>) -> PyResult<Scenario> {
    let data = match given.data {
        DataGiven::Sizes(sizes) => DataSet::Given(sizes.as_slice()?.to_vec()),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size; `as` saturates")]
        DataGiven::Drawn(count, mean, 0.0, _) if mean.is_finite() && mean >= 1.0 => {
            DataSet::Equal { count, size: Bytes::new(mean.round() as u64) }
        }
        DataGiven::Drawn(count, mean, deviation, seed) => DataSet::Normal { count, mean, deviation, seed },
    };
    let order = match given.order.as_str() {
        "shuffled" => AccessOrder::Shuffled { seed: given.seed },
        "distributed" => AccessOrder::Distributed { seed: given.seed },
        _ => AccessOrder::Sequential,
    };
    let write_cost = match given.write_cost.as_str() {
        "preprocess" => WriteCost::Preprocess,
        "write" => WriteCost::Write,
        _ => WriteCost::None,
    };
    Ok(Scenario {
        cluster: Cluster {
            ranks: given.ranks,
            staging: tier_of(given.staging)?,
            tiers: given.tiers.into_iter().map(tier_of).collect::<PyResult<_>>()?,
            origin: OriginCurve::new(rates(given.origin)).map_err(of_model)?,
            origin_link: given.origin_link.map(BytesPerSecond::new),
            origin_latency: Nanos::new(given.origin_latency_ns),
            // The job file allows no zero.
            origin_requests: given.origin_requests.and_then(NonZeroU64::new),
            peer_link: given.peer_link.map(BytesPerSecond::new),
        },
        data,
        training: Training {
            batch: given.batch,
            epochs: given.epochs,
            drop_last: given.drop_last,
            compute: BytesPerSecond::new(given.compute),
            preprocess: given.preprocess.map(BytesPerSecond::new),
        },
        options: Options {
            compat: compat_of(&given.compat)?,
            order,
            barrier: given.barrier,
            readers: OriginReaders::named(&given.readers).unwrap_or_default(),
            write_cost,
            hand_over: if given.hand_over == "batch" { HandOver::Batch } else { HandOver::Sample },
        },
        bucket: given.bucket.map(bucket_of).transpose()?,
    })
}

fn tier_of(given: TierGiven) -> PyResult<Tier> {
    Ok(Tier {
        capacity: Bytes::new(given.capacity),
        threads: count_of("threads", given.threads)?,
        read: ThreadCurve::new(rates(given.read)).map_err(of_model)?,
        write: given.write.map(|points| ThreadCurve::new(rates(points))).transpose().map_err(of_model)?,
    })
}

fn bucket_of(given: BucketGiven) -> PyResult<Bucket> {
    let BucketGiven {
        miss_ns,
        download_ns,
        link_ns,
        listing_ns,
        hit_ns,
        parallel,
        cache,
        fetch,
        threshold,
        strict,
    } = given;
    Ok(Bucket {
        miss: Nanos::new(miss_ns),
        download: Nanos::new(download_ns),
        link: Nanos::new(link_ns),
        listing: Nanos::new(listing_ns),
        hit: Nanos::new(hit_ns),
        parallel: count_of("parallel", parallel)?,
        cache,
        fetch,
        threshold,
        strict,
    })
}

fn count_of(name: &str, value: u32) -> PyResult<NonZeroU32> {
    NonZeroU32::new(value).ok_or_else(|| ConfigError::new_err(format!("{name}=0; 1 or more")))
}

fn rates(points: Points) -> impl Iterator<Item = (u32, BytesPerSecond)> {
    points.into_iter().map(|(count, rate)| (count, BytesPerSecond::new(rate)))
}

fn told<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let answer = PyDict::new(py);
    answer.set_item("policy", report.policy.name())?;
    answer.set_item("finished", report.finished)?;
    answer.set_item("total_s", report.total)?;
    answer.set_item("init_s", report.init)?;
    answer.set_item("compute_s", report.compute)?;
    answer.set_item("stall_s", report.stall)?;
    answer.set_item("barrier_s", report.barrier)?;
    answer.set_item("ranks", report.ranks)?;
    let epochs = PyList::empty(py);
    for epoch in &report.epochs {
        let one = PyDict::new(py);
        one.set_item("end_s", epoch.end)?;
        one.set_item("stall_s", epoch.stall)?;
        one.set_item("origin_samples", epoch.origin_samples)?;
        epochs.append(one)?;
    }
    answer.set_item("epochs", epochs)?;
    let sources = PyList::empty(py);
    for (place, reads) in &report.reads {
        let (source, tier) = match place {
            Place::Origin => ("origin", None),
            Place::Tier(tier) => ("tier", Some(*tier)),
            Place::Peer(tier) => ("peer", Some(*tier)),
        };
        let one = counted(py, *reads)?;
        one.set_item("source", source)?;
        one.set_item("tier", tier)?;
        sources.append(one)?;
    }
    answer.set_item("reads", sources)?;
    let loads = report.loads.iter().map(|reads| counted(py, *reads)).collect::<PyResult<Vec<_>>>()?;
    answer.set_item("loads", loads)?;
    answer.set_item("origin_requests", report.origin_requests)?;
    answer.set_item("origin_bytes", report.origin_bytes)?;
    answer.set_item("listings", report.listings)?;
    answer.set_item("covered", report.covered)?;
    answer.set_item("samples", report.samples)?;
    Ok(answer)
}

fn counted(py: Python<'_>, reads: Reads) -> PyResult<Bound<'_, PyDict>> {
    let one = PyDict::new(py);
    one.set_item("samples", reads.samples)?;
    one.set_item("bytes", reads.bytes)?;
    one.set_item("seconds", reads.seconds)?;
    one.set_item("waited", reads.waited)?;
    Ok(one)
}
