// SPDX-License-Identifier: Apache-2.0
//! The order of packets: one scheduler per network interface, over all its connections.
//!
//! The scheduler sees only class, connection and bytes. Therefore everything that shares an interface can share a
//! scheduler, and the bound on bytes in flight holds for the interface. A bound per connection does not achieve
//! this: eight connections with 60 KB each delay an urgent packet by 9.0 ms at 1 Gbit/s, one bound of 60 KB on
//! their sum by 1.0 ms at the same goodput.
//!
//! Sockets and payloads are the caller's; the scheduler handles numbers only.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod` | the public interface: reports, offers and metrics |
//! | `choose` | the next packet |
//! | `registry` | offers, streams, connections and flows |
//! | `offer` | inputs and outputs |
//! | `rules` | order, scope, window, credit |
//! | `tournament` | the choice among connections |
//! | `rotation` | round robin among flows |
//! | `pending`, `ring` | waiting streams, by round and class |
//! | `effort` | counter of visited places, for a test |

mod choose;
mod effort;
mod error;
mod offer;
mod pending;
mod registry;
mod ring;
mod rotation;
mod rules;
mod tournament;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use foresee_units::{Bytes, BytesPerSecond, Nanos};

pub use error::ScheduleError;
pub use offer::{Class, Connection, Flow, Grant, Offer, PacketStream, Ticket, Unsent};
pub use rules::{Order, Rules, Scope, Window};

use choose::Batch;
use registry::{FlowState, OfferState, Socket, StreamState};
use ring::{Links, Slab};
use rotation::Rotation;

use crate::sizing::window_bytes;

