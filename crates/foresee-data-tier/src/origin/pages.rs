// SPDX-License-Identifier: Apache-2.0
//! Eviction of a directory's pages from the page cache, so that the next read reaches the device.
//!
//! Only measurements need it. It is advice to the kernel, and affects pages that are clean and not mapped.

use std::os::fd::OwnedFd;

use rustix::fs::{Advice, fadvise};

use super::posix::{open_file, open_root};
use super::{Location, OriginError};
use crate::direct_file::in_memory;
use crate::uri::{Uri, UriParts};

/// The page cache of one directory's files.
#[derive(Debug)]
pub struct CachedPages {
    root: OwnedFd,
}

impl CachedPages {
    /// For the directory at `uri`; `None` for a bucket or a web server, which have no cached pages.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub fn open(uri: &Uri) -> Result<Option<Self>, OriginError> {
        match uri.parts() {
            UriParts::Directory(root) => Ok(Some(Self { root: open_root(root)? })),
            UriParts::Bucket { .. } | UriParts::Repository(_) | UriParts::Web { .. } => Ok(None),
        }
    }

    /// Whether the file system stores its files in memory, so that pages cannot be evicted.
    pub fn in_memory(&self) -> bool {
        in_memory(&self.root)
    }

    /// Evict `len` bytes of a sample; return whether the kernel accepted the advice.
    pub fn evict(&self, location: &Location<'_>, len: u64) -> bool {
        // A file that cannot be opened fails later, when it is read.
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
    fn an_evicted_file_has_the_same_content() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("a"), [3; 9000]).expect("a file");
        let uri = Uri::parse(&folder.path().display().to_string()).expect("a path");
        let pages = CachedPages::open(&uri).expect("opened").expect("a directory");
        let at = |key: &'static str| Location {
            key: Cow::Borrowed(key.as_bytes()),
            start: None,
            len: 9000,
            tag: Cow::Borrowed(b""),
        };
        assert!(pages.evict(&at("a"), 9000));
        assert!(!pages.evict(&at("b"), 1), "no such file");
        assert_eq!(std::fs::read(folder.path().join("a")).expect("the file"), [3; 9000]);
    }

    #[test]
    fn a_bucket_has_no_cached_pages() {
        let uri = Uri::parse("s3://bucket/prefix").expect("a bucket");
        assert!(CachedPages::open(&uri).expect("nothing to open").is_none());
    }
}
