// SPDX-License-Identifier: Apache-2.0
//! Frames over TCP: handshake, TLS, and the byte counts behind a short send window.
//!
//! A connection is dialled ([`dial`]) or accepted ([`Listener`]), and authenticated in both directions with the
//! job's [`Secret`]. It then has two halves: a [`FrameSender`] that waits only on request, and a
//! [`FrameReceiver`] that reads a header, then the payload into the caller's memory. A [`Link`] reports the
//! unacknowledged bytes, and a [`Poller`] wakes the sending thread when some are acknowledged. The crate uses
//! threads instead of tasks, because connections are few, long-lived and busy.
//!
//! The caller chooses the next frame and compares its window with [`Link::queued`]; a class is only a number
//! here.
//!
//! | file | content |
//! |---|---|
//! | `frame` | the header of 32 bytes before every payload |
//! | `control` | control messages, each with a bound |
//! | `hello` | identity and purpose of a connection |
//! | `secret` | sources of a job's secret |
//! | `handshake` | mutual authentication |
//! | `listener` | bounds on unauthenticated connections |
//! | `tls` | optional encryption |
//! | `transport`, `tcp` | the byte stream under the frames |
//! | `socket` | dial, bind and socket options |
//! | `send`, `receive` | the two halves of a connection |
//! | `link`, `facts` | the kernel's data about a connection |
//! | `poller`, `waker` | waiting and wake-up of a sending thread |
//! | `silence` | liveness of a peer |
//! | `sys` | system calls that only some systems support |

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
mod waker;

pub use connection::Connection;
pub use control::{
    Ack, Bye, Change, Changed, Fault, FaultCode, Got, Known, Lost, MEMBER_BYTES_MAX, Members, Message,
    OPEN_ROUNDS_MAX, PLAN_BODY_MAX, Ping, Plan, Resume, Resumed, RoundDone, RoundEnd, SAMPLE_REQUESTS_MAX,
    SET_BYTES_MAX, SampleMessage, SampleRequest, TEXT_BYTES_MAX, Used, Waiting,
};
pub use error::{FrameFault, WireError};
pub use facts::{TcpInfo, drain_time};
pub use frame::{
    CONTROL_BYTES_MAX, DATA_BYTES_MAX, HANDSHAKE_BYTES_MAX, HEADER_BYTES, Header, Kind, MAGIC,
    PLAN_BYTES_MAX, SAMPLE_BYTES_MAX, VERSION, widen_round,
};
pub use handshake::{Arrival, DialOptions, Keys, dial};
pub use hello::{CAN_RECONNECT, Hello, JOB_BYTES_MAX, Purpose, Role, Welcome, draw_session};
pub use link::Link;
pub use listener::{Closer, ConnectionCounts, ListenOptions, Listener};
pub use poller::{Event, Poller};
pub use receive::FrameReceiver;
pub use secret::{ENV, SECRET_BYTES_MAX, SECRET_BYTES_MIN, Secret};
pub use send::{BATCH_MAX, FrameSender, Sending, Sent};
pub use silence::{Heartbeat, Silence, Timeouts};
pub use socket::LinkOptions;
pub use tls::{TlsClient, TlsServer};
pub use transport::Wait;
pub use waker::Waker;
