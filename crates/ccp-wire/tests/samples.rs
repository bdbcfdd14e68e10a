//! Bytes that Portus and libccp were seen to write.

use std::net::{Ipv4Addr, SocketAddrV4};

use ccp_vm::{Event, Implicit, Instruction, Opcode, Register, Scope};
use ccp_wire::{
    CREATE_LEN, Create, Fields, List, Malformed, Message, Update, Values, messages, shown_address,
};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex");
    digits.chunks(2).map(byte).collect()
}

/// The sample decodes to the message, and the message encodes to the sample.
fn same(hex: &str, message: Message<'_>) {
    let sample = bytes(hex);
    assert_eq!(messages(&sample).collect::<Vec<_>>(), [Ok(message)]);
    let mut encoded = Vec::new();
    message.encode(&mut encoded).expect("short");
    assert_eq!(encoded, sample);
    assert_eq!(message.encoded_len(), sample.len());
}

fn address(last: u8, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), port)
}

#[test]
fn ready() {
    same("05 00 0c 00 00000000 07000000", Message::Ready { datapath: 7 });
}

#[test]
fn create() {
    let create = Create::new(14_480, 1448, address(1, 4242), address(2, 80));
    let head = "00 00 60 00 01000000 90380000 a8050000 0a000001 92100000 0a000002 50000000";
    same(&format!("{head}{}", "00".repeat(64)), Message::Create { flow: 1, create });
    let named = create.with_name("cubic").expect("short");
    same(&format!("{head} 6375626963 {}", "00".repeat(59)), Message::Create { flow: 1, create: named });
    assert_eq!((create.name(), named.name()), ("", "cubic"));
}

#[test]
fn create_of_old_versions_has_no_name() {
    let sample = bytes("00 00 20 00 01000000 90380000 a8050000 0a000001 92100000 0a000002 50000000");
    let create = Create::new(14_480, 1448, address(1, 4242), address(2, 80));
    assert_eq!(messages(&sample).collect::<Vec<_>>(), [Ok(Message::Create { flow: 1, create })]);
}

#[test]
fn names_fit_or_are_refused() {
    let create = Create::new(1, 1, address(1, 1), address(2, 2));
    let longest = "n".repeat(63);
    assert_eq!(create.with_name(&longest).expect("63 bytes fit").name(), longest);
    assert_eq!(create.with_name(&"n".repeat(64)), None);
    assert_eq!(create.with_name("a\0b"), None);
    let mut encoded = Vec::new();
    Message::Create { flow: 9, create }.encode(&mut encoded).expect("short");
    encoded[32] = 0xff;
    let Some(Ok(Message::Create { create, .. })) = messages(&encoded).next() else { panic!("a create") };
    assert_eq!(create.name(), "", "no UTF-8");
    assert_eq!(encoded.len(), CREATE_LEN);
}

#[test]
fn addresses_of_ipv6_are_shown_by_their_end() {
    let shown = |text: &str| shown_address(text.parse().expect("an address")).to_string();
    assert_eq!(shown("10.0.0.1:80"), "10.0.0.1:80");
    assert_eq!(shown("[::ffff:10.0.0.1]:80"), "10.0.0.1:80");
    assert_eq!(shown("[2001:db8::102:304]:443"), "1.2.3.4:443");
}

#[test]
fn measure() {
    let values = [1, 0x0102_0304_0506_0708];
    same(
        "01 00 20 00 05000000 04000000 02000000 0100000000000000 0807060504030201",
        Message::Measure { flow: 5, program: 4, values: Values::of(&values) },
    );
    same(
        "01 00 10 00 05000000 00000000 00000000",
        Message::Measure { flow: 5, program: 0, values: Values::of(&[]) },
    );
}

#[test]
fn change() {
    same(
        "04 00 10 00 01000000 04000000 00000000",
        Message::Change { flow: 1, program: 4, fields: Fields::of(&[]) },
    );
}

#[test]
fn update() {
    let cwnd = [Update { register: Register::implicit(Implicit::Cwnd), value: 31_856 }];
    same(
        "03 00 19 00 01000000 01000000 02 04000000 707c000000000000",
        Message::Update { flow: 1, fields: Fields::of(&cwnd) },
    );
}

#[test]
fn install() {
    let acked = Register::new(Scope::VolatileReport, 0);
    let temp = Register::new(Scope::Temp, 0);
    let instructions = [
        Instruction::define(acked, 0),
        Instruction::bind(Register::implicit(Implicit::EventFlag), Register::immediate(1)),
        Instruction { op: Opcode::Add, result: temp, left: acked, right: Register::new(Scope::Primitive, 0) },
    ];
    let events = [Event { flag_start: 1, flag_count: 1, body_start: 2, body_count: 1 }];
    same(
        "02 00 54 00 00000000 03000000 01000000 03000000
         01000000 01000000 02000000 01000000
         02 05 00000000 05 00000000 01 00000000
         01 02 00000000 02 00000000 01 01000000
         00 07 00000000 05 00000000 04 00000000",
        Message::Install { program: 3, events: List::of(&events), instructions: List::of(&instructions) },
    );
}

#[test]
fn several_messages_lie_in_one_datagram() {
    let mut datagram = Vec::new();
    let sent = [
        Message::Ready { datapath: 1 },
        Message::Measure { flow: 2, program: 3, values: Values::of(&[4]) },
        Message::Measure { flow: 5, program: 0, values: Values::of(&[]) },
    ];
    sent.iter().for_each(|message| message.encode(&mut datagram).expect("short"));
    assert_eq!(messages(&datagram).map(|message| message.expect("good")).collect::<Vec<_>>(), sent);
    datagram.splice(0..2, [0xff, 0]);
    assert_eq!(messages(&datagram).next(), Some(Err(Malformed::UnknownKind(0xff))));
    assert_eq!(messages(&datagram).filter(Result::is_ok).count(), 2, "an unknown message is skipped");
}
