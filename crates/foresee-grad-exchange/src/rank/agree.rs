// SPDX-License-Identifier: Apache-2.0
//! Calls that agree on a plan: the machine proposes and compares answers, here is the memory of the plan.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, MutexGuard, PoisonError};

use foresee_grad_queue::{Pattern, Plan, PlanConfig, QueueError, TensorId, TensorSpec};
use foresee_units::BytesPerSecond;

use super::landing::Landing;
use super::state::{PlanMemory, State};
use super::{Exchange, ExchangeError};
use crate::interface::{Interface, InterfaceStats};
use crate::options::RankOptions;

impl Exchange {
    /// Makes these tensors the plan of all coming rounds, which are counted from 0 again. Every rank calls it, with
    /// nothing under way; where order, classes or packet sizes differ, rank 0's count. Returns what was agreed. Tensors
    /// keep their numbers in this rank's own list: calls name a tensor by its place in `tensors`.
    ///
    /// Unless the options say otherwise, packets have the size that suits what the slowest interface has delivered so
    /// far: what is agreed on before anything was sent may be cut too coarsely or too finely.
    ///
    /// # Errors
    /// [`ExchangeError::Disagree`] names the first tensor that differs, and both ranks.
    pub fn agree(&self, tensors: Vec<TensorSpec>) -> Result<Arc<Plan>, ExchangeError> {
        self.agree_over(tensors, |plan| {
            let own = |tensor| Landing::new(landing_bytes(plan, TensorId(tensor)));
            Ok((0..plan.tensors()).map(own).collect())
        })
    }

    /// [`agree`](Self::agree), and averages land in this memory.
    pub(crate) fn agree_over(
        &self,
        tensors: Vec<TensorSpec>,
        memory: impl FnOnce(&Plan) -> Result<Vec<Arc<Landing>>, ExchangeError>,
    ) -> Result<Arc<Plan>, ExchangeError> {
        let packet = self.core.options.packet(self.slowest());
        let proposal = Plan::new(self.config(packet)?, tensors)?;
        // What was waited for has landed; that servers know so may take a moment longer.
        let mut state = self.until(|state| state.machine.is_quiet().then_some(()))?.0;
        state.machine.handle_proposal(&proposal.encode());
        self.core.settle(&mut state);
        drop(state);
        // As long as ranks take to come.
        let (state, known) = self.until(|state| state.machine.first_answer())?;
        drop(state);
        let plan = Arc::new(Plan::decode(&known.1)?);
        let ids = plan.align(&proposal).map_err(QueueError::PlansDiffer)?;
        let (flow, landings) = (Interface::flow_of(&self.core.options.job), memory(&plan)?);
        // All at one moment: what a server has answered that is lost meanwhile, the next one answers again.
        let (mut state, agreed) = self.until(|state| state.machine.poll_agreement(&known))?;
        agreed.map_err(|failure| self.core.error(failure))?;
        for interface in state.interfaces() {
            interface.packet(packet);
        }
        state.machine.install(Arc::clone(&plan), known.0);
        let memory = PlanMemory { plan: Arc::clone(&plan), ids, landings, flow, retained: BTreeMap::new() };
        state.memory = Some(memory);
        self.core.settle(&mut state);
        Ok(plan)
    }

    /// Waits until there is an answer, for as long as the exchange goes on.
    fn until<T>(
        &self,
        answer: impl Fn(&State) -> Option<T>,
    ) -> Result<(MutexGuard<'_, State>, T), ExchangeError> {
        let mut state = self.core.lock();
        loop {
            state.check()?;
            if let Some(answer) = answer(&state) {
                return Ok((state, answer));
            }
            state = self.core.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What this rank proposes besides its tensors.
    fn config(&self, packet: NonZeroU32) -> Result<PlanConfig, ExchangeError> {
        let RankOptions { servers, shares, policy, wire, .. } = &self.core.options;
        let pattern =
            if shares.is_empty() { Pattern::new(&vec![1; servers.len()]) } else { Pattern::new(shares) };
        Ok(PlanConfig { packet_bytes: policy.packet_bytes(packet).get(), wire: *wire, pattern: pattern? })
    }

    /// What the slowest interface was seen to deliver, of those that reach other machines if any does.
    fn slowest(&self) -> Option<BytesPerSecond> {
        let interfaces = self.core.lock().interfaces();
        let all: Vec<_> = interfaces.iter().map(Interface::stats).collect();
        let rates = InterfaceStats::of_network(&all).into_iter().map(|interface| interface.rate);
        rates.filter(|rate| *rate > 0).min().map(BytesPerSecond::new)
    }
}

/// Bytes of a tensor, as wide as the model has it.
fn landing_bytes(plan: &Plan, tensor: TensorId) -> usize {
    let spec = plan.tensor(tensor).expect("it is below the plan's tensors");
    let bytes = plan.elements(tensor).unwrap_or(0) * spec.dtype.bytes() as u64;
    usize::try_from(bytes).expect("the plan was proposed by somebody who has it in memory")
}
