// SPDX-License-Identifier: Apache-2.0
//! Connections to servers: dial, prove, take them apart, start the threads.
//!
//! At the start a server that is not up yet, or still keeps the place of a process that is gone, is dialled until the
//! timeout: jobs start in any order, and start again at once.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use foresee_grad_queue::ServerId;
use foresee_grad_session::{RankSession, RankSettings};
use foresee_wire::{
    CAN_RECONNECT, Connection, DialOptions, FaultCode, Hello, Purpose, Role, Secret, Wait, WireError, dial,
    draw_session,
};

use super::receive::{ServerReader, SumReader};
use super::routes::{ServerLink, routes};
use super::state::State;
use super::{Core, Exchange, ExchangeError};
use crate::control::Control;
use crate::interface::{Interfaces, Path, Side};
use crate::options::RankOptions;
use crate::timeline::Timeline;
use crate::timer::Timer;

/// Pause between two attempts at a server.
const RETRY: Duration = Duration::from_millis(100);

/// The two connections to a server.
pub(super) struct Pair {
    pub(super) server: ServerId,
    control: Connection,
    data: Connection,
}

impl Pair {
    /// The process of the server.
    pub(super) fn process(&self) -> u64 {
        self.control.welcome.session
    }
}

/// Connects to every server and starts the threads.
pub(super) fn open(options: RankOptions) -> Result<Exchange, ExchangeError> {
    check(&options)?;
    let process = draw_session().map_err(system)?;
    let own = || Interfaces::new(options.policy.push(), options.packet(None));
    let interfaces = options.interfaces.clone().unwrap_or_else(own);
    interfaces.enter(process);
    let until = Instant::now() + Duration::from(options.timeouts.timeout);
    let pairs: Vec<_> = (0..)
        .map(ServerId)
        .zip(&options.servers)
        .map(|(server, address)| {
            let call = |role| call(&options, process, server, *address, role, until);
            Ok(Pair { server, control: call(Role::Control)?, data: call(Role::Data)? })
        })
        .collect::<Result<_, ExchangeError>>()?;
    let timeline = Timeline::new(options.timeline);
    let processes: Vec<u64> = pairs.iter().map(Pair::process).collect();
    let state = Mutex::new(State {
        rank: options.rank,
        machine: RankSession::new(settings(&options), &processes),
        links: Vec::new(),
        routes: Arc::new([]),
        memory: None,
        failed: None,
        closed: false,
        timeout: None,
    });
    let (changed, start, timer) = (Condvar::new(), Instant::now(), Timer::default());
    let core = Arc::new(Core { options, process, interfaces, state, changed, timeline, start, timer });
    // Whatever fails from here on, dropping it ends the threads that run.
    let exchange = Exchange { core };
    exchange.core.start(pairs)?;
    Ok(exchange)
}

fn settings(options: &RankOptions) -> RankSettings {
    RankSettings {
        rank: options.rank,
        world: options.world,
        local: options.local,
        servers: options.servers.iter().map(SocketAddr::to_string).collect(),
        beside: options.beside,
        recover: options.recover,
        survives: options.survives,
        timeout: options.timeouts.timeout,
        heartbeat: options.timeouts.heartbeat,
        handshake: options.timeouts.handshake,
        reconnect: options.timeouts.reconnect,
    }
}

fn check(options: &RankOptions) -> Result<(), ExchangeError> {
    let wrong = |name, found: String, rule| Err(ExchangeError::Setting { name, found, rule });
    let RankOptions { rank, world, local, servers, shares, beside, .. } = options;
    if *world == 0 || *world > 65_535 {
        return wrong("the world", world.to_string(), "it has 1 to 65535 ranks");
    }
    if rank.0 >= *world {
        return wrong("the rank", rank.to_string(), "it is below the world");
    }
    if *local == 0 || world % local != 0 || rank.0 % local != 0 {
        let found = format!("{local} of {world}, with rank {rank} the first");
        return wrong("the ranks of a machine", found, "every machine has equally many, in rank order");
    }
    if options.survives && (*local > 1 || *beside > 0) {
        let found = format!("{local} ranks of a machine, and {beside} servers beside ranks");
        let rule = "ranks that may be lost exchange each by itself, with servers on their own";
        return wrong("going on without lost ranks", found, rule);
    }
    if servers.is_empty() || servers.len() > 4096 {
        return wrong("the number of servers", servers.len().to_string(), "there are 1 to 4096");
    }
    if let Some(twice) = (1..servers.len()).find(|at| servers[..*at].contains(&servers[*at])) {
        return wrong("the servers", format!("{} twice", servers[twice]), "each is named once");
    }
    if !shares.is_empty() && shares.len() != servers.len() {
        return wrong("the number of shares", shares.len().to_string(), "each server has one");
    }
    if usize::from(*beside) > servers.len() {
        return wrong("the number of servers beside ranks", beside.to_string(), "they are among the servers");
    }
    Ok(())
}

