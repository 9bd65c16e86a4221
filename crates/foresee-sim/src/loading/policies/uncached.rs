// SPDX-License-Identifier: Apache-2.0
//! Double buffering: a staging buffer in front of the origin, and nothing else. What `tf.data` and torch's loader do.
//!
//! Not for more than one epoch from a slow origin: nothing is ever read but from there.

use crate::loading::prefetch::{Access, Caching, Supply};
use crate::loading::rates::{ORIGIN, Rates};

pub(super) struct Uncached;

impl Caching for Uncached {
    fn supply(&mut self, _: Access, _: f64, _: &Rates) -> Supply {
        Supply::From(ORIGIN)
    }
}
