// SPDX-License-Identifier: Apache-2.0
//! A listing that the ranks of a job on one node share.

use std::time::{Duration, Instant};

use foresee_data_loader::{ListingTurn, NodeListing, leave_listings};
use foresee_data_node::{ListingCounts, ListingKey, NodeError};
use pyo3::prelude::*;

use crate::index::Index;
use crate::interrupt::{LOG_INTERVAL, TICK, warn};

/// An index, and the numbers of unused elements and files.
type Listed = (Py<Index>, u64, u64);

/// The turn of this rank.
enum Turn {
    /// It lists, for itself alone if there is no listing to share.
    List(Option<NodeListing>),
    Found(Listed),
}

#[pyfunction]
pub(crate) fn share_listing(py: Python<'_>, key: [u8; 16], build: &Bound<'_, PyAny>) -> PyResult<Listed> {
    let turn = match py.detach(|| NodeListing::find(ListingKey(key))) {
        Ok(None) => Turn::List(None),
        Ok(Some(listing)) => wait(py, listing)?,
        Err(error) => alone(py, &error)?,
    };
    let listing = match turn {
        Turn::Found(listed) => return Ok(listed),
        Turn::List(listing) => listing,
    };
    let built = build.call0().and_then(|built| built.extract::<Listed>());
    let Some(listing) = listing else { return built };
    match &built {
        Ok((index, tail_elements, tail_files)) => {
            let index = index.get();
            let counts = ListingCounts {
                outside: index.outside,
                tail_elements: *tail_elements,
                tail_files: *tail_files,
            };
            if let Err(error) = py.detach(|| listing.publish(&index.index, counts)) {
                warn(py, format!("the other ranks of this node list the data set themselves: {error}"))?;
            }
        }
        Err(_) => py.detach(|| listing.fail()),
    }
    built
}

#[pyfunction]
pub(crate) fn close_listings(py: Python<'_>) {
    py.detach(leave_listings);
}

/// Wait for the index of another rank, or for the turn of this one.
fn wait(py: Python<'_>, mut listing: NodeListing) -> PyResult<Turn> {
    let start = Instant::now();
    let mut logged = Duration::ZERO;
    loop {
        match py.detach(|| listing.poll(TICK)) {
            Ok(ListingTurn::Waiting) => {}
            Ok(ListingTurn::List) => return Ok(Turn::List(Some(listing))),
            Ok(ListingTurn::Found(index, counts)) => {
                let index = Py::new(py, Index { index: *index, outside: counts.outside })?;
                return Ok(Turn::Found((index, counts.tail_elements, counts.tail_files)));
            }
            Err(error) => return alone(py, &error),
        }
        py.check_signals()?;
        let waited = start.elapsed();
        if waited.saturating_sub(logged) >= LOG_INTERVAL {
            logged = waited;
            let seconds = waited.as_secs();
            warn(
                py,
                format!(
                    "{seconds} s without an index: waiting for another rank of this node to list the data set"
                ),
            )?;
        }
    }
}

fn alone(py: Python<'_>, error: &NodeError) -> PyResult<Turn> {
    warn(py, format!("this rank shares no listing with its node, and lists the data set alone: {error}"))?;
    Ok(Turn::List(None))
}
