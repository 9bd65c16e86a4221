// SPDX-License-Identifier: Apache-2.0
//! Clients of plain web servers.

use std::sync::Arc;

use object_store::ClientConfigKey;
use object_store::http::HttpBuilder;

use super::{
    Remedies, StoreClient, bad_option, connection_settings, is_plain, no_retries, without_request_timeout,
};
use crate::origin::fault::ObservedConnector;
use crate::origin::{OriginError, OriginOptions};
use crate::uri::{Uri, redact};

pub(super) fn client(
    uri: &Uri,
    base: &str,
    query: Option<&str>,
    options: &OriginOptions,
) -> Result<StoreClient, OriginError> {
    let mut settings = without_request_timeout();
    for (name, value) in &options.storage {
        let key: ClientConfigKey = name
            .to_ascii_lowercase()
            .parse()
            .map_err(|_| bad_option(uri, name, "no such setting of a plain HTTP store"))?;
        settings = settings.with_config(key, value.as_str());
    }
    for (name, value) in connection_settings(options, is_plain(base)) {
        settings = settings.with_config(name, value);
    }
    let url = query.map_or_else(|| base.to_owned(), |query| format!("{base}?{query}"));
    let store = HttpBuilder::new()
        .with_url(url)
        .with_client_options(settings)
        .with_retry(no_retries())
        .with_http_connector(ObservedConnector)
        .build()
        .map_err(|error| bad_option(uri, "http", redact(&error.to_string())))?;
    let remedies = Remedies { endpoint: "correct the host in the URI", ..Remedies::default() };
    Ok(StoreClient { objects: Arc::new(store), pages: None, remedies, credentials: None })
}
