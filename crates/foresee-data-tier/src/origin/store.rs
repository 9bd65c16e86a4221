// SPDX-License-Identifier: Apache-2.0
//! An origin behind HTTP: an S3 bucket, or a plain web server.
//!
//! Each read is a task on the client's two threads; the body goes from the connection into the caller's memory. Every
//! read is conditional on the index's tag, so versions never mix. An answer with another number of bytes is a
//! failure.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use foresee_units::{Bytes, Nanos, ReadOutcome};
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta};
use tokio::task::AbortHandle;

use super::fault::Attempt;
use super::pending::{PendingOp, PendingOps, deadline};
use super::tag::{object_tag, strong_etag};
use super::{Client, Failure, Locate, OriginError, OriginOptions, Store};
use crate::completion::Completions;
use crate::op::{Op, SampleKey, Ticket};
use crate::uri::Uri;
use crate::{Tier, TierFacts};

/// Maximum time for aborted requests to release their memory: one turn of the runtime, independent of the network.
const ABORT_TAKES: Nanos = Nanos::from_secs(2);

/// The tier of a bucket or a web server.
pub struct StoreOrigin {
    shared: Arc<Requests>,
    client: Client,
}

struct Requests {
    store: Arc<Store>,
    locate: Arc<dyn Locate>,
    pending_ops: Arc<PendingOps>,
    running: Mutex<HashMap<Ticket, AbortHandle>>,
}

impl StoreOrigin {
    /// Create the client, without a request.
    ///
    /// # Errors
    /// [`OriginError::BadOption`] for an unknown or invalid setting, [`OriginError::Host`] without threads.
    ///
    /// # Panics
    /// If `uri` is a directory, which [`super::PosixOrigin`] reads.
    pub fn new(
        uri: &Uri,
        options: &OriginOptions,
        locate: Arc<dyn Locate>,
        completions: Completions,
    ) -> Result<Self, OriginError> {
        let client = Client::new(uri, options)?;
        let store = Arc::clone(client.store());
        let pending_ops = PendingOps::new(completions);
        Ok(Self {
            shared: Arc::new(Requests { store, locate, pending_ops, running: Mutex::default() }),
            client,
        })
    }
}

impl Tier for StoreOrigin {
    fn submit(&self, op: Op) {
        self.submit_many(vec![op]);
    }

    fn submit_many(&self, ops: Vec<Op>) {
        let now = Instant::now();
        let pending_ops = &self.shared.pending_ops;
        let runtime = self.client.handle();
        // Held while the tasks are spawned, so that none ends before it is in the map.
        let mut running = self.shared.running();
        for op in ops {
            match op {
                Op::Read { ticket, key, offset, dest } => {
                    let pending = PendingOp::new(pending_ops, ticket, now, Some(dest));
                    if pending_ops.is_closed() {
                        continue; // a dropped operation reports itself as cancelled
                    }
                    let task = runtime.spawn(Arc::clone(&self.shared).serve(pending, key, offset));
                    running.insert(ticket, task.abort_handle());
                }
                Op::Write { ticket, .. } | Op::Drop { ticket, .. } => {
                    let pending = PendingOp::new(pending_ops, ticket, now, None);
                    if !pending_ops.is_closed() {
                        pending.fail(ReadOutcome::Failed, super::READ_ONLY);
                    }
                }
            }
        }
    }

    fn cancel(&self, ticket: Ticket) {
        let task = self.shared.running().remove(&ticket);
        if let Some(task) = task {
            task.abort(); // the operation is dropped with its task, and reports itself
        }
    }

    fn facts(&self) -> TierFacts {
        TierFacts {
            place: self.shared.store.uri().to_string(),
            capacity: Bytes::MAX,
            used: Bytes::ZERO,
            in_flight: self.shared.pending_ops.in_flight(),
        }
    }

    /// Gives requests in flight `grace` to end, and aborts the others.
    fn close(&self, grace: Nanos) {
        self.shared.pending_ops.close();
        // An accepted submit has inserted its tasks once this lock is acquired.
        drop(self.shared.running());
        if self.shared.pending_ops.wait_idle(deadline(grace)) {
            return;
        }
        let left: Vec<_> = self.shared.running().drain().map(|(_, task)| task).collect();
        left.iter().for_each(AbortHandle::abort);
        self.shared.pending_ops.wait_idle(deadline(ABORT_TAKES));
    }
}

impl std::fmt::Debug for StoreOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreOrigin").field("uri", self.shared.store.uri()).finish_non_exhaustive()
    }
}

impl Drop for StoreOrigin {
    fn drop(&mut self) {
        self.shared.pending_ops.close();
        self.shared.running().drain().for_each(|(_, task)| task.abort());
    }
}

/// A request that is ready to be sent.
struct Request {
    path: Path,
    /// First byte in the object and number of bytes; `None` for all of it.
    range: Option<(u64, u64)>,
    tag: Vec<u8>,
}

