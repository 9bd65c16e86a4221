// SPDX-License-Identifier: Apache-2.0
//! How a rank comes to its servers: dial, prove, take the connections apart, start the threads.
//!
//! Refuses to give up on a server that is not up yet, or still keeps the place of a process that is gone, before the
//! timeout: jobs start in any order, and start again at once.

use std::hash::{BuildHasher as _, Hasher as _};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use foresee_grad_queue::ServerId;
use foresee_wire::{Connection, DialOptions, FaultCode, Hello, Purpose, Role, Secret, Wait, WireError, dial};

use super::receive::{Reader, ServerEar};
use super::state::State;
use super::{Core, Exchange, ExchangeError, Route};
use crate::control::Control;
use crate::interface::Interfaces;
use crate::options::RankOptions;
use crate::timeline::Timeline;

/// Pause between two attempts at a server.
const RETRY: Duration = Duration::from_millis(100);

/// The two connections to a server.
struct Pair {
    server: ServerId,
    address: SocketAddr,
    control: Connection,
    data: Connection,
}

/// Connects to every server and starts the threads.
pub(super) fn open(options: RankOptions) -> Result<Exchange, ExchangeError> {
    check(&options)?;
    let session = std::collections::hash_map::RandomState::new().build_hasher().finish();
    let until = Instant::now() + Duration::from(options.timeouts.timeout);
    let addresses = options.servers.clone();
    let pairs: Vec<_> = (0..)
        .map(ServerId)
        .zip(addresses)
        .map(|(server, address)| {
            let call = |role| call(&options, session, server, address, role, until);
            Ok(Pair { server, address, control: call(Role::Control)?, data: call(Role::Data)? })
        })
        .collect::<Result<_, ExchangeError>>()?;
    let timeline = Timeline::new(options.timeline);
    let state = Mutex::new(State::default());
    let core = Arc::new(Core { options, state, changed: Condvar::new(), timeline });
    start(&core, pairs)
}

fn check(options: &RankOptions) -> Result<(), ExchangeError> {
    let wrong = |name, found: String, rule| Err(ExchangeError::Setting { name, found, rule });
    let RankOptions { rank, world, local, servers, shares, .. } = options;
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
    if servers.is_empty() || servers.len() > 4096 {
        return wrong("the number of servers", servers.len().to_string(), "there are 1 to 4096");
    }
    if !shares.is_empty() && shares.len() != servers.len() {
        return wrong("the number of shares", shares.len().to_string(), "each server has one");
    }
    Ok(())
}

fn call(
    options: &RankOptions,
    session: u64,
    server: ServerId,
    address: SocketAddr,
    role: Role,
    until: Instant,
) -> Result<Connection, ExchangeError> {
    let hello = Hello {
        target: server.0.into(),
        session,
        local: options.local,
        ..Hello::new(Purpose::Gradients, role, options.job.as_str(), options.rank.0, options.world)
    };
    let how =
        DialOptions { link: options.link.clone(), tls: options.tls.clone(), timeouts: options.timeouts };
    reach(address, &hello, &options.secret, &how, Wait::Until(until)).map_err(|why| ExchangeError::Server {
        server: server.0,
        address,
        why: Arc::new(why),
    })
}

/// Dials until somebody answers for good, or the time is over.
pub(crate) fn reach(
    address: SocketAddr,
    hello: &Hello,
    secret: &Secret,
    how: &DialOptions,
    wait: Wait,
) -> Result<Connection, WireError> {
    loop {
        match dial(address, hello.clone(), secret, how, wait) {
            Err(why) if may_pass(&why) && Wait::within(RETRY).is_before(wait) => thread::sleep(RETRY),
            answer => return answer,
        }
    }
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

fn start(core: &Arc<Core>, pairs: Vec<Pair>) -> Result<Exchange, ExchangeError> {
    let system = |why| ExchangeError::System(Arc::new(why));
    let later: Arc<OnceLock<Arc<[Control]>>> = Arc::default();
    let ways: Arc<OnceLock<Vec<_>>> = Arc::default();
    let mut controls = Vec::with_capacity(pairs.len());
    let own = || Interfaces::new(core.options.policy.push(), core.options.packet(None));
    let interfaces = core.options.interfaces.clone().unwrap_or_else(own);
    let mut routes: Vec<(Route, Vec<_>)> = Vec::new();
    let mut readers = Vec::with_capacity(pairs.len());
    for Pair { server, address, control, data } in pairs {
        let ear = ServerEar {
            core: Arc::clone(core),
            server,
            address,
            controls: Arc::clone(&later),
            ways: Arc::clone(&ways),
        };
        let name = format!("{}-{server}", core.options.rank.0);
        controls.push(Control::start(&name, control, core.options.timeouts, ear).map_err(system)?);
        let link = data.link();
        let interface = interfaces.of(&link).map_err(system)?;
        let known = routes.iter().position(|(route, _)| route.interface.is(&interface));
        let at = known.unwrap_or_else(|| {
            routes.push((Route { interface, servers: [].into(), links: Vec::new() }, Vec::new()));
            routes.len() - 1
        });
        let (route, servers) = &mut routes[at];
        let lost = Arc::clone(core);
        let broken = Box::new(move |why: WireError| {
            let missing = "its control connection says nothing of it".into();
            lost.suspect(ExchangeError::ServerLost {
                server: server.0,
                address,
                why: why.to_string(),
                missing,
            });
        });
        servers.push((route.interface.open(data.sender, broken), server));
        route.links.push(link);
        readers.push((server, address, data.receiver));
    }
    let mut known = Vec::new();
    for (route, servers) in &routes {
        known.extend(
            servers.iter().map(|(connection, server)| (*server, route.interface.clone(), *connection)),
        );
    }
    ways.set(known).expect("it is set once");
    let controls: Arc<[Control]> = controls.into();
    later.set(Arc::clone(&controls)).expect("it is set once");
    for (server, address, receiver) in readers {
        let (core, controls) = (Arc::clone(core), Arc::clone(&controls));
        let name = format!("foresee-land-{}-{server}", core.options.rank.0);
        let reader = Reader { core, server, address, receiver, controls, room: Vec::new() };
        let spawned = thread::Builder::new().name(name).spawn(move || reader.run());
        spawned.map_err(|why| system(WireError::System { doing: "starting a thread", why }))?;
    }
    let routes =
        routes.into_iter().map(|(route, servers)| Route { servers: servers.into(), ..route }).collect();
    Ok(Exchange { core: Arc::clone(core), routes, controls })
}
