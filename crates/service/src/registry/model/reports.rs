//! Reports that are made in pieces: each piece is small, and all pieces together say what one would.

use super::program::{File, Program};
use super::world::World;
use crate::config::Sharing;
use crate::registry::report::Viewer;
use crate::registry::report::job::Making;
use crate::registry::report::socket_list::SocketList;
use base::Seed;
use rustix::fd::OwnedFd;
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};

/// Number of the listener among a program's files; connections have higher ones.
const LISTENER: u32 = 1;
const CONNECTIONS: u32 = 40;

/// A server, and a client with connections to it.
struct Two {
    world: World,
    client: Program,
    _server: Program,
    address: SocketAddr,
    _socket: OwnedFd,
}

fn two(sharing: Sharing) -> Two {
    let mut world = World::new(sharing, Seed::new(1));
    let (mut server, client) = (Program::new(11, 1000), Program::new(12, 1000));
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let socket = OwnedFd::from(socket);
    server.id(&mut world);
    server.listen(&mut world, LISTENER, 128, &socket);
    let mut two = Two { world, client, _server: server, address, _socket: socket };
    two.client.id(&mut two.world);
    (0..CONNECTIONS).for_each(|i| two.connect(i));
    two
}

impl Two {
    fn connect(&mut self, i: u32) {
        let link = self.client.connect(&mut self.world, self.address).unwrap();
        self.client.files.insert(LISTENER + 1 + i, File::Stream(Some(link)));
        self.world.settle();
    }
}

/// Makes a list in pieces of `most` entries. Before piece `n` calls `between` with `n`. Returns the lines and the number of pieces.
fn make(two: &mut Two, is_detailed: bool, most: usize, between: impl Fn(&mut Two, u32)) -> (Vec<Value>, u32) {
    let mut list = Box::new(SocketList::new(&two.world.registry, is_detailed, Viewer::All));
    let mut pieces = 0;
    loop {
        pieces += 1;
        let before = list.found();
        let is_complete = list.go_on(&two.world.registry, most);
        // A slot has two ends, and the last entry of a piece may have one of them too many.
        assert!(
            list.found() - before <= 2 * most + 2,
            "a piece of {most} has found more: {}",
            list.found() - before
        );
        if is_complete {
            break;
        }
        between(two, pieces);
    }
    let text: Value = serde_json::from_slice(&list.write().unwrap()).unwrap();
    let lines = if is_detailed { &text["sockets"] } else { &text };
    (lines.as_array().unwrap().clone(), pieces)
}

/// The ends that a report lists, each with its local and remote address and process.
fn ends(lines: &[Value]) -> BTreeSet<String> {
    let ends: BTreeSet<_> = lines
        .iter()
        .map(|line| format!("{} {} {} {}", line["kind"], line["local"], line["remote"], line["pid"]))
        .collect();
    assert_eq!(ends.len(), lines.len(), "an end is listed twice");
    ends
}

#[test]
fn a_list_made_in_small_pieces_says_what_one_made_at_once_says() {
    for sharing in [Sharing::Always, Sharing::Never] {
        let mut two = two(sharing);
        for is_detailed in [false, true] {
            let (whole, _) = make(&mut two, is_detailed, usize::MAX / 4, |_, _| {});
            assert!(whole.len() >= CONNECTIONS as usize, "{}", whole.len());
            for most in [1, 7, 64] {
                let (lines, pieces) = make(&mut two, is_detailed, most, |_, _| {});
                assert_eq!(ends(&lines), ends(&whole), "pieces of {most}");
                assert!(pieces as usize >= CONNECTIONS as usize / most, "{pieces} pieces of {most}");
            }
        }
    }
}

#[test]
fn connections_that_stay_are_in_a_list_once_while_others_come_and_go() {
    for sharing in [Sharing::Always, Sharing::Never] {
        let mut two = two(sharing);
        let stay = 10..CONNECTIONS;
        for i in 0..10 {
            let _ = two.client.close(&mut two.world, LISTENER + 1 + i);
        }
        let before = ends(&make(&mut two, false, usize::MAX / 4, |_, _| {}).0);
        (0..10).for_each(|i| two.connect(100 + i));
        let change = |two: &mut Two, piece: u32| {
            if piece <= 10 {
                let _ = two.client.close(&mut two.world, LISTENER + 100 + piece);
                two.connect(200 + piece);
            }
        };
        let (lines, pieces) = make(&mut two, false, 2, change);
        let now = ends(&lines);
        assert!(pieces > 10 && before.len() >= stay.len());
        assert!(before.iter().all(|end| now.contains(end)), "missing: {:?}", before.difference(&now));
    }
}
