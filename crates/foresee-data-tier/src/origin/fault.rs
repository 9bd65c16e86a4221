// SPDX-License-Identifier: Apache-2.0
//! What an answer of a store means, and what of it may be shown.
//!
//! Apart from the requests: a hook below the store client sees each answer before the client turns it into
//! an error of its own, so status, `Retry-After` and the server's code survive. Refuses to show a URL's
//! query or a header: presigned parts and credentials stay out of every message.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use foresee_units::Nanos;
use futures_util::StreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService, ReqwestConnector,
};

use super::OriginError;
use crate::op::Outcome;
use crate::uri::redact;

/// Bytes of an error's body that are looked at; S3's error documents are below 1 KB.
const BODY_LOOKED_AT: usize = 4096;

/// A failed request, as a driver needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) outcome: Outcome,
    pub(crate) status: Option<u16>,
    /// In words, fit to be shown.
    pub(crate) cause: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The server answered.
    Answer,
    /// Nobody did.
    Transport,
    /// It was never sent: no credentials.
    Unsigned,
}

impl Failure {
    /// The request or its body met silence for longer than allowed.
    pub(crate) fn silence(limit: Nanos) -> Self {
        let cause = format!("no byte came for {:.1} s", limit.as_secs_f64());
        Self { outcome: Outcome::Retryable, status: None, cause, kind: Kind::Transport }
    }

    /// A fault in the answer itself.
    pub(crate) fn answer(outcome: Outcome, status: Option<u16>, cause: impl Into<String>) -> Self {
        Self { outcome, status, cause: cause.into(), kind: Kind::Answer }
    }

    /// What `error` of the store client means, given what the hook saw.
    pub(crate) fn classify(seen: &Attempt, error: &object_store::Error) -> Self {
        let seen = seen.seen();
        if let Some((kind, cause)) = &seen.transport {
            let outcome = match kind {
                HttpErrorKind::Decode => Outcome::Fatal,
                _ => Outcome::Retryable,
            };
            return Self { outcome, status: seen.status, cause: cause.clone(), kind: Kind::Transport };
        }
        let Some(status) = seen.status else {
            // Nothing was sent. The client asks for credentials first, and has checked everything else
            // before. In mid-run that is a refresh that failed, and the next may not.
            let cause = redact(&chain(error));
            return Self { outcome: Outcome::Retryable, status: None, cause, kind: Kind::Unsigned };
        };
        let code = seen.code.as_deref().unwrap_or_default();
        let outcome = match (status, code) {
            (429 | 503, _) => Outcome::Throttled { retry_after: seen.retry_after },
            (408 | 500.., _) => Outcome::Retryable,
            (404 | 410, _) => Outcome::Absent,
            (401 | 403, _) | (400, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired") => {
                Outcome::Denied
            }
            (412, _) => Outcome::Changed,
            _ => Outcome::Fatal,
        };
        let cause = match (&seen.code, &seen.words) {
            _ if (200..300).contains(&status) => redact(&chain(error)),
            (Some(code), Some(words)) => format!("HTTP {status} {code}: {words}"),
            (Some(code), None) => format!("HTTP {status} {code}"),
            (None, _) => format!("HTTP {status}"),
        };
        Self { outcome, status: Some(status), cause, kind: Kind::Answer }
    }

    /// As the error of a call that has no tier around it.
    pub(crate) fn into_error(self, uri: String) -> OriginError {
        let cause = self.cause;
        match (self.kind, self.outcome) {
            (Kind::Unsigned, _) => OriginError::NoCredentials { uri, cause },
            (Kind::Transport, _) => OriginError::Unreachable { uri, cause },
            (Kind::Answer, Outcome::Absent) => OriginError::Missing { uri, cause },
            (Kind::Answer, Outcome::Denied) => OriginError::Denied { uri, cause },
            (Kind::Answer, _) => OriginError::Failed { uri, cause },
        }
    }
}

/// What the hook saw of one request; travels with it as an extension.
#[derive(Debug, Default)]
pub(crate) struct Attempt {
    seen: Mutex<Seen>,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    status: Option<u16>,
    retry_after: Option<Nanos>,
    code: Option<String>,
    words: Option<String>,
    transport: Option<(HttpErrorKind, String)>,
}

impl Attempt {
    pub(crate) fn status(&self) -> Option<u16> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).status
    }

    fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
            let answer = self.inner.execute(request).await;
            let Some(attempt) = attempt else { return answer };
            match answer {
                Ok(response) if response.status().is_success() => {
                    attempt.note(Seen { status: Some(response.status().as_u16()), ..Seen::default() });
                    Ok(response)
                }
                Ok(response) => Ok(refused(&attempt, response).await),
                Err(error) => {
                    let transport = Some((error.kind(), redact(&chain(&error))));
                    attempt.note(Seen { transport, ..Seen::default() });
                    Err(error)
                }
            }
        })
    }
}

/// Notes what an answer other than success says, and hands on its head alone.
async fn refused(attempt: &Attempt, response: HttpResponse) -> HttpResponse {
    let (parts, body) = response.into_parts();
    let retry_after = parts.headers.get("retry-after").and_then(|value| value.to_str().ok());
    let mut seen = Seen {
        status: Some(parts.status.as_u16()),
        retry_after: retry_after.and_then(|text| text.trim().parse().ok()).map(Nanos::from_secs),
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
mod tests {
    use super::*;

    fn outcome(status: u16, code: Option<&str>) -> Outcome {
        let attempt = Attempt::default();
        let code = code.map(str::to_owned);
        attempt.note(Seen { status: Some(status), code, ..Seen::default() });
        let error =
            object_store::Error::NotImplemented { operation: String::new(), implementer: String::new() };
        Failure::classify(&attempt, &error).outcome
    }

    #[test]
    fn every_status_has_its_meaning() {
        let throttled = Outcome::Throttled { retry_after: None };
        for (status, code, expected) in [
            (404, None, Outcome::Absent),
            (401, None, Outcome::Denied),
            (403, Some("AccessDenied"), Outcome::Denied),
            (400, Some("ExpiredToken"), Outcome::Denied),
            (412, None, Outcome::Changed),
            (429, None, throttled),
            (503, Some("SlowDown"), throttled),
            (408, None, Outcome::Retryable),
            (500, None, Outcome::Retryable),
            (504, None, Outcome::Retryable),
            (400, None, Outcome::Fatal),
            (416, None, Outcome::Fatal),
            (301, None, Outcome::Fatal),
        ] {
            assert_eq!(outcome(status, code), expected, "HTTP {status} {code:?}");
        }
    }

    #[test]
    fn the_code_of_an_error_document_is_found_and_garbage_is_not() {
        let text = "<Error><Code>SlowDown</Code><Message> wait </Message></Error>";
        assert_eq!(element(text, "Code").as_deref(), Some("SlowDown"));
        assert_eq!(element(text, "Message").as_deref(), Some("wait"));
        assert_eq!(element("<Code>open", "Code"), None);
    }
}
