// SPDX-License-Identifier: Apache-2.0
//! Clients of Amazon S3, and of stores with its API.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};

use super::profiles::Profile;
use super::provided::{PROFILE, PROVIDER};
use super::{
    Remedies, StoreClient, bad_option, connection_settings, environment, is_plain, no_retries, profiles,
    provided, without_request_timeout,
};
use crate::credentials::{CredentialRequest, Credentials, ProvidedCredentials};
use crate::origin::fault::ObservedConnector;
use crate::origin::{OriginError, OriginOptions};
use crate::uri::{Uri, redact};

/// Message about an unknown setting, with the settings that most users need.
const NO_SETTING: &str = "no such setting of an S3 store: it has access_key_id, secret_access_key, session_token, profile, \
                          region, endpoint, skip_signature and more";

const NO_PROFILES: &str = "this process reads no AWS profiles; open the data set in a process with Python";

const CREDENTIALS: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or skip_signature=true in \
                           storage_options= (--option skip_signature=true) for a public bucket";

const SOURCES: &str = "; credentials come from storage_options=, AWS_ACCESS_KEY_ID with AWS_SESSION_TOKEN (never renewed), \
                    AWS_PROFILE or a role, in this order";

const ENDPOINT: &str = "name the address of the S3 API, not of its web console, as endpoint in storage_options= (--option \
                        endpoint=...) or as AWS_ENDPOINT_URL";

pub(super) fn client(uri: &Uri, bucket: &str, options: &OriginOptions) -> Result<StoreClient, OriginError> {
    let (mut builder, profile) = settings(uri, options)?;
    let plain = endpoint_of(&builder).is_some_and(|endpoint| is_plain(&endpoint));
    for (name, value) in connection_settings(options, plain) {
        builder = builder.with_config(AmazonS3ConfigKey::Client(name), value);
    }
    provided::check_bucket(uri, options, &AmazonS3ConfigKey::Bucket, bucket)?;
    let mut hint = profiles::hint(&profile);
    let mut credentials = provided::provider(uri, options, credential)?;
    if let Some((known, name)) = read_profile(&profile, options) {
        let shared = known.shared(&CredentialRequest::Profile(name));
        credentials = Some(Arc::new(ProvidedCredentials { shared, convert: credential }));
        hint = String::new();
    }
    if let Some(credentials) = &credentials {
        builder = builder.with_credentials(Arc::clone(credentials) as _);
    }
    let store = builder
        .with_bucket_name(bucket)
        .with_retry(no_retries())
        .with_http_connector(ObservedConnector)
        .build()
        .map_err(|error| bad_option(uri, "s3", redact(&error.to_string())))?;
    let remedies = Remedies { credentials: CREDENTIALS, endpoint: ENDPOINT, sources: SOURCES, hint };
    Ok(StoreClient::of_bucket(store, remedies, credentials.map(|one| Arc::clone(&one.shared))))
}

/// The endpoint from settings and environment; empty for Amazon's own.
pub(super) fn endpoint(uri: &Uri, options: &OriginOptions) -> Result<String, OriginError> {
    Ok(endpoint_of(&settings(uri, options)?.0).unwrap_or_default())
}

fn endpoint_of(builder: &AmazonS3Builder) -> Option<String> {
    let set = |key| builder.get_config_value(&key);
    set(AmazonS3ConfigKey::S3Endpoint).or_else(|| set(AmazonS3ConfigKey::Endpoint))
}

/// The credentials of this process, and the name of `profile`, if it is read. A profile of the options is read in any
/// case, and one of the environment only if that is possible.
fn read_profile<'a>(
    profile: &Profile,
    options: &'a OriginOptions,
) -> Option<(&'a Credentials, Option<String>)> {
    let name = match profile {
        Profile::None => return None,
        Profile::Named(name) => Some(name.clone()),
        Profile::Default => None,
    };
    let is_read = |known: &&Credentials| option_of(options).is_some() || known.source().reads_profiles();
    options.credentials.as_deref().filter(is_read).map(|credentials| (credentials, name))
}

/// The storage option that names a profile.
fn option_of(options: &OriginOptions) -> Option<&'static str> {
    PROFILE.into_iter().find(|name| provided::client_settings(options).any(|(given, _)| given == *name))
}

/// A credential from the values of a profile or provider.
fn credential(values: &BTreeMap<String, String>) -> Result<AwsCredential, String> {
    let required = |name| provided::required(values, name, "S3").map(str::to_owned);
    Ok(AwsCredential {
        key_id: required("access_key_id")?,
        secret_key: required("secret_access_key")?,
        token: provided::value(values, "token").map(str::to_owned),
    })
}

/// The builder with settings of the profile, overridden by the environment, overridden by `options`; and the profile.
fn settings(uri: &Uri, options: &OriginOptions) -> Result<(AmazonS3Builder, Profile), OriginError> {
    let mut builder = AmazonS3Builder::new().with_client_options(without_request_timeout());
    let given: BTreeMap<String, &str> = provided::client_settings(options).collect();
    let has_provider = options.storage.contains_key(PROVIDER);
    let profile = if has_provider { Profile::None } else { profiles::profile(&given) };
    let named = option_of(options);
    if let Some((credentials, name)) = read_profile(&profile, options) {
        let found = credentials.source().profile_settings(name.as_deref());
        for (name, value) in found.map_err(|cause| bad_option(uri, named.unwrap_or("AWS_PROFILE"), cause))? {
            if let Ok(key) = name.parse::<AmazonS3ConfigKey>() {
                builder = builder.with_config(key, value);
            }
        }
    } else if let Some(name) = named.filter(|_| profile != Profile::None) {
        return Err(bad_option(uri, name, NO_PROFILES));
    }
    // Like the client's own `from_env`, which would also set its timeout on a whole request.
    for (name, value) in environment("AWS_") {
        if let Ok(key) = name.parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    for (name, value) in given.iter().filter(|(name, _)| !PROFILE.contains(&name.as_str())) {
        let key: AmazonS3ConfigKey = name.parse().map_err(|_| bad_option(uri, name, NO_SETTING))?;
        builder = builder.with_config(key, *value);
    }
    Ok((builder, profile))
}
