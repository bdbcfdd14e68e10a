//! Flows that their application resets.

use crate::scene::scene;
use flow::Exception;
use shm::half_flags::{READ_CLOSED, RELEASED, RESET};

#[test]
fn what_was_written_before_a_reset_leaves_before_it() {
    let mut s = scene();
    assert_eq!(s.host.send(&mut s.sock, b"last words", 64 << 10), 10);
    s.host.raise(&s.sock, RESET | READ_CLOSED | RELEASED);
    let sent = s.poll();
    assert_eq!(sent.iter().map(|got| &got.payload[..]).collect::<Vec<_>>(), [b"last words"]);
    let is_told = s.host.log.iter().any(|said| matches!(said, Exception::AppReset { .. }));
    assert!(is_told, "{:?}", s.host.log);
    assert_eq!(s.send(b"never sent"), []);
}

#[test]
fn what_the_windows_hold_back_is_lost_with_a_reset() {
    let mut s = scene();
    let many = vec![7; 60_000];
    assert_eq!(s.host.send(&mut s.sock, &many, 64 << 10), many.len());
    s.host.raise(&s.sock, RESET | READ_CLOSED | RELEASED);
    let sent: usize = s.poll().iter().map(|got| got.payload.len()).sum();
    assert!(0 < sent && sent < many.len(), "{sent} bytes in the first window");
    s.peer.ack(0, sent as u32);
    assert_eq!(s.poll(), []);
}
