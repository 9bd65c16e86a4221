// SPDX-License-Identifier: Apache-2.0
//! Meshes of several nodes in one process, over the loopback.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use foresee_data_fetch::peers::{PeerMessage, PeerRequest};
use foresee_data_tier::{Dest, Payload};
use foresee_testkit::wait_until;
use foresee_units::{Nanos, NodeIndex, SampleId};
use foresee_wire::{
    DialOptions, Header, Hello, Kind, LinkOptions, Message, Purpose, Role, SAMPLE_BYTES_MAX, Secret,
    TlsClient, TlsServer, Wait, WireError, dial,
};

use super::mesh::{Mesh, MeshEvent, MeshEvents, PeerListener, PeerOptions};

/// The events of a node, as text.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn events(&self) -> MeshEvents {
        let log = self.clone();
        Arc::new(move |NodeIndex(node), event| {
            let text = match event {
                MeshEvent::Connected => format!("{node} connected"),
                MeshEvent::Disconnected(why) => format!("{node} disconnected: {why}"),
                MeshEvent::Message(message) => format!("{node}: {message:?}"),
                MeshEvent::Bytes(_) => return,
                MeshEvent::Received(sample, _) => format!("{node}: received {sample}"),
                MeshEvent::Sent(number) => format!("{node}: sent {number}"),
            };
            log.0.lock().expect("no panic").push(text);
        })
    }

    fn count(&self, part: &str) -> usize {
        self.0.lock().expect("no panic").iter().filter(|text| text.contains(part)).count()
    }

    fn wait_for(&self, part: &str) {
        wait_until(part, || self.count(part) > 0);
    }
}

fn secret(text: &str) -> Secret {
    Secret::from_text(text).expect("long enough")
}

fn options(own: u16, nodes: u16) -> PeerOptions {
    PeerOptions {
        job: "mesh".into(),
        own: NodeIndex(own),
        nodes,
        secret: secret("a secret of these tests"),
        tls: None,
        link: LinkOptions::default(),
    }
}

fn bind(options: PeerOptions) -> PeerListener {
    PeerListener::bind(options, (Ipv4Addr::LOCALHOST, 0).into()).expect("a free port")
}

/// Nodes that are connected to each other.
fn meshes(nodes: u16, change: impl Fn(&mut PeerOptions)) -> (Vec<Mesh>, Vec<Log>, Vec<SocketAddr>) {
    let listeners = (0..nodes).map(|own| {
        let mut options = options(own, nodes);
        change(&mut options);
        bind(options)
    });
    let listeners: Vec<_> = listeners.collect();
    let addresses: Vec<_> = listeners.iter().map(PeerListener::address).collect();
    let logs = vec![(); usize::from(nodes)].into_iter().map(|()| Log::default()).collect::<Vec<_>>();
    let connect = |(listener, log): (PeerListener, &Log)| listener.connect(&addresses, &log.events());
    let meshes = listeners.into_iter().zip(&logs).map(connect).collect::<Result<Vec<_>, _>>();
    let meshes = meshes.expect("threads");
    for log in &logs {
        wait_until("all nodes are connected", || log.count(" connected") == logs.len() - 1);
    }
    (meshes, logs, addresses)
}

#[test]
fn nodes_exchange_messages_and_samples() {
    let encryption = (TlsServer::drawn().expect("a certificate"), TlsClient::by_secret().expect("TLS"));
    for tls in [None, Some(encryption)] {
        let (meshes, logs, _) = meshes(3, |options| options.tls.clone_from(&tls));
        let large: Vec<u8> = (0..2 * SAMPLE_BYTES_MAX + 5).map(|at| (at % 251) as u8).collect();
        for (from, to) in [(0, 2), (2, 0), (1, 2)] {
            let (sample, node) = (SampleId(70_000 + u64::from(from)), NodeIndex);
            let (dest, scratch) = Dest::from_vec(vec![0; large.len()]);
            meshes[usize::from(to)].expect(node(from), sample, dest);
            meshes[usize::from(from)].send(node(to), PeerMessage::Offer(sample));
            assert!(meshes[usize::from(from)].send_sample(
                node(to),
                9,
                sample,
                Payload::from_vec(large.clone())
            ));
            let log = &logs[usize::from(to)];
            log.wait_for(&format!("{from}: received {sample}"));
            assert_eq!(log.count(&format!("{from}: Offer(SampleId({sample}))")), 1, "it arrived before");
            assert!(scratch.into_bytes().expect("it is complete") == large);
            logs[usize::from(from)].wait_for(&format!("{to}: sent 9"));
        }
        let request = PeerRequest { sample: SampleId(1), position: 9, deadline: Nanos::MAX };
        meshes[1].send(NodeIndex(0), PeerMessage::Request(vec![request]));
        logs[0].wait_for("1: Request([PeerRequest { sample: SampleId(1), position: 9");
    }
}

#[test]
fn a_sample_that_nobody_reads_is_dropped() {
    let (meshes, logs, _) = meshes(2, |_| ());
    let (dest, scratch) = Dest::from_vec(vec![0; 5]);
    meshes[1].expect(NodeIndex(0), SampleId(3), dest);
    meshes[1].withdraw(NodeIndex(0), SampleId(3));
    meshes[0].send_sample(NodeIndex(1), 0, SampleId(3), Payload::from_vec(vec![1; 5]));
    meshes[0].send(NodeIndex(1), PeerMessage::Passed(8));
    logs[1].wait_for("0: Passed(8)");
    assert_eq!(logs[1].count("received"), 0);
    assert_eq!(scratch.into_bytes().expect("it is not used"), [0; 5]);
}

