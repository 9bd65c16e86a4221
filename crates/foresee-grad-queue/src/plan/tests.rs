// SPDX-License-Identifier: Apache-2.0
//! Packets of a plan cover its tensors, its encoding is exact, and differences are named.

use std::collections::BTreeMap;

use foresee_testkit::property;
use foresee_units::Rank;
use proptest::prelude::*;

use super::*;

pub(crate) fn dense(name: &str, dtype: Dtype, shape: &[u64]) -> TensorSpec {
    let mut strides = vec![0; shape.len()];
    let mut step = 1_i64;
    for (stride, size) in strides.iter_mut().zip(shape).rev() {
        *stride = step;
        step = step.saturating_mul(i64::try_from((*size).max(1)).unwrap_or(i64::MAX));
    }
    TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec(), strides, class: 0, op: Op::Mean }
}

fn config(packet_bytes: u32, pattern: Pattern) -> PlanConfig {
    PlanConfig { packet_bytes, wire: Wire::Own, pattern }
}

fn plan(packet_bytes: u32, tensors: Vec<TensorSpec>) -> Plan {
    Plan::new(config(packet_bytes, Pattern::mixed(3, 1).unwrap()), tensors).unwrap()
}

fn refused(packet_bytes: u32, tensors: Vec<TensorSpec>) -> QueueError {
    Plan::new(config(packet_bytes, Pattern::new(&[1]).unwrap()), tensors).unwrap_err()
}

fn any_plan() -> impl Strategy<Value = Plan> {
    let tensor = (1..=6_u8, prop::collection::vec(0..40_u64, 0..4), any::<u8>(), 1..3_u8);
    let shares =
        prop::collection::vec(0..5_u32, 1..5).prop_filter("somebody sums", |s| s.iter().any(|s| *s > 0));
    (prop::collection::vec(tensor, 0..6), 1..5_u32, shares, 0..3_u8).prop_map(
        |(tensors, lines, shares, wire)| {
            let config = PlanConfig {
                packet_bytes: 64 * lines,
                wire: Wire::from_code(wire).unwrap(),
                pattern: Pattern::new(&shares).unwrap(),
            };
            let tensors = tensors.into_iter().enumerate().map(|(index, (code, shape, class, op))| {
                let dtype = Dtype::from_code(code).unwrap();
                let op = Op::from_code(op).unwrap();
                TensorSpec { class, op, ..dense(&format!("layer{index}.weight"), dtype, &shape) }
            });
            Plan::new(config, tensors.collect()).unwrap()
        },
    )
}

proptest! {
    #![proptest_config(property(1_000))]

    #[test]
    fn packets_tile_a_tensor_and_each_has_one_server(plan in any_plan()) {
        let servers = u16::try_from(plan.config().pattern.shares().len()).unwrap();
        let shards: Vec<Shard> = (0..servers).map(|server| Shard::new(&plan, ServerId(server))).collect();
        let mut next = vec![0_u64; shards.len()];
        for tensor in (0..plan.tensors()).map(TensorId) {
            let mut end = 0;
            for packet in 0..plan.packets(tensor).unwrap() {
                let packet = PacketId { tensor, packet };
                let (offset, bytes) = plan.range(packet).unwrap();
                prop_assert_eq!(offset, end);
                prop_assert!(bytes > 0 && bytes <= plan.config().packet_bytes);
                let dtype = plan.wire_dtype(tensor).unwrap();
                prop_assert!((bytes as usize).is_multiple_of(dtype.bytes()));
                end = offset + u64::from(bytes);
                let (server, nth) = plan.server(packet).unwrap();
                prop_assert_eq!(plan.nth_packet_at(tensor, server, nth), Some(packet));
                let at = usize::from(server.0);
                let index = shards[at].index(&plan, Rank(0), packet).unwrap();
                prop_assert_eq!(index, next[at]);
                prop_assert!(shards[at].of_tensor(tensor).contains(&index));
                prop_assert_eq!(shards[at].packet(&plan, index), Some(packet));
                next[at] += 1;
                plan.check(Rank(0), packet, u64::from(bytes)).unwrap();
                prop_assert!(plan.check(Rank(0), packet, u64::from(bytes) + 1).is_err());
            }
            prop_assert_eq!(Bytes::new(end), plan.bytes(tensor).unwrap());
            let assigned: u32 = (0..servers).map(|server| plan.packets_at(tensor, ServerId(server)).unwrap()).sum();
            prop_assert_eq!(assigned, plan.packets(tensor).unwrap());
        }
        for (shard, packets) in shards.iter().zip(next) {
            prop_assert_eq!(shard.packets(), packets);
            prop_assert_eq!(shard.packet(&plan, packets), None);
        }
    }

    #[test]
    fn a_plan_has_one_encoding_that_decodes_to_it(plan in any_plan(), other in any_plan()) {
        let bytes = plan.encode();
        prop_assert_eq!(&Plan::decode(&bytes).unwrap(), &plan);
        prop_assert_eq!(plan.difference(&plan), None);
        prop_assert_eq!(bytes == other.encode(), plan == other);
        let common = |plan: &Plan| {
            let specs = (0..plan.tensors()).map(|tensor| plan.tensor(TensorId(tensor)).unwrap().clone());
            let specs = specs.map(|spec| (spec.name.clone(), TensorSpec { class: 0, ..spec }));
            let config = plan.config();
            (config.wire, config.pattern.shares().to_vec(), specs.collect::<BTreeMap<_, _>>())
        };
        prop_assert_eq!(plan.difference(&other).is_none(), common(&plan) == common(&other));
    }

    #[test]
    fn changed_bytes_are_refused_or_encode_a_plan_exactly(
        plan in any_plan(), changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(), truncate in any::<bool>(),
    ) {
        let mut bytes = plan.encode();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if truncate {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(plan) = Plan::decode(&bytes) {
            prop_assert_eq!(plan.encode(), bytes);
        }
    }

    #[test]
    fn random_bytes_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(plan) = Plan::decode(&bytes) {
            prop_assert_eq!(plan.encode(), bytes);
        }
    }
}

