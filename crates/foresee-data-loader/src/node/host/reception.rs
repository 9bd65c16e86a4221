// SPDX-License-Identifier: Apache-2.0
//! Accepts consumers, passes their data sets to `opener`, and notices when they leave, on a thread of its own.
//!
//! A consumer has left when its socket or its process has ended, whichever is seen first. The thread waits for all
//! sockets and processes at once, and never for one consumer.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foresee_data_node::{
    AttachRequest, Attachment, Incoming, NodeError, NodeListener, NodeReply, NodeRequest, ReceivedRequest,
    Refusal, RefusalCode, SlabMemory, WelcomeFacts,
};
use foresee_units::Bytes;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};

use super::inbox::{ConsumerFacts, HostEvent, Inbox};
use super::log::HostLog;
use super::opener::{OpenReply, OpenRequest};
use super::session::Session;
use super::status::HostStatus;

/// Attached consumers; more are refused.
const CONSUMERS_MAX: usize = 1024;
/// Pause after a failure to accept, for example without descriptors.
const FAILURE_PAUSE: Duration = Duration::from_millis(200);
/// Time between two reports to a consumer whose data set is being opened: a quarter of the time that it waits for one.
const OPENING_INTERVAL: Duration = Duration::from_millis(500);

/// Ends attachments and the thread, from other threads.
#[derive(Debug)]
pub(super) struct ReceptionHandle {
    wake: OwnedFd,
    state: Mutex<PendingRequests>,
}

#[derive(Debug, Default)]
struct PendingRequests {
    ended: Vec<(u32, String)>,
    /// Answers to consumers that open a data set.
    replies: Vec<(u32, OpenReply)>,
    is_closing: bool,
    /// Close when the last consumer leaves.
    is_closing_when_empty: bool,
    /// The thread has ended, or is about to.
    has_ended: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Reception {
    pub(super) listener: NodeListener,
    pub(super) slab: Arc<SlabMemory>,
    pub(super) facts: HostFacts,
    /// Data sets to open.
    pub(super) requests: Sender<OpenRequest>,
    pub(super) handle: Arc<ReceptionHandle>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) status: Arc<Mutex<HostStatus>>,
    pub(super) log: HostLog,
}

/// What consumers are told.
#[derive(Clone, Debug)]
pub(super) struct HostFacts {
    /// Version of the Foresee package.
    pub(super) foresee: String,
    pub(super) ram: Bytes,
    pub(super) disk: Bytes,
    /// When it started.
    pub(super) since: Instant,
}

impl ReceptionHandle {
    /// # Errors
    /// [`NodeError::Io`]: no descriptor is left.
    pub(super) fn new() -> Result<Self, NodeError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|why| NodeError::Io { doing: "creating an eventfd", why: why.into() })?;
        Ok(Self { wake, state: Mutex::default() })
    }

    /// End the attachment of a consumer.
    pub(super) fn end(&self, consumer: u32, why: String) {
        self.change(|pending| pending.ended.push((consumer, why)));
    }

    /// Answer a consumer that opens a data set.
    pub(super) fn reply(&self, consumer: u32, reply: OpenReply) {
        self.change(|pending| pending.replies.push((consumer, reply)));
    }

    /// Whether the thread has ended, or is about to.
    pub(super) fn has_ended(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.has_ended || state.is_closing
    }

    /// End all attachments and the thread.
    pub(super) fn close(&self) {
        self.change(|pending| pending.is_closing = true);
    }

    /// Close when no consumer is left, or not any more; `false` if the thread ends in any case.
    pub(super) fn close_when_empty(&self, is_wanted: bool) -> bool {
        let mut has_ended = false;
        self.change(|pending| {
            pending.is_closing_when_empty = is_wanted;
            has_ended = pending.has_ended || pending.is_closing;
        });
        !has_ended
    }

    /// Decide that the thread ends because no consumer is left, unless that is not wanted any more.
    fn end_when_empty(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.has_ended |= state.is_closing_when_empty;
        state.has_ended
    }

    fn change(&self, change: impl FnOnce(&mut PendingRequests)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        // Only a counter that is full refuses a write, and then the thread is being woken already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn take(&self) -> PendingRequests {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
        let mut pending = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        PendingRequests {
            ended: std::mem::take(&mut pending.ended),
            replies: std::mem::take(&mut pending.replies),
            ..*pending
        }
    }
}

