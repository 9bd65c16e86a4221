// SPDX-License-Identifier: Apache-2.0
//! Layouts, which turn a listing into samples; one file each.
//!
//! A layout determines which objects count, their order, their rows and their labels. [`LayoutOptions`] is the
//! user's request; [`Layout`] has the detected values and is stored in the index. Shards will be further layouts,
//! with a byte range per sample next to the rows of [`rows`]. A layout reads no files: its input is keys, sizes
//! and, for arrays, the bytes of a header.

pub(crate) mod folder;
pub(crate) mod npy;
pub(crate) mod rows;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod windows;

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::error::IndexError;
use folder::FolderOptions;
use windows::Windows;

/// The user's description of a data set, before it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutOptions {
    /// `URI/CLASS/.../file`: classes, labels and order are those of torchvision's `ImageFolder`.
    Folder(FolderOptions),
    /// Every object is a sample, in the order of their keys' bytes; no labels.
    Flat {
        /// The objects that count, by the end of their names, in lower case; empty: every object.
        extensions: Vec<String>,
    },
    /// The rows (first axis) of every `.npy` file, files in the order of their keys' bytes.
    Npy,
    /// Rows of `row_bytes` without any header, files in the order of their keys' bytes.
    Bin {
        /// A row's size, 1 or more.
        row_bytes: u64,
        /// The objects that count, as in `Flat`.
        extensions: Vec<String>,
    },
    /// The rows of a table: objects in the given order, `parts` of them per sample.
    Table {
        /// Objects of a sample, 1 or more.
        parts: u64,
    },
    /// Windows over one-dimensional arrays (`.npy` with a header, all others without), files in the given order.
    Windows(Windows),
}

/// The detected layout of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase", deny_unknown_fields)]
#[non_exhaustive]
pub enum Layout {
    /// Class folders.
    Folder(FolderOptions),
    /// One object, one sample.
    Flat {
        /// The objects that count; empty: every object.
        extensions: Vec<String>,
    },
    /// Rows of NumPy arrays.
    Npy {
        /// The type in the arrays' headers: `<f4`.
        dtype: String,
        /// A row's shape: the arrays' without its first axis; empty for scalar rows.
        shape: Vec<u64>,
        /// A row's size, 1 or more.
        row_bytes: u64,
    },
    /// Rows without a header.
    Bin {
        /// A row's size, 1 or more.
        row_bytes: u64,
        /// The objects that count; empty: every object.
        extensions: Vec<String>,
    },
    /// Rows of a table.
    Table {
        /// Objects of a sample, 1 or more.
        parts: u64,
    },
    /// Windows over arrays of one axis.
    Windows(Windows),
}

impl LayoutOptions {
    /// Check that the options are valid.
    pub(crate) fn check(&self) -> Result<(), IndexError> {
        if let Self::Bin { row_bytes: 0, .. } = self {
            return Err(IndexError::NoRowBytes);
        }
        if let Self::Table { parts: 0 } = self {
            return Err(IndexError::NoParts);
        }
        if let Self::Windows(windows) = self {
            windows.check()?;
        }
        match self.extensions().iter().find(|one| one.is_empty() || one.to_lowercase() != **one) {
            Some(extension) => Err(IndexError::Extension { extension: extension.clone() }),
            None => Ok(()),
        }
    }

    /// Whether the object with this key counts; keys of folders never do.
    pub(crate) fn accepts(&self, key: &[u8]) -> bool {
        let fits = match self {
            Self::Npy => key.ends_with(b".npy"),
            _ => self.extensions().is_empty() || text::ends_with_any(key, self.extensions()),
        };
        fits && !key.ends_with(b"/") && (!matches!(self, Self::Folder(_)) || key.contains(&b'/'))
    }

    /// Whether the object with this key is next to class folders, and would be a sample in one.
    pub(crate) fn is_outside(&self, key: &[u8]) -> bool {
        let Self::Folder(FolderOptions { extensions, .. }) = self else { return false };
        !key.contains(&b'/') && (extensions.is_empty() || text::ends_with_any(key, extensions))
    }

    /// The order of samples, by key.
    pub(crate) fn compare(&self, one: &[u8], other: &[u8]) -> Ordering {
        match self {
            Self::Folder(_) => folder::compare(one, other),
            Self::Flat { .. } | Self::Npy | Self::Bin { .. } | Self::Table { .. } | Self::Windows(_) => {
                one.cmp(other)
            }
        }
    }

    /// Whether objects keep the order of the listing; otherwise they are sorted by [`Self::compare`].
    pub(crate) const fn keeps_order(&self) -> bool {
        matches!(self, Self::Table { .. } | Self::Windows(_))
    }

    /// Whether the header of the object with this key determines where its data begin.
    pub(crate) fn needs_head(&self, key: &[u8]) -> bool {
        match self {
            Self::Npy => true,
            Self::Windows(_) => key.ends_with(b".npy"),
            _ => false,
        }
    }

    fn extensions(&self) -> &[String] {
        match self {
            Self::Folder(FolderOptions { extensions, .. })
            | Self::Flat { extensions }
            | Self::Bin { extensions, .. } => extensions,
            Self::Npy | Self::Table { .. } | Self::Windows(_) => &[],
        }
    }

    /// The name and, if any, the extensions, for messages.
    pub(crate) fn describe(&self) -> String {
        let name = match self {
            Self::Folder(_) => "folder",
            Self::Flat { .. } => "flat",
            Self::Npy => "npy",
            Self::Bin { .. } => "bin",
            Self::Table { .. } => "table",
            Self::Windows(_) => "windows",
        };
        if self.extensions().is_empty() {
            name.to_owned()
        } else {
            format!("{name} ({})", self.extensions().join(" "))
        }
    }
}

impl Layout {
    /// The options that reproduce this layout, for an update.
    pub fn options(&self) -> LayoutOptions {
        match self {
            Self::Folder(options) => LayoutOptions::Folder(options.clone()),
            Self::Flat { extensions } => LayoutOptions::Flat { extensions: extensions.clone() },
            Self::Npy { .. } => LayoutOptions::Npy,
            Self::Bin { row_bytes, extensions } => {
                LayoutOptions::Bin { row_bytes: *row_bytes, extensions: extensions.clone() }
            }
            Self::Table { parts } => LayoutOptions::Table { parts: *parts },
            Self::Windows(windows) => LayoutOptions::Windows(windows.clone()),
        }
    }

    /// The first version of the file's format that has this layout.
    pub(crate) const fn version(&self) -> u32 {
        match self {
            Self::Folder(_) | Self::Flat { .. } | Self::Npy { .. } | Self::Bin { .. } => 1,
            Self::Table { .. } | Self::Windows(_) => 2,
        }
    }

    /// The size of a row, if objects are cut into rows.
    pub fn row_bytes(&self) -> Option<u64> {
        match self {
            Self::Folder(_) | Self::Flat { .. } | Self::Table { .. } => None,
            Self::Npy { row_bytes, .. } | Self::Bin { row_bytes, .. } => Some(*row_bytes),
            Self::Windows(windows) => Some(windows.bytes()),
        }
    }
}
