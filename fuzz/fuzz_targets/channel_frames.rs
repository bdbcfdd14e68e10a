//! The bytes of a hostile service: the de-framer finds the same frames however they are split, and a hub with a session of that service keeps
//! its bounds whatever they say.
#![no_main]

// The handshake of an honest service is that of the crate's own tests.
#[allow(dead_code)]
#[path = "../../crates/channel/tests/support/scene.rs"]
mod scene;

use base::{Duration, Instant};
use channel::bytes::{Input, Room};
use channel::deframer::{Deframer, Item};
use channel::{Config, Hub, News, Streams};
use libfuzzer_sys::fuzz_target;
use scene::{Scene, WINDOW};

const SOCKETS: u32 = 16;

/// A caller with no bytes of its own, that looks at where bytes are put.
struct Caller;

impl Streams for Caller {
    fn read<R: Room + ?Sized>(&mut self, _tag: u64, _position: u64, len: usize, room: &mut R, at: usize) {
        room.put(at, &vec![0; len]);
    }
    fn write(&mut self, _tag: u64, position: u64, bytes: Input<'_>) {
        assert!(!bytes.is_empty() && position + bytes.len() as u64 <= WINDOW, "beyond the credit");
    }
}

/// Number of frames and the sum of all bytes of bodies, up to the first violation.
fn measure(pieces: &[&[u8]]) -> (usize, usize) {
    let (mut deframer, mut frames, mut bodies) = (Deframer::default(), 0, 0);
    for piece in pieces {
        let mut input = Input::Own(piece);
        loop {
            match deframer.next(&mut input) {
                Ok(Some(Item::Control { body, .. })) => (frames, bodies) = (frames + 1, bodies + body.len()),
                Ok(Some(Item::Data { before, bytes, .. })) => {
                    frames += usize::from(before == 0);
                    bodies += bytes.len();
                }
                Ok(None) => break,
                Err(_) => return (frames, bodies),
            }
        }
    }
    (frames, bodies)
}

fuzz_target!(|data: &[u8]| {
    // The first byte says where the others are cut, and what the caller does between the pieces.
    let Some((first, bytes)) = data.split_first() else { return };
    let cut = usize::from(*first) * bytes.len() / 255;
    let pieces = [&bytes[..cut], &bytes[cut..]];
    assert_eq!(measure(&[bytes]), measure(&pieces));

    let mut caller = Caller;
    let mut scene = Scene::new(None);
    scene.hub = Hub::new(Config { sockets_max: SOCKETS, ..Config::new([1; 32], 1) });
    let channel = if first & 1 == 1 { scene.greet(None) } else { scene.channel() };
    let mut hub = scene.hub;
    let mut now = Instant::ZERO;
    for piece in pieces {
        hub.received(now, channel, piece, &mut caller);
        while let Some((id, event)) = hub.poll_event(now) {
            let Some(session) = hub.session(id) else { continue };
            session.check().expect("invariants");
            match event.news {
                News::Incoming(_) if first & 2 == 0 => _ = session.accept(event.socket, 1, WINDOW),
                News::Incoming(_) => _ = session.refuse(event.socket, 111),
                News::Finished(_) => session.finish(event.socket),
                _ => {}
            }
        }
        let mut room = [0; 4_096];
        while hub.transmit(now, channel, &mut room[..], &mut caller) > 0 {}
        now = now.plus(Duration::from_secs(6));
        hub.tick(now);
        let census = hub.census();
        assert!(census.sockets <= SOCKETS as usize && census.sessions <= 1 && census.channels <= 1);
    }
});