/// An attached consumer.
#[derive(Debug)]
struct AttachedConsumer {
    attachment: Attachment,
    /// When it gets the next report, while its data set is being opened.
    next_report: Option<Instant>,
}

/// What poll has found.
#[derive(Debug, Default)]
struct Found {
    has_visitors: bool,
    /// Consumers whose socket can be read.
    readable: Vec<u32>,
    /// Consumers whose process has ended.
    ended: Vec<u32>,
}

impl Reception {
    /// Run until the host closes.
    pub(super) fn run(mut self) {
        let mut attached = BTreeMap::new();
        let mut next = 0;
        loop {
            let found = self.wait(&attached);
            let pending = self.handle.take();
            if pending.is_closing {
                return;
            }
            for (consumer, why) in pending.ended {
                self.detach(&mut attached, consumer, &why);
            }
            for consumer in found.ended {
                self.detach(&mut attached, consumer, "its process has ended");
            }
            for consumer in found.readable {
                if let Err(why) = self.read(&mut attached, consumer) {
                    self.detach(&mut attached, consumer, &why);
                }
            }
            for (consumer, reply) in pending.replies {
                if let Err(why) = self.answer(&mut attached, consumer, reply) {
                    self.detach(&mut attached, consumer, &why.to_string());
                }
            }
            self.report_openings(&mut attached);
            if found.has_visitors {
                self.receive_visitors(&mut attached, &mut next);
            }
            if attached.is_empty() && self.handle.end_when_empty() {
                return self.inbox.push(HostEvent::Close);
            }
        }
    }

