// SPDX-License-Identifier: Apache-2.0
//! The connections to every server: which can be used, and how a gradient is offered to them.
//!
//! A way is *open*, *lost*, or *resuming*: connected again, to a server that has not said yet what it goes on with. What a
//! server may not have yet is held here, since it took the place of a lost one and sums an older round of the same tensor
//! first.
//!
//! Refuses to connect, and to choose what may be sent: `Collect` does.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use foresee_grad_queue::{Collect, Connection, Flow, Round, ServerId, TensorId};
use foresee_wire::{Link, Message};

use super::keep::Kept;
use super::push::{Part, Push};
use crate::control::Control;
use crate::interface::Interface;
use crate::options::{BREAKS_MAX, SILENCES_MAX};

/// Both connections to one server, and what became of them.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) server: ServerId,
    pub(super) address: SocketAddr,
    pub(super) link: Connected,
    /// Counts what was connected in this place: whoever belongs to an earlier one speaks of nothing that counts.
    pub(super) epoch: u32,
    /// Whether that leads to the same server as what was connected before.
    pub(super) is_same: bool,
    pub(super) standing: Standing,
    /// Its data connection broke, and its control connection has not said why.
    pub(super) suspicion: Option<Suspicion>,
    /// What broke since a sum last came.
    pub(super) breaks: Breaks,
    /// Whom its server said last that it waits for, until it says anything else of rounds and plans.
    pub(super) waiting: Option<String>,
    /// It was lost before its server had said what it goes on with.
    pub(super) is_doubtful: bool,
    /// When it was last lost, and why.
    pub(super) lost: Option<(Instant, String)>,
    /// A thread is about to connect again.
    pub(super) mending: bool,
    /// Older rounds first.
    held: VecDeque<Arc<Push>>,
}

/// What a way consists of while it is there.
#[derive(Debug)]
pub(super) struct Connected {
    /// Which process of the server.
    pub(super) process: u64,
    pub(super) control: Control,
    pub(super) interface: Interface,
    pub(super) connection: Connection,
    pub(super) data: Link,
    /// Reads its sums; waited for before another one does.
    pub(super) reader: Option<JoinHandle<()>>,
}

/// Whether a way can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It can.
    Open,
    /// Its server was told what this rank knows, and has answered or not.
    Resuming(Option<Answered>),
    /// Nobody is there.
    Lost,
}

/// What a server goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Answered {
    /// Rounds before this one are done.
    pub(super) oldest: Round,
    /// Whether it has what it summed, being the one from before.
    pub(super) knows: bool,
}

/// What broke of a way since a sum last came over it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Breaks {
    /// How often it did.
    pub(super) times: u32,
    /// How often because nothing was acknowledged over its data connection.
    silences: u32,
    /// When it first did.
    first: Option<Instant>,
}

impl Breaks {
    /// Once more.
    pub(super) fn count(&mut self, silence: bool, now: Instant) {
        self.times += 1;
        self.silences += u32::from(silence);
        self.first.get_or_insert(now);
    }

    /// Whether another attempt after a silence may end better.
    pub(super) fn may_be_silent(&self) -> bool {
        self.silences < SILENCES_MAX
    }

    /// For how long connections have been made again to no purpose, where that was often enough not to go on with it.
    pub(super) fn endless(&self, timeout: Duration, now: Instant) -> Option<Duration> {
        let time = now.saturating_duration_since(self.first?);
        (self.times >= BREAKS_MAX && time >= timeout).then_some(time)
    }
}

/// Why a control connection is about to be taken for broken.
#[derive(Debug)]
pub(super) struct Suspicion {
    pub(super) at: Instant,
    pub(super) why: String,
    /// Whether nothing was acknowledged.
    pub(super) silence: bool,
}

/// The ways through one interface.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) interface: Interface,
    pub(super) servers: Arc<[(Connection, ServerId)]>,
}

/// The ways to all servers, in their order.
#[derive(Debug, Default)]
pub(super) struct Ways {
    all: Vec<Way>,
    /// Those that are open, by interface.
    routes: Arc<[Route]>,
}

impl Way {
    pub(super) fn new(server: ServerId, address: SocketAddr, link: Connected) -> Self {
        Self {
            server,
            address,
            link,
            epoch: 0,
            is_same: false,
            standing: Standing::Open,
            suspicion: None,
            breaks: Breaks::default(),
            waiting: None,
            is_doubtful: false,
            lost: None,
            mending: false,
            held: VecDeque::new(),
        }
    }

    /// Its connections are of no more use.
    fn lose(&mut self, why: &str) {
        if self.standing == Standing::Open {
            self.lost = Some((Instant::now(), why.to_owned()));
        }
        self.is_doubtful |= matches!(self.standing, Standing::Resuming(_));
        self.standing = Standing::Lost;
        (self.suspicion, self.waiting) = (None, None);
        // All of it is kept, and offered again when somebody is back.
        self.held.clear();
        self.link.interface.close(self.link.connection);
        self.link.data.shutdown();
        self.link.control.link().shutdown();
    }

    /// Whether a gradient may not be sent yet. An older one goes first: were a newer one in front of it, a payload that
    /// the server has no room for could keep back the one that it waits for.
    fn must_hold(&self, collect: &Collect, tensor: TensorId, round: Round) -> bool {
        self.held.front().is_some_and(|held| held.round < round)
            || !collect.may_push_to(self.server, tensor, round)
    }

    fn offer(&self, push: &Arc<Push>, flow: Flow, generation: u32) {
        let servers = [(self.link.connection, self.server)].into();
        offer(push, flow, generation, &Route { interface: self.link.interface.clone(), servers });
    }

