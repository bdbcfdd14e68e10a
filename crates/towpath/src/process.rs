//! Information about a process from `/proc`: its kernel sockets, whether the library is loaded in it, and if not, why.

use crate::program::{Unseen, unseen_format};
use control::profile::{self, IO_URING_ENV, PROFILE_ENV, REQUIRE_ENV};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A kernel TCP socket of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelSocket {
    /// The lowest descriptor of the socket.
    pub fd: u32,
    /// The socket's inode number.
    pub inode: u64,
    /// The socket's line in the kernel's list; `None` if it is not listed.
    pub line: Option<Line>,
}

/// A line of `/proc/net/tcp` or `/proc/net/tcp6`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// The TCP state as `ss` names it.
    pub state: &'static str,
    /// The local address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// Bytes sent or queued and not acknowledged.
    pub send_queue: u64,
    /// Bytes not read; for a listener: connections not accepted.
    pub recv_queue: u64,
}

/// The kind of reason why the library does nothing in a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The library cannot see the program's calls.
    Unseen,
    /// The process uses another service.
    Elsewhere,
    /// The process used a service that does not exist any more.
    Gone,
    /// Another reason; the cause may be that no service answers.
    Other,
}

/// The reason why the library does nothing in a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Absence {
    /// The kind of the reason.
    pub cause: Cause,
    /// The reason as text.
    pub reason: String,
    /// Advice for the reader.
    pub advice: String,
}

/// A process, with the environment it was started with.
#[derive(Debug)]
pub struct Process {
    folder: PathBuf,
    environment: std::io::Result<BTreeMap<String, String>>,
}

const STATES: [&str; 13] = [
    "?",
    "ESTABLISHED",
    "SYN-SENT",
    "SYN-RECV",
    "FIN-WAIT-1",
    "FIN-WAIT-2",
    "TIME-WAIT",
    "CLOSED",
    "CLOSE-WAIT",
    "LAST-ACK",
    "LISTEN",
    "CLOSING",
    "SYN-RECV",
];

