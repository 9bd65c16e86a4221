// SPDX-License-Identifier: Apache-2.0
//! Times of files in the formats of HTTP and S3.

/// A time in UTC, to the second, from 1970 on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    seconds: i64,
}

impl Stamp {
    /// From seconds since 1970; earlier moments count as 1970.
    pub(crate) fn from_unix(seconds: i64) -> Self {
        Self { seconds: seconds.max(0) }
    }

    /// `Thu, 01 Jan 1970 00:00:00 GMT` (RFC 9110, section 5.6.7).
    pub(crate) fn http(self) -> String {
        const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
        const MONTHS: [&str; 12] =
            ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let (year, month, day) = self.date();
        let (hour, minute, second) = self.time();
        let weekday = usize::try_from(self.days() % 7).map_or("Thu", |at| DAYS[at]);
        let month = usize::try_from(month - 1).map_or("Jan", |at| MONTHS[at]);
        format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
    }

    /// `1970-01-01T00:00:00.000Z`, the form of S3's listings.
    pub(crate) fn s3(self) -> String {
        let (year, month, day) = self.date();
        let (hour, minute, second) = self.time();
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.000Z")
    }

    fn days(self) -> i64 {
        self.seconds / 86_400
    }

    fn time(self) -> (i64, i64, i64) {
        let second = self.seconds % 86_400;
        (second / 3_600, second / 60 % 60, second % 60)
    }

    /// Year, month and day of the Gregorian calendar, in years that begin in March, so that the leap day is the
    /// last of a year. Source: H. Hinnant, "chrono-compatible low-level date algorithms".
    fn date(self) -> (i64, i64, i64) {
        let shifted = self.days() + 719_468;
        let era = shifted / 146_097;
        let day_of_era = shifted % 146_097;
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        (era * 400 + year_of_era + i64::from(month <= 2), month, day)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times_have_the_formats_of_http_and_s3() {
        for (seconds, http, s3) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT", "1970-01-01T00:00:00.000Z"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT", "2000-02-29T00:00:00.000Z"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT", "1994-11-06T08:49:37.000Z"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT", "2100-02-28T23:59:59.000Z"),
        ] {
            assert_eq!(Stamp::from_unix(seconds).http(), http);
            assert_eq!(Stamp::from_unix(seconds).s3(), s3);
        }
    }
}
