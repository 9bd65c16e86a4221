// SPDX-License-Identifier: Apache-2.0
//! Counter of the places that a call visits, for a test of the scheduler's cost. It costs nothing outside tests.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Count one place; called in every loop of the choice.
#[inline]
pub(super) fn step() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// The places visited since the last call.
#[cfg(test)]
pub(super) fn take() -> u64 {
    STEPS.with(|steps| steps.replace(0))
}
