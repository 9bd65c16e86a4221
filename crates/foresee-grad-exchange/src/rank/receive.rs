// SPDX-License-Identifier: Apache-2.0
//! What a rank's threads do with what servers send: one reads sums of one server, another hears its messages.
//!
//! Refuses to copy: a payload is read to where it belongs, unless it has to be widened on the way.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

use foresee_grad_queue::{Arrival, Claim, Dtype, PacketId, Round, ServerId, SumHeader, TensorId, sum};
use foresee_units::Bytes;
use foresee_wire::{Fault, FaultCode, FrameReceiver, Header, Kind, Message, Wait, WireError};

use super::landing::Landing;
use super::state::State;
use super::ways::{Breaks, Standing};
use super::{Core, ExchangeError};
use crate::control::{Ear, End};
use crate::timeline::EventKind;

/// Reads the sums of one server.
pub(super) struct Reader {
    pub(super) core: Arc<Core>,
    pub(super) server: ServerId,
    pub(super) address: SocketAddr,
    /// Of the connections that it belongs to.
    pub(super) epoch: u32,
    pub(super) receiver: FrameReceiver,
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

/// What becomes of a sum.
enum Admitted {
    Land(Target),
    Discard,
    /// It was there already, and counts once more.
    Confirmed,
    /// Nothing yet.
    Later,
}

impl Reader {
    pub(super) fn run(mut self) {
        if let Err(why) = self.read() {
            let mut state = self.core.lock();
            let way = state.ways.get(self.server).filter(|way| way.epoch == self.epoch);
            if way.is_some_and(|way| way.standing != Standing::Lost) {
                state.fail(why);
                drop(state);
                self.core.changed.notify_all();
            }
        }
    }

    fn read(&mut self) -> Result<(), ExchangeError> {
        loop {
            let header = self.receiver.header(Wait::Forever);
            let Some(header) = self.understood(header)? else { return Ok(()) };
            let Some(header) = header else {
                // It may have ended by itself, with nothing on its way that would tell whoever sends.
                let why = WireError::Ended { peer: self.address };
                self.core.suspect(self.server, self.epoch, &why);
                return Ok(());
            };
            if header.kind != Kind::Sum {
                return Err(self.strange(&format!("sends {} among sums", header.kind)));
            }
            let read = match self.admit(&header)? {
                Some(target) => self.land(target),
                None => self.receiver.discard(Wait::Forever),
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
                self.core.suspect(self.server, self.epoch, &why);
                Ok(None)
            }
            Err(why) => Err(self.broken(why)),
        }
    }

