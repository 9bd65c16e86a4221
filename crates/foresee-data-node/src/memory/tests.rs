// SPDX-License-Identifier: Apache-2.0
//! Tests of shared memory: what each side can do, what it cannot, and copies of samples that are withdrawn meanwhile.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use foresee_units::{Bytes, SampleId};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::*;
use crate::error::NodeError;
use crate::ring::{ControlLayout, RingError};

const SAMPLES: u64 = 1000;
const DATA: u64 = 5 << 20;
const CHUNK: u64 = 2 << 20;

fn options() -> SlabOptions {
    SlabOptions { data: Bytes::new(DATA), available: None, huge_pages: false }
}

fn slab() -> SlabMemory {
    SlabMemory::create(&options()).unwrap()
}

fn received(slab: &SlabMemory) -> OwnedFd {
    slab.file().unwrap().try_clone_to_owned().unwrap()
}

fn open(file: &OwnedFd) -> Result<SlabView, NodeError> {
    SlabView::open(file.as_fd(), Bytes::new(DATA))
}

/// Both sides of a slab, and of the locations of a data set.
struct Both {
    slab: SlabMemory,
    table: LocationTable,
    view: SlabView,
    locations: LocationView,
}

fn both() -> Both {
    let slab = slab();
    let view = open(&received(&slab)).unwrap();
    let table = LocationTable::create(SAMPLES).unwrap();
    let locations = LocationView::open(table.file().unwrap(), SAMPLES).unwrap();
    Both { slab, table, view, locations }
}

fn write(slab: &SlabMemory, offset: u64, bytes: &[u8]) {
    slab.commit(offset..offset + bytes.len() as u64).unwrap();
    let to = slab.data(offset..offset + bytes.len() as u64).unwrap();
    // SAFETY: within the slab, and only this thread writes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast().as_ptr(), bytes.len()) };
}

impl Both {
    /// Replace a sample.
    fn publish(&self, sample: u64, offset: u64, bytes: &[u8]) -> SlabLocation {
        self.table.withdraw(SampleId(sample)).unwrap();
        write(&self.slab, offset, bytes);
        self.table.publish(SampleId(sample), offset).unwrap()
    }

    fn copy(&self, sample: u64, at: SlabLocation, dest: &mut [u8]) -> Result<bool, NodeError> {
        self.locations.copy(&self.view, SampleId(sample), at, dest)
    }
}

#[test]
fn a_consumer_finds_and_reads_what_the_host_published() {
    let both = both();
    let last = (DATA - 3) / SAMPLE_ALIGN * SAMPLE_ALIGN;
    let (first, end) = (both.publish(0, 0, b"sample"), both.publish(SAMPLES - 1, last, b"end"));
    assert_eq!((first.offset(), end.offset()), (0, last));
    for (sample, expected) in [(0, first), (1, SlabLocation::default()), (SAMPLES - 1, end)] {
        assert_eq!(both.locations.get(SampleId(sample)).unwrap(), expected);
        assert_eq!(expected.is_valid(), sample != 1);
    }
    let mut dest = [0; 6];
    assert!(both.copy(0, first, &mut dest).unwrap());
    assert_eq!(&dest, b"sample");
    assert!(both.copy(SAMPLES - 1, end, &mut dest[..3]).unwrap());
    assert_eq!(&dest, b"endple");
    assert!(both.copy(0, first, &mut []).unwrap());
    assert_eq!(both.view.data_bytes(), Bytes::new(DATA));
}

#[test]
fn a_withdrawn_sample_is_not_accepted() {
    let both = both();
    let old = both.publish(7, 128, b"old");
    let mut dest = [0; 3];
    assert!(both.copy(7, old, &mut dest).unwrap());
    both.table.withdraw(SampleId(7)).unwrap();
    let absent = both.table.get(SampleId(7)).unwrap();
    assert!(!absent.is_valid() && absent != old);
    both.table.withdraw(SampleId(7)).unwrap();
    assert_eq!(both.table.get(SampleId(7)).unwrap(), absent, "it is not withdrawn twice");
    for at in [old, absent] {
        assert!(!both.copy(7, at, &mut dest).unwrap());
    }
    let new = both.publish(7, 128, b"new");
    assert!(new != old && new.offset() == old.offset());
    assert!(!both.copy(7, old, &mut dest).unwrap());
    assert!(both.copy(7, new, &mut dest).unwrap());
    assert_eq!(&dest, b"new");
    assert!(!both.copy(6, new, &mut dest).unwrap(), "it is another sample");
}

