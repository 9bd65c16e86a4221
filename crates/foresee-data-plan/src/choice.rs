// SPDX-License-Identifier: Apache-2.0
//! Next-use or pin: which of the two reads less from the origin over the announced window.
//!
//! Apart from the walk, which follows either. With samples of one size next-use is never worse (it is
//! Belady's rule with bypass), but where pin is as good, as it is for one rank that reads a permutation
//! per epoch, pin writes less: it never exchanges a copy. And its hits are spread over the epoch, where next-use has
//! them at the beginning and leaves the origin idle then. With unequal sizes either may win, and only
//! trying tells.

use crate::policy::Policy;
use crate::walk::Walk;

/// Most accesses that a trial walks through: well under a second. Beyond it the trial follows a part of
/// the samples with that part of the room.
const TRIAL_ACCESSES_MAX: usize = 1 << 18;
/// Two policies closer than one part in this many are as good: a trial on a part of the samples sees noise there, and less
/// than that pays for no exchange of copies.
const TOLERANCE: u128 = 128;
/// A window with fewer accesses per sample shows too little reuse to prove the two equal.
const TELLING_ACCESSES_PER_SAMPLE: usize = 2;

/// Tries both policies from here to the window's end. On about equal origin bytes pin, if the window is long
/// enough to tell or reaches the run's end.
pub(crate) fn choose(walk: &mut Walk, samples: usize) -> Policy {
    let accesses = walk.window.len();
    let trial = walk.sample(TRIAL_ACCESSES_MAX);
    let next_use = walk.try_policy(Policy::NextUse, &trial);
    let pin = walk.try_policy(Policy::Pin, &trial);
    let tolerance = next_use / TOLERANCE;
    let telling = walk.window.has_ended() || accesses / TELLING_ACCESSES_PER_SAMPLE >= samples;
    if pin < next_use || (telling && pin <= next_use + tolerance) { Policy::Pin } else { Policy::NextUse }
}
