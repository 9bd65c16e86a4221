// SPDX-License-Identifier: Apache-2.0
//! Clients of the Hugging Face hub, through its HTTP interface.
//!
//! A file is read by its `resolve` URL. The hub serves small files itself, and redirects to another server for large
//! ones. That server has tags of its own, so this client follows redirects itself, and the tag of an answer is that
//! of the hub: the one that its listing has too.

mod locations;
mod tree;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_units::Nanos;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpService,
};
use object_store::http::HttpBuilder;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, ETAG, HeaderMap, HeaderName, HeaderValue, IF_MATCH,
    LOCATION,
};
use reqwest::redirect::Policy;
use reqwest::{Method, NoProxy, Proxy, Url};

use self::locations::{Location, Locations};
pub(crate) use self::tree::RepositoryTree;
use super::{IDLE_CONNECTIONS, Pages, Remedies, StoreClient, bad_option, is_plain, no_retries, variable};
use crate::origin::fault::observed;
use crate::origin::{OriginError, OriginOptions};
use crate::uri::{RepositoryPath, Uri, redact};

const NO_SETTING: &str =
    "no such setting of the Hugging Face hub: it has token, endpoint, proxy_url and proxy_excludes";

const ENDPOINT: &str =
    "name the hub's address as endpoint in storage_options= (--option endpoint=...) or as HF_ENDPOINT";

const SOURCES: &str = "; a private or gated repository needs a token that may read it: as HF_TOKEN, by `hf auth login`, or as \
                    token in storage_options=";

const PUBLIC: &str = "https://huggingface.co";

/// Characters of a revision that a URL has unescaped; a slash is not among them.
const REVISION: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Tag and size of a file that the hub redirects to another server for.
const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
const LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");

/// A renamed repository and a file on another server take one redirect each.
const REDIRECTS_MAX: usize = 5;

pub(super) fn client(
    uri: &Uri,
    path: &RepositoryPath,
    options: &OriginOptions,
) -> Result<StoreClient, OriginError> {
    let settings = Settings::new(uri, options)?;
    let bad = |name: &str, cause: &dyn std::error::Error| bad_option(uri, name, redact(&cause.to_string()));
    let base = Url::parse(&settings.endpoint).map_err(|error| bad("endpoint", &error))?;
    let mut http = reqwest::Client::builder()
        .redirect(Policy::none())
        .https_only(!is_plain(&settings.endpoint))
        .http1_only()
        .connect_timeout(Duration::from(options.connect_timeout))
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .user_agent(concat!("foresee/", env!("CARGO_PKG_VERSION")));
    if let Some(address) = &settings.proxy_url {
        let proxy = Proxy::all(address).map_err(|error| bad("proxy_url", &error))?;
        let excludes = settings.proxy_excludes.as_deref().and_then(NoProxy::from_string);
        http = http.proxy(proxy.no_proxy(excludes));
    }
    let http = http.build().map_err(|error| bad("hf", &error))?;
    let mut authorization = None;
    if let Some(token) = &settings.token {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| bad_option(uri, "token", "it has characters that no token has"))?;
        value.set_sensitive(true);
        authorization = Some(value);
    }
    let http = observed(HttpClient::new(Redirecting {
        http: HttpClient::new(http),
        base,
        authorization,
        locations: Locations::default(),
        started: Instant::now(),
    }));
    let revision = utf8_percent_encode(&path.revision, REVISION);
    let root =
        format!("{}/{}{}/resolve/{revision}", settings.endpoint, path.kind.in_front(), path.repository);
    let objects = HttpBuilder::new()
        .with_url(root)
        .with_retry(no_retries())
        .with_http_connector(Connector { http: http.clone() })
        .build()
        .map_err(|error| bad("hf", &error))?;
    let tree =
        format!("{}/api/{}/{}/tree/{revision}", settings.endpoint, path.kind.plural(), path.repository);
    let remedies =
        Remedies { credentials: "set HF_TOKEN", endpoint: ENDPOINT, sources: SOURCES, hint: String::new() };
    Ok(StoreClient {
        objects: Arc::new(objects),
        pages: Some(Pages::Repository(RepositoryTree::new(http, tree))),
        remedies,
        credentials: None,
    })
}

/// The hub's address from settings and environment; empty for the public one.
pub(crate) fn endpoint(uri: &Uri, options: &OriginOptions) -> Result<String, OriginError> {
    let Settings { endpoint, .. } = Settings::new(uri, options)?;
    Ok(if endpoint == PUBLIC { String::new() } else { endpoint.to_ascii_lowercase() })
}

struct Settings {
    endpoint: String,
    token: Option<String>,
    /// Replaces the proxies of the environment.
    proxy_url: Option<String>,
    /// Hosts without `proxy_url`, separated by commas.
    proxy_excludes: Option<String>,
}

impl Settings {
    fn new(uri: &Uri, options: &OriginOptions) -> Result<Self, OriginError> {
        let mut endpoint = variable("HF_ENDPOINT");
        let mut token =
            variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN")).or_else(saved_token);
        let (mut proxy_url, mut proxy_excludes) = (None, None);
        for (name, value) in &options.storage {
            match name.to_ascii_lowercase().as_str() {
                "token" | "hf_token" => token = Some(value.clone()),
                "endpoint" | "hf_endpoint" => endpoint = Some(value.clone()),
                "proxy_url" => proxy_url = Some(value.clone()),
                "proxy_excludes" => proxy_excludes = Some(value.clone()),
                _ => return Err(bad_option(uri, name, NO_SETTING)),
            }
        }
        let endpoint = endpoint.unwrap_or_else(|| PUBLIC.to_owned());
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        Ok(Self { endpoint: endpoint.trim_end_matches('/').to_owned(), token, proxy_url, proxy_excludes })
    }
}

