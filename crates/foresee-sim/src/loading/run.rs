// SPDX-License-Identifier: Apache-2.0
//! A run of one policy, stepped by its caller, which may show progress and stop early with partial results.
//!
//! It owns the clock of all ranks, the barrier between steps and the report. The driver determines what happens
//! inside a step: ranks that prefetch, ranks without overlap, or nodes in front of a bucket. Runs share nothing,
//! so a caller may run several in parallel.

use std::fmt;
use std::sync::Arc;

use foresee_model::{Compat, ModelError};

use super::data::Sizes;
use super::log::{Log, Sink};
use super::order::Epochs;
use super::policies;
use super::policy::Policy;
use super::rates::Rates;
use super::report::{Metrics, Pushes, Report, Times};
use super::scenario::{Scenario, ScenarioError};
use foresee_units::Source;

/// Shared constants of a run.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) scenario: Scenario,
    pub(super) sizes: Arc<Sizes>,
    pub(super) epochs: Epochs,
    pub(super) paper: bool,
}

/// One step of all ranks.
pub(super) struct StepNow<'a> {
    pub(super) setup: &'a Setup,
    pub(super) epoch: u32,
    pub(super) step: usize,
    /// The samples read, rank after rank; a driver may change them.
    pub(super) ids: &'a mut [u32],
    pub(super) clock: &'a mut Clock,
    pub(super) metrics: &'a mut Metrics,
}

/// The time of each rank.
#[derive(Debug)]
pub(super) struct Clock {
    /// By rank: when its consumer becomes idle.
    pub(super) free: Vec<f64>,
    /// By step of the run: when the slowest rank ended it.
    pub(super) ends: Vec<f64>,
}

/// The behaviour of a policy in time.
pub(super) trait Driver: Send {
    /// Do a part of the preparation; return the work done and the total work. The preparation is complete when
    /// they are equal.
    fn prepare(&mut self, _setup: &Setup, _metrics: &mut Metrics) -> (u64, u64) {
        (0, 0)
    }

    /// Duration of the preparation in the run's own time.
    fn init(&self) -> f64 {
        0.0
    }

    /// Whether the ids of an epoch's list matter.
    fn needs_order(&self) -> bool {
        true
    }

    /// Begin an epoch that reads `list`.
    fn begin_epoch(&mut self, _setup: &Setup, _list: &[u32]) {}

    /// Take a step of all ranks.
    fn step(&mut self, now: &mut StepNow<'_>);

    /// Handle the end of a step, which the clock's `ends` contains.
    fn end_step(&mut self, _clock: &Clock) {}

    /// Samples that were sent to the node that caches them, so far.
    fn pushes(&self) -> Pushes {
        Pushes::default()
    }
}

/// A policy that does not support a scenario; others may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{policy} is unsupported here: {reason}")]
pub struct Unsupported {
    /// The policy.
    pub policy: Policy,
    /// The reason.
    pub reason: String,
}

/// Errors at the start of a run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The scenario is invalid.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A rate is invalid.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The policy does not support the scenario.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The policy places samples or plans, in parts of its own unit.
    Preparing {
        /// Parts done.
        done: u64,
        /// Parts in all.
        of: u64,
    },
    /// Training, in steps of all ranks.
    Training {
        /// Steps done.
        done: u64,
        /// Steps of all epochs.
        of: u64,
    },
    /// The run is complete.
    Finished,
}

/// One policy on one scenario.
///
/// # Examples
/// ```
/// # use foresee_model::{OriginCurve, ThreadCurve};
/// # use foresee_sim::loading::{Cluster, DataSet, Options, Policy, Progress, Run, Scenario, Tier, Training};
/// # use foresee_units::{Bytes, BytesPerSecond, Nanos};
/// # use std::num::NonZeroU32;
/// # let rate = BytesPerSecond::new;
/// # let tier = |capacity| Tier {
/// #     capacity: Bytes::new(capacity),
/// #     threads: NonZeroU32::new(2).unwrap(),
/// #     read: ThreadCurve::new([(2, rate(10_000_000_000))]).unwrap(),
/// #     write: None,
/// # };
/// let scenario = Scenario {
///     cluster: Cluster {
///         ranks: 2,
///         staging: tier(50_000_000),
///         tiers: vec![tier(500_000_000)],
///         origin: OriginCurve::new([(1, rate(60_000_000)), (2, rate(80_000_000))])?,
///         origin_link: None,
///         origin_latency: Nanos::ZERO,
///         origin_requests: None,
///         peer_link: Some(rate(1_000_000_000)),
///     },
///     data: DataSet::Equal { count: 5_000, size: Bytes::new(100_000) },
///     training: Training {
///         batch: 32,
///         epochs: 3,
///         drop_last: false,
///         compute: rate(50_000_000),
///         preprocess: Some(rate(200_000_000)),
///     },
///     options: Options::default(),
///     bucket: None,
/// };
/// let total = |policy| {
///     let mut run = Run::new(&scenario, policy)?;
///     while run.advance(100) != Progress::Finished {}
///     Ok::<_, foresee_sim::loading::RunError>(run.report().total)
/// };
/// assert!(total(Policy::Perfect)? <= total(Policy::Foresee)?);
/// assert!(total(Policy::Foresee)? < total(Policy::StagingBuffer)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Run {
    setup: Setup,
    policy: Policy,
    driver: Box<dyn Driver>,
    metrics: Metrics,
    clock: Clock,
    list: Vec<u32>,
    prepared: Option<(u64, u64)>,
    epoch: u32,
    step: usize,
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, epoch, step, .. } = self;
        f.debug_struct("Run")
            .field("policy", policy)
            .field("epoch", epoch)
            .field("step", step)
            .finish_non_exhaustive()
    }
}