#[test]
fn a_node_that_ends_says_so_and_may_come_back() {
    let (mut meshes, logs, addresses) = meshes(2, |_| ());
    drop(meshes.pop());
    logs[0].wait_for("1 disconnected: it has ended: the node's cache closes");
    assert!(!meshes[0].send_sample(NodeIndex(1), 0, SampleId(3), Payload::from_vec(vec![1; 5])));
    let again = Log::default();
    let _second = bind(options(1, 2)).connect(&addresses, &again.events()).expect("threads");
    again.wait_for("0 connected");
    wait_until("the node is connected again", || logs[0].count("1 connected") == 2);
}

#[test]
fn a_second_connection_of_a_node_replaces_the_first() {
    let (_meshes, logs, addresses) = meshes(2, |_| ());
    let again = Log::default();
    let _second = bind(options(1, 2)).connect(&addresses, &again.events()).expect("threads");
    again.wait_for("0 connected");
    logs[0].wait_for("1 disconnected");
    // The first one tries again, too, and finds its place taken, or takes it.
    logs[1].wait_for("0 disconnected");
}

#[test]
fn a_refused_node_is_told_why_and_not_connected_again() {
    let (meshes, logs, _) = meshes(2, |_| ());
    meshes[0].refuse(NodeIndex(1), "it has another plan".into());
    logs[1].wait_for("0 disconnected: it reports: it has another plan");
    logs[1].wait_for("this node makes no connection to the other end any more");
    assert_eq!(logs[0].count("1 connected"), 1);
}

/// Connect as a node with this HELLO and secret.
fn connect(to: SocketAddr, hello: Hello, with: &Secret) -> Result<foresee_wire::Connection, WireError> {
    dial(to, hello, with, &DialOptions::default(), Wait::within(foresee_testkit::WATCHDOG))
}

fn hello(rank: u32, world: u32, target: u32) -> Hello {
    Hello { target, ..Hello::new(Purpose::Samples, Role::Data, "mesh", rank, world) }
}

#[test]
fn strangers_and_nodes_of_other_jobs_are_refused_without_harm() {
    let (meshes, logs, addresses) = meshes(2, |_| ());
    let right = options(0, 2).secret;
    let error = |hello: Hello, secret: &Secret| {
        connect(addresses[0], hello, secret).expect_err("refused").to_string()
    };
    assert!(error(hello(1, 2, 0), &secret("another secret of theirs")).contains("secret"));
    let gradients = Hello { purpose: Purpose::Gradients, ..hello(1, 2, 0) };
    assert!(error(gradients, &right).contains("secret"), "another purpose is another secret");
    assert!(error(Hello { job: "other".into(), ..hello(1, 2, 0) }, &right).contains("secret"));
    assert!(error(hello(1, 3, 0), &right).contains("this job has 2 nodes, and the other end says 3"));
    assert!(error(hello(1, 2, 1), &right).contains("this is node 0, and the other end means node 1"));
    assert!(error(hello(0, 2, 0), &right).contains("node 0 waits for connections of node 0"));
    meshes[0].send(NodeIndex(1), PeerMessage::Passed(8));
    logs[1].wait_for("0: Passed(8)");
    assert_eq!(logs[0].count("disconnected"), 0);
}

#[test]
fn frames_that_are_not_for_nodes_end_the_connection_with_the_reason() {
    let listener = bind(options(0, 2));
    let address = listener.address();
    let log = Log::default();
    let mesh = listener.connect(&[address, address], &log.events()).expect("threads");
    let wait = || Wait::within(foresee_testkit::WATCHDOG);
    let told = |mut connection: foresee_wire::Connection| match connection.receiver.next_message(wait()) {
        Ok(Some(Message::Error(fault))) => fault.to_string(),
        other => panic!("{other:?}"),
    };
    let secret = options(0, 2).secret;
    let open = || {
        let before = log.count("1 connected");
        let connection = connect(address, hello(1, 2, 0), &secret).expect("admitted");
        wait_until("it is connected", || log.count("1 connected") > before);
        connection
    };

    let mut connection = open();
    let ping = Message::Ping(foresee_wire::Ping { number: 1 });
    connection.sender.send_message(&ping, 0, wait()).expect("sent");
    assert_eq!(told(connection), "it sent PING, which is not for nodes");

    let mut connection = open();
    let push = Header { dtype: Some(foresee_units::Dtype::F32), ..Header::control(Kind::Push, 0, 4) };
    connection.sender.send_all(&push, &[0; 4], wait()).expect("sent");
    assert_eq!(told(connection), "it sent PUSH, which is not for nodes");

    let mut connection = open();
    let (dest, _scratch) = Dest::from_vec(vec![0; 9]);
    mesh.expect(NodeIndex(1), SampleId(5), dest);
    connection.sender.send_all(&Header::sample(5, 0, 4), &[0; 4], wait()).expect("sent");
    assert_eq!(told(connection), "it sent part 0 of sample 5 with 4 bytes, of which 9 are missing");

    let mut connection = open();
    let damaged = Header { checksum: Some(1), ..Header::sample(5, 0, 4) };
    connection.sender.send_all(&damaged, &[0; 4], wait()).expect("sent");
    assert!(told(connection).contains("checksum"));
}
