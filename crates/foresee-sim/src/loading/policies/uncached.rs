// SPDX-License-Identifier: Apache-2.0
//! Double buffering: a staging buffer in front of the origin without a cache, as in `tf.data` and torch's loader.
//!
//! It is unsuitable for several epochs from a slow origin, because every read goes there.

use crate::loading::prefetch::{Access, Caching, Supply};
use crate::loading::rates::{ORIGIN, Rates};

pub(super) struct Uncached;

impl Caching for Uncached {
    fn supply(&mut self, _: Access, _: f64, _: &Rates) -> Supply {
        Supply::From(ORIGIN)
    }
}
