// SPDX-License-Identifier: Apache-2.0
//! Reads that only fill caches: neighbours of a missing sample that the plan adds to its read. They have memory of their own
//! until their caches have them.

use std::sync::Arc;

use foresee_data_plan::TierSet;
use foresee_units::{Nanos, SampleId};

use super::Driver;
use crate::reads::{BatchPosition, Read, ReadSource, ReadTarget};

impl Driver {
    /// Begin the planned reads of neighbours. `group`: that of the read of the missing sample at `position`, which has begun.
    pub(super) fn read_ahead(
        &mut self,
        ahead: &[(SampleId, TierSet)],
        group: Option<u64>,
        position: BatchPosition,
    ) {
        if ahead.is_empty() {
            return;
        }
        let data = Arc::clone(&self.data);
        let len_of =
            |sample| usize::try_from(data.index().size(sample).get()).expect("it was planned to fit");
        let group = group.unwrap_or_else(|| self.fetches.reads.next_ticket());
        let buffer = self.shared.buffers.lend(ahead.iter().map(|&(sample, _)| len_of(sample)).sum());
        let mut offset = 0;
        for &(sample, fills) in ahead {
            let len = len_of(sample);
            if let Some((_, read)) = self.fetches.reads.of_sample(sample) {
                read.target.fills.add(fills);
            } else {
                let target = ReadTarget { sample, position, offset, len, fills };
                let read = Read {
                    is_ahead: true,
                    group: Some(group),
                    ..Read::new(target, ReadSource::Origin, Arc::clone(&buffer))
                };
                let number = self.fetches.reads.begin(read);
                self.request_origin(number);
            }
            offset += len;
        }
    }

    /// Let a batch wait for the read of a sample in progress, whose bytes `fills` get too; `false` if there is none.
    pub(super) fn wait_for_read(
        &mut self,
        sample: SampleId,
        position: BatchPosition,
        fills: TierSet,
    ) -> bool {
        let Some((number, read)) = self.fetches.reads.of_sample(sample) else { return false };
        read.waiters.push(position);
        read.target.fills.add(fills);
        if read.is_ahead {
            self.fetches.origin_reads.handle_wanted(number, position.slot, Nanos::MAX);
        }
        true
    }
}
