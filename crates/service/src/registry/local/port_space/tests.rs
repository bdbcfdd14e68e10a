//! Tests of ports and ends against the kernel.

use super::holding::socket_for;
use super::*;
use crate::sys::set_local_port_range;
use rustix::fd::AsFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use std::net::{Ipv4Addr, Ipv6Addr};

#[test]
fn a_port_in_use_with_the_same_peer_is_skipped_in_the_next_round() {
    let (a, b): (SocketAddr, SocketAddr) = ("10.9.0.2:80".parse().unwrap(), "10.9.0.2:81".parse().unwrap());
    let mut ports = PortSpace::default();
    let held = ports.find_own(a.ip(), a, |_, _| true, |_| false).unwrap();
    ports.take([SocketAddr::new(a.ip(), held), a], Origin::Pair(1, 1));
    let reserved = |at: SocketAddr| at.port() == 40_000;
    for _ in 0..60_000 {
        let port = ports.find_own(a.ip(), a, |_, origin| origin == Origin::Pair(1, 1), reserved).unwrap();
        assert!(port != held && port != 40_000 && RANGE.contains(&port));
        ports.take([SocketAddr::new(a.ip(), port), a], Origin::Pair(2, 2));
    }
    assert!(ports.taken.len() <= RANGE.len(), "what has ended is forgotten");
    let mut others = (0..RANGE.len()).filter_map(|_| ports.find_own(a.ip(), b, |_, _| true, |_| false));
    assert!(others.any(|port| port == held), "another peer's connections do not matter");
}

#[test]
fn a_port_is_held_at_the_addresses_of_one_family() {
    let is_taken = |ip: IpAddr, port: u16| std::net::TcpListener::bind((ip, port)).is_err();
    for (own, other) in [("127.0.0.1", "::1"), ("::1", "127.0.0.1")] {
        let [own, other]: [IpAddr; 2] = [own, other].map(|ip| ip.parse().unwrap());
        let mut ports = PortSpace::default();
        let [sort, other_sort] = [own, other].map(|ip| Sort { is_ipv6: ip.is_ipv6(), purpose: For::Plain });
        ports.hold_more(sort);
        let port = ports.find_held(sort, own, SocketAddr::new(own, 80), Instant::now(), |_, _| true).unwrap();
        assert!(is_taken(own, port));
        // Another program may have some of these ports.
        assert!(ports.pools[sort.index()].held.iter().any(|held| !is_taken(other, held.port)));
        assert_eq!(
            ports.find_held(other_sort, other, SocketAddr::new(other, 80), Instant::now(), |_, _| true),
            None
        );
    }
}

#[test]
fn a_port_is_shared_where_both_sockets_reuse_addresses() {
    let local: IpAddr = "127.0.0.1".parse().unwrap();
    let mut ports = PortSpace::default();
    for (held_reuses, purpose) in [(false, For::Plain), (true, For::Reusing), (false, For::Lent)] {
        let sort = Sort { is_ipv6: false, purpose };
        ports.hold_more(sort);
        let port =
            ports.find_held(sort, local, SocketAddr::new(local, 80), Instant::now(), |_, _| true).unwrap();
        for reuses in [false, true] {
            let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
            let socket = socket.unwrap();
            sockopt::set_socket_reuseaddr(&socket, reuses).unwrap();
            let is_bound = bind(&socket, &SocketAddr::new(local, port)).is_ok();
            assert_eq!(is_bound, held_reuses && reuses, "held {held_reuses}, bound {reuses}");
        }
    }
}

#[test]
fn all_ports_in_use_is_said() {
    let a: SocketAddr = "10.9.0.2:80".parse().unwrap();
    let mut ports = PortSpace::default();
    for port in RANGE {
        ports.take([SocketAddr::new(a.ip(), port), a], Origin::Relay(1));
    }
    assert_eq!(ports.find_own(a.ip(), a, |_, _| true, |_| false), None);
    assert!(ports.find_own(a.ip(), a, |_, _| false, |_| false).is_some());
}

