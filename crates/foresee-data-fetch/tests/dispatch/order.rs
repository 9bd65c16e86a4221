// SPDX-License-Identifier: Apache-2.0
//! The order of requests, joined reads, and the effect of the consumer's calls.

use foresee_data_fetch::{
    Action, AttemptId, Class, CoalesceConfig, ConsumerRate, Dispatch, DispatchConfig, End, LimitConfig,
    Request,
};
use foresee_units::{Bytes, Nanos, ReadOutcome};

use crate::bench::{Bench, Capped};

const NOW: Nanos = Nanos::from_secs(1);

fn end(outcome: ReadOutcome) -> End {
    End { outcome, bytes: Bytes::ZERO, queued: Nanos::ZERO, service: Nanos::from_millis(20) }
}

fn request(ticket: u64, class: Class, deadline_ms: u64) -> Request {
    let deadline = Nanos::from_millis(deadline_ms);
    Request { ticket, object: ticket, start: 0, len: 1000, class, turn: 0, deadline, group: None }
}

/// Start all requests that may start and end each attempt at once; return the tickets in their order.
fn run_in_order(dispatch: &mut Dispatch, now: Nanos) -> Vec<u64> {
    let mut order = Vec::new();
    while let Some(action) = dispatch.poll_action(now) {
        if let Action::Start { attempt, parts, .. } = action {
            order.extend(parts.iter().map(|part| part.ticket));
            dispatch.handle_end(attempt, end(ReadOutcome::Ok), now);
        }
    }
    order
}

fn start(dispatch: &mut Dispatch, now: Nanos) -> (AttemptId, u64, u64, Vec<u64>) {
    match dispatch.poll_action(now) {
        Some(Action::Start { attempt, start, len, parts, .. }) => {
            (attempt, start, len, parts.iter().map(|part| part.ticket).collect())
        }
        other => panic!("{other:?} instead of a start"),
    }
}

/// A queue that has learned from 40 attempts that one takes 20 ms.
fn experienced(config: DispatchConfig) -> Dispatch {
    let mut dispatch = Dispatch::new(config);
    for ticket in 1_000_000..1_000_040 {
        dispatch.handle_request(request(ticket, Class::Staging, 0), Nanos::ZERO);
    }
    assert_eq!(run_in_order(&mut dispatch, Nanos::ZERO).len(), 40);
    dispatch
}

#[test]
fn inside_a_class_the_earliest_deadline_goes_first_and_ties_go_by_ticket() {
    let mut dispatch = Dispatch::new(DispatchConfig::fixed(1));
    for (ticket, deadline) in [(1, 5000), (2, 3000), (3, 9000), (5, 4000), (4, 4000)] {
        dispatch.handle_request(request(ticket, Class::Staging, deadline), NOW);
    }
    assert_eq!(run_in_order(&mut dispatch, NOW), [2, 4, 5, 1, 3]);
}

#[test]
fn an_earlier_turn_goes_first_even_with_an_unknown_deadline() {
    let mut dispatch = Dispatch::new(DispatchConfig::fixed(1));
    for (ticket, turn, deadline) in [(1, 0, u64::MAX), (2, 1, u64::MAX), (3, 2, 2000), (4, 1, 1500)] {
        let deadline = Nanos::new(deadline);
        let request = Request { turn, deadline, ..request(ticket, Class::Staging, 0) };
        dispatch.handle_request(request, NOW);
    }
    dispatch.handle_urgent(3, NOW);
    assert_eq!(run_in_order(&mut dispatch, NOW), [3, 1, 4, 2]);
}

#[test]
fn a_consumer_rate_determines_unknown_deadlines_of_turns() {
    let mut dispatch = experienced(DispatchConfig::fixed(1));
    dispatch.handle_request(request(1, Class::Fill, 2000), NOW);
    dispatch.handle_request(Request { turn: 6, ..request(2, Class::Staging, u64::MAX / 1_000_000) }, NOW);
    let step = Nanos::from_millis(500);
    let mut late = dispatch.clone();
    dispatch.handle_consumer_rate(Some(ConsumerRate { next: 3, at: NOW, step }));
    assert_eq!(run_in_order(&mut dispatch, NOW), [1, 2], "turn 6 is due in 1.5 s");
    late.handle_consumer_rate(Some(ConsumerRate { next: 6, at: NOW, step }));
    assert_eq!(run_in_order(&mut late, NOW), [2, 1], "turn 6 is wanted");
}

