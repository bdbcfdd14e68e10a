//! The messages. Each request carries a number, which its reply repeats. Number 0 is a push: a message that answers no request.

use crate::TcpInfo;
use crate::congestion::{CongestionAsk, CongestionName};
use crate::reason::KernelReason;
use crate::socket_options::SocketOptions;
use serde::{Deserialize, Serialize};
use shm::{Kind, Params, Side};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Version of these messages. Each side refuses any other version, with a message that says which one it speaks.
pub const PROTOCOL: u32 = 23;
/// Slot 0 of an application region carries no connection: its doorbell bit means "read the control socket".
pub const CONTROL_SLOT: u32 = 0;

/// A message from an application or the command line to the service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ToService {
    /// The reply repeats this number; 0: no reply is wanted.
    pub number: u32,
    /// The request with its parameters.
    pub request: Request,
}

impl ToService {
    /// Reads a message. Of a hello of another version only the versions are read: all versions begin it with them, and the service says then
    /// which one it speaks.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok().or_else(|| {
            let ((number, request, protocol, layout), _) =
                postcard::take_from_bytes::<(u32, u32, u32, u32)>(bytes).ok()?;
            let is_hello = request == 0 && protocol != PROTOCOL;
            is_hello.then(|| Self {
                number,
                request: Request::Hello {
                    protocol,
                    layout,
                    name: "".into(),
                    parent: None,
                    itself: Itself::default(),
                },
            })
        })
    }
}

/// A message from the service to an application or the command line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToApplication {
    /// Answer to the request with this number.
    Reply(u32, Reply),
    /// A message that answers no request.
    Push(Push),
}

/// A forked child's proof of its parent's registration; and the parent's own, when it promises the child.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Parent {
    /// The parent's application id.
    pub application: u32,
    /// The parent's secret, which fork copies into the child.
    pub secret: u64,
    /// The holder bit that the parent set for the child on every socket before forking.
    pub holder: u8,
}

/// Description of a region. Its memfd comes with the message unless the receiver has the region already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionInfo {
    /// The service's number for the region; never 0.
    pub id: u32,
    /// True for a pair region, false for an application region.
    pub pair: bool,
    /// Number of connection slots.
    pub slots: u32,
    /// Bytes of payload memory per side.
    pub data_len: u64,
    /// The receiver's side: 0 or 1.
    pub side: u8,
    /// True when the region ends with the receiver; false when it ends with an ancestor of the receiver.
    pub is_own: bool,
}

/// How many bytes of an application region must be present when `present` bytes are too few; `limit` is the whole region. Doubles the
/// amount, from 1 MiB up, so that a program asks only a few times.
#[must_use]
pub fn grown(present: u64, limit: u64) -> u64 {
    const LEAST: u64 = 1 << 20;
    (2 * present).max(LEAST).min(limit)
}

/// Most bytes by which one [`Request::Populated`] may raise what is present: the service asks the kernel about each page of them.
pub const POPULATED_MOST: u64 = 32 << 20;

impl RegionInfo {
    /// Describes the region with these parameters to a process on `side`. `is_own`: the region ends with that process.
    #[must_use]
    pub fn of(params: &Params, side: Side, is_own: bool) -> Self {
        let Params { kind, id, slots, data_len } = *params;
        // The service's numbers have 32 bits.
        Self { id: id as u32, pair: kind == Kind::Pair, slots, data_len, side: side.index() as u8, is_own }
    }

    /// The parameters that `Region::open` takes.
    #[must_use]
    pub fn params(&self) -> Params {
        let kind = if self.pair { Kind::Pair } else { Kind::Application };
        Params { kind, id: u64::from(self.id), slots: self.slots, data_len: self.data_len }
    }
}

/// A connection with a descriptor that may appear in another process: after `exec`, or by `SCM_RIGHTS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Left {
    /// Region of the connection.
    pub region: u32,
    /// Slot of the connection in that region.
    pub slot: u32,
    /// The sender's side of the region: 0 or 1.
    pub side: u8,
    /// The application region that contains the socket block.
    pub home: u32,
    /// Number of the socket block in that region.
    pub sock: u32,
}

