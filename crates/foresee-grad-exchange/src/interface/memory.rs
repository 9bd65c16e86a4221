// SPDX-License-Identifier: Apache-2.0
//! Packets between a rank and a server of one process: handed over in memory, in the scheduler's order.
//!
//! Through a socket they would cost as much processor time as those for another machine, and wait behind others for the thread
//! that writes. Here the receiving thread takes the next packet when it is ready for one: nothing is under way, so no window
//! is needed, and an urgent packet waits for no other.
//!
//! Offering never waits. What was not taken yet stays a description of about 100 bytes; its payload stays where it is.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use foresee_grad_queue::{Class, Connection, Flow, Lane, Offer, Round, Rules, Schedule, Ticket, Window};
use foresee_units::{Bytes, Nanos};
use foresee_wire::{FrameReceiver, Header, Wait, WireError};

use super::{InterfaceStats, Parcel};

/// The only connection of a direction.
pub(super) const CONNECTION: Connection = Connection::new(0);

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The one that dialled: a rank.
    Dialler,
    /// The one that listened: a server.
    Listener,
}

/// Both directions of a connection. It is closed as a whole.
#[derive(Debug)]
pub(super) struct MemoryPair {
    from_dialler: Direction,
    from_listener: Direction,
}

#[derive(Debug)]
struct Direction {
    queue: Mutex<Queue>,
    /// There may be a packet to take, or the end.
    changed: Condvar,
}

struct Queue {
    schedule: Schedule,
    parcels: BTreeMap<Ticket, Arc<dyn Parcel>>,
    offers: u64,
    is_closed: bool,
    taken: InterfaceStats,
}

impl MemoryPair {
    /// Nothing offered yet. `rules`: what the scheduler of each direction obeys; `packet`: bytes of an ordinary packet.
    pub(super) fn new(rules: Rules, packet: NonZeroU32) -> Self {
        Self { from_dialler: Direction::new(rules, packet), from_listener: Direction::new(rules, packet) }
    }

    fn from(&self, side: Side) -> &Direction {
        match side {
            Side::Dialler => &self.from_dialler,
            Side::Listener => &self.from_listener,
        }
    }

    fn to(&self, side: Side) -> &Direction {
        match side {
            Side::Dialler => &self.from_listener,
            Side::Listener => &self.from_dialler,
        }
    }

    /// What was handed over, in both directions.
    pub(super) fn stats(&self) -> InterfaceStats {
        let (one, other) = (self.from_dialler.lock().taken, self.from_listener.lock().taken);
        InterfaceStats {
            sent: one.sent + other.sent,
            packets: one.packets + other.packets,
            is_local: true,
            ..InterfaceStats::default()
        }
    }
}

