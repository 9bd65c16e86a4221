// SPDX-License-Identifier: Apache-2.0
//! Two jobs with much to send on one server: each gets half of its way out, whatever ranks and classes it has.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use foresee_grad_exchange::{Exchange, Gradient, RankOptions};
use foresee_grad_queue::{Dtype, TensorId};
use foresee_testkit::pause;
use foresee_wire::Secret;

use crate::setup::{Setup, end, in_threads, wait};
use crate::values::spec;

/// Of each job, over all its ranks.
const BYTES: u64 = 24 << 20;

/// Wires of a job's ranks, which count what comes down and keep it for whoever is slow to take it: else the readers, not
/// the server, would say who gets how much.
#[derive(Clone, Default)]
struct Meter(Arc<Counts>);

#[derive(Default)]
struct Counts {
    down: AtomicU64,
    /// Nothing is taken from the server for now.
    stopped: AtomicBool,
}

impl Meter {
    fn down(&self) -> u64 {
        self.0.down.load(Ordering::Relaxed)
    }

    fn stop(&self, stopped: bool) {
        self.0.stopped.store(stopped, Ordering::Relaxed);
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
                thread::spawn(move || meter.take(far, near));
            }
        });
        address
    }

    fn take(&self, mut from: TcpStream, mut to: TcpStream) {
        let (give, kept) = mpsc::channel::<Vec<u8>>();
        thread::spawn(move || {
            kept.into_iter().take_while(|bytes| to.write_all(bytes).is_ok()).for_each(drop);
            let _ = to.shutdown(Shutdown::Write);
        });
        let mut room = vec![0; 1 << 18];
        loop {
            while self.0.stopped.load(Ordering::Relaxed) {
                pause(Duration::from_millis(1));
            }
            let Ok(count @ 1..) = from.read(&mut room) else { return };
            self.0.down.fetch_add(count as u64, Ordering::Relaxed);
            let _ = give.send(room[..count].to_vec());
        }
    }
}

/// Looks without a pause: the bytes of a test pass in milliseconds.
fn until(mut done: impl FnMut() -> bool) {
    while !done() {
        thread::yield_now();
    }
}

#[test]
fn two_jobs_on_one_server_get_equally_much_while_both_want_all() {
    let secret = Secret::draw().unwrap();
    let server = Setup::new(1, 1).serve(&secret);
    // One rank with all that is least urgent, and two with half as much each of what is most.
    let jobs = [("one", 1_u32, 9), ("two", 2, 0)].map(|(job, world, class)| {
        let (setup, meter) = (Setup::new(world, 1), Meter::default());
        let tensor = spec("weights", Dtype::F32, BYTES / 4 / u64::from(world), class);
        let ranks: Vec<_> = (0..world)
            .map(|rank| {
                let servers = vec![meter.to(server[0].address())];
                let options = RankOptions { job: job.into(), servers, ..setup.rank(rank, &server, &secret) };
                Exchange::open(options).unwrap()
            })
            .collect();
        let ranks = in_threads(ranks, move |rank| {
            rank.agree(vec![tensor.clone()]).unwrap();
            rank
        });
        (ranks, meter)
    });
    // All sums wait at the server before any of them counts.
    for (ranks, meter) in &jobs {
        meter.stop(true);
        for rank in ranks {
            let bytes = usize::try_from(BYTES).unwrap() / ranks.len();
            rank.push(TensorId(0), Gradient::from_bytes(vec![0; bytes])).unwrap();
        }
    }
    let sent = |rank: &Exchange| rank.stats().interfaces.iter().map(|own| own.sent.get()).sum::<u64>();
    for (ranks, _) in &jobs {
        let own = BYTES / ranks.len() as u64;
        until(|| ranks.iter().all(|rank| sent(rank) >= own));
    }
    for (_, meter) in &jobs {
        meter.stop(false);
    }
    let down = || [jobs[0].1.down(), jobs[1].1.down()];
    // What lay in the sockets of twice as many connections is twice as much.
    until(|| down().iter().all(|down| *down > BYTES / 4));
    let before = down();
    until(|| down().iter().any(|down| *down > BYTES * 7 / 8));
    let got = down().map(|down| down as f64).into_iter().zip(before).map(|(now, then)| now - then as f64);
    let got: Vec<f64> = got.collect();
    assert!((0.85..1.0 / 0.85).contains(&(got[0] / got[1])), "{got:?} bytes");
    for (ranks, _) in jobs {
        in_threads(ranks, |rank| {
            end(&rank);
            wait(&rank, &[TensorId(0)]);
        });
    }
}
