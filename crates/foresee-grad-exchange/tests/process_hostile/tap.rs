// SPDX-License-Identifier: Apache-2.0
//! A proxy between a dialler and its listener that forwards their bytes, and injects others.
//!
//! It parses frames only until both sides are authenticated.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use foresee_wire::HEADER_BYTES;

/// A side that leaves a connection silent for this long, without heartbeats, will never end it.
const LONG: Duration = Duration::from_secs(20);
/// Frames of a side until the other one has authenticated it.
const PROOF_FRAMES: usize = 2;

/// The receiver of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToListener,
    ToDialler,
}

pub(crate) struct Tap {
    address: SocketAddr,
    pairs: Arc<Mutex<Vec<Pair>>>,
    accepting: Option<JoinHandle<()>>,
}

struct Pair {
    near: TcpStream,
    far: TcpStream,
    pumps: Vec<JoinHandle<bool>>,
}

impl Tap {
    /// A proxy of the listener at `target`, for `connections` of one dialler.
    pub(crate) fn before(target: SocketAddr, connections: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let pairs: Arc<Mutex<Vec<Pair>>> = Arc::default();
        let shared = Arc::clone(&pairs);
        let accepting = thread::spawn(move || {
            for connection in 0..connections {
                let (near, _) = listener.accept().unwrap();
                let far = TcpStream::connect(target).unwrap();
                for end in [&near, &far] {
                    end.set_nodelay(true).unwrap();
                    end.set_read_timeout(Some(LONG)).unwrap();
                }
                let twice = |stream: &TcpStream| stream.try_clone().unwrap();
                let mut all = shared.lock().unwrap();
                // Registered before its first byte is forwarded.
                all.push(Pair { near: twice(&near), far: twice(&far), pumps: Vec::new() });
                for (from, to) in [(twice(&near), twice(&far)), (twice(&far), twice(&near))] {
                    all[connection].pumps.push(thread::spawn(move || pump(from, to)));
                }
            }
        });
        Self { address, pairs, accepting: Some(accepting) }
    }

    /// The address to dial.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Inject bytes. Errors of a connection that has ended are ignored.
    pub(crate) fn inject(&self, direction: Direction, connection: usize, bytes: &[u8]) {
        let pairs = self.pairs.lock().unwrap();
        let pair = &pairs[connection];
        let mut to = if direction == Direction::ToListener { &pair.far } else { &pair.near };
        to.set_write_timeout(Some(LONG / 10)).unwrap();
        let _ = to.write_all(bytes);
    }

    /// Whether all connections end after one side has left.
    pub(crate) fn ends(mut self) -> bool {
        self.accepting.take().unwrap().join().unwrap();
        let pairs = std::mem::take(&mut *self.pairs.lock().unwrap());
        let ended: Vec<bool> =
            pairs.into_iter().flat_map(|pair| pair.pumps).map(|pump| pump.join().unwrap()).collect();
        ended.into_iter().all(|by_itself| by_itself)
    }
}

/// Forward bytes until either end closes; false if neither does.
fn pump(mut from: TcpStream, mut to: TcpStream) -> bool {
    let ended = (|| -> std::io::Result<()> {
        for _ in 0..PROOF_FRAMES {
            let mut header = [0; HEADER_BYTES];
            from.read_exact(&mut header)?;
            let length = u32::from_le_bytes([header[20], header[21], header[22], header[23]]);
            let mut body = vec![0; length as usize];
            from.read_exact(&mut body)?;
            to.write_all(&header)?;
            to.write_all(&body)?;
        }
        let mut buffer = [0; 4096];
        loop {
            let count = from.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            to.write_all(&buffer[..count])?;
        }
    })();
    let _ = to.shutdown(Shutdown::Write);
    ended.map_or_else(|why| ![ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&why.kind()), |()| true)
}
