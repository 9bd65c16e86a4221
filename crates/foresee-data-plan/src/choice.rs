// SPDX-License-Identifier: Apache-2.0
//! Choice between next-use and pin by the bytes that each reads from the origin over the announced window.
//!
//! It is separate from the walk, which follows either policy. With samples of one size next-use is never worse
//! (it is Belady's rule with bypass). Pin is as good for one rank that reads a permutation per epoch. It writes
//! less, because it never exchanges a copy, and its hits are spread over the epoch. Those of next-use come at the
//! beginning, while the origin is idle. With unequal sizes either may be better, which only a trial shows.

use crate::policy::Policy;
use crate::walk::Walk;

/// Maximum number of accesses in a trial: well under a second. A longer window is tried with a fraction of the
/// samples and the same fraction of the capacity.
const TRIAL_ACCESSES_MAX: usize = 1 << 18;
/// Two policies that differ by less than one part in this many are equally good. In a trial on a fraction of the
/// samples such a difference is noise, and it would not pay for the exchange of copies.
const TOLERANCE: u128 = 128;
/// A window with fewer accesses per sample has too little reuse to prove that both are equal.
const TELLING_ACCESSES_PER_SAMPLE: usize = 2;

/// Try both policies from here to the window's end. With about equal origin bytes choose pin, if the window is
/// long enough or reaches the run's end.
pub(crate) fn choose(walk: &mut Walk, samples: usize) -> Policy {
    let accesses = walk.window.len();
    let trial = walk.sample(TRIAL_ACCESSES_MAX);
    let next_use = walk.try_policy(Policy::NextUse, &trial);
    let pin = walk.try_policy(Policy::Pin, &trial);
    let tolerance = next_use / TOLERANCE;
    let telling = walk.window.has_ended() || accesses / TELLING_ACCESSES_PER_SAMPLE >= samples;
    if pin < next_use || (telling && pin <= next_use + tolerance) { Policy::Pin } else { Policy::NextUse }
}
