// SPDX-License-Identifier: Apache-2.0
//! One training step over a network, in virtual time.
//!
//! Every rank computes the same and sends the same at the same time, so one uplink and one downlink represent all
//! ranks. A packet that is pushed by one rank is pushed by all, is summed at once, and may be pulled. The
//! runtime's scheduler ([`Schedule`]) chooses the order of packets, with one instance for the rank and one for
//! the server, under the rules of a [`Policy`]. The simulation includes packets of finite size, a window, a
//! socket's buffer and credit, which closed forms omit. The closed forms are separate, and check this simulation
//! within their limits.
//!
//! Not modelled: skew between ranks, the time of sums, device copies, losses, and the delay of a link. Headers
//! and shares of several servers belong into the rate.

mod wire;

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;

use foresee_grad_queue::{
    Answer, Class, Connection, Flow, Grant, Offer, PacketStream, Policy, Round, Rules, Schedule,
    ScheduleError, Ticket, Window,
};
use foresee_model::ModelError;
use foresee_units::{Bytes, BytesPerSecond, Nanos};

use wire::Wire;

/// Times and size of one layer. The forward pass uses layer 0 first; backward runs from the last to the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// Duration of its backward.
    pub backward: Nanos,
    /// Duration of its forward.
    pub forward: Nanos,
    /// Duration of its optimizer step, directly before its forward.
    pub update: Nanos,
    /// Bytes of its gradient; 0 if it is not exchanged.
    pub bytes: Bytes,
}

/// The network that carries the gradients.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// Rules of rank and server.
    pub policy: Policy,
    /// Rate of each direction of the link without headers; more than 0.
    pub rate: BytesPerSecond,
    /// Packet size of the link; a policy with partitions has its own.
    pub packet: NonZeroU32,
    /// Bytes that a socket accepts. `Bytes::MAX`: unlimited, so that nothing overtakes a granted packet. It
    /// matters for policies without a window, and for windows that are larger.
    pub socket: Bytes,
    /// Time from the grant of a packet to its first byte, during which the link may idle: the `startup` of the
    /// literature on partitions. 0 on real links, where such a delay arises implicitly.
    pub startup: Nanos,
}

/// Times of one layer, counted from the start of backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerTimes {
    /// Its backward ended.
    pub ready: Nanos,
    /// All of its gradient was pushed.
    pub pushed: Nanos,
    /// All of its average was pulled.
    pub pulled: Nanos,
    /// Its forward ended.
    pub forward: Nanos,
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTimes {
    /// Layer by layer.
    pub layers: Vec<LayerTimes>,
    /// Time from the start of backward to the end of forward.
    pub total: Nanos,
}

/// Simulate one step: backward, pushes, sums, pulls, updates, forward. Nothing of an earlier step is in flight.
///
/// Times are rounded up to a nanosecond, once for each interval in which the link is busy.
///
/// # Errors
/// [`ModelError::Empty`] without layers; [`ModelError::ZeroRate`]; [`ModelError::InvalidInput`] for a layer
/// of more than 2^32 - 1 packets, or for more than 2^64 - 1 bytes in all.
///
/// # Examples
/// ```
/// # use std::num::NonZeroU32;
/// # use foresee_grad_queue::Policy;
/// # use foresee_sim::{Layer, Network, simulate_step};
/// # use foresee_units::{Bytes, BytesPerSecond, Nanos};
/// let layer = |megabytes: u64| Layer {
///     backward: Nanos::from_millis(2),
///     forward: Nanos::from_millis(1),
///     update: Nanos::ZERO,
///     bytes: Bytes::new(megabytes * 1_000_000),
/// };
/// let layers = [layer(1), layer(4), layer(3)];
/// let step = |policy| {
///     let (rate, packet) = (BytesPerSecond::new(1_000_000_000), NonZeroU32::new(1_000).unwrap());
///     let network = Network { policy, rate, packet, socket: Bytes::MAX, startup: Nanos::ZERO };
///     simulate_step(&layers, &network).map(|times| times.total)
/// };
/// assert_eq!(step(Policy::fifo_tensor())?, Nanos::from_millis(17));
/// assert!(step(Policy::fifo_packet())? <= Nanos::new(13_002_000)); // 13 ms and two packets
/// assert!(step(Policy::foresee())? <= Nanos::new(11_202_000)); // 11 ms, two packets, and 0.2 ms of window
/// # Ok::<(), foresee_model::ModelError>(())
/// ```
pub fn simulate_step(layers: &[Layer], network: &Network) -> Result<StepTimes, ModelError> {
    let mut step = Step::new(layers, network, packet_streams(layers, network)?);
    step.run();
    Ok(step.times(layers))
}

