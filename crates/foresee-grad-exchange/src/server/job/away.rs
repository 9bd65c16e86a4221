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
use std::time::Instant;

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
            if let Some(since) = seat.away {
                // Should there be no thread for it: it has just dialled.
                self.watch(rank, since, "it has dialled again");
            }
        }
        again && was_here
    }

    /// A data connection broke, `silence`: because nothing was acknowledged. The control connection of the same rank mostly
    /// knows better why, a moment later: it is heard first.
    pub(super) fn suspect(self: &Arc<Self>, rank: Rank, epoch: u32, why: &str, silence: bool) {
        {
            let mut inner = lock(&self.inner);
            let Some(seat) = inner.ranks.get_mut(&rank).filter(|seat| seat.epoch == epoch) else { return };
            seat.suspicion.get_or_insert_with(|| why.to_owned());
            seat.silences += u32::from(silence);
        }
        let (job, pause) = (Arc::clone(self), self.hall.options.timeouts.heartbeat);
        let later = move || {
            thread::sleep(pause.into());
            let hopeless = {
                let inner = lock(&job.inner);
                let Some(seat) = inner.ranks.get(&rank).filter(|seat| seat.epoch == epoch) else { return };
                if job.may_wait(&inner) && seat.may_come_again() {
                    // Whoever hears it acts on the end; so does the rank.
                    if let Some(control) = &seat.control {
                        control.link().shutdown();
                    }
                    return;
                }
                seat.suspicion.clone()
            };
            // Its control connection may be well, and is the one way to tell it why.
            if let Some(why) = hopeless {
                job.lose_if(rank, &why, |seat| seat.epoch == epoch);
            }
        };
        if thread::Builder::new().name("foresee-suspect".into()).spawn(later).is_err() {
            self.lose_if(rank, why, |seat| seat.epoch == epoch);
        }
    }

    /// A rank has got a round, so what is sent to it arrives.
    pub(super) fn heard_of_landing(&self, rank: Rank) {
        if let Some(seat) = lock(&self.inner).ranks.get_mut(&rank) {
            seat.silences = 0;
        }
    }

    /// Whether this is said of the connections that a rank has now.
    pub(super) fn is_current(&self, rank: Rank, epoch: u32) -> bool {
        lock(&self.inner).ranks.get(&rank).is_some_and(|seat| seat.epoch == epoch)
    }

    /// Whether anybody is waited for: not while another rank is just being lost.
    fn may_wait(&self, inner: &Inner) -> bool {
        !inner.is_changing() && !self.over.load(Ordering::Relaxed)
    }

    /// The connections of a rank broke: it is waited for if it says that it comes again, else it is lost.
    pub(super) fn break_off(self: &Arc<Self>, rank: Rank, epoch: u32, why: &str) {
        let (why, since, session) = {
            let mut inner = lock(&self.inner);
            let may_wait = self.may_wait(&inner);
            let session = inner.session.clone();
            let Some(seat) = inner.ranks.get_mut(&rank).filter(|seat| seat.epoch == epoch) else { return };
            let why = seat.suspicion.take().unwrap_or_else(|| why.to_owned());
            let waits = may_wait && seat.may_come_again();
            if waits {
                seat.part();
            }
            (why, seat.away.filter(|_| waits), session)
        };
        if !since.is_some_and(|since| self.watch(rank, since, &why)) {
            self.lose_if(rank, &why, |seat| seat.epoch == epoch);
        }
        if let Some(session) = session {
            // A reader of it may wait for room.
            session.wake();
        }
    }

    /// Sees to it that a rank that went at a moment, for a reason, is lost unless it comes in time; false if there is no
    /// thread for that.
    fn watch(self: &Arc<Self>, rank: Rank, since: Instant, why: &str) -> bool {
        let (job, patience) = (Arc::clone(self), self.hall.options.timeouts.reconnect);
        let why = format!("{why}; it did not come again within {patience}");
        let later = move || {
            thread::sleep(patience.into());
            job.lose_if(rank, &why, |seat| seat.away == Some(since));
        };
        thread::Builder::new().name("foresee-away".into()).spawn(later).is_ok()
    }

    /// A rank says what it knows: it was away, or comes from a lost server. `epoch`: by which of its connections.
    pub(super) fn hear_resume(self: &Arc<Self>, rank: Rank, epoch: u32, known: Resume) -> Result<(), Fault> {
        {
            let mut inner = lock(&self.inner);
            let Some(seat) = inner.ranks.get_mut(&rank).filter(|seat| seat.epoch == epoch) else {
                return Ok(());
            };
            if seat.away.is_none() {
                drop(inner);
                return self.resume(rank, known);
            }
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
                inner.note(self, rank, known)?;
                true
            };
            (back, epoch, proposed)
        };
        self.restore()?;
        if !back {
            let why = "its connection broke while another rank was lost";
            self.lose_if(rank, why, |seat| seat.epoch == epoch);
        } else if let Some(body) = proposed {
            self.propose(rank, epoch, body)?;
        }
        Ok(())
    }
}

impl Inner {
    /// Forgets a process of a rank that is away, if it is another one than this.
    pub(super) fn forget_other(&mut self, rank: Rank, process: u64) {
        if self.ranks.get(&rank).is_some_and(|seat| seat.process != process && seat.away.is_some()) {
            self.ranks.remove(&rank);
            self.proposals.remove(&rank);
            self.resumes.remove(&rank);
        }
    }

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
            seat.away = None;
            seat.answered = true;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}
