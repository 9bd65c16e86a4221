// SPDX-License-Identifier: Apache-2.0
//! Read groups: the small neighbours of a sample in its object that one large read of the origin includes.
//!
//! An object is divided into aligned blocks. The samples that start in one block are a group, so that every access to
//! any of them finds the same one.

use foresee_units::{Bytes, Extent};

/// Size of a block: the transfer of a whole one costs a few round trips at most, and a bucket serves its data sets in
/// few requests.
pub const READ_BLOCK: Bytes = Bytes::new(1 << 20);
/// Maximum mean size of samples that are read in groups. A request costs about as much as 32 KiB of data, so larger ones
/// gain little, and a first batch of them would wait for many times its bytes.
pub const GROUPED_SIZE_MAX: Bytes = Bytes::new(64 << 10);
/// Maximum number of samples in a group, which bounds the work of one access.
const GROUP_SAMPLES_MAX: usize = 1 << 15;
/// Samples in a row that nobody wants, more or less, after which no more are looked at: groups of a data set of which others
/// read most would be small.
const SKIPPED_MAX: usize = 64;
/// Maximum fraction of a group that nobody wants: one part in eight.
const OVER_READ: u64 = 8;

/// Samples after a start that are read alone, besides those of one group: a first batch of about as many does not wait for the
/// transfer of as many blocks.
const FIRST_ALONE: u64 = 40;
/// Samples of the data set for each of them: of few samples, those that are read alone would be wide gaps in the groups.
const SAMPLES_PER_ALONE: u64 = 64;

/// Whether samples are read in groups yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupStart {
    /// Samples to read alone after a start, and those of them that are left.
    most: u64,
    alone: u64,
    has_group: bool,
}

impl GroupStart {
    /// The start of a data set of `samples`.
    pub(crate) const fn new(samples: u64) -> Self {
        let most = samples / SAMPLES_PER_ALONE;
        let most = if most < FIRST_ALONE { most } else { FIRST_ALONE };
        Self { most, alone: most, has_group: false }
    }

    /// Start again.
    pub(crate) const fn restart(&mut self) {
        *self = Self { most: self.most, alone: self.most, has_group: false };
    }

    /// Whether the next sample that is read from the origin is read with its group.
    pub(crate) const fn is_grouped(&mut self) -> bool {
        if !self.has_group {
            return true;
        }
        let is_alone = self.alone > 0;
        self.alone = self.alone.saturating_sub(1);
        !is_alone
    }

    /// A sample is read with others.
    pub(crate) const fn handle_group(&mut self) {
        self.has_group = true;
    }
}

/// The bytes of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectRange {
    /// The object; only equality counts.
    pub object: u64,
    /// First byte.
    pub start: u64,
    /// Number of bytes.
    pub len: u64,
}

impl ObjectRange {
    const fn block(self) -> (u64, u64) {
        (self.object, self.start / READ_BLOCK.get())
    }

