// SPDX-License-Identifier: Apache-2.0
//! Connections to servers: dial, authenticate, start the threads.
//!
//! At the start a server is dialled until the timeout if it is not up yet, or still holds the place of a process that
//! ended: jobs start in any order, and restart at once.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use foresee_grad_queue::ServerId;
use foresee_grad_session::{RankSession, RankSettings};
use foresee_wire::{
    CAN_RECONNECT, Connection, DialOptions, FaultCode, Hello, Purpose, Role, Secret, Wait, WireError, dial,
    draw_session,
};

use super::receive::{ServerHandler, SumReader};
use super::routes::{ServerLink, routes};
use super::state::RankState;
use super::{ExchangeError, RankCore, ServerExchange};
use crate::control::Control;
use crate::interface::{DataPath, Interfaces, Side};
use crate::options::RankOptions;
use crate::sync::{Timer, spawn};
use crate::timeline::Timeline;

/// Pause between two attempts at a server.
const RETRY: Duration = Duration::from_millis(100);

/// The two connections to a server.
pub(super) struct ConnectionPair {
    pub(super) server: ServerId,
    control: Connection,
    data: Connection,
}

impl ConnectionPair {
    /// The id of the server's process.
    pub(super) fn process(&self) -> u64 {
        self.control.welcome.session
    }

    /// Dial both connections by `dial`.
    pub(super) fn dial(
        options: &RankOptions,
        process: u64,
        server: ServerId,
        until: Instant,
        dial: impl Fn(SocketAddr, &Hello, &Secret, &DialOptions, Wait) -> Result<Connection, WireError>,
    ) -> Result<Self, ExchangeError> {
        let address = options.servers[usize::from(server.0)];
        let dial_options =
            DialOptions { link: options.link.clone(), tls: options.tls.clone(), timeouts: options.timeouts };
        let connect = |role| {
            let hello = Hello {
                target: server.0.into(),
                session: process,
                node_ranks: options.local_world,
                survives: options.continue_on_rank_loss,
                capabilities: if options.recover { CAN_RECONNECT } else { 0 },
                ..Hello::new(Purpose::Gradients, role, options.job.as_str(), options.rank.0, options.world)
            };
            dial(address, &hello, &options.secret, &dial_options, Wait::Until(until))
                .map_err(|why| ExchangeError::Server { server: server.0, address, why: Arc::new(why) })
        };
        Ok(Self { server, control: connect(Role::Control)?, data: connect(Role::Data)? })
    }
}

/// Connect to every server and start the threads.
pub(super) fn open(options: RankOptions) -> Result<ServerExchange, ExchangeError> {
    check(&options)?;
    let process = draw_session()?;
    let own = || Interfaces::new(options.policy.push(), options.packet(None));
    let interfaces = options.interfaces.clone().unwrap_or_else(own);
    interfaces.add_process(process);
    let until = Instant::now() + Duration::from(options.timeouts.timeout);
    let pairs: Vec<_> = (0..)
        .zip(&options.servers)
        .map(|(server, _)| ConnectionPair::dial(&options, process, ServerId(server), until, dial_until))
        .collect::<Result<_, ExchangeError>>()?;
    let timeline = Timeline::new(options.timeline);
    let processes: Vec<u64> = pairs.iter().map(ConnectionPair::process).collect();
    let state = Mutex::new(RankState {
        rank: options.rank,
        session: RankSession::new(settings(&options), &processes),
        links: Vec::new(),
        routes: Arc::new([]),
        memory: None,
        failed: None,
        is_closed: false,
        timeout: None,
    });
    let (changed, start, timer) = (Condvar::new(), Instant::now(), Timer::default());
    let core = Arc::new(RankCore { options, process, interfaces, state, changed, timeline, start, timer });
    // If anything below fails, dropping the exchange ends the threads that run.
    let exchange = ServerExchange { core };
    exchange.core.start(pairs)?;
    Ok(exchange)
}

fn settings(options: &RankOptions) -> RankSettings {
    RankSettings {
        rank: options.rank,
        world: options.world,
        node_ranks: options.local_world,
        servers: options.servers.iter().map(SocketAddr::to_string).collect(),
        colocated: options.colocated,
        recovers: options.recover,
        continues_after_loss: options.continue_on_rank_loss,
        timeout: options.timeouts.timeout,
        heartbeat: options.timeouts.heartbeat,
        handshake: options.timeouts.handshake,
        grace_period: options.timeouts.reconnect,
    }
}