#[test]
fn when_answers_queue_requests_with_slack_yield_to_other_ranks() {
    let limit = LimitConfig { start: 16, min: 16, max: 17, ..LimitConfig::default() };
    let source = Capped::new(Nanos::ZERO, 1_000_000, 100_000_000);
    let mut bench = Bench::new(DispatchConfig { limit, shared: true, ..DispatchConfig::adaptive() }, source);
    bench.stream(5000, 100, |_| 100_000);
    // One answer takes the source a millisecond, so a turn at the limit takes 16 or 17.
    let turn = Nanos::from_millis(u64::from(bench.dispatch.limit()));
    for ticket in 5000..5100 {
        bench.request(ticket, 100_000, Class::Staging, Nanos::MAX);
    }
    let (now, step) = (bench.now, Nanos::from_secs(1));
    let mut in_flight = |turns: u64| {
        let at = now + Nanos::new(turn.get() * turns);
        bench.dispatch.handle_consumer_rate(Some(ConsumerRate { next: 0, at, step }));
        bench.drain();
        bench.dispatch.in_flight()
    };
    assert!((4..=5).contains(&in_flight(7)), "a quarter at seven turns");
    assert!((8..=9).contains(&in_flight(3)), "half at three");
    assert!(in_flight(1) >= 16, "all at one");
}

#[test]
fn before_any_measurement_classes_are_strict() {
    let mut dispatch = Dispatch::new(DispatchConfig::fixed(1));
    for (ticket, class) in [(1, Class::Other), (2, Class::Fill), (3, Class::Staging), (4, Class::Stalling)] {
        dispatch.handle_request(request(ticket, class, 10_000 * ticket), NOW);
    }
    assert_eq!(run_in_order(&mut dispatch, NOW), [4, 3, 2, 1]);
}

#[test]
fn a_lower_class_starts_only_while_higher_ones_have_slack() {
    let mut dispatch = experienced(DispatchConfig::fixed(1));
    dispatch.handle_request(request(1, Class::Fill, 2000), NOW);
    dispatch.handle_request(request(2, Class::Staging, 60_000), NOW);
    assert_eq!(run_in_order(&mut dispatch, NOW), [1, 2], "staging has a minute");
    dispatch.handle_request(request(3, Class::Fill, 900), NOW);
    dispatch.handle_request(request(4, Class::Staging, 1010), NOW);
    assert_eq!(run_in_order(&mut dispatch, NOW), [4, 3], "staging is nearly late");
}

#[test]
fn validation_is_not_starved_by_a_fill_that_has_hours() {
    let mut dispatch = experienced(DispatchConfig::fixed(1));
    for ticket in 0..1000 {
        dispatch.handle_request(request(ticket, Class::Fill, 3_600_000 + ticket), NOW);
    }
    dispatch.handle_request(request(5000, Class::Other, 2000), NOW);
    assert_eq!(start(&mut dispatch, NOW).3, [5000]);
}

#[test]
fn a_request_that_a_consumer_waits_for_goes_first() {
    let mut dispatch = Dispatch::new(DispatchConfig::fixed(1));
    for ticket in 0..10 {
        dispatch.handle_request(request(ticket, Class::Staging, 1000 + ticket), NOW);
    }
    dispatch.handle_urgent(7, NOW);
    dispatch.handle_urgent(99, NOW);
    assert_eq!(run_in_order(&mut dispatch, NOW)[..3], [7, 0, 1]);
}