impl Requests {
    fn running(&self) -> MutexGuard<'_, HashMap<Ticket, AbortHandle>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(self: Arc<Self>, mut pending: PendingOp, key: SampleKey, offset: u64) {
        pending.begin();
        let answer = match self.build_request(&pending, key, offset) {
            Ok(request) => self.fetch(&mut pending, request).await,
            Err(failure) => Err(failure),
        };
        // Removed before the report, after which the ticket may be reused.
        self.running().remove(&pending.ticket());
        match answer {
            Ok(()) => pending.finish(ReadOutcome::Ok),
            Err(failure) => {
                pending.detail.status = failure.status.or(pending.detail.status);
                let outcome = failure.outcome;
                let name = self.locate.locate(key.id).map(|location| self.store.uri().join(&location.key));
                let name = name.unwrap_or_else(|| self.store.uri().to_string());
                pending.fail(outcome, format!("{name}: {}", failure.message(self.store.remedies())));
            }
        }
    }

    fn build_request(&self, pending: &PendingOp, key: SampleKey, offset: u64) -> Result<Request, Failure> {
        let Some(location) = self.locate.locate(key.id) else {
            return Err(Failure::answer(ReadOutcome::Absent, None, super::not_in_index(key.id)));
        };
        let len = pending.dest.as_ref().map_or(0, crate::Dest::len);
        let start = super::start_in_object(&location, offset, len)
            .map_err(|(outcome, cause)| Failure::answer(outcome, None, cause))?;
        let path = self.store.path(&location.key).map_err(|cause| {
            Failure::answer(ReadOutcome::Failed, None, format!("the key cannot be read: {cause}"))
        })?;
        let len = len as u64;
        let range = (location.start.is_some() || len < location.len).then_some((start, len));
        Ok(Request { path, range, tag: location.tag.into_owned() })
    }

    async fn fetch(&self, pending: &mut PendingOp, request: Request) -> Result<(), Failure> {
        let Request { path, range, tag } = request;
        let Some(mut dest) = pending.dest.take() else { unreachable!("a read has its memory until it ends") };
        let into = dest.as_mut_slice();
        let attempt = Arc::new(Attempt::default());
        if into.is_empty() {
            // Without bytes to read, only the version is checked.
            let meta = self.store.head(&path, &attempt).await?;
            pending.detail.status = attempt.status();
            pending.detail.first_byte = Some(Nanos::from(pending.service()));
            return check_version(&meta, &tag, &attempt);
        }
        let options = GetOptions {
            if_match: strong_etag(&tag).map(str::to_owned),
            range: range.map(|(start, len)| GetRange::Bounded(start..start + len)),
            ..GetOptions::default()
        };
        let answer = self.store.get(&path, options, &attempt).await?;
        pending.detail.status = attempt.status();
        pending.detail.first_byte = Some(Nanos::from(pending.service()));
        check_version(&answer.meta, &tag, &attempt)?;
        let announced = answer.range.end.saturating_sub(answer.range.start);
        if announced != into.len() as u64 {
            let wanted = into.len();
            let cause = format!("{announced} bytes instead of {wanted}; index the data set again");
            return Err(Failure::answer(ReadOutcome::Changed, attempt.status(), cause));
        }
        let mut filled = 0;
        let mut body = answer.into_stream();
        while filled < into.len() {
            let chunk = match self.store.with_timeout(body.next()).await? {
                Some(Ok(chunk)) => chunk,
                Some(Err(error)) => {
                    let cause = crate::uri::redact(&error.to_string());
                    let cause = format!("the body broke off after {filled} bytes: {cause}");
                    return Err(Failure::answer(ReadOutcome::Retryable, attempt.status(), cause));
                }
                None => {
                    let cause = format!("the body ended after {filled} of {} bytes", into.len());
                    return Err(Failure::answer(ReadOutcome::Retryable, attempt.status(), cause));
                }
            };
            let Some(target) = into.get_mut(filled..filled + chunk.len()) else {
                return Err(Failure::answer(
                    ReadOutcome::Failed,
                    attempt.status(),
                    "more bytes than requested",
                ));
            };
            target.copy_from_slice(&chunk);
            filled += chunk.len();
            pending.bytes = filled as u64;
        }
        // Only a connection that was read to its end is reused.
        match self.store.with_timeout(body.next()).await? {
            None => Ok(()),
            Some(Ok(more)) if more.is_empty() => Ok(()),
            Some(_) => {
                Err(Failure::answer(ReadOutcome::Failed, attempt.status(), "more bytes than requested"))
            }
        }
    }
}

/// Compare versions if both are known.
fn check_version(meta: &ObjectMeta, tag: &[u8], attempt: &Attempt) -> Result<(), Failure> {
    let now = object_tag(meta);
    if tag.is_empty() || now.is_empty() || now == tag {
        return Ok(());
    }
    let cause = "the object has changed since it was indexed; index the data set again";
    Err(Failure::answer(ReadOutcome::Changed, attempt.status(), cause))
}

#[cfg(test)]
mod process_tests;