#[test]
fn held_ports_serve_every_destination_and_go_back_to_the_kernel() {
    let local: IpAddr = "127.0.0.1".parse().unwrap();
    let [a, b]: [SocketAddr; 2] = ["127.0.0.1:80", "127.0.0.1:81"].map(|at| at.parse().unwrap());
    let mut ports = PortSpace::default();
    let sort = Sort { is_ipv6: false, purpose: For::Lent };
    for to in [a, b] {
        for _ in 0..STEP.0 * 4 {
            let port = ports.find_held(sort, local, to, Instant::now(), |_, _| true).or_else(|| {
                ports.hold_more(sort);
                ports.find_held(sort, local, to, Instant::now(), |_, _| true)
            });
            let port = port.unwrap();
            assert!(ports.is_free(&[SocketAddr::new(local, port), to], |_, _| true));
            ports.take([SocketAddr::new(local, port), to], Origin::Relay(1));
        }
    }
    let port = ports.pools[sort.index()].held[0].port;
    assert_eq!(ports.pools[sort.index()].held.len(), STEP.0 * 4, "the second destination needed no more");
    assert!(std::net::TcpListener::bind(("127.0.0.1", port)).is_err(), "the kernel gives it to no other");
    ports.release(Instant::now(), |_, _| true);
    assert_eq!(ports.pools[sort.index()].held.len(), STEP.0 * 4);
    ports.release(Instant::now(), |_, _| false);
    assert_eq!(ports.pools[sort.index()].held.len(), STEP.0, "what nothing needs goes at once");
}

/// A held port, and the ends of a connection from it to a listener.
fn connection(ports: &mut PortSpace, sort: Sort) -> Ends {
    let local: IpAddr = "127.0.0.1".parse().unwrap();
    let to = SocketAddr::new(local, 80);
    ports.hold_more(sort);
    let port = ports.find_held(sort, local, to, Instant::now(), |_, _| true).unwrap();
    let ends = [SocketAddr::new(local, port), to];
    ports.take(ends, Origin::Relay(1));
    ends
}

const S: std::time::Duration = std::time::Duration::from_secs(1);

#[test]
fn connections_share_no_port_while_few_are_held() {
    let local: IpAddr = "127.0.0.1".parse().unwrap();
    let sort = Sort { is_ipv6: false, purpose: For::Plain };
    let mut ports = PortSpace { held_most: 256, ..PortSpace::default() };
    let mut used = HashSet::new();
    for i in 0..2 * 256u16 {
        // Each connection has a destination of its own.
        let to = SocketAddr::new(local, 1 + i);
        let port = ports.find_held(sort, local, to, Instant::now(), |_, _| true).unwrap_or_else(|| {
            ports.hold_more(sort);
            ports.find_held(sort, local, to, Instant::now(), |_, _| true).unwrap()
        });
        let ends = [SocketAddr::new(local, port), to];
        assert_eq!(used.insert(port), usize::from(i) < 256);
        ports.take(ends, Origin::Relay(1));
    }
    assert_eq!(ports.pools[sort.index()].held.len(), 256);
    ports.forget_ended(|_, _| false);
    assert!(ports.users.is_empty());
}

#[test]
fn a_connection_costs_the_same_beside_many_others() {
    let (local, now): (IpAddr, _) = ("127.0.0.1".parse().unwrap(), Instant::now());
    let sort = Sort { is_ipv6: false, purpose: For::Plain };
    let mut ports = PortSpace { held_most: 1024, ..PortSpace::default() };
    let looked_at = std::cell::Cell::new(0);
    let is_live = |_: &Ends, _: Origin| {
        looked_at.set(looked_at.get() + 1);
        true
    };
    let mut cost = Vec::new();
    for i in 0..4 * 1024 {
        // Eight destinations in turn.
        let to = SocketAddr::new(local, 80 + i % 8);
        let port = ports.find_held(sort, local, to, now, is_live).unwrap_or_else(|| {
            ports.hold_more(sort);
            ports.find_held(sort, local, to, now, is_live).unwrap()
        });
        ports.take([SocketAddr::new(local, port), to], Origin::Relay(1));
        if (i + 1) % 1024 == 0 {
            cost.push(looked_at.replace(0) / 1024);
        }
    }
    assert!(cost.iter().all(|each| *each < 32), "looked at for each connection: {cost:?}");
}