/// The token that `hf auth login` has saved.
fn saved_token() -> Option<String> {
    let home = || Some(Path::new(&variable("HOME")?).join(".cache"));
    let hub = variable("HF_HOME").map(PathBuf::from).or_else(|| {
        let cache = variable("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
        Some(cache.join("huggingface"))
    });
    let file = variable("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(hub?.join("token")))?;
    std::fs::read_to_string(file).ok()
}

/// Gives the store client this client's connections.
#[derive(Debug)]
struct Connector {
    http: HttpClient,
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(self.http.clone())
    }
}

/// The hub, and the servers that it redirects to.
#[derive(Debug)]
struct Redirecting {
    http: HttpClient,
    base: Url,
    authorization: Option<HeaderValue>,
    locations: Locations,
    started: Instant,
}

impl HttpService for Redirecting {
    fn call<'hook, 'call>(
        &'hook self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'call>>
    where
        'hook: 'call,
        Self: 'call,
    {
        Box::pin(self.follow(request))
    }
}

impl Redirecting {
    async fn follow(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let method = request.method().clone();
        let mut headers = request.headers().clone();
        // The caller compares the hub's tag with its own; other servers do not know it.
        headers.remove(IF_MATCH);
        // Sizes and ranges are those of the file, not of a compressed answer.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let file = parse_url(&request.uri().to_string())?;
        if method == Method::GET
            && let Some(known) = self.locations.get(&file, self.now())
        {
            let mut response = self.send(&method, &known.url, &headers).await?;
            // The address may have expired, or the file may have moved.
            if !matches!(response.status().as_u16(), 300..=399 | 401 | 403 | 404 | 410) {
                set_tag(response.headers_mut(), Some(&known.tag));
                return Ok(response);
            }
            self.locations.remove(&file);
        }
        let (mut url, mut tag) = (file.clone(), None);
        for _ in 0..=REDIRECTS_MAX {
            let mut response = self.send(&method, &url, &headers).await?;
            let linked = response.headers().get(LINKED_ETAG).cloned();
            tag = tag.or_else(|| linked.clone());
            let Some(next) = redirect_of(&response, &url)? else {
                if self.is_own(&url) {
                    tag = tag.or_else(|| response.headers().get(ETAG).cloned());
                }
                set_tag(response.headers_mut(), tag.as_ref());
                return Ok(response);
            };
            if let Some(linked) = linked {
                if method == Method::HEAD && response.headers().contains_key(LINKED_SIZE) {
                    // The address is signed for GET only, and the redirect has all that an answer to HEAD has.
                    return Ok(head_answer(&response, &linked));
                }
                let location = Location { url: next.clone(), tag: linked };
                self.locations.insert(file.clone(), location, self.now());
            }
            url = next;
        }
        let cause = std::io::Error::other("the server redirects without end");
        Err(HttpError::new(HttpErrorKind::Decode, cause))
    }

    fn now(&self) -> Nanos {
        Nanos::from(self.started.elapsed())
    }

    /// Whether a URL is one of the hub itself, which may see the token.
    fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.base.origin()
    }

    async fn send(&self, method: &Method, url: &Url, headers: &HeaderMap) -> Result<HttpResponse, HttpError> {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = method.clone();
        *request.uri_mut() =
            url.as_str().parse().map_err(|error| HttpError::new(HttpErrorKind::Decode, error))?;
        *request.headers_mut() = headers.clone();
        if let Some(authorization) = self.authorization.as_ref().filter(|_| self.is_own(url)) {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        self.http.execute(request).await
    }
}

/// The address of a redirect; `None` for other answers.
fn redirect_of(response: &HttpResponse, url: &Url) -> Result<Option<Url>, HttpError> {
    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
    match location.filter(|_| response.status().is_redirection()) {
        None => Ok(None),
        Some(location) => {
            url.join(location).map(Some).map_err(|error| HttpError::new(HttpErrorKind::Decode, error))
        }
    }
}

fn parse_url(text: &str) -> Result<Url, HttpError> {
    Url::parse(text).map_err(|error| HttpError::new(HttpErrorKind::Decode, error))
}

/// Replace the tag of an answer by the hub's, without the mark of a weak one, which a listing does not have.
fn set_tag(headers: &mut HeaderMap, tag: Option<&HeaderValue>) {
    headers.remove(ETAG);
    let text = tag.and_then(|tag| tag.to_str().ok()).map(|tag| tag.trim_start_matches("W/"));
    if let Some(tag) = text.and_then(|tag| HeaderValue::from_str(tag).ok()) {
        headers.insert(ETAG, tag);
    }
}

/// The answer to HEAD from the headers of a redirect.
fn head_answer(redirect: &HttpResponse, tag: &HeaderValue) -> HttpResponse {
    let mut answer = HttpResponse::new(Vec::new().into());
    if let Some(size) = redirect.headers().get(LINKED_SIZE) {
        answer.headers_mut().insert(CONTENT_LENGTH, size.clone());
    }
    set_tag(answer.headers_mut(), Some(tag));
    answer
}

#[cfg(test)]
mod process_tests;
