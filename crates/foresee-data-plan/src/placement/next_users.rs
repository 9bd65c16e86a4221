// SPDX-License-Identifier: Apache-2.0
//! Which node uses a sample in each of the next epochs.

use foresee_units::NodeIndex;

use super::NOBODY;

/// The first user of each sample in the epochs after the current one, as far as they are known.
#[derive(Debug)]
pub(super) struct NextUsers {
    /// By sample, then by epoch modulo `horizon`.
    users: Vec<u16>,
    horizon: usize,
    /// The current epoch.
    epoch: u64,
    /// Epochs before this one are known.
    known: u64,
}

impl NextUsers {
    pub(super) fn new(samples: usize, horizon: usize) -> Self {
        Self { users: vec![NOBODY; samples * horizon], horizon, epoch: 0, known: 1 }
    }

    /// Whether a further epoch can be given.
    pub(super) fn wants_epoch(&self) -> bool {
        self.ahead() < self.horizon
    }

    /// Give the accesses of the first epoch that is not known.
    pub(super) fn add_epoch(&mut self, accesses: &mut dyn Iterator<Item = (u32, NodeIndex)>) {
        assert!(self.wants_epoch(), "at most {} epochs ahead are planned", self.horizon);
        let column = self.column(self.known);
        self.users.iter_mut().skip(column).step_by(self.horizon).for_each(|user| *user = NOBODY);
        for (sample, node) in accesses {
            let user = &mut self.users[sample as usize * self.horizon + column];
            if *user == NOBODY {
                *user = node.0;
            }
        }
        self.known += 1;
    }

    /// Go on to the next epoch.
    pub(super) fn begin_epoch(&mut self) {
        self.epoch += 1;
        self.known = self.known.max(self.epoch + 1);
    }

    /// The first of the next epochs in which anyone uses the sample, as a distance in epochs, and its user.
    pub(super) fn next(&self, sample: u32) -> Option<(usize, NodeIndex)> {
        self.ahead_of(sample)
            .find(|&(_, user)| user != NOBODY)
            .map(|(distance, user)| (distance, NodeIndex(user)))
    }

    /// Which of two nodes uses the sample in an earlier one of the next epochs; `None` if neither does.
    pub(super) fn sooner(&self, sample: u32, nodes: [NodeIndex; 2]) -> Option<NodeIndex> {
        self.ahead_of(sample).map(|(_, user)| NodeIndex(user)).find(|user| nodes.contains(user))
    }

    pub(super) fn table_bytes(&self) -> u64 {
        (self.users.len() * size_of::<u16>()) as u64
    }

    fn ahead_of(&self, sample: u32) -> impl Iterator<Item = (usize, u16)> + '_ {
        let of_sample = &self.users[sample as usize * self.horizon..][..self.horizon];
        (1..=self.ahead()).map(|distance| (distance, of_sample[self.column(self.epoch + distance as u64)]))
    }

    /// Number of the epochs after the current one that are known.
    fn ahead(&self) -> usize {
        usize::try_from(self.known - self.epoch - 1).expect("it is at most the horizon")
    }

    fn column(&self, epoch: u64) -> usize {
        usize::try_from(epoch % self.horizon as u64).expect("it is below the horizon")
    }
}