#[test]
fn ports_of_expected_connections_are_held_before_they_come() {
    const LOT: usize = 20;
    let (local, now): (IpAddr, _) = ("127.0.0.1".parse().unwrap(), Instant::now());
    let to = SocketAddr::new(local, 80);
    let sort = Sort { is_ipv6: false, purpose: For::Lent };
    let mut ports = PortSpace { held_most: 200, ..PortSpace::default() };
    let held = |ports: &PortSpace| ports.pools[sort.index()].held.len();
    let expect = |ports: &mut PortSpace, to| {
        ports.expect(sort, local, to, LOT);
        ports.hold_ahead(|_, _| true);
        assert!(!ports.is_expecting());
    };
    while held(&ports) < LOT {
        ports.hold_more(sort);
    }
    for lot in 1..6 {
        expect(&mut ports, to);
        assert!(held(&ports) < (lot + 2) * LOT * 3, "{} for lot {lot}", held(&ports));
        for _ in 0..LOT {
            let port = ports.find_held(sort, local, to, now, |_, _| true).expect("held ahead");
            ports.take([SocketAddr::new(local, port), to], Origin::Relay(1));
        }
    }
    // The connections of another destination have the same ports, also those that are not the next ones.
    let before = held(&ports);
    expect(&mut ports, SocketAddr::new(local, 81));
    ports.pools[sort.index()].next = 0;
    expect(&mut ports, SocketAddr::new(local, 81));
    assert_eq!(held(&ports), before);
    for _ in 0..8 {
        ports.hold_more(sort);
    }
    assert_eq!(held(&ports), 200, "the service keeps descriptors for others");
}

/// What the end needs its port for, each from which second on; the second at which the port is asked for; whether it is given back.
type Case<'a> = (&'a [(Need, u32)], u32, bool);

#[test]
fn a_connectors_port_goes_back_when_its_end_needs_it_no_longer() {
    let begin = Instant::now();
    let sort = Sort { is_ipv6: false, purpose: For::Plain };
    let five = Need::FinWait2(5 * S);
    let cases: [Case<'_>; 9] = [
        (&[], 100, false),
        (&[(Need::Live, 0)], 100, false),
        (&[(Need::Nothing, 0)], 0, true),
        (&[(five, 0)], 4, false),
        (&[(five, 0)], 5, true),
        (&[(five, 0), (Need::TimeWait, 3)], 62, false),
        (&[(five, 0), (Need::TimeWait, 3)], 63, true),
        (&[(five, 0), (Need::TimeWait, 6)], 6, true),
        (&[(five, 0), (Need::Nothing, 3)], 3, true),
    ];
    for (needs, asked, is_given) in cases {
        let mut ports = PortSpace::default();
        let ends = connection(&mut ports, sort);
        for (need, at) in needs {
            let needs = [*need, Need::Live];
            ports.note_port(ends[0].port(), begin + S * *at, |_, origin| {
                assert_eq!(origin, Origin::Relay(1));
                Some(needs)
            });
        }
        assert_eq!(ports.give_back(ends[0], begin + S * asked), is_given, "{needs:?} {asked}");
        assert_eq!(std::net::TcpListener::bind(ends[0]).is_ok(), is_given, "{needs:?} {asked}");
        assert_eq!(ports.is_free(&ends, |_, _| true), is_given, "the program may have the same ends");
        assert!(ports.has_acceptors(ends[1], begin), "the acceptor has not closed");
    }
}

#[test]
fn a_port_rests_after_the_slot_of_its_connection_has_ended() {
    let begin = Instant::now();
    for purpose in [For::Plain, For::Reusing] {
        let mut ports = PortSpace::default();
        let ends = connection(&mut ports, Sort { is_ipv6: false, purpose });
        ports.end(&ends, Origin::Relay(2), [Need::Nothing; 2], begin);
        assert!(!ports.is_free(&ends, |_, _| true), "another connection has the ends");
        ports.end(&ends, Origin::Relay(1), [Need::TimeWait, Need::Nothing], begin);
        ports.release(begin + 59 * S, |_, _| false);
        assert!(!ports.give_back(ends[0], begin + 59 * S));
        let other = SocketAddr::new("::1".parse().unwrap(), ends[0].port());
        assert!(!ports.give_back(other, begin + 60 * S), "held for the other family only");
        assert!(ports.give_back(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), other.port()), begin + 60 * S));
    }
}

