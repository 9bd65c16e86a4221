// SPDX-License-Identifier: Apache-2.0
//! Headers against the format's page, random bytes and flipped bits.

use foresee_testkit::property;
use proptest::prelude::*;

use super::*;

fn push() -> Header {
    Header {
        dtype: Some(Dtype::F32),
        round: 7,
        tensor: 3,
        packet: 70_000,
        class: 255,
        ..Header::control(Kind::Push, 2, 30_000)
    }
}

#[test]
fn a_push_has_the_bytes_of_the_format_page() {
    let shown = "f5010111 02000000 07000000 03000000 70110100 30750000 ff000000 f947c3e8";
    let shown = shown.replace(' ', "");
    let bytes = push().sealed(b"hello").encode().unwrap();
    let [high, low] = [0, 16].map(|at| u128::from_be_bytes(bytes[at..at + 16].try_into().unwrap()));
    assert_eq!(format!("{high:032x}{low:032x}"), shown);
}

#[test]
fn the_format_page_lists_every_kind_with_code_and_bound_and_every_dtype() {
    let page = include_str!("../../../../docs/formats/wire.md");
    for &kind in Kind::ALL {
        let row = format!("| {} | {kind} |", kind as u8);
        let row = page.lines().find(|line| line.starts_with(&row)).expect("a row of its own");
        let max = match kind.payload_max() {
            max if max >= 1 << 20 => format!("| {} MiB", max >> 20),
            max => format!("| {} KiB", max >> 10),
        };
        assert!(row.contains(&max), "{row}: {max}");
    }
    let rows = page.lines().filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit());
    assert_eq!(rows.count(), Kind::ALL.len() + 12 + 4, "rows of kinds, fields and steps");
    for dtype in Dtype::ALL {
        assert!(page.contains(&format!("{} {dtype}", dtype.code())), "{dtype}");
    }
}

#[test]
fn errors_name_an_unknown_version_type_flag_and_dtype() {
    let good = push().encode().unwrap();
    let message = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        Header::decode(&bytes).unwrap_err().to_string()
    };
    assert!(message(0, b'G').contains("begins with byte 0x47"));
    assert_eq!(message(1, 2), "it has version 2, and this build has version 1; install one version on both");
    assert_eq!(message(2, 99), "it has the unknown type 99");
    assert_eq!(message(3, 0x81), "PUSH has the unknown flags 0x80");
    assert_eq!(message(3, 0x0F), "PUSH has the unknown dtype 15");
    assert!(message(3, 0).contains("a PUSH and a SUM name their element type"));
    assert!(message(23, 0xFF).contains("the maximum is 67108864"));
    assert!(message(26, 1).contains("contributors 1"));
}

#[test]
fn a_sample_has_its_whole_number_and_the_number_of_its_part() {
    let header = Header::sample(0x0123_4567_89AB_CDEF, 2, 100).sealed(b"sample");
    let decoded = Header::decode(&header.encode().unwrap()).unwrap();
    assert_eq!((decoded, decoded.sample_number(), decoded.round), (header, 0x0123_4567_89AB_CDEF, 2));
    for wrong in [
        Header { dtype: Some(Dtype::F32), ..header },
        Header { class: 1, ..header },
        Header { contributors: 1, ..header },
    ] {
        assert!(wrong.encode().unwrap_err().to_string().contains("it is 0 in a SAMPLE"), "{wrong:?}");
    }
}

#[test]
fn a_checksum_covers_the_header_and_the_payload() {
    let header = push().sealed(b"payload");
    assert_eq!(header.verify(b"payload"), Ok(()));
    assert!(matches!(header.verify(b"paYload"), Err(FrameFault::Checksum { tensor: 3, .. })));
    let moved = Header { packet: header.packet + 1, ..header };
    assert!(moved.verify(b"payload").is_err(), "a packet for another place is not the one that was sent");
    assert_eq!(push().verify(b"anything"), Ok(()));
}

#[test]
fn the_low_half_of_a_round_widens_to_the_nearest_round() {
    assert_eq!(widen_round(5, 4), 5);
    assert_eq!(widen_round(0, 0xFFFF_FFFF), 1 << 32);
    assert_eq!(widen_round(0xFFFF_FFFF, 1 << 32), 0xFFFF_FFFF);
    assert_eq!(widen_round(0xFFFF_FFFF, 0), 0xFFFF_FFFF);
    for near in [0, 1, 41, u64::from(u32::MAX) - 1, 1 << 32, (7 << 32) + 9, u64::MAX - 1] {
        #[expect(clippy::cast_possible_truncation, reason = "the low half is what travels")]
        for round in [near.saturating_sub(1), near, near + 1] {
            assert_eq!(widen_round(round as u32, near), round);
        }
    }
}

prop_compose! {
    fn any_header()(
        sum in any::<bool>(), dtype in 0..Dtype::ALL.len(), numbers in any::<[u32; 4]>(),
        length in 0..=DATA_BYTES_MAX, class in any::<u16>(), contributors in any::<u16>(),
        checksum in any::<Option<u32>>(),
    ) -> Header {
        Header {
            kind: if sum { Kind::Sum } else { Kind::Push },
            dtype: Some(Dtype::ALL[dtype]),
            generation: numbers[0],
            round: numbers[1],
            tensor: numbers[2],
            packet: numbers[3],
            length,
            class,
            contributors: if sum { contributors } else { 0 },
            checksum,
        }
    }
}

proptest! {
    #![proptest_config(property(10_000))]

    #[test]
    fn any_32_bytes_are_a_header_that_encodes_back_or_a_fault(
        mut bytes in any::<[u8; HEADER_BYTES]>(),
        shape in 0_u8..4,
        kind in 0..Kind::ALL.len(),
    ) {
        // Random bytes fail at the first byte: most cases get further.
        if shape > 0 { bytes[0] = MAGIC; bytes[1] = VERSION; }
        if shape > 1 { bytes[2] = Kind::ALL[kind] as u8; bytes[3] &= 0x17; bytes[22] = 0; bytes[23] = 0; }
        if shape > 2 && !Kind::ALL[kind].is_data() { bytes[3] &= 0x10; bytes[8..20].fill(0); bytes[24..28].fill(0); }
        if let Ok(header) = Header::decode(&bytes) {
            prop_assert_eq!(header.encode().unwrap(), bytes);
            prop_assert!(header.length <= header.kind.payload_max());
        }
    }

    #[test]
    fn every_header_survives_encoding_and_decoding(header in any_header()) {
        prop_assert_eq!(Header::decode(&header.encode().unwrap()), Ok(header));
    }

    #[test]
    fn every_flipped_bit_of_a_frame_with_checksum_is_detected(
        header in any_header(), payload in proptest::collection::vec(any::<u8>(), 0..64), bit in 0_usize..256,
    ) {
        let mut bytes = header.sealed(&payload).encode().unwrap();
        bytes[bit / 8] ^= 1 << (bit % 8);
        // Without the checksum flag the field must be 0, which the checksum may be by chance.
        let unnoticed = Header::decode(&bytes).is_ok_and(|header| header.verify(&payload).is_ok());
        prop_assert!(!unnoticed);
    }
}
