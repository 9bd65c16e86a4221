// SPDX-License-Identifier: Apache-2.0
//! Which packet goes next: one scheduler per network interface, over all its connections.
//!
//! It sees (class, connection, bytes) and nothing else, so that whatever shares an interface can share a
//! scheduler, and the bound on what is under way holds for the interface. A bound per connection does not
//! do that: eight connections with 60 KB each keep an urgent packet waiting for 9.0 ms at 1 Gbit/s, one
//! bound of 60 KB on their sum for 1.0 ms at the same goodput.
//!
//! Refuses to know sockets, payloads, and who reads what arrives: those are facts and numbers here.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod` | the face: facts in, figures out |
//! | `choose` | the next packet |
//! | `keep` | entering and leaving of offers, connections and flows |
//! | `offer` | what goes in and comes out |
//! | `rules` | order, scope, window, credit |
//! | `tournament` | the first among connections |
//! | `rotation` | turns among flows |
//! | `line`, `ring` | what waits, by class, in order |
//! | `effort` | a test's count of steps |

mod choose;
mod effort;
mod error;
mod keep;
mod line;
mod offer;
mod ring;
mod rotation;
mod rules;
mod tournament;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use foresee_units::{Bytes, BytesPerSecond, Nanos};

pub use error::ScheduleError;
pub use offer::{Class, Connection, Flow, Grant, Lane, Offer, Ticket, Unsent};
pub use rules::{Order, Rules, Scope, Window};

use choose::Batch;
use keep::{FlowState, LaneState, OfferState, Socket};
use ring::{Links, Slab};
use rotation::Rotation;

use crate::sizing::window_bytes;

/// The scheduler of one interface.
///
/// **Order.** [`Schedule::poll_send`] grants a packet of the first offer, in the order of [`Rules`], that
/// has one for a connection which may send. Lanes of one offer take turns, the one used longest ago first. Where
/// connections share a window they come on alike, each by its own number of packets, so that ranks which are
/// interrupted have sent the same packets: what only some have sent cannot be summed. A connection with more than
/// two fifths of the window in flight, and two packets, lets those with less go first. Flows take turns by bytes, and an order holds inside each. Nothing is held back for a connection that
/// may not send: while any may, has something, and window and credit allow, something is granted.
///
/// **In flight** is what was granted on a connection and is not yet acknowledged by the other end's kernel:
/// what [`Schedule::handle_in_flight`] said last, and what was granted since. A packet starts only while
/// this is at most the window, and a started one is always finished, so at most the window and one packet
/// are in flight. Hence a packet waits behind less urgent ones for `(window + packet) / rate` at most, on a
/// link that serves in order of writing, for as long as each socket takes that much. A link that serves
/// connections in turn also serves the others while a packet waits for what precedes it on its own; and a
/// connection whose socket takes less is held by its half-written packet while the others go on.
///
/// **Half-written packets.** A grant is written completely before anything else goes over its connection.
/// When a socket takes only a part, the caller says [`Schedule::handle_blocked`], continues by itself when
/// the socket takes more, and says [`Schedule::handle_writable`] once the packet is written.
///
/// **Nothing lost, nothing twice.** A packet is granted once, or comes back with
/// [`Schedule::handle_withdraw`] or [`Schedule::handle_closed`], or waits here. What was granted is the
/// caller's: when a connection closes, only the caller knows which granted packets were answered.
///
/// **Cost.** The choice looks at `log2(connections)` places and two flows, whatever waits. An offer costs
/// this for each of its lanes; its number is looked up when it comes, when it ends, and when it is
/// withdrawn. A connection that blocks, opens or closes, or whose bytes in flight change under a window, costs this
/// for each flow that uses it; one that closes also for each lane it gives back. An offer takes some 100 bytes for itself and 50 for each lane,
/// used again by later ones; packets take nothing. A flow takes some 50 bytes for each connection it has used,
/// until that closes, and as much for each class of a round that waits for it.
///
/// # Examples
/// ```
/// # use std::num::NonZeroU32;
/// # use foresee_grad_queue::{Class, Connection, Flow, Lane, Offer, Round, Rules, Schedule, Ticket};
/// # use foresee_units::{Bytes, Nanos};
/// # fn main() -> Result<(), foresee_grad_queue::ScheduleError> {
/// let (now, link) = (Nanos::ZERO, Connection::new(0));
/// let rules = Rules { window_bytes: Some(Bytes::new(30_000)), ..Rules::new() };
/// let mut schedule = Schedule::new(rules, NonZeroU32::new(30_000).unwrap());
/// schedule.handle_open(link)?;
/// let lanes = [Lane::new(link, 1_000, 30_000, 30_000)];
/// let (flow, round) = (Flow::new(0), Round(0));
/// let bulk = Offer { ticket: Ticket::new(1), flow, round, class: Class::new(9), lanes: &lanes };
/// schedule.handle_offer(&bulk, now)?;
/// assert_eq!(schedule.poll_send(now).unwrap().packet, 0);
/// assert_eq!(schedule.poll_send(now).unwrap().packet, 1); // 30,000 bytes in flight are within the window
/// assert!(schedule.poll_send(now).is_none()); // 60,000 are not
///
/// let lanes = [Lane::new(link, 1, 30_000, 500)];
/// let urgent = Offer { ticket: Ticket::new(2), flow, round, class: Class::new(0), lanes: &lanes };
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
    /// A connection with more than this in flight lets others go first, where they share the window.
    crowd: u64,
    /// The link's rate, 0 before anybody said, and its shortest round trip.
    link: (BytesPerSecond, Nanos),
    /// How much longer than that asks for the window has to last.
    late: Nanos,

    sockets: Slab<Socket>,
    places: BTreeMap<Connection, u32>,
    flows: Slab<FlowState>,
    flow_places: BTreeMap<Flow, u32>,
    offers: Slab<OfferState>,
    tickets: BTreeMap<Ticket, u32>,
    lanes: Slab<LaneState>,
    /// The ring of a class, in a line.
    in_line: Links,
    /// The ring of an offer's lanes.
    in_offer: Links,

    rotation: Rotation,
    batch: Option<Batch>,
    /// Counts offers: their order of arrival.
    arrivals: u64,
    /// Counts grants: who was used last.
    turns: u64,

    in_flight: u64,
    unacked: u64,
    backlog: u64,
    class_backlog: Box<[u64; 256]>,
}

