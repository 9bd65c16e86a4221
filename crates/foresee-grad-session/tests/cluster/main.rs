// SPDX-License-Identifier: Apache-2.0
//! A cluster of rank and server state machines, in virtual time, with faults: a run follows from one seed.
//!
//! Each node acts like the drivers of `foresee-grad-exchange`, and decides nothing. Messages, packets and notices of broken
//! connections wait in lists, from which the next event is drawn.

mod blame;
mod bounds;
mod byzantine;
mod cases;
mod connection_events;
mod faults;
mod network;
mod rank;
mod rank_events;
mod replay;
mod results;
mod server;
mod server_events;
mod setup;
mod world;
