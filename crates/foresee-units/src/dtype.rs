// SPDX-License-Identifier: Apache-2.0
//! Types of the elements of a tensor.
//!
//! Plans, frames and sums share them, in crates that do not know each other. An unlisted code is an error.

use std::fmt;

/// The type of a tensor's elements. Little-endian wherever its bytes are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32,
    /// The upper half of a binary32.
    Bf16,
    /// IEEE 754 binary16.
    F16,
    /// IEEE 754 binary64.
    F64,
    /// Two's complement, 32 bits.
    I32,
    /// Two's complement, 64 bits.
    I64,
}

impl Dtype {
    /// Every dtype, by code.
    pub const ALL: [Self; 6] = [Self::F32, Self::Bf16, Self::F16, Self::F64, Self::I32, Self::I64];

    /// The code on the wire: 1 to 6, so that it fits 4 bits and a zeroed header names no dtype.
    pub const fn code(self) -> u8 {
        match self {
            Self::F32 => 1,
            Self::Bf16 => 2,
            Self::F16 => 3,
            Self::F64 => 4,
            Self::I32 => 5,
            Self::I64 => 6,
        }
    }

    /// The dtype of a code, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.code() == code)
    }

    /// Bytes of one element: 2, 4 or 8.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// The name that `PyTorch` and NumPy give it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
            Self::F64 => "float64",
            Self::I32 => "int32",
            Self::I64 => "int64",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_fit_four_bits_and_come_back() {
        for code in 0..=u8::MAX {
            match Dtype::from_code(code) {
                Some(dtype) => assert!((1..16).contains(&code) && dtype.code() == code),
                None => assert!(code == 0 || code > 6),
            }
        }
    }
}
