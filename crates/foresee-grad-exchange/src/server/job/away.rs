// SPDX-License-Identifier: Apache-2.0
//! A rank whose connection broke, while it may come again: its place is kept, and what it may have missed is told again.
//!
//! ```text
//! broken ──> away ──> the same process dials again ──> RESUME ──> RESUMED, and what rounds used ──> it goes on
//!              └────> nobody within three signs of life ──> lost
//! ```
//!
//! Which of the two it will be nobody can tell at first: a process that dies breaks its connections, too. Nothing of the
//! membership changes meanwhile. Its sums wait in their slots, and are sent again for whatever it pushes or ends again.
//!
//! Refuses where another rank is just being lost: who has heard what is settled without this one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use foresee_grad_queue::Round;
use foresee_units::Rank;
use foresee_wire::{Fault, FaultCode, Hello, Message, Plan, Resume, Resumed, Role, Used};

use super::seat::Seat;
use super::survive::Decision;
use super::{Inner, Job};
use crate::server::session::{Session, lock};

impl Job {
    /// Whether a rank that dials is one that was here: it has given its other connections up, which this end may not have
    /// noticed yet.
    pub(super) fn welcomes_again(self: &Arc<Self>, rank: Rank, seat: &mut Seat, hello: &Hello) -> bool {
        let again = seat.comes_again && seat.process == hello.session && hello.role == Role::Control;
        let was_here = seat.control.is_some() || seat.away.is_some();
        if again && was_here {
            seat.expect_again();
            self.watch(rank, seat.epoch);
        }
        again && was_here
    }

    /// A data connection broke. The control connection of the same rank mostly knows better why, a moment later: it is
    /// heard first.
    pub(super) fn suspect(self: &Arc<Self>, rank: Rank, epoch: u32, why: &str) {
        {
            let mut inner = lock(&self.inner);
            let Some(seat) = inner.ranks.get_mut(&rank).filter(|seat| seat.epoch == epoch) else { return };
            seat.suspicion.get_or_insert_with(|| why.to_owned());
        }
        let (job, pause) = (Arc::clone(self), self.hall.options.timeouts.heartbeat);
        let later = move || {
            thread::sleep(pause.into());
            let inner = lock(&job.inner);
            let seat = inner.ranks.get(&rank).filter(|seat| seat.epoch == epoch);
            // Whoever hears it acts on the end; so does the rank.
            if let Some(control) = seat.and_then(|seat| seat.control.as_ref()) {
                control.link().shutdown();
            }
        };
        if thread::Builder::new().name("foresee-suspect".into()).spawn(later).is_err() {
            self.lose(rank, why);
        }
    }

    /// Whether this is said of the connections that a rank has now.
    pub(super) fn is_current(&self, rank: Rank, epoch: u32) -> bool {
        lock(&self.inner).ranks.get(&rank).is_some_and(|seat| seat.epoch == epoch)
    }

    /// The connections of a rank broke: it is waited for if it says that it comes again, else it is lost.
    pub(super) fn break_off(self: &Arc<Self>, rank: Rank, epoch: u32, why: &str) {
        let (why, session) = {
            let mut inner = lock(&self.inner);
            let waits = !inner.is_changing();
            let session = inner.session.clone();
            let Some(seat) = inner.ranks.get_mut(&rank).filter(|seat| seat.epoch == epoch) else { return };
            let why = seat.suspicion.take().unwrap_or_else(|| why.to_owned());
            if seat.comes_again && seat.was_whole() && waits && !self.over.load(Ordering::Relaxed) {
                seat.part(why.clone());
                (None, session)
            } else {
                (Some(why), None)
            }
        };
        match why {
            Some(why) => self.lose(rank, &why),
            None => self.watch(rank, epoch),
        }
        if let Some(session) = session {
            // A reader of it may wait for room.
            session.wake();
        }
    }

