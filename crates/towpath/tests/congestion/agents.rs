//! Real agents as processes: two at once, one that is stopped, and agents of another user.

use super::agent;
use super::place::{PATIENCE, Peer, Place, Program, as_user};
use super::{send, until};
use ccp_wire::{Fields, Message};
use rustix::process::Signal;
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{Receiver, channel};

/// A user that has nothing to do with root.
const USER: u32 = 61_022;
/// A user that may not be an agent.
const STRANGER: u32 = 61_023;

/// A flow of its own program to its own peer.
struct Driven {
    program: Program,
    peer: Peer,
    /// The ends, as `cc show` wants them.
    name: String,
    chosen: &'static str,
}

impl Driven {
    fn new(place: &Place, chosen: &'static str) -> Self {
        let peer = Peer::listen();
        let mut program = place.start("connect", "10.80.0.2", peer.port(), chosen);
        assert_eq!(program.lines(3)[2], format!("connected {chosen}"));
        let name = place.flow_to(peer.port());
        Self { program, peer, name, chosen }
    }

    /// Waits until the flow's agent has got a report of a program and bytes go on.
    fn until_driven(&self, place: &Place) {
        place.until(&self.name, "a program and its reports", |shown| {
            let reports = shown["program"]["last_reports"].as_array().map_or(0, Vec::len);
            shown["in_force"] == self.chosen && shown.get("why").is_none() && reports > 1
        });
        self.peer.until_moved();
    }

    /// Waits until the flow is on the default, and bytes go on.
    fn until_default(&self, place: &Place, why: &str) {
        place.until(&self.name, "the default", |shown| {
            shown["in_force"] == "cubic" && shown["why"] == why && shown.get("program").is_none()
        });
        self.peer.until_moved();
    }

    /// Waits until the flow has a program that runs, and bytes go on.
    fn until_program(&self, place: &Place) {
        place.until(&self.name, "a program", |shown| {
            shown["in_force"] == self.chosen && shown["program"]["runs"].as_u64() > Some(0)
        });
        self.peer.until_moved();
    }

    /// Runs of the flow's present program.
    fn runs(&self, place: &Place) -> u64 {
        place.json(&["cc", "show", &self.name])["program"]["runs"].as_u64().unwrap_or(0)
    }

    fn end(mut self) {
        self.program.ends_with(&format!("end {}", self.chosen), self.peer);
    }
}

fn count(place: &Place, name: &str) -> u64 {
    place.json(&["stat"])["agents"][name].as_u64().unwrap()
}

/// True unless a socket was full, as that of an agent that a busy machine gives no time is: then flows may have fallen back for that.
fn is_calm(place: &Place) -> bool {
    count(place, "full") == 0
}

/// Checks how many flows were told of, and how many have fallen back.
fn expect(place: &Place, creates: u64, fallbacks: u64) {
    let counted = (count(place, "creates"), count(place, "fallbacks"));
    if is_calm(place) {
        assert_eq!(counted, (creates, fallbacks));
    }
}

/// Two agents with two algorithms: each has the flows that ask for it, and the death of one is nothing to the flow of the other.
pub fn two_agents() {
    let agents = [("ccp", "/first"), ("aimd", "/second")];
    let place = Place::with_named_agents(&["--congestion", "cubic"], &agents);
    let flows = [Driven::new(&place, "ccp"), Driven::new(&place, "aimd")];
    let algorithms = ["serves", "aimd"];
    let mut running = [0, 1].map(|index| Some(place.start_agent_at(index, algorithms[index])));
    for flow in &flows {
        flow.until_driven(&place);
    }
    let listed = place.json(&["cc", "list"]);
    for ((_, path), agent) in agents.iter().zip(running.iter().flatten()) {
        let mut all = listed["agents"].as_array().unwrap().iter();
        let shown = all.find(|shown| shown["path"].as_str().unwrap().ends_with(path));
        assert_eq!(shown.unwrap()["pid"], agent.id(), "{listed}");
    }
    let number = |flow: &Driven| place.json(&["cc", "show", &flow.name])["program"]["number"].clone();
    assert_eq!(number(&flows[0]), agent::PROGRAM);
    assert_ne!(number(&flows[1]), agent::PROGRAM, "each has its own agent's program");
    expect(&place, 2, 0);
    for (round, (dies, stays)) in [(1, 0), (0, 1)].into_iter().enumerate() {
        let round = round as u64;
        let before = (number(&flows[stays]), flows[stays].runs(&place));
        drop(running[dies].take());
        flows[dies].until_default(&place, "its agent has died");
        flows[stays].until_program(&place);
        let after = (number(&flows[stays]), flows[stays].runs(&place));
        if is_calm(&place) {
            assert!(before.0 == after.0 && before.1 < after.1, "{before:?}, then {after:?}");
        }
        expect(&place, 2 + round, 1 + round);
        running[dies] = Some(place.start_agent_at(dies, algorithms[dies]));
        flows[dies].until_driven(&place);
        expect(&place, 3 + round, 1 + round);
    }
    flows.into_iter().for_each(Driven::end);
}

