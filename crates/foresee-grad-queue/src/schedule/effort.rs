// SPDX-License-Identifier: Apache-2.0
//! How many places a call looked at: what a test of the scheduler's cost counts. Free outside tests.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// One place more; called in every loop of the choice.
#[inline]
pub(super) fn step() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// Places looked at since the last call.
#[cfg(test)]
pub(super) fn take() -> u64 {
    STEPS.with(|steps| steps.replace(0))
}