/// The packets of each layer's gradient; `None` without bytes.
fn packet_streams(layers: &[Layer], network: &Network) -> Result<Vec<Option<PacketStream>>, ModelError> {
    if layers.is_empty() {
        return Err(ModelError::Empty { field: "layers" });
    }
    if network.rate.get() == 0 {
        return Err(ModelError::ZeroRate { field: "rate of the link" });
    }
    let packet = network.policy.packet_bytes(network.packet);
    let streams = layers.iter().map(|layer| packet_stream(layer.bytes, packet)).collect();
    let total = layers.iter().try_fold(0_u64, |sum, layer| sum.checked_add(layer.bytes.get()));
    if total.is_none() {
        return Err(invalid("bytes of all layers", u64::MAX, "less than 2^64 in sum"));
    }
    streams
}

fn packet_stream(bytes: Bytes, packet: NonZeroU32) -> Result<Option<PacketStream>, ModelError> {
    let Some(before_last) = bytes.get().checked_sub(1) else { return Ok(None) };
    let full = before_last / u64::from(packet.get());
    let Some(packets) = u32::try_from(full).ok().and_then(|full| full.checked_add(1)) else {
        return Err(invalid("bytes of a layer", bytes.get(), "less than 2^32 packets"));
    };
    let last = u32::try_from(before_last % u64::from(packet.get()) + 1).unwrap_or(packet.get());
    Ok(Some(PacketStream::new(LINK, packets, packet.get(), last)))
}

fn invalid(field: &'static str, value: u64, rule: &'static str) -> ModelError {
    #[expect(clippy::cast_precision_loss, reason = "a value in a message")]
    let value = value as f64;
    ModelError::InvalidInput { field, value, rule }
}

const LINK: Connection = Connection::new(0);
const JOB: Flow = Flow::new(0);

/// The rank's uplink, or the server's downlink.
struct Direction {
    schedule: Schedule,
    wire: Wire,
    socket: u64,
    blocked: bool,
    /// The layer of each ticket.
    tickets: Vec<usize>,
}

impl Direction {
    fn new(rules: Rules, network: &Network) -> Self {
        let mut schedule = Schedule::new(rules, network.packet);
        expect_valid(schedule.handle_open(LINK));
        schedule.handle_link(network.rate, Nanos::ZERO);
        let wire = Wire::new(network.rate, network.startup);
        Self { schedule, wire, socket: network.socket.get(), blocked: false, tickets: Vec::new() }
    }

    fn offer(&mut self, layer: usize, class: Class, stream: PacketStream, now: Nanos) {
        let ticket = Ticket::new(self.tickets.len() as u64);
        self.tickets.push(layer);
        expect_valid(
            self.schedule
                .handle_offer(&Offer { ticket, flow: JOB, round: Round(0), class, streams: &[stream] }, now),
        );
    }

    /// The next packet that was delivered by `now`, and its layer.
    fn take_delivered(&mut self, now: Nanos) -> Option<(usize, Grant)> {
        let grant = self.wire.pop(now)?;
        expect_valid(self.schedule.handle_acked(LINK, Bytes::new(u64::from(grant.bytes))));
        let at = usize::try_from(grant.ticket.get()).unwrap_or(usize::MAX);
        Some((self.tickets[at], grant))
    }

    /// Report the bytes in flight and grant all packets that may be sent.
    fn grant(&mut self, now: Nanos) {
        let left = self.wire.left(now);
        expect_valid(self.schedule.handle_in_flight(LINK, Bytes::new(left)));
        if self.blocked && left <= self.socket {
            self.blocked = false;
            expect_valid(self.schedule.handle_writable(LINK));
        }
        while let Some(grant) = self.schedule.poll_send(now) {
            self.wire.push(grant, now);
            if self.wire.left(now) > self.socket {
                self.blocked = true;
                expect_valid(self.schedule.handle_blocked(LINK));
            }
        }
    }

