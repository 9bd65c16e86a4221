// SPDX-License-Identifier: Apache-2.0
//! The rules by which two slots per packet suffice and no exchange stops, both followed and broken.
//!
//! One server with one packet per tensor uses the crate's slots. The ranks are implemented here, so that they can
//! break a rule. A rank sends its contributions in a random order over one connection, which an early payload
//! blocks if the server has no memory for it. Round ends and results arrive at any time, round ends in order. The
//! cluster tests of `foresee-grad-session` cover whole exchanges with losses.

#![expect(clippy::unwrap_used, reason = "all of it is a test")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use foresee_grad_queue::{
    Buffer, Dtype, EarlyBudget, JobView, Members, Op, Outcome, PacketId, Pattern, Plan, PlanConfig, Progress,
    Round, Sender, SlotPair, Sum, TensorId, TensorSpec, Verdict, Wire,
};
use foresee_testkit::{Dice, seeds};
use foresee_units::{Bytes, Rank};

const ROUNDS: u64 = 5;

/// The rules that the ranks follow.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// All results of the last round are received before a round is ended.
    receive_before_end: bool,
    /// A rank that skipped a tensor waits for the report whether it was used before it uses the tensor again.
    wait_for_used: bool,
    /// Contributions of a round are sent before those of later rounds.
    rounds_in_order: bool,
}

const KEPT: Rules = Rules { receive_before_end: true, wait_for_used: true, rounds_in_order: true };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The forward pass uses its n-th tensor.
    Forward(usize),
    /// The backward pass yields its n-th gradient.
    Backward(usize),
}

struct Player {
    round: u64,
    phase: Phase,
    uses: Vec<Vec<u32>>,
    pushes: Vec<Vec<u32>>,
    received: BTreeSet<(u64, u32)>,
    used: BTreeMap<u64, BTreeSet<u32>>,
    /// Contributions that wait to be sent, and those in the connection.
    waiting: Vec<(u64, u32)>,
    sent: VecDeque<(u64, u32)>,
    ending: VecDeque<u64>,
    arriving: Vec<(u64, u32, Arc<Sum>)>,
    hearing: Vec<u64>,
}

struct Game {
    rules: Rules,
    /// Contributions are sent only when nothing else can happen.
    is_slow: bool,
    dice: Dice,
    plan: Plan,
    members: Members,
    early_bytes: Bytes,
    early_budget: Arc<EarlyBudget>,
    pairs: Vec<SlotPair>,
    players: Vec<Player>,
    ended: BTreeMap<u64, BTreeSet<u32>>,
    gradients: BTreeMap<(u32, u64, u32), f32>,
}

#[derive(Clone, Copy, Debug)]
enum Move {
    Step(usize),
    Send(usize, usize),
    Push(usize),
    End(usize),
    Receive(usize, usize),
    Hear(usize, usize),
}

impl Game {
    fn new(seed: u64, rules: Rules) -> Self {
        let mut dice = Dice::new(seed);
        let ranks = 2 + u32::try_from(dice.below(4)).unwrap();
        let tensors = 1 + u32::try_from(dice.below(4)).unwrap();
        let spec = |tensor: u32| TensorSpec {
            name: format!("t{tensor}"),
            dtype: Dtype::F32,
            shape: vec![1],
            strides: vec![1],
            class: 0,
            op: Op::Mean,
        };
        let pattern = Pattern::new(&[1]).unwrap();
        let config = PlanConfig { packet_bytes: 64, wire: Wire::Own, pattern };
        let all: Vec<u32> = (0..tensors).collect();
        let players = (0..ranks).map(|_| {
            let uses: Vec<Vec<u32>> = (0..ROUNDS).map(|_| dice.some_of(&all)).collect();
            let pushes = uses.iter().map(|uses| dice.some_of(uses)).collect();
            Player {
                round: 0,
                phase: Phase::Forward(0),
                uses,
                pushes,
                received: BTreeSet::new(),
                used: BTreeMap::new(),
                waiting: Vec::new(),
                sent: VecDeque::new(),
                ending: VecDeque::new(),
                arriving: Vec::new(),
                hearing: Vec::new(),
            }
        });
        let players = players.collect();
        let early_bytes = Bytes::new(dice.pick(&[0, 4, 8, 1 << 20]));
        Self {
            rules,
            is_slow: dice.one_in(2),
            dice,
            plan: Plan::new(config, (0..tensors).map(spec).collect()).unwrap(),
            members: Members::new(0, ranks, (0..ranks).map(Rank)).unwrap(),
            early_bytes,
            early_budget: EarlyBudget::new(early_bytes),
            pairs: (0..tensors).map(|_| SlotPair::default()).collect(),
            players,
            ended: BTreeMap::new(),
            gradients: BTreeMap::new(),
        }
    }