#[test]
fn a_sample_that_follows_its_length_is_copied_as_a_whole() {
    let both = both();
    let stored = |bytes: &[u8]| [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat();
    both.publish(3, 64, &stored(b"a sample"));
    both.publish(4, 128, &stored(b""));
    let copy = |sample| both.locations.copy_with_length(&both.view, SampleId(sample));
    assert_eq!(copy(3).unwrap().unwrap(), b"a sample");
    assert_eq!(copy(4).unwrap().unwrap(), b"");
    assert!(copy(5).unwrap().is_none());
    both.table.withdraw(SampleId(3)).unwrap();
    assert!(copy(3).unwrap().is_none());
    both.publish(3, 64, &u64::MAX.to_le_bytes());
    assert!(matches!(copy(3), Err(NodeError::OutsideSlab { .. })), "no memory is allocated for it");
    assert!(matches!(copy(SAMPLES), Err(NodeError::NoSample { .. })));
}

#[test]
fn a_location_keeps_its_parity_when_the_sequence_number_starts_again() {
    let both = both();
    let first = both.publish(2, 64, b"x");
    for _ in 1..1 << 23 {
        both.table.withdraw(SampleId(2)).unwrap();
        let location = both.table.publish(SampleId(2), 64).unwrap();
        assert!(location.is_valid() && location.offset() == 64 && location != first);
    }
    both.table.withdraw(SampleId(2)).unwrap();
    assert_eq!(both.table.publish(SampleId(2), 64).unwrap(), first);
}

#[test]
fn an_accepted_copy_has_the_bytes_of_its_location() {
    const LEN: usize = 4096;
    const ROUNDS: u64 = 20_000;
    let value = |round: u64| u8::try_from(round % 251).unwrap();
    let both = both();
    both.slab.commit(0..DATA).unwrap();
    let published = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                let location = both.publish(3, 0, &[value(round); LEN]);
                assert_eq!(location.bits() & 0xFF_FFFF, 2 * round - 1);
                published.store(location.bits(), Ordering::Release);
            }
        });
        let mut dest = [0; LEN];
        let mut seen = SlabLocation::default();
        let round = |location: SlabLocation| (location.bits() & 0xFF_FFFF).div_ceil(2);
        while round(seen) < ROUNDS {
            seen = SlabLocation::from_bits(published.load(Ordering::Acquire));
            if both.copy(3, seen, &mut dest).unwrap() {
                assert!(dest.iter().all(|byte| *byte == value(round(seen))), "{seen:?} is mixed");
            }
        }
        assert_eq!(dest, [value(ROUNDS); LEN], "the last write is accepted");
    });
}

#[test]
fn ranges_and_samples_that_do_not_exist_are_refused_on_both_sides() {
    let Both { slab, table, view, locations } = both();
    let mut dest = [0; 128];
    let last = SlabLocation::from_bits((DATA / SAMPLE_ALIGN - 1) << 24 | 1);
    for location in [last, SlabLocation::from_bits(u64::MAX)] {
        let refused = locations.copy(&view, SampleId(0), location, &mut dest).unwrap_err();
        assert!(matches!(refused, NodeError::OutsideSlab { .. }), "{refused}");
    }
    let none = SampleId(SAMPLES);
    let refusals = [
        locations.copy(&view, none, SlabLocation::default(), &mut dest).unwrap_err(),
        locations.get(none).unwrap_err(),
        table.get(none).unwrap_err(),
        table.publish(none, 0).unwrap_err(),
        table.withdraw(none).unwrap_err(),
    ];
    for refused in refusals {
        assert!(matches!(refused, NodeError::NoSample { sample: SAMPLES, samples: SAMPLES }), "{refused}");
    }
    assert!(matches!(slab.commit(0..DATA + 1), Err(NodeError::OutsideSlab { .. })));
    assert!(matches!(slab.data(u64::MAX - 1..u64::MAX), Err(NodeError::OutsideSlab { .. })));
}

