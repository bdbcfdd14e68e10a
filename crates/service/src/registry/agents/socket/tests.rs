use super::*;
use rustix::event::Timespec;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::unix::net::UnixDatagram;
use tempfile::TempDir;

/// A folder that only this user can write to.
fn folder(mode: u32) -> TempDir {
    tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(mode)).tempdir().unwrap()
}

fn open(folder: &TempDir) -> Result<AgentSocket, ServiceError> {
    let settings = AgentSettings {
        socket: folder.path().join("cc"),
        places: Vec::new(),
        reports: 1,
        every_ack: false,
        allow_uids: Vec::new(),
        window_max: 1,
        rate_max: 1,
    };
    AgentSocket::open(&settings, rustix::process::geteuid())
}

/// An agent that has a socket at a path.
fn agent(folder: &TempDir) -> UnixDatagram {
    let agent = UnixDatagram::bind(folder.path().join("agent")).unwrap();
    agent.connect(folder.path().join("cc")).unwrap();
    agent
}

/// A set that nothing is watched in yet.
fn set() -> OwnedFd {
    epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()
}

fn heard(socket: &mut AgentSocket) -> Vec<(String, u32, Vec<u8>)> {
    let mut all = Vec::new();
    socket.receive(set().as_fd(), &mut |sender, bytes| {
        let name = String::from_utf8_lossy(sender.address).rsplit('/').next().unwrap_or_default().to_owned();
        assert_eq!(sender.uid, rustix::process::geteuid().as_raw());
        all.push((name, sender.pid, bytes.to_vec()));
    });
    all
}

#[test]
fn what_was_sent_comes_with_the_sender_that_the_kernel_names() {
    let folder = folder(0o700);
    let mut socket = open(&folder).unwrap();
    let agent = agent(&folder);
    agent.send(b"first").unwrap();
    UnixDatagram::unbound().unwrap().send_to(b"nameless", folder.path().join("cc")).unwrap();
    agent.send(&[]).unwrap();
    let own = std::process::id();
    assert_eq!(
        heard(&mut socket),
        [
            ("agent".to_owned(), own, b"first".to_vec()),
            (String::new(), own, b"nameless".to_vec()),
            ("agent".to_owned(), own, Vec::new())
        ]
    );
    assert!(heard(&mut socket).is_empty());
}

#[test]
fn a_datagram_with_descriptors_is_dropped_and_what_follows_is_read() {
    let folder = folder(0o700);
    let mut socket = open(&folder).unwrap();
    let agent = agent(&folder);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [agent.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    let bytes = [rustix::io::IoSlice::new(b"with a descriptor")];
    sendmsg(&agent, &bytes, &mut ancillary, SendFlags::empty()).unwrap();
    agent.send(b"after it").unwrap();
    let mut all = Vec::new();
    while all.is_empty() {
        all = heard(&mut socket);
        std::thread::yield_now();
    }
    assert_eq!(all.iter().map(|(.., bytes)| bytes.as_slice()).collect::<Vec<_>>(), [b"after it"]);
}

/// A TCP socket the closing of which waits until its peer has read, and the peer.
fn lingering() -> (OwnedFd, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut full = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    full.set_nonblocking(true).unwrap();
    while full.write(&[0; 1 << 16]).is_ok() {}
    sockopt::set_socket_linger(&full, Some(std::time::Duration::from_secs(600))).unwrap();
    (full.into(), peer)
}

#[test]
fn while_a_descriptor_takes_long_to_close_the_socket_wakes_nobody() {
    let folder = folder(0o700);
    let (mut socket, set) = (open(&folder).unwrap(), set());
    socket.join(set.as_fd()).unwrap();
    let agent = agent(&folder);
    let (fd, mut peer) = lingering();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(&agent, &[rustix::io::IoSlice::new(b"with it")], &mut ancillary, SendFlags::empty()).unwrap();
    drop(fd);
    agent.send(b"after it").unwrap();
    let mut events = Vec::with_capacity(8);
    let mut ready = |wait: Option<&Timespec>| {
        events.clear();
        epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), wait).unwrap()
    };
    let mut taken = 0;
    assert!(ready(None) > 0);
    socket.receive(set.as_fd(), &mut |_, _| taken += 1);
    for _ in 0..3 {
        assert_eq!(ready(Some(&Timespec::default())), 0, "its thread is at work");
        socket.receive(set.as_fd(), &mut |_, _| taken += 1);
    }
    assert_eq!(taken, 0);
    // The peer reads until the closing is over.
    std::thread::spawn(move || std::io::copy(&mut peer, &mut std::io::sink()));
    while taken == 0 {
        assert!(ready(None) > 0);
        socket.receive(set.as_fd(), &mut |_, _| taken += 1);
    }
}

#[test]
fn a_full_socket_and_one_that_is_gone_differ_and_neither_is_waited_for() {
    let folder = folder(0o700);
    let mut socket = open(&folder).unwrap();
    let agent = agent(&folder);
    let address = folder.path().join("agent").into_os_string().into_encoded_bytes();
    let mut sent = 0;
    while socket.send(&address, b"report") == Sent::Taken {
        sent += 1;
    }
    assert!(sent > 0 && socket.send(&address, b"report") == Sent::Full);
    agent.recv(&mut [0; 16]).unwrap();
    assert_eq!(socket.send(&address, b"report"), Sent::Taken);
    drop(agent);
    assert_eq!(socket.send(&address, b"report"), Sent::Gone);
    assert_eq!(
        socket.send(&folder.path().join("none").into_os_string().into_encoded_bytes(), b"x"),
        Sent::Gone
    );
    assert_eq!(socket.send(b"", b"x"), Sent::Gone);
}

#[test]
fn only_a_dead_sockets_place_is_taken_and_only_in_a_folder_of_ones_own() {
    let (own, shared) = (folder(0o700), folder(0o777));
    std::fs::set_permissions(shared.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = open(&shared).unwrap_err().to_string();
    assert!(error.contains("chmod go-w"), "{error}");
    let first = open(&own).unwrap();
    let error = open(&own).unwrap_err().to_string();
    assert!(error.contains("another program has a socket there"), "{error}");
    drop(first);
    assert!(!own.path().join("cc").exists(), "its own socket goes with it");
    drop(UnixDatagram::bind(own.path().join("cc")).unwrap());
    drop(open(&own).unwrap());
    std::fs::write(own.path().join("cc"), "precious").unwrap();
    let error = open(&own).unwrap_err().to_string();
    assert!(error.contains("no socket") && own.path().join("cc").exists(), "{error}");
}

#[test]
fn a_flood_takes_no_more_than_a_turn() {
    let folder = folder(0o700);
    let mut socket = open(&folder).unwrap();
    let agent = agent(&folder);
    agent.set_nonblocking(true).unwrap();
    let mut taken = 0;
    // The sender goes on while it is read: only the bound ends a turn.
    socket.receive(set().as_fd(), &mut |_, _| {
        taken += 1;
        while agent.send(b"flood").is_ok() {}
    });
    assert_eq!(taken, 0, "nothing had been sent");
    while agent.send(b"flood").is_ok() {}
    socket.receive(set().as_fd(), &mut |_, _| {
        taken += 1;
        while agent.send(b"flood").is_ok() {}
    });
    assert_eq!(taken, TURN);
}