impl Schedule {
    /// A scheduler without connections. `packet`: the bytes of an ordinary packet
    /// ([`packet_bytes`](crate::packet_bytes)): windows have room for some of them, and a batch is no larger.
    pub fn new(rules: Rules, packet: NonZeroU32) -> Self {
        let mut rotation = Rotation::default();
        rotation.admit(packet.get());
        let mut schedule = Self {
            rules,
            packet,
            window: Bytes::ZERO,
            crowd: 1,
            link: (BytesPerSecond::new(0), Nanos::ZERO),
            late: Nanos::ZERO,
            sockets: Slab::new(),
            places: BTreeMap::new(),
            flows: Slab::new(),
            flow_places: BTreeMap::new(),
            offers: Slab::new(),
            tickets: BTreeMap::new(),
            lanes: Slab::new(),
            in_line: Links::default(),
            in_offer: Links::default(),
            rotation,
            batch: None,
            arrivals: 0,
            turns: 0,
            in_flight: 0,
            unacked: 0,
            backlog: 0,
            class_backlog: Box::new([0; 256]),
        };
        schedule.follow();
        schedule
    }

    /// There is something to send. All of it is taken, or nothing.
    ///
    /// # Errors
    /// [`ScheduleError::TicketInUse`], [`ScheduleError::NoLanes`], [`ScheduleError::EmptyLane`],
    /// [`ScheduleError::PacketBytes`], [`ScheduleError::PacketNumber`], [`ScheduleError::LaneTwice`],
    /// [`ScheduleError::NotOpen`] for a lane, [`ScheduleError::TooManyBytes`].
    pub fn handle_offer(&mut self, offer: &Offer<'_>, now: Nanos) -> Result<(), ScheduleError> {
        self.check_offer(offer)?;
        self.batch = None;
        self.enter_offer(offer, now);
        Ok(())
    }

