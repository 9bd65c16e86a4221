// SPDX-License-Identifier: Apache-2.0
//! Amounts: how much, how long, how fast.
//!
//! Sums saturate, because a larger value means "too much" anyway (capacity, deadlines); nothing wraps.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

macro_rules! amount {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// Nothing.
            pub const ZERO: Self = Self(0);
            /// The largest amount; also "without limit".
            pub const MAX: Self = Self(u64::MAX);

            /// Create from a plain number.
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// The plain number.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The difference, or zero if `other` is larger.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }

            /// The sum, or `MAX`.
            #[must_use]
            pub const fn saturating_add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }

            /// Whether the amount is zero.
            pub const fn is_zero(self) -> bool {
                self.0 == 0
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                self.saturating_add(other)
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl Sub for $name {
            type Output = Self;
            /// # Panics
            /// If `other` is larger: a negative amount is a defect of the caller.
            fn sub(self, other: Self) -> Self {
                Self(self.0.checked_sub(other.0).expect("an amount never falls below zero"))
            }
        }

        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                *self = *self - other;
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
                amounts.fold(Self::ZERO, Add::add)
            }
        }
    };
}

amount! {
    /// A number of bytes.
    Bytes
}
amount! {
    /// A time span, or a point on the run's monotonic clock, in nanoseconds.
    Nanos
}

impl Bytes {
    /// The smallest multiple of `unit` that is not below `self`; `unit` 0 or 1 changes nothing.
    #[must_use]
    pub const fn round_up(self, unit: u64) -> Self {
        if unit <= 1 {
            return self;
        }
        match self.0.checked_next_multiple_of(unit) {
            Some(value) => Self(value),
            None => Self::MAX,
        }
    }
}

impl fmt::Display for Bytes {
    /// In powers of 1000, as bandwidth and disks are sold: `1.5 GB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
        scaled(f, self.0, &units, "B")
    }
}

/// Write in the largest unit that fits once, to a tenth; multiples of `smallest` are whole.
fn scaled(f: &mut fmt::Formatter<'_>, value: u64, units: &[(u64, &str)], smallest: &str) -> fmt::Result {
    for (unit, name) in units {
        // A value that would round to 1000.0 of the next smaller unit is shown as 1.0 of this one.
        if value >= unit - unit / 20_000 {
            return write!(f, "{:.1} {name}", as_f64(value) / as_f64(*unit));
        }
    }
    write!(f, "{value} {smallest}")
}

impl Nanos {
    /// Create from whole milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Create from whole seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// The time in seconds.
    pub fn as_secs_f64(self) -> f64 {
        as_f64(self.0) / 1e9
    }
}

impl From<Duration> for Nanos {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(nanos: Nanos) -> Self {
        Self::from_nanos(nanos.0)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, &[(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")], "ns")
    }
}

/// A rate in bytes per second; zero means no progress, never "not measured".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BytesPerSecond(u64);

impl BytesPerSecond {
    /// Create from a plain number.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The plain number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Time to move `bytes`, rounded up; `None` at rate zero; saturates at `Nanos::MAX`.
    pub fn time_for(self, bytes: Bytes) -> Option<Nanos> {
        if self.0 == 0 {
            return None;
        }
        let nanos = (u128::from(bytes.get()) * 1_000_000_000).div_ceil(u128::from(self.0));
        Some(Nanos::new(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", Bytes::new(self.0))
    }
}

#[expect(clippy::cast_precision_loss, reason = "for display and seconds: 53 bits suffice")]
const fn as_f64(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_up_reaches_the_next_multiple_and_stays_on_one() {
        assert_eq!(Bytes::new(1).round_up(64), Bytes::new(64));
        assert_eq!(Bytes::new(64).round_up(64), Bytes::new(64));
        assert_eq!(Bytes::new(5).round_up(0), Bytes::new(5));
        assert_eq!(Bytes::MAX.round_up(4096), Bytes::MAX);
    }

    #[test]
    fn time_for_rounds_up_and_refuses_a_rate_of_zero() {
        assert_eq!(BytesPerSecond::new(3).time_for(Bytes::new(1)), Some(Nanos::new(333_333_334)));
        assert_eq!(BytesPerSecond::new(0).time_for(Bytes::new(1)), None);
        assert_eq!(BytesPerSecond::new(1).time_for(Bytes::MAX), Some(Nanos::MAX));
    }

    #[test]
    fn amounts_are_shown_in_fitting_units() {
        assert_eq!(Bytes::new(1_500_000_000).to_string(), "1.5 GB");
        assert_eq!(Bytes::new(12).to_string(), "12 B");
        assert_eq!(Bytes::new(999_949).to_string(), "999.9 kB");
        assert_eq!(Bytes::new(999_950).to_string(), "1.0 MB");
        assert_eq!(Nanos::new(999_999).to_string(), "1.0 ms");
        assert_eq!(Nanos::from_millis(6200).to_string(), "6.2 s");
    }

    #[test]
    #[should_panic(expected = "an amount never falls below zero")]
    fn a_negative_amount_is_a_defect() {
        let _ = Bytes::new(1) - Bytes::new(2);
    }
}
