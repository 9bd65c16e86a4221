// SPDX-License-Identifier: Apache-2.0
//! Lost ranks while the others continue: all live ranks get the same bits, and soon the mean of themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use foresee_grad_exchange::{
    ExchangeError, Gradient, GradientExchange, RankOptions, ServerExchange, WaitOutcome,
};
use foresee_grad_queue::{TensorId, TensorSpec};
use foresee_testkit::pause;
use foresee_units::Bytes;
use foresee_wire::Secret;

use crate::proxy::Proxy;
use crate::setup::{LONG, PACKET, Setup, reference, tensors};
use crate::values::gradient;

/// The ranks that are lost, each with the round and the time after its start.
type Losses = BTreeMap<u32, (u64, Duration)>;
/// The averages of ranks, by round and tensor.
type Results = Arc<Mutex<BTreeMap<(u64, usize), Vec<u8>>>>;

/// Whether a rank pushes a tensor: in some rounds some ranks skip some tensors; in the last rounds none does.
fn pushes(rank: u32, tensor: usize, round: u64, rounds: u64) -> bool {
    round + 5 >= rounds || !(rank as usize + 2 * tensor + usize::try_from(round).unwrap()).is_multiple_of(4)
}

struct Run {
    setup: Setup,
    rounds: u64,
    losses: Losses,
    results: Results,
    proxy: Proxy,
}

impl Run {
    fn rank(&self, exchange: &ServerExchange) -> Result<(), ExchangeError> {
        let (specs, rank) = (tensors(), exchange.rank().0);
        exchange.agree(specs.clone())?;
        for round in 0..self.rounds {
            if let Some((_, after)) = self.losses.get(&rank).filter(|(when, _)| *when == round) {
                let (proxy, after) = (self.proxy.clone(), *after);
                thread::spawn(move || {
                    pause(after);
                    proxy.cut();
                });
            }
            for (tensor, spec) in specs.iter().enumerate().rev() {
                if pushes(rank, tensor, round, self.rounds) {
                    let id = TensorId(u32::try_from(tensor).unwrap());
                    exchange.push(id, Gradient::from_bytes(gradient(spec, rank, round)))?;
                }
            }
            assert!(exchange.end_round(LONG)?.is_some(), "{}", exchange.missing());
            for (tensor, spec) in specs.iter().enumerate() {
                let id = TensorId(u32::try_from(tensor).unwrap());
                let waited = exchange.wait(&[id], LONG)?;
                assert_eq!(
                    waited,
                    WaitOutcome::Received,
                    "rank {rank} in round {round}: {}",
                    exchange.missing()
                );
                self.compare(exchange, (round, tensor), spec, id)?;
            }
        }
        assert_eq!(exchange.wait_all(LONG)?, WaitOutcome::Received);
        Ok(())
    }

    /// Check that every packet is a mean of the ranks that were live at some time, and equal on all ranks.
    fn compare(
        &self,
        exchange: &ServerExchange,
        (round, tensor): (u64, usize),
        spec: &TensorSpec,
        id: TensorId,
    ) -> Result<(), ExchangeError> {
        if exchange.used(id)? != Some(true) {
            return Ok(());
        }
        let average = exchange.average(id)?.to_vec();
        // Any subset of the lost ranks may have still been live.
        let lost: Vec<u32> = self.losses.keys().copied().collect();
        let means = (0..1_u32 << lost.len()).map(|gone| {
            let is_gone =
                |rank: &u32| lost.iter().position(|one| one == rank).is_some_and(|at| gone >> at & 1 == 1);
            let alive: Vec<u32> = (0..self.setup.world).filter(|rank| !is_gone(rank)).collect();
            let who: Vec<u32> =
                alive.iter().copied().filter(|rank| pushes(*rank, tensor, round, self.rounds)).collect();
            let count = u32::try_from(alive.len()).unwrap();
            if who.is_empty() {
                vec![0; average.len()]
            } else {
                reference(spec, self.setup.wire, &who, count, round)
            }
        });
        let means: Vec<_> = means.collect();
        let (packet, last) = (PACKET as usize, means.last().unwrap());
        for (at, bytes) in average.chunks(packet).enumerate() {
            let range = at * packet..at * packet + bytes.len();
            let fits = means.iter().any(|mean| &mean[range.clone()] == bytes);
            assert!(fits, "packet {at} of {} in round {round} is no mean of live ranks", spec.name);
        }
        if round + 5 >= self.rounds {
            assert!(&average == last, "{} in round {round}", spec.name);
        }
        let mut results = self.results.lock().unwrap();
        let first = results.entry((round, tensor)).or_insert_with(|| average.clone());
        assert!(*first == average, "{} in round {round} differs between ranks", spec.name);
        Ok(())
    }
}

/// Run all ranks, and check the errors and losses that each reports.
fn run(setup: &Setup, rounds: u64, losses: &Losses) {
    let secret = Secret::draw().unwrap();
    let setup = Setup { continue_on_rank_loss: true, ..setup.clone() };
    let servers = setup.serve(&secret);
    let results = Results::default();
    let ranks: Vec<_> = (0..setup.world)
        .map(|rank| {
            let proxy = Proxy::default();
            let options = setup.rank(rank, &servers, &secret);
            let options = if losses.contains_key(&rank) {
                let through = options.servers.iter().map(|server| proxy.to(*server)).collect();
                RankOptions { servers: through, recover: false, ..options }
            } else {
                options
            };
            let (setup, losses, results) = (setup.clone(), losses.clone(), Arc::clone(&results));
            let run = Run { setup, rounds, losses, results, proxy };
            thread::spawn(move || {
                let exchange = ServerExchange::open(options).unwrap();
                let outcome = run.rank(&exchange);
                let notices = exchange.take_notices();
                let lost = exchange.stats().ranks_lost;
                exchange.close();
                (outcome, lost, notices)
            })
        })
        .collect();
    for (rank, thread) in (0..).zip(ranks) {
        let (outcome, lost, notices) = thread.join().unwrap();
        if losses.contains_key(&rank) {
            assert!(outcome.is_err(), "rank {rank} was cut off");
        } else {
            outcome.unwrap_or_else(|why| panic!("rank {rank}: {why}"));
            assert!((1..=losses.len() as u64).contains(&lost), "{notices:?}");
            assert!(notices[0].contains("is lost"), "{notices:?}");
        }
    }
}

/// Two of four ranks are lost in one round, without an early buffer.
#[test]
fn after_two_ranks_are_cut_off_the_others_get_equal_bits_and_soon_their_own_mean() {
    let after = Duration::from_micros;
    let two = BTreeMap::from([(0, (5, after(1_900))), (2, (5, after(800)))]);
    run(&Setup { early_buffer: Bytes::ZERO, ..Setup::new(4, 2) }, 16, &two);
}
