//! Requirements of RFC 9293, RFC 7323 and RFC 2018, one test each, for data, windows and options: `specs/` names them.

use crate::harness::{MAC_A, MAC_B, config};
use crate::peer::Got;
use crate::scene::{MSS, Scene, scene, scene_with};
use base::{Duration, SeqNumber};
use congestion::{Algorithm, Window};
use fastpath::Cause;
use flow::{Exception, state};
use port::Capabilities;
use std::sync::atomic::Ordering::Relaxed;
use wire::{IpParameters, MacAddr, SackBlock, TcpFlags, TcpHeader, TcpOptions, TxChecksum};

fn with_features(features: u32) -> Scene {
    scene_with(|i| i.features = features, Capabilities::plain(1500, MAC_A), config())
}

fn lens(got: &[Got]) -> Vec<usize> {
    got.iter().map(|g| g.payload.len()).collect()
}

/// A segment of the peer with any options.
fn segment(s: &Scene, seq: u32, options: &TcpOptions, payload: &[u8]) -> Vec<u8> {
    let p = &s.peer;
    let (seq, ack) = (SeqNumber(p.iss.wrapping_add(seq)), SeqNumber(p.irs));
    let header =
        TcpHeader { src_port: 0, dst_port: 0, seq, ack, flags: TcpFlags::ACK, window: 512, urgent: 0 };
    let parameters = IpParameters::new(MacAddr(MAC_B), MacAddr(MAC_A));
    let start = wire::tcp_headers_len(&parameters, &p.tuple, options);
    let mut frame = vec![0; start + payload.len()];
    frame[start..].copy_from_slice(payload);
    let full = TxChecksum::Full;
    wire::emit_tcp(&parameters, &p.tuple, &header, options, payload.len(), full, &mut frame).unwrap();
    frame
}

/// "The window size MUST be treated as an unsigned number" (RFC 9293 section 3.1, MUST-1), and never more is sent than the minimum of
/// both windows lets go (RFC 5681 section 2).
#[test]
fn windows_are_unsigned_and_neither_is_overrun() {
    let plain = |window: Window| {
        let change = move |i: &mut flow::Install| {
            (i.features, i.shifts, i.mss, i.window) = (0, (0, 0), 1460, window);
        };
        let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config());
        (s.peer.ts, s.peer.window) = (None, 40_000);
        s.peer.ack(0, 0);
        s.peer.data(0, 0, b"!"); // Newer: its window counts.
        s.poll();
        s.host.send(&mut s.sock, &[1; 60_000], 64 << 10);
        let mut sent = 0;
        for _ in 0..9 {
            sent += lens(&s.poll()).iter().sum::<usize>();
        }
        sent
    };
    let now = base::Instant::ZERO;
    let sent = plain(Window::new(Algorithm::Constant(1 << 20), 1460, now));
    assert!((40_000 - 1460..=40_000).contains(&sent), "{sent}");
    assert_eq!(plain(Window::new(Algorithm::Cubic, 1460, now)), 14_600);
}

/// "A TCP implementation MUST be able to receive a TCP Option in any segment" (RFC 9293 section 3.1, MUST-5); "A Window Scale option in
/// a segment without a SYN bit MUST be ignored" (RFC 7323 section 2.2).
#[test]
fn options_of_syns_are_taken_in_any_segment_and_mean_nothing_there() {
    let mut s = scene();
    let odd = TcpOptions {
        mss: Some(100),
        window_scale: Some(1),
        sack_permitted: true,
        ..TcpOptions::with_timestamps(2, 0)
    };
    let agreed = |s: &Scene| {
        let mut guard = s.host.keeper.lock(s.id);
        let f = guard.parts();
        (f.tx.mss, f.tx.snd_shift, f.rx.rcv_shift)
    };
    let before = agreed(&s);
    let frame = segment(&s, 0, &odd, b"data");
    s.peer.inject(&frame);
    s.poll();
    assert_eq!((s.recv(), agreed(&s)), (b"data".to_vec(), before));
    assert_eq!(s.host.keeper.lock(s.id).parts().tx.snd_wnd, 512 << 7, "scaled as agreed");
}

