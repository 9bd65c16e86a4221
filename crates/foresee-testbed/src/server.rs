// SPDX-License-Identifier: Apache-2.0
//! The path of a request: admitted, failed or answered, sent.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foresee_units::Nanos;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, IF_MATCH, RANGE, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::body::{Metering, Outgoing, Source};
use crate::control;
use crate::counters::Counters;
use crate::faults::{Fault, Faults};
use crate::folder::{Folder, refusal};
use crate::forward::Upstream;
use crate::listing;
use crate::memory::MemoryBuckets;
use crate::mount::Mount;
use crate::options::{Limits, Mode, Options};
use crate::rate_limit::RateLimit;
use crate::sleep::sleep;

/// A bound testbed; [`Testbed::run`] serves.
#[derive(Debug)]
pub struct Testbed {
    listener: TcpListener,
    place: Place,
    origin: Arc<Origin>,
    _mount: Option<Mount>,
}

/// The source of answers.
#[derive(Clone, Debug)]
enum Place {
    Folder(Arc<Folder>),
    Memory(Arc<MemoryBuckets>),
    Server(Arc<str>),
}

/// Limits, faults and counts, shared by all connections.
#[derive(Debug)]
pub(crate) struct Origin {
    started: Instant,
    requests: RateLimit,
    answered: RateLimit,
    bytes: RateLimit,
    limits: Mutex<Limits>,
    latency_ns: AtomicU64,
    pub(crate) faults: Faults,
    pub(crate) counters: Counters,
}

/// An answer before limits, counts and faults.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) source: Source,
    /// Bytes in `source`, if known.
    pub(crate) length: Option<u64>,
}

impl Testbed {
    /// Bind the address; clients can connect from then on, and are answered once [`Testbed::run`] runs.
    pub async fn bind(options: Options) -> io::Result<Self> {
        let burst = Nanos::new(u64::try_from(options.burst.as_nanos()).unwrap_or(u64::MAX));
        let origin = Origin {
            started: Instant::now(),
            requests: RateLimit::new(0, burst),
            answered: RateLimit::new(0, burst),
            bytes: RateLimit::new(0, burst),
            limits: Mutex::default(),
            latency_ns: AtomicU64::new(0),
            faults: Faults::new(options.faults),
            counters: Counters::default(),
        };
        origin.set_limits(options.limits);
        let origin = Arc::new(origin);
        let mut mount = None;
        let place = match options.mode {
            Mode::Serve(root) => {
                if let Some(at) = options.mount {
                    mount = Some(Mount::new(root.clone(), at, Arc::clone(&origin))?);
                }
                Place::Folder(Arc::new(Folder::new(root, options.page_keys)))
            }
            Mode::Memory => Place::Memory(Arc::new(MemoryBuckets::new(options.page_keys))),
            Mode::Proxy(authority) => Place::Server(authority.into()),
        };
        let listener = TcpListener::bind(options.listen).await?;
        Ok(Self { listener, place, origin, _mount: mount })
    }

    /// The listening address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Address, shared state and buckets in memory.
    ///
    /// # Panics
    /// If the testbed has another mode than [`Mode::Memory`].
    pub(crate) fn parts(&self) -> (SocketAddr, Arc<Origin>, Arc<MemoryBuckets>) {
        let Place::Memory(memory) = &self.place else { panic!("only buckets in memory have these parts") };
        let address = self.address().expect("a bound socket has an address");
        (address, Arc::clone(&self.origin), Arc::clone(memory))
    }

    /// Serve until `stop` completes. Open connections then end with the runtime.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = &mut stop => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    tokio::spawn(serve(stream, self.place.clone(), Arc::clone(&self.origin)));
                }
                // Mostly out of descriptors, which are freed when connections end.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
}

