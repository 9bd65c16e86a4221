// SPDX-License-Identifier: Apache-2.0
//! Readers of one server: its sums and its messages.
//!
//! A payload is read into its receive buffer without a copy, unless it has to be widened.

use std::net::SocketAddr;
use std::sync::Arc;

use foresee_grad_queue::{Claim, Dtype, PacketId, Round, ServerId, TensorId, sum};
use foresee_grad_session::SumAdmission;
use foresee_units::Bytes;
use foresee_wire::{Ack, Fault, FaultCode, Header, Kind, Message, WireError};

use super::receive_buffer::ReceiveBuffer;
use super::state::PlanMemory;
use super::{ExchangeError, RankCore};
use crate::control::{ControlEnd, ControlHandler};
use crate::interface::PacketReceiver;
use crate::sync::wait;
use crate::timeline::EventKind;
use crate::translate;

/// Reader of one server's sums.
pub(super) struct SumReader {
    pub(super) core: Arc<RankCore>,
    pub(super) server: ServerId,
    /// The number of its pair of connections.
    pub(super) pair: u32,
    pub(super) receiver: PacketReceiver,
    pub(super) scratch: Vec<u8>,
}

/// The place of a packet in its receive buffer.
struct SumTarget {
    claim: Claim,
    round: Round,
    packet: PacketId,
    buffer: Arc<ReceiveBuffer>,
    offset: usize,
    length: usize,
    /// The narrower dtype of the wire and the factor by which the packet is widened.
    widen: Option<(Dtype, usize)>,
}

impl SumTarget {
    fn new(memory: &PlanMemory, claim: Claim, round: Round, packet: PacketId, header: &Header) -> Self {
        let tensor = packet.tensor;
        let spec = memory.plan.tensor(tensor).expect("the claim was checked against the plan");
        let wire = memory.plan.wire_dtype(tensor).expect("as above");
        let factor = spec.dtype.bytes() / wire.bytes();
        let offset = claim.offset().expect("a packet that is confirmed is not read");
        let offset = usize::try_from(offset).expect("it is in memory") * factor;
        let buffer = Arc::clone(&memory.buffers[tensor.0 as usize]);
        let widen = (wire != spec.dtype).then_some((wire, factor));
        Self { claim, round, packet, buffer, offset, length: header.length as usize, widen }
    }
}

impl SumReader {
    pub(super) fn run(mut self) {
        if let Err(why) = self.read() {
            let mut state = self.core.lock();
            let session = &state.session;
            if session.pair(self.server) == self.pair && !session.is_lost(self.server) {
                state.fail(why);
                drop(state);
                self.core.changed.notify_all();
            }
        }
    }

    fn read(&mut self) -> Result<(), ExchangeError> {
        loop {
            let header = self.receiver.header();
            let Some(header) = self.check_read(header)? else { return Ok(()) };
            let Some(header) = header else {
                // With nothing in flight, no other thread would notice the end.
                let why = WireError::Ended { peer: self.address() };
                self.core.data_closed(self.server, self.pair, &why);
                return Ok(());
            };
            if header.kind != Kind::Sum {
                return Err(self.unexpected(header.kind));
            }
            let read = match self.admit(&header)? {
                Some(target) => self.receive(target),
                None => self.receiver.discard(),
            };
            if self.check_read(read)?.is_none() {
                return Ok(());
            }
        }
    }

