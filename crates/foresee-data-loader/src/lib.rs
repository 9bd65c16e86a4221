// SPDX-License-Identifier: Apache-2.0
//! The engine of one rank: it fetches samples as planned, stages them, and delivers batches.
//!
//! A sample passes the modules in this order: `orders` draws its position in the run, `driver` obtains its source from
//! the planner and moves it, `origin_reads` reads it from the origin, `staging` completes its batch, `batch_queue`
//! delivers the batch to the consumer, and `buffer` reuses the memory. A loader that shares the cache of its node requests
//! whole batches from the host in `node` instead. `indexing` lists a data set, and `sample_cache` serves datasets of the user. Decisions that
//! another rank or the simulator must make in the same way are in `foresee-data-plan` and `foresee-data-fetch`.

mod batch;
mod batch_queue;
mod buffer;
mod cache;
mod config;
mod data_set;
mod disk_cache;
mod driver;
mod engine;
mod errors;
mod gather;
mod indexing;
mod node;
mod notices;
mod orders;
mod origin_queue;
mod origin_reads;
mod reads;
mod recorder;
mod sample_cache;
mod staging;
mod wait_causes;
mod waker;

pub use batch::{Batch, Fault};
pub use cache::Cache;
pub use config::LoaderOptions;
pub use data_set::DataSet;
pub use driver::DriverStats;
pub use engine::{ExchangeError, Loader, LoaderStats, Next, NextOffer, PeerPlace};
pub use errors::LoaderError;
pub use foresee_data_node::SampleCacheCounts;
pub use foresee_data_plan::ConsumerId;
pub use indexing::{
    IndexingError, TableOptions, WindowOptions, build_index, build_table, build_windows, open_index,
    save_index,
};
pub use node::{
    CopyCount, CopyCounts, DrawEpoch, HostEnded, HostLogEntry, ListingTurn, NodeHost, NodeHostFacts,
    NodeHostOptions, NodeIdentity, NodeListing, NodeStats, OtherNodes, PeerJob, PeerListener, PeerOptions,
    PlanKey, SampleSet, leave_listings,
};
pub use orders::EpochSamples;
pub use recorder::{ConsumerWait, Recorder};
pub use sample_cache::{
    PendingRequest, ReadAhead, RemoteAnswer, SampleAnswer, SampleCache, SampleCacheClient, SampleCacheHost,
    SampleGrouping, SharedOutcome, SharedRead, read_ahead,
};
