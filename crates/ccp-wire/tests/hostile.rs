//! Messages that are cut, that lie about their length or count, and bytes of any kind.

use ccp_vm::Instruction;
use ccp_wire::{Fields, Kind, List, Malformed, Message, TooLong, Update, Values, messages};
use proptest::prelude::*;

fn only(datagram: &[u8]) -> Option<Result<Message<'_>, Malformed>> {
    let mut all = messages(datagram);
    let first = all.next();
    assert_eq!(all.next(), None);
    first
}

#[test]
fn every_cut_of_a_message_is_refused() {
    let values = [1, 2, 3];
    let mut datagram = Vec::new();
    Message::Measure { flow: 1, program: 2, values: Values::of(&values) }
        .encode(&mut datagram)
        .expect("short");
    for len in 1..datagram.len() {
        assert_eq!(only(&datagram[..len]), Some(Err(Malformed::Length)), "{len} bytes");
    }
    assert_eq!(only(&[]), None);
}

#[test]
fn a_count_is_the_length_or_the_message_is_refused() {
    let counts = [
        (Kind::Measure, 12, vec![1, 0, 24, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]),
        (Kind::Update, 8, vec![3, 0, 25, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 4, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]),
        (Kind::Install, 12, vec![2, 0, 20, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (Kind::Install, 16, vec![2, 0, 20, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ];
    for (kind, at, good) in counts {
        assert!(matches!(only(&good), Some(Ok(_))), "{kind:?}");
        for count in [2, 255, 1 << 28, 0x1000_0001, u32::MAX] {
            let mut bad = good.clone();
            bad[at..at + 4].copy_from_slice(&u32::to_le_bytes(count));
            assert_eq!(only(&bad), Some(Err(Malformed::Count(kind))), "{kind:?} with {count}");
        }
    }
}

#[test]
fn lengths_below_the_header_or_the_fixed_part_are_refused() {
    for len in 0..8 {
        assert_eq!(only(&[5, 0, len, 0, 0, 0, 0, 0, 7, 0, 0, 0]), Some(Err(Malformed::Length)));
    }
    for kind in 0..6_u8 {
        let header = [kind, 0, 8, 0, 0, 0, 0, 0];
        let kind = Kind::from_wire(u16::from(kind)).expect("six kinds");
        assert_eq!(only(&header), Some(Err(Malformed::Content(kind))));
    }
    let long_ready = [5, 0, 13, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0];
    assert_eq!(only(&long_ready), Some(Err(Malformed::Content(Kind::Ready))));
}

#[test]
fn items_without_a_meaning_are_refused() {
    let scope_9 = [3, 0, 25, 0, 1, 0, 0, 0, 1, 0, 0, 0, 9, 4, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(only(&scope_9), Some(Err(Malformed::Content(Kind::Update))));
    let mut op_15 = vec![2, 0, 36, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    op_15.extend([15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(only(&op_15), Some(Err(Malformed::Content(Kind::Install))));
    let mut port = vec![0, 0, 32, 0, 1, 0, 0, 0];
    port.extend([0; 12]);
    port.extend([0, 0, 1, 0]);
    port.extend([0; 8]);
    assert_eq!(only(&port), Some(Err(Malformed::Content(Kind::Create))), "port 65536");
}

#[test]
fn a_message_beyond_its_header_is_not_encoded() {
    let values = vec![0; 8190];
    let message = |len: usize| Message::Measure { flow: 1, program: 1, values: Values::of(&values[..len]) };
    let mut to = vec![9];
    assert_eq!(message(8190).encode(&mut to), Err(TooLong));
    assert_eq!(to, [9]);
    assert_eq!(message(8189).encode(&mut to), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_decodes_encodes_to_a_message_that_is_equal(
        kind in 0..6_u16, flow in any::<u32>(), mut body in prop::collection::vec(any::<u8>(), 0..100), count in 0..3_u32,
    ) {
        if let Some(place) = body.get_mut(4..8) { place.copy_from_slice(&count.to_le_bytes()); }
        let mut datagram = kind.to_le_bytes().to_vec();
        datagram.extend_from_slice(&(body.len() as u16 + 8).to_le_bytes());
        datagram.extend_from_slice(&flow.to_le_bytes());
        datagram.extend_from_slice(&body);
        if let Some(Ok(message)) = only(&datagram) {
            let mut again = Vec::new();
            prop_assert_eq!(message.encode(&mut again), Ok(()));
            prop_assert_eq!(only(&again), Some(Ok(message)));
        }
    }

    #[test]
    fn fields_and_instructions_survive(values in prop::collection::vec(any::<u64>(), 0..9), ops in prop::collection::vec(any::<[u8; 16]>(), 0..9)) {
        let register = ccp_vm::Register::new(ccp_vm::Scope::Control, 3);
        let updates: Vec<Update> = values.iter().map(|value| Update { register, value: *value }).collect();
        let instructions: Vec<Instruction> = ops.iter().filter_map(Instruction::decode).collect();
        let mut datagram = Vec::new();
        let sent = [
            Message::Change { flow: 1, program: 2, fields: Fields::of(&updates) },
            Message::Install { program: 3, events: List::of(&[]), instructions: List::of(&instructions) },
        ];
        sent.iter().for_each(|message| message.encode(&mut datagram).expect("short"));
        prop_assert_eq!(messages(&datagram).map(|message| message.expect("good")).collect::<Vec<_>>(), sent);
    }

    #[test]
    fn no_bytes_panic(datagram in prop::collection::vec(any::<u8>(), 0..200)) {
        for message in messages(&datagram).flatten() {
            prop_assert!(message.encoded_len() > 8);
        }
    }
}