    /// The result of a read; `None` at the connection's end, even in the middle of a sum. The control connection usually
    /// reports the cause.
    fn check_read<T>(&self, read: Result<T, WireError>) -> Result<Option<T>, ExchangeError> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(why @ (WireError::Closed { .. } | WireError::Cut { .. } | WireError::Io { .. })) => {
                self.core.data_closed(self.server, self.pair, &why);
                Ok(None)
            }
            Err(why) => Err(ExchangeError::Server {
                server: self.server.0,
                address: self.address(),
                why: Arc::new(why),
            }),
        }
    }

    /// The target of a sum; `None`: it is to be discarded.
    fn admit(&self, header: &Header) -> Result<Option<SumTarget>, ExchangeError> {
        let mut guard = self.core.lock();
        let packet = PacketId { tensor: TensorId(header.tensor), packet: header.packet };
        loop {
            let state = &mut *guard;
            let (generation, round, bytes) = (header.generation, header.round, u64::from(header.length));
            let admission = state.session.handle_sum(self.server, generation, round, packet, bytes);
            self.core.perform_actions(state);
            match admission.map_err(|failure| self.core.error(failure))? {
                SumAdmission::Read(claim, round) => {
                    return Ok(Some(SumTarget::new(state.memory()?, claim, round, packet, header)));
                }
                SumAdmission::Discard => return Ok(None),
                SumAdmission::Confirmed => {
                    drop(guard);
                    self.core.changed.notify_all();
                    return Ok(None);
                }
                // The membership of this sum is about to be reported.
                SumAdmission::Retry => guard = wait(&self.core.changed, guard),
            }
        }
    }

    /// Read a sum into its buffer. An interrupted one may come again, over another connection.
    fn receive(&mut self, target: SumTarget) -> Result<(), WireError> {
        let SumTarget { claim, round, packet, buffer, offset, length, widen } = target;
        let read = if let Some((wire, factor)) = widen {
            self.scratch.resize(length, 0);
            self.receiver.payload(&mut self.scratch).map(|()| {
                // SAFETY: `Collector` gave this packet of the round to this thread alone, and the tensor is not
                // handed out before all of it was received.
                let into = unsafe { buffer.slice_mut(offset, length * factor) };
                sum::widen(wire, into, &self.scratch);
            })
        } else {
            // SAFETY: as above.
            self.receiver.payload(unsafe { buffer.slice_mut(offset, length) })
        };
        if read.is_ok() {
            self.core.timeline.packet(EventKind::Received, round, packet, Some(self.server.0.into()));
        }
        let mut guard = self.core.lock();
        let state = &mut *guard;
        if read.is_err() {
            state.session.handle_interrupted(claim);
            return read;
        }
        let arrived = state.session.handle_received(self.server, claim);
        self.core.perform_actions(state);
        drop(guard);
        if arrived.is_some_and(|arrived| arrived.tensor || arrived.round) {
            self.core.changed.notify_all();
        }
        Ok(())
    }

    fn address(&self) -> SocketAddr {
        self.core.options.servers[usize::from(self.server.0)]
    }

    fn unexpected(&self, kind: Kind) -> ExchangeError {
        ExchangeError::ServerLost {
            server: self.server.0,
            address: self.address(),
            why: format!("it sends {kind} among sums; it may be of another version"),
            missing: "this is a defect of one of the two".into(),
        }
    }
}

/// Handler of one server's messages.
pub(super) struct ServerHandler {
    pub(super) core: Arc<RankCore>,
    pub(super) server: ServerId,
    /// The number of its pair of connections.
    pub(super) pair: u32,
}

impl ControlHandler for ServerHandler {
    fn on_message(&mut self, message: Message) -> Result<(), Fault> {
        let received = match message {
            Message::Ack(ack) => self.acknowledge(ack),
            other => self.receive(other),
        };
        received.map_err(|why| {
            let fault = Fault::new(FaultCode::Protocol, why.to_string());
            self.core.fail(why);
            fault
        })
    }

    fn on_end(&mut self, end: ControlEnd) {
        let closed = translate::closed(end);
        self.core.report(|session, now| session.handle_closed(self.server, self.pair, closed, now));
    }
}

impl ServerHandler {
    fn receive(&self, message: Message) -> Result<(), ExchangeError> {
        let (server, core) = (self.server, &self.core);
        let mut message = translate::server_message(message).map_err(|kind| ExchangeError::ServerLost {
            server: server.0,
            address: core.options.servers[usize::from(server.0)],
            why: format!("it sends {kind}, which is not for this rank"),
            missing: "it may be of another version".into(),
        })?;
        let mut state = core.lock();
        loop {
            let received = state.session.handle_message(server, self.pair, message, core.now());
            core.perform_actions(&mut state);
            match received.map_err(|failure| core.error(failure))? {
                None => {
                    core.changed.notify_all();
                    return Ok(());
                }
                // It depends on a message of another server. Nothing has changed, so it does not notify: two readers
                // that hold messages back would wake each other until that message comes.
                Some(again) => message = again,
            }
            state = wait(&core.changed, state);
        }
    }

    /// A packet was read by the server: its credit is free again.
    fn acknowledge(&self, ack: Ack) -> Result<(), ExchangeError> {
        let state = self.core.lock();
        let packet = PacketId { tensor: TensorId(ack.tensor), packet: ack.partition };
        let bytes = state.memory()?.plan.range(packet).map(|(_, bytes)| Bytes::new(bytes.into()));
        if let (Some(link), Some(bytes)) = (state.link(self.server), bytes) {
            link.interface.acknowledge(link.connection, bytes);
        }
        Ok(())
    }
}
