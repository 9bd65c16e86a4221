// SPDX-License-Identifier: Apache-2.0
//! Loading in virtual time: scenarios from Python's arguments, runs, and their reports as dictionaries.
//!
//! `foresee.planning.simulation` is its public module. A wrong scenario is a `foresee.ConfigError`. The interpreter is
//! released during a simulation.

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foresee_ledger::{NodeCache, NodeCacheRole};
use foresee_ledger_file::LedgerFiles;
use foresee_model::{AccessFrequency, ModelError, OriginCurve, Ratio, ThreadCurve};
use foresee_sim::loading::{
    AccessOrder, Bucket, Cluster, DataSet, HandOver, Options, OriginReaders, Place, Policy, Progress,
    ReadCount, Reads, Report, Run, RunError, Scenario, Tier, Training, WriteCost, draw_reads,
};
use foresee_units::{Bytes, BytesPerSecond, Nanos, Rank, Source};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::arguments::compat_of;
use crate::errors::config_error;

/// Rates by count, as `(count, bytes per second)`.
type Points = Vec<(u32, u64)>;

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct TierArguments {
    capacity: u64,
    threads: u32,
    read: Points,
    write: Option<Points>,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct BucketArguments {
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
enum DataArguments<'py> {
    #[pyo3(transparent)]
    Sizes(PyReadonlyArray1<'py, u64>),
    /// Count, mean, deviation, seed.
    Drawn(u64, f64, f64, u64),
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct ScenarioArguments<'py> {
    data: DataArguments<'py>,
    ranks: u32,
    staging: TierArguments,
    tiers: Vec<TierArguments>,
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
    node_cache: Option<NonZeroU32>,
    peers: bool,
    bucket: Option<BucketArguments>,
}

#[derive(IntoPyObject)]
enum BeginResult {
    Run(LoadingRun),
    Unsupported(String),
}

/// A simulation of one policy on one scenario, in steps.
#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct LoadingRun {
    run: Mutex<Box<Run>>,
    ranks: u32,
    /// Ranks of each node that share one cache, and the memory and disk space of one rank.
    node_cache: Option<(NonZeroU32, [u64; 2])>,
    /// The ledgers, until they end.
    files: Arc<Mutex<Option<LedgerFiles>>>,
}

#[pymethods]
impl LoadingRun {
    /// Begin a run; returns the reason if the policy does not support the scenario.
    #[staticmethod]
    fn begin(py: Python<'_>, scenario: ScenarioArguments<'_>, policy: &str) -> PyResult<BeginResult> {
        let policy: Policy = policy
            .parse()
            .map_err(|why: foresee_sim::loading::UnknownPolicy| config_error(why.to_string()))?;
        let scenario = scenario_of(scenario)?;
        let tier = |at: usize| scenario.cluster.tiers.get(at).map_or(0, |tier| tier.capacity.get());
        let node_cache = scenario.options.node_cache.map(|ranks| (ranks, [tier(0), tier(1)]));
        match py.detach(|| Run::new(&scenario, policy)) {
            Ok(run) => Ok(BeginResult::Run(Self {
                run: Mutex::new(Box::new(run)),
                ranks: scenario.cluster.ranks,
                node_cache,
                files: Arc::default(),
            })),
            Err(RunError::Unsupported(why)) => Ok(BeginResult::Unsupported(why.reason)),
            Err(why) => Err(config_error(why.to_string())),
        }
    }

    /// Write a ledger of each rank below `folder` from now on; `memory`: which tiers are memory.
    fn write_to(&self, py: Python<'_>, folder: PathBuf, memory: Vec<bool>) -> PyResult<()> {
        let files = py
            .detach(|| LedgerFiles::create(&folder, self.ranks, |rank| self.node_cache_of(rank)))
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

    /// Finish the ledgers.
    fn end_ledgers(&self, py: Python<'_>) -> PyResult<()> {
        let files = lock(&self.files).take();
        py.detach(|| files.map_or(Ok(()), LedgerFiles::finish))
            .map_err(|why| PyOSError::new_err(why.to_string()))
    }

    /// Simulate more steps; returns the stage, how much of it is done, and its total.
    fn advance(&self, py: Python<'_>, steps: u64) -> (&'static str, u64, u64) {
        match py.detach(|| lock(&self.run).advance(steps)) {
            Progress::Preparing { done, of } => ("preparing", done, of),
            Progress::Training { done, of } => ("training", done, of),
            Progress::Finished => ("finished", 1, 1),
        }
    }

    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let report = py.detach(|| lock(&self.run).report());
        report_dict(py, &report)
    }
}

impl LoadingRun {
    /// The cache of the node of a rank, whose first rank is its host.
    fn node_cache_of(&self, rank: Rank) -> Option<NodeCache> {
        let (ranks, [ram, disk]) = self.node_cache?;
        let first = rank.0 / ranks * ranks.get();
        let sharing = u64::from(ranks.get().min(self.ranks - first));
        let role = if rank.0 == first { NodeCacheRole::Host } else { NodeCacheRole::RankConsumer };
        let [ram, disk] = [ram, disk].map(|bytes| Bytes::new(bytes.saturating_mul(sharing)));
        Some(NodeCache { id: format!("{:032x}", rank.0 / ranks), role, ram, disk })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The least number of reads above `(1 + delta)` times the mean, and the expected number of samples that a rank reads
/// that often; `delta`: a decimal number or a ratio of two.
#[pyfunction]
#[pyo3(signature = (ranks, epochs, samples, delta, *, compat="physical"))]
pub(crate) fn reads_above(
    ranks: u32,
    epochs: u32,
    samples: u64,
    delta: &str,
    compat: &str,
) -> PyResult<(u64, f64)> {
    let frequency = AccessFrequency::new(ranks, epochs, samples).map_err(of_model)?;
    let (delta, compat) = (delta.parse::<Ratio>().map_err(of_model)?, compat_of(compat)?);
    Ok((frequency.least_reads_above(delta, compat), frequency.expected_above(delta, compat)))
}

/// The expected numbers of samples that a rank reads 0, 1, ... `epochs` times.
#[pyfunction]
pub(crate) fn reads_expected(
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

/// The numbers of samples that `rank` reads 0, 1, ... `epochs` times in the order of `DistributedSampler` with this seed.
#[pyfunction]
pub(crate) fn reads_counted(
    py: Python<'_>,
    seed: u64,
    ranks: u32,
    epochs: u16,
    samples: u32,
    rank: u32,
) -> PyResult<Bound<'_, PyArray1<u64>>> {
    AccessFrequency::new(ranks, epochs.into(), samples.into()).map_err(of_model)?;
    if rank >= ranks {
        return Err(config_error(format!("rank={rank}; below {ranks}, the number of ranks")));
    }
    let order = AccessOrder::Distributed { seed };
    let mut count = ReadCount::new(order, samples, ranks, epochs.into(), rank);
    while py.detach(|| count.count_epoch()) {
        py.check_signals()?;
    }
    Ok(count.histogram().into_pyarray(py))
}

/// The numbers of samples that a rank reads 0, 1, ... `epochs` times if each sample goes to a random rank in each epoch.
#[pyfunction]
pub(crate) fn reads_drawn(
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
    config_error(why.to_string())
}

fn scenario_of(arguments: ScenarioArguments<'_>) -> PyResult<Scenario> {
    let data = match arguments.data {
        DataArguments::Sizes(sizes) => DataSet::Given(sizes.as_slice()?.to_vec()),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size; `as` saturates")]
        DataArguments::Drawn(count, mean, 0.0, _) if mean.is_finite() && mean >= 1.0 => {
            DataSet::Equal { count, size: Bytes::new(mean.round() as u64) }
        }
        DataArguments::Drawn(count, mean, deviation, seed) => {
            DataSet::Normal { count, mean, deviation, seed }
        }
    };
    let order = match arguments.order.as_str() {
        "shuffled" => AccessOrder::Shuffled { seed: arguments.seed },
        "distributed" => AccessOrder::Distributed { seed: arguments.seed },
        _ => AccessOrder::Sequential,
    };
    let write_cost = match arguments.write_cost.as_str() {
        "preprocess" => WriteCost::Preprocess,
        "write" => WriteCost::Write,
        _ => WriteCost::None,
    };
    Ok(Scenario {
        cluster: Cluster {
            ranks: arguments.ranks,
            staging: tier_of(arguments.staging)?,
            tiers: arguments.tiers.into_iter().map(tier_of).collect::<PyResult<_>>()?,
            origin: OriginCurve::new(rates(arguments.origin)).map_err(of_model)?,
            origin_link: arguments.origin_link.map(BytesPerSecond::new),
            origin_latency: Nanos::new(arguments.origin_latency_ns),
            // The job file allows no zero.
            origin_requests: arguments.origin_requests.and_then(NonZeroU64::new),
            peer_link: arguments.peer_link.map(BytesPerSecond::new),
        },
        data,
        training: Training {
            batch: arguments.batch,
            epochs: arguments.epochs,
            drop_last: arguments.drop_last,
            compute: BytesPerSecond::new(arguments.compute),
            preprocess: arguments.preprocess.map(BytesPerSecond::new),
        },
        options: Options {
            compat: compat_of(&arguments.compat)?,
            order,
            barrier: arguments.barrier,
            readers: OriginReaders::from_name(&arguments.readers).unwrap_or_default(),
            write_cost,
            hand_over: if arguments.hand_over == "batch" { HandOver::Batch } else { HandOver::Sample },
            node_cache: arguments.node_cache,
            peers: arguments.peers,
        },
        bucket: arguments.bucket.map(bucket_of).transpose()?,
    })
}

fn tier_of(arguments: TierArguments) -> PyResult<Tier> {
    Ok(Tier {
        capacity: Bytes::new(arguments.capacity),
        threads: count_of("threads", arguments.threads)?,
        read: ThreadCurve::new(rates(arguments.read)).map_err(of_model)?,
        write: arguments.write.map(|points| ThreadCurve::new(rates(points))).transpose().map_err(of_model)?,
    })
}

fn bucket_of(arguments: BucketArguments) -> PyResult<Bucket> {
    Ok(Bucket {
        miss: Nanos::new(arguments.miss_ns),
        download: Nanos::new(arguments.download_ns),
        link: Nanos::new(arguments.link_ns),
        listing: Nanos::new(arguments.listing_ns),
        hit: Nanos::new(arguments.hit_ns),
        parallel: count_of("parallel", arguments.parallel)?,
        cache: arguments.cache,
        fetch: arguments.fetch,
        threshold: arguments.threshold,
        strict: arguments.strict,
    })
}

fn count_of(name: &str, value: u32) -> PyResult<NonZeroU32> {
    NonZeroU32::new(value).ok_or_else(|| config_error(format!("{name}=0; 1 or more")))
}

fn rates(points: Points) -> impl Iterator<Item = (u32, BytesPerSecond)> {
    points.into_iter().map(|(count, rate)| (count, BytesPerSecond::new(rate)))
}

fn report_dict<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("policy", report.policy.name())?;
    dict.set_item("finished", report.finished)?;
    dict.set_item("total_s", report.total)?;
    dict.set_item("init_s", report.init)?;
    dict.set_item("compute_s", report.compute)?;
    dict.set_item("stall_s", report.stall)?;
    dict.set_item("barrier_s", report.barrier)?;
    dict.set_item("ranks", report.ranks)?;
    let epochs = PyList::empty(py);
    for epoch in &report.epochs {
        let one = PyDict::new(py);
        one.set_item("end_s", epoch.end)?;
        one.set_item("stall_s", epoch.stall)?;
        one.set_item("origin_samples", epoch.origin_samples)?;
        epochs.append(one)?;
    }
    dict.set_item("epochs", epochs)?;
    let sources = PyList::empty(py);
    for (place, reads) in &report.reads {
        let (source, tier) = match place {
            Place::Origin => ("origin", None),
            Place::Tier(tier) => ("tier", Some(*tier)),
            Place::Peer(tier) => ("peer", Some(*tier)),
        };
        let one = reads_dict(py, *reads)?;
        one.set_item("source", source)?;
        one.set_item("tier", tier)?;
        sources.append(one)?;
    }
    dict.set_item("reads", sources)?;
    let loads = report.loads.iter().map(|reads| reads_dict(py, *reads)).collect::<PyResult<Vec<_>>>()?;
    dict.set_item("loads", loads)?;
    dict.set_item("origin_requests", report.origin_requests)?;
    dict.set_item("origin_bytes", report.origin_bytes)?;
    dict.set_item("pushed_samples", report.pushed_samples)?;
    dict.set_item("pushed_bytes", report.pushed_bytes)?;
    dict.set_item("listings", report.listings)?;
    dict.set_item("covered", report.covered)?;
    dict.set_item("samples", report.samples)?;
    Ok(dict)
}

fn reads_dict(py: Python<'_>, reads: Reads) -> PyResult<Bound<'_, PyDict>> {
    let one = PyDict::new(py);
    one.set_item("samples", reads.samples)?;
    one.set_item("bytes", reads.bytes)?;
    one.set_item("seconds", reads.seconds)?;
    one.set_item("waited", reads.waited)?;
    Ok(one)
}
