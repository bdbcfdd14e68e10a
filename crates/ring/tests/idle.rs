//! What idle connections cost: bytes that the library has allocated for them, counted by this program's allocator. The service runs in
//! another thread: its bytes do not count.

use crate::alone::alone;
use crate::common::{PATIENCE, service_with};
use crate::counting;
use ring::{ConnectOptions, Event, Kind, ListenOptions, Options, Ring, Service};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

/// Connections with both ends in one ring. The ends are a few more than a power of two: then the ring's vectors, which double, have just grown,
/// and the cost of each end is the highest, whatever the number.
const PAIRS: u32 = 4_100;
/// Connections begun at once.
const AT_ONCE: u32 = 128;
/// Most bytes for each end.
const BYTES_MOST: i64 = 256;

/// Number of connections that both sides know now.
fn look(ring: &mut Ring, events: &mut Vec<Event>, [connected, accepted]: &mut [u32; 2]) -> u32 {
    ring.wait(Some(PATIENCE), events).unwrap();
    for event in events {
        *connected += u32::from(event.kind == Kind::Connected);
        *accepted += u32::from(matches!(event.kind, Kind::Accepted { .. }));
    }
    *connected.min(accepted)
}

#[test]
fn a_ring_takes_few_bytes_for_each_idle_connection() {
    alone("idle::a_ring_takes_few_bytes_for_each_idle_connection", check);
}

fn check() {
    let more = service::Options { region_slots: Some(16_384), ..service::Options::default() };
    let place = service_with(more);
    let options = Options { control: Some(place.control.clone()), ..Options::default() };
    let mut ring = Service::open(options).unwrap().ring().unwrap();
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = ring.listen(any, ListenOptions::default(), 0).unwrap();
    let address = ring.local_address(listener).unwrap();
    let mut events = Vec::with_capacity(1024);
    let (mut begun, mut made, mut known, mut before) = (0, 0, [0; 2], 0);
    let end = Instant::now() + 2 * PATIENCE;
    while made < PAIRS {
        while begun < PAIRS && begun - made < AT_ONCE {
            let connected = ring.connect(address, ConnectOptions::default(), 0);
            connected.unwrap_or_else(|e| panic!("after {begun} connections: {e}"));
            begun += 1;
        }
        made = look(&mut ring, &mut events, &mut known);
        assert!(Instant::now() < end, "{made} of {begun} connections are made");
        if begun == AT_ONCE {
            // From here on, without what the first ones have cost once.
            before = counting::bytes();
        }
    }
    assert_eq!(ring.len(), 2 * PAIRS as usize + 1);
    let each = (counting::bytes() - before) / i64::from(2 * (PAIRS - AT_ONCE));
    eprintln!("{each} bytes for each end of {PAIRS} connections");
    assert!(each <= BYTES_MOST, "{each} bytes for each");
}
