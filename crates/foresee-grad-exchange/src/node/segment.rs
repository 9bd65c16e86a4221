// SPDX-License-Identifier: Apache-2.0
//! Shared memory of the ranks of one node for one plan: an area of each rank, the results, and the progress of all.
//!
//! ```text
//! wakers | used round | ended, by rank | received, by tensor | pushed, by rank and tensor | used, two rounds
//! areas, by rank and round's parity and tensor | results, by tensor
//! ```
//!
//! Counters hold rounds plus one; 0 is none. Bytes are written before their counter (release), and read after it
//! (acquire).
//!
//! The memory has no name in any file system, so nothing remains when a process is killed: the leader's process holds it
//! open, and the others open it through that process's descriptor. All of it is allocated before training begins; a node
//! without enough memory is an error.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use foresee_grad_queue::{Plan, Round, TensorId, TensorSet};
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::rank::{ReceiveBuffer, tensor_bytes};

const LINE: usize = 64;
const PAGE: usize = 4096;
const WORD: usize = size_of::<u64>();
/// Rounds that an area holds.
const ROUNDS: usize = 2;

/// The shared memory of one plan, as one process sees it.
#[derive(Debug)]
pub(super) struct Segment {
    start: NonNull<u8>,
    layout: Layout,
    file: OwnedFd,
}

// SAFETY: the memory is accessed through atomics, or through pointers whose users promise exclusive access.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// Offsets in bytes from the start.
#[derive(Debug)]
struct Layout {
    ranks: usize,
    tensors: usize,
    ended: usize,
    received: usize,
    pushed: usize,
    used: usize,
    areas: usize,
    /// Bytes of a rank's area for one round, and of the results.
    area: usize,
    /// The offset of each tensor in an area, and its bytes.
    extents: Box<[(usize, usize)]>,
    len: usize,
}

/// A counter of wake-ups that other processes wait for.
#[derive(Clone, Copy, Debug)]
pub(super) struct FutexWaker<'a>(&'a AtomicU32);

impl Layout {
    fn new(plan: &Plan, ranks: usize) -> Option<Self> {
        let tensors = plan.tensors() as usize;
        let mut area = 0_usize;
        let mut extents = Vec::with_capacity(tensors);
        for tensor in (0..plan.tensors()).map(TensorId) {
            let bytes = tensor_bytes(plan, tensor)?;
            extents.push((area, bytes));
            area = area.checked_add(bytes)?.checked_next_multiple_of(LINE)?;
        }
        let area = area.checked_next_multiple_of(PAGE)?;
        // Two wakers and the used round have a cache line each.
        let ended = 3 * LINE;
        let received = ended + ranks * WORD;
        let pushed = received + tensors * WORD;
        let used = pushed + ranks.checked_mul(tensors)?.checked_mul(WORD)?;
        let areas = (used + ROUNDS * tensors.div_ceil(64) * WORD).next_multiple_of(PAGE);
        let len = area.checked_mul(ranks.checked_mul(ROUNDS)? + 1)?.checked_add(areas)?;
        Some(Self {
            ranks,
            tensors,
            ended,
            received,
            pushed,
            used,
            areas,
            area,
            extents: extents.into(),
            len,
        })
    }
}

impl Segment {
    /// Create zeroed memory for `ranks` ranks.
    ///
    /// # Errors
    /// The system has not enough memory.
    pub(super) fn create(plan: &Plan, ranks: usize) -> io::Result<Self> {
        let layout = Layout::new(plan, ranks).ok_or(io::ErrorKind::OutOfMemory)?;
        let file = rustix::fs::memfd_create("foresee-gradients", MemfdFlags::CLOEXEC)?;
        let len = layout.len as u64;
        rustix::fs::ftruncate(&file, len)?;
        // Allocated later, a lack of memory would be a signal in the middle of a step.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len)?;
        Self::map(file, layout)
    }

