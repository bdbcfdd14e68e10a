//! The reference: which process holds which socket, which connections wait where, and what each end of a connection sees, by Linux's rules.
//! It knows nothing of the service.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Number of a process.
pub type Pid = u32;
/// Number of a socket: the open file, not a descriptor.
pub type SocketId = u32;

/// How an end of a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Some process has it, or it waits to be accepted.
    Open,
    /// Closed by a FIN.
    Finished,
    /// Closed by a RST.
    Reset,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// The socket at the connection's other end.
    pub peer: SocketId,
    /// The handshake is over: the listener's backlog had room.
    pub is_established: bool,
    /// This end's process has called `shutdown` for the sending direction.
    pub is_shut: bool,
    /// Bytes that this end has sent.
    pub sent: u64,
    /// Bytes that this end has read.
    pub read: u64,
    /// How this end is.
    pub end: End,
}

/// A listening socket, as Linux keeps it.
#[derive(Debug)]
pub struct Listener {
    /// As given to `listen`.
    pub backlog: usize,
    /// Acceptors' ends that wait to be accepted, the oldest first, each with the step at which it came.
    pub queue: VecDeque<(SocketId, u32)>,
    /// Acceptors' ends for which the backlog has no room yet.
    pub late: VecDeque<(SocketId, u32)>,
}

/// All processes and sockets.
#[derive(Debug, Default)]
pub struct Linux {
    /// The sockets that each process has open.
    pub processes: BTreeMap<Pid, BTreeSet<SocketId>>,
    /// Sockets in messages that no process has received yet.
    pub messages: Vec<SocketId>,
    /// All ends of connections that are open at one side at least.
    pub streams: BTreeMap<SocketId, Stream>,
    /// The sockets that listen, by their numbers.
    pub listeners: BTreeMap<SocketId, Listener>,
    steps: u32,
    next: SocketId,
}

impl Stream {
    /// Nothing more comes from this end.
    pub fn has_ended(&self) -> bool {
        self.is_shut || self.end == End::Finished
    }
}

impl Linux {
    fn new_id(&mut self) -> SocketId {
        self.next += 1;
        self.next
    }

    fn give(&mut self, pid: Pid, socket: SocketId) {
        self.processes.entry(pid).or_default().insert(socket);
    }

    /// The sockets of a process.
    pub fn sockets_of(&self, pid: Pid) -> Vec<SocketId> {
        self.processes.get(&pid).into_iter().flatten().copied().collect()
    }

    /// The processes that have a socket open.
    pub fn holders(&self, socket: SocketId) -> impl Iterator<Item = Pid> {
        self.processes.iter().filter(move |(_, sockets)| sockets.contains(&socket)).map(|(pid, _)| *pid)
    }

    /// True while a process or a message has the socket.
    pub fn is_held(&self, socket: SocketId) -> bool {
        self.messages.contains(&socket) || self.holders(socket).next().is_some()
    }

    /// The other end of a connection, and how it is; an end that is forgotten has finished.
    pub fn peer_of(&self, socket: SocketId) -> Stream {
        self.streams[&self.streams[&socket].peer]
    }

    /// A process listens by a new socket.
    pub fn listen(&mut self, pid: Pid, backlog: usize) -> SocketId {
        let id = self.new_id();
        let (queue, late) = (VecDeque::new(), VecDeque::new());
        self.listeners.insert(id, Listener { backlog, queue, late });
        self.give(pid, id);
        id
    }

    /// A process connects. `None`: the socket no longer listens, the connection is refused.
    pub fn connect(&mut self, pid: Pid, listener: SocketId) -> Option<SocketId> {
        self.listeners.get(&listener)?;
        let (connector, acceptor) = (self.new_id(), self.new_id());
        for (id, peer) in [(connector, acceptor), (acceptor, connector)] {
            let stream =
                Stream { peer, is_established: false, is_shut: false, sent: 0, read: 0, end: End::Open };
            self.streams.insert(id, stream);
        }
        self.give(pid, connector);
        self.arrive(listener, acceptor);
        Some(connector)
    }

    fn arrive(&mut self, listener: SocketId, acceptor: SocketId) {
        let step = self.steps;
        self.listeners.get_mut(&listener).into_iter().for_each(|l| l.late.push_back((acceptor, step)));
        self.admit(listener);
    }

    fn establish(&mut self, acceptor: SocketId) {
        let connector = self.streams[&acceptor].peer;
        for end in [acceptor, connector] {
            self.streams.get_mut(&end).into_iter().for_each(|stream| stream.is_established = true);
        }
    }

