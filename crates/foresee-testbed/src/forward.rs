// SPDX-License-Identifier: Apache-2.0
//! The proxy: every request is forwarded unchanged, so that signatures stay valid.
//!
//! Each client connection has one connection of its own to the server. HTTP/1.1 answers in order, so a pool would
//! add waiting, and hide the number of connections of a client.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderName, TRANSFER_ENCODING};
use hyper::{HeaderMap, Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::body::Source;
use crate::counters::Counters;
use crate::folder::refusal;
use crate::server::Answer;

type Upload = UnsyncBoxBody<Bytes, hyper::Error>;

/// The connection to the server, if one is open.
#[derive(Debug, Default)]
pub(crate) struct Upstream {
    idle: Mutex<Option<SendRequest<Upload>>>,
}

impl Upstream {
    /// Forward `request` and return the answer, whose body follows.
    pub(crate) async fn forward(
        &self,
        authority: &str,
        request: Request<Incoming>,
        counters: &Counters,
    ) -> Answer {
        let is_head = request.method() == Method::HEAD;
        match self.send(authority, outgoing(request, counters.clone())).await {
            Ok(response) => {
                let (mut head, body) = response.into_parts();
                drop_hop_by_hop(&mut head.headers);
                let length = body.size_hint().exact();
                let source = if is_head { Source::Memory(Bytes::new()) } else { Source::Upstream(body) };
                Answer { status: head.status, headers: head.headers, source, length }
            }
            Err(error) => refusal(
                StatusCode::BAD_GATEWAY,
                "BadGateway",
                &format!("the server behind the proxy, {authority}, did not answer: {error}"),
            ),
        }
    }

    async fn send(
        &self,
        authority: &str,
        request: Request<Upload>,
    ) -> Result<hyper::Response<Incoming>, Box<dyn std::error::Error + Send + Sync>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut request = request;
        if let Some(mut sender) = idle
            && sender.ready().await.is_ok()
        {
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(self.put_back(sender, response)),
                // The server has just closed the idle connection; the request was never sent.
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(failed.into_error().into()),
                },
            }
        }
        let stream = TcpStream::connect(authority).await?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Ends when the sender and the last body are dropped; its errors arrive through them too.
        tokio::spawn(connection);
        let response = sender.send_request(request).await?;
        Ok(self.put_back(sender, response))
    }

    fn put_back<T>(&self, sender: SendRequest<Upload>, response: T) -> T {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        response
    }
}

/// The request for the server, with the same path, headers and bytes; the bytes are counted.
fn outgoing(request: Request<Incoming>, counters: Counters) -> Request<Upload> {
    let (mut head, body) = request.into_parts();
    drop_hop_by_hop(&mut head.headers);
    // HTTP/1.1 to a server contains only the path; a client that uses this as its proxy sends more.
    if let Some(path) = head.uri.path_and_query() {
        head.uri = Uri::from(path.clone());
    }
    let counted = body.map_frame(move |frame| {
        if let Some(data) = frame.data_ref() {
            counters.uploaded(data.len() as u64);
        }
        frame
    });
    Request::from_parts(head, counted.boxed_unsync())
}

/// Remove headers that concern one connection only (RFC 9110, section 7.6.1).
fn drop_hop_by_hop(headers: &mut HeaderMap) {
    for name in
        [CONNECTION, HeaderName::from_static("keep-alive"), HeaderName::from_static("proxy-connection")]
    {
        headers.remove(name);
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(TRANSFER_ENCODING);
        headers.remove(CONTENT_LENGTH);
    }
}