    /// Open the memory that another process created for the same plan, by its [`path`](Self::path) there.
    ///
    /// # Errors
    /// It cannot be opened, or belongs to another plan.
    pub(super) fn open(path: &str, plan: &Plan, ranks: usize) -> io::Result<Self> {
        let layout = Layout::new(plan, ranks).ok_or(io::ErrorKind::OutOfMemory)?;
        let file: File = OpenOptions::new().read(true).write(true).open(path)?;
        let found = file.metadata()?.len();
        if found != layout.len as u64 {
            let what = format!("it has {found} bytes instead of {}", layout.len);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Self::map(file.into(), layout)
    }

    fn map(file: OwnedFd, layout: Layout) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the system chooses.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), layout.len, protection, flags, file.as_fd(), 0)
        }?;
        let start = NonNull::new(start.cast()).expect("the system maps nothing at 0");
        Ok(Self { start, layout, file })
    }

    /// The path by which other processes of this node and user open it, as long as this one lives.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Woken by ranks that have pushed a tensor or ended a round.
    pub(super) fn push_waker(&self) -> FutexWaker<'_> {
        self.waker(0)
    }

    /// Woken by the leader after it received an average.
    pub(super) fn result_waker(&self) -> FutexWaker<'_> {
        self.waker(LINE)
    }

    /// Rounds that a rank has ended.
    pub(super) fn ended(&self, rank: usize) -> &AtomicU64 {
        assert!(rank < self.layout.ranks, "the rank is of this node");
        self.word(self.layout.ended + rank * WORD)
    }

    /// The rounds that each rank has ended, in rank order.
    pub(super) fn rounds_ended(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.layout.ranks).map(|rank| self.ended(rank).load(Ordering::Acquire))
    }

    /// The round after the last in which a rank pushed a tensor.
    pub(super) fn pushed(&self, rank: usize, tensor: TensorId) -> &AtomicU64 {
        let (tensors, tensor) = (self.layout.tensors, tensor.0 as usize);
        assert!(rank < self.layout.ranks && tensor < tensors, "a plan has its tensors");
        self.word(self.layout.pushed + (rank * tensors + tensor) * WORD)
    }

    /// The round after the last whose average of a tensor is among the results.
    pub(super) fn received(&self, tensor: TensorId) -> &AtomicU64 {
        assert!((tensor.0 as usize) < self.layout.tensors, "a plan has its tensors");
        self.word(self.layout.received + tensor.0 as usize * WORD)
    }

    /// Publish the tensors that a round used. Only the leader calls it.
    pub(super) fn publish_used(&self, round: Round, used: &TensorSet) {
        let words = self.layout.tensors.div_ceil(64);
        let mut values = vec![0_u64; words];
        for tensor in used.iter() {
            values[tensor.0 as usize / 64] |= 1 << (tensor.0 % 64);
        }
        for (at, value) in values.into_iter().enumerate() {
            self.used_word(round, at).store(value, Ordering::Relaxed);
        }
        self.word(2 * LINE).store(round.0 + 1, Ordering::Release);
    }

    /// Whether a round used a tensor; `None` while that is not known. For the last published round, or the one before.
    pub(super) fn used(&self, round: Round, tensor: TensorId) -> Option<bool> {
        (self.word(2 * LINE).load(Ordering::Acquire) > round.0).then(|| {
            let word = self.used_word(round, tensor.0 as usize / 64).load(Ordering::Relaxed);
            word >> (tensor.0 % 64) & 1 == 1
        })
    }

    /// Bytes of a tensor.
    pub(super) fn bytes(&self, tensor: TensorId) -> usize {
        self.layout.extents[tensor.0 as usize].1
    }

    /// A rank's contribution to a round; valid while `self` lives.
    pub(super) fn contribution(&self, rank: usize, round: Round, tensor: TensorId) -> *mut u8 {
        assert!(rank < self.layout.ranks, "the rank is of this node");
        let parity = usize::from(!round.0.is_multiple_of(2));
        self.pointer(rank * ROUNDS + parity, tensor)
    }

    /// The average of a tensor; valid while `self` lives.
    pub(super) fn result(&self, tensor: TensorId) -> *mut u8 {
        self.pointer(self.layout.ranks * ROUNDS, tensor)
    }

    /// The results as receive buffers.
    pub(super) fn receive_buffers(self: &Arc<Self>) -> Vec<Arc<ReceiveBuffer>> {
        let tensors = u32::try_from(self.layout.tensors).expect("a plan counts its tensors in 32 bits");
        let buffer = |tensor| {
            let owner: Arc<Self> = Arc::clone(self);
            // SAFETY: the memory is of this tensor alone, on a cache line, and mapped while the owner lives.
            unsafe { ReceiveBuffer::over(self.result(tensor), self.bytes(tensor), owner) }
        };
        (0..tensors).map(TensorId).map(buffer).collect()
    }

    fn pointer(&self, area: usize, tensor: TensorId) -> *mut u8 {
        let (offset, _) = self.layout.extents[tensor.0 as usize];
        let at = self.layout.areas + area * self.layout.area + offset;
        // SAFETY: the layout keeps every extent within the mapping.
        unsafe { self.start.as_ptr().add(at) }
    }

    fn used_word(&self, round: Round, at: usize) -> &AtomicU64 {
        let words = self.layout.tensors.div_ceil(64);
        assert!(at < words, "a plan has its tensors");
        let parity = usize::from(!round.0.is_multiple_of(2));
        self.word(self.layout.used + (parity * words + at) * WORD)
    }

    fn waker(&self, at: usize) -> FutexWaker<'_> {
        // SAFETY: aligned, within the mapping, and used as a waker by every process.
        FutexWaker(unsafe { &*self.start.as_ptr().add(at).cast() })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as above; callers keep `at` to whole words of the counters.
        unsafe { &*self.start.as_ptr().add(at).cast() }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: users of its pointers promise that none outlives `self`. It cannot fail: it is one whole mapping.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.layout.len) };
    }
}

