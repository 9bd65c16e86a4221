// SPDX-License-Identifier: Apache-2.0
//! Inputs of a simulation: cluster, data set, training, options.
//!
//! A [`Scenario`] is data and may be invalid; [`Scenario::check`] reports all of its faults at once. Values that
//! have to be measured have no default: a missing rate is `None`, and a policy that needs it reports so.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::RangeInclusive;

use foresee_model::{Compat, OriginCurve, ThreadCurve};
use foresee_units::{Bytes, BytesPerSecond, Nanos};

use super::data::DataSet;
use super::order::AccessOrder;
use foresee_units::named_enum;

/// One run of training on one cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The cluster.
    pub cluster: Cluster,
    /// The data set.
    pub data: DataSet,
    /// The training job.
    pub training: Training,
    /// The options of the simulation.
    pub options: Options,
    /// The bucket of the policies that download from one; `None`: those are unsupported.
    pub bucket: Option<Bucket>,
}

/// Identical ranks, and the storage that they read from.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Training processes, one per node; 1 or more.
    pub ranks: u32,
    /// The staging buffer: its `threads` fetch, preprocess and write samples.
    pub staging: Tier,
    /// Caching tiers of each rank, fastest first; 0 to 7.
    pub tiers: Vec<Tier>,
    /// Rate of the origin by the number of ranks, `t(g)`.
    pub origin: OriginCurve,
    /// A rank's link to the origin, `b_fs`; `None`: no limit.
    pub origin_link: Option<BytesPerSecond>,
    /// Time from a request to the origin to its first byte. A thread waits for it while others go on.
    /// `Compat::Physical` only: the published formulas have none.
    pub origin_latency: Nanos,
    /// Requests per second that the origin accepts from all ranks together, one after the other, before their
    /// latency; `None`: no limit. `Compat::Physical` only. A bucket's windows have separate values.
    pub origin_requests: Option<NonZeroU64>,
    /// A rank's link to its peers, `b_c`; `None`: not measured, and policies that need it are unsupported.
    pub peer_link: Option<BytesPerSecond>,
}

/// Storage of a rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    /// Capacity, `d_j`; above 0.
    pub capacity: Bytes,
    /// Threads that read it, or that fetch its samples, `p_j`.
    pub threads: NonZeroU32,
    /// Read rate by the number of threads, `r_j(p)`; unused for the staging buffer.
    pub read: ThreadCurve,
    /// Write rate by the number of threads, `w_j(p)`; `None`: no limit.
    pub write: Option<ThreadCurve>,
}

/// The training job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Training {
    /// Samples per step of one rank, `b`; 1 or more.
    pub batch: u32,
    /// Passes over the data set; 1 or more.
    pub epochs: u32,
    /// Whether an incomplete last batch is dropped.
    pub drop_last: bool,
    /// Compute of one rank in bytes of original samples per second, `c`: samples per second times their mean size.
    pub compute: BytesPerSecond,
    /// Preprocessing rate of **one** staging thread in the same unit, `beta`; `None` takes no time.
    pub preprocess: Option<BytesPerSecond>,
}

/// Options of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The reading of the model; physical by default.
    pub compat: Compat,
    /// The order of reads.
    pub order: AccessOrder,
    /// Whether ranks start each step together; the default is true.
    pub barrier: bool,
    /// The ranks that count as readers of the origin.
    pub readers: OriginReaders,
    /// The cost of a load into a tier beyond the fetch.
    pub write_cost: WriteCost,
    /// The samples that a rank needs before it computes.
    pub hand_over: HandOver,
    /// Ranks of each node that share one cache, the last node may have fewer; its tiers are those of the ranks together,
    /// each at the rate of one rank. `None`: each rank has a cache of its own. Of the policies with a cache,
    /// [`Policy::Foresee`](super::Policy::Foresee) only.
    pub node_cache: Option<NonZeroU32>,
    /// Whether nodes read each other's caches, by a placement that they plan together;
    /// [`Policy::Foresee`](super::Policy::Foresee) only, other policies have rules of their own. Each rank is a node without
    /// [`node_cache`](Self::node_cache). Needs [`Cluster::peer_link`].
    pub peers: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            compat: Compat::Physical,
            order: AccessOrder::Shuffled { seed: 42 },
            barrier: true,
            readers: OriginReaders::All,
            write_cost: WriteCost::Preprocess,
            hand_over: HandOver::Sample,
            node_cache: None,
            peers: false,
        }
    }
}

