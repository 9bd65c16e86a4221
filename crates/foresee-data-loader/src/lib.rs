// SPDX-License-Identifier: Apache-2.0
//! Follow the plan: fetch, stage, hand over a batch.
//!
//! One rank's engine, with its threads, its staging buffer and its metrics. A sample passes the modules in this order:
//! `orders` draws its place in the run, `driver` asks the planner where it comes from and moves it, `staging` lines up
//! its batch, `batch_queue` gives the batch to the consumer, `buffer` takes the memory back. `indexing` lists a data set.
//! Decisions that another rank or the simulator has to make alike are in `foresee-data-plan` and `foresee-data-fetch`.

mod batch;
mod batch_queue;
mod buffer;
mod cache;
mod config;
mod data_set;
mod driver;
mod engine;
mod errors;
mod gather;
mod indexing;
mod metrics;
mod orders;
mod reads;
mod recorder;
mod staging;
mod wait_causes;
mod waker;

pub use batch::{Batch, Fault};
pub use cache::Cache;
pub use config::LoaderOptions;
pub use data_set::DataSet;
pub use driver::DriverFacts;
pub use engine::{Loader, LoaderStats, Next};
pub use errors::LoaderError;
pub use indexing::{
    IndexingError, TableOptions, WindowOptions, build_index, build_table, build_windows, open_index,
    save_index,
};
pub use metrics::ConsumerWait;
pub use orders::EpochSamples;
pub use recorder::Recorder;
