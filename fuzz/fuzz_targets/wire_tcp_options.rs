//! Any TCP options: read or refused, and what is read is written back to the same meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::{TcpOptions, timestamps_only};

fuzz_target!(|data: &[u8]| {
    let Ok(options) = TcpOptions::parse(data) else {
        assert_eq!(timestamps_only(data), None, "the short cut takes what the walk refuses");
        return;
    };
    if let Some(timestamps) = timestamps_only(data) {
        assert_eq!(options, TcpOptions::with_timestamps(timestamps.value, timestamps.echo));
    }
    let mut room = [0; TcpOptions::LEN_MAX];
    match options.emit(&mut room) {
        Ok(len) => {
            assert_eq!(len, options.encoded_len());
            assert_eq!(TcpOptions::parse(&room[..len]), Ok(options));
        }
        Err(_) => assert!(options.encoded_len() > TcpOptions::LEN_MAX),
    }
});
