// SPDX-License-Identifier: Apache-2.0
//! Conversion of counts to floating point, for rates, ratios and shares.

#[expect(
    clippy::cast_precision_loss,
    reason = "values are compared within 1 % at the finest: 53 bits are plenty"
)]
pub(crate) const fn as_f64(value: u64) -> f64 {
    value as f64
}