    /// Offers what is held and may be sent now.
    fn release(&mut self, collect: &Collect, flow: Flow) {
        while let Some(round) = self.held.front().map(|push| push.round) {
            let mut left = VecDeque::new();
            for push in std::mem::take(&mut self.held) {
                if push.round == round && collect.may_push_to(self.server, push.tensor, round) {
                    self.offer(&push, flow, collect.generation());
                } else {
                    left.push_back(push);
                }
            }
            self.held = left;
            if round < collect.current() {
                self.link.interface.fence(flow);
            }
            if self.held.front().is_some_and(|push| push.round == round) {
                return;
            }
        }
    }
}

impl Ways {
    pub(super) fn push(&mut self, way: Way) {
        self.all.push(way);
        self.reroute();
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Way> {
        self.all.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Way> {
        self.all.iter_mut()
    }

    pub(super) fn get(&self, server: ServerId) -> Option<&Way> {
        self.all.get(usize::from(server.0))
    }

    pub(super) fn get_mut(&mut self, server: ServerId) -> Option<&mut Way> {
        self.all.get_mut(usize::from(server.0))
    }

    /// The open ones.
    pub(super) fn routes(&self) -> Arc<[Route]> {
        Arc::clone(&self.routes)
    }

    /// The interfaces of all ways, be they open or not.
    pub(super) fn interfaces(&self) -> Vec<Interface> {
        let mut found: Vec<Interface> = Vec::new();
        for way in &self.all {
            if !found.iter().any(|known| known.is(&way.link.interface)) {
                found.push(way.link.interface.clone());
            }
        }
        found
    }

    /// Whether every server is there and knows the job.
    pub(super) fn are_open(&self) -> bool {
        self.all.iter().all(|way| way.standing == Standing::Open)
    }

    /// Tells a server that knows the job.
    pub(super) fn tell(&self, server: ServerId, message: Message) {
        if let Some(way) = self.get(server).filter(|way| way.standing == Standing::Open) {
            way.link.control.tell(message);
        }
    }

    pub(super) fn lose(&mut self, server: ServerId, why: &str) {
        if let Some(way) = self.get_mut(server) {
            way.lose(why);
        }
        self.reroute();
    }

    /// A way has another standing.
    pub(super) fn stand(&mut self, server: ServerId, standing: Standing) {
        if let Some(way) = self.get_mut(server) {
            way.standing = standing;
        }
        self.reroute();
    }

    /// Through which interfaces a gradient goes now, and to whom; what others may not have yet is held.
    pub(super) fn routes_of(&mut self, push: &Arc<Push>, collect: &Collect) -> Arc<[Route]> {
        let mut holding = Vec::new();
        for way in self.all.iter_mut().filter(|way| way.standing == Standing::Open) {
            if way.must_hold(collect, push.tensor, push.round) {
                way.held.push_back(Arc::clone(push));
                holding.push(way.server);
            }
        }
        if holding.is_empty() {
            return self.routes();
        }
        let others = |route: &Route| {
            let servers = route.servers.iter().filter(|(_, server)| !holding.contains(server));
            Route { interface: route.interface.clone(), servers: servers.copied().collect() }
        };
        self.routes.iter().map(others).collect()
    }

    /// Offers everything that is kept to a server that has taken the place of a lost one, older rounds first.
    pub(super) fn offer_again(&mut self, server: ServerId, kept: &Kept, collect: &Collect, flow: Flow) {
        let Some(way) = self.get_mut(server) else { return };
        for pushes in kept.rounds() {
            way.held.extend(pushes.iter().cloned());
        }
        way.release(collect, flow);
    }

    /// Offers what is kept and has not landed here: under a new membership the server has forgotten it, and over a connection
    /// that broke it may not have come, unless the server has the result.
    pub(super) fn offer_missing(&mut self, server: ServerId, kept: &Kept, collect: &Collect, flow: Flow) {
        let Some(way) = self.get_mut(server) else { return };
        way.held.clear();
        for pushes in kept.rounds() {
            let missing = |push: &&Arc<Push>| {
                let Push { tensor, round, .. } = &***push;
                !collect.is_settled(*tensor, round.next()) || collect.is_asked_again(server, *tensor, *round)
            };
            way.held.extend(pushes.iter().filter(missing).cloned());
        }
        way.release(collect, flow);
    }

    /// Offers what is held and may be sent now.
    pub(super) fn release(&mut self, collect: &Collect, flow: Flow) {
        for way in self.all.iter_mut().filter(|way| !way.held.is_empty()) {
            way.release(collect, flow);
        }
    }

    fn reroute(&mut self) {
        let mut routes: Vec<(Interface, Vec<_>)> = Vec::new();
        for Way { server, link, .. } in self.all.iter().filter(|way| way.standing == Standing::Open) {
            let end = (link.connection, *server);
            match routes.iter_mut().find(|(interface, _)| interface.is(&link.interface)) {
                Some((_, ends)) => ends.push(end),
                None => routes.push((link.interface.clone(), vec![end])),
            }
        }
        self.routes = routes
            .into_iter()
            .map(|(interface, servers)| Route { interface, servers: servers.into() })
            .collect();
    }
}

/// Offers what of a gradient goes through one interface. Never waits.
pub(super) fn offer(push: &Arc<Push>, flow: Flow, generation: u32, route: &Route) {
    let (push, servers) = (Arc::clone(push), Arc::clone(&route.servers));
    let class = push.class();
    let part = Arc::new(Part { push, servers, generation });
    let lanes = part.lanes();
    if !lanes.is_empty() {
        route.interface.offer(flow, class, lanes, part);
    }
}
