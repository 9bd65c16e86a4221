// SPDX-License-Identifier: Apache-2.0
//! What a job does with what a rank says over its control connection, and with its end.
//!
//! Refuses messages that are not for servers, and rounds before a plan.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use foresee_grad_queue::{QueueError, Round, Sender};
use foresee_units::Rank;
use foresee_wire::{Fault, FaultCode, Message};

use super::Job;
use crate::control::{Ear, End};

/// Hears the messages of one rank.
pub(super) struct RankEar {
    pub(super) job: Arc<Job>,
    pub(super) rank: Rank,
    /// Of the connections that it belongs to.
    pub(super) epoch: u32,
}

impl Ear for RankEar {
    fn hear(&mut self, message: Message) -> Result<(), Fault> {
        if !self.job.is_current(self.rank, self.epoch) {
            // The rank has come again, and says again what counts.
            return Ok(());
        }
        match self.take(message) {
            // Whoever has not heard yet that the job ends is about to, and has done nothing wrong.
            Err(_) if self.job.over.load(Ordering::Relaxed) => Ok(()),
            Err(fault) => {
                self.job.end(&fault);
                Err(fault)
            }
            Ok(()) => Ok(()),
        }
    }

    fn ended(&mut self, end: End) {
        let (job, rank, epoch) = (&self.job, self.rank, self.epoch);
        let lose = |why: &str| job.lose_if(rank, why, |seat| seat.epoch == epoch);
        match end {
            End::Bye(reason) => job.leave(rank, epoch, reason),
            End::Fault(fault) if job.survives => lose(&fault.to_string()),
            // It goes because another rank or server is lost: that is what the others are told.
            End::Fault(fault) if matches!(fault.code, FaultCode::Lost | FaultCode::Plan) => {
                if job.is_current(rank, epoch) {
                    job.end(&fault);
                }
            }
            End::Fault(fault) => lose(&fault.to_string()),
            End::Broken(why) if !why.is_silence() => job.break_off(rank, epoch, &why.to_string()),
            End::Broken(why) => lose(&why.to_string()),
            End::Silent(time) => lose(&format!("it was silent for {time}")),
        }
    }
}

impl RankEar {
    fn take(&self, message: Message) -> Result<(), Fault> {
        let (job, rank) = (&self.job, self.rank);
        let protocol = |why: QueueError| {
            let mut fault = Fault::new(FaultCode::Protocol, why.to_string());
            fault.rank = Some(rank.0);
            fault
        };
        match message {
            Message::Plan(plan) => {
                job.propose(rank, self.epoch, plan.body)?;
                job.check_left();
            }
            Message::RoundEnd(end) => {
                let Some((session, generation)) = job.spoken_under(rank, self.epoch)? else { return Ok(()) };
                let round = Round(end.round);
                job.act(session.end(Sender { rank, generation, round }, &end.absent).map_err(protocol)?);
                job.advance(rank, self.epoch, round);
                job.check_in_step()?;
                job.check_left();
            }
            Message::Got(got) => {
                let Some((session, generation)) = job.spoken_under(rank, self.epoch)? else { return Ok(()) };
                let round = Round(got.round);
                job.heard_of_landing(rank);
                job.act(session.got(Sender { rank, generation, round }).map_err(protocol)?);
            }
            Message::Lost(lost) if job.survives => job.accuse(&lost),
            Message::Known(known) if job.survives => job.know(rank, known),
            Message::Change(change) if job.survives => job.change(rank, &change)?,
            Message::Resume(known) => {
                job.hear_resume(rank, self.epoch, known)?;
                job.check_left();
            }
            other => {
                let text = format!("rank {rank} sends {}, which is not for servers", other.kind());
                return Err(Fault::new(FaultCode::Protocol, text));
            }
        }
        Ok(())
    }
}
