// SPDX-License-Identifier: Apache-2.0
//! Whether a cache directory is on a network file system, where a cache is allowed but gains little.

use std::path::Path;

use rustix::fs::statfs;

/// `NFS_SUPER_MAGIC` of `statfs(2)`.
const NFS_MAGIC: u64 = 0x6969;

/// Whether `path`, or its nearest existing parent, is on NFS. A directory that cannot be asked is not.
pub fn is_on_nfs(path: &Path) -> bool {
    is_on_nfs_by(path, |path| {
        let facts = statfs(path).ok()?;
        u64::try_from(facts.f_type).ok()
    })
}

fn is_on_nfs_by(path: &Path, file_system_type: impl Fn(&Path) -> Option<u64>) -> bool {
    // The parent of a relative name is the empty path.
    let present =
        path.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    present.into_iter().find_map(file_system_type) == Some(NFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fake of `statfs(2)`: NFS is mounted at `/home`, and other existing folders are on ext4.
    fn fake_file_system_type(path: &Path) -> Option<u64> {
        match path.to_str() {
            Some("/home" | "/home/ann") => Some(NFS_MAGIC),
            Some("/" | "/nvme" | ".") => Some(0xef53),
            _ => None,
        }
    }

    #[test]
    fn a_directory_that_is_not_created_yet_has_the_file_system_of_its_parent() {
        let is_on_nfs = |path: &str| is_on_nfs_by(Path::new(path), fake_file_system_type);
        assert!(is_on_nfs("/home/ann/cache/foresee") && is_on_nfs("/home/ann"));
        assert!(!is_on_nfs("/nvme/foresee") && !is_on_nfs("cache/foresee") && !is_on_nfs("/scratch"));
    }

    #[test]
    fn a_temporary_directory_is_asked_without_a_fault() {
        assert!(!is_on_nfs(Path::new("/proc/self")));
    }
}
