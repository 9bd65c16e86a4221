// SPDX-License-Identifier: Apache-2.0
//! Tests of shared memory: what each side can do, what it cannot, and copies of slots that are reused meanwhile.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use foresee_units::Bytes;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::*;
use crate::error::NodeError;
use crate::ring::{ControlLayout, RingError};

const SLOTS: u64 = 1000;
const DATA: u64 = 5 << 20;
const CHUNK: u64 = 2 << 20;

fn options() -> SlabOptions {
    SlabOptions { slots: SLOTS, data: Bytes::new(DATA), available: None, huge_pages: false }
}

fn slab() -> SlabMemory {
    SlabMemory::create(&options()).unwrap()
}

fn received(slab: &SlabMemory) -> OwnedFd {
    slab.file().unwrap().try_clone_to_owned().unwrap()
}

fn open(file: &OwnedFd) -> Result<SlabView, NodeError> {
    SlabView::open(file.as_fd(), SLOTS, Bytes::new(DATA))
}

fn both() -> (SlabMemory, SlabView) {
    let slab = slab();
    let view = open(&received(&slab)).unwrap();
    (slab, view)
}

fn write(slab: &SlabMemory, slot: u64, offset: u64, bytes: &[u8]) -> u64 {
    slab.commit(offset..offset + bytes.len() as u64).unwrap();
    // SAFETY: only this thread accesses the slab.
    unsafe { slab.write(slot, offset, bytes) }.unwrap()
}

#[test]
fn a_consumer_reads_what_the_host_wrote() {
    let (slab, view) = both();
    let last = DATA - 3;
    let (first, end) = (write(&slab, 0, 0, b"sample"), write(&slab, SLOTS - 1, last, b"end"));
    let mut dest = [0; 6];
    assert!(view.copy(0, first, 0, &mut dest).unwrap());
    assert_eq!(&dest, b"sample");
    assert!(view.copy(SLOTS - 1, end, last, &mut dest[..3]).unwrap());
    assert_eq!(&dest, b"endple");
    assert!(view.copy(0, first, 0, &mut []).unwrap());
    assert_eq!((view.slots(), view.data_bytes()), (SLOTS, Bytes::new(DATA)));
}

#[test]
fn a_reused_slot_is_detected() {
    let (slab, view) = both();
    let old = write(&slab, 7, 100, b"old");
    let mut dest = [0; 3];
    assert!(view.copy(7, old, 100, &mut dest).unwrap());
    assert_eq!(slab.invalidate(7).unwrap(), old + 1);
    assert!(!view.copy(7, old, 100, &mut dest).unwrap());
    let new = write(&slab, 7, 100, b"new");
    assert_eq!((new, slab.generation(7).unwrap()), (old + 2, old + 2));
    assert!(!view.copy(7, old, 100, &mut dest).unwrap());
    assert!(view.copy(7, new, 100, &mut dest).unwrap());
    assert_eq!(&dest, b"new");
    assert_eq!(slab.generation(6).unwrap(), 0, "its neighbour is untouched");
}

#[test]
fn an_accepted_copy_has_the_bytes_of_its_generation() {
    const LEN: usize = 4096;
    const ROUNDS: u64 = 20_000;
    let value = |generation: u64| u8::try_from(generation % 251).unwrap();
    let (slab, view) = both();
    slab.commit(0..DATA).unwrap();
    let published = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                // SAFETY: only this thread writes.
                let generation = unsafe { slab.write(3, 0, &[value(round); LEN]) }.unwrap();
                assert_eq!(generation, round);
                published.store(generation, Ordering::Release);
            }
        });
        let mut dest = [0; LEN];
        let mut seen = 0;
        while seen < ROUNDS {
            seen = published.load(Ordering::Acquire);
            if seen > 0 && view.copy(3, seen, 0, &mut dest).unwrap() {
                assert!(dest.iter().all(|byte| *byte == value(seen)), "generation {seen} is mixed");
            }
        }
        assert_eq!(dest, [value(ROUNDS); LEN], "the last write is accepted");
    });
}

#[test]
fn ranges_and_slots_outside_the_slab_are_refused_on_both_sides() {
    let (slab, view) = both();
    let mut dest = [0; 8];
    for (slot, offset) in [(SLOTS, 0), (0, DATA - 7), (0, u64::MAX), (u64::MAX, u64::MAX)] {
        let refused = view.copy(slot, 0, offset, &mut dest).unwrap_err();
        assert!(matches!(refused, NodeError::OutsideSlab { .. }), "{refused}");
    }
    assert!(matches!(slab.generation(SLOTS), Err(NodeError::OutsideSlab { .. })));
    assert!(matches!(slab.invalidate(SLOTS), Err(NodeError::OutsideSlab { .. })));
    assert!(matches!(slab.commit(0..DATA + 1), Err(NodeError::OutsideSlab { .. })));
    assert!(matches!(slab.commit_slot(SLOTS), Err(NodeError::OutsideSlab { .. })));
    assert!(matches!(slab.data(u64::MAX - 1..u64::MAX), Err(NodeError::OutsideSlab { .. })));
}

