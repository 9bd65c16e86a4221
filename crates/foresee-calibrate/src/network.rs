// SPDX-License-Identifier: Apache-2.0
//! Measurements of links between ranks: the rate of one direction, and the round trip of a small message.
//!
//! Rank 0 measures and every other rank responds: it counts the received bytes and returns each heartbeat. One
//! link at a time is measured, so that none affects another. The connection is that of the wire, authenticated by
//! the job's secret; the payload is arbitrary and is discarded.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foresee_units::Dtype;
use foresee_wire::{
    Bye, Connection, DialOptions, Header, Hello, Kind, ListenOptions, Listener, Message, Ping, Purpose, Role,
    Secret, Wait, Welcome, WireError, dial,
};

use crate::race::Tally;
use crate::{CalibrateError, Repeat, check_flag};

/// Name of the job in the handshake: only ranks that calibrate connect to each other.
const JOB: &str = "foresee-calibrate";
/// Bytes of a frame, large enough that the cost of its header is negligible.
const FRAME: u32 = 1 << 20;
/// Interval between two checks of the flag, and two attempts to connect to rank 0.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// A link that is silent for this time is broken.
const SILENCE: Duration = Duration::from_secs(20);
/// Round trips before the first timed one, during which both ends set up their state.
const ROUNDS_WARM_UP: usize = 3;

/// One repeat on one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRepeat {
    /// The rank at the other end.
    pub rank: u32,
    /// Bytes that it received from rank 0.
    pub sent: Repeat,
    /// Round trips of a message without payload; their median is the latency.
    pub rounds: Repeat,
}

/// Rank 0's part: wait at `address` for all others `within` a time, then measure link after link, `repeats`
/// times, for `lasts` each for the rate and half as long for round trips.
pub fn measure_links(
    address: SocketAddr,
    world: u32,
    secret: &Secret,
    repeats: u32,
    lasts: Duration,
    within: Duration,
    stop: &AtomicBool,
) -> Result<Vec<LinkRepeat>, CalibrateError> {
    let key = secret.clone();
    let keys: foresee_wire::Keys = Arc::new(move |hello: &Hello| is_ours(hello, world).then(|| key.clone()));
    let mut listener = Listener::bind(address, keys, ListenOptions::default())?;
    let expected = world.saturating_sub(1);
    let mut links: Vec<Connection> = Vec::new();
    let until = Instant::now() + within;
    while links.len() < expected as usize {
        check_flag(stop)?;
        if Instant::now() >= until {
            let connected = u32::try_from(links.len()).unwrap_or(u32::MAX);
            return Err(CalibrateError::RanksMissing { connected, expected, address, within: within.into() });
        }
        if let Some(arrival) = listener.accept(Wait::within(CHECK_INTERVAL))? {
            let link = arrival.welcome(Welcome::default(), Wait::within(SILENCE))?;
            // A restarted rank replaces its previous connection.
            links.retain(|other| other.hello.rank != link.hello.rank);
            links.push(link);
        }
    }
    drop(listener);
    links.sort_unstable_by_key(|link| link.hello.rank);
    let mut measured = Vec::new();
    for link in &mut links {
        let mut probe = LinkProbe { link, number: 0 };
        for _ in 0..ROUNDS_WARM_UP {
            probe.round()?;
        }
        for _ in 0..repeats {
            let rounds = probe.rounds(lasts / 2, stop)?;
            let sent = probe.send(lasts, stop)?;
            measured.push(LinkRepeat { rank: probe.link.hello.rank, sent, rounds });
        }
    }
    for link in &mut links {
        let bye = Message::Bye(Bye { reason: "measured".to_owned() });
        link.sender.send_message(&bye, 0, Wait::within(SILENCE))?;
    }
    Ok(measured)
}

