// SPDX-License-Identifier: Apache-2.0
//! A lost connection, or server, and the one in its place: notice, connect again, say what this rank knows, push what it keeps.
//!
//! ```text
//! lost ──> dial, for up to the timeout ──> RESUME ──> the same server: RESUMED at once ──> push and end again what has not landed
//!                                             └─────> another: RESUMED once every rank has said so ──> push and end all again
//! ```
//!
//! All ranks do this on their own, and meet at a new server. From a rank's RESUME until it acts on the answer, no round
//! becomes done for it: the server counts on it for every round that was open then, and what others tell of their rounds
//! waits. For the same reason answers of several servers are acted on together, oldest rounds first: one may say that a
//! round is done which another one still sums.
//!
//! Refuses where nothing can be mended: nobody takes the place of a server beside a rank, which dies with it, and one that
//! takes leave or names a fault has a reason that stays. Nor is a connection made again for ever that breaks before anything
//! has come over it: this rank counts, and its server hears of it, which knows less of what has landed.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use foresee_grad_queue::{Round, ServerId};
use foresee_units::{Nanos, Rank};
use foresee_wire::{FaultCode, FrameFault, Message, Resume, Resumed, Timeouts, WireError};

use super::connect::{self, RETRY};
use super::state::{Session, State};
use super::ways::{Answered, Breaks, Standing};
use super::{Core, ExchangeError};
use crate::control::End;

