// SPDX-License-Identifier: Apache-2.0
//! Shared memory between the host of a node's cache and its consumers, without a name in any file system.
//!
//! The slab holds the cached samples, and a table per data set their locations: the host writes both, consumers map them
//! read-only. Control memory holds the rings of one consumer, and both sides write it. An index is written by one consumer
//! before it is sealed. Seals fix the sizes, so no access can fail after mapping.

pub(crate) mod control;
mod index;
mod layout;
mod locations;
mod mapping;
pub(crate) mod sealed;
mod slab;
#[cfg(test)]
mod tests;
mod view;

pub use control::{RING_BYTES_MAX, RING_BYTES_MIN};
pub use index::{INDEX_BYTES_MAX, IndexFault, IndexMapping, check_sealed_index, index_file, map_index};
pub(crate) use locations::SLAB_BYTES_MAX;
pub use locations::{LENGTH_BYTES, LocationTable, LocationView, SAMPLE_ALIGN, SlabLocation};
pub use sealed::SealFault;
pub use slab::{SlabMemory, SlabOptions};
pub use view::SlabView;
