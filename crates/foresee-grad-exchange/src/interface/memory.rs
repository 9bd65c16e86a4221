// SPDX-License-Identifier: Apache-2.0
//! Packets between a rank and a server of one process: passed in memory, in the scheduler's order.
//!
//! Through a socket they would cost as much processor time as those for another host, and wait behind others for the
//! sending thread. Here the receiving thread takes the next packet when it is ready: nothing is in flight, so no window
//! is needed, and an urgent packet waits for no other. An offer never waits and takes about 100 bytes; its payload stays
//! in its own memory.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use foresee_grad_queue::{
    Class, Connection, Flow, Offer, PacketStream, Round, Rules, Schedule, Ticket, Window,
};
use foresee_units::{Bytes, Nanos};
use foresee_wire::{FrameReceiver, Header, Wait, WireError};

use super::{InterfaceStats, PacketSource};
use crate::sync::{lock, wait};

/// The only connection of a direction.
pub(super) const CONNECTION: Connection = Connection::new(0);

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// A rank, which dialled.
    Dialler,
    /// A server, which listened.
    Listener,
}

/// Both directions of a connection, by their sending side. They close together.
#[derive(Debug)]
pub(super) struct MemoryPair([Direction; 2]);

#[derive(Debug)]
struct Direction {
    queue: Mutex<Queue>,
    /// Notified when there may be a packet, or the end.
    changed: Condvar,
}

struct Queue {
    schedule: Schedule,
    sources: BTreeMap<Ticket, Arc<dyn PacketSource>>,
    offers: u64,
    is_closed: bool,
    stats: InterfaceStats,
}

impl MemoryPair {
    /// `rules`: of each direction's scheduler; `packet`: bytes of an ordinary packet.
    pub(super) fn new(rules: Rules, packet: NonZeroU32) -> Self {
        Self([Direction::new(rules, packet), Direction::new(rules, packet)])
    }

    fn from(&self, side: Side) -> &Direction {
        &self.0[side as usize]
    }

    fn to(&self, side: Side) -> &Direction {
        &self.0[1 - side as usize]
    }