/// A grant of an accept queue to one process: a slot in which it makes connections to one listener without asking the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// Number of the grant in the accept queue.
    pub grant: u32,
    /// Slot in the pair region.
    pub slot: u32,
    /// The connector's port; no other connection to that listener uses it.
    pub port: u16,
}

/// The right to connect to one listener of the same user without asking.
///
/// ```text
///   connector: takes a granted slot with both ends released, clears it, opens both ends
///              puts the grant's number into the accept queue    -->  a holder of the socket takes it out
/// ```
/// The holder reads region, slot and addresses in the table of grants, which only the service can write. The grants may be used while the
/// table has this epoch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lent {
    /// Id of the accept queue.
    pub queue: u32,
    /// True when the last two descriptors of the message are the accept queue's memory; false: this process has it already.
    pub is_new: bool,
    /// Epoch of the queue in which the grants may be used.
    pub epoch: u32,
    /// The address that the connections come from.
    pub source: IpAddr,
    /// Further grants for connections of this process to this listener.
    pub grants: Vec<Grant>,
    /// True: their slots have no connection. The receiver forgets what it knew of an earlier one there: it has gone to another process. False:
    /// each had a grant before, for an earlier listener at this address, and may have a connection.
    pub are_free: bool,
}

/// Why a process accepts no more from a listening socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Unlisten {
    /// The process has closed its last descriptor of the socket.
    Closed,
    /// The process leaves connections to this socket to the kernel. Other processes continue.
    GivenUp,
    /// The socket no longer listens (`shutdown`), or belongs to the kernel in all processes: connections that wait are reset. The service asks
    /// the kernel which of the two it is.
    Stopped,
}

