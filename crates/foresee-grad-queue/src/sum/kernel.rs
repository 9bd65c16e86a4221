// SPDX-License-Identifier: Apache-2.0
//! The loops of `plain`, compiled for several processor levels and selected at the first call.
//!
//! A wheel is built for the oldest x86-64, which adds four floats at a time. Nearly every processor adds eight,
//! and converts 16-bit floats several times as fast. On Arm the baseline includes vectors. Only features that the
//! oldest supported compiler knows are used.

use multiversion::multiversion;

use super::plain;
use crate::Dtype;

#[multiversion(targets("x86_64+avx2+f16c+bmi1+bmi2"))]
pub(super) fn start(dtype: Dtype, acc: &mut [u8], payload: &[u8]) {
    plain::start(dtype, acc, payload);
}

#[multiversion(targets("x86_64+avx2+f16c+bmi1+bmi2"))]
pub(super) fn add(dtype: Dtype, acc: &mut [u8], payload: &[u8]) {
    plain::add(dtype, acc, payload);
}

#[multiversion(targets("x86_64+avx2+f16c+bmi1+bmi2"))]
pub(super) fn add_last(dtype: Dtype, acc: &mut [u8], payload: &[u8], divisor: u32) {
    plain::add_last(dtype, acc, payload, divisor);
}

#[multiversion(targets("x86_64+avx2+f16c+bmi1+bmi2"))]
pub(super) fn finish(dtype: Dtype, acc: &mut [u8], contributors: u32, divisor: u32) {
    plain::finish(dtype, acc, contributors, divisor);
}

#[multiversion(targets("x86_64+avx2+f16c+bmi1+bmi2"))]
pub(super) fn widen(dtype: Dtype, wide: &mut [u8], narrow: &[u8]) {
    plain::widen(dtype, wide, narrow);
}

#[multiversion(targets("x86_64+avx2+f16c+bmi1+bmi2"))]
pub(super) fn narrow(dtype: Dtype, narrow: &mut [u8], wide: &[u8]) {
    plain::narrow(dtype, narrow, wide);
}
