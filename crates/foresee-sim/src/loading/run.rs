// SPDX-License-Identifier: Apache-2.0
//! A run of one policy, stepped by its caller, who may show progress and stop with what is done.
//!
//! Owns the clock of all ranks, the barrier between steps and the book. What happens inside a step is the driver's:
//! prefetching ranks, ranks that do one thing after the other, or nodes in front of a bucket. Refuses to run policies
//! side by side: runs share nothing, so that is the caller's affair.

use std::fmt;
use std::sync::Arc;

use foresee_model::{Compat, ModelError};

use super::data::Sizes;
use super::log::{Log, Sink};
use super::order::Epochs;
use super::policies;
use super::policy::Policy;
use super::rates::Rates;
use super::report::{Book, Report, Times};
use super::scenario::{Scenario, ScenarioError};
use foresee_units::Source;

/// What all of a run's parts look at and none changes.
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
    /// What is read, rank after rank; may be changed.
    pub(super) ids: &'a mut [u32],
    pub(super) clock: &'a mut Clock,
    pub(super) book: &'a mut Book,
}

/// Where each rank is in time.
#[derive(Debug)]
pub(super) struct Clock {
    /// By rank: when its consumer has nothing to do any more.
    pub(super) free: Vec<f64>,
    /// By step of the run: when the slowest rank ended it.
    pub(super) ends: Vec<f64>,
}

/// How a policy lets time pass.
pub(super) trait Driver: Send {
    /// Some of what is done before training; how much is done, and of how much. Done when they are equal.
    fn prepare(&mut self, _setup: &Setup, _book: &mut Book) -> (u64, u64) {
        (0, 0)
    }

    /// How long preparing takes the run, in its own time.
    fn init(&self) -> f64 {
        0.0
    }

    /// Whether it matters which ids an epoch's list has.
    fn needs_order(&self) -> bool {
        true
    }

    /// An epoch begins that reads `list`.
    fn begin_epoch(&mut self, _setup: &Setup, _list: &[u32]) {}

    /// All ranks take a step.
    fn step(&mut self, now: &mut StepNow<'_>);

    /// The step is over, and the clock's ends have it.
    fn end_step(&mut self, _clock: &Clock) {}
}

/// A policy that has no answer for a scenario; others still run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Which.
    pub policy: Policy,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is unsupported here: {}", self.policy, self.reason)
    }
}

/// Why a run cannot begin.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Nothing can be simulated.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A rate that no formula accepts.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// This policy cannot.
    #[error("{0}")]
    Unsupported(Unsupported),
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The policy places samples or plans; in parts of its own.
    Preparing {
        /// Parts done.
        done: u64,
        /// Parts in all.
        of: u64,
    },
    /// Training goes on, in steps of all ranks.
    Training {
        /// Steps done.
        done: u64,
        /// Steps of all epochs.
        of: u64,
    },
    /// Nothing is left.
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
    book: Book,
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
    /// A run at its start.
    ///
    /// # Errors
    /// [`RunError`]: the scenario is wrong, or the policy has no answer for it.
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
        let driver = policies::driver(policy, &setup, rates)
            .map_err(|reason| RunError::Unsupported(Unsupported { policy, reason }))?;
        let book = Book::new(scenario.cluster.tiers.len(), setup.sizes.len());
        let clock = Clock { free: vec![0.0; setup.epochs.ranks], ends: Vec::new() };
        let list = Vec::new();
        Ok(Self { setup, policy, driver, book, clock, list, prepared: None, epoch: 0, step: 0 })
    }

    /// Gives each read and each wait to `sink` as an entry of the ledger, from now on: before the first
    /// [`advance`](Self::advance) for all of the run. `tiers`: what the cluster's tiers are, the fastest first.
    pub fn write_to(&mut self, tiers: &[Source], sink: Sink) {
        self.book.log = Some(Log::new(tiers, sink));
    }

    /// Goes on: with a part of what is prepared, or by `steps` steps of training (1 at least) within an epoch.
    pub fn advance(&mut self, steps: u64) -> Progress {
        if !self.is_prepared() {
            self.prepared = Some(self.driver.prepare(&self.setup, &mut self.book));
            return self.progress();
        }
        for _ in 0..steps.max(1) {
            if self.is_finished() || !self.take_step() {
                break;
            }
        }
        self.progress()
    }

    /// The policy that runs.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// How far it is.
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

    /// What it has come to so far: the whole run, if it is finished.
    pub fn report(&self) -> Report {
        let trained = self.clock.free.iter().copied().fold(0.0, f64::max);
        let times = Times {
            init: self.driver.init(),
            trained,
            behind: self.clock.free.iter().map(|free| trained - free).sum(),
            finished: self.is_finished(),
        };
        let options = &self.setup.scenario.options;
        self.book.report(self.policy, options.compat, self.setup.scenario.cluster.ranks, times)
    }

    fn is_prepared(&self) -> bool {
        self.prepared.is_some_and(|(done, of)| done == of)
    }

    fn is_finished(&self) -> bool {
        self.epoch == self.setup.epochs.count
    }

    /// Takes a step; `false` where an epoch ends with it.
    fn take_step(&mut self) -> bool {
        let Self { setup, driver, book, clock, list, epoch, step, .. } = self;
        let epochs = &setup.epochs;
        if *step == 0 {
            if driver.needs_order() {
                epochs.fill(*epoch, list);
            } else {
                list.resize(epochs.places, 0);
            }
            driver.begin_epoch(setup, list);
        }
        if let Some(log) = &mut book.log {
            log.begin_step(*epoch, *step, driver.init());
        }
        let ids = &mut list[epochs.step(*step)];
        driver.step(&mut StepNow { setup, epoch: *epoch, step: *step, ids, clock, book });
        let end = clock.free.iter().copied().fold(0.0, f64::max);
        if setup.scenario.options.barrier {
            for free in &mut clock.free {
                book.barrier += end - *free;
                *free = end;
            }
        }
        clock.ends.push(end);
        driver.end_step(clock);
        *step += 1;
        if *step < epochs.steps {
            return true;
        }
        book.end_epoch(end);
        (*epoch, *step) = (*epoch + 1, 0);
        false
    }
}
