// SPDX-License-Identifier: Apache-2.0
//! Removal of a directory's pages from the page cache, so that the next read reaches the device.
//!
//! Only measurements need this. It is advice to the kernel, needs no rights beyond reading, and works on pages that are
//! clean and not mapped.

use std::os::fd::OwnedFd;

use rustix::fs::{Advice, fadvise};

use super::posix::{open_file, open_root};
use super::{Location, OriginError};
use crate::trial_file::in_memory;
use crate::uri::{Place, Uri};

/// The page cache, as far as it holds files of one directory.
#[derive(Debug)]
pub struct CachedPages {
    root: OwnedFd,
}

impl CachedPages {
    /// Of the directory at `uri`; `None` for a bucket or a web server, of which no pages are kept.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub fn of(uri: &Uri) -> Result<Option<Self>, OriginError> {
        match uri.place() {
            Place::Directory(root) => Ok(Some(Self { root: open_root(root)? })),
            Place::Bucket { .. } | Place::Web { .. } => Ok(None),
        }
    }

    /// Whether the file system keeps its files in memory: then nothing is ever forgotten.
    pub fn in_memory(&self) -> bool {
        in_memory(&self.root)
    }

    /// Forgets `len` bytes of a sample; whether the kernel took the advice.
    pub fn forget(&self, location: &Location<'_>, len: u64) -> bool {
        // A file that cannot be opened fails when it is read, with its name.
        let Ok(file) = open_file(&self.root, &location.key) else { return false };
        let len = std::num::NonZeroU64::new(len);
        fadvise(&file, location.start.unwrap_or(0), len, Advice::DontNeed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    #[test]
    fn a_file_is_forgotten_and_reads_the_same_afterwards() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("a"), [3; 9000]).expect("a file");
        let uri = Uri::parse(&folder.path().display().to_string()).expect("a path");
        let pages = CachedPages::of(&uri).expect("opened").expect("a directory");
        let at = |key: &'static str| Location {
            key: Cow::Borrowed(key.as_bytes()),
            start: None,
            len: 9000,
            tag: Cow::Borrowed(b""),
        };
        assert!(pages.forget(&at("a"), 9000));
        assert!(!pages.forget(&at("b"), 1), "no such file");
        assert_eq!(std::fs::read(folder.path().join("a")).expect("the file"), [3; 9000]);
    }

    #[test]
    fn of_a_bucket_no_pages_are_kept() {
        let uri = Uri::parse("s3://bucket/prefix").expect("a bucket");
        assert!(CachedPages::of(&uri).expect("nothing to open").is_none());
    }
}