    /// Run to the end, or return a description of the fault.
    fn play(mut self) -> Result<(), String> {
        loop {
            let moves = self.moves();
            if moves.is_empty() {
                break;
            }
            // A payload without memory stays in its connection; if only such moves are left, the exchange is
            // stuck.
            let is_later = |chosen: &Move| self.is_slow && matches!(chosen, Move::Send(..));
            let (mut later, mut left): (Vec<_>, Vec<_>) = moves.into_iter().partition(is_later);
            loop {
                if left.is_empty() {
                    left = std::mem::take(&mut later);
                }
                if left.is_empty() {
                    return Err("deadlock".to_owned());
                }
                let chosen = left.swap_remove(self.dice.below(left.len()));
                if self.act(chosen)? {
                    break;
                }
            }
            if self.early_budget.peak() > self.early_bytes {
                return Err("buffered beyond the budget".to_owned());
            }
        }
        if self.players.iter().any(|player| player.round < ROUNDS) {
            return Err("a rank waits forever".to_owned());
        }
        if self.early_budget.used() > Bytes::ZERO {
            return Err("something is held after the last round".to_owned());
        }
        Ok(())
    }

    fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        for (at, player) in self.players.iter().enumerate() {
            if player.round < ROUNDS && self.may_step(player) {
                moves.push(Move::Step(at));
            }
            let oldest = player.waiting.iter().map(|(round, _)| *round).min();
            let may_send =
                |message: &usize| !self.rules.rounds_in_order || Some(player.waiting[*message].0) == oldest;
            moves.extend((0..player.waiting.len()).filter(may_send).map(|message| Move::Send(at, message)));
            moves.extend((!player.sent.is_empty()).then_some(Move::Push(at)));
            moves.extend((!player.ending.is_empty()).then_some(Move::End(at)));
            moves.extend((0..player.arriving.len()).map(|message| Move::Receive(at, message)));
            moves.extend((0..player.hearing.len()).map(|message| Move::Hear(at, message)));
        }
        moves
    }

    fn may_step(&self, player: &Player) -> bool {
        let at = usize::try_from(player.round).unwrap();
        match player.phase {
            Phase::Forward(nth) => {
                let tensor = player.uses[at].get(nth);
                tensor.is_none_or(|tensor| Self::is_settled(player, *tensor, self.rules.wait_for_used))
            }
            Phase::Backward(nth) if nth < player.pushes[at].len() => true,
            Phase::Backward(_) => {
                let mut tensors = 0..self.plan.tensors();
                !self.rules.receive_before_end || tensors.all(|tensor| Self::is_settled(player, tensor, true))
            }
        }
    }

    fn is_settled(player: &Player, tensor: u32, wait_for_used: bool) -> bool {
        (0..player.round).all(|round| {
            let pushed = player.pushes[usize::try_from(round).unwrap()].contains(&tensor);
            let used = player.used.get(&round).map(|used| used.contains(&tensor));
            let wanted = pushed || used.unwrap_or(false);
            let known = pushed || used.is_some() || !wait_for_used;
            known && (!wanted || player.received.contains(&(round, tensor)))
        })
    }

    /// Make a move; return `false` if it has to wait.
    fn act(&mut self, chosen: Move) -> Result<bool, String> {
        match chosen {
            Move::Step(at) => self.step(at),
            Move::Send(at, message) => {
                let player = &mut self.players[at];
                player.sent.push_back(player.waiting.swap_remove(message));
            }
            Move::Push(at) => return self.push(at),
            Move::End(at) => self.end(at)?,
            Move::Receive(at, message) => self.receive(at, message)?,
            Move::Hear(at, message) => {
                let round = self.players[at].hearing.swap_remove(message);
                let pushed = |player: &Player| player.pushes[usize::try_from(round).unwrap()].clone();
                let used = self.players.iter().flat_map(pushed).collect();
                self.players[at].used.insert(round, used);
            }
        }
        Ok(true)
    }

    fn step(&mut self, at: usize) {
        let rank = u32::try_from(at).unwrap();
        let (player, dice) = (&mut self.players[at], &mut self.dice);
        let round = player.round;
        let nth_round = usize::try_from(round).unwrap();
        match player.phase {
            Phase::Forward(nth) if nth < player.uses[nth_round].len() => {
                player.phase = Phase::Forward(nth + 1);
            }
            Phase::Forward(_) => player.phase = Phase::Backward(0),
            Phase::Backward(nth) if nth < player.pushes[nth_round].len() => {
                let tensor = player.pushes[nth_round][nth];
                self.gradients.insert((rank, round, tensor), dice.value());
                player.waiting.push((round, tensor));
                player.phase = Phase::Backward(nth + 1);
            }
            Phase::Backward(_) => {
                player.ending.push_back(round);
                (player.round, player.phase) = (round + 1, Phase::Forward(0));
            }
        }
    }

    fn push(&mut self, at: usize) -> Result<bool, String> {
        let rank = u32::try_from(at).unwrap();
        let (round, tensor) = self.players[at].sent[0];
        let mut payload = Buffer::from(&self.gradients[&(rank, round, tensor)].to_le_bytes()[..]);
        let progress = self.on_slot(rank, round, tensor, |pair, job, packet, sender| {
            match pair.admit(job, packet, sender, 4).map_err(|error| error.to_string())? {
                Verdict::Hold => Ok(None),
                Verdict::Discard(why) => Err(format!("a first push was dropped: {why:?}")),
                Verdict::Read(ticket) => {
                    pair.accept(job, ticket, &mut payload).map(Some).map_err(|error| error.to_string())
                }
            }
        })?;
        let Some(progress) = progress else { return Ok(false) };
        self.players[at].sent.pop_front();
        self.offer(round, tensor, progress);
        Ok(true)
    }

    fn end(&mut self, at: usize) -> Result<(), String> {
        let rank = u32::try_from(at).unwrap();
        let Some(round) = self.players[at].ending.pop_front() else { return Ok(()) };
        for tensor in 0..self.plan.tensors() {
            if self.players[at].pushes[usize::try_from(round).unwrap()].contains(&tensor) {
                continue;
            }
            let progress = self.on_slot(rank, round, tensor, |pair, job, packet, sender| {
                pair.skip(job, packet, sender, false).map_err(|error| error.to_string())
            })?;
            self.offer(round, tensor, progress);
        }
        let ended = self.ended.entry(round).or_default();
        ended.insert(rank);
        if ended.len() == self.players.len() {
            self.players.iter_mut().for_each(|player| player.hearing.push(round));
        }
        Ok(())
    }

    /// Apply a call to a tensor's slots, and check that no result that a rank still needs is dropped.
    fn on_slot<T>(
        &mut self,
        rank: u32,
        round: u64,
        tensor: u32,
        act: impl FnOnce(&mut SlotPair, &JobView<'_>, PacketId, Sender) -> Result<T, String>,
    ) -> Result<T, String> {
        let job = JobView {
            plan: &self.plan,
            members: &self.members,
            early_budget: &self.early_budget,
            oldest: Round(0),
        };
        let packet = PacketId { tensor: TensorId(tensor), packet: 0 };
        let sender = Sender { rank: Rank(rank), generation: 0, round: Round(round) };
        let pair = &mut self.pairs[usize::try_from(tensor).unwrap()];
        let ready = |pair: &SlotPair| {
            (0..ROUNDS).filter(|round| pair.ready(Round(*round)).is_some()).collect::<Vec<_>>()
        };
        let before = ready(pair);
        let result = act(pair, &job, packet, sender)?;
        let after = ready(pair);
        for gone in before.iter().filter(|round| !after.contains(round)) {
            if !self.players.iter().all(|player| player.received.contains(&(*gone, tensor))) {
                return Err(format!("round {gone} of t{tensor} lost its slot before every rank had it"));
            }
        }
        Ok(result)
    }

    fn offer(&mut self, round: u64, tensor: u32, progress: Progress) {
        if progress.outcome == Outcome::Ready {
            let sum =
                self.pairs[usize::try_from(tensor).unwrap()].ready(Round(round)).expect("just completed");
            self.players.iter_mut().for_each(|player| player.arriving.push((round, tensor, Arc::clone(sum))));
        }
    }

    fn receive(&mut self, at: usize, message: usize) -> Result<(), String> {
        let (round, tensor, sum) = self.players[at].arriving.swap_remove(message);
        let of = |rank: u32| self.gradients.get(&(rank, round, tensor)).copied();
        let gradients: Vec<f32> = self.members.iter().filter_map(|rank| of(rank.0)).collect();
        let total =
            gradients.iter().copied().reduce(|sum, value| sum + value).expect("at least one rank pushed it");
        let mean = total / f32::from(u16::try_from(self.members.count()).unwrap());
        if usize::from(sum.contributors()) != gradients.len() || sum.bytes() != mean.to_le_bytes() {
            return Err(format!("round {round} of t{tensor} is not the mean in rank order"));
        }
        self.players[at].received.insert((round, tensor));
        Ok(())
    }
}

