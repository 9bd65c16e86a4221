// SPDX-License-Identifier: Apache-2.0
//! Types of the elements of a tensor, shared by plans, frames and sums.

use std::fmt;

use crate::named_enum;

named_enum! {
    /// The type of a tensor's elements, with the name that `PyTorch` and NumPy give it. Bytes are little-endian.
    Dtype {
        /// IEEE 754 binary32.
        F32 => "float32",
        /// The upper half of a binary32.
        Bf16 => "bfloat16",
        /// IEEE 754 binary16.
        F16 => "float16",
        /// IEEE 754 binary64.
        F64 => "float64",
        /// Two's complement, 32 bits.
        I32 => "int32",
        /// Two's complement, 64 bits.
        I64 => "int64",
    }
}

impl Dtype {
    /// The code on the wire: 1 to 6, so that it fits 4 bits and a zeroed header names no dtype.
    pub const fn code(self) -> u8 {
        self as u8 + 1
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
    fn codes_of_the_wire_never_change() {
        use Dtype::{Bf16, F16, F32, F64, I32, I64};
        assert_eq!([F32, Bf16, F16, F64, I32, I64].map(Dtype::code), [1, 2, 3, 4, 5, 6]);
    }

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