named_enum! {
    /// The ranks that share the origin, `g` of `t(g)`.
    #[derive(Default)]
    OriginReaders {
        /// Always all ranks.
        #[default]
        All => "all",
        /// Ranks that read it in the previous step: all in the first step, and at least one. `Compat::Physical` only.
        Active => "active",
        /// Ranks with requests in flight, which take turns, 64 KiB at a time, as answers of a bucket share its link.
        /// Ranks are simulated in order of time: one that is ahead stays ahead, and unused capacity goes to the
        /// others. It costs 2 to 20 times the simulation time of the others (`docs/notes/019`). `Compat::Physical`
        /// only.
        Demand => "demand",
        /// The same with 1 MiB at a time, so that most requests are served one after the other, as by a device or a
        /// network mount. `Compat::Physical` only.
        Queue => "queue",
    }
}

named_enum! {
    /// The cost of a load into a tier after the fetch.
    #[derive(Default)]
    WriteCost {
        /// Preprocessing or writing, whichever is slower.
        #[default]
        Preprocess => "preprocess",
        /// Writing.
        Write => "write",
        /// Nothing.
        None => "none",
    }
}

named_enum! {
    /// The samples that a rank waits for before it computes.
    #[derive(Default)]
    HandOver {
        /// One sample, and then the next: the published model.
        #[default]
        Sample => "sample",
        /// All samples of the batch, as loaders hand them over; they occupy the staging buffer until the step has
        /// ended. `Compat::Physical` only; ranks without overlap always behave so.
        Batch => "batch",
    }
}

/// A bucket that is read sample by sample, for the window policies. All nodes are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Time from a request for a sample to its last byte, for a single download.
    pub miss: Nanos,
    /// The same for each of the [`parallel`](Self::parallel) downloads of a prefetch request.
    pub download: Nanos,
    /// Time that a sample's bytes alone occupy the node's link, which bounds the sum of all downloads. Zero:
    /// downloads do not slow each other down.
    pub link: Nanos,
    /// Time of a listing, with which each prefetch request begins.
    pub listing: Nanos,
    /// Time to read a sample that is cached or on disk.
    pub hit: Nanos,
    /// Parallel downloads of one prefetch request.
    pub parallel: NonZeroU32,
    /// Samples that a node's cache holds, 1 or more; `None`: unlimited.
    pub cache: Option<u64>,
    /// Samples per prefetch request, 1 or more; `None`: the policy's default.
    pub fetch: Option<u64>,
    /// A request is posted when at most this many announced samples are left; `None`: the policy's default.
    pub threshold: Option<u64>,
    /// Whether the number of samples left must be below the threshold.
    pub strict: bool,
}

/// Maximum number of caching tiers of a rank.
const TIERS_MAX: usize = 7;

