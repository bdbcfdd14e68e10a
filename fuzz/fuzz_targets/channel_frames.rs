//! The bytes of a hostile service: the de-framer finds the same frames however they are split, and a hub with a session of that service, or one
//! that it has opened to that service, keeps its bounds whatever they say.
#![no_main]

// The handshake of an honest service is that of the crate's own tests, and so is what the bytes are given to.
#[allow(dead_code)]
#[path = "../../crates/channel/tests/support/scene.rs"]
mod scene;

#[path = "../../crates/channel/tests/support/replay.rs"]
mod replay;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    replay::replay(data);
});
