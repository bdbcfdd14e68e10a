//! The runner at real sockets. No test waits for a time: each step ends with a datagram that is there, or is bounded.

use std::io;
use std::os::unix::net::UnixDatagram;

use ccp_agent::{Agent, Runner, What};
use ccp_wire::{Kind, Message, messages};

use crate::bench::{Diary, Scripted};

fn agent(diary: &Diary) -> Agent {
    let mut agent = Agent::new();
    agent.add(Scripted::new("a", diary, |_, _| Ok(()))).expect("new");
    agent
}

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes).expect("short");
    bytes
}

fn kind_of(bytes: &[u8]) -> Kind {
    messages(bytes).next().expect("a message").expect("well formed").kind()
}

fn read(datapath: &UnixDatagram) -> Kind {
    let mut buffer = [0; 16 * 1024];
    let len = datapath.recv(&mut buffer).expect("the agent has sent it");
    kind_of(&buffer[..len])
}

#[test]
fn a_datapath_that_knocks_gets_programs_and_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, theirs) = (folder.path().join("sub/agent"), folder.path().join("datapath"));
    let mut runner = Runner::bind(&ours).expect("free");
    let diary = Diary::default();
    let mut agent = agent(&diary);
    let datapath = UnixDatagram::bind(&theirs).expect("free");
    datapath.set_nonblocking(true).expect("a socket");
    datapath.send_to(&encoded(&Message::Ready { datapath: 1 }), &ours).expect("the agent is bound");
    let mut events = Vec::new();
    runner.step(&mut agent, &mut |event| events.push(event.what.clone())).expect("a socket");
    assert_eq!([(); 3].map(|()| read(&datapath)), [Kind::Install; 3]);
    assert!(matches!(events.as_slice(), [What::DatapathCame { .. }]));
    let mut create = vec![0, 0, 96, 0, 9, 0, 0, 0];
    create.resize(96, 1);
    create[20..24].copy_from_slice(&[1, 0, 0, 0]);
    create[28..32].copy_from_slice(&[1, 0, 0, 0]);
    datapath.send_to(&create, &ours).expect("bound");
    runner.step(&mut agent, &mut |_| {}).expect("a socket");
    assert_eq!(read(&datapath), Kind::Change);
    // The datapath dies, and its flows with it: the next datagram to it finds no socket.
    drop(datapath);
    datapath_again(&theirs).send_to(&encoded(&Message::Ready { datapath: 1 }), &ours).expect("bound");
    std::fs::remove_file(&theirs).expect("bound again");
    runner.step(&mut agent, &mut |_| {}).expect("a socket");
    assert!(agent.flows().is_empty());
    assert_eq!(diary.take().last().map(String::as_str), Some("close"));
}

fn datapath_again(path: &std::path::Path) -> UnixDatagram {
    std::fs::remove_file(path).expect("bound before");
    UnixDatagram::bind(path).expect("free")
}

#[test]
fn a_datapath_that_does_not_read_holds_up_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let ours = folder.path().join("agent");
    let mut runner = Runner::bind(&ours).expect("free");
    let mut agent = agent(&Diary::default());
    let paths = ["deaf", "good"].map(|name| folder.path().join(name));
    let [deaf, good] = paths.each_ref().map(|path| UnixDatagram::bind(path).expect("free"));
    good.set_nonblocking(true).expect("a socket");
    for _ in 0..30 {
        // Each READY is answered with three programs, and the socket holds some ten datagrams.
        deaf.send_to(&encoded(&Message::Ready { datapath: 1 }), &ours).expect("the agent reads");
        runner.step(&mut agent, &mut |_| {}).expect("a socket");
    }
    good.send_to(&encoded(&Message::Ready { datapath: 2 }), &ours).expect("the agent reads");
    runner.step(&mut agent, &mut |_| {}).expect("a socket");
    assert_eq!([(); 3].map(|()| read(&good)), [Kind::Install; 3]);
    // What waited goes when there is room, in order, and all of it.
    deaf.set_nonblocking(true).expect("a socket");
    let mut count = 0;
    for _ in 0..90 {
        while let Ok(len) = deaf.recv(&mut [0; 16 * 1024]) {
            assert!(len > 0);
            count += 1;
        }
        if count == 90 {
            break;
        }
        runner.step(&mut agent, &mut |_| {}).expect("a socket");
    }
    assert_eq!(count, 90);
}

#[test]
fn a_dead_agents_socket_makes_room_and_a_living_ones_does_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("agent");
    let first = Runner::bind(&path).expect("free");
    let second = Runner::bind(&path).expect_err("taken");
    assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
    drop(first);
    drop(UnixDatagram::bind(&path).expect("free again"));
    assert!(path.exists(), "as a killed agent leaves it");
    drop(Runner::bind(&path).expect("no process reads there"));
    std::fs::write(&path, b"a file").expect("free again");
    let refused = Runner::bind(&path).expect_err("no socket");
    assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&path).expect("still there"), b"a file");
}
