// SPDX-License-Identifier: Apache-2.0
//! Tensors and reproducible gradients.

use foresee_grad_queue::{Dtype, Op, TensorSpec};

pub(crate) fn spec(name: &str, dtype: Dtype, elements: u64, class: u8) -> TensorSpec {
    TensorSpec { name: name.into(), dtype, shape: vec![elements], strides: vec![1], class, op: Op::Mean }
}

/// Reproducible bytes: finite numbers of all magnitudes, so that the order of a sum changes its bits.
pub(crate) fn gradient(spec: &TensorSpec, rank: u32, round: u64) -> Vec<u8> {
    let mut state = foresee_units::GAMMA ^ (u64::from(rank) << 40) ^ (round << 20) ^ spec.name.len() as u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let scale = [1e-3, 1.0, 1e4, 1e8][(state >> 60) as usize % 4];
        ((state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5) * scale
    };
    let mut bytes = Vec::new();
    for _ in 0..spec.shape[0] {
        let value = next();
        match spec.dtype {
            Dtype::F64 => bytes.extend(value.to_le_bytes()),
            Dtype::Bf16 => bytes.extend(&(value as f32).to_le_bytes()[2..]),
            _ => bytes.extend((value as f32).to_le_bytes()),
        }
    }
    bytes
}
