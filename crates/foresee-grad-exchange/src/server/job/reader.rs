// SPDX-License-Identifier: Apache-2.0
//! Reader of one rank's control connection: reports its messages and its end to the machine.

use std::sync::Arc;

use foresee_grad_session::Peer;
use foresee_wire::{Fault, Message};

use super::Job;
use crate::control::{Ear, End};
use crate::translate;

pub(super) struct ControlReader {
    pub(super) job: Arc<Job>,
    pub(super) peer: Peer,
}

impl Ear for ControlReader {
    fn hear(&mut self, message: Message) -> Result<(), Fault> {
        let peer = self.peer;
        match translate::rank_message(message) {
            Ok(message) => self.job.report(|machine, _| machine.handle_message(peer, message)),
            Err(kind) => {
                let why = format!("rank {} sends {kind}, which is not for servers", peer.rank);
                self.job.report(|machine, _| machine.handle_violation(peer, &why));
            }
        }
        // The machine closes the connection where there is a reason to.
        Ok(())
    }

    fn ended(&mut self, end: End) {
        let closed = translate::closed(end);
        self.job.report(|machine, now| machine.handle_closed(self.peer, closed, now));
    }
}
