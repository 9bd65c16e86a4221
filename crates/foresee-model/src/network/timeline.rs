// SPDX-License-Identifier: Apache-2.0
//! Times at which each tensor is ready, pushed, pulled and used: the policies as rules, simulated tensor by
//! tensor.
//!
//! It is separate from `closed`, which computes only the end of the last forward, and checks it. Packets are
//! infinitely small, as in the paper: a tensor of a packet policy is pulled while it is pushed.

use super::{Compat, GradientStep, Link, Policy};
use crate::ModelError;

/// An interval in which a link carries only one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// The layer, counted from 0 in order of first use.
    pub layer: usize,
    /// In seconds since the backward pass began.
    pub start: f64,
    /// In seconds since the backward pass began; after `start`.
    pub end: f64,
}

/// A simulated step: for each layer, in order of first use, when it is ready, pushed, pulled and used.
///
/// All times are seconds since the backward pass began. `backward`, `push`, `pull` and `forward` have one entry
/// per layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// End of each layer's backward: its gradient is ready.
    pub backward: Vec<f64>,
    /// End of its push: the servers have all of its bytes.
    pub push: Vec<f64>,
    /// End of its pull: the average was received.
    pub pull: Vec<f64>,
    /// End of its next forward, which follows its update.
    pub forward: Vec<f64>,
    /// Transfers on the uplink, in order of time. An interrupted tensor has several entries, one without bytes
    /// has none.
    pub uplink: Vec<Transfer>,
    /// Transfers on the downlink, in order of time; they overlap only for `FifoTensor(Paper)`.
    pub downlink: Vec<Transfer>,
}

impl Timeline {
    /// Time of the step: when the last layer's forward ends.
    pub fn time(&self) -> f64 {
        self.forward.last().copied().unwrap_or(0.0)
    }
}

impl GradientStep {
    /// Simulate one step under `policy`: equations (3) to (8) and Algorithm 1 of the paper, corrected. O(layers).
    ///
    /// Its [`Timeline::time`] equals [`time`](Self::time) up to rounding.
    ///
    /// # Errors
    /// As [`time`](Self::time).
    /// # Examples
    /// ```
    /// # use foresee_model::{GradientStep, Layer, Link, Policy};
    /// # use foresee_units::Bytes;
    /// let layer = |bytes| Layer { bytes: Bytes::new(bytes), backward: 2.0, forward: 1.0, update: 0.0 };
    /// let step = GradientStep::new([1, 4, 3].map(layer))?;
    /// let timeline = step.timeline(Policy::Mercury, Link::new(1.0, 1.0)?)?;
    /// assert_eq!(timeline.pull, [7.0, 9.0, 10.0]); // the last layer's was ready first, and waited
    /// assert_eq!(timeline.forward, [8.0, 10.0, 11.0]);
    /// # Ok::<(), foresee_model::ModelError>(())
    /// ```
    pub fn timeline(&self, policy: Policy, link: Link) -> Result<Timeline, ModelError> {
        let rate = self.checked_rate(link)?;
        let none = vec![0.0; self.layers().len()];
        let mut timeline = Timeline {
            backward: self.ready.clone(),
            push: none.clone(),
            pull: none.clone(),
            forward: none,
            uplink: Vec::new(),
            downlink: Vec::new(),
        };
        match policy {
            Policy::Oracle => {
                timeline.push.clone_from(&self.ready);
                timeline.pull.clone_from(&self.ready);
            }
            Policy::Mercury | Policy::Barrier => self.send_packets(&mut timeline, rate, true),
            Policy::FifoPacket => self.send_packets(&mut timeline, rate, false),
            Policy::FifoTensor(compat) => self.send_tensors(&mut timeline, rate, compat),
        }
        self.run_forward(&mut timeline, policy == Policy::Barrier);
        Ok(timeline)
    }

    /// Algorithm 1. With `urgent_first` the layer used first goes first, without it the one that was ready first.
    ///
    /// Layers become ready last first, so the waiting layer that is used first is always the newest: the paper's
    /// search for it takes the end of a queue.
    fn send_packets(&self, timeline: &mut Timeline, rate: f64, urgent_first: bool) {
        let mut left: Vec<f64> = (0..self.layers().len()).map(|l| self.one_way(l, rate)).collect();
        let mut waiting = std::collections::VecDeque::new();
        for l in (0..self.layers().len()).rev() {
            let mut now = self.ready[l];
            waiting.push_back(l);
            // Until the next layer is ready; no layer follows the first one.
            let mut idle = if l == 0 { f64::INFINITY } else { self.layers()[l - 1].backward };
            while idle > 0.0 {
                let next = if urgent_first { waiting.back() } else { waiting.front() };
                let Some(&j) = next else { break };
                let start = now;
                if idle >= left[j] {
                    idle -= left[j];
                    now += left[j];
                    left[j] = 0.0;
                    if urgent_first {
                        waiting.pop_back()
                    } else {
                        waiting.pop_front()
                    };
                    timeline.push[j] = now;
                } else {
                    left[j] -= idle;
                    now += idle;
                    idle = 0.0;
                }
                append_transfer(&mut timeline.uplink, Transfer { layer: j, start, end: now });
            }
        }
        timeline.pull.clone_from(&timeline.push);
        timeline.downlink.clone_from(&timeline.uplink);
    }

    /// Equations (6) and (7): whole tensors in the order in which they become ready.
    fn send_tensors(&self, timeline: &mut Timeline, rate: f64, compat: Compat) {
        let (mut uplink_free, mut downlink_free) = (0.0_f64, 0.0_f64);
        for l in (0..self.layers().len()).rev() {
            let duration = self.one_way(l, rate);
            let start = uplink_free.max(self.ready[l]);
            uplink_free = start + duration;
            timeline.push[l] = uplink_free;
            append_transfer(&mut timeline.uplink, Transfer { layer: l, start, end: uplink_free });
            let start = match compat {
                Compat::Physical => uplink_free.max(downlink_free),
                Compat::Paper => uplink_free,
            };
            downlink_free = start + duration;
            timeline.pull[l] = downlink_free;
            append_transfer(&mut timeline.downlink, Transfer { layer: l, start, end: downlink_free });
        }
    }

    /// Equations (4) and (5): each layer's update and forward, after it was received and the previous layer is
    /// done.
    fn run_forward(&self, timeline: &mut Timeline, barrier: bool) {
        let mut now = if barrier { timeline.pull.iter().copied().fold(0.0, f64::max) } else { self.ready[0] };
        for (l, layer) in self.layers().iter().enumerate() {
            now = now.max(timeline.pull[l]) + layer.update + layer.forward;
            timeline.forward[l] = now;
        }
    }
}

/// Add a transfer, or extend the previous one if it continues it.
fn append_transfer(link: &mut Vec<Transfer>, transfer: Transfer) {
    if transfer.end <= transfer.start {
        return;
    }
    match link.last_mut() {
        Some(last) if last.layer == transfer.layer && transfer.start <= last.end => last.end = transfer.end,
        _ => link.push(transfer),
    }
}