#[test]
fn pages_are_allocated_by_commit_and_used_only_afterwards() {
    let slab = slab();
    let allocated = || rustix::fs::fstat(slab.file().unwrap()).unwrap().st_blocks.cast_unsigned() * 512;
    assert_eq!((slab.committed_bytes(), allocated()), (Bytes::ZERO, 0));
    let second = CHUNK..CHUNK + 1;
    assert!(matches!(slab.data(second.clone()), Err(NodeError::NotCommitted { .. })));
    for _ in 0..2 {
        slab.commit(second.clone()).unwrap();
        assert_eq!((slab.committed_bytes(), allocated()), (Bytes::new(CHUNK), CHUNK));
    }
    assert_eq!(slab.data(second).unwrap().len(), 1);
}

#[test]
fn an_impossible_slab_is_refused() {
    for data in [0, 1 << 47, 1 << 63, u64::MAX] {
        let options = SlabOptions { data: Bytes::new(data), ..options() };
        assert!(matches!(SlabMemory::create(&options), Err(NodeError::SlabShape { .. })));
    }
}

#[test]
fn a_slab_above_the_memory_limit_is_refused_with_a_remedy() {
    let with =
        |available| SlabMemory::create(&SlabOptions { available: Some(Bytes::new(available)), ..options() });
    // 5 MiB of data take three units of 2 MiB.
    let refused = with(3 * CHUNK - 1).unwrap_err();
    assert!(matches!(refused, NodeError::SlabTooLarge { bytes, .. } if bytes.get() == 3 * CHUNK));
    assert!(refused.to_string().contains("lower `ram=`"), "{refused}");
    assert!(with(3 * CHUNK).is_ok());
}

#[test]
fn a_slab_works_with_huge_pages_or_without_reserved_ones() {
    let slab = SlabMemory::create(&SlabOptions { huge_pages: true, ..options() }).unwrap();
    let view = open(&received(&slab)).unwrap();
    let table = LocationTable::create(1).unwrap();
    let locations = LocationView::open(table.file().unwrap(), 1).unwrap();
    write(&slab, CHUNK, b"huge");
    let (location, mut dest) = (table.publish(SampleId(0), CHUNK).unwrap(), [0; 4]);
    assert!(locations.copy(&view, SampleId(0), location, &mut dest).unwrap());
    assert_eq!(&dest, b"huge");
}

#[test]
fn a_consumer_cannot_write_or_change_the_slab() {
    let both = both();
    let location = both.publish(0, 0, b"sample");
    for file in [received(&both.slab), both.table.file().unwrap().try_clone_to_owned().unwrap()] {
        check_read_only(&file);
    }
    let mut dest = [0; 6];
    assert!(both.copy(0, location, &mut dest).unwrap());
    assert_eq!(&dest, b"sample");
}

/// Check that a receiver of `file` cannot write or change it.
fn check_read_only(file: &OwnedFd) {
    let len = rustix::fs::fstat(file).unwrap().st_size.cast_unsigned();
    let map = |protection| {
        let bytes = usize::try_from(len).unwrap();
        // SAFETY: a new mapping at an address that the system chooses.
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }
    };
    assert_eq!(map(ProtFlags::READ | ProtFlags::WRITE).unwrap_err(), Errno::PERM);
    let read_only = map(ProtFlags::READ).unwrap();
    // SAFETY: the mapping above.
    let protected =
        unsafe { rustix::mm::mprotect(read_only, 4096, MprotectFlags::READ | MprotectFlags::WRITE) };
    assert_eq!(protected.unwrap_err(), Errno::ACCESS);
    // SAFETY: the mapping above, which nothing uses.
    unsafe { rustix::mm::munmap(read_only, usize::try_from(len).unwrap()) }.unwrap();
    for changed in [0, len - 1, len + 1] {
        assert_eq!(rustix::fs::ftruncate(file, changed).unwrap_err(), Errno::PERM);
    }
    assert_eq!(rustix::io::pwrite(file, b"x", 4096).unwrap_err(), Errno::PERM);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(rustix::fs::fallocate(file, hole, 0, 4096).unwrap_err(), Errno::PERM);
    assert_eq!(rustix::fs::fcntl_add_seals(file, SealFlags::WRITE).unwrap_err(), Errno::PERM);
    // The same file by name, with a new description.
    let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    let other = std::fs::OpenOptions::new().read(true).write(true).open(name).unwrap();
    assert_eq!(other.set_len(0).unwrap_err().raw_os_error(), Some(Errno::PERM.raw_os_error()));
}