    /// The next step begins.
    pub fn begin_step(&mut self) {
        self.steps += 1;
    }

    /// Establishes the connections for which the backlog has room: Linux admits one more than the backlog.
    fn admit(&mut self, listener: SocketId) {
        while let Some(l) = self.listeners.get_mut(&listener).filter(|l| l.queue.len() <= l.backlog) {
            let Some(late) = l.late.pop_front() else { return };
            l.queue.push_back(late);
            self.establish(late.0);
        }
    }

    /// A process accepts the oldest connection; of several that came in one step, as when a process dies, the one that `is_it`.
    pub fn accept(
        &mut self,
        pid: Pid,
        listener: SocketId,
        is_it: impl Fn(SocketId) -> bool,
    ) -> Option<SocketId> {
        let queue = &mut self.listeners.get_mut(&listener)?.queue;
        let (_, oldest) = *queue.front()?;
        let peers = &self.streams;
        let chosen = queue
            .iter()
            .take_while(|(_, step)| *step == oldest)
            .position(|(acceptor, _)| peers.get(acceptor).is_some_and(|stream| is_it(stream.peer)));
        let (acceptor, _) = queue.remove(chosen.unwrap_or(0))?;
        self.give(pid, acceptor);
        self.admit(listener);
        Some(acceptor)
    }

    /// A process sends `n` bytes.
    pub fn send(&mut self, socket: SocketId, n: u64) {
        self.streams.get_mut(&socket).into_iter().for_each(|stream| stream.sent += n);
    }

    /// A process reads `n` bytes.
    pub fn receive(&mut self, socket: SocketId, n: u64) {
        self.streams.get_mut(&socket).into_iter().for_each(|stream| stream.read += n);
    }

    /// A process shuts down the sending direction.
    pub fn shut_down(&mut self, socket: SocketId) {
        self.streams.get_mut(&socket).into_iter().for_each(|stream| stream.is_shut = true);
    }

    /// A new process without sockets.
    pub fn begin(&mut self, pid: Pid) {
        self.processes.insert(pid, BTreeSet::new());
    }

    /// The child has all sockets of its parent.
    pub fn fork(&mut self, pid: Pid, child: Pid) {
        let sockets = self.processes.get(&pid).cloned().unwrap_or_default();
        self.processes.insert(child, sockets);
    }

    /// A process closes its last descriptor of a socket.
    pub fn close(&mut self, pid: Pid, socket: SocketId) {
        self.processes.entry(pid).or_default().remove(&socket);
        self.close_unheld(socket);
    }

    /// A process ends, and closes all its descriptors.
    pub fn kill(&mut self, pid: Pid) {
        let sockets = self.processes.remove(&pid).unwrap_or_default();
        sockets.into_iter().for_each(|socket| self.close_unheld(socket));
    }

    /// A process sends a descriptor.
    pub fn pass(&mut self, socket: SocketId) {
        self.messages.push(socket);
    }

    /// A process receives the descriptor in message `index`.
    pub fn take(&mut self, pid: Pid, index: usize) -> SocketId {
        let socket = self.messages.remove(index);
        self.give(pid, socket);
        socket
    }

    /// Message `index` is lost with its receiver.
    pub fn lose(&mut self, index: usize) {
        let socket = self.messages.remove(index);
        self.close_unheld(socket);
    }

    fn close_unheld(&mut self, socket: SocketId) {
        if self.is_held(socket) {
            return;
        }
        if let Some(listener) = self.listeners.remove(&socket) {
            for (acceptor, _) in listener.queue.into_iter().chain(listener.late) {
                self.end(acceptor, End::Reset);
            }
            return;
        }
        let Some(stream) = self.streams.get(&socket).copied() else { return };
        // RFC 2525, 2.17: a connection that is closed with unread data is reset; unless both directions had ended, when there is none any more.
        let peer = self.streams[&stream.peer];
        let is_reset = peer.sent != stream.read && !(stream.is_shut && peer.has_ended());
        self.end(socket, if is_reset { End::Reset } else { End::Finished });
        if !stream.is_established {
            self.listeners.values_mut().for_each(|l| l.late.retain(|(acceptor, _)| *acceptor != stream.peer));
            self.end(stream.peer, End::Finished);
        }
    }

    fn end(&mut self, socket: SocketId, how: End) {
        let Some(stream) = self.streams.get_mut(&socket) else { return };
        stream.end = how;
        let peer = stream.peer;
        if self.streams[&peer].end != End::Open {
            self.streams.remove(&socket);
            self.streams.remove(&peer);
        }
    }
}