impl Process {
    /// The ids of all processes in `/proc`, sorted.
    pub fn all() -> Vec<i32> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
        let mut pids: Vec<i32> = entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
        pids.sort_unstable();
        pids
    }

    /// The process with this id; `None` if it does not exist.
    pub fn new(pid: i32) -> Option<Self> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        folder.is_dir().then(|| {
            let environment = std::fs::read(folder.join("environ")).map(|bytes| parse_environment(&bytes));
            Self { folder, environment }
        })
    }

    /// The name of the process's command.
    pub fn name(&self) -> String {
        let name = std::fs::read_to_string(self.folder.join("comm")).unwrap_or_default();
        service::report::text::bounded(name.trim_end(), 64)
    }

    /// True if this is the name of the process's program: of the command as the kernel keeps it, of its first argument, or of its file.
    pub fn is_called(&self, name: &str) -> bool {
        let comm = std::fs::read_to_string(self.folder.join("comm")).unwrap_or_default();
        if name == comm.trim_end_matches('\n') {
            return true;
        }
        let line = std::fs::read(self.folder.join("cmdline")).unwrap_or_default();
        let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
        let is_file =
            |path: &Path| path.file_name().is_some_and(|file| file.as_encoded_bytes() == name.as_bytes());
        is_file(Path::new(std::ffi::OsStr::from_bytes(first)))
            || std::fs::read_link(self.folder.join("exe")).is_ok_and(|path| is_file(&path))
    }

    /// The variables and the profile that the process was started with, if they have an effect.
    pub fn settings(&self) -> BTreeMap<String, String> {
        let Ok(environment) = &self.environment else { return BTreeMap::new() };
        let own = [PROFILE_ENV, REQUIRE_ENV, IO_URING_ENV, "TOWPATH_DISABLE"];
        let knobs = profile::PROFILES.iter().flat_map(|p| p.knobs).map(|knob| knob.variable);
        let value = |name: &str| {
            let value = profile::setting_in(name, |name| environment.get(name).cloned())?;
            Some((name.to_owned(), value))
        };
        own.into_iter().chain(knobs).filter_map(value).collect()
    }

    /// The kernel TCP sockets of the process, and sockets that the kernel lists nowhere if `wanted` (descriptor, inode) is true for them.
    ///
    /// # Errors
    /// When the descriptors of the process may not be read.
    pub fn kernel_sockets(&self, wanted: impl Fn(u32, u64) -> bool) -> std::io::Result<Vec<KernelSocket>> {
        let mut held = BTreeMap::new();
        for entry in std::fs::read_dir(self.folder.join("fd"))?.filter_map(Result::ok) {
            let fd: Option<u32> = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let target = std::fs::read_link(entry.path()).ok();
            let inode = target.as_deref().and_then(Path::to_str).and_then(inode_of);
            if let (Some(fd), Some(inode)) = (fd, inode) {
                let least = held.entry(inode).or_insert(fd);
                *least = fd.min(*least);
            }
        }
        let mut listed = BTreeMap::new();
        for table in ["net/tcp", "net/tcp6"] {
            let text = std::fs::read_to_string(self.folder.join(table)).unwrap_or_default();
            listed.extend(text.lines().skip(1).filter_map(parse_line));
        }
        let sockets =
            held.into_iter().map(|(inode, fd)| KernelSocket { fd, inode, line: listed.remove(&inode) });
        let mut sockets: Vec<_> = sockets.filter(|s| s.line.is_some() || wanted(s.fd, s.inode)).collect();
        sockets.sort_by_key(|socket| socket.fd);
        Ok(sockets)
    }

    /// The reason why the service at `control` (if there is one) does not know the process.
    pub fn absence(&self, control: &Path) -> Absence {
        let because = |cause: Cause, reason: &str, advice: &str| Absence {
            cause,
            reason: reason.into(),
            advice: advice.into(),
        };
        if let Some(why) = self.unseen() {
            return because(Cause::Unseen, &format!("the program {}", why.what()), why.advice());
        }
        let environment = match &self.environment {
            Ok(environment) => environment,
            Err(e) if Errno::from_io_error(e) == Some(Errno::ACCESS) => {
                return because(
                    Cause::Other,
                    "it is another user's: nothing can be seen of it",
                    "ask as that user, or as root",
                );
            }
            Err(_) => return because(Cause::Other, "it has ended", "look at a process that lives"),
        };
        let value = |name: &str| environment.get(name).map(String::as_str).filter(|value| !value.is_empty());
        let is_loaded = self.maps("libtowpath_preload");
        let asks_for = value("LD_PRELOAD").is_some_and(|list| list.contains("libtowpath_preload"));
        let other = value(control::CONTROL_ENV).filter(|path| Path::new(path) != control);
        match () {
            () if is_loaded && value("TOWPATH_DISABLE").is_some_and(|v| v != "0") => because(
                Cause::Other,
                "TOWPATH_DISABLE is set: every call goes to the kernel",
                "start it without that variable",
            ),
            () if is_loaded && other.is_some() => because(
                Cause::Elsewhere,
                &format!("its library talks to another service, at {}", other.unwrap_or_default()),
                "ask that service: towpath explain --control PATH PID",
            ),
            () if is_loaded && self.has_registered() => because(
                Cause::Gone,
                "the service which had its connections is gone, and they are reset; what it opens without a service is the \
                 kernel's",
                "start a service at the same place, if none answers: the next connect or listen of the program uses it",
            ),
            () if is_loaded => because(
                Cause::Other,
                "the library is loaded and has not registered: no TCP socket was connected or listened on yet, or no \
                 service answered then",
                "nothing, if a service answers now: the next connect or listen registers it",
            ),
            () if asks_for => because(
                Cause::Other,
                "LD_PRELOAD names the library, and the loader has not loaded it",
                "look for the loader's complaint on its standard error",
            ),
            () => because(
                Cause::Other,
                "it was started without the library: LD_PRELOAD does not name it",
                "start it again with `towpath run -- COMMAND`",
            ),
        }
    }

    fn maps(&self, name: &str) -> bool {
        std::fs::read_to_string(self.folder.join("maps")).is_ok_and(|maps| maps.contains(name))
    }

    /// True if the process was registered with a service: it still maps that service's memory, even after the service's end.
    pub fn has_registered(&self) -> bool {
        self.maps("/memfd:towpath-region")
    }

    /// True if the process was told to use the service at `control`.
    pub fn uses(&self, control: &Path) -> bool {
        let Ok(environment) = &self.environment else { return false };
        let named = environment.get(control::CONTROL_ENV).filter(|path| !path.is_empty());
        named.map_or_else(control::own_control_path, PathBuf::from) == control
    }

    /// True if the descriptor is a TCP socket, connected or not.
    pub fn is_tcp(&self, fd: u32) -> bool {
        let mut name = [0u8; 16];
        let path = self.folder.join(format!("fd/{fd}"));
        rustix::fs::getxattr(path, "system.sockprotoname", &mut name[..])
            .is_ok_and(|n| name.get(..n).is_some_and(|name| name.starts_with(b"TCP")))
    }

    /// The reason why a preloaded library does not see the program's calls, if any.
    pub fn unseen(&self) -> Option<Unseen> {
        let exe = self.folder.join("exe");
        let by_format = unseen_format(&exe);
        let is_secure = std::fs::read(self.folder.join("auxv")).is_ok_and(|vector| is_secure(&vector));
        by_format.or(is_secure.then_some(Unseen::Privileged))
    }
}

fn parse_environment(bytes: &[u8]) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(bytes);
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// True if `AT_SECURE` is set in this auxiliary vector (pairs of 64-bit words).
fn is_secure(vector: &[u8]) -> bool {
    const AT_SECURE: u64 = 23;
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
    vector.chunks_exact(16).any(|pair| word(&pair[..8]) == AT_SECURE && word(&pair[8..]) != 0)
}

