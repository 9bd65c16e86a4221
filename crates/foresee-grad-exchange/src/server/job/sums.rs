// SPDX-License-Identifier: Apache-2.0
//! Pushes of a rank, from its data connection into the sums: one thread per rank, which waits while there is no space.
//!
//! A packet that the plan does not allow ends the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use foresee_grad_queue::{Buffer, QueueError};
use foresee_grad_session::Peer;
use foresee_wire::{Ack, Header, Kind, Message, WireError};

use super::Job;
use crate::interface::PacketReceiver;
use crate::server::slot_table::PushAdmission;
use crate::sync::lock;

const ENDED: &str = "its data connection ended";

impl Job {
    /// Read a rank's pushes until its connection ends or was replaced (`is_gone`).
    pub(super) fn read(self: &Arc<Self>, peer: Peer, mut receiver: PacketReceiver, is_gone: &AtomicBool) {
        match self.sum(peer, &mut receiver, is_gone) {
            // With nothing in flight, no other thread would notice the end.
            Ok(()) if !is_gone.load(Ordering::Relaxed) => {
                self.report(|session, now| session.handle_data_closed(peer, ENDED, false, now));
            }
            Ok(()) => {}
            Err(why) => self.report(|session, _| session.handle_violation(peer, &why)),
        }
    }

    /// # Errors
    /// The description of a packet that the plan does not allow, or of bytes that are no frame.
    fn sum(
        self: &Arc<Self>,
        peer: Peer,
        receiver: &mut PacketReceiver,
        is_gone: &AtomicBool,
    ) -> Result<(), String> {
        let mut payload = Buffer::default();
        let text = |why: QueueError| why.to_string();
        while let Some(Some(header)) = check_read(receiver.header())? {
            // The rank repeats the rest over its next connection.
            if is_gone.load(Ordering::Relaxed) {
                return Ok(());
            }
            let slots = lock(&self.state).slots.clone();
            let Some(slots) = slots.filter(|_| header.kind == Kind::Push) else {
                let why = format!("it sends {} before a plan was agreed on", header.kind);
                self.report(|session, _| session.handle_lost(peer, &why));
                return Ok(());
            };
            let is_connected = || !is_gone.load(Ordering::Relaxed);
            match slots.admit(peer.rank, &header, is_connected).map_err(text)? {
                PushAdmission::Read(admission) => {
                    payload.resize(admission.bytes());
                    if check_read(receiver.payload(payload.bytes_mut()))?.is_none() {
                        return Ok(());
                    }
                    slots.add(peer.rank, &header, admission, &mut payload).map_err(text)?;
                }
                PushAdmission::Discard => {
                    if check_read(receiver.discard())?.is_none() {
                        return Ok(());
                    }
                }
            }
            // A discarded packet took credit, too.
            if self.context.options.policy.push().credit.is_some() {
                self.acknowledge(peer, &header);
            }
        }
        Ok(())
    }

    /// Acknowledge a packet, which frees its credit. Only schedules with a credit wait for it.
    fn acknowledge(&self, peer: Peer, header: &Header) {
        if let Some(control) = lock(&self.state).control(peer) {
            let round = u64::from(header.round);
            control.send(Message::Ack(Ack { round, tensor: header.tensor, partition: header.packet }));
        }
    }
}

/// The result of a read; `None` at the connection's end, whose cause the control connection reports. Bytes that are no
/// frame are an error: nothing behind them can be read, and their sender would wait forever.
fn check_read<T>(read: Result<T, WireError>) -> Result<Option<T>, String> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(why @ WireError::Malformed { .. }) => Err(why.to_string()),
        Err(_) => Ok(None),
    }
}
