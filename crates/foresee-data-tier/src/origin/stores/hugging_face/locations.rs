// SPDX-License-Identifier: Apache-2.0
//! Addresses of large files on the server that the hub redirects to.
//!
//! A data set of few files is read by many ranges. Without these addresses each range would be a request to the hub
//! too, which limits requests per user, and one more round trip.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use foresee_units::Nanos;
use reqwest::Url;
use reqwest::header::HeaderValue;

/// How long an address is used. The hub signs addresses for an hour.
const LIFETIME: Nanos = Nanos::from_secs(600);
/// Maximum number of addresses, of about 1 KB each.
const ADDRESSES_MAX: usize = 4096;

/// The address of a file, with the hub's tag of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) url: Url,
    pub(super) tag: HeaderValue,
}

/// The addresses of one repository's files, by their URLs at the hub. Times have any common start.
#[derive(Debug, Default)]
pub(super) struct Locations {
    found: Mutex<HashMap<Url, (Location, Nanos)>>,
}

impl Locations {
    /// The address of `file` that was found less than ten minutes before `now`.
    pub(super) fn get(&self, file: &Url, now: Nanos) -> Option<Location> {
        let found = self.found();
        let (location, since) = found.get(file)?;
        (now.saturating_sub(*since) < LIFETIME).then(|| location.clone())
    }

    pub(super) fn insert(&self, file: Url, location: Location, now: Nanos) {
        let mut found = self.found();
        if found.len() >= ADDRESSES_MAX {
            found.clear();
        }
        found.insert(file, (location, now));
    }

    pub(super) fn remove(&self, file: &Url) {
        self.found().remove(file);
    }

    fn found(&self) -> MutexGuard<'_, HashMap<Url, (Location, Nanos)>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).expect("a URL")
    }

    #[test]
    fn an_address_is_used_for_ten_minutes() {
        let locations = Locations::default();
        let (file, start) = (url("https://hub/file"), Nanos::from_secs(7));
        let location =
            Location { url: url("https://other/file?sig=1"), tag: HeaderValue::from_static("\"1\"") };
        assert_eq!(locations.get(&file, start), None);
        locations.insert(file.clone(), location.clone(), start);
        assert_eq!(locations.get(&file, Nanos::from_secs(606)), Some(location));
        assert_eq!(locations.get(&file, Nanos::from_secs(607)), None);
        locations.remove(&file);
        assert_eq!(locations.get(&file, start), None);
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        let locations = Locations::default();
        let location = Location { url: url("https://other/"), tag: HeaderValue::from_static("\"1\"") };
        for file in 0..=ADDRESSES_MAX {
            locations.insert(url(&format!("https://hub/{file}")), location.clone(), Nanos::ZERO);
        }
        assert!(locations.found().len() <= ADDRESSES_MAX);
    }
}
