//! What a fuzzer's bytes do to a hub: the body of the fuzz target `channel_frames`, which `tests/replay.rs` runs over the committed seeds.
//!
//! ```text
//!   first byte   1: behind a handshake    2: refuses sockets    4: the hub has opened the session, and socket 1
//!                8: with a secret        16: over a second channel, which has joined       its value: where the others are cut in two
//! ```

use super::scene::{Scene, WINDOW};
use base::Duration;
use channel::bytes::{Input, Room};
use channel::deframer::{Deframer, Item};
use channel::hello::CONGESTED;
use channel::{ChannelId, Config, Hub, News, Streams};

const SOCKETS: u32 = 16;
const SECRET: &[u8] = b"a secret of both";

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

/// The hub, and the channel over which the bytes come.
fn begin(first: u8) -> (Scene, ChannelId) {
    let secret = (first & 8 != 0).then_some(SECRET);
    let mut scene = Scene::new(secret);
    let config =
        Config { sockets_max: SOCKETS, secret: secret.map(<[u8]>::to_vec), ..Config::new([1; 32], 1) };
    (scene.hub, scene.features) = (Hub::new(config), CONGESTED);
    let channel = match (first & 4 != 0, first & 1 != 0, first & 16 != 0) {
        (true, ..) => {
            let channel = scene.open_ours(secret);
            scene.reply(channel);
            channel
        }
        (false, false, _) => scene.channel(),
        (false, true, false) => scene.greet(secret),
        (false, true, true) => {
            scene.greet(secret);
            scene.join(secret)
        }
    };
    (scene, channel)
}

/// Gives the bytes to a hub. Returns how many frames it has found.
pub fn replay(data: &[u8]) -> usize {
    let Some((first, bytes)) = data.split_first() else { return 0 };
    let cut = usize::from(*first) * bytes.len() / 255;
    let pieces = [&bytes[..cut], &bytes[cut..]];
    let found = measure(&[bytes]);
    assert_eq!(found, measure(&pieces));
    let (Scene { mut hub, mut now, .. }, channel) = begin(*first);
    let channels_max = if first & 16 == 0 { 1 } else { 2 };
    let mut caller = Caller;
    for piece in pieces {
        hub.received(now, channel, piece, &mut caller);
        while let Some((id, event)) = hub.poll_event(now) {
            let Some(session) = hub.session(id) else { continue };
            session.check().expect("invariants");
            match event.news {
                News::Incoming(_) if first & 2 == 0 => _ = session.accept(event.socket, 1, WINDOW),
                News::Incoming(_) => _ = session.refuse(event.socket, 111),
                News::Opened => session.written(event.socket, 5_000),
                News::Finished(_) => session.finish(event.socket),
                _ => {}
            }
        }
        let mut room = [0; 4_096];
        while hub.transmit(now, channel, &mut room[..], &mut caller) > 0 {}
        now = now.plus(Duration::from_secs(6));
        hub.tick(now);
        let census = hub.census();
        assert!(
            census.sockets <= SOCKETS as usize && census.sessions <= 1 && census.channels <= channels_max
        );
    }
    found.0
}
