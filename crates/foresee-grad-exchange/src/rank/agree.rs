// SPDX-License-Identifier: Apache-2.0
//! How a rank and all others come to one plan: propose, hear, install.
//!
//! The first server compares what ranks propose; the others are told what came of it. Refuses to compare by itself, and to
//! change a plan while anything of the last one is on its way.
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_grad_queue::{Collect, Pattern, Plan, PlanConfig, QueueError, Round, TensorId, TensorSpec};
use foresee_units::BytesPerSecond;
use foresee_wire::Message;

use super::keep::Kept;
use super::landing::Landing;
use super::state::Session;
use super::{Exchange, ExchangeError, FAREWELL};
use crate::interface::Interface;
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
        let servers = {
            let mut state = self.core.lock();
            loop {
                state.check()?;
                if state.session.as_ref().is_none_or(Session::is_quiet) {
                    break;
                }
                // What was waited for has landed; that servers know so may take a moment longer.
                let (Ok(again) | Err(again)) = self.core.wait_until(state, Instant::now() + FAREWELL);
                state = again;
            }
            let servers = state.ways.len();
            (state.answers, state.asked) = (vec![None; servers], vec![None; servers]);
            servers
        };
        // The first server compares what ranks propose; the others hear what came of it.
        self.propose(0, &proposal.encode());
        let (generation, agreed) = self.answer(0)?;
        for server in 1..servers {
            self.propose(server, &agreed);
        }
        let plan = Arc::new(Plan::decode(&agreed)?);
        let ids = plan.align(&proposal).map_err(QueueError::PlansDiffer)?;
        let session = self.session(&plan, ids, generation, memory(&plan)?);
        let mut state = self.core.lock();
        let patience = 2 * Duration::from(self.core.options.timeouts.timeout);
        let mut until = Instant::now() + patience;
        // All at one moment: what a server has answered that is lost meanwhile, the next one answers again.
        while let Some(server) = state.answers.iter().position(Option::is_none) {
            state.check()?;
            if !state.ways.are_open() {
                // A lost server has a time of its own to be replaced.
                until = Instant::now() + patience;
            }
            if Instant::now() > until {
                // All ranks have heard the first server's answer, and asked the others at once.
                let text = format!(
                    "server {server} at {} has not heard from every rank; pass the same servers in the same order on all",
                    self.core.options.servers[server]
                );
                return Err(ExchangeError::Disagree(text));
            }
            let (Ok(again) | Err(again)) = self.core.wait_until(state, Instant::now() + FAREWELL);
            state = again;
        }
        let known = Some((generation, agreed));
        if let Some(server) = state.answers.iter().position(|answer| *answer != known) {
            let text = format!(
                "server {server} agrees on another plan than server 0; start all servers of a job anew"
            );
            return Err(ExchangeError::Disagree(text));
        }
        for interface in state.ways.interfaces() {
            interface.packet(packet);
        }
        (state.answers, state.asked) = (vec![None; servers], vec![None; servers]);
        state.done_later.clear();
        state.membership.forget();
        state.session = Some(session);
        Ok(plan)
    }

    /// What this rank proposes besides its tensors.
    fn config(&self, packet: NonZeroU32) -> Result<PlanConfig, ExchangeError> {
        let RankOptions { servers, shares, policy, wire, .. } = &self.core.options;
        let pattern =
            if shares.is_empty() { Pattern::new(&vec![1; servers.len()]) } else { Pattern::new(shares) };
        Ok(PlanConfig { packet_bytes: policy.packet_bytes(packet).get(), wire: *wire, pattern: pattern? })
    }

    /// What the slowest interface was seen to deliver.
    fn slowest(&self) -> Option<BytesPerSecond> {
        let interfaces = self.core.lock().ways.interfaces();
        let rates = interfaces.iter().map(|interface| interface.stats().rate);
        rates.filter(|rate| *rate > 0).min().map(BytesPerSecond::new)
    }

    /// To a server that is lost it is proposed when somebody is back.
    fn propose(&self, server: usize, body: &[u8]) {
        let mut state = self.core.lock();
        state.asked[server] = Some(body.into());
        if let Some(way) = state.ways.iter().nth(server) {
            let body = body.to_vec();
            way.link.control.tell(Message::Plan(foresee_wire::Plan { generation: 0, body }));
        }
    }

    /// Waits for a server's answer: as long as ranks take to come.
    fn answer(&self, server: usize) -> Result<(u32, Arc<[u8]>), ExchangeError> {
        let mut state = self.core.lock();
        loop {
            state.check()?;
            if let Some(answer) = &state.answers[server] {
                return Ok(answer.clone());
            }
            let (Ok(again) | Err(again)) = self.core.wait_until(state, Instant::now() + FAREWELL);
            state = again;
        }
    }

    fn session(
        &self,
        plan: &Arc<Plan>,
        ids: Vec<TensorId>,
        generation: u32,
        landings: Vec<Arc<Landing>>,
    ) -> Session {
        Session {
            plan: Arc::clone(plan),
            ids,
            collect: Collect::new(Arc::clone(plan), self.rank(), generation, Round(0)),
            landings,
            flow: Interface::flow_of(&self.core.options.job),
            used: VecDeque::new(),
            kept: Kept::default(),
        }
    }
}

/// Bytes of a tensor, as wide as the model has it.
fn landing_bytes(plan: &Plan, tensor: TensorId) -> usize {
    let spec = plan.tensor(tensor).expect("it is below the plan's tensors");
    let bytes = plan.elements(tensor).unwrap_or(0) * spec.dtype.bytes() as u64;
    usize::try_from(bytes).expect("the plan was proposed by somebody who has it in memory")
}
