// SPDX-License-Identifier: Apache-2.0
//! One packet, step by step: whose turn it is, what waits, and what is refused.

use foresee_units::Bytes;

use super::*;
use crate::{Dtype, Op, Pattern, PlanConfig, TensorId, TensorSpec, Wire};

const PACKET: PacketId = PacketId { tensor: TensorId(0), packet: 0 };

/// A server with one packet of two floats.
struct Bench {
    plan: Plan,
    members: Members,
    budget: Arc<EarlyBudget>,
    pair: SlotPair,
    oldest: Round,
}

impl Bench {
    fn new(ranks: u32, budget: u64, dtype: Dtype) -> Self {
        Self::of(ranks, budget, dtype, Op::Mean)
    }

    fn of(ranks: u32, budget: u64, dtype: Dtype, op: Op) -> Self {
        let tensor =
            TensorSpec { name: "w".to_owned(), dtype, shape: vec![2], strides: vec![1], class: 0, op };
        let pattern = Pattern::new(&[1]).unwrap();
        let config = PlanConfig { packet_bytes: 64, wire: Wire::Own, pattern };
        Self {
            plan: Plan::new(config, vec![tensor]).unwrap(),
            members: Members::new(0, ranks, (0..ranks).map(Rank)).unwrap(),
            budget: EarlyBudget::new(Bytes::new(budget)),
            pair: SlotPair::default(),
            oldest: Round(0),
        }
    }

