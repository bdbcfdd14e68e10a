//! The messages. Each request carries a number; its reply repeats it. Number 0 is a push, which nobody asked for.

use crate::TcpInfo;
use serde::{Deserialize, Serialize};
use shm::{Kind, Params};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Version of these messages. Both sides refuse another one, with a line that says which.
pub const PROTOCOL: u32 = 15;
/// Slot 0 of an application region is no connection: its bit says "read the control socket".
pub const CONTROL_SLOT: u32 = 0;
/// The service-side context that the slow path watches; contexts 0.. are the fast-path cores.
pub const SLOW_CONTEXT: u32 = 255;
/// The service-side context that has a bit for each socket block whose socket holds bytes back; whoever finds it asleep rings the slow path.
pub const HELD_CONTEXT: u32 = 253;
/// The application-side context on which the service itself is told, in the name of a process that let a connection go.
pub const TRUST_CONTEXT: u32 = 254;

/// Why a connection inside this host is the kernel's, when nobody accelerated listens there: as the service says it.
pub const NO_LISTENER: &str = "no accelerated listener there";

/// From application or command line to service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ToService {
    /// Repeated by the reply; 0 asks for none.
    pub number: u32,
    /// What is asked.
    pub request: Request,
}

/// From service to application or command line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToApplication {
    /// Answer to the request of that number.
    Reply(u32, Reply),
    /// Unasked.
    Push(Push),
}

/// A forked child names its parent's registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Parent {
    /// The parent's application id.
    pub application: u32,
    /// The parent's secret, inherited by fork.
    pub secret: u64,
    /// The holder bit that the parent set for the child on every socket before forking.
    pub holder: u8,
}

/// A region as announced; the memfd comes with the message when the receiver does not have it yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionInfo {
    /// The service's name for it; never 0.
    pub id: u32,
    /// True for a pair region.
    pub pair: bool,
    /// Number of slots.
    pub slots: u32,
    /// Payload bytes per side.
    pub data_len: u64,
    /// The receiver's side.
    pub side: u8,
    /// It goes with the receiver; else with a process that it descends from.
    pub is_own: bool,
}

/// How many bytes of an application region are to be present when `present` are too few, and `limit` are all there can be: twice as
/// many, and so many at once that a program which begins to do something in earnest asks once.
#[must_use]
pub fn grown(present: u64, limit: u64) -> u64 {
    const LEAST: u64 = 1 << 20;
    (2 * present).max(LEAST).min(limit)
}

impl RegionInfo {
    /// As the parameters that `Region::open` wants.
    #[must_use]
    pub fn params(&self) -> Params {
        let kind = if self.pair { Kind::Pair } else { Kind::Application };
        Params { kind, id: u64::from(self.id), slots: self.slots, data_len: self.data_len }
    }
}

/// What a socket was told that the service's TCP obeys. 0: as the service's configuration says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SocketOptions {
    /// `SO_KEEPALIVE`.
    pub keep_alive: bool,
    /// `TCP_KEEPIDLE`, seconds.
    pub keep_idle: u16,
    /// `TCP_KEEPINTVL`, seconds.
    pub keep_interval: u16,
    /// `TCP_KEEPCNT`.
    pub keep_count: u8,
    /// `TCP_USER_TIMEOUT`, milliseconds.
    pub user_timeout: u32,
    /// `TCP_MAXSEG`.
    pub max_segment: u16,
    /// `SO_RCVBUF`, bytes.
    pub receive_buffer: u32,
    /// `SO_MAX_PACING_RATE`, bytes per second; 0: no limit.
    pub max_pacing_rate: u64,
    /// `TCP_LINGER2`, seconds; negative: a connection that nobody holds any more does not wait for its peer's FIN.
    pub linger2: i16,
    /// `TCP_SYNCNT`.
    pub syn_count: u8,
    /// `TCP_DEFER_ACCEPT`, seconds.
    pub defer_accept: u16,
    /// `TCP_CONGESTION`.
    pub congestion: Congestion,
    /// `IP_TOS`.
    pub tos: u8,
    /// `IPV6_TCLASS`.
    pub traffic_class: u8,
    /// `IP_MTU_DISCOVER` is `IP_PMTUDISC_DONT`.
    pub may_fragment: bool,
}