/// The inode number in a link such as `socket:[123]`.
fn inode_of(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Parses a line: inode number, and the other fields. Columns: `sl local remote state tx:rx tr:when retransmits uid timeout inode`.
fn parse_line(line: &str) -> Option<(u64, Line)> {
    let columns: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, local, remote, state, queues, ..] = columns[..] else { return None };
    let (send, receive) = queues.split_once(':')?;
    let state = usize::from_str_radix(state, 16).ok()?;
    let line = Line {
        state: STATES.get(state).copied().unwrap_or(STATES[0]),
        local: parse_address(local)?,
        remote: parse_address(remote)?,
        send_queue: u64::from_str_radix(send, 16).ok()?,
        recv_queue: u64::from_str_radix(receive, 16).ok()?,
    };
    Some((columns.get(9)?.parse().ok()?, line))
}

/// Parses an address, which is in words of this machine's byte order. An IPv4-mapped address becomes IPv4.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let words = (0..ip.len() / 8).map(|i| u32::from_str_radix(ip.get(i * 8..i * 8 + 8)?, 16).ok());
    let bytes: Vec<u8> =
        words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let ip = match <[u8; 16]>::try_from(&bytes[..]) {
        Ok(bytes) => IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical(),
        Err(_) => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[..]).ok()?)),
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn the_kernel_sockets_of_a_process_are_found_by_descriptor() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let stream = TcpStream::connect(at).unwrap();
        let sockets = Process::new(std::process::id() as i32).unwrap().kernel_sockets(|_, _| false).unwrap();
        let of = |fd: i32| sockets.iter().find(|s| s.fd == fd as u32).and_then(|s| s.line.clone()).unwrap();
        assert_eq!((of(listener.as_raw_fd()).state, of(listener.as_raw_fd()).local), ("LISTEN", at));
        let connected = of(stream.as_raw_fd());
        let ends = (stream.local_addr().unwrap(), at);
        assert_eq!((connected.state, (connected.local, connected.remote)), ("ESTABLISHED", ends));
    }

    #[test]
    fn a_process_is_called_as_its_file_its_first_argument_or_its_command() {
        use std::os::unix::process::CommandExt;
        let mut sleep = std::process::Command::new("sleep");
        let mut child = sleep.arg0("/somewhere/a-name-that-is-longer-than-15").arg("100").spawn().unwrap();
        let process = Process::new(child.id() as i32).unwrap();
        // The kernel lets this process go on before it has put the arguments there.
        while std::fs::read(process.folder.join("cmdline")).unwrap().is_empty() {
            std::thread::yield_now();
        }
        let is = ["sleep", "a-name-that-is-longer-than-15", "a-name-that-is-", "slee", ""]
            .map(|name| process.is_called(name));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(is, [true, true, false, false, false]);
    }

    #[test]
    fn a_tcp_socket_without_a_connection_is_known_as_one() {
        use rustix::net::{AddressFamily, SocketType, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None);
        let (socket, datagrams) = (socket.unwrap(), std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        let own = Process::new(std::process::id() as i32).unwrap();
        assert!(own.is_tcp(socket.as_raw_fd() as u32) && !own.is_tcp(datagrams.as_raw_fd() as u32));
        let found = own.kernel_sockets(|fd, _| own.is_tcp(fd)).unwrap();
        let of = |fd: i32| found.iter().find(|s| s.fd == fd as u32);
        assert!(of(socket.as_raw_fd()).is_some_and(|s| s.line.is_none()), "the kernel lists it nowhere");
        assert!(of(datagrams.as_raw_fd()).is_none());
        assert!(Process::all().contains(&(std::process::id() as i32)));
    }

    #[test]
    fn a_line_of_the_kernels_table_reads_as_it_means() {
        let text = "   1: 0100007F:1F90 0200000A:0050 08 0000000A:00000014 00:00000000 00000000  1000        0 4711 1 0 20";
        let (inode, line) = parse_line(text).unwrap();
        assert_eq!((inode, line.state, line.send_queue, line.recv_queue), (4711, "CLOSE-WAIT", 10, 20));
        if cfg!(target_endian = "little") {
            assert_eq!(
                (line.local.to_string(), line.remote.to_string()),
                ("127.0.0.1:8080".into(), "10.0.0.2:80".into())
            );
        }
        let mapped = parse_address("0000000000000000FFFF00000100007F:0016").unwrap();
        assert!(mapped.is_ipv4() || cfg!(target_endian = "big"));
        for bad in ["", "1:", "1: zz zz 01 0:0", "1: 0100007F:1F90 0200000A:0050 01 0:0", "sl local"] {
            assert_eq!(parse_line(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_process_without_the_library_says_what_to_do() {
        let own = Process::new(std::process::id() as i32).unwrap();
        let absence = own.absence(Path::new("/nowhere"));
        assert!(absence.advice.contains("towpath run"), "{absence:?}");
        assert!(Process::new(i32::MAX).is_none());
        let vector = |key: u64, value: u64| [0u64, 0, key, value].map(u64::to_ne_bytes).concat();
        assert!(is_secure(&vector(23, 1)) && !is_secure(&vector(23, 0)) && !is_secure(&vector(22, 1)));
        assert!(!is_secure(&[1, 2, 3]));
    }
}
