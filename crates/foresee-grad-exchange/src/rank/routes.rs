// SPDX-License-Identifier: Apache-2.0
//! Connections to servers, and offers of gradients to their interfaces.

use std::sync::Arc;
use std::thread::JoinHandle;

use foresee_grad_queue::{Connection, Flow, ServerId};
use foresee_wire::Link;

use super::push::{Push, RoutedPush};
use crate::control::Control;
use crate::interface::Interface;

/// Both connections to one server.
#[derive(Debug)]
pub(super) struct ServerLink {
    pub(super) control: Control,
    pub(super) interface: Interface,
    pub(super) connection: Connection,
    pub(super) data: Link,
    /// The thread that reads its sums; joined before another one starts.
    pub(super) reader: Option<JoinHandle<()>>,
}

/// The connections through one interface.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) interface: Interface,
    pub(super) servers: Arc<[(Connection, ServerId)]>,
}

impl ServerLink {
    pub(super) fn close(&self) {
        self.interface.close(self.connection);
        self.data.shutdown();
        self.control.link().shutdown();
    }

    /// The route to this server only.
    pub(super) fn route(&self, server: ServerId) -> Route {
        Route { interface: self.interface.clone(), servers: [(self.connection, server)].into() }
    }
}

/// The routes to these servers, one per interface.
pub(super) fn routes<'a>(links: impl Iterator<Item = (ServerId, &'a ServerLink)>) -> Arc<[Route]> {
    let mut routes: Vec<(Interface, Vec<_>)> = Vec::new();
    for (server, link) in links {
        let end = (link.connection, server);
        match routes.iter_mut().find(|(interface, _)| interface.is_same(&link.interface)) {
            Some((_, ends)) => ends.push(end),
            None => routes.push((link.interface.clone(), vec![end])),
        }
    }
    routes.into_iter().map(|(interface, servers)| Route { interface, servers: servers.into() }).collect()
}

/// The routes without these servers.
pub(super) fn without(routes: &[Route], servers: &[ServerId]) -> Arc<[Route]> {
    let others = |route: &Route| {
        let left = route.servers.iter().filter(|(_, server)| !servers.contains(server));
        Route { interface: route.interface.clone(), servers: left.copied().collect() }
    };
    routes.iter().map(others).collect()
}

/// Offer the packets of a gradient that go through one interface. Never waits.
pub(super) fn offer(push: &Arc<Push>, flow: Flow, generation: u32, route: &Route) {
    let (push, servers) = (Arc::clone(push), Arc::clone(&route.servers));
    let order = (push.round, push.class());
    let routed = Arc::new(RoutedPush { push, servers, generation });
    let streams = routed.streams();
    if !streams.is_empty() {
        route.interface.offer(flow, order, streams, routed);
    }
}