/// `TCP_CONGESTION`: the names that the service's TCP knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Congestion {
    /// As configured.
    #[default]
    Unset,
    /// `reno`
    Reno,
    /// `cubic`
    Cubic,
    /// `dctcp`
    Dctcp,
}

/// A connection whose descriptor may turn up in another process: after `exec`, or by `SCM_RIGHTS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Left {
    /// Where it lives.
    pub region: u32,
    /// Its slot there.
    pub slot: u32,
    /// The side of whoever leaves it.
    pub side: u8,
    /// The application region that holds the socket block.
    pub home: u32,
    /// The socket block.
    pub sock: u32,
}

/// A slot for a connection that a process makes to one listener without asking, and the port that the connection comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// The slot of the pair region.
    pub slot: u32,
    /// The connector's port, which no other connection to that listener has.
    pub port: u16,
}

/// By this a process connects to one listener of another process of its user without asking: a line and slots of their pair region.
///
/// ```text
///   connector: takes a granted slot with both ends released, clears it, opens both ends
///              writes the record into the line's stream         -->  acceptor: takes it out of the line, as out of its queue
/// ```
/// The acceptor takes only the slot from the record: which addresses the connection has the service tells it ([`Request::Grants`]).
/// The line may be used while the acceptor's half of it says `OPEN` and neither `FIN` (others listen there, too: ask) nor
/// `READ_CLOSED` (nothing listens any more).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lent {
    /// The line's slot.
    pub line: u32,
    /// Records in it at most.
    pub most: u32,
    /// The address that the connections come from.
    pub source: IpAddr,
    /// Further slots for connections of this process by this line.
    pub grants: Vec<Grant>,
}

/// Why an accept queue ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Unlisten {
    /// The process has closed the socket: whoever it has forked goes on with the queue, unless somebody has one of his own already.
    Closed,
    /// The process leaves connections there to the kernel. Others who have queues of their own go on.
    GivenUp,
    /// The socket listens no more, or it is the kernel's for all who have it: what waits in any of its queues is reset.
    Stopped,
}

