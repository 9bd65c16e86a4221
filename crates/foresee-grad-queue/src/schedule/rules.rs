// SPDX-License-Identifier: Apache-2.0
//! What one scheduler obeys, as data: a policy is a value, not another scheduler.
//!
//! Apart from the policies that papers name, which also say what is sent and when it is answered: a
//! scheduler has no use for that.

use std::num::{NonZeroU32, NonZeroU64};

use foresee_units::Bytes;

/// In which order the offers of one flow go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they were offered; rounds and classes count for nothing.
    Readiness,
    /// The earliest round first, inside it the lowest class; as they were offered inside a class.
    Class,
}

/// Over which connections an order holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Over each by itself; connections take turns, whatever waits for them. So does a sender per connection.
    Connection,
    /// Over all of them: the first in order goes first, whichever connection it takes.
    Interface,
}

/// What is compared with the window before a packet starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Nothing: packets go until the socket takes no more.
    None,
    /// The bytes in flight over the packet's own connection. With `n` busy connections up to `n` windows
    /// are ahead of an urgent packet.
    Connection,
    /// The bytes in flight over all connections together.
    Interface,
}

/// The rules of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Which offer is first.
    pub order: Order,
    /// Among which offers.
    pub scope: Scope,
    /// What keeps a packet from starting.
    pub window: Window,
    /// The window's size; `None`: it follows the link ([`window_bytes`](crate::window_bytes)). A window of
    /// 0 lets a packet start when nothing else is in flight.
    pub window_bytes: Option<Bytes>,
    /// By how much a window that follows the link is larger than [`window_bytes`](crate::window_bytes).
    pub window_factor: NonZeroU32,
    /// By how much more for each connection beyond the first, where the window is on their sum.
    pub window_factor_more: u32,
    /// The most bytes that are granted and not acknowledged by the other end's application, over all
    /// connections; one packet always may be, however large. `None`: no bound. The first in order waits for
    /// its credit, and nothing overtakes it.
    pub credit: Option<NonZeroU64>,
}

impl Rules {
    /// Class by class over all connections, with a window that follows the link: what a scheduler does
    /// where nobody asks for something else.
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