impl Core {
    /// The control connection to a server ended.
    pub(super) fn ended(self: &Arc<Self>, server: ServerId, epoch: u32, end: End) {
        let mut state = self.lock();
        let noticed = state.noticed();
        let Some(way) = state.ways.get_mut(server).filter(|way| way.epoch == epoch) else { return };
        let address = way.address;
        let suspicion = way.suspicion.take();
        if matches!(end, End::Broken(_) | End::Silent(_)) {
            way.breaks.count(suspicion.as_ref().is_some_and(|suspicion| suspicion.silence), Instant::now());
        }
        let Breaks { times, .. } = way.breaks;
        let passes = way.breaks.may_be_silent();
        let endless = way.breaks.endless(self.options.timeouts.timeout.into(), Instant::now());
        let suspected = suspicion.map(|suspicion| suspicion.why);
        let missing = state.missing();
        let lost =
            |why| ExchangeError::ServerLost { server: server.0, address, why, missing: missing.clone() };
        let replaced = self.options.may_be_replaced(server);
        let (mut why, mut mends) = match end {
            End::Bye(reason) => (lost(format!("it left: {reason}")), false),
            End::Broken(why) => {
                let mends = if why.is_silence() { replaced } else { self.options.recover && passes };
                (lost(suspected.unwrap_or_else(|| why.to_string())), mends)
            }
            End::Silent(time) => (lost(format!("it was silent for {time}")), replaced),
            End::Fault(fault) => match (fault.code, fault.rank) {
                (FaultCode::Lost, Some(rank)) => {
                    let lost = ExchangeError::RankLost {
                        rank: Rank(rank),
                        why: fault.to_string(),
                        missing: missing.clone(),
                    };
                    // Others saw the end of a connection; where this rank ended it, it knows why.
                    let own = noticed.filter(|_| rank == self.options.rank.0);
                    (own.unwrap_or(lost), false)
                }
                (FaultCode::Plan, _) => (ExchangeError::Disagree(fault.to_string()), false),
                (code, _) => {
                    let why = fault.to_string();
                    let refused = ExchangeError::Refused { server: server.0, address, why };
                    (refused, code == FaultCode::Closing && replaced)
                }
            },
        };
        if let (ExchangeError::ServerLost { why, .. }, Some(time)) = (&mut why, endless.filter(|_| mends)) {
            let time = Nanos::from(time);
            *why = format!(
                "{why}; connections to it broke {times} times within {time}, and nothing came over any of them: look for \
                 something on the way that ends connections once they carry data"
            );
            mends = false;
        }
        if !mends || state.membership.is_changing() {
            state.fail(why);
        } else if !state.is_over() {
            state.lose(server, &why);
            self.mend(&mut state, server);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Sees to it that a thread connects to a lost server again.
    fn mend(self: &Arc<Self>, state: &mut State, server: ServerId) {
        let Some(way) = state.ways.get_mut(server).filter(|way| !way.mending) else { return };
        way.mending = true;
        let core = Arc::clone(self);
        let name = format!("foresee-mend-{}-{server}", self.options.rank.0);
        if let Err(why) = thread::Builder::new().name(name).spawn(move || core.mend_until_open(server)) {
            state.fail(connect::system(WireError::System { doing: "starting a thread", why }));
        }
    }

    fn mend_until_open(self: Arc<Self>, server: ServerId) {
        if let Err(why) = self.try_to_mend(server) {
            self.fail(why);
        }
    }

    /// Until the server is there and knows the job, or nothing is to be done any more.
    fn try_to_mend(self: &Arc<Self>, server: ServerId) -> Result<(), ExchangeError> {
        loop {
            let (reader, address, until) = {
                let mut state = self.lock();
                let over = state.is_over();
                let Some(way) = state.ways.get_mut(server) else { return Ok(()) };
                if over || way.standing == Standing::Open {
                    way.mending = false;
                    return Ok(());
                }
                let began = way.lost.as_ref().map_or_else(Instant::now, |(at, _)| *at);
                (way.link.reader.take(), way.address, began + self.patience(server))
            };
            if let Some(reader) = reader
                && reader.join().is_err()
            {
                return Err(self.given_up(server, "the thread that read its sums broke"));
            }
            let Some(pair) = self.dial(server, address, until)? else { continue };
            self.connect_again(pair)?;
            self.wait_until_open(server, until)?;
        }
    }

    /// For how long a server is looked for: where nobody takes its place, no longer than it keeps this rank's own.
    fn patience(&self, server: ServerId) -> Duration {
        let Timeouts { timeout, heartbeat, reconnect, .. } = self.options.timeouts;
        let patience =
            if self.options.may_be_replaced(server) { timeout } else { timeout.min(reconnect + heartbeat) };
        patience.into()
    }

    /// Both connections to a server; `None` once nobody wants them any more.
    fn dial(
        &self,
        server: ServerId,
        address: SocketAddr,
        until: Instant,
    ) -> Result<Option<connect::Pair>, ExchangeError> {
        let Timeouts { heartbeat, handshake, .. } = self.options.timeouts;
        // The first attempts are short: what was sent while the way was broken is sent again too late.
        let mut patience = Duration::from(heartbeat);
        while !self.lock().is_over() {
            patience = (2 * patience).min(handshake.into());
            let soon = Instant::now() + patience;
            match connect::pair(&self.options, self.process, server, address, soon.min(until)) {
                Ok(pair) => return Ok(Some(pair)),
                Err(why) if stays(&why) || is_gone(&why) && !self.options.may_be_replaced(server) => {
                    return Err(self.given_up(server, &why.to_string()));
                }
                Err(why) if Instant::now() + RETRY >= until => {
                    let time = Nanos::from(self.patience(server));
                    return Err(
                        self.given_up(server, &format!("nobody came in its place within {time}: {why}"))
                    );
                }
                Err(_) => thread::sleep(RETRY),
            }
        }
        Ok(None)
    }

    /// Takes new connections in the place of lost ones, and says what this rank knows.
    fn connect_again(self: &Arc<Self>, pair: connect::Pair) -> Result<(), ExchangeError> {
        let server = pair.server;
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(way) = state.ways.get_mut(server).filter(|_| state.failed.is_none() && !state.closed) else {
            return Ok(());
        };
        way.epoch += 1;
        let before = way.link.process;
        way.link = self.attach(pair, way.epoch)?;
        way.is_same = way.link.process == before;
        let known = match &state.session {
            Some(session) => {
                if let Some(bytes) = NonZeroU32::new(session.plan.config().packet_bytes) {
                    way.link.interface.packet(bytes);
                }
                let (generation, oldest) = (session.collect.generation(), session.collect.oldest_kept().0);
                Resume {
                    generation,
                    oldest,
                    live: state.membership.live.clone(),
                    body: session.plan.encode(),
                }
            }
            None => Resume { generation: 0, oldest: 0, live: Vec::new(), body: Vec::new() },
        };
        way.link.control.tell(Message::Resume(known));
        if let Some(Some(body)) = state.asked.get(usize::from(server.0)) {
            let body = body.to_vec();
            way.link.control.tell(Message::Plan(foresee_wire::Plan { generation: 0, body }));
        }
        if state.session.is_some() {
            state.ways.stand(server, Standing::Resuming(None));
            state.resuming.push(server);
        } else {
            // Whatever plan comes is answered to the proposal that was just told again.
            state.reopen(server);
        }
        drop(guard);
        self.changed.notify_all();
        Ok(())
    }

    /// Until it is open, lost again, or not wanted any more.
    fn wait_until_open(&self, server: ServerId, until: Instant) -> Result<(), ExchangeError> {
        let mut state = self.lock();
        loop {
            let waits = |state: &State| {
                let standing = state.ways.get(server).map(|way| way.standing);
                !state.is_over() && matches!(standing, Some(Standing::Resuming(_)))
            };
            if !waits(&state) {
                return Ok(());
            }
            match self.wait_until(state, until) {
                Ok(again) => state = again,
                Err(again) if waits(&again) => {
                    drop(again);
                    let time = Nanos::from(self.patience(server));
                    let why = format!("somebody came in its place, and not every rank to it within {time}");
                    return Err(self.given_up(server, &why));
                }
                Err(_) => return Ok(()),
            }
        }
    }

    /// A lost server for good.
    fn given_up(&self, server: ServerId, why: &str) -> ExchangeError {
        let state = self.lock();
        let way = state.ways.get(server);
        let first = way.and_then(|way| way.lost.as_ref()).map_or("", |(_, why)| why.as_str());
        let address = self.options.servers[usize::from(server.0)];
        ExchangeError::ServerLost {
            server: server.0,
            address,
            why: format!("{first}; {why}"),
            missing: state.missing(),
        }
    }
}

impl State {
    /// Whether nothing goes on any more.
    pub(super) fn is_over(&self) -> bool {
        self.closed || self.failed.is_some()
    }

    /// A server is not there any more.
    fn lose(&mut self, server: ServerId, why: &ExchangeError) {
        let why = match why {
            ExchangeError::ServerLost { why, .. } | ExchangeError::Refused { why, .. } => why.clone(),
            other => other.to_string(),
        };
        self.ways.lose(server, &why);
        self.resuming.retain(|other| *other != server);
        // A round of which it says that it is done may be one that the next server sums once more.
        self.done_later.retain(|(other, _)| *other != server);
        if let Some(answer) = self.answers.get_mut(usize::from(server.0)) {
            *answer = None;
        }
        if let Err(why) = self.act_on_answers() {
            self.fail(why);
        }
    }

    /// A server says what it goes on with.
    pub(super) fn hear_resumed(&mut self, server: ServerId, told: Resumed) -> Result<(), ExchangeError> {
        let known =
            self.session.as_ref().is_some_and(|session| session.collect.generation() == told.generation);
        let standing = self.ways.get(server).map(|way| way.standing);
        if !known || standing != Some(Standing::Resuming(None)) {
            let why = format!("server {server} goes on with a plan that this rank is not under");
            return Err(ExchangeError::Disagree(why));
        }
        let answered = Answered { oldest: Round(told.oldest), knows: told.knows };
        self.ways.stand(server, Standing::Resuming(Some(answered)));
        self.act_on_answers()
    }

    /// A server in the place of a lost one tells of a plan: it had nothing to go on with, or has done so before.
    pub(super) fn hear_anew(&mut self, server: ServerId) -> Result<(), ExchangeError> {
        if self.resuming.contains(&server) {
            self.resuming.retain(|other| *other != server);
            self.reopen(server);
        }
        self.act_on_answers()
    }

    /// Goes on once every server has answered that was told what this rank knows.
    fn act_on_answers(&mut self) -> Result<(), ExchangeError> {
        let answer = |server: &ServerId| match self.ways.get(*server)?.standing {
            Standing::Resuming(answered) => Some((answered?, *server)),
            Standing::Open | Standing::Lost => None,
        };
        let answers = self.resuming.iter().map(answer).collect::<Option<Vec<_>>>();
        let Some(mut answers) = answers else { return Ok(()) };
        self.resuming.clear();
        answers.sort_unstable();
        for (Answered { oldest, knows }, server) in answers {
            // Who was lost before it answered may be another one than the one that sums were heard of.
            let knows = knows && self.ways.get(server).is_some_and(|way| !way.is_doubtful);
            let collect = &mut self.session()?.collect;
            if knows {
                if let Some(last) = oldest.0.checked_sub(1) {
                    collect.handle_done(server, Round(last))?;
                }
                collect.handle_reconnect(server);
            } else {
                collect.handle_replaced(server, oldest)?;
            }
            self.reopen(server);
            let Some(Session { kept, collect, flow, .. }) = &self.session else { continue };
            if knows {
                self.ways.offer_missing(server, kept, collect, *flow);
            } else {
                self.ways.offer_again(server, kept, collect, *flow);
            }
        }
        for (server, round) in std::mem::take(&mut self.done_later) {
            self.session()?.collect.handle_done(server, round)?;
        }
        self.go_on();
        Ok(())
    }

    /// The server whose silence over its data connection this rank has noticed, and is about to give up.
    fn noticed(&mut self) -> Option<ExchangeError> {
        let missing = self.missing();
        self.ways.iter().find_map(|way| {
            let suspicion = way.suspicion.as_ref().filter(|suspicion| suspicion.silence)?;
            let (server, address, why) = (way.server.0, way.address, suspicion.why.clone());
            Some(ExchangeError::ServerLost { server, address, why, missing: missing.clone() })
        })
    }

    /// A way can be used again.
    fn reopen(&mut self, server: ServerId) {
        self.ways.stand(server, Standing::Open);
        let Some(way) = self.ways.get_mut(server) else { return };
        way.is_doubtful = false;
        *(if way.is_same { &mut self.reconnects } else { &mut self.servers_back }) += 1;
        if let Some((at, why)) = &way.lost {
            let (address, time) = (way.address, Nanos::from(at.elapsed()));
            self.notices.push(if way.is_same {
                format!("the connection to server {server} at {address} broke ({why}), and was made again after {time}")
            } else {
                format!("server {server} at {address} was lost ({why}), and one is back in its place after {time}")
            });
        }
    }
}

/// Whether nobody is at a server's address.
fn is_gone(why: &ExchangeError) -> bool {
    matches!(why, ExchangeError::Server { why, .. } if matches!(**why, WireError::NobodyThere { .. }))
}

/// Whether whoever answers in the place of a server will not do at a later attempt either.
fn stays(why: &ExchangeError) -> bool {
    let ExchangeError::Server { why, .. } = why else { return true };
    match &**why {
        WireError::Version { .. } | WireError::SecretDiffers { .. } | WireError::TlsMismatch { .. } => true,
        WireError::Malformed { fault, .. } => {
            matches!(fault, FrameFault::Magic { .. } | FrameFault::Version { .. })
        }
        WireError::Denied { fault, .. } => !matches!(fault.code, FaultCode::Busy | FaultCode::Closing),
        _ => false,
    }
}
