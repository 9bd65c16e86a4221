// SPDX-License-Identifier: Apache-2.0
//! Wires between ranks and servers: they pass bytes on, and break when told, for a moment or forever.
//!
//! What is on its way when a wire breaks is lost, and either end may have half of it.

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
    /// Nobody gets through any more.
    cut: bool,
}

impl Wires {
    /// The address through which a rank reaches `server`.
    pub(crate) fn to(&self, server: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let wires = self.clone();
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(server) else { continue };
                let twice = |stream: &TcpStream| stream.try_clone().unwrap();
                {
                    let mut state = wires.0.lock().unwrap();
                    if state.cut {
                        return;
                    }
                    state.open.push([twice(&near), twice(&far)]);
                }
                for (mut from, mut to) in [(twice(&near), twice(&far)), (far, near)] {
                    let _ = to.set_nodelay(true);
                    thread::spawn(move || {
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

    /// All of them; whoever dials again gets through.
    pub(crate) fn break_all(&self) {
        for pair in std::mem::take(&mut self.0.lock().unwrap().open) {
            part(&pair);
        }
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

fn part(ends: &[TcpStream; 2]) {
    for end in ends {
        let _ = end.shutdown(Shutdown::Both);
    }
}