    /// Sees to it that a rank that is away is lost unless it comes in time.
    fn watch(self: &Arc<Self>, rank: Rank, epoch: u32) {
        let (job, patience) = (Arc::clone(self), self.hall.options.timeouts.reconnect);
        let later = move || {
            thread::sleep(patience.into());
            let why = {
                let inner = lock(&job.inner);
                let seat = inner.ranks.get(&rank).filter(|seat| seat.epoch == epoch);
                seat.and_then(|seat| seat.away.clone())
            };
            if let Some(why) = why {
                job.lose(rank, &format!("{why}; it did not come again within {patience}"));
            }
        };
        // Without a thread to watch, it is waited for until it comes or the job ends; the system is about to end more.
        let _ = thread::Builder::new().name("foresee-away".into()).spawn(later);
    }

    /// A rank says what it knows: it was away, or comes from a lost server.
    pub(super) fn hear_resume(self: &Arc<Self>, rank: Rank, known: Resume) -> Result<(), Fault> {
        {
            let mut inner = lock(&self.inner);
            let away = inner.ranks.get_mut(&rank).filter(|seat| seat.away.is_some());
            let Some(seat) = away else {
                drop(inner);
                return self.resume(rank, known);
            };
            seat.known = Some(known);
        }
        self.rejoin(rank)
    }

    /// Once both connections of a rank that was away are here and it has said what it knows, it goes on.
    pub(super) fn rejoin(self: &Arc<Self>, rank: Rank) -> Result<(), Fault> {
        let (back, epoch, proposed) = {
            let mut inner = lock(&self.inner);
            let session = inner.session.clone();
            let Some(seat) = inner.ranks.get_mut(&rank).filter(|seat| seat.away.is_some()) else {
                return Ok(());
            };
            if seat.control.is_none() || seat.way.is_none() {
                return Ok(());
            }
            let Some(known) = seat.known.take() else { return Ok(()) };
            let (epoch, proposed) = (seat.epoch, seat.proposed.take());
            let back = if let Some(session) = session {
                inner.take_back(rank, &known, &session)?
            } else {
                // What holds is found with the others.
                seat.away = None;
                drop(inner);
                self.resume(rank, known)?;
                true
            };
            (back, epoch, proposed)
        };
        if !back {
            self.lose(rank, "its connection broke while another rank was lost");
        } else if let Some(body) = proposed {
            self.propose(rank, epoch, body)?;
        }
        Ok(())
    }
}

impl Inner {
    /// Whether ranks say what they know, since one is lost.
    fn is_changing(&self) -> bool {
        self.decision.as_ref().is_some_and(Decision::is_open)
    }

    /// Tells a rank what it may have missed; false if it does not know of a membership, or this server does not.
    fn take_back(&mut self, rank: Rank, known: &Resume, session: &Session) -> Result<bool, Fault> {
        let changing = self.is_changing();
        let generation = session.members().generation();
        let Some(seat) = self.ranks.get_mut(&rank).filter(|_| !changing) else { return Ok(false) };
        let (Some(control), Some(way)) = (&seat.control, &seat.way) else { return Ok(false) };
        if known.generation == generation {
            session.reach(way);
            let (missed, told) = session.catch_up(rank, Round(known.oldest)).map_err(|why| Fault {
                rank: Some(rank.0),
                ..Fault::new(FaultCode::Protocol, why.to_string())
            })?;
            let oldest = missed.oldest.0;
            control.tell(Message::Resumed(Resumed { generation, oldest, knows: true }));
            for (round, used) in &missed.used {
                control.tell(Message::Used(Used { round: round.0, used: used.to_bytes() }));
            }
            seat.generation = generation;
            // Of a round that is done everywhere the rank says no more that it has ended it.
            seat.next = seat.next.max(missed.oldest);
            seat.away = None;
            self.announce(told);
        } else if known.generation < generation && generation == session.first_generation() {
            // It proposed what the others are under, and was not here for the answer; it may just be proposing it again.
            session.reach(way);
            control.tell(Message::Plan(Plan { generation, body: session.plan.encode() }));
            seat.answered = true;
            seat.away = None;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}