#[test]
fn offsets_beyond_2_to_the_32_need_no_memory() {
    let plan = plan(1 << 18, vec![dense("embedding", Dtype::F64, &[1 << 20, 1 << 20])]);
    let tensor = TensorId(0);
    assert_eq!(plan.bytes(tensor), Some(Bytes::new(1 << 43)));
    assert_eq!(plan.packets(tensor), Some(1 << 25));
    let last = PacketId { tensor, packet: (1 << 25) - 1 };
    assert_eq!(plan.range(last), Some(((1 << 43) - (1 << 18), 1 << 18)));
    assert_eq!(plan.range(PacketId { tensor, packet: 1 << 25 }), None);
    let (server, nth) = plan.server(last).unwrap();
    let shard = Shard::new(&plan, server);
    assert_eq!(plan.packets_at(tensor, server), Some(nth + 1), "the last packet is its server's last");
    assert_eq!(shard.packet(&plan, shard.packets() - 1), Some(last));
}

#[test]
fn a_tensor_without_elements_has_no_packets() {
    let plan =
        plan(64, vec![dense("empty", Dtype::F32, &[3, 0, u64::MAX]), dense("scalar", Dtype::F16, &[])]);
    assert_eq!((plan.packets(TensorId(0)), plan.packets(TensorId(1))), (Some(0), Some(1)));
    assert_eq!(plan.range(PacketId { tensor: TensorId(1), packet: 0 }), Some((0, 2)));
    assert_eq!(plan.server(PacketId { tensor: TensorId(0), packet: 0 }), None);
    assert_eq!(plan.packets(TensorId(2)), None);
}

#[test]
fn a_narrow_wire_dtype_halves_f32_and_leaves_the_others() {
    let tensors = Dtype::ALL.map(|dtype| dense(dtype.name(), dtype, &[8]));
    let config = PlanConfig { wire: Wire::Bf16, ..config(64, Pattern::new(&[1]).unwrap()) };
    let plan = Plan::new(config, tensors.to_vec()).unwrap();
    let bytes = |name| plan.bytes(plan.find(name).unwrap()).unwrap().get();
    assert_eq!((bytes("float32"), bytes("float16"), bytes("float64"), bytes("int64")), (16, 16, 64, 64));
    assert_eq!(plan.wire_dtype(TensorId(0)), Some(Dtype::Bf16));
    assert_eq!((bytes("bfloat16"), bytes("int32")), (16, 32));
}

#[test]
fn invalid_plans_are_refused_with_the_tensor_and_the_reason() {
    assert_eq!(refused(0, vec![]), QueueError::PacketBytes { bytes: 0 });
    assert_eq!(refused(96, vec![]), QueueError::PacketBytes { bytes: 96 });
    let twice = refused(64, vec![dense("w", Dtype::F32, &[1]), dense("w", Dtype::F32, &[2])]);
    assert_eq!(twice, QueueError::NameTwice { tensor: "w".to_owned() });
    assert!(matches!(
        refused(64, vec![dense("", Dtype::F32, &[1])]),
        QueueError::NameLength { index: 0, .. }
    ));
    assert!(matches!(
        refused(64, vec![dense(&"w".repeat(4097), Dtype::F32, &[1])]),
        QueueError::NameLength { .. }
    ));
    assert!(matches!(refused(64, vec![dense("w", Dtype::F32, &[1; 65])]), QueueError::Dimensions { .. }));
    let overflow = refused(64, vec![dense("w", Dtype::F32, &[1 << 40, 1 << 40])]);
    assert!(overflow.to_string().contains("tensor 'w' of shape [1099511627776, 1099511627776] is too large"));
    let many = refused(64, vec![dense("w", Dtype::F32, &[1 << 40])]);
    assert!(matches!(many, QueueError::TooLarge { packet_bytes: 64, .. }), "2^36 packets do not fit 32 bits");
    let total = refused(1 << 30, (0..5).map(|i| dense(&i.to_string(), Dtype::F32, &[1 << 52])).collect());
    assert!(matches!(total, QueueError::TooLarge { .. }));
    let wrong = TensorSpec { strides: vec![1], ..dense("w", Dtype::F32, &[2, 2]) };
    assert!(matches!(refused(64, vec![wrong]), QueueError::Dimensions { dimensions: 2, strides: 1, .. }));
}

