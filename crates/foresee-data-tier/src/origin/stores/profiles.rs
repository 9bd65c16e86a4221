// SPDX-License-Identifier: Apache-2.0
//! Which AWS profile provides the credentials of a bucket.
//!
//! The order is that of Amazon's own tools: storage options, keys of the environment, the profile of the environment,
//! roles, and the default profile. A profile that cannot be read is named in errors about credentials.

use std::collections::BTreeMap;
use std::path::Path;

use super::provided::PROFILE;
use super::variable;

/// The profile of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Profile {
    /// Credentials come from elsewhere.
    None,
    /// Of the storage options or the environment.
    Named(String),
    /// The default one, which may not exist.
    Default,
}

/// What decides about the profile.
#[derive(Debug, Default)]
struct Inputs {
    /// The name in the storage options.
    option: Option<String>,
    /// Whether the environment contains a key, or that none is used.
    has_keys: bool,
    /// The name in the environment.
    variable: Option<String>,
    /// Whether the environment names a role of a container or workload.
    has_role: bool,
    has_files: bool,
}

/// The profile for these storage options, whose names are in lower case, and the environment.
pub(super) fn profile(storage: &BTreeMap<String, &str>) -> Profile {
    let decides = |name: &String| ["access_key_id", "skip_signature"].iter().any(|end| name.ends_with(end));
    if storage.keys().any(decides) {
        return Profile::None;
    }
    let is_set = |name: &str| variable(name).is_some();
    let file = |name: &str, in_home: &str| {
        variable(name).or_else(|| Some(format!("{}/.aws/{in_home}", variable("HOME")?)))
    };
    let files = [file("AWS_CONFIG_FILE", "config"), file("AWS_SHARED_CREDENTIALS_FILE", "credentials")];
    decide(Inputs {
        option: PROFILE.iter().find_map(|name| storage.get(*name).map(|value| (*value).to_owned())),
        has_keys: is_set("AWS_ACCESS_KEY_ID") || is_set("AWS_SKIP_SIGNATURE"),
        variable: variable("AWS_PROFILE").or_else(|| variable("AWS_DEFAULT_PROFILE")),
        has_role: [
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        ]
        .into_iter()
        .any(is_set),
        has_files: files.iter().flatten().any(|path| Path::new(path).exists()),
    })
}

fn decide(inputs: Inputs) -> Profile {
    match inputs {
        Inputs { option: Some(name), .. } => Profile::Named(name),
        Inputs { has_keys: true, .. } => Profile::None,
        Inputs { variable: Some(name), .. } => Profile::Named(name),
        Inputs { has_role: false, has_files: true, .. } => Profile::Default,
        Inputs { .. } => Profile::None,
    }
}

/// Hint for an error about credentials, if `profile` cannot be read; empty for [`Profile::None`].
pub(super) fn hint(profile: &Profile) -> String {
    let (found, of) = match profile {
        Profile::None => return String::new(),
        Profile::Named(name) => (format!("AWS_PROFILE={name} is"), format!(" --profile {name}")),
        Profile::Default => ("profiles in ~/.aws are".to_owned(), String::new()),
    };
    format!(
        "; {found} not read without botocore: `pip install botocore`, or `eval \"$(aws configure \
         export-credentials{of} --format env)\"`, which sets the keys"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Profile {
        Profile::Named(name.to_owned())
    }

    #[test]
    fn the_profile_follows_the_order_of_amazons_tools() {
        let some = |name: &str| Some(name.to_owned());
        let all = || Inputs { variable: some("lab"), has_role: true, has_files: true, ..Inputs::default() };
        assert_eq!(decide(Inputs { option: some("mine"), has_keys: true, ..all() }), named("mine"));
        assert_eq!(decide(Inputs { has_keys: true, ..all() }), Profile::None);
        assert_eq!(decide(all()), named("lab"));
        assert_eq!(decide(Inputs { variable: None, ..all() }), Profile::None, "a role");
        assert_eq!(decide(Inputs { has_files: true, ..Inputs::default() }), Profile::Default);
        assert_eq!(decide(Inputs::default()), Profile::None);
    }

    #[test]
    fn options_with_credentials_need_no_profile() {
        for name in ["access_key_id", "aws_access_key_id", "skip_signature"] {
            assert_eq!(
                profile(&BTreeMap::from([(name.to_owned(), "x"), ("profile".to_owned(), "lab")])),
                Profile::None
            );
        }
        assert_eq!(profile(&BTreeMap::from([("aws_profile".to_owned(), "lab")])), named("lab"));
    }

    #[test]
    fn a_hint_names_the_profile_that_is_not_read() {
        let text = hint(&named("lab"));
        assert!(
            text.contains("AWS_PROFILE=lab is not read") && text.contains("--profile lab --format env"),
            "{text}"
        );
        assert!(hint(&Profile::Default).contains("~/.aws"));
        assert_eq!(hint(&Profile::None), "");
    }
}