fn sealed(len: u64, seals: SealFlags) -> OwnedFd {
    let file = sealed::create("test", MemfdFlags::empty()).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

#[test]
fn a_consumer_refuses_every_descriptor_that_is_no_sealed_slab_of_the_announced_size() {
    let len = 3 * CHUNK;
    let fault = |file: OwnedFd| match open(&file).unwrap_err() {
        NodeError::NotSealed { what: "slab", fault } => fault,
        other => panic!("{other}"),
    };
    let regular = tempfile::tempfile().unwrap();
    regular.set_len(len).unwrap();
    assert!(matches!(fault(regular.into()), SealFault::Kind(_) | SealFault::Seals { .. }));
    assert!(matches!(fault(std::io::pipe().unwrap().0.into()), SealFault::Kind(_)));
    for seals in [
        SealFlags::empty(),
        sealed::CONTROL_SEALS,
        sealed::SLAB_SEALS.difference(SealFlags::SEAL),
        sealed::SLAB_SEALS.difference(SealFlags::SHRINK),
        sealed::SLAB_SEALS | SealFlags::WRITE,
    ] {
        assert!(matches!(fault(sealed(len, seals)), SealFault::Seals { .. }), "{seals:?}");
    }
    for other in [0, len - CHUNK, len - 1, len + CHUNK] {
        assert!(matches!(fault(sealed(other, sealed::SLAB_SEALS)), SealFault::Size { .. }));
    }
    assert!(open(&sealed(len, sealed::SLAB_SEALS)).is_ok());
    let locations = |file: OwnedFd| LocationView::open(file.as_fd(), SAMPLES).map(|_| ());
    for (len, seals) in [(4096, sealed::SLAB_SEALS), (8192, sealed::CONTROL_SEALS)] {
        let refused = locations(sealed(len, seals)).unwrap_err();
        assert!(matches!(refused, NodeError::NotSealed { what: "table of locations", .. }), "{refused}");
    }
    assert!(locations(sealed(8192, sealed::SLAB_SEALS)).is_ok());
}

#[test]
fn both_sides_of_control_memory_share_rings() {
    let (mut host, file) = control::create(RING_BYTES_MIN, 4 * RING_BYTES_MIN).unwrap();
    let mut consumer = control::open(file.as_fd(), RING_BYTES_MIN, 4 * RING_BYTES_MIN).unwrap();
    assert!(consumer.writer.try_push(b"request").unwrap() && host.writer.try_push(b"answer").unwrap());
    assert_eq!(host.reader.try_pop().unwrap(), Some(&b"request"[..]));
    assert_eq!(consumer.reader.try_pop().unwrap(), Some(&b"answer"[..]));
    assert_eq!(rustix::fs::ftruncate(&file, 0).unwrap_err(), Errno::PERM);
}

#[test]
fn control_memory_of_another_size_or_without_seals_is_refused() {
    for bytes in [0, RING_BYTES_MIN - 1, RING_BYTES_MIN + 1, 2 * RING_BYTES_MAX] {
        let refused = control::create(RING_BYTES_MIN, bytes).unwrap_err();
        assert!(matches!(refused, NodeError::RingSize { bytes: found } if found == bytes));
    }
    let open = |file: OwnedFd| control::open(file.as_fd(), RING_BYTES_MIN, RING_BYTES_MIN);
    let len = ControlLayout::new(RING_BYTES_MIN.into(), RING_BYTES_MIN.into()).unwrap().bytes() as u64;
    let unused = open(sealed(len, sealed::CONTROL_SEALS)).unwrap_err();
    assert!(
        matches!(unused, NodeError::Ring(RingError::Header { .. })),
        "no host has written its rings: {unused}"
    );
    for (len, seals) in
        [(len, SealFlags::empty()), (len, sealed::SLAB_SEALS), (len - 1, sealed::CONTROL_SEALS)]
    {
        assert!(matches!(open(sealed(len, seals)), Err(NodeError::NotSealed { what: "control memory", .. })));
    }
}
