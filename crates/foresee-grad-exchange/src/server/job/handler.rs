// SPDX-License-Identifier: Apache-2.0
//! Handler of one rank's control connection: reports its messages and its end to the session.

use std::sync::Arc;

use foresee_grad_session::Peer;
use foresee_wire::{Fault, Message};

use super::Job;
use crate::control::{ControlEnd, ControlHandler};
use crate::translate;

pub(super) struct RankHandler {
    pub(super) job: Arc<Job>,
    pub(super) peer: Peer,
}

impl ControlHandler for RankHandler {
    fn on_message(&mut self, message: Message) -> Result<(), Fault> {
        let peer = self.peer;
        match translate::rank_message(message) {
            Ok(message) => self.job.report(|session, _| session.handle_message(peer, message)),
            Err(kind) => {
                let why = format!("rank {} sends {kind}, which is not for servers", peer.rank);
                self.job.report(|session, _| session.handle_violation(peer, &why));
            }
        }
        // If there is a reason, the session closes the connection.
        Ok(())
    }

    fn on_end(&mut self, end: ControlEnd) {
        let closed = translate::closed(end);
        self.job.report(|session, now| session.handle_closed(self.peer, closed, now));
    }
}
