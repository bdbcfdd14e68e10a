use super::*;
use crate::stream::tests::{ends, send};
use control::{AppType, CongestionName};
use std::sync::atomic::Ordering;

const fn ints(on: i32, seconds: i32) -> [u8; 8] {
    let (on, seconds) = (on.to_ne_bytes(), seconds.to_ne_bytes());
    [on[0], on[1], on[2], on[3], seconds[0], seconds[1], seconds[2], seconds[3]]
}

/// Sets an option as the simulator does.
fn set(options: &mut Options, level: i32, name: i32, value: i32) -> Result<i32, Errno> {
    let option = Name::new(level, name);
    let kept = options.accept(option, &value.to_ne_bytes())?.unwrap_or(value);
    options.note(option, &kept.to_ne_bytes());
    options.answer(option)
}

#[test]
fn values_are_refused_rounded_and_returned_as_by_linux() {
    let mut options = Options::default();
    let invalid = Err(Errno::INVAL);
    for (level, name, value, answer) in [
        (SOCKET, SO_KEEPALIVE, 7, Ok(1)),
        (TCP, TCP_KEEPIDLE, 0, invalid),
        (TCP, TCP_KEEPIDLE, 32_767, Ok(32_767)),
        (TCP, TCP_KEEPCNT, 128, invalid),
        (TCP, TCP_USER_TIMEOUT, -1, invalid),
        (TCP, TCP_INQ, 2, invalid),
        (TCP, TCP_LINGER2, -5, Ok(-1)),
        (TCP, TCP_LINGER2, 500, Ok(120)),
        (TCP, TCP_LINGER2, 0, Ok(60)),
        (TCP, TCP_DEFER_ACCEPT, 5, Ok(7)),
        (TCP, TCP_DEFER_ACCEPT, -1, Ok(0)),
        (TCP, TCP_MAXSEG, 87, invalid),
        (IP, IP_TOS, 0xff, Ok(0xfc)),
        (IPV6, IPV6_TCLASS, 256, invalid),
        (IPV6, IPV6_TCLASS, -1, Ok(0)),
        (SOCKET, SO_RCVLOWAT, 0, Ok(1)),
        (SOCKET, SO_RCVBUF, 10_000, Ok(20_000)),
        (SOCKET, SO_RCVLOWAT, 20_000, Ok(10_000)),
        (SOCKET, SO_RCVBUF, -1, Ok(425_984)),
        (SOCKET, SO_SNDBUF, 1, Ok(4_608)),
        (SOCKET, SO_MARK, 1, Err(Errno::NOPROTOOPT)),
        (TCP, TCP_QUICKACK, 1, Err(Errno::NOPROTOOPT)),
    ] {
        assert_eq!(set(&mut options, level, name, value), answer, "level {level}, option {name}: {value}");
    }
    let tos = Name::new(IP, IP_TOS);
    assert_eq!(options.accept(tos, &[8]), Ok(None), "level IP takes a byte");
    assert_eq!(options.accept(Name::new(TCP, TCP_CORK), &[1]), Err(Errno::INVAL));
    assert_eq!(options.accept(Name::new(TCP, TCP_CONGESTION), b"no name"), Err(Errno::NOENT));
    assert_eq!(options.accept(Name::new(TCP, TCP_CONGESTION), b""), Err(Errno::INVAL));
}

#[test]
fn the_service_is_told_what_was_set() {
    let mut options = Options::default();
    assert_eq!(options.told(), SocketOptions::default());
    options.note(Name::new(TCP, TCP_CONGESTION), b"reno\0");
    options.note(Name::new(IP, IP_TOS), &[0x10]);
    options.note(Name::new(SOCKET, SO_MAX_PACING_RATE), &(1_u64 << 40).to_ne_bytes());
    for (level, name, value) in [
        (TCP, TCP_KEEPIDLE, 100_000),
        (SOCKET, SO_RCVBUF, 70_000),
        (TCP, TCP_WINDOW_CLAMP, 60_000),
        (TCP, TCP_LINGER2, -7),
        (IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT),
    ] {
        options.note(Name::new(level, name), &value.to_ne_bytes());
    }
    let told = SocketOptions {
        keep_idle: i16::MAX as u16,
        receive_buffer: 60_000,
        max_pacing_rate: 1 << 40,
        linger2: -1,
        congestion: CongestionName::of_option(b"reno"),
        tos: 0x10,
        may_fragment: true,
        ..SocketOptions::default()
    };
    assert_eq!(options.told(), told);
    options.note(Name::new(SOCKET, SO_MAX_PACING_RATE), &(-1_i32).to_ne_bytes());
    assert_eq!(options.told().max_pacing_rate, 0, "all ones: no limit");
}

