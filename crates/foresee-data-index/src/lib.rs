// SPDX-License-Identifier: Apache-2.0
//! The index of a data set: layouts, byte ranges, tags and labels.
//!
//! It maps a sample number to bytes of an object. It contains the layouts that cut a listing into samples, the
//! file format of the result (`docs/formats/index.md`), and the rules for its content (never a credential). It is
//! separate from the tiers, because a listing may come from any source and is arranged only here.
//!
//! The crate does no I/O: a listing, the header of an array file and the bytes of an index are arguments, and a
//! new index is written to [`std::io::Write`].
//!
//! ```
//! use std::sync::Arc;
//! use foresee_data_index::{FolderOptions, Index, IndexBuilder, LayoutOptions, Listed};
//! use foresee_units::{Bytes, SampleId};
//!
//! let folder = LayoutOptions::Folder(FolderOptions::default());
//! let mut builder = IndexBuilder::new("s3://bucket/train", folder, 1_790_000_000)?;
//! for key in ["dog/1.png", "cat/7.jpg", "cat/notes.txt"] {
//!     builder.handle_listed(Listed { key: key.into(), size: 110_000, tag: b"\"9f2c\"".to_vec() })?;
//! }
//! let plan = builder.finish()?;
//! assert_eq!((plan.summary().samples, plan.summary().ignored), (2, 1));
//!
//! let mut file = Vec::new();
//! plan.write(&mut file)?;
//! let index = Index::open(Arc::new(file))?;
//! assert_eq!(index.uri(SampleId(0)), "s3://bucket/train/cat/7.jpg");
//! assert_eq!(index.label(SampleId(1)), Some(1)); // dog
//! assert_eq!(index.uniform_size(), Some(Bytes::new(110_000)));
//! # Ok::<(), foresee_data_index::IndexError>(())
//! ```

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "pure: time, files and randomness are arguments"
)]

mod builder;
mod column;
mod contents;
mod diff;
mod dump;
mod error;
mod exclude;
mod fingerprint;
mod index;
mod layout;
mod listing;
mod select;
mod uri;
mod verify;
mod write;

#[cfg(test)]
mod conformance;

pub use builder::{HeadRequest, IndexBuilder, IndexPlan, Summary, WindowRemainder};
pub use contents::FORMAT_VERSION;
pub use diff::Diff;
pub use dump::Dump;
pub use error::IndexError;
pub use exclude::Exclude;
pub use index::{ByteRange, Entry, Index, IndexBytes};
pub use layout::folder::{FolderOptions, IMAGE_EXTENSIONS};
pub use layout::npy::{NpyError, NpyHead, NpyHeader};
pub use layout::table::{TableColumn, TableObjects};
pub use layout::windows::Windows;
pub use layout::{Layout, LayoutOptions};
pub use listing::Listed;
pub use uri::{KEY_BYTES_MAX, redact_uri};
