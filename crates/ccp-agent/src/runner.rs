//! An agent at a UNIX datagram socket: the only file of this crate that waits and reads a clock. Either side may start first, and each may
//! restart: datapaths knock until the agent answers, and the agent answers any address.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time;

use base::{Duration, Instant};

use crate::OUTGOING_MAX;
use crate::agent::Agent;
use crate::desk::Outgoing;
use crate::event::Event;

/// The path at which datapaths of Portus look for an agent.
pub const PATH: &str = "/tmp/ccp/portus";
/// Bytes of a datagram from a datapath at most; ours send 1000, libccp's at most 4096.
const RECEIVE_MAX: usize = 4096;
/// The longest wait for a datagram, so that a request to stop is seen.
const WAIT_MAX: Duration = Duration::from_ms(100);
/// The wait for room in a datapath's socket.
const SEND_WAIT: time::Duration = time::Duration::from_millis(1);
/// The wait for a datagram while others wait for room.
const RETRY: Duration = Duration::from_ms(1);

/// A datagram of a datapath.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Heard {
    from: Vec<u8>,
    bytes: Vec<u8>,
}

/// A bound socket, and datagrams that found no room.
#[derive(Debug)]
pub struct Runner {
    socket: UnixDatagram,
    path: PathBuf,
    began: time::Instant,
    waiting: VecDeque<Outgoing>,
}

impl Runner {
    /// Binds the agent's socket. A socket file that no process reads any more makes room.
    ///
    /// # Errors
    /// If another process reads at `path`, or the path cannot be bound.
    pub fn bind(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        remove_dead(path)?;
        let socket = UnixDatagram::bind(path)?;
        socket.set_write_timeout(Some(SEND_WAIT))?;
        let began = time::Instant::now();
        Ok(Self { socket, path: path.to_owned(), began, waiting: VecDeque::new() })
    }

    /// Serves datapaths until `is_over` says so. `log` gets each event.
    ///
    /// # Errors
    /// If the socket cannot be read any more.
    pub fn run(
        &mut self,
        agent: &mut Agent,
        is_over: &dyn Fn() -> bool,
        log: &mut dyn FnMut(&Event),
    ) -> io::Result<()> {
        while !is_over() {
            self.step(agent, log)?;
        }
        Ok(())
    }

    /// Waits for one datagram, a timer or 100 ms, handles it, and sends what may go.
    ///
    /// # Errors
    /// If the socket cannot be read any more.
    pub fn step(&mut self, agent: &mut Agent, log: &mut dyn FnMut(&Event)) -> io::Result<()> {
        let heard = self.wait(agent.next_deadline())?;
        self.serve(agent, heard, log);
        Ok(())
    }

    /// The first half of [`Self::step`], which needs no agent: waits for one datagram until `deadline`, at most 100 ms.
    ///
    /// # Errors
    /// If the socket cannot be read any more.
    pub fn wait(&mut self, deadline: Instant) -> io::Result<Option<Heard>> {
        let now = self.now();
        let most = if self.waiting.is_empty() { WAIT_MAX } else { RETRY };
        let wait = deadline.since(now).min(most);
        // A timeout of zero would wait for ever.
        let wait = time::Duration::from_nanos(wait.as_ns().max(1_000));
        self.socket.set_read_timeout(Some(wait))?;
        let mut buffer = [0; RECEIVE_MAX];
        match self.socket.recv_from(&mut buffer) {
            Ok((len, from)) => Ok(from.as_pathname().map(|path| Heard {
                from: path.as_os_str().as_bytes().to_vec(),
                bytes: buffer[..len].to_vec(),
            })),
            Err(why) if is_pause(&why) => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// The second half: hands the datagram to the agent, has it do what is due, and sends what may go. `log` gets each event.
    pub fn serve(&mut self, agent: &mut Agent, heard: Option<Heard>, log: &mut dyn FnMut(&Event)) {
        if let Some(Heard { from, bytes }) = heard {
            agent.receive(self.now(), &from, &bytes);
        }
        agent.drive(self.now());
        self.send_all(agent);
        while let Some(event) = agent.poll_event() {
            log(&event);
        }
    }

    fn now(&self) -> Instant {
        Instant::from_ns(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Sends in order. A datapath with a full socket holds up its own datagrams only.
    fn send_all(&mut self, agent: &mut Agent) {
        let room = OUTGOING_MAX.saturating_sub(self.waiting.len());
        self.waiting.extend(std::iter::from_fn(|| agent.poll_outgoing()).take(room));
        let mut full = BTreeSet::new();
        let mut kept = VecDeque::new();
        while let Some(outgoing) = self.waiting.pop_front() {
            if full.contains(&outgoing.to) {
                kept.push_back(outgoing);
                continue;
            }
            match self.socket.send_to(&outgoing.bytes, Path::new(std::ffi::OsStr::from_bytes(&outgoing.to))) {
                Ok(_) => {}
                Err(why) if is_pause(&why) => {
                    full.insert(outgoing.to.clone());
                    kept.push_back(outgoing);
                }
                Err(_) => {
                    agent.gone(self.now(), &outgoing.to);
                    self.waiting.retain(|other| other.to != outgoing.to);
                    kept.retain(|other| other.to != outgoing.to);
                }
            }
        }
        self.waiting = kept;
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // The next agent would remove it, too.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn is_pause(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// Removes a socket file that no process reads. Any other file stays.
fn remove_dead(path: &Path) -> io::Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket"));
    }
    match UnixDatagram::unbound()?.connect(path) {
        Ok(()) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another agent reads at this path")),
        Err(_) => std::fs::remove_file(path),
    }
}