    const fn end(self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// The neighbours to read with sample `id`: those behind it, then those before it, nearest first. `range_of` returns the range
/// of a sample, and `None` if there is none or it is read alone.
pub(crate) fn neighbours(
    id: u64,
    range_of: impl Fn(u64) -> Option<ObjectRange>,
    is_wanted: impl Fn(u64) -> bool,
) -> Vec<(u64, ObjectRange)> {
    let Some(seed) = range_of(id).filter(|seed| seed.len > 0) else { return Vec::new() };
    let mut all = Vec::new();
    let mut walk = |ids: &mut dyn Iterator<Item = u64>| {
        let (mut taken, mut skipped) = (0, 0);
        for other in ids {
            let range = range_of(other).filter(|range| range.block() == seed.block());
            let Some(range) = range.filter(|_| all.len() < GROUP_SAMPLES_MAX) else { return };
            if range.len > 0 && is_wanted(other) {
                all.push((other, range));
                taken += 1;
            } else {
                skipped += 1;
            }
            if skipped > SKIPPED_MAX + taken / 4 {
                return;
            }
        }
    };
    walk(&mut (id..).skip(1));
    walk(&mut (0..id).rev());
    let extent = Extent::new(seed.start, seed.end());
    let whole = all.iter().fold(extent, |extent, &(_, range)| extent.with(range.start, range.end()));
    if is_dense(whole) {
        return all;
    }
    // Those from which it is separated by too much are left to their own reads.
    let mut extent = extent;
    let is_near = |&(_, range): &(u64, ObjectRange)| {
        let grown = extent.with(range.start, range.end());
        if is_dense(grown) {
            extent = grown;
        }
        is_dense(grown)
    };
    all.into_iter().filter(is_near).collect()
}

/// Divide ranges into those that are worth one read each, by their places in `ranges`: small ones in a block of their object
/// with few unwanted bytes between them. Every range is in one group.
pub fn read_together(ranges: &[ObjectRange]) -> Vec<Vec<usize>> {
    let mut places: Vec<usize> = (0..ranges.len()).collect();
    places.sort_by_key(|&place| (ranges[place].object, ranges[place].start));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut last: Option<(ObjectRange, Extent)> = None;
    for place in places {
        let range = ranges[place];
        let small = |one: ObjectRange| one.len <= GROUPED_SIZE_MAX.get();
        let grown = last.filter(|(first, _)| first.block() == range.block() && small(*first) && small(range));
        let grown = grown.map(|(first, extent)| (first, extent.with(range.start, range.end())));
        if let Some((first, extent)) = grown.filter(|(_, extent)| is_dense(*extent))
            && let Some(group) = groups.last_mut()
        {
            group.push(place);
            last = Some((first, extent));
        } else {
            groups.push(vec![place]);
            last = Some((range, Extent::new(range.start, range.end())));
        }
    }
    groups
}

/// Whether few of the bytes of an extent are unwanted.
const fn is_dense(extent: Extent) -> bool {
    extent.unwanted() <= extent.len() / OVER_READ
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of `len` bytes behind a header of 128 bytes, `count` in each of two objects.
    fn rows(len: u64, count: u64) -> impl Fn(u64) -> Option<ObjectRange> {
        move |id| {
            let range = ObjectRange { object: id / count, start: 128 + id % count * len, len };
            (id < 2 * count).then_some(range)
        }
    }

    fn group(
        id: u64,
        range_of: &impl Fn(u64) -> Option<ObjectRange>,
        is_wanted: impl Fn(u64) -> bool,
    ) -> Vec<u64> {
        let mut members: Vec<_> =
            neighbours(id, range_of, is_wanted).into_iter().map(|(other, _)| other).collect();
        members.sort_unstable();
        members
    }

    #[test]
    fn a_small_object_is_one_group_without_its_neighbour_objects() {
        let rows = rows(100, 50);
        assert_eq!(group(60, &rows, |_| true), (50..100).filter(|&id| id != 60).collect::<Vec<_>>());
    }

    #[test]
    fn groups_of_a_large_object_are_aligned_and_share_no_sample() {
        let rows = rows(1000, 5000);
        let mut seen = vec![0; 10_000];
        let mut id = 0;
        while id < 10_000 {
            let members = group(id, &rows, |_| true);
            let last = members.last().copied().unwrap_or(id).max(id);
            for other in members.iter().copied().chain([id]) {
                seen[usize::try_from(other).unwrap()] += 1;
                let mut same: Vec<_> = group(other, &rows, |_| true);
                same.push(other);
                same.sort_unstable();
                assert!(same.contains(&id) && same.len() == members.len() + 1);
            }
            id = last + 1;
        }
        assert!(seen.iter().all(|&times| times == 1));
    }

    #[test]
    fn samples_that_are_not_wanted_are_read_only_as_small_gaps() {
        let rows = rows(100, 50);
        assert_eq!(group(10, &rows, |id| (10..20).contains(&id) || id == 30), (11..20).collect::<Vec<_>>());
        assert_eq!(
            group(0, &rows, |id| id % 20 != 13),
            (1..50).filter(|id| id % 20 != 13).collect::<Vec<_>>()
        );
        assert_eq!(group(0, &rows, |id| id % 2 == 0), [0; 0]);
    }

    #[test]
    fn small_ranges_with_few_bytes_between_them_are_one_read() {
        let range = |object, start, len| ObjectRange { object, start, len };
        let ranges = [
            range(0, 300, 100),
            range(0, 100, 100),
            range(1, 200, 100),
            range(0, 205, 95),
            range(0, 600, 100),
            range(0, READ_BLOCK.get(), 100),
            range(0, 200, 0),
        ];
        assert_eq!(read_together(&ranges), [vec![1, 6, 3, 0], vec![4], vec![5], vec![2]]);
        let large = GROUPED_SIZE_MAX.get() + 1;
        assert_eq!(read_together(&[range(0, 0, large), range(0, large, large)]), [[0], [1]]);
        assert_eq!(read_together(&[]), [[0; 0]; 0]);
    }

    #[test]
    fn a_group_has_a_bounded_number_of_samples() {
        assert_eq!(group(7, &rows(1, 1 << 19), |_| true).len(), GROUP_SAMPLES_MAX);
    }
}
