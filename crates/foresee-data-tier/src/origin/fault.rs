// SPDX-License-Identifier: Apache-2.0
//! Classification of a store's answers.
//!
//! A hook below the store client sees each answer before the client turns it into its own error, so status,
//! `Retry-After` and the server's code are available. Messages never contain query strings and headers, which may
//! have presigned parts and credentials.

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use foresee_units::{Nanos, ReadOutcome};
use futures_util::StreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService, ReqwestConnector,
};

use super::OriginError;
use super::list_page::{self, ListPage, NoPage};
use super::stores::Remedies;
use crate::uri::redact;

/// Maximum length of an error's body that is parsed; S3's error documents are below 1 KB.
const ERROR_BODY_MAX: usize = 4096;

/// A failed request, classified for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) outcome: ReadOutcome,
    pub(crate) status: Option<u16>,
    /// Message without secrets.
    pub(crate) cause: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// The server answered.
    Answer,
    /// No answer.
    Transport,
    /// Not sent, because there were no credentials.
    Unsigned,
    /// The bucket is in another region, which the answer may contain.
    Region(Option<String>),
    /// The clocks differ by more than the store allows; both times, as far as known.
    Clock { client: String, server: String },
    /// The credentials have expired or are unknown.
    Credentials,
    /// The endpoint is not a store.
    NoStore,
}

impl Failure {
    /// No byte of the answer came within `limit`.
    pub(crate) fn silence(limit: Nanos) -> Self {
        let cause = format!("no byte came for {:.1} s", limit.as_secs_f64());
        Self { outcome: ReadOutcome::Retryable, status: None, cause, kind: Kind::Transport }
    }

    /// An answer from something other than a store: its console, a login page, a proxy.
    fn no_store(status: Option<u16>, cause: String) -> Self {
        Self { outcome: ReadOutcome::Failed, status, cause, kind: Kind::NoStore }
    }

    /// A fault of the answer itself.
    pub(crate) fn answer(outcome: ReadOutcome, status: Option<u16>, cause: impl Into<String>) -> Self {
        Self { outcome, status, cause: cause.into(), kind: Kind::Answer }
    }