/// The requests to the service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// First message of an application process. It is the first request, and begins with the versions, in all versions: [`ToService::decode`].
    Hello {
        /// [`PROTOCOL`] of the sender.
        protocol: u32,
        /// `shm::VERSION` of the sender.
        layout: u32,
        /// The command's name, as in `/proc/PID/comm`; the service keeps at most 32 bytes.
        name: Arc<str>,
        /// `Some` in a forked child: its parent's registration.
        parent: Option<Parent>,
        /// The sender's own word, and so of use to those alone that connect to its listeners: [`Reply::Look`].
        itself: Itself,
    },
    /// First and only message on a line of its own, which is no application's: a registered process is about to fork, and has taken the holder
    /// bit for the child. The child inherits the line and closes it when it has sent its hello. If the line ends before a hello has come with
    /// this bit, no process can hold what the bit says: the fork has failed, or the child has ended. No reply.
    Expect(Parent),
    /// Asks for this process's application region. Reply `Region` with the memfd and the service's eventfds: first the
    /// slow path's, then one per fast-path core.
    OpenRegion {
        /// Bytes of address space that the process may still use (`RLIMIT_AS`); `u64::MAX`: no limit. If a region of the usual size does
        /// not fit, the process gets a smaller one and shares no pair regions.
        room: u64,
    },
    /// The process has changed its `RLIMIT_AS`: from now on `room` is the limit, as in `OpenRegion`. No reply.
    Room {
        /// As in `OpenRegion`: bytes, or `u64::MAX`.
        room: u64,
    },
    /// This process has mapped the region, and has sealed it if it is its own application region. The service seals a pair region when all
    /// processes of the pair have mapped it.
    Mapped {
        /// Id of the region.
        region: u32,
    },
    /// A new context of this process. Reply `Done` with the eventfd by which the service wakes the context.
    Context {
        /// The context's number, which the process has taken in the region header's `context_taken`.
        context: u32,
    },
    /// Asks for the eventfd that wakes `context` of the other side of a pair region. That context sleeps now, and the service wakes it this
    /// time. Reply `Done` with the eventfd; the sleeping process gets `Push::Waker` with the same eventfd.
    Waker {
        /// Id of the pair region.
        region: u32,
        /// Number of the other side's context.
        context: u32,
    },
    /// The process has made the first `bytes` of both data areas of an application region present (`Region::populate`). The region is its
    /// own or an ancestor's. The service uses no memory beyond them. At most [`POPULATED_MOST`] more than the process or a relative has said before.
    Populated {
        /// Id of the application region.
        region: u32,
        /// Bytes present; a multiple of 64 KiB.
        bytes: u64,
    },
    /// The kernel socket that comes with the message listens; the kernel tells the service its address. The sender also wants accelerated
    /// connections to it. A repeated request changes the backlog. Reply `Listening`.
    Listen {
        /// As given to `listen`, already limited to `somaxconn`.
        backlog: u32,
        /// `O_NONBLOCK` of the socket, as the program has set it.
        nonblocking: bool,
    },
    /// The program has set or cleared `O_NONBLOCK` of a listening socket. Reply `Done`.
    Nonblocking {
        /// Id of the accept queue.
        queue: u32,
        /// True when it is set.
        on: bool,
    },
    /// This process accepts no more from a listening socket. Reply `Done`; or `PortNeeded` to `Closed`, if the process may have the last
    /// descriptor of the socket: then it says the same once more when it has closed the descriptor. `Closed` may come of a socket that has
    /// stopped listening before, too.
    Unlisten {
        /// Id of the accept queue.
        queue: u32,
        /// Why the process accepts no more.
        because: Unlisten,
    },
    /// A socket that has stopped listening is about to listen again. Reply `Done`; or `Refused` with EADDRINUSE, if the socket has its port
    /// still and connections that it has accepted need the port.
    ListenAgain {
        /// Id of the accept queue that the socket had.
        queue: u32,
        /// `SO_REUSEADDR` of the socket now.
        reuse_address: bool,
    },
    /// The process has taken a connection out of an accept queue in which connections wait for room. No reply.
    Accepted {
        /// Id of the accept queue.
        queue: u32,
    },
    /// The process has claimed a grant of an accept queue, and the connection lies in other processes' regions. Reply `Moved`: it continues
    /// in this process's application region.
    Take {
        /// Id of the accept queue.
        queue: u32,
        /// Number of the grant.
        grant: u32,
    },
    /// Asks for the eventfd that wakes a sleeper at an accept queue, which sleeps now and which the service wakes this time. Reply `Done`
    /// with the eventfd; the sleeping process gets `Push::Waker` with the same eventfd, and the queue's id as region.
    QueueWaker {
        /// Id of the accept queue.
        queue: u32,
        /// Application id of the sleeper.
        application: u32,
        /// Number of its context.
        context: u32,
    },
    /// Asks for a connection. A bound socket comes with the message; the kernel tells the service its address. For any other socket the
    /// service chooses address and port, in the network namespace in which the control socket was connected.
    Connect {
        /// The address to connect to.
        remote: SocketAddr,
        /// The socket options set before `connect`.
        options: SocketOptions,
        /// True when the sender has found no io_uring in the processes that [`Reply::Look`] names.
        has_looked: bool,
    },
    /// Options have changed of the socket at `slot` of this process's application region, a connection over the port; or of the listener
    /// with the accept queue `region`. No reply.
    SetOptions {
        /// Id of the application region.
        region: u32,
        /// Slot of the socket.
        slot: u32,
        /// All options set so far.
        options: SocketOptions,
    },
    /// No process holds the slot's socket any more (application regions only; of a live connection over the port the core sees it
    /// without a message, and the service sweeps pair slots itself). Or: the slot's connection waited to be accepted, in a pair region that the
    /// acceptor cannot map.
    Closed {
        /// Id of the region.
        region: u32,
        /// Slot of the socket.
        slot: u32,
    },
    /// The descriptor that comes with the message, a connection's, may appear in another process. The sender has set `shm::TRUST` in the
    /// socket block: from now on the service holds the connection while any process holds the descriptor. Reply `Done`.
    Leave(Left),
    /// This process has got the descriptor that comes with the message, and asks for its connection. Reply `Moved`: the service now holds
    /// the connection here too. Reply `Kernel` when there is none, `Refused` with EAGAIN while the process that has it is inside a call,
    /// with EBUSY while a ring has it, with EINPROGRESS during its handshake.
    Present {
        /// The socket block for the connection. The sender holds it, and keeps its locks until the reply has come.
        sock: u32,
    },
    /// This process has released a connection that the service also holds ([`Request::Leave`]): the service checks whether any descriptor
    /// remains. No reply.
    LetGo,
    /// Asks for a region that an accept record names and that this process has not mapped. Reply `Region` with the memfd; its side is 1 if
    /// the process may be on the acceptor's side.
    Region {
        /// Id of the region.
        region: u32,
    },
    /// Asks whether this process may choose the congestion control `name` (`TCP_CONGESTION`). Reply `Done`; or `Refused` with ENOENT if there
    /// is none of that name, with EPERM if the process may not have it.
    Congestion {
        /// The name that the program has given.
        name: CongestionName,
    },
    /// Asks for `TCP_INFO` of a connection over the port. Reply `Info`.
    Info {
        /// Id of the application region.
        region: u32,
        /// Slot of the connection.
        slot: u32,
    },
    /// A `connect` was left to the kernel, and no kernel socket listened there either: there is no connection. No reply.
    Refused,
    /// A socket was given to the kernel. No reply.
    FellBack {
        /// The reason of [`Reply::Kernel`], or one that the library has found.
        reason: KernelReason,
        /// The kernel socket's inode number, by which `explain` finds the socket.
        inode: u64,
    },
    /// The kernel has refused to bind a socket to `at`, because the port is in use. Reply `Done` if the service has held the port for
    /// connections that need it no longer, and has given it back; `Refused` if not.
    WantPort {
        /// The address that the program wants. With port 0 it wants any port, and the service gives back all that no connection needs.
        at: SocketAddr,
    },
    /// Asks for a report that is meant for people. Reply `Text` with a memfd of JSON.
    Report(Report),
}

