// SPDX-License-Identifier: Apache-2.0
//! The minimum of bandwidth that retains a given fraction of the speed.
//!
//! It inverts the results of `closed` without a search: a step's time is the largest of chains `fixed + bytes /
//! B`, so the answer is that of one chain, and is exact.

use super::closed::Chain;
use super::{GradientStep, Policy};
use crate::ModelError;
use crate::number::{as_f64, check};

/// The bandwidth that a goal needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RequiredBandwidth {
    /// This many bytes per second of one direction; 0 if any bandwidth suffices.
    AtLeast(f64),
    /// No bandwidth suffices.
    Infeasible {
        /// The requested goal.
        goal: f64,
        /// The limit for infinite bandwidth: 1.
        best: f64,
    },
}

impl RequiredBandwidth {
    /// The bandwidth, or `None` if none suffices.
    pub const fn bytes_per_second(self) -> Option<f64> {
        match self {
            Self::AtLeast(rate) => Some(rate),
            Self::Infeasible { .. } => None,
        }
    }
}

impl GradientStep {
    /// The minimum of bandwidth at which a step retains the fraction `goal` of its speed without a network.
    ///
    /// In bytes per second of one direction of a link with the given `efficiency`. The paper uses a `goal` of
    /// 0.99 for most models, and 0.9 for BERT. For each chain `fixed + bytes / B` the answer is `bytes / (oracle
    /// / goal - fixed)`, and the largest over the policy's chains is the result. A few passes find it: the answer
    /// to one chain is tried, and replaced by that of the chain that is longest there.
    ///
    /// A goal of 1 is [`Infeasible`](RequiredBandwidth::Infeasible) as soon as a byte has to travel after the
    /// backward pass, which is so unless the layers used first have none; a goal above 1 always is.
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] for a `goal` that is not finite or not above 0, and for an `efficiency`
    /// outside (0, 1].
    /// # Examples
    /// ```
    /// # use foresee_model::{Compat, GradientStep, Layer, Policy};
    /// # use foresee_units::Bytes;
    /// let layer = |bytes| Layer { bytes: Bytes::new(bytes), backward: 2.0, forward: 1.0, update: 0.0 };
    /// let step = GradientStep::new([1, 4, 3].map(layer))?;
    /// let need = |policy| step.required_bandwidth(policy, 0.75, 1.0).map(|need| need.bytes_per_second());
    /// assert_eq!(need(Policy::Mercury)?, Some(8.0 / 9.0)); // 8 bytes in 12 - 3 seconds
    /// assert_eq!(need(Policy::FifoTensor(Compat::Physical))?, Some(1.8)); // 9 bytes in 12 - 7
    /// # Ok::<(), foresee_model::ModelError>(())
    /// ```
    pub fn required_bandwidth(
        &self,
        policy: Policy,
        goal: f64,
        efficiency: f64,
    ) -> Result<RequiredBandwidth, ModelError> {
        check(goal.is_finite() && goal > 0.0, "goal", goal, "finite and above 0")?;
        super::link::check_share("efficiency", efficiency)?;
        let infeasible = RequiredBandwidth::Infeasible { goal, best: 1.0 };
        if goal > 1.0 {
            return Ok(infeasible);
        }
        if policy == Policy::Oracle || self.bytes().is_zero() {
            return Ok(RequiredBandwidth::AtLeast(0.0));
        }
        // A chain of Mercury's that exists under every policy, so its answer is a lower bound of the result.
        let mut chain = self.longest_if_slow();
        let mut need = 0.0;
        loop {
            let more = self.need_of(chain, goal);
            if more.is_infinite() {
                return Ok(infeasible);
            }
            // Each pass answers one more chain, and none twice.
            if more <= need {
                return Ok(RequiredBandwidth::AtLeast(need / efficiency));
            }
            need = more;
            chain = self.longest(policy, need);
        }
    }

    /// All bytes, after the last layer's backward and before its forward: Mercury's chain on a slow link.
    fn longest_if_slow(&self) -> Chain {
        let last = self.layers().len() - 1;
        Chain { fixed: self.ready[last] + self.rest[last], bytes: as_f64(self.bytes().get()) }
    }

    /// `bytes / (oracle / goal - fixed)`, in a form that loses no digits for a goal near 1 or 0.
    fn need_of(&self, chain: Chain, goal: f64) -> f64 {
        if chain.bytes > 0.0 {
            let slack = self.oracle() * (1.0 - goal) + goal * (self.oracle() - chain.fixed);
            chain.bytes * goal / slack
        } else {
            0.0
        }
    }
}
