// SPDX-License-Identifier: Apache-2.0
//! Data sets for simulations: sizes without contents.

use foresee_data_plan::SampleSizes;
use foresee_units::{Bytes, SampleId};

/// The sizes of a simulated data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SizeTable {
    /// `count` samples of `size` bytes.
    Uniform {
        /// Number of samples.
        count: u64,
        /// Bytes per sample.
        size: Bytes,
    },
    /// The size of each sample, by id.
    Each(Vec<Bytes>),
}

impl SampleSizes for SizeTable {
    fn count(&self) -> u64 {
        match self {
            Self::Uniform { count, .. } => *count,
            Self::Each(sizes) => sizes.len() as u64,
        }
    }

    fn size(&self, id: SampleId) -> Bytes {
        match self {
            Self::Uniform { size, .. } => *size,
            Self::Each(sizes) => sizes[usize::try_from(id.0).expect("an id below the count")],
        }
    }

    fn uniform(&self) -> Option<Bytes> {
        match self {
            Self::Uniform { size, .. } => Some(*size),
            Self::Each(_) => None,
        }
    }
}