/// The reports, and what the command line may ask the service to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Report {
    /// Every socket, with state and counters.
    Sockets,
    /// List the service's counters.
    Statistics,
    /// Close everything and exit. Only the service's own user or root.
    Shutdown,
    /// List every socket with all that is known of it, and the sockets that fell back to the kernel, by application.
    Explain,
    /// Change cycle counting, then report where threads spend their time. To change it: only the service's own user or root.
    Cycles(Counting),
    /// Read the policy file again. Only the service's own user or root.
    Reload,
    /// List sessions with other services, their channels and sockets.
    Channels,
    /// List or change what chooses congestion control.
    Congestion(Box<CongestionAsk>),
    /// Change how many cores serve flows, then list cores, groups of flows and moves. To change it: only the service's own user or root.
    Cores(CoresWish),
}

/// A change of the number of cores that serve flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CoresWish {
    /// Change nothing; only report.
    AsItIs,
    /// So many, as far as there are so many, whatever the load is.
    Fixed(u8),
    /// As many as the load needs.
    Auto,
}

/// A change of cycle counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Counting {
    /// Change nothing; only report.
    AsItIs,
    /// Start again from zero; count in windows that cover a small part of the time.
    Sampled,
    /// Start again from zero; count all the time.
    Always,
    /// Stop counting, and only report.
    Off,
}

/// The first reply to a process that has registered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// This process's id at the service.
    pub application: u32,
    /// Secret that a forked child of this process shows in [`Parent`].
    pub secret: u64,
    /// Number of this process's bit in `SockBlock::holders`.
    pub holder: u8,
    /// The service's settings for the library.
    pub settings: Settings,
}