impl Origin {
    pub(crate) fn limits(&self) -> Limits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Set `limits`, which must be valid.
    pub(crate) fn set_limits(&self, limits: Limits) {
        let now = self.now();
        self.requests.set_rate(now, limits.requests_per_s);
        self.answered.set_rate(now, limits.refuse_above_per_s);
        self.bytes.set_rate(now, limits.bytes_per_s);
        let latency = Duration::from_secs_f64(limits.latency_ms / 1e3);
        self.latency_ns.store(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    /// Wait for a place under the limit on requests, then for the latency.
    pub(crate) async fn admit(&self) {
        let now = self.now();
        let wait = self.requests.reserve(now, 1).saturating_sub(now);
        if !wait.is_zero() {
            self.counters.throttled(wait);
        }
        let wait = wait.get().saturating_add(self.latency_ns.load(Ordering::Relaxed));
        if wait > 0 {
            sleep(Duration::from_nanos(wait)).await;
        }
    }

    /// Return whether this request is above the rate of requests that are answered.
    fn is_refused(&self) -> bool {
        !self.answered.try_take(self.now(), 1)
    }

    /// The delay of `bytes` of a body by the limit on bytes.
    pub(crate) fn reserve_bytes(&self, bytes: u64) -> Option<Duration> {
        let now = self.now();
        let wait = self.bytes.reserve(now, bytes).saturating_sub(now);
        if wait.is_zero() {
            return None;
        }
        self.counters.throttled(wait);
        Some(Duration::from_nanos(wait.get()))
    }

    fn now(&self) -> Nanos {
        Nanos::new(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Serve one connection to its end; its errors concern its client only.
async fn serve(stream: TcpStream, place: Place, origin: Arc<Origin>) {
    origin.counters.connected();
    // A second handle of the socket, which a reset needs after the first has moved into the HTTP connection.
    let (Ok(()), Ok(socket)) = (stream.set_nodelay(true), stream.as_fd().try_clone_to_owned()) else {
        return;
    };
    let connection = Arc::new(Connection { socket, place, origin });
    let upstream = Arc::new(Upstream::default());
    let service = service_fn(move |request| {
        let (connection, upstream) = (Arc::clone(&connection), Arc::clone(&upstream));
        async move { connection.handle(&upstream, request).await }
    });
    // An error here is a client that disconnected, or an injected fault.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

struct Connection {
    socket: OwnedFd,
    place: Place,
    origin: Arc<Origin>,
}

/// The connection must close without an answer.
#[derive(Debug, thiserror::Error)]
#[error("closed by a fault")]
struct Closed;

impl Connection {
    async fn handle(
        &self,
        upstream: &Upstream,
        request: Request<Incoming>,
    ) -> Result<Response<Outgoing>, Closed> {
        if request.uri().path().starts_with(control::PREFIX) {
            let answer = control::answer(&self.origin, request).await;
            return Ok(answer.into_response(None, None));
        }
        let flight = self.origin.counters.begin();
        self.origin.admit().await;
        let (head, body) = request.into_parts();
        if let Place::Memory(memory) = &self.place {
            memory.log(&head);
        }
        let mut request = Request::from_parts(head, body);
        let is_refused = self.origin.is_refused();
        // A refused request consumes no fault.
        let fault = (!is_refused)
            .then(|| self.origin.faults.draw(request.method().as_str(), request.uri().path()))
            .flatten();
        if fault.is_some() {
            self.origin.counters.faulted();
        }
        let method = request.method().clone();
        let is_list = request.uri().query().is_some_and(listing::is_list);
        let answer = match &fault {
            None if is_refused => slow_down(),
            Some(Fault::Reset) => {
                self.origin.counters.answered(method.as_str(), None, is_list);
                // With a linger time of 0 the close sends RST and discards unsent bytes.
                let _ = rustix::net::sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
                return Err(Closed);
            }
            Some(Fault::Status { status, code, retry_after_s }) => {
                fault_answer(*status, code.as_deref(), *retry_after_s)
            }
            Some(Fault::Answer { status, headers, body }) => raw_answer(*status, headers, body),
            Some(Fault::EmptyPage) if is_list => {
                match listing::empty_page(request.uri().query().unwrap_or("")) {
                    Some(page) => Answer::of_bytes(StatusCode::OK, "application/xml", page),
                    None => self.read(upstream, request).await?,
                }
            }
            Some(Fault::IgnoreConditions) => {
                request.headers_mut().remove(RANGE);
                request.headers_mut().remove(IF_MATCH);
                self.read(upstream, request).await?
            }
            Some(Fault::Stall { .. } | Fault::ShortBody | Fault::EmptyPage) | None => {
                self.read(upstream, request).await?
            }
        };
        self.origin.counters.answered(method.as_str(), Some(answer.status.as_u16()), is_list);
        let of_object = method == Method::GET && answer.status.is_success() && !is_list;
        let metering = Metering { origin: Arc::clone(&self.origin), of_object, _flight: flight };
        // The other faults have happened before; these two happen in the body.
        let fault = fault.filter(|fault| matches!(fault, Fault::Stall { .. } | Fault::ShortBody));
        Ok(answer.into_response(fault, Some(metering)))
    }

    /// The answer of the folder, the buckets in memory or the server.
    async fn read(&self, upstream: &Upstream, request: Request<Incoming>) -> Result<Answer, Closed> {
        Ok(match &self.place {
            Place::Server(authority) => upstream.forward(authority, request, &self.origin.counters).await,
            Place::Folder(folder) => folder.answer(request.into_parts().0).await,
            Place::Memory(memory) => {
                let (head, body) = request.into_parts();
                memory.answer(&head, body.collect().await.map_err(|_| Closed)?.to_bytes())
            }
        })
    }
}

/// The answer of S3 to a request above its rate.
fn slow_down() -> Answer {
    refusal(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", "there were more requests than refuse_above_per_s")
}

fn fault_answer(status: u16, code: Option<&str>, retry_after_s: Option<u32>) -> Answer {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let usual = if status == StatusCode::SERVICE_UNAVAILABLE { "SlowDown" } else { "InjectedFault" };
    let code = code.unwrap_or(usual);
    let mut answer = refusal(status, code, "a fault rule of this testbed answered");
    if let Some(seconds) = retry_after_s {
        answer.headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

fn raw_answer(status: u16, headers: &BTreeMap<String, String>, body: &str) -> Answer {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let mut answer = Answer::of_bytes(status, "application/octet-stream", body.to_owned());
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value))
        {
            answer.headers.insert(name, value);
        }
    }
    answer
}

impl Answer {
    /// An answer from memory.
    pub(crate) fn of_bytes(
        status: StatusCode,
        content_type: &'static str,
        body: impl Into<bytes::Bytes>,
    ) -> Self {
        let body = body.into();
        let length = body.len() as u64;
        let mut headers = HeaderMap::new();
        headers.insert(hyper::header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        Self { status, headers, source: Source::Memory(body), length: Some(length) }
    }

    fn into_response(self, fault: Option<Fault>, metering: Option<Metering>) -> Response<Outgoing> {
        let mut response = Response::new(Outgoing::new(self.source, self.length, fault, metering));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}