/// MSS "MUST NOT be sent in other segments" than SYN (RFC 9293 section 3.2, MUST-65), nor SACK-permitted (RFC 2018 section 2); and
/// timestamps "MUST be sent in every non-<RST> segment" once agreed on (RFC 7323 section 3.2), echoing "a recently received TSval", from
/// a clock "at least approximately proportional to real time" (section 4.1).
#[test]
fn segments_carry_timestamps_and_no_option_of_a_syn() {
    let mut s = scene();
    s.peer.ts = Some((77, 0));
    let mut all = Vec::new();
    s.peer.data(0, 0, b"asks");
    all.extend(s.after(Duration::from_ms(50)));
    all.extend(s.send(b"answers"));
    s.peer.data(1000, 0, b"ahead");
    all.extend(s.poll());
    all.extend(s.after(Duration::from_ms(250)));
    s.host.raise(&s.sock, shm::half_flags::FIN);
    all.extend(s.poll());
    assert!(all.len() >= 4, "acknowledgement, data, duplicate, repetition, FIN");
    for got in &all {
        let o = got.options;
        assert_eq!((o.mss, o.window_scale, o.sack_permitted), (None, None, false), "{got:?}");
        assert_eq!(o.timestamps.map(|t| t.echo), Some(77), "{got:?}");
    }
    let value = |got: &Got| got.options.timestamps.unwrap().value;
    s.peer.data(1005, 0, b"a");
    let first = s.poll();
    s.peer.data(1006, 0, b"b");
    let second = s.after(Duration::from_secs(3));
    assert_eq!(value(&second[0]).wrapping_sub(value(&first[0])), 3000, "a millisecond each");
}

/// "A TCP MUST NOT abort a TCP connection because any segment lacks an expected TSopt" (RFC 7323 section 3.2).
#[test]
fn a_segment_that_lacks_its_timestamp_aborts_nothing() {
    let mut s = scene();
    s.peer.ts = Some((1000, 0));
    s.peer.data(0, 0, b"with, ");
    s.poll();
    s.peer.ts = None;
    s.peer.data(6, 0, b"without, ");
    s.poll();
    s.peer.ts = Some((1001, 0));
    s.peer.data(15, 0, b"with");
    s.poll();
    assert_eq!(s.recv(), b"with, without, with");
    assert!(s.host.log.is_empty() && s.host.frames.is_empty());
}

/// "If a TSopt is received on a connection where TSopt was not negotiated in the initial three-way handshake, the TSopt MUST be ignored
/// and the packet processed normally" (RFC 7323 section 3.2).
#[test]
fn timestamps_that_were_not_agreed_on_are_ignored() {
    let mut s = with_features(state::SACK);
    s.peer.ts = Some((1000, 5));
    s.peer.data(0, 0, b"new, ");
    s.poll();
    s.peer.ts = Some((1, 5));
    s.peer.data(5, 0, b"old");
    let got = s.after(Duration::from_ms(50));
    assert_eq!((s.recv(), s.drops(Cause::Paws)), (b"new, old".to_vec(), 0));
    assert!(got.iter().all(|g| g.options.timestamps.is_none()));
}

/// "... the timestamp MUST be checked only when a segment first arrives at the receiver, regardless of whether it is in sequence or it
/// must be queued for later delivery" (RFC 7323 section 5.3).
#[test]
fn what_was_queued_is_not_judged_again() {
    let mut s = scene();
    s.peer.ts = Some((100, 0));
    s.peer.data(4, 0, b"later");
    s.poll();
    s.peer.ts = Some((200, 0));
    s.peer.data(0, 0, b"now ");
    s.poll();
    assert_eq!((s.recv(), s.drops(Cause::Paws)), (b"now later".to_vec(), 0));
}

/// "If the data receiver has not received a SACK-Permitted option for a given connection, it MUST NOT send SACK options on that
/// connection" (RFC 2018 section 4).
#[test]
fn nothing_is_reported_to_a_peer_that_permitted_no_sack() {
    let mut s = with_features(state::TIMESTAMPS);
    for n in [1u32, 3, 1] {
        s.peer.data(n * 1000, 0, &[1; 1000]);
        assert_eq!(s.poll().iter().map(|g| (g.ack, g.sack.len())).collect::<Vec<_>>(), [(0, 0)]);
    }
}

/// "MUST set the PSH bit in the last buffered segment (i.e., when there is no more queued data to be sent)" (RFC 9293 section 3.9.1.2,
/// MUST-61).
#[test]
fn the_last_segment_of_what_was_written_says_push() {
    let mut s = scene();
    let pushes = |got: &[Got]| got.iter().map(|g| g.flags.contains(TcpFlags::PSH)).collect::<Vec<_>>();
    assert_eq!(pushes(&s.send(&[1; 3 * MSS as usize + 10])), [false, false, false, true]);
    assert_eq!(pushes(&s.send(b"more")), [true]);
}