    /// Wait until something has happened.
    fn wait(&self, attached: &BTreeMap<u32, AttachedConsumer>) -> Found {
        let mut polled =
            vec![PollFd::new(&self.handle.wake, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        let mut owners = Vec::with_capacity(2 * attached.len());
        for (&number, AttachedConsumer { attachment, .. }) in attached {
            polled.push(PollFd::from_borrowed_fd(attachment.as_fd(), PollFlags::IN));
            owners.push((number, false));
            if let Some(process) = attachment.process() {
                polled.push(PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN));
                owners.push((number, true));
            }
        }
        let reports = attached.values().filter_map(|consumer| consumer.next_report);
        let next = reports.chain(self.listener.next_deadline()).min();
        let left = next.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        // An interrupted wait finds nothing, and is repeated.
        let _ = rustix::event::poll(&mut polled, left.as_ref());
        let mut found =
            Found { has_visitors: left.is_some() || !polled[1].revents().is_empty(), ..Found::default() };
        for (fd, (number, is_process)) in polled[2..].iter().zip(owners) {
            if !fd.revents().is_empty() {
                if is_process { &mut found.ended } else { &mut found.readable }.push(number);
            }
        }
        found
    }

    fn receive_visitors(&mut self, attached: &mut BTreeMap<u32, AttachedConsumer>, next: &mut u32) {
        loop {
            match self.listener.accept(Duration::ZERO) {
                Ok(None) => return,
                Ok(Some(Incoming::Status(request))) => {
                    let status =
                        self.status.lock().unwrap_or_else(PoisonError::into_inner).to_message(&self.facts);
                    // A visitor that has left does not need the answer.
                    let _ = request.answer(status);
                }
                Ok(Some(Incoming::Listing(peer))) => {
                    let text = "this is the host of a node's cache, which shares no listings; install one version of Foresee everywhere";
                    peer.refuse(RefusalCode::Malformed, text);
                }
                Ok(Some(Incoming::SampleCache(peer))) => {
                    let text = "this is the host of a node's cache, which has no samples of a worker process's dataset";
                    peer.refuse(RefusalCode::Malformed, text);
                }
                Ok(Some(Incoming::Attach(request))) => {
                    if attached.len() >= CONSUMERS_MAX {
                        let text =
                            format!("the host has {CONSUMERS_MAX} consumers already; end some of them");
                        request.refuse(RefusalCode::TooManyConsumers, text);
                        continue;
                    }
                    let number = *next;
                    *next = next.wrapping_add(1);
                    match self.attach(request, number) {
                        Ok(attachment) => {
                            attached.insert(number, AttachedConsumer { attachment, next_report: None });
                        }
                        Err(error) => {
                            self.log.add("refused", Some(number), vec![("why", error.to_string())]);
                        }
                    }
                }
                Err(error) => {
                    self.log.add("cannot accept", None, vec![("why", error.to_string())]);
                    std::thread::park_timeout(FAILURE_PAUSE);
                    return;
                }
            }
        }
    }

    fn attach(&self, request: AttachRequest, number: u32) -> Result<Attachment, NodeError> {
        let hello = request.hello().clone();
        let facts = ConsumerFacts {
            pid: request.credentials().pid,
            uid: request.credentials().uid,
            job: hello.job,
            rank: hello.rank,
            loader: hello.loader,
            local_rank: hello.local_rank,
        };
        let HostFacts { foresee, ram, disk, .. } = self.facts.clone();
        let welcome = WelcomeFacts { foresee, consumer: number, ram, disk };
        let (attachment, rings) = request.accept(&self.slab, welcome)?;
        let session = Session::start(number, rings, Arc::clone(&self.inbox))?;
        let fields = vec![
            ("job", facts.job.clone()),
            ("rank", facts.rank.to_string()),
            ("pid", hello.pid.to_string()),
            ("foresee", hello.foresee),
        ];
        self.log.add("attached", Some(number), fields);
        self.inbox.push(HostEvent::Attached { consumer: number, facts, session });
        Ok(attachment)
    }

    fn detach(&self, attached: &mut BTreeMap<u32, AttachedConsumer>, number: u32, why: &str) {
        if attached.remove(&number).is_some() {
            self.log.add("detached", Some(number), vec![("why", why.to_owned())]);
            self.inbox.push(HostEvent::Detached { consumer: number });
        }
    }

    /// Read all messages of a consumer.
    ///
    /// # Errors
    /// Why it is detached.
    fn read(&self, attached: &mut BTreeMap<u32, AttachedConsumer>, number: u32) -> Result<(), String> {
        let Some(consumer) = attached.get_mut(&number) else { return Ok(()) };
        loop {
            let message = consumer.attachment.receive().map_err(|error| match error {
                NodeError::Ended => "it has left".to_owned(),
                other => other.to_string(),
            })?;
            let Some(ReceivedRequest { message, index }) = message else { return Ok(()) };
            match message {
                NodeRequest::OpenDataSet(_) if consumer.next_report.is_some() => {
                    return Err("it opens a data set before the answer to the last one".to_owned());
                }
                NodeRequest::OpenDataSet(description) => {
                    consumer.next_report = Instant::now().checked_add(OPENING_INTERVAL);
                    let request = OpenRequest { consumer: number, description, index };
                    // Without the thread that opens data sets the host is closing.
                    self.requests.send(request).map_err(|_| "the host closes".to_owned())?;
                }
                NodeRequest::Detach => return Err("it has left".to_owned()),
                _ => return Err("it sent a message that only begins a connection".to_owned()),
            }
        }
    }

    /// Send the answer about a data set to the consumer that opens it.
    fn answer(
        &self,
        attached: &mut BTreeMap<u32, AttachedConsumer>,
        number: u32,
        reply: OpenReply,
    ) -> Result<(), NodeError> {
        // None if it has left.
        let Some(consumer) = attached.get_mut(&number) else { return Ok(()) };
        consumer.next_report = None;
        match reply {
            OpenReply::Opened(data_set, locations) => {
                self.inbox.push(HostEvent::DataSetChosen { consumer: number, data_set });
                consumer.attachment.send_opened(data_set, &locations)
            }
            OpenReply::IndexNeeded => consumer.attachment.send(&NodeReply::IndexNeeded),
            OpenReply::Refused(text) => {
                consumer.attachment.send(&NodeReply::Refusal(Refusal { code: RefusalCode::DataSet, text }))
            }
        }
    }

    /// Report to consumers whose data set is being opened.
    fn report_openings(&self, attached: &mut BTreeMap<u32, AttachedConsumer>) {
        let now = Instant::now();
        let mut failed = Vec::new();
        for (&number, consumer) in &mut *attached {
            if consumer.next_report.is_some_and(|at| at <= now) {
                consumer.next_report = now.checked_add(OPENING_INTERVAL);
                failed.extend(consumer.attachment.send(&NodeReply::Opening).err().map(|why| (number, why)));
            }
        }
        for (number, why) in failed {
            self.detach(attached, number, &why.to_string());
        }
    }
}