/// An agent that is stopped: its queue fills, and its flow is back on the default. It gets the flow again when it goes on; one that is killed while it is
/// stopped makes room for another.
pub fn stopped() {
    let place = Place::with_agents(&["--congestion", "cubic"], "/agent");
    let flow = Driven::new(&place, "ccp");
    let stopped = place.start_agent();
    flow.until_driven(&place);
    for round in 1..=2 {
        stopped.signal(Signal::STOP);
        flow.until_default(&place, "its agent does not read its reports");
        assert!(count(&place, "full") >= round, "its reports found no room");
        assert!(count(&place, "creates") >= round && count(&place, "fallbacks") >= round);
        if round == 1 {
            stopped.signal(Signal::CONT);
            flow.until_driven(&place);
        }
    }
    // It dies as it is, stopped.
    drop(stopped);
    let _next = place.start_agent();
    flow.until_driven(&place);
    assert!(count(&place, "creates") >= 3 && count(&place, "fallbacks") >= 2);
    flow.end();
}

/// Reads all that comes to the socket, so that it is never full: CREATEs are kept, as the port of the peer and the flow's number.
fn listen(socket: &UnixDatagram) -> Receiver<(u16, u32)> {
    let (socket, (kept, created)) = (socket.try_clone().unwrap(), channel());
    std::thread::spawn(move || {
        loop {
            let mut buffer = [0; 1024];
            let len = socket.recv(&mut buffer).unwrap();
            for message in ccp_wire::messages(&buffer[..len]) {
                if let Message::Create { flow, create } = message.unwrap() {
                    // The test may be over.
                    let _ = kept.send((create.destination.port(), flow));
                }
            }
        }
    });
    created
}

/// Another user's agent sees that user's flow alone, root's agent sees both; users that may not be agents are not heard.
pub fn of_another_user() {
    let may = USER.to_string();
    let arguments = ["--congestion", "cubic", "--cc-allow-uids", &may];
    let place = Place::with_agents(&arguments, "/of-user/agent");
    let service = place.agents_socket();
    let roots = Driven::new(&place, "ccp");
    let peer = Peer::listen();
    let mut program = place.start_as(USER, peer.port(), "ccp");
    assert_eq!(program.lines(3)[2], "connected ccp");
    let name = place.flow_to(peer.port());
    let users = Driven { program, peer, name, chosen: "ccp" };
    assert_eq!(place.json(&["cc", "show", &users.name])["uid"], USER);

    let socket = place.be_agent_of(USER);
    let created = listen(&socket);
    let say = |uid, message: &Message<'_>| as_user(uid, || send(&socket, &service, message));
    let install = |uid| agent::install(&|message| say(uid, message));
    // The address is the agent's, the user is none that may be one.
    install(STRANGER);
    until("the refusal", || count(&place, "refused_users") == 1);
    assert_eq!((count(&place, "installs"), count(&place, "creates")), (0, 0));
    // That user's own socket is at no agent's place.
    let other = UnixDatagram::unbound().unwrap();
    as_user(STRANGER, || agent::install(&|message| send(&other, &service, message)));
    until("the other refusal", || count(&place, "unknown_senders") == 1);

    install(USER);
    until("the program", || count(&place, "installs") == 1);
    let (port, number) = created.recv_timeout(PATIENCE).unwrap();
    assert_eq!(port, users.peer.port());
    let change = |flow| Message::Change { flow, program: agent::PROGRAM, fields: Fields::of(&[]) };
    // Numbers are given in order: all that may be the other flow's.
    (1..=number + 2).filter(|other| *other != number).for_each(|other| say(USER, &change(other)));
    until("the refusals", || count(&place, "unknown_flows") == u64::from(number) + 1);
    say(USER, &change(number));
    users.until_program(&place);
    let why = "its agent is another user's, and only root's see the flows of all users";
    roots.until_default(&place, why);
    expect(&place, 1, 0);
    say(STRANGER, &change(number));
    until("one more refusal", || count(&place, "refused_users") == 2);
    users.until_program(&place);

    // Root's agent at the same place: the user's flow falls back, and both flows come.
    while created.try_recv().is_ok() {}
    install(0);
    let mut both = [(); 2].map(|()| created.recv_timeout(PATIENCE).unwrap());
    both.sort_unstable();
    let mut ports = [roots.peer.port(), users.peer.port()];
    ports.sort_unstable();
    assert_eq!(both.map(|(port, _)| port), ports);
    expect(&place, 3, 1);
    both.iter().for_each(|(_, number)| say(0, &change(*number)));
    for flow in [&roots, &users] {
        flow.until_program(&place);
    }
    roots.end();
    users.end();
}
