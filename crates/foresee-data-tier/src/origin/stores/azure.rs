// SPDX-License-Identifier: Apache-2.0
//! Clients of Azure Blob Storage, and of Data Lake accounts through the same interface.
//!
//! The client renews tokens of service principals, workload identities and managed identities during a run.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::azure::{AzureAccessKey, AzureConfigKey, AzureCredential, MicrosoftAzureBuilder};
use reqwest::Url;

use super::{
    Remedies, StoreClient, bad_option, connection_settings, environment, is_plain, no_retries, provided,
    variable, without_request_timeout,
};
use crate::origin::fault::ObservedConnector;
use crate::origin::{OriginError, OriginOptions};
use crate::uri::{Uri, UriParts, redact};

/// Message about an unknown setting, with the settings that most users need.
const NO_SETTING: &str = "no such setting of Azure: it has account_name, account_key, sas_token, connection_string, \
                          endpoint, use_azure_cli, use_emulator, skip_signature and more";

const CREDENTIALS: &str = "set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING, or in \
                           storage_options= (--option) use_azure_cli=true after `az login`, or skip_signature=true for a \
                           public container";

const ENDPOINT: &str = "name the address of the blob service as endpoint in storage_options= (--option endpoint=...) or as \
                        AZURE_STORAGE_ENDPOINT";

const SOURCES: &str = "; credentials come from storage_options= and the environment: AZURE_STORAGE_ACCOUNT_KEY, \
                    AZURE_STORAGE_SAS_TOKEN, AZURE_STORAGE_CONNECTION_STRING, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET with \
                    AZURE_TENANT_ID, or the managed identity";

const NO_ACCOUNT: &str = "the account is missing; set AZURE_STORAGE_ACCOUNT_NAME, or account_name in storage_options= \
                          (--option account_name=...), or write abfss://container@ACCOUNT.dfs.core.windows.net/prefix";

pub(super) fn client(
    uri: &Uri,
    container: &str,
    options: &OriginOptions,
) -> Result<StoreClient, OriginError> {
    let mut builder = settings(uri, options)?;
    let set = |key| builder.get_config_value(&key);
    if set(AzureConfigKey::AccountName).is_none() && !uses_emulator(&builder) {
        return Err(bad_option(uri, "account_name", NO_ACCOUNT));
    }
    let plain = set(AzureConfigKey::Endpoint).is_some_and(|endpoint| is_plain(&endpoint));
    for (name, value) in connection_settings(options, plain) {
        builder = builder.with_config(AzureConfigKey::Client(name), value);
    }
    provided::check_bucket(uri, options, &AzureConfigKey::ContainerName, container)?;
    let credentials = provided::provider(uri, options, credential)?;
    if let Some(credentials) = &credentials {
        builder = builder.with_credentials(Arc::clone(credentials) as _);
    }
    let store = builder
        .with_container_name(container)
        .with_retry(no_retries())
        .with_http_connector(ObservedConnector)
        .build()
        .map_err(|error| bad_option(uri, "azure", redact(&error.to_string())))?;
    let remedies =
        Remedies { credentials: CREDENTIALS, endpoint: ENDPOINT, sources: SOURCES, hint: String::new() };
    Ok(StoreClient::of_bucket(store, remedies, credentials.map(|one| Arc::clone(&one.shared))))
}

/// A credential from the values of a provider.
fn credential(values: &BTreeMap<String, String>) -> Result<AzureCredential, String> {
    if let Some(key) = provided::value(values, "access_key") {
        let key = AzureAccessKey::try_new(key).map_err(|_| "access_key is not a key of Azure".to_owned())?;
        return Ok(AzureCredential::AccessKey(key));
    }
    if let Some(token) = provided::value(values, "sas_token") {
        let url = Url::parse(&format!("http://azure?{}", token.trim_start_matches('?')));
        let url = url.map_err(|_| "sas_token is not a shared access signature".to_owned())?;
        return Ok(AzureCredential::SASToken(url.query_pairs().into_owned().collect()));
    }
    let token = provided::required(values, "token", "Azure, or access_key or sas_token,")?;
    Ok(AzureCredential::BearerToken(token.to_owned()))
}

/// The endpoint or the account from settings and environment; empty if there is none.
pub(super) fn endpoint(uri: &Uri, options: &OriginOptions) -> Result<String, OriginError> {
    let builder = settings(uri, options)?;
    let set = |key| builder.get_config_value(&key);
    let emulator = uses_emulator(&builder)
        .then(|| variable("AZURITE_BLOB_STORAGE_URL").unwrap_or_else(|| "azurite".to_owned()));
    let found = set(AzureConfigKey::Endpoint).or(emulator).or_else(|| set(AzureConfigKey::AccountName));
    Ok(found.unwrap_or_default())
}

fn uses_emulator(builder: &MicrosoftAzureBuilder) -> bool {
    builder.get_config_value(&AzureConfigKey::UseEmulator).is_some_and(|value| value == "true")
}