#[test]
fn a_program_says_what_matters_on_its_connection() {
    let option = Name::new(SOL_TOWPATH, TOWPATH_APP_TYPE);
    let mut options = Options::default();
    assert_eq!((options.answer(option), options.told().app_type), (Ok(0), AppType::Unset));
    for (value, app_type) in [(1, AppType::Latency), (2, AppType::Throughput), (0, AppType::Unset)] {
        let bytes = i32::to_ne_bytes(value);
        assert_eq!(options.accept(option, &bytes), Ok(None));
        options.note(option, &bytes);
        assert_eq!((options.answer(option), options.told().app_type), (Ok(value), app_type));
        assert_eq!(options.passed_on().count(), 1, "a listener says it for all that it accepts");
    }
    for (option, value, error) in [
        (option, &3_i32.to_ne_bytes()[..], Errno::INVAL),
        (option, &(-1_i32).to_ne_bytes(), Errno::INVAL),
        (option, &[1], Errno::INVAL),
        (Name::new(SOL_TOWPATH, 2), &1_i32.to_ne_bytes(), Errno::NOPROTOOPT),
    ] {
        assert_eq!(options.accept(option, value), Err(error), "{option:?} {value:?}");
    }
    assert_eq!(option.obeyed_by(), Some(By::Service));
}

#[test]
fn the_option_set_last_counts_and_a_listeners_own_are_not_passed_on() {
    let mut options = Options::default();
    let on = 1_i32.to_ne_bytes();
    for name in [SO_TIMESTAMP, SO_PRIORITY, SO_TIMESTAMPNS] {
        options.note(Name::new(SOCKET, name), &on);
    }
    assert_eq!((options.stamp(), options.passed_on().count()), (Some(SO_TIMESTAMPNS), 2));
    options.note(Name::new(SOCKET, SO_TIMESTAMP), &[0; 4]);
    assert_eq!((options.stamp(), options.all().count()), (None, 3));
    options.note(Name::new(SOCKET, SO_LINGER), &ints(1, -1));
    assert_eq!(options.linger(), Some(u32::MAX));
    options.note(Name::new(SOCKET, SO_LINGER), &ints(0, 5));
    assert_eq!(options.linger(), None);
    let time = [1_i64.to_ne_bytes(), 500_000_i64.to_ne_bytes()].concat();
    options.note(Name::new(SOCKET, SO_RCVTIMEO), &time);
    assert_eq!((options.receive_limit(), options.send_limit()), (Some(Duration::from_millis(1_500)), None));
}

#[test]
fn a_new_connection_obeys_what_was_set_before_it() {
    let (a, b) = ends(5);
    let mut options = Options::default();
    for (level, name, value) in [
        (SOCKET, SO_SNDBUF, 5_000),
        (TCP, TCP_NOTSENT_LOWAT, 9),
        (SOCKET, SO_RCVLOWAT, 3),
        (TCP, TCP_CORK, 1),
    ] {
        options.note(Name::new(level, name), &i32::to_ne_bytes(value));
    }
    options.apply_to(&a);
    assert_eq!(
        (a.buffer.load(Ordering::Relaxed), a.lowat.load(Ordering::Relaxed), a.low_water()),
        (10_000, 9, 3)
    );
    send(&a, b"held back").unwrap();
    assert_eq!(b.unread(), 0);
    assert!(!a.obey(Name::new(TCP, TCP_CORK), 0) && a.obey(Name::new(SOCKET, SO_SNDBUF), 9_000));
    assert_eq!(b.unread(), 9);
}
