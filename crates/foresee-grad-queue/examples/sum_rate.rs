// SPDX-License-Identifier: Apache-2.0
//! How fast one core adds up the packets of four ranks, beside a STREAM-add of the same run: one object of JSON.
//!
//! `sum`: bytes of payload that went through verdict and slot per second, from memory that no cache holds. `stream_add`:
//! bytes of `c[i] = a[i] + b[i]` read and written per second, over arrays as large. The best of several stretches each: a
//! rate is what the machine can do, not what its neighbours let it do.

#![expect(clippy::print_stdout, reason = "a program that prints a result")]
#![expect(clippy::cast_precision_loss, reason = "rates have three digits")]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use foresee_grad_queue::{
    Dtype, JobView, Members, Op, PacketId, ParkBudget, Pattern, Plan, PlanConfig, Round, Sender, SlotPair,
    TensorId, TensorSpec, Verdict, Wire,
};
use foresee_units::{Bytes, Rank};

const RANKS: u32 = 4;
const PACKET: u32 = 32 << 10;
/// Of each rank's gradient, and of each array.
const BYTES: usize = 64 << 20;
const STRETCHES: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let (sum, stream_add) = (sum_rate()?, stream_add_rate());
    println!("{{\"sum\": {sum:.4e}, \"stream_add\": {stream_add:.4e}}}");
    Ok(())
}

fn sum_rate() -> Result<f64, Box<dyn Error>> {
    let tensor = TensorSpec {
        name: "w".into(),
        dtype: Dtype::F32,
        shape: vec![BYTES as u64 / 4],
        strides: vec![1],
        class: 0,
        op: Op::Mean,
    };
    let config = PlanConfig { packet_bytes: PACKET, wire: Wire::Own, pattern: Pattern::dedicated(1)? };
    let plan = Plan::new(config, vec![tensor])?;
    let (members, park) = (Members::all(0, RANKS)?, ParkBudget::new(Bytes::ZERO));
    let gradients: Vec<Vec<u8>> = (1_u8..).take(RANKS as usize).map(|rank| vec![rank; BYTES]).collect();
    let packets = plan.packets(TensorId(0)).unwrap_or(0);
    let mut slots: Vec<SlotPair> = (0..packets).map(|_| SlotPair::default()).collect();
    let mut best = 0.0_f64;
    // The first two rounds take the memory of both slots.
    for round in (0..).map(Round).take(STRETCHES + 2) {
        let job =
            JobView { plan: &plan, members: &members, park: &park, oldest: Round(round.0.saturating_sub(1)) };
        let start = Instant::now();
        for (number, slot) in (0..packets).zip(&mut slots) {
            let packet = PacketId { tensor: TensorId(0), packet: number };
            let (offset, bytes) = plan.range(packet).ok_or("the plan has its packets")?;
            let offset = usize::try_from(offset)?;
            for (rank, gradient) in (0..).map(Rank).zip(&gradients) {
                let sender = Sender { rank, generation: 0, round };
                let Verdict::Read(ticket) = slot.verdict(&job, packet, sender, bytes.into())? else {
                    return Err("a packet in rank order is wanted".into());
                };
                let _ = black_box(slot.take(&job, ticket, &gradient[offset..offset + bytes as usize])?);
            }
        }
        if round.0 >= 2 {
            best = best.max((BYTES * RANKS as usize) as f64 / start.elapsed().as_secs_f64());
        }
    }
    Ok(best)
}

fn stream_add_rate() -> f64 {
    let count = BYTES / size_of::<f64>();
    let (a, b, mut c) = (vec![1.0_f64; count], vec![2.0_f64; count], vec![0.0_f64; count]);
    let mut best = 0.0_f64;
    for _ in 0..STRETCHES {
        let start = Instant::now();
        for ((c, a), b) in c.iter_mut().zip(&a).zip(&b) {
            *c = a + b;
        }
        black_box(&mut c);
        best = best.max((3 * BYTES) as f64 / start.elapsed().as_secs_f64());
    }
    best
}