    fn job<T>(&mut self, act: impl FnOnce(&mut SlotPair, &JobView<'_>) -> T) -> T {
        let job = JobView {
            plan: &self.plan,
            members: &self.members,
            early_budget: &self.budget,
            oldest: self.oldest,
        };
        act(&mut self.pair, &job)
    }

    fn sender(&self, rank: u32, round: u64) -> Sender {
        Sender { rank: Rank(rank), generation: self.members.generation(), round: Round(round) }
    }

    fn ask(&mut self, rank: u32, round: u64) -> Result<Verdict, QueueError> {
        let (sender, bytes) = (self.sender(rank, round), self.plan.bytes(TensorId(0)).unwrap().get());
        self.job(|pair, job| pair.admit(job, PACKET, sender, bytes))
    }

    fn ticket(&mut self, rank: u32, round: u64) -> Admission {
        match self.ask(rank, round).unwrap() {
            Verdict::Read(ticket) => ticket,
            other => panic!("expected to read, got {other:?}"),
        }
    }

    fn bring(&mut self, ticket: Admission, value: f32) -> Progress {
        let payload = [value.to_le_bytes(), (-value).to_le_bytes()].concat();
        self.job(|pair, job| pair.accept(job, ticket, &mut Buffer::from(&*payload))).unwrap()
    }

    fn push(&mut self, rank: u32, round: u64, value: f32) -> Outcome {
        let ticket = self.ticket(rank, round);
        self.bring(ticket, value).outcome
    }

    fn skip(&mut self, rank: u32, round: u64) -> Result<Progress, QueueError> {
        let sender = self.sender(rank, round);
        self.job(|pair, job| pair.skip(job, PACKET, sender, false))
    }

    fn result(&self, round: u64) -> Option<(f32, u16)> {
        let sum = self.pair.ready(Round(round))?;
        let first = f32::from_le_bytes(sum.bytes()[..4].try_into().unwrap());
        assert_eq!(sum.bytes()[4..], (-first).to_le_bytes());
        Some((first, sum.contributors()))
    }
}

#[test]
fn contributions_are_added_in_rank_order_for_any_order_of_arrival() {
    let mut bench = Bench::new(4, 1 << 20, Dtype::F32);
    assert_eq!(bench.push(3, 0, 4.0), Outcome::Buffered);
    assert_eq!(bench.push(2, 0, 1.0), Outcome::Buffered);
    assert_eq!(bench.budget.used(), Bytes::new(16));
    assert_eq!(bench.push(1, 0, -1e8), Outcome::Counted, "the second may come first");
    assert_eq!(bench.result(0), None);
    assert_eq!(bench.push(0, 0, 1e8), Outcome::Ready);
    assert_eq!(bench.result(0), Some((((1e8 + -1e8) + 1.0 + 4.0) / 4.0, 4)));
    assert_eq!(bench.budget.used(), Bytes::ZERO);
}

#[test]
fn without_budget_a_payload_is_held_until_its_turn_and_its_reader_is_woken() {
    let mut bench = Bench::new(3, 7, Dtype::F32);
    assert!(matches!(bench.ask(2, 0), Ok(Verdict::Hold)));
    let first = bench.ticket(1, 0);
    assert!(!bench.bring(first, 2.0).wake, "rank 0 is still missing");
    assert!(matches!(bench.ask(2, 0), Ok(Verdict::Hold)));
    let second = bench.ticket(0, 0);
    assert!(bench.bring(second, 1.0).wake);
    assert_eq!(bench.push(2, 0, 3.0), Outcome::Ready);
    assert_eq!(bench.result(0), Some((2.0, 3)));
}

#[test]
fn a_decision_stays_valid_while_other_ranks_contribute() {
    let mut bench = Bench::new(4, 1 << 20, Dtype::F32);
    let tickets: Vec<Admission> = (0..4).rev().map(|rank| bench.ticket(rank, 0)).collect();
    assert_eq!(bench.budget.used(), Bytes::new(16), "ranks 2 and 3 have room, the first two need none");
    let outcomes: Vec<Outcome> = tickets
        .into_iter()
        .zip([8.0, 4.0, 2.0, 1.0])
        .map(|(t, value)| bench.bring(t, value).outcome)
        .collect();
    assert_eq!(outcomes, [Outcome::Buffered, Outcome::Buffered, Outcome::Counted, Outcome::Ready]);
    assert_eq!(bench.result(0), Some((15.0 / 4.0, 4)));
}

#[test]
fn a_dropped_admission_has_no_effect_and_a_second_payload_does_not_count() {
    let mut bench = Bench::new(3, 8, Dtype::F32);
    let lost = bench.ticket(2, 0);
    assert!(matches!(bench.ask(2, 0), Ok(Verdict::Hold)), "the room is taken by the first connection");
    drop(lost);
    let (one, two) = (bench.ticket(0, 0), bench.ticket(0, 0));
    assert_eq!(bench.bring(one, 1.0).outcome, Outcome::Counted);
    assert_eq!(bench.bring(two, 1.0).outcome, Outcome::Ignored(DiscardReason::Repeated));
    assert!(matches!(bench.ask(0, 0), Ok(Verdict::Discard(DiscardReason::Repeated))));
    assert_eq!(bench.push(2, 0, 3.0), Outcome::Buffered);
    assert!(matches!(bench.ask(2, 0), Ok(Verdict::Discard(DiscardReason::Repeated))));
    assert_eq!(bench.push(1, 0, 2.0), Outcome::Ready);
    assert!(matches!(bench.ask(1, 0), Ok(Verdict::Discard(DiscardReason::Answered))));
}

#[test]
fn a_mean_counts_every_live_rank_and_a_sum_none() {
    for (op, expected) in [(Op::Mean, 2.0_f32), (Op::Sum, 6.0)] {
        let mut bench = Bench::of(3, 0, Dtype::F32, op);
        assert_eq!(bench.skip(0, 0).unwrap().outcome, Outcome::Counted);
        assert_eq!(bench.push(1, 0, 6.0), Outcome::Counted);
        assert_eq!(bench.skip(2, 0).unwrap().outcome, Outcome::Ready);
        assert_eq!(bench.result(0), Some((expected, 1)), "{op}");
    }
}

#[test]
fn ranks_that_skip_are_not_added_and_minus_zero_is_preserved() {
    let mut bench = Bench::new(3, 0, Dtype::F32);
    assert_eq!(bench.skip(0, 0).unwrap().outcome, Outcome::Counted);
    assert_eq!(bench.skip(0, 0).unwrap().outcome, Outcome::Ignored(DiscardReason::Repeated));
    assert_eq!(bench.push(1, 0, -0.0), Outcome::Counted);
    assert_eq!(bench.skip(2, 0).unwrap().outcome, Outcome::Ready);
    let (value, contributors) = bench.result(0).unwrap();
    assert_eq!((value.to_bits(), contributors), ((-0.0_f32).to_bits(), 1));
    for rank in 0..2 {
        assert_eq!(bench.skip(rank, 1).unwrap().outcome, Outcome::Counted);
    }
    assert_eq!(bench.skip(2, 1).unwrap().outcome, Outcome::Unused);
    assert_eq!(bench.result(1), None);
    let error = bench.ask(2, 1).unwrap_err();
    assert_eq!(error.to_string(), "rank 2 both pushes and skips 'w' in round 1");
}

#[test]
fn a_skip_wakes_the_reader_whose_turn_it_brings() {
    let mut bench = Bench::new(3, 0, Dtype::F32);
    assert!(matches!(bench.ask(2, 0), Ok(Verdict::Hold)));
    let progress = bench.skip(1, 0).unwrap();
    assert!(progress.wake, "rank 2 is the second now, and the first two may come in either order");
    assert_eq!(bench.push(2, 0, 5.0), Outcome::Counted);
    assert_eq!(bench.push(0, 0, 1.0), Outcome::Ready);
    assert_eq!(bench.result(0), Some((2.0, 2)));
}

#[test]
fn a_result_is_available_until_the_round_after_the_next_and_its_writers_share_it() {
    let mut bench = Bench::new(2, 0, Dtype::F32);
    for round in 0..2_u8 {
        bench.push(0, u64::from(round), f32::from(round));
        bench.push(1, u64::from(round), f32::from(round));
    }
    let writing = Arc::clone(bench.pair.ready(Round(0)).unwrap());
    assert_eq!((bench.result(0), bench.result(1)), (Some((0.0, 2)), Some((1.0, 2))));
    bench.push(0, 2, 5.0);
    assert_eq!((bench.result(0), bench.result(2)), (None, None));
    bench.push(1, 2, 5.0);
    assert_eq!(writing.bytes()[..4], 0.0_f32.to_le_bytes());
    assert_eq!((bench.result(1), bench.result(2)), (Some((1.0, 2)), Some((5.0, 2))));
    assert!(matches!(bench.ask(0, 0), Ok(Verdict::Discard(DiscardReason::Done))));
}

#[test]
fn a_rank_that_runs_ahead_is_refused_by_name() {
    let mut bench = Bench::new(2, 0, Dtype::F32);
    bench.push(0, 0, 1.0);
    for round in [1, 2] {
        let message = bench.ask(0, round).unwrap_err().to_string();
        assert!(
            message.starts_with(&format!("rank 0 sends 'w' of round {round} while round 0 of it is")),
            "{message}"
        );
    }
    assert!(matches!(bench.ask(0, u64::MAX), Err(QueueError::RoundAhead { oldest: Round(0), .. })));
    assert!(matches!(bench.skip(0, 0), Err(QueueError::PushedAndSkipped { .. })));
    assert!(matches!(bench.ask(2, 0), Err(QueueError::NotAMember { rank: Rank(2), generation: 0 })));
    let sender = bench.sender(1, 0);
    let short = bench.job(|pair, job| pair.admit(job, PACKET, sender, 4).map(drop));
    assert!(matches!(short, Err(QueueError::PacketLength { bytes: 4, expected: 8, .. })));
    let beyond = PacketId { packet: 1, ..PACKET };
    let skipped = bench.job(|pair, job| pair.skip(job, beyond, sender, false));
    assert!(matches!(skipped, Err(QueueError::NoSuchPacket { .. })));
    assert_eq!(bench.push(1, 0, 3.0), Outcome::Ready, "refusals change nothing");
}

#[test]
fn a_new_generation_drops_unfinished_sums_and_retains_results() {
    let mut bench = Bench::new(3, 1 << 20, Dtype::F32);
    for rank in 0..3 {
        bench.push(rank, 0, 6.0);
    }
    bench.push(2, 1, 100.0);
    let late = bench.ticket(0, 1);
    bench.members = bench.members.without(&[Rank(2)]).unwrap();
    let members = bench.members.clone();
    assert_eq!(bench.pair.adopt(&members), 1);
    assert_eq!(bench.budget.used(), Bytes::ZERO);
    assert_eq!(bench.bring(late, 50.0).outcome, Outcome::Ignored(DiscardReason::OldGeneration));
    let old = Sender { rank: Rank(0), generation: 0, round: Round(1) };
    let verdict = bench.job(|pair, job| pair.admit(job, PACKET, old, 8)).unwrap();
    assert!(matches!(verdict, Verdict::Discard(DiscardReason::OldGeneration)));
    let newer = Sender { generation: 2, ..old };
    assert!(matches!(bench.job(|pair, job| pair.admit(job, PACKET, newer, 8)), Ok(Verdict::Hold)));
    assert_eq!(bench.result(0), Some((6.0, 3)));
    assert_eq!(bench.pair.missing(&members, Round(1)).count(), 0, "nobody has begun it again");
    bench.push(1, 1, 2.0);
    assert_eq!(bench.pair.missing(&members, Round(1)).collect::<Vec<_>>(), [Rank(0)]);
    bench.push(0, 1, 1.0);
    assert_eq!(bench.result(1), Some((1.5, 2)));
}

#[test]
fn a_tensor_that_only_a_lost_rank_pushed_becomes_zeros() {
    let mut bench = Bench::new(2, 0, Dtype::Bf16);
    for rank in 0..2 {
        let sender = bench.sender(rank, 0);
        let progress = bench.job(|pair, job| pair.skip(job, PACKET, sender, true)).unwrap();
        assert_eq!(progress.outcome, if rank == 0 { Outcome::Counted } else { Outcome::Ready });
    }
    let sum = bench.pair.ready(Round(0)).unwrap();
    assert_eq!((sum.bytes(), sum.contributors()), (&[0_u8; 4][..], 0));
}

#[test]
fn unfinished_sums_of_a_done_round_do_not_block_the_slot() {
    let mut bench = Bench::new(2, 0, Dtype::F32);
    bench.push(0, 0, 1.0);
    bench.oldest = Round(1);
    assert!(matches!(bench.ask(1, 0), Ok(Verdict::Discard(DiscardReason::Done))));
    bench.pair.forget_done(Round(0));
    assert_eq!(bench.pair.missing(&bench.members, Round(0)).count(), 1);
    bench.pair.forget_done(Round(1));
    assert_eq!(bench.pair.missing(&bench.members, Round(0)).count(), 0);
    assert_eq!(bench.push(0, 2, 1.0), Outcome::Counted);
}

#[test]
fn slots_move_between_threads_and_results_and_budgets_are_shared() {
    fn moves<T: Send>() {}
    fn is_shared<T: Send + Sync>() {}
    moves::<SlotPair>();
    moves::<Admission>();
    is_shared::<Sum>();
    is_shared::<EarlyBudget>();
}

#[test]
fn a_packet_takes_less_than_256_bytes_without_its_sums() {
    assert!(size_of::<SlotPair>() <= 256, "{}", size_of::<SlotPair>());
}

#[test]
#[should_panic(expected = "members are looked up under the packet's lock")]
fn older_members_are_a_defect_of_the_caller() {
    let mut bench = Bench::new(2, 0, Dtype::F32);
    let old = bench.members.clone();
    bench.pair.adopt(&old.without(&[Rank(1)]).unwrap());
    bench.pair.adopt(&old);
}
