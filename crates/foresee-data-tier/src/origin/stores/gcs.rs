// SPDX-License-Identifier: Apache-2.0
//! Clients of Google Cloud Storage, through its XML API.
//!
//! Credentials are those of Google's own tools: a key file, the login of `gcloud`, or the instance. The client
//! renews its tokens during a run. An emulator (`STORAGE_EMULATOR_HOST`) is used without credentials.

use std::path::Path;
use std::sync::Arc;

use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder, GoogleConfigKey};
use reqwest::header::{ACCEPT_ENCODING, HeaderMap, HeaderValue};

use super::{
    Remedies, StoreClient, bad_option, connection_settings, environment, no_retries, provided, variable,
    without_request_timeout,
};
use crate::origin::fault::ObservedConnector;
use crate::origin::{OriginError, OriginOptions};
use crate::uri::{Uri, redact};

/// Message about an unknown setting, with the settings that most users need.
const NO_SETTING: &str = "no such setting of Google Cloud Storage: it has application_credentials, service_account_key, \
                          bearer_token, base_url, skip_signature and more";

const CREDENTIALS: &str = "set GOOGLE_APPLICATION_CREDENTIALS to a key file, run `gcloud auth application-default login`, or \
                           set skip_signature=true in storage_options= (--option skip_signature=true) for a public bucket";

const NO_FEDERATION: &str = "files of workload identity federation are not read; use a key file, a store of obstore with \
                             GoogleCredentialProvider, or a token of `gcloud auth print-access-token` as bearer_token";

const ENDPOINT: &str = "name the address of the XML API as base_url in storage_options= (--option base_url=...), or unset \
                        STORAGE_EMULATOR_HOST";

const SOURCES: &str = "; credentials come from storage_options=, GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth \
                    application-default login` or the instance, in this order";

pub(super) fn client(uri: &Uri, bucket: &str, options: &OriginOptions) -> Result<StoreClient, OriginError> {
    let mut builder = settings(uri, options)?;
    // A key file may name an emulator's address too, and only the client reads it.
    for (name, value) in connection_settings(options, true) {
        builder = builder.with_config(GoogleConfigKey::Client(name), value);
    }
    provided::check_bucket(uri, options, &GoogleConfigKey::Bucket, bucket)?;
    let credentials = provided::provider(uri, options, |values| {
        let bearer = provided::required(values, "token", "Google Cloud Storage")?.to_owned();
        Ok(GcpCredential { bearer })
    })?;
    if let Some(credentials) = &credentials {
        builder = builder.with_credentials(Arc::clone(credentials) as _);
    }
    let store = builder
        .with_bucket_name(bucket)
        .with_retry(no_retries())
        .with_http_connector(ObservedConnector)
        .build()
        .map_err(|error| bad_option(uri, "credentials", cause_of(&error)))?;
    let remedies =
        Remedies { credentials: CREDENTIALS, endpoint: ENDPOINT, sources: SOURCES, hint: String::new() };
    Ok(StoreClient::of_bucket(store, remedies, credentials.map(|one| Arc::clone(&one.shared))))
}

/// Why no client could be built. A file for workload identity federation has a remedy of its own.
fn cause_of(error: &object_store::Error) -> String {
    let cause = redact(&error.to_string());
    if cause.contains("external_account") { format!("{cause}; {NO_FEDERATION}") } else { cause }
}

/// The base URL from settings and environment; empty for Google's own.
pub(super) fn endpoint(uri: &Uri, options: &OriginOptions) -> Result<String, OriginError> {
    Ok(settings(uri, options)?.get_config_value(&GoogleConfigKey::BaseUrl).unwrap_or_default())
}

/// The builder with settings of the environment, overridden by `options`.
fn settings(uri: &Uri, options: &OriginOptions) -> Result<GoogleCloudStorageBuilder, OriginError> {
    // Without this header the store decompresses objects that were uploaded with `Content-Encoding: gzip`, and sends
    // other bytes than the listing's size and a range refer to.
    let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("gzip"))]);
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_client_options(without_request_timeout().with_default_headers(headers));
    if let Some(file) = gcloud_credentials(variable("CLOUDSDK_CONFIG").as_deref()) {
        builder = builder.with_application_credentials(file);
    }
    for (name, value) in environment("GOOGLE_") {
        if let Ok(key) = name.parse::<GoogleConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(host) = variable("STORAGE_EMULATOR_HOST") {
        builder = builder.with_base_url(&emulator_url(&host)).with_skip_signature(true);
    }
    for (name, value) in provided::client_settings(options) {
        let key: GoogleConfigKey = name.parse().map_err(|_| bad_option(uri, &name, NO_SETTING))?;
        builder = builder.with_config(key, value);
    }
    Ok(builder)
}

/// The login of `gcloud` in the configuration directory `folder`; the client itself only reads the default one.
fn gcloud_credentials(folder: Option<&str>) -> Option<String> {
    let file = Path::new(folder?).join("application_default_credentials.json");
    file.is_file().then(|| file.to_string_lossy().into_owned())
}

/// The URL of `STORAGE_EMULATOR_HOST`, which may lack the scheme.
fn emulator_url(host: &str) -> String {
    let host = host.trim_end_matches('/');
    if host.contains("://") { host.to_owned() } else { format!("http://{host}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_an_emulator_needs_no_scheme() {
        assert_eq!(emulator_url("localhost:4443"), "http://localhost:4443");
        assert_eq!(emulator_url("https://localhost:4443/"), "https://localhost:4443");
    }

    #[test]
    fn a_file_of_workload_identity_federation_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("federation.json");
        std::fs::write(&file, r#"{"type": "external_account", "audience": "here"}"#).expect("a file");
        let mut options = OriginOptions::default();
        let path = file.to_str().expect("UTF-8").to_owned();
        options.storage.insert("application_credentials".to_owned(), path);
        let uri = Uri::parse("gs://bucket").expect("a URI");
        let refused = client(&uri, "bucket", &options).err().expect("no such credentials").to_string();
        assert!(refused.contains("external_account") && refused.contains("bearer_token"), "{refused}");
    }

    #[test]
    fn the_login_of_gcloud_is_found_in_its_configured_directory() {
        let folder = tempfile::tempdir().expect("a directory");
        assert_eq!(gcloud_credentials(None), None);
        assert_eq!(gcloud_credentials(folder.path().to_str()), None);
        let file = folder.path().join("application_default_credentials.json");
        std::fs::write(&file, "{}").expect("a file");
        assert_eq!(gcloud_credentials(folder.path().to_str()), file.to_str().map(str::to_owned));
    }
}