/// The scheduler of one interface.
///
/// **Order.** [`Schedule::poll_send`] grants a packet of the first offer, in the order of [`Rules`], that has one
/// for a connection which may send. Streams of one offer take turns, the least recently used first. If connections
/// share a window, the streams advance together, each by its fraction sent. Ranks that are interrupted have then
/// sent the same packets; packets that only some ranks have sent cannot be summed. A connection with more than
/// two fifths of the window and two packets in flight lets those with less go first. Flows take turns by bytes,
/// and the order holds inside each flow. The scheduler conserves work: while a connection may send, has a packet,
/// and window and credit allow it, a packet is granted.
///
/// **In flight** are the bytes granted on a connection that the other end's kernel has not acknowledged: the last
/// report of [`Schedule::handle_in_flight`], plus the grants since then. A packet starts only while this is at
/// most the window, and a started packet is always finished, so at most the window and one packet are in flight.
/// Hence a packet waits behind less urgent ones for `(window + packet) / rate` at most, on a link that serves in
/// order of writing, while each socket accepts that much. A link that serves connections in turn also serves the
/// others while a packet waits for its predecessors on its own connection. A connection whose socket accepts less
/// is blocked by its half-written packet while the others continue.
///
/// **Half-written packets.** A grant is written completely before anything else goes over its connection. When a
/// socket accepts only a part, the caller reports [`Schedule::handle_blocked`], continues when the socket accepts
/// more, and reports [`Schedule::handle_writable`] once the packet is written.
///
/// **Exactly once.** A packet waits here, was granted once, or was returned by [`Schedule::handle_closed`]. The
/// caller owns granted packets: when a connection closes, only the caller knows which of them were answered.
///
/// **Cost.** The choice visits `log2(connections)` places and two flows, for any number of offers. An offer costs
/// this for each of its streams; its number is looked up when it arrives and ends. A connection that blocks, opens
/// or closes, or whose bytes in flight change under a window, costs this for each flow that uses it. One that
/// closes costs it also for each stream that it returns. An offer takes about 100 bytes and 50 per stream, which
/// later offers reuse; packets take no memory. A flow takes about 50 bytes per connection that it has
/// used, until that closes, and as much per waiting class of a round.
///
/// # Examples
/// ```
/// # use std::num::NonZeroU32;
/// # use foresee_grad_queue::{Class, Connection, Flow, PacketStream, Offer, Round, Rules, Schedule, Ticket};
/// # use foresee_units::{Bytes, Nanos};
/// # fn main() -> Result<(), foresee_grad_queue::ScheduleError> {
/// let (now, link) = (Nanos::ZERO, Connection::new(0));
/// let rules = Rules { window_bytes: Some(Bytes::new(30_000)), ..Rules::new() };
/// let mut schedule = Schedule::new(rules, NonZeroU32::new(30_000).unwrap());
/// schedule.handle_open(link)?;
/// let streams = [PacketStream::new(link, 1_000, 30_000, 30_000)];
/// let (flow, round) = (Flow::new(0), Round(0));
/// let bulk = Offer { ticket: Ticket::new(1), flow, round, class: Class::new(9), streams: &streams };
/// schedule.handle_offer(&bulk, now)?;
/// assert_eq!(schedule.poll_send(now).unwrap().packet, 0);
/// assert_eq!(schedule.poll_send(now).unwrap().packet, 1); // 30,000 bytes in flight are within the window
/// assert!(schedule.poll_send(now).is_none()); // 60,000 are not
///
/// let streams = [PacketStream::new(link, 1, 30_000, 500)];
/// let urgent = Offer { ticket: Ticket::new(2), flow, round, class: Class::new(0), streams: &streams };
/// schedule.handle_offer(&urgent, now)?;
/// schedule.handle_in_flight(link, Bytes::new(30_000))?; // one packet was acknowledged
/// assert_eq!(schedule.poll_send(now).unwrap().ticket, Ticket::new(2)); // ahead of 998 packets
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    rules: Rules,
    packet: NonZeroU32,
    window: Bytes,
    /// With more bytes in flight than this, a connection lets others go first if they share the window.
    congestion: u64,
    /// The link's rate, 0 before the first report, and its shortest round trip.
    link: (BytesPerSecond, Nanos),
    /// Extra duration of the window.
    late: Nanos,

    sockets: Slab<Socket>,
    places: BTreeMap<Connection, u32>,
    flows: Slab<FlowState>,
    flow_places: BTreeMap<Flow, u32>,
    offers: Slab<OfferState>,
    tickets: BTreeSet<Ticket>,
    streams: Slab<StreamState>,
    /// Links of the rings in all queues.
    links: Links,

    rotation: Rotation,
    batch: Option<Batch>,
    /// Number of offers so far: their order of arrival.
    arrivals: u64,
    /// Number of grants so far, which orders users by recency.
    turns: u64,

    in_flight: u64,
    unacked: u64,
    backlog: u64,
}

impl Schedule {
    /// Create a scheduler without connections. `packet`: the bytes of an ordinary packet
    /// ([`packet_bytes`](crate::packet_bytes)), the unit of windows and the maximum of a batch.
    pub fn new(rules: Rules, packet: NonZeroU32) -> Self {
        let mut rotation = Rotation::default();
        rotation.admit(packet.get());
        let mut schedule = Self {
            rules,
            packet,
            window: Bytes::ZERO,
            congestion: 1,
            link: (BytesPerSecond::new(0), Nanos::ZERO),
            late: Nanos::ZERO,
            sockets: Slab::new(),
            places: BTreeMap::new(),
            flows: Slab::new(),
            flow_places: BTreeMap::new(),
            offers: Slab::new(),
            tickets: BTreeSet::new(),
            streams: Slab::new(),
            links: Links::default(),
            rotation,
            batch: None,
            arrivals: 0,
            turns: 0,
            in_flight: 0,
            unacked: 0,
            backlog: 0,
        };
        schedule.update_window();
        schedule
    }

    /// Add an offer. Either all of it is accepted, or nothing.
    ///
    /// # Errors
    /// [`ScheduleError::TicketInUse`], [`ScheduleError::NoStreams`], [`ScheduleError::EmptyStream`],
    /// [`ScheduleError::PacketBytes`], [`ScheduleError::PacketNumber`], [`ScheduleError::RepeatedStream`],
    /// [`ScheduleError::NotOpen`] for a stream, [`ScheduleError::TooManyBytes`].
    pub fn handle_offer(&mut self, offer: &Offer<'_>, now: Nanos) -> Result<(), ScheduleError> {
        self.check_offer(offer)?;
        self.batch = None;
        self.insert_offer(offer, now);
        Ok(())
    }