fn check(options: &RankOptions) -> Result<(), ExchangeError> {
    let wrong = |name, found: String, rule| Err(ExchangeError::Setting { name, found, rule });
    let RankOptions { rank, world, local_world, servers, shares, colocated, .. } = options;
    if *world == 0 || *world > 65_535 {
        return wrong("the world", world.to_string(), "it has 1 to 65535 ranks");
    }
    if rank.0 >= *world {
        return wrong("the rank", rank.to_string(), "it is below the world");
    }
    if *local_world == 0 || world % local_world != 0 || rank.0 % local_world != 0 {
        let found = format!("{local_world} of {world}, with rank {rank} the first");
        return wrong("the ranks of a node", found, "every node has equally many, in rank order");
    }
    if options.continue_on_rank_loss && (*local_world > 1 || *colocated > 0) {
        let found = format!("{local_world} ranks of a node, and {colocated} colocated servers");
        let rule = "ranks that may be lost exchange each by itself, with servers in other processes";
        return wrong("continuing without lost ranks", found, rule);
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
    if usize::from(*colocated) > servers.len() {
        return wrong("the number of colocated servers", colocated.to_string(), "they are among the servers");
    }
    Ok(())
}

/// Dial until the connection is accepted or refused for good, or the time is over.
pub(crate) fn dial_until(
    address: SocketAddr,
    hello: &Hello,
    secret: &Secret,
    options: &DialOptions,
    wait: Wait,
) -> Result<Connection, WireError> {
    let mut refusal = None;
    loop {
        match dial(address, hello.clone(), secret, options, wait) {
            Err(why) if is_temporary(&why) && Wait::within(RETRY).is_before(wait) => {
                refusal = matches!(why, WireError::Denied { .. }).then_some(why);
                Timer::default().wait(Some(Instant::now() + RETRY));
            }
            // The time ended during an attempt: the earlier refusal says more.
            Err(why) if why.is_late() => return Err(refusal.unwrap_or(why)),
            answer => return answer,
        }
    }
}

/// Whether another attempt may succeed: the server is not up yet, or has not noticed the end of the process whose place
/// this one takes.
fn is_temporary(why: &WireError) -> bool {
    match why {
        WireError::ConnectionRefused { .. } => true,
        WireError::Denied { fault, .. } => fault.code == FaultCode::Busy,
        _ => false,
    }
}

impl RankCore {
    /// Start the threads of all connections. None of them acts before all are known.
    fn start(self: &Arc<Self>, pairs: Vec<ConnectionPair>) -> Result<(), ExchangeError> {
        let mut state = self.lock();
        for pair in pairs {
            let link = self.attach(pair, 0)?;
            state.links.push(link);
        }
        state.routes = routes((0..).map(ServerId).zip(&state.links));
        let core = Arc::clone(self);
        spawn(format!("foresee-timer-{}", self.options.rank.0), move || core.run_timer())?;
        Ok(())
    }

    /// Start the threads of a pair of connections, which has this `number`.
    pub(super) fn attach(
        self: &Arc<Self>,
        pair: ConnectionPair,
        number: u32,
    ) -> Result<ServerLink, ExchangeError> {
        let ConnectionPair { server, control, data } = pair;
        let link = data.link();
        let name = format!("{}-{server}", self.options.rank.0);
        let handler = ServerHandler { core: Arc::clone(self), server, pair: number };
        let control = Control::start(&name, control, self.options.timeouts, handler)?;
        let core = Arc::clone(self);
        let on_broken = Box::new(move |why: WireError| core.data_closed(server, number, &why));
        let attached = self.interfaces.attach(data, Side::Dialler, self.options.timeouts, on_broken);
        let DataPath { interface, connection, receiver } =
            attached.inspect_err(|_| control.link().shutdown())?;
        let core = Arc::clone(self);
        let reader = SumReader { core, server, pair: number, receiver, scratch: Vec::new() };
        let reader = spawn(format!("foresee-recv-{name}"), move || reader.run()).inspect_err(|_| {
            control.link().shutdown();
            interface.close(connection);
        })?;
        Ok(ServerLink { control, interface, connection, data: link, reader: Some(reader) })
    }
}