    /// Classify `error` of the store client, with the response that the hook saw.
    pub(crate) fn classify(attempt: &Attempt, error: &object_store::Error) -> Self {
        let facts = attempt.facts();
        if let Some((kind, cause)) = &facts.transport {
            let outcome = match kind {
                HttpErrorKind::Decode => ReadOutcome::Failed,
                _ => ReadOutcome::Retryable,
            };
            return Self { outcome, status: facts.status, cause: cause.clone(), kind: Kind::Transport };
        }
        let Some(status) = facts.status else {
            // Nothing was sent. The client first requests credentials, and has checked everything else before. During
            // a run this is a failed refresh of credentials, and the next one may succeed.
            let cause = redact(&chain(error));
            return Self { outcome: ReadOutcome::Retryable, status: None, cause, kind: Kind::Unsigned };
        };
        let code = facts.code.as_deref().unwrap_or_default();
        let outcome = match (status, code) {
            (_, "RequestTimeTooSkewed")
            | (401 | 403, _)
            | (400, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired")
            | (409, "PublicAccessNotPermitted") => ReadOutcome::Denied,
            (429 | 503, _) => ReadOutcome::Throttled { retry_after: facts.retry_after },
            (408 | 500.., _) => ReadOutcome::Retryable,
            (404 | 410, _) => ReadOutcome::Absent,
            (412, _) => ReadOutcome::Changed,
            _ => ReadOutcome::Failed,
        };
        let cause = match (&facts.code, &facts.message) {
            _ if (200..300).contains(&status) => redact(&chain(error)),
            (Some(code), Some(message)) => format!("HTTP {status} {code}: {message}"),
            (Some(code), None) => format!("HTTP {status} {code}"),
            (None, _) => format!("HTTP {status}"),
        };
        let kind = match code {
            "RequestTimeTooSkewed" => {
                let unknown = || "unknown".to_owned();
                let client = facts.client_time.as_deref().map_or_else(unknown, readable);
                Kind::Clock { client, server: facts.server_time.clone().unwrap_or_else(unknown) }
            }
            _ if is_wrong_region(status, code, facts.region.is_some()) => Kind::Region(facts.region.clone()),
            _ if outcome == ReadOutcome::Denied && is_about_credentials(status, code) => Kind::Credentials,
            _ => Kind::Answer,
        };
        let cause = match &kind {
            Kind::Clock { client, server } => {
                format!("{cause}; it is {client} here and {server} at the store")
            }
            Kind::Region(Some(region)) => format!("{cause}; the bucket is in region {region}"),
            _ => cause,
        };
        Self { outcome, status: Some(status), cause, kind }
    }

    /// Whether the store refused the credentials themselves, so that newer ones may be accepted.
    pub(super) fn refuses_credentials(&self) -> bool {
        self.kind == Kind::Credentials
    }

    /// The same failure, which another request may not have.
    pub(super) fn retryable(self) -> Self {
        Self { outcome: ReadOutcome::Retryable, ..self }
    }

    /// Classify a request that was sent without the store client, with the response that the hook saw.
    pub(super) fn of_attempt(attempt: &Attempt) -> Self {
        let source = "it did not answer".into();
        Self::classify(attempt, &object_store::Error::Generic { store: "hub", source })
    }

    /// Parse a page of a listing from the body in `attempt`.
    pub(crate) fn parse_page(attempt: &Attempt) -> Result<ListPage, Self> {
        Self::parse_page_by(attempt, list_page::read)
    }

    /// Parse a page of a listing from the body in `attempt` with `read`.
    pub(super) fn parse_page_by(
        attempt: &Attempt,
        read: impl FnOnce(&[u8]) -> Result<ListPage, NoPage>,
    ) -> Result<ListPage, Self> {
        let (status, document) = (attempt.status(), attempt.take_body());
        read(&document).map_err(|no_page| match no_page {
            NoPage::Html(title) => {
                let title = title.map(|title| format!(" with the title {title:?}")).unwrap_or_default();
                Self::no_store(status, format!("a web page came instead of the list{title}"))
            }
            NoPage::Other(cause) => Self::no_store(status, cause),
        })
    }

    /// The message of a failed read, with the remedies of its store if it is about credentials.
    pub(super) fn message(self, remedies: &Remedies) -> String {
        let Remedies { credentials, sources, hint, .. } = remedies;
        match (self.kind, self.outcome) {
            (Kind::Unsigned, _) => format!("{}{hint}; {credentials}", self.cause),
            (Kind::Credentials, _) | (Kind::Answer, ReadOutcome::Denied) => self.cause + sources + hint,
            _ => self.cause,
        }
    }

    /// Convert to the error of a call outside of a tier, with the store's `remedies`.
    pub(crate) fn into_error(self, uri: String, remedies: &Remedies) -> OriginError {
        let Remedies { credentials, endpoint, sources, hint } = remedies;
        let cause = self.cause;
        match (self.kind, self.outcome) {
            (Kind::Region(region), _) => OriginError::WrongRegion { uri, cause, region },
            (Kind::Clock { .. }, _) => OriginError::ClockDiffers { uri, cause },
            (Kind::NoStore, _) => OriginError::NoStore { uri, cause, remedy: endpoint },
            (Kind::Unsigned, _) => {
                OriginError::NoCredentials { uri, cause: cause + hint, remedy: credentials }
            }
            (Kind::Transport, _) => OriginError::Unreachable { uri, cause },
            (Kind::Answer, ReadOutcome::Absent) => OriginError::Missing { uri, cause },
            (Kind::Credentials, _) | (Kind::Answer, ReadOutcome::Denied) => {
                OriginError::Denied { uri, cause: cause + sources + hint }
            }
            (Kind::Answer, _) => OriginError::Failed { uri, cause },
        }
    }
}

/// Whether an answer means that the bucket is in another region than the request was signed for.
fn is_wrong_region(status: u16, code: &str, names_region: bool) -> bool {
    match code {
        "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException" => true,
        // The answer to a HEAD has no body and no code.
        "" => matches!(status, 301 | 307 | 400) && names_region,
        _ => false,
    }
}

/// Whether a refusal is about the credentials, and not about what they permit.
fn is_about_credentials(status: u16, code: &str) -> bool {
    const CODES: [&str; 6] = [
        "AuthenticationFailed",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    ];
    status == 401 || CODES.contains(&code)
}

/// Format a request's `20260102T030405Z` as `2026-01-02T03:04:05Z`; other times stay unchanged.
fn readable(time: &str) -> String {
    match (time.len(), time.get(..8), time.get(9..15)) {
        (16, Some(day), Some(clock))
            if day.bytes().chain(clock.bytes()).all(|byte| byte.is_ascii_digit()) =>
        {
            format!(
                "{}-{}-{}T{}:{}:{}Z",
                &day[..4],
                &day[4..6],
                &day[6..],
                &clock[..2],
                &clock[2..4],
                &clock[4..]
            )
        }
        _ => time.to_owned(),
    }
}

/// The hook's facts about one request, attached to it as an extension.
#[derive(Debug, Default)]
pub(crate) struct Attempt {
    facts: Mutex<ResponseFacts>,
    /// The body of a page of a listing, which the client does not receive.
    body: Option<Mutex<Vec<u8>>>,
}

#[derive(Clone, Debug, Default)]
struct ResponseFacts {
    status: Option<u16>,
    retry_after: Option<Nanos>,
    code: Option<String>,
    message: Option<String>,
    region: Option<String>,
    client_time: Option<String>,
    server_time: Option<String>,
    transport: Option<(HttpErrorKind, String)>,
}

impl Attempt {
    /// For a page of a listing.
    pub(crate) fn for_page() -> Self {
        Self { facts: Mutex::default(), body: Some(Mutex::default()) }
    }

