// SPDX-License-Identifier: Apache-2.0
//! An exact factor: `0.8` is four fifths.
//!
//! A threshold must hold at integers: in `f64`, 1.1 times 250 is slightly more than 275, and "more than 275
//! times" would then mean "275 times or more".

use std::fmt;
use std::str::FromStr;

use crate::ModelError;
use crate::number::check;

/// A fraction, 0 or more, as written: `0.8`, `4/5`, `2`.
///
/// # Examples
/// ```
/// # use foresee_model::Ratio;
/// let share: Ratio = "0.8".parse()?;
/// assert_eq!(share, "4/5".parse()?);
/// assert_eq!((share.numerator(), share.denominator()), (4, 5));
/// # Ok::<(), foresee_model::ModelError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ratio {
    numerator: u64,
    denominator: u64,
}

/// The required form of a text.
const RULE: &str = "a decimal number of at most 18 digits or a fraction, 0 or more: 0.8, 4/5";

impl Ratio {
    /// `numerator / denominator`, in lowest terms.
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] if `denominator` is 0.
    pub fn new(numerator: u64, denominator: u64) -> Result<Self, ModelError> {
        check(denominator > 0, "denominator of a ratio", 0.0, "1 or more")?;
        let divisor = common_divisor(numerator, denominator);
        Ok(Self { numerator: numerator / divisor, denominator: denominator / divisor })
    }

    /// The numerator, in lowest terms.
    pub const fn numerator(self) -> u64 {
        self.numerator
    }

    /// The denominator, in lowest terms; never 0.
    pub const fn denominator(self) -> u64 {
        self.denominator
    }
}

impl FromStr for Ratio {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let fault = || ModelError::InvalidText { field: "ratio", text: text.to_owned(), rule: RULE };
        let number = |digits: &str| -> Option<u64> {
            let plain =
                !digits.is_empty() && digits.len() <= 18 && digits.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| digits.parse().ok()).flatten()
        };
        let parsed = if let Some((above, below)) = text.split_once('/') {
            number(above).zip(number(below))
        } else {
            let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
            let scale = u32::try_from(decimals.len()).ok().and_then(|digits| 10_u64.checked_pow(digits));
            number(whole).zip(number(decimals)).zip(scale).and_then(|((whole, decimals), scale)| {
                Some((whole.checked_mul(scale)?.checked_add(decimals)?, scale))
            })
        };
        let (numerator, denominator) = parsed.ok_or_else(fault)?;
        Self::new(numerator, denominator).map_err(|_| fault())
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.numerator, self.denominator)
    }
}

const fn common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_and_fractions_are_read_without_rounding() {
        for (text, above, below) in
            [("0.1", 1, 10), ("10", 10, 1), ("0", 0, 1), ("1.80", 9, 5), ("6/4", 3, 2), ("0.00", 0, 1)]
        {
            let ratio: Ratio = text.parse().unwrap();
            assert_eq!((ratio.numerator, ratio.denominator), (above, below), "{text}");
        }
        assert_eq!("0.25".parse::<Ratio>().unwrap().to_string(), "1/4");
    }

    #[test]
    fn a_text_that_is_not_a_number_is_refused_and_shown() {
        for text in ["", "-1", "1e3", "nan", "inf", ".5", "1.", "1/0", "1/2/3", "+1", "9999999999999999999"] {
            let fault = text.parse::<Ratio>().unwrap_err().to_string();
            assert!(fault.contains(&format!("{text:?}")) && fault.contains("decimal"), "{fault}");
        }
        assert!(Ratio::new(1, 0).is_err());
    }
}
