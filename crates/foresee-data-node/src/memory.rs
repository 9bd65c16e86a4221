// SPDX-License-Identifier: Apache-2.0
//! Shared memory between the host of a node's cache and its consumers, without a name in any file system.
//!
//! The slab holds the cached samples: the host writes it, consumers map it read-only. Control memory holds the rings
//! of one consumer, and both sides write it. An index is written by one consumer
//! before it is sealed. Seals fix the size of both, so no access can fail after mapping.

pub(crate) mod control;
mod index;
mod layout;
mod mapping;
mod sealed;
mod slab;
#[cfg(test)]
mod tests;
mod view;

pub use control::{RING_BYTES_MAX, RING_BYTES_MIN};
pub use index::{INDEX_BYTES_MAX, IndexFault, IndexMapping, check_sealed_index, index_file, map_index};
pub use sealed::SealFault;
pub use slab::{SlabMemory, SlabOptions};
pub use view::SlabView;
