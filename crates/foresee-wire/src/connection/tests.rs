// SPDX-License-Identifier: Apache-2.0
//! Damaged byte streams, read from memory.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;

use foresee_testkit::property;
use foresee_units::Dtype;
use proptest::prelude::*;

use super::*;
use crate::control::{Message, Ping};
use crate::error::{FrameFault, WireError};
use crate::frame::{HEADER_BYTES, Header, Kind};
use crate::tcp::Tcp;
use crate::transport::{Transport, Wait};

pub(super) fn push(packet: u32, length: usize) -> Header {
    Header {
        dtype: Some(Dtype::F32),
        packet,
        tensor: 1,
        round: 5,
        class: 2,
        ..Header::control(Kind::Push, 3, u32::try_from(length).unwrap())
    }
}

pub(super) fn payload(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at * 7 + seed * 13) % 256).unwrap()).collect()
}

/// Returns bytes from memory in small steps, then the end.
#[derive(Debug)]
struct Script {
    tcp: Arc<Tcp>,
    bytes: Mutex<(Vec<u8>, usize)>,
    step: usize,
}

impl Transport for Script {
    fn send(&self, slices: &[IoSlice<'_>], _wait: Wait) -> io::Result<usize> {
        io::sink().write_vectored(slices)
    }

    fn flush(&self, _wait: Wait) -> io::Result<()> {
        Ok(())
    }

    fn receive(&self, slices: &mut [IoSliceMut<'_>], _wait: Wait, _whole: bool) -> io::Result<usize> {
        let mut state = self.bytes.lock().unwrap();
        let (bytes, at) = &mut *state;
        let mut count = 0;
        for slice in slices {
            let part = slice.len().min(bytes.len() - *at).min(self.step - count);
            slice[..part].copy_from_slice(&bytes[*at..*at + part]);
            *at += part;
            count += part;
        }
        Ok(count)
    }

    fn held(&self) -> usize {
        0
    }

    fn binding(&self) -> Option<[u8; 32]> {
        None
    }

    fn tcp(&self) -> &Tcp {
        &self.tcp
    }
}

/// Read a stream to its end or first fault; return the number of frames and the fault.
fn read_all(tcp: &Arc<Tcp>, bytes: Vec<u8>, step: usize) -> (usize, Option<WireError>) {
    let script = Script { tcp: Arc::clone(tcp), bytes: Mutex::new((bytes, 0)), step };
    let mut receiver = FrameReceiver::new(Arc::new(script));
    let mut frames = 0;
    loop {
        let outcome = match receiver.header(Wait::Never) {
            Ok(None) => return (frames, None),
            Ok(Some(header)) if header.kind.is_data() && frames % 2 == 0 => receiver.discard(Wait::Never),
            Ok(Some(header)) if header.kind.is_data() => {
                // No buffer is longer than a plan allows.
                if header.length > 4096 {
                    return (frames, None);
                }
                receiver.payload(&mut vec![0; header.length as usize], Wait::Never)
            }
            Ok(Some(_)) => receiver.message(Wait::Never).map(|_| ()),
            Err(fault) => Err(fault),
        };
        match outcome {
            Ok(()) => frames += 1,
            Err(fault) => return (frames, Some(fault)),
        }
        assert!(receiver.retained() <= 64 << 10);
    }
}

#[test]
fn damaged_streams_end_in_an_error_or_at_their_end() {
    // No byte uses it: a stream from memory only needs an address.
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let tcp = Arc::new(Tcp::new(File::open("/dev/null").unwrap().into(), address, address));
    let mut whole = Vec::new();
    for packet in 0..4 {
        let body = payload(0, 50);
        whole.extend(push(packet, 50).sealed(&body).encode().unwrap());
        whole.extend(body);
        let (header, body) = Message::Ping(Ping { number: packet.into() }).encode(0).unwrap();
        whole.extend(header.encode().unwrap());
        whole.extend(body);
    }
    assert!(matches!(read_all(&tcp, whole.clone(), 7), (8, None)));

    let mut runner = proptest::test_runner::TestRunner::new(property(10_000));
    let damage = (
        proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        any::<prop::sample::Index>(),
        1_usize..100,
    );
    runner
        .run(&damage, |(changes, end, step)| {
            let mut bytes = whole.clone();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(end.index(bytes.len() + 1));
            let (frames, fault) = read_all(&tcp, bytes, step);
            prop_assert!(frames <= 8);
            if let Some(fault) = fault {
                prop_assert!(
                    matches!(fault, WireError::Malformed { .. } | WireError::Cut { .. }),
                    "{}",
                    fault
                );
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(HEADER_BYTES, 32);
    assert!(matches!(
        read_all(&tcp, vec![0; 100], 100),
        (0, Some(WireError::Malformed { fault: FrameFault::Magic { found: 0 }, .. }))
    ));
}
