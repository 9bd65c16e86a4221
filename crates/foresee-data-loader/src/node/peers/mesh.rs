// SPDX-License-Identifier: Apache-2.0
//! One connection to each other node of a job.
//!
//! Of two nodes the one with the higher number connects to the other, and again when a connection has ended. A new connection
//! replaces an older one: a node that was started again is not refused because of its former self.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use foresee_data_fetch::peers::PeerMessage;
use foresee_data_tier::{Dest, Payload};
use foresee_units::{Bytes, NodeIndex, SampleId};
use foresee_wire::{
    Arrival, Closer, Connection, DialOptions, Fault, FaultCode, Hello, Link, LinkOptions, ListenOptions,
    Listener, Purpose, Role, Secret, Timeouts, TlsClient, TlsServer, Wait, Welcome, WireError, dial,
    draw_session,
};

use super::receive::{Expected, ReceiveError, Received, receive};
use super::send::{SendQueue, queue};

/// Pause before another attempt to connect. Each one doubles it, up to a maximum, until a connection has lasted: two processes
/// that take each other for the same node do so slowly.
const RETRY: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);
const STABLE: Duration = Duration::from_secs(10);
/// Time to answer a node that has connected.
const WELCOME_TIME: Duration = Duration::from_millis(200);
/// Bytes that the system takes from a sender ahead of the link: a sample that becomes urgent waits for them.
const SEND_BUFFER: Bytes = Bytes::new(1 << 20);

/// What the nodes of a job have in common, and this one's number.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// Name of the exchange: nodes that connect with another one are refused.
    pub job: String,
    /// This node.
    pub own: NodeIndex,
    /// Number of nodes.
    pub nodes: u16,
    /// The secret of the job.
    pub secret: Secret,
    /// Encryption, on all nodes or none.
    pub tls: Option<(TlsServer, TlsClient)>,
    /// Options of the sockets.
    pub link: LinkOptions,
}

/// What happens on the connections, in order for each node.
#[derive(Debug)]
pub(crate) enum MeshEvent {
    /// There is a connection.
    Connected,
    /// It has ended, with the reason. What was to be sent is not used any more, and nothing is received.
    Disconnected(String),
    Message(PeerMessage),
    /// Bytes of a sample have arrived that is incomplete or not wanted.
    Bytes(Bytes),
    /// A sample is in the memory of its read; with the bytes that have arrived last.
    Received(SampleId, Bytes),
    /// The bytes of the sample that was sent with this number are not needed any more.
    Sent(u64),
}

/// Receives events, from several threads.
pub(crate) type MeshEvents = Arc<dyn Fn(NodeIndex, MeshEvent) + Send + Sync>;

/// A listening node, before it knows where the others are.
#[derive(Debug)]
pub struct PeerListener {
    options: PeerOptions,
    listener: Listener,
}

/// The connections of a node. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Mesh {
    peers: Vec<Option<Arc<Peer>>>,
    closer: Closer,
}

/// Another node.
struct Peer {
    node: NodeIndex,
    options: PeerOptions,
    session: u64,
    /// Where it listens, if this node connects to it.
    address: Option<SocketAddr>,
    events: MeshEvents,
    state: Mutex<PeerState>,
    changed: Condvar,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("node", &self.node).field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct PeerState {
    live: Option<Live>,
    /// It has connected again.
    arrival: Option<Arrival>,
    is_closed: bool,
}

/// A connection in use.
#[derive(Clone, Debug)]
struct Live {
    queue: SendQueue,
    expected: Arc<Expected>,
    link: Link,
}

impl PeerListener {
    /// Listen at an address of this node; the system chooses port 0.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn bind(options: PeerOptions, address: SocketAddr) -> Result<Self, WireError> {
        let (secret, job) = (options.secret.clone(), options.job.clone());
        let keys = Arc::new(move |hello: &Hello| {
            (hello.purpose == Purpose::Samples && hello.job == job).then(|| secret.clone())
        });
        let listen = ListenOptions {
            link: options.link.clone(),
            tls: options.tls.as_ref().map(|(server, _)| server.clone()),
            ..ListenOptions::default()
        };
        Ok(Self { listener: Listener::bind(address, keys, listen)?, options })
    }

    /// Where the other nodes find this one.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// What it was created with.
    pub(crate) fn options(&self) -> &PeerOptions {
        &self.options
    }