    fn take_body(&self) -> Vec<u8> {
        let body = self.body.as_ref().map(|body| body.lock().unwrap_or_else(PoisonError::into_inner));
        body.map(|mut body| std::mem::take(&mut *body)).unwrap_or_default()
    }

    pub(crate) fn status(&self) -> Option<u16> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).status
    }

    fn facts(&self) -> ResponseFacts {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn record_transport_error(&self, error: &HttpError) {
        let transport = Some((error.kind(), redact(&chain(error))));
        self.record(ResponseFacts { transport, ..ResponseFacts::default() });
    }

    fn record(&self, facts: ResponseFacts) {
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = facts;
    }
}

/// Builds the store client's HTTP client with the hook around it.
#[derive(Debug)]
pub(crate) struct ObservedConnector;

impl HttpConnector for ObservedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = DeferredClient { options: options.clone(), client: OnceLock::new() };
        Ok(HttpClient::new(Observed { inner }))
    }
}

/// `inner` with the hook around it.
pub(super) fn observed(inner: HttpClient) -> HttpClient {
    let inner = DeferredClient { options: ClientOptions::new(), client: OnceLock::from(Ok(inner)) };
    HttpClient::new(Observed { inner })
}

/// An HTTP client that is built for its first request. It reads the system's certificates, some 5 ms of CPU time, and a rank
/// that uses the cache of its node sends no request.
#[derive(Debug)]
struct DeferredClient {
    options: ClientOptions,
    client: OnceLock<Result<HttpClient, String>>,
}

impl DeferredClient {
    async fn execute(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let build = || ReqwestConnector::default().connect(&self.options).map_err(|why| chain(&why));
        match self.client.get_or_init(build) {
            Ok(client) => client.execute(request).await,
            Err(why) => Err(HttpError::new(HttpErrorKind::Unknown, io::Error::other(why.clone()))),
        }
    }
}

#[derive(Debug)]
struct Observed {
    inner: DeferredClient,
}

