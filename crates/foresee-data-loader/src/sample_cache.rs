// SPDX-License-Identifier: Apache-2.0
//! Memory for the samples of a dataset that the user wrote.
//!
//! The dataset is code of the user, so the caller's threads read it: this module says which sample is next, keeps its
//! bytes, and lets requests of one sample share a read. `foresee-data-plan` decides what is read and what leaves. Only
//! data of Foresee's is read ahead here.
//!
//! | file | content |
//! |---|---|
//! | `cache` | plan, bytes, requests that wait |
//! | `cache/peers` | what it does for worker processes |
//! | `cache/pause` | when samples that were announced begin to be read ahead |
//! | `grouping` | which samples are read together |
//! | `store` | the bytes, in private memory or in a slab |
//! | `host` | the thread that answers worker processes |
//! | `client` | the cache as a worker process sees it |
//! | `read_ahead` | reads ahead from data of Foresee's |

mod cache;
mod client;
mod grouping;
mod host;
#[cfg(test)]
mod process_tests;
mod read_ahead;
mod store;

pub use self::cache::{SampleAnswer, SampleCache, SharedOutcome, SharedRead};
pub use self::client::{PendingRequest, RemoteAnswer, SampleCacheClient};
pub use self::grouping::SampleGrouping;
pub use self::host::SampleCacheHost;
pub use self::read_ahead::{ReadAhead, read_ahead};
