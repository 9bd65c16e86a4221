// SPDX-License-Identifier: Apache-2.0
//! Classification of a store's answers, and the part of them that may be shown.
//!
//! A hook below the store client sees each answer before the client turns it into its own error, so status,
//! `Retry-After` and the server's code are available. Query strings and headers, which contain presigned parts and
//! credentials, are in no message.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use foresee_units::{Nanos, ReadOutcome};
use futures_util::StreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService, ReqwestConnector,
};

use super::OriginError;
use super::list_page::{self, ListPage, NoPage};
use crate::uri::redact;

/// Bytes of an error's body that are looked at; S3's error documents are below 1 KB.
const BODY_LOOKED_AT: usize = 4096;

/// A failed request, as a driver needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) outcome: ReadOutcome,
    pub(crate) status: Option<u16>,
    /// In words, fit to be shown.
    pub(crate) cause: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// The server answered.
    Answer,
    /// Nobody did.
    Transport,
    /// It was never sent: no credentials.
    Unsigned,
    /// The bucket lies in another region, whose name the answer may have.
    Region(Option<String>),
    /// The clocks of both ends differ by more than the store allows: the time here and there, as far as known.
    Clock { here: String, there: String },
    /// Something other than a store answered.
    NoStore,
}

impl Failure {
    /// The request or its body met silence for longer than allowed.
    pub(crate) fn silence(limit: Nanos) -> Self {
        let cause = format!("no byte came for {:.1} s", limit.as_secs_f64());
        Self { outcome: ReadOutcome::Retryable, status: None, cause, kind: Kind::Transport }
    }

    /// An answer of something that is no store: the console of one, a login page, a proxy.
    fn no_store(status: Option<u16>, cause: String) -> Self {
        Self { outcome: ReadOutcome::Failed, status, cause, kind: Kind::NoStore }
    }

    /// A fault in the answer itself.
    pub(crate) fn answer(outcome: ReadOutcome, status: Option<u16>, cause: impl Into<String>) -> Self {
        Self { outcome, status, cause: cause.into(), kind: Kind::Answer }
    }

    /// What `error` of the store client means, given what the hook saw.
    pub(crate) fn classify(seen: &Attempt, error: &object_store::Error) -> Self {
        let seen = seen.seen();
        if let Some((kind, cause)) = &seen.transport {
            let outcome = match kind {
                HttpErrorKind::Decode => ReadOutcome::Failed,
                _ => ReadOutcome::Retryable,
            };
            return Self { outcome, status: seen.status, cause: cause.clone(), kind: Kind::Transport };
        }
        let Some(status) = seen.status else {
            // Nothing was sent. The client asks for credentials first, and has checked everything else
            // before. In mid-run that is a refresh that failed, and the next may not.
            let cause = redact(&chain(error));
            return Self { outcome: ReadOutcome::Retryable, status: None, cause, kind: Kind::Unsigned };
        };
        let code = seen.code.as_deref().unwrap_or_default();
        let outcome = match (status, code) {
            (_, "RequestTimeTooSkewed") => ReadOutcome::Denied,
            (429 | 503, _) => ReadOutcome::Throttled { retry_after: seen.retry_after },
            (408 | 500.., _) => ReadOutcome::Retryable,
            (404 | 410, _) => ReadOutcome::Absent,
            (401 | 403, _) | (400, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired") => {
                ReadOutcome::Denied
            }
            (412, _) => ReadOutcome::Changed,
            _ => ReadOutcome::Failed,
        };
        let cause = match (&seen.code, &seen.words) {
            _ if (200..300).contains(&status) => redact(&chain(error)),
            (Some(code), Some(words)) => format!("HTTP {status} {code}: {words}"),
            (Some(code), None) => format!("HTTP {status} {code}"),
            (None, _) => format!("HTTP {status}"),
        };
        let kind = match code {
            "RequestTimeTooSkewed" => {
                let unknown = || "unknown".to_owned();
                let here = seen.time_here.as_deref().map_or_else(unknown, readable);
                Kind::Clock { here, there: seen.time_there.clone().unwrap_or_else(unknown) }
            }
            _ if is_elsewhere(status, code, seen.region.is_some()) => Kind::Region(seen.region.clone()),
            _ => Kind::Answer,
        };
        let cause = match &kind {
            Kind::Clock { here, there } => format!("{cause}; it is {here} here and {there} at the store"),
            Kind::Region(Some(region)) => format!("{cause}; the bucket is in region {region}"),
            _ => cause,
        };
        Self { outcome, status: Some(status), cause, kind }
    }

    /// Reads a page of a listing out of the answer that `seen` holds.
    pub(crate) fn or_page(seen: &Attempt) -> Result<ListPage, Self> {
        let (status, document) = (seen.status(), seen.take_body());
        list_page::read(&document).map_err(|no_page| match no_page {
            NoPage::Html(title) => {
                let title = title.map(|title| format!(" with the title {title:?}")).unwrap_or_default();
                Self::no_store(status, format!("a web page came instead of the list{title}"))
            }
            NoPage::Other(cause) => Self::no_store(status, cause),
        })
    }

    /// As the error of a call that has no tier around it. `note`: what to add where credentials are at fault.
    pub(crate) fn into_error(self, uri: String, note: &str) -> OriginError {
        let cause = self.cause;
        match (self.kind, self.outcome) {
            (Kind::Region(region), _) => OriginError::WrongRegion { uri, cause, region },
            (Kind::Clock { .. }, _) => OriginError::ClockDiffers { uri, cause },
            (Kind::NoStore, _) => OriginError::NoStore { uri, cause },
            (Kind::Unsigned, _) => OriginError::NoCredentials { uri, cause: cause + note },
            (Kind::Transport, _) => OriginError::Unreachable { uri, cause },
            (Kind::Answer, ReadOutcome::Absent) => OriginError::Missing { uri, cause },
            (Kind::Answer, ReadOutcome::Denied) => OriginError::Denied { uri, cause: cause + note },
            (Kind::Answer, _) => OriginError::Failed { uri, cause },
        }
    }
}

