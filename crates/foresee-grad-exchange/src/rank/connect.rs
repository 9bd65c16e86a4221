// SPDX-License-Identifier: Apache-2.0
//! How a rank comes to its servers: dial, prove, take the connections apart, start the threads.
//!
//! Refuses to give up on a server that is not up yet, or still keeps the place of a process that is gone, before the
//! timeout: jobs start in any order, and start again at once.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use foresee_grad_queue::ServerId;
use foresee_wire::{
    COMES_AGAIN, Connection, DialOptions, FaultCode, Hello, Purpose, Role, Secret, Wait, WireError, dial,
    draw_session,
};

use super::receive::{Reader, ServerEar};
use super::state::State;
use super::ways::{Connected, Way};
use super::{Core, Exchange, ExchangeError};
use crate::control::Control;
use crate::interface::Interfaces;
use crate::options::RankOptions;
use crate::timeline::Timeline;

/// Pause between two attempts at a server.
pub(super) const RETRY: Duration = Duration::from_millis(100);

/// The two connections to a server.
pub(super) struct Pair {
    pub(super) server: ServerId,
    address: SocketAddr,
    control: Connection,
    data: Connection,
}

/// Connects to every server and starts the threads.
pub(super) fn open(options: RankOptions) -> Result<Exchange, ExchangeError> {
    check(&options)?;
    let process = draw_session();
    let until = Instant::now() + Duration::from(options.timeouts.timeout);
    let pairs: Vec<_> = (0..)
        .map(ServerId)
        .zip(&options.servers)
        .map(|(server, address)| {
            let call = |role| call(&options, process, server, *address, role, until);
            Ok(Pair { server, address: *address, control: call(Role::Control)?, data: call(Role::Data)? })
        })
        .collect::<Result<_, ExchangeError>>()?;
    let own = || Interfaces::new(options.policy.push(), options.packet(None));
    let interfaces = options.interfaces.clone().unwrap_or_else(own);
    let timeline = Timeline::new(options.timeline);
    let (state, changed) = (Mutex::new(State::default()), Condvar::new());
    let core = Arc::new(Core { options, process, interfaces, state, changed, timeline });
    // Whatever fails from here on, dropping it ends the threads that run.
    let exchange = Exchange { core };
    exchange.core.start(pairs)?;
    Ok(exchange)
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
    address: SocketAddr,
    until: Instant,
) -> Result<Pair, ExchangeError> {
    let call = |role| attempt(options, process, server, address, role, until);
    let refused = |why| ExchangeError::Server { server: server.0, address, why: Arc::new(why) };
    let control = call(Role::Control).map_err(refused)?;
    Ok(Pair { server, address, control, data: call(Role::Data).map_err(refused)? })
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
                thread::sleep(RETRY);
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
        local: options.local,
        survives: options.survives,
        capabilities: if options.recover { COMES_AGAIN } else { 0 },
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
        WireError::NobodyThere { .. } => true,
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
            let (server, address) = (pair.server, pair.address);
            let connected = self.attach(pair, 0)?;
            state.ways.push(Way::new(server, address, connected));
        }
        Ok(())
    }

    /// Takes the connections to a server apart and starts their threads. `epoch`: whose they are.
    pub(super) fn attach(self: &Arc<Self>, pair: Pair, epoch: u32) -> Result<Connected, ExchangeError> {
        let Pair { server, address, control, data } = pair;
        let (link, process) = (data.link(), control.welcome.session);
        let interface = self.interfaces.of(&link).map_err(system)?;
        let name = format!("{}-{server}", self.options.rank.0);
        let ear = ServerEar { core: Arc::clone(self), server, address, epoch };
        let control = Control::start(&name, control, self.options.timeouts, ear).map_err(system)?;
        let core = Arc::clone(self);
        let reader = Reader { core, server, address, epoch, receiver: data.receiver, room: Vec::new() };
        let reader = thread::Builder::new().name(format!("foresee-land-{name}")).spawn(move || reader.run());
        let reader = reader.map_err(|why| {
            control.link().shutdown();
            system(WireError::System { doing: "starting a thread", why })
        })?;
        let core = Arc::clone(self);
        let broken = Box::new(move |why: WireError| core.suspect(server, epoch, &why));
        let connection = interface.open(data.sender, self.options.timeouts, broken);
        Ok(Connected { process, control, interface, connection, data: link, reader: Some(reader) })
    }
}
