// SPDX-License-Identifier: Apache-2.0
//! The gradients of rounds that are not done: what a server in the place of a lost one is sent again.
//!
//! Apart from `Collect`, which knows which rounds those are and never sees a gradient. Refuses to copy: a gradient stays
//! where it is, and unchanged, for as long as it is kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use foresee_grad_queue::Round;

use super::push::Push;

/// Gradients by round, in the order in which they were pushed.
#[derive(Debug, Default)]
pub(super) struct Kept(BTreeMap<Round, Vec<Arc<Push>>>);

impl Kept {
    /// Keeps a gradient until its round is done.
    pub(super) fn keep(&mut self, push: Arc<Push>) {
        self.0.entry(push.round).or_default().push(push);
    }

    /// Lets go of all gradients of rounds before `oldest`.
    pub(super) fn forget_before(&mut self, oldest: Round) {
        while self.0.first_key_value().is_some_and(|(round, _)| *round < oldest) {
            self.0.pop_first();
        }
    }

    /// What is kept, older rounds first.
    pub(super) fn rounds(&self) -> impl Iterator<Item = &[Arc<Push>]> {
        self.0.values().map(Vec::as_slice)
    }
}
