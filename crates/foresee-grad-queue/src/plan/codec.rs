// SPDX-License-Identifier: Apache-2.0
//! Encoding of a plan, which ranks send and compare by digest.
//!
//! The bytes come from the network and are not trusted. A plan has exactly one encoding, and the decoder accepts
//! no other, so equal digests mean equal plans. The decoder allocates no more than the length of its input
//! justifies.
//!
//! All numbers are little-endian:
//!
//! | field | bytes |
//! |---|---|
//! | version (1), wire, 0, 0 | 1 each |
//! | packet size | 4 |
//! | servers | 4, then 4 for each share, without common factors |
//! | tensors | 4, then for each: |
//! | name | 4 for its length, then itself in UTF-8 |
//! | dtype, class, dimensions, op | 1 each |
//! | shape, strides | 8 for each entry |

use super::{Plan, PlanConfig, TensorSpec, Wire, to_u32};
use crate::{Dtype, Op, Pattern, QueueError};

const VERSION: u8 = 1;

impl Plan {
    /// Encode the plan. Equal plans have equal bytes, different plans different ones.
    pub fn encode(&self) -> Vec<u8> {
        let PlanConfig { packet_bytes, wire, pattern } = self.config();
        let mut out = vec![VERSION, wire.code(), 0, 0];
        let word = |out: &mut Vec<u8>, value: usize| out.extend(to_u32(value as u64).to_le_bytes());
        out.extend(packet_bytes.to_le_bytes());
        word(&mut out, pattern.shares().len());
        out.extend(pattern.shares().iter().flat_map(|share| share.to_le_bytes()));
        word(&mut out, self.tensors.len());
        for spec in self.tensors.iter().map(|entry| &entry.spec) {
            let TensorSpec { name, dtype, shape, strides, class, op } = spec;
            word(&mut out, name.len());
            out.extend(name.as_bytes());
            // At most 64 dimensions, so one byte suffices.
            let [dimensions, ..] = to_u32(shape.len() as u64).to_le_bytes();
            out.extend([dtype.code(), *class, dimensions, op.code()]);
            out.extend(shape.iter().flat_map(|size| size.to_le_bytes()));
            out.extend(strides.iter().flat_map(|stride| stride.to_le_bytes()));
        }
        out
    }

    /// Decode and validate a plan.
    ///
    /// # Errors
    /// [`QueueError::PlanBytes`] with the offset of the fault, or an error of [`Plan::new`] or [`Pattern::new`].
    pub fn decode(bytes: &[u8]) -> Result<Self, QueueError> {
        let mut reader = Reader { bytes, at: 0 };
        if reader.byte()? != VERSION {
            return Err(reader.fault("is of a version that is not known here"));
        }
        let wire = reader.byte()?;
        let wire = Wire::from_code(wire).ok_or_else(|| reader.fault("names no dtype on the wire"))?;
        reader.zero()?;
        reader.zero()?;
        let packet_bytes = u32::from_le_bytes(reader.array()?);
        let servers = reader.count(4)?;
        let shares =
            (0..servers).map(|_| Ok(u32::from_le_bytes(reader.array()?))).collect::<Result<Vec<_>, _>>()?;
        let pattern = Pattern::new(&shares)?;
        if pattern.shares() != shares {
            return Err(reader.fault("ends shares with a common factor"));
        }
        // The shortest tensor takes 8 bytes and a name of one byte.
        let count = reader.count(9)?;
        let tensors = (0..count).map(|_| reader.tensor()).collect::<Result<Vec<_>, _>>()?;
        if reader.at != bytes.len() {
            return Err(reader.fault("follows the last tensor"));
        }
        Self::new(PlanConfig { packet_bytes, wire, pattern }, tensors)
    }
}

/// Bytes and the read position.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn tensor(&mut self) -> Result<TensorSpec, QueueError> {
        let length = self.count(1)?;
        let name = self.take(length)?;
        let name =
            std::str::from_utf8(name).map_err(|_| self.fault("ends a name that is not UTF-8"))?.to_owned();
        let dtype = self.byte()?;
        let dtype = Dtype::from_code(dtype).ok_or_else(|| self.fault("names no dtype"))?;
        let class = self.byte()?;
        let dimensions = self.byte()?;
        let op = self.byte()?;
        let op = Op::from_code(op).ok_or_else(|| self.fault("names no operation"))?;
        let shape =
            (0..dimensions).map(|_| Ok(u64::from_le_bytes(self.array()?))).collect::<Result<_, _>>()?;
        let strides =
            (0..dimensions).map(|_| Ok(i64::from_le_bytes(self.array()?))).collect::<Result<_, _>>()?;
        Ok(TensorSpec { name, dtype, shape, strides, class, op })
    }

    /// Read a count of elements of at least `least` bytes each, and check that the input is long enough.
    fn count(&mut self, least: usize) -> Result<usize, QueueError> {
        let count = usize::try_from(u32::from_le_bytes(self.array()?)).unwrap_or(usize::MAX);
        if count.checked_mul(least).is_none_or(|bytes| bytes > self.bytes.len() - self.at) {
            return Err(self.fault("ends a count that is larger than what follows"));
        }
        Ok(count)
    }

    fn zero(&mut self) -> Result<(), QueueError> {
        if self.byte()? == 0 { Ok(()) } else { Err(self.fault("is not 0, as this version has it")) }
    }

    fn byte(&mut self) -> Result<u8, QueueError> {
        Ok(self.array::<1>()?[0])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], QueueError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], QueueError> {
        let rest = &self.bytes[self.at..];
        let Some(taken) = rest.get(..length) else {
            return Err(QueueError::PlanBytes { at: self.bytes.len(), problem: "the plan ends too early" });
        };
        self.at += length;
        Ok(taken)
    }

    /// An error at the last byte that was read.
    fn fault(&self, problem: &'static str) -> QueueError {
        QueueError::PlanBytes { at: self.at.saturating_sub(1), problem }
    }
}