impl HttpService for Observed {
    fn call<'hook, 'call>(
        &'hook self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'call>>
    where
        'hook: 'call,
        Self: 'call,
    {
        Box::pin(async move {
            let attempt = request.extensions().get::<Arc<Attempt>>().cloned();
            let client_time = request.headers().get("x-amz-date").and_then(|date| date.to_str().ok());
            let client_time = client_time.map(str::to_owned);
            let answer = self.inner.execute(request).await;
            let Some(attempt) = attempt else { return answer };
            match answer {
                Ok(response) if response.status().is_success() => {
                    let status = Some(response.status().as_u16());
                    attempt.record(ResponseFacts { status, ..ResponseFacts::default() });
                    match &attempt.body {
                        None => Ok(response),
                        Some(body) => {
                            let (parts, sent) = response.into_parts();
                            let sent = sent
                                .bytes()
                                .await
                                .inspect_err(|error| attempt.record_transport_error(error))?;
                            *body.lock().unwrap_or_else(PoisonError::into_inner) = sent.to_vec();
                            let no_objects = HttpResponseBody::from(list_page::NO_OBJECTS.to_vec());
                            Ok(HttpResponse::from_parts(parts, no_objects))
                        }
                    }
                }
                Ok(response) => Ok(record_refusal(&attempt, response, client_time).await),
                Err(error) => {
                    attempt.record_transport_error(&error);
                    Err(error)
                }
            }
        })
    }
}

/// Store the facts of an unsuccessful answer, and return its headers without the body.
async fn record_refusal(
    attempt: &Attempt,
    response: HttpResponse,
    client_time: Option<String>,
) -> HttpResponse {
    let (parts, body) = response.into_parts();
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let mut facts = ResponseFacts {
        status: Some(parts.status.as_u16()),
        retry_after: retry_after(header("retry-after"), header("ratelimit")).map(Nanos::from_secs),
        region: header("x-amz-bucket-region").map(str::to_owned),
        client_time,
        server_time: header("date").map(str::to_owned),
        ..ResponseFacts::default()
    };
    attempt.record(facts.clone()); // in case the body never ends
    let mut text = Vec::new();
    let mut chunks = body.bytes_stream();
    while let Some(Ok(chunk)) = chunks.next().await {
        text.extend_from_slice(&chunk);
        if text.len() >= ERROR_BODY_MAX {
            break;
        }
    }
    text.truncate(ERROR_BODY_MAX);
    let text = String::from_utf8_lossy(&text);
    // Azure names the code of an answer without a body in a header, the Hugging Face hub that of each answer.
    let code = || header("x-ms-error-code").or_else(|| header("x-error-code")).map(str::to_owned);
    facts.code = element(&text, "Code").or_else(code);
    // Azure's has several lines.
    let message = element(&text, "Message").or_else(|| header("x-error-message").map(str::to_owned));
    facts.message = message.map(|lines| redact(&lines.split_whitespace().collect::<Vec<_>>().join(" ")));
    facts.region = facts.region.or_else(|| element(&text, "Region"));
    facts.client_time = element(&text, "RequestTime").or(facts.client_time);
    facts.server_time = element(&text, "ServerTime").or(facts.server_time);
    attempt.record(facts);
    HttpResponse::from_parts(parts, HttpResponseBody::from(Vec::new()))
}

/// The seconds after which a server wants to be asked again: of `Retry-After`, or the end of the window in which
/// `RateLimit` counts requests, such as `"api";r=0;t=42`.
fn retry_after(retry_after: Option<&str>, rate_limit: Option<&str>) -> Option<u64> {
    let window = || rate_limit?.split(';').find_map(|part| part.trim().strip_prefix("t="))?.parse().ok();
    retry_after.and_then(|text| text.trim().parse().ok()).or_else(window)
}

/// The text of the first `<name>` of an XML document.
fn element(text: &str, name: &str) -> Option<String> {
    let from = text.split_once(&format!("<{name}>"))?.1;
    Some(from.split_once(&format!("</{name}>"))?.0.trim().to_owned())
}

/// An error and its causes in one line, without causes that repeat earlier text.
fn chain(error: &dyn Error) -> String {
    let mut chained = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !chained.contains(&text) {
            chained.push_str(": ");
            chained.push_str(&text);
        }
        next = cause.source();
    }
    chained
}

#[cfg(test)]
mod tests;