#[test]
fn a_withdrawn_request_leaves_the_queue_or_cancels_its_read_and_is_never_won() {
    let mut dispatch = Dispatch::new(DispatchConfig::fixed(1));
    dispatch.handle_request(request(1, Class::Staging, 1), NOW);
    dispatch.handle_request(request(2, Class::Staging, 2), NOW);
    let (attempt, ..) = start(&mut dispatch, NOW);
    dispatch.handle_withdraw(2, NOW);
    dispatch.handle_withdraw(1, NOW);
    assert_eq!(dispatch.poll_action(NOW), Some(Action::Cancel { attempt }));
    assert_eq!(dispatch.poll_action(NOW), None);
    assert!(dispatch.handle_end(attempt, end(ReadOutcome::Ok), NOW).is_empty());
    assert_eq!(dispatch.poll_action(NOW), None);
    assert_eq!((dispatch.in_flight(), dispatch.stats().queued), (0, 0));
}

#[test]
fn a_cancel_that_comes_too_late_is_not_sent() {
    let mut dispatch = Dispatch::new(DispatchConfig::fixed(1));
    dispatch.handle_request(request(1, Class::Staging, 1), NOW);
    let (attempt, ..) = start(&mut dispatch, NOW);
    dispatch.handle_withdraw(1, NOW);
    dispatch.handle_end(attempt, end(ReadOutcome::Ok), NOW);
    assert_eq!(dispatch.poll_action(NOW), None);
}

#[test]
#[should_panic(expected = "ticket 1 is in use")]
fn a_ticket_that_has_not_ended_is_not_given_twice() {
    let mut dispatch = Dispatch::new(DispatchConfig::fixed(1));
    dispatch.handle_request(request(1, Class::Staging, 1), NOW);
    dispatch.handle_request(request(1, Class::Staging, 1), NOW);
}

#[test]
fn a_hedge_wins_once_and_its_loser_is_cancelled() {
    let mut dispatch = experienced(DispatchConfig { hedge_share: 1.0, ..DispatchConfig::adaptive() });
    // Hedges are limited to a fraction of moved bytes.
    dispatch.handle_request(request(0, Class::Staging, 0), NOW);
    let (paid, ..) = start(&mut dispatch, NOW);
    let payment = End { bytes: Bytes::new(5000), ..end(ReadOutcome::Ok) };
    dispatch.handle_end(paid, payment, NOW);

    dispatch.handle_request(request(1, Class::Stalling, 0), NOW);
    let (first, ..) = start(&mut dispatch, NOW);
    assert_eq!(dispatch.poll_action(NOW), None);
    let due = dispatch.poll_wakeup().expect("a hedge is due");
    assert!(due > NOW + Nanos::from_millis(20));
    let Some(Action::Start { attempt: hedge, hedge: true, tries: 1, .. }) = dispatch.poll_action(due) else {
        panic!("no hedge at {due}");
    };
    assert_eq!(dispatch.handle_end(hedge, end(ReadOutcome::Ok), due), [1]);
    assert_eq!(dispatch.poll_action(due), Some(Action::Cancel { attempt: first }));
    assert!(dispatch.handle_end(first, end(ReadOutcome::Ok), due).is_empty());
    assert_eq!((dispatch.stats().hedges, dispatch.stats().hedge_wins), (1, 1));
}

#[test]
fn a_hedge_reads_no_part_that_was_withdrawn() {
    let coalesce = joining().coalesce;
    let mut dispatch =
        Dispatch::new(DispatchConfig { hedge_share: 1.0, coalesce, ..DispatchConfig::adaptive() });
    for ticket in 1_000_000..1_000_040 {
        let alike = Request { object: ticket, len: 3000, ..range(ticket, 0, Class::Staging) };
        dispatch.handle_request(alike, Nanos::ZERO);
        let (attempt, ..) = start(&mut dispatch, Nanos::ZERO);
        let came = End { bytes: Bytes::new(3000), ..end(ReadOutcome::Ok) };
        dispatch.handle_end(attempt, came, Nanos::from_millis(20));
    }

    for (ticket, at) in [(11, 1000), (10, 0), (12, 2000)] {
        dispatch.handle_request(range(ticket, at, Class::Stalling), NOW);
    }
    let (first, _, len, tickets) = start(&mut dispatch, NOW);
    assert_eq!((len, tickets), (3000, vec![10, 11, 12]));
    dispatch.handle_withdraw(10, NOW);
    let due = dispatch.poll_wakeup().expect("a hedge is due");
    let Some(Action::Start { attempt, start, len, parts, hedge: true, .. }) = dispatch.poll_action(due)
    else {
        panic!("no hedge at {due}");
    };
    let seen: Vec<(u64, u64)> = parts.iter().map(|part| (part.offset_in_span, part.ticket)).collect();
    assert_eq!((start, len, seen), (1000, 2000, vec![(0, 11), (1000, 12)]));
    assert_eq!(dispatch.handle_end(attempt, end(ReadOutcome::Ok), due), [11, 12]);
    assert_eq!(dispatch.poll_action(due), Some(Action::Cancel { attempt: first }));
}

