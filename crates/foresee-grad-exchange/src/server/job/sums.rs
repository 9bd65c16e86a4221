// SPDX-License-Identifier: Apache-2.0
//! Pushes of a rank, from its data connection into the sums: one thread per rank, which waits where there is no space.
//!
//! The session judges and sums. A packet that the plan does not allow ends the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use foresee_grad_queue::{Buffer, QueueError};
use foresee_grad_session::Peer;
use foresee_wire::{Ack, Header, Kind, Message, WireError};

use super::Job;
use crate::interface::PacketReceiver;
use crate::server::session::{Judged, lock};

const ENDED: &str = "its data connection ended";

impl Job {
    /// Reads what a rank pushes, until its connection ends or is `gone`: of no more use.
    pub(super) fn read(self: &Arc<Self>, peer: Peer, mut receiver: PacketReceiver, gone: &AtomicBool) {
        match self.sum(peer, &mut receiver, gone) {
            // It may have ended by itself, with nothing on its way that would tell its control connection.
            Ok(()) if !gone.load(Ordering::Relaxed) => {
                self.report(|machine, now| machine.handle_data_closed(peer, ENDED, false, now));
            }
            Ok(()) => {}
            Err(why) => self.report(|machine, _| machine.handle_violation(peer, &why)),
        }
    }

    /// # Errors
    /// In words: what the plan does not allow, or what is no frame.
    fn sum(
        self: &Arc<Self>,
        peer: Peer,
        receiver: &mut PacketReceiver,
        gone: &AtomicBool,
    ) -> Result<(), String> {
        let mut room = Buffer::default();
        let words = |why: QueueError| why.to_string();
        while let Some(Some(header)) = understood(receiver.header())? {
            // What is left in it the rank says again over the next one.
            if gone.load(Ordering::Relaxed) {
                return Ok(());
            }
            let session = lock(&self.state).session.clone();
            let Some(session) = session.filter(|_| header.kind == Kind::Push) else {
                let why = format!("it sends {} before a plan was agreed on", header.kind);
                self.report(|machine, _| machine.handle_lost(peer, &why));
                return Ok(());
            };
            let alive = || !gone.load(Ordering::Relaxed);
            match session.judge(peer.rank, &header, alive).map_err(words)? {
                Judged::Read(admission) => {
                    room.make(admission.bytes());
                    if understood(receiver.payload(room.bytes_mut()))?.is_none() {
                        return Ok(());
                    }
                    session.take(peer.rank, &header, admission, &mut room).map_err(words)?;
                }
                Judged::Discard => {
                    if understood(receiver.discard())?.is_none() {
                        return Ok(());
                    }
                }
            }
            // Also of what did not count: it took credit to be sent.
            if self.hall.options.policy.push().credit.is_some() {
                self.acknowledge(peer, &header);
            }
        }
        Ok(())
    }

    /// Tells a rank that a partition has come: its credit is free again. Only schedules with a credit wait for it.
    fn acknowledge(&self, peer: Peer, header: &Header) {
        if let Some(control) = lock(&self.state).control(peer) {
            let round = u64::from(header.round);
            control.tell(Message::Ack(Ack { round, tensor: header.tensor, partition: header.packet }));
        }
    }
}

/// What was read; `None` at the connection's end, of which the control connection is told more. What is no frame is seen
/// here alone: nothing behind it can be read, and whoever sent it would wait for ever.
fn understood<T>(read: Result<T, WireError>) -> Result<Option<T>, String> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(why @ WireError::Malformed { .. }) => Err(why.to_string()),
        Err(_) => Ok(None),
    }
}
