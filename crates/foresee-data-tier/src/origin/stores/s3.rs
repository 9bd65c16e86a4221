// SPDX-License-Identifier: Apache-2.0
//! Clients of Amazon S3, and of stores with its API.

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

use super::{
    Remedies, StoreClient, bad_option, connection_settings, environment, is_plain, no_retries, profiles,
    without_request_timeout,
};
use crate::origin::fault::ObservedConnector;
use crate::origin::{OriginError, OriginOptions};
use crate::uri::{Uri, redact};

/// Message about an unknown setting, with the settings that most users need.
const NO_SETTING: &str = "no such setting of an S3 store: it has access_key_id, secret_access_key, session_token, region, \
                          endpoint, skip_signature and more";

const CREDENTIALS: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or skip_signature=true in storage_options= \
                           (--option skip_signature=true) for a public bucket";

const ENDPOINT: &str = "name the address of the S3 API, not of its web console, as endpoint in storage_options= (--option \
                        endpoint=...) or as AWS_ENDPOINT_URL";

pub(super) fn client(uri: &Uri, bucket: &str, options: &OriginOptions) -> Result<StoreClient, OriginError> {
    let mut builder = settings(uri, options)?;
    let plain = endpoint_of(&builder).is_some_and(|endpoint| is_plain(&endpoint));
    for (name, value) in connection_settings(options, plain) {
        builder = builder.with_config(AmazonS3ConfigKey::Client(name), value);
    }
    let store = builder
        .with_bucket_name(bucket)
        .with_retry(no_retries())
        .with_http_connector(ObservedConnector)
        .build()
        .map_err(|error| bad_option(uri, "s3", redact(&error.to_string())))?;
    let hint = profiles::hint(&options.storage);
    Ok(StoreClient::of_bucket(
        store,
        Remedies { credentials: CREDENTIALS, endpoint: ENDPOINT, sources: "", hint },
    ))
}

/// The endpoint from settings and environment; empty for Amazon's own.
pub(super) fn endpoint(uri: &Uri, options: &OriginOptions) -> Result<String, OriginError> {
    Ok(endpoint_of(&settings(uri, options)?).unwrap_or_default())
}

fn endpoint_of(builder: &AmazonS3Builder) -> Option<String> {
    let set = |key| builder.get_config_value(&key);
    set(AmazonS3ConfigKey::S3Endpoint).or_else(|| set(AmazonS3ConfigKey::Endpoint))
}

/// The builder with settings of the environment, overridden by `options`.
fn settings(uri: &Uri, options: &OriginOptions) -> Result<AmazonS3Builder, OriginError> {
    let mut builder = AmazonS3Builder::new().with_client_options(without_request_timeout());
    // Like the client's own `from_env`, which would also set its timeout on a whole request.
    for (name, value) in environment("AWS_") {
        if let Ok(key) = name.parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    for (name, value) in &options.storage {
        let key: AmazonS3ConfigKey =
            name.to_ascii_lowercase().parse().map_err(|_| bad_option(uri, name, NO_SETTING))?;
        builder = builder.with_config(key, value.as_str());
    }
    Ok(builder)
}