    /// Connect to the other nodes. `addresses`: of all nodes, in their order.
    ///
    /// # Errors
    /// The system refuses random numbers or a thread.
    ///
    /// # Panics
    /// If there are not as many addresses as nodes.
    pub(crate) fn connect(self, addresses: &[SocketAddr], events: &MeshEvents) -> Result<Mesh, WireError> {
        let Self { options, mut listener } = self;
        assert_eq!(addresses.len(), usize::from(options.nodes), "each node has an address");
        let session = draw_session()?;
        let peer = |(node, &address): (u16, &SocketAddr)| {
            (node != options.own.0).then(|| {
                Arc::new(Peer {
                    node: NodeIndex(node),
                    address: (node < options.own.0).then_some(address),
                    options: options.clone(),
                    session,
                    events: Arc::clone(events),
                    state: Mutex::default(),
                    changed: Condvar::new(),
                })
            })
        };
        let peers: Vec<_> = (0_u16..).zip(addresses).map(peer).collect();
        let mesh = Mesh { peers, closer: listener.closer() };
        for peer in mesh.peers.iter().flatten().map(Arc::clone) {
            start_thread(format!("foresee-peer-{}", peer.node), move || peer.run())?;
        }
        let peers = mesh.peers.clone();
        start_thread("foresee-peers".into(), move || {
            while let Ok(Some(arrival)) = listener.accept(Wait::Forever) {
                admit(&peers, &options, arrival);
            }
        })?;
        Ok(mesh)
    }
}

impl Mesh {
    /// Send a message to a node, if it is connected.
    pub(crate) fn send(&self, node: NodeIndex, message: PeerMessage) {
        if let Some(live) = self.live(node) {
            live.queue.message(message);
        }
    }

    /// Send a sample to a node, with a number of the caller. Returns `false` if it is not connected; otherwise [`MeshEvent::Sent`] or
    /// [`MeshEvent::Disconnected`] says when its bytes are not needed any more.
    pub(crate) fn send_sample(
        &self,
        node: NodeIndex,
        number: u64,
        sample: SampleId,
        payload: Payload,
    ) -> bool {
        let live = self.live(node);
        live.map(|live| live.queue.sample(number, sample, payload)).is_some()
    }

    /// Receive a sample from a node into this memory; without effect if it is not connected.
    pub(crate) fn expect(&self, node: NodeIndex, sample: SampleId, dest: Dest) {
        if let Some(live) = self.live(node) {
            live.expected.add(sample, dest);
        }
    }

    /// Do not receive a sample from a node. Its memory is not used any more.
    pub(crate) fn withdraw(&self, node: NodeIndex, sample: SampleId) {
        if let Some(live) = self.live(node) {
            live.expected.remove(sample);
        }
    }

    /// End the connection to a node, which is told why, and make no other one.
    pub(crate) fn refuse(&self, node: NodeIndex, why: String) {
        if let Some(peer) = self.peers.get(usize::from(node.0)).and_then(Option::as_ref) {
            peer.close(Err(Fault::new(FaultCode::Plan, why)));
        }
    }

    fn live(&self, node: NodeIndex) -> Option<Live> {
        let peer = self.peers.get(usize::from(node.0))?.as_ref()?;
        peer.state().live.clone()
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.closer.close();
        for peer in self.peers.iter().flatten() {
            peer.close(Ok("the node's cache closes".into()));
        }
    }
}

/// Give a connection to the thread of its node, or refuse it.
fn admit(peers: &[Option<Arc<Peer>>], options: &PeerOptions, arrival: Arrival) {
    let Hello { rank, world, target, .. } = *arrival.hello();
    let (own, nodes) = (u32::from(options.own.0), u32::from(options.nodes));
    let peer = usize::try_from(rank).ok().and_then(|rank| peers.get(rank)?.as_ref());
    let text = match peer {
        _ if world != nodes => format!("this job has {nodes} nodes, and the other end says {world}"),
        _ if target != own => format!("this is node {own}, and the other end means node {target}"),
        Some(peer) if peer.address.is_none() => return peer.arrive(arrival),
        _ => format!("node {rank} waits for connections of node {own}"),
    };
    // One that has left does not need the reason.
    let _ = arrival.refuse(Fault::new(FaultCode::Plan, text), Wait::Never);
}

impl Peer {
    /// Connect again and again, until it is closed.
    fn run(&self) {
        let (mut last_failure, mut pause) = (None, RETRY);
        while !self.state().is_closed {
            let since = Instant::now();
            match self.next_connection() {
                Ok(None) => return,
                Ok(Some(connection)) => {
                    last_failure = None;
                    let why = self.serve(connection);
                    (self.events)(self.node, MeshEvent::Disconnected(why));
                }
                Err(why) => {
                    // The reason is reported once, and not at each attempt.
                    let why = why.to_string();
                    if last_failure.as_ref() != Some(&why) {
                        (self.events)(self.node, MeshEvent::Disconnected(why.clone()));
                        last_failure = Some(why);
                    }
                }
            }
            if since.elapsed() >= STABLE {
                pause = RETRY;
            }
            // The end that waits for connections needs no pause.
            if self.address.is_some() {
                self.pause(pause);
                pause = (2 * pause).min(RETRY_MAX);
            }
        }
    }

