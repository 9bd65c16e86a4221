// SPDX-License-Identifier: Apache-2.0
//! Frames over TCP: handshake, TLS, and the byte counts behind a short send window.
//!
//! A connection is dialled ([`dial`]) or accepted ([`Listener`]), proved in both directions by the job's [`Secret`],
//! and then two halves: a [`FrameSender`] that never waits unless told to, and a [`FrameReceiver`] that reads a header,
//! then the payload into the caller's memory. Beside them a [`Link`] tells how many bytes are not acknowledged, and a
//! [`Poller`] wakes the sending thread when some are. Threads, not tasks: connections are few, long and full.
//!
//! Refuses to choose: which frame goes next is the caller's business, a class is a number to it, and a window is a
//! number that the caller compares with [`Link::queued`].
//!
//! | file | what it owns |
//! |---|---|
//! | `frame` | the 32 bytes before every payload |
//! | `control` | messages between the frames, each with a bound |
//! | `hello` | who dials whom, and for what |
//! | `secret` | where a job's secret may come from |
//! | `handshake` | the proofs of both ends |
//! | `listener` | what many strangers at once may cost |
//! | `tls` | encryption on request |
//! | `transport`, `tcp` | the byte stream under the frames |
//! | `socket` | dialling, binding and a socket's options |
//! | `send`, `receive` | the two halves of a connection |
//! | `link`, `facts` | what the system knows of a connection |
//! | `poller`, `bell` | where a sending thread waits, and what wakes it |
//! | `silence` | when a peer counts as dead |
//! | `sys` | questions that only some systems answer |

mod bell;
mod connection;
mod control;
mod error;
mod facts;
mod frame;
mod handshake;
mod hello;
mod link;
mod listener;
mod poller;
mod receive;
mod secret;
mod send;
mod silence;
mod socket;
mod sys;
mod tcp;
mod tls;
mod transport;

pub use bell::Waker;
pub use connection::Connection;
pub use control::{
    Ack, Bye, Change, Changed, Fault, FaultCode, Got, Known, Lost, MEMBER_BYTES_MAX, Members, Message,
    OPEN_ROUNDS_MAX, PLAN_BODY_MAX, Ping, Plan, Resume, Resumed, RoundDone, RoundEnd, SET_BYTES_MAX,
    TEXT_BYTES_MAX, Used, Waiting,
};
pub use error::{FrameFault, WireError};
pub use facts::{TcpInfo, drain_time};
pub use frame::{
    CONTROL_BYTES_MAX, DATA_BYTES_MAX, HANDSHAKE_BYTES_MAX, HEADER_BYTES, Header, Kind, MAGIC,
    PLAN_BYTES_MAX, VERSION, widen_round,
};
pub use handshake::{Arrival, DialOptions, Keys, dial};
pub use hello::{COMES_AGAIN, Hello, JOB_BYTES_MAX, Purpose, Role, Welcome, draw_session};
pub use link::Link;
pub use listener::{Closer, ListenOptions, Listener, Visits};
pub use poller::{Event, Poller};
pub use receive::FrameReceiver;
pub use secret::{ENV, SECRET_BYTES_MAX, SECRET_BYTES_MIN, Secret};
pub use send::{BATCH_MAX, FrameSender, Sending, Sent};
pub use silence::{Heartbeat, Silence, Timeouts};
pub use socket::LinkOptions;
pub use tls::{TlsClient, TlsServer};
pub use transport::Wait;