    /// What of `ticket` was not granted is no longer wanted: these lanes, the rest of each. The ticket is
    /// free again; what was granted stays granted, a half-written packet included.
    ///
    /// # Errors
    /// [`ScheduleError::UnknownTicket`] if nothing of it is here, so also after its last packet.
    pub fn handle_withdraw(&mut self, ticket: Ticket) -> Result<Vec<Lane>, ScheduleError> {
        let &offer = self.tickets.get(&ticket).ok_or(ScheduleError::UnknownTicket { ticket })?;
        self.batch = None;
        let mut rest = Vec::new();
        while let Some(lane) = self.offers.get(offer).and_then(|offer| offer.lanes.head()) {
            rest.push(self.leave(lane).lane);
        }
        Ok(rest)
    }

    /// `connection` takes bytes from now on.
    ///
    /// # Errors
    /// [`ScheduleError::AlreadyOpen`].
    pub fn handle_open(&mut self, connection: Connection) -> Result<(), ScheduleError> {
        if self.places.contains_key(&connection) {
            return Err(ScheduleError::AlreadyOpen { connection });
        }
        let place = self.sockets.insert(Socket::new(connection));
        self.places.insert(connection, place);
        self.follow();
        Ok(())
    }

    /// `connection` is gone, and nothing is known of it here any longer: not what was in flight on it, nor
    /// what its other end had yet to acknowledge. What waited for it comes back, oldest first inside each
    /// flow and class; lanes of the same offers over other connections go on.
    ///
    /// Granted packets do not come back, not even one that is half written: whether they were answered is
    /// the caller's knowledge.
    ///
    /// # Errors
    /// [`ScheduleError::NotOpen`].
    pub fn handle_closed(&mut self, connection: Connection) -> Result<Vec<Unsent>, ScheduleError> {
        let place = self.place(connection)?;
        self.batch = None;
        let unsent = self.close(place);
        self.places.remove(&connection);
        self.follow();
        Ok(unsent)
    }

    /// The socket of `connection` took only a part of what was granted: nothing else may use it.
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

    /// All that was granted on `connection` is written, and its socket takes more.
    ///
    /// # Errors
    /// [`ScheduleError::NotOpen`].
    pub fn handle_writable(&mut self, connection: Connection) -> Result<(), ScheduleError> {
        let place = self.place(connection)?;
        self.sockets[place].blocked = false;
        self.refresh_socket(place);
        Ok(())
    }

    /// `bytes` of what was granted on `connection` are unsent or not acknowledged by the other end's kernel:
    /// what the socket says (`SIOCOUTQ`), and what was granted and is not written yet. Headers and encryption
    /// may make it more than was granted. This replaces what was counted before.
    ///
    /// # Errors
    /// [`ScheduleError::NotOpen`].
    pub fn handle_in_flight(&mut self, connection: Connection, bytes: Bytes) -> Result<(), ScheduleError> {
        let place = self.place(connection)?;
        let socket = &mut self.sockets[place];
        // A sum that saturated could not be taken apart again; no kernel holds more than 2^48 bytes.
        let bytes = bytes.get().min(IN_FLIGHT_MAX);
        self.in_flight = self.in_flight - socket.in_flight + bytes;
        socket.in_flight = bytes;
        self.refresh_windowed(place);
        Ok(())
    }

    /// The other end's application has dealt with `bytes` of what was granted on `connection`, which frees
    /// as much credit. To be called under every policy with a credit; elsewhere it only serves
    /// [`Schedule::unacked`].
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

    /// What the interface delivers, summed over its connections, and the smallest round trip seen: sets the
    /// window anew ([`window_bytes`](crate::window_bytes)) unless the rules fix it. To be called about once
    /// per round trip.
    pub fn handle_link(&mut self, rate: BytesPerSecond, min_rtt: Nanos) {
        self.link = (rate, min_rtt);
        self.follow();
    }

    /// Acknowledgments, or whoever sends, come so late that the window has to last longer, by that; it follows unless the rules fix it.
    pub fn handle_late(&mut self, late: Nanos) {
        if late != self.late {
            self.late = late;
            self.follow();
        }
    }

    /// An ordinary packet has so many bytes from now on; the window follows unless the rules fix it.
    pub fn handle_packet(&mut self, packet: NonZeroU32) {
        self.packet = packet;
        self.rotation.admit(packet.get());
        self.batch = None;
        self.follow();
    }