#[test]
fn pages_are_allocated_by_commit_and_used_only_afterwards() {
    let slab = slab();
    let allocated = || rustix::fs::fstat(slab.file().unwrap()).unwrap().st_blocks.cast_unsigned() * 512;
    assert_eq!((slab.committed_bytes(), allocated()), (Bytes::ZERO, 0));
    let second = CHUNK..CHUNK + 1;
    assert!(matches!(slab.data(second.clone()), Err(NodeError::NotCommitted { .. })));
    // SAFETY: nothing else accesses the slab.
    let refused = unsafe { slab.write(0, CHUNK, b"x") }.unwrap_err();
    assert!(matches!(refused, NodeError::NotCommitted { .. }));
    for _ in 0..2 {
        slab.commit(second.clone()).unwrap();
        assert_eq!((slab.committed_bytes(), allocated()), (Bytes::new(CHUNK), CHUNK));
    }
    assert_eq!(slab.data(second).unwrap().len(), 1);
    for _ in 0..2 {
        slab.commit_slot(SLOTS - 1).unwrap();
        assert_eq!((slab.committed_bytes(), allocated()), (Bytes::new(2 * CHUNK), 2 * CHUNK));
    }
    assert_eq!(slab.generation(0).unwrap(), 0);
}

#[test]
fn an_impossible_slab_is_refused() {
    for (slots, data) in [(0, 1), (1, 0), (u64::MAX, 1), (1, u64::MAX), (1, 1 << 63)] {
        let options = SlabOptions { slots, data: Bytes::new(data), ..options() };
        assert!(matches!(SlabMemory::create(&options), Err(NodeError::SlabShape { .. })));
    }
}

#[test]
fn a_slab_above_the_memory_limit_is_refused_with_a_remedy() {
    let with =
        |available| SlabMemory::create(&SlabOptions { available: Some(Bytes::new(available)), ..options() });
    // The table and 5 MiB of data take three units of 2 MiB.
    let refused = with(3 * CHUNK - 1).unwrap_err();
    assert!(matches!(refused, NodeError::SlabTooLarge { bytes, .. } if bytes.get() == 3 * CHUNK));
    assert!(refused.to_string().contains("lower `ram=`"), "{refused}");
    assert!(with(3 * CHUNK).is_ok());
}

#[test]
fn a_slab_works_with_huge_pages_or_without_reserved_ones() {
    let slab = SlabMemory::create(&SlabOptions { huge_pages: true, ..options() }).unwrap();
    let view = open(&received(&slab)).unwrap();
    let generation = write(&slab, 1, DATA - 4, b"huge");
    let mut dest = [0; 4];
    assert!(view.copy(1, generation, DATA - 4, &mut dest).unwrap());
    assert_eq!(&dest, b"huge");
}

#[test]
fn a_consumer_cannot_write_or_change_the_slab() {
    let (slab, view) = both();
    let generation = write(&slab, 0, 0, b"sample");
    let file = received(&slab);
    let len = rustix::fs::fstat(&file).unwrap().st_size.cast_unsigned();
    let map = |protection| {
        let bytes = usize::try_from(len).unwrap();
        // SAFETY: a new mapping at an address that the system chooses.
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, &file, 0) }
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
        assert_eq!(rustix::fs::ftruncate(&file, changed).unwrap_err(), Errno::PERM);
    }
    assert_eq!(rustix::io::pwrite(&file, b"x", 4096 * 2).unwrap_err(), Errno::PERM);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(rustix::fs::fallocate(&file, hole, 0, 4096).unwrap_err(), Errno::PERM);
    assert_eq!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).unwrap_err(), Errno::PERM);
    // The same file by name, with a new description.
    let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let other = std::fs::OpenOptions::new().read(true).write(true).open(name).unwrap();
    assert_eq!(other.set_len(0).unwrap_err().raw_os_error(), Some(Errno::PERM.raw_os_error()));
    let mut dest = [0; 6];
    assert!(view.copy(0, generation, 0, &mut dest).unwrap());
    assert_eq!(&dest, b"sample");
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
