// SPDX-License-Identifier: Apache-2.0
//! A server of gradients: admits ranks, separates their jobs, ends with its handle.
//!
//! It needs no model and no optimizer, and knows a job only from its ranks' HELLO. Its memory per job is bounded: two
//! slots for each packet that it sums, and the early buffer. Peers without the secret, and ranks that do not fit a
//! running job, are refused.

mod job;
mod slot_table;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use foresee_grad_queue::{PACKET_BYTES_MIN, ServerId};
use foresee_units::{Bytes, Nanos};
use foresee_wire::{
    Arrival, CAN_RECONNECT, Closer, ConnectionCounts, Fault, FaultCode, ListenOptions, Listener, Purpose,
    Role, Wait, Welcome, WireError, draw_session,
};

use crate::error::ExchangeError;
use crate::interface::{InterfaceStats, Interfaces};
use crate::options::ServerOptions;
use crate::sync::{Timer, lock, spawn};
use crate::timeline::{Event, Timeline};
use crate::translate;
use job::Job;

/// A server. Dropping it closes it.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    context: Arc<ServerContext>,
    closer: Closer,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// State that all jobs share.
#[derive(Debug)]
pub(super) struct ServerContext {
    pub(super) options: ServerOptions,
    /// The random id of this process.
    process: u64,
    jobs: Mutex<BTreeMap<String, Arc<Job>>>,
    pub(super) interfaces: Interfaces,
    visits: Mutex<ConnectionCounts>,
    pub(super) timeline: Timeline,
    /// The origin of the server's clock.
    start: Instant,
    timer: Timer,
}

/// State and counters of a server.
#[derive(Clone, Debug, Default)]
pub struct ServerStats {
    /// Jobs, each with the number of its ranks that are connected or may reconnect.
    pub jobs: BTreeMap<String, u32>,
    /// Connections since the start.
    pub visits: ConnectionCounts,
    /// The peak of the early buffer of any current job.
    pub early_buffer_peak: Bytes,
    /// Counters of each interface.
    pub interfaces: Vec<InterfaceStats>,
}