fn joining() -> DispatchConfig {
    let coalesce = CoalesceConfig { gap: Bytes::new(100), target: Bytes::new(5000), max_parts: 8 };
    DispatchConfig { coalesce: Some(coalesce), ..DispatchConfig::fixed(1) }
}

fn range(ticket: u64, start: u64, class: Class) -> Request {
    Request {
        ticket,
        object: 7,
        start,
        len: 1000,
        class,
        turn: 0,
        deadline: NOW + Nanos::new(ticket),
        group: None,
    }
}

#[test]
fn neighbours_in_an_object_are_read_together_around_the_most_urgent() {
    let mut dispatch = Dispatch::new(joining());
    for (ticket, at) in [(1, 2000), (2, 0), (3, 1000), (4, 3050), (5, 9000), (6, 4100)] {
        dispatch.handle_request(range(ticket, at, Class::Staging), NOW);
    }
    dispatch.handle_request(Request { object: 8, ..range(9, 3000, Class::Staging) }, NOW);
    let Some(Action::Start { attempt, start, len, parts, .. }) = dispatch.poll_action(NOW) else {
        panic!("nothing to start")
    };
    let seen: Vec<(u64, u64)> = parts.iter().map(|part| (part.offset_in_span, part.ticket)).collect();
    assert_eq!((start, len), (1000, 4100), "ticket 2 would exceed the target");
    assert_eq!(seen, [(0, 3), (1000, 1), (2050, 4), (3100, 6)]);
    assert_eq!(dispatch.stats().over_read, Bytes::new(100));
    assert_eq!(dispatch.handle_end(attempt, end(ReadOutcome::Ok), NOW).len(), 4);
    assert_eq!(run_in_order(&mut dispatch, NOW), [2, 5, 9]);
}

#[test]
fn a_read_that_a_consumer_waits_for_is_not_extended() {
    let mut dispatch = Dispatch::new(joining());
    dispatch.handle_request(range(1, 0, Class::Stalling), NOW);
    dispatch.handle_request(range(2, 1000, Class::Staging), NOW);
    assert_eq!(start(&mut dispatch, NOW).3, [1]);
}

#[test]
fn one_bad_part_does_not_fail_its_neighbours() {
    let mut dispatch = Dispatch::new(joining());
    for ticket in 0..3 {
        dispatch.handle_request(range(ticket, ticket * 1000, Class::Staging), NOW);
    }
    let (together, _, _, tickets) = start(&mut dispatch, NOW);
    assert_eq!(tickets.len(), 3);
    dispatch.handle_end(together, end(ReadOutcome::Corrupt), NOW);
    for ticket in 0..3 {
        let (alone, _, len, tickets) = start(&mut dispatch, NOW);
        assert_eq!((len, tickets), (1000, vec![ticket]));
        let outcome = if ticket == 1 { ReadOutcome::Corrupt } else { ReadOutcome::Ok };
        dispatch.handle_end(alone, end(outcome), NOW);
        if ticket == 1 {
            let failed = dispatch.poll_action(NOW);
            let elapsed = Nanos::ZERO;
            assert_eq!(
                failed,
                Some(Action::Fail { ticket, outcome: ReadOutcome::Corrupt, tries: 2, elapsed })
            );
        }
    }
}