/// What is asked of the service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// First message of an application process.
    Hello {
        /// [`PROTOCOL`] of the sender.
        protocol: u32,
        /// `shm::VERSION` of the sender.
        layout: u32,
        /// The command's name, as in `/proc/PID/comm`; at most 32 bytes are kept.
        name: Arc<str>,
        /// Set in a forked child.
        parent: Option<Parent>,
    },
    /// Asks for this process's application region. Reply `Region` with the memfd and the service's eventfds: first the
    /// slow path's, then one per fast-path core.
    OpenRegion {
        /// Bytes of address space that the process may yet take (`RLIMIT_AS`); `u64::MAX`: no limit. Where regions of the usual size
        /// have no place it gets a smaller one, and shares none.
        room: u64,
    },
    /// The process has limited itself: `room` is what it says in `OpenRegion`, from now on. No answer.
    Room {
        /// As there.
        room: u64,
    },
    /// This process has mapped the region, and sealed it if it is an application region of its own. The service has a pair region sealed
    /// when every party has mapped it.
    Mapped {
        /// Which.
        region: u32,
    },
    /// A new context of this process. Reply `Done` with the eventfd by which the service wakes it.
    Context {
        /// Its number, taken in the region header's `context_taken`.
        context: u32,
    },
    /// Asks for the eventfd that wakes `context` of the other side of a pair region, which sleeps right now: the
    /// service wakes it this time. Reply `Done` with the eventfd; the sleeper gets `Push::Waker` with the same one.
    Waker {
        /// Which pair region.
        region: u32,
        /// The other side's context.
        context: u32,
    },
    /// The process has made the first `bytes` of both data areas of an application region, its own or an ancestor's, present
    /// (`Region::populate`). The service lends and reads nothing beyond.
    Populated {
        /// Which region.
        region: u32,
        /// A multiple of 64 KiB.
        bytes: u64,
    },
    /// The kernel socket that is shown listens, which the kernel says, as it says where; accelerated connections to it are wanted too.
    /// Repeated with another backlog it changes the backlog. Answered by `Joined` where other processes listen by that socket, or have.
    Listen {
        /// The socket block.
        sock: u32,
        /// As given to `listen`, already clamped to `somaxconn`.
        backlog: u32,
    },
    /// A forked child wants connections of a listener that its parent (or ancestor) has registered.
    ShareListener {
        /// The ancestor's region.
        region: u32,
        /// The listener's slot there.
        slot: u32,
    },
    /// An accept queue of this process, or of an ancestor, ends. Answered by `Listening` where it stays.
    Unlisten {
        /// Its region.
        region: u32,
        /// Its slot.
        slot: u32,
        /// Why.
        because: Unlisten,
    },
    /// A connection that is deferred has said something, or its end.
    Announce {
        /// Its region.
        region: u32,
        /// Its slot.
        slot: u32,
    },
    /// A connection is wanted. A socket that is bound is shown: its address is what the kernel says. Without one the service chooses
    /// address and port, in the network namespace in which the control line was made.
    Connect {
        /// Where to.
        remote: SocketAddr,
        /// What the socket was told before.
        options: SocketOptions,
        /// None of the processes that [`Reply::Look`] has named has an io_uring.
        has_looked: bool,
    },
    /// Asks which connections the other side of a pair region may make by a line. Reply `Grants`: those in `slot` and, as far as one message
    /// takes them, in slots behind it.
    Grants {
        /// The pair region that the line is in.
        region: u32,
        /// The slot in which the line's stream is.
        line: u32,
        /// The first slot to be told of.
        slot: u32,
    },
    /// The socket at `slot` of this process's application region, a connection over the port or a listener, was told
    /// something. No reply.
    SetOptions {
        /// Which region.
        region: u32,
        /// Which slot.
        slot: u32,
        /// All it was told so far.
        options: SocketOptions,
    },
    /// The slot's socket has no holder any more (application region; pair slots are swept by the service). Or it waited to be accepted,
    /// in a pair region for which the acceptor has no place.
    Closed {
        /// Which region.
        region: u32,
        /// Which slot.
        slot: u32,
    },
    /// The connection's descriptor, which comes along, may turn up in another process. The sender has set `shm::TRUST` in the
    /// socket block: from now on the service holds the connection as long as anybody holds the descriptor. Reply `Done`.
    Leave(Left),
    /// This process has got the descriptor that comes along and asks for the connection behind it. Reply `Moved`, and the service
    /// holds it here, too; `Kernel` when there is none, `Refused` with EAGAIN when whoever has it is in the middle of a call.
    Present {
        /// The socket block it is to have. The sender holds it, and holds its locks until the answer is there.
        sock: u32,
    },
    /// Of a socket that the service holds only the service's hold remains here. No reply.
    LetGo,
    /// Asks for a region named by an accept record that this process has not mapped. Reply `Region` with the memfd.
    Region {
        /// Which.
        region: u32,
    },
    /// Asks for `TCP_INFO` of a connection over the port. Reply `Info`.
    Info {
        /// Which region.
        region: u32,
        /// Which slot.
        slot: u32,
    },
    /// A `connect` was left to the kernel, where nobody listened either: no connection came of it. No reply.
    Refused,
    /// A socket went to the kernel. No reply.
    FellBack {
        /// As the service gave it with `Reply::Kernel`, or a word or a few: `"io_uring"`, `"SO_BINDTODEVICE"`.
        reason: String,
        /// The kernel socket's inode, by which `explain` knows it again.
        inode: u64,
    },
    /// For people: reply `Text` with a memfd of JSON.
    Report(Report),
}

/// What people ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Report {
    /// Every socket.
    Sockets,
    /// Counters.
    Statistics,
    /// Leave: close everything and exit. Only the service's own user or root.
    Shutdown,
    /// Every socket with all that is known of it, and the sockets that fell back, by application.
    Explain,
    /// Where the time of threads goes, after having obeyed. To turn it on or off: only the service's own user or root.
    Cycles(Counting),
    /// Read the policy file anew. Only the service's own user or root.
    Reload,
}

/// What is to become of counting cycles.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Counting {
    /// Nothing: only tell.
    AsItIs,
    /// Begin anew, in windows that are a small part of the time.
    Sampled,
    /// Begin anew, and count all the time.
    Always,
    /// End.
    Off,
}