    /// Counters of both directions.
    pub(super) fn stats(&self) -> InterfaceStats {
        let [one, other] = self.0.each_ref().map(|direction| direction.lock().stats);
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
        let (sources, stats) = (BTreeMap::new(), InterfaceStats::default());
        let queue = Queue { schedule, sources, offers: 0, is_closed: false, stats };
        Self { queue: Mutex::new(queue), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    /// Wait for the next packet in order; `None` at the end.
    fn take(&self) -> Option<(Arc<dyn PacketSource>, u32)> {
        let mut queue = self.lock();
        loop {
            if queue.is_closed {
                return None;
            }
            if let Some(packet) = queue.poll() {
                return Some(packet);
            }
            queue = wait(&self.changed, queue);
        }
    }

    fn close(&self) {
        let mut queue = self.lock();
        queue.is_closed = true;
        let sources = std::mem::take(&mut queue.sources);
        drop(queue);
        self.changed.notify_all();
        // Without the lock: destructors of the memory that they own may take locks.
        drop(sources);
    }
}

impl Queue {
    fn poll(&mut self) -> Option<(Arc<dyn PacketSource>, u32)> {
        // The time matters only for waiting times, which are not measured here.
        let grant = self.schedule.poll_send(Nanos::ZERO)?;
        let source = if grant.last {
            self.sources.remove(&grant.ticket)
        } else {
            self.sources.get(&grant.ticket).cloned()
        };
        self.stats.packets += 1;
        self.stats.sent += Bytes::new(grant.bytes.into());
        Some((source.expect("a ticket is in use until its last packet"), grant.packet))
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("sources", &self.sources.len()).finish_non_exhaustive()
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

    /// Set the bytes of an ordinary packet.
    pub(super) fn set_packet_bytes(&self, bytes: NonZeroU32) {
        self.pair.from(self.side).lock().schedule.handle_packet(bytes);
    }

    /// Offer packets. Never waits.
    pub(super) fn offer(
        &self,
        flow: Flow,
        (round, class): (Round, Class),
        streams: &[PacketStream],
        source: Arc<dyn PacketSource>,
    ) {
        let direction = self.pair.from(self.side);
        let mut queue = direction.lock();
        if queue.is_closed {
            return;
        }
        let ticket = Ticket::new(queue.offers);
        queue.offers += 1;
        let offer = Offer { ticket, flow, round, class, streams };
        queue
            .schedule
            .handle_offer(&offer, Nanos::ZERO)
            .expect("streams are those of a plan, tickets are counted");
        queue.sources.insert(ticket, source);
        drop(queue);
        direction.changed.notify_one();
    }

    /// The peer's application acknowledged `bytes`, which frees credit.
    pub(super) fn acknowledge(&self, bytes: Bytes) {
        let direction = self.pair.from(self.side);
        // A faulty peer may acknowledge more than is outstanding, which gives it no extra credit.
        let _ = direction.lock().schedule.handle_acked(CONNECTION, bytes);
        direction.changed.notify_one();
    }

    /// End both directions: receivers see the end, and pending packets are dropped.
    pub(super) fn close(&self) {
        self.pair.0.iter().for_each(Direction::close);
    }

    pub(super) fn stats(&self) -> InterfaceStats {
        self.pair.stats()
    }
}

/// The receiving half of one end.
pub(crate) struct MemoryReceiver {
    pair: Arc<MemoryPair>,
    side: Side,
    /// The packet whose header was returned, until its payload is.
    packet: Option<(Arc<dyn PacketSource>, u32)>,
    scratch: Vec<u8>,
}

impl MemoryReceiver {
    pub(super) fn new(pair: Arc<MemoryPair>, side: Side) -> Self {
        Self { pair, side, packet: None, scratch: Vec::new() }
    }

    fn header(&mut self) -> Option<Header> {
        self.packet = None;
        let (source, packet) = self.pair.to(self.side).take()?;
        source.on_send(CONNECTION, packet);
        let header = source.header(CONNECTION, packet);
        self.packet = Some((source, packet));
        Some(header)
    }

    fn payload(&mut self, into: &mut [u8]) {
        let (source, packet) = self.packet.take().expect("a header comes first");
        into.copy_from_slice(source.payload(CONNECTION, packet, &mut self.scratch));
    }
}

/// Receiver of the packets at one end of a data connection.
pub(crate) enum PacketReceiver {
    /// From another process.
    Network(FrameReceiver),
    /// From this one.
    Memory(MemoryReceiver),
}

impl PacketReceiver {
    /// Wait for the header of the next packet; `None` at the end.
    ///
    /// # Errors
    /// As [`FrameReceiver::header`].
    pub(crate) fn header(&mut self) -> Result<Option<Header>, WireError> {
        match self {
            Self::Network(receiver) => receiver.header(Wait::Forever),
            Self::Memory(receiver) => Ok(receiver.header()),
        }
    }

    /// Wait for the payload of a header, and read it into memory of its length.
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

    /// Wait for the payload of a header, and discard it.
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

    /// Packets of four equal bytes, stored or computed.
    struct Bytes4 {
        bytes: Vec<u8>,
        is_computed: bool,
    }

    impl PacketSource for Bytes4 {
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

        fn payload<'a>(&'a self, _: Connection, packet: u32, scratch: &'a mut Vec<u8>) -> &'a [u8] {
            let at = packet as usize * 4;
            if !self.is_computed {
                return &self.bytes[at..at + 4];
            }
            *scratch = self.bytes[at..at + 4].to_vec();
            scratch
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
    fn offer(end: &MemoryEnd, (round, class): (u64, u8), value: u8, is_computed: bool) -> Arc<Bytes4> {
        let source = Arc::new(Bytes4 { bytes: vec![value; 8], is_computed });
        let streams = [PacketStream::new(CONNECTION, 2, 4, 4)];
        end.offer(
            Flow::new(0),
            (Round(round), Class::new(class)),
            &streams,
            Arc::clone(&source) as Arc<dyn PacketSource>,
        );
        source
    }

    fn take(receiver: &mut MemoryReceiver) -> u8 {
        receiver.header().expect("something was offered");
        let mut bytes = [0; 4];
        receiver.payload(&mut bytes);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:?}");
        bytes[0]
    }

    #[test]
    fn each_packet_is_received_once_in_the_order_of_the_scheduler() {
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
    fn an_offer_is_dropped_with_its_last_packet() {
        let mut ends = ends(Rules::new());
        let source = offer(&ends.rank, (0, 0), 1, false);
        take(&mut ends.at_server);
        assert_eq!(Arc::strong_count(&source), 2);
        take(&mut ends.at_server);
        assert_eq!(Arc::strong_count(&source), 1);
    }

    #[test]
    fn closing_one_end_ends_both_directions_and_drops_pending_packets() {
        let mut ends = ends(Rules::new());
        let source = offer(&ends.rank, (0, 0), 1, false);
        take(&mut ends.at_server);
        ends.server.close();
        assert_eq!(Arc::strong_count(&source), 1);
        offer(&ends.rank, (0, 0), 2, false);
        assert!(ends.at_server.header().is_none() && ends.at_rank.header().is_none());
    }

    #[test]
    fn credit_bounds_the_bytes_that_were_received_and_not_acknowledged() {
        let mut ends = ends(Rules { credit: std::num::NonZeroU64::new(4), ..Rules::new() });
        offer(&ends.rank, (0, 0), 1, false);
        take(&mut ends.at_server);
        assert!(ends.at_server.pair.from(Side::Dialler).lock().poll().is_none());
        ends.rank.acknowledge(Bytes::new(4));
        assert_eq!(take(&mut ends.at_server), 1);
    }
}