impl Server {
    /// Listen, and serve in threads.
    ///
    /// # Errors
    /// [`ExchangeError::System`]: the port is in use, or the address is not of this host.
    pub fn start(options: ServerOptions) -> Result<Self, ExchangeError> {
        if options.jobs == 0 {
            return Err(ExchangeError::Setting {
                name: "jobs",
                found: "0".into(),
                rule: "there may be 1 or more",
            });
        }
        let secret = options.secret.clone();
        let listen = ListenOptions {
            link: options.link.clone(),
            tls: options.tls.clone(),
            timeouts: options.timeouts,
            ..ListenOptions::default()
        };
        let keys = Arc::new(move |_: &foresee_wire::Hello| Some(secret.clone()));
        let listener = Listener::bind(options.bind, keys, listen)?;
        let (address, closer) = (listener.address(), listener.closer());
        let timeline = Timeline::new(options.timeline);
        // The first plan sets the bytes of an ordinary packet.
        let own = || Interfaces::new(options.policy.pull(), PACKET_BYTES_MIN);
        let interfaces = options.interfaces.clone().unwrap_or_else(own);
        let (jobs, visits) = (Mutex::default(), Mutex::default());
        let process = draw_session()?;
        interfaces.add_process(process);
        let (start, timer) = (Instant::now(), Timer::default());
        let context =
            Arc::new(ServerContext { options, process, jobs, interfaces, visits, timeline, start, timer });
        let (port, in_timer, in_listener) = (address.port(), Arc::clone(&context), Arc::clone(&context));
        let timer = spawn(format!("foresee-timer-{port}"), move || in_timer.run_timer())?;
        let accept = spawn(format!("foresee-accept-{port}"), move || in_listener.accept(listener))
            .inspect_err(|_| context.timer.close())?;
        let threads = Mutex::new(vec![timer, accept]);
        Ok(Self { address, context, closer, threads })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// State and counters.
    pub fn stats(&self) -> ServerStats {
        let jobs = lock(&self.context.jobs);
        let mut stats = ServerStats { visits: *lock(&self.context.visits), ..ServerStats::default() };
        for (name, job) in &*jobs {
            stats.jobs.insert(name.clone(), job.ranks());
            stats.early_buffer_peak = stats.early_buffer_peak.max(job.early_buffer_peak());
        }
        drop(jobs);
        stats.interfaces = self.context.interfaces.stats();
        stats
    }

    /// Events of all jobs since the last call, if the options ask for a timeline, and how many more were dropped. Tensors
    /// have their ids in their plans.
    pub fn take_timeline(&self) -> (Vec<Event>, u64) {
        self.context.timeline.take()
    }

    /// End every job, each rank with a reason, and stop listening.
    pub fn close(&self) {
        self.closer.close();
        self.context.timer.close();
        for thread in lock(&self.threads).drain(..) {
            let _ = thread.join();
        }
        let jobs = std::mem::take(&mut *lock(&self.context.jobs));
        for job in jobs.into_values() {
            job.end(&job::stopped(), self.context.options.timeouts.handshake.into());
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

impl ServerContext {
    fn accept(self: Arc<Self>, mut listener: Listener) {
        loop {
            let arrival = match listener.accept(Wait::Forever) {
                Ok(Some(arrival)) => arrival,
                Err(WireError::Late { .. }) => continue,
                // It was closed, or failed; running jobs continue.
                Ok(None) | Err(_) => return,
            };
            *lock(&self.visits) = listener.counts();
            self.admit(arrival);
        }
    }

    /// Time since the start.
    pub(super) fn now(&self) -> Nanos {
        Nanos::from(self.start.elapsed())
    }

    /// Report passed time to jobs, until the timer is closed.
    fn run_timer(&self) {
        loop {
            let jobs: Vec<_> = lock(&self.jobs).values().cloned().collect();
            let next = jobs.iter().filter_map(|job| job.timeout()).min();
            let until = next.and_then(|next| self.start.checked_add(next.into()));
            drop(jobs);
            if !self.timer.wait(until) {
                return;
            }
            let (now, jobs): (_, Vec<_>) = (self.now(), lock(&self.jobs).values().cloned().collect());
            for job in jobs.iter().filter(|job| job.timeout().is_some_and(|timeout| timeout <= now)) {
                job.handle_timeout();
            }
        }
    }

    /// Admit an authenticated connection to its job, or refuse it.
    fn admit(self: &Arc<Self>, arrival: Arrival) {
        let hello = arrival.hello().clone();
        let refuse = |arrival: Arrival, code, text: String| {
            let wait = Wait::within(self.options.timeouts.handshake);
            let _ = arrival.refuse(Fault::new(code, text), wait);
        };
        let Ok(server) = u16::try_from(hello.target).map(ServerId) else {
            return refuse(arrival, FaultCode::Plan, format!("there is no server {}", hello.target));
        };
        if hello.purpose != Purpose::Gradients {
            return refuse(arrival, FaultCode::Protocol, "this is a server of gradients alone".into());
        }
        let job = {
            let mut jobs = lock(&self.jobs);
            jobs.retain(|_, job| !job.is_over());
            let full = jobs.len() >= self.options.jobs;
            match jobs.get(&hello.job) {
                Some(job) => Arc::clone(job),
                None if full => {
                    let text =
                        format!("{} jobs are served, and no more may be; start another server", jobs.len());
                    drop(jobs);
                    return refuse(arrival, FaultCode::Busy, text);
                }
                None => {
                    let job = Arc::new(Job::new(Arc::clone(self), server, &hello));
                    jobs.insert(hello.job.clone(), Arc::clone(&job));
                    job
                }
            }
        };
        let peer = match job.admit(&hello) {
            Ok(peer) => peer,
            Err(refusal) => {
                let fault = translate::fault(&refusal);
                return refuse(arrival, fault.code, fault.text);
            }
        };
        let wait = Wait::within(self.options.timeouts.handshake);
        let capabilities = hello.capabilities & CAN_RECONNECT;
        match arrival.welcome(Welcome { session: self.process, capabilities, ..Welcome::default() }, wait) {
            Ok(connection) if hello.role == Role::Control => job.control(peer, connection),
            Ok(connection) => job.data(peer, connection),
            Err(_) => job.handle_not_connected(peer),
        }
    }
}
