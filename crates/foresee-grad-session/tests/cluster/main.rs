// SPDX-License-Identifier: Apache-2.0
//! A cluster of the machines of ranks and servers, in virtual time, with faults: a whole run follows from one seed.
//!
//! Each node does what the drivers of `foresee-grad-exchange` do, and decides nothing. Messages, packets and notices of
//! broken connections wait in lists, and what happens next is drawn.

mod blame;
mod bounds;
mod cases;
mod connection_events;
mod faults;
mod lies;
mod network;
mod rank;
mod rank_events;
mod replay;
mod results;
mod server;
mod server_events;
mod setup;
mod world;
