// SPDX-License-Identifier: Apache-2.0
//! Agreement on a plan: the session proposes and compares answers, this file makes the plan's memory.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, MutexGuard};

use foresee_grad_queue::{Pattern, Plan, PlanConfig, QueueError, TensorSpec};
use foresee_units::BytesPerSecond;

use super::receive_buffer::ReceiveBuffer;
use super::state::{PlanMemory, RankState};
use super::{ExchangeError, ServerExchange};
use crate::interface::{Interface, InterfaceStats};
use crate::options::RankOptions;
use crate::sync::wait;

impl ServerExchange {
    /// [`agree`](crate::GradientExchange::agree), with `buffers` to receive averages in.
    pub(crate) fn agree_with_buffers(
        &self,
        tensors: Vec<TensorSpec>,
        buffers: impl FnOnce(&Plan) -> Result<Vec<Arc<ReceiveBuffer>>, ExchangeError>,
    ) -> Result<Arc<Plan>, ExchangeError> {
        let packet = self.core.options.packet(self.slowest_rate());
        let proposal = Plan::new(self.config(packet)?, tensors)?;
        // Everything was received; servers may need a moment longer to know it.
        let mut state = self.wait_for(|state| state.session.is_quiet().then_some(()))?.0;
        state.session.handle_proposal(&proposal.encode());
        self.core.perform_actions(&mut state);
        drop(state);
        // This takes until the last rank has proposed.
        let (state, known) = self.wait_for(|state| state.session.first_answer())?;
        drop(state);
        let plan = Arc::new(Plan::decode(&known.1)?);
        let ids = plan.align(&proposal).map_err(QueueError::PlansDiffer)?;
        let (flow, buffers) = (Interface::flow_of(&self.core.options.job), buffers(&plan)?);
        // All answers at one moment: the replacement of a server that is lost meanwhile answers again.
        let (mut state, agreed) = self.wait_for(|state| state.session.poll_agreement(&known))?;
        agreed.map_err(|failure| self.core.error(failure))?;
        for interface in state.interfaces() {
            interface.set_packet_bytes(packet);
        }
        state.session.install(Arc::clone(&plan), known.0);
        let memory = PlanMemory { plan: Arc::clone(&plan), ids, buffers, flow, retained: BTreeMap::new() };
        state.memory = Some(memory);
        self.core.perform_actions(&mut state);
        Ok(plan)
    }

    /// Wait until `poll` returns an answer, as long as the exchange continues.
    fn wait_for<T>(
        &self,
        poll: impl Fn(&RankState) -> Option<T>,
    ) -> Result<(MutexGuard<'_, RankState>, T), ExchangeError> {
        let mut state = self.core.lock();
        loop {
            state.check()?;
            if let Some(answer) = poll(&state) {
                return Ok((state, answer));
            }
            state = wait(&self.core.changed, state);
        }
    }

    /// The proposal without its tensors.
    fn config(&self, packet: NonZeroU32) -> Result<PlanConfig, ExchangeError> {
        let RankOptions { servers, shares, policy, wire, .. } = &self.core.options;
        let pattern =
            if shares.is_empty() { Pattern::new(&vec![1; servers.len()]) } else { Pattern::new(shares) };
        Ok(PlanConfig { packet_bytes: policy.packet_bytes(packet).get(), wire: *wire, pattern: pattern? })
    }

    /// The rate that the slowest interface has delivered; of those that reach other nodes, if any does.
    fn slowest_rate(&self) -> Option<BytesPerSecond> {
        let interfaces = self.core.lock().interfaces();
        let all: Vec<_> = interfaces.iter().map(Interface::stats).collect();
        let rates = InterfaceStats::of_network(&all).into_iter().map(|interface| interface.rate);
        rates.filter(|rate| *rate > 0).min().map(BytesPerSecond::new)
    }
}