/// Whether an answer says that the bucket lies in another region than the request was signed for.
fn is_elsewhere(status: u16, code: &str, names_region: bool) -> bool {
    match code {
        "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException" => true,
        // The answer to a HEAD has no body and no code.
        "" => matches!(status, 301 | 307 | 400) && names_region,
        _ => false,
    }
}

/// A request's `20260102T030405Z` as `2026-01-02T03:04:05Z`; any other time as it is.
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

/// What the hook saw of one request; travels with it as an extension.
#[derive(Debug, Default)]
pub(crate) struct Attempt {
    seen: Mutex<Seen>,
    /// Of a request for a page of a listing: the answer's body, which the client does not get.
    body: Option<Mutex<Vec<u8>>>,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    status: Option<u16>,
    retry_after: Option<Nanos>,
    code: Option<String>,
    words: Option<String>,
    region: Option<String>,
    time_here: Option<String>,
    time_there: Option<String>,
    transport: Option<(HttpErrorKind, String)>,
}

impl Attempt {
    /// For a page of a listing.
    pub(crate) fn of_page() -> Self {
        Self { seen: Mutex::default(), body: Some(Mutex::default()) }
    }

    fn take_body(&self) -> Vec<u8> {
        let body = self.body.as_ref().map(|body| body.lock().unwrap_or_else(PoisonError::into_inner));
        body.map(|mut body| std::mem::take(&mut *body)).unwrap_or_default()
    }

    pub(crate) fn status(&self) -> Option<u16> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).status
    }

    fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_lost(&self, error: &HttpError) {
        let transport = Some((error.kind(), redact(&chain(error))));
        self.note(Seen { transport, ..Seen::default() });
    }

    fn note(&self, seen: Seen) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }
}

/// Builds the store client's HTTP client with the hook around it.
#[derive(Debug)]
pub(crate) struct ObservedConnector;

impl HttpConnector for ObservedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Observed { inner }))
    }
}

#[derive(Debug)]
struct Observed {
    inner: HttpClient,
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
            let time_here = request.headers().get("x-amz-date").and_then(|date| date.to_str().ok());
            let time_here = time_here.map(str::to_owned);
            let answer = self.inner.execute(request).await;
            let Some(attempt) = attempt else { return answer };
            match answer {
                Ok(response) if response.status().is_success() => {
                    let status = Some(response.status().as_u16());
                    attempt.note(Seen { status, ..Seen::default() });
                    match &attempt.body {
                        None => Ok(response),
                        Some(body) => {
                            let (parts, sent) = response.into_parts();
                            let sent = sent.bytes().await.inspect_err(|error| attempt.note_lost(error))?;
                            *body.lock().unwrap_or_else(PoisonError::into_inner) = sent.to_vec();
                            let no_objects = HttpResponseBody::from(list_page::NO_OBJECTS.to_vec());
                            Ok(HttpResponse::from_parts(parts, no_objects))
                        }
                    }
                }
                Ok(response) => Ok(refused(&attempt, response, time_here).await),
                Err(error) => {
                    attempt.note_lost(&error);
                    Err(error)
                }
            }
        })
    }
}

/// Notes what an answer other than success says, and hands on its head alone.
async fn refused(attempt: &Attempt, response: HttpResponse, time_here: Option<String>) -> HttpResponse {
    let (parts, body) = response.into_parts();
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let retry_after = header("retry-after");
    let mut seen = Seen {
        status: Some(parts.status.as_u16()),
        retry_after: retry_after.and_then(|text| text.trim().parse().ok()).map(Nanos::from_secs),
        region: header("x-amz-bucket-region").map(str::to_owned),
        time_here,
        time_there: header("date").map(str::to_owned),
        ..Seen::default()
    };
    attempt.note(seen.clone()); // in case the body never ends
    let mut text = Vec::new();
    let mut chunks = body.bytes_stream();
    while let Some(Ok(chunk)) = chunks.next().await {
        text.extend_from_slice(&chunk);
        if text.len() >= BODY_LOOKED_AT {
            break;
        }
    }
    text.truncate(BODY_LOOKED_AT);
    let text = String::from_utf8_lossy(&text);
    seen.code = element(&text, "Code");
    seen.words = element(&text, "Message").map(|words| redact(&words));
    seen.region = seen.region.or_else(|| element(&text, "Region"));
    seen.time_here = element(&text, "RequestTime").or(seen.time_here);
    seen.time_there = element(&text, "ServerTime").or(seen.time_there);
    attempt.note(seen);
    HttpResponse::from_parts(parts, HttpResponseBody::from(Vec::new()))
}

/// The text of the first `<name>` of an XML document.
fn element(text: &str, name: &str) -> Option<String> {
    let from = text.split_once(&format!("<{name}>"))?.1;
    Some(from.split_once(&format!("</{name}>"))?.0.trim().to_owned())
}

/// An error and its causes in one line; causes that repeat what was said are left out.
fn chain(error: &dyn Error) -> String {
    let mut said = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !said.contains(&text) {
            said.push_str(": ");
            said.push_str(&text);
        }
        next = cause.source();
    }
    said
}

#[cfg(test)]
mod tests;