    /// Open `connection`: it accepts bytes from now on.
    ///
    /// # Errors
    /// [`ScheduleError::AlreadyOpen`].
    pub fn handle_open(&mut self, connection: Connection) -> Result<(), ScheduleError> {
        if self.places.contains_key(&connection) {
            return Err(ScheduleError::AlreadyOpen { connection });
        }
        let place = self.sockets.insert(Socket::new(connection));
        self.places.insert(connection, place);
        self.update_window();
        Ok(())
    }

    /// Remove `connection` with its counts of bytes in flight and unacknowledged bytes. The packets that waited
    /// for it are returned, oldest first inside each flow and class; streams of the same offers over other
    /// connections continue.
    ///
    /// Granted packets are not returned, not even a half-written one: only the caller knows whether they were
    /// answered.
    ///
    /// # Errors
    /// [`ScheduleError::NotOpen`].
    pub fn handle_closed(&mut self, connection: Connection) -> Result<Vec<Unsent>, ScheduleError> {
        let place = self.place(connection)?;
        self.batch = None;
        let unsent = self.close(place);
        self.places.remove(&connection);
        self.update_window();
        Ok(unsent)
    }

    /// The socket of `connection` accepted only a part of the grant: nothing else may use it.
    ///
    /// # Errors
    /// [`ScheduleError::NotOpen`].
    pub fn handle_blocked(&mut self, connection: Connection) -> Result<(), ScheduleError> {
        let place = self.place(connection)?;
        self.batch = None;
        self.sockets[place].blocked = true;
        self.refresh_socket(place);
        Ok(())
    }

    /// The grant on `connection` is written completely, and its socket accepts more.
    ///
    /// # Errors
    /// [`ScheduleError::NotOpen`].
    pub fn handle_writable(&mut self, connection: Connection) -> Result<(), ScheduleError> {
        let place = self.place(connection)?;
        self.sockets[place].blocked = false;
        self.refresh_socket(place);
        Ok(())
    }

    /// Set the bytes in flight on `connection`: those that the other end's kernel has not acknowledged
    /// (`SIOCOUTQ`), plus granted bytes that are not written yet. Headers and encryption may make this larger
    /// than the grants. It replaces the previous count.
    ///
    /// # Errors
    /// [`ScheduleError::NotOpen`].
    pub fn handle_in_flight(&mut self, connection: Connection, bytes: Bytes) -> Result<(), ScheduleError> {
        let place = self.place(connection)?;
        let socket = &mut self.sockets[place];
        // A sum that saturated could not be subtracted from; no kernel holds more than 2^48 bytes.
        let bytes = bytes.get().min(IN_FLIGHT_MAX);
        self.in_flight = self.in_flight - socket.in_flight + bytes;
        socket.in_flight = bytes;
        self.refresh_windowed(place);
        Ok(())
    }

    /// The other end's application has handled `bytes` of the grants on `connection`, which frees the same
    /// credit. Required under every policy with a credit, without effect under the others.
    ///
    /// # Errors
    /// [`ScheduleError::NotOpen`]; [`ScheduleError::AckedTooMuch`].
    pub fn handle_acked(&mut self, connection: Connection, bytes: Bytes) -> Result<(), ScheduleError> {
        let place = self.place(connection)?;
        let socket = &mut self.sockets[place];
        let Some(unacked) = socket.unacked.checked_sub(bytes.get()) else {
            let (bytes, unacked) = (bytes.get(), socket.unacked);
            return Err(ScheduleError::AckedTooMuch { connection, bytes, unacked });
        };
        socket.unacked = unacked;
        self.unacked -= bytes.get();
        Ok(())
    }

