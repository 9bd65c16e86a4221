// SPDX-License-Identifier: Apache-2.0
//! Samples between the nodes of a job.
//!
//! All nodes follow one plan of who holds which sample (`foresee-data-plan`). [`PeerExchange`] is a node's part in it: it
//! chooses the source of a read, requests samples of other nodes, answers their requests, and falls back to the origin when a
//! node has lost a sample, is late, or is silent. A wrong belief about another node costs a read, and never a sample.
//!
//! | file | contents |
//! |---|---|
//! | `exchange` | [`PeerExchange`]: facts in, actions out |
//! | `action` | settings, actions, faults, counts |
//! | `message` | what nodes tell each other |
//! | `reads` | requests to other nodes: windows, deadlines, nodes that are silent |
//! | `sends` | answers: by deadline, in turns of the readers, within a window |
//! | `offers` | samples that another node should hold |
//! | `waiting` | reads that wait for the plan, or for an offer |
//! | `rate` | measured rate of a node |

mod action;
mod exchange;
mod message;
mod offers;
mod rate;
mod reads;
mod sends;
mod waiting;

pub use action::{LocalSamples, PeerAction, PeerCounts, PeerExchangeConfig, PeerFault, SampleRead};
pub use exchange::PeerExchange;
pub use message::{PeerMessage, PeerRequest};
pub use reads::PeerReadsConfig;
pub use sends::{PeerSendsConfig, Presence};
