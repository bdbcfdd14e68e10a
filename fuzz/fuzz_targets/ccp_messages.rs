//! Any datagram to an endpoint of congestion control: each message whole or refused, and what is whole encodes to an equal message.
#![no_main]

use ccp_wire::{Message, messages};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut used = 0;
    for message in messages(data).flatten() {
        let mut again = Vec::new();
        message.encode(&mut again).expect("it came with a length of 16 bits");
        assert_eq!(again.len(), message.encoded_len());
        assert_eq!(messages(&again).collect::<Vec<_>>(), [Ok(message)]);
        // A CREATE of old versions is shorter than the one that it is encoded to.
        used += if matches!(message, Message::Create { .. }) { 32 } else { again.len() };
    }
    assert!(used <= data.len(), "lists lie in the datagram");
});
