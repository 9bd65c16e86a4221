// SPDX-License-Identifier: Apache-2.0
//! Storage options that name credentials instead of containing them.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use super::bad_option;
use crate::credentials::{ConvertCredential, CredentialRequest, ProvidedCredentials};
use crate::origin::{OriginError, OriginOptions};
use crate::uri::Uri;

/// Names a function that this process has registered for credentials.
pub(super) const PROVIDER: &str = "credential_provider";
/// Names an AWS profile.
pub(super) const PROFILE: [&str; 2] = ["profile", "aws_profile"];

const NO_SOURCE: &str = "this process has no such function; open the data set in a process with Python";

/// The storage options that are settings of the store client, with names in lower case.
pub(super) fn client_settings(options: &OriginOptions) -> impl Iterator<Item = (String, &str)> {
    let named = options.storage.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.as_str()));
    named.filter(|(name, _)| name != PROVIDER)
}

/// The credentials of the function that `options` name, if they do.
pub(super) fn provider<C: Send + Sync + 'static>(
    uri: &Uri,
    options: &OriginOptions,
    convert: ConvertCredential<C>,
) -> Result<Option<Arc<ProvidedCredentials<C>>>, OriginError> {
    let Some(name) = options.storage.get(PROVIDER) else { return Ok(None) };
    let credentials = options.credentials.as_ref().ok_or_else(|| bad_option(uri, PROVIDER, NO_SOURCE))?;
    let shared = credentials.shared(&CredentialRequest::Provider(name.clone()));
    Ok(Some(Arc::new(ProvidedCredentials { shared, convert })))
}

/// The value `name` of credentials, unless it is empty.
pub(super) fn value<'a>(values: &'a BTreeMap<String, String>, name: &str) -> Option<&'a str> {
    values.get(name).map(String::as_str).filter(|value| !value.is_empty())
}

/// The value `name` of credentials, which `store` needs.
pub(super) fn required<'a>(
    values: &'a BTreeMap<String, String>,
    name: &str,
    store: &str,
) -> Result<&'a str, String> {
    value(values, name).ok_or_else(|| format!("{name} is missing, which credentials of {store} need"))
}

/// Check that options with the setting `key`, which names the bucket, are those of the URI's bucket.
pub(super) fn check_bucket<K: FromStr + PartialEq>(
    uri: &Uri,
    options: &OriginOptions,
    key: &K,
    bucket: &str,
) -> Result<(), OriginError> {
    let is_bucket = |name: &str| name.parse::<K>().is_ok_and(|named| named == *key);
    match client_settings(options).find(|(name, value)| is_bucket(name) && *value != bucket) {
        None => Ok(()),
        Some((name, value)) => {
            let cause =
                format!("the settings are of {value:?}, and the URI is of {bucket:?}; change one of them");
            Err(bad_option(uri, &name, cause))
        }
    }
}