/// What a registered process learns first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// This process's id at the service.
    pub application: u32,
    /// To be shown by its forked children.
    pub secret: u64,
    /// This process's bit in `SockBlock::holders`.
    pub holder: u8,
    /// How to behave.
    pub settings: Settings,
}

/// What the service's configuration says to libraries.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Addresses that are the service's own, with prefix length: never ask the kernel to bind these without
    /// `IP_FREEBIND`.
    pub own: Vec<(IpAddr, u8)>,
    /// True when some connections may leave through a port (else only same-host sockets can be accelerated).
    pub has_port: bool,
    /// Longest ring a sender may lend itself, bytes.
    pub ring_max: u32,
    /// Spin at most this long before sleeping, nanoseconds; 0: never.
    pub spin_ns: u64,
    /// Fast-path cores.
    pub cores: u8,
}

/// Answers.
/// New ones come last: what a library of another version reads must be `Refused`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Registered.
    Welcome(Welcome),
    /// A region, with its memfd unless the receiver has it.
    Region(RegionInfo),
    /// Done; descriptors as the request says.
    Done,
    /// Listening: accept records arrive in the stream of this slot of the application region.
    Listening {
        /// The accept queue.
        slot: u32,
    },
    /// Use the kernel for this socket.
    Kernel {
        /// Why, for `explain`.
        reason: String,
    },
    /// Accelerated, on this host or over the port. Open when the other half's `OPEN` flag is set; `FAILED` carries an errno.
    Connecting {
        /// Where the connection lives; a memfd comes along when this process has not got it yet.
        region: RegionInfo,
        /// Its slot.
        slot: u32,
        /// Local address.
        local: SocketAddr,
        /// What this process may do from now on without asking.
        lent: Option<Lent>,
        /// Its listener wants its first bytes with it (`TCP_DEFER_ACCEPT`): they are to be announced.
        deferred: bool,
    },
    /// Refused with this errno.
    Refused {
        /// As Linux gives it.
        errno: i32,
        /// For the log.
        reason: String,
    },
    /// Text follows in a memfd.
    Text,
    /// What TCP knows of the connection.
    Info {
        /// `TCP_INFO`.
        info: Box<TcpInfo>,
        /// The congestion control's name: `TCP_CONGESTION`.
        congestion: String,
    },
    /// The connection goes on at `slot` of this process's application region.
    Moved {
        /// Its slot.
        slot: u32,
        /// Local address.
        local: SocketAddr,
        /// The other end's.
        peer: SocketAddr,
        /// `SHUT_RD` was said.
        shut_read: bool,
        /// `SHUT_WR` was said.
        shut_write: bool,
    },
    /// As `Listening`: one more accept queue of a socket that was known.
    Joined {
        /// The accept queue.
        slot: u32,
        /// Its `O_NONBLOCK`, which is the library's to keep.
        nonblocking: bool,
    },
    /// Which connections may come by a line.
    Grants {
        /// The acceptor's address and port.
        local: SocketAddr,
        /// The address that they come from.
        source: IpAddr,
        /// The granted slots, each with its port.
        grants: Vec<Grant>,
    },
    /// To `Connect`: none of these processes has waited at the listener yet. The asker looks whether one of them has an io_uring, by which
    /// it may accept the kernel's connections alone, and asks again if none has. An asker that says so without having looked keeps
    /// nothing but its own connection waiting.
    Look {
        /// The asker's number. Where it has another, in a process namespace of its own, so have they.
        asker: i32,
        /// Numbers of the processes that may accept.
        acceptors: Vec<i32>,
    },
}

/// What the service says unasked. The receiver's `CONTROL_SLOT` bit is rung.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Push {
    /// With the eventfd by which the other side of `region` wakes this side's `context`: add it to what that context
    /// sleeps on (edge-triggered; never read).
    Waker {
        /// Which pair region.
        region: u32,
        /// Which of the receiver's contexts.
        context: u32,
    },
    /// Every connection of that region is over: the other side died or misbehaved.
    Revoked {
        /// Which region.
        region: u32,
    },
    /// The service lacks room in an application region, the process's own or an ancestor's: whoever hears it first populates so much
    /// and says so.
    Grow {
        /// Which region.
        region: u32,
        /// How much is to be present.
        bytes: u64,
    },
}
