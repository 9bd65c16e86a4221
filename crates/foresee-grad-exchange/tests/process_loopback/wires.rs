// SPDX-License-Identifier: Apache-2.0
//! Wires between ranks and servers: they pass bytes on, and break when told, for a moment or for ever.
//!
//! Refuses to say goodbye: what is on its way when a wire breaks is lost, and either end may have half of it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::setup::Dice;

/// Wires of one rank to all servers.
#[derive(Clone, Default)]
pub(crate) struct Wires(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Both ends of each connection, in the order in which they were made.
    open: Vec<[TcpStream; 2]>,
    /// Nobody gets through for now, or ever.
    shut: bool,
    cut: bool,
    /// All break once so many bytes went to a server over one of them.
    bytes: Option<usize>,
}

impl Wires {
    /// The address through which a rank reaches `server`.
    pub(crate) fn to(&self, server: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let wires = self.clone();
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let shut = wires.0.lock().unwrap().shut;
                let Some(far) = (!shut).then(|| TcpStream::connect(server).ok()).flatten() else { continue };
                let twice = |stream: &TcpStream| stream.try_clone().unwrap();
                {
                    let mut state = wires.0.lock().unwrap();
                    if state.cut {
                        return;
                    }
                    state.open.push([twice(&near), twice(&far)]);
                }
                for (mut from, mut to, is_up) in [(twice(&near), twice(&far), true), (far, near, false)] {
                    let _ = to.set_nodelay(true);
                    let wires = wires.clone();
                    thread::spawn(move || {
                        let bytes = wires.0.lock().unwrap().bytes.filter(|_| is_up);
                        if let Some(bytes) = bytes {
                            pass(&mut from, &mut to, bytes);
                            wires.break_all();
                        }
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        address
    }

    /// All of them, for ever.
    pub(crate) fn cut(&self) {
        self.0.lock().unwrap().cut = true;
        self.break_all();
    }

    /// Those that are made from here on break, all at once, when one of them has taken so many bytes to a server.
    pub(crate) fn break_after(&self, bytes: usize) {
        self.0.lock().unwrap().bytes = Some(bytes);
    }

    /// All of them; whoever dials again gets through.
    pub(crate) fn break_all(&self) {
        for pair in std::mem::take(&mut self.0.lock().unwrap().open) {
            part(&pair);
        }
    }

    /// All of them, and nobody gets through until told otherwise.
    pub(crate) fn shut(&self, shut: bool) {
        self.0.lock().unwrap().shut = shut;
        if shut {
            self.break_all();
        }
    }

    /// The one that was made last: of one server, its data connection.
    pub(crate) fn break_last(&self) {
        let last = self.0.lock().unwrap().open.pop();
        part(&last.expect("there is one"));
    }

    /// One of them.
    pub(crate) fn break_one(&self, dice: &mut Dice) {
        let mut state = self.0.lock().unwrap();
        if !state.open.is_empty() {
            let at = dice.below(state.open.len() as u64) as usize;
            part(&state.open.swap_remove(at));
        }
    }
}

/// Passes up to so many bytes on; returns when the next one comes, or either end is gone.
fn pass(from: &mut TcpStream, to: &mut TcpStream, mut left: usize) {
    let mut room = [0; 4096];
    while let Ok(count) = from.read(&mut room) {
        if count == 0 || count > left || to.write_all(&room[..count]).is_err() {
            return;
        }
        left -= count;
    }
}

fn part(ends: &[TcpStream; 2]) {
    for end in ends {
        let _ = end.shutdown(Shutdown::Both);
    }
}