impl Run {
    /// Create a run at its start.
    ///
    /// # Errors
    /// [`RunError`]: the scenario is invalid, or the policy does not support it.
    pub fn new(scenario: &Scenario, policy: Policy) -> Result<Self, RunError> {
        scenario.check()?;
        let rates = Rates::new(scenario)?;
        let sizes = scenario.data.sizes();
        let training = &scenario.training;
        let epochs = Epochs::new(
            scenario.options.order,
            sizes.len(),
            (scenario.cluster.ranks as usize, training.batch as usize),
            training.epochs,
            training.drop_last,
        );
        let paper = scenario.options.compat == Compat::Paper;
        let setup = Setup { scenario: scenario.clone(), sizes: Arc::new(sizes), epochs, paper };
        let driver =
            policies::driver(policy, &setup, rates).map_err(|reason| Unsupported { policy, reason })?;
        let metrics = Metrics::new(scenario.cluster.tiers.len(), setup.sizes.len());
        let clock = Clock { free: vec![0.0; setup.epochs.ranks], ends: Vec::new() };
        let list = Vec::new();
        Ok(Self { setup, policy, driver, metrics, clock, list, prepared: None, epoch: 0, step: 0 })
    }

    /// Send each read and each wait to `sink` as an entry of the ledger, from now on; call it before the first
    /// [`advance`](Self::advance) to cover the whole run. `tiers`: the kinds of the cluster's tiers, fastest
    /// first.
    pub fn write_to(&mut self, tiers: &[Source], sink: Sink) {
        self.metrics.log = Log::new(tiers, Some(sink));
    }

    /// Continue with a part of the preparation, or by `steps` steps of training (at least 1) within an epoch.
    pub fn advance(&mut self, steps: u64) -> Progress {
        if !self.is_prepared() {
            self.prepared = Some(self.driver.prepare(&self.setup, &mut self.metrics));
            return self.progress();
        }
        for _ in 0..steps.max(1) {
            if self.is_finished() || !self.take_step() {
                break;
            }
        }
        self.progress()
    }

    /// The policy of the run.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Progress so far.
    pub fn progress(&self) -> Progress {
        if self.is_finished() {
            return Progress::Finished;
        }
        if !self.is_prepared() {
            let (done, of) = self.prepared.unwrap_or((0, 1));
            return Progress::Preparing { done, of };
        }
        let of = u64::from(self.setup.epochs.count) * self.setup.epochs.steps as u64;
        Progress::Training { done: self.clock.ends.len() as u64, of }
    }

    /// The results so far; those of the whole run if it is finished.
    pub fn report(&self) -> Report {
        let trained = self.clock.free.iter().copied().fold(0.0, f64::max);
        let times = Times {
            init: self.driver.init(),
            trained,
            behind: self.clock.free.iter().map(|free| trained - free).sum(),
            finished: self.is_finished(),
        };
        let options = &self.setup.scenario.options;
        self.metrics.report(
            self.policy,
            options.compat,
            self.setup.scenario.cluster.ranks,
            times,
            self.driver.pushes(),
        )
    }

    fn is_prepared(&self) -> bool {
        self.prepared.is_some_and(|(done, of)| done == of)
    }

    fn is_finished(&self) -> bool {
        self.epoch == self.setup.epochs.count
    }

    /// Take a step; return `false` if it ends an epoch.
    fn take_step(&mut self) -> bool {
        let Self { setup, driver, metrics, clock, list, epoch, step, .. } = self;
        let epochs = &setup.epochs;
        if *step == 0 {
            if driver.needs_order() {
                epochs.fill(*epoch, list);
            } else {
                list.resize(epochs.places, 0);
            }
            driver.begin_epoch(setup, list);
        }
        metrics.log.begin_step(*epoch, *step, driver.init());
        let ids = &mut list[epochs.step(*step)];
        driver.step(&mut StepNow { setup, epoch: *epoch, step: *step, ids, clock, metrics });
        let end = clock.free.iter().copied().fold(0.0, f64::max);
        if setup.scenario.options.barrier {
            for free in &mut clock.free {
                metrics.barrier += end - *free;
                *free = end;
            }
        }
        clock.ends.push(end);
        driver.end_step(clock);
        *step += 1;
        if *step < epochs.steps {
            return true;
        }
        metrics.end_epoch(end);
        (*epoch, *step) = (*epoch + 1, 0);
        false
    }
}
