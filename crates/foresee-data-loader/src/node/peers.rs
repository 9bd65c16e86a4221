// SPDX-License-Identifier: Apache-2.0
//! Connections to the other nodes of a job.
//!
//! | file | thread | work |
//! |---|---|---|
//! | `mesh` | `foresee-peers` | accepts other nodes |
//! | `mesh` | `foresee-peer-N` | connects to node N, or waits for it; then receives from it (`receive`) |
//! | `send` | `foresee-send-N` | sends to node N |
//! | `translate` | - | messages of the exchange and of the wire |
//!
//! What to send to whom is decided elsewhere (`foresee-data-fetch`, `peers`).

mod mesh;
#[cfg(test)]
mod process_tests;
mod receive;
mod send;
mod translate;

use foresee_wire::{Timeouts, Wait};

pub(crate) use mesh::{Mesh, MeshEvent};
pub use mesh::{PeerListener, PeerOptions};

/// How long a node may take for a frame before its connection ends: nodes send several messages per second.
fn patience() -> Wait {
    Wait::within(Timeouts::default().timeout)
}