#[test]
fn a_withdrawn_part_leaves_the_read_to_the_others() {
    let mut dispatch = Dispatch::new(joining());
    for ticket in 0..2 {
        dispatch.handle_request(range(ticket, ticket * 1000, Class::Staging), NOW);
    }
    let (attempt, ..) = start(&mut dispatch, NOW);
    dispatch.handle_withdraw(0, NOW);
    assert_eq!(dispatch.poll_action(NOW), None);
    assert_eq!(dispatch.handle_end(attempt, end(ReadOutcome::Ok), NOW), [1]);
}

#[test]
fn a_queue_is_saturated_when_as_many_wait_as_can_be_started_next() {
    let limit = LimitConfig { start: 2, min: 2, max: 2, ..DispatchConfig::adaptive().limit };
    let mut dispatch = Dispatch::new(DispatchConfig { limit, ..DispatchConfig::adaptive() });
    for ticket in 0..4 {
        assert!(!dispatch.is_saturated(), "{ticket} requests");
        dispatch.handle_request(request(ticket, Class::Staging, 2000), NOW);
        while dispatch.poll_action(NOW).is_some() {}
    }
    assert!(dispatch.is_saturated(), "two are in flight and two wait");
}

/// A member of group 5.
fn member(ticket: u64, start: u64, class: Class) -> Request {
    Request { group: Some(5), ..range(ticket, start, class) }
}

#[test]
fn a_group_is_one_read_whatever_its_classes() {
    let mut dispatch = Dispatch::new(joining());
    for ticket in 0..12 {
        let class = if ticket == 3 { Class::Stalling } else { Class::Fill };
        dispatch.handle_request(Request { len: 100, ..member(ticket, ticket * 100, class) }, NOW);
    }
    dispatch.handle_request(range(20, 1200, Class::Stalling), NOW);
    dispatch.handle_request(Request { len: 10, ..range(21, 550, Class::Staging) }, NOW);
    let (attempt, start_at, len, tickets) = start(&mut dispatch, NOW);
    assert_eq!((start_at, len, tickets), (0, 1200, (0..12).collect()), "more than `max_parts`");
    dispatch.handle_end(attempt, end(ReadOutcome::Ok), NOW);
    assert_eq!(run_in_order(&mut dispatch, NOW), [20, 21], "others are read as without a group");
}

#[test]
fn a_fault_of_a_group_is_tried_again_only_for_what_a_batch_wants() {
    let mut dispatch = Dispatch::new(joining());
    for ticket in 0..4 {
        let class = if ticket == 0 { Class::Staging } else { Class::Fill };
        dispatch.handle_request(member(ticket, ticket * 1000, class), NOW);
    }
    dispatch.handle_wanted(2, 1, Nanos::MAX);
    let (together, ..) = start(&mut dispatch, NOW);
    dispatch.handle_wanted(3, 1, Nanos::MAX);
    dispatch.handle_end(together, end(ReadOutcome::Corrupt), NOW);
    let outcome = ReadOutcome::Corrupt;
    let failed = Action::Fail { ticket: 1, outcome, tries: 1, elapsed: Nanos::ZERO };
    assert_eq!(dispatch.poll_action(NOW), Some(failed));
    let mut alone = Vec::new();
    while let Some(Action::Start { attempt, parts, .. }) = dispatch.poll_action(NOW) {
        alone.push(parts.iter().map(|part| part.ticket).collect::<Vec<_>>());
        dispatch.handle_end(attempt, end(ReadOutcome::Ok), NOW);
    }
    assert_eq!(alone, [[0], [2], [3]]);
}

#[test]
fn a_range_that_a_batch_wants_is_read_in_its_turn() {
    let mut dispatch = experienced(DispatchConfig::fixed(1));
    for (ticket, turn) in [(1, 1), (2, 3)] {
        dispatch.handle_request(Request { turn, ..request(ticket, Class::Staging, 0) }, NOW);
    }
    for ticket in [3, 4] {
        dispatch.handle_request(Request { deadline: Nanos::MAX, ..request(ticket, Class::Fill, 0) }, NOW);
    }
    dispatch.handle_wanted(4, 2, Nanos::ZERO);
    dispatch.handle_wanted(1, 9, Nanos::MAX);
    assert_eq!(run_in_order(&mut dispatch, NOW), [1, 4, 2, 3]);
}
