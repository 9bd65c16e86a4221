// SPDX-License-Identifier: Apache-2.0
//! Step time in closed form: sums and running maxima, one pass over the layers.
//!
//! It is separate from `timeline`, which simulates each policy's rule and must agree. The paper calls the time
//! under Mercury "hard to express"; it is the longest of these chains, for `ready`, `rest` as [`GradientStep`]
//! sums them and `S` bytes:
//!
//! | policy | `time` is the largest of |
//! |---|---|
//! | `Oracle` | `ready[1] + rest[1]` |
//! | `Mercury` | `ready[l] + S[1..=l] / B + rest[l]` |
//! | `FifoPacket` | `ready[k] + S[l..=k] / B + rest[l]`, `l <= k` |
//! | `FifoTensor(Paper)` | `ready[k] + (S[l..=k] + S[l]) / B + rest[l]`, `l <= k` |
//! | `FifoTensor(Physical)` | `ready[k] + (S[j..=k] + S[l..=j]) / B + rest[l]`, `l <= j <= k` |
//! | `Barrier` | `ready[k] + S[1..=k] / B + rest[1]` |
//!
//! Mercury's form is exact: layer `l` arrives no later than by its chain, because only the layers `1..=l` precede
//! it, and they have at most those bytes. A layer that is ready too late to delay `l` has a longer chain of its
//! own: it starts later, and more compute follows it.

use super::{Compat, GradientStep, Link, Policy};
use crate::ModelError;
use crate::number::as_f64;

/// One chain of waits: `fixed + bytes / B` seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Chain {
    /// Seconds of compute.
    pub(super) fixed: f64,
    /// Bytes that travel in one direction, one after the other.
    pub(super) bytes: f64,
}

impl GradientStep {
    /// Time of one step under `policy`, in seconds, by its closed form. O(layers).
    ///
    /// From the start of the backward pass to the end of the next forward pass. Packets are infinitely small and
    /// sums are free: real packets arrive later, by at most [`packet_delay`](super::packet_delay).
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] if the link is so slow that the time is not finite.
    pub fn time(&self, policy: Policy, link: Link) -> Result<f64, ModelError> {
        let rate = self.checked_rate(link)?;
        let longest = self.longest(policy, rate);
        Ok(longest.fixed + longest.bytes / rate)
    }

    /// The longest chain at `rate`; of equal ones the one that ends with the layer used first.
    pub(super) fn longest(&self, policy: Policy, rate: f64) -> Chain {
        match policy {
            Policy::Oracle => Chain { fixed: self.oracle(), bytes: 0.0 },
            Policy::Mercury => self.largest(rate, |l| self.chain(l, l, self.before[l + 1])),
            Policy::FifoPacket => self.longest_fifo(rate, |_| 0),
            // The pull of `l` follows alone.
            Policy::FifoTensor(Compat::Paper) => {
                self.longest_fifo(rate, |l| self.before[l + 1] - self.before[l])
            }
            Policy::FifoTensor(Compat::Physical) => self.longest_tensor(rate),
            Policy::Barrier => self.largest(rate, |k| self.chain(k, 0, self.before[k + 1])),
        }
    }

    /// The layers `k..` are sent in one busy period until `l` has arrived, and then `extra(l)` bytes.
    fn longest_fifo(&self, rate: f64, extra: impl Fn(usize) -> u64) -> Chain {
        let from = self.latest_from(rate);
        self.largest(rate, |l| self.chain(from[l], l, self.before[from[l] + 1] - self.before[l] + extra(l)))
    }

    /// Pushed in one busy period from `k` to `j`, then pulled in one from `j` to `l`; `j` travels in both
    /// directions.
    fn longest_tensor(&self, rate: f64) -> Chain {
        let from = self.latest_from(rate);
        let both = |j: usize| {
            let k = from[j];
            // Bytes pushed before the pull of `j` begins, if the layers down to 0 followed.
            self.ready[k] + as_f64(self.before[k + 1] + self.before[j + 1] - self.before[j]) / rate
        };
        let mut turn = self.layers().len() - 1;
        let mut turns = vec![turn; self.layers().len()];
        for j in (0..turn).rev() {
            if both(j) >= both(turn) {
                turn = j;
            }
            turns[j] = turn;
        }
        self.largest(rate, |l| {
            let j = turns[l];
            let k = from[j];
            let pushed = self.before[k + 1] - self.before[j];
            let pulled = self.before[j + 1] - self.before[l];
            self.chain(k, l, pushed + pulled)
        })
    }

    /// For each layer the start of the busy period that its push ends: the `k >= l` that makes
    /// `ready[k] + S[1..=k] / rate` largest.
    fn latest_from(&self, rate: f64) -> Vec<usize> {
        let end = |k: usize| self.ready[k] + as_f64(self.before[k + 1]) / rate;
        let mut latest = self.layers().len() - 1;
        let mut from = vec![latest; self.layers().len()];
        for k in (0..latest).rev() {
            if end(k) >= end(latest) {
                latest = k;
            }
            from[k] = latest;
        }
        from
    }

    fn chain(&self, ready: usize, rest: usize, bytes: u64) -> Chain {
        Chain { fixed: self.ready[ready] + self.rest[rest], bytes: as_f64(bytes) }
    }

    fn largest(&self, rate: f64, chain: impl Fn(usize) -> Chain) -> Chain {
        let mut largest = chain(0);
        for l in 1..self.layers().len() {
            let next = chain(l);
            if next.fixed + next.bytes / rate > largest.fixed + largest.bytes / rate {
                largest = next;
            }
        }
        largest
    }
}
