//! Why a socket is the kernel's. The service decides, or the library; both name the reason by this list, so that `explain` has advice for
//! each.

use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};

macro_rules! reasons {
    ($($name:ident = $text:literal, $advice:expr;)+) => {
        /// Why a socket is the kernel's.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
        pub enum KernelReason {
            $(#[doc = $text] $name,)+
            /// The rule of the policy with this number, from 1, does not allow it.
            Rule(u32),
        }

        impl KernelReason {
            /// All reasons but rules of the policy.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// What would have prevented it.
            #[must_use]
            pub const fn advice(self) -> &'static str {
                match self {
                    $(Self::$name => $advice,)+
                    Self::Rule(_) => POLICY,
                }
            }
        }

        impl Display for KernelReason {
            /// The reason in words, as `towpath stat` and `towpath explain` show it.
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name => f.write_str($text),)+
                    Self::Rule(number) => write!(f, "rule {number} of the policy does not allow it"),
                }
            }
        }
    };
}

const OPTION: &str = "if the program can do without that option, the socket can be accelerated";
const LOG: &str = "`towpath stat` counts how many have this reason; the service's log (--log info) says more";
const PORT: &str = "give the service a port: `towpath up --port ...`; `towpath up --help` lists them";
const SOCKETS: &str = "raise --max-sockets or the memory limits of `towpath up`";
const SLOTS: &str = "raise --region-slots of `towpath up`";
const POLICY: &str =
    "the policy of the service says so: see `towpath explain` as its owner, and docs/policy.md";
const SERVER_RING: &str = "tell the server to use epoll instead of io_uring";
const AGAIN: &str = "nothing: the program goes on without the service; start it again for acceleration";

reasons! {
    // Within this host and over the port.
    NoListener = "no accelerated listener there", "start the server with `towpath run`, too, for the same service";
    NoPortThere = "no port leads there", PORT;
    NotOnThisHost = "the address is not on this host, and the service has no port", PORT;
    NoRoute = "no route through the port", "see the service's --address and --gateway";
    NoHeldPorts = "the service holds no ports in its network namespace, and the socket is bound to none",
        "let the program bind its socket, or start the service in the program's network namespace";
    // Namespaces and claims.
    OtherNamespace = "its network namespace is not the service's",
        "start a service in that network namespace, or let the policy name it";
    NotListening = "the service does not see that socket listening", LOG;
    OtherQueue = "its accept queue is another's by now", LOG;
    NothingLeft = "no connection was left behind that descriptor", LOG;
    // Limits.
    TooManySockets = "the application has as many sockets as it may", SOCKETS;
    TooMuchMemory = "the application has as much shared memory as it may", SOCKETS;
    TooManyProcesses = "the listening program has almost as many processes as it may",
        "use fewer processes, or threads: a program and what it forks may be 63 processes";
    TooManyFlows = "its user has as many connections over the port as one user may", "raise --flows of `towpath up`";
    PairRegionFull = "the pair region is full", SLOTS;
    RegionFull = "its region is full", SLOTS;
    ApplicationRegionFull = "an application region is full", SLOTS;
    NotMapped = "its region is not mapped", LOG;
    NoSharedMemory = "the system gives no memory to share", "raise the memory limits of the service";
    ServiceDescriptors = "the service is out of descriptors", "raise the service's limit of descriptors (ulimit -n)";
    NoDescriptor = "no descriptor is left for its memory", "raise the program's limit of descriptors (ulimit -n)";
    // The policy.
    PolicyRate = "the user begins as many connections per second as the policy allows", POLICY;
    PolicyConnections = "the user has as many connections as the policy allows", POLICY;
    PolicyMemory = "the user has as much shared memory as the policy allows", POLICY;
    // What the library finds.
    NoService = "no service answers", "start one with `towpath up`, or use `towpath run`, which starts one";
    Seccomp = "seccomp", AGAIN;
    IoUring = "io_uring",
        "tell the program to use epoll instead of io_uring, or `towpath run --io-uring deny` if it can do without";
    ListenerHasRing = "its listener has an io_uring, and waits by no call that is seen", SERVER_RING;
    ListenerUnseen = "its listener has not waited yet, and this program may not see whether it has an io_uring",
        "connect when the server waits: later connections are accelerated";
    Epoll = "epoll by system calls of the program's own",
        "build the program so that it waits by the C library (Rust's rustix: --cfg rustix_use_libc)";
    // What the program asks for.
    HasListened = "it has listened before", "let the program connect by a new socket";
    Mptcp = "MPTCP", "turn multipath TCP off in the program (for Go: GODEBUG=multipathtcp=0)";
    FastOpen = "MSG_FASTOPEN", OPTION;
    BindToDevice = "SO_BINDTODEVICE", OPTION;
    AttachFilter = "SO_ATTACH_FILTER", OPTION;
    AttachBpf = "SO_ATTACH_BPF", OPTION;
    Timestamping = "SO_TIMESTAMPING", OPTION;
    PeekOffset = "SO_PEEK_OFF", OPTION;
    Transparent = "IP_TRANSPARENT", OPTION;
    Ulp = "TCP_ULP", OPTION;
    Repair = "TCP_REPAIR", OPTION;
    Md5 = "TCP_MD5SIG", OPTION;
    FastOpenConnect = "TCP_FASTOPEN_CONNECT", OPTION;
    Congestion = "TCP_CONGESTION", OPTION;
    // One more limit.
    TooManyListeners = "its user has as many listeners at one port number as one user may",
        "use fewer listening sockets with SO_REUSEPORT: one for each processor is enough";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_reason_has_a_text_of_its_own_and_advice() {
        let texts: BTreeSet<String> = KernelReason::ALL.iter().map(KernelReason::to_string).collect();
        assert_eq!(texts.len(), KernelReason::ALL.len());
        assert!(KernelReason::ALL.iter().all(|reason| !reason.advice().is_empty()));
    }
}