    /// Where a sum belongs; `None`: it is not wanted.
    fn admit(&self, header: &Header) -> Result<Option<Target>, ExchangeError> {
        let mut guard = self.core.lock();
        loop {
            match self.try_admit(&mut guard, header)? {
                Admitted::Land(target) => return Ok(Some(target)),
                Admitted::Discard => return Ok(None),
                Admitted::Confirmed => {
                    drop(guard);
                    self.core.changed.notify_all();
                    return Ok(None);
                }
                // What the server goes by is about to be told.
                Admitted::Later => {
                    guard = self.core.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn try_admit(&self, state: &mut State, header: &Header) -> Result<Admitted, ExchangeError> {
        let (over, comes) = (state.is_over(), state.membership.is_coming(header.generation));
        match state.ways.get(self.server).map(|way| way.standing) {
            Some(Standing::Lost) => return Ok(Admitted::Discard),
            // What it goes on with travels on the other connection.
            Some(Standing::Resuming(_)) if !over => return Ok(Admitted::Later),
            _ => {}
        }
        let Some(session) = &mut state.session else { return Err(self.strange("sends sums before a plan")) };
        let tensor = TensorId(header.tensor);
        let packet = PacketId { tensor, packet: header.packet };
        let round = Round::near(header.round, session.collect.current());
        let bytes = u64::from(header.length);
        let sum = SumHeader { server: self.server, generation: header.generation, round, packet, bytes };
        let claim = match session.collect.arrive(sum)? {
            Arrival::Read(claim) => claim,
            Arrival::Discard(_) => return Ok(Admitted::Discard),
            Arrival::Hold if over => return Ok(Admitted::Discard),
            Arrival::Hold if comes => return Ok(Admitted::Later),
            // A newer plan is told before its first sum is sent.
            Arrival::Hold => return Err(self.strange("sends sums of a membership that it has not told of")),
        };
        let Some(offset) = claim.offset() else {
            session.collect.land(claim);
            state.go_on();
            return Ok(Admitted::Confirmed);
        };
        let spec = session.plan.tensor(tensor).expect("the claim was checked against the plan");
        let travels = session.plan.wire_dtype(tensor).expect("as above");
        let times = spec.dtype.bytes() / travels.bytes();
        let offset = usize::try_from(offset).expect("it lies in memory") * times;
        let landing = Arc::clone(&session.landings[tensor.0 as usize]);
        let widen = (travels != spec.dtype).then_some((travels, times));
        let length = header.length as usize;
        Ok(Admitted::Land(Target { claim, round, packet, landing, offset, length, widen }))
    }

    /// Reads a sum to where it belongs. One that breaks off may come again, over another connection.
    fn land(&mut self, target: Target) -> Result<(), WireError> {
        let Target { claim, round, packet, landing, offset, length, widen } = target;
        let read = if let Some((travels, times)) = widen {
            self.room.resize(length, 0);
            self.receiver.payload(&mut self.room, Wait::Forever).map(|()| {
                // SAFETY: `Collect` gave this packet of the round to this thread alone, and the tensor is not
                // handed out before all of it has landed.
                let into = unsafe { landing.slice_mut(offset, length * times) };
                sum::widen(travels, into, &self.room);
            })
        } else {
            // SAFETY: as above.
            self.receiver.payload(unsafe { landing.slice_mut(offset, length) }, Wait::Forever)
        };
        if read.is_ok() {
            self.core.timeline.packet(EventKind::Landed, round, packet, Some(self.server.0.into()));
        }
        let mut guard = self.core.lock();
        let state = &mut *guard;
        let Some(session) = &mut state.session else { return read };
        if read.is_err() {
            session.collect.abandon(claim);
            return read;
        }
        let landed = session.collect.land(claim);
        if let Some(way) = state.ways.get_mut(self.server) {
            way.breaks = Breaks::default();
        }
        state.go_on();
        drop(guard);
        if landed.tensor || landed.round {
            self.core.changed.notify_all();
        }
        Ok(())
    }

    fn broken(&self, why: WireError) -> ExchangeError {
        ExchangeError::Server { server: self.server.0, address: self.address, why: Arc::new(why) }
    }

    fn strange(&self, what: &str) -> ExchangeError {
        let why = format!("it {what}; it may be of another version");
        let missing = "this is a defect of one of the two".into();
        ExchangeError::ServerLost { server: self.server.0, address: self.address, why, missing }
    }
}

/// Hears the messages of one server.
pub(super) struct ServerEar {
    pub(super) core: Arc<Core>,
    pub(super) server: ServerId,
    pub(super) address: SocketAddr,
    /// Of the connections that it belongs to.
    pub(super) epoch: u32,
}

impl Ear for ServerEar {
    fn hear(&mut self, message: Message) -> Result<(), Fault> {
        let heard = self.take(message);
        if let Err(why) = heard {
            let fault = Fault::new(FaultCode::Protocol, why.to_string());
            self.core.fail(why);
            return Err(fault);
        }
        self.core.changed.notify_all();
        Ok(())
    }

    fn ended(&mut self, end: End) {
        self.core.ended(self.server, self.epoch, end);
    }
}

impl ServerEar {
    fn take(&self, message: Message) -> Result<(), ExchangeError> {
        let survives = self.core.options.survives;
        match message {
            Message::Changed(changed) if survives => self.core.hear_changed(self.server, changed),
            other => self.take_locked(other, survives),
        }
    }

    fn take_locked(&self, message: Message, survives: bool) -> Result<(), ExchangeError> {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        if let Some(way) = state.ways.get_mut(self.server).filter(|_| !matches!(message, Message::Ack(_))) {
            way.waiting = match &message {
                Message::Waiting(waiting) => Some(waiting.to_string()),
                _ => None,
            };
        }
        match message {
            Message::Waiting(_) => {}
            // Of rounds under a membership that does not count any more; it is told again, or found anew.
            Message::Used(_) | Message::RoundDone(_) if state.membership.is_deaf_to(self.server) => {}
            Message::Lost(lost) if survives => state.hear_lost(self.server, lost),
            Message::Members(members) if survives => state.hear_members(self.server, &members)?,
            Message::Change(change) if survives => state.hear_change(self.server, &change)?,
            Message::Plan(plan) => {
                let news =
                    state.session.as_ref().is_none_or(|now| now.collect.generation() < plan.generation);
                let answer = state.answers.get_mut(usize::from(self.server.0));
                // A server in the place of a lost one may say once more what holds already.
                if let Some(answer) = answer.filter(|_| news) {
                    *answer = Some((plan.generation, plan.body.into()));
                    state.hear_anew(self.server)?;
                }
            }
            Message::Used(used) => {
                state.session()?.hear_used(self.server, Round(used.round), &used.used)?;
                state.go_on();
            }
            Message::RoundDone(done) => state.hear_done(self.server, Round(done.round))?,
            Message::Resumed(resumed) => state.hear_resumed(self.server, resumed)?,
            Message::Ack(ack) => {
                let packet = PacketId { tensor: TensorId(ack.tensor), packet: ack.partition };
                let bytes = state.session()?.plan.range(packet).map(|(_, bytes)| Bytes::new(bytes.into()));
                if let (Some(way), Some(bytes)) = (state.ways.get(self.server), bytes) {
                    way.link.interface.acked(way.link.connection, bytes);
                }
            }
            other => {
                let why = format!("it sends {}, which is not for this rank", other.kind());
                let missing = "it may be of another version".into();
                return Err(ExchangeError::ServerLost {
                    server: self.server.0,
                    address: self.address,
                    why,
                    missing,
                });
            }
        }
        Ok(())
    }
}