/// Both connections to a server, at one attempt.
pub(super) fn pair(
    options: &RankOptions,
    process: u64,
    server: ServerId,
    until: Instant,
) -> Result<Pair, Arc<WireError>> {
    let address = options.servers[usize::from(server.0)];
    let call = |role| attempt(options, process, server, address, role, until).map_err(Arc::new);
    Ok(Pair { server, control: call(Role::Control)?, data: call(Role::Data)? })
}

fn call(
    options: &RankOptions,
    process: u64,
    server: ServerId,
    address: SocketAddr,
    role: Role,
    until: Instant,
) -> Result<Connection, ExchangeError> {
    let hello = hello(options, process, server, role);
    reach(address, &hello, &options.secret, &how(options), Wait::Until(until))
        .map_err(|why| ExchangeError::Server { server: server.0, address, why: Arc::new(why) })
}

/// Dials until somebody answers for good, or the time is over.
pub(crate) fn reach(
    address: SocketAddr,
    hello: &Hello,
    secret: &Secret,
    how: &DialOptions,
    wait: Wait,
) -> Result<Connection, WireError> {
    let mut refusal = None;
    loop {
        match dial(address, hello.clone(), secret, how, wait) {
            Err(why) if may_pass(&why) && Wait::within(RETRY).is_before(wait) => {
                refusal = matches!(why, WireError::Denied { .. }).then_some(why);
                Timer::default().wait(Some(Instant::now() + RETRY));
            }
            // The time ended during an attempt: the reason of the refusals before it says more.
            Err(why) if why.is_late() => return Err(refusal.unwrap_or(why)),
            answer => return answer,
        }
    }
}

fn attempt(
    options: &RankOptions,
    process: u64,
    server: ServerId,
    address: SocketAddr,
    role: Role,
    until: Instant,
) -> Result<Connection, WireError> {
    let hello = hello(options, process, server, role);
    dial(address, hello, &options.secret, &how(options), Wait::Until(until))
}

fn hello(options: &RankOptions, process: u64, server: ServerId, role: Role) -> Hello {
    Hello {
        target: server.0.into(),
        session: process,
        node_ranks: options.local,
        survives: options.survives,
        capabilities: if options.recover { CAN_RECONNECT } else { 0 },
        ..Hello::new(Purpose::Gradients, role, options.job.as_str(), options.rank.0, options.world)
    }
}

fn how(options: &RankOptions) -> DialOptions {
    DialOptions { link: options.link.clone(), tls: options.tls.clone(), timeouts: options.timeouts }
}

/// Whether another attempt may end better: a server that is not up yet, or that has not noticed the end of the process
/// whose place this one takes.
fn may_pass(why: &WireError) -> bool {
    match why {
        WireError::ConnectionRefused { .. } => true,
        WireError::Denied { fault, .. } => fault.code == FaultCode::Busy,
        _ => false,
    }
}

pub(super) fn system(why: WireError) -> ExchangeError {
    ExchangeError::System(Arc::new(why))
}

impl Core {
    /// Starts the threads of all connections. None of them acts before all are known.
    fn start(self: &Arc<Self>, pairs: Vec<Pair>) -> Result<(), ExchangeError> {
        let mut state = self.lock();
        for pair in pairs {
            let link = self.attach(pair, 0)?;
            state.links.push(link);
        }
        state.routes = routes((0..).map(ServerId).zip(&state.links));
        let core = Arc::clone(self);
        let named = thread::Builder::new().name(format!("foresee-timer-{}", self.options.rank.0));
        let timers = named.spawn(move || core.run_timers());
        timers.map(drop).map_err(|why| system(WireError::System { doing: "starting a thread", why }))
    }

    /// Takes the connections to a server apart and starts their threads. `number`: that of the pair.
    pub(super) fn attach(self: &Arc<Self>, pair: Pair, number: u32) -> Result<ServerLink, ExchangeError> {
        let Pair { server, control, data } = pair;
        let link = data.link();
        let name = format!("{}-{server}", self.options.rank.0);
        let ear = ServerReader { core: Arc::clone(self), server, pair: number };
        let control = Control::start(&name, control, self.options.timeouts, ear).map_err(system)?;
        let core = Arc::clone(self);
        let broken = Box::new(move |why: WireError| core.data_closed(server, number, &why));
        let attached = self.interfaces.attach(data, Side::Dialler, self.options.timeouts, broken);
        let Path { interface, connection, receiver } =
            attached.inspect_err(|_| control.link().shutdown()).map_err(system)?;
        let core = Arc::clone(self);
        let reader = SumReader { core, server, pair: number, receiver, room: Vec::new() };
        let reader = thread::Builder::new().name(format!("foresee-land-{name}")).spawn(move || reader.run());
        let reader = reader.map_err(|why| {
            control.link().shutdown();
            interface.close(connection);
            system(WireError::System { doing: "starting a thread", why })
        })?;
        Ok(ServerLink { control, interface, connection, data: link, reader: Some(reader) })
    }
}