/// The part of every other rank: dial rank 0 until it is there, and respond until rank 0 ends the measurement.
pub fn answer_links(
    address: SocketAddr,
    rank: u32,
    world: u32,
    secret: &Secret,
    within: Duration,
    stop: &AtomicBool,
) -> Result<(), CalibrateError> {
    let until = Instant::now() + within;
    let mut link = loop {
        let hello = Hello::new(Purpose::Samples, Role::Data, JOB, rank, world);
        match dial(address, hello, secret, &DialOptions::default(), Wait::within(SILENCE)) {
            Ok(link) => break link,
            Err(WireError::ConnectionRefused { .. }) if Instant::now() < until => {
                std::thread::sleep(CHECK_INTERVAL);
            }
            Err(why) => return Err(why.into()),
        }
        check_flag(stop)?;
    };
    // Other ranks are measured before this one, and rank 0 may still wait for some.
    let deadline = Instant::now() + within + SILENCE * world.min(1024);
    let mut payload = vec![0; FRAME as usize];
    loop {
        let header = match link.receiver.header(Wait::within(CHECK_INTERVAL)) {
            Ok(header) => header,
            Err(why) if why.is_late() && !stop.load(Ordering::Relaxed) && Instant::now() < deadline => {
                continue;
            }
            Err(_) if stop.load(Ordering::Relaxed) => return Err(CalibrateError::Stopped),
            Err(why) => return Err(why.into()),
        };
        match header {
            Some(Header { kind: Kind::Push, length, .. }) => {
                let into = payload.get_mut(..length as usize);
                match into {
                    Some(into) => link.receiver.payload(into, Wait::within(SILENCE))?,
                    None => link.receiver.discard(Wait::within(SILENCE))?,
                }
            }
            Some(_) => match link.receiver.message(Wait::within(SILENCE))? {
                Message::Bye(_) => return Ok(()),
                Message::Ping(ping) => {
                    link.sender.send_message(&Message::Ping(ping), 0, Wait::within(SILENCE))?;
                }
                _ => {}
            },
            None => return Err(WireError::Ended { peer: address }.into()),
        }
    }
}

fn is_ours(hello: &Hello, world: u32) -> bool {
    hello.job == JOB && hello.purpose == Purpose::Samples && hello.world == world && hello.rank > 0
}

/// The link under measurement.
struct LinkProbe<'a> {
    link: &'a mut Connection,
    number: u64,
}

impl LinkProbe<'_> {
    /// Wait until the peer has read all sent bytes.
    fn round(&mut self) -> Result<(), CalibrateError> {
        let (number, wait) = (self.number, Wait::within(SILENCE));
        self.number += 1;
        self.link.sender.send_message(&Message::Ping(Ping { number }), 0, wait)?;
        loop {
            match self.link.receiver.next_message(wait)? {
                Some(Message::Ping(answer)) if answer.number == number => return Ok(()),
                Some(_) => {}
                None => return Err(WireError::Ended { peer: self.link.link().peer() }.into()),
            }
        }
    }

    fn rounds(&mut self, lasts: Duration, stop: &AtomicBool) -> Result<Repeat, CalibrateError> {
        let mut tally = Tally::default();
        let began = Instant::now();
        loop {
            let sent = Instant::now();
            self.round()?;
            tally.add(0, sent.elapsed());
            check_flag(stop)?;
            if began.elapsed() >= lasts {
                return Ok(tally.repeat(began.elapsed()));
            }
        }
    }

    fn send(&mut self, lasts: Duration, stop: &AtomicBool) -> Result<Repeat, CalibrateError> {
        let payload = vec![1; FRAME as usize];
        let mut header = Header::control(Kind::Push, 0, FRAME);
        header.dtype = Some(Dtype::F32);
        let mut tally = Tally::default();
        let began = Instant::now();
        loop {
            let sent = Instant::now();
            self.link.sender.send_all(&header, &payload, Wait::within(SILENCE))?;
            tally.add(u64::from(FRAME), sent.elapsed());
            check_flag(stop)?;
            if began.elapsed() >= lasts {
                break;
            }
        }
        self.round()?;
        Ok(tally.repeat(began.elapsed()))
    }
}

#[cfg(test)]
mod process_tests;
