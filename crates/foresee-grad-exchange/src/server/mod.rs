// SPDX-License-Identifier: Apache-2.0
//! A server of gradients: admits ranks, separates their jobs, ends with its handle.
//!
//! It needs no model and no optimizer, and knows a job from its ranks' HELLO alone. Its memory per job is bounded: two
//! slots for each packet that it sums, and the early buffer. Peers without the secret, and ranks that do not fit a
//! running job, are refused.

mod job;
mod session;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
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
use crate::timeline::{Event, Timeline};
use crate::timer::Timer;
use crate::translate;
use job::Job;
use session::lock;

/// A server, until it is dropped or closed.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    hall: Arc<Hall>,
    closer: Closer,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What is common to all jobs.
#[derive(Debug)]
pub(super) struct Hall {
    pub(super) options: ServerOptions,
    /// Drawn at start.
    process: u64,
    jobs: Mutex<BTreeMap<String, Arc<Job>>>,
    pub(super) interfaces: Interfaces,
    visits: Mutex<ConnectionCounts>,
    pub(super) timeline: Timeline,
    /// Time is counted from here.
    start: Instant,
    timer: Timer,
}

/// What a server does now.
#[derive(Clone, Debug, Default)]
pub struct ServerStats {
    /// Jobs, each with its ranks that are connected, or may come again.
    pub jobs: BTreeMap<String, u32>,
    /// Connections so far.
    pub visits: ConnectionCounts,
    /// The most that any job had parked.
    pub parked_peak: Bytes,
    /// Of each interface.
    pub interfaces: Vec<InterfaceStats>,
}

impl Server {
    /// Listens, and serves in threads.
    ///
    /// # Errors
    /// [`ExchangeError::System`]: the port is in use, or the address not of this machine.
    pub fn start(options: ServerOptions) -> Result<Self, ExchangeError> {
        let system = |why| ExchangeError::System(Arc::new(why));
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
        let listener = Listener::bind(options.bind, keys, listen).map_err(system)?;
        let (address, closer) = (listener.address(), listener.closer());
        let timeline = Timeline::new(options.timeline);
        // What packets are ordinary is known with the first plan.
        let own = || Interfaces::new(options.policy.pull(), PACKET_BYTES_MIN);
        let interfaces = options.interfaces.clone().unwrap_or_else(own);
        let (jobs, visits) = (Mutex::default(), Mutex::default());
        let process = draw_session().map_err(system)?;
        interfaces.enter(process);
        let (start, timer) = (Instant::now(), Timer::default());
        let hall = Arc::new(Hall { options, process, jobs, interfaces, visits, timeline, start, timer });
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let named = thread::Builder::new().name(format!("foresee-{name}-{}", address.port()));
            named.spawn(work).map_err(|why| system(WireError::System { doing: "starting a thread", why }))
        };
        let inside = Arc::clone(&hall);
        let timers = spawn("timer", Box::new(move || inside.run_timers()))?;
        let inside = Arc::clone(&hall);
        let serves =
            spawn("serve", Box::new(move || inside.receive(listener))).inspect_err(|_| hall.timer.close())?;
        let threads = Mutex::new(vec![timers, serves]);
        Ok(Self { address, hall, closer, threads })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it does now.
    pub fn stats(&self) -> ServerStats {
        let jobs = lock(&self.hall.jobs);
        let mut stats = ServerStats { visits: *lock(&self.hall.visits), ..ServerStats::default() };
        for (name, job) in &*jobs {
            stats.jobs.insert(name.clone(), job.ranks());
            stats.parked_peak = stats.parked_peak.max(job.parked_peak());
        }
        drop(jobs);
        stats.interfaces = self.hall.interfaces.stats();
        stats
    }

    /// What happened since the last call, where the options ask for a timeline; and how many events more, for which there
    /// was no room. Events of all jobs, whose tensors have their numbers in their plans.
    pub fn take_timeline(&self) -> (Vec<Event>, u64) {
        self.hall.timeline.take()
    }

    /// Ends every job, each rank with a reason, and listens no more.
    pub fn close(&self) {
        self.closer.close();
        self.hall.timer.close();
        for thread in lock(&self.threads).drain(..) {
            let _ = thread.join();
        }
        let jobs = std::mem::take(&mut *lock(&self.hall.jobs));
        for job in jobs.into_values() {
            job.end(&job::stopped(), self.hall.options.timeouts.handshake.into());
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

impl Hall {
    fn receive(self: Arc<Self>, mut listener: Listener) {
        loop {
            let arrival = match listener.accept(Wait::Forever) {
                Ok(Some(arrival)) => arrival,
                Err(WireError::Late { .. }) => continue,
                // It was closed, or can listen no more; jobs that run go on.
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

    /// Reports to each job when its time has come, until the timer is closed.
    fn run_timers(&self) {
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

    /// Takes a proved connection into its job, or says why not.
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
