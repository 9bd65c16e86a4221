// SPDX-License-Identifier: Apache-2.0
//! Readers of what one server sends: its sums, and its messages.
//!
//! A payload is read to where it belongs, without a copy, unless it has to be widened on the way.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

use foresee_grad_queue::{Claim, Dtype, PacketId, Round, ServerId, TensorId, sum};
use foresee_grad_session::SumAdmission;
use foresee_units::Bytes;
use foresee_wire::{Ack, Fault, FaultCode, Header, Kind, Message, WireError};

use super::landing::Landing;
use super::state::PlanMemory;
use super::{Core, ExchangeError};
use crate::control::{Ear, End};
use crate::interface::PacketReceiver;
use crate::timeline::EventKind;
use crate::translate;

/// Reads the sums of one server.
pub(super) struct SumReader {
    pub(super) core: Arc<Core>,
    pub(super) server: ServerId,
    /// The number of the pair of connections that it belongs to.
    pub(super) pair: u32,
    pub(super) receiver: PacketReceiver,
    pub(super) room: Vec<u8>,
}

/// A packet's way into memory.
struct Target {
    claim: Claim,
    round: Round,
    packet: PacketId,
    landing: Arc<Landing>,
    offset: usize,
    length: usize,
    /// Where it travelled in fewer bits than it has here: as what, and how many times wider it gets.
    widen: Option<(Dtype, usize)>,
}

impl Target {
    fn new(memory: &PlanMemory, claim: Claim, round: Round, packet: PacketId, header: &Header) -> Self {
        let tensor = packet.tensor;
        let spec = memory.plan.tensor(tensor).expect("the claim was checked against the plan");
        let travels = memory.plan.wire_dtype(tensor).expect("as above");
        let times = spec.dtype.bytes() / travels.bytes();
        let offset = claim.offset().expect("a packet that is confirmed is not read");
        let offset = usize::try_from(offset).expect("it lies in memory") * times;
        let landing = Arc::clone(&memory.landings[tensor.0 as usize]);
        let widen = (travels != spec.dtype).then_some((travels, times));
        Self { claim, round, packet, landing, offset, length: header.length as usize, widen }
    }
}

impl SumReader {
    pub(super) fn run(mut self) {
        if let Err(why) = self.read() {
            let mut state = self.core.lock();
            let machine = &state.machine;
            if machine.pair(self.server) == self.pair && !machine.is_lost(self.server) {
                state.fail(why);
                drop(state);
                self.core.changed.notify_all();
            }
        }
    }

    fn read(&mut self) -> Result<(), ExchangeError> {
        loop {
            let header = self.receiver.header();
            let Some(header) = self.understood(header)? else { return Ok(()) };
            let Some(header) = header else {
                // It may have ended by itself, with nothing on its way that would tell whoever sends.
                let why = WireError::Ended { peer: self.address() };
                self.core.data_closed(self.server, self.pair, &why);
                return Ok(());
            };
            if header.kind != Kind::Sum {
                return Err(self.strange(&format!("sends {} among sums", header.kind)));
            }
            let read = match self.admit(&header)? {
                Some(target) => self.land(target),
                None => self.receiver.discard(),
            };
            if self.understood(read)?.is_none() {
                return Ok(());
            }
        }
    }

