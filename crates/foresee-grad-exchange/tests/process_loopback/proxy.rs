// SPDX-License-Identifier: Apache-2.0
//! A proxy between a rank and its servers that forwards bytes, and breaks connections for a moment or forever.
//!
//! Bytes in flight on a broken connection are lost, and either end may have received half of them.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::setup::Random;

/// The connections of one rank to all servers.
#[derive(Clone, Default)]
pub(crate) struct Proxy(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Both ends of each connection, in the order in which they were made.
    open: Vec<[TcpStream; 2]>,
    /// New connections are refused.
    is_cut: bool,
}

impl Proxy {
    /// The address through which a rank reaches `server`.
    pub(crate) fn to(&self, server: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = self.clone();
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(server) else { continue };
                let twice = |stream: &TcpStream| stream.try_clone().unwrap();
                {
                    let mut state = proxy.0.lock().unwrap();
                    if state.is_cut {
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

    /// Break all connections forever.
    pub(crate) fn cut(&self) {
        self.0.lock().unwrap().is_cut = true;
        self.break_all();
    }

    /// Break all connections; new ones are accepted.
    pub(crate) fn break_all(&self) {
        for pair in std::mem::take(&mut self.0.lock().unwrap().open) {
            shut_down(&pair);
        }
    }

    /// Break one connection.
    pub(crate) fn break_one(&self, random: &mut Random) {
        let mut state = self.0.lock().unwrap();
        if !state.open.is_empty() {
            let at = random.below(state.open.len() as u64) as usize;
            shut_down(&state.open.swap_remove(at));
        }
    }
}

fn shut_down(ends: &[TcpStream; 2]) {
    for end in ends {
        let _ = end.shutdown(Shutdown::Both);
    }
}