#[test]
fn a_closed_listeners_port_is_kept_for_its_connections() {
    let begin = Instant::now();
    let is_free = |at: SocketAddr| std::net::TcpStream::connect(at).is_err() && hold_at(at, false).is_some();
    // Below the kernel's range, so that no other test gets the port in between.
    let mut listeners = (20_000..).map(|port| std::net::TcpListener::bind(("127.0.0.1", port)));
    let listener = listeners.find_map(Result::ok).unwrap();
    let at = listener.local_addr().unwrap();
    let anywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), at.port());
    let ends = ["127.0.0.1:9".parse().unwrap(), at];
    let mut ports = PortSpace::default();
    ports.take(ends, Origin::Relay(1));
    assert!(ports.has_acceptors(anywhere, begin) && ports.has_acceptors(at, begin));
    assert!(!ports.has_acceptors(SocketAddr::new("127.0.0.2".parse().unwrap(), at.port()), begin));
    assert!(!ports.keep(anywhere, false, begin), "the kernel's listener is still there");
    assert!(ports.kept.is_empty());
    drop(listener);
    for reuses in [false, true] {
        let mut ports = PortSpace::default();
        ports.take(ends, Origin::Relay(1));
        assert!(ports.keep(anywhere, reuses, begin) && ports.keep(anywhere, reuses, begin));
        assert_eq!(ports.kept_ports().len(), 1);
        assert!(!ports.is_bound(anywhere), "the kernel's listener was gone");
        assert!(!is_free(at));
        assert_eq!(hold_at(at, true).is_some(), reuses, "as the listener was");
        ports.end(&ends, Origin::Relay(1), [Need::Nothing, Need::TimeWait], begin);
        assert!(!ports.release_kept(None, begin + 59 * S) && !is_free(at));
        assert!(ports.release_kept(None, begin + 60 * S) && is_free(at));
    }
}

#[test]
fn a_stopped_listeners_port_is_kept_beside_a_socket_that_reuses_addresses() {
    let begin = Instant::now();
    // The standard library's listeners have `SO_REUSEADDR`. A port that is named stays when the socket stops listening.
    let mut listeners = (20_500..).map(|port| std::net::TcpListener::bind(("127.0.0.1", port)));
    let listener = listeners.find_map(Result::ok).unwrap();
    let at = listener.local_addr().unwrap();
    rustix::net::shutdown(&listener, rustix::net::Shutdown::Read).unwrap();
    for reuses in [false, true] {
        let mut ports = PortSpace::default();
        ports.take(["127.0.0.1:9".parse().unwrap(), at], Origin::Relay(1));
        assert!(ports.keep(at, reuses, begin) && ports.is_bound(at));
        assert_eq!(hold_at(at, true).is_some(), reuses, "as its connections are");
        sockopt::set_socket_reuseaddr(&listener, false).unwrap();
        assert!(hold_at(at, true).is_none(), "the socket has the port itself");
        sockopt::set_socket_reuseaddr(&listener, true).unwrap();
    }
}

#[test]
fn ports_are_looked_for_window_after_window() {
    let any: IpAddr = Ipv4Addr::UNSPECIFIED.into();
    let probe = socket_for(SocketAddr::new(any, 0), false).unwrap();
    if set_local_port_range(probe.as_fd(), 60_992..=60_999).is_err() {
        return println!("skipped: the kernel has no IP_LOCAL_PORT_RANGE");
    }
    let mut window = 60_992;
    let first = hold(false, false, &mut window).unwrap();
    assert_ne!(window, 60_992, "the next port is looked for in the next window");
    // Other programs may have these ports already.
    let _others: Vec<_> =
        (60_992..=60_999).filter_map(|port| hold_at(SocketAddr::new(any, port), false)).collect();
    window = 60_992;
    let second = hold(false, false, &mut window).unwrap();
    assert!(RANGE.contains(&first.port) && RANGE.contains(&second.port));
    assert!(
        second.port < 60_992,
        "all ports of the last window are in use, and {} is one of them",
        second.port
    );
    assert!(window > *RANGE.start() && window < 60_992);
}

#[test]
fn ports_are_held_that_the_kernel_gives_last_to_a_program_that_binds_to_port_0() {
    let mut window = *RANGE.start();
    let held: Vec<_> = (0..16).filter_map(|_| hold(false, false, &mut window)).collect();
    let even = held.iter().filter(|held| held.port % 2 == 0).count();
    // Other programs may have all even ports of a window.
    assert!(even >= 12, "{even} of {}: {held:?}", held.len());
}

#[test]
fn the_ports_of_every_purpose_leave_half_of_the_descriptors_to_others() {
    let local: IpAddr = "127.0.0.1".parse().unwrap();
    let [a, b]: [SocketAddr; 2] = ["127.0.0.1:80", "127.0.0.1:81"].map(|at| at.parse().unwrap());
    for purpose in [For::Plain, For::Reusing, For::Lent] {
        let mut ports = PortSpace::with_most(40);
        let sort = Sort { is_ipv6: false, purpose };
        assert_eq!([ports.hold_more(sort), ports.hold_more(sort)], [true; 2]);
        assert_eq!((ports.held(), ports.holds_most()), (40, true), "{purpose:?}");
        assert!(!ports.hold_more(sort) && ports.held() == 40, "{purpose:?}");
        let find = |ports: &mut PortSpace, to| ports.find_held(sort, local, to, Instant::now(), |_, _| true);
        for _ in 0..40 {
            let port = find(&mut ports, a).unwrap();
            ports.take([SocketAddr::new(local, port), a], Origin::Relay(1));
        }
        assert_eq!(find(&mut ports, a), None, "one destination has a port once");
        assert!(find(&mut ports, b).is_some(), "another destination shares them");
    }
}