    /// What was read; `None` at the connection's end, be it in the middle of a sum: the control connection mostly knows why,
    /// and says so.
    fn understood<T>(&self, read: Result<T, WireError>) -> Result<Option<T>, ExchangeError> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(why @ (WireError::Closed { .. } | WireError::Cut { .. } | WireError::Io { .. })) => {
                self.core.data_closed(self.server, self.pair, &why);
                Ok(None)
            }
            Err(why) => Err(self.broken(why)),
        }
    }

    /// Where a sum belongs; `None`: it is not wanted.
    fn admit(&self, header: &Header) -> Result<Option<Target>, ExchangeError> {
        let mut guard = self.core.lock();
        let packet = PacketId { tensor: TensorId(header.tensor), packet: header.packet };
        loop {
            let state = &mut *guard;
            let (generation, round, bytes) = (header.generation, header.round, u64::from(header.length));
            let admission = state.machine.handle_sum(self.server, generation, round, packet, bytes);
            self.core.settle(state);
            match admission.map_err(|failure| self.core.error(failure))? {
                SumAdmission::Read(claim, round) => {
                    return Ok(Some(Target::new(state.memory()?, claim, round, packet, header)));
                }
                SumAdmission::Discard => return Ok(None),
                SumAdmission::Confirmed => {
                    drop(guard);
                    self.core.changed.notify_all();
                    return Ok(None);
                }
                // What the server goes by is about to be reported.
                SumAdmission::Later => {
                    guard = self.core.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Reads a sum to where it belongs. One that breaks off may come again, over another connection.
    fn land(&mut self, target: Target) -> Result<(), WireError> {
        let Target { claim, round, packet, landing, offset, length, widen } = target;
        let read = if let Some((travels, times)) = widen {
            self.room.resize(length, 0);
            self.receiver.payload(&mut self.room).map(|()| {
                // SAFETY: `Collect` gave this packet of the round to this thread alone, and the tensor is not
                // handed out before all of it has landed.
                let into = unsafe { landing.slice_mut(offset, length * times) };
                sum::widen(travels, into, &self.room);
            })
        } else {
            // SAFETY: as above.
            self.receiver.payload(unsafe { landing.slice_mut(offset, length) })
        };
        if read.is_ok() {
            self.core.timeline.packet(EventKind::Landed, round, packet, Some(self.server.0.into()));
        }
        let mut guard = self.core.lock();
        let state = &mut *guard;
        if read.is_err() {
            state.machine.handle_cut(claim);
            return read;
        }
        let landed = state.machine.handle_arrived(self.server, claim);
        self.core.settle(state);
        drop(guard);
        if landed.is_some_and(|landed| landed.tensor || landed.round) {
            self.core.changed.notify_all();
        }
        Ok(())
    }

    fn address(&self) -> SocketAddr {
        self.core.options.servers[usize::from(self.server.0)]
    }

    fn broken(&self, why: WireError) -> ExchangeError {
        ExchangeError::Server { server: self.server.0, address: self.address(), why: Arc::new(why) }
    }

    fn strange(&self, what: &str) -> ExchangeError {
        let why = format!("it {what}; it may be of another version");
        let missing = "this is a defect of one of the two".into();
        ExchangeError::ServerLost { server: self.server.0, address: self.address(), why, missing }
    }
}

/// Reads the messages of one server.
pub(super) struct ServerReader {
    pub(super) core: Arc<Core>,
    pub(super) server: ServerId,
    /// The number of the pair of connections that it belongs to.
    pub(super) pair: u32,
}

impl Ear for ServerReader {
    fn hear(&mut self, message: Message) -> Result<(), Fault> {
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

    fn ended(&mut self, end: End) {
        let mut state = self.core.lock();
        let now = self.core.now();
        state.machine.handle_closed(self.server, self.pair, translate::closed(end), now);
        self.core.settle(&mut state);
        drop(state);
        self.core.changed.notify_all();
    }
}

impl ServerReader {
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
            let received = state.machine.handle_message(server, self.pair, message, core.now());
            core.settle(&mut state);
            match received.map_err(|failure| core.error(failure))? {
                None => {
                    core.changed.notify_all();
                    return Ok(());
                }
                // It depends on what another server is about to send, and nothing has changed: two readers that hold a message
                // back would wake each other for as long as that takes.
                Some(again) => message = again,
            }
            state = core.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A packet has come to the server: its credit is free again.
    fn acknowledge(&self, ack: Ack) -> Result<(), ExchangeError> {
        let state = self.core.lock();
        let packet = PacketId { tensor: TensorId(ack.tensor), packet: ack.partition };
        let bytes = state.memory()?.plan.range(packet).map(|(_, bytes)| Bytes::new(bytes.into()));
        if let (Some(link), Some(bytes)) = (state.link(self.server), bytes) {
            link.interface.acked(link.connection, bytes);
        }
        Ok(())
    }
}