    fn follow(&mut self) {
        let (packet, (rate, min_rtt)) = (Bytes::new(u64::from(self.packet.get())), self.link);
        let window = self.rules.window_bytes.unwrap_or_else(|| {
            let factor = self.window_factor();
            let usual = window_bytes(packet, rate, min_rtt, Nanos::ZERO).get().saturating_mul(factor);
            // One that is larger anyway lasts longer anyway.
            Bytes::new(usual).max(window_bytes(packet, rate, min_rtt, self.late))
        });
        let crowd = crowd_bytes(window, packet);
        if (window, crowd) != (self.window, self.crowd) {
            (self.window, self.crowd) = (window, crowd);
            self.refresh_all_windowed();
        }
    }

    fn window_factor(&self) -> u64 {
        let over = if self.rules.window == Window::Interface { self.places.len() } else { 1 };
        let more = u64::from(self.rules.window_factor_more).saturating_mul(over.saturating_sub(1) as u64);
        u64::from(self.rules.window_factor.get()).saturating_add(more)
    }

    /// The rules it was made with.
    pub const fn rules(&self) -> Rules {
        self.rules
    }

    /// Whether nothing waits here. What was granted may still be under way.
    pub const fn is_idle(&self) -> bool {
        self.backlog == 0
    }

    /// Offers of which something waits.
    pub fn offers(&self) -> usize {
        self.offers.len()
    }

    /// Bytes that wait to be granted.
    pub const fn backlog(&self) -> Bytes {
        Bytes::new(self.backlog)
    }

    /// Bytes that wait in `class`, over all flows.
    pub fn backlog_of_class(&self, class: Class) -> Bytes {
        Bytes::new(self.class_backlog[usize::from(class.get())])
    }

    /// Bytes that wait of `flow`.
    pub fn backlog_of_flow(&self, flow: Flow) -> Bytes {
        let backlog = self.flow_places.get(&flow).map_or(0, |&place| self.flows[place].backlog);
        Bytes::new(backlog)
    }

    /// Bytes that wait for `connection`.
    pub fn backlog_of_connection(&self, connection: Connection) -> Bytes {
        Bytes::new(self.socket(connection).map_or(0, |socket| socket.backlog))
    }

    /// How much may be in flight before another packet starts.
    pub const fn window(&self) -> Bytes {
        self.window
    }

    /// Bytes in flight, over all connections.
    pub const fn in_flight(&self) -> Bytes {
        Bytes::new(self.in_flight)
    }

    /// Bytes in flight on `connection`.
    pub fn in_flight_of(&self, connection: Connection) -> Bytes {
        Bytes::new(self.socket(connection).map_or(0, |socket| socket.in_flight))
    }

    /// Bytes that were granted and that nobody has acknowledged with [`Schedule::handle_acked`].
    pub const fn unacked(&self) -> Bytes {
        Bytes::new(self.unacked)
    }

    /// The open connections, each with whether a half-written packet holds it.
    pub fn connections(&self) -> impl Iterator<Item = (Connection, bool)> + '_ {
        self.places.iter().map(|(&connection, &place)| (connection, self.sockets[place].blocked))
    }

    /// Which class is first in order, and for how long its oldest offer has waited, whether or not it may be
    /// sent now. Looks at every flow and connection.
    pub fn head_wait(&self, now: Nanos) -> Option<(Class, Nanos)> {
        let offers = self.flows.iter().flat_map(|(_, flow)| flow.lines()).filter_map(|line| {
            let (rank, lane) = line.head()?;
            let offer = &self.offers[self.lanes[lane].offer];
            Some((rank, offer.arrival, offer))
        });
        let (_, _, offer) = offers.min_by_key(|&(rank, arrival, _)| (rank, arrival))?;
        Some((offer.class, now.saturating_sub(offer.since)))
    }

    /// Time until acknowledgements will have brought what is in flight down to the window, at the link's
    /// rate: a timer for where they cannot be waited for. `None` if the window holds nothing back, or the
    /// rate is not known. With a window per connection it looks at each of them.
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

    fn socket(&self, connection: Connection) -> Option<&Socket> {
        self.places.get(&connection).map(|&place| &self.sockets[place])
    }
}

/// The most that is believed to be in flight on a connection.
const IN_FLIGHT_MAX: u64 = 1 << 48;

/// Bytes in flight on a connection beyond which it lets others go first: one slow far end leaves room in the window.
fn crowd_bytes(window: Bytes, packet: Bytes) -> u64 {
    (window.get() / 5 * 2).max(2 * packet.get())
}
