// SPDX-License-Identifier: Apache-2.0
//! Events of servers: messages and contributions received, and results sent.

use foresee_grad_queue::{Buffer, DiscardReason, Outcome, Sender, Verdict};
use foresee_grad_session::{JobAction, Peer, ServerJob, ServerMessage};
use foresee_units::Nanos;

use crate::network::{Pair, Pull};
use crate::world::World;

impl World {
    pub(crate) fn up(&mut self, rank: usize, server: usize) {
        let Some(pair) = &mut self.pairs[rank][server] else { return };
        let (peer, Some(message)) = (pair.peer, pair.up.pop_front()) else { return };
        if let Some(trace) = &mut self.trace {
            trace.push(format!("    {message:?}"));
        }
        self.report(server, |job, _| job.handle_message(peer, message));
    }

    /// A server reads how a rank closed its connections.
    pub(crate) fn goodbye(&mut self, rank: usize, server: usize) {
        let Some(pair) = self.pairs[rank][server].take() else { return };
        let closed = pair.goodbye.expect("the rank has closed");
        self.report(server, |job, now| job.handle_closed(pair.peer, closed, now));
    }

    pub(crate) fn judge(&mut self, rank: usize, server: usize) {
        let Some(pair) = &mut self.pairs[rank][server] else { return };
        let (peer, Some(push)) = (pair.peer, pair.pushes.front().cloned()) else { return };
        let node = &mut self.servers[server];
        let Some(slots) = &mut node.slots else {
            // A byzantine server sent it an invalid plan, and now declares it lost.
            assert!(self.byzantine.is_some(), "ranks send after they have agreed");
            self.culprits.ranks.insert(rank);
            pair.pushes.clear();
            self.report(server, |job, _| job.handle_lost(peer, "it sends PUSH before a plan was agreed on"));
            return;
        };
        let sender = Sender { rank: peer.rank, generation: push.generation, round: push.round };
        let bytes = push.payload.len() as u64;
        if push.generation < slots.members.generation() {
            // It may be of another plan.
            pair.pushes.pop_front();
            return;
        }
        let verdict = slots
            .at(peer.rank, push.packet)
            .and_then(|(slot, view)| slot.admit(&view, push.packet, sender, bytes));
        match verdict {
            Ok(Verdict::Read(admission)) => {
                pair.pushes.pop_front();
                pair.taking = Some((admission, push));
            }
            Ok(Verdict::Discard(why)) => {
                pair.pushes.pop_front();
                if why == DiscardReason::Answered {
                    let outcome = Outcome::Ignored(why);
                    node.offers.extend(slots.results(peer.rank, push.round, push.packet, outcome));
                }
            }
            Ok(Verdict::Hold) => pair.is_held = true,
            Err(why) => {
                self.report(server, |job, _| job.handle_violation(peer, &why.to_string()));
            }
        }
    }

    pub(crate) fn take(&mut self, rank: usize, server: usize) {
        let Some(pair) = &mut self.pairs[rank][server] else { return };
        let (peer, Some((admission, push))) = (pair.peer, pair.taking.take()) else { return };
        let node = &mut self.servers[server];
        let Some(slots) = &mut node.slots else { return };
        let current = slots.members.generation();
        if push.generation < current {
            return;
        }
        let taken = slots
            .at(peer.rank, push.packet)
            .and_then(|(slot, view)| slot.accept(&view, admission, &mut Buffer::from(&*push.payload)));
        let progress = match taken {
            Ok(progress) => progress,
            Err(why) => {
                self.report(server, |job, _| job.handle_violation(peer, &why.to_string()));
                return;
            }
        };
        node.offers.extend(slots.results(peer.rank, push.round, push.packet, progress.outcome));
        if progress.wake {
            self.wake(server);
        }
    }

    /// Held readers check again.
    pub(crate) fn wake(&mut self, server: usize) {
        for pair in self.pairs.iter_mut().filter_map(|pairs| pairs[server].as_mut()) {
            pair.is_held = false;
        }
    }

    pub(crate) fn send_result(&mut self, server: usize) {
        let offers = &mut self.servers[server].offers;
        let offer = offers.swap_remove(self.dice.below(offers.len()));
        let pair = self.pairs[offer.peer.rank.0 as usize][server].as_mut();
        if let Some(pair) = pair.filter(|pair| pair.peer == offer.peer && !pair.is_without_data) {
            let pull = Pull {
                generation: offer.generation,
                round: offer.round,
                packet: offer.packet,
                sum: offer.sum,
            };
            pair.pulls.push_back(pull);
        }
    }

    /// Report an event to a server's job, and perform its actions.
    pub(crate) fn report<R>(
        &mut self,
        server: usize,
        fact: impl FnOnce(&mut ServerJob, Nanos) -> R,
    ) -> Option<R> {
        let now = self.now;
        let result = fact(self.servers[server].job.as_mut()?, now);
        while let Some(action) = self.servers[server].job.as_mut().and_then(ServerJob::poll_action) {
            self.perform_server(server, action);
        }
        let node = &mut self.servers[server];
        if node.job.as_ref().is_some_and(ServerJob::is_over) {
            node.job = None;
        }
        Some(result)
    }

    pub(crate) fn pair_of(&mut self, server: usize, peer: Peer) -> Option<&mut Pair> {
        self.pairs[peer.rank.0 as usize][server].as_mut().filter(|pair| pair.peer == peer)
    }

    pub(crate) fn perform_server(&mut self, server: usize, action: JobAction) {
        match action {
            JobAction::Send { peer, message } => {
                if let ServerMessage::Waiting(text) = &message {
                    self.check_wait(server, text);
                }
                if let Some(pair) = self.pair_of(server, peer) {
                    pair.down.push_back(message);
                }
            }
            JobAction::Close { peer, reason } => self.close_pair(server, peer, reason),
            JobAction::Interrupt(peer) => {
                if self.pair_of(server, peer).is_some() {
                    self.break_pair(peer.rank.0 as usize, server);
                }
            }
            JobAction::Install(installation) => {
                self.memberships.insert(installation.members.iter().collect());
                let peers = self.pairs.iter().filter_map(|pairs| Some(pairs[server].as_ref()?.peer));
                let peers: Vec<Peer> = peers.collect();
                self.servers[server].install(installation, peers.into_iter());
                self.wake(server);
            }
            JobAction::Route(peer) => {
                if let Some(slots) = &mut self.servers[server].slots {
                    slots.routes.insert(peer.rank, peer);
                }
            }
            JobAction::Adopt(members) => {
                self.memberships.insert(members.iter().collect());
                if let Some(slots) = &mut self.servers[server].slots {
                    slots.adopt(members);
                }
                self.wake(server);
            }
            JobAction::Advance { oldest, forget } => {
                if let Some(slots) = &mut self.servers[server].slots {
                    slots.advance(oldest, forget);
                }
                self.wake(server);
            }
            JobAction::Skip(ticket) => {
                let skipped = self.servers[server].skip(&ticket);
                self.wake(server);
                if let Some(job) = &mut self.servers[server].job {
                    match skipped {
                        Ok(()) => job.handle_skipped(&ticket),
                        Err(why) => job.handle_violation(ticket.peer, &why.to_string()),
                    }
                }
            }
            JobAction::FindMissing(ticket) => {
                let node = &mut self.servers[server];
                let owed = node.slots.as_ref().and_then(|slots| slots.owed(&ticket));
                if let Some(job) = &mut node.job {
                    job.handle_missing(&ticket, owed.as_deref());
                }
            }
            JobAction::Uninstall => self.servers[server].slots = None,
        }
    }
}