/// The builder with settings of the environment, overridden by the account of the URI and by `options`.
fn settings(uri: &Uri, options: &OriginOptions) -> Result<MicrosoftAzureBuilder, OriginError> {
    let mut builder = MicrosoftAzureBuilder::new().with_client_options(without_request_timeout());
    if let Some(text) = variable("AZURE_STORAGE_CONNECTION_STRING") {
        builder = with_connection_string(builder, &text)
            .map_err(|cause| bad_option(uri, "AZURE_STORAGE_CONNECTION_STRING", cause))?;
    }
    for (name, value) in environment("AZURE_").chain(environment("IDENTITY_ENDPOINT")) {
        if let Some(key) = key_of(&name) {
            builder = builder.with_config(key, value);
        }
    }
    if let UriParts::Bucket { account: Some(account), .. } = uri.parts() {
        builder = builder.with_account(account);
    }
    let (strings, others): (Vec<_>, Vec<_>) =
        provided::client_settings(options).partition(|(name, _)| name.ends_with("connection_string"));
    for (name, value) in strings {
        builder = with_connection_string(builder, value).map_err(|cause| bad_option(uri, &name, cause))?;
    }
    for (name, value) in others {
        let key = key_of(&name).ok_or_else(|| bad_option(uri, &name, NO_SETTING))?;
        builder = builder.with_config(key, value);
    }
    Ok(builder)
}

/// The setting of a name in lower case: the client's names, and those of Azure's command line.
fn key_of(name: &str) -> Option<AzureConfigKey> {
    match name {
        "azure_storage_account" => Some(AzureConfigKey::AccountName),
        "azure_storage_key" => Some(AzureConfigKey::AccessKey),
        _ => name.parse().ok(),
    }
}

/// Add the settings of a connection string, `Name=Value;Name=Value`, as the portal shows it.
fn with_connection_string(
    mut builder: MicrosoftAzureBuilder,
    text: &str,
) -> Result<MicrosoftAzureBuilder, &'static str> {
    let (mut account, mut endpoint, mut protocol, mut suffix) = (None, None, "https", "core.windows.net");
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, value) =
            part.split_once('=').ok_or("it is not a list of Name=Value; copy it from the portal again")?;
        match name.to_ascii_lowercase().as_str() {
            "accountname" => account = Some(value),
            "accountkey" => builder = builder.with_config(AzureConfigKey::AccessKey, value),
            "sharedaccesssignature" => builder = builder.with_config(AzureConfigKey::SasKey, value),
            "blobendpoint" => endpoint = Some(value.trim_end_matches('/').to_owned()),
            "defaultendpointsprotocol" => protocol = value,
            "endpointsuffix" => suffix = value,
            "usedevelopmentstorage" => builder = builder.with_config(AzureConfigKey::UseEmulator, value),
            _ => {} // Endpoints of other services.
        }
    }
    // A string with a signature has an endpoint, and no account.
    let of_endpoint = endpoint.as_deref().and_then(account_of).map(str::to_owned);
    if let Some(account) = account.map(str::to_owned).or(of_endpoint) {
        let usual = format!("{protocol}://{account}.blob.{suffix}");
        let endpoint = endpoint.unwrap_or(usual);
        builder = builder.with_account(account).with_config(AzureConfigKey::Endpoint, endpoint);
    }
    Ok(builder)
}

/// The account in the address of a blob service; `None` for an emulator's.
fn account_of(endpoint: &str) -> Option<&str> {
    let (account, service) = endpoint.split_once("://")?.1.split_once('.')?;
    service.starts_with("blob.").then_some(account)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> [Option<String>; 4] {
        let builder = with_connection_string(MicrosoftAzureBuilder::new(), text).expect("valid");
        [
            AzureConfigKey::AccountName,
            AzureConfigKey::AccessKey,
            AzureConfigKey::SasKey,
            AzureConfigKey::Endpoint,
        ]
        .map(|key| builder.get_config_value(&key))
    }

    #[test]
    fn a_connection_string_sets_account_credentials_and_endpoint() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            parsed(
                "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=a2V5==;EndpointSuffix=core.windows.net"
            ),
            [some("me"), some("a2V5=="), None, some("https://me.blob.core.windows.net")]
        );
        assert_eq!(
            parsed("BlobEndpoint=https://me.blob.core.windows.net/;SharedAccessSignature=sv=1&sig=2"),
            [some("me"), None, some("sv=1&sig=2"), some("https://me.blob.core.windows.net")]
        );
        assert_eq!(
            parsed("AccountName=dev;AccountKey=k;BlobEndpoint=http://127.0.0.1:10000/dev;"),
            [some("dev"), some("k"), None, some("http://127.0.0.1:10000/dev")]
        );
        let emulator = with_connection_string(MicrosoftAzureBuilder::new(), "UseDevelopmentStorage=true");
        assert!(uses_emulator(&emulator.expect("valid")));
        assert!(with_connection_string(MicrosoftAzureBuilder::new(), "hush").is_err());
    }

    #[test]
    fn the_account_of_the_uri_is_used_unless_the_options_have_another() {
        let uri = Uri::parse("abfss://c@me.dfs.core.windows.net/x").expect("a URI");
        let mut options = OriginOptions::default();
        assert_eq!(endpoint(&uri, &options).expect("an account"), "me");
        options.storage.insert("account_name".to_owned(), "other".to_owned());
        assert_eq!(endpoint(&uri, &options).expect("an account"), "other");
    }

    #[test]
    fn names_of_the_command_line_are_settings_too() {
        for (name, key) in [
            ("azure_storage_account", AzureConfigKey::AccountName),
            ("azure_storage_key", AzureConfigKey::AccessKey),
            ("azure_storage_sas_token", AzureConfigKey::SasKey),
        ] {
            assert_eq!(key_of(name), Some(key));
        }
        assert_eq!(key_of("azure_storage_mistake"), None);
    }
}