    /// The next time at which a grant may become possible, after [`grant`](Self::grant). A limit that is satisfied is ignored:
    /// credit or the other limit blocks the waiting packets.
    fn next(&self, now: Nanos) -> Option<Nanos> {
        let windowed = !self.schedule.is_idle() && self.schedule.rules().window != Window::None;
        let limits = [windowed.then(|| self.schedule.window().get()), self.blocked.then_some(self.socket)];
        let fits = limits.into_iter().flatten().filter_map(|limit| self.wire.when_left(limit));
        fits.filter(|&time| time > now).chain(self.wire.next()).min()
    }
}

/// Unwrap a report that is valid by construction of the simulator.
fn expect_valid(outcome: Result<(), ScheduleError>) {
    outcome.expect("reports of the simulator are valid");
}

struct Step {
    streams: Vec<Option<PacketStream>>,
    answer: Answer,
    times: Vec<LayerTimes>,
    /// Packets that were not pushed, and not pulled.
    pushing: Vec<u32>,
    pulling: Vec<u32>,
    up: Direction,
    down: Direction,
}

impl Step {
    fn new(layers: &[Layer], network: &Network, streams: Vec<Option<PacketStream>>) -> Self {
        let mut times = vec![LayerTimes::default(); layers.len()];
        let mut now = Nanos::ZERO;
        for (layer, times) in layers.iter().zip(&mut times).rev() {
            now += layer.backward;
            // A layer without a gradient is pushed and pulled at once.
            *times = LayerTimes { ready: now, pushed: now, pulled: now, forward: Nanos::ZERO };
        }
        let packets: Vec<u32> =
            streams.iter().map(|stream| stream.map_or(0, |stream| stream.packets)).collect();
        Self {
            streams,
            answer: network.policy.answer(),
            times,
            pushing: packets.clone(),
            pulling: packets,
            up: Direction::new(network.policy.push(), network),
            down: Direction::new(network.policy.pull(), network),
        }
    }

    fn run(&mut self) {
        let mut waiting = self.times.len();
        let mut now = Nanos::ZERO;
        loop {
            // All events of an instant are handled before any grant.
            while let Some((layer, _)) = self.down.take_delivered(now) {
                self.receive(layer, now);
            }
            while let Some((layer, grant)) = self.up.take_delivered(now) {
                self.sum(layer, &grant, now);
            }
            while waiting > 0 && self.times[waiting - 1].ready <= now {
                waiting -= 1;
                if let Some(stream) = self.streams[waiting] {
                    self.up.offer(waiting, class(waiting, self.times.len()), stream, now);
                }
            }
            self.up.grant(now);
            self.down.grant(now);
            let ready = (waiting > 0).then(|| self.times[waiting - 1].ready);
            let next = [self.up.next(now), self.down.next(now), ready].into_iter().flatten().min();
            let Some(next) = next else { return };
            debug_assert!(next > now, "time does not advance");
            now = next;
        }
    }

    /// A packet was pushed on all ranks at once: its sum is sent back, alone or with the rest of its layer.
    fn sum(&mut self, layer: usize, grant: &Grant, now: Nanos) {
        self.pushing[layer] -= 1;
        let whole = self.pushing[layer] == 0;
        if whole {
            self.times[layer].pushed = now;
        }
        let stream = match self.answer {
            Answer::Packet => Some(PacketStream {
                first: grant.packet,
                ..PacketStream::new(LINK, 1, grant.bytes, grant.bytes)
            }),
            Answer::Tensor if whole => self.streams[layer],
            Answer::Tensor => None,
        };
        if let Some(stream) = stream {
            self.down.offer(layer, grant.class, stream, now);
        }
    }

    fn receive(&mut self, layer: usize, now: Nanos) {
        self.pulling[layer] -= 1;
        if self.pulling[layer] == 0 {
            self.times[layer].pulled = now;
        }
    }

    /// The forward pass: each layer begins when its average was pulled and the previous layer has ended.
    fn times(mut self, layers: &[Layer]) -> StepTimes {
        let mut now = Nanos::ZERO;
        for (layer, times) in layers.iter().zip(&mut self.times) {
            now = now.max(times.pulled).saturating_add(layer.update).saturating_add(layer.forward);
            times.forward = now;
        }
        StepTimes { layers: self.times, total: now }
    }
}

/// Its position in the order of first use; beyond 256 layers neighbours share a class.
fn class(layer: usize, layers: usize) -> Class {
    let class = if layers <= 256 { layer } else { layer * 256 / layers };
    Class::new(u8::try_from(class).unwrap_or(u8::MAX))
}
