use super::owed;
use crate::Endpoint;
use crate::stream::tests::ends;
use queue::stream::{barrier, watch};
use rustix::io::Errno;

/// Fills room for `bytes` and commits them.
fn put(end: &Endpoint, bytes: &[u8]) {
    let room = end.reserve(bytes.len(), bytes.len()).unwrap().expect("there is room");
    let [(at, n), (rest, m)] = room.pieces;
    end.mapped.region.write(end.mapped.side, at, &bytes[..n]);
    end.mapped.region.write(end.mapped.side, rest, &bytes[n..n + m]);
    end.commit(bytes.len());
}

fn flush(end: &Endpoint, owed: u8) {
    end.publish();
    barrier();
    if let Some(bell) = end.settle_progress(owed, 0) {
        end.ring(bell);
    }
}

/// Reads all unread bytes.
fn look(end: &Endpoint) -> Vec<u8> {
    let unread = end.unread_pieces().unwrap();
    let mut bytes = Vec::new();
    for (at, len) in unread.pieces {
        let from = bytes.len();
        bytes.resize(from + len, 0);
        end.mapped.region.read(end.mapped.side.other(), at, &mut bytes[from..]);
    }
    assert_eq!(bytes.len(), unread.total);
    bytes
}

#[test]
fn committed_bytes_are_seen_after_publication_only_and_in_order() {
    let (a, b) = ends(6);
    put(&a, b"one ");
    put(&a, b"two");
    assert_eq!(look(&b), b"");
    flush(&a, owed::BYTES);
    assert_eq!(look(&b), b"one two");
    let unread = b.unread_pieces().unwrap();
    assert_eq!(b.consume_in_place(&unread, 4), owed::SPACE, "more is unread");
    assert_eq!(look(&b), b"two");
}

#[test]
fn a_full_ring_gives_no_room_until_the_peer_reads_and_publishes() {
    let (a, b) = ends(8);
    watch(a.halves().0, Some(3));
    let chunk = [7; 4096];
    let mut sent = 0;
    while let Some(room) = a.reserve(chunk.len(), chunk.len()).unwrap() {
        let [(at, n), (rest, m)] = room.pieces;
        a.mapped.region.write(a.mapped.side, at, &chunk[..n]);
        a.mapped.region.write(a.mapped.side, rest, &chunk[..m]);
        a.commit(chunk.len());
        a.publish();
        sent += chunk.len();
        assert!(sent <= 1 << 20, "the area has 1 MiB");
    }
    assert!(sent > 0 && !a.has_room_again());
    let mut read = 0;
    while read < sent {
        let unread = b.unread_pieces().unwrap();
        let due = b.consume_in_place(&unread, unread.total);
        barrier();
        let bell = b.settle_progress(due, 0).expect("the sender waits for space");
        assert_eq!((bell.context, bell.word, bell.bits), (3, a.slot() / 64, 1 << (a.slot() % 64)));
        b.ring(bell);
        read += unread.total;
    }
    assert!(a.has_room_again());
    assert!(a.reserve(chunk.len(), chunk.len()).unwrap().is_some());
}

#[test]
fn an_idle_connection_gives_its_ring_back_and_one_that_answers_keeps_it() {
    let (a, b) = ends(8);
    let has_ring = |end: &Endpoint| end.sender().ring.is_some();
    let consume = |end: &Endpoint| {
        let unread = end.unread_pieces().unwrap();
        end.consume_in_place(&unread, unread.total)
    };
    put(&a, b"request");
    flush(&a, owed::BYTES);
    let due = consume(&b);
    put(&b, b"reply");
    flush(&b, due | owed::BYTES);
    assert!(has_ring(&a) && has_ring(&b));
    let due = consume(&a);
    flush(&a, due);
    assert!(!has_ring(&a), "every byte in it was read");
    assert!(has_ring(&b), "it has not looked since");
}

#[test]
fn bytes_that_wrap_around_come_in_two_pieces() {
    let (a, b) = ends(8);
    put(&a, &[1; 4000]);
    flush(&a, owed::BYTES);
    let unread = b.unread_pieces().unwrap();
    let _ = b.consume_in_place(&unread, 3990);
    put(&a, &[2; 200]);
    flush(&a, owed::BYTES);
    let mut expected = vec![1; 10];
    expected.extend([2; 200]);
    assert_eq!(look(&b), expected);
}

#[test]
fn no_room_is_found_after_the_end_of_the_stream_or_for_more_than_any_ring_holds() {
    let (a, b) = ends(8);
    assert_eq!(a.reserve(usize::MAX, usize::MAX), Err(Errno::MSGSIZE));
    a.shutdown(libc::SHUT_WR).unwrap();
    assert_eq!(a.reserve(1, 1), Err(Errno::PIPE));
    b.release(u64::MAX, true);
    let _ = a.peer_flags();
    assert_eq!(a.reserve(1, 1), Err(Errno::CONNRESET));
    assert_eq!(a.reserve(1, 1), Err(Errno::PIPE), "the error is reported once");
}

#[test]
#[should_panic(expected = "consumed more than was there")]
fn consuming_more_than_was_there_is_a_bug() {
    let (a, b) = ends(8);
    put(&a, b"x");
    flush(&a, owed::BYTES);
    let unread = b.unread_pieces().unwrap();
    let _ = b.consume_in_place(&unread, 2);
}