/// "The TTL value used to send TCP segments MUST be configurable" (RFC 9293 section 3.9.2, MUST-49).
#[test]
fn segments_take_as_many_hops_as_configured() {
    for hop_limit in [64, 1, 255] {
        let config = flow::Config { hop_limit, ..config() };
        let mut s = scene_with(|_| {}, Capabilities::plain(1500, MAC_A), config);
        assert_eq!(s.send(b"far")[0].hops, hop_limit);
    }
    assert_eq!(scene().send(b"far")[0].hops, 64);
}

/// "... there MUST be a way for an application to disable the Nagle algorithm on an individual connection" (RFC 9293 section 3.7.4,
/// MUST-17).
#[test]
fn nagles_rule_can_be_switched_off() {
    for (nodelay, at_once) in [(false, vec![]), (true, vec![1])] {
        let mut s = scene();
        let (_, own) = s.host.region.halves(5).unwrap();
        own.extra.store(if nodelay { shm::application_flags::NODELAY } else { 0 }, Relaxed);
        assert_eq!(s.send(b"a").len(), 1);
        assert_eq!(lens(&s.send(b"b")), at_once, "{nodelay}");
    }
}

/// "The transmitter SHOULD collapse successive bits when it packetizes data, to send the largest possible segment" (RFC 9293 section
/// 3.9.1.2, SHLD-27 and SHLD-28), and what waits goes when what it waits for is acknowledged: nothing is buffered "indefinitely" (MUST-60).
#[test]
fn small_writes_are_collapsed_into_the_largest_segments() {
    let mut s = scene();
    let (_, own) = s.host.region.halves(5).unwrap();
    own.extra.store(0, Relaxed);
    assert_eq!(lens(&s.send(b"a")), [1]);
    let mut sent = Vec::new();
    for _ in 0..20 {
        sent.extend(lens(&s.send(&[1; 100])));
    }
    assert_eq!(sent, [MSS as usize]);
    s.peer.ack(0, 1 + MSS);
    assert_eq!(lens(&s.poll()), [2000 - MSS as usize]);
}

/// "A TCP implementation MUST include a SWS avoidance algorithm in the sender" (RFC 9293 section 3.8.6.2.1, MUST-38): no segment is cut
/// to fit a sliver of a window while anything is under way.
#[test]
fn a_sliver_of_a_window_is_not_used_while_anything_is_under_way() {
    let mut s = scene();
    s.peer.window = 16; // 2048 bytes
    s.peer.ack(0, 0);
    s.peer.data(0, 0, b"!");
    s.poll();
    assert_eq!(lens(&s.send(&[1; 10_000])), [MSS as usize], "600 bytes of window are left");
    s.peer.ack(1, MSS);
    assert_eq!(lens(&s.poll()), [MSS as usize]);
}

/// The same with nothing under way: data goes if it fills a segment, or "at least a fraction Fs of the maximum window" (a half), or when
/// "the override timeout occurs".
#[test]
fn a_sliver_of_a_window_is_used_when_its_time_has_come() {
    let silly = || {
        let mut s = scene();
        assert_eq!(s.send(b"x").len(), 1);
        s.peer.window = 2; // 256 bytes of 64 KiB
        s.peer.ack(0, 1);
        s.poll();
        assert_eq!(s.send(&[1; 2000]), []);
        s
    };
    let mut s = silly();
    s.after(Duration::from_ms(250));
    assert_eq!(lens(&s.poll()), [256]);
    s.peer.ack(0, 257);
    assert_eq!(s.poll(), [], "the next sliver waits as well");
    s.after(Duration::from_ms(250));
    assert_eq!(lens(&s.poll()), [256]);
    let mut s = silly();
    s.peer.window = 12;
    s.peer.ack(0, 1);
    assert_eq!(lens(&s.poll()), [MSS as usize], "a whole segment does not wait");
    // A peer that never had more gets what it has.
    let mut s = scene_with(|i| i.snd_wnd = 500, Capabilities::plain(1500, MAC_A), config());
    s.peer.window = 2;
    s.peer.data(0, 0, b"!");
    s.poll();
    assert_eq!(lens(&s.send(&[1; 2000])), [256]);
}

