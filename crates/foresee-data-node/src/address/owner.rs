// SPDX-License-Identifier: Apache-2.0
//! The owner of the directory of a socket that the user named, who is trusted to run its host.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Permission of the group or of others to create and replace names in a directory.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const ROOT: u32 = 0;

/// Owner and permissions of a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectoryOwner {
    pub(super) uid: u32,
    pub(super) mode: u32,
}

/// The owner of `directory`, if nobody but this owner, root and the user `ours` can replace it.
///
/// A symbolic link on the path may be of any user, so the path must have none.
pub(super) fn trusted_owner(directory: &Path, ours: u32) -> Option<u32> {
    let real = directory.canonicalize().ok()?;
    let path = real.ancestors().map(|each| {
        let found = each.metadata()?;
        Ok(DirectoryOwner { uid: found.uid(), mode: found.mode() })
    });
    let path = path.collect::<io::Result<Vec<_>>>().ok()?;
    if real == directory { owner_of(&path, ours) } else { None }
}

/// The rule of [`trusted_owner`], for a directory and all above it, the root directory last.
pub(super) fn owner_of(path: &[DirectoryOwner], ours: u32) -> Option<u32> {
    let owner = path.first()?.uid;
    let is_safe = |each: &DirectoryOwner| {
        [ROOT, owner, ours].contains(&each.uid) && each.mode & WRITABLE_BY_OTHERS == 0
    };
    path.iter().all(is_safe).then_some(owner)
}