impl Direction {
    fn new(rules: Rules, packet: NonZeroU32) -> Self {
        let mut schedule = Schedule::new(Rules { window: Window::None, ..rules }, packet);
        schedule.handle_open(CONNECTION).expect("it is the first");
        let (parcels, taken) = (BTreeMap::new(), InterfaceStats::default());
        let queue = Queue { schedule, parcels, offers: 0, is_closed: false, taken };
        Self { queue: Mutex::new(queue), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next packet in order, once there is one; `None` at the end.
    fn take(&self) -> Option<(Arc<dyn Parcel>, u32)> {
        let mut queue = self.lock();
        loop {
            if queue.is_closed {
                return None;
            }
            if let Some(packet) = queue.poll() {
                return Some(packet);
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn close(&self) {
        let mut queue = self.lock();
        queue.is_closed = true;
        let parcels = std::mem::take(&mut queue.parcels);
        drop(queue);
        self.changed.notify_all();
        // They own memory of others, whose destructors may take locks.
        drop(parcels);
    }
}

impl Queue {
    fn poll(&mut self) -> Option<(Arc<dyn Parcel>, u32)> {
        // Nobody asks how long an offer has waited.
        let grant = self.schedule.poll_send(Nanos::ZERO)?;
        let parcel = if grant.last {
            self.parcels.remove(&grant.ticket)
        } else {
            self.parcels.get(&grant.ticket).cloned()
        };
        self.taken.packets += 1;
        self.taken.sent += Bytes::new(grant.bytes.into());
        Some((parcel.expect("a ticket is in use until its last packet"), grant.packet))
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("parcels", &self.parcels.len()).finish_non_exhaustive()
    }
}

/// The sending half of one end.
#[derive(Debug)]
pub(crate) struct MemoryEnd {
    pair: Arc<MemoryPair>,
    side: Side,
}

impl MemoryEnd {
    pub(super) fn new(pair: Arc<MemoryPair>, side: Side) -> Self {
        Self { pair, side }
    }

    /// An ordinary packet has so many bytes from now on.
    pub(super) fn packet(&self, bytes: NonZeroU32) {
        self.pair.from(self.side).lock().schedule.handle_packet(bytes);
    }

    /// There is something to hand over. Never waits.
    pub(super) fn offer(
        &self,
        flow: Flow,
        (round, class): (Round, Class),
        lanes: &[Lane],
        parcel: Arc<dyn Parcel>,
    ) {
        let direction = self.pair.from(self.side);
        let mut queue = direction.lock();
        if queue.is_closed {
            return;
        }
        let ticket = Ticket::new(queue.offers);
        queue.offers += 1;
        let offer = Offer { ticket, flow, round, class, lanes };
        queue
            .schedule
            .handle_offer(&offer, Nanos::ZERO)
            .expect("lanes are those of a plan, tickets are counted");
        queue.parcels.insert(ticket, parcel);
        drop(queue);
        direction.changed.notify_one();
    }

    /// The other end's application has dealt with `bytes`: frees credit.
    pub(super) fn acked(&self, bytes: Bytes) {
        let direction = self.pair.from(self.side);
        // More than is outstanding comes from a peer that is wrong; credit is not money.
        let _ = direction.lock().schedule.handle_acked(CONNECTION, bytes);
        direction.changed.notify_one();
    }

    /// Ends both directions: receivers see the end, and what was not taken is dropped.
    pub(super) fn close(&self) {
        self.pair.from_dialler.close();
        self.pair.from_listener.close();
    }

    pub(super) fn stats(&self) -> InterfaceStats {
        self.pair.stats()
    }
}

/// The receiving half of one end.
pub(crate) struct MemoryReceiver {
    pair: Arc<MemoryPair>,
    side: Side,
    /// The packet whose header was given, until its payload is.
    packet: Option<(Arc<dyn Parcel>, u32)>,
    /// For payloads that are made when they are taken.
    room: Vec<u8>,
}

impl MemoryReceiver {
    pub(super) fn new(pair: Arc<MemoryPair>, side: Side) -> Self {
        Self { pair, side, packet: None, room: Vec::new() }
    }

    fn header(&mut self) -> Option<Header> {
        self.packet = None;
        let (parcel, packet) = self.pair.to(self.side).take()?;
        parcel.leaves(CONNECTION, packet);
        let header = parcel.header(CONNECTION, packet);
        self.packet = Some((parcel, packet));
        Some(header)
    }

    fn payload(&mut self, into: &mut [u8]) {
        let (parcel, packet) = self.packet.take().expect("a header comes first");
        into.copy_from_slice(parcel.payload(CONNECTION, packet, &mut self.room));
    }
}

/// What arrives at one end of a data connection.
pub(crate) enum PacketReceiver {
    /// From another process.
    Network(FrameReceiver),
    /// From this one.
    Memory(MemoryReceiver),
}

impl PacketReceiver {
    /// The header of the next packet; `None` at the end. Waits.
    ///
    /// # Errors
    /// As [`FrameReceiver::header`].
    pub(crate) fn header(&mut self) -> Result<Option<Header>, WireError> {
        match self {
            Self::Network(receiver) => receiver.header(Wait::Forever),
            Self::Memory(receiver) => Ok(receiver.header()),
        }
    }

    /// The payload behind a header, into memory of its length. Waits.
    ///
    /// # Errors
    /// As [`FrameReceiver::payload`].
    pub(crate) fn payload(&mut self, into: &mut [u8]) -> Result<(), WireError> {
        match self {
            Self::Network(receiver) => receiver.payload(into, Wait::Forever),
            Self::Memory(receiver) => {
                receiver.payload(into);
                Ok(())
            }
        }
    }

    /// Passes over the payload behind a header. Waits.
    ///
    /// # Errors
    /// As [`FrameReceiver::discard`].
    pub(crate) fn discard(&mut self) -> Result<(), WireError> {
        match self {
            Self::Network(receiver) => receiver.discard(Wait::Forever),
            Self::Memory(receiver) => {
                receiver.packet = None;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use foresee_wire::Kind;

    use super::*;

    const PACKET: NonZeroU32 = NonZeroU32::new(4).expect("not 0");

    /// Packets of four equal bytes, which lie in it or are made.
    struct Bytes4 {
        bytes: Vec<u8>,
        is_made: bool,
    }

    impl Parcel for Bytes4 {
        fn header(&self, _: Connection, packet: u32) -> Header {
            Header {
                kind: Kind::Push,
                dtype: None,
                generation: 0,
                round: 0,
                tensor: 0,
                packet,
                length: 4,
                class: 0,
                contributors: 0,
                checksum: None,
            }
        }

        fn payload<'a>(&'a self, _: Connection, packet: u32, room: &'a mut Vec<u8>) -> &'a [u8] {
            let at = packet as usize * 4;
            if !self.is_made {
                return &self.bytes[at..at + 4];
            }
            *room = self.bytes[at..at + 4].to_vec();
            room
        }
    }

    struct Ends {
        rank: MemoryEnd,
        server: MemoryEnd,
        at_server: MemoryReceiver,
        at_rank: MemoryReceiver,
    }

    fn ends(rules: Rules) -> Ends {
        let pair = Arc::new(MemoryPair::new(rules, PACKET));
        Ends {
            rank: MemoryEnd::new(Arc::clone(&pair), Side::Dialler),
            server: MemoryEnd::new(Arc::clone(&pair), Side::Listener),
            at_server: MemoryReceiver::new(Arc::clone(&pair), Side::Listener),
            at_rank: MemoryReceiver::new(pair, Side::Dialler),
        }
    }

    /// Two packets of `value`.
    fn offer(end: &MemoryEnd, (round, class): (u64, u8), value: u8, is_made: bool) -> Arc<Bytes4> {
        let parcel = Arc::new(Bytes4 { bytes: vec![value; 8], is_made });
        let lanes = [Lane::new(CONNECTION, 2, 4, 4)];
        end.offer(
            Flow::new(0),
            (Round(round), Class::new(class)),
            &lanes,
            Arc::clone(&parcel) as Arc<dyn Parcel>,
        );
        parcel
    }

    fn take(receiver: &mut MemoryReceiver) -> u8 {
        receiver.header().expect("something was offered");
        let mut bytes = [0; 4];
        receiver.payload(&mut bytes);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:?}");
        bytes[0]
    }

    #[test]
    fn each_packet_is_taken_once_in_the_scheduler_s_order_whatever_was_begun_before() {
        let mut ends = ends(Rules::new());
        offer(&ends.rank, (1, 0), 1, false);
        offer(&ends.rank, (0, 9), 2, true);
        assert_eq!(take(&mut ends.at_server), 2, "the earlier round");
        offer(&ends.rank, (0, 0), 3, false);
        offer(&ends.server, (0, 0), 9, true);
        let rest: Vec<u8> = (0..5).map(|_| take(&mut ends.at_server)).collect();
        assert_eq!(rest, [3, 3, 2, 1, 1], "the lower class of that round");
        assert_eq!((take(&mut ends.at_rank), take(&mut ends.at_rank)), (9, 9));
        let stats = ends.rank.stats();
        assert_eq!((stats.packets, stats.sent, stats.is_local), (8, Bytes::new(32), true));
    }

    #[test]
    fn an_offer_is_let_go_of_with_its_last_packet() {
        let mut ends = ends(Rules::new());
        let parcel = offer(&ends.rank, (0, 0), 1, false);
        take(&mut ends.at_server);
        assert_eq!(Arc::strong_count(&parcel), 2);
        take(&mut ends.at_server);
        assert_eq!(Arc::strong_count(&parcel), 1);
    }

    #[test]
    fn an_end_that_closes_ends_both_directions_and_drops_what_was_not_taken() {
        let mut ends = ends(Rules::new());
        let parcel = offer(&ends.rank, (0, 0), 1, false);
        take(&mut ends.at_server);
        ends.server.close();
        assert_eq!(Arc::strong_count(&parcel), 1);
        offer(&ends.rank, (0, 0), 2, false);
        assert!(ends.at_server.header().is_none() && ends.at_rank.header().is_none());
    }

    #[test]
    fn credit_bounds_what_was_taken_and_not_acknowledged() {
        let mut ends = ends(Rules { credit: std::num::NonZeroU64::new(4), ..Rules::new() });
        offer(&ends.rank, (0, 0), 1, false);
        take(&mut ends.at_server);
        assert!(ends.at_server.pair.from_dialler.lock().poll().is_none());
        ends.rank.acked(Bytes::new(4));
        assert_eq!(take(&mut ends.at_server), 1);
    }
}
