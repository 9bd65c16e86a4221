// SPDX-License-Identifier: Apache-2.0
//! The rules of one scheduler, as data.
//!
//! They are separate from the named policies, which also determine packet sizes and the time of a server's
//! answer.

use std::num::{NonZeroU32, NonZeroU64};

use foresee_units::Bytes;

/// The order of the offers of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In order of arrival; rounds and classes have no effect.
    Readiness,
    /// The earliest round first, then the lowest class, then in order of arrival.
    Class,
}

/// The set of connections over which an order holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each connection separately; connections take turns for any waiting packets, as with one sender per
    /// connection.
    Connection,
    /// All connections: the first in order goes first, over any connection.
    Interface,
}

/// The bytes that are compared with the window before a packet starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// None: packets go until the socket accepts no more.
    None,
    /// The bytes in flight over the packet's own connection. With `n` busy connections, up to `n` windows are
    /// ahead of an urgent packet.
    Connection,
    /// The bytes in flight over all connections together.
    Interface,
}

/// The rules of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The order of offers.
    pub order: Order,
    /// The connections over which the order holds.
    pub scope: Scope,
    /// The bytes that the window bounds.
    pub window: Window,
    /// The window's size; with `None` it follows the link ([`window_bytes`](crate::window_bytes)). A window of 0
    /// lets a packet start when nothing else is in flight.
    pub window_bytes: Option<Bytes>,
    /// Factor of a window that follows the link, relative to [`window_bytes`](crate::window_bytes).
    pub window_factor: NonZeroU32,
    /// Increase of the factor for each connection beyond the first, if the window is on their sum.
    pub window_factor_more: u32,
    /// Upper bound of the granted bytes that the other end's application has not acknowledged, over all
    /// connections. One packet is always allowed, however large. `None`: no bound. The first packet in order
    /// waits for its credit, and no other overtakes it.
    pub credit: Option<NonZeroU64>,
}

impl Rules {
    /// The default: class order over all connections, with a window that follows the link.
    pub const fn new() -> Self {
        Self {
            order: Order::Class,
            scope: Scope::Interface,
            window: Window::Interface,
            window_bytes: None,
            window_factor: NonZeroU32::MIN,
            window_factor_more: 0,
            credit: None,
        }
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self::new()
    }
}