impl FutexWaker<'_> {
    /// The number of wake-ups, to be read before the awaited state.
    pub(super) fn count(self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Wake the waiting threads of every process.
    pub(super) fn wake(self) {
        self.0.fetch_add(1, Ordering::Release);
        // It fails only for invalid addresses.
        let _ = futex::wake(self.0, futex::Flags::empty(), i32::MAX.cast_unsigned());
    }

    /// Wait until there are more wake-ups than `count`, or for `time`; may return early.
    pub(super) fn wait(self, count: u32, time: Duration) {
        let time = Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        // Whether it was woken, timed out or interrupted: the caller checks the state.
        let _ = futex::wait(self.0, futex::Flags::empty(), count, Some(&time));
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use foresee_grad_queue::{Dtype, Op, Pattern, PlanConfig, TensorSpec, Wire};

    use super::*;

    fn plan(shapes: &[u64]) -> Plan {
        let tensors = shapes.iter().enumerate().map(|(at, elements)| TensorSpec {
            name: format!("t{at}"),
            dtype: Dtype::F32,
            shape: vec![*elements],
            strides: vec![1],
            class: 0,
            op: Op::Mean,
        });
        let packet_bytes = NonZeroU32::new(4096).unwrap().get();
        let config = PlanConfig { packet_bytes, wire: Wire::Own, pattern: Pattern::new(&[1]).unwrap() };
        Plan::new(config, tensors.collect()).unwrap()
    }

    #[test]
    fn two_mappings_share_memory_and_extents_do_not_overlap() {
        let plan = plan(&[3, 0, 1000]);
        let made = Segment::create(&plan, 2).unwrap();
        let opened = Segment::open(&made.path(), &plan, 2).unwrap();
        let mut places = Vec::new();
        for tensor in (0..3).map(TensorId) {
            for rank in 0..2 {
                for round in (0..2).map(Round) {
                    places.push((made.contribution(rank, round, tensor), made.bytes(tensor)));
                }
            }
            places.push((made.result(tensor), made.bytes(tensor)));
        }
        for (value, (place, bytes)) in (1_u8..).zip(&places) {
            // SAFETY: within the mapping, used by this thread alone.
            unsafe { std::ptr::write_bytes(*place, value, *bytes) };
        }
        let start = made.contribution(0, Round(0), TensorId(0)) as usize;
        let other = opened.contribution(0, Round(0), TensorId(0));
        for (value, (place, bytes)) in (1_u8..).zip(&places) {
            // SAFETY: as above, through the other mapping.
            let seen = unsafe { std::slice::from_raw_parts(other.add(*place as usize - start), *bytes) };
            assert!(seen.iter().all(|byte| *byte == value));
        }
        assert_eq!((made.pushed(1, TensorId(2)).load(Ordering::Relaxed), made.bytes(TensorId(1))), (0, 0));
        opened.pushed(1, TensorId(2)).store(7, Ordering::Release);
        opened.ended(1).store(6, Ordering::Release);
        opened.received(TensorId(2)).store(5, Ordering::Release);
        assert_eq!(made.pushed(1, TensorId(2)).load(Ordering::Acquire), 7);
        assert_eq!((made.ended(1).load(Ordering::Acquire), made.ended(0).load(Ordering::Acquire)), (6, 0));
        assert_eq!(made.received(TensorId(2)).load(Ordering::Acquire), 5);
    }

    #[test]
    fn the_used_tensors_of_the_last_two_rounds_are_stored() {
        let plan = plan(&[1; 70]);
        let segment = Segment::create(&plan, 1).unwrap();
        assert_eq!(segment.used(Round(0), TensorId(69)), None);
        let mut used = TensorSet::none(70);
        assert!(used.insert(TensorId(69)));
        segment.publish_used(Round(0), &used);
        segment.publish_used(Round(1), &TensorSet::all(70));
        assert_eq!(segment.used(Round(0), TensorId(69)), Some(true));
        assert_eq!(segment.used(Round(0), TensorId(0)), Some(false));
        assert_eq!(segment.used(Round(1), TensorId(0)), Some(true));
        assert_eq!(segment.used(Round(2), TensorId(0)), None);
    }

    #[test]
    fn a_wait_after_a_wake_up_returns_at_once() {
        let segment = Arc::new(Segment::create(&plan(&[1]), 1).unwrap());
        let count = segment.result_waker().count();
        segment.result_waker().wake();
        segment.result_waker().wait(count, Duration::from_secs(3600));
        let seen = segment.push_waker().count();
        let other = Arc::clone(&segment);
        let waking = std::thread::spawn(move || other.push_waker().wake());
        while segment.push_waker().count() == seen {
            segment.push_waker().wait(seen, Duration::from_secs(3600));
        }
        waking.join().unwrap();
    }

    #[test]
    fn memory_of_another_plan_is_refused() {
        let made = Segment::create(&plan(&[10]), 2).unwrap();
        let other = Segment::open(&made.path(), &plan(&[10_000]), 2).unwrap_err();
        assert!(other.to_string().contains("bytes instead of"), "{other}");
        assert!(Segment::open("/proc/self/fd/1000000", &plan(&[10]), 2).is_err());
    }
}