/// The service's configuration, as far as libraries need it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Addresses that belong to the service, with prefix length. The library must not ask the kernel to bind them without `IP_FREEBIND`.
    pub own: Vec<(IpAddr, u8)>,
    /// True when connections may leave through a port; false: only sockets within this host can be accelerated.
    pub has_port: bool,
    /// Largest send ring that a sender may lend itself, bytes.
    pub ring_max: u32,
    /// Longest time to spin before sleeping, nanoseconds; 0: do not spin.
    pub spin_ns: u64,
    /// Number of fast-path cores.
    pub cores: u8,
}

/// The replies.
/// New variants come last: a library of another version must still be able to read `Refused`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The process is registered.
    Welcome(Welcome),
    /// A region; its memfd comes with the message unless the receiver has the region already.
    Region(RegionInfo),
    /// The request is done; descriptors come as the request says.
    Done,
    /// The socket listens. The accept queue's memory comes with the message unless this process has it already.
    Listening {
        /// Id of the accept queue.
        queue: u32,
        /// True when the service knows the socket, and so its options, already.
        is_known: bool,
    },
    /// The kernel must serve this socket.
    Kernel {
        /// The reason, for `explain`.
        reason: KernelReason,
    },
    /// The connection is accelerated, within this host or over the port. It is open when the other half has `OPEN`; with `FAILED` that half
    /// carries an errno.
    Connecting {
        /// The region of the connection; its memfd comes with the message if this process has not got it yet.
        region: RegionInfo,
        /// Slot of the connection in that region.
        slot: u32,
        /// Local address and port.
        local: SocketAddr,
        /// The grants by which this process may connect to this listener from now on without asking.
        lent: Option<Lent>,
    },
    /// The request failed with this errno.
    Refused {
        /// The errno that Linux gives in this case.
        errno: i32,
        /// The reason, for the log.
        reason: String,
    },
    /// The text is in the memfd that comes with the message.
    Text,
    /// The state and measurements that TCP has of a connection.
    Info {
        /// The values of `TCP_INFO`.
        info: Box<TcpInfo>,
        /// The congestion control's name, as `TCP_CONGESTION` gives it.
        congestion: String,
    },
    /// The connection continues at `slot` of this process's application region.
    Moved {
        /// Slot of the connection.
        slot: u32,
        /// Local address and port.
        local: SocketAddr,
        /// The peer's address and port.
        peer: SocketAddr,
        /// True when the socket has been shut for reading (`SHUT_RD`).
        shut_read: bool,
        /// True when the socket has been shut for writing (`SHUT_WR`).
        shut_write: bool,
    },
    /// Reply to `Connect`: none of these processes has waited at the listener yet. The asking process checks whether one of them has an
    /// io_uring, which may accept connections of the kernel only, and asks again with `has_looked` if none has. A process that sets
    /// `has_looked` without checking delays only its own connection.
    Look {
        /// The processes that may accept, by their own word.
        acceptors: Vec<Itself>,
    },
    /// Reply to `Unlisten`: done. Connections need the listener's port: when the process has closed the descriptor it sends the request again,
    /// so that the service holds the port.
    PortNeeded,
}

/// A process as it sees itself. A process of the same PID namespace finds it by its number; all others do not.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Itself {
    /// Inode number of its PID namespace; 0: it cannot tell.
    pub namespace: u64,
    /// Its number there; 0: it cannot tell.
    pub pid: i32,
}

/// Messages of the service that answer no request. The service rings the receiver's `CONTROL_SLOT` bit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Push {
    /// Comes with the eventfd by which the other side of `region` wakes this side's `context`. The process adds it to the set that this
    /// context sleeps on (edge-triggered; it is never read).
    Waker {
        /// Id of the pair region.
        region: u32,
        /// Number of the receiver's context.
        context: u32,
    },
    /// Every connection of this region is over: the other side died or broke the rules.
    Revoked {
        /// Id of the region.
        region: u32,
    },
    /// The service needs more present memory in an application region, the process's own or an ancestor's. The first process that reads
    /// this populates `bytes` and answers `Populated`.
    Grow {
        /// Id of the application region.
        region: u32,
        /// Number of bytes that must be present.
        bytes: u64,
    },
}