#[test]
fn dense_strides_in_any_order_pass_and_holes_do_not() {
    let with = |shape: &[u64], strides: &[i64]| {
        let spec = TensorSpec { strides: strides.to_vec(), ..dense("conv", Dtype::F32, shape) };
        Plan::new(config(64, Pattern::new(&[1]).unwrap()), vec![spec])
    };
    assert!(with(&[8, 3, 5, 5], &[75, 1, 15, 3]).is_ok(), "channels_last");
    assert!(with(&[2, 3], &[1, 2]).is_ok(), "transposed");
    assert!(with(&[1, 3], &[77, 1]).is_ok(), "the stride of a single element says nothing");
    assert!(with(&[0, 3], &[9, 9]).is_ok(), "no element, no hole");
    assert!(with(&[2, 3], &[4, 1]).is_err(), "a hole");
    assert!(with(&[2, 3], &[0, 1]).is_err(), "an overlap");
    assert!(with(&[2], &[-1]).is_err());
    let message = with(&[2, 3], &[4, 1]).unwrap_err().to_string();
    assert!(
        message.starts_with("tensor 'conv' of shape [2, 3] and strides [4, 1] is not dense"),
        "{message}"
    );
}

#[test]
fn a_difference_names_the_tensor_and_the_field() {
    let ours = plan(64, vec![dense("a", Dtype::F32, &[2, 3]), dense("b", Dtype::F32, &[4])]);
    let against = |tensors: Vec<TensorSpec>| ours.difference(&plan(64, tensors)).unwrap().to_string();
    let (a, b) = (dense("a", Dtype::F32, &[2, 3]), dense("b", Dtype::F32, &[4]));
    assert_eq!(
        against(vec![TensorSpec { strides: vec![1, 2], ..a.clone() }, b.clone()]),
        "tensor 'a': strides is [3, 1] in one plan and [1, 2] in the other"
    );
    assert_eq!(
        against(vec![a.clone(), dense("b", Dtype::F32, &[5])]),
        "tensor 'b': shape is [4] in one plan and [5] in the other"
    );
    assert_eq!(
        against(vec![a.clone(), dense("b", Dtype::Bf16, &[4])]),
        "tensor 'b': dtype is float32 in one plan and bfloat16 in the other"
    );
    assert_eq!(
        against(vec![TensorSpec { op: Op::Sum, ..a.clone() }, b.clone()]),
        "tensor 'a': operation is mean in one plan and sum in the other"
    );
    assert_eq!(against(vec![a.clone()]), "tensor 'b' is given in one plan and missing in the other");
    assert!(
        against(vec![a.clone(), b.clone(), dense("c", Dtype::F32, &[])]).starts_with("tensor 'c' is missing")
    );
    let wider = plan(128, vec![b.clone(), TensorSpec { class: 9, ..a.clone() }]);
    assert_eq!(ours.difference(&wider), None, "packet size, order and classes may differ");

    let other_order = plan(64, vec![b, TensorSpec { class: 3, ..a }]);
    assert_eq!(ours.align(&other_order), Ok(vec![TensorId(1), TensorId(0)]));
    let shorter = plan(64, vec![dense("a", Dtype::F32, &[2, 3])]);
    assert_eq!(ours.align(&shorter).unwrap_err().field, Field::Presence);
}

#[test]
fn frames_are_checked_against_the_plan() {
    let plan = plan(64, vec![dense("w", Dtype::F32, &[20])]);
    let at = |tensor, packet| PacketId { tensor: TensorId(tensor), packet };
    let (server, _) = plan.server(at(0, 0)).unwrap();
    let other = Shard::new(&plan, ServerId((server.0 + 1) % 4));
    let message = other.index(&plan, Rank(2), at(0, 0)).unwrap_err().to_string();
    assert!(message.starts_with("packet 0 of 'w' with rank 2 belongs to server"), "{message}");
    assert!(matches!(other.index(&plan, Rank(2), at(1, 0)), Err(QueueError::NoSuchTensor { .. })));
    assert!(matches!(
        other.index(&plan, Rank(2), at(0, 2)),
        Err(QueueError::NoSuchPacket { packets: 2, .. })
    ));
    let message = plan.check(Rank(2), at(0, 1), 64).unwrap_err().to_string();
    assert_eq!(message, "packet 1 of 'w' with rank 2 has 64 bytes, but 16 in the plan");
    assert!(plan.check(Rank(2), at(0, 1), u64::MAX).is_err());
    assert_eq!(other.of_tensor(TensorId(9)).count(), 0);
}