    /// Set the interface's delivery rate, summed over its connections, and the shortest round trip seen. Updates
    /// the window ([`window_bytes`]) unless the rules fix it. Call about once per round trip.
    pub fn handle_link(&mut self, rate: BytesPerSecond, min_rtt: Nanos) {
        self.link = (rate, min_rtt);
        self.update_window();
    }

    /// Set the extra duration of the window that late acknowledgments or a late sender require. Updates the
    /// window unless the rules fix it.
    pub fn handle_late(&mut self, late: Nanos) {
        if late != self.late {
            self.late = late;
            self.update_window();
        }
    }

    /// Set the size of an ordinary packet. Updates the window unless the rules fix it.
    pub fn handle_packet(&mut self, packet: NonZeroU32) {
        self.packet = packet;
        self.rotation.admit(packet.get());
        self.batch = None;
        self.update_window();
    }

    fn update_window(&mut self) {
        let (packet, (rate, min_rtt)) = (Bytes::new(u64::from(self.packet.get())), self.link);
        let window = self.rules.window_bytes.unwrap_or_else(|| {
            let factor = self.window_factor();
            let usual = window_bytes(packet, rate, min_rtt, Nanos::ZERO).get().saturating_mul(factor);
            // A window that is larger than this already lasts longer.
            Bytes::new(usual).max(window_bytes(packet, rate, min_rtt, self.late))
        });
        let congestion = congestion_bytes(window, packet);
        if (window, congestion) != (self.window, self.congestion) {
            (self.window, self.congestion) = (window, congestion);
            self.refresh_all_windowed();
        }
    }

    fn window_factor(&self) -> u64 {
        let over = if self.rules.window == Window::Interface { self.places.len() } else { 1 };
        let more = u64::from(self.rules.window_factor_more).saturating_mul(over.saturating_sub(1) as u64);
        u64::from(self.rules.window_factor.get()).saturating_add(more)
    }

    /// The rules of this scheduler.
    pub const fn rules(&self) -> Rules {
        self.rules
    }

    /// Whether no packet waits. Granted packets may still be in flight.
    pub const fn is_idle(&self) -> bool {
        self.backlog == 0
    }

    /// The bytes in flight up to which another packet may start.
    pub const fn window(&self) -> Bytes {
        self.window
    }

    /// Bytes in flight, over all connections.
    pub const fn in_flight(&self) -> Bytes {
        Bytes::new(self.in_flight)
    }

    /// Bytes in flight on `connection`.
    pub fn in_flight_of(&self, connection: Connection) -> Bytes {
        Bytes::new(self.places.get(&connection).map_or(0, |&place| self.sockets[place].in_flight))
    }

    /// Time until acknowledgments will have reduced the bytes in flight to the window, at the link's rate: a
    /// timer for callers that cannot wait for acknowledgments. `None` if the window does not block, or if the
    /// rate is unknown. With a window per connection it visits each of them.
    pub fn drain_time(&self) -> Option<Nanos> {
        let over = |in_flight: u64| in_flight.checked_sub(self.window.get()).filter(|&excess| excess > 0);
        let excess = match self.rules.window {
            _ if self.is_idle() => None,
            Window::None => None,
            Window::Interface => over(self.in_flight),
            Window::Connection => {
                let waiting = self.sockets.iter().filter(|(_, socket)| socket.backlog > 0 && !socket.blocked);
                let excesses = waiting.map(|(_, socket)| over(socket.in_flight));
                excesses.min().flatten()
            }
        };
        self.link.0.time_for(Bytes::new(excess?))
    }

    fn place(&self, connection: Connection) -> Result<u32, ScheduleError> {
        self.places.get(&connection).copied().ok_or(ScheduleError::NotOpen { connection })
    }
}

/// Upper bound of the bytes in flight that a report may claim for a connection.
const IN_FLIGHT_MAX: u64 = 1 << 48;

/// Bytes in flight beyond which a connection lets others go first, so that one slow far end does not fill the
/// window.
fn congestion_bytes(window: Bytes, packet: Bytes) -> u64 {
    (window.get() / 5 * 2).max(2 * packet.get())
}
