extern crate std;

use std::vec::Vec;

use base::Seed;

use super::{Sum, fill, fill_partial, of, pseudo_v4, update_u16, update_u32, verify};
use crate::IpProtocol;

/// The definition in RFC 1071, computed word by word.
fn naive(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !(sum as u16)
}

fn random(seed: &mut Seed, len: usize) -> Vec<u8> {
    (0..len).map(|_| seed.next_u64() as u8).collect()
}

#[test]
fn equals_the_definition_at_every_length() {
    let mut seed = Seed::new(1);
    for len in 0..300 {
        let bytes = random(&mut seed, len);
        assert_eq!(of(&bytes), naive(&bytes), "{len}");
        assert_eq!(of(&std::vec![0xFF; len]), naive(&std::vec![0xFF; len]), "{len} ones");
    }
    let large = std::vec![0xFF; 1 << 20];
    assert_eq!(of(&large), naive(&large));
}

#[test]
fn pieces_add_up_at_even_and_odd_offsets() {
    let mut seed = Seed::new(2);
    let bytes = random(&mut seed, 101);
    for cut in 0..=bytes.len() {
        let (a, b) = bytes.split_at(cut);
        let sum = Sum::ZERO.add_bytes(a).add_at(cut, Sum::ZERO.add_bytes(b));
        assert_eq!(sum.finish(), naive(&bytes), "{cut}");
    }
}

#[test]
fn fields_count_as_their_bytes() {
    let sum = Sum::ZERO.add_u16(0x1234).add_u32(0x5678_9ABC);
    assert_eq!(sum.finish(), naive(&[0x12, 0x34, 0x56, 0x78, 0x9A, 0xBC]));
}

#[test]
fn an_update_is_a_recomputation() {
    let mut seed = Seed::new(3);
    for _ in 0..10_000 {
        let mut bytes = random(&mut seed, 40);
        let before = of(&bytes);
        let (old16, new16) = (u16::from_be_bytes([bytes[4], bytes[5]]), seed.next_u32() as u16);
        bytes[4..6].copy_from_slice(&new16.to_be_bytes());
        let middle = of(&bytes);
        assert_eq!(update_u16(before, old16, new16), middle);
        let (old32, new32) =
            (u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]), seed.next_u32());
        bytes[8..12].copy_from_slice(&new32.to_be_bytes());
        assert_eq!(update_u32(middle, old32, new32), of(&bytes));
    }
}

/// A partial checksum that a port completes equals the checksum that we would have written.
#[test]
fn a_port_completes_a_partial_checksum() {
    let mut seed = Seed::new(4);
    let pseudo = pseudo_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), IpProtocol::TCP, 61);
    for _ in 0..1000 {
        let mut full = random(&mut seed, 61);
        let mut partial = full.clone();
        assert!(fill(pseudo, &mut full, 16) && fill_partial(pseudo, &mut partial, 16));
        let by_port = of(&partial);
        partial[16..18].copy_from_slice(&by_port.to_be_bytes());
        assert_eq!(partial, full);
        assert!(verify(pseudo, &full));
        full[30] ^= 0x10;
        assert!(!verify(pseudo, &full));
    }
}

#[test]
fn a_field_outside_the_packet_is_not_written() {
    assert!(!fill(Sum::ZERO, &mut [0; 17], 16));
    assert!(!fill_partial(Sum::ZERO, &mut [0; 4], usize::MAX));
}
