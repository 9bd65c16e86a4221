// SPDX-License-Identifier: Apache-2.0
//! Two busy jobs at one server: each gets half of its outgoing rate, whatever its ranks and classes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use foresee_grad_exchange::{Gradient, GradientExchange, RankOptions, ServerExchange};
use foresee_grad_queue::{Dtype, TensorId};
use foresee_testkit::pause;
use foresee_wire::Secret;

use crate::setup::{Setup, end, in_threads, wait};
use crate::values::spec;

/// Bytes of each job, over all its ranks.
const BYTES: u64 = 24 << 20;

/// A proxy of a job's ranks that counts the bytes from the server and buffers them for slow readers. Otherwise the readers,
/// and not the server, would determine the shares.
#[derive(Clone, Default)]
struct Meter(Arc<Counts>);

#[derive(Default)]
struct Counts {
    received: AtomicU64,
    /// The proxy reads nothing from the server.
    is_stopped: AtomicBool,
}

impl Meter {
    fn received(&self) -> u64 {
        self.0.received.load(Ordering::Relaxed)
    }

    fn set_stopped(&self, is_stopped: bool) {
        self.0.is_stopped.store(is_stopped, Ordering::Relaxed);
    }

    /// The address through which a rank reaches `server`, with its two connections.
    fn to(&self, server: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, meter) = (listener.local_addr().unwrap(), self.clone());
        thread::spawn(move || {
            for near in listener.incoming().take(2).map(Result::unwrap) {
                let far = TcpStream::connect(server).unwrap();
                let twice = |stream: &TcpStream| stream.try_clone().unwrap();
                let (mut from, mut to) = (twice(&near), twice(&far));
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
                let meter = meter.clone();
                thread::spawn(move || meter.forward(far, near));
            }
        });
        address
    }

    fn forward(&self, mut from: TcpStream, mut to: TcpStream) {
        let (sender, buffered) = mpsc::channel::<Vec<u8>>();
        thread::spawn(move || {
            buffered.into_iter().take_while(|bytes| to.write_all(bytes).is_ok()).for_each(drop);
            let _ = to.shutdown(Shutdown::Write);
        });
        let mut buffer = vec![0; 1 << 18];
        loop {
            while self.0.is_stopped.load(Ordering::Relaxed) {
                pause(Duration::from_millis(1));
            }
            let Ok(count @ 1..) = from.read(&mut buffer) else { return };
            self.0.received.fetch_add(count as u64, Ordering::Relaxed);
            let _ = sender.send(buffer[..count].to_vec());
        }
    }
}

/// Poll without a pause: the bytes of a test pass in milliseconds.
fn poll_until(mut done: impl FnMut() -> bool) {
    while !done() {
        thread::yield_now();
    }
}

#[test]
fn two_busy_jobs_on_one_server_get_equal_shares() {
    let secret = Secret::draw().unwrap();
    let server = Setup::new(1, 1).serve(&secret);
    // One rank with the least urgent class, and two ranks with half as much each of the most urgent one.
    let jobs = [("one", 1_u32, 9), ("two", 2, 0)].map(|(job, world, class)| {
        let (setup, meter) = (Setup::new(world, 1), Meter::default());
        let tensor = spec("weights", Dtype::F32, BYTES / 4 / u64::from(world), class);
        let ranks: Vec<_> = (0..world)
            .map(|rank| {
                let servers = vec![meter.to(server[0].address())];
                let options = RankOptions { job: job.into(), servers, ..setup.rank(rank, &server, &secret) };
                ServerExchange::open(options).unwrap()
            })
            .collect();
        let ranks = in_threads(ranks, move |rank| {
            rank.agree(vec![tensor.clone()]).unwrap();
            rank
        });
        (ranks, meter)
    });
    // All sums wait at the server before any of them is counted.
    for (ranks, meter) in &jobs {
        meter.set_stopped(true);
        for rank in ranks {
            let bytes = usize::try_from(BYTES).unwrap() / ranks.len();
            rank.push(TensorId(0), Gradient::from_bytes(vec![0; bytes])).unwrap();
        }
    }
    let sent = |rank: &ServerExchange| rank.stats().interfaces.iter().map(|own| own.sent.get()).sum::<u64>();
    for (ranks, _) in &jobs {
        let own = BYTES / ranks.len() as u64;
        poll_until(|| ranks.iter().all(|rank| sent(rank) >= own));
    }
    for (_, meter) in &jobs {
        meter.set_stopped(false);
    }
    let received = || [jobs[0].1.received(), jobs[1].1.received()];
    // The sockets of twice as many connections held twice as many bytes.
    poll_until(|| received().iter().all(|bytes| *bytes > BYTES / 4));
    let before = received();
    poll_until(|| received().iter().any(|bytes| *bytes > BYTES * 7 / 8));
    let got =
        received().map(|bytes| bytes as f64).into_iter().zip(before).map(|(now, then)| now - then as f64);
    let got: Vec<f64> = got.collect();
    assert!((0.85..1.0 / 0.85).contains(&(got[0] / got[1])), "{got:?} bytes");
    for (ranks, _) in jobs {
        in_threads(ranks, |rank| {
            end(&rank);
            wait(&rank, &[TensorId(0)]);
        });
    }
}
