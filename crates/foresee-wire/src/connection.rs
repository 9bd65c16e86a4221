// SPDX-License-Identifier: Apache-2.0
//! A connection whose two ends have proved themselves to each other.
//!
//! Apart from its halves, which live in different threads. Refuses to exist unproved: only the handshake makes one.

use std::sync::Arc;

use crate::hello::{Hello, Welcome};
use crate::link::Link;
use crate::receive::FrameReceiver;
use crate::send::FrameSender;

/// A proved connection.
#[derive(Debug)]
pub struct Connection {
    /// What the dialler said of itself.
    pub hello: Hello,
    /// What the listener answered.
    pub welcome: Welcome,
    /// Drawn by the listener for this connection: a number that both ends know, and that no other connection has.
    pub nonce: [u8; 32],
    /// The half that sends.
    pub sender: FrameSender,
    /// The half that receives.
    pub receiver: FrameReceiver,
}

impl Connection {
    /// The connection as a whole.
    pub fn link(&self) -> Link {
        self.sender.link()
    }
}

/// The halves of a connection that is not proved yet.
#[derive(Debug)]
pub(crate) struct Halves {
    pub(crate) sender: FrameSender,
    pub(crate) receiver: FrameReceiver,
}

impl Halves {
    pub(crate) fn new(transport: Arc<dyn crate::transport::Transport>) -> Self {
        Self { sender: FrameSender::new(Arc::clone(&transport)), receiver: FrameReceiver::new(transport) }
    }
}

#[cfg(test)]
mod process_tests;
#[cfg(test)]
mod tests;