/// A peer takes back what it has offered: the sender "MUST be robust against window shrinking, which may cause the 'usable window' to
/// become negative" (MUST-34), "SHOULD NOT send new data (SHLD-15), but SHOULD retransmit normally the old unacknowledged data between
/// SND.UNA and SND.UNA+SND.WND (SHLD-16)", and "MAY also retransmit old data beyond" (MAY-7) (RFC 9293 section 3.8.6).
#[test]
fn a_window_that_shrinks_below_what_is_under_way_stops_new_data_only() {
    for window in [8u16, 0] {
        let mut s = scene();
        assert_eq!(s.send(&[7; 5 * MSS as usize]).len(), 5);
        s.peer.window = window;
        s.peer.data(0, 0, b"!"); // Newer: its window counts.
        s.poll();
        assert_eq!(s.host.keeper.lock(s.id).parts().tx.snd_wnd, u32::from(window) << 7);
        assert_eq!(s.send(&[8; 2 * MSS as usize]), [], "{window}");
        while s.host.timeouts == 0 {
            s.after(Duration::from_ms(10));
        }
        let again = s.poll();
        assert_eq!((again[0].seq, again[0].payload.len()), (0, MSS as usize), "{window}");
        // It opens again: all of the rest goes.
        s.peer.window = 512;
        s.peer.data(1, 5 * MSS, b"!");
        assert_eq!(lens(&s.poll()).iter().sum::<usize>(), 2 * MSS as usize);
    }
}

/// RFC 5961 section 5 (RFC 9293 MAY-12): "All incoming segments whose ACK value doesn't satisfy the above condition MUST be discarded
/// and an ACK sent back".
#[test]
fn data_that_acknowledges_what_was_never_sent_or_is_long_gone_is_injected_in_vain() {
    for ack in [1, 1 << 30, 1 << 31, u32::MAX - (1 << 20)] {
        let mut s = scene();
        s.peer.data(0, ack, b"blind");
        let got = s.poll();
        assert_eq!((got.len(), got[0].ack, s.recv()), (1, 0, vec![]), "{ack}");
        assert_eq!(s.drops(Cause::BadAck), 1);
    }
}

/// Garbage in a SACK option of a segment with data harms nothing, and what it reports is recorded (RFC 2018 section 5).
#[test]
fn reports_beside_data_are_recorded() {
    let mut s = scene();
    assert_eq!(s.send(&[7; 5 * MSS as usize]).len(), 5);
    let mut options = TcpOptions::with_timestamps(2, 0);
    let at = |n: u32| SeqNumber(s.peer.irs.wrapping_add(n * MSS));
    assert!(options.sack.push(SackBlock { left: at(2), right: at(4) }));
    assert!(options.sack.push(SackBlock { left: at(90), right: at(91) }));
    let frame = segment(&s, 0, &options, b"and data");
    s.peer.inject(&frame);
    s.poll();
    assert_eq!(s.recv(), b"and data");
    assert_eq!(s.host.keeper.lock(s.id).parts().cold.recovery.held, 2 * MSS);
}

/// RFC 5961 section 7: "an implementation SHOULD include an ACK throttling mechanism". The limit is the flow's own: another flow is answered all
/// the same. Whatever an attacker sends, SYNs, RSTs in the window, acknowledgements beside it or of what was never sent, one is answered.
#[test]
fn a_flow_answers_one_unacceptable_segment_in_half_a_second() {
    const MANY: u32 = 50;
    let burst = |s: &mut Scene, kind: u32| {
        let mut answers = 0;
        s.host.log.clear();
        for i in 0..MANY {
            match kind {
                0 => s.peer.send(i, 0, TcpFlags::SYN, &[]),
                1 => s.peer.send(1 + i, 0, TcpFlags::RST, &[]),
                2 => s.peer.ack(70_000_000 + i, 0),
                _ => s.peer.ack(0, 5_000 + i),
            }
            // Each in a batch of its own, so that no answer stands for two.
            answers += s.after(Duration::from_us(1)).len();
        }
        let challenges = s.host.log.iter().filter(|e| matches!(e, Exception::Challenge { .. })).count();
        answers + challenges
    };
    for kind in 0..4 {
        let mut s = scene();
        let first = burst(&mut s, kind);
        s.after(Duration::from_ms(499));
        let between = burst(&mut s, (kind + 1) % 4);
        s.after(Duration::from_ms(1));
        assert_eq!([first, between, burst(&mut s, kind)], [1, 0, 1], "{kind}");
    }
}
