// SPDX-License-Identifier: Apache-2.0
//! Benchmark of packet summation on one core, next to a STREAM-add of the same run. Prints one JSON object.
//!
//! `sum`: payload bytes per second through `admit` and `take`, for packets of four ranks in separate buffers
//! that no cache holds. `received`: the same for packets that were written immediately before, as a server's
//! reader has them; the write is not timed. `stream_add`: bytes of `c[i] = a[i] + b[i]` read and written per
//! second, over arrays of the same size. The three measurements alternate, and each reports its fastest stretch,
//! because a slower one shows the load of the machine.

#![expect(clippy::print_stdout, reason = "a program that prints a result")]
#![expect(clippy::cast_precision_loss, reason = "rates have three digits")]

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_grad_queue::{
    Admission, Buffer, Dtype, EarlyBudget, JobView, Members, Op, PacketId, Pattern, Plan, PlanConfig,
    QueueError, Round, Sender, SlotPair, TensorId, TensorSpec, Verdict, Wire,
};
use foresee_units::{Bytes, Rank};

const RANKS: u32 = 4;
const PACKET: u32 = 32 << 10;
/// Bytes of each rank's gradient, and of each array.
const BYTES: usize = 64 << 20;
/// Stretches per rate. They span some seconds, which outlasts a short load of other processes.
const STRETCHES: usize = 40;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut summing, mut stream) = (Summing::new()?, Stream::new());
    let (mut sum, mut received, mut stream_add) = (0.0_f64, 0.0_f64, 0.0_f64);
    // The first two rounds allocate the memory of both slots.
    for round in 0..2 {
        summing.stretch(Round(round))?;
    }
    for round in (2..).step_by(2).take(STRETCHES) {
        sum = sum.max(summing.stretch(Round(round))?);
        received = received.max(summing.received(Round(round + 1))?);
        stream_add = stream_add.max(stream.stretch());
    }
    println!("{{\"sum\": {sum:.4e}, \"received\": {received:.4e}, \"stream_add\": {stream_add:.4e}}}");
    Ok(())
}

/// A server's share of one tensor, and the packets that its ranks push.
struct Summing {
    plan: Plan,
    members: Members,
    early_budget: Arc<EarlyBudget>,
    /// The packets of each rank.
    gradients: Vec<Vec<Buffer>>,
    slots: Vec<SlotPair>,
}

impl Summing {
    fn new() -> Result<Self, Box<dyn Error>> {
        let tensor = TensorSpec {
            name: "w".into(),
            dtype: Dtype::F32,
            shape: vec![BYTES as u64 / 4],
            strides: vec![1],
            class: 0,
            op: Op::Mean,
        };
        let config = PlanConfig { packet_bytes: PACKET, wire: Wire::Own, pattern: Pattern::new(&[1])? };
        let plan = Plan::new(config, vec![tensor])?;
        let (members, early_budget) =
            (Members::new(0, RANKS, (0..RANKS).map(Rank))?, EarlyBudget::new(Bytes::ZERO));
        let packets = plan.packets(TensorId(0)).unwrap_or(0) as usize;
        let gradient = |rank| vec![Buffer::from(&*vec![rank; PACKET as usize]); packets];
        let gradients = (1_u8..).take(RANKS as usize).map(gradient).collect();
        let slots = (0..packets).map(|_| SlotPair::default()).collect();
        Ok(Self { plan, members, early_budget, gradients, slots })
    }

    /// Sum one round; return payload bytes per second.
    fn stretch(&mut self, round: Round) -> Result<f64, Box<dyn Error>> {
        let start = Instant::now();
        self.each(round, |slot, job, ticket, packet| {
            let _ = black_box(slot.accept(job, ticket, packet)?);
            Ok(())
        })?;
        Ok(payload_per_s(start.elapsed()))
    }

    /// Sum one round whose packets arrive in one reused buffer; return payload bytes per second of the additions.
    fn received(&mut self, round: Round) -> Result<f64, Box<dyn Error>> {
        let (mut room, mut took) = (Buffer::zeroed(PACKET as usize), Duration::ZERO);
        self.each(round, |slot, job, ticket, packet| {
            room.bytes_mut().copy_from_slice(packet.bytes());
            let start = Instant::now();
            let _ = black_box(slot.accept(job, ticket, &mut room)?);
            took += start.elapsed();
            Ok(())
        })?;
        Ok(payload_per_s(took))
    }

    /// Visit each packet of each rank, in rank order.
    fn each(
        &mut self,
        round: Round,
        mut take: impl FnMut(&mut SlotPair, &JobView<'_>, Admission, &mut Buffer) -> Result<(), QueueError>,
    ) -> Result<(), Box<dyn Error>> {
        let Self { plan, members, early_budget, gradients, slots } = self;
        let job = JobView { plan, members, early_budget, oldest: Round(round.0.saturating_sub(1)) };
        for (number, slot) in (0..).zip(slots) {
            let packet = PacketId { tensor: TensorId(0), packet: number };
            for (rank, gradient) in (0..).map(Rank).zip(&mut *gradients) {
                let sender = Sender { rank, generation: 0, round };
                let Verdict::Read(ticket) = slot.admit(&job, packet, sender, PACKET.into())? else {
                    return Err("a packet in rank order is wanted".into());
                };
                take(slot, &job, ticket, &mut gradient[number as usize])?;
            }
        }
        Ok(())
    }
}

fn payload_per_s(took: Duration) -> f64 {
    (BYTES * RANKS as usize) as f64 / took.as_secs_f64()
}

/// Three arrays.
struct Stream {
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
}

impl Stream {
    fn new() -> Self {
        let count = BYTES / size_of::<f64>();
        Self { a: vec![1.0; count], b: vec![2.0; count], c: vec![0.0; count] }
    }

    /// Run one pass; return bytes read and written per second.
    fn stretch(&mut self) -> f64 {
        let start = Instant::now();
        for ((c, a), b) in self.c.iter_mut().zip(&self.a).zip(&self.b) {
            *c = a + b;
        }
        black_box(&mut self.c);
        (3 * BYTES) as f64 / start.elapsed().as_secs_f64()
    }
}
