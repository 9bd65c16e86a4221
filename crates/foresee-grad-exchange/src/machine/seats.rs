// SPDX-License-Identifier: Apache-2.0
//! The ranks of a machine that are connected to its hub, and those that have left.

use std::collections::BTreeMap;

use foresee_units::Rank;

use crate::control::Control;

/// The places of a machine's ranks.
#[derive(Debug, Default)]
pub(super) struct Seats(pub(super) BTreeMap<Rank, Seat>);

#[derive(Debug)]
pub(super) struct Seat {
    pub(super) control: Option<Control>,
    /// Why it left in peace.
    pub(super) left: Option<String>,
}

impl Seats {
    /// Of ranks that are there.
    pub(super) fn controls(&self) -> Vec<Control> {
        self.0.values().filter(|seat| seat.left.is_none()).filter_map(|seat| seat.control.clone()).collect()
    }

    /// Whether somebody came who has not left.
    pub(super) fn is_taken(&self) -> bool {
        self.0.values().any(|seat| seat.left.is_none())
    }

    /// Who has left in peace, and what is to be said if others need them.
    pub(super) fn gone(&self) -> impl Iterator<Item = (Rank, String)> + '_ {
        self.0.iter().filter_map(|(rank, seat)| {
            let reason = seat.left.as_ref()?;
            let why = format!(
                "it has left ({reason}) while others go on; every rank must take the same number of steps"
            );
            Some((*rank, why))
        })
    }
}