impl Scenario {
    /// Check the scenario.
    ///
    /// # Errors
    /// [`ScenarioError`] with all faults, each with the field, the value, its unit and the rule.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let mut faults = Faults::default();
        let Self { cluster, data, training, options, bucket } = self;
        data.check(&mut faults);
        let ranks_max = data.count().max(1);
        faults.whole("cluster.ranks", cluster.ranks.into(), 1..=ranks_max, "ranks, one sample for each");
        faults.whole("cluster.tiers", cluster.tiers.len() as u64, 0..=TIERS_MAX as u64, "tiers");
        for tier in std::iter::once(&cluster.staging).chain(&cluster.tiers) {
            faults.whole("capacity of a tier", tier.capacity.get(), 1..=u64::MAX, "bytes");
        }
        let links = [("cluster.origin_link", cluster.origin_link), ("cluster.peer_link", cluster.peer_link)];
        let rates =
            [("training.compute", Some(training.compute)), ("training.preprocess", training.preprocess)];
        for (field, rate) in links.into_iter().chain(rates) {
            faults.whole(field, rate.map_or(1, BytesPerSecond::get), 1..=u64::MAX, "bytes per second");
        }
        faults.whole("training.batch", training.batch.into(), 1..=u64::MAX, "samples");
        faults.whole("training.epochs", training.epochs.into(), 1..=u64::MAX, "epochs");
        if training.drop_last {
            let global = u64::from(training.batch) * u64::from(cluster.ranks);
            let unit = "samples, all of them at most";
            faults.whole("ranks times training.batch", global, 0..=data.count(), unit);
        }
        if options.readers != OriginReaders::All && options.compat == Compat::Paper {
            faults.add("options.readers", options.readers.name(), "", "all, where compat is paper");
        }
        if options.hand_over == HandOver::Batch && options.compat == Compat::Paper {
            faults.add("options.hand_over", "batch", "", "sample, where compat is paper");
        }
        for (field, value) in
            bucket.iter().flat_map(|bucket| [("bucket.cache", bucket.cache), ("bucket.fetch", bucket.fetch)])
        {
            faults.whole(field, value.unwrap_or(1), 1..=u64::MAX, "samples");
        }
        if let Some(Bucket { strict: true, threshold: Some(0), .. }) = bucket {
            let rule = "1 or more, where strict: fewer than none are never left";
            faults.add("bucket.threshold", "0", "samples", rule);
        }
        faults.into_result()
    }
}

/// One fault of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// Its unit; may be empty.
    pub unit: &'static str,
    /// The rule that it violates.
    pub rule: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, value, unit, rule } = self;
        let space = if unit.is_empty() { "" } else { " " };
        write!(f, "{field} is {value}{space}{unit}; it must be {rule}")
    }
}

/// A scenario that no policy can simulate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// All faults; never empty.
    pub faults: Vec<Fault>,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, fault) in self.faults.iter().enumerate() {
            write!(f, "{}{fault}", if number == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ScenarioError {}

/// Collects faults.
#[derive(Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(
        &mut self,
        field: &'static str,
        value: impl Into<String>,
        unit: &'static str,
        rule: impl Into<String>,
    ) {
        self.0.push(Fault { field, value: value.into(), unit, rule: rule.into() });
    }

    pub(super) fn whole(
        &mut self,
        field: &'static str,
        value: u64,
        allowed: RangeInclusive<u64>,
        unit: &'static str,
    ) {
        if !allowed.contains(&value) {
            let rule = match (*allowed.start(), *allowed.end()) {
                (least, u64::MAX) => format!("{least} or more"),
                (least, most) => format!("{least} to {most}"),
            };
            self.add(field, value.to_string(), unit, rule);
        }
    }

    pub(super) fn number(
        &mut self,
        field: &'static str,
        value: f64,
        holds: bool,
        unit: &'static str,
        rule: &'static str,
    ) {
        if !(holds && value.is_finite()) {
            self.add(field, value.to_string(), unit, rule);
        }
    }

    fn into_result(self) -> Result<(), ScenarioError> {
        if self.0.is_empty() { Ok(()) } else { Err(ScenarioError { faults: self.0 }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for readers in OriginReaders::ALL {
            assert_eq!(OriginReaders::from_name(readers.name()), Some(readers));
        }
        for cost in WriteCost::ALL {
            assert_eq!(WriteCost::from_name(cost.name()), Some(cost));
        }
        for hand_over in HandOver::ALL {
            assert_eq!(HandOver::from_name(hand_over.name()), Some(hand_over));
        }
        assert_eq!((OriginReaders::from_name("any"), WriteCost::from_name("")), (None, None));
        assert_eq!(HandOver::from_name("Batch"), None);
    }
}
