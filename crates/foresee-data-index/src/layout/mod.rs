// SPDX-License-Identifier: Apache-2.0
//! Layouts: how a listing becomes samples, one file each.
//!
//! A layout says which objects count, in which order, how an object is cut and what labels it has. What a
//! user asks for is [`LayoutOptions`]; what was found, and is kept in the index, is [`Layout`]. Shards will be
//! further layouts, with a byte range per sample beside the rows of [`rows`].
//!
//! Refuses to read: a layout sees keys, sizes and, for arrays, the bytes of a head.

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

/// What the user says of a data set, before anything of it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutOptions {
    /// `URI/CLASS/.../file`: classes, labels and order are those of torchvision's `ImageFolder`.
    Folder(FolderOptions),
    /// Every object is a sample, in the order of their keys' bytes; no labels.
    Flat {
        /// Which objects count, by the end of their names, in lower case; empty: every object.
        extensions: Vec<String>,
    },
    /// The rows (first axis) of every `.npy` file, files in the order of their keys' bytes.
    Npy,
    /// Rows of `row_bytes` without any header, files in the order of their keys' bytes.
    Bin {
        /// A row's size, 1 or more.
        row_bytes: u64,
        /// Which objects count, as in `Flat`.
        extensions: Vec<String>,
    },
    /// The rows of a table: objects in the order in which they are given, `parts` of them per sample.
    Table {
        /// Objects of a sample, 1 or more.
        parts: u64,
    },
    /// Windows over one-dimensional arrays (`.npy` with a header, anything else without), files in the order in
    /// which they are given.
    Windows(Windows),
}

/// What a data set was found to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase", deny_unknown_fields)]
#[non_exhaustive]
pub enum Layout {
    /// Class folders.
    Folder(FolderOptions),
    /// One object, one sample.
    Flat {
        /// Which objects count; empty: every object.
        extensions: Vec<String>,
    },
    /// Rows of NumPy arrays.
    Npy {
        /// As the arrays' headers say: `<f4`.
        dtype: String,
        /// A row's shape: the arrays' without its first axis; empty for rows of one number.
        shape: Vec<u64>,
        /// A row's size, 1 or more.
        row_bytes: u64,
    },
    /// Rows without a header.
    Bin {
        /// A row's size, 1 or more.
        row_bytes: u64,
        /// Which objects count; empty: every object.
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
    /// Refuses what cannot mean anything.
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

    /// Whether the object of this key counts; folders' own keys never do.
    pub(crate) fn takes(&self, key: &[u8]) -> bool {
        let fits = match self {
            Self::Npy => key.ends_with(b".npy"),
            _ => self.extensions().is_empty() || text::ends_with_any(key, self.extensions()),
        };
        fits && !key.ends_with(b"/") && (!matches!(self, Self::Folder(_)) || key.contains(&b'/'))
    }

    /// Whether the object of this key is next to class folders, and would be a sample in one.
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

    /// Whether objects stay in the order in which they are listed; else they are sorted by [`Self::compare`].
    pub(crate) const fn keeps_order(&self) -> bool {
        matches!(self, Self::Table { .. } | Self::Windows(_))
    }

    /// Whether the head of the object of this key says where its data begin.
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

    /// For messages: the name and, where it has any, the extensions.
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
    /// The options that find this layout again, for an update.
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

    /// The size of a row, where objects are cut into rows.
    pub fn row_bytes(&self) -> Option<u64> {
        match self {
            Self::Folder(_) | Self::Flat { .. } | Self::Table { .. } => None,
            Self::Npy { row_bytes, .. } | Self::Bin { row_bytes, .. } => Some(*row_bytes),
            Self::Windows(windows) => Some(windows.bytes()),
        }
    }
}
