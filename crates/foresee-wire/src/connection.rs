// SPDX-License-Identifier: Apache-2.0
//! An authenticated connection.
//!
//! Its halves are separate types because they live in different threads. Only the handshake creates a connection,
//! so an unauthenticated one does not exist.

use std::sync::Arc;

use crate::hello::{Hello, Welcome};
use crate::link::Link;
use crate::receive::FrameReceiver;
use crate::send::FrameSender;

/// An authenticated connection.
#[derive(Debug)]
pub struct Connection {
    /// The dialler's HELLO.
    pub hello: Hello,
    /// The listener's WELCOME.
    pub welcome: Welcome,
    /// A random number that the listener drew for this connection. Both ends know it, and it is unique.
    pub nonce: [u8; 32],
    /// The sending half.
    pub sender: FrameSender,
    /// The receiving half.
    pub receiver: FrameReceiver,
}

impl Connection {
    /// A handle of the connection as a whole.
    pub fn link(&self) -> Link {
        self.sender.link()
    }
}

/// The halves of a connection before its authentication.
#[derive(Debug)]
pub(crate) struct Halves {
    pub(crate) sender: FrameSender,
    pub(crate) receiver: FrameReceiver,
}

impl Halves {
    pub(crate) fn new(transport: Arc<dyn crate::transport::Transport>) -> Self {
        Self { sender: FrameSender::new(Arc::clone(&transport)), receiver: FrameReceiver::new(transport) }
    }

    pub(crate) fn into_connection(self, hello: Hello, welcome: Welcome, nonce: [u8; 32]) -> Connection {
        Connection { hello, welcome, nonce, sender: self.sender, receiver: self.receiver }
    }
}

#[cfg(test)]
mod process_tests;
#[cfg(test)]
mod tests;
