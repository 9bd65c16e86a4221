// SPDX-License-Identifier: Apache-2.0
//! The hint for a user whose AWS profile is not read.
//!
//! The store client supports keys, and roles of containers and instances, but no files in `~/.aws`. A user of
//! profiles would only see that credentials are missing or refused.

use std::collections::BTreeMap;
use std::path::Path;

/// Hint for an error about credentials; empty if no profile could have helped.
pub(super) fn hint(storage: &BTreeMap<String, String>) -> String {
    let named = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let given = |name: &String| name.to_ascii_lowercase().ends_with("access_key_id");
    hint_for(
        named("AWS_PROFILE").or_else(|| named("AWS_DEFAULT_PROFILE")).as_deref(),
        named("AWS_ACCESS_KEY_ID").is_some() || storage.keys().any(given),
        named("HOME").is_some_and(|home| {
            ["config", "credentials"].iter().any(|name| Path::new(&home).join(".aws").join(name).exists())
        }),
    )
}

fn hint_for(profile: Option<&str>, has_keys: bool, has_files: bool) -> String {
    if has_keys || !(profile.is_some() || has_files) {
        return String::new();
    }
    let (found, of) = match profile {
        Some(profile) => (format!("AWS_PROFILE={profile} is"), format!(" --profile {profile}")),
        None => ("profiles in ~/.aws are".to_owned(), String::new()),
    };
    format!(
        "; {found} not read: `eval \"$(aws configure export-credentials{of} --format env)\"` sets the keys"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_named_only_without_keys() {
        let hint = hint_for(Some("lab"), false, true);
        assert!(
            hint.contains("AWS_PROFILE=lab is not read") && hint.contains("--profile lab --format env"),
            "{hint}"
        );
        assert!(hint_for(None, false, true).contains("~/.aws"));
        assert_eq!(hint_for(Some("lab"), true, true), "");
        assert_eq!(hint_for(None, false, false), "");
    }
}
