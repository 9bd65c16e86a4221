// SPDX-License-Identifier: Apache-2.0
//! Memory that this process may use: the limit of its control group, and the memory of the node.
//!
//! Versions 1 and 2 are supported; the smallest limit from the group up to the visible root applies. A limit that
//! cannot be read is ignored.

use std::fs;
use std::path::{Path, PathBuf};

use foresee_units::Bytes;

/// The memory limit of this process's control group, or the memory of the node if that is less; `None` if neither can
/// be read.
pub fn memory_limit() -> Option<Bytes> {
    group_limit().into_iter().chain(node_memory()).min()
}

fn group_limit() -> Option<Bytes> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    smallest_limit(&groups, &mounts, |path| fs::read_to_string(path).ok())
}

/// The line `MemTotal: N kB` of `/proc/meminfo`.
fn node_memory() -> Option<Bytes> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes::new(kib.saturating_mul(1024)))
}

fn smallest_limit(groups: &str, mounts: &str, read: impl Fn(&Path) -> Option<String>) -> Option<Bytes> {
    mounts
        .lines()
        .filter_map(Mount::parse)
        .flat_map(|mount| {
            let group = mount.group_in(groups).unwrap_or_default();
            let file = mount.file;
            group.ancestors().map(|group| mount.point.join(group).join(file)).collect::<Vec<_>>()
        })
        .filter_map(|path| parse_limit(&read(&path)?))
        .min()
}

/// A mounted hierarchy of memory groups.
struct Mount {
    point: PathBuf,
    /// The group that is visible at the mount point; `/` outside of containers.
    root: PathBuf,
    file: &'static str,
    unified: bool,
}

impl Mount {
    /// A line of `proc_pid_mountinfo(5)`: `id parent device root point options [tags] - type source options`.
    fn parse(line: &str) -> Option<Self> {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(3);
        let (root, point) = (front.next()?.into(), front.next()?.into());
        let mut back = back.split(' ');
        let (kind, options) = (back.next()?, back.nth(1)?);
        match kind {
            "cgroup2" => Some(Self { point, root, file: "memory.max", unified: true }),
            "cgroup" if options.split(',').any(|option| option == "memory") => {
                Some(Self { point, root, file: "memory.limit_in_bytes", unified: false })
            }
            _ => None,
        }
    }

    /// This process's group, relative to the mount point, from a line of `/proc/self/cgroup`: `id:controllers:path`.
    fn group_in(&self, groups: &str) -> Option<PathBuf> {
        groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let ours = if self.unified {
                controllers.is_empty()
            } else {
                controllers.split(',').any(|controller| controller == "memory")
            };
            let path = Path::new(path);
            // Without a cgroup namespace, a container sees the host's path, and its own group as the root.
            let inside = path.strip_prefix(&self.root).ok()?;
            ours.then(|| inside.strip_prefix("/").unwrap_or(inside).to_owned())
        })
    }
}

/// `max`, and version 1's largest page-aligned number, mean "no limit".
fn parse_limit(text: &str) -> Option<Bytes> {
    let limit = text.trim().parse::<u64>().ok()?;
    (limit < i64::MAX.unsigned_abs() - (1 << 16)).then_some(Bytes::new(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Option<u64> {
        let read = |path: &Path| {
            files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_owned())
        };
        smallest_limit(groups, mounts, read).map(Bytes::get)
    }

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
    const V1: &str = "38 24 0:33 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
                      39 24 0:34 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu";

    #[test]
    fn the_smallest_limit_up_to_the_root_applies() {
        let files = [
            ("/sys/fs/cgroup/memory.max", "max\n"),
            ("/sys/fs/cgroup/job/memory.max", "4096000\n"),
            ("/sys/fs/cgroup/job/step/memory.max", "8192000\n"),
        ];
        assert_eq!(limit("0::/job/step\n", V2, &files), Some(4_096_000));
    }

    #[test]
    fn version_one_is_read_and_its_largest_number_is_no_limit() {
        let groups = "5:cpu:/x\n4:memory:/job\n0::/\n";
        let file = "/sys/fs/cgroup/memory/job/memory.limit_in_bytes";
        assert_eq!(limit(groups, V1, &[(file, "1000\n")]), Some(1000));
        assert_eq!(limit(groups, V1, &[(file, "9223372036854771712\n")]), None);
    }

    #[test]
    fn a_container_without_a_cgroup_namespace_finds_its_own_limit() {
        let mounts = "38 24 0:33 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
        let files = [("/sys/fs/cgroup/memory/memory.limit_in_bytes", "77")];
        assert_eq!(limit("4:memory:/docker/abc", mounts, &files), Some(77));
        assert_eq!(limit("4:memory:/elsewhere", mounts, &files), Some(77));
    }

    #[test]
    fn unreadable_limits_are_ignored() {
        assert_eq!(limit("", "", &[]), None);
        assert_eq!(limit("0::/", V2, &[("/sys/fs/cgroup/memory.max", "nonsense")]), None);
        assert_eq!(limit("rubbish", "rubbish - \n - cgroup2", &[]), None);
    }
}