#[test]
fn a_connectors_port_can_be_bound_at_other_addresses() {
    let begin = Instant::now();
    for (own, other, any) in [("127.0.0.1", "127.0.0.2", "0.0.0.0"), ("::1", "::1", "::")] {
        for purpose in [For::Plain, For::Reusing] {
            let local: IpAddr = own.parse().unwrap();
            let (to, sort) = (SocketAddr::new(local, 80), Sort { is_ipv6: local.is_ipv6(), purpose });
            let mut ports = PortSpace::default();
            ports.hold_more(sort);
            let port = ports.find_held(sort, local, to, begin, |_, _| true).unwrap();
            let [at, other, any] = [own, other, any].map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
            ports.take([at, to], Origin::Relay(1));
            let held = ports.held();
            for taken in [at, any] {
                assert!(!ports.give_back(taken, begin), "{taken}");
            }
            assert_eq!(ports.held(), held, "nothing has changed");
            if other == at {
                continue;
            }
            assert!(ports.give_back(other, begin));
            assert!(hold_at(other, false).is_some(), "another address");
            assert!(hold_at(at, false).is_none() && hold_at(any, false).is_none(), "its own address");
            assert_eq!(hold_at(at, true).is_some(), purpose == For::Reusing, "as the connector has asked");
            assert!(!ports.give_back(at, begin), "the connection lives");
            assert_ne!(ports.find_held(sort, other.ip(), to, begin, |_, _| false), Some(port));
            ports.end(&[at, to], Origin::Relay(1), [Need::TimeWait, Need::Nothing], begin);
            assert!(!ports.release_kept(None, begin + 59 * S) && hold_at(at, false).is_none());
            assert!(ports.release_kept(None, begin + 60 * S) && hold_at(at, false).is_some());
        }
    }
}

#[test]
fn a_port_is_held_at_few_single_addresses() {
    let local: IpAddr = "127.0.0.1".parse().unwrap();
    let sort = Sort { is_ipv6: false, purpose: For::Plain };
    let (begin, to) = (Instant::now(), SocketAddr::new(local, 80));
    let mut ports = PortSpace::default();
    ports.hold_more(sort);
    let port = ports.pools[sort.index()].held[0].port;
    let at = |last: u8| SocketAddr::new(IpAddr::from([127, 0, 0, last]), port);
    (1..=17).for_each(|last| ports.take([at(last), to], Origin::Relay(u32::from(last))));
    assert!(!ports.give_back(at(99), begin), "each address would cost a descriptor");
    ports.end(&[at(17), to], Origin::Relay(17), [Need::Nothing; 2], begin);
    assert!(ports.give_back(at(99), begin));
    assert!(hold_at(at(16), false).is_none() && hold_at(at(17), false).is_some());
}

#[test]
fn all_ports_that_no_connection_needs_go_back_for_a_program_that_finds_none() {
    let (begin, local): (_, IpAddr) = (Instant::now(), "127.0.0.1".parse().unwrap());
    let mut ports = PortSpace::default();
    let sorts = [For::Plain, For::Reusing].map(|purpose| Sort { is_ipv6: false, purpose });
    let [live, reset] = sorts.map(|sort| connection(&mut ports, sort));
    ports.hold_more(Sort { is_ipv6: true, purpose: For::Plain });
    let of_ipv6 = ports.pools[3].held.len();
    ports.end(&reset, Origin::Relay(1), [Need::Nothing; 2], begin);
    assert!(ports.give_any_back(local, begin));
    assert_eq!(ports.held(), 1 + of_ipv6, "the port of the connection that lives, and another family's");
    assert!(hold_at(live[0], false).is_none() && hold_at(reset[0], false).is_some());
    assert!(!ports.give_any_back(local, begin), "there are no more");
    assert!(ports.give_any_back(Ipv6Addr::UNSPECIFIED.into(), begin) && ports.held() == 1);
    ports.end(&live, Origin::Relay(1), [Need::TimeWait, Need::Nothing], begin);
    assert!(!ports.give_any_back(local, begin + 59 * S) && ports.give_any_back(local, begin + 60 * S));
}