    /// Connect to the node, or wait until it connects; `None` if this is closed.
    fn next_connection(&self) -> Result<Option<Connection>, WireError> {
        let PeerOptions { job, own, nodes, secret, tls, link } = &self.options;
        if let Some(address) = self.address {
            let hello = Hello {
                target: self.node.0.into(),
                session: self.session,
                ..Hello::new(Purpose::Samples, Role::Data, job.clone(), own.0.into(), (*nodes).into())
            };
            let timeouts = Timeouts::default();
            let tls = tls.as_ref().map(|(_, client)| client.clone());
            let options = DialOptions { link: link.clone(), tls, timeouts };
            return dial(address, hello, secret, &options, Wait::within(timeouts.handshake)).map(Some);
        }
        let mut state = self.state();
        loop {
            if state.is_closed {
                return Ok(None);
            }
            if let Some(arrival) = state.arrival.take() {
                drop(state);
                let welcome = Welcome { session: self.session, ..Welcome::default() };
                return arrival.welcome(welcome, Wait::within(WELCOME_TIME)).map(Some);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Use a connection until it ends; return why.
    fn serve(&self, connection: Connection) -> String {
        let link = connection.link();
        let Connection { mut sender, mut receiver, .. } = connection;
        // Without it the system's own buffer is used.
        let _ = link.limit_send_buffer(SEND_BUFFER);
        let (queue, outbox) = queue();
        let expected = Arc::new(Expected::default());
        {
            let mut state = self.state();
            if state.is_closed || state.arrival.is_some() {
                return "another connection replaces it".into();
            }
            let live = Live { queue: queue.clone(), expected: Arc::clone(&expected), link: link.clone() };
            state.live = Some(live);
        }
        (self.events)(self.node, MeshEvent::Connected);
        let (node, events, ended) = (self.node, Arc::clone(&self.events), link.clone());
        let sending = start_thread(format!("foresee-send-{node}"), move || {
            // Why it cannot be sent is what the receiving half reports.
            let _ = outbox.run(&mut sender, |number| events(node, MeshEvent::Sent(number)));
            ended.shutdown();
        });
        let why = match &sending {
            Err(why) => why.to_string(),
            Ok(_) => self.receive(&mut receiver, &expected, &queue),
        };
        self.state().live = None;
        drop(queue);
        if let Ok(thread) = sending {
            // Its panic was printed already.
            let _ = thread.join();
        }
        link.shutdown();
        why
    }

    /// Receive until the connection ends; return why. What the other node has done wrong it is told.
    fn receive(
        &self,
        receiver: &mut foresee_wire::FrameReceiver,
        expected: &Expected,
        queue: &SendQueue,
    ) -> String {
        let error: ReceiveError = receive(receiver, expected, |received| {
            let event = match received {
                Received::Message(message) => MeshEvent::Message(message),
                Received::Bytes(bytes) => MeshEvent::Bytes(bytes),
                Received::Sample(sample, bytes) => MeshEvent::Received(sample, bytes),
            };
            (self.events)(self.node, event);
        });
        match error.fault() {
            Some(fault) => queue.end(Err(fault)),
            None => self.shutdown(),
        }
        error.to_string()
    }

    /// The node has connected, again if there is a connection, which ends.
    fn arrive(&self, arrival: Arrival) {
        let mut state = self.state();
        if state.is_closed {
            drop(state);
            let text = "this node makes no connection to the other end any more";
            let _ = arrival.refuse(Fault::new(FaultCode::Closing, text), Wait::Never);
            return;
        }
        state.arrival = Some(arrival);
        if let Some(live) = &state.live {
            live.link.shutdown();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// End the connection, and make no other one.
    fn close(&self, reason: Result<String, Fault>) {
        let mut state = self.state();
        state.is_closed = true;
        state.arrival = None;
        if let Some(live) = &state.live {
            live.queue.end(reason);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// End the connection at once, so that its sending half ends.
    fn shutdown(&self) {
        if let Some(live) = &self.state().live {
            live.link.shutdown();
        }
    }

    fn pause(&self, time: Duration) {
        let state = self.state();
        if !state.is_closed {
            drop(self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn state(&self) -> MutexGuard<'_, PeerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn start_thread(
    name: String,
    run: impl FnOnce() + Send + 'static,
) -> Result<std::thread::JoinHandle<()>, WireError> {
    let thread = Builder::new().name(name).spawn(run);
    thread.map_err(|why| WireError::System { doing: "starting a thread", why })
}