/// The faults in a range of games, by kind with their number.
fn faults(rules: Rules, games: Range<u64>) -> BTreeMap<String, u32> {
    let mut faults = BTreeMap::new();
    for seed in games {
        if let Err(fault) = Game::new(seed, rules).play() {
            *faults.entry(fault).or_default() += 1;
        }
    }
    faults
}

#[test]
fn with_all_rules_every_random_exchange_is_correct() {
    assert_eq!(faults(KEPT, seeds(5_000)), BTreeMap::new());
}

#[test]
fn without_the_first_rule_a_slot_is_taken_too_early() {
    let faults = faults(Rules { receive_before_end: false, ..KEPT }, seeds(5_000));
    assert!(!faults.is_empty(), "the harness would not notice");
    assert!(
        faults.keys().any(|fault| fault.contains("lost its slot") || fault.contains("still being summed"))
    );
}

#[test]
fn without_the_second_rule_a_slot_is_taken_too_early() {
    let faults = faults(Rules { wait_for_used: false, ..KEPT }, seeds(5_000));
    assert!(!faults.is_empty(), "the harness would not notice");
    assert!(
        faults.keys().any(|fault| fault.contains("lost its slot") || fault.contains("still being summed"))
    );
}

#[test]
fn a_newer_round_ahead_of_an_older_one_can_block_the_exchange() {
    let faults = faults(Rules { rounds_in_order: false, ..KEPT }, seeds(5_000));
    assert!(faults.contains_key("deadlock"), "the harness would not notice: {faults:?}");
}
