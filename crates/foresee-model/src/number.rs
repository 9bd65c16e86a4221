// SPDX-License-Identifier: Apache-2.0
//! Conversions between integers and floating point, and checks of inputs.

use crate::ModelError;

/// `value`, rounded to 53 bits: plenty for measurements, rates, counts and messages.
#[expect(clippy::cast_precision_loss, reason = "rounding is the purpose")]
pub(crate) const fn as_f64(value: u64) -> f64 {
    value as f64
}

/// The integer part of `value`, 0 or more; saturates at `u64::MAX`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
pub(crate) const fn as_u64(value: f64) -> u64 {
    value as u64
}

/// `value` if `holds`; otherwise an error with the rule that it violates.
pub(crate) fn check(
    holds: bool,
    field: &'static str,
    value: f64,
    rule: &'static str,
) -> Result<f64, ModelError> {
    if holds { Ok(value) } else { Err(ModelError::InvalidInput { field, value, rule }) }
}
